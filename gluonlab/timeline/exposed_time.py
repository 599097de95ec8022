"""Computes exposed time: the part of each phase's time that no other phase of a step hides.

A moment counts for the first phase of PHASE_PRIORITY that any device runs at that moment. For
example, a sum has no exposed time while another device computes backward. Time in which all devices
are idle counts for the host until it has queued the next operator, and then for the phase of that
operator.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from gluonlab.timeline.mxnet_profiler import Span
from gluonlab.timeline.timeline import (
    BACKWARD,
    COPY,
    FORWARD,
    INPUT,
    OTHER,
    STAGES,
    SUM,
    UPDATE,
    WAITING,
    Interval,
    Timeline,
    intersect_intervals,
    merge_intervals,
    total_length,
)

HOST_TIME, STORE = "host", "store"  # idle devices: the host computes, or waits within a sum
# Longest time, in microseconds, in which an operator that is ready and queued starts. Of 600 tiny
# operators in a row on a CPU device, or alternately on two, 99 % started within 9 us.
LAUNCH_US = 20.0
CLOCK_US = 1.0  # resolution of the clock of MXNet's trace, in microseconds
PHASE_PRIORITY = (FORWARD, BACKWARD, UPDATE, SUM, COPY, OTHER)


def exposed_seconds(timeline: Timeline) -> Dict[str, float]:
    """Return the exposed seconds per step of each phase, and of `INPUT`, HOST_TIME and STORE.

    The results add up to the time of a step.
    """
    busy: List[Interval] = []
    exposed: Dict[str, float] = {}
    for phase in PHASE_PRIORITY:
        intervals = (interval for row in timeline.rows for interval in timeline.intervals(row, phase))
        covered = merge_intervals([*busy, *intervals])
        exposed[phase] = total_length(covered) - total_length(busy)
        busy = covered
    spans = [(span, phase, step) for span, phase, step in _spans_with_phase_and_step(timeline)]
    queued = QueueTimes(timeline)
    idle: List[Interval] = []
    for (begin, end), (span, phase, step) in _idle_gaps(timeline, busy, spans):
        until = min(end, max(begin, queued.latest_queue_time(phase, step)))
        if phase == OTHER:
            until = queued.latest_possible_queue_time(span.name, phase, end)
        exposed[phase] += end - until
        idle.append((begin, until))
    last = busy[-1][1] if busy else timeline.begin
    idle = merge_intervals([*idle, (last, timeline.end)])
    exposed[INPUT] = total_length(intersect_intervals(idle, queued.intervals(INPUT)))
    summing = total_length(intersect_intervals(idle, queued.intervals(SUM)))
    exposed[STORE] = summing * queued.idle_share(SUM)
    exposed[HOST_TIME] = total_length(idle) - exposed[INPUT] - exposed[STORE]
    return {name: micros / 1e6 / len(timeline.starts) for name, micros in exposed.items()}


class TimeShares(NamedTuple):
    """Fractions of a device's time, by category. The fractions sum to 1.

    The categories are taken from Meta's Holistic Trace Analysis ("Temporal breakdown" and "Idle
    time breakdown" in its documentation), except for ``core``.

    Attributes:
        computing: Forward, backward and update.
        communicating: Sums, and copies between devices.
        memory: Copies of images to the device, and of losses from the device.
        host: Idle time until the host had queued the device's next operator.
        kernel: Idle time of at most LAUNCH_US (30 ns in Holistic Trace Analysis), or in which the
            next operator had to wait for another device (`_OtherDevices`).
        core: Other idle time, up to the time in which the threads of all devices waited for a core
            (`gluonlab.timeline.recorder`). The threads of all devices count, because this device
            can depend on all of them.
        unknown: The remaining idle time.
    """

    computing: float
    communicating: float
    memory: float
    host: float
    kernel: float
    core: float
    unknown: float


def time_shares(timeline: Timeline, row: str) -> TimeShares:
    """Return the fraction of a device's time in each category. ``row``: for example ``cpu(0)``."""
    shares = timeline.phase_shares(row)
    device_spans = [span for span in _spans_with_phase_and_step(timeline) if span[0].row == row]
    queued, others = QueueTimes(timeline), _OtherDevices(timeline, row)
    host = kernel = 0.0
    busy = merge_intervals((span.begin, span.end) for span, _, _ in device_spans)
    for (begin, end), (span, phase, step) in _idle_gaps(timeline, busy, device_spans):
        until = min(end, max(begin, queued.latest_queue_time(phase, step)))
        waits = others.waiting_intervals((until, end), step)
        latest = queued.latest_possible_queue_time(span.name, phase, end)  # only for time without another explanation
        extra_host = 0.0
        if latest > until:
            extra_host = total_length(merge_intervals([*waits, (until, latest)])) - total_length(waits)
        host, kernel = host + until - begin + extra_host, kernel + total_length(waits)
    last = max(busy[-1][1], timeline.begin) if busy else timeline.begin
    kernel += total_length(others.waiting_intervals((last, timeline.end), None))
    total = timeline.end - timeline.begin
    unknown = max(0.0, shares[WAITING] - (host + kernel) / total)
    core = min(unknown, sum(timeline.core_waits.values()) / total)
    return TimeShares(
        computing=shares[FORWARD] + shares[BACKWARD] + shares[UPDATE],
        communicating=shares[SUM] + shares[COPY],
        memory=shares[OTHER],
        host=host / total,
        kernel=kernel / total,
        core=core,
        unknown=unknown - core,
    )


class _OtherDevices:
    """Work of the other devices that an operator of this device had to wait for.

    In synchronous training, an operator can depend on sums and copies of any step, and on all
    operators of the same or an earlier step. An operator of another device counts only if it had
    ended when this device's operator started. All earlier operators of the other device then also
    count.
    """

    def __init__(self, timeline: Timeline, row: str) -> None:
        self._rows: Dict[str, List[PhasedSpan]] = {}
        for phased in sorted(_spans_with_phase_and_step(timeline), key=lambda it: it[0].end):
            if phased[0].row != row:
                self._rows.setdefault(phased[0].row, []).append(phased)
        self._ends = {name: [span.end for span, *_ in spans] for name, spans in self._rows.items()}
        self._busy = {
            name: merge_intervals((span.begin, span.end) for span, *_ in spans) for name, spans in self._rows.items()
        }

    def waiting_intervals(self, gap: Interval, step: Optional[int]) -> List[Interval]:
        """Return the intervals of an idle gap that count as waiting for a kernel.

        ``step``: the step of the operator after the gap. If None, the gap is after the device's
        last operator, and ends when all other devices have finished.
        """
        if gap[0] >= gap[1]:
            return []
        ran = merge_intervals(
            moment
            for name in self._rows
            for moment in intersect_intervals(self._busy[name], [(gap[0], self._last_dependency_end(name, gap, step))])
        )
        ends = [gap[0], *(end for moment in ran for end in moment), gap[1]]
        pauses = zip(ends[::2], ends[1::2])
        return merge_intervals([*ran, *(pause for pause in pauses if pause[1] - pause[0] <= LAUNCH_US)])

    def _last_dependency_end(self, name: str, gap: Interval, step: Optional[int]) -> float:
        """Return when a device ended the last operator that ``step`` may have waited for in a gap.

        If there is no such operator, return the start of the gap. ``name``: the device. ``step``:
        the step of the waiting operator. If ``step`` is None, because the gap is after the last
        operator, return the end of the gap.
        """
        if step is None:
            return gap[1]
        spans, i = self._rows[name], bisect_right(self._ends[name], gap[1] + CLOCK_US)
        while i and spans[i - 1][0].end > gap[0]:
            i -= 1
            span, phase, other = spans[i]
            if phase in (SUM, COPY) or other <= step:
                return min(span.end, gap[1])
        return gap[0]


class QueueTimes:
    """The times at which the host queued the operators."""

    def __init__(self, timeline: Timeline) -> None:
        self._spans, self._idle = timeline.host, timeline.host_idle
        self._ends: Dict[Tuple[str, int], float] = {}
        for span in timeline.host:
            step = bisect_right(timeline.starts, span.begin) - 1
            self._ends[span.name, step] = span.end
        self._starts = timeline.starts
        self._phases: Dict[str, Set[str]] = {}
        for operator, phase in zip(timeline.spans, timeline.phases):
            self._phases.setdefault(operator.name, set()).add(phase)
        self._all_ends = sorted(span.end for span in timeline.host)

    def latest_possible_queue_time(self, name: str, phase: str, begin: float) -> float:
        """Return the latest time before ``begin`` at which the host may have queued an operator.

        If several phases queue operators of this name, such as copies, the operator's phase is a
        guess, so any of these phases may have queued it. An operator of OTHER may have been queued
        at any time, because the loader copies images from its own thread as soon as they are
        available.
        """
        if phase == OTHER:
            return begin
        i = bisect_right(self._all_ends, begin) if len(self._phases.get(name, ())) > 1 else 0
        return self._all_ends[i - 1] if i else self._starts[0]

    def latest_queue_time(self, phase: str, step: int) -> float:
        """Return the latest time at which the host may have queued operators of this phase.

        ``step``: the step of the operators.
        """
        names = {OTHER: (INPUT,), COPY: (SUM, STAGES)}.get(phase, (phase, SUM, STAGES))
        for name in names:
            if (name, step) in self._ends:
                return self._ends[name, step]
        return self._starts[min(step, len(self._starts) - 1)]

    def intervals(self, phase: str) -> List[Interval]:
        """Return the intervals in which the host queued a phase."""
        return merge_intervals((span.begin, span.end) for span in self._spans if span.name == phase)

    def idle_share(self, phase: str) -> float:
        """Return the fraction of a phase's host time during which the host thread was idle."""
        total = sum(span.end - span.begin for span in self._spans if span.name == phase)
        return min(1.0, max(0.0, self._idle.get(phase, 0.0) / total)) if total else 0.0


PhasedSpan = Tuple[Span, str, int]


def _spans_with_phase_and_step(timeline: Timeline) -> List[PhasedSpan]:
    """Return all spans with their phases and steps.

    The step of a span is at most the step that the host had started.

    The steps in `Timeline.steps` are counted by operator names. The numbers of copies and of
    deleted variables vary from step to step, so the count can be too high. The host's step limits
    the count.
    """
    return [
        (span, phase, min(step, max(0, bisect_right(timeline.starts, span.begin) - 1)))
        for span, phase, step in zip(timeline.spans, timeline.phases, timeline.steps)
    ]


def _idle_gaps(
    timeline: Timeline, busy: List[Interval], spans: List[PhasedSpan]
) -> Iterator[Tuple[Interval, PhasedSpan]]:
    """Yield the gaps between ``busy`` intervals, each with the operator that ends it."""
    begins = [span.begin for span, _, _ in spans]
    previous_end = timeline.begin
    for begin, end in busy:
        if begin > previous_end:
            index = next(i for i in range(bisect_right(begins, begin) - 1, -1, -1) if begins[i] <= begin)
            yield (previous_end, begin), spans[index]
        previous_end = max(previous_end, end)
