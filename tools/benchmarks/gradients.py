"""Benchmark of a real network's gradients: allreduce alone, and allreduce with update."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from statistics import median
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import click
import mxnet as mx
import numpy as np
from mxnet import gluon, nd

from benchmarks.benchmark import OLD_OPTIONS, OtherCheckout, baseline_options, compare_checkouts
from gluonlab.bench.allreduce import measure_allreduce as allreduce
from gluonlab.bench.allreduce import result_table as allreduce_table
from gluonlab.bench.allreduce.candidate_schedules import make_plans
from gluonlab.bench.allreduce.measure_allreduce import (
    CHAPTER,
    PEERS,
    AllreduceBuffers,
    AllreduceReport,
    AllreduceRow,
    make_variants,
)
from gluonlab.bench.allreduce.message_sizes import parse_sizes
from gluonlab.bench.harness.confidence_interval import median_ratio
from gluonlab.bench.harness.interleaved_rounds import (
    Call,
    Measurement,
    Subject,
    progress_bar,
    time_block,
    time_interleaved,
)
from gluonlab.bench.harness.machine_info import require_memory
from gluonlab.bench.harness.measurement_command import (
    DEVICES_OPTION,
    INTERRUPTED,
    MeasuredDevices,
    MeasurementOptions,
    cpu_devices,
    find_measured_devices,
    measurement_options,
    option,
)
from gluonlab.bench.harness.measurement_record import Series
from gluonlab.bench.harness.table_format import format_table, outcome_line, rounds_text
from gluonlab.bench.worker_main import Job
from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.cli.command import command
from gluonlab.config.option_checks import whole_number_check
from gluonlab.devices import MAX_CPU_DEVICES
from gluonlab.devices import devices as find_devices
from gluonlab.errors import ConfigError, KVStoreError, RunError, unknown
from gluonlab.kvstores import KVSTORES, make_kvstore
from gluonlab.plain_text import format_size

GLUON, BUCKETED = "gluon.Trainer", "BucketedTrainer"
Make = Callable[..., gluon.Trainer]
TRAINERS: Dict[str, Make] = {GLUON: gluon.Trainer, BUCKETED: BucketedTrainer}
STORES = tuple(name for name, kind in KVSTORES.items() if not kind.gpus_only)

# With a learning rate of 1/2, the first step from zero leaves half of the sum of whole numbers,
# which is exact. No weight decay.
SGD = {"learning_rate": 0.5, "momentum": 0.9, "wd": 0.0}
MAX_GRADIENT = 8  # of a gradient

Shape = Tuple[int, ...]


def resnet18_shapes() -> List[Shape]:
    """Return the shapes of the trained parameters of Gluon's resnet18_v1 for 1,000 classes.

    62 arrays, 11,689,512 numbers: 20 convolutions without biases, a scale and a shift for each of
    20 batch normalizations, and the last layer's weight and bias.
    """
    net = gluon.model_zoo.vision.resnet18_v1(classes=1000)
    net.initialize()
    net.infer_shape(nd.zeros((1, 3, 224, 224)))
    return [param.shape for param in net.collect_params().values() if param.grad_req != "null"]


@dataclass(frozen=True)
class StepRow:
    """The measurement of one kvstore under one trainer.

    ``seconds``: of a step, by round; ``error``: of the first step's weights.
    """

    trainer: str
    store: str
    world_size: int
    seconds: Tuple[float, ...]
    error: float

    @property
    def time_s(self) -> float:
        """Return the median seconds over the rounds."""
        return median(self.seconds)


def step_name(world_size: int, trainer: str, store: str) -> str:
    """Return the name of a series: ``step 2 BucketedTrainer ring``."""
    return f"step {world_size} {trainer} {store}"


def measure_steps(
    shapes: Sequence[Shape], stores: Sequence[str], ctxs: Sequence[mx.Context], rounds: int
) -> List[StepRow]:
    """Measure every store under both trainers, interleaved.

    Raises ConfigError if there is not enough memory.
    """
    updates = make_updates(shapes, stores, ctxs)
    with progress_bar(rounds) as bar:
        steps = {update.label: update.step for update in updates}
        seconds = time_interleaved(steps, rounds, on_round=bar.update)
    return [
        StepRow(update.trainer_name, update.store, len(ctxs), tuple(seconds[update.label]), update.error)
        for update in updates
    ]


def make_updates(shapes: Sequence[Shape], stores: Sequence[str], ctxs: Sequence[mx.Context]) -> "List[Update]":
    """Return every store under both trainers, checked. Raises ConfigError if memory is too small."""
    size = 4 * sum(map(math.prod, shapes))
    # Bucketed, each has weights, gradients and momentum of its own; under gluon.Trainer all share
    # the first two.
    needed_bytes = size * len(ctxs) * (len(stores) * (3 + 2) + 2)
    if ctxs[0].device_type == "cpu":
        description = f"measuring {len(stores)} kvstores on {len(ctxs)} devices"
        require_memory(needed_bytes, description, "choose fewer --kvstores, or smaller --device-counts")
    shared = make_parameters(shapes, ctxs)
    updates = [
        Update(name, store, shared if name == GLUON else make_parameters(shapes, ctxs))
        for name in TRAINERS
        for store in stores
    ]
    ranks = range(len(ctxs))
    gradients = [[_random_gradient(rank, i, shape) for i, shape in enumerate(shapes)] for rank in ranks]
    for update in updates:
        update.check(gradients)
    return updates


class Update:
    """A trainer with its store and its parameters; ``error``: of its first step, once checked."""

    def __init__(self, trainer: str, store: str, params: Sequence[gluon.Parameter]) -> None:
        self.trainer_name, self.store, self.params = trainer, store, params
        self.label = f"{trainer} {store}"
        self.error = math.nan
        kvstore = make_kvstore(store, params[0].list_ctx())
        self.trainer = TRAINERS[trainer](list(params), "sgd", dict(SGD), kvstore=kvstore)

    def step(self) -> None:
        """Allreduce and update, without scaling the gradients."""
        if isinstance(self.trainer, BucketedTrainer):
            self.trainer.apply(1)
            return
        if not self.trainer._update_on_kvstore:
            for data in self._data:
                data._fresh_grad = True  # as backward leaves it: gluon.Trainer updates no others
        self.trainer.step(1, ignore_stale_grad=True)

    def check(self, gradients: Sequence[Sequence[Any]]) -> float:
        """Check the first step from zero, and return a weight's largest error.

        Afterwards gradients are zero, and stay so in every further step.
        """
        for param in self.params:
            param.set_data(nd.zeros(param.shape))
        if isinstance(self.trainer, BucketedTrainer):
            self.trainer.prepare()
        else:
            self.trainer._init_kvstore()  # step() asks how it updates
            self._data = [data for param in self.params for data in param.list_data()]
        for number, param in enumerate(self.params):
            for rank, grad in enumerate(param.list_grad()):
                grad[:] = nd.array(gradients[rank][number], dtype="float32")
        self.step()
        differences = []
        for param, rank_gradients in zip(self.params, zip(*gradients)):
            expected = -SGD["learning_rate"] * np.sum(rank_gradients, axis=0, dtype=np.int32)
            differences += [np.max(np.abs(data.asnumpy() - expected)) for data in param.list_data()]
            for grad in param.list_grad():
                grad[:] = 0
        nd.waitall()
        self.error = float(np.max(differences))
        return self.error


def make_parameters(shapes: Sequence[Shape], ctxs: Sequence[mx.Context]) -> List[gluon.Parameter]:
    """Return parameters of these shapes, all zero, with a replica and a gradient on each device."""
    params = [
        gluon.Parameter(f"parameter{number}_weight", shape=shape, init="zeros") for number, shape in enumerate(shapes)
    ]
    for param in params:
        param.initialize(ctx=list(ctxs))
    return params


def _random_gradient(rank: int, number: int, shape: Shape) -> "np.ndarray[Any, np.dtype[np.int8]]":
    random = np.random.RandomState((rank, number))
    return random.randint(-MAX_GRADIENT, MAX_GRADIENT + 1, shape, dtype=np.int8)


JUDGED = 2  # devices, of the targets
AT_LEAST_ALLREDUCE, AT_LEAST_STEP, AT_LEAST_OF_LIMIT = 1.6, 1.5, 0.5
LIMIT = "of the memory limit"


class Comparison(NamedTuple):
    """The best speed of gluonlab as a multiple of a peer's, or as a share of the limit's.

    ``found`` is None if it was not measured, ``at_least`` if there is no target.
    """

    best: str
    beside: str
    found: Optional[float]
    at_least: Optional[float]

    @property
    def is_reached(self) -> Optional[bool]:
        """Return whether the target is reached, or None without a target or a measurement."""
        return None if self.at_least is None or self.found is None else self.found >= self.at_least

    def __str__(self) -> str:
        shown = None if self.found is None else self._format_value(self.found)
        if self.at_least is None:
            return f"{self.beside}: {shown or 'not measured'}"
        claim = f">= {self._format_value(self.at_least)} {self.beside}"
        return outcome_line(claim, shown, bool(self.is_reached))

    def _format_value(self, value: float) -> str:
        if self.beside == LIMIT:
            return f"{value:.0%}"
        return f"{value:g}x" if value == self.at_least else f"{value:.2f}x"


def judge_allreduce(rows: Sequence[AllreduceRow]) -> List[Comparison]:
    """Compare the best schedule with MXNet's store, the chapter's allreduce and the memory limit.

    ``rows`` have one size.
    """
    best = min((row for row in rows if row.algorithm not in PEERS), key=lambda row: row.time_s)
    arrays = f"{best.arrays} arrays" if best.arrays > 1 else "one array"
    buffer_text = f"{format_size(best.size_bytes)} in {arrays}, {best.world_size} devices"
    description = f"{buffer_text}, our best: {best.algorithm}"
    seconds = {row.algorithm: row.seconds for row in rows}
    has_target = best.world_size == JUDGED
    at_least = AT_LEAST_ALLREDUCE if has_target else None
    comparisons = [
        Comparison(description, name, median_ratio(seconds[peer], best.seconds) if peer in seconds else None, at_least)
        for peer, name in (("device", "MXNet's device"), (CHAPTER, "the D2L allreduce"))
    ]
    return [*comparisons, Comparison(description, LIMIT, best.of_limit, AT_LEAST_OF_LIMIT if has_target else None)]


def judge_steps(rows: Sequence[StepRow], world_size: int) -> List[Comparison]:
    """Compare our best store with MXNet's ``device`` under each of the trainers."""
    rows_of_size = [row for row in rows if row.world_size == world_size]
    our_rows = [row for row in rows_of_size if row.store not in PEERS]
    if not our_rows:
        return []
    best = min(our_rows, key=lambda row: row.time_s)
    description = f"allreduce and update, {world_size} devices, our best: {best.store}, {best.trainer}"
    at_least = AT_LEAST_STEP if world_size == JUDGED else None
    device = {row.trainer: row.seconds for row in rows_of_size if row.store == "device"}
    return [
        Comparison(
            description,
            f"MXNet's device under {trainer}",
            median_ratio(device[trainer], best.seconds) if trainer in device else None,
            at_least,
        )
        for trainer in (GLUON, BUCKETED)
    ]


def format_comparisons(comparisons: Sequence[Comparison]) -> List[str]:
    """Return lines with our best, and a line for each peer."""
    lines = []
    for best, group in groupby(comparisons, key=lambda comparison: comparison.best):
        lines += [best, *(f"  {comparison}" for comparison in group)]
    return lines


ROUNDS = 9
ARRAYS = (16, 1)
WORLD_SIZES = (2, 4)


@dataclass(frozen=True)
class Findings:
    """The results of ``python tools/benchmarks gradients``."""

    allreduces: List[AllreduceReport]
    steps: List[StepRow]
    shapes: List[Shape]
    rounds: int

    def compare_with_peers(self) -> List[Comparison]:
        """Return the comparisons of every allreduce and number of devices."""
        comparisons = [comparison for report in self.allreduces for comparison in judge_allreduce(report.rows)]
        for world_size in sorted({row.world_size for row in self.steps}):
            comparisons += judge_steps(self.steps, world_size)
        return comparisons

    def inexact_sums(self) -> List[str]:
        """Return the algorithms and stores whose sums were not exact."""
        sums = [name for report in self.allreduces for name in allreduce.inexact_algorithms(report.rows)]
        updates = [f"{row.store} ({row.trainer})" for row in self.steps if row.error != 0]
        return list(dict.fromkeys([*sums, *updates]))

    def series(self) -> List[Series]:
        """Return seconds of every allreduce and step, and of the memory limit, by round."""
        return [*self._allreduce_series(), *self._step_series()]

    def _allreduce_series(self) -> Iterator[Series]:
        for rows in (report.rows for report in self.allreduces):
            for row in rows:
                name = allreduce_name(row.world_size, row.arrays, row.algorithm)
                yield Series(name, row.algorithm, "s", row.seconds)
            if rows and rows[0].limit_s:
                name = allreduce_name(rows[0].world_size, rows[0].arrays, LIMIT)
                yield Series(name, LIMIT, "s", rows[0].limit_s)

    def _step_series(self) -> Iterator[Series]:
        for row in self.steps:
            name = step_name(row.world_size, row.trainer, row.store)
            yield Series(name, f"{row.store}, {row.trainer}", "s", row.seconds)


def allreduce_name(world_size: int, arrays: int, algorithm: str) -> str:
    """Return the name of a series: ``allreduce 2 16 ring`` for 2 devices and 16 arrays."""
    return f"allreduce {world_size} {arrays} {algorithm}"


def our_subjects(
    on: MeasuredDevices, stores: Sequence[str], world_sizes: Sequence[int], size_bytes: int
) -> List[Subject]:
    """Return the subjects that run gluonlab's code, as jobs of workers."""
    common = {"size_bytes": size_bytes, "stores": list(stores)}
    options = [{"world_size": n, **common, **on.job_options(n)} for n in world_sizes]
    return [
        Subject(f"gradients-{n}", f"{n} devices", "gradients", job_options)
        for n, job_options in zip(world_sizes, options)
    ]


def job_series(measurements: Sequence[Measurement]) -> List[Series]:
    """Return seconds of every call of the jobs, by round."""
    series = []
    for measurement in measurements:
        names = [name for name in (measurement.answers or [{}])[0] if name != "seconds"]
        series += [Series(name, name, "s", tuple(measurement.numbers_by_round(name))) for name in names]
        if measurement.reason:
            series.append(Series(measurement.subject.name, measurement.subject.label, "s", (), measurement.reason))
    return series


def parse_stores(text: str, on_gpus: bool = False) -> List[str]:
    """Return comma-separated kvstores, or all that sum over such devices.

    Raises KVStoreError, with the choices.
    """
    names, choices = [name.strip() for name in text.split(",")], KVSTORES if on_gpus else STORES
    if names == ["all"]:
        return list(choices)
    for name in names:
        if name not in choices:
            raise KVStoreError(unknown("kvstore", name, ["all", *choices]))
    return list(dict.fromkeys(names))


def parse_world_sizes(text: Optional[str], on: MeasuredDevices) -> List[int]:
    """Return comma-separated numbers of devices; by default 2 and 4, and all that --devices names.

    Raises ConfigError.
    """
    if text is None:
        world_sizes = on.available_counts(WORLD_SIZES) if on.named_by_user else list(WORLD_SIZES)
    else:
        check = whole_number_check(2, len(on.numbers) if on.named_by_user else MAX_CPU_DEVICES)
        world_sizes = list(dict.fromkeys(check("--device-counts", part) for part in text.split(",")))
    if min(world_sizes) < 2:
        raise ConfigError(f"--devices {on.device_spec(1)}: an allreduce requires several devices: pass at least two")
    return world_sizes


def measure_gradients(
    stores: Sequence[str], world_sizes: Sequence[int], size_bytes: int, rounds: int, on: MeasuredDevices
) -> Findings:
    """Measure allreduces of ``size_bytes`` in 1 and 16 arrays, and steps on ResNet-18's gradients.

    Each is measured on ``world_sizes`` of the devices ``on``.
    """
    findings = Findings([], [], resnet18_shapes(), rounds)
    for world_size in world_sizes:
        ctxs = find_devices(on.device_spec(world_size))
        for arrays in ARRAYS:
            variants = make_variants(None, make_plans(None, world_size), ctxs, arrays)
            report = allreduce.measure([size_bytes], variants, ctxs, arrays=arrays, rounds=rounds)
            findings.allreduces.append(report)
        findings.steps.extend(measure_steps(findings.shapes, stores, ctxs, rounds))
    return findings


def steps_table(findings: Findings) -> str:
    """Return the steps as text."""
    columns = f"{'ms':>8}  {'lowest..highest':>16}{'error':>8}{'device /':>9}"
    heading = f"  {'':<16}{'kvstore':<19}{columns}"
    lines: List[str] = []
    for world_size, rows in groupby(findings.steps, key=lambda row: row.world_size):
        rows_of_size = list(rows)
        device_seconds = [row.seconds for row in rows_of_size if (row.trainer, row.store) == (GLUON, "device")]
        description = f"{len(findings.shapes)} gradients, {sum(map(math.prod, findings.shapes)):,} numbers"
        lines += [
            *[""] * bool(lines),
            f"allreduce and update of {description}, on {world_size} devices",
            heading,
            *(_format_step_row(row, device_seconds) for row in rows_of_size),
        ]
    note = (
        f"ms: time of a step of SGD with momentum, the median of {rounds_text(findings.rounds)}. "
        "error: the largest difference of the weights from the exact ones after the first step. "
        "device /: the step time of gluon.Trainer with kvstore device relative to this row, the "
        "median of the rounds' ratios."
    )
    return format_table(lines, note)


def _format_step_row(row: StepRow, device_seconds: Sequence[Sequence[float]]) -> str:
    extent = f"{min(row.seconds) * 1e3:.2f}..{max(row.seconds) * 1e3:.2f}"
    error = "0" if row.error == 0 else f"{row.error:.1e}"
    factor_text = f"{median_ratio(device_seconds[0], row.seconds):.2f}x" if device_seconds else "-"
    name = f"  {row.trainer:<16}{row.store:<19}{row.time_s * 1e3:>8.2f}"
    return f"{name}  {extent:>16}{error:>8}{factor_text:>9}"


def format_findings(findings: Findings) -> str:
    """Return all tables, and the comparisons with peers."""
    rows = [row for report in findings.allreduces for row in report.rows]
    notes = allreduce_table.explain_columns(findings.allreduces[-1])
    comparisons = "\n".join(format_comparisons(findings.compare_with_peers()))
    return "\n\n".join([allreduce_table.rows_table(rows), notes, steps_table(findings), comparisons])


def make(world_size: int, size_bytes: int, stores: Sequence[str], devices: Optional[str] = None) -> Job:
    """Return a job: allreduces of ``size_bytes`` in one array and 16, and steps of ``stores``.

    The job's numbers are seconds of a call. ``devices``: those that compute; by default
    ``world_size`` CPU devices. Raises RunError if sums are not exact.
    """
    ctxs = find_devices(devices or f"cpu*{world_size}")
    calls: Dict[str, Call] = {}
    errors: Dict[str, float] = {}
    for arrays in ARRAYS:
        buffers = AllreduceBuffers(ctxs, size_bytes // 4, "float32", arrays)
        for variant in make_variants(None, make_plans(None, world_size), ctxs, arrays):
            if variant.label not in PEERS:
                name = allreduce_name(world_size, arrays, variant.label)
                calls[name] = variant.make(buffers.arrays)
                errors[name] = buffers.check(calls[name])
        buffers.clear()
    for update in make_updates(resnet18_shapes(), stores, ctxs):
        name = step_name(world_size, update.trainer_name, update.store)
        calls[name], errors[name] = update.step, update.error
    inexact = [name for name, error in errors.items() if error != 0]
    if inexact:
        raise RunError(f"wrong results from {', '.join(inexact)}")

    def run(steps: int) -> Dict[str, float]:
        started = time.perf_counter()
        seconds = {name: time_block(call, steps) for name, call in calls.items()}
        return {"seconds": time.perf_counter() - started, **seconds}

    return run


@command(
    "python tools/benchmarks gradients",
    INTERRUPTED,
    most_used="--bytes --kvstores --device-counts --devices --rounds --out-file --json",
    renamed={"--size": "--bytes", "--stores": "--kvstores", "--world-sizes": "--device-counts", **OLD_OPTIONS},
)
@measurement_options(ROUNDS)
@baseline_options
@option("--bytes", "SIZE", "size of the allreduce without update", "46MB")
@option("--kvstores", "NAMES", "kvstores for allreduce with update, such as device,ring", "all")
@option("--device-counts", "N,N", "numbers of devices  [default: 2,4; with --devices also all]")
@DEVICES_OPTION
def main(
    run_options: MeasurementOptions,
    baseline: Optional[OtherCheckout],
    bytes: str,
    kvstores: str,
    device_counts: Optional[str],
    devices: Optional[str],
) -> None:
    """Measure allreduce on ResNet-18's gradients, with and without update.

    Missed targets are reported, and do not change the exit status.
    """
    size_bytes, *more = parse_sizes(bytes, "--bytes")
    if more:
        raise ConfigError(f"--bytes {bytes}: pass a single size, such as 46MB")
    on = cpu_devices(max(WORLD_SIZES)) if devices is None else find_measured_devices(devices)
    names = parse_stores(kvstores, on.on_gpus)
    counts = parse_world_sizes(device_counts, on)
    sizes_text = device_counts or ",".join(map(str, counts))
    title = ("gradients", {"size": bytes, "stores": kvstores, "world-sizes": sizes_text, **on.record_options()})
    if baseline is not None:
        subjects = our_subjects(on, names, counts, size_bytes)
        click.echo(compare_checkouts(subjects, job_series, title, run_options, baseline))
        return
    measured = partial(measure_gradients, names, counts, size_bytes, on=on)
    findings, record = run_options.measure_and_record(title, measured, Findings.series)
    wrong = ", ".join(findings.inexact_sums())
    # a record of wrong sums is not kept
    (run_options._replace(out_file=None) if wrong else run_options).print_record(record, format_findings(findings), on)
    if wrong:
        raise RunError(f"wrong results from {wrong}: see column error")
