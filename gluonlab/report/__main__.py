"""python -m gluonlab.report RUN [RUN...]: folders of runs in, one HTML page out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Tuple

import click

from gluonlab.cli.command import command, json_option
from gluonlab.errors import ConfigError
from gluonlab.files.whole import check_new, new_file
from gluonlab.report.tables import as_text
from gluonlab.runs.reader import read_runs

OUT = "report.html"


@command("python -m gluonlab.report")
@click.argument("runs", nargs=-1, metavar="RUN [RUN...]")
@click.option("--out", metavar="FILE", default=OUT, show_default=True, help="the page, a new file")
@json_option("the results")
def main(runs: Tuple[str, ...], out: str, as_json: bool) -> None:
    """Compare runs on one HTML page: results, curves, and the settings that differ.

    RUN is a folder that gluonlab.run has written. The page needs no other file and no network.
    """
    if not runs:
        raise ConfigError("no run folder is given: name one or more, such as runs/*")
    check_new("--out", Path(out))
    found = read_runs([Path(run) for run in runs])
    from gluonlab.report.page import as_page  # matplotlib is loaded here, not for mistakes

    with new_file("--out", Path(out)) as temporary:
        # names of files may be no UTF-8
        temporary.write_text(as_page(found), encoding="utf-8", errors="replace")
    if as_json:
        click.echo(json.dumps({"page": out, "runs": [run.summary() for run in found]}))
    else:
        click.echo(f"{as_text(found)}\n\nwritten to {out}")


if __name__ == "__main__":
    main()
