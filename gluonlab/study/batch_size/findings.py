"""What the measurements of a panel say: numbers with their intervals, and the regimes."""

from __future__ import annotations

import math
from statistics import median
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from gluonlab.bench.harness.interval import bootstrap
from gluonlab.study.batch_size.regimes import Part, parts, perfect_until, stagnant_from
from gluonlab.study.numbers import Number


class Row(NamedTuple):
    """A batch size. ``errors``: shares that are wrong, by what is equal: (training, test).

    ``steps``, ``epochs`` and ``seconds`` are None where half of the seeds did not reach the target
    in ``limit`` steps; ``best`` is the largest share of test images that was right.
    """

    size: int
    rate: float
    steps: Optional[Number]
    epochs: Optional[Number]
    seconds: Optional[Number]
    errors: Dict[str, Optional[Tuple[Number, Number]]]
    reached: int
    seeds: int
    limit: int
    best: float


class Found(NamedTuple):
    """A panel. ``perfect`` and ``stagnant``: where these regimes end and begin, if they are there.

    Regimes are of the sizes that reached the target, if there are two or more.
    """

    rows: List[Row]
    regimes: List[Part]
    perfect: Optional[Number]
    stagnant: Optional[Number]


def found(rows: Sequence[Row], reached: Sequence[Sequence[float]]) -> Found:
    """``reached``: of each row the steps to the target, by seed."""
    whole = [(row, steps) for row, steps in zip(rows, reached) if row.steps is not None]
    sizes = [row.size for row, _ in whole]
    steps = [median(each) for _, each in whole]
    if len(whole) < 2:
        return Found(list(rows), [], None, None)

    def drawn(
        of: Callable[[Sequence[float], Sequence[float]], Optional[float]],
    ) -> Callable[[List[List[float]]], Optional[float]]:
        def statistic(groups: List[List[float]]) -> Optional[float]:
            medians = [median(each) for each in groups]
            return of(sizes, medians) if all(map(math.isfinite, medians)) else None

        return statistic

    groups = [each for _, each in whole]
    until, since = perfect_until(sizes, steps), stagnant_from(sizes, steps)
    return Found(
        list(rows),
        parts(sizes, steps),
        Number(until, bootstrap(groups, drawn(perfect_until))) if until > sizes[0] else None,
        None if since is None else Number(since, bootstrap(groups, drawn(stagnant_from))),
    )
