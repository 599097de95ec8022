"""Why a device was idle, for made-up timelines with known reasons."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluonlab.timeline.exposed_time import LAUNCH_US, time_shares
from gluonlab.timeline.mxnet_profiler import Span
from gluonlab.timeline.timeline import PHASES, Timeline, intersect_intervals, merge_intervals, total_length

ROWS = ["cpu(0)", "cpu(1)"]
HOLE = (300, 400)


def make_timeline(*ran, core_waits=(0.0, 0.0), steps=3):
    """Return steps that were all queued at 0, to 1000; ``ran``: (row, phase, step, begin, end)."""
    ran = sorted(ran, key=lambda span: span[3:])
    spans = [Span(ROWS[row], "any", begin, end) for row, _, _, begin, end in ran]
    phases, numbers = ([span[index] for span in ran] for index in (1, 2))
    waits = dict(zip(ROWS, core_waits))
    return Timeline(1, [0.0] * steps, 1000.0, ROWS, spans, phases, [], (), numbers, {}, waits)


def busy_except_hole(step=0, next_step=0):
    """Return spans of the first device at all times except HOLE."""
    return (0, "backward", step, 0, HOLE[0]), (0, "update", next_step, HOLE[1], 1000)


AHEAD = (1, "forward", 9, 200, 350)  # of a later step


@pytest.mark.parametrize(
    ("others", "kernel"),
    [
        ([], 0),
        ([(1, "backward", 0, 200, 390)], 0.1),  # 10 us are a launch
        ([(1, "backward", 0, 200, 340)], 0.04),
        ([(1, "backward", 0, 200, 450)], 0),  # it goes on after the hole: nobody waited for it
        ([AHEAD], 0),
        ([AHEAD, (1, "backward", 0, 355, 390)], 0.1),  # it came first in that device's queue
    ],
)
def test_a_gap_counts_as_kernel_while_it_waits_for_another_device(others, kernel):
    result = time_shares(make_timeline(*busy_except_hole(), *others), ROWS[0])
    assert (result.kernel, result.unknown) == pytest.approx((kernel, 0.1 - kernel))
    assert result.computing == pytest.approx(0.9) and sum(result) == pytest.approx(1)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_only_possible_dependencies_of_another_step_count(phase, step):
    """It is of step 2, so its weights come from earlier ones; sums and copies are for anybody."""
    ran = *busy_except_hole(2, 2), (1, phase, step, 300, 400)
    result = time_shares(make_timeline(*ran, steps=4), ROWS[0])
    depends = step <= 2 or phase in ("sum", "copy")
    assert (result.kernel, result.unknown) == pytest.approx((0.1, 0) if depends else (0, 0.1))


def test_a_gap_counts_as_host_until_its_next_operator_is_queued():
    spans = busy_except_hole()
    times = {"forward": 0, "backward": 0, "update": 370}
    host = [Span("host", name, at, at) for name, at in times.items()]
    result = time_shares(make_timeline(*spans)._replace(host=host, starts=[0.0]), ROWS[0])
    assert result.host == pytest.approx(0.07) and result.unknown == pytest.approx(0.03)


@pytest.mark.parametrize("waited", [(0.0, 0.0), (60.0, 0.0), (0.0, 60.0), (500.0, 500.0)])
def test_waiting_for_a_core_explains_no_more_than_was_waited(waited):
    result = time_shares(make_timeline(*busy_except_hole(), core_waits=waited), ROWS[0])
    assert result.core == pytest.approx(min(0.1, sum(waited) / 1000))
    assert result.core + result.unknown == pytest.approx(0.1)


@pytest.mark.parametrize("counted", [1, 5])
def test_an_operator_belongs_to_no_step_that_the_host_had_not_started(counted):
    """It ran at 400, in the second step, whose sum was queued at 390, however often it was seen."""
    host = [Span("host", "sum", 10, 20), Span("host", "sum", 380, 390), Span("host", "sum", 900, 910)]
    spans = (0, "backward", 0, 0, 300), (0, "copy", counted, 400, 1000)
    made = make_timeline(*spans)._replace(host=host, starts=[0.0, 350.0, 800.0])
    result = time_shares(made, ROWS[0])
    assert result.host == pytest.approx(0.09) and result.unknown == 0


@pytest.mark.parametrize(("shared", "late"), [(True, 0.08), (False, 0.0)])
def test_an_operator_of_several_phases_may_be_queued_by_any(shared, late):
    """It is taken for an operator of the update; the host went on queueing the sum until 380."""
    made = make_timeline(*busy_except_hole())
    spans = [span._replace(name="copy" if shared else phase) for span, phase in zip(made.spans, made.phases)]
    host = [Span("host", "update", 0, 0), Span("host", "sum", 310, 380)]
    result = time_shares(made._replace(spans=spans, host=host, starts=[0.0]), ROWS[0])
    assert result.host == pytest.approx(late) and result.unknown == pytest.approx(0.1 - late)


RAN = st.lists(
    st.tuples(
        st.integers(0, 1), st.sampled_from(PHASES), st.integers(0, 2), st.integers(0, 950), st.integers(1, 120)
    ).map(lambda one: (*one[:3], one[3], min(1000, one[3] + one[4]))),
    max_size=10,
)


@given(RAN, st.integers(0, 1))
def test_all_categories_are_those_of_moments_counted_one_by_one(ran, row):
    made = make_timeline(*ran)
    own = sorted((begin, end, number) for number, (of, _, _, begin, end) in enumerate(ran) if of == row)
    busy = [any(begin <= moment < end for begin, end, _ in own) for moment in range(1000)]
    others = [span for span in ran if span[0] != row]
    explained, ended_by = [], []  # for each moment
    for moment in range(1000):
        following = [(b, e, n) for b, e, n in own if b > moment]
        first, _, number = min(following, default=(1000, 1000, None))
        until = [
            end
            for _, phase, step, _, end in others
            if moment < end <= first + 1
            and (phase in ("sum", "copy") or (number is not None and step <= ran[number][2]))
        ]
        runs = any(begin <= moment < end for *_, begin, end in others)
        explained.append(runs and (number is None or bool(until)))
        ended_by.append("" if number is None else ran[number][1])
    kernel = silent = of_host = 0
    for moment in range(1001):
        if moment < 1000 and not busy[moment] and not explained[moment]:
            silent += 1
            continue
        kernel += silent if silent <= LAUNCH_US else 0
        # images that the loader had not sent yet
        of_host += silent if silent > LAUNCH_US and ended_by[moment - 1] == "other" else 0
        silent = 0
        kernel += moment < 1000 and not busy[moment]
    result = time_shares(made, ROWS[row])
    assert sum(result) == pytest.approx(1)
    # which of those that begin at once ends a gap is not said
    if len({begin for begin, _, _ in own}) == len(own):
        assert result.kernel == pytest.approx(kernel / 1000)
        assert result.host == pytest.approx(of_host / 1000)
        assert result.unknown == pytest.approx((1000 - sum(busy) - kernel - of_host) / 1000)


# --- operations on intervals


INTERVALS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8)


def moments(intervals):
    return {moment for begin, end in intervals for moment in range(begin, end)}


@given(INTERVALS, INTERVALS)
def test_interval_operations_equal_sets_of_moments(one, other):
    merged = merge_intervals(one)
    assert moments(merged) == moments(one)
    assert moments(intersect_intervals(merged, merge_intervals(other))) == moments(one) & moments(other)
    assert total_length(merged) == len(moments(one))
    edges = [edge for interval in merged for edge in interval]
    assert edges == sorted(set(edges))
