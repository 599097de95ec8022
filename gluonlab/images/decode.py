"""One JPEG or PNG file -> pixels of one size; whatever is wrong with a file is a DataError that names it."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Callable, Optional, Tuple, TypeVar

import numpy as np
from PIL import Image, ImageFile, UnidentifiedImageError

from gluonlab.errors import DataError
from gluonlab.images.crop import random_box

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Pixels = NDArray[np.uint8]

T = TypeVar("T")

FORMATS = ("JPEG", "PNG")
CHANNELS = 3
MAX_PIXELS = 2**26  # 8192x8192: more than any photograph of a data set, and 400 MB at most while it is decoded
REMEDY = "replace or remove it, or leave bad images out with --skip-bad"


def decode(path: str, size: int, seed: Optional[int] = None) -> "Pixels":
    """The image as (3, ``size``, ``size``): the short side resized to ``size``, the centre of the long one; grey becomes colour.

    With a ``seed`` it is what `gluonlab.images.crop.random_box` cuts out, resized.
    Raises DataError for a file that cannot be read, that is no JPEG or PNG, that is damaged or cut off, and for one whose header
    promises more than MAX_PIXELS, before memory is taken for them. Whether Pillow's warnings are shown is up to who calls it.
    """
    return _open(path, partial(_square if seed is None else partial(_cut, seed), path, size))


def short_side(path: str) -> int:
    """The smaller of width and height, from the file's header. Raises DataError as `decode` does."""
    return _open(path, lambda image: min(image.size))


def _square(path: str, size: int, image: Image.Image) -> "Pixels":
    """The middle of an image that is not decoded yet."""
    if min(image.size) >= 2 * size:
        image.draft("RGB", (size, size))  # a JPEG is decoded at 1/2, 1/4 or 1/8 where that is still large enough
    image = _as_rgb(path, image)
    if image.size != (size, size):
        width, height = image.size
        side = min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        image = image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
    return _planes(image)


def _cut(seed: int, path: str, size: int, image: Image.Image) -> "Pixels":
    """What is in a random box of an image that is not decoded yet."""
    width, height = image.size
    box = random_box(seed, width, height)
    enough = math.ceil(width * size / (box.right - box.left)), math.ceil(height * size / (box.bottom - box.top))
    drafted = image.draft("RGB", enough)  # as in `decode`, where the box is still large enough
    scale = drafted[1][2] / width if drafted else 1
    part = (box.left * scale, box.top * scale, box.right * scale, box.bottom * scale)
    return _planes(_as_rgb(path, image).resize((size, size), Image.Resampling.BILINEAR, box=part))


def _planes(image: Image.Image) -> "Pixels":
    """(height, width, 3) -> (3, height, width). From its bytes, since np.asarray(image) takes longer over the same."""
    return np.frombuffer(image.tobytes(), np.uint8).reshape(image.height, image.width, CHANNELS).transpose(2, 0, 1)


def _as_rgb(path: str, image: Image.Image) -> Image.Image:
    """An image of any of Pillow's modes in red, green and blue of 8 bits each.

    Pillow's own conversion takes what is more than 255 for 255. Grey PNGs of 16 bits it reads as I;16, in older versions as I.
    """
    if image.mode == "I" or image.mode.startswith("I;16"):
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 0xFFFF:
            raise DataError(f"{path}: grey values from {values.min()} to {values.max()}, more than 16 bits: {REMEDY}")
        image = Image.fromarray(((values.astype(np.uint32) + 128) // 257).astype(np.uint8))
    elif image.mode == "F":
        raise DataError(f"{path}: grey values that are floats, of an unknown range: {REMEDY}")
    return image if image.mode == "RGB" else image.convert("RGB")


def _check_size(path: str, size: Tuple[int, int]) -> None:
    width, height = size
    if width * height > MAX_PIXELS:
        raise DataError(f"{path}: {width}x{height} pixels, more than the {MAX_PIXELS:,} that are decoded: {REMEDY}")


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
    except Exception as error:  # Pillow's plugins raise whatever a damage leads to, IndexError and struct.error included
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
