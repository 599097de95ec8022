"""Taking turns with another checkout: what --beside and --restart-every ask for."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import click

from gluonlab.bench.harness import compare as _compare
from gluonlab.bench.harness.record import Series
from gluonlab.bench.harness.rounds import Measurement, Subject, measure
from gluonlab.bench.harness.session import Session
from gluonlab.config.values import whole
from gluonlab.errors import ConfigError

RESTART_EVERY = 3  # rounds
BESIDE = "@beside"  # behind the name of a subject of the other checkout

ToSeries = Callable[[Sequence[Measurement]], List[Series]]


class Beside(NamedTuple):
    """With whom our rows take turns, and how many rounds the same processes run."""

    checkout: Path
    restart_every: int


def options(function: Callable[..., None]) -> Callable[..., None]:
    """Add --beside and --restart-every to a command."""
    for option in (
        click.option(
            "--restart-every",
            metavar="N",
            help="with --beside: after N rounds both checkouts' processes are started anew, "
            f"as their luck with memory lasts as long as they do  [default: {RESTART_EVERY}]",
        ),
        click.option(
            "--beside",
            metavar="DIR",
            help="take turns with the gluonlab in this other checkout; "
            "our own rows only, compared at the end",
        ),
    ):
        function = option(function)
    return function


def check(beside: Optional[str], restart_every: Optional[str], as_json: bool) -> Optional[Beside]:
    """What takes turns, if anything does. Raises ConfigError."""
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
    every = RESTART_EVERY if restart_every is None else whole(1)("--restart-every", restart_every)
    return Beside(check_checkout(Path(beside)), every)


def check_checkout(path: Path) -> Path:
    """The folder of another gluonlab, whole. Raises ConfigError for one that holds none."""
    if not (path / "gluonlab" / "bench" / "worker.py").is_file():
        raise ConfigError(
            f"--beside {path}: there is no gluonlab/bench in it: "
            "give the folder of another checkout of gluonlab"
        )
    return path.resolve()


def measure_beside(
    subjects: Sequence[Subject], rounds: int, checkout: Path, restart_every: int = RESTART_EVERY
) -> Tuple[List[Measurement], List[Measurement]]:
    """Measure every subject here and of ``checkout``, one right after the other in each round; the
    two lists.

    How fast a process is depends on where its memory lies, too, for as long as it lives. Both are
    therefore started anew every so many rounds: one lucky process decides no row.
    """
    theirs = [
        dataclasses.replace(
            one, name=one.name + BESIDE, label=f"{one.label}, beside", checkout=checkout
        )
        for one in subjects
    ]
    found = measure(
        [each for pair in zip(subjects, theirs) for each in pair], rounds, restart_every
    )
    for measurement in found[1::2]:
        measurement.subject = dataclasses.replace(
            measurement.subject, name=measurement.subject.name[: -len(BESIDE)]
        )
    return found[::2], found[1::2]


def take_turns(
    subjects: Sequence[Subject],
    to_series: ToSeries,
    title: Tuple[str, Dict[str, Any]],
    rounds: int,
    beside: Beside,
    out: Optional[str],
) -> str:
    """Measure ``subjects`` here and in the checkout ``beside``; the comparison, as text.

    Writes two records where ``out`` says.
    """
    checkout, every = beside
    session = Session()
    ours, theirs = measure_beside(subjects, rounds, checkout, every)
    session.warn_if_busy()
    records = [
        session.record(*title, rounds, to_series(theirs), checkout, restart_every=every),
        session.record(*title, rounds, to_series(ours), restart_every=every),
    ]
    if out is not None:
        path = Path(out)
        records[1].write(path)
        records[0].write(path.with_name(f"{path.stem}-beside{path.suffix}"))
    found = _compare.compare(*records)
    return f"{_compare.table(found)}\n\n{_compare.notes([found])}"
