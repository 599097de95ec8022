"""Where a step's time goes when what several devices do at once counts once.

A moment belongs to the first of ORDER that any device does then: a sum beside another device's
backward costs nothing. In a moment in which no device does anything, the next operator to begin
says why: the host had not queued it yet, or it had, and the operator's own phase took its time to
begin.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from gluonlab.timeline.mxnet_profiler import Span
from gluonlab.timeline.timeline import (
    BACKWARD,
    COPY,
    FORWARD,
    INPUT,
    OTHER,
    STAGES,
    SUM,
    UPDATE,
    WAITING,
    Interval,
    Timeline,
    common,
    length,
    merged,
)

HOST_TIME, STORE = "host", "store"  # the host computes; it does not, within a sum
# Microseconds: so long may an operator take to begin once it is queued and what it reads is there.
# Of 600 tiny operators in a row on a CPU device, or on two in turns, 99 % began within 9 us.
LAUNCH_US = 20.0
CLOCK_US = 1.0  # MXNet's counts whole microseconds
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
    queued = QueueTimes(timeline)
    idle: List[Interval] = []
    for (begin, end), (span, phase, step) in _gaps(timeline, busy, spans):
        until = min(end, max(begin, queued.when(phase, step)))
        if phase == OTHER:
            until = queued.perhaps(span.name, phase, end)
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
    had queued what the device did next; then for a ``kernel``, which is a gap of at most LAUNCH_US,
    or moments in which another device ran what that had to wait for (`_Others`); of the rest, at
    most, for a ``core``, as long as the system says that threads of the devices waited for one
    (`gluonlab.timeline.recorder`), another device's too, since this one can depend on it; or for
    a reason that is ``unknown``. Source: Meta's Holistic Trace Analysis, "Temporal breakdown" and
    "Idle time breakdown" of its documentation, whose limit for kernels of a GPU's stream is 30 ns,
    and which knows no waiting for cores.
    """

    computing: float
    communicating: float
    memory: float
    host: float
    kernel: float
    core: float
    unknown: float


def categories(timeline: Timeline, row: str) -> Categories:
    """Those of a device; they add up to 1."""
    shares = timeline.shares(row)
    own = [each for each in _by_begin(timeline) if each[0].row == row]
    queued, others = QueueTimes(timeline), _Others(timeline, row)
    host = kernel = 0.0
    busy = merged((span.begin, span.end) for span, _, _ in own)
    for (begin, end), (span, phase, step) in _gaps(timeline, busy, own):
        until = min(end, max(begin, queued.when(phase, step)))
        waits = others.explain((until, end), step)
        late = queued.perhaps(span.name, phase, end)  # of what nothing else explains, at most
        by_host = length(merged([*waits, (until, late)])) - length(waits) if late > until else 0.0
        host, kernel = host + until - begin + by_host, kernel + length(waits)
    last = max(busy[-1][1], timeline.begin) if busy else timeline.begin
    kernel += length(others.explain((last, timeline.end), None))
    whole = timeline.end - timeline.begin
    unknown = max(0.0, shares[WAITING] - (host + kernel) / whole)
    core = min(unknown, sum(timeline.core_waits.values()) / whole)
    return Categories(
        computing=shares[FORWARD] + shares[BACKWARD] + shares[UPDATE],
        communicating=shares[SUM] + shares[COPY],
        memory=shares[OTHER],
        host=host / whole,
        kernel=kernel / whole,
        core=core,
        unknown=unknown - core,
    )


class _Others:
    """What the other devices did that an operator of this one had to wait for.

    In synchronous training an operator can depend on sums and copies, and on whatever is of its own
    step or of an earlier one, from which its weights come. It did so at most if that had ended when
    it began; and all that such a device ran until then came first in its queue.
    """

    def __init__(self, timeline: Timeline, row: str) -> None:
        self._rows: Dict[str, List[Known]] = {}
        for each in sorted(_by_begin(timeline), key=lambda known: known[0].end):
            if each[0].row != row:
                self._rows.setdefault(each[0].row, []).append(each)
        self._ends = {name: [span.end for span, *_ in own] for name, own in self._rows.items()}
        self._busy = {
            name: merged((span.begin, span.end) for span, *_ in own)
            for name, own in self._rows.items()
        }

    def explain(self, gap: Interval, step: Optional[int]) -> List[Interval]:
        """The moments of a gap that are for a kernel.

        ``step``: of the operator that ends it; None where there is none, and all are waited for.
        """
        if gap[0] >= gap[1]:
            return []
        ran = merged(
            moment
            for name in self._rows
            for moment in common(self._busy[name], [(gap[0], self._until(name, gap, step))])
        )
        ends = [gap[0], *(end for moment in ran for end in moment), gap[1]]
        silent = zip(ends[::2], ends[1::2])
        return merged([*ran, *(each for each in silent if each[1] - each[0] <= LAUNCH_US)])

    def _until(self, name: str, gap: Interval, step: Optional[int]) -> float:
        """When a device ended the last operator in a gap on which that of this step can depend."""
        if step is None:
            return gap[1]
        own, place = self._rows[name], bisect_right(self._ends[name], gap[1] + CLOCK_US)
        while place and own[place - 1][0].end > gap[0]:
            place -= 1
            span, phase, other = own[place]
            if phase in (SUM, COPY) or other <= step:
                return min(span.end, gap[1])
        return gap[0]


class QueueTimes:
    """When the host queued what."""

    def __init__(self, timeline: Timeline) -> None:
        self._spans, self._idle = timeline.host, timeline.host_idle
        self._ends: Dict[Tuple[str, int], float] = {}
        for span in timeline.host:
            step = bisect_right(timeline.starts, span.begin) - 1
            self._ends[span.name, step] = span.end
        self._starts = timeline.starts
        self._phases: Dict[str, Set[str]] = {}
        for operator, phase in zip(timeline.spans, timeline.phases):
            self._phases.setdefault(operator.name, set()).add(phase)
        self._all_ends = sorted(span.end for span in timeline.host)

    def perhaps(self, name: str, phase: str, begin: float) -> float:
        """The latest moment before ``begin`` at which an operator may have been queued, whatever it
        is for: of one that several phases queue, such as a copy, the phase is a guess by turns.

        Of OTHER no moment is too late: the loader queues images whenever it has them, from a thread
        of its own, and they wait for nothing that another device does.
        """
        if phase == OTHER:
            return begin
        place = bisect_right(self._all_ends, begin) if len(self._phases.get(name, ())) > 1 else 0
        return self._all_ends[place - 1] if place else self._starts[0]

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
    """All spans; none is of a step that the host had not begun when it ran.

    Steps are counted by the names of operators, of which copies and the end of variables are not as
    many in each step.
    """
    return [
        (span, phase, min(step, max(0, bisect_right(timeline.starts, span.begin) - 1)))
        for span, phase, step in zip(timeline.spans, timeline.phases, timeline.steps)
    ]


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
