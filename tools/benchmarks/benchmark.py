"""A benchmark of developers: what it measures, in turns with another checkout if asked to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

import click

from benchmarks import compare
from gluonlab.bench.harness.interleaved_rounds import Measurement, Subject, measure
from gluonlab.bench.harness.measurement_command import Asked, MeasuredOn, Session, Title, option
from gluonlab.bench.harness.measurement_record import Record, Series
from gluonlab.config.option_types import whole_number_check
from gluonlab.errors import ConfigError

RESTART_EVERY = 3  # rounds
BESIDE = "@beside"  # behind the name of a subject of the other checkout

ToSeries = Callable[[Sequence[Measurement]], List[Series]]


class Beside(NamedTuple):
    """The other checkout, and after how many rounds the processes are restarted."""

    checkout: Path
    restart_every: int


def check(beside: Optional[str], restart_every: Optional[str], as_json: bool) -> Optional[Beside]:
    """What --beside and --restart-every mean; None without them. Raises ConfigError."""
    if beside is None:
        if restart_every is not None:
            raise ConfigError(
                f"--restart-every {restart_every} is for --beside DIR: give both, or neither"
            )
        return None
    if as_json:
        raise ConfigError(
            f"--json prints one record, and --beside {beside} makes two: write them with --out FILE"
        )
    every = (
        RESTART_EVERY
        if restart_every is None
        else whole_number_check(1)("--restart-every", restart_every)
    )
    # older checkouts have it in the same place
    if not Path(beside, "gluonlab", "bench", "worker.py").is_file():
        raise ConfigError(
            f"--beside {beside}: there is no gluonlab/bench in it: "
            "give the folder of another checkout of gluonlab"
        )
    return Beside(Path(beside).resolve(), every)


def take_turns(
    subjects: Sequence[Subject], to_series: ToSeries, title: Title, rounds: int, beside: Beside
) -> Tuple[Record, Record]:
    """The records of ``subjects`` in the checkout ``beside``, and here.

    Each is measured there right after here, in every round. A process's speed also depends on where
    its memory lies, for as long as it lives. Both are therefore restarted after some rounds, so
    that no row depends on one lucky process.
    """
    checkout, every = beside
    session = Session()
    pairs = [(one, _in_checkout(one, checkout)) for one in subjects]
    found = measure([each for pair in pairs for each in pair], rounds, every)
    session.warn_if_busy()
    ours, theirs = found[::2], found[1::2]
    for own, other in zip(ours, theirs):
        other.subject = replace(other.subject, name=own.subject.name)
    return (
        session.record(title, rounds, to_series(theirs), checkout, restart_every=every),
        session.record(title, rounds, to_series(ours), restart_every=every),
    )


def _in_checkout(subject: Subject, checkout: Path) -> Subject:
    name, label = subject.name + BESIDE, f"{subject.label}, beside"
    return replace(subject, name=name, label=label, checkout=checkout)


def compare_in_turns(
    subjects: Sequence[Subject], to_series: ToSeries, title: Title, asked: Asked, beside: Beside
) -> str:
    """The other checkout's record compared with ours, as text; --out writes both."""
    theirs, ours = take_turns(subjects, to_series, title, asked.rounds, beside)
    if asked.out is not None:
        path = Path(asked.out)
        ours.write(path)
        theirs.write(path.with_name(f"{path.stem}-beside{path.suffix}"))
    found = compare.compare(theirs, ours)
    return f"{compare.table(found)}\n\n{compare.notes([found])}"


@dataclass(frozen=True)
class Benchmark:
    """What a command measures, and how it is shown.

    ``measured``: given the number of rounds, measures all subjects. ``ours``: those that run
    gluonlab's code, with which another checkout takes turns.
    """

    title: Title
    measured: Callable[[int], List[Measurement]]
    ours: Sequence[Subject]
    series: ToSeries
    text: Callable[[Record], str]
    on: Optional[MeasuredOn] = None

    def run(self, asked: Asked, beside: Optional[Beside]) -> None:
        """Measure, print, and write the record where --out says."""
        if beside is not None:
            click.echo(compare_in_turns(self.ours, self.series, self.title, asked, beside))
            return
        _, record = asked.record(self.title, self.measured, self.series)
        asked.say(record, self.text(record), self.on)


def in_turns(function: Callable[..., None]) -> Callable[..., None]:
    """``@in_turns``, below ``@measurement``, adds --beside and --restart-every.

    The function gets an Asked, a Beside or None, and its own options by name.
    """

    @wraps(function)
    def run(
        asked: Asked, beside: Optional[str] = None, restart_every: Optional[str] = None, **own: Any
    ) -> None:
        function(asked, check(beside, restart_every, asked.as_json), **own)

    in_other = option(
        "--beside",
        "DIR",
        "take turns with the gluonlab of another checkout: gluonlab's rows only, compared at the "
        "end",
    )
    restart = option(
        "--restart-every",
        "N",
        "with --beside: restart both checkouts' processes after N rounds, "
        "as each keeps a fast or slow memory layout for life  "
        f"[default: {RESTART_EVERY}]",
    )
    return in_other(restart(run))
