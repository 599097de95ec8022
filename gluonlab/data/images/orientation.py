"""Which way up an image is: a camera stores what its sensor saw, and EXIF says how to turn it.

EXIF 2.32, section 4.6.4, tag 0x0112: from 1 to 8, where 1 is as stored.
"""

from __future__ import annotations

from typing import Tuple

from PIL import Image

Box = Tuple[float, float, float, float]  # left, top, right, bottom

TAG = 0x0112
AS_STORED = 1
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDEWAYS = (5, 6, 7, 8)  # rows are shown as columns
FROM_RIGHT = (2, 3, 7, 8)  # the stored rows begin at the end
FROM_BELOW = (3, 4, 6, 7)


def orientation(image: Image.Image) -> int:
    """What EXIF says of an image that has been opened; 1 where it says nothing, or nonsense."""
    try:
        found = image.getexif().get(TAG)
    except Exception:  # Pillow raises what the damage leads to, and the pixels may be good
        return AS_STORED
    return found if isinstance(found, int) and found in TURNS else AS_STORED


def shown_size(size: Tuple[int, int], turned: int) -> Tuple[int, int]:
    """Width and height as shown of an image that is stored in ``size``."""
    return (size[1], size[0]) if turned in SIDEWAYS else size


def stored_box(box: Box, size: Tuple[int, int], turned: int) -> Box:
    """Where a part of the image as shown lies in the image as stored in ``size``.

    >>> stored_box((0, 0, 10, 20), (40, 30), 6)  # the upper left, turned to the right
    (0, 20, 20, 30)
    """
    left, top, right, bottom = box
    width, height = size
    if turned in SIDEWAYS:
        left, top, right, bottom = top, left, bottom, right
    if turned in FROM_RIGHT:
        left, right = width - right, width - left
    if turned in FROM_BELOW:
        top, bottom = height - bottom, height - top
    return left, top, right, bottom


def upright(image: Image.Image, turned: int) -> Image.Image:
    """The image as shown."""
    return image if turned == AS_STORED else image.transpose(TURNS[turned])
