"""Trial: images/s on one, two, ... all GPUs, and bytes/s of several kvstores' sums."""

from __future__ import annotations

import itertools
import statistics
import time
from typing import TYPE_CHECKING, Any, Callable, List

from gluonlab.doctor.prove.trial import run
from gluonlab.gpu.process import Outcome, tell
from gluonlab.kvstores import make_kvstore

if TYPE_CHECKING:
    import mxnet as mx

NUMBERS = ("network", "gb_per_s")  # with devices, images_per_s; with store, bytes
NETWORKS = ("lenet", "resnet18")
FEWEST, MOST = 8, 512  # images of each device; as few as keep it busy for LONG_ENOUGH_S
LONG_ENOUGH_S = 0.03
STORES = ("device", "ring", "sharded")
SIZES = (2**16, 2**22, 2**26)  # bytes
ROUNDS = 5
LEAST_S, MOST_S = 0.2, 3.0  # of a round, of all of them


def measure(ctxs: List[mx.Context]) -> None:
    """Answers network, devices, images_per_s, ...; then store, bytes, gb_per_s."""
    from gluonlab.doctor.prove.work import training_step

    for network in NETWORKS:
        tell(trying=f"{network} on one GPU")
        images = _enough_images(network, ctxs[:1])
        for count in counts_up_to(len(ctxs)):
            tell(trying=f"{network} on {count} GPUs")
            step = training_step(network, ctxs[:count], "device", images)
            rate = count * images / seconds_of(step)
            tell(network=network, devices=count, images_per_device=images, images_per_s=rate)
    for store, size in itertools.product(STORES, SIZES) if len(ctxs) > 1 else ():
        tell(trying=f"sums of {size} bytes with {store}")
        speed = bus_bytes(size, len(ctxs)) / 1e9 / seconds_of(_sum(store, size, ctxs))
        tell(store=store, bytes=size, gb_per_s=speed)


def _enough_images(network: str, ctxs: List[mx.Context]) -> int:
    from gluonlab.doctor.prove.work import training_step

    images = FEWEST
    while images < MOST:
        step = training_step(network, ctxs, "device", images)
        _timed(step, 1)
        if _timed(step, 1) >= LONG_ENOUGH_S:
            break
        images *= 2
    return images


def counts_up_to(most: int) -> List[int]:
    """1, 2, 4, ... and ``most``."""
    return sorted({2**power for power in range(most.bit_length())} | {most})


def bus_bytes(size: int, world_size: int) -> float:
    """What each device sends in the best allreduce; its rate is nccl-tests' bus bandwidth."""
    return size * 2 * (world_size - 1) / world_size


def seconds_of(work: Callable[[], Any]) -> float:
    """Seconds of one repetition, the median of some rounds.

    Each round has enough repetitions to make the wait at its end negligible.
    """
    _timed(work, 1)
    once = _timed(work, 1)
    repeats = max(1, round(LEAST_S / max(once, 1e-6)))
    rounds = max(1, min(ROUNDS, int(MOST_S / (once * repeats))))
    return statistics.median(_timed(work, repeats) / repeats for _ in range(rounds))


def _timed(work: Callable[[], Any], repeats: int) -> float:
    from mxnet import nd

    nd.waitall()
    began = time.perf_counter()
    for _ in range(repeats):
        work()
    nd.waitall()
    return time.perf_counter() - began


def _sum(name: str, size: int, ctxs: List[mx.Context]) -> Callable[[], None]:
    from mxnet import nd

    store, arrays = make_kvstore(name, ctxs), [nd.zeros((size // 4,), ctx=ctx) for ctx in ctxs]
    store.broadcast(0, arrays[0], arrays)
    return lambda: store.pushpull(0, arrays)


def faults(outcome: Outcome) -> List[str]:
    """None: a speed is neither right nor wrong."""
    return []


def summary(outcome: Outcome) -> str:
    """The speed of each network on each number of GPUs."""
    rates = [
        f"{told['network']} {told['images_per_s']:,.0f} on {told['devices']}"
        for told in outcome.all("network")
    ]
    return f"images/s: {', '.join(rates)}"


if __name__ == "__main__":
    run(measure)
