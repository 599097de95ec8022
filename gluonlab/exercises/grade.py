"""Grade students' notebooks, several at a time: the verdicts of each notebook's checks."""

from __future__ import annotations

import os
import threading
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, Generator, Iterable, Iterator, List, Optional, Sequence

from gluonlab.errors import ExerciseError, NotebookError
from gluonlab.exercises.bounds import Bounds, within_room
from gluonlab.exercises.exercise import all_exercises
from gluonlab.exercises.kernel import missing
from gluonlab.exercises.process import LOOK_S, Outcome, run_in_processes
from gluonlab.exercises.verdict import PASSED
from gluonlab.plain import one_line

UNCHECKED = "unchecked"  # its notebook does not ask check() any more, or stopped before
HIDDEN = (
    "right for the cases that its check shows, wrong for others: "
    "it must be right for every input that the exercise allows"
)

# Runs a notebook within bounds, with the cases of a seed, until it ends or the event is set.
Runner = Callable[[Path, Bounds, Optional[int], threading.Event], Outcome]


@dataclass
class Grade:
    """One notebook: the status of each exercise of its lab, and the error that stopped it.

    ``sentences``: what its checkers say of the exercises that did not pass; ``micros``: what right
    answers cost, of exercises in which that counts.
    """

    notebook: Path
    statuses: Dict[str, str] = field(default_factory=dict)
    note: str = ""
    sentences: Dict[str, str] = field(default_factory=dict)
    lab: str = ""
    micros: Dict[str, float] = field(default_factory=dict)

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


def grade(
    notebooks: Sequence[Path],
    seconds: float,
    *,
    jobs: int = 1,
    seed: Optional[int] = None,
    reveal: bool = False,
    runner: Optional[Runner] = None,
    **bounds: Any,
) -> Generator[Grade, None, None]:
    """Run notebooks, ``jobs`` at a time, each for at most ``seconds``; yield grades as they come.

    Of several verdicts on one exercise the last counts. A cell that raises does not end the
    notebook; its error becomes the note, as whatever else is wrong with the notebook does.
    ``seed``: draw further cases that the notebooks do not show; ``reveal``: let sentences name
    them. ``runner``: where the notebooks run, by default in processes of this machine. ``bounds``:
    others than `Bounds` has, in memory for example. Whoever stops the iteration ends all that runs.

    The default is no protection against somebody who wants to cheat: a notebook's code may do all
    that the person may who runs this. Raises NotebookError where notebooks cannot be run.
    """
    fault = "" if runner else missing()
    if fault:
        raise NotebookError(fault)
    run, stop = runner or run_in_processes, threading.Event()
    limits = within_room(Bounds(seconds, **bounds), jobs)

    def one(path: Path) -> Grade:
        try:
            return _grade(path, run(path, limits, seed, stop), reveal)
        except OSError as error:  # the disk is full, for example
            return Grade(path, note=one_line(f"cannot be run ({error})"))

    with ThreadPoolExecutor(jobs) as pool:
        futures: List["Future[Grade]"] = [pool.submit(one, path) for path in notebooks]
        try:
            pending = set(futures)
            while pending:
                # not for longer: Ctrl-C may reach another thread, and wakes no lock then
                done, pending = wait(pending, LOOK_S, FIRST_COMPLETED)
                for future in filter(done.__contains__, futures):
                    yield future.result()
        finally:
            for future in futures:
                future.cancel()
            stop.set()


def _grade(path: Path, outcome: Outcome, reveal: bool) -> Grade:
    made = Grade(path, note=outcome.note, lab=outcome.lab)
    for id in (one.id for one in all_exercises() if one.id.startswith(f"{outcome.lab}-")):
        found = outcome.verdicts.get(id)
        made.statuses[id] = found.status if found else UNCHECKED
        if found and found.status != PASSED:
            made.sentences[id] = HIDDEN if found.hidden and not reveal else found.sentence
        if found and found.micros is not None:
            made.micros[id] = found.micros
    return made


def in_order_of(notebooks: Sequence[Path], grades: Iterable[Grade]) -> List[Grade]:
    """The grades in the order of the notebooks, as far as there are any."""
    by_path = {one.notebook: one for one in grades}
    return [by_path[path] for path in notebooks if path in by_path]
