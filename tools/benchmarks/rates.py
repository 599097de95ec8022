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
    """A ratio of speeds and its interval of 95 % confidence, which needs some rounds."""

    value: float
    lowest: Optional[float] = None
    highest: Optional[float] = None

    def is_below(self, limit: float) -> bool:
        """Return whether the whole interval is below ``limit``."""
        return self.highest is not None and self.highest < limit

    def __str__(self) -> str:
        if self.lowest is None or self.highest is None:
            return f"{self.value:.3f}"
        return f"{self.value:.3f}  {self.lowest:.3f}..{self.highest:.3f}"


def paired_ratio(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """Return the median of the rounds' ratios above / below, with the interval of the sign test.

    The k-th smallest and the k-th largest of n ratios contain the median unless fewer than k of n
    fair coins show heads; k is the largest for which the probability is at most 2.5 % on each side.
    At least six rounds are needed for an interval.
    """
    ratios = sorted(a / b for a, b in zip(above, below))
    n, tail, k = len(ratios), 0.0, 0
    while k < n and tail + math.comb(n, k) / 2**n <= (1 - CONFIDENCE) / 2:
        tail += math.comb(n, k) / 2**n
        k += 1
    return _ratio_with_ends(ratios, k)


def unpaired_ratio(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """Return the median ratio of a value above to one below, with the rank sum test's interval.

    For runs that were not interleaved: the interval does not include changes of the machine between
    them.
    """
    m, n = len(above), len(below)
    k = math.floor(m * n / 2 - QUANTILE * math.sqrt(m * n * (m + n + 1) / 12))
    return _ratio_with_ends(sorted(a / b for a in above for b in below), k)


def _ratio_with_ends(ratios: List[float], k: int) -> Ratio:
    """Return the median, and the k-th smallest and k-th largest if they exist."""
    ends = (ratios[k - 1], ratios[-k]) if k > 0 else ()
    return Ratio(median(ratios), *ends)


@dataclass(frozen=True)
class ThroughputRow:
    """Images/s over the rounds, or the ``reason`` why there are none.

    ``ratio``: the median of the rounds' ratios to, or of, a reference row; see the table.
    """

    name: str
    label: str
    images_per_second: Optional[float] = None
    lowest: Optional[float] = None
    highest: Optional[float] = None
    ratio: Optional[float] = None
    reason: Optional[str] = None


def make_row(series: Series, above: Sequence[float], below: Sequence[float]) -> ThroughputRow:
    """Return the row of a series; ``above`` and ``below`` are the rates of its ratio, by round."""
    if not series.values:
        return ThroughputRow(series.name, series.label, reason=series.reason)
    extent = (median(series.values), min(series.values), max(series.values))
    return ThroughputRow(series.name, series.label, *extent, median_ratio(above, below) if above and below else None)


def format_heading(title: str, label_width: int, ratio: str) -> str:
    """Return the line above the rows: ``title`` over the labels, ``ratio`` over the ratios."""
    return f"{title:<{label_width}}{'images/s':>9}   {'lowest..highest':>17}   {ratio:>17}"


def format_row(row: ThroughputRow, label_width: int) -> str:
    """Return a row as text."""
    if row.images_per_second is None:
        return missing_row(f"{row.label:<{label_width - 5}}  ", row.reason)
    extent = f"{row.lowest:,.0f}..{row.highest:,.0f}"
    ratio_text = "-" if row.ratio is None else f"{row.ratio:.2f}x"
    rate = f"{row.images_per_second:>9,.0f}"
    return f"{row.label:<{label_width}}{rate}   {extent:>17}   {ratio_text:>17}"
