"""Computes 95 % confidence intervals over rounds with the bootstrap, for any distribution.

The distribution of times on a shared machine has a long tail, so means and their standard errors
are misleading.
"""

from __future__ import annotations

import math
from random import Random
from statistics import median
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, TypeVar

CONFIDENCE = 0.95
BOOTSTRAP_DRAWS = 1000
_T = TypeVar("_T")


def median_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """Return the median over rounds of numerator / denominator.

    If the machine is slow for a whole round, both values change by the same factor, and the ratio
    stays the same.
    """
    return median(a / b for a, b in zip(numerators, denominators))


class Estimate(NamedTuple):
    """A number and its 95 % confidence interval."""

    value: float
    lowest: float
    highest: float


def estimate_intervals(
    rounds: Mapping[str, Sequence[float]], statistic: Callable[[Mapping[str, float]], Mapping[str, float]]
) -> Dict[str, Estimate]:
    """Return the numbers that ``statistic`` computes from medians, with confidence intervals.

    Args:
        rounds: The values of each quantity in all rounds, by the name of the quantity. Index i
            refers to the same round for all quantities.
        statistic: A function that receives the medians over rounds by quantity, and returns numbers
            by name. The names must not depend on the medians.

    Returns:
        The estimates by name. Each interval contains the middle 95 % of the numbers for resampled
        rounds.
    """
    import numpy as np  # imported here, because --help does not need numpy

    names = list(rounds)
    table = np.array([rounds[name] for name in names])  # (columns, rounds)
    chosen = np.random.RandomState(0).randint(0, table.shape[1], (BOOTSTRAP_DRAWS, table.shape[1]))
    medians = np.median(table[:, chosen], axis=2)  # (columns, draws)
    values = statistic(dict(zip(names, np.median(table, axis=1).tolist())))
    samples = [statistic(dict(zip(names, column.tolist()))) for column in medians.T]
    ends = (100 * (1 - CONFIDENCE) / 2, 100 * (1 + CONFIDENCE) / 2)
    intervals = {}
    for name, value in values.items():
        low, high = np.percentile([sample[name] for sample in samples], ends)
        intervals[name] = Estimate(value, min(value, float(low)), max(value, float(high)))
    return intervals


def bootstrap_interval(
    groups: Sequence[Sequence[_T]], statistic: Callable[[List[List[_T]]], Optional[float]], paired: bool = False
) -> Optional[Tuple[float, float]]:
    """Return the 95 % confidence interval of a ``statistic`` computed from groups of values.

    Values are drawn from every group with replacement, BOOTSTRAP_DRAWS times. The interval contains
    the middle 95 % of the statistic's values for these draws (Efron, Tibshirani, "An introduction
    to the bootstrap", 1993, section 13.3). The draws are pseudo-random with a fixed seed, so equal
    values result in equal intervals.

    Args:
        groups: The groups of values.
        statistic: A function of the drawn groups. If it returns None, the draw counts as both
            infinitely low and infinitely high.
        paired: Whether the values at the same index in all groups belong together. If so, the same
            indices are drawn from all groups.

    Returns:
        The lower and upper ends of the interval. None if a group has fewer than two values, or if
        an end is infinite.
    """
    if not groups or min(map(len, groups)) < 2:
        return None
    random = Random(0)
    low: List[float] = []
    high: List[float] = []
    for _ in range(BOOTSTRAP_DRAWS):
        indices = [random.randrange(len(groups[0])) for _ in groups[0]] if paired else None
        sample = [
            [group[index] for index in (indices or [random.randrange(len(group)) for _ in group])] for group in groups
        ]
        value = statistic(sample)
        low.append(-math.inf if value is None else value)
        high.append(math.inf if value is None else value)
    cut = math.floor(BOOTSTRAP_DRAWS * (1 - CONFIDENCE) / 2)
    ends = sorted(low)[cut], sorted(high)[-1 - cut]
    return ends if all(map(math.isfinite, ends)) else None
