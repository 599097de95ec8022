"""Decodes plain JPEGs to the same pixels as Pillow, but faster, with libjpeg-turbo (simplejpeg).

Pillow is slow for small images. For 64x64 pixels, Pillow spends four fifths of the time outside the
decoder: searching for a plugin, reading the header in Python, and copying. Pillow decodes all files
that are not plain JPEGs, such as damaged files and JPEGs with EXIF or CMYK. `matches_pillow` checks
once per process that the pixels are the same.
"""

from __future__ import annotations

import io
from functools import lru_cache
from typing import TYPE_CHECKING, Optional, Tuple

import numpy as np
from PIL import Image

from gluonlab.errors import warn

try:
    import simplejpeg
except ImportError:  # Pillow decodes all images then
    simplejpeg = None

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.uint8]

JPEG_START = b"\xff\xd8\xff"
MAX_JPEG_PIXELS = 2**19  # a little more than 800x600
# 128x128. If Pillow resizes a larger image, it is faster to decode the image with Pillow, too.
MAX_PIXELS_FOR_PILLOW = 2**14
MAX_JPEG_BYTES = 2**21
HEADER_BYTES = 2**12  # the first scan starts within them; reading the whole file would be slower
FRAMES = (0xC0, 0xC1, 0xC2)  # markers: baseline, extended and progressive, all with Huffman coding
SCAN_MARKER = 0xDA
# markers of tables, restart intervals and comments, which do not change how Pillow reads the image
SKIPPED_SEGMENTS = (0xDB, 0xC4, 0xDD, 0xFE)
JFIF, COLOR_PROFILE = (0xE0, b"JFIF\0", 14), (0xE2, b"ICC_PROFILE\0", 14)
KNOWN_SEGMENTS = (JFIF, COLOR_PROFILE)  # marker, first bytes, minimum length
COMPONENT_COUNTS = (1, 3)  # grayscale, and YCbCr


def read_plain_jpeg_size(content: bytes) -> Optional[Tuple[int, int]]:
    """Return the width and height of a JPEG that `decode_jpeg` supports; None for other files."""
    if not content.startswith(JPEG_START):
        return None
    size, position = None, 2
    while position + 4 <= len(content) and content[position] == 0xFF:
        marker, length = (content[position + 1], int.from_bytes(content[position + 2 : position + 4], "big"))
        segment = position + 4
        if marker == SCAN_MARKER:
            return size
        if marker in FRAMES:
            if size is not None or length < 8 or len(content) < segment + 6 or content[segment] != 8:
                return None
            height, width = (content[offset] << 8 | content[offset + 1] for offset in (segment + 1, segment + 3))
            if content[segment + 5] not in COMPONENT_COUNTS or not 0 < width * height <= MAX_JPEG_PIXELS:
                return None
            size = width, height
        elif marker not in SKIPPED_SEGMENTS and not any(
            marker == known_marker and length >= min_length + 2 and content.startswith(prefix, segment)
            for known_marker, prefix, min_length in KNOWN_SEGMENTS
        ):
            return None
        position += 2 + length
    return None


def decode_jpeg(content: bytes) -> "Optional[Rows]":
    """Decode a plain JPEG to RGBX (height, width, 4). Return None if the data are damaged."""
    try:
        rows: "Rows" = simplejpeg.decode_jpeg(content, "RGBX")
    except ValueError:  # also for damage of which libjpeg only warns
        return None
    return rows


@lru_cache(maxsize=None)
def matches_pillow() -> bool:
    """Return whether simplejpeg is installed and produces the same pixels as Pillow.

    Warns once if the pixels differ.
    """
    if simplejpeg is None:
        return False
    if all(map(_decodes_like_pillow, _example_jpegs())):
        return True
    warn("simplejpeg and Pillow produce different pixels, so simplejpeg is not used: install both again")
    return False


def _decodes_like_pillow(content: bytes) -> bool:
    """Return whether `decode_jpeg` can decode a JPEG and produces the same pixels as Pillow."""
    with Image.open(io.BytesIO(content)) as image:
        expected = np.asarray(image.convert("RGB"))
    rows = decode_jpeg(content)
    if rows is None or read_plain_jpeg_size(content) is None:
        return False
    return np.array_equal(rows[:, :, :3], expected)


def _example_jpegs() -> "Tuple[bytes, ...]":
    """Return small JPEGs in color and gray, baseline and progressive, with each subsampling.

    The images' sides are not multiples of 8.
    """
    noise = np.random.RandomState(0).randint(0, 256, (29, 43, 3)).astype(np.uint8)
    image_in_color = Image.fromarray(noise).resize((86, 58), Image.Resampling.BICUBIC)
    examples = []
    for subsampling in (0, 1, 2):
        for progressive in (False, True):
            for image in (image_in_color, image_in_color.convert("L")):
                file = io.BytesIO()
                options = {"subsampling": subsampling, "progressive": progressive}
                image.save(file, "JPEG", quality=85, **options)
                examples.append(file.getvalue())
    return tuple(examples)
