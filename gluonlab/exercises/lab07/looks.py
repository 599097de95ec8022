"""What answers of 07-1 ask whether they may stop: it notes what they have trained until then."""

from __future__ import annotations

from typing import Any, Callable, List

MORE = 3  # questions after the last that is due: then the answer does not stop by itself


class TooMany(BaseException):
    """Ends an answer that goes on; no Exception, which an answer might catch."""


class Looks:
    """Is good enough at one question, and at all after it; ``seen``: the values at each."""

    def __init__(self, good_after: int, limit: int, values: Callable[[], Any]) -> None:
        self._good_after, self._values = good_after, values
        self._last = min(good_after, limit) + MORE
        self.seen: List[Any] = []

    def good_enough(self, net: Any) -> bool:
        """What the answer is given."""
        self.seen.append(self._values())
        if len(self.seen) >= self._last:
            raise TooMany
        return len(self.seen) >= self._good_after
