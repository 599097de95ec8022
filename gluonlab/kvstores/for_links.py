"""A kvstore that sums by schedules which are made for the links of the machine."""

from __future__ import annotations

from functools import lru_cache
from typing import Dict, Optional, Sequence, Tuple

import mxnet as mx

from gluonlab.collectives.executor import Executor
from gluonlab.collectives.for_links import ForLinks, make_for_links
from gluonlab.collectives.topology import make_topology
from gluonlab.collectives.wiring import cpu_devices
from gluonlab.errors import KVStoreError, ScheduleError
from gluonlab.kvstores.placement import Placement, ground_of
from gluonlab.kvstores.summing import Keys, SummingKVStore
from gluonlab.kvstores.sums import Ranks, size_of


class ForLinksKVStore(SummingKVStore):
    """Sums by the schedule ``name`` of `gluonlab.collectives.for_links`.

    Keys that come in one list are summed together, by the schedule for their bytes. The links are
    those of the machine that ``topology`` names, or, of GPUs, those that NVML reports; GPUs of
    unknown links count as behind one switch, and CPU devices have their usual speeds
    (`gluonlab.collectives.wiring.cpu_devices`). Raises ScheduleError for an unknown topology.
    """

    def __init__(self, name: str, topology: Optional[str] = None) -> None:
        super().__init__(name)
        if topology is not None:
            make_topology(topology)  # whether there is one
        self._topology = topology
        self._of_devices: Dict[Tuple[mx.Context, ...], Tuple[str, ForLinks]] = {}

    def placement(self, ctxs: Sequence[mx.Context]) -> Placement:
        """What the schedules are made for, and which they are; each device plays its own rank.

        Raises KVStoreError for devices that the named topology has not, and where there is no
        schedule for them.
        """
        try:
            why, made = self._made_for(ctxs)
        except ScheduleError as error:
            raise KVStoreError(
                f"kvstore {self.type!r} on {' '.join(map(str, ctxs))}: {error}"
            ) from error
        return Placement(tuple(range(len(ctxs))), why, tuple(map(str, made.table())))

    def schedules(self, ctxs: Sequence[mx.Context]) -> ForLinks:
        """The schedules for these devices. Raises ScheduleError."""
        return self._made_for(ctxs)[1]

    def executor(self, arrays: Ranks, keys: Keys) -> Executor:
        made = self.schedules([of_rank[0].context for of_rank in arrays])
        return Executor(made.cheapest(size_of(arrays[0])), arrays)

    def _made_for(self, ctxs: Sequence[mx.Context]) -> Tuple[str, ForLinks]:
        """By what links schedules are made for these devices, and the schedules; once for all."""
        key = tuple(ctxs)
        if key not in self._of_devices:
            ground = ground_of(ctxs, self._topology)
            links, why = ground.topology, ground.why or "as behind a switch"
            if links is None and any(ctx.device_type != "gpu" for ctx in ctxs):
                made = _made_for_cpu_devices(self._name, len(key))
                self._of_devices[key] = "by the usual speeds of CPU devices", made
            else:
                self._of_devices[key] = why, make_for_links(self._name, links, len(key))
        return self._of_devices[key]


@lru_cache(maxsize=None)
def _made_for_cpu_devices(name: str, count: int) -> ForLinks:
    """Once for all stores of a process: it takes as long as many steps of a small network."""
    return make_for_links(name, cpu_devices(count), count)
