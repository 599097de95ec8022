"""Uses MXNet's profiler several times in a process, and reads operators from its trace.

This module works around three problems of MXNet 1.9.1:

- The profiler can be configured only once.
- The profiler appends each trace to the previous trace in the same file. If the file has been
  removed, the new file lacks the beginning: the opening brackets, and the names of the rows.
- By default, the profiler records calls of the C API. If a thread is within such a call when
  recording starts, the process crashes, because MXNet pops a call that was never pushed.
"""

from __future__ import annotations

import atexit
import json
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import profiler

from gluonlab.errors import EngineError
from gluonlab.files.atomic_files import temporary_folder
from gluonlab.host.resources import allowed_cpus

Event = Dict[str, Any]

MEMORY_OF_GPUS = ("cpu pinned/", "cpu shared/")  # names of the rows for memory that GPUs use
ALREADY_CONFIGURED = (
    "MXNet's profiler can be configured only once per process, and this process has already "
    "done so: record in a new process, or do not configure it"
)
_file: Optional[Path] = None  # MXNet's output, in a folder of this process
_names: List[Event] = []  # names of the rows, from the first trace


def start_recording() -> None:
    """Start recording. Raises EngineError if other code has configured the profiler."""
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
            raise EngineError(ALREADY_CONFIGURED) from None
        _file = file
    profiler.set_state("run")


def stop_recording() -> None:
    """Stop recording, if the profiler is recording."""
    profiler.set_state("stop")


def take_events() -> List[Event]:
    """Stop recording. Return the events in Chrome's trace format, and delete them.

    Raises EngineError if MXNet has written the events to another file.
    """
    assert _file is not None
    stop_recording()
    profiler.dump()
    if not _file.exists():
        raise EngineError(ALREADY_CONFIGURED)
    text = _file.read_text(encoding="utf-8").strip()
    _file.unlink()
    if not text.startswith(","):
        events: List[Event] = json.loads(text)["traceEvents"]
        events = [_rename_cpu_row(event) for event in events]
        _names.extend(event for event in events if event["ph"] == "M")
        return events
    # The beginning was written to an earlier file.
    _names.extend([] if _names else _row_names())
    return [*_names, *json.loads('{"traceEvents": [' + text.lstrip(","))["traceEvents"]]


def _rename_cpu_row(event: Event) -> Event:
    """Return the event. If there are no GPUs, a row named after GPU memory becomes a CPU device.

    MXNet has one row for each core, followed by the two rows of MEMORY_OF_GPUS. If there are more
    CPU devices than cores, MXNet writes their events to these two rows.
    """
    is_gpu_memory = event["ph"] == "M" and event["args"].get("name") in MEMORY_OF_GPUS
    if not is_gpu_memory or mx.context.num_gpus():
        return event
    return {**event, "args": {"name": f"cpu/{event['pid']}"}}


def _row_names() -> Iterator[Event]:
    """Yield events that name the trace's rows, numbered as in MXNet (src/profiler/profiler.cc)."""
    gpus = mx.context.num_gpus()
    # Without GPUs, the two rows of MEMORY_OF_GPUS are for two more CPU devices (_rename_cpu_row).
    cpu_rows = len(allowed_cpus()) + (0 if gpus else len(MEMORY_OF_GPUS))
    devices = [f"cpu/{number}" for number in range(cpu_rows)]
    devices += [f"gpu/{number}" for number in range(gpus)]
    for number, name in enumerate(devices):
        yield {"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}}


DEVICE = re.compile(r"(cpu|gpu)/([0-9]+)")  # row names; other rows are memory for copies


class Span(NamedTuple):
    """An operator's execution on a device. ``begin`` and ``end``: microseconds since 1970.

    ``row``: the device, such as ``cpu(0)``, or the host.
    """

    row: str
    name: str
    begin: float
    end: float


def operator_spans(events: Sequence[Event]) -> List[Span]:
    """Return all executions of operators on devices, sorted by start."""
    rows = {}
    for event in events:
        device = DEVICE.fullmatch(event["args"]["name"]) if event["ph"] == "M" else None
        if device:
            rows[event["pid"]] = f"{device[1]}({device[2]})"
    starts: Dict[Tuple[Any, ...], List[float]] = {}
    spans = []
    for event in events:
        if event["ph"] not in ("B", "E") or event["pid"] not in rows:
            continue
        key = (event["pid"], event["tid"], event["name"])
        if event["ph"] == "B":
            starts.setdefault(key, []).append(event["ts"])
        elif starts.get(key):
            spans.append(Span(rows[event["pid"]], event["name"], starts[key].pop(), event["ts"]))
    return sorted(spans, key=lambda span: (span.begin, span.end))
