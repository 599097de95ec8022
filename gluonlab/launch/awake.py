"""Time as this process has seen it, by which it judges whether others are silent."""

from __future__ import annotations

import asyncio
import time
from typing import Awaitable, TypeVar

Result = TypeVar("Result")

BEAT = 1.0  # seconds between two signs of life, between launcher and agent, each way
LATE = 1.5 * BEAT  # the most that counts between two looks at this clock, one each BEAT


class Awake:
    """A clock of seconds that stands still while nobody looks at it.

    Who was stopped, or frozen, or waited for a disk, has heard nobody in that time, and nobody was
    to blame for it.
    """

    def __init__(self) -> None:
        self._seconds, self._last = 0.0, time.monotonic()

    def __call__(self) -> float:
        now = time.monotonic()
        self._seconds += min(now - self._last, LATE)
        self._last = now
        return self._seconds


awake = Awake()


async def within(seconds: float, work: Awaitable[Result]) -> Result:
    """The result of ``work``, which is ended after so many seconds. Raises asyncio.TimeoutError.

    asyncio.wait_for, before Python 3.12, loses a cancellation that comes just when ``work`` ends.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task], timeout=max(seconds, 0))
        if not task.done():
            raise asyncio.TimeoutError
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # else asyncio complains of one that came with a cancellation
