"""gluonlab exercises: lists exercises, grades notebooks, and shows a leaderboard."""

from __future__ import annotations

import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import click
from tqdm import tqdm

from gluonlab.cli.command import add_json_option, command, run_subcommand
from gluonlab.config.option_checks import real_number_check, whole_number_check
from gluonlab.errors import ExerciseError, NotebookError
from gluonlab.exercises import grading
from gluonlab.exercises.exercise_registry import LARGEST_SEED, all_exercises, lab_modules
from gluonlab.exercises.notebook_runners import ENGINES, IMAGE, ContainerRunner, find_engine
from gluonlab.exercises.run_submission import missing_packages
from gluonlab.exercises.supervisor import MAX_JOBS, max_parallel_jobs
from gluonlab.files.atomic_files import check_new_path, write_text
from gluonlab.host.resources import available_cores
from gluonlab.plain_text import escape_unprintable, json_text

# Time limit of one notebook; a lab takes less than 120 s on two cores, 240 s on one.
SECONDS = 600.0
LONGEST_SECONDS = 86_400
CORES = 2  # cores of a container; the labs compute on two CPU devices
OUT = "grades.csv"


@command("gluonlab exercises list")
@add_json_option("the list")
def list_exercises(as_json: bool) -> None:
    """List the exercises that have a checker."""
    if as_json:
        rows = [{"exercise": each.id, "summary": each.summary} for each in all_exercises()]
        click.echo(json_text(rows))
        return
    for exercise in all_exercises():
        click.echo(f"{exercise.id:<6} {exercise.summary}")


@command("gluonlab exercises grade", most_used="--isolated --jobs --seconds --seed --out --canvas --gradescope")
@click.argument("notebooks", nargs=-1, metavar="NOTEBOOK|FOLDER...")
@click.option("--isolated", is_flag=True, help="run each notebook in a docker or podman container that has no network")
@click.option("--engine", metavar="|".join(ENGINES), help="container engine to use with --isolated")
@click.option("--image", metavar="IMAGE", help=f"container image to use with --isolated; default: {IMAGE}")
@click.option("--jobs", metavar="N", help="number of notebooks to run in parallel; default: one per core")
@click.option(
    "--seconds", metavar="SECONDS", default=f"{SECONDS:g}", show_default=True, help="time limit of each notebook"
)
@click.option("--seed", metavar="N", help="add hidden test cases that are drawn with seed N")
@click.option("--reveal", is_flag=True, help="with --seed: show the failing hidden case in the feedback")
@click.option("--out", metavar="FILE", default=OUT, show_default=True, help="new CSV file for the table of grades")
@click.option("--canvas", metavar="FILE", help="new CSV file to import into Canvas's gradebook")
@click.option(
    "--assignment", metavar="LAB=NAME", multiple=True, help="with --canvas: the name of a lab's assignment in Canvas"
)
@click.option(
    "--gradescope",
    metavar="FILE.json|FOLDER",
    help="new file (one notebook) or new folder (several) for Gradescope's results",
)
def grade(notebooks: Tuple[str, ...], out: str, **options: Any) -> None:
    """Run the code of students' notebooks, and write a table of grades.
    THIS RUNS THE CODE OF THE STUDENTS, with all your own permissions unless you pass --isolated.

    Time, memory and files of each notebook are limited. Problems are noted in the table. Students
    can forge the results of their checks; see docs/grading.md for details.
    """
    if not notebooks:
        raise ExerciseError("no notebook was given: pass the notebooks that were handed in, or their folders")
    settings = _grade_arguments(options)
    paths = [Path(name) for name in notebooks]
    notebook_paths = grading.find_notebooks(paths)
    assignments = _parse_assignments(options["assignment"])
    canvas, gradescope = (options[name] and Path(options[name]) for name in ("canvas", "gradescope"))
    if assignments and not canvas:
        raise ExerciseError(f"--assignment {options['assignment'][0]!r} needs a Canvas file: add --canvas FILE")
    check_new_path("--out", Path(out))
    if canvas:
        check_new_path("--canvas", canvas)
    if gradescope:
        grading.check_results_path(gradescope, notebook_paths)
        check_new_path("--gradescope", gradescope)
    if not options["isolated"] and missing_packages():  # before the progress bar starts
        raise NotebookError(missing_packages())
    grades_done: List[grading.Grade] = []
    try:
        with closing(grading.grade(notebook_paths, **settings)) as grades:
            for grade_done in tqdm(grades, total=len(notebook_paths), unit="notebook", dynamic_ncols=True):
                grades_done.append(grade_done)
                # after each notebook, so that an interrupt loses nothing
                write_text(Path(out), grading.as_csv(grading.sort_by_notebooks(notebook_paths, grades_done)))
    except (KeyboardInterrupt, NotebookError) as interruption:
        written = f", written to {out}" if grades_done else ""
        progress = f"graded {len(grades_done)} of {len(notebook_paths)} notebooks{written}"
        raise type(interruption)("; ".join(filter(None, [str(interruption), progress]))) from None
    finally:
        grades_done = grading.sort_by_notebooks(notebook_paths, grades_done)
        if canvas and grades_done:
            write_text(canvas, grading.as_canvas(grades_done, assignments, grading.find_shared_folders(paths)))
        if gradescope and grades_done:
            grading.write_results(gradescope, grades_done)
    for grade_done in grades_done:
        click.echo(
            f"{_format_score(grade_done)} {escape_unprintable(str(grade_done.notebook))}"
            + (f"  ({grade_done.note})" if grade_done.note else "")
        )
    click.echo(f"written to {', '.join(map(str, filter(None, [out, canvas, gradescope])))}")


@command("gluonlab exercises leaderboard")
@click.argument("grades", metavar="GRADES.csv")
@add_json_option("the places")
def leaderboard(grades: str, as_json: bool) -> None:
    """Show who has the fastest schedule for exercise 04-6.

    GRADES.csv is the table that grade wrote. Schedules from gluonlab's own solver are
    left out.
    """
    from gluonlab.exercises.lab04_allreduce import cheapest_algorithm, lower_bound_s

    places = grading.read_leaderboard(Path(grades))
    if as_json:
        click.echo(json_text([place._asdict() for place in places]))
        return
    _, best_s = cheapest_algorithm()
    click.echo(grading.format_leaderboard(places, best_s * 1e6, lower_bound_s() * 1e6))


def _format_score(grade: grading.Grade) -> str:
    """Return the number of passed exercises, as in ``  3 of 5  ``, or a dash if there are none."""
    count = len(grade.statuses)
    return f"{grade.passed_count:>3} of {count:<3}" if count else f"{'-':>10}"


def _grade_arguments(options: Dict[str, Any]) -> Dict[str, Any]:
    """Convert the command's options to arguments of `gluonlab.exercises.grading.grade`.

    Raises UsageError for invalid options.
    """
    isolated, engine, image = (options[name] for name in ("isolated", "engine", "image"))
    seed, jobs, reveal = (options[name] for name in ("seed", "jobs", "reveal"))
    settings = dict(
        seconds=real_number_check(0, LONGEST_SECONDS, above_minimum=True)("--seconds", options["seconds"]),
        jobs=max_parallel_jobs() if jobs is None else whole_number_check(1, MAX_JOBS)("--jobs", jobs),
        seed=None if seed is None else whole_number_check(0, LARGEST_SEED)("--seed", seed),
        reveal=reveal,
    )
    if reveal and seed is None:
        raise ExerciseError("--reveal needs hidden test cases: add --seed N")
    if engine is not None and engine not in ENGINES:
        raise ExerciseError(f"unknown engine {engine!r}: choose {' or '.join(ENGINES)}")
    if not isolated:
        for name in ("engine", "image"):
            if options[name] is not None:
                raise ExerciseError(f"--{name} works only with containers: add --isolated")
        return settings
    cores = min(CORES, available_cores())
    runner = ContainerRunner(find_engine(engine or ""), IMAGE if image is None else image, cores)
    return dict(settings, runner=runner)


def _parse_assignments(texts: Sequence[str]) -> Dict[str, str]:
    """Parse names of labs in Canvas, such as ``02=Lab 2``, to {lab: name}. Raises ExerciseError."""
    names = {}
    for text in texts:
        lab, _, name = text.partition("=")
        if lab not in lab_modules() or not name.strip():
            raise ExerciseError(
                f"--assignment {text!r}: pass a lab and the name of its assignment in Canvas, such as '02=Lab 2 "
                f"(4711)'; the labs are {', '.join(lab_modules())}"
            )
        names[lab] = name.strip()
    return names


COMMANDS = dict(list=list_exercises, grade=grade, leaderboard=leaderboard)


def main(args: Optional[Sequence[str]] = None) -> None:
    """Run the command that the first argument names, with the remaining arguments."""
    commands = {
        name: (subcommand.get_short_help_str(100), partial(subcommand, prog_name=subcommand.name))
        for name, subcommand in COMMANDS.items()
    }
    run_subcommand("gluonlab exercises", commands, sys.argv[1:] if args is None else args)


if __name__ == "__main__":
    main()
