"""What the devices did in a window of steps, in numbers: shares of its time, and the overlap."""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence

from gluonlab.timeline.intervals import Interval, common, length, merged
from gluonlab.timeline.phases import BACKWARD, COPY, PHASES, SUM
from gluonlab.timeline.profiler import Event
from gluonlab.timeline.spans import Span

WAITING = "waiting"


class Timeline(NamedTuple):
    """Some steps, whose time is from ``begin`` to ``end`` (microseconds).

    ``rows``: the devices; ``spans`` and ``phases``: what ran on them, and which phase each serves;
    ``host``: what the host's thread did, by phase; ``starts``: when it began each step;
    ``events``: MXNet's own trace, in the form of Chrome's; ``steps``: the number, from 0, of the
    step of each span; ``host_idle``: the microseconds of each of the host's phases in which it did
    not compute; ``core_waits``: of each device whose thread was ready and waited for a core.
    """

    first_step: int
    starts: Sequence[float]
    end: float
    rows: Sequence[str]
    spans: Sequence[Span]
    phases: Sequence[str]
    host: Sequence[Span]
    events: Sequence[Event] = ()
    steps: Sequence[int] = ()
    host_idle: Mapping[str, float] = {}
    core_waits: Mapping[str, float] = {}

    @property
    def begin(self) -> float:
        """When the first step began."""
        return self.starts[0]

    @property
    def step_s(self) -> float:
        """Seconds of a step, the mean."""
        return (self.end - self.begin) / 1e6 / len(self.starts)

    def moments(self, row: str, *phases: str) -> List[Interval]:
        """When this device did any of these."""
        return merged(
            (max(self.begin, span.begin), min(self.end, span.end))
            for span, phase in zip(self.spans, self.phases)
            if span.row == row and phase in phases
        )

    def shares(self, row: str) -> Dict[str, float]:
        """The share of the time that a device spent in each phase, and waiting; they add up to 1.

        A moment in which several operators ran counts for the first of their phases.
        """
        whole, busy, found = self.end - self.begin, 0.0, {}
        for number, phase in enumerate(PHASES):
            so_far = length(self.moments(row, *PHASES[: number + 1]))
            found[phase] = (so_far - busy) / whole
            busy = so_far
        return {**found, WAITING: 1 - busy / whole}

    def overlap(self) -> Optional[float]:
        """The share of the time of sums and copies in which some device computed backward.

        None where there are none.
        """
        summing = merged(each for row in self.rows for each in self.moments(row, SUM, COPY))
        backward = merged(each for row in self.rows for each in self.moments(row, BACKWARD))
        if not summing:
            return None
        return length(common(summing, backward)) / length(summing)
