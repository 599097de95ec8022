"""Benchmark of idle threads' waiting on a CPU device with all cores, alone and with a busy process.

Two workers of MXNet's parameter server on one host are also measured, by the cores of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Dict, List, Mapping, Optional, Sequence

from benchmarks.benchmark import OLD_OPTIONS, Benchmark, OtherCheckout, baseline_options
from gluonlab.bench.harness.confidence_interval import median_ratio
from gluonlab.bench.harness.interleaved_rounds import Measurement, Subject, image_rates, measure_subjects
from gluonlab.bench.harness.measurement_command import INTERRUPTED, MeasurementOptions, measurement_options, option
from gluonlab.bench.harness.measurement_record import Series
from gluonlab.bench.harness.table_format import format_table as as_table
from gluonlab.bench.harness.table_format import missing_row, rounds_text
from gluonlab.bench.workloads import TASKS
from gluonlab.cli.command import command
from gluonlab.config.option_checks import whole_number_check
from gluonlab.host import resources

ROUNDS = 9
RESTART_EVERY = 5
NETWORKS = ("lenet", "mlp")
COMPETITORS = {"quiet": 0, "beside": 1}  # processes that compute, too
OURS, REFERENCE, SHARING, NOT_SHARING = "gluonlab", "openmp", "sharing", "not-sharing"
SPIN_COUNTS = "2000"  # for comparison
WORKERS = 2
# libgomp's own number; said, so that gluonlab leaves it
OPENMP_DEFAULTS = {"GOMP_SPINCOUNT": "300000"}
PASSIVE = {"OMP_WAIT_POLICY": "passive"}
_LABELS = {
    OURS: "gluonlab's settings",
    REFERENCE: "OpenMP's defaults",
    "passive": "OMP_WAIT_POLICY=passive",
    SHARING: "dist_sync, sharing the cores",
    NOT_SHARING: "dist_sync, all cores each",
}


@dataclass(frozen=True)
class ThreadsRow:
    """A setting: images/s by column, and ratios to OpenMP's defaults; medians over rounds."""

    name: str
    label: str
    rates: Dict[str, float]
    ratios: Dict[str, float]
    reason: Optional[str] = None


def spin_variables(count: int) -> Dict[str, str]:
    """Return the variables that make idle threads of OpenMP spin ``count`` times before sleep."""
    return {"GOMP_SPINCOUNT": str(count)}


def parse_spin_counts(text: str) -> List[int]:
    """Return comma-separated numbers of spins. Raises ConfigError."""
    check = whole_number_check(0)
    return list(dict.fromkeys(check("--spin-counts", part) for part in text.split(",")))


def thread_settings(spin_counts: Sequence[int]) -> Dict[str, Mapping[str, str]]:
    """Return the variables of each setting, by name."""
    fixed: Dict[str, Mapping[str, str]] = {OURS: {}, REFERENCE: OPENMP_DEFAULTS, "passive": PASSIVE}
    return {**fixed, **{str(count): spin_variables(count) for count in spin_counts}}


def make_subjects(spin_counts: Sequence[int], network: str) -> List[Subject]:
    """Return a worker for each setting, alone and with others; with LeNet also the pairs of
    workers.
    """
    threads, images = resources.available_cores(), TASKS[network].global_batch_size
    common, all_subjects = {"task": network, "device_count": 1, "threads": threads}, []
    for setting, variables in thread_settings(spin_counts).items():
        for company, competitors in COMPETITORS.items():
            name, options = f"{network} {setting} {company}", {**common, "competitors": competitors}
            all_subjects.append(Subject(name, name, "gluonlab", options, variables, images=images))
    if network == "lenet":
        pair = {"task": network, "world_size": WORKERS}
        for setting, options, variables in (
            (SHARING, pair, {}),
            (NOT_SHARING, {**pair, "threads": threads}, OPENMP_DEFAULTS),
        ):
            name, label = f"{network} {setting} quiet", _LABELS[setting]
            all_subjects.append(Subject(name, label, "dist", options, variables, images=images))
    return all_subjects


def measure_threads(spin_counts: Sequence[int], rounds: int = ROUNDS) -> List[Measurement]:
    """Measure all subjects, one network after the other, to limit the memory."""
    return [
        measurement
        for network in NETWORKS
        for measurement in measure_subjects(make_subjects(spin_counts, network), rounds, RESTART_EVERY)
    ]


def our_subjects() -> List[Subject]:
    """Return the subjects that run gluonlab's code."""
    all_subjects = [subject for network in NETWORKS for subject in make_subjects((), network)]
    return [subject for subject in all_subjects if subject.name.split()[1] in (OURS, SHARING)]


def column_names() -> List[str]:
    """Return ``lenet quiet``, ``lenet beside`` and so on."""
    return [f"{network} {company}" for network in NETWORKS for company in COMPETITORS]


def make_rows(series: Sequence[Series]) -> List[ThreadsRow]:
    """Return the table's numbers. A setting's ratios are medians of the rounds' ratios."""
    cells: Dict[str, Dict[str, Series]] = {}
    for item in series:
        network, name, company = item.name.split()
        cells.setdefault(name, {})[f"{network} {company}"] = item
    return [_threads_row(name, cells[name], cells.get(REFERENCE, {})) for name in cells]


def _threads_row(name: str, series_by_column: Mapping[str, Series], reference: Mapping[str, Series]) -> ThreadsRow:
    measured = {column: item.values for column, item in series_by_column.items() if item.values}
    rates = {column: median(values) for column, values in measured.items()}
    ratios = {
        column: median_ratio(values, reference[column].values)
        for column, values in measured.items()
        if name not in (SHARING, NOT_SHARING) and column in reference and reference[column].values
    }
    label = _LABELS.get(name) or f"{int(name):,} spins"
    return ThreadsRow(name, label, rates, ratios, next((o.reason for o in series_by_column.values() if o.reason), None))


def format_results(rows: Sequence[ThreadsRow], rounds: int) -> str:
    """Return the rows as text."""
    lines = [f"{'images/s':<26}" + "".join(f"{column.replace('beside', 'busy'):>13}" for column in column_names())]
    for row in rows:
        cells = (_format_cell(row.rates.get(name), row.ratios.get(name)) for name in column_names())
        lines.append(f"{row.label:<26}" + "".join(f"{cell:>13}" for cell in cells))
        lines += [missing_row("  ", row.reason)] * bool(row.reason)
    note = (
        f"One CPU device, {resources.available_cores()} threads, medians of "
        f"{rounds_text(rounds)}; the smaller numbers are relative to OpenMP's defaults. busy: "
        f"another process computes at the same time. dist_sync: {WORKERS} workers of a parameter "
        "server on this host, in the second row with OpenMP's defaults."
    )
    return as_table(lines, note)


def _format_cell(rate: Optional[float], ratio: Optional[float]) -> str:
    if rate is None:
        return "-"
    return f"{rate:,.0f}" + (" " * 5 if ratio is None else f" {ratio:.2f}")


@command("python tools/benchmarks threads", INTERRUPTED, renamed=OLD_OPTIONS)
@measurement_options(ROUNDS)
@baseline_options
@option("--spin-counts", "N,N", "also measure threads that spin N times before they sleep", SPIN_COUNTS)
def main(run_options: MeasurementOptions, baseline: Optional[OtherCheckout], spin_counts: str) -> None:
    """Compare wait policies of a CPU device's idle threads.

    Each policy is measured on an idle machine, and with another busy process. Two workers of a
    parameter server on this host are also measured, each with half of the cores or with all.
    """
    counts = parse_spin_counts(spin_counts)
    Benchmark(
        ("threads", {"spin-counts": spin_counts}),
        partial(measure_threads, counts),
        our_subjects(),
        image_rates,
        lambda record: format_results(make_rows(record.series), record.rounds),
    ).run(run_options, baseline)
