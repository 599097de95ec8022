"""python -m gluonlab.exercises: list the exercises of the labs, and grade notebooks."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import List, Optional, Sequence, Tuple

import click
from tqdm import tqdm

from gluonlab.cli.command import command, dispatch, json_option
from gluonlab.config.values import real
from gluonlab.documents import json_text
from gluonlab.errors import ExerciseError
from gluonlab.exercises import grade as grading
from gluonlab.exercises.exercise import all_exercises
from gluonlab.files.whole import check_new, write_text
from gluonlab.plain import printable

SECONDS = 300.0  # for one notebook; a lab takes less than 120 on two cores
LONGEST_SECONDS = 86_400
OUT = "grades.csv"


@command("python -m gluonlab.exercises list")
@json_option("the list")
def list_exercises(as_json: bool) -> None:
    """List the exercises that have a checker."""
    if as_json:
        rows = [{"exercise": each.id, "summary": each.summary} for each in all_exercises()]
        click.echo(json_text(rows))
        return
    for exercise in all_exercises():
        click.echo(f"{exercise.id:<6} {exercise.summary}")


@command("python -m gluonlab.exercises grade")
@click.argument("notebooks", nargs=-1, metavar="NOTEBOOK|FOLDER...")
@click.option(
    "--out",
    metavar="FILE",
    default=OUT,
    show_default=True,
    help="the table, a new file of comma-separated values",
)
@click.option(
    "--seconds",
    metavar="SECONDS",
    default=f"{SECONDS:g}",
    show_default=True,
    help="for one notebook, at most",
)
def grade(notebooks: Tuple[str, ...], out: str, seconds: str) -> None:
    """Run notebooks that were handed in, and write a table of grades.

    THIS RUNS THE CODE OF THE STUDENTS, with all that you may do yourself: use an account or a
    container that holds nothing else. Each notebook has processes of its own, whose time, memory
    and files are bounded; what is wrong with one is its note. Its checks may be forged by whoever
    wants to.
    """
    if not notebooks:
        raise ExerciseError(
            "no notebook is given: name those that were handed in, or the folders that hold them"
        )
    limit = real(0, LONGEST_SECONDS, above_minimum=True)("--seconds", seconds)
    found = grading.submissions([Path(name) for name in notebooks])
    check_new("--out", Path(out))
    done: List[grading.Grade] = []
    try:
        for one in tqdm(
            grading.grade(found, limit), total=len(found), unit="notebook", dynamic_ncols=True
        ):
            done.append(one)
            write_text(Path(out), grading.as_csv(done))  # each time: what is done is not lost
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"{len(done)} of {len(found)} notebooks are graded" + (f", in {out}" if done else "")
        ) from None
    for one in done:
        click.echo(
            f"{one.passed:>3} of {len(one.statuses):<3} {printable(str(one.notebook))}"
            + (f"  ({one.note})" if one.note else "")
        )
    click.echo(f"written to {out}")


COMMANDS = dict(list=list_exercises, grade=grade)


def main(args: Optional[Sequence[str]] = None) -> None:
    """Hand the remaining options to the command that is named first."""
    commands = {
        name: (made.get_short_help_str(100), partial(made, prog_name=made.name))
        for name, made in COMMANDS.items()
    }
    dispatch("python -m gluonlab.exercises", commands, sys.argv[1:] if args is None else args)


if __name__ == "__main__":
    main()
