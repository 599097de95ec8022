"""`predict`: training on a machine, by numbers of its GPUs; what it assumes, and where not to trust
it.
"""

from __future__ import annotations

import math
from functools import partial
from typing import List, NamedTuple, Optional, Union

from gluonlab.errors import ConfigError
from gluonlab.prediction.constants import FITTED, MEASURED_NOW
from gluonlab.prediction.gpus import FLOAT16, FLOAT32
from gluonlab.prediction.machines import Machine, find_machine
from gluonlab.prediction.outcome import Prediction, Row
from gluonlab.prediction.overlap import BUCKET_BYTES, PIECE, Bucket, buckets, exposed_s
from gluonlab.prediction.roofline import Parts, Setting, operator_s, step_parts
from gluonlab.prediction.sums import (
    LOCAL,
    OVER_HOSTS,
    Gradients,
    over_hosts_s,
    within_host_s,
)
from gluonlab.prediction.trust import doubts
from gluonlab.prediction.work import Work

HOST_S = 168e-6  # of the one thread that queues, a step and GPU: `bench host`, with load and log
Overlap = Union[int, str, None]
OFF = "off"
HIERARCHICAL, RING = "horovod", "ring"
# A store that sums no otherwise than another: what lies between its two halves moves nothing.
PRICED_AS = {"sharded-optimizer": "sharded"}


def predict(
    work: Work,
    machine: str,
    batch_size: int,
    *,
    dtype: str = FLOAT32,
    tf32: bool = False,
    overlap: Overlap = None,
    store: str = "device",
    gpus: Optional[int] = None,
) -> Prediction:
    """Training with gluonlab's loop and SGD with momentum on ``machine``, such as p3.16xlarge*4.

    ``batch_size``: images per GPU and step. ``tf32``: as --tf32. ``store``: over the GPUs of one
    host, or over hosts "horovod" or "dist_sync"; over hosts any other stands for "horovod".
    ``gpus``: all, by default. ``overlap``: operators of a piece of backward, or "off", as
    --overlap. Raises ConfigError, with what is possible, for what no prediction is known for.
    """
    found = find_machine(machine)
    if not (isinstance(batch_size, int) and 0 < batch_size <= 2**20):
        raise ConfigError(f"batch size {batch_size!r} per GPU: give a whole number, 1 or more")
    if dtype not in (FLOAT32, FLOAT16):
        raise ConfigError(f"dtype {dtype!r} has no prediction: choose {FLOAT32} or {FLOAT16}")
    most = found.topology.world_size
    if gpus is not None and not (isinstance(gpus, int) and 1 <= gpus <= most):
        raise ConfigError(f"{gpus!r} GPUs of {machine}: choose 1 to {most}")
    if overlap not in (None, OFF) and not (isinstance(overlap, int) and overlap > 0):
        raise ConfigError(f"overlap {overlap!r}: give operators of a piece, 1 or more, or off")
    if found.hosts > 1 and store not in OVER_HOSTS:
        store = HIERARCHICAL
    updates = max(1, math.ceil(4 * work.parameters / BUCKET_BYTES))
    setting = Setting(dtype, pixel_bytes=1, updates=updates, tf32=tf32)
    row = partial(_row, _training(work, found, batch_size, setting, overlap))
    counts = _counts(found, gpus)
    rows = tuple(row(store, count) for count in counts)
    not_trusted, cautions = doubts(work, found.gpu, batch_size, dtype, tf32)
    arithmetic = found.gpu.arithmetic(dtype, tf32)
    return Prediction(
        machine=machine,
        gpu=found.gpu.name,
        arithmetic=arithmetic,
        network=work.name,
        batch_size=batch_size,
        store=store,
        rows=rows,
        with_ring=row(RING, counts[-1]).speedup if found.hosts == 1 else None,
        not_trusted=tuple(not_trusted),
        cautions=tuple(cautions),
        assumptions=tuple(_assumptions(found, store, arithmetic, overlap)),
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


def _training(
    work: Work, machine: Machine, batch_size: int, setting: Setting, overlap: Overlap
) -> "_Training":
    gpu = machine.gpu
    one = step_parts(work, batch_size, gpu, FITTED, setting)
    backward_s = [
        operator_s(operator, batch_size, gpu, FITTED, setting)[1] for operator in work.operators
    ]
    piece = None if overlap == OFF else PIECE if overlap is None else int(overlap)
    gradients = buckets(work, backward_s, piece)
    return _Training(work, machine, batch_size, one, math.fsum(backward_s), gradients)


class _Training(NamedTuple):
    """What is trained on a machine, and the parts of a step that are the same on each GPU."""

    work: Work
    machine: Machine
    batch_size: int
    one: Parts
    backward_s: float
    gradients: List[Bucket]


def _row(training: _Training, store: str, gpus: int) -> Row:
    machine, one = training.machine, training.one
    hosts = max(1, gpus // machine.gpus_each)
    sum_s = _sum_s(training.work, machine, store, gpus, hosts)
    behind_s = exposed_s(training.gradients, sum_s, training.backward_s) if sum_s else 0.0
    host_s = HOST_S * min(gpus, machine.gpus_each)
    images_per_s = gpus * training.batch_size / max(one.seconds + behind_s, host_s)
    return Row(
        gpus=gpus,
        hosts=hosts,
        input_s=one.input_s,
        compute_s=one.compute_s,
        sum_s=sum_s,
        exposed_s=behind_s,
        update_s=one.update_s,
        host_s=host_s,
        images_per_s=images_per_s,
        speedup=images_per_s * max(one.seconds, HOST_S) / training.batch_size,
    )


def _sum_s(work: Work, machine: Machine, store: str, gpus: int, hosts: int) -> float:
    if gpus == 1:
        return 0.0
    gradients = Gradients([4.0 * numbers for numbers in work.tensors])
    if hosts == 1:
        within = RING if store in OVER_HOSTS else PRICED_AS.get(store, store)
        return within_host_s(within, machine.topology.subset(gpus), gradients, MEASURED_NOW)
    return over_hosts_s(store, machine.kind, machine.topology.subset(gpus), gradients)


def _assumptions(machine: Machine, store: str, arithmetic: str, overlap: Overlap) -> List[str]:
    gpu = machine.gpu
    peak = gpu.flops[arithmetic]
    words = (
        "Sums begin after backward (--overlap off)."
        if overlap == OFF
        else "Buckets of 25 MiB are summed while backward goes on, and do not slow it down; "
        "exposed is what is left of the sum at its end."
    )
    sentences = [
        "Predicted, not measured: operations counted in the network's graph, a roofline for each "
        f"kernel on {gpu.name} ({peak / 1e12:g} TFLOP/s in {arithmetic}, "
        f"{gpu.bytes_per_s / 1e9:g} GB/s: {gpu.sheet.partition(':')[0]}), constants fitted to "
        "published speeds of V100 and K80.",
        "Training with gluonlab's loop and SGD with momentum; images are uint8 and copied at "
        "12 GB/s; reading and decoding them keeps up.",
        f"The sum is {store}'s, priced on the machine's links at nominal speed: "
        f"{machine.topology.note}.",
        words,
        f"One thread of the host queues a step in {HOST_S * 1e6:.0f} us for each GPU of the host, "
        "as measured with `bench host` on a core of an EPYC.",
    ]
    if store == LOCAL:
        sentences.append(
            "The host sums at 10.5 GB/s, as measured with `bench gradients` on two cores of an "
            "EPYC: a larger host may be faster, and one of 2015 was five times slower."
        )
    return sentences
