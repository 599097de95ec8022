"""`predict`: training on a machine, by numbers of its GPUs; what it assumes, and where not to trust
it.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

from gluonlab.errors import ConfigError
from gluonlab.parallel.data.microbatches import WHOLE, Microbatches
from gluonlab.prediction.assumed import assumptions
from gluonlab.prediction.gpus import FLOAT16, FLOAT32
from gluonlab.prediction.machines import Machine, find_machine
from gluonlab.prediction.optimizers import by_bucket, caution_about, states
from gluonlab.prediction.outcome import Prediction
from gluonlab.prediction.roofline import Setting
from gluonlab.prediction.steps import OFF, Overlap, Training
from gluonlab.prediction.stores import RING, priced_as
from gluonlab.prediction.trust import Case, doubts
from gluonlab.prediction.work import Work

MOST_IMAGES = 2**20


def predict(
    work: Work,
    machine: str,
    batch_size: int = 0,
    *,
    global_batch_size: Optional[int] = None,
    microbatches: Microbatches = WHOLE,
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
    training = Training(
        work,
        found,
        batch_size,
        global_batch_size,
        microbatches,
        Setting(dtype, pixel_bytes=1, tf32=tf32, kept=kept),
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


def _doubts(training: Training, store: str, counts: List[int]) -> Tuple[List[str], List[str]]:
    """Those of all rows, each once."""
    alike: Dict[int, List[int]] = {}
    for count in counts:
        alike.setdefault(training.share(count), []).append(count)
    not_trusted: List[str] = []
    cautions: List[str] = []
    for share, gpus in alike.items():
        case = Case(
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


def _about_shares(training: Training, counts: List[int]) -> Optional[str]:
    """A caution where GPUs have unequal shares of a step's images."""
    shared = training.shared
    uneven = [count for count in counts if shared is not None and shared % count]
    if not uneven:
        return None
    return (
        f"{shared} images do not divide by {', '.join(map(str, uneven))} GPUs: priced is the GPU "
        "with most of them, for which the others wait"
    )
