"""Latency and bandwidth of measured copies: the straight line through times by size."""

from __future__ import annotations

from statistics import median
from typing import List, Mapping, NamedTuple, Sequence

import numpy as np


class Fit(NamedTuple):
    """A message of n bytes takes ``latency_s`` + n / ``bytes_per_s`` seconds.

    ``off``: by how much of itself the worst of the times differs from that.
    """

    latency_s: float
    bytes_per_s: float
    off: float

    def seconds(self, size_bytes: float) -> float:
        """What a message of such a size takes."""
        return self.latency_s + size_bytes / self.bytes_per_s


def fit(seconds: Mapping[int, Sequence[float]]) -> Fit:
    """The line with the least squares of relative errors through the medians over rounds.

    ``seconds``: of each size in bytes, two or more, those of all rounds. Relative, as errors of a
    clock and of a busy machine grow with what they measure: absolute squares would leave the
    latency to the errors of the largest size. Medians, as single rounds are disturbed. Neither part
    is negative; where the largest size takes hardly longer than the smallest, half of its time
    counts as moving.
    """
    times = {size: median(rounds) for size, rounds in seconds.items()}
    one, size = np.array([[1 / t, size / t] for size, t in times.items()]).T  # of a and b
    scales = np.linalg.norm([one, size], axis=1)  # the one is some 10^6 times the other
    columns = np.stack([one, size], axis=1) / scales
    latency_s, s_per_byte = np.linalg.lstsq(columns, np.ones(len(times)), rcond=None)[0] / scales
    if latency_s < 0:
        latency_s, s_per_byte = 0.0, size.sum() / scales[1] ** 2
    largest = max(times)
    if s_per_byte < times[largest] / largest / 1000:  # or negative
        s_per_byte = times[largest] / largest / 2
        latency_s = times[largest] / 2
    found = Fit(float(latency_s), float(1 / s_per_byte), 0.0)
    off = max(abs(found.seconds(size) / t - 1) for size, t in times.items())
    return found._replace(off=off)


def alike(values: Sequence[float], within: float) -> List[float]:
    """The values, those that differ by less than this factor replaced by their median.

    Differences below the noise are none: the best order of devices must not follow from them.
    From the smallest on, a class reaches up to ``within`` times its smallest value.
    """
    classes: List[List[int]] = []
    for place in sorted(range(len(values)), key=lambda place: values[place]):
        if not classes or values[place] > within * values[classes[-1][0]]:
            classes.append([])
        classes[-1].append(place)
    found = list(values)
    for members in classes:
        for place in members:
            found[place] = median(values[member] for member in members)
    return found
