"""Where a step's time goes when what several devices do at once counts once.

A moment belongs to the first of ORDER that any device does then: a sum beside another device's
backward costs nothing. In a moment in which no device does anything, the next operator to begin
says why: the host had not queued it yet, or it had, and the operator's own phase took its time to
begin.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Dict, Iterator, List, NamedTuple, Tuple

from gluonlab.timeline.intervals import Interval, common, length, merged
from gluonlab.timeline.phases import BACKWARD, COPY, FORWARD, OTHER, STAGES, SUM, UPDATE
from gluonlab.timeline.recorder import INPUT
from gluonlab.timeline.shares import Timeline
from gluonlab.timeline.spans import Span

HOST_TIME, STORE = "host", "store"  # the host computes; it does not, within a sum
ORDER = (FORWARD, BACKWARD, UPDATE, SUM, COPY, OTHER)


def exposed(timeline: Timeline) -> Dict[str, float]:
    """Seconds of a step: of each of ORDER, `INPUT`, HOST_TIME and STORE; they add up to a step."""
    busy: List[Interval] = []
    found: Dict[str, float] = {}
    for phase in ORDER:
        now = merged(
            [*busy, *(each for row in timeline.rows for each in timeline.moments(row, phase))]
        )
        found[phase] = length(now) - length(busy)
        busy = now
    spans = [(span, phase, step) for span, phase, step in _by_begin(timeline)]
    queued = Queued(timeline)
    idle: List[Interval] = []
    for (begin, end), (_, phase, step) in _gaps(timeline, busy, spans):
        until = min(end, max(begin, queued.when(phase, step)))
        found[phase] += end - until
        idle.append((begin, until))
    after = busy[-1][1] if busy else timeline.begin
    idle = merged([*idle, (after, timeline.end)])
    found[INPUT] = length(common(idle, queued.moments(INPUT)))
    summing = length(common(idle, queued.moments(SUM)))
    found[STORE] = summing * queued.idle_share(SUM)
    found[HOST_TIME] = length(idle) - found[INPUT] - found[STORE]
    return {name: micros / 1e6 / len(timeline.starts) for name, micros in found.items()}


class Categories(NamedTuple):
    """Shares of a window that a device spent, as Holistic Trace Analysis divides it.

    ``computing``: forward, backward and update; ``communicating``: sums, and copies between
    devices; ``memory``: images on their way in, losses on their way out. Idle: until the ``host``
    had queued what it did next, for another ``kernel`` after that, or for a reason that is
    ``unknown``. Source: Meta's Holistic Trace Analysis, "Temporal breakdown" and "Idle time
    breakdown" of its documentation.
    """

    computing: float
    communicating: float
    memory: float
    host: float
    kernel: float
    unknown: float


def categories(timeline: Timeline, row: str) -> Categories:
    """Those of a device; they add up to 1."""
    shares = timeline.shares(row)
    own = [each for each in _by_begin(timeline) if each[0].row == row]
    queued, host, kernel = Queued(timeline), 0.0, 0.0
    busy = merged((span.begin, span.end) for span, _, _ in own)
    for (begin, end), (_, phase, step) in _gaps(timeline, busy, own):
        until = min(end, max(begin, queued.when(phase, step)))
        host, kernel = host + until - begin, kernel + end - until
    others = merged((span.begin, span.end) for span in timeline.spans if span.row != row)
    last = busy[-1][1] if busy else timeline.begin
    kernel += length(common(others, [(last, timeline.end)] if last < timeline.end else []))
    whole = timeline.end - timeline.begin
    idle = 1 - sum(share for name, share in shares.items() if name != "waiting")
    return Categories(
        computing=shares[FORWARD] + shares[BACKWARD] + shares[UPDATE],
        communicating=shares[SUM] + shares[COPY],
        memory=shares[OTHER],
        host=host / whole,
        kernel=kernel / whole,
        unknown=max(0.0, idle - (host + kernel) / whole),
    )


class Queued:
    """When the host queued what."""

    def __init__(self, timeline: Timeline) -> None:
        self._spans, self._idle = timeline.host, timeline.host_idle
        self._ends: Dict[Tuple[str, int], float] = {}
        for span in timeline.host:
            step = bisect_right(timeline.starts, span.begin) - 1
            self._ends[span.name, step] = span.end
        self._starts = timeline.starts

    def when(self, phase: str, step: int) -> float:
        """The latest moment at which a phase's operators of a step may have been queued."""
        names = {OTHER: (INPUT,), COPY: (SUM, STAGES)}.get(phase, (phase, SUM, STAGES))
        for name in names:
            if (name, step) in self._ends:
                return self._ends[name, step]
        return self._starts[min(step, len(self._starts) - 1)]

    def moments(self, phase: str) -> List[Interval]:
        """When it queued that."""
        return merged((span.begin, span.end) for span in self._spans if span.name == phase)

    def idle_share(self, phase: str) -> float:
        """The share of these moments in which it did not compute."""
        whole = sum(span.end - span.begin for span in self._spans if span.name == phase)
        return min(1.0, max(0.0, self._idle.get(phase, 0.0) / whole)) if whole else 0.0


Known = Tuple[Span, str, int]


def _by_begin(timeline: Timeline) -> List[Known]:
    return list(zip(timeline.spans, timeline.phases, timeline.steps))


def _gaps(
    timeline: Timeline, busy: List[Interval], spans: List[Known]
) -> Iterator[Tuple[Interval, Known]]:
    """The moments between ``busy`` ones, with the operator that ends them."""
    begins = [span.begin for span, _, _ in spans]
    before = timeline.begin
    for begin, end in busy:
        if begin > before:
            place = next(
                i for i in range(bisect_right(begins, begin) - 1, -1, -1) if begins[i] <= begin
            )
            yield (before, begin), spans[place]
        before = max(before, end)
