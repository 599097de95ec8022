"""Scores as probabilities and classes, in numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from gluonlab.config.values import is_count
from gluonlab.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gluonlab.data.sets.dataset import Images

    Numbers = NDArray[Any]


class Guess(NamedTuple):
    """A class, and the probability that the network gives it."""

    name: str
    probability: float


@dataclass(frozen=True)
class Predictions:
    """What a network says of n images: ``scores`` (n, classes), float32, in the classes' order.

    ``images``: their names.
    """

    classes: Tuple[str, ...]
    images: Tuple[str, ...]
    scores: "Numbers"

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def probabilities(self) -> "Numbers":
        """(n, classes) float64: the softmax of the scores."""
        scores = self.scores.astype(np.float64)
        parts = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(parts / parts.sum(axis=1, keepdims=True))

    @property
    def labels(self) -> "Numbers":
        """(n,): the position of the best class; of equal ones the first, as in an evaluation."""
        return np.asarray(self.scores.argmax(axis=1))

    @property
    def names(self) -> List[str]:
        """The best class of each image."""
        return [self.classes[label] for label in self.labels]

    def top(self, count: int = 5) -> List[List[Guess]]:
        """The ``count`` best classes of each image, the best first; all if there are fewer.

        Raises DataError for a ``count`` that is not a whole number from 1 up.
        """
        if not is_count(count):
            raise DataError(f"top({count!r}): give a number of classes from 1 up")
        # by scores: the probabilities of two classes may be too small to differ
        order = np.argsort(-self.scores, axis=1, kind="stable")[:, :count]
        return [
            [Guess(self.classes[label], float(row[label])) for label in best]
            for best, row in zip(order, self.probabilities)
        ]


class Seen(NamedTuple):
    """A batch of n images, as the network saw them, with what it says of them.

    ``pixels`` (n, C, H, W) of 0 to 255; ``true`` (n,): their labels, where they have any.
    """

    said: Predictions
    pixels: "Images"
    true: "Numbers"


class Mistake(NamedTuple):
    """A test image that a network takes for another class.

    ``number``: its place among the test images; ``file``: where those lie in files.
    ``probability``: that of ``predicted``. ``pixels`` (C, H, W) of 0 to 255: what the network
    saw.
    """

    number: int
    file: Optional[str]
    true: str
    predicted: str
    probability: float
    pixels: "Images"


class Mistakes(NamedTuple):
    """The test images that a run gets wrong, in order, of how many."""

    dataset: str
    images: int
    wrong: Sequence[Mistake]

    @property
    def accuracy(self) -> float:
        """The fraction of the images that it gets right."""
        return (self.images - len(self.wrong)) / self.images
