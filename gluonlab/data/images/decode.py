"""One JPEG or PNG file -> pixels of one size; whatever is wrong with a file is a DataError that
names it.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Callable, Optional, Tuple, TypeVar

import numpy as np
from PIL import Image, ImageFile, UnidentifiedImageError

from gluonlab.data.images.crop import random_box
from gluonlab.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Pixels = NDArray[np.uint8]

T = TypeVar("T")

FORMATS = ("JPEG", "PNG")
CHANNELS = 3
# 8192x8192: more than any photograph of a data set, and 400 MB at most while it is decoded
MAX_PIXELS = 2**26
REMEDY = "replace or remove it, or leave bad images out with --skip-bad"


def decode(path: str, size: int, seed: Optional[int] = None) -> "Pixels":
    """The image as (3, ``size``, ``size``): the short side resized to ``size``, the centre of the
    long one; grey becomes colour.

    With a ``seed`` it is what `gluonlab.data.images.crop.random_box` cuts out, resized. Raises
    DataError for a file that cannot be read, that is no JPEG or PNG, that is damaged or cut off,
    and for one whose header promises more than MAX_PIXELS, before memory is taken for them. Whether
    Pillow's warnings are shown is up to who calls it.
    """
    return _open(path, partial(_whole if seed is None else partial(_cut, seed), path, size))


def short_side(path: str) -> int:
    """The smaller of width and height, from the file's header.

    Raises DataError as `decode` does.
    """
    return _open(path, lambda image: min(image.size))


def _whole(path: str, size: int, image: Image.Image) -> "Pixels":
    """The central square of an image that is not decoded yet."""
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return _part(path, size, image, (left, top, left + side, top + side))


def _cut(seed: int, path: str, size: int, image: Image.Image) -> "Pixels":
    """What is in a random box of an image that is not decoded yet."""
    return _part(path, size, image, random_box(seed, *image.size))


def _part(
    path: str, size: int, image: Image.Image, box: Tuple[float, float, float, float]
) -> "Pixels":
    """What is in the ``box`` (left, top, right, bottom) of an image that is not decoded yet."""
    width, height = image.size
    across, down = box[2] - box[0], box[3] - box[1]
    fraction = 1.0
    # a JPEG is decoded at 1/2, 1/4 or 1/8 where the box is still large enough
    if min(across, down) >= 2 * size:
        drafted = image.draft(
            "RGB", (math.ceil(width * size / across), math.ceil(height * size / down))
        )
        # of Pillow's box, which is exact: the size is rounded up, and the last pixels may show less
        # than the others
        fraction = drafted[1][2] / width if drafted else 1.0
    image = _as_rgb(path, image)
    if image.size != (size, size) or (across * fraction, down * fraction) != (size, size):
        left, top, right, bottom = (place * fraction for place in box)
        image = image.resize(
            (size, size), Image.Resampling.BILINEAR, box=(left, top, right, bottom)
        )
    return _planes(image)


def _planes(image: Image.Image) -> "Pixels":
    """(height, width, 3) -> (3, height, width).

    From its bytes, since np.asarray(image) takes longer over the same.
    """
    return (
        np.frombuffer(image.tobytes(), np.uint8)
        .reshape(image.height, image.width, CHANNELS)
        .transpose(2, 0, 1)
    )


def _as_rgb(path: str, image: Image.Image) -> Image.Image:
    """An image of any of Pillow's modes in red, green and blue of 8 bits each.

    Pillow's own conversion takes what is more than 255 for 255. Grey PNGs of 16 bits it reads as
    I;16, in older versions as I.
    """
    if image.mode == "I" or image.mode.startswith("I;16"):
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 0xFFFF:
            raise DataError(
                f"{path}: grey values from {values.min()} to {values.max()}, more than 16 bits: "
                f"{REMEDY}"
            )
        image = Image.fromarray(((values.astype(np.uint32) + 128) // 257).astype(np.uint8))
    elif image.mode == "F":
        raise DataError(f"{path}: grey values that are floats, of an unknown range: {REMEDY}")
    return image if image.mode == "RGB" else image.convert("RGB")


def _check_size(path: str, size: Tuple[int, int]) -> None:
    width, height = size
    if width * height > MAX_PIXELS:
        raise DataError(
            f"{path}: {width}x{height} pixels, more than the {MAX_PIXELS:,} that are decoded: "
            f"{REMEDY}"
        )


def _open(path: str, read: Callable[[Image.Image], T]) -> T:
    """What ``read`` makes of the file. Whatever Pillow raises becomes a DataError that names it."""
    # gluoncv, once it is imported, has Pillow fill up cut files with grey, in the whole process
    before, ImageFile.LOAD_TRUNCATED_IMAGES = ImageFile.LOAD_TRUNCATED_IMAGES, False
    try:
        with Image.open(path, formats=FORMATS) as image:
            _check_size(path, image.size)
            return read(image)
    except DataError:
        raise
    # Pillow's plugins raise whatever a damage leads to, IndexError and struct.error included
    except Exception as error:
        raise DataError(f"{path}: {_what(error)}: {REMEDY}") from None
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before


def _what(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "no JPEG or PNG, or damaged in its header"
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read ({error.strerror})"
    text = " ".join(str(error).split())
    return f"damaged ({text or type(error).__name__})"
