"""Decodes an image file to a square of a given size. Raises DataError for damaged files."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, BinaryIO, Callable, Optional, Tuple, TypeVar

import numpy as np
from PIL import Image, ImageFile, JpegImagePlugin, TiffImagePlugin, UnidentifiedImageError, WebPImagePlugin

from gluonlab.data.images.image_locations import (
    FORMAT_NAMES,
    FORMATS,
    ImageLocation,
    location_name,
    open_image_file,
    stream_size,
)
from gluonlab.data.images.resize_image import PILLOW, Box, resize_image, resize_rows
from gluonlab.data.images.turbojpeg import (
    HEADER_BYTES,
    MAX_JPEG_BYTES,
    MAX_PIXELS_FOR_PILLOW,
    decode_jpeg,
    read_plain_jpeg_size,
)
from gluonlab.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Pixels = NDArray[np.uint8]

T = TypeVar("T")

# Importing these two plugins registers their formats. Otherwise Pillow would import all plugins.
assert TiffImagePlugin and WebPImagePlugin
OPEN_FORMATS = tuple(FORMATS)
CHANNELS = 3
# 8192x8192, larger than any photograph of a data set. Decoding needs at most 400 MB.
MAX_PIXELS = 2**26
BAD_IMAGE_HINT = "replace or remove the image, or skip corrupt images with --skip-corrupt"

# random resized crops
CROP_AREA = (0.08, 1.0)  # smallest and largest share of the whole image
CROP_RATIO = (3 / 4, 4 / 3)  # width to height
CROP_ATTEMPTS = 10
# A camera stores the pixels in the order of its sensor. EXIF's orientation describes how to rotate
# or mirror them for display: a number from 1 to 8, where 1 means as stored. EXIF 2.32, section
# 4.6.4, tag 0x0112.
EXIF_ORIENTATION = 0x0112
AS_STORED = 1
TRANSPOSITIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDEWAYS = (5, 6, 7, 8)  # rows become columns
MIRRORED_COLUMNS = (2, 3, 7, 8)  # the first stored column is shown last
MIRRORED_ROWS = (3, 4, 6, 7)


def decode_image(
    location: ImageLocation, size: int, seed: Optional[int] = None, use_turbojpeg: bool = False, resizer: str = PILLOW
) -> "Pixels":
    """Decode the central square of an image, resized to (3, ``size``, ``size``).

    Grayscale becomes RGB, EXIF orientation is applied, and an alpha channel is ignored. Only the
    first frame or page is read. Pillow's warnings are not suppressed.

    Args:
        location: The image.
        size: Width and height of the result, in pixels.
        seed: If given, the seed of `random_crop_box`, whose box is decoded instead of the central
            square.
        use_turbojpeg: Whether to use the faster `gluonlab.data.images.turbojpeg` for the files that
            it supports. Both decoders produce the same pixels.
        resizer: One of RESIZERS in `gluonlab.data.images.resize_image`.

    Raises:
        DataError: The file cannot be read, is damaged, or has more than MAX_PIXELS. Images that are
            too large are rejected before memory is allocated.
    """

    def read_with_pillow(image: Image.Image) -> "Pixels":
        """Decode, crop and rotate an image that Pillow has opened."""
        if not isinstance(image, JpegImagePlugin.JpegImageFile):
            image.load()  # newer releases of Pillow then apply the orientation of a TIFF
        rotation = exif_orientation(image)
        box = stored_box(crop_box(displayed_size(image.size, rotation)), image.size, rotation)
        part = _crop_and_resize(location_name(location), size, image, box, resizer)
        return _to_planes(turn_upright(part, rotation))

    def crop_box(displayed: Tuple[int, int]) -> Box:
        """Return the box to decode: a random crop if ``seed`` is given, else the central square."""
        width, height = displayed
        if seed is not None:
            return random_crop_box(seed, width, height)
        side = min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        return (left, top, left + side, top + side)

    def read_with_turbojpeg(file: BinaryIO) -> "Optional[Pixels]":
        """Decode and crop a plain JPEG. Return None if Pillow should read the file."""
        rows = _read_with_turbojpeg(file, size, resizer)
        if rows is None:
            return None
        height, width, _ = rows.shape
        box = crop_box((width, height))
        if rows.shape[:2] == (size, size) and box == (0, 0, size, size):
            return rows[:, :, :CHANNELS].transpose(2, 0, 1)
        return _to_planes(resize_rows(rows, size, box, resizer))

    return _read_image(location, read_with_pillow, read_with_turbojpeg if use_turbojpeg else None)


def _read_with_turbojpeg(file: BinaryIO, size: int, resizer: str) -> "Optional[Pixels]":
    """Decode a plain JPEG to RGBX (height, width, 4). Return None if Pillow should read the file.

    Pillow should read damaged files, other formats, and images that it reads faster.
    """
    length = stream_size(file)
    if length is None or length > MAX_JPEG_BYTES:
        return None
    content = file.read(HEADER_BYTES)
    stored_size = read_plain_jpeg_size(content)
    # For a much larger image, Pillow is faster, because it can decode at a fraction of the size.
    if stored_size is None or min(stored_size) >= 2 * size:
        return None
    if resizer == PILLOW and stored_size[0] * stored_size[1] > MAX_PIXELS_FOR_PILLOW:
        return None
    return decode_jpeg(content + file.read(max(0, length - len(content))))


def _to_planes(image: Image.Image) -> "Pixels":
    """Convert an RGB or RGBX image to an array (3, height, width)."""
    # Copied channel by channel, because a transposed copy of np.asarray(image) takes twice as long.
    content = b"".join(image.tobytes("raw", channel) for channel in "RGB")
    return np.frombuffer(content, np.uint8).reshape(CHANNELS, image.height, image.width)


def read_short_side(location: ImageLocation) -> int:
    """Read the smaller of an image's width and height, in pixels, from the file's header.

    Raises DataError, like `decode_image`.
    """
    return _read_image(location, lambda image: min(image.size))


def _crop_and_resize(name: str, size: int, image: Image.Image, box: Box, resizer: str) -> Image.Image:
    """Return the part ``box`` of an image as an RGB square with sides of ``size`` pixels.

    ``image``: an opened image. If it is a JPEG, its pixels must not have been decoded yet.
    """
    width, height = image.size
    box_width, box_height = box[2] - box[0], box[3] - box[1]
    fraction = 1.0
    # Decode a JPEG at 1/2, 1/4 or 1/8 of its size, if the box is still large enough.
    if min(box_width, box_height) >= 2 * size:
        min_size = (math.ceil(width * size / box_width), math.ceil(height * size / box_height))
        drafted = image.draft("RGB", min_size)
        # The fraction is computed from the box that Pillow returns, because it is exact. The size
        # of the image is rounded up, so its last pixels may cover less than the others.
        fraction = drafted[1][2] / width if drafted else 1.0
    image = _convert_to_rgb(name, image)
    if image.size != (size, size) or (box_width * fraction, box_height * fraction) != (size, size):
        left, top, right, bottom = (coordinate * fraction for coordinate in box)
        part = (left, top, right, bottom)
        image = resize_image(image, size, part, resizer)
    return image


def _convert_to_rgb(name: str, image: Image.Image) -> Image.Image:
    """Convert an image in any of Pillow's modes to RGB with 8 bits per channel.

    16-bit grayscale (mode I;16, or I in older versions of Pillow) is scaled by this function,
    because Pillow's own conversion clips values above 255.
    """
    if image.mode == "I" or image.mode.startswith("I;16"):
        values = np.asarray(image)
        darkest, lightest = values.min(), values.max()
        if darkest < 0 or lightest > 0xFFFF:
            reason = f"has gray values from {darkest} to {lightest}, which need more than 16 bits"
            raise DataError(f"{name} {reason}: {BAD_IMAGE_HINT}")
        image = Image.fromarray(((values.astype(np.uint32) + 128) // 257).astype(np.uint8))
    elif image.mode == "F":
        raise DataError(f"{name} has gray values that are floats with an unknown range: {BAD_IMAGE_HINT}")
    return image if image.mode == "RGB" else image.convert("RGB")


def _read_image(
    location: ImageLocation,
    read_with_pillow: "Callable[[Image.Image], T]",
    read_fast: "Optional[Callable[[BinaryIO], Optional[T]]]" = None,
) -> T:
    """Read a file with ``read_fast`` if possible, otherwise with ``read_with_pillow``.

    ``read_fast`` may be None, or return None for a file that it does not support.

    All of Pillow's exceptions are converted to a DataError that names the file.
    """
    # Importing gluoncv sets this flag to True. Pillow would then fill truncated files with gray.
    previous, ImageFile.LOAD_TRUNCATED_IMAGES = ImageFile.LOAD_TRUNCATED_IMAGES, False
    try:
        # The file is opened here, because Pillow before 11 resolves paths, which fails for pipes.
        with open_image_file(location) as file:
            fast_result = read_fast(file) if read_fast else None
            if fast_result is not None:
                return fast_result
            with Image.open(file, formats=OPEN_FORMATS) as image:  # seeks to the start of the file
                width, height = image.size
                if width * height > MAX_PIXELS:
                    reason = f"has {width}x{height} pixels, more than the limit of {MAX_PIXELS:,} pixels"
                    raise DataError(f"{location_name(location)} {reason}: {BAD_IMAGE_HINT}")
                return read_with_pillow(image)
    except DataError:
        raise
    # Pillow's plugins raise many exceptions for damaged files, such as IndexError and struct.error
    except Exception as error:
        raise DataError(f"{location_name(location)} {_describe_error(error)}: {BAD_IMAGE_HINT}") from None
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = previous


def _describe_error(error: Exception) -> str:
    """Describe a Pillow exception for the user."""
    if isinstance(error, UnidentifiedImageError):
        return f"is not a {FORMAT_NAMES} image, or its header is damaged"
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read ({error.strerror})"
    text = " ".join(str(error).split())
    return f"is damaged ({text or type(error).__name__})"


# --- orientation


def exif_orientation(image: Image.Image) -> int:
    """Return the EXIF orientation of an opened image; 1 if it is missing or invalid."""
    try:
        value = image.getexif().get(EXIF_ORIENTATION)
    except Exception:  # damaged EXIF can raise any exception, but the pixels may be good
        return AS_STORED
    return value if isinstance(value, int) and value in TRANSPOSITIONS else AS_STORED


def displayed_size(size: Tuple[int, int], rotation: int) -> Tuple[int, int]:
    """Return the width and height of the displayed image. ``size``: the stored image's size.

    ``rotation``: the EXIF orientation of the stored image.
    """
    return (size[1], size[0]) if rotation in SIDEWAYS else size


def stored_box(box: Box, size: Tuple[int, int], rotation: int) -> Box:
    """Convert a box of the displayed image to the coordinates of the stored image.

    ``size``: width and height of the stored image. ``rotation``: the EXIF orientation of the stored
    image.

    >>> stored_box((0, 0, 10, 20), (40, 30), 6)  # the upper left, rotated clockwise
    (0, 20, 20, 30)
    """
    left, top, right, bottom = box
    width, height = size
    if rotation in SIDEWAYS:
        left, top, right, bottom = top, left, bottom, right
    if rotation in MIRRORED_COLUMNS:
        left, right = width - right, width - left
    if rotation in MIRRORED_ROWS:
        top, bottom = height - bottom, height - top
    return left, top, right, bottom


def turn_upright(image: Image.Image, rotation: int) -> Image.Image:
    """Rotate and flip a stored image, so that it is displayed upright."""
    return image if rotation == AS_STORED else image.transpose(TRANSPOSITIONS[rotation])


# --- random crops


# left, top, right and bottom in whole pixels; right and bottom are exclusive
PixelBox = Tuple[int, int, int, int]


def random_crop_box(seed: int, width: int, height: int) -> PixelBox:
    """Return the box of a random resized crop, for a ``seed`` below 2**32.

    The box has 8 % to 100 % of the image's area, and an aspect ratio from 3:4 to 4:3, whose
    logarithm is uniformly distributed. A box that does not fit inside the image is drawn again. If
    none of CROP_ATTEMPTS boxes fits, as in very long images, the result is the box of
    `central_crop_box`.

    Source: Szegedy et al., "Going deeper with convolutions", 2015, section 6; details as in
    gluon-cv and torchvision.
    """
    # NumPy guarantees that both classes return the same numbers in every version. RandomState(seed)
    # would take ten times as long.
    random = np.random.RandomState(np.random.PCG64(seed))
    for area_draw, ratio_draw, x_draw, y_draw in random.uniform(size=(CROP_ATTEMPTS, 4)):
        crop_area = width * height * (CROP_AREA[0] + area_draw * (CROP_AREA[1] - CROP_AREA[0]))
        aspect_ratio = math.exp(math.log(CROP_RATIO[0]) + ratio_draw * math.log(CROP_RATIO[1] / CROP_RATIO[0]))
        crop_width = max(1, round(math.sqrt(crop_area * aspect_ratio)))
        crop_height = max(1, round(math.sqrt(crop_area / aspect_ratio)))
        if crop_width <= width and crop_height <= height:
            left, top = (int(x_draw * (width - crop_width + 1)), int(y_draw * (height - crop_height + 1)))
            return left, top, left + crop_width, top + crop_height
    return central_crop_box(width, height)


def central_crop_box(width: int, height: int) -> PixelBox:
    """Return the largest central box with an aspect ratio within CROP_RATIO."""
    crop_width = min(width, round(height * CROP_RATIO[1]))
    crop_height = min(height, round(width / CROP_RATIO[0]))
    left, top = (width - crop_width) // 2, (height - crop_height) // 2
    return left, top, left + crop_width, top + crop_height
