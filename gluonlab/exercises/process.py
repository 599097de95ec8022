"""Run one notebook in processes of its own, below a supervisor, and read what they say of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional

import gluonlab
from gluonlab.errors import DataError
from gluonlab.exercises.bounds import Bounds
from gluonlab.exercises.cases import SEED
from gluonlab.exercises.exercise import all_exercises
from gluonlab.exercises.submission import CELL, DONE, LAB, NOTE, VERDICTS
from gluonlab.exercises.supervisor import ENDED
from gluonlab.exercises.verdict import PASSED, RAISED, TOO_SLOW, UNWRITTEN, WRONG
from gluonlab.files.whole import read_bounded, temporary_folder
from gluonlab.plain import one_line

STATUSES = (PASSED, WRONG, UNWRITTEN, RAISED, TOO_SLOW)
MOST_SAID = 2**22  # bytes that are read of what a notebook's processes say of it
LONGEST_NOTE = 1000  # characters; of a checker's sentence, too
MOST_MICROS = 1e12  # that a schedule may cost
LOOK_S = 0.1  # between two looks at whether everything is to stop


class Found(NamedTuple):
    """The last verdict on an exercise.

    ``hidden`` if cases decided that a student is not shown; ``micros``: what a right answer costs.
    """

    status: str
    sentence: str = ""
    hidden: bool = False
    micros: Optional[float] = None


class Outcome(NamedTuple):
    """What came out of one notebook: its lab, if it is of one, verdicts, and what went wrong."""

    lab: str = ""
    verdicts: Mapping[str, Found] = {}
    note: str = ""


def run_in_processes(
    path: Path, bounds: Bounds, seed: Optional[int], stop: threading.Event
) -> Outcome:
    """Run the notebook until it ends, or ``stop`` is set. Raises OSError, for a full disk say."""
    with temporary_folder("grade") as folder:
        said = _run(path, folder, bounds, seed, stop)
        faults = [said.get(NOTE, "")]
        if said[ENDED]:
            faults.append(": ".join(filter(None, [said.get(CELL), said[ENDED]])))
        note, lines = "; ".join(filter(None, faults)), _lines(folder / VERDICTS)
        return checked(said.get(LAB), note, ((line.get("exercise"), line) for line in lines))


def checked(lab: Any, note: Any, verdicts: Any) -> Outcome:
    """An Outcome of what may have been forged: nothing of another kind gets into it.

    ``verdicts``: pairs of an exercise's id and an object with status, message, hidden and micros.
    """
    exercises = {one.id for one in all_exercises()}
    lab = lab if isinstance(lab, str) and any(id.startswith(f"{lab}-") for id in exercises) else ""
    found: Dict[str, Found] = {}
    for id, about in verdicts:
        known = isinstance(id, str) and id in exercises and id.startswith(f"{lab}-")
        if known and isinstance(about, dict) and about.get("status") in STATUSES:
            sentence = about.get("message")
            text = one_line(sentence)[:LONGEST_NOTE] if isinstance(sentence, str) else ""
            micros = _cost(about.get("micros")) if about["status"] == PASSED else None
            found[id] = Found(str(about["status"]), text, about.get("hidden") is True, micros)
    return Outcome(lab, found, one_line(note)[:LONGEST_NOTE] if isinstance(note, str) else "")


def _cost(given: Any) -> Optional[float]:
    """A number above 0, or None."""
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
    return float(given) if is_number and 0 < given < MOST_MICROS else None


def as_object(line: bytes) -> Dict[str, Any]:
    """The object of JSON on a line; an empty one for anything else."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = {}
    return value if isinstance(value, dict) else {}


def _run(
    path: Path, folder: Path, bounds: Bounds, seed: Optional[int], stop: threading.Event
) -> Dict[str, str]:
    """What was said of a notebook last, of each kind: LAB, CELL, NOTE and ENDED.

    The supervisor, and so all that it has started, ends with the file that it reads from.
    """
    words = [json.dumps(vars(bounds)), str(folder)]
    submission = [sys.executable, "-m", "gluonlab.exercises.submission", *words]
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen(
            [sys.executable, "-m", "gluonlab.exercises.supervisor", *words]
            + [*submission, str(path.absolute())],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.DEVNULL,
            cwd=folder,  # empty: Python would load modules from the current one
            env=_environment(seed),
            start_new_session=True,  # Ctrl-C is for the grader
        )
        try:
            wait(child, bounds.seconds + 2 * bounds.spare_seconds, stop)
        finally:
            _end(child, bounds.spare_seconds)
        out.seek(0)
        said = _said(out.read(MOST_SAID))
    if ENDED not in said:
        said[ENDED] = "the process that watches over it was ended; it may have left others running"
    elif DONE not in said:
        said[ENDED] = said[ENDED] or "the process that ran it was ended"
    return said


def _environment(seed: Optional[int]) -> Dict[str, str]:
    package = str(Path(gluonlab.__file__).resolve().parent.parent)
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [str(Path(part).absolute()) for part in given if part]
    changes = {"PYTHONPATH": os.pathsep.join([package, *kept])}
    environment = {name: value for name, value in os.environ.items() if name != SEED}
    return {**environment, **changes, **({} if seed is None else {SEED: str(seed)})}


def wait(child: "subprocess.Popen[bytes]", seconds: float, stop: threading.Event) -> bool:
    """Wait for a process, for at most ``seconds`` and until ``stop``; whether it has ended."""
    end = time.monotonic() + seconds
    while not stop.is_set() and time.monotonic() < end:
        with suppress(subprocess.TimeoutExpired):
            child.wait(LOOK_S)
            return True
    return child.poll() is not None


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
        for kind, text in as_object(line).items():
            if isinstance(text, str) and not (kind == NOTE and NOTE in said):
                said[kind] = text
    return said


def _lines(path: Path) -> List[Dict[str, Any]]:
    """The verdicts in a file.

    A file that no checks write is as an empty one: a link, or one of more than MOST_SAID bytes.
    """
    try:
        lines = read_bounded(path, MOST_SAID, follow=False).splitlines()
    except (OSError, DataError):
        lines = []
    return [as_object(line) for line in lines]
