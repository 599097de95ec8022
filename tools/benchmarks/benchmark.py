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
    OLD_NAMES,
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
OLD_OPTIONS = {**OLD_NAMES, "--beside": "--baseline"}  # old names of options of these commands
BASELINE_SUFFIX = "@baseline"  # behind the name of a subject of the other checkout

ToSeries = Callable[[Sequence[Measurement]], List[Series]]


class OtherCheckout(NamedTuple):
    """The other checkout, and the number of rounds after which processes are restarted."""

    checkout: Path
    restart_every: int


def find_several_devices(spec: Optional[str], default: MeasuredDevices, lack: str) -> MeasuredDevices:
    """Return the devices of --devices, or the default. Raises ConfigError, with ``lack``, for one."""
    on = default if spec is None else find_measured_devices(spec)
    if len(on.numbers) < 2:
        raise ConfigError(f"--devices {spec}: {lack}: pass at least two")
    return on


def parse_other_checkout(
    baseline: Optional[str], restart_every: Optional[str], as_json: bool
) -> Optional[OtherCheckout]:
    """Return the checkout of --baseline and --restart-every, or None. Raises ConfigError."""
    if baseline is None:
        if restart_every is not None:
            raise ConfigError(
                f"--restart-every {restart_every} requires --baseline DIR: add it, or omit --restart-every"
            )
        return None
    if as_json:
        raise ConfigError(
            f"--json prints one results file, but --baseline {baseline} creates two: use --out-file FILE instead"
        )
    every = RESTART_EVERY if restart_every is None else whole_number_check(1)("--restart-every", restart_every)
    if not Path(baseline, "gluonlab", "bench", "worker_main.py").is_file():
        raise ConfigError(
            f"--baseline {baseline} does not contain gluonlab/bench: pass the directory of another checkout of gluonlab"
        )
    return OtherCheckout(Path(baseline).resolve(), every)


def measure_both_checkouts(
    subjects: Sequence[Subject], to_series: ToSeries, title: RecordTitle, rounds: int, baseline: OtherCheckout
) -> Tuple[Record, Record]:
    """Return the records of ``subjects`` in the checkout ``baseline``, and here.

    In every round, each subject is measured there right after here. A process's speed also depends
    on its memory layout for its whole life. Both are therefore restarted after some rounds.
    """
    checkout, restart_every = baseline
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
    name, label = subject.name + BASELINE_SUFFIX, f"{subject.label}, baseline"
    return replace(subject, name=name, label=label, checkout=checkout)


def compare_checkouts(
    subjects: Sequence[Subject],
    to_series: ToSeries,
    title: RecordTitle,
    run_options: MeasurementOptions,
    baseline: OtherCheckout,
) -> str:
    """Return a comparison of the other checkout's record with ours. --out-file writes both."""
    theirs, ours = measure_both_checkouts(subjects, to_series, title, run_options.rounds, baseline)
    if run_options.out_file is not None:
        path = Path(run_options.out_file)
        ours.write(path)
        theirs.write(path.with_name(f"{path.stem}-baseline{path.suffix}"))
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

    def run(self, run_options: MeasurementOptions, baseline: Optional[OtherCheckout]) -> None:
        """Measure, print, and write the record to the file of --out-file."""
        if baseline is not None:
            click.echo(compare_checkouts(self.ours, self.series, self.title, run_options, baseline))
            return
        _, record = run_options.measure_and_record(self.title, self.measured, self.series)
        run_options.print_record(record, self.text(record), self.on)


def baseline_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add --baseline and --restart-every to a command; for use below ``@measurement_options``.

    The function receives a MeasurementOptions, an OtherCheckout or None, and its own options by
    name.
    """

    @wraps(function)
    def run(
        run_options: MeasurementOptions,
        baseline: Optional[str] = None,
        restart_every: Optional[str] = None,
        **own_options: Any,
    ) -> None:
        function(run_options, parse_other_checkout(baseline, restart_every, run_options.as_json), **own_options)

    baseline_option = option("--baseline", "DIR", "also measure gluonlab in another checkout, and compare")
    restart_option = option(
        "--restart-every",
        "N",
        "with --baseline: restart all processes after N rounds; a process keeps a fast or slow memory "
        f"layout for its lifetime  [default: {RESTART_EVERY}]",
    )
    return baseline_option(restart_option(run))
