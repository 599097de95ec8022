"""Resizing a part of an image, by Pillow or by cykooz.resizer.

Both apply the filter that Pillow calls bilinear: each new pixel is a weighted mean of the old ones
around it, over a wider area where the image gets smaller. cykooz.resizer uses the CPU's vector
instructions and needs less than a third of Pillow's time. Its pixels are the same on every CPU and
in every release from 3.0 to 4.0.

Pixels are rounded twice, after they have been resized across and after they have been resized down.
Here the first step is always across, as in Pillow before 12. Pillow 12 and later start with the
step that leaves less work for the second, so that in a third of all boxes a quarter of the pixels
differ by one of 255. Otherwise three pixels in a thousand do, since the weights have 16 bits, and
Pillow's 22.
"""

from __future__ import annotations

import math
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Optional, Tuple

import numpy as np
from PIL import Image

from gluonlab.errors import DataError, warn

cykooz: Any = None  # there are no wheels for Linux on ARM
# before 4.0, for Python 3.8 and 3.9, the package has another name
for name in ("cykooz_resizer", "cykooz.resizer"):
    with suppress(ImportError):
        cykooz = import_module(name)
        break

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.uint8]

Box = Tuple[float, float, float, float]  # left, top, right, bottom

PILLOW, CYKOOZ = "pillow", "cykooz"
RESIZERS = (PILLOW, CYKOOZ)
MOST_DIFFERENCE = 2  # of 255, between the two; more than 1 is one value in a hundred million
PIXEL_BYTES = 4  # red, green, blue and one that is ignored: what libraries are fastest with


def resize_image(image: Image.Image, size: int, box: Box, resizer: str) -> Image.Image:
    """Resize the ``box`` of an RGB image to a square.

    Args:
        image: an image of mode RGB.
        size: width and height of the result.
        box: left, top, right and bottom, inside the image; may be fractions. As in Pillow, pixels
            next to the box count at its edges.
        resizer: one of RESIZERS.

    Returns:
        An image of mode RGB or RGBX.
    """
    if resizer == PILLOW:
        return image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    return _by_cykooz(image.tobytes("raw", "RGBX"), image.size, size, box)


def resize_rows(rows: "Rows", size: int, box: Box, resizer: str) -> Image.Image:
    """Resize as `resize_image` does, from an array (height, width, 4) of RGBX."""
    height, width, _ = rows.shape
    if resizer == PILLOW:
        image = Image.frombuffer("RGB", (width, height), rows, "raw", "RGBX", 0, 1)
        return resize_image(image, size, box, PILLOW)
    return _by_cykooz(rows.tobytes(), (width, height), size, box)


def _by_cykooz(content: bytes, shape: Tuple[int, int], size: int, box: Box) -> Image.Image:
    width, height = shape
    left, top, right, bottom = box
    # the rows that the filter reads
    reach = max(1.0, (bottom - top) / size)
    first, last = max(0, math.floor(top - reach)), min(height, math.ceil(bottom + reach))
    stride = PIXEL_BYTES * width
    source = _new(width, last - first, content[first * stride : last * stride])
    # asked for both at once, cykooz.resizer resizes down first
    across, made = _new(size, last - first), _new(size, size)
    resizer = cykooz.Resizer()
    resizer.resize(source, across, _options(left, 0, right - left, last - first))
    resizer.resize(across, made, _options(0, top - first, size, bottom - top))
    return Image.frombuffer("RGBX", (size, size), made.get_buffer(), "raw", "RGBX", 0, 1)


def _new(width: int, height: int, content: Optional[bytes] = None) -> Any:
    return cykooz.ImageData(width, height, cykooz.PixelType.U8x4, content)


def _options(left: float, top: float, width: float, height: float) -> Any:
    bilinear = cykooz.ResizeAlg.convolution(cykooz.FilterType.bilinear)
    part = cykooz.CropBox(left, top, width, height)
    # the fourth byte is no transparency
    return cykooz.ResizeOptions(resize_alg=bilinear, crop_box=part, use_alpha=False)


def resolve_resizer(asked: Optional[str]) -> str:
    """Return the resizer that was asked for, or else `usual_resizer`.

    Raises:
        DataError: it is not installed, or not one of RESIZERS.
    """
    if asked is None or asked == usual_resizer():
        return usual_resizer()
    if asked not in RESIZERS:
        raise DataError(f"--resizer {asked}: give {CYKOOZ} or {PILLOW}")
    if asked == CYKOOZ:
        raise DataError(
            "--resizer cykooz needs the package cykooz.resizer, which is not installed: "
            "pip install cykooz.resizer, or choose --resizer pillow"
        )
    return asked


@lru_cache(maxsize=None)
def usual_resizer() -> str:
    """Return cykooz where it is installed, else pillow.

    Warns once, and returns pillow, if their pixels differ by more than MOST_DIFFERENCE.
    """
    if cykooz is None:
        return PILLOW
    if _largest_difference() <= MOST_DIFFERENCE:
        return CYKOOZ
    warn(
        "cykooz.resizer resizes images to other pixels than Pillow, and is not used: "
        "install cykooz.resizer and Pillow again"
    )
    return PILLOW


def _largest_difference() -> int:
    """The largest difference between both in noise that gets smaller, and larger."""
    rows = np.random.RandomState(0).randint(0, 256, (61, 47, PIXEL_BYTES)).astype(np.uint8)
    found = 0
    for size, box in ((40, (0, 7, 47, 54)), (16, (0.5, 1, 44.5, 58)), (64, (9, 11, 40, 31))):
        one, other = (
            np.asarray(resize_rows(rows, size, box, each)).astype(int)[..., :3] for each in RESIZERS
        )
        found = max(found, int(np.abs(one - other).max()))
    return found
