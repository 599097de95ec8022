"""FOR_LINKS: the allreduces that are made for the links of a machine, by name.

``multi_ring`` is several rings at once, ``synthesised`` is what a solver has found (`synthesis`),
``auto`` is for each size the cheapest of all schedules that there are. The schedules of
`algorithms` are made for a number of devices, and placed on links afterwards.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain, islice
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from gluonlab.collectives.algorithms import ACROSS, ALGORITHMS, make_schedule, over_hosts, takes
from gluonlab.collectives.cost_model import (
    SIZES,
    best_order,
    cheapest_for_some,
    first_of_lowest,
    price,
)
from gluonlab.collectives.schedule import ADD, ALLREDUCE, COPY, Schedule, Transfer
from gluonlab.collectives.synthesis import precomputed_schedules
from gluonlab.collectives.synthesis.flow_network import Lanes, lanes_or_none, onward_of
from gluonlab.collectives.topology import Pair, Topology
from gluonlab.drawing.translations import plural
from gluonlab.errors import ScheduleError, unknown
from gluonlab.plain_text import format_size

MULTI_RING, AUTO = "multi_ring", "auto"
MOST_TRANSFERS = 200_000  # of what is cut finer, and of several rings together


class From(NamedTuple):
    """``schedule`` sums buffers of this size and larger ones, up to where another does."""

    size_bytes: int
    schedule: Schedule

    def __str__(self) -> str:
        steps, chunks = len(self.schedule.steps), self.schedule.chunks
        cut = f"{plural(steps, 'step')}, {plural(chunks, 'chunk')}"
        return f"from {format_size(self.size_bytes)} {self.schedule.name} ({cut})"


class ForLinks(NamedTuple):
    """The schedules of one name for ``topology``."""

    topology: Topology
    schedules: List[Schedule]

    def cheapest(self, size_bytes: float) -> Schedule:
        """The one with the lowest price for a buffer of ``size_bytes`` on every device."""
        if len(self.schedules) == 1:
            return self.schedules[0]
        costs = [price(each, self.topology, size_bytes).seconds for each in self.schedules]
        return self.schedules[first_of_lowest(costs)]

    def table(self) -> List[From]:
        """Which one `cheapest` gives from how many bytes on, by doubling sizes."""
        rows: List[From] = []
        for size in SIZES:
            cheapest = self.cheapest(size)
            if not rows or rows[-1].schedule is not cheapest:
                rows.append(From(size, cheapest))
        return rows


# --- auto

# how often more than by default an algorithm cuts its buffer, where it leaves the choice
FINER = (2, 4, 8, 16, 32)
MOST_DEVICES = 128  # of more, the prices of all candidates take minutes


def _auto(topology: Topology) -> List[Schedule]:
    """The candidates of which each has the lowest price for some size; rank r is device r.

    Raises ScheduleError for more than MOST_DEVICES.
    """
    if topology.world_size > MOST_DEVICES:
        raise ScheduleError(
            f"{AUTO} compares all schedules for up to {MOST_DEVICES} devices, not for the "
            f"{topology.world_size} of {topology.name}: choose an algorithm; bench allreduce "
            "--simulate prices all"
        )
    return cheapest_for_some(list(candidates(topology)), topology)


def candidates(topology: Topology) -> Iterator[Schedule]:
    """All that ``auto`` compares: algorithms placed by `best_order`, and those made for links."""
    for name in ALGORITHMS:
        yield from _placed(name, topology)
    yield from alternatives_over_hosts(topology, (None, *FINER))
    yield multi_ring(topology)
    try:
        yield from precomputed_schedules.choices(topology)
    except ScheduleError:  # there are none for so many devices or hosts
        return


def _placed(name: str, topology: Topology) -> Iterator[Schedule]:
    """The algorithm in its own number of chunks, and in more, where it leaves the choice."""
    groups = topology.groups if name == "hierarchical" and len(topology.groups) > 1 else None

    def cut(chunks: Optional[int] = None) -> Schedule:
        return make_schedule(name, topology.world_size, chunks=chunks, groups=groups)

    once = cut()
    order = best_order(once, topology)
    yield once.placed(order)
    for times in FINER if takes(ALGORITHMS[name], chunks=2) else ():
        if times * once.transfers <= MOST_TRANSFERS:
            yield cut(times * once.chunks).placed(order)


def alternatives_over_hosts(
    topology: Topology, finer: Sequence[Optional[int]] = (None,)
) -> Iterator[Schedule]:
    """`over_hosts` with each of `ACROSS`, for the hosts of a topology; rank r is device r.

    ``finer``: the chunks of those that leave the choice. There are none on one host, and on hosts
    of unequal sizes.
    """
    hosts = topology.hosts
    if len(hosts) == 1 or len({len(host) for host in hosts}) > 1:
        return
    order = topology.subset(hosts[0]).ring_order()
    for across in ACROSS:
        for chunks in finer if takes(ALGORITHMS[across], chunks=2) else (None,):
            made = over_hosts(len(hosts), len(order), across, order=order, chunks=chunks)
            yield made.placed(list(chain(*hosts)))


# --- multi_ring

MOST_RINGS = 1000  # that are looked at: of eight devices that are all neighbours, a fifth
MOST_LOOKS = 500_000  # at neighbours, in search of rings: less than a second
MOST_TRIES = 2000  # of packing them; on the hybrid cube mesh seven are enough
MOST_AT_ONCE = 32  # rings, each with a chunk for every device
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
        return Schedule(MULTI_RING, ALLREDUCE, 1, 1, (0,), ())
    lanes = lanes_or_none(topology) if len(topology.hosts) == 1 else None
    rings = packed(lanes) if lanes else []
    single = _schedule_on([tuple(topology.ring_order())])
    if not rings:
        return single
    several = _schedule_on(rings)
    both = (price(each, topology, JUDGED_BYTES).seconds for each in (several, single))
    return several if next(both) <= next(both) else single


def _schedule_on(rings: Sequence[Ring]) -> Schedule:
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
    return Schedule(MULTI_RING, ALLREDUCE, p, len(owner), tuple(owner), made)


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
    first_out = [
        {wires_of[src, dst][0] for dst in into} for src, into in onward_of(lanes.pairs).items()
    ]
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


def _rings(lanes: Lanes) -> Iterator[Ring]:
    """Rings through all devices, over the pairs that may send: one by each first hop, in turns.

    There may be none, which only a search through all ways would show: it ends after `MOST_LOOKS`.
    """
    onward, looks = onward_of(lanes.pairs), iter(range(MOST_LOOKS))
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


# --- by name

# the schedules for a topology, of which each is the cheapest for some sizes; rank r is device r
FOR_LINKS: Dict[str, Callable[[Topology], List[Schedule]]] = {
    MULTI_RING: lambda topology: [multi_ring(topology)],
    precomputed_schedules.SYNTHESISED: precomputed_schedules.choices,
    AUTO: _auto,
}


def make_for_links(name: str, topology: Optional[Topology], world_size: int) -> ForLinks:
    """The schedules of this name; devices of unknown links, None, are taken for behind a switch.

    Raises ScheduleError, with the choices, for an unknown name, and where there is none for these
    links.
    """
    if name not in FOR_LINKS:
        raise ScheduleError(unknown("allreduce for links", name, FOR_LINKS))
    links = topology or precomputed_schedules.uniform(world_size)
    return ForLinks(links, FOR_LINKS[name](links))
