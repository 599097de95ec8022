"""What the devices and the host did in some steps: phases, their shares of the time, the overlap.

A set of moments is a sorted list of intervals (begin, end) that neither touch nor overlap.
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
STAGES = "stages"  # forward and backward of all stages, which the names of operators tell apart
INPUT = "input"  # what the host does to get a batch
WAITING = "waiting"
HOST = "host"  # the row of the host's thread
Interval = Tuple[float, float]
FIRST_ROW = 1_000_000  # of ours in a trace: MXNet numbers its own from 0, and gives one a hash


def merged(intervals: Iterable[Interval]) -> List[Interval]:
    """The moments that lie in any of them."""
    found: List[Interval] = []
    for begin, end in sorted(each for each in intervals if each[0] < each[1]):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def common(one: List[Interval], other: List[Interval]) -> List[Interval]:
    """The moments that lie in both."""
    found, i, j = [], 0, 0
    while i < len(one) and j < len(other):
        begin, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if begin < end:
            found.append((begin, end))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return found


def length(moments: List[Interval]) -> float:
    """How long they last together."""
    return sum(end - begin for begin, end in moments)


class Timeline(NamedTuple):
    """Some steps, whose time is from ``begin`` to ``end`` (microseconds).

    ``rows``: the devices; ``spans`` and ``phases``: what ran on them, and which phase each serves;
    ``host``: what the host's thread did, by phase; ``starts``: when it began each step;
    ``events``: MXNet's own trace, in the form of Chrome's; ``steps``: the number, from 0, of the
    step of each span; ``host_idle``: the microseconds of each of the host's phases in which it did
    not compute; ``core_waits``: of each device whose thread was ready and waited for a core.
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
        """When the first step began."""
        return self.starts[0]

    @property
    def step_s(self) -> float:
        """Seconds of a step, the mean."""
        return (self.end - self.begin) / 1e6 / len(self.starts)

    def moments(self, row: str, *phases: str) -> List[Interval]:
        """When this device did any of these."""
        return merged(
            (max(self.begin, span.begin), min(self.end, span.end))
            for span, phase in zip(self.spans, self.phases)
            if span.row == row and phase in phases
        )

    def shares(self, row: str) -> Dict[str, float]:
        """The share of the time that a device spent in each phase, and waiting; they add up to 1.

        A moment in which several operators ran counts for the first of their phases.
        """
        whole, busy, found = self.end - self.begin, 0.0, {}
        for number, phase in enumerate(PHASES):
            so_far = length(self.moments(row, *PHASES[: number + 1]))
            found[phase] = (so_far - busy) / whole
            busy = so_far
        return {**found, WAITING: 1 - busy / whole}

    def overlap(self) -> Optional[float]:
        """The share of the time of sums and copies in which some device computed backward.

        None where there are none.
        """
        summing = merged(each for row in self.rows for each in self.moments(row, SUM, COPY))
        backward = merged(each for row in self.rows for each in self.moments(row, BACKWARD))
        if not summing:
            return None
        return length(common(summing, backward)) / length(summing)


def write_trace(timeline: Timeline, file: Path) -> None:
    """Write MXNet's events and our rows: phases of each device, steps and phases of the host.

    Raises OutputError.
    """
    events = [*timeline.events, *_events(timeline)]
    write_text(file, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))


def _events(timeline: Timeline) -> Iterator[Event]:
    for number, row in enumerate([*timeline.rows, HOST]):
        pid, name = FIRST_ROW + number, f"gluonlab: {row}"
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": -1}}
        for phase, (begin, end) in phases_of(timeline, row):
            yield _event(phase, pid, begin, end)
    ends = [*timeline.starts[1:], timeline.end]
    for step, (begin, end) in enumerate(zip(timeline.starts, ends), start=timeline.first_step):
        yield {**_event(f"step {step}", FIRST_ROW + len(timeline.rows), begin, end), "tid": 1}


def phases_of(timeline: Timeline, row: str) -> List[Tuple[str, Interval]]:
    """What a device, or the host, did when, in order of time."""
    if row == HOST:
        return [(span.name, (span.begin, span.end)) for span in timeline.host]
    found = [(phase, each) for phase in PHASES for each in timeline.moments(row, phase)]
    return sorted(found, key=lambda one: one[1])


def _event(name: str, pid: int, begin: float, end: float) -> Event:
    return {"ph": "X", "name": name, "cat": "phase", "pid": pid, "tid": 0,
            "ts": begin, "dur": end - begin}  # fmt: skip
