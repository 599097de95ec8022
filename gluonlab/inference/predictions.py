"""Predicted classes and probabilities, and their output as text, JSON, CSV and a contact sheet.

A contact sheet is a PNG file with rows of small pictures, each with lines of text below it.
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

from gluonlab.config.option_checks import is_positive_integer
from gluonlab.drawing.matplotlib_figures import import_matplotlib
from gluonlab.errors import DataError
from gluonlab.files.atomic_files import new_file, new_or_marked_file
from gluonlab.plain_text import column_width, escape_unprintable, pad_to_columns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gluonlab.data.sets.dataset import Images

    Numbers = NDArray[Any]


class ClassProbability(NamedTuple):
    """A class and its predicted probability."""

    name: str
    probability: float


@dataclass(frozen=True)
class Predictions:
    """Predictions for n images.

    Attributes:
        classes: Class names, in the order of the scores.
        images: Names of the images.
        scores: A float32 array (n, classes).
    """

    classes: Tuple[str, ...]
    images: Tuple[str, ...]
    scores: "Numbers"

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def probabilities(self) -> "Numbers":
        """Probabilities (n, classes), float64: the softmax of the scores."""
        scores = self.scores.astype(np.float64)
        exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True))

    @property
    def labels(self) -> "Numbers":
        """Index of the best class of each image, (n,). The first class wins if scores are equal."""
        return np.asarray(self.scores.argmax(axis=1))

    @property
    def names(self) -> List[str]:
        """Name of the best class of each image."""
        return [self.classes[label] for label in self.labels]

    def top(self, count: int = 5) -> List[List[ClassProbability]]:
        """Return the best classes of each image, the best first.

        Args:
            count: Number of classes per image, at least 1. If there are fewer classes, all are
                returned.

        Returns:
            For each image, a list of classes with their probabilities.

        Raises:
            DataError: ``count`` is not a positive whole number.
        """
        if not is_positive_integer(count):
            raise DataError(f"top({count!r}): the number of classes must be a whole number of at least 1")
        # Sorted by scores, because small probabilities may be rounded to equal numbers.
        order = np.argsort(-self.scores, axis=1, kind="stable")[:, :count]
        return [
            [ClassProbability(self.classes[label], float(row[label])) for label in best]
            for best, row in zip(order, self.probabilities)
        ]


class PredictedBatch(NamedTuple):
    """Batch of n images and their predictions.

    ``pixels`` (n, C, H, W): the input of the network before scaling, from 0 to 255. ``true`` (n,):
    the true labels; zeros for images without labels.
    """

    predictions: Predictions
    pixels: "Images"
    true: "Numbers"


class Mistake(NamedTuple):
    """A validation image that the network misclassifies.

    ``number``: the image's position among the validation images. ``file``: its path, or None if it
    is not read from a file. ``true`` and ``predicted``: class names. ``probability``: the predicted
    probability of ``predicted``. ``pixels`` (C, H, W): the pixel values, from 0 to 255.
    """

    number: int
    file: Optional[str]
    true: str
    predicted: str
    probability: float
    pixels: "Images"


class Mistakes(NamedTuple):
    """The validation images that the network of a run misclassifies, in order.

    ``images``: the number of all validation images.
    """

    dataset: str
    images: int
    wrong: Sequence[Mistake]

    @property
    def accuracy(self) -> float:
        """Fraction of the images that are classified correctly."""
        return (self.images - len(self.wrong)) / self.images


MAX_PICTURES = 400  # pictures in a contact sheet
PNG_TEXT = ("Software", "gluonlab.predict")  # key and text in the PNG that mark a contact sheet
MARK = "\0".join(PNG_TEXT).encode()
TILE_SIDE, GAP, LINE, MARGIN = 112, 12, 17, 16  # pixels
TEXT, TITLE = 12, 15  # height of letters
BLACK, GRAY, GREEN, RED = (34, 34, 34), (110, 110, 110), (0, 110, 60), (180, 30, 30)
Color = Tuple[int, int, int]


class Tile(NamedTuple):
    """A picture in a contact sheet: pixels (C, H, W), 0 to 255, and (text, color) of each line."""

    pixels: "Images"
    lines: Sequence[Tuple[str, Color]]


def write_sheet(option: str, path: Path, title: str, tiles: Sequence[Tile], replace: bool = False) -> None:
    """Write a contact sheet of the first MAX_PICTURES tiles to a PNG file. Raises OutputError.

    ``option``: the option that sets the path, for messages. ``replace``: whether to overwrite an
    earlier contact sheet.
    """
    metadata = PngInfo()
    metadata.add_text(*PNG_TEXT)
    file = new_or_marked_file(option, path, MARK) if replace else new_file(option, path)
    with file as temporary:
        draw_sheet(title, tiles[:MAX_PICTURES]).save(temporary, "PNG", pnginfo=metadata)


def draw_sheet(title: str, tiles: Sequence[Tile]) -> Image.Image:
    """Draw a title, and rows of pictures below it, in a nearly square image."""
    text_font, title_font = _load_font(TEXT), _load_font(TITLE)
    max_lines = max(len(tile.lines) for tile in tiles)
    tile_width, tile_height = TILE_SIDE + GAP, TILE_SIDE + LINE * max_lines + GAP
    columns = min(len(tiles), max(4, math.ceil(math.sqrt(len(tiles) * tile_height / tile_width * 1.3))))
    rows, top = -(-len(tiles) // columns), MARGIN + 2 * LINE
    title = escape_unprintable(title)
    content_width = max(columns * tile_width - GAP, math.ceil(title_font.getlength(title)))
    sheet = Image.new("RGB", (2 * MARGIN + content_width, top + rows * tile_height - GAP + MARGIN), "white")
    draw = ImageDraw.Draw(sheet)
    draw.text((MARGIN, MARGIN), title, BLACK, title_font)
    for index, tile in enumerate(tiles):
        left, tile_top = MARGIN + index % columns * tile_width, top + index // columns * tile_height
        picture = to_thumbnail(tile.pixels)
        inset = ((TILE_SIDE - picture.width) // 2, (TILE_SIDE - picture.height) // 2)
        sheet.paste(picture, (left + inset[0], tile_top + inset[1]))
        for number, (text, color) in enumerate(tile.lines):
            position = (left, tile_top + TILE_SIDE + 2 + number * LINE)
            draw.text(position, _shorten_to_tile(escape_unprintable(text), text_font), color, text_font)
    return sheet


def to_thumbnail(pixels: "Images") -> Image.Image:
    """Convert pixels (C, H, W) to a picture that fits a tile; small pictures are enlarged."""
    channels = pixels if len(pixels) in (1, 3) else pixels[:1]
    # Images given as floats may be outside of 0 to 255.
    channels = np.clip(np.rint(channels), 0, 255).astype(np.uint8)
    image = Image.fromarray(np.ascontiguousarray(channels.transpose(1, 2, 0)).squeeze())
    image = image.convert("RGB")
    largest = max(image.size)
    if largest <= TILE_SIDE:
        factor = TILE_SIDE // largest
        return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    image.thumbnail((TILE_SIDE, TILE_SIDE), Image.Resampling.LANCZOS)
    return image


def _load_font(size: int) -> Any:
    # matplotlib's font has most alphabets; Pillow's font has only Latin letters
    path = os.path.join(import_matplotlib().get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")
    return ImageFont.truetype(path, size)


def _shorten_to_tile(text: str, font: Any) -> str:
    """Shorten a text that is wider than a tile."""
    if font.getlength(text) <= TILE_SIDE:
        return text
    letters: List[str] = []
    for letter in text:
        if font.getlength("".join([*letters, letter, "…"])) > TILE_SIDE:
            break
        letters.append(letter)
    return "".join([*letters, "…"])


MAX_CELL_WIDTH = 60  # letters of a column
PREDICTION_COLUMNS = ("image", "class", "probability")
MISTAKE_COLUMNS = ("image", "true", "predicted", "probability")


def _prediction_rows(predictions: Predictions, count: int) -> List[Tuple[str, str, float]]:
    """Return (image, class, probability) for the ``count`` best classes of each image."""
    best = zip(predictions.images, predictions.top(count))
    return [(name, guess.name, guess.probability) for name, guesses in best for guess in guesses]


def predictions_as_text(predictions: Predictions, count: int) -> str:
    """Format a table of the best classes, one per row. The name is in an image's first row."""
    rows = _prediction_rows(predictions, count)
    per_image = min(count, len(predictions.classes))
    return _format_table(
        PREDICTION_COLUMNS, [("" if i % per_image else row[0], *row[1:]) for i, row in enumerate(rows)]
    )


def predictions_as_csv(predictions: Predictions, count: int) -> str:
    """Format a CSV line for each of the ``count`` best classes of each image, the best first."""
    return _format_csv(PREDICTION_COLUMNS, _prediction_rows(predictions, count))


def predictions_as_json(predictions: Predictions, count: int) -> List[Dict[str, Any]]:
    """Return a dictionary per image: its name and its ``count`` best classes, for JSON."""
    keys = ("class", "probability")
    return [
        {"image": image, "top": [dict(zip(keys, guess)) for guess in best]}
        for image, best in zip(predictions.images, predictions.top(count))
    ]


def _mistake_rows(mistakes: Mistakes) -> List[Tuple[str, str, str, float]]:
    return [(mistake_name(mistake), mistake.true, mistake.predicted, mistake.probability) for mistake in mistakes.wrong]


def mistakes_as_text(mistakes: Mistakes) -> str:
    """Format one row per mistake, in the order of the validation images, and a summary."""
    rows, summary = _mistake_rows(mistakes), mistakes_summary(mistakes)
    return f"{_format_table(MISTAKE_COLUMNS, rows)}\n\n{summary}" if rows else summary


def mistakes_summary(mistakes: Mistakes) -> str:
    """Return text such as ``12 of 360 validation images of digits wrong, accuracy 0.9667``."""
    count, name = (f"{len(mistakes.wrong):,} of {mistakes.images:,}", escape_unprintable(mistakes.dataset))
    return f"{count} validation images misclassified by {name}, accuracy {mistakes.accuracy:.4f}"


def mistakes_as_csv(mistakes: Mistakes) -> str:
    """Format one line per mistake, in the order of the validation images."""
    return _format_csv(MISTAKE_COLUMNS, _mistake_rows(mistakes))


def mistakes_as_json(mistakes: Mistakes) -> Dict[str, Any]:
    """Return the mistakes as a dictionary for JSON, without the pixels."""
    names = ("number", "file", "true", "predicted", "probability")
    return {
        "dataset": mistakes.dataset,
        "images": mistakes.images,
        "accuracy": mistakes.accuracy,
        "wrong": [{name: getattr(mistake, name) for name in names} for mistake in mistakes.wrong],
    }


def mistake_name(mistake: Mistake) -> str:
    """Return a validation image's path or, if it has none, text such as ``validation image 0``."""
    return mistake.file or f"validation image {mistake.number}"


def prediction_tile(name: str, best: ClassProbability, pixels: Any) -> Tile:
    """Return the tile of a picture with its name, its best class and the probability."""
    probability = f"{best.probability:.1%}"
    return Tile(pixels, [(best.name, BLACK), (probability, BLACK), (Path(name).name or name, GRAY)])


def mistake_tiles(mistakes: Mistakes) -> List[Tile]:
    """Return the tiles of all mistakes, with the highest probability first."""
    sorted_mistakes = sorted(mistakes.wrong, key=lambda mistake: (-mistake.probability, mistake.number))
    return [
        Tile(
            mistake.pixels,
            [
                (f"true {mistake.true}", GREEN),
                (f"predicted {mistake.predicted}", RED),
                (f"{mistake.probability:.1%}", RED),
                (Path(mistake.file).name if mistake.file else f"no. {mistake.number}", GRAY),
            ],
        )
        for mistake in sorted_mistakes
    ]


def _format_table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Format rows of texts with a probability in the last column."""
    texts = [[*row[:-1], f"{row[-1]:.4f}"] for row in rows]
    lines = [list(heads)] + [[_shorten_cell(escape_unprintable(cell)) for cell in row] for row in texts]
    widths = [max(column_width(line[column]) for line in lines) for column in range(len(heads))]
    return "\n".join("  ".join([*map(pad_to_columns, line[:-1], widths), line[-1].rjust(widths[-1])]) for line in lines)


def _shorten_cell(cell: str) -> str:
    """If a text is too wide, keep only the end, because a path ends with the file's name."""
    return cell if len(cell) <= MAX_CELL_WIDTH else f"…{cell[1 - MAX_CELL_WIDTH :]}"


def _format_csv(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Format rows as CSV; the last column is a probability, written with all its digits."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows([*map(escape_unprintable, row[:-1]), repr(row[-1])] for row in rows)
    return file.getvalue().rstrip("\n")
