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
from typing import IO, Any, Sequence

from gluonlab.errors import DataError, NotebookError
from gluonlab.exercises.bounds import Bounds
from gluonlab.exercises.checking import GRADES
from gluonlab.exercises.exercise import labs
from gluonlab.exercises.kernel import place_of_cell, start
from gluonlab.exercises.languages import LANGUAGES
from gluonlab.exercises.supervisor import end_with_parent
from gluonlab.files.bounded import read_bounded
from gluonlab.plain import one_line

MOST_CELLS = 10_000
TAGS = ("raises-exception", "skip-execution")  # those of a cell that nbclient looks at
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
    notebook, lab, language = read_submission(path, bounds.source)
    _say(out, LAB, lab)
    place = folder / language
    place.mkdir()
    noted, environment = False, {GRADES: str(folder / VERDICTS), "TMPDIR": str(folder)}
    with start(notebook, place, bounds.seconds, bounds.printed, **environment) as kernel:
        for index, cell in enumerate(notebook.cells):
            if cell.cell_type != "code" or not cell.source.strip():
                continue
            _say(out, CELL, place_of_cell(cell, index))
            try:
                kernel.run(index)
            except NotebookError as error:
                if not noted:
                    _say(out, NOTE, str(error))
                noted = True
                if not kernel.alive:
                    break


def read_submission(path: Path, most_bytes: int) -> "tuple[Any, str, str]":
    """A notebook with the cells of this one and nothing else; its lab and its language.

    Raises NotebookError.
    """
    import nbformat

    try:
        given = nbformat.reads(read_bounded(path, most_bytes).decode(), as_version=4)
    except OSError as error:
        raise NotebookError(f"cannot be read as a notebook: {error.strerror}") from None
    except DataError:
        raise NotebookError(
            f"cannot be read as a notebook: it has more than {most_bytes:,} bytes"
        ) from None
    except Exception as error:  # whatever a damaged file makes of nbformat and json
        fault = str(error)[:200] or type(error).__name__
        raise NotebookError(f"cannot be read as a notebook: {fault}") from None
    about = given.get("metadata")
    about = about.get("gluonlab") if isinstance(about, dict) else None
    about = about if isinstance(about, dict) else {}
    lab, language = str(about.get("lab", path.name[:2]))[:40], about.get("language")
    if lab not in labs():
        raise NotebookError(
            f"is of no lab: neither its metadata nor its name say which (they say {lab!r})"
        )
    cells = given.get("cells")
    if not isinstance(cells, list) or len(cells) > MOST_CELLS:
        raise NotebookError(
            f"cannot be read as a notebook: it has no list of 0 to {MOST_CELLS:,} cells"
        )
    made = nbformat.v4.new_notebook(cells=[_cell(cell, n) for n, cell in enumerate(cells, 1)])
    return made, lab, language if language in LANGUAGES else LANGUAGES[0]


def _cell(cell: Any, number: int) -> Any:
    """The source of a cell, and what makes a difference to how it is run; an empty one for text."""
    from nbformat.v4 import new_code_cell, new_markdown_cell

    source = cell.get("source") if isinstance(cell, dict) else None
    if not isinstance(source, str):
        raise NotebookError(f"cannot be read as a notebook: cell {number} has no text")
    if cell.get("cell_type") != "code":
        return new_markdown_cell("")
    about = cell.get("metadata")
    tags = about.get("tags") if isinstance(about, dict) else None
    kept = [tag for tag in TAGS if tag in tags] if isinstance(tags, list) else []
    return new_code_cell(source, metadata={"tags": kept} if kept else {})


if __name__ == "__main__":
    main(sys.argv[1:])
