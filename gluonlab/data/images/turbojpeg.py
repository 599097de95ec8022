"""Plain JPEGs decoded by libjpeg-turbo itself, through simplejpeg: Pillow's pixels, sooner.

Of an image of 64x64, Pillow spends four fifths of its time around the decoding: it looks for a
plugin, reads the header in Python, and copies. Anything but a plain file is left to Pillow, such as
one with EXIF, in CMYK, or with the least damage. Whether both give the same pixels here is tried
once in a process (`agrees`).
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
except ImportError:  # then all is Pillow's: the same pixels, later
    simplejpeg = None

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.uint8]

START = b"\xff\xd8\xff"
MOST_PIXELS = 2**19  # 800x600 and some more
# 128x128; Pillow resizes larger ones sooner if it has decoded them itself
MOST_PIXELS_FOR_PILLOW = 2**14
MOST_BYTES = 2**21  # of such a file
HEADER_BYTES = 2**12  # in which its first scan begins; a buffer for all of it would cost more
FRAMES = (0xC0, 0xC1, 0xC2)  # baseline, extended, progressive; coded by Huffman
SCAN = 0xDA
# tables, restart intervals, comments: Pillow makes nothing of what they hold
SKIPPED = (0xDB, 0xC4, 0xDD, 0xFE)
JFIF, COLOUR_PROFILE = (0xE0, b"JFIF\0", 14), (0xE2, b"ICC_PROFILE\0", 14)
KNOWN = (JFIF, COLOUR_PROFILE)  # marker, how it begins, its least length
PLAIN = (1, 3)  # components: grey, and YCbCr


def plain_size(content: bytes) -> Optional[Tuple[int, int]]:
    """Width and height of a JPEG that `pixels` decodes, from its header; None for any other."""
    if not content.startswith(START):
        return None
    size, place = None, 2
    while place + 4 <= len(content) and content[place] == 0xFF:
        marker, length = content[place + 1], int.from_bytes(content[place + 2 : place + 4], "big")
        body = place + 4
        if marker == SCAN:
            return size
        if marker in FRAMES:
            if size is not None or length < 8 or len(content) < body + 6 or content[body] != 8:
                return None
            height, width = (content[at] << 8 | content[at + 1] for at in (body + 1, body + 3))
            if content[body + 5] not in PLAIN or not 0 < width * height <= MOST_PIXELS:
                return None
            size = width, height
        elif marker not in SKIPPED and not any(
            marker == known and length >= least + 2 and content.startswith(begins, body)
            for known, begins, least in KNOWN
        ):
            return None
        place += 2 + length
    return None


def pixels(content: bytes) -> "Optional[Rows]":
    """RGBX (height, width, 4) of a JPEG with a `plain_size`; None where its data are damaged."""
    try:
        found: "Rows" = simplejpeg.decode_jpeg(content, "RGBX")
    except ValueError:  # also for what libjpeg would only warn of
        return None
    return found


@lru_cache(maxsize=None)
def agrees() -> bool:
    """Whether `pixels` is here and gives what Pillow gives; one warning where it differs."""
    if simplejpeg is None:
        return False
    if all(map(_same, _examples())):
        return True
    warn(
        "simplejpeg decodes JPEGs to other pixels than Pillow, and is not used: "
        "install simplejpeg and Pillow anew"
    )
    return False


def _same(content: bytes) -> bool:
    with Image.open(io.BytesIO(content)) as image:
        wanted = np.asarray(image.convert("RGB"))
    found = pixels(content)
    if found is None or plain_size(content) is None:
        return False
    return np.array_equal(found[:, :, :3], wanted)


def _examples() -> "Tuple[bytes, ...]":
    """JPEGs of every subsampling, of grey and progressive, whose sides are no multiples of 8."""
    noise = np.random.RandomState(0).randint(0, 256, (29, 43, 3)).astype(np.uint8)
    colour = Image.fromarray(noise).resize((86, 58), Image.Resampling.BICUBIC)
    made = []
    for subsampling in (0, 1, 2):
        for progressive in (False, True):
            for image in (colour, colour.convert("L")):
                file = io.BytesIO()
                options = {"subsampling": subsampling, "progressive": progressive}
                image.save(file, "JPEG", quality=85, **options)
                made.append(file.getvalue())
    return tuple(made)
