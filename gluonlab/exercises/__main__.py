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
    """List the graded exercises of the labs."""
    if as_json:
        rows = [{"exercise": each.id, "summary": each.summary} for each in all_exercises()]
        click.echo(json_text(rows))
        return
    for exercise in all_exercises():
        click.echo(f"{exercise.id:<6} {exercise.summary}")


@command(
    "gluonlab exercises grade",
    most_used="--container --jobs --timeout --seed --out-file --canvas --gradescope",
    renamed={
        "--isolated": "--container",
        "--seconds": "--timeout",
        "--reveal": "--show-hidden-cases",
        "--out": "--out-file",
    },
)
@click.argument("notebooks", nargs=-1, metavar="NOTEBOOK|FOLDER...")
@click.option("--container", is_flag=True, help="run each notebook in a container without network access")
@click.option("--engine", metavar="|".join(ENGINES), help="with --container: container engine to use")
@click.option("--image", metavar="IMAGE", help=f"with --container: container image to use  [default: {IMAGE}]")
@click.option("--jobs", metavar="N", help="number of notebooks to run at the same time  [default: one per core]")
@click.option(
    "--timeout", metavar="SECONDS", default=f"{SECONDS:g}", show_default=True, help="time limit for each notebook"
)
@click.option("--seed", metavar="N", help="add hidden tests with random cases that are generated from the seed N")
@click.option("--show-hidden-cases", is_flag=True, help="with --seed: describe the hidden cases in the feedback")
@click.option("--out-file", metavar="FILE", default=OUT, show_default=True, help="new CSV file for the table of grades")
@click.option(
    "--canvas", metavar="FILE", help="also write the grades to a new file, which you can import into Canvas's gradebook"
)
@click.option(
    "--assignment",
    metavar="LAB=NAME",
    multiple=True,
    help="with --canvas: name of the Canvas assignment for a lab, such as 02='Lab 2'",
)
@click.option(
    "--gradescope",
    metavar="FILE.json|FOLDER",
    help="also write the results for Gradescope's autograder to a new file, or to a new folder with a file for each "
    "notebook",
)
def grade(notebooks: Tuple[str, ...], out_file: str, **options: Any) -> None:
    """Run students' notebooks, and write a table of grades.
    This command executes the students' code. Without --container, that code has all of your permissions.

    The command limits the time, memory and files of each notebook. A student can forge the result
    of the checks. See docs/labs.md for details.
    """
    if not notebooks:
        raise ExerciseError("no notebooks were passed: pass the submitted notebooks, or folders that contain them")
    settings = _grade_arguments(options)
    paths = [Path(name) for name in notebooks]
    notebook_paths = grading.find_notebooks(paths)
    assignments = _parse_assignments(options["assignment"])
    canvas, gradescope = (options[name] and Path(options[name]) for name in ("canvas", "gradescope"))
    if assignments and not canvas:
        raise ExerciseError(f"--assignment {options['assignment'][0]!r} needs a Canvas file: add --canvas FILE")
    check_new_path("--out-file", Path(out_file))
    if canvas:
        check_new_path("--canvas", canvas)
    if gradescope:
        grading.check_results_path(gradescope, notebook_paths)
        check_new_path("--gradescope", gradescope)
    if not options["container"] and missing_packages():  # before the progress bar starts
        raise NotebookError(missing_packages())
    grades_done: List[grading.Grade] = []
    try:
        with closing(grading.grade(notebook_paths, **settings)) as grades:
            for grade_done in tqdm(grades, total=len(notebook_paths), unit="notebook", dynamic_ncols=True):
                grades_done.append(grade_done)
                # The table is written after each notebook, so that an interrupt loses nothing.
                write_text(Path(out_file), grading.as_csv(grading.sort_by_notebooks(notebook_paths, grades_done)))
    except (KeyboardInterrupt, NotebookError) as interruption:
        written = f", written to {out_file}" if grades_done else ""
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
    click.echo(f"written to {', '.join(map(str, filter(None, [out_file, canvas, gradescope])))}")


@command("gluonlab exercises leaderboard")
@click.argument("grades", metavar="GRADES.csv")
@add_json_option("the ranking")
def leaderboard(grades: str, as_json: bool) -> None:
    """Rank the students' schedules for exercise 04-6 by predicted time.

    GRADES.csv is a table of grades from gluonlab exercises grade. The ranking omits schedules that
    gluonlab's own solver found.
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
    in_container, engine, image = (options[name] for name in ("container", "engine", "image"))
    seed, jobs, show_hidden_cases = (options[name] for name in ("seed", "jobs", "show_hidden_cases"))
    settings = dict(
        seconds=real_number_check(0, LONGEST_SECONDS, above_minimum=True)("--timeout", options["timeout"]),
        jobs=max_parallel_jobs() if jobs is None else whole_number_check(1, MAX_JOBS)("--jobs", jobs),
        seed=None if seed is None else whole_number_check(0, LARGEST_SEED)("--seed", seed),
        reveal=show_hidden_cases,
    )
    if show_hidden_cases and seed is None:
        raise ExerciseError("--show-hidden-cases needs hidden tests: add --seed N")
    if engine is not None and engine not in ENGINES:
        raise ExerciseError(f"unknown engine {engine!r}: choose {' or '.join(ENGINES)}")
    if not in_container:
        for name in ("engine", "image"):
            if options[name] is not None:
                raise ExerciseError(f"--{name} only applies to containers: add --container")
        return settings
    cores = min(CORES, available_cores())
    runner = ContainerRunner(find_engine(engine or ""), IMAGE if image is None else image, cores)
    return dict(settings, runner=runner)


def _parse_assignments(texts: Sequence[str]) -> Dict[str, str]:
    """Convert texts such as ``02=Lab 2`` to {lab: name in Canvas}.

    Raises ExerciseError for an unknown lab or an empty name.
    """
    names = {}
    for text in texts:
        lab, _, name = text.partition("=")
        if lab not in lab_modules() or not name.strip():
            raise ExerciseError(
                f"--assignment {text!r}: pass the number of a lab and the name of its Canvas assignment, such as "
                f"'02=Lab 2 (4711)'; the labs are {', '.join(lab_modules())}"
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
