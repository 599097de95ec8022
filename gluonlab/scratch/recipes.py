"""Initialisation, epochs, batch size and learning rate of a training by hand.

The chapter draws all weights from normal(0, 0.01). That starts on Fashion-MNIST's 235 steps an
epoch, but not on the 1,437 small digits: the signal shrinks at every layer, to almost nothing at
the output, and the gradients with it; the accuracy is still that of guessing after 60 epochs. `he`
keeps the signal's size from layer to layer instead, and learns them in about ten epochs.
"""

from __future__ import annotations

import math
from typing import Callable, Dict, NamedTuple

# how many values a unit adds up -> the standard deviation of its weights
Spread = Callable[[int], float]


def he(fan_in: int) -> float:
    """sqrt(2 / fan_in): what goes through ReLU keeps its mean square.

    Source: He, Zhang, Ren, Sun, "Delving Deep into Rectifiers" (2015), section 2.2, equation 10.
    """
    return math.sqrt(2 / fan_in)


def chapter(fan_in: int) -> float:
    """The chapter's 0.01, whatever ``fan_in`` is."""
    return 0.01


INITIALISATIONS: Dict[str, Spread] = {"he": he, "chapter": chapter}


class Recipe(NamedTuple):
    """What to train with; the batch size is that of all devices together."""

    init: str = "he"
    epochs: int = 10
    global_batch_size: int = 256
    lr: float = 0.2


# Batch size and learning rate are the chapter's everywhere, and so is all of Fashion-MNIST's
# recipe.
RECIPES: Dict[str, Recipe] = {"digits": Recipe(epochs=25), "fashion-mnist": Recipe(init="chapter")}


def recipe_for(dataset: str) -> Recipe:
    """The recipe for the data set of this name."""
    return RECIPES.get(dataset, Recipe())
