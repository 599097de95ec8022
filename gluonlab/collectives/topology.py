"""A topology: devices, the links that a message passes between two of them, and their speed.

A link is one direction of a wire. Messages that pass the same link share it, and a wire that works
both ways is two links. `Topology.ring_order` finds the best ring of devices. The uniform topologies
are made here of figures (`switch`, `fully_connected`, `this_machine`); `topology` has the known
machines.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Sequence, Tuple, Union

from gluonlab.collectives.schedule import Schedule, is_whole
from gluonlab.errors import ScheduleError
from gluonlab.renamed import get_renamed

INFINITE = float("inf")
Pair = Tuple[int, int]  # (src, dst)


class Link(NamedTuple):
    """One direction of a wire, or a bus that all directions share."""

    name: str
    bytes_per_s: float


class Route(NamedTuple):
    """The links that a message passes, all at once, and the latency of every message."""

    links: Tuple[Link, ...]
    latency_s: float

    @property
    def bytes_per_s(self) -> float:
        """The speed of the slowest link on the way."""
        return min(link.bytes_per_s for link in self.links)


Links = Tuple[Link, ...]  # part of a route


class Ways(Mapping[Pair, Route]):
    """The routes between many devices by their ways: out of the sender, then into the receiver.

    A route is made when it is asked for: among 1,024 devices there are a million. ``out`` and
    ``into``: the links of every device, with ``latency_s``. ``near``: the routes of pairs that go
    another way.
    """

    def __init__(
        self,
        out: Sequence[Links],
        into: Sequence[Links],
        latency_s: float,
        near: Mapping[Pair, Route],
    ) -> None:
        self.out, self.into, self.latency_s, self.near = out, into, latency_s, near

    def __getitem__(self, pair: Pair) -> Route:
        if pair in self.near:
            return self.near[pair]
        src, dst = pair
        if src == dst or not (0 <= src < len(self.out) and 0 <= dst < len(self.out)):
            raise KeyError(pair)
        return Route((*self.out[src], *self.into[dst]), self.latency_s)

    def __iter__(self) -> Iterator[Pair]:
        return iter(pairs_of(len(self.out)))

    def __len__(self) -> int:
        return len(self.out) * (len(self.out) - 1)

    def subset(self, devices: Sequence[int]) -> Ways:
        """The routes between the listed devices; device i is the i-th of them."""
        place = {device: i for i, device in enumerate(devices)}
        near = {
            (place[src], place[dst]): route
            for (src, dst), route in self.near.items()
            if src in place and dst in place
        }
        out, into = ([ways[device] for device in devices] for ways in (self.out, self.into))
        return Ways(out, into, self.latency_s, near)

    @property
    def alike(self) -> bool:
        """Whether devices may change places: each link on the way is one's own, or everybody's."""
        ways = [(*out, *into) for out, into in zip(self.out, self.into)]
        return (
            not self.near
            and len({tuple(link.bytes_per_s for link in way) for way in ways}) == 1
            and all(len(set(links)) in (1, len(ways)) for links in zip(*ways))
        )

    def samples(self) -> List[Route]:
        """Routes that pass every way, where there is more than one device."""
        pairs = ((device, (device + 1) % len(self.out)) for device in range(len(self.out)))
        far = [Route((*self.out[src], *self.into[dst]), self.latency_s) for src, dst in pairs]
        return [*self.near.values(), *far]


def pairs_of(world_size: int) -> List[Pair]:
    """All (src, dst)."""
    return [(src, dst) for src in range(world_size) for dst in range(world_size) if src != dst]


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
        ways = self.routes
        if isinstance(ways, Ways):
            complete = len(ways.out) == len(ways.into) == self.world_size
            kinds: Iterable[Route] = ways.samples()
        else:
            complete, kinds = set(ways) == set(pairs_of(self.world_size)), ways.values()
        if not complete:
            raise ScheduleError(
                f"{self.name}: {self.world_size} devices have "
                f"{self.world_size * (self.world_size - 1)} routes, one for every pair (src, dst)"
            )
        for route in kinds:  # which pass all links there are
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

    def ring_order(self) -> List[int]:
        """The order of devices whose ring, ``order[i]`` to ``order[i + 1]``, is the fastest.

        It is an order for `Schedule.placed`. That is the ring whose busiest link is the least busy
        when all devices send at once; of those, the one with the largest sum of the pairs' bytes/s;
        of those, the first in lexical order. Every order is tried unless it can no longer win.
        Of several hosts it is one host after the other, each in the order of its own fastest ring.
        """
        if len(self.hosts) == 1:
            return list(self._fastest_ring)
        return [host[rank] for host in self.hosts for rank in self.subset(host).ring_order()]

    @cached_property
    def _fastest_ring(self) -> List[int]:
        return _best_ring(self.world_size, self.routes)

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


# --- the best order of devices for rings, a Hamiltonian cycle

# About a second. Known machines need some hundred; on sixteen devices whose links all differ, as
# those of a file may, all orders would take minutes.
MOST_RING_LOOKS = 200_000
MOST_RING_DEVICES = 256  # of more there are only uniform machines, whose orders are all alike
# seconds per byte of the busiest link, then what the pairs' bytes/s fall short of the fastest
# pair's
_Cost = Tuple[float, float]


def _best_ring(world_size: int, routes: Mapping[Pair, Route]) -> List[int]:
    """The first of the best orders, device 0 in front.

    Depth first through all orders. Both parts of a cost only grow as a ring does, so what is no
    better than the best ring so far need not be finished; on uniform topologies that leaves about
    n² looks, on eight GPUs in a cube mesh some hundred. After MOST_RING_LOOKS the best so far is
    taken; more than MOST_RING_DEVICES stay as they are numbered.
    """
    if world_size > MOST_RING_DEVICES:
        return list(range(world_size))
    fastest = max((route.bytes_per_s for route in routes.values()), default=0.0)
    lowest: _Cost = (INFINITE, INFINITE)
    best_order = list(range(world_size))
    load: Dict[Link, int] = {}  # link -> how many of the ring's messages pass it
    looks = 0

    free = [device != 0 for device in range(world_size)]

    def visit(order: List[int], cost: _Cost) -> None:
        nonlocal lowest, best_order
        if len(order) == world_size:
            whole = extended(order[-1], order[0], cost)
            pass_links(order[-1], order[0], -1)
            if whole < lowest:
                lowest, best_order = whole, list(order)
            return
        for device in range(world_size):
            if looks >= MOST_RING_LOOKS:
                return
            if free[device]:
                longer = extended(order[-1], device, cost)
                if longer < lowest:
                    free[device] = False
                    visit([*order, device], longer)
                    free[device] = True
                pass_links(order[-1], device, -1)

    def extended(src: int, dst: int, cost: _Cost) -> _Cost:
        nonlocal looks
        looks += 1
        pass_links(src, dst, 1)
        route = routes[src, dst]
        busiest = max(load[link] / link.bytes_per_s for link in route.links)
        return max(cost[0], busiest), cost[1] + fastest - route.bytes_per_s

    def pass_links(src: int, dst: int, messages: int) -> None:
        for link in routes[src, dst].links:
            load[link] = load.get(link, 0) + messages

    if world_size > 1:
        visit([0], (0.0, 0.0))
    return best_order


# --- uniform topologies, from figures

UNIFORM = "uniform: the figures are those that it was made of"
# fitted to allreduces of 1 KiB to 64 MiB on 2 and 4 devices of a two-core EPYC: an operation of the
# executor, payload bytes/s that all devices copy and add, and how much of that one alone does
CPU_CALL_S, CPU_COPY, CPU_ADD, OF_ALL = 22e-6, 17.5e9, 4e9, 2 / 3


def switch(
    world_size: int, latency_s: float, bytes_per_s: float, reduce_bytes_per_s: float = INFINITE
) -> Topology:
    """Every device has one full-duplex port to a switch that is never busy itself.

    The closed forms of `algorithms` hold on it.
    """
    check_devices("switch", world_size)
    out, into = (
        [(Link(f"{way} {device}", bytes_per_s),) for device in range(world_size)]
        for way in ("out of", "into")
    )
    routes = Ways(out, into, latency_s, {})
    return Topology("switch", world_size, routes, reduce_bytes_per_s, note=UNIFORM)


def fully_connected(
    world_size: int, latency_s: float, bytes_per_s: float, reduce_bytes_per_s: float = INFINITE
) -> Topology:
    """Every device has a full-duplex wire of its own to every other."""
    check_devices("fully_connected", world_size)
    routes = {
        (src, dst): Route((Link(f"{src} to {dst}", bytes_per_s),), latency_s)
        for src, dst in pairs_of(world_size)
    }
    return Topology("fully_connected", world_size, routes, reduce_bytes_per_s, note=UNIFORM)


def this_machine(
    world_size: int,
    latency_s: float,
    copy_bytes_per_s: float,
    add_bytes_per_s: float,
    *,
    device_copy_bytes_per_s: float = INFINITE,
    device_add_bytes_per_s: float = INFINITE,
) -> Topology:
    """CPU devices in one process, from measured figures.

    They share one memory, so all messages share one link; and one Python thread queues them, so
    their latencies add up, too. Each device has one core, through which all goes that it sends, and
    all that it receives: the executor adds on the device that is written, and copies on the one
    that is read. A byte that is added costs 1 / ``add_bytes_per_s`` in all; the price counts 1 /
    ``copy_bytes_per_s`` of it as transfer, and what is left as reduction, once for all devices
    whose chunks are added to one in a step.

    ``latency_s``: of one transfer without bytes. ``copy_bytes_per_s``, ``add_bytes_per_s``: payload
    that all devices together copy and add while all are busy. ``device_...``: the same of one
    device alone, which binds where one device does all the work; by default one device is as fast
    as all.
    """
    check_devices("this machine", world_size)
    add, device_add = add_bytes_per_s, device_add_bytes_per_s
    if not min(copy_bytes_per_s, device_copy_bytes_per_s, add, device_add) > 0:
        raise ScheduleError("this machine: measured speeds are above 0 bytes/s")
    core, devices = min(copy_bytes_per_s, device_copy_bytes_per_s), range(world_size)
    memory = Link("memory", copy_bytes_per_s)
    out = [(memory, Link(f"core of {device}, sending", core)) for device in devices]
    into = [(Link(f"core of {device}, receiving", core),) for device in devices]
    routes = Ways(out, into, latency_s, {})
    alone = _slower_by(core, min(add, device_add))
    note = (
        "measured: the time of an empty transfer, "
        "and the memory's speed in copying and adding; one memory for all devices"
    )
    together = _slower_by(copy_bytes_per_s, add)
    return Topology("this machine", world_size, routes, alone, together, note=note)


def cpu_devices(world_size: int) -> Topology:
    """`this_machine` as it usually is, for choices that are to be the same in every run."""
    usual = this_machine(
        world_size,
        CPU_CALL_S,
        CPU_COPY,
        CPU_ADD,
        device_copy_bytes_per_s=CPU_COPY * OF_ALL,
        device_add_bytes_per_s=CPU_ADD * OF_ALL,
    )
    note = "CPU devices with the usual speeds of two cores; bench links --save measures others"
    return replace(usual, name="CPU devices", note=note)


def _slower_by(copy_bytes_per_s: float, add_bytes_per_s: float) -> float:
    """bytes/s of what an addition costs beyond a copy; infinite if additions are no slower.

    A noisy measurement may say so.
    """
    if add_bytes_per_s >= copy_bytes_per_s:
        return INFINITE
    return 1 / (1 / add_bytes_per_s - 1 / copy_bytes_per_s)


def __getattr__(name: str) -> Any:
    return get_renamed(__name__, name)
