"""The command ``python labs/build.py``, which makes notebooks, handouts or slides."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import click

from gluonlab.cli.command import command
from gluonlab.errors import ConfigError, OutputError, RunError
from gluonlab.exercises.exercise_registry import all_exercises
from gluonlab.exercises.guesses import all_guesses
from gluonlab.files.atomic_files import create_writable_folder, write_text
from gluonlab_labs.build import LabFolders, find_differences, find_stale_files, make_files, read_labs
from gluonlab_labs.faults import SourceError
from gluonlab_labs.outline import Series

LABS = Path(__file__).resolve().parent.parent


@command("python labs/build.py", interrupted="all files that were written are complete")
@click.argument("what", required=False, metavar="[handouts|slides|browser]")
@click.option(
    "--check", is_flag=True, help="only compare; exit with status 1 if a notebook differs from what its source builds"
)
@click.option("--with-solutions", is_flag=True, help="for instructors: replace the stubs by the reference solutions")
@click.option(
    "--out",
    metavar="DIR",
    help="folder for the results  [default: labs/, labs/handouts/, labs/slides/, or build/site/lab/]",
)
@click.option(
    "--source", metavar="DIR", default=str(LABS), help="folder that contains source/ and solutions/  [default: labs/]"
)
@click.option("--force", is_flag=True, help="also overwrite notebooks that contain somebody's work")
def main(what: Optional[str], check: bool, with_solutions: bool, out: Optional[str], source: str, force: bool) -> None:
    """Build notebooks in English and Japanese from the labs' sources, or handouts (executed HTML
    pages), or slides for lectures, or a page that runs the exercises about schedules in a browser.

    Each error in a source is reported on one line, with its file, line and a fix.
    """
    if what not in (None, "handouts", "slides", "browser"):
        raise ConfigError(
            f"unknown {what!r}: use handouts for HTML pages, slides for lectures, browser for a page that runs "
            "exercises, or no word for notebooks"
        )
    if what in ("slides", "browser") and with_solutions:
        pages = "slides do" if what == "slides" else "the page for browsers does"
        raise ConfigError(f"--with-solutions: {pages} not contain solutions: remove it, or build handouts")
    if with_solutions and out is None:
        raise ConfigError(
            "--with-solutions needs --out DIR: do not write solutions into the folder of the students' notebooks"
        )
    folders = LabFolders(Path(source))
    series = _read_series(folders)
    if what == "handouts":
        # MXNet's kernel, templates: not needed for notebooks
        from gluonlab_labs.handouts import write_handouts

        write_handouts(series, folders, Path(out) if out else folders.root / "handouts", with_solutions)
    elif what == "slides":
        from gluonlab_labs.slides import write_slides

        write_slides(series, folders, Path(out) if out else folders.root / "slides")
    elif what == "browser":
        from gluonlab_labs.browser import write_browser_lab

        build = LABS.parent / "build"
        write_browser_lab(series, folders, Path(out) if out else build / "site" / "lab", build)
    elif check:
        _check_files(series, folders, Path(out) if out else folders.root, with_solutions)
    else:
        _write_files(series, folders, Path(out) if out else folders.root, with_solutions, force)


def _read_series(folders: LabFolders) -> Series:
    if not folders.sources.is_dir():
        raise ConfigError(f"--source {folders.root}: cannot find the folder {folders.sources}")
    try:
        return read_labs(folders, {exercise.id for exercise in all_exercises()}, {one.id for one in all_guesses()})
    except SourceError as error:
        lines = str(error).splitlines()
        if len(lines) > 1:
            click.echo("\n".join(lines), err=True)
            raise SourceError(f"found {len(lines)} errors in the sources (see above) and wrote no files") from None
        raise


def _write_files(series: Series, folders: LabFolders, root: Path, with_solutions: bool, force: bool) -> None:
    files = make_files(series, folders, with_solutions)
    worked_in = [
        str(root / path) for path in find_differences(files, root) if path in files and _has_outputs(root / path)
    ]
    if worked_in and not force:
        raise OutputError(f"{', '.join(worked_in)} would lose somebody's work: move it, or overwrite it with --force")
    for path, content in files.items():
        with create_writable_folder((root / path).parent):
            write_text(root / path, content)
    for path in find_stale_files(files, root):
        (root / path).unlink()
    notebooks = sum(path.suffix == ".ipynb" for path in files)
    click.echo(f"wrote {notebooks} notebooks and {len(files) - notebooks} figures to {root}")


def _has_outputs(path: Path) -> bool:
    """Return whether a notebook has outputs; those made here have none."""
    try:
        return path.suffix == ".ipynb" and '"output_type"' in path.read_text(encoding="utf-8")
    except OSError:
        return False


def _check_files(series: Series, folders: LabFolders, root: Path, with_solutions: bool) -> None:
    different = find_differences(make_files(series, folders, with_solutions), root)
    if different:
        names = ", ".join(str(root / path) for path in different)
        raise RunError(f"these notebooks differ from their sources: {names}: run make labs")
    click.echo("the notebooks match their sources")
