"""The confusion matrix, as a table for a terminal and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Sequence

from gluonlab.drawing.live import new_figure
from gluonlab.files.whole import atomic_path, on_disk
from gluonlab.plain import printable
from gluonlab.training.evaluate import Confusion

COLUMNS = 80  # of a terminal
NAME = 12  # the letters of a class that a row begins with
LONG = 21  # those that a sentence has room for, in 80 columns
LISTED = 10  # the confusions that are named where the matrix does not fit
WRITTEN = 20  # classes up to which the picture has numbers in it


def table(matrix: Confusion, classes: Sequence[str]) -> str:
    """The matrix in 80 columns; if it does not fit, the most frequent confusions."""
    classes = list(map(printable, classes))
    labels = _labels(classes)
    row = max(map(len, labels))
    cell = max(len(str(matrix.max())), len(str(len(classes) - 1)), 3) + 1
    if row + cell * len(classes) + len("   right") > COLUMNS:
        return _most_frequent(matrix, classes)
    heads = [str(label) for label in range(len(classes))]
    lines = ["rows: true classes; columns: predicted classes"]
    lines.append(" " * row + "".join(f"{head:>{cell}}" for head in heads) + "   right")
    for label, counts, right in zip(labels, matrix, _right(matrix)):
        lines.append(
            f"{label:<{row}}"
            + "".join(f"{count or '.':>{cell}}" for count in counts)
            + f"{right:>8}"
        )
    return "\n".join(lines)


def _labels(classes: Sequence[str]) -> List[str]:
    """``3 dress``; names that are their numbers stand alone."""
    width = len(str(len(classes) - 1))
    if list(classes) == [str(label) for label in range(len(classes))]:
        return list(classes)
    return [f"{label:>{width}} {name[:NAME]}" for label, name in enumerate(classes)]


def _right(matrix: Confusion) -> List[str]:
    """For each class the percentage of images that were recognised; a dash for none."""
    return [
        f"{counts[label] / counts.sum():.1%}" if counts.sum() else "-"
        for label, counts in enumerate(matrix)
    ]


def _most_frequent(matrix: Confusion, classes: Sequence[str]) -> str:
    wrong = [(int(matrix[i, j]), i, j) for i, j in zip(*matrix.nonzero()) if i != j]
    lines = [
        f"{_short(classes[i])} taken for {_short(classes[j])}: {count:,} of {matrix[i].sum():,}"
        for count, i, j in sorted(wrong, key=_order)
    ]
    if not lines:
        return "no image was taken for another class"
    return "\n".join(["the most frequent confusions", *(f"  {line}" for line in lines[:LISTED])])


def _short(name: str) -> str:
    return name if len(name) <= LONG else f"{name[: LONG - 1]}…"


def _order(entry: "tuple[int, int, int]") -> "tuple[int, int, int]":
    count, true, taken = entry
    return -count, true, taken


def write_picture(matrix: Confusion, classes: Sequence[str], path: Path) -> None:
    """Draw the matrix: colours by the share of the row, numbers where there is room for them.

    Raises OutputError.
    """
    with on_disk(path), atomic_path(path) as temporary:
        _draw(matrix, classes, temporary)


def _draw(matrix: Confusion, classes: Sequence[str], path: Path) -> None:
    count = len(classes)
    side = min(12.0, 2.6 + 0.42 * max(count, 4)) if count <= WRITTEN else 9.0
    figure = new_figure(side, side, layout="constrained")
    from matplotlib.colors import PowerNorm

    axes = figure.subplots()
    shares = matrix / matrix.sum(axis=1, keepdims=True).clip(min=1)
    # the root of the share: a few per cent are to be seen, too
    axes.imshow(shares, cmap="Blues", norm=PowerNorm(0.5, 0, 1))
    axes.set_title(
        f"{matrix.trace():,} of {matrix.sum():,} images correct, "
        f"{matrix.trace() / max(matrix.sum(), 1):.2%}",
        fontsize=10,
    )
    axes.set_xlabel("predicted class", fontsize=9)
    axes.set_ylabel("true class", fontsize=9)
    if count <= WRITTEN:
        short = [
            name if len(name) <= NAME else f"{name[: NAME - 1]}…"
            for name in map(printable, classes)
        ]
        # else what stands between two $ were a formula
        as_written: Dict[str, Any] = dict(fontsize=8, parse_math=False)
        axes.set_xticks(
            range(count), short, rotation=90 if max(map(len, short)) > 2 else 0, **as_written
        )
        axes.set_yticks(range(count), short, **as_written)
        for i in range(count):
            for j in range(count):
                if matrix[i, j]:
                    colour = "white" if shares[i, j] > 0.3 else "black"
                    axes.text(
                        j, i, f"{matrix[i, j]}", ha="center", va="center", fontsize=7, color=colour
                    )
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.savefig(path, format="png", dpi=110)
