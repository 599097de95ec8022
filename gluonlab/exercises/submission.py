"""Run one notebook that was handed in; nothing that is in its file is trusted.

A process of its own, below `gluonlab.exercises.supervisor`: what damages it damages nobody else. It
says what it does in lines of JSON, on its standard output, which the notebook's cells do not have::

    {"lab": "01"}                               the lab that the notebook is of
    {"cell": "cell 4 (x = 1)"}                  runs now
    {"note": "cell 4 (x = 1): ValueError: .."}  the first error
    {"done": ""}                                the last line
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import IO, Any, List, NamedTuple, Sequence, Tuple

from gluonlab.errors import DataError, NotebookError
from gluonlab.exercises.bounds import Bounds
from gluonlab.exercises.checking import GRADES
from gluonlab.exercises.exercise import labs
from gluonlab.exercises.kernel import MAY_RAISE, SKIPPED, Cell, place_of_cell, start
from gluonlab.exercises.languages import LANGUAGES
from gluonlab.exercises.supervisor import end_with_parent
from gluonlab.files.whole import read_bounded
from gluonlab.plain import one_line

MOST_CELLS = 10_000
FORMAT = 4  # of notebooks since 2015
VERDICTS = "verdicts.jsonl"
LAB, CELL, NOTE, DONE = "lab", "cell", "note", "done"


def main(arguments: Sequence[str]) -> None:
    """``BOUNDS FOLDER NOTEBOOK``: the JSON of a `Bounds`, an empty folder, and the file."""
    bounds, folder, path = Bounds(**json.loads(arguments[0])), Path(arguments[1]), arguments[2]
    end_with_parent()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull, "r+b") as nothing:
        os.dup2(nothing.fileno(), 1)  # the cells' processes have this one
    try:
        _run(bounds, folder, Path(path), out)
    except NotebookError as error:
        _say(out, NOTE, str(error))
    except Exception as error:  # whatever a hostile file or process makes of our libraries
        _say(out, NOTE, f"cannot be run ({type(error).__name__}: {str(error)[:300]})")
    _say(out, DONE, "")


def _say(out: IO[str], kind: str, text: str) -> None:
    print(json.dumps({kind: one_line(text)}), file=out, flush=True)


def _run(bounds: Bounds, folder: Path, path: Path, out: IO[str]) -> None:
    cells, lab, language = read_submission(path, bounds.source)
    _say(out, LAB, lab)
    place = folder / language
    place.mkdir()
    noted, environment = False, {GRADES: str(folder / VERDICTS), "TMPDIR": str(folder)}
    with start(place, bounds.seconds, bounds.printed, **environment) as kernel:
        for index, cell in enumerate(cells):
            if not cell.source.strip():
                continue
            _say(out, CELL, place_of_cell(cell.source, index))
            try:
                kernel.run(cell, index)
            except NotebookError as error:
                if not noted:
                    _say(out, NOTE, str(error))
                noted = True
                if not kernel.alive:
                    break


class Submission(NamedTuple):
    """What is run of a notebook, the number of its lab, and its language."""

    cells: List[Cell]
    lab: str
    language: str


def read_submission(path: Path, most_bytes: int) -> Submission:
    """The cells of a notebook, in the JSON that Jupyter writes. Raises NotebookError."""
    given = _read(path, most_bytes)
    about = given.get("metadata", {})
    if not isinstance(about, dict):
        raise _unreadable("its metadata is no object of JSON")
    about = about.get("gluonlab")
    about = about if isinstance(about, dict) else {}
    lab, language = str(about.get("lab", path.name[:2]))[:40], about.get("language")
    if lab not in labs():
        raise NotebookError(
            f"is of no lab: neither its metadata nor its name say which (they say {lab!r})"
        )
    cells = given.get("cells")
    if not isinstance(cells, list) or len(cells) > MOST_CELLS:
        raise _unreadable(f"it has no list of 0 to {MOST_CELLS:,} cells")
    made = [_cell(cell, number) for number, cell in enumerate(cells, 1)]
    return Submission(made, lab, language if language in LANGUAGES else LANGUAGES[0])


def _read(path: Path, most_bytes: int) -> "dict[str, Any]":
    try:
        given = json.loads(read_bounded(path, most_bytes).decode("utf-8-sig"))
    except OSError as error:
        raise _unreadable(str(error.strerror)) from None
    except DataError:
        raise _unreadable(f"it has more than {most_bytes:,} bytes") from None
    except (ValueError, RecursionError) as error:
        raise _unreadable(f"it is no JSON ({str(error)[:200]})") from None
    if not isinstance(given, dict):
        raise _unreadable("it is no object of JSON")
    if given.get("nbformat") != FORMAT:
        raise _unreadable(
            f"its nbformat is {str(given.get('nbformat'))[:20]}, not {FORMAT}: "
            "open it in Jupyter, and save it"
        )
    return given


def _unreadable(fault: str) -> NotebookError:
    return NotebookError(f"cannot be read as a notebook: {fault}")


def _cell(cell: Any, number: int) -> Cell:
    """The source of a cell, and what makes a difference to how it is run; an empty one for text."""
    source = cell.get("source") if isinstance(cell, dict) else None
    lines: List[Any] = source if isinstance(source, list) else [source]
    if not all(isinstance(line, str) and _is_text(line) for line in lines):
        raise _unreadable(f"cell {number} has no text")
    if cell.get("cell_type") != "code":
        return Cell("")
    about = cell.get("metadata")
    tags = about.get("tags") if isinstance(about, dict) else None
    kept: Tuple[str, ...] = ()
    if isinstance(tags, list):
        kept = tuple(tag for tag in (SKIPPED, MAY_RAISE) if tag in tags)
    return Cell("".join(lines), kept)


def _is_text(line: str) -> bool:
    """Whether it can be sent to a process: JSON may have halves of characters."""
    try:
        return line.encode() is not None
    except UnicodeEncodeError:
        return False


if __name__ == "__main__":
    main(sys.argv[1:])
