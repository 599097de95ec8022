"""python -m gluonlab.exercises: list the exercises, grade notebooks, and show a leaderboard."""

from __future__ import annotations

import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import click
from tqdm import tqdm

from gluonlab.cli.command import add_json_option, command, dispatch
from gluonlab.config.option_types import real_number_check, whole_number_check
from gluonlab.errors import ExerciseError, NotebookError
from gluonlab.exercises import grading
from gluonlab.exercises.checkers import LARGEST_SEED, all_exercises, labs
from gluonlab.exercises.notebook_runners import ENGINES, IMAGE, Containers, find_engine
from gluonlab.exercises.run_submission import missing
from gluonlab.exercises.supervisor import MOST_JOBS, jobs_here
from gluonlab.files.atomic_files import check_new, write_text
from gluonlab.host.resources import available_cores
from gluonlab.plain_text import escape_unprintable, json_text

SECONDS = 600.0  # for one notebook; a lab takes less than 120 on two cores, 240 on one
LONGEST_SECONDS = 86_400
CORES = 2  # of one container; the labs' CPU devices compute on two
OUT = "grades.csv"


@command("python -m gluonlab.exercises list")
@add_json_option("the list")
def list_exercises(as_json: bool) -> None:
    """List the exercises that have a checker."""
    if as_json:
        rows = [{"exercise": each.id, "summary": each.summary} for each in all_exercises()]
        click.echo(json_text(rows))
        return
    for exercise in all_exercises():
        click.echo(f"{exercise.id:<6} {exercise.summary}")


@command(
    "python -m gluonlab.exercises grade",
    most_used="--isolated --jobs --seconds --seed --out --canvas --gradescope",
)
@click.argument("notebooks", nargs=-1, metavar="NOTEBOOK|FOLDER...")
@click.option(
    "--isolated",
    is_flag=True,
    help="run each notebook in a container without a network, of docker or podman",
)
@click.option("--engine", metavar="|".join(ENGINES), help="with --isolated: that one")
@click.option("--image", metavar="IMAGE", help=f"with --isolated, instead of {IMAGE}")
@click.option("--jobs", metavar="N", help="notebooks at a time; by default, one for each core")
@click.option(
    "--seconds",
    metavar="SECONDS",
    default=f"{SECONDS:g}",
    show_default=True,
    help="for one notebook, at most",
)
@click.option("--seed", metavar="N", help="also cases that no student has seen, drawn by N")
@click.option("--reveal", is_flag=True, help="with --seed: sentences name such cases")
@click.option(
    "--out",
    metavar="FILE",
    default=OUT,
    show_default=True,
    help="the table, a new file of comma-separated values",
)
@click.option("--canvas", metavar="FILE", help="a new file for the import of Canvas's gradebook")
@click.option(
    "--assignment", metavar="LAB=NAME", multiple=True, help="with --canvas: a lab's name there"
)
@click.option(
    "--gradescope", metavar="FILE.json|FOLDER", help="new results, of one notebook or of several"
)
def grade(notebooks: Tuple[str, ...], out: str, **options: Any) -> None:
    """Run the code of notebooks handed in, and write a table of grades.
    THIS RUNS THE CODE OF THE STUDENTS, and without --isolated with all that you may do yourself.

    Time, memory and files of each notebook are bounded; what is wrong with one is its note. Its
    checks may be forged by whoever wants to. docs/grading.md has the details.
    """
    if not notebooks:
        raise ExerciseError(
            "no notebook is given: name those that were handed in, or the folders that hold them"
        )
    settings = _settings(options)
    given = [Path(name) for name in notebooks]
    found = grading.submissions(given)
    names = _assignments(options["assignment"])
    canvas, gradescope = (
        options[name] and Path(options[name]) for name in ("canvas", "gradescope")
    )
    if names and not canvas:
        raise ExerciseError(
            f"--assignment {options['assignment'][0]!r} names a lab for Canvas, and no file for it "
            "is asked for: add --canvas FILE"
        )
    check_new("--out", Path(out))
    if canvas:
        check_new("--canvas", canvas)
    if gradescope:
        grading.check_place(gradescope, found)
        check_new("--gradescope", gradescope)
    if not options["isolated"] and missing():  # said before a progress bar begins
        raise NotebookError(missing())
    done: List[grading.Grade] = []
    try:
        with closing(grading.grade(found, **settings)) as grades:
            for one in tqdm(grades, total=len(found), unit="notebook", dynamic_ncols=True):
                done.append(one)
                # each time: what is done is not lost
                write_text(Path(out), grading.as_csv(grading.in_order_of(found, done)))
    except (KeyboardInterrupt, NotebookError) as stopped:
        said = f"{len(done)} of {len(found)} notebooks are graded" + (f", in {out}" if done else "")
        both = filter(None, [str(stopped), said])
        raise type(stopped)("; ".join(both)) from None
    finally:
        done = grading.in_order_of(found, done)
        if canvas and done:
            write_text(canvas, grading.as_canvas(done, names, grading.roots_of(given)))
        if gradescope and done:
            grading.write_results(gradescope, done)
    for one in done:
        click.echo(
            f"{_passed(one)} {escape_unprintable(str(one.notebook))}"
            + (f"  ({one.note})" if one.note else "")
        )
    click.echo(f"written to {', '.join(map(str, filter(None, [out, canvas, gradescope])))}")


@command("python -m gluonlab.exercises leaderboard")
@click.argument("grades", metavar="GRADES.csv")
@add_json_option("the places")
def leaderboard(grades: str, as_json: bool) -> None:
    """Show who has the cheapest schedule for exercise 04-6.

    GRADES.csv is the table that grade wrote. Schedules that gluonlab's own solver has found are
    left out.
    """
    from gluonlab.exercises.lab04 import best_of_the_eight, floor_s

    places = grading.leaderboard(Path(grades))
    if as_json:
        click.echo(json_text([one._asdict() for one in places]))
        return
    _, best_s = best_of_the_eight()
    click.echo(grading.leaderboard_text(places, best_s * 1e6, floor_s() * 1e6))


def _passed(grade: grading.Grade) -> str:
    """``  3 of 5  ``, or a dash where no exercise was found."""
    count = len(grade.statuses)
    return f"{grade.passed:>3} of {count:<3}" if count else f"{'-':>10}"


def _settings(options: Dict[str, Any]) -> Dict[str, Any]:
    """What `gluonlab.exercises.grading.grade` is called with. Raises a UsageError."""
    isolated, engine, image = (options[name] for name in ("isolated", "engine", "image"))
    seed, jobs, reveal = (options[name] for name in ("seed", "jobs", "reveal"))
    settings = dict(
        seconds=real_number_check(0, LONGEST_SECONDS, above_minimum=True)(
            "--seconds", options["seconds"]
        ),
        jobs=jobs_here() if jobs is None else whole_number_check(1, MOST_JOBS)("--jobs", jobs),
        seed=None if seed is None else whole_number_check(0, LARGEST_SEED)("--seed", seed),
        reveal=reveal,
    )
    if reveal and seed is None:
        raise ExerciseError("--reveal names the cases of a seed, and there is none: add --seed N")
    if engine is not None and engine not in ENGINES:
        raise ExerciseError(f"--engine {engine!r}: choose {' or '.join(ENGINES)}")
    if not isolated:
        for name in ("engine", "image"):
            if options[name] is not None:
                raise ExerciseError(f"--{name} is of containers, and there is none: add --isolated")
        return settings
    cores = min(CORES, available_cores())
    runner = Containers(find_engine(engine or ""), IMAGE if image is None else image, cores)
    return dict(settings, runner=runner)


def _assignments(given: Sequence[str]) -> Dict[str, str]:
    """``02=Lab 2 (4711)``: what labs are called in Canvas. Raises ExerciseError."""
    names = {}
    for text in given:
        lab, _, name = text.partition("=")
        if lab not in labs() or not name.strip():
            raise ExerciseError(
                f"--assignment {text!r}: give a lab and its name in Canvas, such as "
                f"'02=Lab 2 (4711)'; the labs are {', '.join(labs())}"
            )
        names[lab] = name.strip()
    return names


COMMANDS = dict(list=list_exercises, grade=grade, leaderboard=leaderboard)


def main(args: Optional[Sequence[str]] = None) -> None:
    """Hand the remaining options to the command that is named first."""
    commands = {
        name: (made.get_short_help_str(100), partial(made, prog_name=made.name))
        for name, made in COMMANDS.items()
    }
    dispatch("python -m gluonlab.exercises", commands, sys.argv[1:] if args is None else args)


if __name__ == "__main__":
    main()
