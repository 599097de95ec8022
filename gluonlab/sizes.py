"""Sizes in bytes, in words."""

from __future__ import annotations

UNITS = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30,
}  # fmt: skip


def in_words(size_bytes: int) -> str:
    """``64 MiB``, ``46 MB``: with the largest unit that leaves a whole number.

    >>> in_words(46_000_000), in_words(2**26), in_words(1001)
    ('46 MB', '64 MiB', '1001 B')
    """
    for unit in ("GiB", "GB", "MiB", "MB", "KiB", "KB"):
        if size_bytes and size_bytes % UNITS[unit.lower()] == 0:
            return f"{size_bytes // UNITS[unit.lower()]} {unit}"
    return f"{size_bytes} B"
