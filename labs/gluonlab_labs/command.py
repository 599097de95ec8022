"""python labs/build.py: options in, notebooks or pages out."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import click

from gluonlab.cli.command import command
from gluonlab.errors import ConfigError, OutputError, RunError
from gluonlab.exercises.checkers import all_exercises
from gluonlab.exercises.guesses import all_guesses
from gluonlab.files.atomic_files import create_writable_folder, write_text
from gluonlab_labs.build import Place, differences, files, left_over, read_all
from gluonlab_labs.faults import SourceError
from gluonlab_labs.outline import Series

LABS = Path(__file__).resolve().parent.parent


@command("python labs/build.py", interrupted="every file that is there is whole")
@click.argument("what", required=False, metavar="[handouts|slides]")
@click.option(
    "--check",
    is_flag=True,
    help="write nothing; exit status 1 if a notebook is not what its source makes",
)
@click.option(
    "--with-solutions",
    is_flag=True,
    help="with the reference solutions in place of the stubs: for instructors",
)
@click.option(
    "--out",
    metavar="DIR",
    help="the folder of the results  [default: labs/, labs/handouts/, or labs/slides/]",
)
@click.option(
    "--source",
    metavar="DIR",
    default=str(LABS),
    help="the folder that holds source/ and solutions/  [default: labs/]",
)
@click.option("--force", is_flag=True, help="also overwrite notebooks that somebody has worked in")
def main(
    what: Optional[str],
    check: bool,
    with_solutions: bool,
    out: Optional[str],
    source: str,
    force: bool,
) -> None:
    """Make notebooks in English and in Japanese of the labs' sources, or handouts: executed, as
    HTML pages, or slides to lecture with.

    A fault of a source is one line: file, line, what it is, what to do.
    """
    if what not in (None, "handouts", "slides"):
        raise ConfigError(
            f"unknown {what!r}: write handouts for HTML pages, slides for lectures, "
            "or nothing for notebooks"
        )
    if what == "slides" and with_solutions:
        raise ConfigError("--with-solutions: slides have none; leave it out, or make handouts")
    if with_solutions and out is None:
        raise ConfigError(
            "--with-solutions needs --out DIR: "
            "solutions do not belong in the folder of the students' notebooks"
        )
    place = Place(Path(source))
    series = _series(place)
    if what == "handouts":
        # MXNet's kernel, templates: not needed for notebooks
        from gluonlab_labs.handouts import write_handouts

        write_handouts(series, place, Path(out) if out else place.root / "handouts", with_solutions)
    elif what == "slides":
        from gluonlab_labs.slides import write_slides

        write_slides(series, place, Path(out) if out else place.root / "slides")
    elif check:
        _check(series, place, Path(out) if out else place.root, with_solutions)
    else:
        _write(series, place, Path(out) if out else place.root, with_solutions, force)


def _series(place: Place) -> Series:
    if not place.sources.is_dir():
        raise ConfigError(f"--source {place.root}: there is no folder {place.sources}")
    try:
        return read_all(
            place,
            {exercise.id for exercise in all_exercises()},
            {one.id for one in all_guesses()},
        )
    except SourceError as error:
        lines = str(error).splitlines()
        if len(lines) > 1:
            click.echo("\n".join(lines), err=True)
            raise SourceError(
                f"{len(lines)} faults in the sources, see above: nothing was written"
            ) from None
        raise


def _write(series: Series, place: Place, root: Path, with_solutions: bool, force: bool) -> None:
    made = files(series, place, with_solutions)
    worked_in = [
        str(root / path)
        for path in differences(made, root)
        if path in made and _was_worked_in(root / path)
    ]
    if worked_in and not force:
        raise OutputError(
            f"somebody has worked in {', '.join(worked_in)}: "
            "move it away, or overwrite it with --force"
        )
    for path, content in made.items():
        with create_writable_folder((root / path).parent):
            write_text(root / path, content)
    for path in left_over(made, root):
        (root / path).unlink()
    notebooks = sum(path.suffix == ".ipynb" for path in made)
    click.echo(f"{notebooks} notebooks and {len(made) - notebooks} pictures in {root}")


def _was_worked_in(path: Path) -> bool:
    """Whether a notebook has outputs, which none that is made here has."""
    try:
        return path.suffix == ".ipynb" and '"output_type"' in path.read_text(encoding="utf-8")
    except OSError:
        return False


def _check(series: Series, place: Place, root: Path, with_solutions: bool) -> None:
    differ = differences(files(series, place, with_solutions), root)
    if differ:
        names = ", ".join(str(root / path) for path in differ)
        raise RunError(f"not what the sources make: {names}: run make labs")
    click.echo("the notebooks are what the sources make")
