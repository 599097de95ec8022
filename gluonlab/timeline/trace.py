"""MXNet's trace with rows of ours beside its own, for Perfetto or Chrome's tracing page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Iterator, List, Tuple

from gluonlab.files.whole import write_text
from gluonlab.timeline.intervals import Interval
from gluonlab.timeline.phases import PHASES
from gluonlab.timeline.profiler import Event
from gluonlab.timeline.recorder import HOST
from gluonlab.timeline.shares import Timeline

FIRST_ROW = 1_000_000  # MXNet numbers its own rows from 0, and gives one a hash


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
