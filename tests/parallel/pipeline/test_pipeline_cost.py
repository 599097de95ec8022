"""Costs of schedules are the longest paths through the graph of their dependencies."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.pipeline_reference import SCHEDULE_NAMES, end_times, make_schedule

from gluonlab.errors import ScheduleError
from gluonlab.parallel.pipeline.pipeline_cost import COMPUTE_OPS, Costs, ideal_bubble, predict_timeline
from gluonlab.parallel.pipeline.pipeline_schedule import SCHEDULES
from gluonlab.parallel.pipeline.verify_pipeline_schedule import peaks

seconds = st.integers(0, 9)


@st.composite
def schedules_and_costs(draw):
    """A schedule, and costs in whole seconds, so that sums are exact."""
    name = draw(st.sampled_from(SCHEDULE_NAMES))
    schedule = make_schedule(name, draw(st.integers(1, 5)), draw(st.integers(1, 9)), draw(st.integers(1, 3)))

    def draw_several(count, elements=seconds):
        return tuple(draw(st.lists(elements, min_size=count, max_size=count)))

    stages = schedule.stages
    boundaries = draw_several(stages - 1, st.tuples(seconds, seconds))
    return schedule, Costs(draw_several(stages), draw_several(stages), boundaries, draw_several(stages))


@examples(60, 150)
@given(schedules_and_costs())
def test_every_instruction_ends_when_the_longest_path_to_it_does(drawn):
    schedule, costs = drawn
    timeline, expected = predict_timeline(schedule, costs), end_times(schedule, costs)
    assert sorted((event.instruction, event.end_s) for event in timeline.events) == sorted(expected.items())
    assert timeline.seconds == max(expected.values())


@examples(40)
@given(schedules_and_costs())
def test_a_device_does_one_thing_at_a_time_and_is_idle_otherwise(drawn):
    schedule, costs = drawn
    timeline = predict_timeline(schedule, costs)
    starts = [event.begin_s for event in timeline.events]
    assert starts == sorted(starts)
    for device in range(schedule.devices):
        own = [event for event in timeline.events if event.device == device]
        busy = sorted((e.begin_s, e.end_s) for e in own if e.instruction.op in COMPUTE_OPS and e.end_s > e.begin_s)
        assert all(end <= begin for (_, end), (begin, _) in zip(busy, busy[1:]))
        worked = sum(end - begin for begin, end in busy)
        if timeline.seconds:
            share = 1 - Fraction(int(worked), int(timeline.seconds))
            assert timeline.bubbles[device] == pytest.approx(float(share))


@examples(40)
@given(schedules_and_costs())
def test_stashed_activations_are_counted_over_time(drawn):
    schedule, costs = drawn
    timeline = predict_timeline(schedule, costs)
    for device, kept in enumerate(timeline.kept):
        times, counts = zip(*kept)
        assert list(times) == sorted(times)
        assert (counts[0], counts[-1], min(counts)) == (0, 0, 0)
        stage_peaks = [peaks(schedule)[stage] for stage in schedule.stages_of(device)]
        assert max(stage_peaks) <= max(counts) <= sum(stage_peaks)


@examples(24, 60)
@given(st.integers(1, 8), st.integers(1, 32), st.sampled_from([1, 2]))
def test_gpipe_and_1f1b_take_the_time_and_bubble_of_the_papers(devices, microbatches, backward):
    for name in ("gpipe", "1f1b"):
        timeline = predict_timeline(SCHEDULES[name](devices, microbatches), Costs.uniform(devices, 1, backward))
        assert timeline.seconds == (microbatches + devices - 1) * (1 + backward)
        share = (devices - 1) / (microbatches + devices - 1)
        assert timeline.bubble == pytest.approx(share) == ideal_bubble(devices, microbatches)


@settings(max_examples=40)
@given(st.integers(2, 6), st.integers(1, 5), st.integers(2, 3), st.sampled_from([1, 2]))
def test_interleaved_makes_the_bubble_as_many_times_shorter(devices, groups, several, backward):
    microbatches = groups * devices
    schedule = SCHEDULES["interleaved"](devices, microbatches, several)
    timeline = predict_timeline(schedule, Costs.uniform(schedule.stages, 1, backward))
    assert timeline.seconds == (several * microbatches + devices - 1) * (1 + backward)
    assert timeline.bubble == pytest.approx(ideal_bubble(devices, microbatches, several))


@settings(max_examples=40)
@given(st.integers(1, 6), st.integers(1, 12), st.integers(1, 3))
def test_sequentially_one_device_works_at_a_time(devices, microbatches, several):
    schedule = SCHEDULES["sequential"](devices, microbatches, several)
    timeline = predict_timeline(schedule, Costs.uniform(schedule.stages, 1, 2, transfer_s=0))
    assert timeline.seconds == microbatches * schedule.stages * 3
    assert timeline.bubbles == pytest.approx((1 - 1 / devices,) * devices)


@settings(max_examples=60)
@given(st.integers(2, 6), st.integers(1, 12), st.integers(2, 3))
def test_interleaved_is_faster_than_1f1b_for_any_number_of_microbatches(devices, microbatches, v):
    """The same network, cut into v times as many stages."""
    fine = SCHEDULES["interleaved"](devices, microbatches, v)
    coarse = SCHEDULES["1f1b"](devices, microbatches)
    fast = predict_timeline(fine, Costs.uniform(fine.stages, 1, 2)).seconds
    assert fast <= predict_timeline(coarse, Costs.uniform(devices, v, 2 * v)).seconds


def test_a_transfer_delays_the_receiver_and_not_the_sender():
    schedule = SCHEDULES["gpipe"](2, 2)
    timeline = predict_timeline(schedule, Costs.uniform(2, 1, 2, transfer_s=3, update_s=1))
    times = {str(e.instruction): (e.begin_s, e.end_s) for e in timeline.events}
    assert times["forward of microbatch 1, stage 0"] == (1, 2)
    assert times["send_forward of microbatch 0, stage 0"] == (1, 4)
    assert times["send_forward of microbatch 1, stage 0"] == (4, 7)  # one after the other
    assert times["recv_forward of microbatch 0, stage 1"] == (0, 4)
    assert times["recv_forward of microbatch 1, stage 1"] == (5, 7)
    assert times["update, stage 0"][1] == timeline.seconds == 19


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"forward_s": (1.0,)}, r"gpipe has 2 stages, but forward_s is \(1\.0,\): use one number per stage"),
        ({"transfer_s": ()}, r"gpipe has 2 stages, but transfer_s is \(\): use one pair for each boundary"),
        ({"update_s": (0.0, -1.0)}, r"update_s=\(0\.0, -1\.0\): must be durations in seconds, each at least 0"),
        ({"backward_s": (float("nan"), 1.0)}, r"backward_s=\(nan, 1\.0\)"),
    ],
)
def test_costs_for_another_number_of_stages_are_refused(change, words):
    costs = Costs(**{**vars(Costs.uniform(2)), **change})
    with pytest.raises(ScheduleError, match=words):
        predict_timeline(SCHEDULES["gpipe"](2, 3), costs)
