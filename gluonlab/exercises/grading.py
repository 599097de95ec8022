"""Grade many notebooks, several at a time, and write tables of the grades.

Which student handed a notebook in is told by its path, as Canvas, nbgrader and Gradescope write it:

==========  ======================================================================================
Canvas      ``lovelaceada_LATE_12345_678901_lab02.ipynb``: a name, LATE, the user's number, the
            file's number, and the name that the file had
nbgrader    ``submitted/STUDENT/ASSIGNMENT/NOTEBOOK.ipynb``, ``autograded/..`` and so on
Gradescope  ``submission_123/..``
otherwise   the notebook's folder below the one that was given; in that one itself, its own name
==========  ======================================================================================
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import threading
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import (
    Any,
    Callable,
    Dict,
    Generator,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
)

from gluonlab.errors import DataError, ExerciseError, NotebookError
from gluonlab.exercises.checkers import PASSED, all_exercises, find, in_order
from gluonlab.exercises.notebook_runners import LOOK_S, NotebookResult, run_in_processes
from gluonlab.exercises.run_submission import missing
from gluonlab.exercises.supervisor import Bounds, within_room
from gluonlab.files.atomic_files import read_bounded, write_text
from gluonlab.plain_text import escape_unprintable, one_line, to_plain_name

_MOST_TABLE_BYTES = 2**26  # of a table of grades that is read
_COUNTED = "04-6"  # the exercise in which the cost of right answers counts
UNCHECKED = "unchecked"  # its notebook does not ask check() any more, or stopped before
HIDDEN = (
    "right for the cases that its check shows, wrong for others: "
    "it must be right for every input that the exercise allows"
)

# Runs a notebook within bounds, with the cases of a seed, until it ends or the event is set.
Runner = Callable[[Path, Bounds, Optional[int], threading.Event], NotebookResult]


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


def _grade(path: Path, outcome: NotebookResult, reveal: bool) -> Grade:
    made = Grade(path, note=outcome.note, lab=outcome.lab)
    for id in (one.id for one in all_exercises() if one.id.startswith(f"{outcome.lab}-")):
        found = outcome.verdicts.get(id)
        made.statuses[id] = found.status if found else UNCHECKED
        if found and found.status != PASSED:
            made.sentences[id] = HIDDEN if found.hidden and not reveal else found.message
        if found and found.micros is not None:
            made.micros[id] = found.micros
    return made


def in_order_of(notebooks: Sequence[Path], grades: Iterable[Grade]) -> List[Grade]:
    """The grades in the order of the notebooks, as far as there are any."""
    by_path = {one.notebook: one for one in grades}
    return [by_path[path] for path in notebooks if path in by_path]


# --- The table of comma-separated values, in which a spreadsheet executes nothing


# What a formula begins with in a spreadsheet, the wide forms of East Asian keyboards included.
_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")


def as_csv(grades: Sequence[Grade]) -> str:
    """A line per notebook: its path, a status per exercise, how many passed, note and sentences.

    Where a right answer has a cost, a column for each such exercise follows, such as ``04-6 us``.
    """
    ids = sorted({id for one in grades for id in one.statuses}, key=in_order)
    costs = sorted({id for one in grades for id in one.micros}, key=in_order)
    lines = [["notebook", *ids, "passed", "note", "sentences", *map(_cost_column, costs)]]
    for one in grades:
        statuses = (one.statuses.get(id, "") for id in ids)
        said = "; ".join(f"{id}: {text}" for id, text in one.sentences.items() if text)
        micros = (f"{one.micros[id]:.3f}" if id in one.micros else "" for id in costs)
        lines.append([str(one.notebook), *statuses, str(one.passed), one.note, said, *micros])
    return _in_csv(lines)


def _cost_column(id: str) -> str:
    """The name of the column with what answers to this exercise cost, in microseconds."""
    return f"{id} us"


def _in_csv(lines: Iterable[Sequence[str]]) -> str:
    """The lines as text, with no cell that a spreadsheet would execute."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for line in lines:
        writer.writerow(map(_plain, line))
    return out.getvalue()


def _plain(value: str) -> str:
    """A cell's text, on one line; a spreadsheet would execute what begins with one of _FORMULA."""
    text = escape_unprintable(value)
    return f"'{text}" if text.lstrip()[:1] in _FORMULA else text


# --- Who handed a notebook in


_CANVAS = re.compile(r"(?P<name>.+?)(_LATE)?_(?P<user>\d+)_(?P<file>\d+)_.+")
_NBGRADER = ("submitted", "autograded", "feedback")
_GRADESCOPE = re.compile(r"submission_\d+")


class Student(NamedTuple):
    """``name``: what tells them from others; ``canvas_id`` and ``login`` if they are known."""

    name: str
    canvas_id: str = ""
    login: str = ""


def roots_of(given: Sequence[Path]) -> List[Path]:
    """The folders that hold several students: those given, or that of several files given."""
    folders = [path.parent for path in given if not path.is_dir()]
    shared = [folder for folder in dict.fromkeys(folders) if folders.count(folder) > 1]
    return [path for path in given if path.is_dir()] + shared


def student_of(path: Path, roots: Sequence[Path] = ()) -> Student:
    """The student who handed in the notebook of this path; ``roots``: of `roots_of`."""
    canvas = _CANVAS.fullmatch(path.name)
    if canvas:
        return Student(canvas["name"], canvas["user"])
    folders = path.parts[:-1]
    for folder, below in zip(folders, folders[1:]):
        if folder in _NBGRADER:
            return Student(below, login=below)
    for folder in folders:
        if _GRADESCOPE.fullmatch(folder):
            return Student(folder)
    for root in roots:
        if root in path.parents:
            inside = path.parent.relative_to(root)
            return Student(inside.as_posix() if inside.parts else path.stem)
    return Student(path.parent.name or path.stem)


# --- The file that Canvas's gradebook imports: a row per student, a column per lab


# As its export begins. It finds a student by ID, else by SIS Login ID, else by name.
_CANVAS_COLUMNS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
_CANVAS_POINTS = "    Points Possible"  # the export indents it


def as_canvas(
    grades: Sequence[Grade], assignments: Dict[str, str], roots: Sequence[Path] = ()
) -> str:
    """Of several notebooks of a student for one lab, the one with most points counts.

    A cell stays empty where no notebook could be read as one of that lab. ``assignments``: the
    names that labs have in Canvas; one that it does not know is ``Lab 02``. ``roots``: the folders
    that hold students.
    """
    labs = sorted({one.lab for one in grades if one.lab})
    most = {one.lab: len(one.statuses) for one in grades if one.lab}
    points: Dict[Student, Dict[str, int]] = {}
    for one in grades:
        own = points.setdefault(student_of(one.notebook, roots), {})
        if one.lab:
            own[one.lab] = max(one.passed, own.get(one.lab, 0))
    names = [assignments.get(lab, f"Lab {lab}") for lab in labs]
    lines: List[Sequence[str]] = [[*_CANVAS_COLUMNS, *names]]
    lines.append([_CANVAS_POINTS, "", "", "", "", *(str(most[lab]) for lab in labs)])
    for student, own in points.items():
        known = [student.name, student.canvas_id, "", student.login, ""]
        lines.append([*known, *(str(own.get(lab, "")) for lab in labs)])
    return _in_csv(lines)


# --- The results.json that Gradescope reads from an autograder


def as_gradescope(grade: Grade) -> Dict[str, Any]:
    """An exercise is a test of one point; what its checker says is the test's output."""
    tests = [_test(grade, id) for id in sorted(grade.statuses, key=in_order)]
    return dict(
        score=grade.passed,
        output=grade.note or f"{grade.passed} of {len(tests)} exercises are right.",
        output_format="text",
        visibility="visible",
        stdout_visibility="hidden",  # what the grader itself prints
        tests=tests,
    )


def _test(grade: Grade, id: str) -> Dict[str, Any]:
    status = grade.statuses[id]
    return dict(
        name=f"{id} {find(id).summary}",
        number=id,
        score=int(status == PASSED),
        max_score=1,
        status="passed" if status == PASSED else "failed",
        output=": ".join(filter(None, [status, grade.sentences.get(id, "")])),
        output_format="text",
        visibility="visible",
    )


def check_place(place: Path, notebooks: Sequence[Path]) -> None:
    """Raise ExerciseError where several notebooks are to go into one file."""
    if place.suffix == ".json" and len(notebooks) > 1:
        raise ExerciseError(
            f"--gradescope {place}: a file holds the results of one notebook, {len(notebooks)} are "
            f"given: name a new folder, such as {place.stem}"
        )


def write_results(place: Path, grades: Sequence[Grade]) -> None:
    """Write ``place`` itself if it ends in .json, or a file for each notebook into that folder."""
    if place.suffix == ".json":
        paths = [place] * len(grades)
    else:
        place.mkdir(exist_ok=True)
        paths = [place / f"{number}-{_name(one)}.json" for number, one in enumerate(grades, 1)]
    for path, one in zip(paths, grades):
        write_text(path, json.dumps(as_gradescope(one), ensure_ascii=False, indent=1) + "\n")


def _name(grade: Grade) -> str:
    path = grade.notebook
    return to_plain_name(f"{path.parent.name}-{path.stem}".strip("-"), "notebook")


# --- The leaderboard of right answers whose cost counts, by cost


class LeaderboardPlace(NamedTuple):
    """A row: its place, which equal costs share, its cost in microseconds, and its notebook."""

    place: int
    micros: float
    notebook: str


def leaderboard(path: Path) -> List[LeaderboardPlace]:
    """The places by the table ``path`` that `exercises grade` wrote, the lowest cost first.

    A notebook without a right answer is in none, nor is one with a schedule of gluonlab's own
    solver: the grade has no cost for it. Raises ExerciseError for a file that is no such table.
    """
    rows = sorted(_costs(path))
    costs = [micros for micros, _ in rows]
    return [
        LeaderboardPlace(costs.index(micros) + 1, micros, notebook) for micros, notebook in rows
    ]


def _costs(path: Path) -> "List[tuple[float, str]]":
    try:
        text = read_bounded(path, _MOST_TABLE_BYTES).decode("utf-8-sig")
        table = list(csv.DictReader(io.StringIO(text)))
    except OSError as error:
        raise ExerciseError(
            f"{path} cannot be read ({error.strerror}): give the table that `exercises grade` wrote"
        ) from None
    except (DataError, UnicodeDecodeError, csv.Error) as error:
        raise ExerciseError(
            f"{path} is no table of grades: {escape_unprintable(str(error))[:200]}"
        ) from None
    column = _cost_column(_COUNTED)
    if not table or "notebook" not in table[0] or column not in table[0]:
        raise ExerciseError(
            f"{path} has no column {column!r}: grade notebooks of lab {_COUNTED[:2]} with `python "
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
            f"{path}, line {line}: {escape_unprintable(text)[:40]!r} is no time in microseconds: "
            "give the table as `exercises grade` wrote it"
        )
    return micros


def leaderboard_text(places: Sequence[LeaderboardPlace], best_us: float, floor_us: float) -> str:
    """A line for each place, below what they are compared with."""
    lines = [
        f"exercise {_COUNTED}: microseconds, and how many times the floor of {floor_us:,.1f}",
        f"{'':>5}{best_us:>12,.1f}{best_us / floor_us:>8.3f}x  the best of the eight algorithms",
    ]
    for one in places:
        times = f"{one.micros / floor_us:.3f}x"
        lines.append(
            f"{one.place:>4}.{one.micros:>12,.1f}{times:>9}  {escape_unprintable(one.notebook)}"
        )
    return "\n".join(lines if places else [*lines, "no notebook has a right answer that counts"])
