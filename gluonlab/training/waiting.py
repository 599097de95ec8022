"""How long a loop waits for what it iterates over."""

from __future__ import annotations

import time
from typing import Generic, Iterator, TypeVar

_T = TypeVar("_T")


class Waiting(Generic[_T]):
    """Iterates over ``items``; ``seconds`` is how long the loop has waited for the next one so
    far.
    """

    def __init__(self, items: Iterator[_T]) -> None:
        self._items = items
        self.seconds = 0.0

    def __iter__(self) -> Iterator[_T]:
        return self

    def __next__(self) -> _T:
        began = time.perf_counter()
        try:
            return next(self._items)
        finally:
            self.seconds += time.perf_counter() - began
