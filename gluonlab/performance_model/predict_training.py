"""`predict`: training on a machine, by numbers of its GPUs; its assumptions and doubts."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

from mxnet import nd

from gluonlab.errors import ConfigError
from gluonlab.optimizers.optimizer_registry import make_optimizer, optimizer_kind
from gluonlab.parallel.data.microbatches import WHOLE_SHARDS, Microbatches
from gluonlab.performance_model.allreduce_time import (
    LOCAL,
    MEASURED_NOW,
    PIECE,
    RING,
    GradientSizes,
    bucket_sizes,
    buckets,
    exposed_s,
    over_hosts_s,
    priced_as,
    usual_bucket_bytes,
    within_host,
    within_host_s,
)
from gluonlab.performance_model.gpu_specifications import FLOAT16, FLOAT32, Machine, find_machine
from gluonlab.performance_model.published_speeds import ComparableTraining, doubts, wrapped
from gluonlab.performance_model.roofline import (
    FITTED,
    ExecutionSetting,
    Work,
    operator_s,
    step_parts,
)


@dataclass(frozen=True)
class PredictionRow:
    """A step on so many GPUs, in seconds, and what it comes to.

    ``batch_size``: images of a GPU, the most if they differ.
    ``host_s``: what queueing takes, beside the GPUs' work; where it is longer than all the rest, it
    is the step. ``exposed_s``: what of ``sum_s`` lies behind backward. ``speedup``: over one GPU of
    the machine.
    """

    gpus: int
    hosts: int
    batch_size: int
    input_s: float
    compute_s: float
    sum_s: float
    exposed_s: float
    update_s: float
    host_s: float
    images_per_s: float
    speedup: float

    @property
    def step_s(self) -> float:
        """The whole step."""
        return max(self.device_s, self.host_s)

    @property
    def device_s(self) -> float:
        """What the GPUs do, one after the other."""
        return self.input_s + self.compute_s + self.exposed_s + self.update_s

    @property
    def efficiency(self) -> float:
        """The speed-up by GPU."""
        return self.speedup / self.gpus

    @property
    def bound_by(self) -> str:
        """What takes most of the step: host, compute, sum, update or input."""
        if self.host_s > self.device_s:
            return "host"
        parts = {
            "compute": self.compute_s, "sum": self.exposed_s, "update": self.update_s,
            "input": self.input_s,
        }  # fmt: skip
        return max(parts, key=lambda name: parts[name])


@dataclass(frozen=True)
class Prediction:
    """Predicted training: a `PredictionRow` for each number of GPUs, the whole machine last.

    ``batch_size``: images of a GPU in the last row. ``global_batch_size``: where all rows share as
    many images a step; None where each GPU has as many. ``passes``: of a GPU's images, one after
    the other, in microbatches. ``store``: as it is priced.
    ``with_ring``: the speed-up of all GPUs of one host with the store ring.
    ``not_trusted``: reasons for which it is not to be trusted here; empty where figures published
    for the like were met. ``cautions``: what else was never compared.
    """

    machine: str
    gpu: str
    arithmetic: str
    network: str
    batch_size: int
    global_batch_size: Optional[int]
    passes: int
    optimizer: str
    store: str
    rows: Tuple[PredictionRow, ...]
    with_ring: Optional[float]
    not_trusted: Tuple[str, ...]
    cautions: Tuple[str, ...]
    assumptions: Tuple[str, ...]

    @property
    def whole(self) -> PredictionRow:
        """With all GPUs."""
        return self.rows[-1]

    def to_dict(self) -> Dict[str, Any]:
        """For JSON: all fields, and of each row also step_s, efficiency and bound_by."""
        rows = [
            {
                **asdict(row),
                "step_s": row.step_s,
                "efficiency": row.efficiency,
                "bound_by": row.bound_by,
            }
            for row in self.rows
        ]
        return {"kind": "prediction", "measured": False, **asdict(self), "rows": rows}

    @property
    def text(self) -> str:
        """A table of 80 columns, then doubts and assumptions."""
        return _as_text(self)


def _as_text(prediction: Prediction) -> str:
    shared = prediction.global_batch_size
    images = (
        f"{prediction.batch_size:,} images a GPU"
        if shared is None
        else f"{shared:,} images a step, whatever the GPUs"
    )
    what = (
        f"{prediction.network} on {prediction.machine}: {prediction.whole.gpus} x "
        f"{prediction.gpu}, {prediction.arithmetic}, {images}, {prediction.optimizer}"
    )
    if prediction.passes > 1:
        what += f", in {prediction.passes} microbatches"
    lines = [
        *wrapped(f"Predicted, not measured: {what}", ""),
        "",
        f"{'GPUs':>5}{'images/s':>11}{'speed-up':>9}{'efficiency':>11}{'step':>11}{'sum':>11}"
        f"{'exposed':>11}{'bound by':>11}",
        *map(_line, prediction.rows),
        "",
    ]
    better = prediction.with_ring or 0.0
    if better > 1.05 * prediction.whole.speedup:
        lines += [f"With --kvstore ring the speed-up of all of them would be {better:.2f}.", ""]
    for reason in prediction.not_trusted:
        lines += wrapped(f"Not to be trusted here: {reason}.", "")
    for caution in prediction.cautions:
        lines += wrapped(f"Take care: {caution}.", "")
    lines += ["" for _ in range(bool(prediction.not_trusted or prediction.cautions))]
    lines.append("Assumed:")
    for assumption in prediction.assumptions:
        lines += wrapped(assumption, "- ")
    return "\n".join(lines)


def _line(row: PredictionRow) -> str:
    return (
        f"{row.gpus:>5}{row.images_per_s:>11,.0f}{row.speedup:>9.2f}{row.efficiency:>11.2f}"
        f"{row.step_s * 1e3:>8,.1f} ms{row.sum_s * 1e3:>8,.1f} ms{row.exposed_s * 1e3:>8,.1f} ms"
        f"{row.bound_by:>11}"
    )


# --- optimizers

# MXNet has one kernel for each of these; the others take several operators.
ONE_KERNEL = ("sgd", "nag", "signum", "adam", "rmsprop")
SHAPE = (2, 3)  # of the weight that is asked about


@lru_cache(maxsize=None)
def states(name: str, momentum: bool) -> int:
    """How many arrays as large as the weights it keeps. Raises ConfigError for an unknown one."""
    options = {"momentum": 0.9 if momentum else 0.0} if optimizer_kind(name).momentum else {}
    return _arrays(make_optimizer(name, options).create_state(0, nd.ones(SHAPE)))


def by_bucket(name: str) -> bool:
    """Whether a whole bucket is updated at once, and not parameter by parameter."""
    return optimizer_kind(name).element_wise


def caution_about(name: str) -> Optional[str]:
    """What of its update is not priced, if anything is not."""
    if name.lower() in ONE_KERNEL:
        return None
    return (
        f"--optimizer {name.lower()} is priced as one kernel that moves weights, gradients and "
        "state once; it takes several, so its update is slower"
    )


def _arrays(state: Any) -> int:
    """State comes alone, in a tuple, or as None."""
    if isinstance(state, (tuple, list)):
        return sum(map(_arrays, state))
    return int(state is not None and state.shape == SHAPE)


# --- steps

# Of the one thread that queues, by GPU: a step with one pass and one bucket, `bench host` with load
# and log; and each further bucket, as a parameter in Gluon's own sums, 100 us for eight.
HOST_S, KEY_S = 168e-6, 12.5e-6
OFF = "off"
Overlap = Union[int, str, None]


class TrainingSpec(NamedTuple):
    """What is trained, and how. ``batch_size`` images a GPU, or ``shared`` by all GPUs of a step.

    ``setting``: but for what depends on a GPU's images, microbatches and buckets. ``by_bucket``:
    whether an update takes a whole bucket. ``bucket_bytes``: None for the usual.
    """

    work: Work
    machine: Machine
    batch_size: int
    shared: Optional[int]
    microbatches: Microbatches
    setting: ExecutionSetting
    by_bucket: bool
    overlap: Overlap
    bucket_bytes: Optional[int]

    def share(self, gpus: int) -> int:
        """Images of a GPU, of the one with most of them."""
        return self.batch_size if self.shared is None else math.ceil(self.shared / gpus)

    def passes(self, gpus: int) -> int:
        """In how many microbatches they go through the network."""
        return len(self.microbatches.bounds(self.share(gpus)))

    def rows(self, store: str, counts: List[int]) -> List[PredictionRow]:
        """A row for each of ``counts`` GPUs, the first of which is 1."""
        found = [self._row(store, count) for count in counts]
        one = found[0].images_per_s
        return [replace(row, speedup=row.images_per_s / one) for row in found]

    def _row(self, store: str, gpus: int) -> PredictionRow:
        work, machine, share, passes = self.work, self.machine, self.share(gpus), self.passes(gpus)
        most = self.bucket_bytes
        bucket_bytes = usual_bucket_bytes(work, store, gpus) if most is None else most
        sizes = bucket_sizes(work, bucket_bytes)
        updates = max(1, len(sizes) if self.by_bucket else len(work.tensors))
        setting = self.setting._replace(microbatches=passes, updates=updates)
        one = step_parts(work, share, machine.gpu, FITTED, setting)
        hosts = max(1, gpus // machine.gpus_each)
        sum_s = self._sum_s(store, gpus, hosts, sizes)
        behind_s = self._exposed_s(sum_s, share / passes, bucket_bytes) if sum_s else 0.0
        queued_s = passes * HOST_S + KEY_S * (max(1, len(sizes)) - 1)
        host_s = queued_s * min(gpus, machine.gpus_each)
        images = gpus * share if self.shared is None else self.shared
        return PredictionRow(
            gpus=gpus,
            hosts=hosts,
            batch_size=share,
            input_s=one.input_s,
            compute_s=one.compute_s,
            sum_s=sum_s,
            exposed_s=behind_s,
            update_s=one.update_s,
            host_s=host_s,
            images_per_s=images / max(one.seconds + behind_s, host_s),
            speedup=1.0,
        )

    def _sum_s(self, store: str, gpus: int, hosts: int, sizes: List[float]) -> float:
        if gpus == 1:
            return 0.0
        topology, gradients = self.machine.topology.subset(gpus), GradientSizes(sizes, apart=True)
        if hosts > 1:
            return over_hosts_s(store, self.machine.kind, topology, gradients)
        return within_host_s(within_host(store), topology, gradients, MEASURED_NOW)

    def _exposed_s(self, sum_s: float, images: float, bucket_bytes: float) -> float:
        """Sums begin in the last pass, with whose gradients a bucket is complete."""
        backward_s = [
            operator_s(operator, images, self.machine.gpu, FITTED, self.setting)[1]
            for operator in self.work.operators
        ]
        overlap = self.overlap
        piece = None if overlap == OFF else PIECE if overlap is None else int(overlap)
        made = buckets(self.work, backward_s, piece, bucket_bytes)
        return exposed_s(made, sum_s, math.fsum(backward_s))


# --- assumptions


def assumptions(training: TrainingSpec, optimizer: str, store: str, arithmetic: str) -> List[str]:
    """What is taken for granted; ``store``: the one that is priced."""
    machine = training.machine
    gpu = machine.gpu
    sentences = [
        "Predicted, not measured: operations counted in the network's graph, a roofline for each "
        f"kernel on {gpu.name} ({gpu.flops[arithmetic] / 1e12:g} TFLOP/s in {arithmetic}, "
        f"{gpu.bytes_per_s / 1e9:g} GB/s: {gpu.sheet.partition(':')[0]}), constants fitted to "
        "published speeds of V100 and K80.",
        f"Training with gluonlab's loop and {optimizer}; images are uint8 and copied at 12 GB/s; "
        "reading and decoding them keeps up, and changing them takes no time.",
        f"The sum is {store}'s, priced on {_links(machine)}.",
        _about_buckets(training),
        f"One thread of the host queues a step in {HOST_S * 1e6:.0f} us for each GPU of the host "
        f"and microbatch, as measured with `bench host` on a core of an EPYC, and {KEY_S * 1e6:g} "
        "us for each further bucket.",
    ]
    if store == LOCAL:
        sentences.append(
            "The host sums at 10.5 GB/s, as measured with `bench gradients` on two cores of an "
            "EPYC: a larger host may be faster, and one of 2015 was five times slower."
        )
    return sentences


def _links(machine: Machine) -> str:
    note = machine.topology.note
    if machine.nominal:
        return f"the machine's links at nominal speed: {note}"
    return f"the links of {machine.name}" + (
        f": {note}" if note else ", which says no more of them"
    )


def _about_buckets(training: TrainingSpec) -> str:
    most = training.bucket_bytes
    if most == 0:
        buckets = "Parameters are summed one by one"
    else:
        size = "25 MiB, smaller ones with the store device," if most is None else f"{most:,} bytes"
        buckets = f"Buckets of {size} are summed"
    if training.overlap == OFF:
        return f"{buckets} after backward (--overlap off)."
    return (
        f"{buckets} while backward goes on, and do not slow it down; exposed is what is left of "
        "the sum at its end."
    )


# --- predict

MOST_IMAGES = 2**20


def predict(
    work: Work,
    machine: str,
    batch_size: int = 0,
    *,
    global_batch_size: Optional[int] = None,
    microbatches: Microbatches = WHOLE_SHARDS,
    dtype: str = FLOAT32,
    tf32: bool = False,
    optimizer: str = "sgd",
    momentum: bool = True,
    overlap: Overlap = None,
    bucket_bytes: Optional[int] = None,
    store: str = "device",
    gpus: Optional[int] = None,
) -> Prediction:
    """Training with gluonlab's loop on ``machine``, such as p3.16xlarge*4.

    ``batch_size``: images per GPU and step; or ``global_batch_size`` images a step, which the GPUs
    of each row share. ``microbatches``: how a GPU's images are cut. ``tf32``: as --tf32.
    ``momentum``: whether ``optimizer`` has any, where it may. ``store``: over the GPUs of one host,
    or over hosts "horovod" or "dist_sync"; over hosts any other stands for "horovod". ``gpus``:
    all, by default. ``overlap``: operators of a piece of backward, or "off", as --overlap;
    ``bucket_bytes``: as --bucket-bytes. Raises ConfigError, with what is possible, for what no
    prediction is known for.
    """
    found = find_machine(machine)
    asked, kind = (
        (batch_size, "batch size {!r} per GPU")
        if global_batch_size is None
        else (global_batch_size, "batch size {!r} over all GPUs")
    )
    if not (isinstance(asked, int) and 0 < asked <= MOST_IMAGES):
        raise ConfigError(f"{kind.format(asked)}: give a whole number, 1 to {MOST_IMAGES}")
    if dtype not in (FLOAT32, FLOAT16):
        raise ConfigError(f"dtype {dtype!r} has no prediction: choose {FLOAT32} or {FLOAT16}")
    most = found.topology.world_size
    if gpus is not None and not (isinstance(gpus, int) and 1 <= gpus <= most):
        raise ConfigError(f"{gpus!r} GPUs of {machine}: choose 1 to {most}")
    if overlap not in (None, OFF) and not (isinstance(overlap, int) and overlap > 0):
        raise ConfigError(f"overlap {overlap!r}: give operators of a piece, 1 or more, or off")
    priced, of_store = priced_as(store, found)
    counts = _counts(found, gpus)
    if global_batch_size is not None and global_batch_size < counts[-1]:
        raise ConfigError(
            f"{global_batch_size} images a step for {counts[-1]} GPUs: give {counts[-1]} or more, "
            f"or {global_batch_size} GPUs or fewer"
        )
    kept, arithmetic = states(optimizer, momentum), found.gpu.arithmetic(dtype, tf32)
    training = TrainingSpec(
        work,
        found,
        batch_size,
        global_batch_size,
        microbatches,
        ExecutionSetting(dtype, pixel_bytes=1, tf32=tf32, kept=kept),
        by_bucket(optimizer),
        overlap,
        bucket_bytes,
    )
    not_trusted, cautions = _doubts(training, priced, counts)
    more = [of_store, _about_shares(training, counts), caution_about(optimizer)]
    ring = training.rows(RING, [1, counts[-1]])[-1].speedup if found.hosts == 1 else None
    return Prediction(
        machine=machine,
        gpu=found.gpu.name,
        arithmetic=arithmetic,
        network=work.name,
        batch_size=training.share(counts[-1]),
        global_batch_size=global_batch_size,
        passes=training.passes(counts[-1]),
        optimizer=optimizer,
        store=priced,
        rows=tuple(training.rows(priced, counts)),
        with_ring=ring,
        not_trusted=tuple(not_trusted),
        cautions=(*cautions, *(caution for caution in more if caution)),
        assumptions=tuple(assumptions(training, optimizer, priced, arithmetic)),
    )


def _counts(machine: Machine, gpus: Optional[int]) -> List[int]:
    """1, 2, 4, ... GPUs of a host, then whole hosts, and the number that is asked for."""
    if gpus is None or machine.hosts == 1:
        most = gpus or machine.topology.world_size
    elif gpus <= machine.gpus_each:
        most = gpus
    else:
        most = gpus - gpus % machine.gpus_each
        if most != gpus:
            raise ConfigError(
                f"{gpus} GPUs of {machine.name}: over hosts give whole hosts of "
                f"{machine.gpus_each}, such as {most}"
            )
    counts, count = [], 1
    while count < most:
        counts.append(count)
        count *= 2
        if machine.hosts > 1 and count > machine.gpus_each and counts[-1] < machine.gpus_each:
            count = machine.gpus_each
    return [*counts, most]


def _doubts(training: TrainingSpec, store: str, counts: List[int]) -> Tuple[List[str], List[str]]:
    """Those of all rows, each once."""
    alike: Dict[int, List[int]] = {}
    for count in counts:
        alike.setdefault(training.share(count), []).append(count)
    not_trusted: List[str] = []
    cautions: List[str] = []
    for share, gpus in alike.items():
        case = ComparableTraining(
            share,
            training.setting.dtype,
            training.setting.tf32,
            store,
            tuple(count for count in gpus if count <= training.machine.gpus_each),
            training.passes(gpus[0]),
            training.setting.kept,
        )
        refused, said = doubts(training.work, training.machine.gpu, case)
        not_trusted += refused
        cautions += said
    return list(dict.fromkeys(not_trusted)), list(dict.fromkeys(cautions))


def _about_shares(training: TrainingSpec, counts: List[int]) -> Optional[str]:
    """A caution where GPUs have unequal shares of a step's images."""
    shared = training.shared
    uneven = [count for count in counts if shared is not None and shared % count]
    if not uneven:
        return None
    return (
        f"{shared} images do not divide by {', '.join(map(str, uneven))} GPUs: priced is the GPU "
        "with most of them, for which the others wait"
    )
