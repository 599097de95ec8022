"""Sums as trees of additions: which are the same, and whose contributions are in them."""

from __future__ import annotations

from typing import Dict, List, Tuple


class Sums:
    """Trees by number; trees that differ only in the order of summands share one.

    Tree number r is rank r's contribution itself. ``ever`` and ``often``: for each tree, the ranks
    whose contributions are in it, and those whose are more than once, as bits of a whole number.
    """

    def __init__(self, world_size: int) -> None:
        self.ever: List[int] = [1 << rank for rank in range(world_size)]
        self.often: List[int] = [0] * world_size
        self._numbers: Dict[Tuple[int, int], int] = {}

    def add(self, left: int, right: int) -> int:
        """The number of the tree with these two below it."""
        pair = (left, right) if left < right else (right, left)
        number = self._numbers.get(pair)
        if number is None:
            ever, often = self.ever, self.often
            number = self._numbers[pair] = len(ever)
            often.append(often[left] | often[right] | ever[left] & ever[right])
            ever.append(ever[left] | ever[right])
        return number
