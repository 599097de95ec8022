"""Trainings that are built to be bound by one cause: the diagnosis names the cause."""

from dataclasses import replace

import pytest
from support.bound_trainings import BottleneckCase, SimulatedClock, bottleneck_cases, register_fake_components

from gluonlab.bench.harness.confidence_interval import Estimate
from gluonlab.errors import ConfigError
from gluonlab.study.speedup import diagnosis, measure_step
from gluonlab.study.speedup import step_breakdown as windows
from gluonlab.study.speedup.diagnosis import NOTHING, diagnose
from gluonlab.study.speedup.diagnosis_report import diagnosis_sentences, format_percent
from gluonlab.study.speedup.step_breakdown import PARTS

ROUNDS = 5
EXACT = Estimate(1.0, 1.0, 1.0)
RIGHT = 0.95  # of all runs
APART = 0.1  # of a step are its parts together at most, or a sentence says so


def diagnose_case(monkeypatch, bound, try_advice=False):
    with monkeypatch.context() as patched:
        register_fake_components(patched, bound)
        return diagnose(bound.make_config(), bound.make_dataset(), bound.make_strategy, ROUNDS, try_advice=try_advice)


def first_cause(found):
    return found.causes[0].name if found.causes else NOTHING


@pytest.fixture
def simulated_time(monkeypatch):
    """Seconds are those that pauses ask for, on any machine."""
    SimulatedClock.install(monkeypatch)
    monkeypatch.setattr(diagnosis, "ADVICE_ROUNDS", 5)


def test_a_slow_device_is_named(monkeypatch, simulated_time):
    found = diagnose_case(monkeypatch, BottleneckCase("straggler", slow=0.015, image=0.0002))
    assert first_cause(found) == "straggler"
    assert found.devices[1] in diagnosis_sentences(found)[0]
    assert found.step_s.value == pytest.approx(0.0182, rel=0.01)
    assert found.overheads["straggler"].value == pytest.approx(0.015 / 0.0182, rel=0.01)
    assert found.parts_total.value == pytest.approx(1, rel=0.01)
    usual = replace(found, parts_total=EXACT)
    for language, total, words in (("en", 0.8, "80 %"), ("en", 1.25, "125 %"), ("ja", 0.8, "80 %")):
        deviating = replace(found, parts_total=Estimate(total, total, total))
        [added] = {*diagnosis_sentences(deviating, language)} - {*diagnosis_sentences(usual, language)}
        assert words in added
    assert set(found.shares) == set(PARTS)
    for estimate in (found.speed_up, found.efficiency, *found.shares.values()):
        assert estimate.lowest <= estimate.value <= estimate.highest


def test_an_advice_is_given_once_it_has_been_tried_and_helped(monkeypatch, simulated_time):
    found = diagnose_case(monkeypatch, BottleneckCase("waiting", late=0.02, image=0.0002), try_advice=True)
    assert first_cause(found) == "waiting" and "kvstore" in diagnosis_sentences(found)[0]
    tried = {advice.candidate.option_text: advice for advice in found.tried_advice}
    assert {"--kvstore device", "--batch-size 64"} <= set(tried)
    # without the store's pause a step takes 16 images' time
    assert tried["--kvstore device"].is_advised
    assert tried["--kvstore device"].gain.value == pytest.approx(0.0232 / 0.0032, rel=0.01)
    larger = tried["--batch-size 64"]
    assert larger.gain.value == pytest.approx(4 * 0.0232 / 0.0328, rel=0.01)
    assert larger.speed_up.value == pytest.approx(2 * 0.0128 / 0.0328, rel=0.01)
    assert larger.expected == pytest.approx(larger.speed_up.value, rel=0.02)
    assert larger.speed_up.value > found.speed_up.value
    [sentence] = [sentence for sentence in diagnosis_sentences(found) if "try " in sentence]
    assert found.advice[0].candidate.option_text in sentence


def test_unequal_devices_are_told_to_share_by_their_speeds(monkeypatch, simulated_time):
    bound = BottleneckCase("straggler", image=0.0002, slower=0.0006)  # so the second has a fourth of them
    found = diagnose_case(monkeypatch, bound, try_advice=True)
    assert first_cause(found) == "straggler"
    [weighted] = [advice for advice in found.tried_advice if "--device-weights" in advice.candidate.option_text]
    assert [float(weight) for weight in weighted.candidate.settings["device_weights"].split(",")] == [4, 1]
    # 26 of 32 images on the first, and 6 on the second
    assert weighted.is_advised
    assert weighted.gain.value == pytest.approx(16 * 0.0008 / (26 * 0.0002), rel=0.05)


def test_a_plain_sum_takes_as_long_as_all_gradients_would_though_part_of_them_is_copied(monkeypatch, simulated_time):
    """A link that takes 20 ms for all of them takes 20 ms times their share."""
    monkeypatch.setattr(measure_step, "MAX_COPIED_BYTES", 1000)
    bound = BottleneckCase("link", link=0.02, image=0.0002)
    with monkeypatch.context() as patched:
        register_fake_components(patched, bound)
        found = measure_step.measure_training_step(
            bound.make_config(), bound.make_dataset(), bound.make_strategy, ROUNDS
        )
    assert found.gradient_bytes > 4 * measure_step.MAX_COPIED_BYTES
    assert found.rounds[windows.PLAIN_SUM] == pytest.approx([0.02] * ROUNDS, rel=0.1)


def test_one_device_has_no_speed_up(monkeypatch):
    case, messages = BottleneckCase("nothing"), []
    config = case.make_config().replace(devices="cpu:0")
    with pytest.raises(ConfigError, match=r"this training uses a single device, .*, but a speedup"):
        diagnose(config, case.make_dataset(), case.make_strategy, say=messages.append)
    assert messages == []


@pytest.mark.long
def test_the_first_cause_is_right_in_nearly_all_of_many_runs(monkeypatch):
    wrong, apart = [], []
    every = bottleneck_cases()
    for bound in every:
        found = diagnose_case(monkeypatch, bound)
        # what a simulated GPU's thread waited for a core, nothing tells: it is not accounted for,
        # and moves from part to part
        assert not found.on_cpu or found.accounted_share >= 0.95, bound
        if abs(found.parts_total.value - 1) > APART:
            apart += [(bound, found.parts_total)] if found.on_cpu else []
            assert [each for each in diagnosis_sentences(found) if format_percent(found.parts_total.value) in each], (
                bound
            )
        if first_cause(found) != bound.cause:
            wrong.append((bound, first_cause(found), found.causes))
    assert len(apart) <= (1 - RIGHT) * len(every), apart
    assert len(every) >= 20 and len(wrong) <= (1 - RIGHT) * len(every), wrong


@pytest.mark.cpu_only("GPUs have no cores to share")
@pytest.mark.long
def test_more_devices_than_cores_are_said_to_share_them(monkeypatch):
    from gluonlab.config import TrainConfig
    from gluonlab.engine.local_processes import cores_per_process

    count = 2 * cores_per_process()
    config = TrainConfig(devices=f"cpu*{count}", dataset="synthetic", model="lenet", batch_size=32)
    found = diagnose(config, rounds=ROUNDS, try_advice=False)
    assert first_cause(found) == "cores" and found.threads == count
    assert any("share" in sentence and "cores" in sentence for sentence in diagnosis_sentences(found))
