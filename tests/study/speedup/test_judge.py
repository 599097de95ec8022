"""The diagnosis of random parts: the largest cause is named, numbers add up, nothing twice."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluonlab.config import TrainConfig
from gluonlab.study.speedup import step_breakdown as windows
from gluonlab.study.speedup.diagnosis import (
    AGREEMENT_TOLERANCE,
    CAUSES,
    MAX_CANDIDATES,
    MIN_CAUSE_SHARE,
    MIN_JOINT_SHARE,
    Cause,
    LinearStepTime,
    StepModel,
    TrainingFacts,
    choose_candidates,
    find_causes,
    find_disagreements,
    fit_step_model,
    overhead_seconds,
    weights_by_speed,
)
from gluonlab.study.speedup.step_breakdown import JOINT_PARTS, PARTS, StepParts, compute_parts, part_differences

SECONDS = st.floats(0, 1)
POSITIVE = st.floats(0.001, 1)


@st.composite
def steps(draw):
    """The true seconds of the parts of a step, of its passes and their fixed share; a size ratio."""
    part_s = {name: draw(SECONDS) for name in ("input", "host", "sum", "update")}
    part_s.update(forward=draw(POSITIVE), backward=draw(POSITIVE))
    passes = part_s["forward"] + part_s["backward"]
    fixed = passes * draw(st.floats(0, 1))
    return part_s, passes, fixed, draw(st.sampled_from([0.5, 2.0]))


def simulate_windows(part_s, passes, fixed, ratio, blocked=0.0, plain=None, hidden=0.0):
    """The times of the windows of a step with these parts. ``hidden``: overlapped part of each."""
    everything = passes + part_s["sum"] + part_s["update"]
    return {
        windows.STEP: everything + part_s["host"] + part_s["input"],
        windows.SAME_BATCH: everything + part_s["host"], windows.WITHOUT_HOST: everything,
        windows.NO_SUM: everything - part_s["sum"],
        windows.NO_UPDATE: everything - part_s["update"], windows.PASSES: passes,
        windows.FORWARD: part_s["forward"], windows.OTHER_SIZE: fixed + ratio * (passes - fixed),
        windows.JUST_INPUT: part_s["input"] + hidden, windows.JUST_SUM: part_s["sum"] + hidden,
        windows.JUST_UPDATE: part_s["update"] + hidden, windows.QUEUED: part_s["host"] + hidden,
        windows.BLOCKED: blocked, windows.PLAIN_SUM: part_s["sum"] if plain is None else plain,
    }  # fmt: skip


@given(steps(), st.sampled_from([0.0, 0.5]))
def test_parts_are_found_from_windows_without_them_and_add_up_to_the_step(drawn, hidden):
    part_s, passes, fixed, ratio = drawn
    times = simulate_windows(part_s, passes, fixed, ratio, hidden=hidden)
    found = compute_parts(part_differences(times), ratio)
    for name, seconds in part_s.items():
        assert getattr(found, name) == pytest.approx(seconds, abs=1e-9)
    assert found.fixed == pytest.approx(fixed, abs=1e-6)
    assert found.parts_total == pytest.approx(times[windows.STEP]) == pytest.approx(found.step)
    assert found.waiting == found.straggler == found.shared == 0


@given(steps(), st.lists(st.floats(0.01, 1), min_size=2, max_size=6), POSITIVE, SECONDS)
def test_stragglers_shared_cores_and_slow_stores_are_found(drawn, each, plain, blocked):
    part_s, _, _, ratio = drawn
    passes = max(each) * 1.5
    part_s = {**part_s, "forward": passes / 3, "backward": passes * 2 / 3}
    times = simulate_windows(part_s, passes, 0.0, ratio, min(blocked, part_s["host"]), plain)
    times.update({windows.single_device_window(device): seconds for device, seconds in enumerate(each)})
    found = compute_parts(part_differences(times), ratio)
    *_, second, slowest = sorted(each)
    assert found.straggler == pytest.approx(slowest - second, abs=1e-9)
    assert found.shared == pytest.approx(passes - slowest)
    assert found.waiting + found.sum + found.host == pytest.approx(part_s["sum"] + part_s["host"])
    slow = part_s["sum"] > windows.SLOW_SUM_FACTOR * plain
    assert (found.waiting > min(blocked, part_s["host"]) + 1e-9) == slow
    assert found.parts_total == pytest.approx(found.step)


@st.composite
def parts(draw):
    numbers = {name: draw(SECONDS) for name in PARTS}
    numbers["forward"] += 0.001
    passes = numbers["forward"] + numbers["backward"]
    inside = {name: passes * draw(st.floats(0, 1)) for name in ("straggler", "shared", "fixed")}
    return StepParts(step=sum(numbers.values()), **numbers, **inside)


@given(parts())
def test_the_first_cause_is_the_largest_and_no_second_is_told_twice(found):
    part_s = overhead_seconds(found)
    assert tuple(part_s) == CAUSES and all(seconds >= 0 for seconds in part_s.values())
    assert sum(part_s.values()) <= found.step * (1 + 1e-9)
    named = find_causes(found)
    assert [cause.share for cause in named] == sorted((c.share for c in named), reverse=True)
    large = {name for name, seconds in part_s.items() if seconds >= MIN_CAUSE_SHARE * found.step}
    if large:
        assert {cause.name for cause in named} == large
        assert part_s[named[0].name] == max(part_s.values())
    else:
        scattered = sum(part_s[name] for name in ("host", "sum", "update", "few"))
        assert [cause.name for cause in named] == ["few"] * (scattered >= MIN_JOINT_SHARE * found.step)


@given(parts(), st.sampled_from(CAUSES))
def test_a_cause_whose_interval_reaches_zero_is_not_named(found, doubtful):
    lowest = {name: 0.0 if name == doubtful else 1.0 for name in CAUSES}
    assert doubtful not in {cause.name for cause in find_causes(found, lowest)} - {"few"}


@given(st.lists(SECONDS, min_size=2, max_size=8))
def test_the_straggler_is_the_slowest_device(each):
    found = StepParts(1, 0, 0, 0.6, 0.4, 0, 0, 0, straggler=0.5, shared=0, fixed=0)
    [cause] = find_causes(found, None, each)
    assert cause.name == "straggler" and each[cause.device] == max(each)


@given(parts(), parts(), st.booleans())
def test_two_measurements_disagree_where_a_part_differs_by_more_than_a_tenth(one, other, joint):
    first, second = ({name: getattr(found, name) / found.step for name in PARTS} for found in (one, other))
    found = find_disagreements(first, second, joint)
    assert find_disagreements(first, first, joint) == {}
    for name in ("input", "host", "forward", "backward"):
        assert (name in found) == (abs(first[name] - second[name]) > AGREEMENT_TOLERANCE)
    assert not (joint and "update" in found)


@given(parts(), parts())
def test_passes_that_are_one_phase_are_compared_as_one(one, other):
    first, second = ({name: getattr(each, name) / each.step for name in JOINT_PARTS} for each in (one, other))
    assert set(first) == {"input", "host", "passes", "sum", "waiting", "update"}
    assert sum(first.values()) == pytest.approx(1)
    found = find_disagreements(first, second)
    passes = [(each.forward + each.backward) / each.step for each in (one, other)]
    assert ("passes" in found) == (abs(passes[0] - passes[1]) > AGREEMENT_TOLERANCE)
    assert "forward" not in found and "backward" not in found


LINES = st.builds(LinearStepTime, st.floats(0, 1), st.floats(0.001, 1))


@given(LINES, LINES, st.integers(2, 16), st.data(), st.floats(0.5, 4))
def test_from_the_batch_that_pays_on_devices_have_the_speed_up_and_below_they_do_not(
    one, several, devices, data, target
):
    batches = data.draw(st.integers(1, devices))
    model = StepModel(one, several, devices, 8, batches, 0.0, 0.0)
    images = model.break_even_images(target)
    if images is None:
        assert model.speed_up(1e9) < target + 1e-6
        return
    assert model.speed_up(images * 1.01 + 1e-6) >= target - 1e-6
    if images > 0.001:
        assert model.speed_up(images) == pytest.approx(target)
        assert model.speed_up(images * 0.99) <= target + 1e-9


@given(parts(), POSITIVE, st.integers(2, 8), st.integers(1, 64))
def test_the_model_passes_through_what_was_measured(found, one_step, devices, each):
    images = devices * each
    for of_one in (each, images):
        model = fit_step_model(found, one_step, devices, images, of_one)
        rates = images / found.step, of_one / one_step
        if model.several.seconds(each) == pytest.approx(found.step):
            assert model.speed_up(each) == pytest.approx(rates[0] / rates[1])
        assert model.one.seconds(of_one) == pytest.approx(one_step)
        assert model.several.seconds(each) >= found.step - 1e-9
        assert min(model.one) >= -1e-9 and min(model.several) >= 0


@given(LINES, LINES, st.integers(2, 8), SECONDS, st.floats(0, 0.1))
def test_with_the_largest_network_all_devices_are_as_fast_as_one(one, several, devices, moved, update):
    model = StepModel(one, several, devices, 8, devices, moved, min(update, one.fixed))
    times = model.break_even_gradient_factor()
    if times and math.isfinite(times):  # not where the last digits of a float decide
        of_one = one.seconds(8) + (times - 1) * model.update
        of_all = several.seconds(8) + (times - 1) * model.moved
        assert devices * of_one == pytest.approx(of_all, rel=1e-6)


@st.composite
def facts(draw):
    count = draw(st.integers(2, 8))
    each = draw(st.integers(1, 256))
    return TrainingFacts(
        devices=[f"cpu:{number}" for number in range(count)], images_per_copy=each, copies=count,
        max_images_per_copy=each * draw(st.integers(1, 8)),
        batch_option=draw(st.sampled_from(["batch_size", "global_batch_size"])),
        kvstore=draw(st.sampled_from(["device", "ring", "sharded", "sharded-optimizer"])),
        microbatches=draw(st.none() | st.integers(1, 16)), prefetch=draw(st.integers(0, 8)),
        resident_bytes=draw(st.integers(0, 100)),
        data_bytes=draw(st.none() | st.integers(0, 200)),
        decoders=draw(st.none() | st.integers(1, 4)), free_bytes=draw(st.integers(0, 1000)),
        cores=draw(st.integers(1, 8)), is_cpu=draw(st.booleans()),
    )  # fmt: skip


CAUSE = st.builds(Cause, st.sampled_from(CAUSES), st.floats(0.2, 1), st.integers(0, 1))


@given(st.lists(st.floats(0.001, 1), min_size=2, max_size=6), st.data())
def test_devices_that_share_by_their_speeds_end_together(seconds, data):
    """To the rounding of the weights, however they shared before."""
    images = data.draw(st.lists(st.integers(1, 64), min_size=len(seconds), max_size=len(seconds)))
    each = [float(weight) for weight in weights_by_speed(images, seconds).split(",")]
    assert TrainConfig(device_weights=weights_by_speed(images, seconds)) and min(each) == 1
    ends = [weight * time / count for weight, time, count in zip(each, seconds, images)]
    assert max(ends) <= min(ends) * 1.05 / 0.95 + 1e-9


@given(st.lists(CAUSE, max_size=3), facts())
def test_tried_settings_differ_from_the_present_ones_and_exist(found, now):
    chosen = choose_candidates(found, now)
    assert len(chosen) <= MAX_CANDIDATES and (found or not chosen)
    for candidate in chosen:
        for name, value in candidate.settings.items():
            if name in ("batch_size", "global_batch_size"):
                images = value if name == "batch_size" else value // now.copies
                assert name == now.batch_option and images == candidate.images_per_copy
                assert now.images_per_copy < images <= now.max_images_per_copy
            elif name == "device_weights":
                assert value is None or candidate.settings.keys() == {"device_weights"}
            elif name == "devices":
                left = value.split(",")
                assert left and set(left) < set(now.devices)
            elif name in ("kvstore", "prefetch", "microbatches"):
                assert value != getattr(now, name)
            elif name == "resident_bytes":
                assert now.resident_bytes < value <= now.free_bytes // 4
