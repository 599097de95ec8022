"""Shared parts of benchmarks: the command's frame, and interleaved rounds with another checkout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

import click

from benchmarks import compare
from gluonlab.bench.harness.interleaved_rounds import Measurement, Subject, measure_subjects
from gluonlab.bench.harness.measurement_command import (
    MeasuredDevices,
    MeasurementOptions,
    MeasurementSession,
    RecordTitle,
    find_measured_devices,
    option,
)
from gluonlab.bench.harness.measurement_record import Record, Series
from gluonlab.config.option_checks import whole_number_check
from gluonlab.errors import ConfigError

RESTART_EVERY = 3  # rounds
BESIDE_SUFFIX = "@beside"  # behind the name of a subject of the other checkout

ToSeries = Callable[[Sequence[Measurement]], List[Series]]


class OtherCheckout(NamedTuple):
    """The other checkout, and the number of rounds after which processes are restarted."""

    checkout: Path
    restart_every: int


def find_several_devices(spec: Optional[str], default: MeasuredDevices, lack: str) -> MeasuredDevices:
    """Return the devices of --devices, or the default. Raises ConfigError, with ``lack``, for one."""
    on = default if spec is None else find_measured_devices(spec)
    if len(on.numbers) < 2:
        raise ConfigError(f"--devices {spec}: {lack}: pass two or more")
    return on


def parse_other_checkout(beside: Optional[str], restart_every: Optional[str], as_json: bool) -> Optional[OtherCheckout]:
    """Return the checkout of --beside and --restart-every, or None. Raises ConfigError."""
    if beside is None:
        if restart_every is not None:
            raise ConfigError(f"--restart-every {restart_every} works only with --beside DIR: use both or remove it")
        return None
    if as_json:
        raise ConfigError(
            f"--json can print only one results file, but --beside {beside} creates two: write them with --out FILE"
        )
    every = RESTART_EVERY if restart_every is None else whole_number_check(1)("--restart-every", restart_every)
    if not Path(beside, "gluonlab", "bench", "worker_main.py").is_file():
        raise ConfigError(
            f"--beside {beside} does not contain gluonlab/bench: pass the folder of another checkout of gluonlab"
        )
    return OtherCheckout(Path(beside).resolve(), every)


def measure_both_checkouts(
    subjects: Sequence[Subject], to_series: ToSeries, title: RecordTitle, rounds: int, beside: OtherCheckout
) -> Tuple[Record, Record]:
    """Return the records of ``subjects`` in the checkout ``beside``, and here.

    In every round, each subject is measured there right after here. A process's speed also depends
    on its memory layout for its whole life. Both are therefore restarted after some rounds.
    """
    checkout, restart_every = beside
    session = MeasurementSession()
    pairs = [(subject, _in_checkout(subject, checkout)) for subject in subjects]
    measurements = measure_subjects([subject for pair in pairs for subject in pair], rounds, restart_every)
    session.warn_if_busy()
    ours, theirs = measurements[::2], measurements[1::2]
    for our_measurement, their_measurement in zip(ours, theirs):
        their_measurement.subject = replace(their_measurement.subject, name=our_measurement.subject.name)
    return (
        session.record(title, rounds, to_series(theirs), checkout, restart_every=restart_every),
        session.record(title, rounds, to_series(ours), restart_every=restart_every),
    )


def _in_checkout(subject: Subject, checkout: Path) -> Subject:
    name, label = subject.name + BESIDE_SUFFIX, f"{subject.label}, beside"
    return replace(subject, name=name, label=label, checkout=checkout)


def compare_checkouts(
    subjects: Sequence[Subject],
    to_series: ToSeries,
    title: RecordTitle,
    run_options: MeasurementOptions,
    beside: OtherCheckout,
) -> str:
    """Return a comparison of the other checkout's record with ours. --out writes both."""
    theirs, ours = measure_both_checkouts(subjects, to_series, title, run_options.rounds, beside)
    if run_options.out is not None:
        path = Path(run_options.out)
        ours.write(path)
        theirs.write(path.with_name(f"{path.stem}-beside{path.suffix}"))
    comparison = compare.compare(theirs, ours)
    return f"{compare.format_comparison(comparison)}\n\n{compare.format_notes([comparison])}"


@dataclass(frozen=True)
class Benchmark:
    """A benchmark's command: measurements, and how they are shown.

    ``measured(rounds)`` measures all subjects. ``ours``: those that run gluonlab's code, which can
    be measured in another checkout.
    """

    title: RecordTitle
    measured: Callable[[int], List[Measurement]]
    ours: Sequence[Subject]
    series: ToSeries
    text: Callable[[Record], str]
    on: Optional[MeasuredDevices] = None

    def run(self, run_options: MeasurementOptions, beside: Optional[OtherCheckout]) -> None:
        """Measure, print, and write the record to the file of --out."""
        if beside is not None:
            click.echo(compare_checkouts(self.ours, self.series, self.title, run_options, beside))
            return
        _, record = run_options.measure_and_record(self.title, self.measured, self.series)
        run_options.print_record(record, self.text(record), self.on)


def beside_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add --beside and --restart-every to a command; for use below ``@measurement_options``.

    The function receives a MeasurementOptions, an OtherCheckout or None, and its own options by
    name.
    """

    @wraps(function)
    def run(
        run_options: MeasurementOptions,
        beside: Optional[str] = None,
        restart_every: Optional[str] = None,
        **own_options: Any,
    ) -> None:
        function(run_options, parse_other_checkout(beside, restart_every, run_options.as_json), **own_options)

    beside_option = option(
        "--beside", "DIR", "compare with another checkout of gluonlab: measure gluonlab's rows of both in turns"
    )
    restart_option = option(
        "--restart-every",
        "N",
        "with --beside: restart both processes after N rounds, because each keeps its fast or slow memory layout  "
        f"[default: {RESTART_EVERY}]",
    )
    return beside_option(restart_option(run))
