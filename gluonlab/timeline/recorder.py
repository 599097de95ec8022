"""Records some steps of a training: MXNet's trace of the devices, and when the host queued what."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Sequence

import mxnet as mx
from mxnet import nd

from gluonlab.timeline import profiler
from gluonlab.timeline.core_waits import CoreWaits
from gluonlab.timeline.phases import Phases, Window, called
from gluonlab.timeline.shares import Timeline
from gluonlab.timeline.spans import Span, spans_of

HOST = "host"
INPUT = "input"  # what the host does to get a batch
Around = Callable[[str, Callable[[], None]], None]
Step = Callable[[Around], Any]


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
        profiler.start()

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
        events = profiler.events()
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
