"""A kvstore that sums by schedules which are made for the links of the machine."""

from __future__ import annotations

from typing import Dict, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from gluonlab.collectives.executor import Executor
from gluonlab.collectives.for_links import ForLinks, make_for_links
from gluonlab.collectives.topology import make_topology
from gluonlab.errors import KVStoreError, ScheduleError
from gluonlab.kvstores.placement import Placement, ground_of
from gluonlab.kvstores.summing import SummingKVStore
from gluonlab.kvstores.sums import Ranks


class ForLinksKVStore(SummingKVStore):
    """Sums by the schedule ``name`` of `gluonlab.collectives.for_links`.

    Keys that come in one list are summed together, by the schedule for their bytes. The links are
    those of the machine that ``topology`` names, or, of GPUs, those that NVML reports; devices of
    unknown links count as behind one switch. Raises ScheduleError for an unknown topology.
    """

    def __init__(self, name: str, topology: Optional[str] = None) -> None:
        super().__init__(name)
        if topology is not None:
            make_topology(topology)  # whether there is one
        self._topology = topology
        self._of_devices: Dict[Tuple[mx.Context, ...], Tuple[str, ForLinks]] = {}

    def placement(self, ctxs: Sequence[mx.Context]) -> Placement:
        """What the schedules are made for; each device plays the rank of its number.

        Raises KVStoreError for devices that the named topology has not, and where there is no
        schedule for them.
        """
        try:
            why, _ = self._made_for(ctxs)
        except ScheduleError as error:
            raise KVStoreError(
                f"kvstore {self.type!r} on {' '.join(map(str, ctxs))}: {error}"
            ) from error
        return Placement(tuple(range(len(ctxs))), why)

    def executor(self, arrays: Ranks) -> Executor:
        size_bytes = sum(array.size * np.dtype(array.dtype).itemsize for array in arrays[0])
        _, made = self._made_for([of_rank[0].context for of_rank in arrays])
        return Executor(made.cheapest(size_bytes), arrays)

    def _made_for(self, ctxs: Sequence[mx.Context]) -> Tuple[str, ForLinks]:
        """By what links schedules are made for these devices, and the schedules; once for all."""
        key = tuple(ctxs)
        if key not in self._of_devices:
            ground = ground_of(ctxs, self._topology)
            made = make_for_links(self._name, ground.topology, len(ctxs))
            self._of_devices[key] = ground.why, made
        return self._of_devices[key]
