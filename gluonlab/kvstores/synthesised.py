"""A kvstore that sums by schedules which a solver has found for the links of the machine."""

from __future__ import annotations

from typing import Optional, Sequence

import mxnet as mx

from gluonlab.collectives.executor import Executor
from gluonlab.collectives.synthesis.stored import NAME, cheapest, front_of, uniform
from gluonlab.collectives.topology import Topology, make_topology
from gluonlab.errors import KVStoreError, ScheduleError
from gluonlab.kvstores.placement import Ground, Placement, ground_of
from gluonlab.kvstores.summing import SummingKVStore
from gluonlab.kvstores.sums import Ranks


class SynthesisedKVStore(SummingKVStore):
    """Sums keys that come in one list by the stored schedule with the lowest price for their bytes.

    The price is that on the links of the machine that ``topology`` names, or, of GPUs, on those
    that NVML reports; devices of unknown links count as behind one switch. Raises ScheduleError for
    an unknown topology.
    """

    def __init__(self, topology: Optional[str] = None) -> None:
        super().__init__(NAME)
        if topology is not None:
            make_topology(topology)  # whether there is one
        self._topology = topology

    def placement(self, ctxs: Sequence[mx.Context]) -> Placement:
        """What the schedules were found for; devices play the ranks of their numbers.

        Raises KVStoreError for devices that the named topology has not, and for more devices than
        there are schedules for.
        """
        try:
            ground = self._ground(ctxs)
            cheapest(_of(ground, len(ctxs)), 0)
        except ScheduleError as error:
            raise KVStoreError(
                f"kvstore {self.type!r} on {' '.join(map(str, ctxs))}: {error}"
            ) from error
        if ground.topology is None:
            return Placement(tuple(range(len(ctxs))), ground.why)
        found_for = "" if front_of(ground.topology) else ", found for a switch"
        return Placement(tuple(range(len(ctxs))), f"{ground.why}{found_for}")

    def executor(self, arrays: Ranks) -> Executor:
        ctxs = [of_rank[0].context for of_rank in arrays]
        size_bytes = sum(array.size * array.dtype().itemsize for array in arrays[0])
        return Executor(cheapest(_of(self._ground(ctxs), len(ctxs)), size_bytes), arrays)

    def _ground(self, ctxs: Sequence[mx.Context]) -> Ground:
        return ground_of(ctxs, self._topology)


def _of(ground: Ground, world_size: int) -> Topology:
    return uniform(world_size) if ground.topology is None else ground.topology
