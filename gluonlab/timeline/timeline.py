"""Timeline of some training steps: when each device and the host executed each phase.

A timeline also reports what fraction of a device's time each phase takes, and how much of the sums
overlaps with backward. A set of times is a sorted list of disjoint intervals (begin, end).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from gluonlab.files.atomic_files import write_text
from gluonlab.timeline.mxnet_profiler import Event, Span

FORWARD, BACKWARD, SUM, COPY = "forward", "backward", "sum", "copy"
UPDATE, OTHER = "update", "other"
PHASES = (FORWARD, BACKWARD, SUM, COPY, UPDATE, OTHER)
STAGES = "stages"  # forward and backward of all stages, distinguished by operator names
INPUT = "input"  # the host fetches a batch
WAITING = "waiting"
HOST = "host"  # the row of the host's thread
Interval = Tuple[float, float]
# Number of the first row that `write_trace` adds. MXNet numbers its rows from 0, except for one
# row, whose number is a hash.
FIRST_ROW = 1_000_000


def merge_intervals(intervals: Iterable[Interval]) -> List[Interval]:
    """Return the union of intervals, as sorted intervals that do not overlap."""
    merged: List[Interval] = []
    for begin, end in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def intersect_intervals(one: List[Interval], other: List[Interval]) -> List[Interval]:
    """Return the times that are in both lists of intervals."""
    intersection, i, j = [], 0, 0
    while i < len(one) and j < len(other):
        begin, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if begin < end:
            intersection.append((begin, end))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return intersection


def total_length(moments: List[Interval]) -> float:
    """Return the total length of the intervals."""
    return sum(end - begin for begin, end in moments)


class Timeline(NamedTuple):
    """Some steps, from ``begin`` to ``end``. All times are in microseconds.

    Attributes:
        first_step: Number of the first step.
        starts: Start of each step on the host.
        end: End of the last step.
        rows: Names of the devices, such as ``cpu(0)``.
        spans: Operators on the devices.
        phases: Phase of each span.
        host: Phases of the host's thread.
        events: MXNet's own trace, in Chrome's format.
        steps: Step of each span, from 0.
        host_idle: For each phase of the host, the time in which the host's thread was idle.
        core_waits: For each device, the time in which its thread was ready and waited for a core.
    """

    first_step: int
    starts: Sequence[float]
    end: float
    rows: Sequence[str]
    spans: Sequence[Span]
    phases: Sequence[str]
    host: Sequence[Span]
    events: Sequence[Event] = ()
    steps: Sequence[int] = ()
    host_idle: Mapping[str, float] = {}
    core_waits: Mapping[str, float] = {}

    @property
    def begin(self) -> float:
        """Start of the first step."""
        return self.starts[0]

    @property
    def step_s(self) -> float:
        """Mean time of a step, in seconds."""
        return (self.end - self.begin) / 1e6 / len(self.starts)

    def intervals(self, row: str, *phases: str) -> List[Interval]:
        """Return the intervals in which a device ran at least one of these phases."""
        return merge_intervals(
            (max(self.begin, span.begin), min(self.end, span.end))
            for span, phase in zip(self.spans, self.phases)
            if span.row == row and phase in phases
        )

    def phase_shares(self, row: str) -> Dict[str, float]:
        """Return the fraction of a device's time in each phase and in WAITING; they sum to 1.

        Time in which operators of several phases ran counts for the first of these phases in
        PHASES.
        """
        total, busy, shares = self.end - self.begin, 0.0, {}
        for number, phase in enumerate(PHASES):
            so_far = total_length(self.intervals(row, *PHASES[: number + 1]))
            shares[phase] = (so_far - busy) / total
            busy = so_far
        return {**shares, WAITING: 1 - busy / total}

    def overlap(self) -> Optional[float]:
        """Return the fraction of the time of sums and copies in which a device computed backward.

        Return None if there are neither sums nor copies.
        """
        summing = merge_intervals(interval for row in self.rows for interval in self.intervals(row, SUM, COPY))
        backward = merge_intervals(interval for row in self.rows for interval in self.intervals(row, BACKWARD))
        if not summing:
            return None
        return total_length(intersect_intervals(summing, backward)) / total_length(summing)


def write_trace(timeline: Timeline, file: Path) -> None:
    """Write MXNet's trace to a JSON file, with added rows for phases and steps.

    Raises OutputError.
    """
    events = [*timeline.events, *_trace_events(timeline)]
    write_text(file, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))


def _trace_events(timeline: Timeline) -> Iterator[Event]:
    """Yield the rows and events of phases and steps, in Chrome's trace format."""
    for number, row in enumerate([*timeline.rows, HOST]):
        pid, name = FIRST_ROW + number, f"gluonlab: {row}"
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": -1}}
        for phase, (begin, end) in phase_intervals(timeline, row):
            yield _trace_event(phase, pid, begin, end)
    ends = [*timeline.starts[1:], timeline.end]
    for step, (begin, end) in enumerate(zip(timeline.starts, ends), start=timeline.first_step):
        yield {**_trace_event(f"step {step}", FIRST_ROW + len(timeline.rows), begin, end), "tid": 1}


def phase_intervals(timeline: Timeline, row: str) -> List[Tuple[str, Interval]]:
    """Return (phase, interval) of a device or of the host, sorted by time."""
    if row == HOST:
        return [(span.name, (span.begin, span.end)) for span in timeline.host]
    intervals = [(phase, interval) for phase in PHASES for interval in timeline.intervals(row, phase)]
    return sorted(intervals, key=lambda one: one[1])


def _trace_event(name: str, pid: int, begin: float, end: float) -> Event:
    # "X" is a complete event of Chrome's trace format, with start and duration in microseconds.
    return {"ph": "X", "name": name, "cat": "phase", "pid": pid, "tid": 0, "ts": begin, "dur": end - begin}
