"""Numbers of several seeds, with their intervals, and as plain values."""

from __future__ import annotations

import math
from statistics import median
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

from gluonlab.bench.harness.interval import bootstrap

Ends = Optional[Tuple[float, float]]


class Number(NamedTuple):
    """The median over seeds, and its bootstrap interval of 95 % confidence, if it has one."""

    value: float
    ends: Ends = None


def middle(values: Sequence[float]) -> Optional[Number]:
    """Of the values by seed; None where the median is not finite."""
    if not values or not math.isfinite(median(values)):
        return None

    def drawn(groups: List[List[float]]) -> Optional[float]:
        value = median(groups[0])
        return value if math.isfinite(value) else None

    return Number(median(values), bootstrap([values], drawn))


def difference(above: Sequence[float], below: Sequence[float]) -> Number:
    """The median of the differences above - below of pairs, such as seeds."""
    values = [one - other for one, other in zip(above, below)]
    return Number(median(values), bootstrap([values], lambda groups: median(groups[0])))


def as_plain(value: Any) -> Any:
    """Named tuples, and what holds them, for result.json."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {name: as_plain(each) for name, each in value.items()}
    return [as_plain(each) for each in value] if isinstance(value, (list, tuple)) else value
