"""Measures the memory bandwidth of this machine through MXNet.

`MemoryLimit` measures a lower bound on the time of any allreduce on CPU devices. `probe_speeds`
measures the speeds from which the cost model predicts how long schedules take.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Dict, Mapping, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.bench.harness.interleaved_rounds import Call, call_all, time_interleaved
from gluonlab.collectives.algorithms import ring_all_gather, ring_reduce_scatter
from gluonlab.collectives.named_topologies import Topology
from gluonlab.collectives.schedule import ADD, COPY, Schedule, Transfer
from gluonlab.collectives.schedule_executor import Executor
from gluonlab.collectives.topology import shared_memory_topology
from gluonlab.engine.fast_invoke import NO_ATTRIBUTES, Attributes, OperatorCall

LIMIT_NOTE = (
    "Memory limit: an allreduce of N bytes on k CPU devices moves at least 2kN bytes, because it "
    "reads and writes every replica once. It cannot be faster than all devices together read and "
    "write memory. This speed is measured through MXNet in the same rounds: all devices at once "
    "copy N bytes, at least 1 MiB, to a second buffer, or multiply them by one in place. The "
    "faster of the two counts."
)
MIN_PASS_BYTES = 2**20  # smaller buffers would measure other costs than the memory's
PROBE_ROUNDS = 3
# bytes per device: enough for several pieces, and small enough for any machine
MIN_PROBE_BYTES, MAX_PROBE_BYTES = 2**20, 2**25


class MemoryLimit:
    """A lower bound on the time that an allreduce of ``size_bytes`` takes on CPU devices.

    ``calls`` contains two functions that read and write a buffer on every device. One function
    copies the buffer, and the other scales the buffer in place. No allreduce can be faster than the
    faster of these two functions.
    """

    def __init__(self, ctxs: Sequence[mx.Context], size_bytes: int, dtype: str) -> None:
        count = max(size_bytes, MIN_PASS_BYTES) // np.dtype(dtype).itemsize
        self._part = size_bytes / (count * np.dtype(dtype).itemsize)
        self.sources, self.targets = ([nd.zeros((count,), ctx=ctx, dtype=dtype) for ctx in ctxs] for _ in range(2))
        pairs = zip(self.sources, self.targets)
        scalar = Attributes({"scalar": 1.0})
        copies = [partial(OperatorCall("_copyto", [source], target), NO_ATTRIBUTES) for source, target in pairs]
        scalings = [partial(OperatorCall("_mul_scalar", [source], source), scalar) for source in self.sources]
        self.calls = {"limit by copying": call_all(copies), "limit in place": call_all(scalings)}

    def seconds(self, measured: Mapping[str, Sequence[float]]) -> Tuple[float, ...]:
        """Return the minimum number of seconds that an allreduce takes, for each round.

        ``measured``: the seconds of each function in each round, by the name of the function.
        """
        return tuple(min(times) * self._part for times in zip(*[measured[name] for name in self.calls]))


@dataclass(frozen=True)
class MemorySpeeds:
    """The speeds of transfers between CPU devices, as arguments of `shared_memory_topology`.

    Attributes:
        latency_s: seconds for a transfer of no bytes.
        copy_bytes_per_s: bytes/s that all devices together copy.
        add_bytes_per_s: bytes/s that all devices together add.
        device_copy_bytes_per_s: bytes/s that one device copies while the others wait.
        device_add_bytes_per_s: bytes/s that one device adds while the others wait.
    """

    latency_s: float
    copy_bytes_per_s: float
    add_bytes_per_s: float
    device_copy_bytes_per_s: float
    device_add_bytes_per_s: float

    def topology(self, world_size: int) -> Topology:
        """Return the topology of this machine's CPU devices."""
        return shared_memory_topology(world_size, **vars(self))


def probe_speeds(ctxs: Sequence[mx.Context], size_bytes: int) -> MemorySpeeds:
    """Measure the executor's latency and its copy and addition speeds on several devices.

    Each device has a buffer of about ``size_bytes`` bytes. The speeds come from these schedules:

    - All devices together: the two halves of a ring, reduce-scatter (add) and all-gather (copy).
    - One device alone: it adds another device's buffer, or sends its buffer to all others.
    - Latency: the ring's copies with one element per chunk.
    """
    world_size = len(ctxs)
    elements = min(max(size_bytes, MIN_PROBE_BYTES), MAX_PROBE_BYTES) // 4 // world_size * world_size
    arrays = [[nd.zeros((elements,), ctx=ctx)] for ctx in ctxs]
    tiny = [[nd.zeros((world_size,), ctx=ctx)] for ctx in ctxs]
    copies, adds = ring_all_gather(world_size), ring_reduce_scatter(world_size)
    others = range(1, world_size)
    alone_copies = _one_step_schedule(world_size, [Transfer(0, rank, 0, COPY) for rank in others])
    alone_adds = _one_step_schedule(world_size, [Transfer(1, 0, 0, ADD)])
    large = {"copy": copies, "add": adds, "device copy": alone_copies, "device add": alone_adds}
    runs: Dict[str, Call] = {name: Executor(schedule, arrays).run for name, schedule in large.items()}
    runs["latency"] = Executor(copies, tiny).run
    seconds = {name: min(times) for name, times in time_interleaved(runs, PROBE_ROUNDS).items()}
    latency_s = seconds["latency"] / copies.transfers

    def payload_bytes_per_s(name: str) -> float:
        """Return the bytes/s that schedule ``name`` transfers, excluding the latency."""
        schedule = large[name]
        payload = schedule.transfers * elements * 4 / schedule.chunks
        moving_s = seconds[name] - schedule.transfers * latency_s
        # In small probes, the latency is as large and as uncertain as the time for the bytes. So at
        # least half of the time counts as the time for the bytes.
        return payload / max(moving_s, seconds[name] / 2)

    return MemorySpeeds(
        latency_s, payload_bytes_per_s("copy"), payload_bytes_per_s("add"),
        payload_bytes_per_s("device copy"), payload_bytes_per_s("device add"),
    )  # fmt: skip


def _one_step_schedule(world_size: int, transfers: Sequence[Transfer]) -> Schedule:
    return Schedule("probe", "allreduce", world_size, 1, (0,), (tuple(transfers),))
