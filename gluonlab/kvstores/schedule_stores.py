"""Kvstores that sum arrays with a schedule from `gluonlab.collectives`, and rank placement.

A placement assigns each rank of a schedule to a device.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Dict, Optional, Sequence, Tuple

import mxnet as mx

from gluonlab.collectives.algorithms import make_schedule
from gluonlab.collectives.cost_model import find_best_order
from gluonlab.collectives.named_topologies import (
    MIN_DEVICES_TO_PLACE,
    ResolvedTopology,
    make_topology,
    resolve_topology,
)
from gluonlab.collectives.schedule import Schedule
from gluonlab.collectives.schedule_executor import Executor
from gluonlab.collectives.topology import typical_cpu_topology
from gluonlab.errors import KVStoreError, ScheduleError
from gluonlab.kvstores.allreduce_store import AllreduceKVStore, ArraysByRank, Keys, Placement, total_bytes

if TYPE_CHECKING:
    from gluonlab.collectives.topology import Topology
    from gluonlab.collectives.topology_aware import SchedulesBySize


class _TopologyKVStore(AllreduceKVStore):
    """A store whose schedules depend on the links of this machine or of ``topology``."""

    def __init__(self, name: str, topology: Optional[str]) -> None:
        super().__init__(name)
        if topology is not None:
            make_topology(topology)  # raises if it is unknown
        self._topology = topology

    def placement(self, ctxs: Sequence[mx.Context]) -> Placement:
        """Return which rank runs on which of ``ctxs``, and why (`Placement`).

        Raises KVStoreError if the topology has fewer devices than ``ctxs``, or if there is no
        schedule for these devices.
        """
        try:
            return self._find_placement(ctxs)
        except ScheduleError as error:
            raise KVStoreError(f"kvstore {self.type!r} on {' '.join(map(str, ctxs))}: {error}") from error

    def _find_placement(self, ctxs: Sequence[mx.Context]) -> Placement:
        raise NotImplementedError


class ScheduleKVStore(_TopologyKVStore):
    """A store that sums with the algorithm ``name`` from `gluonlab.collectives.algorithms`.

    Keys in the same list are summed together: their arrays are cut into chunks as if they were a
    single array, and wait for each other. Pass the same list every time. An executor is created
    when keys are first used, and again when they are used with other arrays. Use a store from one
    thread only.

    ``priority`` applies only to the first and the last operation on arrays that are cut into
    chunks. Transfers start as soon as their chunks are ready.

    ``order``: for each rank, the number of its device (`Schedule.placed`). If neither an order nor
    a ``topology`` is given, ranks are assigned to GPUs according to the links of this machine. With
    ``topology``, ranks are assigned to GPUs and CPU devices according to the topology's links
    (`gluonlab.collectives.named_topologies.resolve_topology`).

    Raises ScheduleError for an unknown name or topology, and for an order that does not contain
    every device once. Raises KVStoreError if both an order and a topology are given.
    """

    def __init__(self, name: str, order: Optional[Sequence[int]] = None, topology: Optional[str] = None) -> None:
        if order is not None and topology is not None:
            raise KVStoreError(
                f"order={list(order)} and topology={topology!r} contradict each other, because both "
                "assign devices to ranks: remove one of them"
            )
        super().__init__(name, topology)
        self._order = order
        self._placements: Dict[Tuple[mx.Context, ...], Placement] = {}
        self.schedule(2 if order is None else len(order))  # raises for an unknown name

    def schedule(self, world_size: int) -> Schedule:
        """Return the schedule for ``world_size`` devices, placed by ``order`` if there is one."""
        schedule = make_schedule(self._name, world_size)
        return schedule if self._order is None else schedule.placed(self._order)

    def placement_for_training(self, ctxs: Sequence[mx.Context], copies: Sequence[Sequence[mx.Context]]) -> Placement:
        return self.placement(ctxs)

    def make_executor(self, arrays: ArraysByRank, keys: Keys) -> Executor:
        placement = self._find_placement([of_rank[0].context for of_rank in arrays])
        return Executor(make_schedule(self._name, len(arrays)).placed(placement.order), arrays)

    def _find_placement(self, ctxs: Sequence[mx.Context]) -> Placement:
        """Return the order that was given, or else the fastest order for the devices' links."""
        if self._order is not None:
            return Placement(tuple(self._order), "as given")
        key = tuple(ctxs)
        if key not in self._placements:
            self._placements[key] = place_ranks(self.schedule(len(key)), resolve_topology(key, self._topology))
        return self._placements[key]


class TopologyAwareKVStore(_TopologyKVStore):
    """A store whose schedules are made for the links between its devices.

    `gluonlab.collectives.topology_aware` makes the schedules. Keys in the same list are summed
    together, by the schedule for their total number of bytes. The links are those of ``topology``,
    or those that NVML reports for GPUs. GPUs with unknown links are treated as GPUs behind one
    switch. The links between CPU devices are assumed to have typical speeds
    (`gluonlab.collectives.topology.typical_cpu_topology`). Raises ScheduleError for an unknown
    topology.
    """

    def __init__(self, name: str, topology: Optional[str] = None) -> None:
        super().__init__(name, topology)
        self._schedules_by_devices: Dict[Tuple[mx.Context, ...], Tuple[str, "SchedulesBySize"]] = {}

    def _find_placement(self, ctxs: Sequence[mx.Context]) -> Placement:
        """Return a placement in which rank i runs on device i, with the schedules."""
        reason, schedules = self._schedules_with_reason(ctxs)
        return Placement(tuple(range(len(ctxs))), reason, tuple(map(str, schedules.size_thresholds())))

    def placement_for_training(
        self, ctxs: Sequence[mx.Context], copies: Sequence[Sequence[mx.Context]]
    ) -> Optional[Placement]:
        """Return the assignment for the first device of each replica, or None for one replica."""
        # Device i of each copy sums over the devices i of all copies. Only the first devices are
        # reported.
        first_devices = [copy[0] for copy in copies]
        return self.placement(first_devices) if len(first_devices) > 1 else None

    def schedules(self, ctxs: Sequence[mx.Context]) -> "SchedulesBySize":
        """Return the schedules for these devices. Raise ScheduleError if there is no schedule."""
        return self._schedules_with_reason(ctxs)[1]

    def make_executor(self, arrays: ArraysByRank, keys: Keys) -> Executor:
        schedules = self.schedules([of_rank[0].context for of_rank in arrays])
        return Executor(schedules.cheapest(total_bytes(arrays[0])), arrays)

    def _schedules_with_reason(self, ctxs: Sequence[mx.Context]) -> Tuple[str, "SchedulesBySize"]:
        """Return (reason, schedules) for these devices. The schedules are made only once."""
        key = tuple(ctxs)
        if key not in self._schedules_by_devices:
            resolved = resolve_topology(ctxs, self._topology)
            links, reason = resolved.topology, resolved.reason or "as behind a switch"
            if links is None and any(ctx.device_type != "gpu" for ctx in ctxs):
                schedules = _make_cpu_schedules(self._name, len(key))
                self._schedules_by_devices[key] = "by the usual speeds of CPU devices", schedules
            else:
                self._schedules_by_devices[key] = (reason, _make_schedules(self._name, links, len(key)))
        return self._schedules_by_devices[key]


@lru_cache(maxsize=None)
def _make_cpu_schedules(name: str, count: int) -> "SchedulesBySize":
    """Return the schedules for CPU devices.

    The schedules take long to compute, so they are cached for the whole process.
    """
    return _make_schedules(name, typical_cpu_topology(count), count)


def _make_schedules(name: str, links: "Optional[Topology]", count: int) -> "SchedulesBySize":
    """Return schedules for ``count`` devices that are connected by ``links``."""
    # imports the synthesis, which other stores do not need
    from gluonlab.collectives.topology_aware import make_for_links

    return make_for_links(name, links, count)


def place_ranks(schedule: Schedule, resolved: ResolvedTopology) -> Placement:
    """Return the assignment of ranks to devices with which ``schedule`` should be fastest.

    If the links are unknown or the devices are few, rank i runs on device i.
    """
    if resolved.topology is None or schedule.world_size < MIN_DEVICES_TO_PLACE:
        return Placement(tuple(range(schedule.world_size)), resolved.reason)
    return Placement(tuple(find_best_order(schedule, resolved.topology)), resolved.reason)
