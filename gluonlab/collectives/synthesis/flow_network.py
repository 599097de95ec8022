"""What the solver knows of a topology: who may send, what passes which links, and symmetries."""

from __future__ import annotations

import math
from collections import defaultdict
from fractions import Fraction
from functools import reduce
from typing import DefaultDict, Dict, FrozenSet, List, NamedTuple, Optional, Sequence, Tuple

from gluonlab.collectives.lower_bounds import Capacity
from gluonlab.collectives.topology import Link, Pair, Topology
from gluonlab.errors import ScheduleError

LARGEST_DENOMINATOR = 8  # of the speeds' ratios, so that measured speeds have few lanes, too
FASTEST = 64  # times the slowest wire: a faster one has room for all that steps bring
SLOWEST = 0.5  # of the slowest pair that is needed to reach all: what is slower is not used


class SharedLink(NamedTuple):
    """Links that the same ``pairs`` pass: ``lanes`` chunks in a round, one message in a step."""

    pairs: Tuple[Pair, ...]
    lanes: int


class Lanes(NamedTuple):
    """The pairs that may send, and the wires that they pass.

    ``unit_bytes_per_s``: of one lane. ``latency_s``: of a message. ``adding``: rounds that a device
    needs to add one chunk. ``fewest_in``, ``fewest_out``: the least steps in which all can be
    summed up on one device, and copied from one to all.
    """

    world_size: int
    pairs: Tuple[Pair, ...]
    wires: Tuple[SharedLink, ...]
    unit_bytes_per_s: float
    latency_s: float
    adding: float
    fewest_in: int
    fewest_out: int


def lanes_of(topology: Topology) -> Lanes:
    """The lanes of ``topology``. Raises ScheduleError where messages differ in their latency."""
    if topology.world_size == 1:
        return Lanes(1, (), (), 1.0, 0.0, 0.0, 0, 0)
    pairs = _used(topology)
    latencies = {topology.routes[pair].latency_s for pair in pairs}
    if len(latencies) > 1:
        raise ScheduleError(
            f"{topology.name}: its messages differ in latency, as those between hosts do: "
            "schedules are sought within one host, whose devices are equally near"
        )
    passing: DefaultDict[Link, List[Pair]] = defaultdict(list)
    for pair in pairs:
        for link in topology.routes[pair].links:
            passing[link].append(pair)
    narrowest: Dict[FrozenSet[Pair], float] = {}
    for link, passed in passing.items():
        key = frozenset(passed)
        narrowest[key] = min(link.bytes_per_s, narrowest.get(key, math.inf))
    unit, lanes = _in_lanes(list(narrowest.values()))
    wires = tuple(
        sorted(SharedLink(tuple(sorted(key)), count) for key, count in zip(narrowest, lanes))
    )
    capacity = Capacity(topology)
    receives, sends = capacity.most_messages(True), capacity.most_messages(False)
    back = [(dst, src) for src, dst in pairs]
    return Lanes(
        topology.world_size,
        pairs,
        wires,
        unit,
        latencies.pop() if latencies else 0.0,
        unit / topology.reduce_bytes_per_s,
        max(_radius(topology.world_size, back), _steps(topology.world_size, receives(1))),
        max(_radius(topology.world_size, pairs), _steps(topology.world_size, sends(1))),
    )


def lanes_or_none(topology: Topology) -> Optional[Lanes]:
    """The lanes of ``topology``, or None where messages differ in their latency."""
    try:
        return lanes_of(topology)
    except ScheduleError:
        return None


def _used(topology: Topology) -> Tuple[Pair, ...]:
    """The pairs that are fast enough: slower ones would hold all others up."""
    speed_of = {pair: route.bytes_per_s for pair, route in topology.routes.items()}
    speeds = sorted(set(speed_of.values()))
    # all pairs connect, the fastest alone perhaps not: halve what is left of the speeds between
    enough, too_fast = 0, len(speeds)
    while too_fast - enough > 1:
        middle = (enough + too_fast) // 2
        fast = [pair for pair, speed in speed_of.items() if speed >= speeds[middle]]
        if _connects(topology.world_size, fast):
            enough = middle
        else:
            too_fast = middle
    return tuple(sorted(p for p, speed in speed_of.items() if speed >= SLOWEST * speeds[enough]))


def _connects(world_size: int, pairs: Sequence[Pair]) -> bool:
    """Whether all reach all: device 0 does, and is reached by all."""
    ways = [pairs, [(dst, src) for src, dst in pairs]]
    return all(_hops(0, world_size, onward_of(way)) < world_size for way in ways)


def _radius(world_size: int, pairs: Sequence[Pair]) -> int:
    """The most hops from the device that is nearest to all; ``world_size`` if none reaches all."""
    onward = onward_of(pairs)
    return min(_hops(start, world_size, onward) for start in range(world_size))


def onward_of(pairs: Sequence[Pair]) -> "DefaultDict[int, List[int]]":
    """To whom each device may send."""
    onward: DefaultDict[int, List[int]] = defaultdict(list)
    for src, dst in pairs:
        onward[src].append(dst)
    return onward


def _hops(start: int, world_size: int, onward: "DefaultDict[int, List[int]]") -> int:
    reached, newest, hops = {start}, {start}, 0
    while len(reached) < world_size:
        newest = {dst for src in newest for dst in onward[src]} - reached
        if not newest:
            return world_size
        reached |= newest
        hops += 1
    return hops


def _steps(world_size: int, partners: int) -> int:
    """The least steps until one holds what all have, where each step brings so many partners'."""
    steps, holds = 0, 1
    while holds < world_size:
        steps, holds = steps + 1, holds * (1 + partners)
    return steps


def _in_lanes(speeds: Sequence[float]) -> Tuple[float, List[int]]:
    """(bytes/s of a lane, the lanes of each): the speeds as small whole multiples of one."""
    if not speeds:
        return 1.0, []
    slowest = min(speeds)
    ratios = [
        Fraction(min(FASTEST, s / slowest)).limit_denominator(LARGEST_DENOMINATOR) for s in speeds
    ]
    common = reduce(lambda a, b: a * b // math.gcd(a, b), (r.denominator for r in ratios))
    return slowest / common, [int(ratio * common) for ratio in ratios]


# --- symmetries of links: renamings of devices after which all wires are where some were before
#
# Rotations, rank + k, and reflections of bits, rank XOR k, are looked at: they are groups, they
# move every rank, and the machines that people build have some of them.

Renaming = Tuple[int, ...]  # device d becomes renaming[d]


def symmetries(lanes: Lanes) -> List[List[Renaming]]:
    """The groups of renamings that ``lanes`` is proved to have, the largest first.

    The last one is the identity alone.
    """
    p = lanes.world_size
    rotations = [tuple((rank + k) % p for rank in range(p)) for k in range(p)]
    groups = [[each for each in rotations if holds(lanes, each)]]
    if p & (p - 1) == 0:
        bits = [tuple(rank ^ k for rank in range(p)) for k in range(p)]
        groups.append([each for each in bits if holds(lanes, each)])
    groups.append([tuple(range(p))])
    groups.sort(key=len, reverse=True)
    return [group for at, group in enumerate(groups) if group not in groups[:at]]


def holds(lanes: Lanes, renaming: Sequence[int]) -> bool:
    """Whether every wire, with its devices renamed, is a wire of as many lanes."""
    return {_renamed(wire, renaming) for wire in lanes.wires} == set(lanes.wires)


def _renamed(wire: SharedLink, renaming: Sequence[int]) -> SharedLink:
    pairs = sorted((renaming[src], renaming[dst]) for src, dst in wire.pairs)
    return SharedLink(tuple(pairs), wire.lanes)


def representatives(world_size: int, group: Sequence[Renaming]) -> List[int]:
    """One device of each set that the ``group`` renames into each other: the lowest."""
    return sorted({min(renaming[rank] for renaming in group) for rank in range(world_size)})


def isomorphism(one: Lanes, other: Lanes) -> Optional[Renaming]:
    """A renaming of the devices of ``one`` that makes its wires those of ``other``, or None.

    A pair is renamed to one that passes as many wires, as wide and as much shared.
    """
    if one.world_size != other.world_size or len(one.wires) != len(other.wires):
        return None
    kinds, others = _kinds(one), _kinds(other)
    p, wires = one.world_size, set(other.wires)

    def extended(renaming: List[int]) -> Optional[Renaming]:
        if len(renaming) == p:
            found = tuple(renaming)
            return found if {_renamed(wire, found) for wire in one.wires} == wires else None
        new = len(renaming)
        for device in range(p):
            if device not in renaming and all(
                kinds.get((rank, new)) == others.get((renaming[rank], device))
                and kinds.get((new, rank)) == others.get((device, renaming[rank]))
                for rank in range(new)
            ):
                whole = extended([*renaming, device])
                if whole:
                    return whole
        return None

    return extended([])


def _kinds(lanes: Lanes) -> Dict[Pair, List[Tuple[int, int]]]:
    kinds: Dict[Pair, List[Tuple[int, int]]] = {pair: [] for pair in lanes.pairs}
    for wire in lanes.wires:
        for pair in wire.pairs:
            kinds[pair].append((wire.lanes, len(wire.pairs)))
    return {pair: sorted(found) for pair, found in kinds.items()}
