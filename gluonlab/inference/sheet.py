"""A contact sheet: pictures in rows, each with words below it, as one PNG."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, List, NamedTuple, Sequence, Tuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from gluonlab.drawing.live import import_matplotlib
from gluonlab.files.whole import new_file, new_or_marked_file
from gluonlab.plain import printable

if TYPE_CHECKING:
    from gluonlab.data.sets.dataset import Images

MOST = 400  # pictures; more would be seen by nobody
ABOUT = ("Software", "gluonlab.predict")  # what the PNG says of itself
MARK = "\0".join(ABOUT).encode()
SIDE, GAP, LINE, MARGIN = 112, 12, 17, 16  # pixels
TEXT, TITLE = 12, 15  # height of letters
BLACK, GREY, GREEN, RED = (34, 34, 34), (110, 110, 110), (0, 110, 60), (180, 30, 30)
Colour = Tuple[int, int, int]


class Tile(NamedTuple):
    """``pixels`` (C, H, W) of 0 to 255, and lines of text in colours."""

    pixels: "Images"
    lines: Sequence[Tuple[str, Colour]]


def write_sheet(
    option: str, path: Path, title: str, tiles: Sequence[Tile], replace: bool = False
) -> None:
    """Draw at most MOST pictures into a new PNG. Raises OutputError.

    ``replace``: an earlier one of these may be there.
    """
    about = PngInfo()
    about.add_text(*ABOUT)
    new = new_or_marked_file(option, path, MARK) if replace else new_file(option, path)
    with new as temporary:
        draw_sheet(title, tiles[:MOST]).save(temporary, "PNG", pnginfo=about)


def draw_sheet(title: str, tiles: Sequence[Tile]) -> Image.Image:
    """The title, and below it the pictures in rows, nearly as wide as high."""
    text, large = _font(TEXT), _font(TITLE)
    lines = max(len(tile.lines) for tile in tiles)
    across, down = SIDE + GAP, SIDE + LINE * lines + GAP
    columns = min(len(tiles), max(4, math.ceil(math.sqrt(len(tiles) * down / across * 1.3))))
    rows, top = -(-len(tiles) // columns), MARGIN + 2 * LINE
    title = printable(title)
    wide = max(columns * across - GAP, math.ceil(large.getlength(title)))
    sheet = Image.new("RGB", (2 * MARGIN + wide, top + rows * down - GAP + MARGIN), "white")
    draw = ImageDraw.Draw(sheet)
    draw.text((MARGIN, MARGIN), title, BLACK, large)
    for place, tile in enumerate(tiles):
        left, upper = MARGIN + place % columns * across, top + place // columns * down
        picture = as_picture(tile.pixels)
        inset = ((SIDE - picture.width) // 2, (SIDE - picture.height) // 2)
        sheet.paste(picture, (left + inset[0], upper + inset[1]))
        for number, (words, colour) in enumerate(tile.lines):
            place_of = (left, upper + SIDE + 2 + number * LINE)
            draw.text(place_of, _fitting(printable(words), text), colour, text)
    return sheet


def as_picture(pixels: "Images") -> Image.Image:
    """Pixels (C, H, W), at most SIDE high and wide; small ones by whole factors, to be seen."""
    channels = pixels if len(pixels) in (1, 3) else pixels[:1]
    channels = np.clip(np.rint(channels), 0, 255).astype(np.uint8)  # floats may be normalized
    image = Image.fromarray(np.ascontiguousarray(channels.transpose(1, 2, 0)).squeeze())
    image = image.convert("RGB")
    largest = max(image.size)
    if largest <= SIDE:
        factor = SIDE // largest
        return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    return image


def _font(size: int) -> Any:
    # matplotlib's font has most alphabets; Pillow's own has Latin letters alone
    path = os.path.join(import_matplotlib().get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")
    return ImageFont.truetype(path, size)


def _fitting(words: str, font: Any) -> str:
    """The words, cut where they are wider than a picture."""
    if font.getlength(words) <= SIDE:
        return words
    kept: List[str] = []
    for letter in words:
        if font.getlength("".join([*kept, letter, "…"])) > SIDE:
            break
        kept.append(letter)
    return "".join([*kept, "…"])
