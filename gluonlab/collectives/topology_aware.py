"""Topology-aware allreduces (TOPOLOGY_AWARE), whose schedules are made for a machine's links.

- ``multi_ring``: several rings at the same time.
- ``synthesized``: schedules found by a solver (`gluonlab.collectives.synthesis`).
- ``auto``: for each size, the cheapest of all schedules.

In contrast, the schedules of `gluonlab.collectives.algorithms` depend only on the number of
devices. These schedules are adapted to the links afterward, by reordering the devices.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain, islice
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from gluonlab.collectives.algorithms import (
    ACROSS_HOSTS,
    ALGORITHMS,
    accepts_options,
    make_schedule,
    make_schedule_over_hosts,
)
from gluonlab.collectives.cost_model import SIZES, estimate_cost, find_best_order, lowest_cost_index, select_cheapest
from gluonlab.collectives.schedule import ADD, ALLREDUCE, COPY, Schedule, Transfer
from gluonlab.collectives.synthesis import precomputed_schedules
from gluonlab.collectives.synthesis.flow_network import FlowNetwork, flow_network_or_none, successors
from gluonlab.collectives.topology import Pair, Topology
from gluonlab.drawing.translations import pluralize
from gluonlab.errors import ScheduleError, unknown
from gluonlab.plain_text import format_size

MULTI_RING, AUTO = "multi_ring", "auto"
MAX_TRANSFERS = 200_000  # of schedules with finer chunks, and of parallel rings


class ScheduleFromSize(NamedTuple):
    """A schedule, and the smallest buffer size for which it is the cheapest."""

    size_bytes: int
    schedule: Schedule

    def __str__(self) -> str:
        steps, chunks = len(self.schedule.steps), self.schedule.chunks
        cut = f"{pluralize(steps, 'step')}, {pluralize(chunks, 'chunk')}"
        return f"from {format_size(self.size_bytes)} {self.schedule.name} ({cut})"


class SchedulesBySize(NamedTuple):
    """Schedules for ``topology``, each of which is the cheapest for some buffer sizes."""

    topology: Topology
    schedules: List[Schedule]

    def cheapest(self, size_bytes: float) -> Schedule:
        """Return the schedule with the lowest predicted time for ``size_bytes`` per device."""
        if len(self.schedules) == 1:
            return self.schedules[0]
        costs = [estimate_cost(schedule, self.topology, size_bytes).seconds for schedule in self.schedules]
        return self.schedules[lowest_cost_index(costs)]

    def size_thresholds(self) -> List[ScheduleFromSize]:
        """Return each size of `SIZES` at which the cheapest schedule changes, with the schedule."""
        thresholds: List[ScheduleFromSize] = []
        for size in SIZES:
            cheapest = self.cheapest(size)
            if not thresholds or thresholds[-1].schedule is not cheapest:
                thresholds.append(ScheduleFromSize(size, cheapest))
        return thresholds


# --- auto

# multiples of the default number of chunks, for algorithms that leave the choice
CHUNK_MULTIPLES = (2, 4, 8, 16, 32)
MAX_AUTO_DEVICES = 128  # for more devices, the prices of all candidates take minutes


def _auto_schedules(topology: Topology) -> List[Schedule]:
    """Return the schedules of ``auto``: the candidates that are the cheapest for some size.

    Rank r is device r. Raises ScheduleError for more than MAX_AUTO_DEVICES devices.
    """
    if topology.world_size > MAX_AUTO_DEVICES:
        raise ScheduleError(
            f"{AUTO} compares all schedules for up to {MAX_AUTO_DEVICES} devices, but {topology.name} "
            f"has {topology.world_size}: choose another algorithm (gluonlab allreduce simulate "
            "estimates the time of each algorithm)"
        )
    return select_cheapest(list(candidate_schedules(topology)), topology)


def candidate_schedules(topology: Topology) -> Iterator[Schedule]:
    """Yield all schedules that ``auto`` compares, including schedules made for the links."""
    for name in ALGORITHMS:
        yield from _placed_variants(name, topology)
    yield from schedules_over_hosts(topology, (None, *CHUNK_MULTIPLES))
    yield multi_ring(topology)
    try:
        yield from precomputed_schedules.choose_schedules(topology)
    except ScheduleError:  # none are stored for this number of devices or hosts
        return


def _placed_variants(name: str, topology: Topology) -> Iterator[Schedule]:
    """Yield the algorithm's schedules in the best device order.

    The first schedule has the default number of chunks, and the others have more chunks.
    """
    groups = topology.groups if name == "hierarchical" and len(topology.groups) > 1 else None

    def make_cut(chunks: Optional[int] = None) -> Schedule:
        return make_schedule(name, topology.world_size, chunks=chunks, groups=groups)

    default = make_cut()
    order = find_best_order(default, topology)
    yield default.placed(order)
    for times in CHUNK_MULTIPLES if accepts_options(ALGORITHMS[name], chunks=2) else ():
        if times * default.transfers <= MAX_TRANSFERS:
            yield make_cut(times * default.chunks).placed(order)


def schedules_over_hosts(topology: Topology, chunk_counts: Sequence[Optional[int]] = (None,)) -> Iterator[Schedule]:
    """Yield an allreduce over hosts for each algorithm of `ACROSS_HOSTS`; rank r is device r.

    ``chunk_counts``: numbers of chunks, for algorithms that support any number. Nothing is yielded
    for a single host or for hosts of unequal sizes.
    """
    hosts = topology.hosts
    if len(hosts) == 1 or len({len(host) for host in hosts}) > 1:
        return
    order = topology.subset(hosts[0]).ring_order()
    for across in ACROSS_HOSTS:
        for chunks in chunk_counts if accepts_options(ALGORITHMS[across], chunks=2) else (None,):
            schedule = make_schedule_over_hosts(len(hosts), len(order), across, order=order, chunks=chunks)
            yield schedule.placed(list(chain(*hosts)))


# --- multi_ring

MAX_RINGS = 1000  # candidates: a fifth of all rings of eight fully connected devices
MAX_VISITS = 500_000  # of devices, in the search for rings: less than a second
MAX_PACKINGS = 2000  # tries; seven are enough on the hybrid cube mesh
MAX_PARALLEL_RINGS = 32  # each has a chunk for every device
COMPARED_BYTES = 2**30  # size at which parallel rings are compared with the best single ring

Ring = Tuple[int, ...]  # the devices in order, starting with device 0


def multi_ring(topology: Topology) -> Schedule:
    """Return an allreduce on as many rings as the links can carry at the same time.

    Each ring sums its part of the chunks in the same way as the algorithm ring. Only the ring of
    `Topology.ring_order` is used if there are several hosts, if the fast links do not form a ring,
    or if several rings are not cheaper.

    Cost, if each device has r lanes in each direction and beta is the time per byte of one lane:
    2 (p-1) alpha + 2 (p-1) n/(r p) beta.
    """
    if topology.world_size == 1:
        return Schedule(MULTI_RING, ALLREDUCE, 1, 1, (0,), ())
    network = flow_network_or_none(topology) if len(topology.hosts) == 1 else None
    rings = pack_rings(network) if network else []
    single = _ring_schedule([tuple(topology.ring_order())])
    if not rings:
        return single
    several = _ring_schedule(rings)
    seconds = (estimate_cost(schedule, topology, COMPARED_BYTES).seconds for schedule in (several, single))
    return several if next(seconds) <= next(seconds) else single


def _ring_schedule(rings: Sequence[Ring]) -> Schedule:
    """Return an allreduce in which each ring sums and copies its own chunks."""
    p = len(rings[0])
    steps: List[List[Transfer]] = [[] for _ in range(2 * (p - 1))]
    owner = []
    for number, ring in enumerate(rings):
        for position in range(p):
            chunk = number * p + position
            for step in range(2 * (p - 1)):
                src, dst = ring[(position + step) % p], ring[(position + step + 1) % p]
                steps[step].append(Transfer(src, dst, chunk, ADD if step < p - 1 else COPY))
            owner.append(ring[(position + p - 1) % p])
    step_tuples = tuple(tuple(step) for step in steps)
    return Schedule(MULTI_RING, ALLREDUCE, p, len(owner), tuple(owner), step_tuples)


def pack_rings(network: FlowNetwork) -> List[Ring]:
    """Search for rings that the network can carry at the same time, and return the largest set.

    A ring may occur several times. If the links have room for more than `MAX_PARALLEL_RINGS`, a
    ring uses several lanes of each link.
    """
    rings = list(islice(_find_rings(network), MAX_RINGS))
    links_of_pair: Dict[Pair, List[int]] = {}
    for number, link in enumerate(network.shared_links):
        for pair in link.pairs:
            links_of_pair.setdefault(pair, []).append(number)
    uses = [Counter(n for pair in _ring_pairs(ring) for n in links_of_pair[pair]) for ring in rings]
    first_links = [{links_of_pair[src, dst][0] for dst in into} for src, into in successors(network.pairs).items()]
    lanes_out = min(sum(network.shared_links[n].lanes for n in out) for out in first_links)
    p = network.world_size
    max_rings = max(1, min(lanes_out, MAX_PARALLEL_RINGS, MAX_TRANSFERS // (2 * (p - 1) * p)))
    lanes_per_ring = min(-(-lanes_out // max_rings), min(link.lanes for link in network.shared_links))
    free_lanes = [link.lanes // lanes_per_ring for link in network.shared_links]
    best: List[int] = []
    tries = 0

    def pack(chosen: List[int], begin: int) -> bool:
        """Add rings, starting with ring number ``begin``, while links have free lanes.

        Return True to end the search.
        """
        nonlocal best, tries
        tries += 1
        if len(chosen) > len(best):
            best = list(chosen)
        if len(best) == max_rings or tries > MAX_PACKINGS:
            return True
        for number in range(begin, len(rings)):
            if all(free_lanes[link] >= count for link, count in uses[number].items()):
                for link, count in uses[number].items():
                    free_lanes[link] -= count
                if pack([*chosen, number], number):
                    return True
                for link, count in uses[number].items():
                    free_lanes[link] += count
        return False

    pack([], 0)
    return [rings[number] for number in best]


def _find_rings(network: FlowNetwork) -> Iterator[Ring]:
    """Yield rings through all devices, alternating between the possible first hops from device 0.

    Only a search through all paths could show that there is no further ring. So the search ends
    after `MAX_VISITS` visits of devices.
    """
    neighbors, visits = successors(network.pairs), iter(range(MAX_VISITS))
    searches = [_hamiltonian_cycles(neighbors, dst, visits) for dst in neighbors[0]]
    while searches:
        finished = []
        for search in searches:
            ring = next(search, None)
            if ring is None:
                finished.append(search)
            else:
                yield ring
        searches = [search for search in searches if search not in finished]


def _hamiltonian_cycles(neighbors: Dict[int, List[int]], first: int, visits: Iterator[int]) -> Iterator[Ring]:
    """Yield the rings that begin with 0 and ``first``.

    The search is depth first, and stops when the iterator ``visits`` ends.
    """
    path, visited, choices = [0], {0}, [iter([first])]
    while choices:
        device = next(choices[-1], None)
        if device is None:
            choices.pop()
            visited.discard(path.pop())
        elif next(visits, None) is None:
            return
        elif device not in visited:
            if len(path) + 1 < len(neighbors):
                path.append(device)
                visited.add(device)
                choices.append(iter(neighbors[device]))
            elif 0 in neighbors[device]:
                yield (*path, device)


def _ring_pairs(ring: Sequence[int]) -> List[Pair]:
    return list(zip(ring, [*ring[1:], ring[0]]))


# --- by name

# functions that return schedules, each the cheapest for some sizes; rank r is device r
TOPOLOGY_AWARE: Dict[str, Callable[[Topology], List[Schedule]]] = {
    MULTI_RING: lambda topology: [multi_ring(topology)],
    precomputed_schedules.SYNTHESIZED: precomputed_schedules.choose_schedules,
    AUTO: _auto_schedules,
}


def make_for_links(name: str, topology: Optional[Topology], world_size: int) -> SchedulesBySize:
    """Return the schedules of the topology-aware allreduce ``name`` for the links of a topology.

    Devices with unknown links (None) are treated as devices behind a switch. Raises ScheduleError
    for an unknown name (the message lists the choices), and if there is no schedule for these
    links.
    """
    if name not in TOPOLOGY_AWARE:
        raise ScheduleError(unknown("topology-aware algorithm", name, TOPOLOGY_AWARE))
    known_topology = topology or precomputed_schedules.uniform_switch(world_size)
    return SchedulesBySize(known_topology, TOPOLOGY_AWARE[name](known_topology))
