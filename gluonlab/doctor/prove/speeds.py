"""Trial: images a second on one, two, ...

all GPUs, and bytes a second of the sums, for several kvstores.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List

from gluonlab.doctor.prove.telling import run
from gluonlab.doctor.prove.verdict import Verdict, all_of, right, unfinished
from gluonlab.gpu.process import Outcome, tell
from gluonlab.kvstores import make_kvstore

if TYPE_CHECKING:
    import mxnet as mx

NAME = "speeds"
NETWORKS = ("lenet", "resnet18")
FEWEST, MOST = 8, 512  # images of each device; as few as keep it busy for LONG_ENOUGH_S
LONG_ENOUGH_S = 0.03
STORES = ("device", "ring", "sharded")
SIZES = (2**16, 2**22, 2**26)  # bytes
ROUNDS = 5
LEAST_S, MOST_S = 0.2, 3.0  # of a round, of all of them


def measure(ctxs: List[mx.Context]) -> None:
    """Answers ``network``, ``devices``, ``images_per_device``, ``images_per_s``; then ``store``,
    ``bytes``, ``gb_per_s``.
    """
    from gluonlab.doctor.prove.work import training_step

    for network in NETWORKS:
        tell(trying=f"{network} on one GPU")
        images = _enough_images(network, ctxs[:1])
        for count in counts_up_to(len(ctxs)):
            tell(trying=f"{network} on {count} GPUs")
            step = training_step(network, ctxs[:count], "device", images)
            rate = count * images / seconds_of(step)
            tell(network=network, devices=count, images_per_device=images, images_per_s=rate)
    for store in STORES:
        for size in SIZES:
            if len(ctxs) > 1:
                tell(trying=f"sums of {size} bytes with {store}")
                tell(
                    store=store,
                    bytes=size,
                    gb_per_s=bus_bytes(size, len(ctxs)) / 1e9 / seconds_of(_sum(store, size, ctxs)),
                )


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
    """What each device sends in an allreduce of the best kind; nccl-tests calls a rate of it the
    bus bandwidth.
    """
    return size * 2 * (world_size - 1) / world_size


def seconds_of(work: Callable[[], Any]) -> float:
    """Of one repetition, the median of some rounds; each has enough of them that the wait at its
    end counts for little.
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


def judge(outcome: Outcome) -> List[Verdict]:
    """A speed is neither right nor wrong."""
    rates = [
        f"{told['network']} {told['images_per_s']:,.0f} on {told['devices']}"
        for told in all_of(outcome, "network")
    ]
    return unfinished(NAME, outcome) or [right(NAME, f"images/s: {', '.join(rates)}")]


def numbers(outcome: Outcome) -> List[Dict[str, Any]]:
    """``network``, ``devices``, ``images_per_s``; ``store``, ``bytes``, ``gb_per_s``."""
    return all_of(outcome, "network") + all_of(outcome, "gb_per_s")


if __name__ == "__main__":
    run(measure)
