"""A topology: devices, the links that a message passes between two of them, and their speed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Iterable, List, Mapping, Sequence, Tuple, Union

from gluonlab.collectives.rings import best_ring
from gluonlab.collectives.routes import Link as Link
from gluonlab.collectives.routes import Pair as Pair
from gluonlab.collectives.routes import Route as Route
from gluonlab.collectives.routes import Ways, pairs_of
from gluonlab.collectives.schedule import Schedule, is_whole
from gluonlab.errors import ScheduleError

INFINITE = float("inf")


@dataclass(frozen=True)
class Topology:
    """Devices 0 to ``world_size`` - 1 and the way from each to each.

    ``reduce_bytes_per_s``: how fast one device adds what it received;
    ``shared_reduce_bytes_per_s``: how fast all of them do together, where they share a memory, and
    what a step adds to a chunk is one addition, from however many devices it comes.
    ``groups``: devices that are closer to each other than to the rest, for the hierarchical
    algorithm; all in one group by default. ``hosts``: the devices of each host, where there are
    several. ``note``: where the figures come from, and which are inferred. ``gpu``: the kind of the
    devices, and ``schedules``: allreduces found for exactly these links, rank r on device r, where
    a file says them (`topology_file`).

    Raises ScheduleError for a pair without a route and for speeds that are none.
    """

    name: str
    world_size: int
    routes: Mapping[Pair, Route]
    reduce_bytes_per_s: float = INFINITE
    shared_reduce_bytes_per_s: float = INFINITE
    groups: Tuple[Tuple[int, ...], ...] = ()
    note: str = ""
    hosts: Tuple[Tuple[int, ...], ...] = ()
    gpu: str = ""
    schedules: Tuple[Schedule, ...] = ()

    def __post_init__(self) -> None:
        check_devices(self.name, self.world_size)
        if not self._is_complete():
            raise ScheduleError(
                f"{self.name}: {self.world_size} devices have "
                f"{self.world_size * (self.world_size - 1)} routes, one for every pair (src, dst)"
            )
        for route in self._kinds_of_routes():
            speeds = [link.bytes_per_s for link in route.links]
            if not (speeds and route.latency_s >= 0 and all(speed > 0 for speed in speeds)):
                raise ScheduleError(
                    f"{self.name}: {route}: a route has links, each with bytes/s above 0, "
                    "and a latency of 0 s or more"
                )
        if not (self.reduce_bytes_per_s > 0 and self.shared_reduce_bytes_per_s > 0):
            raise ScheduleError(
                f"{self.name}: devices that add {self.reduce_bytes_per_s} bytes/s: "
                "more than 0 are possible"
            )
        for name in ("groups", "hosts"):
            if not getattr(self, name):
                object.__setattr__(self, name, (tuple(range(self.world_size)),))

    def _is_complete(self) -> bool:
        if isinstance(self.routes, Ways):
            return len(self.routes.out) == len(self.routes.into) == self.world_size
        return set(self.routes) == set(pairs_of(self.world_size))

    def _kinds_of_routes(self) -> Iterable[Route]:
        """Routes that pass all links there are."""
        ways = self.routes
        return ways.samples() if isinstance(ways, Ways) else ways.values()

    def ring_order(self) -> List[int]:
        """The order of devices whose ring, ``order[i]`` to ``order[i + 1]``, is the fastest.

        It is an order for `Schedule.placed`. That is the ring whose busiest link is the least busy
        when all devices send at once; of those, the one with the largest sum of the pairs' bytes/s;
        of those, the first in lexical order. Every order is tried unless it can no longer win.
        Of several hosts it is one host after the other, each in the order of its own fastest ring.
        """
        if len(self.hosts) == 1:
            return list(self._best_ring)
        return [host[rank] for host in self.hosts for rank in self.subset(host).ring_order()]

    @cached_property
    def _best_ring(self) -> List[int]:
        return best_ring(self.world_size, self.routes)

    def subset(self, devices: Union[int, Sequence[int]]) -> Topology:
        """The machine as its first ``devices`` devices see it, or as the listed ones do.

        Rank i is the i-th of them.
        """
        if not isinstance(devices, Sequence):
            if not is_whole(devices) or devices > self.world_size:
                raise ScheduleError(
                    f"{self.name} has {self.world_size} devices: "
                    f"choose 1 to {self.world_size}, not {devices!r}"
                )
            devices = range(devices)
        chosen = list(devices)
        known = all(device in range(self.world_size) for device in chosen)
        if not (chosen and known and len(set(chosen)) == len(chosen)):
            raise ScheduleError(
                f"{self.name} has devices 0 to {self.world_size - 1}: "
                f"choose each at most once, not {chosen}"
            )
        routes: Mapping[Pair, Route]
        if isinstance(self.routes, Ways):
            routes = self.routes.subset(chosen)
        else:
            routes = {(i, j): self.routes[chosen[i], chosen[j]] for i, j in pairs_of(len(chosen))}
        rank_of = {device: rank for rank, device in enumerate(chosen)}
        groups, hosts = (
            tuple(
                tuple(sorted(rank_of[device] for device in part if device in rank_of))
                for part in parts
                if not rank_of.keys().isdisjoint(part)
            )
            for parts in (self.groups, self.hosts)
        )
        kept = self.schedules if len(chosen) == self.world_size else ()
        return replace(
            self,
            world_size=len(chosen),
            routes=routes,
            groups=groups,
            hosts=hosts,
            schedules=tuple(
                each.placed([rank_of[device] for device in range(self.world_size)]) for each in kept
            ),
        )


def check_devices(name: str, world_size: Any) -> None:
    """Raise ScheduleError for a number of devices that is none."""
    if not is_whole(world_size):
        raise ScheduleError(f"{name} with {world_size!r} devices: there must be at least 1")
