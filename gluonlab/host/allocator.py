"""What glibc's malloc does with memory that is freed.

It gives larger blocks back to the system, and takes them again page by page. A process that needs
blocks of one size again and again keeps them instead.
"""

from __future__ import annotations

import ctypes
import os

LARGEST = 2**25  # bytes of a block that may be kept, the most that every glibc takes
MMAP_THRESHOLD, TRIM_THRESHOLD = "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"
_NUMBERS = {MMAP_THRESHOLD: -3, TRIM_THRESHOLD: -1}  # of mallopt, as malloc.h has them


def keep_freed(most: int = 2**31 - 1) -> None:
    """Let this process keep up to ``most`` bytes that are free; whatever the user has set counts.

    Nothing happens where the C library is another one.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for name, value in keeping(most).items():
            if name not in os.environ:
                mallopt(_NUMBERS[name], int(value))


def keeping(most: int) -> "dict[str, str]":
    """The variables with which a new process does the same."""
    return {MMAP_THRESHOLD: str(LARGEST), TRIM_THRESHOLD: str(most)}
