"""Gradients of a real network's size: allreduce alone, and allreduce with update."""

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

from benchmarks.benchmark import Beside, compare_in_turns, in_turns
from gluonlab.bench.allreduce import measure_allreduce as allreduce
from gluonlab.bench.allreduce import result_table as allreduce_table
from gluonlab.bench.allreduce.candidate_schedules import make_plans
from gluonlab.bench.allreduce.measure_allreduce import (
    CHAPTER,
    PEERS,
    AllreduceReport,
    AllreduceRow,
    Buffers,
    make_variants,
)
from gluonlab.bench.allreduce.message_sizes import parse_sizes
from gluonlab.bench.harness.confidence_interval import ratio
from gluonlab.bench.harness.interleaved_rounds import (
    Call,
    Measurement,
    Subject,
    progress,
    time_block,
    time_in_turns,
)
from gluonlab.bench.harness.machine_info import require_memory
from gluonlab.bench.harness.measurement_command import (
    INTERRUPTED,
    ON,
    Asked,
    MeasuredOn,
    cpu_devices,
    measured_on,
    measurement,
    option,
)
from gluonlab.bench.harness.measurement_record import Series
from gluonlab.bench.harness.table_format import interleaved, outcome, table
from gluonlab.bench.worker_main import Job
from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.cli.command import command
from gluonlab.config.option_types import whole_number_check
from gluonlab.devices import MAX_CPU_DEVICES, devices
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
LARGEST = 8  # of a gradient

Shape = Tuple[int, ...]


def resnet18_shapes() -> List[Shape]:
    """The shapes of the parameters with gradients of Gluon's resnet18_v1 for 1,000 classes.

    62 arrays, 11,689,512 numbers: 20 convolutions without biases, a scale and a shift for each of
    20 batch normalisations, and the last layer's weight and bias.
    """
    net = gluon.model_zoo.vision.resnet18_v1(classes=1000)
    net.initialize()
    net.infer_shape(nd.zeros((1, 3, 224, 224)))
    return [param.shape for param in net.collect_params().values() if param.grad_req != "null"]


@dataclass(frozen=True)
class StepRow:
    """One store under one trainer.

    ``seconds``: of a step, by round; ``error``: the first step's weights, from the exact ones.
    """

    trainer: str
    store: str
    world_size: int
    seconds: Tuple[float, ...]
    error: float

    @property
    def time_s(self) -> float:
        """The median over the rounds."""
        return median(self.seconds)


def step_name(world_size: int, trainer: str, store: str) -> str:
    """``step 2 BucketedTrainer ring``: the name of a series."""
    return f"step {world_size} {trainer} {store}"


def measure_steps(
    shapes: Sequence[Shape], stores: Sequence[str], ctxs: Sequence[mx.Context], rounds: int
) -> List[StepRow]:
    """Every store under both trainers, which take turns.

    Raises ConfigError when there is not enough memory.
    """
    updates = make_updates(shapes, stores, ctxs)
    with progress(rounds) as bar:
        steps = {update.label: update.step for update in updates}
        seconds = time_in_turns(steps, rounds, done=bar.update)
    return [
        StepRow(one.trainer_name, one.store, len(ctxs), tuple(seconds[one.label]), one.error)
        for one in updates
    ]


def make_updates(
    shapes: Sequence[Shape], stores: Sequence[str], ctxs: Sequence[mx.Context]
) -> "List[Update]":
    """Every store under both trainers, checked. Raises ConfigError as `measure_steps` does."""
    size = 4 * sum(map(math.prod, shapes))
    # Bucketed, each has weights, gradients and momentum of its own; under gluon.Trainer all share
    # the first two.
    need = size * len(ctxs) * (len(stores) * (3 + 2) + 2)
    if ctxs[0].device_type == "cpu":
        what = f"{len(stores)} stores on {len(ctxs)} devices"
        require_memory(need, what, "choose fewer with --stores, or smaller --world-sizes")
    shared = parameters(shapes, ctxs)
    updates = [
        Update(name, store, shared if name == GLUON else parameters(shapes, ctxs))
        for name in TRAINERS
        for store in stores
    ]
    ranks = range(len(ctxs))
    gradients = [[_random(rank, i, shape) for i, shape in enumerate(shapes)] for rank in ranks]
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
        """The first step from zero: a weight's largest difference from the exact one.

        Gradients are zero then, and stay so, step after step, however often they are summed.
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
        for param, own in zip(self.params, zip(*gradients)):
            expected = -SGD["learning_rate"] * np.sum(own, axis=0, dtype=np.int32)
            differences += [np.max(np.abs(data.asnumpy() - expected)) for data in param.list_data()]
            for grad in param.list_grad():
                grad[:] = 0
        nd.waitall()
        self.error = float(np.max(differences))
        return self.error


def parameters(shapes: Sequence[Shape], ctxs: Sequence[mx.Context]) -> List[gluon.Parameter]:
    """Parameters of these shapes, all zero, with a replica and a gradient on each device."""
    params = [
        gluon.Parameter(f"parameter{number}_weight", shape=shape, init="zeros")
        for number, shape in enumerate(shapes)
    ]
    for param in params:
        param.initialize(ctx=list(ctxs))
    return params


def _random(rank: int, number: int, shape: Shape) -> "np.ndarray[Any, np.dtype[np.int8]]":
    random = np.random.RandomState((rank, number))
    return random.randint(-LARGEST, LARGEST + 1, shape, dtype=np.int8)


JUDGED = 2  # devices, of the targets
AT_LEAST_ALLREDUCE, AT_LEAST_STEP, AT_LEAST_OF_LIMIT = 1.6, 1.5, 0.5
LIMIT = "of the memory limit"


class Verdict(NamedTuple):
    """The best speed of gluonlab as a multiple of a peer's, or as a share of the limit's.

    ``found`` is None where that was not measured, ``at_least`` where there is no target.
    """

    best: str
    beside: str
    found: Optional[float]
    at_least: Optional[float]

    @property
    def reached(self) -> Optional[bool]:
        """None when there is nothing to reach, or nothing was measured."""
        return None if self.at_least is None or self.found is None else self.found >= self.at_least

    def __str__(self) -> str:
        shown = None if self.found is None else self._number(self.found)
        if self.at_least is None:
            return f"{self.beside}: {shown or 'not measured'}"
        claim = f">= {self._number(self.at_least)} {self.beside}"
        return outcome(claim, shown, bool(self.reached))

    def _number(self, value: float) -> str:
        if self.beside == LIMIT:
            return f"{value:.0%}"
        return f"{value:g}x" if value == self.at_least else f"{value:.2f}x"


def of_allreduce(rows: Sequence[AllreduceRow]) -> List[Verdict]:
    """The best schedule beside MXNet's store, the chapter's allreduce and the memory limit.

    ``rows`` are of one size.
    """
    best = min((row for row in rows if row.algorithm not in PEERS), key=lambda row: row.time_s)
    arrays = f"{best.arrays} arrays" if best.arrays > 1 else "one array"
    where = f"{format_size(best.size_bytes)} in {arrays}, {best.world_size} devices"
    what, judged = f"{where}, our best: {best.algorithm}", best.world_size == JUDGED
    seconds = {row.algorithm: row.seconds for row in rows}
    at_least = AT_LEAST_ALLREDUCE if judged else None
    verdicts = [
        Verdict(
            what, name, ratio(seconds[peer], best.seconds) if peer in seconds else None, at_least
        )
        for peer, name in (("device", "MXNet's device"), (CHAPTER, "the chapter's allreduce"))
    ]
    return [*verdicts, Verdict(what, LIMIT, best.of_limit, AT_LEAST_OF_LIMIT if judged else None)]


def of_steps(rows: Sequence[StepRow], world_size: int) -> List[Verdict]:
    """The best of our stores beside MXNet's ``device`` under each of the trainers."""
    own = [row for row in rows if row.world_size == world_size]
    ours = [row for row in own if row.store not in PEERS]
    if not ours:
        return []
    best = min(ours, key=lambda row: row.time_s)
    what = f"allreduce and update, {world_size} devices, our best: {best.store}, {best.trainer}"
    at_least = AT_LEAST_STEP if world_size == JUDGED else None
    device = {row.trainer: row.seconds for row in own if row.store == "device"}
    return [
        Verdict(
            what,
            f"MXNet's device under {trainer}",
            ratio(device[trainer], best.seconds) if trainer in device else None,
            at_least,
        )
        for trainer in (GLUON, BUCKETED)
    ]


def verdict_lines(verdicts: Sequence[Verdict]) -> List[str]:
    """In words: what our best is, and a line for each thing that it is compared with."""
    found = []
    for best, same in groupby(verdicts, key=lambda verdict: verdict.best):
        found += [best, *(f"  {verdict}" for verdict in same)]
    return found


ROUNDS = 9
ARRAYS = (16, 1)
WORLD_SIZES = (2, 4)


@dataclass(frozen=True)
class Findings:
    """All of ``python tools/benchmarks gradients``."""

    allreduces: List[AllreduceReport]
    steps: List[StepRow]
    shapes: List[Shape]
    rounds: int

    def verdicts(self) -> List[Verdict]:
        """What our best reached, for every allreduce and number of devices."""
        found = [one for report in self.allreduces for one in of_allreduce(report.rows)]
        for world_size in sorted({row.world_size for row in self.steps}):
            found += of_steps(self.steps, world_size)
        return found

    def wrong(self) -> List[str]:
        """What did not compute exact sums."""
        sums = [name for report in self.allreduces for name in allreduce.wrong(report.rows)]
        updates = [f"{row.store} ({row.trainer})" for row in self.steps if row.error != 0]
        return list(dict.fromkeys([*sums, *updates]))

    def series(self) -> List[Series]:
        """Seconds of every allreduce and step, and of the memory limit, by round."""
        return [*self._allreduces(), *self._steps()]

    def _allreduces(self) -> Iterator[Series]:
        for rows in (report.rows for report in self.allreduces):
            for row in rows:
                name = allreduce_name(row.world_size, row.arrays, row.algorithm)
                yield Series(name, row.algorithm, "s", row.seconds)
            if rows and rows[0].limit_s:
                name = allreduce_name(rows[0].world_size, rows[0].arrays, LIMIT)
                yield Series(name, LIMIT, "s", rows[0].limit_s)

    def _steps(self) -> Iterator[Series]:
        for row in self.steps:
            name = step_name(row.world_size, row.trainer, row.store)
            yield Series(name, f"{row.store}, {row.trainer}", "s", row.seconds)


def allreduce_name(world_size: int, arrays: int, algorithm: str) -> str:
    """``allreduce 2 16 ring``: that of the series of 2 devices and 16 arrays."""
    return f"allreduce {world_size} {arrays} {algorithm}"


def ours(
    on: MeasuredOn, stores: Sequence[str], world_sizes: Sequence[int], size_bytes: int
) -> List[Subject]:
    """The subjects that run gluonlab's code, as jobs of workers."""
    same = {"size_bytes": size_bytes, "stores": list(stores)}
    options = [{"world_size": n, **same, **on.options(n)} for n in world_sizes]
    return [
        Subject(f"gradients-{n}", f"{n} devices", "gradients", own)
        for n, own in zip(world_sizes, options)
    ]


def job_series(measurements: Sequence[Measurement]) -> List[Series]:
    """Seconds of every call of the jobs, by round."""
    found = []
    for one in measurements:
        names = [name for name in (one.answers or [{}])[0] if name != "seconds"]
        found += [Series(name, name, "s", tuple(one.column(name))) for name in names]
        if one.reason:
            found.append(Series(one.subject.name, one.subject.label, "s", (), one.reason))
    return found


def parse_stores(text: str, on_gpus: bool = False) -> List[str]:
    """The kvstores in ``text``, separated by commas, or all that sum over such devices.

    Raises KVStoreError, with the choices.
    """
    names, choices = [name.strip() for name in text.split(",")], KVSTORES if on_gpus else STORES
    if names == ["all"]:
        return list(choices)
    for name in names:
        if name not in choices:
            raise KVStoreError(unknown("kvstore", name, ["all", *choices]))
    return list(dict.fromkeys(names))


def parse_world_sizes(text: Optional[str], on: MeasuredOn) -> List[int]:
    """Numbers of devices, separated by commas; by default 2 and 4, and all that --devices names.

    Raises ConfigError.
    """
    if text is None:
        found = on.counts(WORLD_SIZES) if on.asked else list(WORLD_SIZES)
    else:
        check = whole_number_check(2, len(on.numbers) if on.asked else MAX_CPU_DEVICES)
        found = list(dict.fromkeys(check("--world-sizes", part) for part in text.split(",")))
    if min(found) < 2:
        raise ConfigError(
            f"--devices {on.first(1)}: one device has no other to sum with: name two or more"
        )
    return found


def gradients(
    stores: Sequence[str],
    world_sizes: Sequence[int],
    size_bytes: int,
    rounds: int,
    on: MeasuredOn,
) -> Findings:
    """Allreduces of ``size_bytes`` in one array and in 16, then steps on ResNet-18's gradients.

    Each on ``world_sizes`` of the devices ``on``.
    """
    found = Findings([], [], resnet18_shapes(), rounds)
    for world_size in world_sizes:
        ctxs = devices(on.first(world_size))
        for arrays in ARRAYS:
            variants = make_variants(None, make_plans(None, world_size), ctxs, arrays)
            report = allreduce.measure([size_bytes], variants, ctxs, arrays=arrays, rounds=rounds)
            found.allreduces.append(report)
        found.steps.extend(measure_steps(found.shapes, stores, ctxs, rounds))
    return found


def steps_table(findings: Findings) -> str:
    """The steps as text."""
    columns = f"{'ms':>8}  {'lowest..highest':>16}{'error':>8}{'device /':>9}"
    heading = f"  {'':<16}{'kvstore':<19}{columns}"
    lines: List[str] = []
    for world_size, same in groupby(findings.steps, key=lambda row: row.world_size):
        own = list(same)
        beside = [row.seconds for row in own if (row.trainer, row.store) == (GLUON, "device")]
        what = f"{len(findings.shapes)} gradients, {sum(map(math.prod, findings.shapes)):,} numbers"
        lines += [
            *[""] * bool(lines),
            f"allreduce and update of {what}, on {world_size} devices",
            heading,
            *(_step_line(row, beside) for row in own),
        ]
    note = (
        f"ms: of a step of SGD with momentum, the median of {interleaved(findings.rounds)}. "
        "error: the largest difference of the first step's weights from the exact ones. "
        "device /: the time of gluon.Trainer's step with device over this one's, "
        "the median of the rounds' ratios."
    )
    return table(lines, note)


def _step_line(row: StepRow, beside: Sequence[Sequence[float]]) -> str:
    extent = f"{min(row.seconds) * 1e3:.2f}..{max(row.seconds) * 1e3:.2f}"
    error = "0" if row.error == 0 else f"{row.error:.1e}"
    times = f"{ratio(beside[0], row.seconds):.2f}x" if beside else "-"
    name = f"  {row.trainer:<16}{row.store:<19}{row.time_s * 1e3:>8.2f}"
    return f"{name}  {extent:>16}{error:>8}{times:>9}"


def report(findings: Findings) -> str:
    """All tables, and the verdicts."""
    rows = [row for each in findings.allreduces for row in each.rows]
    explained = allreduce_table.explain(findings.allreduces[-1])
    judged = "\n".join(verdict_lines(findings.verdicts()))
    return "\n\n".join([allreduce_table.rows_table(rows), explained, steps_table(findings), judged])


def make(
    world_size: int, size_bytes: int, stores: Sequence[str], devices: Optional[str] = None
) -> Job:
    """gluonlab's allreduces of ``size_bytes`` in one array and in 16, and steps with ``stores``.

    The job's numbers are seconds of a call. ``devices``: those that compute; by default
    ``world_size`` CPU devices. Raises RunError when sums are not exact.
    """
    ctxs = find_devices(devices or f"cpu*{world_size}")
    calls: Dict[str, Call] = {}
    errors: Dict[str, float] = {}
    for arrays in ARRAYS:
        buffers = Buffers(ctxs, size_bytes // 4, "float32", arrays)
        for variant in make_variants(None, make_plans(None, world_size), ctxs, arrays):
            if variant.label not in PEERS:
                name = allreduce_name(world_size, arrays, variant.label)
                calls[name] = variant.make(buffers.arrays)
                errors[name] = buffers.check(calls[name])
        buffers.clear()
    for update in make_updates(resnet18_shapes(), stores, ctxs):
        name = step_name(world_size, update.trainer_name, update.store)
        calls[name], errors[name] = update.step, update.error
    wrong = [name for name, error in errors.items() if error != 0]
    if wrong:
        raise RunError(f"wrong sums by {', '.join(wrong)}")

    def run(steps: int) -> Dict[str, float]:
        began = time.perf_counter()
        seconds = {name: time_block(call, steps) for name, call in calls.items()}
        return {"seconds": time.perf_counter() - began, **seconds}

    return run


@command(
    "python tools/benchmarks gradients",
    INTERRUPTED,
    most_used="--size --stores --world-sizes --devices --rounds --out --json",
)
@measurement(ROUNDS)
@in_turns
@option("--size", "SIZE", "size of the buffers for allreduce alone", "46MB")
@option("--stores", "NAMES", "kvstores for allreduce with update, such as device,ring", "all")
@option("--world-sizes", "N,N", "numbers of devices  [default: 2,4; with --devices also all]")
@ON
def main(
    asked: Asked,
    beside: Optional[Beside],
    size: str,
    stores: str,
    world_sizes: Optional[str],
    devices: Optional[str],
) -> None:
    """Measure allreduce on ResNet-18's gradients, and judge gluonlab's.

    The sums are measured alone, and with update.
    A slow result is a result: it does not change the exit status.
    """
    size_bytes, *more = parse_sizes(size, "--size")
    if more:
        raise ConfigError(f"--size {size}: give one size, such as 46MB")
    on = cpu_devices(max(WORLD_SIZES)) if devices is None else measured_on(devices)
    names = parse_stores(stores, on.on_gpus)
    counts = parse_world_sizes(world_sizes, on)
    told = world_sizes or ",".join(map(str, counts))
    title = ("gradients", {"size": size, "stores": stores, "world-sizes": told, **on.title()})
    if beside is not None:
        subjects = ours(on, names, counts, size_bytes)
        click.echo(compare_in_turns(subjects, job_series, title, asked, beside))
        return
    measured = partial(gradients, names, counts, size_bytes, on=on)
    found, record = asked.record(title, measured, Findings.series)
    wrong = ", ".join(found.wrong())
    # a record of wrong sums is not kept
    (asked._replace(out=None) if wrong else asked).say(record, report(found), on)
    if wrong:
        raise RunError(f"wrong sums by {wrong}: see the column error")
