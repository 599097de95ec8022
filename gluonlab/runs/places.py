"""Where the numbers of a run lie on an axis of epochs: for curves.png, reports and live plots.

An epoch begins at its number less one. A mean over it lies in its middle, as its steps do on the
average; what is evaluated after it lies at its end, its number.
"""

from __future__ import annotations

from typing import List, Sequence, Tuple

from gluonlab.runs.schema import Epoch, Step

MOST_POINTS = 400  # of a curve: more cannot be seen, and make a page heavy

Curve = Tuple[List[float], List[float]]


def middles(epochs: Sequence[Epoch]) -> List[float]:
    """Where the epochs' means lie."""
    return [line.epoch - 0.5 for line in epochs]


def steps_per_epoch(steps: Sequence[Step], epochs: Sequence[Epoch]) -> float:
    """How many there are on the average; all, where no epoch is finished."""
    return epochs[-1].step / len(epochs) if epochs else max(1, len(steps))


def positions(steps: Sequence[Step], epochs: Sequence[Epoch]) -> List[float]:
    """Where each step lies."""
    per_epoch = steps_per_epoch(steps, epochs)
    return [line.step / per_epoch for line in steps]


def thinned(xs: List[float], ys: List[float]) -> Curve:
    """Means over equal stretches, at most MOST_POINTS of them."""
    size = -(-len(xs) // MOST_POINTS) or 1
    stretches = [slice(begin, begin + size) for begin in range(0, len(xs), size)]
    return [_mean(xs[stretch]) for stretch in stretches], [
        _mean(ys[stretch]) for stretch in stretches
    ]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


class Growing:
    """A curve to which points are added: means over equal stretches, however many there are.

    ``curve``: from MOST_POINTS to twice as many of them, fewer for a short one.
    """

    def __init__(self) -> None:
        self._xs: List[float] = []
        self._ys: List[float] = []
        self._size, self._open = 1, [0.0, 0.0, 0.0]  # points of a stretch; sums of the last one

    def add(self, x: float, y: float) -> None:
        """One more point."""
        sums = self._open
        sums[0], sums[1], sums[2] = sums[0] + x, sums[1] + y, sums[2] + 1
        if sums[2] < self._size:
            return
        self._xs.append(sums[0] / self._size)
        self._ys.append(sums[1] / self._size)
        self._open = [0.0, 0.0, 0.0]
        if len(self._xs) == 2 * MOST_POINTS:
            self._xs, self._ys = thinned(self._xs, self._ys)
            self._size *= 2

    @property
    def curve(self) -> Curve:
        """The points, but for those of a stretch that is not full."""
        return self._xs, self._ys
