"""Records training steps: MXNet's trace of the devices, and when the host queued each phase.

MXNet's trace contains operators, but not their phases (forward, backward, sum, ...). So the
recorder first learns which operators each phase queues: it runs one step in which the host waits
after each phase. Later steps queue the same operators, in any order.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import mxnet as mx
from mxnet import nd
from mxnet.base import _LIB, check_call

from gluonlab.engine.cpu_threads import EngineContext
from gluonlab.timeline import mxnet_profiler
from gluonlab.timeline.mxnet_profiler import Span, operator_spans
from gluonlab.timeline.timeline import BACKWARD, COPY, FORWARD, HOST, INPUT, OTHER, STAGES, SUM, UPDATE, Timeline

PhaseHook = Callable[[str, Callable[[], None]], None]
Step = Callable[[PhaseHook], Any]
_TIMELINE_PHASES = {"allreduce": SUM}  # phase of a strategy -> phase of a timeline, if different
FROM_HOST, TO_HOST = "CPU2GPU", "GPU2CPU"  # suffixes of the operator names of copies
Key = Tuple[str, str]  # (row, operator name)
_ENGINE_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
SCHEDSTAT = "/proc/self/task/{}/schedstat"  # of the thread with this number
CORE_WAITS_OPERATOR = b"gluonlab.CoreWaits"  # operator name for the engine call in `_find_device_thread`


class Recorder:
    """Records some steps: call `learn` for one step, `record` for the next steps, and then `end`.

    Each step is a function ``train(hook)``. For each phase, the step calls ``hook(name, queue)``
    with the phase's name and the function that queues the phase's operators. The hook calls
    ``queue``.

    Args:
        rows: The devices.
        first_step: Number of the first recorded step.
    """

    def __init__(self, rows: Sequence[mx.Context], first_step: int) -> None:
        self._rows, self._first_step = [str(ctx) for ctx in rows], first_step
        self._windows: List[PhaseWindow] = []
        self._host: List[Span] = []
        self._starts: List[float] = []
        self._fetched = False  # whether the next step has started, by fetching its batch
        self._idle: Dict[str, float] = {}  # by phase, microseconds in which the host did not compute
        self._core_waits = CoreWaits(rows)

    def learn(self, train: Step) -> Any:
        """Run a step and wait after each phase, to learn which operators each phase queues.

        Raises EngineError if other code has configured MXNet's profiler.
        """
        nd.waitall()
        mxnet_profiler.start_recording()

        def run_and_wait(name: str, queue: Callable[[], None]) -> None:
            """Queue a phase, wait for it, and record when it started and ended."""
            nd.waitall()
            start = _now_us()
            queue()
            nd.waitall()
            self._windows.append(PhaseWindow(name, start, _now_us()))

        result = train(run_and_wait)
        nd.waitall()
        return result

    def record(self, train: Step) -> Any:
        """Run a training step without waiting, record it, and return the result of ``train``."""
        if not self._fetched:
            self._begin_step()
        self._fetched = False

        def time_and_queue(name: str, queue: Callable[[], None]) -> None:
            self._time_phase(timeline_phase(name), queue)

        return train(time_and_queue)

    def fetch(self, get: Callable[[], Any]) -> Any:
        """Record, as `INPUT`, how long ``get`` takes to return the next batch; return the batch."""
        batches: List[Any] = []
        self._fetched = True
        self._begin_step()
        self._time_phase(INPUT, lambda: batches.append(get()))
        return batches[0]

    def _begin_step(self) -> None:
        if not self._starts:
            self._core_waits.begin()
        self._starts.append(_now_us())

    def _time_phase(self, phase: str, queue: Callable[[], Any]) -> None:
        """Call ``queue``, and record when it ran and for how long the thread did not compute."""
        start, cpu_start = _now_us(), time.thread_time()
        queue()
        span = Span(HOST, phase, start, _now_us())
        self._host.append(span)
        computing = (time.thread_time() - cpu_start) * 1e6
        self._idle[phase] = self._idle.get(phase, 0.0) + span.end - span.begin - computing

    def end(self) -> Timeline:
        """Wait until the steps have finished, and return their timeline."""
        nd.waitall()
        end, core_waits = _now_us(), self._core_waits.wait_micros()
        events = mxnet_profiler.take_events()
        spans, begin = operator_spans(events), self._starts[0]
        learned = [span for span in spans if span.begin < begin]
        recorded = [span for span in spans if begin <= span.begin < end]
        # A sum within a pass ends before the pass does, and so was appended before it.
        self._host.sort(key=lambda span: span.begin)
        phase_map = PhaseMap(learned, self._windows)
        return Timeline(
            self._first_step, self._starts, end, self._rows, recorded,
            phase_map.find_phases(recorded), self._host, events,
            phase_map.number_steps(recorded), self._idle, core_waits,
        )  # fmt: skip


def _now_us() -> float:
    """Return microseconds since 1970, as in MXNet's trace."""
    return time.time_ns() / 1000


# --- the phase of each operator


def timeline_phase(phase: str) -> str:
    """Return the phase of a timeline that corresponds to a strategy's phase."""
    return _TIMELINE_PHASES.get(phase, phase)


class PhaseWindow(NamedTuple):
    """A time, in microseconds, in which only this phase of a strategy ran."""

    phase: str
    begin: float
    end: float


class PhaseMap:
    """The phase of each operator, by device and operator name.

    ``spans``: the operators of the learned step. ``windows``: when each phase of this step ran.
    """

    def __init__(self, spans: Sequence[Span], windows: Sequence[PhaseWindow]) -> None:
        self._learned: Dict[Key, List[str]] = {}
        # A phase copies from the host only arrays that it has copied to the host before. All other
        # copies from the host are images of a later batch, which the loader copies at any time.
        to_host = [span for span in spans if span.name.endswith(TO_HOST)]
        through_host = [window for window in windows if any(_ran_within(span, window) for span in to_host)]
        for span in spans:
            key, candidates = (span.row, span.name), windows
            if span.name.endswith(FROM_HOST):
                candidates = through_host
            self._learned.setdefault(key, []).append(_find_window_phase(span, candidates))

    def find_phases(self, spans: Sequence[Span]) -> List[str]:
        """Return the phase of each span. The spans must cover whole steps and be sorted by start.

        If several phases queue operators of the same name, their spans get these phases in the
        order of the learned step. If the learned step has no such operator on this device, the span
        gets the phase that it has on other devices. Copies of images and losses, which no phase
        queues, are ``other``.
        """
        count: "Counter[Key]" = Counter()
        phases = []
        for span in spans:
            key = (span.row, span.name)
            learned = self._learned.get(key) or self._phase_in_other_rows(span.name)
            phases.append(learned[count[key] % len(learned)])
            count[key] += 1
        return phases

    def number_steps(self, spans: Sequence[Span]) -> List[int]:
        """Return the step number of each span, from 0.

        ``spans``: the spans of whole steps, sorted by start. A step is assumed to have as many
        operators of each name as the learned step.
        """
        count: "Counter[Key]" = Counter()
        numbers = []
        for span in spans:
            key = (span.row, span.name)
            numbers.append(count[key] // len(self._learned.get(key, (OTHER,))))
            count[key] += 1
        return numbers

    def _phase_in_other_rows(self, name: str) -> List[str]:
        """Return the most frequent phase of operators of this name on other devices."""
        of_others = Counter(phase for (_, other), phases in self._learned.items() if other == name for phase in phases)
        return [of_others.most_common(1)[0][0]] if of_others else [OTHER]


def _ran_within(span: Span, window: PhaseWindow) -> bool:
    """Return True if an operator ran entirely in the window."""
    # MXNet's clock has a resolution of 1 us.
    return window.begin - 1 <= span.begin and span.end <= window.end + 1


def _find_window_phase(span: Span, windows: Sequence[PhaseWindow]) -> str:
    """Return the timeline's name of the phase during which an operator ran, or OTHER."""
    for window in windows:
        if _ran_within(span, window):
            return _refine_phase(timeline_phase(window.phase), span.name)
    return OTHER


def _refine_phase(phase: str, name: str) -> str:
    """Return the phase of the operator ``name``, which ran while ``phase`` was recorded.

    The two can differ: for example, the phase of a sum includes copies.
    """
    if phase in (SUM, STAGES) and name.startswith(("Copy", "_copyto")):
        return COPY
    if phase == STAGES:
        return BACKWARD if "_backward" in name else FORWARD
    # a kvstore can also update the parameters
    return UPDATE if phase == SUM and name.endswith("_update") else phase


# --- threads that wait for cores


class CoreWaits:
    """Time that the devices' threads wait for a core, from ``begin()`` to ``wait_micros()``.

    If the host has more threads than cores, a CPU device can be idle although its next operator is
    ready, and MXNet's trace does not show why. On Linux, /proc/self/task/ID/schedstat contains how
    many nanoseconds a thread ran, and how many it waited for a core (see sched-stats.rst). MXNet
    has one thread for each CPU device. MXNet's other threads, which compute some sums, are not
    counted.
    """

    def __init__(self, ctxs: Sequence[mx.Context]) -> None:
        """Find the thread of each CPU device. The search waits for the devices' operators."""
        self._threads = {str(ctx): _find_device_thread(ctx) for ctx in ctxs if ctx.device_type == "cpu"}
        self._before: Dict[str, float] = {}

    def begin(self) -> None:
        """Start measuring."""
        self._before = self._read_waits()

    def wait_micros(self) -> Dict[str, float]:
        """Return for how many microseconds each device's thread waited for a core.

        Devices for which the system does not report this time are omitted.
        """
        return {row: now - self._before[row] for row, now in self._read_waits().items() if row in self._before}

    def _read_waits(self) -> Dict[str, float]:
        """Return the microseconds that each thread has waited since its start."""
        waits = {}
        for row, thread in self._threads.items():
            try:
                _, waited, *_ = Path(SCHEDSTAT.format(thread)).read_text().split()
                waits[row] = int(waited) / 1000
            except (OSError, ValueError):  # not Linux, or the thread has ended
                pass
        return waits


def _find_device_thread(ctx: mx.Context) -> int:
    """Return the native thread ID of a CPU device's worker thread."""
    thread_ids: List[int] = []
    callback = _ENGINE_CALLBACK(lambda *_: thread_ids.append(threading.get_native_id()))
    array = nd.zeros((1,), ctx=ctx)
    where = ctypes.byref(EngineContext(ctx.device_typeid, ctx.device_id))
    handle = ctypes.byref(array.handle)
    check_call(_LIB.MXEnginePushSyncND(callback, None, None, where, None, 0, handle, 1, None, 0, CORE_WAITS_OPERATOR))
    array.wait_to_read()
    return thread_ids[0]
