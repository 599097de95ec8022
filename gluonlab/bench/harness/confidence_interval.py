"""Numbers of rounds, with 95 % intervals that assume no distribution, only that rounds are alike.

Times on a shared machine have long tails, so means and their standard errors say little: intervals
are drawn.
"""

from __future__ import annotations

import math
from random import Random
from statistics import median
from typing import (
    Callable,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
)  # fmt: skip

CONFIDENCE = 0.95
DRAWS = 1000
_T = TypeVar("_T")


def ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """The median of the rounds' ratios: what slowed both in a round has no effect."""
    return median(a / b for a, b in zip(above, below))


class Estimate(NamedTuple):
    """A number, and where it lies with 95 % confidence."""

    value: float
    lowest: float
    highest: float


def estimates(
    rounds: Mapping[str, Sequence[float]],
    statistic: Callable[[Mapping[str, float]], Mapping[str, float]],
) -> Dict[str, Estimate]:
    """Numbers that ``statistic`` makes of the medians of columns whose rows are rounds.

    Each has the middle 95 % of what it is for rounds that are drawn anew, each as a whole.
    A statistic keeps its names whatever the numbers.
    """
    import numpy as np  # a bench's --help does without

    names = list(rounds)
    table = np.array([rounds[name] for name in names])  # (columns, rounds)
    chosen = np.random.RandomState(0).randint(0, table.shape[1], (DRAWS, table.shape[1]))
    medians = np.median(table[:, chosen], axis=2)  # (columns, draws)
    found = statistic(dict(zip(names, np.median(table, axis=1).tolist())))
    drawn = [statistic(dict(zip(names, column.tolist()))) for column in medians.T]
    ends = (100 * (1 - CONFIDENCE) / 2, 100 * (1 + CONFIDENCE) / 2)
    numbers = {}
    for name, value in found.items():
        low, high = np.percentile([each[name] for each in drawn], ends)
        numbers[name] = Estimate(value, min(value, float(low)), max(value, float(high)))
    return numbers


def bootstrap(
    groups: Sequence[Sequence[_T]],
    statistic: Callable[[List[List[_T]]], Optional[float]],
    paired: bool = False,
) -> Optional[Tuple[float, float]]:
    """The interval of a ``statistic`` of several groups of values, by drawing them anew.

    Each of DRAWS times, every group gets as many of its own values, drawn with replacement; of
    ``paired`` groups, whose values at one place belong together, those at the same places. The
    interval has the middle 95 % of what the statistic then is (Efron, Tibshirani, "An introduction
    to the bootstrap", 1993, section 13.3). Draws for which it is None count at both ends. None
    where a group has fewer than two values, or so many draws have none that an end is unknown.
    The same values give the same interval.
    """
    if not groups or min(map(len, groups)) < 2:
        return None
    random = Random(0)
    low: List[float] = []
    high: List[float] = []
    for _ in range(DRAWS):
        places = [random.randrange(len(groups[0])) for _ in groups[0]] if paired else None
        drawn = [
            [of[place] for place in (places or [random.randrange(len(of)) for _ in of])]
            for of in groups
        ]
        value = statistic(drawn)
        low.append(-math.inf if value is None else value)
        high.append(math.inf if value is None else value)
    cut = math.floor(DRAWS * (1 - CONFIDENCE) / 2)
    ends = sorted(low)[cut], sorted(high)[-1 - cut]
    return ends if all(map(math.isfinite, ends)) else None
