"""Records some steps of a training: MXNet's trace of the devices, and when the host queued what.

MXNet's trace has operators, and a step is made of phases: which operators a phase queues is
learned from one step that is made phase by phase, each of which the host waits for. The steps after
it queue the same operators, in whatever order they run.
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
from gluonlab.timeline.mxnet_profiler import Span, spans_of
from gluonlab.timeline.timeline import (
    BACKWARD,
    COPY,
    FORWARD,
    HOST,
    INPUT,
    OTHER,
    STAGES,
    SUM,
    UPDATE,
    Timeline,
)

Around = Callable[[str, Callable[[], None]], None]
Step = Callable[[Around], Any]
_OF_STRATEGY = {"allreduce": SUM}  # what a strategy's own phases are called here, if otherwise
FROM_HOST, TO_HOST = "CPU2GPU", "GPU2CPU"  # ends of the names of copies
Key = Tuple[str, str]  # a row and an operator's name
_ON_WORKER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
SCHEDSTAT = "/proc/self/task/{}/schedstat"
NAME = b"gluonlab.CoreWaits"


class Recorder:
    """`learn` from a step, `record` those after it, and `end`.

    A step is a ``train(around)`` that queues it, and hands each of its phases to
    ``around(name, queue)``, which calls ``queue``. ``rows``: the devices; ``first_step``: the
    number of the first step that is recorded.
    """

    def __init__(self, rows: Sequence[mx.Context], first_step: int) -> None:
        self._rows, self._first_step = [str(ctx) for ctx in rows], first_step
        self._windows: List[Window] = []
        self._host: List[Span] = []
        self._starts: List[float] = []
        self._fetched = False  # the batch of the next step, with which that has begun
        self._idle: Dict[str, float] = {}  # microseconds in which the host did not compute
        self._core_waits = CoreWaits(rows)

    def learn(self, train: Step) -> Any:
        """A step, each phase of which the host waits for; what ``train`` gives.

        Raises EngineError where MXNet's profiler is another's.
        """
        nd.waitall()
        mxnet_profiler.start()

        def waited_for(name: str, queue: Callable[[], None]) -> None:
            nd.waitall()
            began = _now()
            queue()
            nd.waitall()
            self._windows.append(Window(name, began, _now()))

        done = train(waited_for)
        nd.waitall()
        return done

    def record(self, train: Step) -> Any:
        """A step as it always is; what ``train`` gives."""
        if not self._fetched:
            self._begin_step()
        self._fetched = False

        def timed(name: str, queue: Callable[[], None]) -> None:
            self._timed(called(name), queue)

        return train(timed)

    def fetch(self, get: Callable[[], Any]) -> Any:
        """What ``get`` gives: the batch of the step that is recorded next, noted as `INPUT`."""
        got: List[Any] = []
        self._fetched = True
        self._begin_step()
        self._timed(INPUT, lambda: got.append(get()))
        return got[0]

    def _begin_step(self) -> None:
        if not self._starts:
            self._core_waits.begin()
        self._starts.append(_now())

    def _timed(self, phase: str, queue: Callable[[], Any]) -> None:
        began, computed = _now(), time.thread_time()
        queue()
        span = Span(HOST, phase, began, _now())
        self._host.append(span)
        computing = (time.thread_time() - computed) * 1e6
        self._idle[phase] = self._idle.get(phase, 0.0) + span.end - span.begin - computing

    def end(self) -> Timeline:
        """Wait for the steps, and look at what MXNet has seen of them."""
        nd.waitall()
        end, core_waits = _now(), self._core_waits.micros()
        events = mxnet_profiler.events()
        spans, begin = spans_of(events), self._starts[0]
        before = [span for span in spans if span.begin < begin]
        after = [span for span in spans if begin <= span.begin < end]
        self._host.sort(key=lambda span: span.begin)  # a sum within a pass after that pass
        learned = Phases(before, self._windows)
        return Timeline(
            self._first_step, self._starts, end, self._rows, after, learned.of(after), self._host,
            events, learned.steps(after), self._idle, core_waits,
        )  # fmt: skip


def _now() -> float:
    """Microseconds since 1970, as MXNet's trace has them."""
    return time.time_ns() / 1000


# --- the phase of each operator


def called(phase: str) -> str:
    """What a phase of a strategy is called here."""
    return _OF_STRATEGY.get(phase, phase)


class Window(NamedTuple):
    """The time, in microseconds, in which nothing but this phase of a strategy ran."""

    phase: str
    begin: float
    end: float


class Phases:
    """``phases.of(spans)``: the phase of each, as learned from a step with these windows."""

    def __init__(self, spans: Sequence[Span], windows: Sequence[Window]) -> None:
        self._learned: Dict[Key, List[str]] = {}
        # Nothing comes back from the host that has not gone there before: else these are images of
        # a batch to come, which the loader copies whenever it has them.
        there = [span for span in spans if span.name.endswith(TO_HOST)]
        through_host = [
            window for window in windows if any(_ran_in(each, window) for each in there)
        ]
        for span in spans:
            key, among = (span.row, span.name), windows
            if span.name.endswith(FROM_HOST):
                among = through_host
            self._learned.setdefault(key, []).append(_phase_in(span, among))

    def of(self, spans: Sequence[Span]) -> List[str]:
        """The phases of all spans of whole steps, which are in the order of their beginnings.

        An operator that several phases queue is theirs in turns, as in the step that was learned;
        one that was not seen there is of the phase in which other rows have it. What no phase
        queues is ``other``: images on their way in, losses on their way out.
        """
        seen: "Counter[Key]" = Counter()
        found = []
        for span in spans:
            key = (span.row, span.name)
            learned = self._learned.get(key) or self._elsewhere(span.name)
            found.append(learned[seen[key] % len(learned)])
            seen[key] += 1
        return found

    def steps(self, spans: Sequence[Span]) -> List[int]:
        """The number of the step, from 0, that each span belongs to; of spans as `of` takes them.

        A step queues as many operators of a name as the one that was learned.
        """
        seen: "Counter[Key]" = Counter()
        found = []
        for span in spans:
            key = (span.row, span.name)
            found.append(seen[key] // len(self._learned.get(key, (OTHER,))))
            seen[key] += 1
        return found

    def _elsewhere(self, name: str) -> List[str]:
        """The phase in which other rows have an operator of this name."""
        of_others = Counter(
            phase
            for (_, other), phases in self._learned.items()
            if other == name
            for phase in phases
        )
        return [of_others.most_common(1)[0][0]] if of_others else [OTHER]


def _ran_in(span: Span, window: Window) -> bool:
    # MXNet's clock counts whole microseconds
    return window.begin - 1 <= span.begin and span.end <= window.end + 1


def _phase_in(span: Span, windows: Sequence[Window]) -> str:
    for window in windows:
        if _ran_in(span, window):
            return _refined(called(window.phase), span.name)
    return OTHER


def _refined(phase: str, name: str) -> str:
    """What an operator of a phase is for: some of a strategy's phases do several things."""
    if phase in (SUM, STAGES) and name.startswith(("Copy", "_copyto")):
        return COPY
    if phase == STAGES:
        return BACKWARD if "_backward" in name else FORWARD
    # a kvstore may update, too
    return UPDATE if phase == SUM and name.endswith("_update") else phase


# --- threads that wait for cores


class CoreWaits:
    """``begin()``, and later ``micros()``: how long each device's thread has waited for a core.

    A device with more threads on its host than cores stands still although all that it needs is
    there, and MXNet's trace does not say why. Linux does: /proc/self/task/ID/schedstat counts, for
    a thread, the nanoseconds in which it ran, and in which it waited for a core (its
    sched-stats.rst). MXNet has one thread for a CPU device, and others for some sums, whose waiting
    is not counted here.
    """

    def __init__(self, ctxs: Sequence[mx.Context]) -> None:
        """Waits for the devices, whose threads say which they are."""
        self._threads = {str(ctx): _thread_of(ctx) for ctx in ctxs if ctx.device_type == "cpu"}
        self._before: Dict[str, float] = {}

    def begin(self) -> None:
        """Count from now on."""
        self._before = self._now()

    def micros(self) -> Dict[str, float]:
        """Microseconds by device; without those of which the system says nothing."""
        return {
            row: now - self._before[row] for row, now in self._now().items() if row in self._before
        }

    def _now(self) -> Dict[str, float]:
        found = {}
        for row, thread in self._threads.items():
            try:
                _, waited, *_ = Path(SCHEDSTAT.format(thread)).read_text().split()
                found[row] = int(waited) / 1000
            except (OSError, ValueError):  # not Linux, or the thread has ended
                pass
        return found


def _thread_of(ctx: mx.Context) -> int:
    """The system's number of the thread that computes for a CPU device."""
    found: List[int] = []
    callback = _ON_WORKER(lambda *_: found.append(threading.get_native_id()))
    array = nd.zeros((1,), ctx=ctx)
    where = ctypes.byref(EngineContext(ctx.device_typeid, ctx.device_id))
    handle = ctypes.byref(array.handle)
    check_call(
        _LIB.MXEnginePushSyncND(callback, None, None, where, None, 0, handle, 1, None, 0, NAME)
    )
    array.wait_to_read()
    return found[0]
