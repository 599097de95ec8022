"""The formats of image files that are read, and how the names of such files end.

Of what Pillow knows, those that data sets come in. Not those that run a program to be drawn (EPS),
nor those that only some builds of Pillow read, so that a folder is the same everywhere.
"""

from __future__ import annotations

FORMATS = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png",),
    "WEBP": (".webp",),
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "TIFF": (".tif", ".tiff"),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
}
SUFFIXES = tuple(suffix for suffixes in FORMATS.values() for suffix in suffixes)
ENDINGS = ", ".join(suffixes[0] for suffixes in FORMATS.values())  # one for each, for messages
NAMES = "JPEG, PNG, WebP, BMP, GIF, TIFF or PPM"


def is_image_name(name: str) -> bool:
    """Whether a file of this name is taken for an image.

    >>> is_image_name("IMG_0001.JPG"), is_image_name("Thumbs.db")
    (True, False)
    """
    return name.lower().endswith(SUFFIXES)
