"""The means and standard deviations by which --normalise normalises the colours of images."""

from __future__ import annotations

from typing import Dict, Optional

from gluonlab.data.sets.dataset import Colours
from gluonlab.errors import ConfigError, unknown

NONE = "none"
# Mean and standard deviation of each channel, as fractions of 255, as they are usually given.
COLOURS: Dict[str, Colours] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),  # gluon-cv's and torchvision's
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),  # gluon-cv's train_cifar10.py
    "mnist": ((0.1307,), (0.3081,)),  # of PyTorch's MNIST example
}


def find_colours(normalise: str) -> Optional[Colours]:
    """What a value of ``TrainConfig.normalise`` means; None for ``none``. Raises ConfigError.

    ``imagenet``, ``cifar10``, ...  one of COLOURS
    ``none``                        pixels divided by 255, and no more
    ``M,M,M/S,S,S``                 a mean and a standard deviation for each channel
    ``M/S``                         the same for all channels
    """
    if normalise == NONE:
        return None
    if "/" in normalise:
        mean, deviation = (tuple(map(float, part.split(","))) for part in normalise.split("/"))
        return mean, deviation
    if normalise not in COLOURS:
        raise ConfigError(unknown("--normalise", normalise, [*COLOURS, NONE, "MEANS/DEVIATIONS"]))
    return COLOURS[normalise]


def colours_for(normalise: str, channels: int, dataset: str) -> Optional[Colours]:
    """`find_colours` for images of ``channels`` channels. Raises ConfigError for other numbers."""
    colours = find_colours(normalise)
    if colours is None or len(colours[0]) == channels:
        return colours
    if len(colours[0]) == 1 and normalise not in COLOURS:
        return colours[0] * channels, colours[1] * channels
    count, form = len(colours[0]), f"{','.join('M' * channels)}/{','.join('S' * channels)}"
    raise ConfigError(
        f"--normalise {normalise} is for {count} channel{'s' * (count > 1)}, "
        f"and the images of {dataset} have {channels}: give {form}, or none"
    )


def in_text(colours: Optional[Colours]) -> str:
    """``M,M,M/S,S,S`` with all digits, which --normalise takes again; ``none`` for None."""
    return NONE if colours is None else "/".join(",".join(map(repr, each)) for each in colours)
