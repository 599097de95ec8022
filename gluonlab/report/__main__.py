"""Implements ``gluonlab report``, which writes one HTML page about one or several runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

import click

from gluonlab.cli.command import add_json_option, command
from gluonlab.errors import ConfigError, unknown
from gluonlab.files.atomic_files import check_new_or_marked, new_or_marked_file
from gluonlab.plain_text import json_text
from gluonlab.report.run_tables import format_results
from gluonlab.runs.data_frame import KINDS, make_table, write_csv
from gluonlab.runs.run_reader import read_runs

OUT = "report.html"

MARK = b'<meta name="generator" content="gluonlab.report">'  # of the page's template


@command("gluonlab report", renamed={"--out": "--out-file"})
@click.argument("runs", nargs=-1, metavar="RUN [RUN...]")
@click.option("--out-file", metavar="FILE", help=f"HTML page to write  [default: {OUT}]")
@click.option(
    "--csv",
    "as_csv",
    metavar="epochs|steps",
    help="print the epochs or steps of all runs as CSV, instead of writing a page",
)
@add_json_option("the results")
def main(runs: Tuple[str, ...], out_file: Optional[str], as_csv: Optional[str], as_json: bool) -> None:
    """Compare runs on an HTML page.

    The page shows results, curves and the settings that differ between the runs. The page works
    offline, without other files. RUN is a run directory, or a folder of run directories such as
    runs/. The command overwrites only files that are earlier reports.
    """
    if not runs:
        raise ConfigError(
            "no run directory was given: pass one or more run directories, or a folder that contains run "
            "directories, such as runs"
        )
    if as_csv is not None:
        _print_csv(runs, as_csv, {"--out-file": out_file, "--json": as_json})
        return
    page = OUT if out_file is None else out_file
    check_new_or_marked("--out-file", Path(page), MARK)
    run_records = read_runs([Path(run) for run in runs])
    from gluonlab.report.report_page import make_page  # loads matplotlib, after the checks

    with new_or_marked_file("--out-file", Path(page), MARK) as temporary:
        # file names may not be valid UTF-8
        temporary.write_text(make_page(run_records), encoding="utf-8", errors="replace")
    if as_json:
        click.echo(json_text({"page": page, "runs": [run.summary() for run in run_records]}))
    else:
        click.echo(f"{format_results(run_records)}\n\nwritten to {page}")


def _print_csv(runs: Tuple[str, ...], row_kind: str, other_options: Dict[str, Any]) -> None:
    """Print the rows of ``row_kind`` as CSV. Raise ConfigError if other options are given."""
    for option in [option for option, is_given in other_options.items() if is_given]:
        raise ConfigError(f"--csv {row_kind} and {option} contradict each other: remove one of them")
    if row_kind not in KINDS:
        raise ConfigError(f"--csv {row_kind}: {unknown('kind of rows', row_kind, KINDS)}")
    run_records = read_runs([Path(run) for run in runs])
    write_csv(make_table([(run.name, run.lines) for run in run_records], row_kind), sys.stdout)


if __name__ == "__main__":
    main()
