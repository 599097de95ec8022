"""MXNet's own profiler, used again and again in one process, and the operators of its trace.

MXNet 1.9.1 takes a configuration once. It writes each trace behind the one before, into a file that
begins anew when somebody has removed it, but then without the beginning: brackets, and the names of
the rows. Where it also records calls of its C API, which is its default, a thread that is within
such a call when recording begins ends the process: it pops a call that was never pushed.
"""

from __future__ import annotations

import atexit
import json
import os
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import profiler

from gluonlab.errors import EngineError
from gluonlab.files.atomic_files import temporary_folder

Event = Dict[str, Any]

MEMORY_OF_GPUS = ("cpu pinned/", "cpu shared/")
ANOTHER = (
    "MXNet's profiler is configured once in a process, and somebody else has done it: "
    "record in a new process, or do not configure it"
)
_file: Optional[Path] = None  # where MXNet writes, in a folder of this process
_names: List[Event] = []  # of the rows, as the first trace had them


def start() -> None:
    """Record from now on. Raises EngineError where somebody else has configured the profiler."""
    global _file
    if _file is None:
        stack = ExitStack()
        atexit.register(stack.close)
        file = stack.enter_context(temporary_folder("profiler")) / "trace.json"
        try:
            profiler.set_config(
                profile_symbolic=True, profile_imperative=True, profile_api=False,
                profile_memory=False, filename=str(file),
            )  # fmt: skip
        except mx.base.MXNetError:
            raise EngineError(ANOTHER) from None
        _file = file
    profiler.set_state("run")


def stop() -> None:
    """Record no more. Does nothing where nothing is recorded."""
    profiler.set_state("stop")


def events() -> List[Event]:
    """Stop, and take what has been recorded, in the form of Chrome's traces.

    Raises EngineError where MXNet has written it to another file.
    """
    assert _file is not None
    stop()
    profiler.dump()
    if not _file.exists():
        raise EngineError(ANOTHER)
    text = _file.read_text(encoding="utf-8").strip()
    _file.unlink()
    if not text.startswith(","):
        found: List[Event] = json.loads(text)["traceEvents"]
        found = [_of_cpu_device(event) for event in found]
        _names.extend(event for event in found if event["ph"] == "M")
        return found
    # the beginning went into another file before, ours or somebody else's
    _names.extend([] if _names else _rows())
    return [*_names, *json.loads('{"traceEvents": [' + text.lstrip(","))["traceEvents"]]


def _of_cpu_device(event: Event) -> Event:
    """Rename two rows that MXNet fills with other events than their names say, without GPUs.

    It has a row for each core, then two for memory that only GPUs use. The events of further CPU
    devices land in these.
    """
    meant_for_gpus = event["ph"] == "M" and event["args"].get("name") in MEMORY_OF_GPUS
    if not meant_for_gpus or mx.context.num_gpus():
        return event
    return {**event, "args": {"name": f"cpu/{event['pid']}"}}


def _rows() -> Iterator[Event]:
    """The rows as MXNet numbers and names them (src/profiler/profiler.cc): CPU devices, GPUs."""
    gpus = mx.context.num_gpus()
    # Without GPUs, the two rows for their memory serve two more CPU devices (_of_cpu_device).
    cpu_rows = len(os.sched_getaffinity(0)) + (0 if gpus else len(MEMORY_OF_GPUS))
    devices = [f"cpu/{number}" for number in range(cpu_rows)]
    devices += [f"gpu/{number}" for number in range(gpus)]
    for number, name in enumerate(devices):
        yield {"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}}


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
