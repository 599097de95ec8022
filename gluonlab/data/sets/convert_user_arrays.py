"""Converts the user's arrays, from any library, to the pixels and labels of a split.

This module does not import MXNet: it recognizes MXNet's arrays by their method ``asnumpy``. Without
``asnumpy``, NumPy would read these arrays element by element.
"""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Sequence as AnySequence
from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Tuple

import numpy as np

from gluonlab.errors import DataError, warn

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

WHITE = 255  # the value of a white pixel, which networks get as 1
LAYOUTS = CHANNELS_FIRST, CHANNELS_LAST = ("NCHW", "NHWC")
CHANNELS = (1, 3, 4)  # grayscale, RGB, RGBA
# Floats this close to a byte value count as that byte; float32 rounding is smaller.
ROUNDING_ERROR = 5e-5
CHUNK_IMAGES = 1024  # images that are checked together
MAX_NAMED_LABELS = 5  # labels that a message lists
NUMBER_CLASSES_HINT = "use np.unique(y, return_inverse=True)[1] to number the classes"
NO_REGRESSION = "use whole numbers as labels, or write a custom training loop for a regression (docs/own-training.md)"


def to_numpy(given: Any, name: str) -> "Array":
    """Convert an array from NumPy, MXNet or another library, or a list of arrays, to a NumPy array.

    ``name``: the array's name in error messages. Raises DataError if ``given`` is not an array, or
    is a list of arrays with different shapes.
    """
    if isinstance(given, (list, tuple)):
        given = [_part_to_numpy(part) for part in given]
        _check_equal_shapes(given, name)
    elif hasattr(given, "asnumpy"):
        return np.asarray(given.asnumpy())
    elif not _is_array(given) and not isinstance(given, AnySequence):
        raise DataError(f"{name} has type {type(given).__name__}: use a numpy or MXNet array")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy before 1.24 warns of unequal lists
            array = np.asarray(given)
    except (ValueError, TypeError) as error:
        raise DataError(f"{name} cannot be converted to an array ({error}): use elements of the same shape") from None
    if array.dtype == object:
        raise DataError(
            f"{name} contains elements that are not numbers or differ in shape: use numeric elements of the same shape"
        )
    return array


def _is_array(given: Any) -> bool:
    return hasattr(given, "__array__") or hasattr(given, "__array_interface__")


def _part_to_numpy(part: Any) -> Any:
    if hasattr(part, "asnumpy"):
        return part.asnumpy()
    return np.asarray(part) if _is_array(part) else part


def _check_equal_shapes(parts: Sequence[Any], name: str) -> None:
    """Raise DataError if the arrays in a list have different shapes."""
    shapes = [getattr(part, "shape", None) for part in parts]
    for position, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise DataError(
                f"{name}[0] has shape {shapes[0]}, but {name}[{position}] has shape {shape}: use the same "
                "shape for all elements; for a model with several inputs, write a custom training loop "
                "(docs/own-training.md)"
            )


def shares_user_memory(array: "Array", given: Any) -> bool:
    """Return whether ``array`` may share memory with the user's array ``given``.

    If the memory is shared, the user's later writes would change ``array``. Returns False for an
    array mapped from a file: such an array must not be copied, because it may be larger than
    memory.
    """
    base: Any = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    if isinstance(base, (mmap.mmap, np.memmap)):
        return False
    return isinstance(given, np.ndarray) or not isinstance(base, np.ndarray)


def check_layout_name(layout: Optional[str]) -> None:
    """Raise DataError if ``layout`` is neither one of LAYOUTS nor None."""
    if layout not in (None, *LAYOUTS):
        raise DataError(f"layout={layout!r}: use {' or '.join(LAYOUTS)}, or omit layout")


def to_channels_first(images: "Array", name: str, layout: Optional[str]) -> "Array":
    """Return images with 4 axes as (N, C, H, W).

    ``layout``: the layout of ``images``, one of LAYOUTS. Raises DataError for any other layout. If
    ``layout`` is None, raises DataError for images that look like (N, H, W, C).
    """
    check_layout_name(layout)
    shape = images.shape
    if layout is None and looks_channels_last(shape[1:]):
        raise DataError(
            f"{name} has the shape {tuple(shape)}, which looks like (N, H, W, C): use "
            f"{name}.transpose(0, 3, 1, 2) or layout={CHANNELS_LAST!r}; if the images "
            f"have {shape[1]} channels of {shape[2]}x{shape[3]} pixels, use layout={CHANNELS_FIRST!r}"
        )
    return images.transpose(0, 3, 1, 2) if layout == CHANNELS_LAST else images


def looks_channels_last(shape: Sequence[int]) -> bool:
    """Return whether the shape of an image looks like (H, W, C).

    >>> looks_channels_last((32, 32, 3)), looks_channels_last((3, 32, 32)), looks_channels_last((64, 4, 4))
    (True, False, False)
    """
    first, second, last = shape
    return last in CHANNELS and first not in CHANNELS and second > last


def to_pixels(images: "Array", name: str) -> "Array":
    """Convert images to uint8 from 0 to WHITE, or to float32 on the same scale.

    - Integers must be from 0 to 255, and become uint8.
    - Floats are the values that the network receives, so they are multiplied by WHITE. If all
      results are integers from 0 to 255, up to float32 rounding, they become uint8.

    Raises DataError for other values.
    """
    if images.dtype == np.uint8:
        return images
    kind = f"{name} has type {images.dtype} and shape {images.shape}"
    if np.issubdtype(images.dtype, np.integer):
        if images.size and (images.min() < 0 or images.max() > WHITE):
            raise DataError(
                f"{kind}, with values from {images.min()} to {images.max()}: use bytes (uint8) from 0 to 255, or "
                "floats, which are not scaled"
            )
        return images.astype(np.uint8)
    if not np.issubdtype(images.dtype, np.floating):
        raise DataError(f"{kind}: use bytes (uint8) from 0 to 255, or floats")
    if not np.isfinite(images).all():
        where = int(np.argwhere(~np.isfinite(images))[0][0])
        raise DataError(f"{name} contains a value that is not finite, in image {where}: remove this image")
    warn_of_whole_floats(images, name)
    scaled = images.astype(np.float32)
    scaled *= WHITE
    return to_bytes_if_whole(scaled)


def to_bytes_if_whole(images: "Array") -> "Array":
    """Convert images to uint8 if all values are integers from 0 to 255, up to rounding.

    Otherwise, return the images unchanged.
    """
    if images.dtype == np.uint8:
        return images
    converted = np.empty(images.shape, np.uint8)
    for begin in range(0, len(images), CHUNK_IMAGES):  # keeps temporary copies of large arrays small
        part = slice(begin, begin + CHUNK_IMAGES)
        whole = np.clip(np.rint(images[part]), 0, WHITE)
        if np.abs(images[part] - whole).max() > ROUNDING_ERROR:
            return images
        converted[part] = whole
    return converted


def warn_of_whole_floats(images: "Array", name: str) -> None:
    """Warn about float images that look like pixels from 0 to 255."""
    if images.dtype.kind != "f" or not images.size or images.min() < 0 or images.max() <= 1:
        return
    if (images == np.rint(images)).all():
        warn(
            f"{name} is {images.dtype} with whole numbers up to {images.max():g}, but floats are not "
            "scaled: pass pixels as bytes (uint8), which are divided by 255"
        )


def convert_labels(given: Any, name: str, images: int) -> "NDArray[np.int32]":
    """Convert the labels of ``images`` images to int32. Raise DataError for invalid labels.

    Labels are integers starting from 0, with shape (n,) or (n, 1). The type of the labels may be
    float.
    """
    labels = to_numpy(given, name)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    kind = f"{name} has type {labels.dtype} and shape {labels.shape}"
    if labels.ndim == 2 and len(labels) == images and _is_one_hot(labels):
        raise DataError(f"{kind}, and is one-hot encoded: convert it to class numbers with argmax(axis=1)")
    if labels.dtype.kind in "USO":
        raise DataError(f"{kind}, but labels must be class numbers that start at 0: {NUMBER_CLASSES_HINT}")
    if labels.shape != (images,) or labels.dtype.kind not in "biuf":
        raise DataError(f"{kind}: use one class number for each image, in an integer array of shape ({images},)")
    invalid = np.flatnonzero(~(np.isfinite(labels) & (labels == np.rint(labels))))
    if labels.dtype.kind == "f" and len(invalid):
        raise DataError(f"{name} contains {labels[invalid[0]]:g} at index {invalid[0]}: {NO_REGRESSION}")
    if images and (labels.min() < 0 or labels.max() >= 2**31 - 1):
        raise DataError(
            f"{name} has values from {labels.min():.0f} to {labels.max():.0f}, but labels must be "
            f"class numbers that start at 0: {NUMBER_CLASSES_HINT}"
        )
    return labels.astype(np.int32)


def _is_one_hot(labels: "Array") -> bool:
    return labels.dtype.kind in "biuf" and bool(
        ((labels == 0) | (labels == 1)).all() and (labels.sum(axis=1) == 1).all()
    )


def resolve_class_names(train: "Array", test: "Array", classes: Optional[Sequence[str]] = None) -> Tuple[str, ...]:
    """Return the class names: ``classes``, or the numbers up to the largest label.

    Warns about class numbers without images, and about classes with only validation images. Raises
    DataError if names are missing, or if most class numbers do not occur.
    """
    present = np.union1d(train, test)
    count = int(present[-1]) + 1
    if classes is not None:
        try:
            names = tuple(map(str, classes))
        except TypeError:
            raise DataError(f"classes={classes!r}: use a list with a name for each class") from None
        if count > len(names):
            raise DataError(
                f"the largest label is {count - 1}, but classes contains only {len(names)} names: name all "
                f"classes from 0 to {count - 1}, or omit classes"
            )
    else:
        names = tuple(map(str, range(count))) if 2 * len(present) >= count else ()
        if len(present) < count:
            gaps = (
                f"{len(present):,} classes occur among the labels from 0 to {count - 1:,} "
                f"({_list_some(present)}), so the model would have {count:,} outputs"
            )
            advice = "number the classes of train and test together, starting at 0, or name all classes with classes="
            if not names:
                raise DataError(f"{gaps}: {advice}")
            warn(f"{gaps}: {advice}")
    untrained = np.setdiff1d(test, train)
    if len(untrained):
        labels = f"the label{'s' * (len(untrained) > 1)} {_list_some(untrained)}"
        classes_text = "these classes" if len(untrained) > 1 else "this class"
        warn(f"validation images have {labels}, but no training image does: the model cannot learn {classes_text}")
    return names


def _list_some(numbers: "Array") -> str:
    shown: List[str] = [str(number) for number in numbers[:MAX_NAMED_LABELS]]
    return ", ".join([*shown, *(["..."] if len(numbers) > MAX_NAMED_LABELS else [])])
