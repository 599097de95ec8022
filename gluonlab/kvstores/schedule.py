"""A kvstore that sums by a schedule: the from-scratch algorithms under gluon.Trainer."""

from __future__ import annotations

from typing import Dict, Optional, Sequence, Tuple

import mxnet as mx

from gluonlab.collectives.algorithms import make_schedule
from gluonlab.collectives.executor import Executor
from gluonlab.collectives.schedule import Schedule
from gluonlab.collectives.topology import make_topology
from gluonlab.errors import KVStoreError, ScheduleError
from gluonlab.kvstores.placement import Placement, ground_of, place
from gluonlab.kvstores.summing import Keys, SummingKVStore
from gluonlab.kvstores.sums import Ranks


class ScheduleKVStore(SummingKVStore):
    """Sums over devices by the algorithm ``name`` of `gluonlab.collectives.algorithms`.

    Keys that come in one list are summed together: their arrays are cut into chunks as one, and
    wait for each other. Give the same list every time. Executors are made when their keys are first
    used, and again when they come with other arrays. ``priority`` is that of the first and the last
    thing that is queued for those that are cut; transfers are made as soon as their chunks are
    ready. Use a store from one thread.

    ``order``: which device plays which rank; see `Schedule.placed`. Without it GPUs are placed by
    the links of this machine, or of the one that ``topology`` names, which places CPU devices, too
    (`gluonlab.kvstores.placement`).

    Raises ScheduleError for an unknown name or topology, and for an order that does not name every
    device once; KVStoreError for an order and a topology.
    """

    def __init__(
        self, name: str, order: Optional[Sequence[int]] = None, topology: Optional[str] = None
    ) -> None:
        super().__init__(name)
        if order is not None and topology is not None:
            raise KVStoreError(
                f"order {list(order)} and topology {topology!r} both place devices: "
                "give one of them"
            )
        if topology is not None:
            make_topology(topology)  # whether there is one
        self._order, self._topology = order, topology
        self._placements: Dict[Tuple[mx.Context, ...], Placement] = {}
        self.schedule(2 if order is None else len(order))  # whether there is one

    def schedule(self, world_size: int) -> Schedule:
        """The schedule for so many devices, placed by ``order`` if there is one."""
        schedule = make_schedule(self._name, world_size)
        return schedule if self._order is None else schedule.placed(self._order)

    def placement(self, ctxs: Sequence[mx.Context]) -> Placement:
        """Which of ``ctxs`` plays which rank, and by what it was chosen.

        Raises KVStoreError for devices that the named topology has not.
        """
        try:
            return self._place(ctxs)
        except ScheduleError as error:
            raise KVStoreError(
                f"kvstore {self.type!r} on {' '.join(map(str, ctxs))}: {error}"
            ) from error

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
