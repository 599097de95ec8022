"""python -m gluonlab.bench NAME: options in, a measurement, its table out."""

from __future__ import annotations

import dataclasses
import json
import sys
import warnings
from typing import Callable, Optional, Sequence, TypeVar

import click

from gluonlab import engine
from gluonlab.bench import host as _host
from gluonlab.bench import peers as _peers
from gluonlab.bench.machine import Others, describe_machine
from gluonlab.cli import command, dispatch
from gluonlab.config import whole
from gluonlab.errors import GluonlabWarning

INTERRUPTED = "interrupted: nothing is kept of a measurement"
BUSY_CORES = 0.2  # what other processes may take before a table comes with a warning
_T = TypeVar("_T")


def _measured(measure: Callable[[int], _T], rounds: str) -> _T:
    """``measure(rounds)``. Warns when the machine had other work meanwhile."""
    count, others = whole(1)("--rounds", rounds), Others()
    measured = measure(count)
    if others.cores() > BUSY_CORES:
        message = (
            f"other processes kept {others.cores():.1f} of {engine.cores()} cores busy meanwhile: measure again when they do not"
        )
        warnings.warn(message, GluonlabWarning, stacklevel=2)
    return measured


def _options(rounds: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def add(function: Callable[..., None]) -> Callable[..., None]:
        times = "how often each row is measured"
        alone = "print the numbers as JSON, and nothing else, on standard output"
        function = click.option("--json", "as_json", is_flag=True, help=alone)(function)
        return click.option("--rounds", metavar="N", default=str(rounds), show_default=True, help=times)(function)

    return add


@command("python -m gluonlab.bench peers", INTERRUPTED)
@_options(_peers.ROUNDS)
def peers(rounds: str, as_json: bool) -> None:
    """Measure gluonlab on two devices, the classic Gluon loop and PyTorch side by side.

    A slow result is a result: it does not change the exit status.
    """
    rows = _measured(_peers.peers, rounds)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(row) for row in rows]))
        return
    click.echo("\n".join([describe_machine(), "", _peers.table(rows, int(rounds)), "", *_peers.verdicts(rows)]))


@command("python -m gluonlab.bench host", INTERRUPTED)
@_options(_host.ROUNDS)
def host(rounds: str, as_json: bool) -> None:
    """Measure what the host's Python costs a step, and how much of a core's arithmetic training reaches."""
    report = _measured(_host.host, rounds)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report)))
        return
    conclusion = [*_host.efficiency_lines(report.efficiency), "", _host.verdict(report.rows)]
    click.echo("\n".join([describe_machine(), "", _host.table(report.rows), "", *conclusion]))


COMMANDS = {name: (made.get_short_help_str(100), made) for name, made in (("peers", peers), ("host", host))}


def main(args: Optional[Sequence[str]] = None) -> None:
    """Hand the remaining options to the measurement that is named first."""
    dispatch("python -m gluonlab.bench", COMMANDS, sys.argv[1:] if args is None else args)


if __name__ == "__main__":
    main()
