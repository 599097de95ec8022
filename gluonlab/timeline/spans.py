"""The operators of a trace of MXNet's profiler: what ran where, from when to when."""

from __future__ import annotations

import re
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from gluonlab.timeline.profiler import Event

DEVICE = re.compile(r"(cpu|gpu)/([0-9]+)")  # of a row's name; others are memory that copies use


class Span(NamedTuple):
    """Something that ran in a row, such as ``cpu(0)``; microseconds since 1970."""

    row: str
    name: str
    begin: float
    end: float


def spans_of(events: Sequence[Event]) -> List[Span]:
    """All operators on devices, in the order of their beginnings."""
    rows = {}
    for event in events:
        device = DEVICE.fullmatch(event["args"]["name"]) if event["ph"] == "M" else None
        if device:
            rows[event["pid"]] = f"{device[1]}({device[2]})"
    begun: Dict[Tuple[Any, ...], List[float]] = {}
    found = []
    for event in events:
        if event["ph"] not in ("B", "E") or event["pid"] not in rows:
            continue
        key = (event["pid"], event["tid"], event["name"])
        if event["ph"] == "B":
            begun.setdefault(key, []).append(event["ts"])
        elif begun.get(key):
            found.append(Span(rows[event["pid"]], event["name"], begun[key].pop(), event["ts"]))
    return sorted(found, key=lambda span: (span.begin, span.end))
