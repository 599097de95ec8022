"""Every number of a diagnosis has its interval, tested on simulated rounds with known truth."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluonlab.bench.harness import confidence_interval
from gluonlab.bench.harness.confidence_interval import Estimate
from gluonlab.study.speedup import step_breakdown as windows
from gluonlab.study.speedup.diagnosis import diagnose_measurement
from gluonlab.study.speedup.diagnosis_report import as_text, diagnosis_sentences, render_page
from gluonlab.study.speedup.measure_step import StepMeasurement
from gluonlab.timeline.mxnet_profiler import Span
from gluonlab.timeline.timeline import Timeline

ROWS, IMAGES = ["cpu(0)", "cpu(1)"], 16


def simulate_measurement(one, passes, fixed, sums, noise=0.0, rounds=11, unknown=0.0):
    """Two devices of 8 images each: seconds of a step of one, and of the parts of theirs."""
    random, step = np.random.RandomState(1), passes + sums
    nothing = windows.JUST_INPUT, windows.JUST_UPDATE, windows.QUEUED, windows.BLOCKED
    everything = windows.STEP, windows.SAME_BATCH, windows.WITHOUT_HOST, windows.NO_UPDATE
    times = {**dict.fromkeys(nothing, 0.0), **dict.fromkeys(everything, step)}
    times.update({
        windows.ONE_DEVICE: one, windows.NO_SUM: passes, windows.PASSES: passes,
        windows.FORWARD: passes / 3, windows.OTHER_SIZE: fixed + (passes - fixed) / 2,
        windows.JUST_SUM: sums, windows.PLAIN_SUM: sums,
    })  # fmt: skip
    each = {name: [seconds * (1 + noise * random.randn()) for _ in range(rounds)] for name, seconds in times.items()}
    spans = [Span(row, "any", 1000 * unknown, 1000) for row in ROWS]
    timeline = Timeline(1, [0.0], 1000, ROWS, spans, ["forward"] * 2, [], (), [0, 0], {}, {})
    facts = SimpleNamespace(is_cpu=True, copies=2)
    return StepMeasurement(each, ROWS, IMAGES, IMAGES // 2, 0.5, False, False, True, 1000, 1, timeline, None, facts)


PART = st.floats(0.01, 1)


@given(PART, PART, st.floats(0, 0.9), PART)
def test_without_noise_the_batch_that_pays_is_where_both_lines_meet(one, passes, share, sums):
    fixed = share * passes
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(confidence_interval, "BOOTSTRAP_DRAWS", 40)  # rounds are alike, and so is whatever is drawn
        found = diagnose_measurement(simulate_measurement(one, passes, fixed, sums))
    slope = (passes - fixed) / 8
    of_one = min(slope, one / 8)  # of an image on one device alone
    missing, gained = (fixed + sums) - 2 * (one - 8 * of_one), 2 * of_one - slope
    truth = math.inf if gained < 1e-9 else max(0.0, missing / gained)
    if gained > 1e-6:
        assert found.break_even.value == pytest.approx(truth, rel=1e-6, abs=1e-6)
        assert found.break_even.highest == pytest.approx(found.break_even.lowest, rel=1e-6, abs=1e-6)


def test_noise_widens_the_intervals_and_the_truth_lies_within():
    exact = diagnose_measurement(simulate_measurement(0.1, 0.1, 0.02, 0.2))
    noisy = diagnose_measurement(simulate_measurement(0.1, 0.1, 0.02, 0.2, noise=0.03))
    assert noisy.break_even.lowest < noisy.break_even.value < noisy.break_even.highest
    assert noisy.break_even.lowest <= exact.break_even.value <= noisy.break_even.highest
    assert exact.efficiency.value == pytest.approx(1 / 3)
    assert noisy.efficiency.lowest < 1 / 3 < noisy.efficiency.highest


@pytest.mark.parametrize("language", ["en", "ja"])
def test_efficiency_causes_and_the_batch_that_pays_are_told_with_their_intervals(language):
    found = replace(
        diagnose_measurement(simulate_measurement(0.1, 0.1, 0.02, 0.2, noise=0.03)),
        efficiency=Estimate(0.43, 0.41, 0.47), break_even=Estimate(26, 14, math.inf),
        cause_shares=[Estimate(0.63, 0.57, 0.69)],
    )  # fmt: skip
    assert [cause.name for cause in found.causes] == ["sum"]
    to, more = {"en": (" to ", "14 or more"), "ja": ("\uff5e", "14以上")}[language]
    texts = [" ".join(diagnosis_sentences(found, language)), render_page(found, language)]
    texts += [" ".join(as_text(found).split())] * (language == "en")
    for words in ("43 %", f"41 %{to}47 %", "63 %", f"57 %{to}69 %", "26", more):
        assert all(words in text for text in texts)
    within = replace(found, break_even=Estimate(26, 14, 60))
    assert f"14{to}60" in " ".join(diagnosis_sentences(within, language))


def test_json_has_them_too_and_null_for_what_never_pays():
    found = replace(
        diagnose_measurement(simulate_measurement(0.1, 0.1, 0.02, 0.2)), break_even=Estimate(26, 14, math.inf)
    )
    content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert content["pays_from_images_per_device"] == {"value": 26, "lowest": 14, "highest": None}
    [cause] = content["causes"]
    assert cause["name"] == "sum" and set(cause["share"]) == {"value", "lowest", "highest"}
    assert cause["share"]["value"] == pytest.approx(2 / 3)
    assert set(content["efficiency"]) == {"value", "lowest", "highest"}


@pytest.mark.parametrize(("unknown", "enough"), [(0.0, True), (0.04, True), (0.2, False)])
def test_a_trace_that_leaves_much_unknown_is_said_to(unknown, enough):
    found = diagnose_measurement(simulate_measurement(0.1, 0.1, 0.02, 0.2, unknown=unknown))
    assert found.accounted_share == pytest.approx(1 - unknown)
    for language, only in (("en", "Only"), ("ja", "だけ")):
        assert (only in diagnosis_sentences(found, language)[-1]) == (not enough)
