"""What a data set is: two splits of images and labels, its classes, colors and hyperparameters."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Dict,
    Optional,
    Protocol,
    Sequence,
    Tuple,
    TypeVar,
    runtime_checkable,
)

import numpy as np

from gluonlab.data.sets.convert_arrays import to_channels_first, to_numpy
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
    """A set of labelled images, in memory or in files."""

    def __len__(self) -> int: ...

    @property
    def image_shape(self) -> Tuple[int, int, int]:
        """(channels, height, width)"""

    def batch(self, indices: "Indices") -> "Tuple[Images, Targets]":
        """The images (n, C, H, W) and labels (n,) int32 at these n indices.

        Images are uint8, or float32 if that is the split's ``dtype``. In both types 255 is white.
        """


class Reading(Protocol):
    """A batch that is being read."""

    def result(self) -> "Tuple[Images, Targets]":
        """Wait for what `Split.batch` gives."""

    def cancel(self) -> None:
        """Give the batch up."""


@runtime_checkable
class ReadAheadSplit(Split, Protocol):
    """A split that other processes read ahead, and whose images can be cut anew each time."""

    def start_reading(self, indices: "Indices", seeds: Optional[Sequence[int]] = None) -> Reading:
        """Begin with a batch.

        ``seeds``: of each image what `gluonlab.data.images.decode_image.random_crop_box` cuts out for
        its own, below 2**32.
        """


def image_dtype(split: Split) -> str:
    """The type of a split's pixels, uint8 unless the split has another ``dtype``."""
    return str(getattr(split, "dtype", np.dtype(np.uint8)))


class LabeledSplit:
    """The labels (N,) int32 of a split, and the weights (N,) of its images in the loss, if any."""

    def __init__(self, labels: "Labels", weights: "Optional[Weights]" = None) -> None:
        self.labels, self.weights = labels, weights
        if weights is not None:
            self._weighted = np.stack([labels, weights], axis=1).astype(np.float32)

    @property
    def targets(self) -> "Targets":
        """Labels (N,) for batches; with weights (N, 2) float32, each label and its weight."""
        return self.labels if self.weights is None else self._weighted

    def with_weights(self: "S", weights: "Weights") -> "S":
        """Return a split with the same images and labels, and these weights."""
        split = copy.copy(self)
        LabeledSplit.__init__(split, self.labels, weights)
        return split


class PixelSplit(LabeledSplit):
    """A split whose pixels lie in an array: images (N, C, H, W), labels (N,) int32.

    Images are uint8 or float32; in both types 255 is white. They may be mapped from the disk.
    """

    def __init__(
        self, images: "Images", labels: "Labels", weights: "Optional[Weights]" = None
    ) -> None:
        super().__init__(labels, weights)
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    @property
    def dtype(self) -> "np.dtype[Any]":
        """The type of the pixels: uint8 or float32."""
        return self.images.dtype

    @property
    def image_shape(self) -> Tuple[int, int, int]:
        """(channels, height, width)"""
        return self.images.shape[1], self.images.shape[2], self.images.shape[3]

    def batch(self, indices: "Indices") -> "Tuple[Images, Targets]":
        """The images (n, C, H, W) and labels (n,) int32 at these n indices.

        If images have weights: each label and its weight, (n, 2) float32.
        """
        return self.images[indices], self.targets[indices]


class ArraySplit(PixelSplit):
    """A split that lies in memory: the arrays themselves, not copies.

    ``layout``: as for `gluonlab.data.from_arrays`. Raises DataError for images or labels of another
    type or shape.
    """

    def __init__(
        self,
        images: "Images",
        labels: "Labels",
        layout: Optional[str] = None,
        weights: "Optional[Weights]" = None,
    ) -> None:
        images, labels = to_numpy(images, "images"), to_numpy(labels, "labels")
        if images.ndim != 4 or images.dtype not in (np.uint8, np.float32):
            raise DataError(
                f"images are {images.dtype} of shape {images.shape}: "
                "give uint8, or float32 from 0 to 255, of shape (N, C, H, W)"
            )
        images = to_channels_first(images, "images", layout)
        if labels.shape != (len(images),) or labels.dtype.kind not in "iu":
            raise DataError(
                f"{len(images)} images have labels of shape {labels.shape}, {labels.dtype}: "
                "give one label per image, a whole number"
            )
        super().__init__(np.ascontiguousarray(images), labels.astype(np.int32), weights)


@dataclass(frozen=True)
class Defaults:
    """The settings of a data set's recipe ``quick``, for a first try, and its usual networks.

    ``batch_size`` is per device. ``model``: the network of a first try. ``published_model``: that
    without --recipe quick, where it is another.
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

    ``colours``: mean and standard deviation of each channel, as fractions of 255, by which networks
    get the images normalised. ``resizer``: the library that resizes them, of image files.
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
        """(channels, height, width), the same in both splits."""
        return self.train.image_shape


# --- the means and standard deviations by which --normalise normalises the colors of images

NONE = "none"
# Mean and standard deviation of each channel, as fractions of 255, as they are usually given.
NORMALIZATIONS: Dict[str, Normalization] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),  # gluon-cv's and torchvision's
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),  # gluon-cv's train_cifar10.py
    "mnist": ((0.1307,), (0.3081,)),  # of PyTorch's MNIST example
}


def parse_normalization(normalise: str) -> Optional[Normalization]:
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
    if normalise not in NORMALIZATIONS:
        raise ConfigError(
            unknown("--normalise", normalise, [*NORMALIZATIONS, NONE, "MEANS/DEVIATIONS"])
        )
    return NORMALIZATIONS[normalise]


def resolve_normalization(normalise: str, channels: int, dataset: str) -> Optional[Normalization]:
    """`parse_normalization` for images of ``channels`` channels. Raises ConfigError for other numbers."""
    colours = parse_normalization(normalise)
    if colours is None or len(colours[0]) == channels:
        return colours
    if len(colours[0]) == 1 and normalise not in NORMALIZATIONS:
        return colours[0] * channels, colours[1] * channels
    count, form = len(colours[0]), f"{','.join('M' * channels)}/{','.join('S' * channels)}"
    raise ConfigError(
        f"--normalise {normalise} is for {count} channel{'s' * (count > 1)}, "
        f"and the images of {dataset} have {channels}: give {form}, or none"
    )


def format_normalization(colours: Optional[Normalization]) -> str:
    """``M,M,M/S,S,S`` with all digits, which --normalise takes again; ``none`` for None."""
    return NONE if colours is None else "/".join(",".join(map(repr, each)) for each in colours)
