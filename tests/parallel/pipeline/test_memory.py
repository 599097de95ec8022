"""The planned memory of stages is what MXNet allocates; cuts by memory balance it."""

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

TOLERANCE = 0.05  # of what MXNet has allocated
SMALL_BYTES = 4096  # sums of losses, rates, and gaps between the parameters of a bucket
SCHEDULES = ["sequential", "gpipe", "1f1b", "interleaved"]


@st.composite
def cases(draw):
    chain, schedule = draw(chains), draw(st.sampled_from(SCHEDULES))
    per_device = 2 if schedule == "interleaved" else 1
    layers = len(chain_layers(make_chain(chain)))
    assume(layers >= 2 * per_device)
    size = draw(st.integers(2, min(layers // per_device, max_counted_devices(3))))
    count = size * per_device - 1
    cut = draw(st.lists(st.integers(1, layers - 1), min_size=count, max_size=count, unique=True))
    share = draw(st.integers(100, 300))
    return {
        "chain": chain, "size": size, "microbatches": draw(st.sampled_from([None, 2, 3, 8])),
        "split": {"schedule": schedule, "stages_per_device": per_device, "cut": tuple(sorted(cut))},
        "shards": ShardSizes((share, draw(st.integers(1, share)))),
    }  # fmt: skip


@pytest.mark.cpu_only("MXNet counts what CPUs have allocated")
@given(cases())
@examples(9, 15)
def test_estimated_memory_of_stages_is_what_mxnet_allocates(case):
    if mx.runtime.Features().is_enabled("CUDA"):
        return  # with that build, tests/gpus/test_stage_memory.py counts what GPUs have
    for planned, unused, allocated in zip(*count_elsewhere(count_stages, case)):
        assert planned - unused - SMALL_BYTES < (1 + TOLERANCE) * allocated
        assert planned + SMALL_BYTES > (1 - TOLERANCE) * allocated


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("microbatches", [1, 2, 5])
def test_a_stage_has_a_graph_in_each_slot_of_its_schedule(schedule, microbatches):
    per_device = 2 if schedule == "interleaved" else 1
    plan = make_pipeline_plan(contexts(3), 3, microbatches, schedule=schedule, stages_per_device=per_device)
    bound = stage_bindings(ShardSizes((20, 3)), plan.microbatches, plan.parallelism, columns=0)
    slots = [len({binding.slot for binding in stage}) for stage in bound]
    assert slots == list(peaks(make_schedule(plan.parallelism, microbatches)))


@st.composite
def small_chains(draw):
    """A chain, the number of stages, and a schedule."""
    chain, schedule = draw(chains), draw(st.sampled_from(["sequential", "gpipe", "1f1b"]))
    layers = len(chain_layers(make_chain(chain)))
    assume(layers >= 2)
    return chain, draw(st.integers(2, min(layers, 4))), schedule


@given(small_chains(), st.integers(1, 40), st.sampled_from([None, 2, 3]))
@settings(max_examples=15, deadline=None)
@pytest.mark.long
def test_cuts_by_memory_have_the_least_largest_stage_of_all_cuts(case, share, microbatches):
    chain, size, schedule = case
    ctxs, more = contexts(size), {"schedule": schedule, "share": share}
    strategy = make_strategy(chain, make_pipeline_plan(ctxs, size, microbatches, balance="memory", **more))
    layers = strategy._layers

    def largest(cut):
        plan = make_pipeline_plan(ctxs, size, microbatches, cut=cut, **more)
        stages = make_stages(layers, cut, softmax_loss(), plan.preprocess, plan.conversion)
        return max(map(sum, PipelineMemory(stages, softmax_loss(), plan).estimate_memory(ShardSizes((share,)))))

    best = min(map(largest, combinations(range(1, len(layers)), size - 1)))
    assert largest(tuple(strategy.cuts)) == best


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_more_layers_save_no_more_memory_than_the_savings_bound(schedule):
    """Which is the output of the layers: twice for each microbatch, and for each slot."""
    per_device = 2 if schedule == "interleaved" else 1
    plan = make_pipeline_plan(contexts(2), 2, 5, schedule=schedule, stages_per_device=per_device, max_shard_images=40)
    chain = ([("conv", 4), ("average", 1)], [("dense", 5), ("sigmoid", 1)], False, True)
    layers = chain_layers(make_chain(chain, contexts(1)))
    outputs = [nd.zeros((plan.microbatches.largest_part(40), *IMAGE), ctx=contexts(1)[0])]
    for layer in layers:
        outputs.append(layer(outputs[-1]))
    cost, savings = stage_byte_costs(layers, softmax_loss(), plan)
    bound = stage_bindings(ShardSizes((40,)), plan.microbatches, plan.parallelism, columns=0)
    for stage, begin in product(range(2 * per_device), range(len(layers) - 1)):
        for end in range(begin + 1, len(layers)):
            costs = [cost(stage, begin, longer) for longer in range(end, len(layers) + 1)]
            output_bytes = 4 * outputs[end].size
            assert costs[0] - min(costs) <= savings(stage, begin, end) <= 4 * len(bound[stage]) * output_bytes


@examples(40)
@given(
    st.lists(st.lists(st.integers(0, 50), min_size=9, max_size=9), min_size=9, max_size=9),
    st.integers(2, 8),
    st.integers(1, 4),
)
def test_the_search_minimizes_the_largest_stage_for_any_costs(numbers, layers, stages):
    """Also of costs that fall by at most 50 with more layers, and depend on the stage."""
    assume(stages <= layers)
    calls = []

    def cost(stage, begin, end):
        calls.append((stage, begin, end))
        return 30 * (end - begin) + numbers[begin][end] + 10 * stage

    result = minimize_largest_stage(cost, layers, stages, savings=lambda stage, begin, end: 50)
    assert len(calls) == len(set(calls))

    def largest(cut):
        return max(cost(stage, begin, end) for stage, (begin, end) in enumerate(zip((0, *cut), (*cut, layers))))

    assert largest(result) == min(map(largest, combinations(range(1, layers), stages - 1)))


CHAIN = ([("conv", 4), ("average", 1)], [("dense", 4)], False, True)


def make_strategy(chain, plan):
    return pipeline_parallel(chain_maker(chain), softmax_loss(), plan, SINGLE_PROCESS)


@pytest.mark.parametrize("balance", ["memory", "time"])
def test_a_stage_reports_its_share_of_time_or_memory(balance):
    plan = make_pipeline_plan(contexts(4), 2, 2, schedule="1f1b", balance=balance, max_shard_images=8)
    strategy = make_strategy(CHAIN, plan)
    assert sum(strategy._balanced.shares) == pytest.approx(1)
    report = " ".join(line.strip() for _, line in strategy.lines())
    for number, share in enumerate(strategy._balanced.shares):
        assert f"{number} on {contexts(4)[number]} {contexts(4)[number + 2]}: layer" in report
        assert f", {100 * share:.0f} % of the {balance}" in report


def test_stages_cut_by_the_user_have_no_shares():
    strategy = make_strategy(CHAIN, make_pipeline_plan(contexts(2), 2, 2, schedule="1f1b", cut=(2,)))
    assert not any(" % " in line for _, line in strategy.lines())


def test_lines_fit_80_columns_however_many_copies_there_are():
    plan = make_pipeline_plan(contexts(8), 2, 2, schedule="1f1b", balance="memory", max_shard_images=8)
    lines = list(make_strategy(CHAIN, plan).lines())
    assert all(len(f"{title:<11}{line}") <= 80 for title, line in lines)
    assert [title for title, _ in lines].count("stages") == 1
