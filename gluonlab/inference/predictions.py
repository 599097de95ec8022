"""What a network says of pictures: classes and probabilities, in numpy.

As a table, as JSON and as CSV; and as a contact sheet: pictures in rows, each with words below it,
as one PNG.
"""

from __future__ import annotations

import csv
import io
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from gluonlab.config.option_types import is_positive_integer
from gluonlab.drawing.matplotlib_figures import import_matplotlib
from gluonlab.errors import DataError
from gluonlab.files.atomic_files import new_file, new_or_marked_file
from gluonlab.plain_text import column_width, escape_unprintable, pad_to_columns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gluonlab.data.sets.dataset import Images

    Numbers = NDArray[Any]


class ClassProbability(NamedTuple):
    """A class, and the probability that the network gives it."""

    name: str
    probability: float


@dataclass(frozen=True)
class Predictions:
    """What a network says of n images: ``scores`` (n, classes), float32, in the classes' order.

    ``images``: their names.
    """

    classes: Tuple[str, ...]
    images: Tuple[str, ...]
    scores: "Numbers"

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def probabilities(self) -> "Numbers":
        """(n, classes) float64: the softmax of the scores."""
        scores = self.scores.astype(np.float64)
        parts = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(parts / parts.sum(axis=1, keepdims=True))

    @property
    def labels(self) -> "Numbers":
        """(n,): the position of the best class; of equal ones the first, as in an evaluation."""
        return np.asarray(self.scores.argmax(axis=1))

    @property
    def names(self) -> List[str]:
        """The best class of each image."""
        return [self.classes[label] for label in self.labels]

    def top(self, count: int = 5) -> List[List[ClassProbability]]:
        """The ``count`` best classes of each image, the best first; all if there are fewer.

        Raises DataError for a ``count`` that is not a whole number from 1 up.
        """
        if not is_positive_integer(count):
            raise DataError(f"top({count!r}): give a number of classes from 1 up")
        # by scores: the probabilities of two classes may be too small to differ
        order = np.argsort(-self.scores, axis=1, kind="stable")[:, :count]
        return [
            [ClassProbability(self.classes[label], float(row[label])) for label in best]
            for best, row in zip(order, self.probabilities)
        ]


class PredictedBatch(NamedTuple):
    """A batch of n images, as the network saw them, with what it says of them.

    ``pixels`` (n, C, H, W) of 0 to 255; ``true`` (n,): their labels, where they have any.
    """

    said: Predictions
    pixels: "Images"
    true: "Numbers"


class Mistake(NamedTuple):
    """A test image that a network takes for another class.

    ``number``: its place among the test images; ``file``: where those lie in files.
    ``probability``: that of ``predicted``. ``pixels`` (C, H, W) of 0 to 255: what the network
    saw.
    """

    number: int
    file: Optional[str]
    true: str
    predicted: str
    probability: float
    pixels: "Images"


class Mistakes(NamedTuple):
    """The test images that a run gets wrong, in order, of how many."""

    dataset: str
    images: int
    wrong: Sequence[Mistake]

    @property
    def accuracy(self) -> float:
        """The fraction of the images that it gets right."""
        return (self.images - len(self.wrong)) / self.images


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
    title = escape_unprintable(title)
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
            draw.text(place_of, _fitting(escape_unprintable(words), text), colour, text)
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


WIDEST = 60  # letters of a column
PREDICTED = ("image", "class", "probability")
WRONG = ("image", "true", "predicted", "probability")


def predictions_as_text(said: Predictions, count: int) -> str:
    """A row for each class; the image stands in its first."""
    rows = []
    for name, best in zip(said.images, said.top(count)):
        rows += [
            (name if not place else "", guess.name, f"{guess.probability:.4f}")
            for place, guess in enumerate(best)
        ]
    return _table(PREDICTED, rows)


def predictions_as_csv(said: Predictions, count: int) -> str:
    """A line for each class of each image, the best first."""
    return _csv(
        PREDICTED,
        [
            (name, guess.name, repr(guess.probability))
            for name, best in zip(said.images, said.top(count))
            for guess in best
        ],
    )


def predictions_as_json(said: Predictions, count: int) -> List[Dict[str, Any]]:
    """Plain values for each image."""
    return [
        {
            "image": name,
            "top": [{"class": guess.name, "probability": guess.probability} for guess in best],
        }
        for name, best in zip(said.images, said.top(count))
    ]


def mistakes_as_text(found: Mistakes) -> str:
    """How many, and a row for each, in the order of the test images."""
    rows = [
        (name_of(each), each.true, each.predicted, f"{each.probability:.4f}")
        for each in found.wrong
    ]
    return f"{_table(WRONG, rows)}\n\n{counted(found)}" if rows else counted(found)


def counted(found: Mistakes) -> str:
    """``12 of 360 test images wrong, accuracy 0.9667``."""
    images = f"{len(found.wrong):,} of {found.images:,} test images of {escape_unprintable(found.dataset)}"
    return f"{images} wrong, accuracy {found.accuracy:.4f}"


def mistakes_as_csv(found: Mistakes) -> str:
    """A line for each, in the order of the test images."""
    return _csv(
        WRONG,
        [
            (name_of(each), each.true, each.predicted, repr(each.probability))
            for each in found.wrong
        ],
    )


def mistakes_as_json(found: Mistakes) -> Dict[str, Any]:
    """Plain values."""
    names = ("number", "file", "true", "predicted", "probability")
    return {
        "dataset": found.dataset,
        "images": found.images,
        "accuracy": found.accuracy,
        "wrong": [{name: getattr(each, name) for name in names} for each in found.wrong],
    }


def name_of(mistake: Mistake) -> str:
    """The file of a test image, or its number, from 0."""
    return mistake.file or f"test image {mistake.number}"


def tile_of(name: str, best: ClassProbability, pixels: Any) -> Tile:
    """A picture with its best class, the probability, and its name."""
    probability = f"{best.probability:.1%}"
    return Tile(pixels, [(best.name, BLACK), (probability, BLACK), (Path(name).name or name, GREY)])


def tiles_of(found: Mistakes) -> List[Tile]:
    """The mistakes, the surest first."""
    surest = sorted(found.wrong, key=lambda each: (-each.probability, each.number))
    return [
        Tile(
            each.pixels,
            [
                (f"true {each.true}", GREEN),
                (f"taken for {each.predicted}", RED),
                (f"{each.probability:.1%}", RED),
                (Path(each.file).name if each.file else f"no. {each.number}", GREY),
            ],
        )
        for each in surest
    ]


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [list(heads)] + [[_short(escape_unprintable(cell)) for cell in row] for row in rows]
    widths = [max(column_width(line[column]) for line in lines) for column in range(len(heads))]
    return "\n".join(
        "  ".join([*map(pad_to_columns, line[:-1], widths), line[-1].rjust(widths[-1])])
        for line in lines
    )


def _short(cell: str) -> str:
    """The end of what is too wide: of a path the file."""
    return cell if len(cell) <= WIDEST else f"…{cell[1 - WIDEST :]}"


def _csv(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows([escape_unprintable(cell) for cell in row] for row in rows)
    return file.getvalue().rstrip("\n")
