"""How a number of things is divided into nearly equal parts: the one cut that everything makes."""

from __future__ import annotations

from typing import List, Tuple


def split_evenly(size: int, parts: int) -> List[Tuple[int, int]]:
    """(begin, end) of each of ``parts`` parts; the first ``size % parts`` have one element more."""
    share, more = divmod(size, parts) if parts else (0, 0)
    begins = [part * share + min(part, more) for part in range(parts + 1)]
    return list(zip(begins, begins[1:]))


def batch_count(images: int, size: int, drop_last: bool = False) -> int:
    """How many batches of ``size`` images make; ``drop_last``: without a smaller last one."""
    return images // size if drop_last else -(-images // size)
