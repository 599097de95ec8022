"""The optima of 10-3, 10-6 and 10-7: that nothing is cheaper, which no solution can show.

The written proofs are in `gluonlab.exercises.lab10_schedule_puzzles`; here every way is tried.
"""

import math
from itertools import permutations

import pytest
from puzzle_search import after, all_steps, fewest_transfers, least_gather, plus, transfers

from gluonlab.exercises.lab10_schedule_puzzles import PUZZLES

RANKS = (0, 1, 2, 3)
EVERYBODY = 0b1111
OWN = {rank: 1 << rank for rank in RANKS}
PAIRS = frozenset(permutations(RANKS, 2))


def micros(puzzle):
    return round(puzzle.optimum_s * 1e6, 6)


def links(puzzle, src, dst):
    """(microseconds of a message, microseconds of a KB on each of its links)."""
    route = puzzle.topology.routes[src, dst]
    return route.latency_s * 1e6, [1e9 / link.bytes_per_s for link in route.links]


# --- 10-3: all all-gathers of five ranks


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_the_search_for_gathers_finds_what_is_known(world_size):
    """Bruck et al. (1997): ceil(log2 p) messages in turn are enough, and p - 1 chunks."""
    assert least_gather(world_size) == math.ceil(math.log2(world_size)) + world_size - 1


def test_no_gather_of_five_is_cheaper():
    puzzle = PUZZLES["10-3"]
    ranks = range(puzzle.topology.world_size)
    assert puzzle.owner == tuple(ranks) and puzzle.size_bytes == 1e3 * len(ranks)
    used = {}  # a port for each direction of each rank, and no other link
    for src, dst in permutations(ranks, 2):
        assert links(puzzle, src, dst) == (pytest.approx(1), [1, 1])
        out, into = puzzle.topology.routes[src, dst].links
        used.setdefault(("out", src), set()).add(out)
        used.setdefault(("into", dst), set()).add(into)
    assert [len(some) for some in used.values()] == [1] * 10
    assert least_gather(len(ranks)) == micros(puzzle)


# --- 10-6: one chunk at a time, over the ten fast wires

FAST = PAIRS - {(0, 1), (1, 0)}
KB = 2  # of the array


def test_on_the_slow_wire_every_message_is_too_long():
    puzzle = PUZZLES["10-6"]
    assert puzzle.size_bytes == 1e3 * KB
    assert {pair for pair in PAIRS if links(puzzle, *pair) == (pytest.approx(1), [1])} == FAST
    assert links(puzzle, 0, 1)[0] == links(puzzle, 1, 0)[0] > micros(puzzle)
    wires = [puzzle.topology.routes[pair].links for pair in PAIRS]
    assert len(set(wires)) == len(PAIRS)  # each has its own


def test_two_steps_over_fast_wires_take_every_chunk_to_a_hub_and_back():
    """A step takes 1 + the KB that pass its busiest wire, and so at least 1 + the mean of any two.

    Here these are the wires from 0 to 2 and 3 in the first step, and those back in the second. Each
    chunk passes one of the two in either step, so the mean is half of the array.
    """
    steps = all_steps(RANKS, FAST)
    both = [
        (transfers(first), transfers(second))
        for first in steps
        for second in steps
        if set(after(after(OWN, first), second).values()) == {EVERYBODY}
    ]
    hubs = [
        ([(rank, hub) for rank in RANKS if rank != hub], [(hub, rank) for rank in RANKS if rank != hub])
        for hub in (2, 3)
    ]
    assert sorted((sorted(first), sorted(second)) for first, second in both) == hubs
    for first, second in both:
        assert {(0, 2), (0, 3)} & set(first) and {(2, 0), (3, 0)} & set(second)
    assert micros(PUZZLES["10-6"]) == 2 * (1 + KB / 2)


def test_one_step_is_not_enough_and_three_or_more_take_longer():
    """Several steps take 1 each, and the mean of the ten wires, which all transfers pass."""
    steps = all_steps(RANKS, FAST)
    assert all(set(after(OWN, step).values()) != {EVERYBODY} for step in steps)
    assert 3 + KB * fewest_transfers(len(RANKS)) / len(FAST) > micros(PUZZLES["10-6"])


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_an_allreduce_has_two_transfers_for_each_rank_but_one(world_size):
    """A theorem of gossip in one direction (Harary and Schwenk, 1974); here of sums."""
    assert fewest_transfers(world_size) == 2 * (world_size - 1)


# --- 10-7: one chunk on one host; what comes from the other is a fifth contribution

LATENCY, ACROSS = 5, 20  # microseconds of a message between hosts, and of the whole array
THEIRS = 0b10000
BOTH = EVERYBODY | THEIRS


def test_two_messages_of_a_host_take_longer():
    """Every chunk passes each port once at least, or one host knows nothing of the other."""
    puzzle = PUZZLES["10-7"]
    assert puzzle.size_bytes == 1e3 * ACROSS
    inside, between, ports = set(), set(), {"out": {}, "into": {}}
    for src, dst in permutations(range(8), 2):
        latency, (*rates,) = links(puzzle, src, dst)
        same = src // 4 == dst // 4
        (inside if same else between).add((round(latency, 6), *rates))
        if not same:
            for way, link in zip(ports, puzzle.topology.routes[src, dst].links):
                ports[way].setdefault((src if way == "out" else dst) // 4, set()).add(link)
    assert inside == {(1, 0)} and between == {(LATENCY, 1, 1)}
    assert [len(some) for way in ports.values() for some in way.values()] == [1] * 4
    assert micros(puzzle) < 2 * LATENCY + ACROSS  # in one step or in two


def exchanges(cells, steps):
    """What the host can hold after the step in which its sum goes over, and the other's arrives.

    The rank that sends its sum is not written, and the one that receives is not read; it adds or
    copies, and other transfers go on. With one message each way, whatever arrives must be the
    other's whole sum, or it could never be completed.
    """
    for sender, receiver in permutations(RANKS, 2):
        if cells[sender] != EVERYBODY:
            continue
        for step in steps:
            read = {src for src, _ in transfers(step)}
            if sender in step or receiver in read:
                continue
            if step.get(receiver, ("add",))[0] == "add":
                new = after(cells, step)
                yield {**new, receiver: plus(new[receiver], THEIRS)}
            if receiver not in step:
                yield {**after(cells, step), receiver: THEIRS}


def possible(before, behind):
    """Return whether an allreduce exists with one step between the hosts and this many others."""
    steps = all_steps(RANKS, PAIRS)
    states = {tuple(OWN.values())}
    for _ in range(before):
        states = {tuple(after(dict(enumerate(cells)), step).values()) for cells in states for step in steps}
    return any(ends(new, steps, behind) for cells in states for new in exchanges(dict(enumerate(cells)), steps))


def ends(cells, steps, count):
    """Return whether everybody in this host can hold everything after this many further steps."""
    if count == 0:
        return set(cells.values()) == {BOTH}
    return any(ends(after(cells, step), steps, count - 1) for step in steps)


@pytest.mark.parametrize("before, behind", [(0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (0, 2)])
def test_two_steps_besides_the_exchange_are_not_enough(before, behind):
    assert not possible(before, behind)


def test_three_steps_besides_the_exchange_are_enough():
    assert possible(2, 1)
    assert micros(PUZZLES["10-7"]) == LATENCY + ACROSS + 3
