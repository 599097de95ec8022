"""Predicts the speed of training on a machine for 1, 2, 4, ... GPUs (`predict`).

A prediction includes its assumptions, and reasons not to trust it.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

from mxnet import nd

from gluonlab.data.loading.split_batch import WHOLE_SHARDS, Microbatches
from gluonlab.errors import ConfigError
from gluonlab.optimizers.optimizer_registry import make_optimizer, optimizer_kind
from gluonlab.performance_model.gpu_specifications import FLOAT16, FLOAT32, Machine, find_machine
from gluonlab.performance_model.gradient_sum_time import (
    BACKWARD_PIECE,
    LOCAL,
    MXNET_1_9_HOST,
    RING,
    GradientSizes,
    bucket_sizes,
    default_bucket_bytes,
    exposed_sum_s,
    make_buckets,
    resolve_store,
    store_within_host,
    sum_over_hosts_s,
    sum_within_host_s,
)
from gluonlab.performance_model.published_speeds import ComparableTraining, list_caveats, wrap_sentence
from gluonlab.performance_model.roofline import FITTED_CONSTANTS, ExecutionSetting, Work, operator_seconds, step_seconds


@dataclass(frozen=True)
class PredictionRow:
    """The prediction for a step on a number of GPUs.

    Attributes:
        gpus: the number of GPUs.
        hosts: the number of hosts.
        batch_size: images per GPU; if the GPUs differ, the largest number.
        input_s: seconds to copy the images to the GPUs.
        compute_s: seconds of forward and backward.
        sum_s: seconds to sum the gradients.
        exposed_s: the part of ``sum_s`` after the end of backward.
        update_s: seconds to update the weights.
        host_s: seconds that the host needs to queue the step, in parallel with the GPUs; a step
            takes at least this long.
        images_per_s: images per second of all GPUs together.
        speedup: the throughput relative to one GPU of the machine.
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
        """Return how many seconds the whole step takes."""
        return max(self.device_s, self.host_s)

    @property
    def device_s(self) -> float:
        """Return how many seconds the GPUs' work in a step takes."""
        return self.input_s + self.compute_s + self.exposed_s + self.update_s

    @property
    def efficiency(self) -> float:
        """Return the speed-up per GPU."""
        return self.speedup / self.gpus

    @property
    def bound_by(self) -> str:
        """Return the largest part of the step's time: host, compute, sum, update or input."""
        if self.host_s > self.device_s:
            return "host"
        parts = {"compute": self.compute_s, "sum": self.exposed_s, "update": self.update_s, "input": self.input_s}
        return max(parts, key=lambda name: parts[name])


@dataclass(frozen=True)
class Prediction:
    """A prediction, with a `PredictionRow` for each number of GPUs; the last row is for all GPUs.

    Attributes:
        machine: the name of the machine.
        gpu: the name of the machine's GPU.
        arithmetic: the arithmetic of matrix products.
        network: the name of the network.
        batch_size: images per GPU in the last row.
        global_batch_size: images per step, if this number is the same in all rows; None if the
            images per GPU are the same.
        passes: microbatches per GPU and step.
        optimizer: the name of the optimizer.
        store: the store whose time is predicted.
        rows: the prediction for each number of GPUs, in increasing order.
        with_ring: the speed-up with all GPUs if the store is ring; None for several hosts.
        not_trusted: reasons not to trust the prediction; empty if similar published speeds match.
        cautions: warnings about aspects that were never compared with published speeds.
        assumptions: the assumptions, as sentences.
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
    def all_gpus_row(self) -> PredictionRow:
        """Return the row for all GPUs."""
        return self.rows[-1]

    def to_dict(self) -> Dict[str, Any]:
        """Return all fields for JSON. Each row also contains step_s, efficiency and bound_by."""
        rows = [
            {**asdict(row), "step_s": row.step_s, "efficiency": row.efficiency, "bound_by": row.bound_by}
            for row in self.rows
        ]
        return {"kind": "prediction", "measured": False, **asdict(self), "rows": rows}

    @property
    def text(self) -> str:
        """Return a table 80 characters wide, followed by caveats and assumptions."""
        return _prediction_text(self)


def _prediction_text(prediction: Prediction) -> str:
    """Return the prediction as text: a table, warnings and assumptions."""
    global_batch_size = prediction.global_batch_size
    images = (
        f"{prediction.batch_size:,} images per GPU"
        if global_batch_size is None
        else f"{global_batch_size:,} images per step, for any number of GPUs"
    )
    training = (
        f"{prediction.network} on {prediction.machine}: {prediction.all_gpus_row.gpus} x "
        f"{prediction.gpu}, {prediction.arithmetic}, {images}, {prediction.optimizer}"
    )
    if prediction.passes > 1:
        training += f", in {prediction.passes} microbatches"
    lines = [
        *wrap_sentence(f"Predicted, not measured: {training}", ""),
        "",
        f"{'GPUs':>5}{'images/s':>11}{'speed-up':>9}{'efficiency':>11}{'step':>11}{'sum':>11}"
        f"{'exposed':>11}{'bound by':>11}",
        *map(_row_text, prediction.rows),
        "",
    ]
    ring_speedup = prediction.with_ring or 0.0
    if ring_speedup > 1.05 * prediction.all_gpus_row.speedup:
        lines += [f"With --kvstore ring the speed-up on all GPUs would be {ring_speedup:.2f}.", ""]
    for reason in prediction.not_trusted:
        lines += wrap_sentence(f"Not reliable in this case: {reason}.", "")
    for caution in prediction.cautions:
        lines += wrap_sentence(f"Note: {caution}.", "")
    lines += [""] * bool(prediction.not_trusted or prediction.cautions)
    lines.append("Assumed:")
    for assumption in prediction.assumptions:
        lines += wrap_sentence(assumption, "- ")
    return "\n".join(lines)


def _row_text(row: PredictionRow) -> str:
    """Return a line of the table: the prediction for one number of GPUs."""
    return (
        f"{row.gpus:>5}{row.images_per_s:>11,.0f}{row.speedup:>9.2f}{row.efficiency:>11.2f}"
        f"{row.step_s * 1e3:>8,.1f} ms{row.sum_s * 1e3:>8,.1f} ms{row.exposed_s * 1e3:>8,.1f} ms"
        f"{row.bound_by:>11}"
    )


# --- optimizers

# MXNet updates with one kernel for each of these; other optimizers take several operators.
ONE_KERNEL = ("sgd", "nag", "signum", "adam", "rmsprop")
PROBE_SHAPE = (2, 3)  # of the weight whose state is counted


@lru_cache(maxsize=None)
def count_states(name: str, momentum: bool) -> int:
    """Return the number of an optimizer's state arrays that are as large as the weights.

    Raises ConfigError for an unknown optimizer.
    """
    options = {"momentum": 0.9 if momentum else 0.0} if optimizer_kind(name).momentum else {}
    return _count_arrays(make_optimizer(name, options).create_state(0, nd.ones(PROBE_SHAPE)))


def updates_whole_buckets(name: str) -> bool:
    """Return whether the optimizer updates a whole bucket at once, not parameter by parameter."""
    return optimizer_kind(name).element_wise


def optimizer_caution(name: str) -> Optional[str]:
    """Return a warning if the prediction leaves out a part of the optimizer's update."""
    if name.lower() in ONE_KERNEL:
        return None
    return (
        f"--optimizer {name.lower()} is modeled as a single kernel that moves weights, gradients "
        "and state once, but it uses several kernels, so its update is slower"
    )


def _count_arrays(state: Any) -> int:
    """Return how many arrays of an optimizer's state are as large as the weights."""
    if isinstance(state, (tuple, list)):
        return sum(map(_count_arrays, state))
    return int(state is not None and state.shape == PROBE_SHAPE)


# --- steps

# Seconds in which the host's thread queues a step, per GPU. HOST_STEP_S: a step with one microbatch
# and one bucket, measured by `bench host` with its parts load and log. HOST_BUCKET_S: each further
# bucket, which costs as much as a parameter in Gluon's own sums (100 us for eight).
HOST_STEP_S, HOST_BUCKET_S = 168e-6, 12.5e-6
OFF = "off"
Overlap = Union[int, str, None]


class TrainingSpec(NamedTuple):
    """The training setup to predict.

    Attributes:
        work: The work of the network.
        machine: The machine.
        batch_size: Images per GPU and step, if ``global_batch_size`` is None.
        global_batch_size: Images per step on all GPUs, or None.
        microbatches: How a GPU's images are divided into microbatches.
        setting: The settings of a step; ``microbatches`` and ``updates`` are set for each row.
        updates_whole_buckets: Whether one kernel updates a whole bucket.
        overlap: Operators per bulk of backward, None for the default, or OFF.
        bucket_bytes: The maximum size of a bucket; None for the default.
    """

    work: Work
    machine: Machine
    batch_size: int
    global_batch_size: Optional[int]
    microbatches: Microbatches
    setting: ExecutionSetting
    updates_whole_buckets: bool
    overlap: Overlap
    bucket_bytes: Optional[int]

    def images_per_gpu(self, gpus: int) -> int:
        """Return the number of images per step on the GPU with the most images."""
        return self.batch_size if self.global_batch_size is None else math.ceil(self.global_batch_size / gpus)

    def passes(self, gpus: int) -> int:
        """Return the number of microbatches into which a GPU's images are divided."""
        return len(self.microbatches.bounds(self.images_per_gpu(gpus)))

    def predict_rows(self, store: str, counts: List[int]) -> List[PredictionRow]:
        """Return a row for each number of GPUs in ``counts``. The first number must be 1."""
        rows = [self._predict_row(store, count) for count in counts]
        one_gpu_speed = rows[0].images_per_s
        return [replace(row, speedup=row.images_per_s / one_gpu_speed) for row in rows]

    def _predict_row(self, store: str, gpus: int) -> PredictionRow:
        """Return the row for one number of GPUs; `predict_rows` later sets ``speedup``."""
        work, machine, images_of_gpu, passes = self.work, self.machine, self.images_per_gpu(gpus), self.passes(gpus)
        bucket_bytes = default_bucket_bytes(work, store, gpus) if self.bucket_bytes is None else self.bucket_bytes
        sizes = bucket_sizes(work, bucket_bytes)
        updates = max(1, len(sizes) if self.updates_whole_buckets else len(work.tensors))
        setting = self.setting._replace(microbatches=passes, updates=updates)
        step = step_seconds(work, images_of_gpu, machine.gpu, FITTED_CONSTANTS, setting)
        hosts = max(1, gpus // machine.gpus_each)
        sum_s = self._sum_s(store, gpus, hosts, sizes)
        exposed_s = self._exposed_s(sum_s, images_of_gpu / passes, bucket_bytes) if sum_s else 0.0
        gpu_queueing_s = passes * HOST_STEP_S + HOST_BUCKET_S * (max(1, len(sizes)) - 1)
        host_s = gpu_queueing_s * min(gpus, machine.gpus_each)
        images = gpus * images_of_gpu if self.global_batch_size is None else self.global_batch_size
        return PredictionRow(
            gpus=gpus,
            hosts=hosts,
            batch_size=images_of_gpu,
            input_s=step.input_s,
            compute_s=step.compute_s,
            sum_s=sum_s,
            exposed_s=exposed_s,
            update_s=step.update_s,
            host_s=host_s,
            images_per_s=images / max(step.seconds + exposed_s, host_s),
            speedup=1.0,
        )

    def _sum_s(self, store: str, gpus: int, hosts: int, sizes: List[float]) -> float:
        """Return the seconds to sum the gradients. ``sizes``: the bytes of each bucket."""
        if gpus == 1:
            return 0.0
        topology, gradients = self.machine.topology.subset(gpus), GradientSizes(sizes, separate_sums=True)
        if hosts > 1:
            return sum_over_hosts_s(store, self.machine.kind, topology, gradients)
        return sum_within_host_s(store_within_host(store), topology, gradients, MXNET_1_9_HOST)

    def _exposed_s(self, sum_s: float, images: float, bucket_bytes: float) -> float:
        """Return how many seconds the sum continues after the end of backward.

        The sum starts in the last microbatch, which completes the gradients. ``images``: images of
        a microbatch on a GPU.
        """
        backward_s = [
            operator_seconds(operator, images, self.machine.gpu, FITTED_CONSTANTS, self.setting)[1]
            for operator in self.work.operators
        ]
        overlap = self.overlap
        piece = None if overlap == OFF else BACKWARD_PIECE if overlap is None else int(overlap)
        gradient_buckets = make_buckets(self.work, backward_s, piece, bucket_bytes)
        return exposed_sum_s(gradient_buckets, sum_s, math.fsum(backward_s))


# --- assumptions


def list_assumptions(training: TrainingSpec, optimizer: str, store: str, arithmetic: str) -> List[str]:
    """Return the assumptions as sentences. ``store``: the store whose time is predicted."""
    machine = training.machine
    gpu = machine.gpu
    sentences = [
        "Predicted, not measured. The model counts the operations of the network's graph and "
        f"uses a roofline for each kernel on {gpu.name} "
        f"({gpu.flops[arithmetic] / 1e12:g} TFLOP/s in {arithmetic}, "
        f"{gpu.bytes_per_s / 1e9:g} GB/s: {gpu.data_sheet.partition(':')[0]}). Its "
        "constants were fitted to published speeds of V100 and K80.",
        f"The training uses gluonlab's loop and {optimizer}. Images are uint8 and are copied at "
        "12 GB/s. Data loading is fast enough, and augmentation takes no time.",
        f"The time of the gradient reduction is estimated for {store} on {_describe_links(machine)}.",
        _describe_buckets(training),
        f"One thread of the host queues a step in {HOST_STEP_S * 1e6:.0f} us for each GPU "
        "of the host and microbatch, as measured with gluonlab bench host on a core of an EPYC, "
        f"and {HOST_BUCKET_S * 1e6:g} us for each further bucket.",
    ]
    if store == LOCAL:
        sentences.append(
            "The host sums at 10.5 GB/s, as measured with gluonlab bench gradients on two cores of "
            "an EPYC. A larger host may be faster, and one of 2015 was five times slower."
        )
    return sentences


def _describe_links(machine: Machine) -> str:
    """Return a phrase that names the links that gradient sums are assumed to use."""
    note = machine.topology.note
    if machine.nominal:
        return f"the machine's links at nominal speed: {note}"
    return f"the links of {machine.name}" + (f": {note}" if note else ", without further details")


def _describe_buckets(training: TrainingSpec) -> str:
    """Return the assumption about gradient buckets and their overlap with backward."""
    given_bytes = training.bucket_bytes
    if given_bytes == 0:
        buckets = "Gradients are reduced separately for each parameter"
    else:
        size = "25 MiB, or less with the kvstore device," if given_bytes is None else f"{given_bytes:,} bytes"
        buckets = f"Buckets of {size} are reduced"
    if training.overlap == OFF:
        return f"{buckets} after backward (--backward-bulk-size off)."
    return (
        f"{buckets} during backward, without slowing it down; the exposed time is the part of the "
        "reduction after backward."
    )


# --- predict

MAX_IMAGES = 2**20


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
    """Predict the speed of training with gluonlab's loop on a machine, such as p3.16xlarge*4.

    Args:
        work: the work of the network.
        machine: the name of a machine, which may consist of several hosts, or a topology file (see
            `find_machine`).
        batch_size: images per GPU and step.
        global_batch_size: images per step on all GPUs, the same for any number of GPUs; replaces
            ``batch_size``.
        microbatches: how a GPU's images are divided into microbatches.
        dtype: "float32" or "float16".
        tf32: whether to use TF32, as with --tf32.
        optimizer: the name of the optimizer.
        momentum: whether the optimizer uses momentum; ignored if it does not support momentum.
        overlap: operators per bulk of backward, or "off", as for --backward-bulk-size.
        bucket_bytes: maximum size of a bucket, as for --bucket-bytes.
        store: how gradients are summed. On one host, this is a value of --kvstore. On several
            hosts, this is "horovod" or "dist_sync", and "horovod" replaces any other store.
        gpus: the number of GPUs; all by default.

    Returns:
        The prediction.

    Raises:
        ConfigError: if the model cannot predict this training setup; the message lists the choices.
    """
    specification = find_machine(machine)
    images, scope = (batch_size, "per GPU") if global_batch_size is None else (global_batch_size, "over all GPUs")
    if not (isinstance(images, int) and 0 < images <= MAX_IMAGES):
        raise ConfigError(f"batch size {images!r} {scope}: must be a whole number from 1 to {MAX_IMAGES}")
    if dtype not in (FLOAT32, FLOAT16):
        raise ConfigError(f"training with dtype {dtype!r} cannot be predicted: choose {FLOAT32} or {FLOAT16}")
    max_gpus = specification.topology.world_size
    if gpus is not None and not (isinstance(gpus, int) and 1 <= gpus <= max_gpus):
        raise ConfigError(
            f"the number of GPUs is {gpus!r}, but must be a whole number from 1 to {max_gpus} on {machine}"
        )
    if overlap not in (None, OFF) and not (isinstance(overlap, int) and overlap > 0):
        raise ConfigError(f"overlap={overlap!r}: must be {OFF!r} or a number of operators of at least 1")
    priced, store_caution = resolve_store(store, specification)
    counts = _gpu_counts(specification, gpus)
    if global_batch_size is not None and global_batch_size < counts[-1]:
        raise ConfigError(
            f"a batch of {global_batch_size} images is too small for {counts[-1]} GPUs: use at least {counts[-1]} "
            f"images, or at most {global_batch_size} GPUs"
        )
    optimizer_states, arithmetic = count_states(optimizer, momentum), specification.gpu.arithmetic(dtype, tf32)
    training = TrainingSpec(
        work,
        specification,
        batch_size,
        global_batch_size,
        microbatches,
        ExecutionSetting(dtype, pixel_bytes=1, tf32=tf32, optimizer_states=optimizer_states),
        updates_whole_buckets(optimizer),
        overlap,
        bucket_bytes,
    )
    not_trusted, cautions = _collect_caveats(training, priced, counts)
    further_cautions = [store_caution, _share_caution(training, counts), optimizer_caution(optimizer)]
    ring_speedup = training.predict_rows(RING, [1, counts[-1]])[-1].speedup if specification.hosts == 1 else None
    return Prediction(
        machine=machine,
        gpu=specification.gpu.name,
        arithmetic=arithmetic,
        network=work.name,
        batch_size=training.images_per_gpu(counts[-1]),
        global_batch_size=global_batch_size,
        passes=training.passes(counts[-1]),
        optimizer=optimizer,
        store=priced,
        rows=tuple(training.predict_rows(priced, counts)),
        with_ring=ring_speedup,
        not_trusted=tuple(not_trusted),
        cautions=(*cautions, *(caution for caution in further_cautions if caution)),
        assumptions=tuple(list_assumptions(training, optimizer, priced, arithmetic)),
    )


def _gpu_counts(machine: Machine, gpus: Optional[int]) -> List[int]:
    """Return the numbers of GPUs for which to predict, up to ``gpus`` (None: all GPUs).

    The numbers are 1, 2, 4, ... within a host, and then 1, 2, 4, ... whole hosts.
    """
    if gpus is None or machine.hosts == 1:
        max_gpus = gpus or machine.topology.world_size
    elif gpus <= machine.gpus_each:
        max_gpus = gpus
    else:
        max_gpus = gpus - gpus % machine.gpus_each
        if max_gpus != gpus:
            raise ConfigError(
                f"predictions on several hosts of {machine.name} need a multiple of {machine.gpus_each} GPUs, "
                f"not {gpus}: use {max_gpus}"
            )
    counts, count = [], 1
    while count < max_gpus:
        counts.append(count)
        count *= 2
        if machine.hosts > 1 and count > machine.gpus_each and counts[-1] < machine.gpus_each:
            count = machine.gpus_each
    return [*counts, max_gpus]


def _collect_caveats(training: TrainingSpec, store: str, counts: List[int]) -> Tuple[List[str], List[str]]:
    """Return the reasons not to trust the prediction, and further warnings, without duplicates.

    ``counts``: the number of GPUs of each row.
    """
    counts_by_images: Dict[int, List[int]] = {}
    for count in counts:
        counts_by_images.setdefault(training.images_per_gpu(count), []).append(count)
    not_trusted: List[str] = []
    cautions: List[str] = []
    for images, gpus in counts_by_images.items():
        training_case = ComparableTraining(
            images,
            training.setting.dtype,
            training.setting.tf32,
            store,
            tuple(count for count in gpus if count <= training.machine.gpus_each),
            training.passes(gpus[0]),
            training.setting.optimizer_states,
        )
        row_reasons, row_cautions = list_caveats(training.work, training.machine.gpu, training_case)
        not_trusted += row_reasons
        cautions += row_cautions
    return list(dict.fromkeys(not_trusted)), list(dict.fromkeys(cautions))


def _share_caution(training: TrainingSpec, counts: List[int]) -> Optional[str]:
    """Return a warning if a step's images cannot be divided equally among the GPUs."""
    global_batch_size = training.global_batch_size
    uneven = [count for count in counts if global_batch_size is not None and global_batch_size % count]
    if not uneven:
        return None
    return (
        f"{global_batch_size} images cannot be divided evenly among {', '.join(map(str, uneven))} "
        "GPUs: the prediction is for the GPU with the most images, because the others wait for it"
    )
