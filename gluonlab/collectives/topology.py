"""Topologies: devices, the links between them, and the speed of each link.

A link is one direction of a wire. Messages on the same link share its bandwidth; a wire that works
in both directions is two links. `Topology.ring_order` finds the best ring of devices. This module
builds uniform topologies from given speeds (`switch`, `fully_connected`, `shared_memory_topology`);
`named_topologies` contains the known machines.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Sequence, Tuple, Union

from gluonlab.collectives.schedule import Schedule, is_integer_at_least
from gluonlab.errors import ScheduleError
from gluonlab.renamed import get_renamed

INFINITE = float("inf")
Pair = Tuple[int, int]  # (src, dst)


class Link(NamedTuple):
    """A link: one direction of a wire, or a bus that all directions share."""

    name: str
    bytes_per_s: float


class Route(NamedTuple):
    """The links that a message occupies at the same time, and the message's latency."""

    links: Tuple[Link, ...]
    latency_s: float

    @property
    def bytes_per_s(self) -> float:
        """Return the speed of the slowest link."""
        return min(link.bytes_per_s for link in self.links)


Links = Tuple[Link, ...]  # part of a route


class PortRoutes(Mapping[Pair, Route]):
    """The routes between many devices, each through an output port and an input port.

    Routes are only created on access, because 1,024 devices have a million routes.

    ``out_links`` and ``in_links``: for each device, the links of its output port and input port.
    ``latency_s``: the latency of a message through ports. ``special_routes``: the routes of pairs
    that use other links.
    """

    def __init__(
        self,
        out_links: Sequence[Links],
        in_links: Sequence[Links],
        latency_s: float,
        special_routes: Mapping[Pair, Route],
    ) -> None:
        self.out_links, self.in_links = out_links, in_links
        self.latency_s, self.special_routes = latency_s, special_routes

    def __getitem__(self, pair: Pair) -> Route:
        if pair in self.special_routes:
            return self.special_routes[pair]
        src, dst = pair
        if src == dst or not (0 <= src < len(self.out_links) and 0 <= dst < len(self.out_links)):
            raise KeyError(pair)
        return Route((*self.out_links[src], *self.in_links[dst]), self.latency_s)

    def __iter__(self) -> Iterator[Pair]:
        return iter(all_pairs(len(self.out_links)))

    def __len__(self) -> int:
        return len(self.out_links) * (len(self.out_links) - 1)

    def subset(self, devices: Sequence[int]) -> PortRoutes:
        """Return the routes between the listed devices; device i is the i-th listed device."""
        new_number = {device: i for i, device in enumerate(devices)}
        special_routes = {
            (new_number[src], new_number[dst]): route
            for (src, dst), route in self.special_routes.items()
            if src in new_number and dst in new_number
        }
        out_links, in_links = (
            [links_by_device[device] for device in devices] for links_by_device in (self.out_links, self.in_links)
        )
        return PortRoutes(out_links, in_links, self.latency_s, special_routes)

    @property
    def is_symmetric(self) -> bool:
        """Return whether devices are interchangeable.

        This is the case if each link belongs to one device, or to all devices.
        """
        links_by_device = [(*out_links, *in_links) for out_links, in_links in zip(self.out_links, self.in_links)]
        return (
            not self.special_routes
            and len({tuple(link.bytes_per_s for link in links) for links in links_by_device}) == 1
            and all(len(set(links)) in (1, len(links_by_device)) for links in zip(*links_by_device))
        )

    def sample_routes(self) -> List[Route]:
        """Return a few routes that together use every link, if there is more than one device."""
        pairs = ((device, (device + 1) % len(self.out_links)) for device in range(len(self.out_links)))
        port_routes = [Route((*self.out_links[src], *self.in_links[dst]), self.latency_s) for src, dst in pairs]
        return [*self.special_routes.values(), *port_routes]


def all_pairs(world_size: int) -> List[Pair]:
    """Return all pairs (src, dst)."""
    return [(src, dst) for src in range(world_size) for dst in range(world_size) if src != dst]


@dataclass(frozen=True)
class Topology:
    """Devices 0 to ``world_size`` - 1, and the routes between them.

    Attributes:
        name: the name of the topology.
        world_size: the number of devices.
        routes: a route for every pair (src, dst).
        reduce_bytes_per_s: how many bytes one device adds per second.
        shared_reduce_bytes_per_s: how many bytes all devices together add per second, if they share
            a memory. Several additions into a chunk in a step are then counted as one.
        groups: devices that are closer to each other than to the rest, for the hierarchical
            algorithm; by default one group.
        note: the sources of the numbers, and which of them are inferred.
        hosts: the devices of each host; by default one host.
        gpu: the kind of the devices, if a file names it (`topology_file`).
        schedules: allreduces made for exactly these links, if a file contains them; rank r runs on
            device r.

    Raises:
        ScheduleError: for a pair without a route, and for speeds that are not positive.
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
        check_device_count(self.name, self.world_size)
        routes = self.routes
        if isinstance(routes, PortRoutes):
            complete = len(routes.out_links) == len(routes.in_links) == self.world_size
            routes_to_check: Iterable[Route] = routes.sample_routes()
        else:
            complete, routes_to_check = set(routes) == set(all_pairs(self.world_size)), routes.values()
        if not complete:
            raise ScheduleError(
                f"{self.name}: define a route for each of the {self.world_size * (self.world_size - 1)} "
                f"pairs (src, dst) of the {self.world_size} devices"
            )
        for route in routes_to_check:  # these routes use every link
            speeds = [link.bytes_per_s for link in route.links]
            if not (speeds and route.latency_s >= 0 and all(speed > 0 for speed in speeds)):
                raise ScheduleError(
                    f"{self.name}: {route} is not a valid route: use at least one link, bytes/s above 0, and "
                    "a latency of 0 s or more"
                )
        if not (self.reduce_bytes_per_s > 0 and self.shared_reduce_bytes_per_s > 0):
            raise ScheduleError(f"{self.name}: reduce_bytes_per_s={self.reduce_bytes_per_s}: use a number above 0")
        for name in ("groups", "hosts"):
            if not getattr(self, name):
                object.__setattr__(self, name, (tuple(range(self.world_size)),))

    def ring_order(self) -> List[int]:
        """Return the order of devices in the fastest ring: ``order[i]`` sends to ``order[i + 1]``.

        Pass the order to `Schedule.placed`. In the fastest ring, the busiest link takes the least
        time if all devices send at once. If several rings are equally fast, the ring with the
        largest sum of the pairs' bytes/s is chosen, and among these the first in lexical order. If
        there are several hosts, the hosts follow each other, and each host's devices are in the
        order of the host's fastest ring.
        """
        if len(self.hosts) == 1:
            return list(self._fastest_ring)
        return [host[rank] for host in self.hosts for rank in self.subset(host).ring_order()]

    @cached_property
    def _fastest_ring(self) -> List[int]:
        return _find_best_ring(self.world_size, self.routes)

    def subset(self, devices: Union[int, Sequence[int]]) -> Topology:
        """Return the topology of the first ``devices`` devices, or of the devices in a list.

        Device i of the result is the i-th of these devices. Raises ScheduleError for unknown or
        repeated devices.
        """
        if not isinstance(devices, Sequence):
            if not is_integer_at_least(devices) or devices > self.world_size:
                raise ScheduleError(
                    f"{self.name} has {self.world_size} devices, but {devices!r} are requested: choose 1 to "
                    f"{self.world_size}"
                )
            devices = range(devices)
        chosen = list(devices)
        are_known = all(device in range(self.world_size) for device in chosen)
        if not (chosen and are_known and len(set(chosen)) == len(chosen)):
            raise ScheduleError(
                f"{self.name}: devices {chosen} are requested: choose one or more of the devices 0 to "
                f"{self.world_size - 1}, each at most once"
            )
        routes: Mapping[Pair, Route]
        if isinstance(self.routes, PortRoutes):
            routes = self.routes.subset(chosen)
        else:
            routes = {(i, j): self.routes[chosen[i], chosen[j]] for i, j in all_pairs(len(chosen))}
        rank_of = {device: rank for rank, device in enumerate(chosen)}
        groups, hosts = (
            tuple(
                tuple(sorted(rank_of[device] for device in part if device in rank_of))
                for part in parts
                if not rank_of.keys().isdisjoint(part)
            )
            for parts in (self.groups, self.hosts)
        )
        schedules: Tuple[Schedule, ...] = ()
        if len(chosen) == self.world_size:
            order = [rank_of[device] for device in range(self.world_size)]
            schedules = tuple(schedule.placed(order) for schedule in self.schedules)
        return replace(self, world_size=len(chosen), routes=routes, groups=groups, hosts=hosts, schedules=schedules)


def check_device_count(name: str, world_size: Any) -> None:
    """Raise ScheduleError for an invalid number of devices."""
    if not is_integer_at_least(world_size):
        raise ScheduleError(f"{name} with world_size={world_size!r}: use at least 1 device")


# --- the best order of devices for rings, a Hamiltonian cycle

# About a second. Known machines need some hundred extensions. On sixteen devices whose links all
# differ, which a file may describe, all orders would take minutes.
MAX_RING_EXTENSIONS = 200_000
MAX_RING_DEVICES = 256  # larger topologies are uniform: all orders are equal
# (seconds per byte of the busiest link, sum over pairs of the fastest pair's bytes/s - its bytes/s)
_RingCost = Tuple[float, float]


def _find_best_ring(world_size: int, routes: Mapping[Pair, Route]) -> List[int]:
    """Return the order of devices in the fastest ring, starting with device 0.

    The search is depth first. Both parts of a cost can only grow when a ring is extended, so a
    partial ring that is no better than the best ring is abandoned. The search still tries about n²
    extensions on a uniform topology of n devices, and a few hundred on eight GPUs in a cube mesh.
    After MAX_RING_EXTENSIONS extensions, the best ring so far is returned. If there are more than
    MAX_RING_DEVICES devices, their order is not changed.
    """
    if world_size > MAX_RING_DEVICES:
        return list(range(world_size))
    fastest = max((route.bytes_per_s for route in routes.values()), default=0.0)
    lowest: _RingCost = (INFINITE, INFINITE)
    best_order = list(range(world_size))
    load: Dict[Link, int] = {}  # link -> messages of the ring on it
    extensions = 0
    is_unused = [device != 0 for device in range(world_size)]

    def visit(order: List[int], cost: _RingCost) -> None:
        """Try all completions of the ring ``order`` that stay cheaper than the best ring so far."""
        nonlocal lowest, best_order
        if len(order) == world_size:
            closed_cost = add_to_ring(order[-1], order[0], cost)
            pass_links(order[-1], order[0], -1)
            if closed_cost < lowest:
                lowest, best_order = closed_cost, list(order)
            return
        for device in range(world_size):
            if extensions >= MAX_RING_EXTENSIONS:
                return
            if is_unused[device]:
                longer_cost = add_to_ring(order[-1], device, cost)
                if longer_cost < lowest:
                    is_unused[device] = False
                    visit([*order, device], longer_cost)
                    is_unused[device] = True
                pass_links(order[-1], device, -1)

    def add_to_ring(src: int, dst: int, cost: _RingCost) -> _RingCost:
        """Add a pair's route to the load of the links, and return the cost of the extended ring."""
        nonlocal extensions
        extensions += 1
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

UNIFORM_NOTE = "uniform: all figures are arguments"
# Fitted to allreduces of 1 KiB to 64 MiB on 2 and 4 devices of a two-core EPYC: seconds of one
# operation, payload bytes/s that all devices together copy and add, and one device's share of that.
CPU_CALL_S, CPU_COPY, CPU_ADD, SINGLE_DEVICE_SHARE = 22e-6, 17.5e9, 4e9, 2 / 3


def switch(world_size: int, latency_s: float, bytes_per_s: float, reduce_bytes_per_s: float = INFINITE) -> Topology:
    """Return a topology in which each device has one full-duplex port to an ideal switch.

    The costs in the docstrings of `algorithms` hold for this topology.
    """
    check_device_count("switch", world_size)
    out_links, in_links = (
        [(Link(f"{direction} {device}", bytes_per_s),) for device in range(world_size)]
        for direction in ("out of", "into")
    )
    routes = PortRoutes(out_links, in_links, latency_s, {})
    return Topology("switch", world_size, routes, reduce_bytes_per_s, note=UNIFORM_NOTE)


def fully_connected(
    world_size: int, latency_s: float, bytes_per_s: float, reduce_bytes_per_s: float = INFINITE
) -> Topology:
    """Return a topology in which every pair of devices has its own full-duplex wire."""
    check_device_count("fully_connected", world_size)
    routes = {
        (src, dst): Route((Link(f"{src} to {dst}", bytes_per_s),), latency_s) for src, dst in all_pairs(world_size)
    }
    return Topology("fully_connected", world_size, routes, reduce_bytes_per_s, note=UNIFORM_NOTE)


def shared_memory_topology(
    world_size: int,
    latency_s: float,
    copy_bytes_per_s: float,
    add_bytes_per_s: float,
    *,
    device_copy_bytes_per_s: float = INFINITE,
    device_add_bytes_per_s: float = INFINITE,
) -> Topology:
    """Return the topology of the CPU devices in one process, made from measured speeds.

    All messages share one link, the memory. One Python thread queues all messages, so their
    latencies add up as well. Each device has one core, which handles all bytes that the device
    sends or receives: the executor adds on the target's core, and copies on the source's core.
    Adding a byte takes 1 / ``add_bytes_per_s`` in total. The cost model counts 1 /
    ``copy_bytes_per_s`` of this time as transfer and the rest as reduction. If the chunks of
    several devices are added to the same chunk in a step, this counts as one reduction.

    Args:
        world_size: the number of devices.
        latency_s: how long a transfer of no bytes takes, in seconds.
        copy_bytes_per_s: payload bytes/s that all devices together copy while all are busy.
        add_bytes_per_s: payload bytes/s that all devices together add while all are busy.
        device_copy_bytes_per_s: payload bytes/s that a single busy device copies; by default as
            fast as all devices together.
        device_add_bytes_per_s: payload bytes/s that a single busy device adds; by default as fast
            as all devices together.
    """
    check_device_count("this machine", world_size)
    add, device_add = add_bytes_per_s, device_add_bytes_per_s
    if not min(copy_bytes_per_s, device_copy_bytes_per_s, add, device_add) > 0:
        raise ScheduleError("the measured speeds of this machine must be above 0 bytes/s")
    core_bytes_per_s, devices = min(copy_bytes_per_s, device_copy_bytes_per_s), range(world_size)
    memory = Link("memory", copy_bytes_per_s)
    out_links = [(memory, Link(f"core of {device}, sending", core_bytes_per_s)) for device in devices]
    in_links = [(Link(f"core of {device}, receiving", core_bytes_per_s),) for device in devices]
    routes = PortRoutes(out_links, in_links, latency_s, {})
    device_extra = _extra_addition_speed(core_bytes_per_s, min(add, device_add))
    note = (
        "measured: the time of an empty transfer, and the memory bandwidth of copies and "
        "additions; all devices share one memory"
    )
    shared_extra = _extra_addition_speed(copy_bytes_per_s, add)
    return Topology("this machine", world_size, routes, device_extra, shared_extra, note=note)


def typical_cpu_topology(world_size: int) -> Topology:
    """Return `shared_memory_topology` with typical speeds, for reproducible choices."""
    device_copy, device_add = CPU_COPY * SINGLE_DEVICE_SHARE, CPU_ADD * SINGLE_DEVICE_SHARE
    topology = shared_memory_topology(
        world_size,
        CPU_CALL_S,
        CPU_COPY,
        CPU_ADD,
        device_copy_bytes_per_s=device_copy,
        device_add_bytes_per_s=device_add,
    )
    note = "CPU devices with the usual speeds of two cores; to measure yours, run gluonlab bench links --save FILE"
    return replace(topology, name="CPU devices", note=note)


def _extra_addition_speed(copy_bytes_per_s: float, add_bytes_per_s: float) -> float:
    """Convert the extra time of additions compared with copies to a speed in bytes/s.

    The result is infinite if the measured additions are not slower than copies, because of noise.
    """
    if add_bytes_per_s >= copy_bytes_per_s:
        return INFINITE
    return 1 / (1 / add_bytes_per_s - 1 / copy_bytes_per_s)


def __getattr__(name: str) -> Any:
    return get_renamed(__name__, name)
