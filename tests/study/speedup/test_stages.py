"""The diagnosis of stages: both passes are one part, and images are per copy of the network."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bound_trainings import SimulatedClock
from support.devices import device_spec

from gluonlab.bench.harness.confidence_interval import Estimate
from gluonlab.config import TrainConfig
from gluonlab.parallel.pipeline.strategy import PipelineParallel
from gluonlab.study.speedup import diagnosis
from gluonlab.study.speedup.diagnosis import (
    Candidate,
    LinearStepTime,
    StepModel,
    TriedAdvice,
    compute_trace_shares,
    diagnose,
)
from gluonlab.study.speedup.diagnosis_report import as_text, diagnosis_sentences, render_page
from gluonlab.timeline.mxnet_profiler import Span
from gluonlab.timeline.timeline import BACKWARD, FORWARD, Timeline

WORDS = {"en": "forward and backward", "ja": "順伝播と逆伝播"}
COPY = {"en": "per model replica", "ja": "モデルのレプリカあたり"}
DEVICE = {"en": "per device", "ja": "デバイスあたり"}


PASSES_S = 0.01  # of simulated time on each device


@pytest.fixture(scope="module", params=["pipeline", "layers"])
def found(request):
    with pytest.MonkeyPatch.context() as patched:
        time, queue = SimulatedClock.install(patched), PipelineParallel._queue_stages

        def queue_and_compute(strategy, batch):
            for device in range(2):
                time.compute(device, PASSES_S)
            queue(strategy, batch)

        patched.setattr(PipelineParallel, "_queue_stages", queue_and_compute)
        config = TrainConfig(
            devices=device_spec(2), dataset="synthetic", model="lenet", strategy=request.param, batch_size=16
        )
        return diagnose(config, rounds=2, try_advice=False)


def test_forward_and_backward_are_one_part_everywhere(found):
    assert list(found.shares) == list(found.trace.shares)
    assert "passes" in found.shares and not {"forward", "backward"} & set(found.shares)
    assert found.step_s.value == pytest.approx(PASSES_S, rel=0.05)
    assert found.shares["passes"].value == pytest.approx(1, rel=0.05)
    assert found.trace.shares["passes"] > 0
    assert "forward" not in found.disagreements and "backward" not in found.disagreements
    assert sum(found.trace.shares.values()) == pytest.approx(1)
    parts = json.loads(json.dumps(found.to_dict(), allow_nan=False))["parts"]
    assert set(parts) == set(found.shares)
    for language, words in WORDS.items():
        assert f">{words}<" in render_page(found, language)
    assert f"\n{WORDS['en']} " in as_text(found)
    assert max(map(len, as_text(found).splitlines())) <= 80


def test_both_passes_of_a_trace_are_one_part_with_the_time_of_both():
    """Of a step of 1 ms with 0.5 ms of forward, then 0.1 ms of nothing but backward."""
    rows, phases = ["cpu(0)", "cpu(0)", "cpu(1)"], [FORWARD, BACKWARD, FORWARD]
    moments = [(0, 300), (300, 600), (200, 500)]
    spans = [Span(row, "any", *moment) for row, moment in zip(rows, moments)]
    timeline = Timeline(1, [0.0], 1000, rows[1:], spans, phases, [], (), [0] * 3, {}, {})
    together, apart = (compute_trace_shares(timeline, False).shares, compute_trace_shares(timeline, True).shares)
    assert together.pop("passes") == pytest.approx(0.6)
    assert apart.pop(FORWARD) == pytest.approx(0.5) and apart.pop(BACKWARD) == pytest.approx(0.1)
    assert together == apart


@pytest.mark.parametrize("language", WORDS)
def test_images_are_said_to_be_those_of_a_copy(found, language):
    larger = TriedAdvice(Candidate({"batch_size": 64}, 64), *(Estimate(2, 1, 3),) * 2, 1.5)
    pays = Estimate(10.0, 5.0, 20.0)  # of each of two devices
    text = " ".join(diagnosis_sentences(replace(found, tried_advice=[larger], break_even=pays), language))
    assert text.count(COPY[language]) >= 2 and DEVICE[language] not in text
    assert all(number in text for number in ("64", "20", "10", "40"))
    each = " ".join(diagnosis_sentences(replace(found, tried_advice=[larger], break_even=pays, copies=2), language))
    assert COPY[language] not in each and each.count(DEVICE[language]) >= 2


LINES = st.builds(LinearStepTime, st.floats(0.001, 1), st.floats(0.001, 1))


@given(LINES, LINES, st.integers(1, 4), st.integers(1, 4), st.integers(1, 64))
@pytest.mark.long
def test_what_is_expected_of_a_batch_counts_a_copys_images(one, several, copies, size, each):
    """The reference counts images: all copies have so many in a step, and one device a copy's."""
    devices = copies * size
    solved = StepModel(one, several, devices, 8, copies, 0.0, 0.0)
    found = SimpleNamespace(facts=SimpleNamespace(copies=copies), devices=["cpu(0)"] * devices, dataset=None)
    with pytest.MonkeyPatch.context() as patched:
        way = SimpleNamespace(step_window=lambda: None, images=1)
        patched.setattr(diagnosis, "_open_training", lambda *_: way)
        patched.setattr(diagnosis, "single_device_config", lambda *_: None)
        seconds = {name: [1.0] * 5 for name in ("present", "advised", "one")}
        patched.setattr(diagnosis, "time_interleaved", lambda *_, **__: seconds)
        candidate = Candidate({"batch_size": each}, each)
        expected = diagnosis.try_candidate(TrainConfig(), found, solved, candidate, None).expected
    of_all = copies * each / several.seconds(copies * each / devices)
    assert expected == pytest.approx(of_all / (each / one.seconds(each)))
