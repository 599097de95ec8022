"""Implements ``gluonlab labs DIR``, which copies the labs' notebooks into DIR."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Optional

import click

from gluonlab.cli.command import command
from gluonlab.errors import ConfigError
from gluonlab.exercises.languages import LANGUAGES, language
from gluonlab.files.atomic_files import check_path_name
from gluonlab.labs import copy_labs
from gluonlab.plain_text import escape_unprintable


@command("gluonlab labs", interrupted="copied files are complete; run the same command again to resume")
@click.argument("folder", metavar="DIR")
@click.option(
    "--language",
    "chosen",
    metavar="NAME",
    help=f"language of the notebooks, {' or '.join(LANGUAGES)}  "
    "[default: $GLUONLAB_LANGUAGE, or the system's language]",
)
def main(folder: str, chosen: Optional[str]) -> None:
    """Copy the lab notebooks into a directory.

    The command never overwrites notebooks, because they contain your answers. To get an original
    notebook again, rename your copy, and run the command again.
    """
    if not folder.strip():
        raise ConfigError("DIR is an empty string: pass a folder for the notebooks, such as my-labs")
    to = Path(folder)
    check_path_name("DIR", to)
    copied = copy_labs(language(chosen), to)
    books = sum(name.suffix == ".ipynb" for name in copied.new)
    shown = escape_unprintable(str(to))
    click.echo(f"{books} new notebook{'' if books == 1 else 's'} in {shown}")
    for name in copied.kept:
        click.echo(f"your file was kept: {escape_unprintable(str(to / name))}")
    click.echo(f"to open the notebooks, run jupyter lab {escape_unprintable(shlex.quote(str(to)))}")


if __name__ == "__main__":
    main()
