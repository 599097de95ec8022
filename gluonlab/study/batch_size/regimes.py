"""The three regimes of Shallue et al., by a rule: how steeply steps fall as the batch grows.

C. J. Shallue et al., "Measuring the effects of data parallelism on neural network training", 2019
(first 2018), section 4.1, tell them by eye: perfect scaling, where twice the batch takes half the
steps; diminishing returns; and no further benefit, called stagnation here.
"""

from __future__ import annotations

import math
from itertools import accumulate
from typing import List, NamedTuple, Optional, Sequence, Tuple

PERFECT, DIMINISHING, STAGNATION = REGIMES = ("perfect", "diminishing", "stagnation")
STEEP, FLAT = 0.75, 0.25


class Part(NamedTuple):
    """Neighbouring batch sizes of one regime, from ``left`` to ``right``."""

    regime: str
    left: float
    right: float


def exponents(sizes: Sequence[float], steps: Sequence[float]) -> List[float]:
    """Between neighbouring sizes the a of steps ~ size**-a: 1 where twice as large takes half."""
    return [
        math.log(before / after) / math.log(larger / size)
        for size, larger, before, after in zip(sizes, sizes[1:], steps, steps[1:])
    ]


def falling(values: Sequence[float], weights: Sequence[float]) -> List[float]:
    """The values that never rise and are nearest in squares, by pooling those that do.

    R. Barlow et al., "Statistical inference under order restrictions", 1972, section 1.2.
    """
    pools: List[Tuple[float, float, int]] = []  # mean, weight, how many
    for value, weight in zip(values, weights):
        pool = (value, weight, 1)
        while pools and pools[-1][0] < pool[0]:
            mean, own, count = pools.pop()
            total = own + pool[1]
            pool = ((mean * own + pool[0] * pool[1]) / total, total, count + pool[2])
        pools.append(pool)
    return [mean for mean, _, count in pools for _ in range(count)]


def regime(exponent: float) -> str:
    """Its name, for the exponent of one gap between sizes."""
    if exponent >= STEEP:
        return PERFECT
    return STAGNATION if exponent <= FLAT else DIMINISHING


def parts(sizes: Sequence[float], steps: Sequence[float]) -> List[Part]:
    """The regimes that were seen, from small batches to large ones; ``sizes`` ascend.

    The exponent of a longer gap has more weight. Raises ValueError for fewer than two sizes.
    """
    if len(sizes) < 2:
        raise ValueError("a regime is what lies between two sizes")
    widths = [math.log(larger / size) for size, larger in zip(sizes, sizes[1:])]
    named = [regime(each) for each in falling(exponents(sizes, steps), widths)]
    ends = [0, *accumulate(named.count(each) for each in REGIMES)]
    return [
        Part(each, sizes[begin], sizes[end])
        for each, begin, end in zip(REGIMES, ends, ends[1:])
        if end > begin
    ]


def perfect_until(sizes: Sequence[float], steps: Sequence[float]) -> float:
    """The largest size of perfect scaling; the smallest of all where there is none."""
    found = [part.right for part in parts(sizes, steps) if part.regime == PERFECT]
    return found[0] if found else sizes[0]


def stagnant_from(sizes: Sequence[float], steps: Sequence[float]) -> Optional[float]:
    """The smallest size from which more brings nothing; None where all still bring something."""
    found = [part.left for part in parts(sizes, steps) if part.regime == STAGNATION]
    return found[0] if found else None
