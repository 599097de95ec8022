"""Reduces a topology to a network for the solver, and finds the network's symmetries.

The network contains the pairs of devices whose links are fast enough to use, and the links that
these pairs share.
"""

from __future__ import annotations

import math
from collections import defaultdict
from fractions import Fraction
from functools import reduce
from typing import DefaultDict, Dict, FrozenSet, List, NamedTuple, Optional, Sequence, Tuple

from gluonlab.collectives.link_capacity import LinkCapacity
from gluonlab.collectives.topology import Link, Pair, Topology
from gluonlab.errors import ScheduleError

MAX_DENOMINATOR = 8  # of the ratios of speeds, so that measured speeds also have few lanes
MAX_SPEED_RATIO = 64  # to the slowest link: a faster link has enough room for all transfers
MIN_SPEED_RATIO = 0.5  # to the slowest pair that is needed to connect all devices: slower pairs are not used


class SharedLink(NamedTuple):
    """A link that ``pairs`` share.

    The link carries ``lanes`` chunks per round and one message per step.
    """

    pairs: Tuple[Pair, ...]
    lanes: int


class FlowNetwork(NamedTuple):
    """The pairs of devices that may send, and the links that the pairs share.

    Attributes:
        world_size: the number of devices.
        pairs: the pairs (src, dst) that may send.
        shared_links: the links that these pairs use.
        unit_bytes_per_s: bytes/s of one lane.
        latency_s: the latency of a message, in seconds.
        addition_rounds: the number of rounds that a device needs to add one chunk.
        min_reduce_steps: the least number of steps for summing a chunk over all devices on one
            device.
        min_broadcast_steps: the least number of steps for copying a chunk from one device to all.
    """

    world_size: int
    pairs: Tuple[Pair, ...]
    shared_links: Tuple[SharedLink, ...]
    unit_bytes_per_s: float
    latency_s: float
    addition_rounds: float
    min_reduce_steps: int
    min_broadcast_steps: int


def make_flow_network(topology: Topology) -> FlowNetwork:
    """Return the flow network of ``topology``.

    Raises ScheduleError if different pairs have different latencies.
    """
    if topology.world_size == 1:
        return FlowNetwork(1, (), (), 1.0, 0.0, 0.0, 0, 0)
    pairs = _usable_pairs(topology)
    latencies = {topology.routes[pair].latency_s for pair in pairs}
    if len(latencies) > 1:
        raise ScheduleError(
            f"{topology.name}: messages have different latencies, for example within and between hosts: "
            "search for schedules for a single host in which all messages have the same latency"
        )
    pairs_of_link: DefaultDict[Link, List[Pair]] = defaultdict(list)
    for pair in pairs:
        for link in topology.routes[pair].links:
            pairs_of_link[link].append(pair)
    min_speeds: Dict[FrozenSet[Pair], float] = {}
    for link, link_pairs in pairs_of_link.items():
        key = frozenset(link_pairs)
        min_speeds[key] = min(link.bytes_per_s, min_speeds.get(key, math.inf))
    unit_bytes_per_s, lanes = _to_lane_counts(list(min_speeds.values()))
    shared_links = tuple(sorted(SharedLink(tuple(sorted(key)), count) for key, count in zip(min_speeds, lanes)))
    capacity = LinkCapacity(topology)
    receives, sends = capacity.max_partners(True), capacity.max_partners(False)
    reversed_pairs = [(dst, src) for src, dst in pairs]
    return FlowNetwork(
        topology.world_size,
        pairs,
        shared_links,
        unit_bytes_per_s,
        latencies.pop() if latencies else 0.0,
        unit_bytes_per_s / topology.reduce_bytes_per_s,
        max(_radius(topology.world_size, reversed_pairs), _min_spread_steps(topology.world_size, receives(1))),
        max(_radius(topology.world_size, pairs), _min_spread_steps(topology.world_size, sends(1))),
    )


def flow_network_or_none(topology: Topology) -> Optional[FlowNetwork]:
    """Return the flow network of ``topology``, or None if latencies differ between pairs."""
    try:
        return make_flow_network(topology)
    except ScheduleError:
        return None


def _usable_pairs(topology: Topology) -> Tuple[Pair, ...]:
    """Return the pairs of devices whose links are fast enough not to delay the others."""
    speed_of = {pair: route.bytes_per_s for pair, route in topology.routes.items()}
    speeds = sorted(set(speed_of.values()))
    # bisection: all pairs together connect the devices, the fastest pairs perhaps do not
    slowest_enough, too_fast = 0, len(speeds)
    while too_fast - slowest_enough > 1:
        middle = (slowest_enough + too_fast) // 2
        fast_pairs = [pair for pair, speed in speed_of.items() if speed >= speeds[middle]]
        if _is_connected(topology.world_size, fast_pairs):
            slowest_enough = middle
        else:
            too_fast = middle
    return tuple(sorted(p for p, speed in speed_of.items() if speed >= MIN_SPEED_RATIO * speeds[slowest_enough]))


def _is_connected(world_size: int, pairs: Sequence[Pair]) -> bool:
    """Return whether every device reaches every other device.

    This is the case if device 0 reaches all devices and all devices reach device 0.
    """
    directions = [pairs, [(dst, src) for src, dst in pairs]]
    return all(_count_hops(0, world_size, successors(direction_pairs)) < world_size for direction_pairs in directions)


def _radius(world_size: int, pairs: Sequence[Pair]) -> int:
    """Return the number of hops from the most central device to the farthest device.

    Return ``world_size`` if no device reaches all others.
    """
    neighbors = successors(pairs)
    return min(_count_hops(start, world_size, neighbors) for start in range(world_size))


def successors(pairs: Sequence[Pair]) -> "DefaultDict[int, List[int]]":
    """Return the devices to which each device may send, according to ``pairs``."""
    neighbors: DefaultDict[int, List[int]] = defaultdict(list)
    for src, dst in pairs:
        neighbors[src].append(dst)
    return neighbors


def _count_hops(start: int, world_size: int, neighbors: "DefaultDict[int, List[int]]") -> int:
    """Return the number of hops from ``start`` to the farthest device.

    If a device cannot be reached, return ``world_size``.
    """
    reached, newest, hops = {start}, {start}, 0
    while len(reached) < world_size:
        newest = {dst for src in newest for dst in neighbors[src]} - reached
        if not newest:
            return world_size
        reached |= newest
        hops += 1
    return hops


def _min_spread_steps(world_size: int, partners: int) -> int:
    """Return the least number of steps until one device has received data from all devices.

    ``partners``: the maximum number of devices from which a device receives in a step.
    """
    steps, held = 0, 1
    while held < world_size:
        steps, held = steps + 1, held * (1 + partners)
    return steps


def _to_lane_counts(speeds: Sequence[float]) -> Tuple[float, List[int]]:
    """Return the speed of one lane, and each of ``speeds`` as a number of lanes."""
    if not speeds:
        return 1.0, []
    slowest = min(speeds)
    ratios = [Fraction(min(MAX_SPEED_RATIO, s / slowest)).limit_denominator(MAX_DENOMINATOR) for s in speeds]
    common_denominator = reduce(lambda a, b: a * b // math.gcd(a, b), (r.denominator for r in ratios))
    return slowest / common_denominator, [int(ratio * common_denominator) for ratio in ratios]


# --- symmetries of links: permutations of devices that map links to links
#
# Rotations, rank + k, and reflections of bits, rank XOR k, are tried. They are groups, they move
# every rank, and real machines have some of them.

Permutation = Tuple[int, ...]  # device d becomes permutation[d]


def symmetry_groups(network: FlowNetwork) -> List[List[Permutation]]:
    """Return groups of symmetries of the network, starting with the largest group.

    A symmetry is a permutation of devices. The last group contains only the identity.
    """
    p = network.world_size
    rotations = [tuple((rank + k) % p for rank in range(p)) for k in range(p)]
    groups = [[permutation for permutation in rotations if is_symmetry(network, permutation)]]
    if p & (p - 1) == 0:
        reflections = [tuple(rank ^ k for rank in range(p)) for k in range(p)]
        groups.append([permutation for permutation in reflections if is_symmetry(network, permutation)])
    groups.append([tuple(range(p))])
    groups.sort(key=len, reverse=True)
    return [group for index, group in enumerate(groups) if group not in groups[:index]]


def is_symmetry(network: FlowNetwork, permutation: Sequence[int]) -> bool:
    """Return whether a permutation maps every link to a link with the same number of lanes."""
    return {_permute_link(link, permutation) for link in network.shared_links} == set(network.shared_links)


def _permute_link(link: SharedLink, permutation: Sequence[int]) -> SharedLink:
    pairs = sorted((permutation[src], permutation[dst]) for src, dst in link.pairs)
    return SharedLink(tuple(pairs), link.lanes)


def orbit_representatives(world_size: int, group: Sequence[Permutation]) -> List[int]:
    """Return the lowest device of each set of devices that ``group`` maps to each other."""
    return sorted({min(permutation[rank] for permutation in group) for rank in range(world_size)})


def find_isomorphism(one: FlowNetwork, other: FlowNetwork) -> Optional[Permutation]:
    """Return a permutation of ``one``'s devices that maps its links to the links of ``other``.

    Return None if there is no such permutation. A pair and its image must have the same number of
    links. These links must have the same numbers of lanes, and must be shared by the same numbers
    of pairs.
    """
    if one.world_size != other.world_size or len(one.shared_links) != len(other.shared_links):
        return None
    signatures, other_signatures = _links_of_pairs(one), _links_of_pairs(other)
    p, other_links = one.world_size, set(other.shared_links)

    def extend(permutation: List[int]) -> Optional[Permutation]:
        """Search by backtracking for a valid permutation that begins with ``permutation``."""
        if len(permutation) == p:
            complete = tuple(permutation)
            return complete if {_permute_link(link, complete) for link in one.shared_links} == other_links else None
        next_device = len(permutation)
        for device in range(p):
            if device not in permutation and all(
                signatures.get((rank, next_device)) == other_signatures.get((permutation[rank], device))
                and signatures.get((next_device, rank)) == other_signatures.get((device, permutation[rank]))
                for rank in range(next_device)
            ):
                complete_permutation = extend([*permutation, device])
                if complete_permutation:
                    return complete_permutation
        return None

    return extend([])


def _links_of_pairs(network: FlowNetwork) -> Dict[Pair, List[Tuple[int, int]]]:
    """Return the links of each pair. Each link is (lanes, number of pairs that share it)."""
    links_of_pair: Dict[Pair, List[Tuple[int, int]]] = {pair: [] for pair in network.pairs}
    for link in network.shared_links:
        for pair in link.pairs:
            links_of_pair[pair].append((link.lanes, len(link.pairs)))
    return {pair: sorted(links) for pair, links in links_of_pair.items()}
