"""Taking turns with another checkout: --beside and --restart-every."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple

from gluonlab.bench.harness import compare
from gluonlab.bench.harness.record import Record, Series
from gluonlab.bench.harness.rounds import Measurement, Subject, measure
from gluonlab.bench.harness.session import Session, Title
from gluonlab.config.values import whole
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
    every = RESTART_EVERY if restart_every is None else whole(1)("--restart-every", restart_every)
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


def answer(records: Tuple[Record, Record], out: Optional[str]) -> str:
    """The comparison of their record with ours, as text; both are written where ``out`` says."""
    theirs, ours = records
    if out is not None:
        path = Path(out)
        ours.write(path)
        theirs.write(path.with_name(f"{path.stem}-beside{path.suffix}"))
    found = compare.compare(theirs, ours)
    return f"{compare.table(found)}\n\n{compare.notes([found])}"
