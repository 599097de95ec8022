"""Grade students' notebooks: run each, and make the verdicts of its checks a row of a table."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence

from gluonlab.errors import ExerciseError, NotebookError
from gluonlab.exercises.checking import GRADES
from gluonlab.exercises.exercise import all_exercises, in_order
from gluonlab.exercises.kernel import start
from gluonlab.exercises.languages import LANGUAGES
from gluonlab.exercises.verdict import PASSED

UNCHECKED = "unchecked"  # its notebook does not ask check() any more, or stopped before


@dataclass
class Grade:
    """One notebook: the status of each exercise of its lab, and the error that stopped it."""

    notebook: Path
    statuses: Dict[str, str] = field(default_factory=dict)
    note: str = ""

    @property
    def passed(self) -> int:
        """The number of exercises that passed."""
        return sum(status == PASSED for status in self.statuses.values())


def submissions(given: Sequence[Path]) -> List[Path]:
    """The given notebooks, and those below the given folders. Raises ExerciseError."""
    found: List[Path] = []
    for path in given:
        inside = sorted(path.rglob("*.ipynb")) if path.is_dir() else [path]
        found += [
            one
            for one in inside
            if not any(part.startswith(".") for part in one.relative_to(path).parts)
        ]
        if not path.exists() or not inside:
            fault = "no notebook lies below" if path.exists() else "there is no"
            raise ExerciseError(f"{fault} {path}: name notebooks, or folders that hold them")
    return list(dict.fromkeys(found))


def grade(notebooks: Sequence[Path], seconds: float) -> Iterator[Grade]:
    """Run each notebook in its own process, for at most ``seconds``, and yield its grade.

    Of several verdicts on one exercise the last counts. A cell that raises does not end the
    notebook; its error becomes the note. This is no protection against somebody who wants to cheat:
    a notebook's code may do all that the person may who runs this.
    """
    for path in notebooks:
        made = Grade(path)
        try:
            notebook = _read(path)
            made.statuses = dict.fromkeys(_exercises_of(notebook, path), UNCHECKED)
            with tempfile.TemporaryDirectory(prefix="gluonlab-grade-") as folder:
                verdicts = Path(folder) / "verdicts.jsonl"
                try:
                    made.note = _run(notebook, Path(folder), verdicts, seconds)
                finally:
                    made.statuses.update(_verdicts(verdicts, made.statuses))
        except NotebookError as error:
            made.note = str(error)
        yield made


def as_csv(grades: Sequence[Grade]) -> str:
    """A line per notebook: its path, a status per exercise, how many passed, and the note."""
    ids = sorted({id for one in grades for id in one.statuses}, key=in_order)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["notebook", *ids, "passed", "note"])
    for one in grades:
        statuses = (one.statuses.get(id, "") for id in ids)
        writer.writerow([one.notebook, *statuses, one.passed, one.note])
    return out.getvalue()


def _read(path: Path) -> Any:
    import nbformat

    try:
        return nbformat.read(path, as_version=4)
    except Exception as error:  # whatever a damaged file makes of nbformat and json
        raise NotebookError(
            f"cannot be read as a notebook: {' '.join(str(error).split())[:200]}"
        ) from None


def _exercises_of(notebook: Any, path: Path) -> List[str]:
    """The exercises of the lab that the notebook's metadata name, or else its file name."""
    lab = str(notebook.metadata.get("gluonlab", {}).get("lab", path.name[:2]))
    ids = [one.id for one in all_exercises() if one.id.startswith(f"{lab}-")]
    if not ids:
        raise NotebookError(
            f"is of no lab: neither its metadata nor its name say which (they say {lab!r})"
        )
    return ids


def _run(notebook: Any, folder: Path, verdicts: Path, seconds: float) -> str:
    """Run all cells; the first error, in a line, or nothing."""
    language = notebook.metadata.get("gluonlab", {}).get("language", LANGUAGES[0])
    place = folder / (language if language in LANGUAGES else LANGUAGES[0])
    place.mkdir()
    note = ""
    with start(notebook, place, seconds, **{GRADES: str(verdicts)}) as kernel:
        for index in range(len(notebook.cells)):
            try:
                kernel.run(index)
            except NotebookError as error:
                note = note or str(error)
                if not kernel.alive:
                    break
    return note


def _verdicts(path: Path, known: Dict[str, str]) -> Dict[str, str]:
    """The last status of each exercise.

    Lines that are no verdicts can only come from a student's own code, and are ignored.
    """
    found: Dict[str, str] = {}
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    for line in text.splitlines():
        try:
            verdict = json.loads(line)
            id, status = verdict["exercise"], str(verdict["status"])
        except (ValueError, KeyError, TypeError):
            continue
        if id in known:
            found[id] = status
    return found
