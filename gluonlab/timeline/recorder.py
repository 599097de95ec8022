"""Records some steps of a training: MXNet's trace of the devices, and when the host queued what."""

from __future__ import annotations

import time
from typing import Any, Callable, List, Sequence

import mxnet as mx
from mxnet import nd

from gluonlab.timeline import profiler
from gluonlab.timeline.phases import Phases, Window, called
from gluonlab.timeline.shares import Timeline
from gluonlab.timeline.spans import Span, spans_of

HOST = "host"
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
        self._starts.append(_now())

        def timed(name: str, queue: Callable[[], None]) -> None:
            began = _now()
            queue()
            self._host.append(Span(HOST, called(name), began, _now()))

        return train(timed)

    def end(self) -> Timeline:
        """Wait for the steps, and look at what MXNet has seen of them."""
        nd.waitall()
        end = _now()
        events = profiler.events()
        spans, begin = spans_of(events), self._starts[0]
        before = [span for span in spans if span.begin < begin]
        after = [span for span in spans if begin <= span.begin < end]
        phases = Phases(before, self._windows).of(after)
        return Timeline(
            self._first_step, self._starts, end, self._rows, after, phases, self._host, events
        )


def _now() -> float:
    """Microseconds since 1970, as MXNet's trace has them."""
    return time.time_ns() / 1000
