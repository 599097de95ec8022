"""Settings of `gluonlab.scratch.loop`: initialization, epochs, batch size and learning rate.

The chapter "Training on Multiple GPUs" of Dive into Deep Learning draws all weights from normal(0,
0.01). This works for Fashion-MNIST with 235 steps per epoch, but not for the 1,437 images of the
digits. The signal of the digits shrinks in every layer until almost nothing is left at the output,
and the gradients also shrink. After 60 epochs, the accuracy is still no better than guessing.
`he_deviation` preserves the size of the signal, and the network then learns the digits in about ten
epochs.
"""

from __future__ import annotations

import math
from typing import Callable, Dict, NamedTuple

# A function that takes the number of inputs of a unit (fan-in) and returns the standard deviation
# of its weights.
Deviation = Callable[[int], float]


def he_deviation(fan_in: int) -> float:
    """Return sqrt(2 / fan_in), which preserves the mean square of activations through ReLU.

    See He, Zhang, Ren, Sun, "Delving Deep into Rectifiers" (2015), section 2.2, equation 10.
    """
    return math.sqrt(2 / fan_in)


def chapter_deviation(fan_in: int) -> float:
    """Return 0.01 for any ``fan_in``, as in the chapter."""
    return 0.01


INITIALIZATIONS: Dict[str, Deviation] = {"he": he_deviation, "chapter": chapter_deviation}


class Recipe(NamedTuple):
    """Settings for training. ``global_batch_size``: images per step on all devices together."""

    init: str = "he"
    epochs: int = 10
    global_batch_size: int = 256
    lr: float = 0.2


# All batch sizes, all learning rates and the whole Fashion-MNIST recipe come from the chapter.
RECIPES: Dict[str, Recipe] = {"digits": Recipe(epochs=25), "fashion-mnist": Recipe(init="chapter")}


def recipe_for(dataset: str) -> Recipe:
    """Return the recipe for a data set."""
    return RECIPES.get(dataset, Recipe())
