"""The kvstores that sum by schedules of `gluonlab.collectives`, and who plays which rank."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Dict, Optional, Sequence, Tuple

import mxnet as mx

from gluonlab.collectives.algorithms import make_schedule
from gluonlab.collectives.cost_model import best_order
from gluonlab.collectives.named_topologies import FEWEST_TO_PLACE, Ground, ground_of, make_topology
from gluonlab.collectives.schedule import Schedule
from gluonlab.collectives.schedule_executor import Executor
from gluonlab.collectives.topology import cpu_devices
from gluonlab.errors import KVStoreError, ScheduleError
from gluonlab.kvstores.allreduce_store import Keys, Placement, Ranks, SummingKVStore, size_of

if TYPE_CHECKING:
    from gluonlab.collectives.topology import Topology
    from gluonlab.collectives.topology_aware import ForLinks


class _PlacedKVStore(SummingKVStore):
    """A store whose schedules depend on the links of this machine, or of ``topology``."""

    def __init__(self, name: str, topology: Optional[str]) -> None:
        super().__init__(name)
        if topology is not None:
            make_topology(topology)  # whether there is one
        self._topology = topology

    def placement(self, ctxs: Sequence[mx.Context]) -> Placement:
        """Which of ``ctxs`` plays which rank of which schedules, and by what they were chosen.

        Raises KVStoreError for devices that the named topology has not, and where there is no
        schedule for them.
        """
        try:
            return self._place(ctxs)
        except ScheduleError as error:
            raise KVStoreError(
                f"kvstore {self.type!r} on {' '.join(map(str, ctxs))}: {error}"
            ) from error

    def _place(self, ctxs: Sequence[mx.Context]) -> Placement:
        raise NotImplementedError


class ScheduleKVStore(_PlacedKVStore):
    """Sums over devices by the algorithm ``name`` of `gluonlab.collectives.algorithms`.

    Keys that come in one list are summed together: their arrays are cut into chunks as one, and
    wait for each other. Give the same list every time. Executors are made when their keys are first
    used, and again when they come with other arrays. ``priority`` is that of the first and the last
    thing that is queued for those that are cut; transfers are made as soon as their chunks are
    ready. Use a store from one thread.

    ``order``: which device plays which rank; see `Schedule.placed`. Without it GPUs are placed by
    the links of this machine, or of the one that ``topology`` names, which places CPU devices, too
    (`gluonlab.collectives.named_topologies.ground_of`).

    Raises ScheduleError for an unknown name or topology, and for an order that does not name every
    device once; KVStoreError for an order and a topology.
    """

    def __init__(
        self, name: str, order: Optional[Sequence[int]] = None, topology: Optional[str] = None
    ) -> None:
        if order is not None and topology is not None:
            raise KVStoreError(
                f"order {list(order)} and topology {topology!r} both place devices: "
                "give one of them"
            )
        super().__init__(name, topology)
        self._order = order
        self._placements: Dict[Tuple[mx.Context, ...], Placement] = {}
        self.schedule(2 if order is None else len(order))  # whether there is one

    def schedule(self, world_size: int) -> Schedule:
        """The schedule for so many devices, placed by ``order`` if there is one."""
        schedule = make_schedule(self._name, world_size)
        return schedule if self._order is None else schedule.placed(self._order)

    def placed_for(
        self, ctxs: Sequence[mx.Context], copies: Sequence[Sequence[mx.Context]]
    ) -> Placement:
        return self.placement(ctxs)

    def executor(self, arrays: Ranks, keys: Keys) -> Executor:
        placed = self._place([of_rank[0].context for of_rank in arrays])
        return Executor(make_schedule(self._name, len(arrays)).placed(placed.order), arrays)

    def _place(self, ctxs: Sequence[mx.Context]) -> Placement:
        if self._order is not None:
            return Placement(tuple(self._order), "as given")
        key = tuple(ctxs)
        if key not in self._placements:
            self._placements[key] = place(self.schedule(len(key)), ground_of(key, self._topology))
        return self._placements[key]


class ForLinksKVStore(_PlacedKVStore):
    """Sums by the schedule ``name`` of `gluonlab.collectives.topology_aware`.

    Keys that come in one list are summed together, by the schedule for their bytes. The links are
    those of the machine that ``topology`` names, or, of GPUs, those that NVML reports; GPUs of
    unknown links count as behind one switch, and CPU devices have their usual speeds
    (`gluonlab.collectives.topology.cpu_devices`). Raises ScheduleError for an unknown topology.
    """

    def __init__(self, name: str, topology: Optional[str] = None) -> None:
        super().__init__(name, topology)
        self._of_devices: Dict[Tuple[mx.Context, ...], Tuple[str, "ForLinks"]] = {}

    def _place(self, ctxs: Sequence[mx.Context]) -> Placement:
        """Each device plays its own rank."""
        why, made = self._made_for(ctxs)
        return Placement(tuple(range(len(ctxs))), why, tuple(map(str, made.table())))

    def placed_for(
        self, ctxs: Sequence[mx.Context], copies: Sequence[Sequence[mx.Context]]
    ) -> Optional[Placement]:
        summed = [copy[0] for copy in copies]  # as all that copies have alike
        return self.placement(summed) if len(summed) > 1 else None

    def schedules(self, ctxs: Sequence[mx.Context]) -> "ForLinks":
        """The schedules for these devices. Raises ScheduleError."""
        return self._made_for(ctxs)[1]

    def executor(self, arrays: Ranks, keys: Keys) -> Executor:
        made = self.schedules([of_rank[0].context for of_rank in arrays])
        return Executor(made.cheapest(size_of(arrays[0])), arrays)

    def _made_for(self, ctxs: Sequence[mx.Context]) -> Tuple[str, "ForLinks"]:
        """By what links schedules are made for these devices, and the schedules; once for all."""
        key = tuple(ctxs)
        if key not in self._of_devices:
            ground = ground_of(ctxs, self._topology)
            links, why = ground.topology, ground.why or "as behind a switch"
            if links is None and any(ctx.device_type != "gpu" for ctx in ctxs):
                made = _made_for_cpu_devices(self._name, len(key))
                self._of_devices[key] = "by the usual speeds of CPU devices", made
            else:
                self._of_devices[key] = why, _made_for_links(self._name, links, len(key))
        return self._of_devices[key]


@lru_cache(maxsize=None)
def _made_for_cpu_devices(name: str, count: int) -> "ForLinks":
    """Once for all stores of a process: it takes as long as many steps of a small network."""
    return _made_for_links(name, cpu_devices(count), count)


def _made_for_links(name: str, links: "Optional[Topology]", count: int) -> "ForLinks":
    from gluonlab.collectives.topology_aware import make_for_links  # and the synthesis with it

    return make_for_links(name, links, count)


def place(schedule: Schedule, ground: Ground) -> Placement:
    """The cheapest order found for ``schedule``; as numbered if the topology is unknown."""
    if ground.topology is None or schedule.world_size < FEWEST_TO_PLACE:
        return Placement(tuple(range(schedule.world_size)), ground.why)
    return Placement(tuple(best_order(schedule, ground.topology)), ground.why)
