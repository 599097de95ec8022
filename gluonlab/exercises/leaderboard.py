"""The right answers of a table of grades to an exercise in which their cost counts, by cost."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Sequence

from gluonlab.errors import DataError, ExerciseError
from gluonlab.exercises.table import cost_column
from gluonlab.files.whole import read_bounded
from gluonlab.plain import printable

EXERCISE = "04-6"  # the one in which it counts
MOST_BYTES = 2**26  # of a table of grades


class Place(NamedTuple):
    """A row: its place, which equal costs share, its cost in microseconds, and its notebook."""

    place: int
    micros: float
    notebook: str

    def as_json(self) -> Dict[str, Any]:
        """What --json prints of it."""
        return self._asdict()


def leaderboard(path: Path) -> List[Place]:
    """The places by the table ``path`` that `exercises grade` wrote, the lowest cost first.

    A notebook without a right answer is in none, nor is one with a schedule of gluonlab's own
    solver: the grade has no cost for it. Raises ExerciseError for a file that is no such table.
    """
    rows = sorted(_costs(path))
    costs = [micros for micros, _ in rows]
    return [Place(costs.index(micros) + 1, micros, notebook) for micros, notebook in rows]


def _costs(path: Path) -> "List[tuple[float, str]]":
    try:
        text = read_bounded(path, MOST_BYTES).decode("utf-8-sig")
        table = list(csv.DictReader(io.StringIO(text)))
    except OSError as error:
        raise ExerciseError(
            f"{path} cannot be read ({error.strerror}): give the table that `exercises grade` wrote"
        ) from None
    except (DataError, UnicodeDecodeError, csv.Error) as error:
        raise ExerciseError(
            f"{path} is no table of grades: {printable(str(error))[:200]}"
        ) from None
    column = cost_column(EXERCISE)
    if not table or "notebook" not in table[0] or column not in table[0]:
        raise ExerciseError(
            f"{path} has no column {column!r}: grade notebooks of lab {EXERCISE[:2]} with `python "
            "-m gluonlab.exercises grade`, which adds it as soon as one has a right answer that "
            "counts"
        )
    found = []
    for number, row in enumerate(table, 2):
        if row[column]:
            found.append((_micros(path, number, row[column]), row["notebook"] or ""))
    return found


def _micros(path: Path, line: int, text: str) -> float:
    try:
        micros = float(text)
    except ValueError:
        micros = math.nan
    if not 0 < micros < math.inf:
        raise ExerciseError(
            f"{path}, line {line}: {printable(text)[:40]!r} is no time in microseconds: "
            "give the table as `exercises grade` wrote it"
        )
    return micros


def as_text(places: Sequence[Place], best_us: float, floor_us: float) -> str:
    """A line for each place, below what they are compared with."""
    lines = [
        f"exercise {EXERCISE}: microseconds, and how many times the floor of {floor_us:,.1f}",
        f"{'':>5}{best_us:>12,.1f}{best_us / floor_us:>8.3f}x  the best of the eight algorithms",
    ]
    for one in places:
        times = f"{one.micros / floor_us:.3f}x"
        lines.append(f"{one.place:>4}.{one.micros:>12,.1f}{times:>9}  {printable(one.notebook)}")
    return "\n".join(lines if places else [*lines, "no notebook has a right answer that counts"])
