"""What answers of 07-1 are given to ask and to compute with: it notes what they have done."""

from __future__ import annotations

from collections import Counter
from typing import Any, Callable, List

import mxnet as mx
from mxnet import gluon

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


class CountedLoss(gluon.loss.SoftmaxCrossEntropyLoss):  # type: ignore[misc]
    """The usual loss of each image; ``images``: how many came from each device."""

    def __init__(self) -> None:
        super().__init__()
        self.images: "Counter[mx.Context]" = Counter()

    def __call__(self, scores: Any, *labels: Any) -> Any:
        self.images[scores.context] += len(scores)
        return super().__call__(scores, *labels)
