"""Ratios of speeds with 95 % intervals that assume no distribution, and rows of images/s.

Intervals are made of order statistics (Hollander, Wolfe, Chicken, "Nonparametric statistical
methods", 2014, sections 3.6 and 4.3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import List, Optional, Sequence

from gluonlab.bench.harness.confidence_interval import CONFIDENCE, median_ratio
from gluonlab.bench.harness.measurement_record import Series
from gluonlab.bench.harness.table_format import missing_row

QUANTILE = 1.959964  # of the normal distribution, for CONFIDENCE


@dataclass(frozen=True)
class Ratio:
    """A ratio of speeds and its interval of 95 % confidence, which too few rounds do not have."""

    value: float
    lowest: Optional[float] = None
    highest: Optional[float] = None

    def below(self, limit: float) -> bool:
        """Whether the whole interval lies below ``limit``."""
        return self.highest is not None and self.highest < limit

    def __str__(self) -> str:
        if self.lowest is None or self.highest is None:
            return f"{self.value:.3f}"
        return f"{self.value:.3f}  {self.lowest:.3f}..{self.highest:.3f}"


def of_pairs(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """The median of the rounds' ratios above / below, with the interval of the sign test.

    The k-th smallest and the k-th largest of n ratios hold the median between them unless fewer
    than k of n fair coins show heads; k is the largest for which that is at most 2.5 % on each
    side. Six rounds are the fewest that give one.
    """
    ratios = sorted(a / b for a, b in zip(above, below))
    n, tail, k = len(ratios), 0.0, 0
    while k < n and tail + math.comb(n, k) / 2**n <= (1 - CONFIDENCE) / 2:
        tail += math.comb(n, k) / 2**n
        k += 1
    return _between(ratios, k)


def of_separate(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """The median of all ratios of one value above to one below, with the rank sum test's interval.

    For runs that did not take turns: what changed on the machine between them is not in the
    interval.
    """
    m, n = len(above), len(below)
    k = math.floor(m * n / 2 - QUANTILE * math.sqrt(m * n * (m + n + 1) / 12))
    return _between(sorted(a / b for a in above for b in below), k)


def _between(ratios: List[float], k: int) -> Ratio:
    """The median, and the k-th smallest and k-th largest where there are such."""
    ends = (ratios[k - 1], ratios[-k]) if k > 0 else ()
    return Ratio(median(ratios), *ends)


@dataclass(frozen=True)
class ThroughputRow:
    """Images/s over the rounds, or the ``reason`` why there are none.

    ``median_ratio``: the median of the rounds' ratios to, or of, a reference row; see the table.
    """

    name: str
    label: str
    images_per_second: Optional[float] = None
    lowest: Optional[float] = None
    highest: Optional[float] = None
    ratio: Optional[float] = None
    reason: Optional[str] = None


def make_row(one: Series, above: Sequence[float], below: Sequence[float]) -> ThroughputRow:
    """The row of a series; ``above`` and ``below`` are the rates of its ratio, by round."""
    if not one.values:
        return ThroughputRow(one.name, one.label, reason=one.reason)
    extent = (median(one.values), min(one.values), max(one.values))
    return ThroughputRow(
        one.name, one.label, *extent, median_ratio(above, below) if above and below else None
    )


def heading(title: str, label_width: int, ratio: str) -> str:
    """The line above the rows: ``title`` over the labels, ``median_ratio`` over the ratios."""
    return f"{title:<{label_width}}{'images/s':>9}   {'lowest..highest':>17}   {ratio:>17}"


def line(row: ThroughputRow, label_width: int) -> str:
    """A row as text."""
    if row.images_per_second is None:
        return missing_row(f"{row.label:<{label_width - 5}}  ", row.reason)
    extent = f"{row.lowest:,.0f}..{row.highest:,.0f}"
    times = "-" if row.ratio is None else f"{row.ratio:.2f}x"
    rate = f"{row.images_per_second:>9,.0f}"
    return f"{row.label:<{label_width}}{rate}   {extent:>17}   {times:>17}"
