"""Defines data sets and their splits, and parses the values of --normalize.

A data set has a training split, a validation split, class names, a normalization and default settings.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, Optional, Protocol, Sequence, Tuple, TypeVar, runtime_checkable

import numpy as np

from gluonlab.data.sets.convert_user_arrays import to_channels_first, to_numpy
from gluonlab.errors import ConfigError, DataError, unknown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Images = NDArray[Any]
    Labels = NDArray[np.int32]
    Indices = NDArray[np.int64]
    Weights = NDArray[np.float64]
    Targets = NDArray[Any]

S = TypeVar("S", bound="LabeledSplit")
Normalization = Tuple[Tuple[float, ...], Tuple[float, ...]]


@runtime_checkable
class Split(Protocol):
    """Interface of a split: labeled images, in memory or in files."""

    def __len__(self) -> int: ...

    @property
    def image_shape(self) -> Tuple[int, int, int]:
        """Shape of an image: (channels, height, width)."""

    def batch(self, indices: "Indices") -> "Tuple[Images, Targets]":
        """Return the images (n, C, H, W) and int32 labels (n,) at ``indices``.

        Images are uint8, or float32 if the split's ``dtype`` is float32. In both types, 255 is
        white.
        """


class Reading(Protocol):
    """Interface of a batch that is being read."""

    def result(self) -> "Tuple[Images, Targets]":
        """Wait for the batch, and return the images and labels, like `Split.batch`."""

    def cancel(self) -> None:
        """Stop reading the batch."""


@runtime_checkable
class ReadAheadSplit(Split, Protocol):
    """Interface of a split whose batches other processes read ahead, possibly with random crops."""

    def start_reading(self, indices: "Indices", seeds: Optional[Sequence[int]] = None) -> Reading:
        """Start to read the images at these indices, as one batch.

        ``seeds``: for random crops, one number below 2**32 per image (see
        `gluonlab.data.images.decode_image.random_crop_box`).
        """


def image_dtype(split: Split) -> str:
    """Return the type of a split's pixels: its ``dtype``, or uint8."""
    return str(getattr(split, "dtype", np.dtype(np.uint8)))


class LabeledSplit:
    """Base class for splits with int32 labels of shape (N,).

    ``weights`` (N,): optional factors for the loss of each image.
    """

    def __init__(self, labels: "Labels", weights: "Optional[Weights]" = None) -> None:
        self.labels, self.weights = labels, weights
        if weights is not None:
            self._labels_and_weights = np.stack([labels, weights], axis=1).astype(np.float32)

    @property
    def targets(self) -> "Targets":
        """The labels as int32 (N,) or, with weights, rows of label and weight as float32 (N, 2)."""
        return self.labels if self.weights is None else self._labels_and_weights

    def with_weights(self: "S", weights: "Weights") -> "S":
        """Return a split with the same images and labels, and with the given ``weights``."""
        split = copy.copy(self)
        LabeledSplit.__init__(split, self.labels, weights)
        return split


class PixelSplit(LabeledSplit):
    """A split with its pixels in an array of shape (N, C, H, W), and int32 labels of shape (N,).

    Images are uint8 or float32. In both types, 255 is white. The array may be mapped from a file.
    """

    def __init__(self, images: "Images", labels: "Labels", weights: "Optional[Weights]" = None) -> None:
        super().__init__(labels, weights)
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    @property
    def dtype(self) -> "np.dtype[Any]":
        """Type of the pixels: uint8 or float32."""
        return self.images.dtype

    @property
    def image_shape(self) -> Tuple[int, int, int]:
        """Shape of an image: (channels, height, width)."""
        return self.images.shape[1], self.images.shape[2], self.images.shape[3]

    def batch(self, indices: "Indices") -> "Tuple[Images, Targets]":
        """Return the images (n, C, H, W) and int32 labels (n,) at ``indices``.

        If the images have weights, labels are float32 with shape (n, 2): each label and its weight.
        """
        return self.images[indices], self.targets[indices]


class ArraySplit(PixelSplit):
    """A split in memory. Arrays with the right type and layout are not copied.

    ``layout``: see `gluonlab.data.from_arrays`. Raises DataError for images or labels with the
    wrong type or shape.
    """

    def __init__(
        self, images: "Images", labels: "Labels", layout: Optional[str] = None, weights: "Optional[Weights]" = None
    ) -> None:
        images, labels = to_numpy(images, "images"), to_numpy(labels, "labels")
        if images.ndim != 4 or images.dtype not in (np.uint8, np.float32):
            raise DataError(
                f"images have type {images.dtype} and shape {images.shape}: use shape (N, C, H, W), and type "
                "uint8, or float32 with values from 0 to 255"
            )
        images = to_channels_first(images, "images", layout)
        if labels.shape != (len(images),) or labels.dtype.kind not in "iu":
            raise DataError(
                f"the labels of {len(images)} images have type {labels.dtype} and shape {labels.shape}: use one "
                "whole number per image"
            )
        super().__init__(np.ascontiguousarray(images), labels.astype(np.int32), weights)


@dataclass(frozen=True)
class Defaults:
    """A data set's settings for the recipe ``quick``, and the names of its usual models.

    ``batch_size`` is per device. ``model``: the model for the recipe ``quick``.
    ``published_model``: the model for other recipes, if different.
    """

    model: str = "lenet"
    published_model: Optional[str] = None
    batch_size: int = 64
    epochs: int = 5
    lr: float = 0.3
    optimizer: str = "sgd"
    momentum: Optional[float] = None
    wd: float = 0.0


@dataclass(frozen=True)
class Dataset:
    """A data set that is ready to be read.

    ``normalization``: the mean and standard deviation with which each channel is normalized, as
    fractions of 255. ``resizer``: the library that resizes image files, if there are any.
    """

    name: str
    train: Split
    test: Split
    classes: Tuple[str, ...]
    defaults: Defaults
    normalization: Optional[Normalization] = None
    resizer: Optional[str] = None

    @property
    def image_shape(self) -> Tuple[int, int, int]:
        """Shape of an image in both splits: (channels, height, width)."""
        return self.train.image_shape

    @property
    def val(self) -> Split:
        """The images on which a run is evaluated; an alias of ``test``."""
        return self.test


# --- values of --normalize

NONE = "none"
# The usual mean and standard deviation of each channel, as fractions of 255.
NORMALIZATIONS: Dict[str, Normalization] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),  # gluon-cv's and torchvision's
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),  # gluon-cv's train_cifar10.py
    "mnist": ((0.1307,), (0.3081,)),  # of PyTorch's MNIST example
}


def parse_normalization(value: str) -> Optional[Normalization]:
    """Return (means, deviations) for a value of ``TrainConfig.normalize``, or None for ``none``.

    Raises ConfigError for an unknown name. Values:

    ``imagenet``, ``cifar10``, ...  one of NORMALIZATIONS
    ``none``                        pixels are only divided by 255
    ``M,M,M/S,S,S``                 mean and standard deviation of each channel
    ``M/S``                         the same values for all channels
    """
    if value == NONE:
        return None
    if "/" in value:
        mean, std = (tuple(map(float, part.split(","))) for part in value.split("/"))
        return mean, std
    if value not in NORMALIZATIONS:
        raise ConfigError(unknown("--normalize", value, [*NORMALIZATIONS, NONE, "MEANS/DEVIATIONS"]))
    return NORMALIZATIONS[value]


def resolve_normalization(value: str, channels: int, dataset: str) -> Optional[Normalization]:
    """Return (means, deviations) by channel for a value of ``TrainConfig.normalize``.

    ``dataset``: the data set's name, for error messages. Raises ConfigError if the value is invalid
    or has a different number of channels.
    """
    normalization = parse_normalization(value)
    if normalization is None or len(normalization[0]) == channels:
        return normalization
    if len(normalization[0]) == 1 and value not in NORMALIZATIONS:
        return normalization[0] * channels, normalization[1] * channels
    count, example = len(normalization[0]), f"{','.join('M' * channels)}/{','.join('S' * channels)}"
    raise ConfigError(
        f"--normalize {value} is for {count} channel{'s' * (count > 1)}, but the images of "
        f"{dataset} have {channels}: use {example}, or omit --normalize"
    )


def format_normalization(normalization: Optional[Normalization]) -> str:
    """Return a normalization as text that --normalize accepts, with all digits: ``M,M,M/S,S,S``.

    Return ``none`` for None.
    """
    return NONE if normalization is None else "/".join(",".join(map(repr, values)) for values in normalization)
