"""Which part of an image a random resized crop cuts out.

Szegedy et al., "Going deeper with convolutions", 2015, section 6: 8 % to 100 % of the area, sides
of 3:4 to 4:3. As in gluon-cv and torchvision, the ratio of the sides is drawn evenly in its
logarithm, and what does not fit into the image is drawn again.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

AREA = (0.08, 1.0)  # of the whole image
RATIO = (3 / 4, 4 / 3)  # width to height
ATTEMPTS = 10


class Box(NamedTuple):
    """A part of an image, in whole pixels; ``right`` and ``bottom`` are the first outside."""

    left: int
    top: int
    right: int
    bottom: int


def random_box(seed: int, width: int, height: int) -> Box:
    """A box in an image of ``width`` x ``height``, from the ``seed`` (below 2**32) alone.

    Where none of ATTEMPTS fits, as in very long images, the largest in the middle whose sides are
    within RATIO.
    """
    # both frozen by numpy, and a tenth of the cost of RandomState(seed)
    random = np.random.RandomState(np.random.PCG64(seed))
    for area, ratio, across, down in random.uniform(size=(ATTEMPTS, 4)):
        pixels = width * height * (AREA[0] + area * (AREA[1] - AREA[0]))
        sides = math.exp(math.log(RATIO[0]) + ratio * math.log(RATIO[1] / RATIO[0]))
        wide = max(1, round(math.sqrt(pixels * sides)))
        high = max(1, round(math.sqrt(pixels / sides)))
        if wide <= width and high <= height:
            left, top = int(across * (width - wide + 1)), int(down * (height - high + 1))
            return Box(left, top, left + wide, top + high)
    return middle_box(width, height)


def middle_box(width: int, height: int) -> Box:
    """The largest box in the middle of an image whose sides are within RATIO."""
    wide, high = min(width, round(height * RATIO[1])), min(height, round(width / RATIO[0]))
    left, top = (width - wide) // 2, (height - high) // 2
    return Box(left, top, left + wide, top + high)
