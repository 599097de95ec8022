"""Grade many notebooks, several at a time, and write tables of the grades.

A student is identified by the notebook's path, which has the form that the learning platform uses:

==========  ======================================================================================
Canvas      ``lovelaceada_LATE_12345_678901_lab02.ipynb``: a name, LATE, the user's number, the
            file's number, and the original name of the file
nbgrader    ``submitted/STUDENT/ASSIGNMENT/NOTEBOOK.ipynb``, ``autograded/..`` and so on
Gradescope  ``submission_123/..``
otherwise   the notebook's folder, relative to the given folder, or the notebook's name if the
            notebook is directly in the given folder
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
from typing import Any, Callable, Dict, Generator, Iterable, Iterator, List, NamedTuple, Optional, Sequence

from gluonlab.errors import DataError, ExerciseError, NotebookError
from gluonlab.exercises.exercise_registry import PASSED, all_exercises, find_exercise, id_sort_key
from gluonlab.exercises.notebook_runners import POLL_S, NotebookResult, run_in_processes
from gluonlab.exercises.run_submission import missing_packages
from gluonlab.exercises.supervisor import Bounds, fit_memory
from gluonlab.files.atomic_files import read_bounded, write_text
from gluonlab.plain_text import escape_unprintable, one_line, to_plain_name

_MAX_TABLE_BYTES = 2**26  # larger tables of grades are not read
_LEADERBOARD_EXERCISE = "04-6"  # the exercise in which the cost of right answers counts
UNCHECKED = "unchecked"  # the notebook does not contain the check() call, or stopped before this call
HIDDEN_CASE_FAILED = (
    "correct for the cases that its check shows, but wrong for other cases: it must work for every input that the "
    "exercise allows"
)

# A function that runs a notebook, with bounds and a seed, until the notebook ends or the event is
# set.
Runner = Callable[[Path, Bounds, Optional[int], threading.Event], NotebookResult]


@dataclass
class Grade:
    """One notebook's grade: the status of each exercise in its lab, and a note about errors.

    ``statuses``, ``sentences`` and ``micros`` have the exercises' ids as keys. ``sentences``: the
    checkers' messages about exercises that did not pass. ``micros``: the costs of right answers in
    microseconds.
    """

    notebook: Path
    statuses: Dict[str, str] = field(default_factory=dict)
    note: str = ""
    sentences: Dict[str, str] = field(default_factory=dict)
    lab: str = ""
    micros: Dict[str, float] = field(default_factory=dict)

    @property
    def passed_count(self) -> int:
        """The number of exercises that passed."""
        return sum(status == PASSED for status in self.statuses.values())


def find_notebooks(paths: Sequence[Path]) -> List[Path]:
    """Return the given notebooks and all notebooks below the given folders.

    Raises ExerciseError for a path that does not exist, or a folder without notebooks.
    """
    notebooks: List[Path] = []
    for path in paths:
        in_folder = sorted(_notebooks_under(path)) if os.path.isdir(path) else [path]
        notebooks += in_folder
        exists = os.path.lexists(path)
        if not exists or not in_folder:
            fault = "no notebook was found in" if exists else "cannot find"
            raise ExerciseError(f"{fault} {path}: pass notebooks, or folders that contain notebooks")
    return list(dict.fromkeys(notebooks))


def _notebooks_under(folder: Path) -> Iterator[Path]:
    """Yield the notebooks below a folder, but skip hidden, unreadable and linked folders."""
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
    """Run notebooks, ``jobs`` at a time, and yield their grades as they finish.

    If an exercise has several verdicts, the last verdict counts. If a cell raises an error, the
    next cell still runs, and the first error becomes the grade's note. Closing the generator ends
    all running notebooks.

    The default runner does not protect against cheating. The code in a notebook has all permissions
    of the person who grades.

    Args:
        notebooks: the files to grade.
        seconds: the time limit of one notebook.
        jobs: the number of notebooks that run at the same time.
        seed: the seed for additional cases, which students do not see.
        reveal: whether messages may describe these additional cases.
        runner: the function that runs a notebook. The default is `run_in_processes`, which uses
            processes on this machine.
        bounds: limits that replace the defaults of `Bounds`, such as ``memory`` in bytes.

    Raises:
        NotebookError: no notebook can be run, for example because a package is missing.
    """
    fault = "" if runner else missing_packages()
    if fault:
        raise NotebookError(fault)
    run, stop = runner or run_in_processes, threading.Event()
    limits = fit_memory(Bounds(seconds, **bounds), jobs)

    def grade_notebook(path: Path) -> Grade:
        """Run and grade one notebook. If the notebook cannot be run, the grade has only a note."""
        try:
            return _make_grade(path, run(path, limits, seed, stop), reveal)
        except OSError as error:  # the disk is full, for example
            return Grade(path, note=one_line(f"cannot be run ({error})"))

    with ThreadPoolExecutor(jobs) as pool:
        futures: List["Future[Grade]"] = [pool.submit(grade_notebook, path) for path in notebooks]
        try:
            pending = set(futures)
            while pending:
                # The timeout is short, because a Ctrl-C in another thread does not end this wait.
                done, pending = wait(pending, POLL_S, FIRST_COMPLETED)
                for future in filter(done.__contains__, futures):
                    yield future.result()
        finally:
            for future in futures:
                future.cancel()
            stop.set()


def _make_grade(path: Path, notebook_result: NotebookResult, reveal: bool) -> Grade:
    """Return the grade of a notebook that has run.

    ``reveal``: whether messages may describe the additional cases that students do not see.
    """
    grade = Grade(path, note=notebook_result.note, lab=notebook_result.lab)
    for id in (one.id for one in all_exercises() if one.id.startswith(f"{notebook_result.lab}-")):
        result = notebook_result.verdicts.get(id)
        grade.statuses[id] = result.status if result else UNCHECKED
        if result and result.status != PASSED:
            grade.sentences[id] = HIDDEN_CASE_FAILED if result.hidden and not reveal else result.message
        if result and result.micros is not None:
            grade.micros[id] = result.micros
    return grade


def sort_by_notebooks(notebooks: Sequence[Path], grades: Iterable[Grade]) -> List[Grade]:
    """Return the grades in the order of ``notebooks``. Some notebooks may have no grade."""
    by_path = {grade.notebook: grade for grade in grades}
    return [by_path[path] for path in notebooks if path in by_path]


# --- The table of grades as CSV, safe to open in a spreadsheet


# Characters that start a formula in a spreadsheet, and their full-width forms.
_FORMULA_STARTS = tuple("=+-@\uff1d\uff0b\uff0d\uff20")


def as_csv(grades: Sequence[Grade]) -> str:
    """Return the table of grades, with one line per notebook.

    The columns are the path, the status of each exercise, the number of exercises that passed, the
    note and the messages. A column such as ``04-6 us`` follows for each exercise with costs.
    """
    ids = sorted({id for grade in grades for id in grade.statuses}, key=id_sort_key)
    costs = sorted({id for grade in grades for id in grade.micros}, key=id_sort_key)
    lines = [["notebook", *ids, "passed", "note", "sentences", *map(_cost_column, costs)]]
    for grade in grades:
        statuses = (grade.statuses.get(id, "") for id in ids)
        sentences = "; ".join(f"{id}: {text}" for id, text in grade.sentences.items() if text)
        micros = (f"{grade.micros[id]:.3f}" if id in grade.micros else "" for id in costs)
        lines.append([str(grade.notebook), *statuses, str(grade.passed_count), grade.note, sentences, *micros])
    return _format_csv(lines)


def _cost_column(id: str) -> str:
    """Return the name of the column with an exercise's costs in microseconds."""
    return f"{id} us"


def _format_csv(lines: Iterable[Sequence[str]]) -> str:
    """Return the lines as CSV, and escape cells that a spreadsheet would execute."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for line in lines:
        writer.writerow(map(_escape_cell, line))
    return out.getvalue()


def _escape_cell(value: str) -> str:
    """Return a cell's text on one line, with a quote in front if it looks like a formula."""
    text = escape_unprintable(value)
    return f"'{text}" if text.lstrip()[:1] in _FORMULA_STARTS else text


# --- The student of a notebook


_CANVAS = re.compile(r"(?P<name>.+?)(_LATE)?_(?P<user>\d+)_(?P<file>\d+)_.+")
_NBGRADER = ("submitted", "autograded", "feedback")
_GRADESCOPE = re.compile(r"submission_\d+")


class Student(NamedTuple):
    """A student. ``name`` identifies the student; ``canvas_id`` and ``login`` may be empty."""

    name: str
    canvas_id: str = ""
    login: str = ""


def find_shared_folders(paths: Sequence[Path]) -> List[Path]:
    """Return the folders that contain the notebooks of several students.

    These are the folders in ``paths``, and the parents of two or more files in ``paths``.
    """
    folders = [path.parent for path in paths if not path.is_dir()]
    shared = [folder for folder in dict.fromkeys(folders) if folders.count(folder) > 1]
    return [path for path in paths if path.is_dir()] + shared


def identify_student(path: Path, roots: Sequence[Path] = ()) -> Student:
    """Return the student who submitted the notebook.

    ``roots``: the folders from `find_shared_folders`.
    """
    canvas = _CANVAS.fullmatch(path.name)
    if canvas:
        return Student(canvas["name"], canvas["user"])
    folders = path.parts[:-1]
    for folder, subfolder in zip(folders, folders[1:]):
        if folder in _NBGRADER:
            return Student(subfolder, login=subfolder)
    for folder in folders:
        if _GRADESCOPE.fullmatch(folder):
            return Student(folder)
    for root in roots:
        if root in path.parents:
            relative = path.parent.relative_to(root)
            return Student(relative.as_posix() if relative.parts else path.stem)
    return Student(path.parent.name or path.stem)


# --- The file that Canvas's gradebook imports: a row per student, a column per lab


# First columns of Canvas's export. Canvas looks up a student by ID, SIS Login ID, or name.
_CANVAS_COLUMNS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
_CANVAS_POINTS = "    Points Possible"  # with the spaces of Canvas's export


def as_canvas(grades: Sequence[Grade], assignments: Dict[str, str], roots: Sequence[Path] = ()) -> str:
    """Return the file for Canvas's gradebook import, with a row per student and a column per lab.

    If a student has several notebooks for a lab, the notebook with the most points counts. A cell
    is empty if the student has no readable notebook for the lab.

    Args:
        grades: the grades of all notebooks.
        assignments: the name of each lab in Canvas. The default name of lab 02 is ``Lab 02``.
        roots: the folders from `find_shared_folders`.
    """
    labs = sorted({grade.lab for grade in grades if grade.lab})
    possible_points = {grade.lab: len(grade.statuses) for grade in grades if grade.lab}
    points: Dict[Student, Dict[str, int]] = {}
    for grade in grades:
        student_points = points.setdefault(identify_student(grade.notebook, roots), {})
        if grade.lab:
            student_points[grade.lab] = max(grade.passed_count, student_points.get(grade.lab, 0))
    names = [assignments.get(lab, f"Lab {lab}") for lab in labs]
    lines: List[Sequence[str]] = [[*_CANVAS_COLUMNS, *names]]
    lines.append([_CANVAS_POINTS, "", "", "", "", *(str(possible_points[lab]) for lab in labs)])
    for student, student_points in points.items():
        identity = [student.name, student.canvas_id, "", student.login, ""]
        lines.append([*identity, *(str(student_points.get(lab, "")) for lab in labs)])
    return _format_csv(lines)


# --- The results.json that Gradescope reads from an autograder


def as_gradescope(grade: Grade) -> Dict[str, Any]:
    """Return a grade in the format of Gradescope's results.json, with one point per exercise."""
    tests = [_gradescope_test(grade, id) for id in sorted(grade.statuses, key=id_sort_key)]
    return dict(
        score=grade.passed_count,
        output=grade.note or f"{grade.passed_count} of {len(tests)} exercises are correct.",
        output_format="text",
        visibility="visible",
        stdout_visibility="hidden",  # the output of the grader itself
        tests=tests,
    )


def _gradescope_test(grade: Grade, id: str) -> Dict[str, Any]:
    """Return the result of one exercise as a test in Gradescope's format."""
    status = grade.statuses[id]
    return dict(
        name=f"{id} {find_exercise(id).summary}",
        number=id,
        score=int(status == PASSED),
        max_score=1,
        status="passed" if status == PASSED else "failed",
        output=": ".join(filter(None, [status, grade.sentences.get(id, "")])),
        output_format="text",
        visibility="visible",
    )


def check_results_path(target: Path, notebooks: Sequence[Path]) -> None:
    """Raise ExerciseError if one file is given for the results of several notebooks."""
    if target.suffix == ".json" and len(notebooks) > 1:
        raise ExerciseError(
            f"--gradescope {target}: one file can contain the results of only one notebook, but there are "
            f"{len(notebooks)} notebooks: pass a new folder, such as {target.stem}"
        )


def write_results(target: Path, grades: Sequence[Grade]) -> None:
    """Write the grade of each notebook as a JSON file for Gradescope.

    ``target``: a .json file for a single notebook, or a folder for one file per notebook.
    """
    if target.suffix == ".json":
        paths = [target] * len(grades)
    else:
        target.mkdir(exist_ok=True)
        paths = [target / f"{number}-{_results_file_name(grade)}.json" for number, grade in enumerate(grades, 1)]
    for path, grade in zip(paths, grades):
        write_text(path, json.dumps(as_gradescope(grade), ensure_ascii=False, indent=1) + "\n")


def _results_file_name(grade: Grade) -> str:
    path = grade.notebook
    return to_plain_name(f"{path.parent.name}-{path.stem}".strip("-"), "notebook")


# --- The leaderboard: right answers of exercise 04-6, by cost


class LeaderboardPlace(NamedTuple):
    """A row of the leaderboard: the place, the cost in microseconds, and the notebook's path.

    Notebooks with equal costs have the same place.
    """

    place: int
    micros: float
    notebook: str


def read_leaderboard(path: Path) -> List[LeaderboardPlace]:
    """Return the leaderboard, with the lowest cost first.

    ``path``: the table that `exercises grade` wrote. Notebooks without a cost are left out, because
    their answer is wrong, or is a schedule that gluonlab's own solver found. Raises ExerciseError
    if the file is not a table of grades.
    """
    rows = sorted(_read_costs(path))
    costs = [micros for micros, _ in rows]
    return [LeaderboardPlace(costs.index(micros) + 1, micros, notebook) for micros, notebook in rows]


def _read_costs(path: Path) -> "List[tuple[float, str]]":
    """Return (cost in microseconds, notebook) for each row of the table that has a cost."""
    try:
        text = read_bounded(path, _MAX_TABLE_BYTES).decode("utf-8-sig")
        table = list(csv.DictReader(io.StringIO(text)))
    except OSError as error:
        raise ExerciseError(
            f"{path} cannot be read ({error.strerror}): pass the table that `gluonlab exercises grade` wrote"
        ) from None
    except (DataError, UnicodeDecodeError, csv.Error) as error:
        raise ExerciseError(
            f"{path} is not a table of grades ({escape_unprintable(str(error))[:200]}): pass the table that "
            "`gluonlab exercises grade` wrote"
        ) from None
    column = _cost_column(_LEADERBOARD_EXERCISE)
    if not table or "notebook" not in table[0] or column not in table[0]:
        raise ExerciseError(
            f"{path} does not contain the column {column!r}: grade lab {_LEADERBOARD_EXERCISE[:2]} notebooks with "
            f"`gluonlab exercises grade`, which adds this column if a notebook passes exercise {_LEADERBOARD_EXERCISE}"
        )
    costs = []
    for number, row in enumerate(table, 2):
        if row[column]:
            costs.append((_parse_micros(path, number, row[column]), row["notebook"] or ""))
    return costs


def _parse_micros(path: Path, line: int, text: str) -> float:
    """Parse a cell with microseconds. ``line``: the line of the table, for the error message."""
    try:
        micros = float(text)
    except ValueError:
        micros = math.nan
    if not 0 < micros < math.inf:
        raise ExerciseError(
            f"{path}, line {line}: {escape_unprintable(text)[:40]!r} is not a time in microseconds: pass the table "
            "unchanged, as `gluonlab exercises grade` wrote it"
        )
    return micros


def format_leaderboard(places: Sequence[LeaderboardPlace], best_us: float, floor_us: float) -> str:
    """Return the leaderboard as text, preceded by two costs for comparison.

    ``best_us``: the cost of the best of gluonlab's eight algorithms. ``floor_us``: the lower bound.
    """
    lines = [
        f"exercise {_LEADERBOARD_EXERCISE}: microseconds, and the ratio to the lower bound of {floor_us:,.1f}",
        f"{'':>5}{best_us:>12,.1f}{best_us / floor_us:>8.3f}x  the best of the eight algorithms",
    ]
    for place in places:
        ratio = f"{place.micros / floor_us:.3f}x"
        notebook = escape_unprintable(place.notebook)
        lines.append(f"{place.place:>4}.{place.micros:>12,.1f}{ratio:>9}  {notebook}")
    return "\n".join(lines if places else [*lines, "no notebook contains a correct answer that counts"])
