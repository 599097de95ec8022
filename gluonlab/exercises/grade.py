"""Grade students' notebooks: run each, and make the verdicts of its checks a row of a table."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Sequence

import gluonlab
from gluonlab.errors import DataError, ExerciseError, NotebookError
from gluonlab.exercises.bounds import Bounds, within_room
from gluonlab.exercises.exercise import all_exercises, in_order
from gluonlab.exercises.submission import CELL, DONE, LAB, NOTE, VERDICTS
from gluonlab.exercises.supervisor import ENDED
from gluonlab.exercises.verdict import PASSED, RAISED, TOO_SLOW, UNWRITTEN, WRONG
from gluonlab.files.bounded import read_bounded
from gluonlab.files.temporary import temporary_folder
from gluonlab.plain import one_line, printable

NEEDED = ("nbformat", "nbclient", "ipykernel")
STATUSES = (PASSED, WRONG, UNWRITTEN, RAISED, TOO_SLOW)
MOST_SAID = 2**22  # bytes that are read of what a notebook's processes say of it
LONGEST_NOTE = 1000  # characters
# What a formula begins with in a spreadsheet, the wide forms of East Asian keyboards included.
FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
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
        inside = sorted(_below(path)) if os.path.isdir(path) else [path]
        found += inside
        there = os.path.lexists(path)
        if not there or not inside:
            fault = "no notebook lies below" if there else "there is no"
            raise ExerciseError(f"{fault} {path}: name notebooks, or folders that hold them")
    return list(dict.fromkeys(found))


def _below(folder: Path) -> Iterator[Path]:
    """The notebooks below a folder, as far as it can be read; links to folders lead nowhere."""
    folders = [folder]
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.name.endswith(".ipynb"):
                    yield Path(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))


def grade(notebooks: Sequence[Path], seconds: float, **bounds: Any) -> Iterator[Grade]:
    """Run each notebook in processes of its own, for at most ``seconds``, and yield its grade.

    Of several verdicts on one exercise the last counts. A cell that raises does not end the
    notebook; its error becomes the note, as whatever else is wrong with the notebook does.
    ``bounds``: others than `Bounds` has, in memory for example. This is no protection against
    somebody who wants to cheat: a notebook's code may do all that the person may who runs this.
    Raises NotebookError where what runs notebooks is not installed.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise NotebookError(
            f"notebooks cannot be run here, {missing[0]} is missing: "
            "pip install 'gluonlab[labs-build]'"
        )
    for path in notebooks:
        yield _grade(path, within_room(Bounds(seconds, **bounds)))


def _grade(path: Path, bounds: Bounds) -> Grade:
    made = Grade(path)
    try:
        with temporary_folder("grade") as folder:
            said = _run(path, folder, bounds)
            lab = said.get(LAB, "")
            made.statuses = {
                one.id: UNCHECKED for one in all_exercises() if one.id.startswith(f"{lab}-")
            }
            faults = [said.get(NOTE, "")]
            if said[ENDED]:
                faults.append(": ".join(filter(None, [said.get(CELL), said[ENDED]])))
            made.statuses.update(_verdicts(folder / VERDICTS, made.statuses))
    except (OSError, NotebookError) as error:  # the disk is full, for example
        faults = [f"cannot be run ({error})"]
    made.note = one_line("; ".join(filter(None, faults)))[:LONGEST_NOTE]
    return made


def _run(path: Path, folder: Path, bounds: Bounds) -> Dict[str, str]:
    """What was said of a notebook last, of each kind: LAB, CELL, NOTE and ENDED.

    The supervisor, and so all that it has started, ends with the file that it reads from.
    """
    words = [json.dumps(vars(bounds)), str(folder)]
    submission = [sys.executable, "-m", "gluonlab.exercises.submission", *words]
    package = str(Path(gluonlab.__file__).resolve().parent.parent)
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [str(Path(part).absolute()) for part in given if part]
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen(
            [sys.executable, "-m", "gluonlab.exercises.supervisor", *words]
            + [*submission, str(path.absolute())],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.DEVNULL,
            cwd=folder,  # empty: Python would load modules from the current one
            env={**os.environ, "PYTHONPATH": os.pathsep.join([package, *kept])},
            start_new_session=True,  # Ctrl-C is for the grader
        )
        try:
            child.wait(bounds.seconds + 2 * bounds.spare_seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _end(child, bounds.spare_seconds)
        out.seek(0)
        said = _said(out.read(MOST_SAID))
    if ENDED not in said:
        said[ENDED] = "the process that watches over it was ended; it may have left others running"
    elif DONE not in said:
        said[ENDED] = said[ENDED] or "the process that ran it was ended"
    return said


def _end(child: "subprocess.Popen[bytes]", seconds: float) -> None:
    """Have the supervisor end the notebook's processes, and end it."""
    assert child.stdin is not None
    child.stdin.close()
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _said(lines: bytes) -> Dict[str, str]:
    """The last text of each kind, but the first note."""
    said: Dict[str, str] = {}
    for line in lines.splitlines():
        for kind, text in _object(line).items():
            if isinstance(text, str) and not (kind == NOTE and NOTE in said):
                said[kind] = text
    return said


def _object(line: bytes) -> Dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = {}
    return value if isinstance(value, dict) else {}


def as_csv(grades: Sequence[Grade]) -> str:
    """A line per notebook: its path, a status per exercise, how many passed, and the note."""
    ids = sorted({id for one in grades for id in one.statuses}, key=in_order)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["notebook", *ids, "passed", "note"])
    for one in grades:
        statuses = (one.statuses.get(id, "") for id in ids)
        writer.writerow(map(_plain, [one.notebook, *statuses, one.passed, one.note]))
    return out.getvalue()


def _plain(value: object) -> str:
    """A cell's text, on one line; a spreadsheet would execute what begins with one of FORMULA."""
    text = printable(str(value))
    return f"'{text}" if text.lstrip()[:1] in FORMULA else text


def _verdicts(path: Path, known: Mapping[str, str]) -> Dict[str, str]:
    """The last status of each exercise.

    Lines that are no verdicts can only come from a student's own code, and are ignored, as is a
    file that no checks write: a link, or one of more than MOST_SAID bytes.
    """
    found: Dict[str, str] = {}
    try:
        lines = read_bounded(path, MOST_SAID, follow=False).splitlines()
    except (OSError, DataError):
        lines = []
    for line in lines:
        verdict = _object(line)
        id, status = verdict.get("exercise"), verdict.get("status")
        if isinstance(id, str) and id in known and status in STATUSES:
            found[id] = str(status)
    return found
