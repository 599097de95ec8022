"""Stages on several devices train as the whole network does on one."""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mxnet import nd
from mxnet.gluon import nn
from support.devices import contexts
from support.examples import examples
from support.reference import shard_batch
from support.splits import (
    CLASSES,
    IMAGE,
    chains,
    make_batches,
    make_chain,
    make_parallelism,
    make_strategy_plan,
    relative_difference,
    softmax_loss,
    train_chain_on_one_device,
    train_strategy,
)

from gluonlab.data.loading.split_batch import Microbatches
from gluonlab.errors import ModelError
from gluonlab.kvstores.process_groups import SINGLE_PROCESS
from gluonlab.parallel.pipeline.network_stages import chain_layers, check_cuts, possible_cuts
from gluonlab.parallel.pipeline.pipeline_executor import StepProgram
from gluonlab.parallel.pipeline.strategy import pipeline_parallel
from gluonlab.parallel.pipeline.verify_pipeline_schedule import execution_order, peaks

TOLERANCE = 1e-5
SCHEDULES = ["sequential", "gpipe", "1f1b", "interleaved"]


@st.composite
def cases(draw):
    """A chain, where it is cut, and how it is trained."""
    chain = draw(chains)
    layers = len(chain_layers(make_chain(chain)))
    schedule = draw(st.sampled_from(SCHEDULES))
    per_device = draw(st.integers(1, 2)) if schedule in ("sequential", "interleaved") else 1
    assume(layers // per_device >= 2)
    size = draw(st.integers(2, min(layers // per_device, 4)))
    cuts = size * per_device - 1
    cut = draw(st.lists(st.integers(1, layers - 1), min_size=cuts, max_size=cuts, unique=True))
    case = {
        "chain": chain, "schedule": schedule, "per_device": per_device, "size": size,
        "cut": tuple(sorted(cut)), "copies": draw(st.integers(1, 2)),
        "microbatches": draw(st.sampled_from([None, 1, 2, 3, 5, 9])),
        "sizes": draw(st.lists(st.integers(1, 9), min_size=3, max_size=3)),
        "kvstore": draw(st.sampled_from(["device", "ring", "sharded", "sharded-optimizer"])),
        "optimizer": draw(st.sampled_from(["sgd", "adam"])),
        "clip_norm": draw(st.sampled_from([None, 0.05])),
    }  # fmt: skip
    assume(not (case["clip_norm"] and case["kvstore"] == "sharded-optimizer"))
    return case


def make_case(chain, cut, microbatches, schedule="1f1b", copies=1):
    """A case with one stage on each device and usual settings."""
    return {
        "chain": chain, "schedule": schedule, "per_device": 1, "size": len(cut) + 1, "cut": cut, "copies": copies,
        "microbatches": microbatches, "kvstore": "device", "optimizer": "sgd", "clip_norm": None,
    }  # fmt: skip


def strategy_of(case, **more):
    ctxs = contexts(case["size"] * case["copies"])
    split = make_parallelism(
        "pipeline", ctxs, case["size"], schedule=case["schedule"], stages_per_device=case["per_device"], cut=case["cut"]
    )
    plan = make_strategy_plan(
        split, case["optimizer"], Microbatches(case["microbatches"]), case["kvstore"],
        clip_norm=case["clip_norm"], **more,
    )  # fmt: skip
    make = lambda ctxs, start=None: make_chain(case["chain"], start)  # noqa: E731
    return pipeline_parallel(make, softmax_loss(), plan, SINGLE_PROCESS)


@given(cases())
@examples(4, 6)
def test_any_cut_schedule_and_batch_trains_as_one_device(case):
    batches = make_batches(case["sizes"])
    losses, params = train_strategy(strategy_of(case), batches)
    [ctx] = contexts(1)
    net = make_chain(case["chain"], [ctx])
    expected_losses, expected = train_chain_on_one_device(net, batches, case)
    assert params.keys() == expected.keys()
    np.testing.assert_allclose(losses, expected_losses, rtol=2e-5, atol=1e-6)
    assert relative_difference(params, expected) <= TOLERANCE


@pytest.mark.long
@given(cases())
@settings(max_examples=150, deadline=None)
def test_many_more_cases_train_as_one_device(case):
    test_any_cut_schedule_and_batch_trains_as_one_device.hypothesis.inner_test(case)


@given(cases(), st.sampled_from(SCHEDULES[:3]))
@settings(max_examples=4, deadline=None)
def test_every_schedule_gives_the_same_bits(case, other):
    schedules = ("sequential", "interleaved") if case["per_device"] > 1 else (case["schedule"], other)
    batches = make_batches(case["sizes"])
    _, one = train_strategy(strategy_of({**case, "schedule": schedules[0]}), batches)
    _, two = train_strategy(strategy_of({**case, "schedule": schedules[1]}), batches)
    assert all((one[name] == two[name]).all() for name in one)


THREE_DENSE = ([], [("dense", 4)], False, True)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_stage_has_memory_for_as_many_microbatches_as_are_proved(schedule):
    strategy = strategy_of(make_case(THREE_DENSE, (1, 2), 6, schedule))
    train_strategy(strategy, make_batches([6, 6]))
    [pipeline] = strategy.pipelines
    [program] = pipeline._programs.values()
    expected = (6, 6, 6) if schedule == "gpipe" else (3, 2, 1)
    assert peaks(program.schedule) == expected
    slots = {(stage, slot) for stage, _, _, slot in pipeline._bound}
    assert tuple(sum(stage == number for stage, _ in slots) for number in range(3)) == expected


def test_the_instructions_that_run_are_those_of_the_schedule(monkeypatch):
    queued = []
    for op in ("forward", "backward", "send_forward", "recv_forward", "send_backward", "recv_backward", "update"):
        method = getattr(StepProgram, op)

        def record_and_queue(self, device, stage, microbatch, op=op, method=method):
            queued.append((device, (op, stage, microbatch)))
            method(self, device, stage, microbatch)

        monkeypatch.setattr(StepProgram, op, record_and_queue)
    strategy = strategy_of(make_case(THREE_DENSE, (1, 2), 4))
    train_strategy(strategy, make_batches([4]))
    [program] = strategy.pipelines[0]._programs.values()
    assert queued == [(device, tuple(instruction)) for device, instruction in execution_order(program.schedule)]


def test_scores_are_those_of_the_whole_network():
    chain = ([("conv", 3)], [("dense", 4)], False, True)
    strategy = strategy_of(make_case(chain, (2,), 2, copies=2))
    [(images, labels)] = make_batches([7])
    batch = shard_batch((images, labels), strategy.inputs)
    parts = sorted(((part.device, part.scores.asnumpy()) for part in strategy.score(batch)), key=lambda part: part[0])
    scores = np.concatenate([scores for _, scores in parts])
    [ctx] = contexts(1)
    expected = make_chain(chain, [ctx])(nd.array(images, ctx=ctx)).asnumpy()
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-6)
    assert strategy.outputs == [strategy._copies[0][1], strategy._copies[1][1]]


@pytest.mark.parametrize(
    "cuts, message",
    [
        ((9,), "--cut 9: must be increasing layer numbers from 1 to 3"),
        ((0,), "--cut 0: must be increasing layer numbers from 1 to 3"),
        ((2, 1), "must be increasing layer numbers"),
        ((1, 2, 3, 3), "a chain of 4 layers, which cannot be cut into 5"),
    ],
)
def test_impossible_cuts_are_refused(cuts, message):
    layers = chain_layers(make_chain(([], [("dense", 2), ("dense", 2)], False, True)))
    with pytest.raises(ModelError, match=f"^.*{message}.*$"):
        check_cuts("chain", layers, cuts)


class BorrowingDense(nn.HybridBlock):
    """A dense layer that takes its weights from another one, which is not its child."""

    def __init__(self, lender):
        super().__init__()
        self.lender = lambda: lender

    def hybrid_forward(self, F, x):
        params = [self.lender().weight, self.lender().bias]
        arrays = [param.data(x.context) if F is nd else param.var() for param in params]
        return F.FullyConnected(x, *arrays, num_hidden=4)


def sharing_chain(pattern, borrowed, ctx):
    """Dense layers of 4: equal numbers are the same layer, or at indices ``borrowed`` use its weights."""
    mx.random.seed(5)
    with mx.name.NameManager():
        net = nn.HybridSequential(prefix="chain_")
        with net.name_scope():
            net.add(nn.Dense(4))
            layers = {}
            for index, number in enumerate(pattern):
                if number in layers and index in borrowed:
                    net.add(BorrowingDense(layers[number]))
                else:
                    layers.setdefault(number, nn.Dense(4, activation="tanh"))
                    net.add(layers[number])
            net.add(nn.Dense(CLASSES))
    net.initialize(mx.init.Xavier(), ctx=ctx)
    net(nd.zeros((1, *IMAGE), ctx=ctx[0]))
    return net


@given(
    pattern=st.lists(st.integers(0, 3), min_size=2, max_size=6),
    borrowed=st.sets(st.integers(0, 5)),
    balance=st.sampled_from(["time", "memory"]),
    size=st.integers(2, 3),
)
@examples(7, 60)
def test_stages_are_cut_where_no_parameter_is_on_both_sides(pattern, borrowed, balance, size):
    """And the stages train as one device."""
    numbers = ["images", *pattern, "scores"]
    allowed = [cut for cut in range(1, len(numbers)) if not set(numbers[:cut]) & set(numbers[cut:])]
    ctxs = contexts(size)
    split = make_parallelism("pipeline", ctxs, size, schedule="1f1b", balance=balance, max_shard_images=4)
    as_floats = lambda F, images: F.cast(images, "float32")  # noqa: E731
    plan = make_strategy_plan(split, "sgd", Microbatches(2), "device", preprocess=as_floats)
    make = lambda ctxs, start=None: sharing_chain(pattern, borrowed, start)  # noqa: E731
    if len(allowed) < size - 1:
        with pytest.raises(ModelError, match=r"cannot be cut into .* both sides share parameters"):
            pipeline_parallel(make, softmax_loss(), plan, SINGLE_PROCESS)
        return
    strategy = pipeline_parallel(make, softmax_loss(), plan, SINGLE_PROCESS)
    assert set(strategy.cuts) <= set(allowed) and len(strategy.cuts) == size - 1
    batches = make_batches([4])
    _, params = train_strategy(strategy, batches)
    net = sharing_chain(pattern, borrowed, contexts(1))
    _, expected = train_chain_on_one_device(net, batches, {"optimizer": "sgd", "clip_norm": None})
    assert relative_difference(params, expected) <= TOLERANCE


class SplitLayer(nn.HybridBlock):
    """Returns two arrays as one symbol."""

    def hybrid_forward(self, F, x):
        return F.split(x, num_outputs=2)


class JoinLayer(nn.HybridBlock):
    def hybrid_forward(self, F, x):
        return x[0] + x[1]


def test_a_cut_is_chosen_where_one_array_goes_over_it():
    net = nn.HybridSequential()
    net.add(nn.Dense(4), SplitLayer(), JoinLayer(), nn.Dense(CLASSES))
    assert possible_cuts(chain_layers(net)) == [1, 3]
