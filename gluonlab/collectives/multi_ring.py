"""Several rings at once, on links of their own: more of a machine's links work than on one ring."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Dict, Iterator, List, Sequence, Tuple

from gluonlab.collectives.cost import price
from gluonlab.collectives.links import Pair, Topology
from gluonlab.collectives.names import MULTI_RING
from gluonlab.collectives.schedule import ADD, ALLREDUCE, COPY, Schedule, Transfer
from gluonlab.collectives.synthesis.lanes import Lanes, lanes_or_none

NAME = MULTI_RING
MOST_RINGS = 1000  # that are looked at: of eight devices that are all neighbours, a fifth
MOST_LOOKS = 500_000  # at neighbours, in search of rings: less than a second
MOST_TRIES = 2000  # of packing them; on the hybrid cube mesh seven are enough
MOST_AT_ONCE = 32  # rings, each with a chunk for every device
MOST_TRANSFERS = 200_000  # of all rings together, but for a single one
JUDGED_BYTES = 2**30  # what rings at once are compared with the best single ring at

Ring = Tuple[int, ...]  # the devices in their order, from device 0


def multi_ring(topology: Topology) -> Schedule:
    """An allreduce on as many rings as are found whose links suffice for all of them at once.

    Each ring sums its share of the chunks as the algorithm ring does. It is the one ring that
    `Topology.ring_order` finds where the fast links form no ring, where several are not cheaper,
    and over several hosts.

    Cost on r rings over links of r lanes each way in all: 2 (p-1) alpha + 2 (p-1) n/(r p) beta,
    with beta of one lane.
    """
    if topology.world_size == 1:
        return Schedule(NAME, ALLREDUCE, 1, 1, (0,), ())
    rings = _packed(topology)
    single = _on([tuple(topology.ring_order())])
    if not rings:
        return single
    several = _on(rings)
    both = (price(each, topology, JUDGED_BYTES).seconds for each in (several, single))
    return several if next(both) <= next(both) else single


def _on(rings: Sequence[Ring]) -> Schedule:
    p = len(rings[0])
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
    """The most rings found that all fit on the lanes together; a ring may come more than once.

    Where the lanes have room for more than `MOST_AT_ONCE`, a ring takes several lanes of each link.
    """
    rings = list(islice(_rings(lanes), MOST_RINGS))
    wires_of: Dict[Pair, List[int]] = {}
    for number, wire in enumerate(lanes.wires):
        for pair in wire.pairs:
            wires_of.setdefault(pair, []).append(number)
    uses = [Counter(n for pair in _hops(ring) for n in wires_of[pair]) for ring in rings]
    first_out = [{wires_of[src, dst][0] for dst in into} for src, into in _onward(lanes).items()]
    room = min(sum(lanes.wires[n].lanes for n in out) for out in first_out)
    p = lanes.world_size
    most = max(1, min(room, MOST_AT_ONCE, MOST_TRANSFERS // (2 * (p - 1) * p)))
    of_each = min(-(-room // most), min(wire.lanes for wire in lanes.wires))
    left = [wire.lanes // of_each for wire in lanes.wires]
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


def _onward(lanes: Lanes) -> Dict[int, List[int]]:
    """To whom each device may send."""
    onward: Dict[int, List[int]] = {device: [] for device in range(lanes.world_size)}
    for src, dst in lanes.pairs:
        onward[src].append(dst)
    return onward


def _rings(lanes: Lanes) -> Iterator[Ring]:
    """Rings through all devices, over the pairs that may send: one by each first hop, in turns.

    There may be none, which only a search through all ways would show: it ends after `MOST_LOOKS`.
    """
    onward, looks = _onward(lanes), iter(range(MOST_LOOKS))
    begins = [_through(onward, dst, looks) for dst in onward[0]]
    while begins:
        ended = []
        for begin in begins:
            ring = next(begin, None)
            if ring is None:
                ended.append(begin)
            else:
                yield ring
        begins = [begin for begin in begins if begin not in ended]


def _through(onward: Dict[int, List[int]], first: int, looks: Iterator[int]) -> Iterator[Ring]:
    """The rings from device 0 to ``first`` and on, depth first, as long as there are ``looks``."""
    path, passed, choices = [0], {0}, [iter([first])]
    while choices:
        device = next(choices[-1], None)
        if device is None:
            choices.pop()
            passed.discard(path.pop())
        elif next(looks, None) is None:
            return
        elif device not in passed:
            if len(path) + 1 < len(onward):
                path.append(device)
                passed.add(device)
                choices.append(iter(onward[device]))
            elif 0 in onward[device]:
                yield (*path, device)


def _hops(ring: Sequence[int]) -> List[Pair]:
    return list(zip(ring, [*ring[1:], ring[0]]))
