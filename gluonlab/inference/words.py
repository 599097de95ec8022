"""Predictions and mistakes as a table, as JSON, as CSV, and as tiles of a contact sheet."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any, Dict, Iterable, List, Sequence

from gluonlab.inference.predictions import Guess, Mistake, Mistakes, Predictions
from gluonlab.inference.sheet import BLACK, GREEN, GREY, RED, Tile
from gluonlab.plain import padded, printable, width

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
    images = f"{len(found.wrong):,} of {found.images:,} test images of {printable(found.dataset)}"
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


def tile_of(name: str, best: Guess, pixels: Any) -> Tile:
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
    lines = [list(heads)] + [[_short(printable(cell)) for cell in row] for row in rows]
    widths = [max(width(line[column]) for line in lines) for column in range(len(heads))]
    return "\n".join(
        "  ".join([*map(padded, line[:-1], widths), line[-1].rjust(widths[-1])]) for line in lines
    )


def _short(cell: str) -> str:
    """The end of what is too wide: of a path the file."""
    return cell if len(cell) <= WIDEST else f"…{cell[1 - WIDEST :]}"


def _csv(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows([printable(cell) for cell in row] for row in rows)
    return file.getvalue().rstrip("\n")
