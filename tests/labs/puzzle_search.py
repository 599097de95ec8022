"""Exhaustive search over short schedules: the proofs of lab 10's optima."""

from functools import lru_cache
from itertools import combinations

SPOILED = 0  # no rank begins with nothing, so that 0 is free


def plus(one, other):
    """The sum of two cells."""
    return one | other if one and other and not one & other else SPOILED


def all_steps(ranks, wires):
    """Every step of one chunk: {dst: (op, sources)}, over ``wires``, pairs (src, dst).

    No cell is both read and written, and if several transfers write to a cell, all are additions.
    """
    found = []
    for count in range(len(ranks)):
        for sources in combinations(ranks, count):
            partial = [{}]
            for dst in (rank for rank in ranks if rank not in sources):
                near = [src for src in sources if (src, dst) in wires]
                ways = [("copy", (src,)) for src in near] + [
                    ("add", some) for n in range(1, len(near) + 1) for some in combinations(near, n)
                ]
                partial += [{**step, dst: way} for step in partial for way in ways]
            used = [{src for _, some in step.values() for src in some} for step in partial]
            found += [step for step, some in zip(partial, used) if some == set(sources)]
    return found


def after(cells, step):
    """Return the content of the ranks after a step, {rank: cell}."""
    new = dict(cells)
    for dst, (op, sources) in step.items():
        if op == "copy":
            new[dst] = cells[sources[0]]
        for src in sources if op == "add" else ():
            new[dst] = plus(new[dst], cells[src])
    return new


def transfers(step):
    """Return the pairs (src, dst) of the step."""
    return [(src, dst) for dst, (_, sources) in step.items() for src in sources]


@lru_cache(maxsize=None)
def fewest_transfers(world_size):
    """Return how many transfers in sequence bring the whole sum of a chunk to everybody."""
    start = tuple(1 << rank for rank in range(world_size))
    goal, reached, count = ((1 << world_size) - 1,) * world_size, {start}, 0
    seen = set(reached)
    while goal not in reached:
        reached = {
            (*cells[:dst], cell, *cells[dst + 1 :])
            for cells in reached
            for dst in range(world_size)
            for src in range(world_size)
            if src != dst
            for cell in (cells[src], plus(cells[dst], cells[src]))
        } - seen
        seen |= reached
        count += 1
    return count


def least_gather(world_size):
    """The price of the cheapest all-gather of one chunk each.

    A port takes 1 for a message and 1 for a chunk, in each direction; a step, as long as its
    busiest port.
    """
    total = 0
    start = tuple(1 << rank for rank in range(world_size))
    while not any(_gathers(start, costs) for costs in _compositions(total)):
        total += 1
    return total


def _compositions(total):
    """All lists of numbers from 2 that add up to ``total``: what the steps may cost."""
    if total == 0:
        yield []
    for first in range(2, total + 1):
        for rest in _compositions(total - first):
            yield [first, *rest]


def _gathers(held, costs):
    """Return whether ranks with these chunks can hold all chunks after steps of these costs."""
    everything = (1 << len(held)) - 1
    if not costs:
        return all(mask == everything for mask in held)
    # a step brings a rank all chunks but one that it has time for: each branch is cut that
    # leaves a rank more than the steps to come can bring
    spare = sum(cost - 1 for cost in costs[1:])
    needed = [max((everything & ~mask).bit_count() - spare, 0) for mask in held]
    return any(_gathers(after, costs[1:]) for after in set(_steps(held, costs[0], needed)))


def _steps(held, cost, needed):
    """All that ranks can hold after a step of ``cost`` in which rank r gets ``needed[r]`` or more
    new chunks.
    """
    ways = [list(_receipts(held, rank, cost, least)) for rank, least in enumerate(needed)]
    return _together(held, cost, ways, (), (0,) * len(held))


def _receipts(held, rank, cost, least):
    """All {sender: chunks} that a port can take in a step, with ``least`` new chunks or more."""
    partial = [{}]
    for chunk in range(len(held)):
        senders = [src for src, mask in enumerate(held) if mask >> chunk & 1]
        if rank not in senders:
            partial += [{**way, src: (*way.get(src, ()), chunk)} for way in partial for src in senders]
    for way in partial:
        chunks = sum(map(len, way.values()))
        if chunks >= least and len(way) + chunks <= cost:
            yield way


def _together(held, cost, ways, new, sent):
    """Extend `_steps` to the ranks from ``len(new)`` on; ``sent``: the messages of each port."""
    if len(new) == len(held):
        yield new
        return
    for way in ways[len(new)]:
        loads = tuple(load + (1 + len(way[src]) if src in way else 0) for src, load in enumerate(sent))
        if max(loads) <= cost:
            mask = held[len(new)] | sum(1 << chunk for some in way.values() for chunk in some)
            yield from _together(held, cost, ways, (*new, mask), loads)
