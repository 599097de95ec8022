"""What stages take, planned, is what MXNet allocates for them; and where that is made even."""

from itertools import combinations, product

import mxnet as mx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mxnet import nd
from support.devices import contexts
from support.examples import examples
from support.split_memory import chain_maker, count_elsewhere, count_stages, make_pipeline_plan, max_counted_devices
from support.splits import IMAGE, chains, make_chain, softmax_loss

from gluonlab.kvstores.process_groups import SINGLE_PROCESS
from gluonlab.parallel.memory_estimate import ShardSizes
from gluonlab.parallel.pipeline.network_stages import (
    PipelineMemory,
    chain_layers,
    make_schedule,
    make_stages,
    minimize_largest_stage,
    stage_bindings,
    stage_byte_costs,
)
from gluonlab.parallel.pipeline.strategy import pipeline_parallel
from gluonlab.parallel.pipeline.verify_pipeline_schedule import peaks

WITHIN = 0.05  # of what MXNet has allocated
NOTED = 4096  # bytes: sums of losses, rates, and gaps between the parameters of a bucket
SCHEDULES = ["sequential", "gpipe", "1f1b", "interleaved"]


@st.composite
def cases(draw):
    chain, schedule = draw(chains), draw(st.sampled_from(SCHEDULES))
    per_device = 2 if schedule == "interleaved" else 1
    layers = len(chain_layers(make_chain(chain)))
    assume(layers >= 2 * per_device)
    size = draw(st.integers(2, min(layers // per_device, max_counted_devices(3))))
    numbers = st.integers(1, layers - 1)
    count = size * per_device - 1
    cut = tuple(sorted(draw(st.lists(numbers, min_size=count, max_size=count, unique=True))))
    share = draw(st.integers(100, 300))
    return {
        "chain": chain, "size": size, "microbatches": draw(st.sampled_from([None, 2, 3, 8])),
        "split": {"schedule": schedule, "stages_per_device": per_device, "cut": cut},
        "shards": ShardSizes((share, draw(st.integers(1, share)))),
    }  # fmt: skip


@pytest.mark.cpu_only("MXNet counts what CPUs have allocated")
@given(cases())
@examples(9, 15)
def test_estimated_memory_of_stages_is_what_mxnet_allocates(case):
    if mx.runtime.Features().is_enabled("CUDA"):
        return  # with that build, tests/gpus/test_stage_memory.py counts what GPUs have
    planned, in_vain, allocated = count_elsewhere(count_stages, case)
    for device in range(case["size"]):
        least = planned[device] - in_vain[device]
        numbers = (device, planned, allocated)
        assert least - NOTED < (1 + WITHIN) * allocated[device], numbers
        assert planned[device] + NOTED > (1 - WITHIN) * allocated[device], numbers


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("microbatches", [1, 2, 5])
def test_a_stage_has_a_graph_in_each_slot_of_its_schedule(schedule, microbatches):
    per_device = 2 if schedule == "interleaved" else 1
    plan = make_pipeline_plan(contexts(3), 3, microbatches, schedule=schedule, stages_per_device=per_device)
    bound = stage_bindings(ShardSizes((20, 3)), plan.microbatches, plan.split, columns=0)
    slots = [len({binding.slot for binding in of_stage}) for of_stage in bound]
    assert slots == list(peaks(make_schedule(plan.split, microbatches)))


@st.composite
def small_chains(draw):
    """A chain, how many stages, and by which schedule."""
    chain, schedule = draw(chains), draw(st.sampled_from(["sequential", "gpipe", "1f1b"]))
    layers = len(chain_layers(make_chain(chain)))
    assume(layers >= 2)
    return chain, draw(st.integers(2, min(layers, 4))), schedule


@given(small_chains(), st.integers(1, 40), st.sampled_from([None, 2, 3]))
@settings(max_examples=15, deadline=None)
@pytest.mark.long
def test_cuts_by_memory_have_the_least_largest_stage_of_all_cuts(case, share, microbatches):
    """Each cut's stages, as the plan of that cut tells them."""
    chain, size, schedule = case
    ctxs, more = contexts(size), {"schedule": schedule, "share": share}
    asked = make_pipeline_plan(ctxs, size, microbatches, balance="memory", **more)
    strategy = pipeline_parallel(chain_maker(chain), softmax_loss(), asked, SINGLE_PROCESS)
    layers = strategy._layers

    def largest(cut):
        plan = make_pipeline_plan(ctxs, size, microbatches, cut=cut, **more)
        stages = make_stages(layers, cut, softmax_loss(), plan.preprocess, plan.conversion)
        return max(map(sum, PipelineMemory(stages, softmax_loss(), plan).estimate_memory(ShardSizes((share,)))))

    best = min(map(largest, combinations(range(1, len(layers)), size - 1)))
    assert largest(tuple(strategy.cuts)) == best


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_more_layers_save_no_more_memory_than_the_savings_bound(schedule):
    """Which is what it gives on: twice for each microbatch that it has, and for each slot."""
    per_device = 2 if schedule == "interleaved" else 1
    plan = make_pipeline_plan(contexts(2), 2, 5, schedule=schedule, stages_per_device=per_device, max_shard_images=40)
    chain = ([("conv", 4), ("average", 1)], [("dense", 5), ("sigmoid", 1)], False, True)
    layers = chain_layers(make_chain(chain, contexts(1)))
    given_on = [nd.zeros((plan.microbatches.largest_part(40), *IMAGE), ctx=contexts(1)[0])]
    for layer in layers:
        given_on.append(layer(given_on[-1]))
    cost, spare = stage_byte_costs(layers, softmax_loss(), plan)
    bound = stage_bindings(ShardSizes((40,)), plan.microbatches, plan.split, columns=0)
    for stage, begin in product(range(2 * per_device), range(len(layers) - 1)):
        for end in range(begin + 1, len(layers)):
            costs = [cost(stage, begin, longer) for longer in range(end, len(layers) + 1)]
            spared, each = spare(stage, begin, end), 4 * given_on[end].size
            assert costs[0] - min(costs) <= spared <= 4 * len(bound[stage]) * each


@examples(40)
@given(
    st.lists(st.lists(st.integers(0, 50), min_size=9, max_size=9), min_size=9, max_size=9),
    st.integers(2, 8),
    st.integers(1, 4),
)
def test_the_search_minimizes_the_largest_stage_for_any_costs(numbers, layers, stages):
    """Of costs that fall with more layers, too, by at most 50, and depend on the stage."""
    assume(stages <= layers)
    tried = []

    def cost(stage, begin, end):
        tried.append((stage, begin, end))
        return 30 * (end - begin) + numbers[begin][end] + 10 * stage

    found = minimize_largest_stage(cost, layers, stages, savings=lambda stage, begin, end: 50)
    assert len(tried) == len(set(tried))

    def largest(cut):
        return max(cost(stage, begin, end) for stage, (begin, end) in enumerate(zip((0, *cut), (*cut, layers))))

    assert largest(found) == min(map(largest, combinations(range(1, layers), stages - 1)))


def test_a_stage_reports_its_share_of_time_or_memory():
    chain = ([("conv", 4), ("average", 1)], [("dense", 4)], False, True)
    for balance in ("memory", "time"):
        plan = make_pipeline_plan(contexts(4), 2, 2, schedule="1f1b", balance=balance, max_shard_images=8)
        strategy = pipeline_parallel(chain_maker(chain), softmax_loss(), plan, SINGLE_PROCESS)
        assert sum(strategy._balanced.shares) == pytest.approx(1)
        said = " ".join(line.strip() for _, line in strategy.lines())
        for number, share in enumerate(strategy._balanced.shares):
            assert f"{number} on {contexts(4)[number]} {contexts(4)[number + 2]}: layer" in said
            assert f", {100 * share:.0f} % of the {balance}" in said
    plan = make_pipeline_plan(contexts(2), 2, 2, schedule="1f1b", cut=(2,))
    strategy = pipeline_parallel(chain_maker(chain), softmax_loss(), plan, SINGLE_PROCESS)
    assert not any(" % " in line for _, line in strategy.lines())


def test_lines_fit_80_columns_however_many_copies_there_are():
    chain = ([("conv", 4), ("average", 1)], [("dense", 4)], False, True)
    plan = make_pipeline_plan(contexts(8), 2, 2, schedule="1f1b", balance="memory", max_shard_images=8)
    strategy = pipeline_parallel(chain_maker(chain), softmax_loss(), plan, SINGLE_PROCESS)
    assert all(len(f"{title:<11}{line}") <= 80 for title, line in strategy.lines())
    assert [title for title, _ in strategy.lines()].count("stages") == 1
