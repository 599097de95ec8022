"""Resizes a part of an image to a square, with Pillow or cykooz.resizer.

Both libraries use the filter that Pillow calls bilinear. Each new pixel is a weighted mean of the
old pixels around it. If the image gets smaller, the mean covers a wider area. cykooz.resizer uses
vector instructions and takes less than a third of Pillow's time. cykooz.resizer produces the same
pixels on every CPU, in every release from 3.0 to 4.0.

The pixels of the two libraries differ slightly, for two reasons:

- Images are resized in two steps, horizontally and vertically, and pixels are rounded after each
  step. cykooz.resizer always starts with the horizontal step. Pillow 12 and later start with the
  step that leaves less work for the other step. If Pillow starts with the vertical step (for a
  third of all boxes), a quarter of the pixels differ by 1 (out of 255).
- For the other boxes, three pixels in a thousand differ, because weights have 16 bits in
  cykooz.resizer and 22 bits in Pillow.
"""

from __future__ import annotations

import math
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Optional, Tuple

import numpy as np
from PIL import Image

from gluonlab.engine.mxnet_and_cuda_libraries import needs_arm_libraries
from gluonlab.errors import DataError, warn

cykooz: Any = None  # not available on Linux on ARM, for which the package has no wheels
# Releases before 4.0, which are for Python 3.8 and 3.9, have another module name.
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
MAX_DIFFERENCE = 2  # of 255, between the two libraries; more than 1 is extremely rare
PIXEL_BYTES = 4  # red, green, blue and an ignored byte: the fastest format in both libraries


def resize_image(image: Image.Image, size: int, box: Box, resizer: str) -> Image.Image:
    """Resize the part ``box`` of an RGB image to a square.

    Args:
        image: An image in mode RGB.
        size: Width and height of the result, in pixels.
        box: Left, top, right and bottom, inside the image; fractions are allowed. As in Pillow,
            pixels just outside the box also affect the result at its edges.
        resizer: One of RESIZERS.

    Returns:
        The resized image, in mode RGB or RGBX.
    """
    if resizer == PILLOW:
        return image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    return _resize_with_cykooz(image.tobytes("raw", "RGBX"), image.size, size, box)


def resize_rows(rows: "Rows", size: int, box: Box, resizer: str) -> Image.Image:
    """Resize the part ``box`` of RGBX pixels (height, width, 4), like `resize_image`."""
    height, width, _ = rows.shape
    if resizer == PILLOW:
        image = Image.frombuffer("RGB", (width, height), rows, "raw", "RGBX", 0, 1)
        return resize_image(image, size, box, PILLOW)
    return _resize_with_cykooz(rows.tobytes(), (width, height), size, box)


def _resize_with_cykooz(content: bytes, shape: Tuple[int, int], size: int, box: Box) -> Image.Image:
    """Resize the part ``box`` of RGBX bytes with cykooz.resizer. ``shape``: width and height."""
    width, height = shape
    left, top, right, bottom = box
    # Only the rows that the filter reads are copied.
    margin = max(1.0, (bottom - top) / size)
    first, last = max(0, math.floor(top - margin)), min(height, math.ceil(bottom + margin))
    stride = PIXEL_BYTES * width
    source = _new_image_data(width, last - first, content[first * stride : last * stride])
    # Two calls, because a single call would resize down first, with slightly different pixels.
    across, resized = _new_image_data(size, last - first), _new_image_data(size, size)
    resizer = cykooz.Resizer()
    resizer.resize(source, across, _resize_options(left, 0, right - left, last - first))
    resizer.resize(across, resized, _resize_options(0, top - first, size, bottom - top))
    return Image.frombuffer("RGBX", (size, size), resized.get_buffer(), "raw", "RGBX", 0, 1)


def _new_image_data(width: int, height: int, content: Optional[bytes] = None) -> Any:
    return cykooz.ImageData(width, height, cykooz.PixelType.U8x4, content)


def _resize_options(left: float, top: float, width: float, height: float) -> Any:
    """Return cykooz's options for bilinear resizing of a box."""
    bilinear = cykooz.ResizeAlg.convolution(cykooz.FilterType.bilinear)
    part = cykooz.CropBox(left, top, width, height)
    # the fourth byte is not an alpha channel
    return cykooz.ResizeOptions(resize_alg=bilinear, crop_box=part, use_alpha=False)


def resolve_resizer(requested: Optional[str]) -> str:
    """Return the requested resizer, or the result of `default_resizer` if none is requested.

    Raises:
        DataError: The resizer is not installed, or not one of RESIZERS.
    """
    if requested is None or requested == default_resizer():
        return default_resizer()
    if requested not in RESIZERS:
        raise DataError(f"--resizer {requested}: choose {CYKOOZ} or {PILLOW}")
    if requested == CYKOOZ:
        reason = "is not installed: run pip install cykooz.resizer, or"
        if needs_arm_libraries():  # Linux on ARM
            reason = "has no wheels for Linux on ARM:"
        raise DataError(f"--resizer cykooz requires the package cykooz.resizer, which {reason} choose --resizer pillow")
    return requested


@lru_cache(maxsize=None)
def default_resizer() -> str:
    """Return cykooz if it is installed, otherwise pillow.

    If the pixels of the two resizers differ by more than MAX_DIFFERENCE, warn once and return
    pillow.
    """
    if cykooz is None:
        return PILLOW
    if _largest_resizer_difference() <= MAX_DIFFERENCE:
        return CYKOOZ
    warn("cykooz.resizer and Pillow produce different pixels, so cykooz.resizer is not used: install both again")
    return PILLOW


def _largest_resizer_difference() -> int:
    """Resize noise with Pillow and cykooz.

    Return the largest difference between values (0 to 255).
    """
    rows = np.random.RandomState(0).randint(0, 256, (61, 47, PIXEL_BYTES)).astype(np.uint8)
    largest = 0
    for size, box in ((40, (0, 7, 47, 54)), (16, (0.5, 1, 44.5, 58)), (64, (9, 11, 40, 31))):
        first, second = (np.asarray(resize_rows(rows, size, box, resizer)).astype(int)[..., :3] for resizer in RESIZERS)
        largest = max(largest, int(np.abs(first - second).max()))
    return largest
