"""Operators are named by the phases that queue them, and those are what the phases really are."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import nd
from support.devices import device_spec

from gluonlab.config import TrainConfig
from gluonlab.timeline.mxnet_profiler import Span
from gluonlab.timeline.recorder import PhaseMap, PhaseWindow, Recorder
from gluonlab.timeline.timeline import PHASES, WAITING, Timeline
from gluonlab.training.plan import make_plan
from gluonlab.training.training_setup import prepare, train_loader

WAYS = {
    "device": {"model": "lenet", "kvstore": "device", "optimizer": "sgd"},
    "local": {"model": "mlp", "kvstore": "local", "optimizer": "sgd"},
    "ring, adam": {"model": "resnet8", "kvstore": "ring", "optimizer": "adam"},
    "sharded-optimizer": {"model": "lenet", "kvstore": "sharded-optimizer", "momentum": 0.9},
    "microbatches": {"model": "mlp", "kvstore": "tree", "microbatches": 2},
    "pipeline": {"model": "lenet", "split": "pipeline"},
    "channels": {"model": "lenet", "split": "channels"},
    "one device": {"model": "mlp", "devices": device_spec(1)},
}


def waited_for(windows):
    """What goes around each phase so that nothing else runs meanwhile; notes when that was."""

    def around(name, queue):
        nd.waitall()
        began = time.time_ns() / 1000
        queue()
        nd.waitall()
        windows.append(PhaseWindow(name, began, time.time_ns() / 1000))

    return around


@pytest.mark.parametrize("way", WAYS)
def test_the_steps_after_the_first_are_named_as_if_each_phase_had_been_waited_for(way):
    settings = {"devices": device_spec(2), "dataset": "synthetic", "batch_size": 8, **WAYS[way]}
    strategy = prepare(plan := make_plan(TrainConfig(**settings))).strategy
    batches = iter(train_loader(plan, strategy.inputs))
    first, second, third = next(batches), next(batches), next(batches)
    batches.close()  # no batch is copied beside a phase
    strategy.step(first)
    recorder, windows = Recorder(plan.ctxs, 3), []
    recorder.learn(lambda around: strategy.step(second, around))
    recorder.record(lambda _: strategy.step(third, waited_for(windows)))
    timeline = recorder.end()
    by_clock = PhaseMap(timeline.spans, windows).find_phases(timeline.spans)
    assert list(timeline.phases) == by_clock
    assert {"forward", "backward", "update"} <= set(by_clock) <= set(PHASES)
    assert ("sum" in by_clock) == (way not in ("one device", "pipeline"))


SPANS = st.lists(
    st.tuples(st.sampled_from(["cpu(0)", "cpu(1)"]), st.integers(0, 90), st.integers(1, 30)), max_size=12
).map(lambda found: [Span(row, "any", begin, begin + long) for row, begin, long in found])


@pytest.mark.parametrize("through_host", [False, True])
def test_what_the_loader_copies_beside_a_sum_belongs_to_the_sum_only_if_that_is_of_the_host(through_host):
    """A batch to come is copied whenever the loader has it, also in the step that is learned."""
    windows = [PhaseWindow("backward", 0, 10), PhaseWindow("allreduce", 10, 40)]
    spans = [Span("gpu(0)", "_backward_FullyConnected", 0, 9)]
    if through_host:
        spans.append(Span("gpu(0)", "CopyGPU2CPU", 11, 15))
    spans += [Span("gpu(0)", "CopyCPU2GPU", 20, 25), Span("gpu(0)", "CopyGPU2GPU", 26, 30)]
    found = dict(zip([span.name for span in spans], PhaseMap(spans, windows).find_phases(spans)))
    assert found["CopyCPU2GPU"] == ("copy" if through_host else "other")
    assert found["CopyGPU2GPU"] == "copy" and found["_backward_FullyConnected"] == "backward"


@given(SPANS, st.data())
def test_shares_and_overlap_are_those_of_moments_counted_one_by_one(spans, data):
    phases = [data.draw(st.sampled_from(PHASES)) for _ in spans]
    timeline = Timeline(1, [10], 100, ["cpu(0)", "cpu(1)"], spans, phases, [])

    def doing(moment, row):
        own = [phase for span, phase in zip(spans, phases) if span.row == row and span.begin <= moment < span.end]
        return min(own, key=PHASES.index, default=WAITING)

    for row in timeline.rows:
        counted = [doing(moment, row) for moment in range(10, 100)]
        for phase, share in timeline.shares(row).items():
            assert share == pytest.approx(counted.count(phase) / 90)
    summed = both = 0
    for moment in range(10, 100):
        now = {p for s, p in zip(spans, phases) if s.begin <= moment < s.end}
        summed += bool(now & {"sum", "copy"})
        both += bool(now & {"sum", "copy"}) and "backward" in now
    overlap = timeline.overlap()
    assert overlap == (pytest.approx(both / summed) if summed else None)
