"""Several rings at once, on links of their own: more of a machine's links work than on one ring."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Dict, Iterator, List, Sequence, Tuple

from gluonlab.collectives.links import Pair, Topology
from gluonlab.collectives.schedule import ADD, ALLREDUCE, COPY, Schedule, Transfer
from gluonlab.collectives.synthesis.lanes import Lanes, lanes_or_none

NAME = "multi_ring"
MOST_RINGS = 1000  # that are looked at: of eight devices that are all neighbours, a fifth
MOST_TRIES = 2000  # of packing them; on the hybrid cube mesh seven are enough

Ring = Tuple[int, ...]  # the devices in their order, from device 0


def multi_ring(topology: Topology) -> Schedule:
    """An allreduce on as many rings as are found whose links suffice for all of them at once.

    Each ring sums its share of the chunks as the algorithm ring does. Where the fast links form no
    ring, and over several hosts, it is the one that `Topology.ring_order` finds.

    Cost on r rings over links of r lanes each way in all: 2 (p-1) alpha + 2 (p-1) n/(r p) beta,
    with beta of one lane.
    """
    p = topology.world_size
    if p == 1:
        return Schedule(NAME, ALLREDUCE, 1, 1, (0,), ())
    rings = _packed(topology) or [tuple(topology.ring_order())]
    steps: List[List[Transfer]] = [[] for _ in range(2 * (p - 1))]
    owner = []
    for number, ring in enumerate(rings):
        for place in range(p):
            chunk = number * p + place
            for step in range(2 * (p - 1)):
                src, dst = ring[(place + step) % p], ring[(place + step + 1) % p]
                steps[step].append(Transfer(src, dst, chunk, ADD if step < p - 1 else COPY))
            owner.append(ring[(place + p - 1) % p])
    made = tuple(tuple(step) for step in steps)
    return Schedule(NAME, ALLREDUCE, p, len(owner), tuple(owner), made)


def _packed(topology: Topology) -> List[Ring]:
    lanes = lanes_or_none(topology) if len(topology.hosts) == 1 else None
    return packed(lanes) if lanes else []


def packed(lanes: Lanes) -> List[Ring]:
    """The most rings found that all fit on the lanes together; a ring may come more than once."""
    rings = list(islice(_rings(lanes), MOST_RINGS))
    left = [wire.lanes for wire in lanes.wires]
    wires_of: Dict[Pair, List[int]] = {}
    for number, wire in enumerate(lanes.wires):
        for pair in wire.pairs:
            wires_of.setdefault(pair, []).append(number)
    uses = [Counter(n for pair in _hops(ring) for n in wires_of[pair]) for ring in rings]
    most = min(
        sum(lanes.wires[n].lanes for n in {n for pair in pairs for n in wires_of[pair][:1]})
        for pairs in ([p for p in lanes.pairs if p[0] == rank] for rank in range(lanes.world_size))
    )
    best: List[int] = []
    tries = 0

    def pack(chosen: List[int], begin: int) -> bool:
        nonlocal best, tries
        tries += 1
        if len(chosen) > len(best):
            best = list(chosen)
        if len(best) == most or tries > MOST_TRIES:
            return True
        for number in range(begin, len(rings)):
            if all(left[wire] >= count for wire, count in uses[number].items()):
                for wire, count in uses[number].items():
                    left[wire] -= count
                if pack([*chosen, number], number):
                    return True
                for wire, count in uses[number].items():
                    left[wire] += count
        return False

    pack([], 0)
    return [rings[number] for number in best]


def _rings(lanes: Lanes) -> Iterator[Ring]:
    """Rings through all devices, over the pairs that may send: one by each first hop, in turns."""
    begins = [_onward(lanes, [0, dst]) for src, dst in lanes.pairs if src == 0]
    while begins:
        ended = []
        for begin in begins:
            ring = next(begin, None)
            if ring is None:
                ended.append(begin)
            else:
                yield ring
        begins = [begin for begin in begins if begin not in ended]


def _onward(lanes: Lanes, path: List[int]) -> Iterator[Ring]:
    if len(path) == lanes.world_size:
        if (path[-1], 0) in lanes.pairs:
            yield tuple(path)
        return
    for src, dst in lanes.pairs:
        if src == path[-1] and dst not in path:
            yield from _onward(lanes, [*path, dst])


def _hops(ring: Sequence[int]) -> List[Pair]:
    return list(zip(ring, [*ring[1:], ring[0]]))
