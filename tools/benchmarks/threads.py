"""One CPU device with all cores, by how its idle threads wait: alone, and beside a busy process.

And two workers of MXNet's parameter server on one host, by how many of its cores each takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Dict, List, Mapping, Optional, Sequence

from benchmarks.benchmark import Benchmark, Beside, in_turns
from gluonlab.bench.harness.confidence_interval import ratio
from gluonlab.bench.harness.interleaved_rounds import Measurement, Subject, image_rates, measure
from gluonlab.bench.harness.measurement_command import INTERRUPTED, Asked, measurement, option
from gluonlab.bench.harness.measurement_record import Series
from gluonlab.bench.harness.table_format import interleaved, missing
from gluonlab.bench.harness.table_format import table as as_table
from gluonlab.bench.workloads import TASKS
from gluonlab.cli.command import command
from gluonlab.config.option_types import whole_number_check
from gluonlab.host import resources

ROUNDS = 9
RESTART_EVERY = 5
NETWORKS = ("lenet", "mlp")
COMPETITORS = {"quiet": 0, "beside": 1}  # processes that compute, too
OURS, REFERENCE, SHARING, NOT_SHARING = "gluonlab", "openmp", "sharing", "not-sharing"
SPIN_COUNTS = "2000"  # for comparison
WORKERS = 2
# libgomp's own number; said, so that gluonlab leaves it
AS_OPENMP_COMES = {"GOMP_SPINCOUNT": "300000"}
PASSIVE = {"OMP_WAIT_POLICY": "passive"}
_LABELS = {
    OURS: "as gluonlab sets it",
    REFERENCE: "OpenMP as it comes",
    "passive": "OMP_WAIT_POLICY=passive",
    SHARING: "dist_sync, sharing the cores",
    NOT_SHARING: "dist_sync, all cores each",
}


@dataclass(frozen=True)
class Row:
    """A setting: images/s by column, and ratios to OpenMP as it comes; medians over rounds."""

    name: str
    label: str
    rates: Dict[str, float]
    ratios: Dict[str, float]
    reason: Optional[str] = None


def spinning(count: int) -> Dict[str, str]:
    """Lets an idle thread of OpenMP look for work ``count`` times before it sleeps."""
    return {"GOMP_SPINCOUNT": str(count)}


def parse_spin_counts(text: str) -> List[int]:
    """Numbers of spins, separated by commas. Raises ConfigError."""
    check = whole_number_check(0)
    return list(dict.fromkeys(check("--spin-counts", part) for part in text.split(",")))


def settings(spin_counts: Sequence[int]) -> Dict[str, Mapping[str, str]]:
    """Name of a setting -> the variables that make it."""
    fixed: Dict[str, Mapping[str, str]] = {OURS: {}, REFERENCE: AS_OPENMP_COMES, "passive": PASSIVE}
    return {**fixed, **{str(count): spinning(count) for count in spin_counts}}


def subjects(spin_counts: Sequence[int], network: str) -> List[Subject]:
    """A worker for each setting, alone and beside others; with LeNet also the pairs of workers."""
    threads, images = resources.available_cores(), TASKS[network].global_batch_size
    common, found = {"task": network, "device_count": 1, "threads": threads}, []
    for setting, variables in settings(spin_counts).items():
        for company, competitors in COMPETITORS.items():
            name, options = f"{network} {setting} {company}", {**common, "competitors": competitors}
            found.append(Subject(name, name, "gluonlab", options, variables, images=images))
    if network == "lenet":
        pair = {"task": network, "world_size": WORKERS}
        for setting, options, variables in (
            (SHARING, pair, {}),
            (NOT_SHARING, {**pair, "threads": threads}, AS_OPENMP_COMES),
        ):
            name, label = f"{network} {setting} quiet", _LABELS[setting]
            found.append(Subject(name, label, "dist", options, variables, images=images))
    return found


def threads(spin_counts: Sequence[int], rounds: int = ROUNDS) -> List[Measurement]:
    """Measure all subjects, one network after the other, as those of one are in memory together."""
    return [
        one
        for network in NETWORKS
        for one in measure(subjects(spin_counts, network), rounds, RESTART_EVERY)
    ]


def ours() -> List[Subject]:
    """The subjects that run gluonlab's code."""
    found = [one for network in NETWORKS for one in subjects((), network)]
    return [one for one in found if one.name.split()[1] in (OURS, SHARING)]


def columns() -> List[str]:
    """``lenet quiet``, ``lenet beside`` and so on."""
    return [f"{network} {company}" for network in NETWORKS for company in COMPETITORS]


def make_rows(found: Sequence[Series]) -> List[Row]:
    """The table's numbers. A setting's ratios are medians of the rounds' ratios."""
    cells: Dict[str, Dict[str, Series]] = {}
    for one in found:
        network, name, company = one.name.split()
        cells.setdefault(name, {})[f"{network} {company}"] = one
    return [_row(name, cells[name], cells.get(REFERENCE, {})) for name in cells]


def _row(name: str, own: Mapping[str, Series], reference: Mapping[str, Series]) -> Row:
    measured = {column: one.values for column, one in own.items() if one.values}
    rates = {column: median(values) for column, values in measured.items()}
    ratios = {
        column: ratio(values, reference[column].values)
        for column, values in measured.items()
        if name not in (SHARING, NOT_SHARING) and column in reference and reference[column].values
    }
    label = _LABELS.get(name) or f"{int(name):,} looks"
    return Row(name, label, rates, ratios, next((o.reason for o in own.values() if o.reason), None))


def table(rows: Sequence[Row], rounds: int) -> str:
    """The rows as text."""
    lines = [f"{'images/s':<26}" + "".join(f"{column:>13}" for column in columns())]
    for row in rows:
        cells = (_cell(row.rates.get(name), row.ratios.get(name)) for name in columns())
        lines.append(f"{row.label:<26}" + "".join(f"{cell:>13}" for cell in cells))
        lines += [missing("  ", row.reason)] * bool(row.reason)
    note = (
        f"One CPU device, {resources.available_cores()} threads, medians of {interleaved(rounds)}; "
        "the smaller numbers: multiples of OpenMP as it comes. "
        "beside: one other process computes. "
        f"dist_sync: {WORKERS} workers of a parameter server on this host, "
        "in the second row with OpenMP as it comes."
    )
    return as_table(lines, note)


def _cell(rate: Optional[float], ratio: Optional[float]) -> str:
    if rate is None:
        return "-"
    return f"{rate:,.0f}" + (" " * 5 if ratio is None else f" {ratio:.2f}")


@command("python tools/benchmarks threads", INTERRUPTED)
@measurement(ROUNDS)
@in_turns
@option("--spin-counts", "N,N", "also compare threads that spin N times for work", SPIN_COUNTS)
def main(asked: Asked, beside: Optional[Beside], spin_counts: str) -> None:
    """Compare ways in which a CPU device's idle threads wait.

    They wait alone, and beside a busy process. Also measured are two workers of a parameter server
    on this host, each with its part of the cores, and each with all of them.
    """
    counts = parse_spin_counts(spin_counts)
    Benchmark(
        ("threads", {"spin-counts": spin_counts}),
        partial(threads, counts),
        ours(),
        image_rates,
        lambda record: table(make_rows(record.series), record.rounds),
    ).run(asked, beside)
