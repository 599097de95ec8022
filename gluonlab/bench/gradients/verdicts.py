"""The targets for allreduce and update on gradients, and whether they are reached."""

from __future__ import annotations

from itertools import groupby
from typing import List, NamedTuple, Optional, Sequence

from gluonlab.bench.allreduce.measure import Row
from gluonlab.bench.allreduce.variants import CHAPTER, PEERS
from gluonlab.bench.gradients.steps import BUCKETED, GLUON, StepRow
from gluonlab.bench.harness.interval import ratio
from gluonlab.bench.harness.text import outcome
from gluonlab.plain import in_words

JUDGED = 2  # devices, of the targets
AT_LEAST_ALLREDUCE, AT_LEAST_STEP, AT_LEAST_OF_LIMIT = 1.6, 1.5, 0.5
LIMIT = "of the memory limit"


class Verdict(NamedTuple):
    """The best speed of gluonlab as a multiple of a peer's, or as a share of the limit's.

    ``found`` is None where that was not measured, ``at_least`` where there is no target.
    """

    best: str
    beside: str
    found: Optional[float]
    at_least: Optional[float]

    @property
    def reached(self) -> Optional[bool]:
        """None when there is nothing to reach, or nothing was measured."""
        return None if self.at_least is None or self.found is None else self.found >= self.at_least

    def __str__(self) -> str:
        shown = None if self.found is None else self._number(self.found)
        if self.at_least is None:
            return f"{self.beside}: {shown or 'not measured'}"
        claim = f">= {self._number(self.at_least)} {self.beside}"
        return outcome(claim, shown, bool(self.reached))

    def _number(self, value: float) -> str:
        if self.beside == LIMIT:
            return f"{value:.0%}"
        return f"{value:g}x" if value == self.at_least else f"{value:.2f}x"


def of_allreduce(rows: Sequence[Row]) -> List[Verdict]:
    """The best schedule beside MXNet's store, the chapter's allreduce and the memory limit.

    ``rows`` are of one size.
    """
    best = min((row for row in rows if row.algorithm not in PEERS), key=lambda row: row.time_s)
    arrays = f"{best.arrays} arrays" if best.arrays > 1 else "one array"
    where = f"{in_words(best.size_bytes)} in {arrays}, {best.world_size} devices"
    what, judged = f"{where}, our best: {best.algorithm}", best.world_size == JUDGED
    seconds = {row.algorithm: row.seconds for row in rows}
    at_least = AT_LEAST_ALLREDUCE if judged else None
    verdicts = [
        Verdict(
            what, name, ratio(seconds[peer], best.seconds) if peer in seconds else None, at_least
        )
        for peer, name in (("device", "MXNet's device"), (CHAPTER, "the chapter's allreduce"))
    ]
    return [*verdicts, Verdict(what, LIMIT, best.of_limit, AT_LEAST_OF_LIMIT if judged else None)]


def of_steps(rows: Sequence[StepRow], world_size: int) -> List[Verdict]:
    """The best of our stores beside MXNet's ``device`` under each of the trainers."""
    own = [row for row in rows if row.world_size == world_size]
    ours = [row for row in own if row.store not in PEERS]
    if not ours:
        return []
    best = min(ours, key=lambda row: row.time_s)
    what = f"allreduce and update, {world_size} devices, our best: {best.store}, {best.trainer}"
    at_least = AT_LEAST_STEP if world_size == JUDGED else None
    device = {row.trainer: row.seconds for row in own if row.store == "device"}
    return [
        Verdict(
            what,
            f"MXNet's device under {trainer}",
            ratio(device[trainer], best.seconds) if trainer in device else None,
            at_least,
        )
        for trainer in (GLUON, BUCKETED)
    ]


def lines(verdicts: Sequence[Verdict]) -> List[str]:
    """In words: what our best is, and a line for each thing that it is compared with."""
    found = []
    for best, same in groupby(verdicts, key=lambda verdict: verdict.best):
        found += [best, *(f"  {verdict}" for verdict in same)]
    return found
