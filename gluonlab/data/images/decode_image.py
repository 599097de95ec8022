"""One image -> pixels of one size; a wrong file, or part of one, is a DataError that names it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, BinaryIO, Callable, Optional, Tuple, TypeVar

import numpy as np
from PIL import (
    Image,
    ImageFile,
    JpegImagePlugin,
    TiffImagePlugin,
    UnidentifiedImageError,
    WebPImagePlugin,
)

from gluonlab.data.images.image_locations import FORMATS, NAMES, Place, name_of, opened, size_of
from gluonlab.data.images.resize_image import PILLOW, Box, resize_image, resize_rows
from gluonlab.data.images.turbojpeg import (
    HEADER_BYTES,
    MOST_BYTES,
    MOST_PIXELS_FOR_PILLOW,
    pixels,
    plain_size,
)
from gluonlab.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Pixels = NDArray[np.uint8]

T = TypeVar("T")

# importing them has made Pillow know these two; it would import all its others to look for them
assert TiffImagePlugin and WebPImagePlugin
OPENED = tuple(FORMATS)
CHANNELS = 3
# 8192x8192: more than any photograph of a data set, and 400 MB at most while it is decoded
MAX_PIXELS = 2**26
REMEDY = "replace or remove it, or leave bad images out with --skip-bad"

# random resized crops
CROP_AREA = (0.08, 1.0)  # of the whole image
CROP_RATIO = (3 / 4, 4 / 3)  # width to height
CROP_ATTEMPTS = 10
# Which way up an image is: a camera stores what its sensor saw, and EXIF says how to turn it.
# EXIF 2.32, section 4.6.4, tag 0x0112: from 1 to 8, where 1 is as stored.
EXIF_ORIENTATION = 0x0112
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


def decode(
    place: Place,
    size: int,
    seed: Optional[int] = None,
    quick: bool = False,
    resizer: str = PILLOW,
) -> "Pixels":
    """The image as (3, ``size``, ``size``): its central square, resized; grey becomes colour.

    It is turned as its EXIF says; of several frames or pages it is the first, and what is
    transparent has the colour that is stored. With a ``seed`` it is what
    `random_box` cuts out, resized. ``quick``: whether
    `gluonlab.data.images.turbojpeg` decodes what it can, to the same pixels. ``resizer``: one of
    `gluonlab.data.images.resize_image`. Raises DataError for a file that cannot be read, that has
    none
    of FORMATS, that is damaged or cut off, and for one whose header promises more than MAX_PIXELS,
    before memory is taken for them. Whether Pillow's warnings are shown is up to who calls it.
    """

    def read(image: Image.Image) -> "Pixels":
        if not isinstance(image, JpegImagePlugin.JpegImageFile):
            image.load()  # a TIFF is turned by newer releases of Pillow, and not by older ones
        turned = orientation(image)
        box = stored_box(box_of(shown_size(image.size, turned)), image.size, turned)
        part = _part(name_of(place), size, image, box, resizer)
        return _planes(upright(part, turned))

    def box_of(shown: Tuple[int, int]) -> Box:
        width, height = shown
        if seed is not None:
            return random_box(seed, width, height)
        side = min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        return (left, top, left + side, top + side)

    def quickly(file: BinaryIO) -> "Optional[Pixels]":
        rows = _quick_rows(file, size, resizer)
        if rows is None:
            return None
        height, width, _ = rows.shape
        box = box_of((width, height))
        if rows.shape[:2] == (size, size) and box == (0, 0, size, size):
            return rows[:, :, :CHANNELS].transpose(2, 0, 1)
        return _planes(resize_rows(rows, size, box, resizer))

    return _open(place, read, quickly if quick else None)


def _quick_rows(file: BinaryIO, size: int, resizer: str) -> "Optional[Pixels]":
    """A plain JPEG as (height, width, 4); None for any other file, a wrong one included."""
    length = size_of(file)
    if length is None or length > MOST_BYTES:
        return None
    content = file.read(HEADER_BYTES)
    stored = plain_size(content)
    # a larger one is decoded at a fraction of its size
    if stored is None or min(stored) >= 2 * size:
        return None
    if resizer == PILLOW and stored[0] * stored[1] > MOST_PIXELS_FOR_PILLOW:
        return None
    return pixels(content + file.read(max(0, length - len(content))))


def _planes(image: Image.Image) -> "Pixels":
    """The colours of an RGB or RGBX image, one after the other: (3, height, width)."""
    # each from its bytes, since a transposed copy of np.asarray(image) takes twice as long
    content = b"".join(image.tobytes("raw", colour) for colour in "RGB")
    return np.frombuffer(content, np.uint8).reshape(CHANNELS, image.height, image.width)


def short_side(place: Place) -> int:
    """The smaller of width and height, from the file's header.

    Raises DataError as `decode` does.
    """
    return _open(place, lambda image: min(image.size))


def _part(name: str, size: int, image: Image.Image, box: Box, resizer: str) -> Image.Image:
    """What is in the ``box``, as a square in colour. A JPEG is not decoded yet."""
    width, height = image.size
    across, down = box[2] - box[0], box[3] - box[1]
    fraction = 1.0
    # a JPEG is decoded at 1/2, 1/4 or 1/8 where the box is still large enough
    if min(across, down) >= 2 * size:
        least = (math.ceil(width * size / across), math.ceil(height * size / down))
        drafted = image.draft("RGB", least)
        # of Pillow's box, which is exact: the size is rounded up, and the last pixels may show less
        # than the others
        fraction = drafted[1][2] / width if drafted else 1.0
    image = _as_rgb(name, image)
    if image.size != (size, size) or (across * fraction, down * fraction) != (size, size):
        left, top, right, bottom = (place * fraction for place in box)
        part = (left, top, right, bottom)
        image = resize_image(image, size, part, resizer)
    return image


def _as_rgb(name: str, image: Image.Image) -> Image.Image:
    """An image of any of Pillow's modes in red, green and blue of 8 bits each.

    Pillow's own conversion takes what is more than 255 for 255. Grey of 16 bits it reads as I;16,
    in older versions as I.
    """
    if image.mode == "I" or image.mode.startswith("I;16"):
        values = np.asarray(image)
        darkest, lightest = values.min(), values.max()
        if darkest < 0 or lightest > 0xFFFF:
            what = f"grey values from {darkest} to {lightest}, more than 16 bits"
            raise DataError(f"{name}: {what}: {REMEDY}")
        image = Image.fromarray(((values.astype(np.uint32) + 128) // 257).astype(np.uint8))
    elif image.mode == "F":
        raise DataError(f"{name}: grey values are floats of unknown range: {REMEDY}")
    return image if image.mode == "RGB" else image.convert("RGB")


def _open(
    place: Place,
    read: "Callable[[Image.Image], T]",
    quickly: "Optional[Callable[[BinaryIO], Optional[T]]]" = None,
) -> T:
    """What ``quickly`` makes of the file, or else ``read`` of the image that Pillow finds in it.

    Whatever Pillow raises becomes a DataError that names it.
    """
    # gluoncv, once it is imported, has Pillow fill up cut files with grey, in the whole process
    before, ImageFile.LOAD_TRUNCATED_IMAGES = ImageFile.LOAD_TRUNCATED_IMAGES, False
    try:
        # Pillow's own opening, before 11, asks for the real path, which a pipe's content has not
        with opened(place) as file:
            found = quickly(file) if quickly else None
            if found is not None:
                return found
            with Image.open(file, formats=OPENED) as image:  # from the file's beginning
                width, height = image.size
                if width * height > MAX_PIXELS:
                    what = f"{width}x{height} pixels, more than the limit of {MAX_PIXELS:,}"
                    raise DataError(f"{name_of(place)}: {what}: {REMEDY}")
                return read(image)
    except DataError:
        raise
    # Pillow's plugins raise whatever a damage leads to, IndexError and struct.error included
    except Exception as error:
        raise DataError(f"{name_of(place)}: {_what(error)}: {REMEDY}") from None
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before


def _what(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return f"not a {NAMES}, or its header is damaged"
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read ({error.strerror})"
    text = " ".join(str(error).split())
    return f"damaged ({text or type(error).__name__})"


# --- orientation


def orientation(image: Image.Image) -> int:
    """What EXIF says of an image that has been opened; 1 where it says nothing, or nonsense."""
    try:
        found = image.getexif().get(EXIF_ORIENTATION)
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


# --- random crops


# left, top, right and bottom in whole pixels; right and bottom are the first outside
PixelBox = Tuple[int, int, int, int]


def random_box(seed: int, width: int, height: int) -> PixelBox:
    """What a random resized crop cuts out of an image, from the ``seed`` (below 2**32) alone.

    Szegedy et al., "Going deeper with convolutions", 2015, section 6: 8 % to 100 % of the area,
    sides of 3:4 to 4:3. As in gluon-cv and torchvision, the ratio of the sides is drawn evenly in
    its logarithm, and what does not fit into the image is drawn again.

    Where none of CROP_ATTEMPTS fits, as in very long images, the largest in the middle whose sides
    are within CROP_RATIO.
    """
    # both frozen by numpy, and a tenth of the cost of RandomState(seed)
    random = np.random.RandomState(np.random.PCG64(seed))
    for area, ratio, across, down in random.uniform(size=(CROP_ATTEMPTS, 4)):
        wanted = width * height * (CROP_AREA[0] + area * (CROP_AREA[1] - CROP_AREA[0]))
        sides = math.exp(math.log(CROP_RATIO[0]) + ratio * math.log(CROP_RATIO[1] / CROP_RATIO[0]))
        wide = max(1, round(math.sqrt(wanted * sides)))
        high = max(1, round(math.sqrt(wanted / sides)))
        if wide <= width and high <= height:
            left, top = int(across * (width - wide + 1)), int(down * (height - high + 1))
            return left, top, left + wide, top + high
    return middle_box(width, height)


def middle_box(width: int, height: int) -> PixelBox:
    """The largest box in the middle of an image whose sides are within CROP_RATIO."""
    wide = min(width, round(height * CROP_RATIO[1]))
    high = min(height, round(width / CROP_RATIO[0]))
    left, top = (width - wide) // 2, (height - high) // 2
    return left, top, left + wide, top + high
