"""The largest size whose cost stays below a ceiling.

For a cost that is slow to measure and grows nearly evenly.
"""

from __future__ import annotations

from typing import Callable, List, Optional, Tuple

AIM = 0.97  # of the ceiling: a size that is estimated to cost so much is tried
ENOUGH = 0.93  # of the ceiling: what costs so much needs no further search
CLOSE = 0.02  # of a size: as near to one that costs too much
TRIES = 10
FIRST_SHARE = 0.06  # of the ceiling, by the estimate: the first size that is tried

Cost = Callable[[int], Optional[int]]
Point = Tuple[int, int]  # a size, and what it costs


class LargestSize:
    """Tries sizes from ``smallest`` to ``most``; ``fit`` has those that fit, the largest last.

    ``cost(size)`` is None where it exceeds ``ceiling``. ``each``: a lower estimate of the cost of
    one more.
    """

    def __init__(self, cost: Cost, smallest: int, most: int, ceiling: int, each: float) -> None:
        self.cost, self.each = cost, max(each, 1.0)
        self.smallest, self.most, self.ceiling = smallest, most, ceiling
        self.fit: List[Point] = []
        self.beyond: Optional[int] = None  # the smallest size that was found to cost too much
        self.tries = 0

    def search(self) -> Optional[Point]:
        """The largest size that fits, and its cost; None if not even the smallest fits."""
        first = max(self.smallest, int(FIRST_SHARE * self.ceiling / self.each))
        self._try(first)
        if not self._done():
            self._try(2 * first)
        while not self._done():
            self._try(self._next())
        return self.fit[-1] if self.fit else None

    def slope(self) -> float:
        """What another one costs, by the last two sizes that fit."""
        if len(self.fit) < 2:
            return 2 * self.each
        (size, cost), (larger, larger_cost) = self.fit[-2:]
        return max((larger_cost - cost) / (larger - size), self.each / 4)

    def _done(self) -> bool:
        if not self.fit:
            return self.beyond == self.smallest
        size, cost = self.fit[-1]
        close = self.beyond is not None and self.beyond - size <= max(1, CLOSE * size)
        return size == self.most or close or cost >= ENOUGH * self.ceiling or self.tries >= TRIES

    def _try(self, size: int) -> None:
        size = min(size, self.most)
        if self.beyond is not None and size >= self.beyond:
            return
        self.tries += 1
        cost = self.cost(size)
        if cost is None or cost > self.ceiling:
            self.beyond = size
        else:
            self.fit = sorted([*self.fit, (size, cost)])

    def _next(self) -> int:
        """Where the line through the last two sizes meets the ceiling, or halfway to too large."""
        if not self.fit:
            assert self.beyond is not None
            return max(self.smallest, self.beyond // 4)
        size, cost = self.fit[-1]
        there = max(size + 1, size + int((AIM * self.ceiling - cost) / self.slope()))
        return there if self.beyond is None or there < self.beyond else (size + self.beyond) // 2
