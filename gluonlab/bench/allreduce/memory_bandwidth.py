"""What this machine's memory allows: a limit for any allreduce, and speeds to price by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Mapping, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.bench.harness.interleaved_rounds import Call, time_in_turns
from gluonlab.collectives.algorithms import ring_all_gather, ring_reduce_scatter
from gluonlab.collectives.named_topologies import Topology
from gluonlab.collectives.schedule import ADD, COPY, Schedule, Transfer
from gluonlab.collectives.schedule_executor import Executor
from gluonlab.collectives.topology import shared_memory_topology
from gluonlab.engine.fast_invoke import NO_ATTRIBUTES, Attributes, OperatorCall

LIMIT = (
    "Memory limit: an allreduce of N bytes on k CPU devices moves at least 2kN bytes, "
    "as it reads and writes every replica once. "
    "It cannot be faster than the workers of all devices together read and write memory. "
    "That rate is measured through MXNet in the same rounds: "
    "all devices at once copy N bytes, at least 1 MiB, to a second buffer, "
    "or multiply them by one in place; the quicker of the two counts."
)
SMALLEST_PASS = 2**20  # bytes: in smaller buffers it is not the memory that takes the time
PROBE_ROUNDS = 3
# bytes per device: at least some pieces, at most what any machine has
SMALLEST_PROBE, LARGEST_PROBE = 2**20, 2**25


class Limit:
    """Two calls that read as many bytes on every device as they write: a copy, and one in place.

    An allreduce of ``size_bytes`` on CPU devices cannot take less than the quicker one, for these
    bytes.
    """

    def __init__(self, ctxs: Sequence[mx.Context], size_bytes: int, dtype: str) -> None:
        count = max(size_bytes, SMALLEST_PASS) // np.dtype(dtype).itemsize
        self._part = size_bytes / (count * np.dtype(dtype).itemsize)
        self.sources, self.targets = (
            [nd.zeros((count,), ctx=ctx, dtype=dtype) for ctx in ctxs] for _ in range(2)
        )
        pairs = zip(self.sources, self.targets)
        copies = [OperatorCall("_copyto", [source], target) for source, target in pairs]
        scalings = [OperatorCall("_mul_scalar", [source], source) for source in self.sources]
        self.calls = {
            "limit by copying": _all(copies, NO_ATTRIBUTES),
            "limit in place": _all(scalings, Attributes({"scalar": 1.0})),
        }

    def seconds(self, measured: Mapping[str, Sequence[float]]) -> Tuple[float, ...]:
        """The limit in each round, of the times of ``calls``."""
        return tuple(
            min(times) * self._part for times in zip(*[measured[name] for name in self.calls])
        )


def _all(calls: Sequence[OperatorCall], attributes: Attributes) -> Call:
    def run() -> None:
        for call in calls:
            call(attributes)

    return run


@dataclass(frozen=True)
class Speeds:
    """What `shared_memory_topology` takes.

    Seconds of a transfer without bytes; payload bytes/s of all devices together, and of one alone.
    """

    latency_s: float
    copy_bytes_per_s: float
    add_bytes_per_s: float
    device_copy_bytes_per_s: float
    device_add_bytes_per_s: float

    def topology(self, world_size: int) -> Topology:
        """This machine's CPU devices."""
        return shared_memory_topology(world_size, **vars(self))


def probe(ctxs: Sequence[mx.Context], size_bytes: int) -> Speeds:
    """Measure the speeds of the executor's own transfers, on at least two devices.

    The buffers have about ``size_bytes`` on each. All devices are busy in the two halves of a ring;
    one works alone where it adds what another has, or sends all others what it has. The time of a
    transfer without bytes is that of the ring's copies with one element a chunk.
    """
    world_size = len(ctxs)
    elements = min(max(size_bytes, SMALLEST_PROBE), LARGEST_PROBE) // 4 // world_size * world_size
    arrays = [[nd.zeros((elements,), ctx=ctx)] for ctx in ctxs]
    tiny = [[nd.zeros((world_size,), ctx=ctx)] for ctx in ctxs]
    copies, adds = ring_all_gather(world_size), ring_reduce_scatter(world_size)
    others = range(1, world_size)
    alone_copies = _one_step(world_size, [Transfer(0, rank, 0, COPY) for rank in others])
    alone_adds = _one_step(world_size, [Transfer(1, 0, 0, ADD)])
    large = {"copy": copies, "add": adds, "device copy": alone_copies, "device add": alone_adds}
    runs: Dict[str, Call] = {name: Executor(each, arrays).run for name, each in large.items()}
    runs["latency"] = Executor(copies, tiny).run
    seconds = {name: min(times) for name, times in time_in_turns(runs, PROBE_ROUNDS).items()}
    latency_s = seconds["latency"] / copies.transfers

    def rate(name: str) -> float:
        schedule = large[name]
        payload = schedule.transfers * elements * 4 / schedule.chunks
        moving_s = seconds[name] - schedule.transfers * latency_s
        # with tiny probes, latency is as large and as uncertain as the rest
        return payload / max(moving_s, seconds[name] / 2)

    return Speeds(latency_s, rate("copy"), rate("add"), rate("device copy"), rate("device add"))


def _one_step(world_size: int, transfers: Sequence[Transfer]) -> Schedule:
    return Schedule("probe", "allreduce", world_size, 1, (0,), (tuple(transfers),))
