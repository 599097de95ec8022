"""Operators are assigned to the phases that queue them."""

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

CONFIGS = {
    "device": {"model": "lenet", "kvstore": "device", "optimizer": "sgd"},
    "local": {"model": "mlp", "kvstore": "local", "optimizer": "sgd"},
    "ring, adam": {"model": "resnet8", "kvstore": "ring", "optimizer": "adam"},
    "sharded-optimizer": {"model": "lenet", "kvstore": "sharded-optimizer", "momentum": 0.9},
    "microbatches": {"model": "mlp", "kvstore": "tree", "microbatches": 2},
    "pipeline": {"model": "lenet", "strategy": "pipeline"},
    "channels": {"model": "lenet", "strategy": "tensor"},
    "one device": {"model": "mlp", "devices": device_spec(1)},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_operators_of_later_steps_have_the_phases_of_a_step_that_waits_after_each_phase(name):
    settings = {"devices": device_spec(2), "dataset": "synthetic", "batch_size": 8, **CONFIGS[name]}
    strategy = prepare(plan := make_plan(TrainConfig(**settings))).strategy
    batches = iter(train_loader(plan, strategy.inputs))
    first, second, third = next(batches), next(batches), next(batches)
    batches.close()  # no batch is copied during a phase
    strategy.step(first)
    recorder, windows = Recorder(plan.ctxs, 3), []

    def run_alone(phase, queue):
        nd.waitall()
        begin = time.time_ns() / 1000
        queue()
        nd.waitall()
        windows.append(PhaseWindow(phase, begin, time.time_ns() / 1000))

    recorder.learn(lambda around: strategy.step(second, around))
    recorder.record(lambda _: strategy.step(third, run_alone))
    timeline = recorder.end()
    by_clock = PhaseMap(timeline.spans, windows).find_phases(timeline.spans)
    assert list(timeline.phases) == by_clock
    assert {"forward", "backward", "update"} <= set(by_clock) <= set(PHASES)
    assert ("sum" in by_clock) == (name not in ("one device", "pipeline"))


SPANS = st.lists(
    st.tuples(st.sampled_from(["cpu(0)", "cpu(1)"]), st.integers(0, 90), st.integers(1, 30)), max_size=12
).map(lambda spans: [Span(row, "any", begin, begin + length) for row, begin, length in spans])


@pytest.mark.parametrize("through_host", [False, True])
def test_a_copy_to_a_device_during_a_sum_belongs_to_it_only_if_the_sum_is_on_the_host(through_host):
    """The loader copies the next batch at any time, also in the step that is learned."""
    windows = [PhaseWindow("backward", 0, 10), PhaseWindow("allreduce", 10, 40)]
    spans = [Span("gpu(0)", "_backward_FullyConnected", 0, 9)]
    if through_host:
        spans.append(Span("gpu(0)", "CopyGPU2CPU", 11, 15))
    spans += [Span("gpu(0)", "CopyCPU2GPU", 20, 25), Span("gpu(0)", "CopyGPU2GPU", 26, 30)]
    phases = dict(zip([span.name for span in spans], PhaseMap(spans, windows).find_phases(spans)))
    assert phases["CopyCPU2GPU"] == ("copy" if through_host else "other")
    assert phases["CopyGPU2GPU"] == "copy" and phases["_backward_FullyConnected"] == "backward"


@given(SPANS, st.data())
def test_shares_and_overlap_equal_counted_moments(spans, data):
    phases = [data.draw(st.sampled_from(PHASES)) for _ in spans]
    timeline = Timeline(1, [10], 100, ["cpu(0)", "cpu(1)"], spans, phases, [])

    def doing(moment, row):
        own = [phase for span, phase in zip(spans, phases) if span.row == row and span.begin <= moment < span.end]
        return min(own, key=PHASES.index, default=WAITING)

    for row in timeline.rows:
        counted = [doing(moment, row) for moment in range(10, 100)]
        for phase, share in timeline.phase_shares(row).items():
            assert share == pytest.approx(counted.count(phase) / 90)
    summed = both = 0
    for moment in range(10, 100):
        now = {p for s, p in zip(spans, phases) if s.begin <= moment < s.end}
        summed += bool(now & {"sum", "copy"})
        both += bool(now & {"sum", "copy"}) and "backward" in now
    overlap = timeline.overlap()
    assert overlap == (pytest.approx(both / summed) if summed else None)
