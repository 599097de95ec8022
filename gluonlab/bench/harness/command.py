"""What the commands of all measurements share: options, records, and how they end."""

from __future__ import annotations

import textwrap
from functools import wraps
from pathlib import Path
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple, TypeVar

import click

from gluonlab.bench.harness import beside as _beside
from gluonlab.bench.harness.machine import describe_machine
from gluonlab.bench.harness.measured_on import MeasuredOn
from gluonlab.bench.harness.record import Record, Series
from gluonlab.bench.harness.rounds import Subject
from gluonlab.bench.harness.session import Session, Title
from gluonlab.bench.harness.text import WIDTH
from gluonlab.config.values import whole
from gluonlab.files.whole import check_file

INTERRUPTED = "the unfinished measurement is not kept"  # what every command says of Ctrl-C
_T = TypeVar("_T")
Option = Callable[[Callable[..., None]], Callable[..., None]]


def option(name: str, metavar: str, help: str, default: Optional[str] = None) -> Option:
    """An option with a value, which is text until a measurement checks it."""
    shown = default is not None
    return click.option(name, metavar=metavar, default=default, show_default=shown, help=help)


JSON = click.option(
    "--json", "as_json", is_flag=True, help="print JSON, and nothing else, on standard output"
)
OUT = option("--out", "FILE", "write the record, as --json prints it, into a file")
ON = option("--devices", "SPEC", "measure on gpu:* gpu:0,2 cpu:0,1, ...  [default: CPU devices]")
BESIDE = option(
    "--beside",
    "DIR",
    "take turns with the gluonlab of another checkout: gluonlab's rows only, compared at the end",
)
RESTART_EVERY = option(
    "--restart-every",
    "N",
    "with --beside: restart both checkouts' processes after N rounds, "
    "as each keeps a fast or slow memory layout for life  "
    f"[default: {_beside.RESTART_EVERY}]",
)


class Asked(NamedTuple):
    """The options that all measurements have."""

    rounds: int
    as_json: bool
    out: Optional[str]
    beside: Optional[_beside.Beside]

    def take_turns(
        self, title: Title, ours: Sequence[Subject], to_series: _beside.ToSeries
    ) -> bool:
        """Measure ``ours`` in turns with another checkout and print that, if --beside says so."""
        if self.beside is None:
            return False
        records = _beside.take_turns(ours, to_series, title, self.rounds, self.beside)
        click.echo(_beside.answer(records, self.out))
        return True

    def record(
        self, title: Title, measured: Callable[[int], _T], series: Callable[[_T], List[Series]]
    ) -> Tuple[_T, Record]:
        """What ``measured(rounds)`` gives, and its record. Warns if the machine had other work."""
        session = Session()
        found = measured(self.rounds)
        record = session.record(title, self.rounds, series(found))
        session.warn_if_busy()
        return found, record

    def say(self, record: Record, text: str, on: Optional[MeasuredOn] = None) -> None:
        """Print the record or ``text``, after the machine, and write it where --out says."""
        devices = "" if on is None else f"\n{textwrap.fill(f'devices: {on.words}', WIDTH)}"
        told = record.as_json() if self.as_json else f"{describe_machine()}{devices}\n\n{text}\n"
        click.echo(told, nl=False)
        if self.out is not None:
            record.write(Path(self.out))


def measurement(rounds: int, beside: bool = True) -> Option:
    """``@measurement(5)`` adds the options of `Asked` to a command's function.

    It gets an Asked, and its own options by name. ``rounds``: how many by default.
    """
    how_often = option("--rounds", "N", "measurements of each row", str(rounds))

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def run(
            rounds: str,
            as_json: bool,
            out: Optional[str],
            beside: Optional[str] = None,
            restart_every: Optional[str] = None,
            **own: Any,
        ) -> None:
            count = whole(1)("--rounds", rounds)
            if out is not None:
                check_file("--out", Path(out))  # before it measures for minutes
            turns = _beside.check(beside, restart_every, as_json)
            function(Asked(count, as_json, out, turns), **own)

        shown: List[Option] = [how_often, JSON, OUT, *[BESIDE, RESTART_EVERY] * beside]
        decorated: Callable[..., None] = run
        for add in reversed(shown):
            decorated = add(decorated)
        return decorated

    return decorate
