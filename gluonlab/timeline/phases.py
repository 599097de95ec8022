"""The phase of a step that each operator of a trace serves.

MXNet's trace has operators, and a step is made of phases: which operators a phase queues is
learned from one step that is made phase by phase, each of which the host waits for. The steps after
it queue the same operators, in whatever order they run.
"""

from __future__ import annotations

from collections import Counter
from typing import Dict, List, NamedTuple, Sequence, Tuple

from gluonlab.timeline.spans import Span

FORWARD, BACKWARD, SUM, COPY = "forward", "backward", "sum", "copy"
UPDATE, OTHER = "update", "other"
PHASES = (FORWARD, BACKWARD, SUM, COPY, UPDATE, OTHER)
_OF_STRATEGY = {"allreduce": SUM}  # what a strategy's own phases are called here, if otherwise
FROM_HOST, TO_HOST = "CPU2GPU", "GPU2CPU"  # ends of the names of copies
STAGES = "stages"  # forward and backward of all stages, which the names of operators tell apart

Key = Tuple[str, str]  # a row and an operator's name


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
