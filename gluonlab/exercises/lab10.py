"""The exercises of lab 10: eight schedule puzzles, and the proof of the least that each costs.

On all of these machines a message costs its latency, and a KB costs a microsecond on a link. Steps
in which anything is sent cost at least the lowest latency, and the bytes of their busiest link.
For 10-3, 10-6 and 10-7 `tests/labs/test_puzzle_optima.py` tries all schedules besides.

=====  ============================================================================================
10-1   With m messages in turn on a port, a step multiplies the number of ranks that know by 1 + m
       at most; 8 is reached by three doublings, or by as much with more messages.
10-2   Let x_t be the bytes of the busiest link in step t, and skip any three steps r < s < t. What
       arrives at the end has crossed the first link before r, or the second between r and s, or the
       third between s and t, or the last one after t: else it would have crossed two links in one
       step. So the sum of x without any three steps is n at least, and T steps cost T alpha + n
       T / (T - 3) at least. T = 9 is the best of these.
10-3   Every rank receives 4/5 n. With two steps, some rank gets two messages in one of them, as one
       message a step reaches 4 ranks; so 3 latencies lie on some port, or in steps, besides its
       bytes.
10-4   The farthest contribution needs three steps; each costs a latency and one chunk at least.
10-5   As 10-2 with one step to skip, for the way from device 2 to device 0. T = 4 is the best.
10-6   One use of the slow wire costs 10. In two steps each chunk fans in to a hub and out of it, to
       1 GB/s from everybody: 2 or 3, of which one has half of the array at least: 2 (1 + 1). In
       three or more steps 2 (p - 1) n = 6 n bytes pass 10 wires: 3 + 1.2.
10-7   Both ports between the hosts carry n. Two steps that use them cost 2 * 5 + 20 or more. With
       one such step, what crosses is the whole sum of a host, held by a rank that is read, and so
       not written: what comes back goes to another, which cannot know that sum too unless a step
       more came before. So three further steps are needed, before it or after it.
10-8   2 (p - 1) n = 14 n bytes pass 24 wires (`gluonlab.collectives.lower_bounds`).
=====  ============================================================================================
"""

from __future__ import annotations

from typing import Callable, Dict, FrozenSet, Iterable, Mapping, Tuple

from gluonlab.collectives.schedule import ALL_GATHER, REDUCE_SCATTER
from gluonlab.collectives.topology import (
    INFINITE,
    Link,
    Route,
    Topology,
    all_pairs,
    fully_connected,
    switch,
)
from gluonlab.exercises.checkers import exercise
from gluonlab.exercises.guesses import DictForm, NumberForm, register_guess
from gluonlab.exercises.schedule_answers import Answer, Puzzle

US, KB, GB_PER_S = 1e-6, 1e3, 1e9
RankPair = Tuple[int, int]


def with_reverse_pairs(pairs: Iterable[RankPair]) -> FrozenSet[RankPair]:
    """Return the pairs and their reverse pairs."""
    forward_pairs = list(pairs)
    return frozenset(forward_pairs) | {(dst, src) for src, dst in forward_pairs}


def wired_topology(
    name: str, world_size: int, pairs: FrozenSet[RankPair], latency_s: float = US
) -> Topology:
    """Return a topology with full-duplex wires of 1 GB/s between ``pairs``.

    A topology has a route for every pair, so the other pairs get one. The checker refuses them.
    """
    routes = {
        (src, dst): Route((Link(f"{src} to {dst}", GB_PER_S),), latency_s)
        for src, dst in all_pairs(world_size)
    }
    assert pairs <= routes.keys()
    return Topology(name, world_size, routes)


def slow_wire_topology() -> Topology:
    """Return four devices with wires between all; the wire of 0 and 1 takes 10 us a message."""
    routes = dict(fully_connected(4, US, GB_PER_S).routes)
    for pair in ((0, 1), (1, 0)):
        routes[pair] = Route(routes[pair].links, 10 * US)
    return Topology("a slow wire", 4, routes)


def two_host_topology() -> Topology:
    """Return hosts 0-3 and 4-7, with free bytes inside a host and one network port each."""
    routes: Dict[RankPair, Route] = {}
    for src, dst in all_pairs(8):
        local_links = (Link(f"{src} to {dst}", INFINITE),)
        out_name, in_name = (
            f"network {way} host {rank // 4}" for way, rank in (("from", src), ("to", dst))
        )
        network_links = (Link(out_name, GB_PER_S), Link(in_name, GB_PER_S))
        is_same_host = src // 4 == dst // 4
        routes[src, dst] = Route(local_links, US) if is_same_host else Route(network_links, 5 * US)
    return Topology("two hosts", 8, routes, groups=((0, 1, 2, 3), (4, 5, 6, 7)))


LINE_5 = with_reverse_pairs((i, i + 1) for i in range(4))
RING_6 = with_reverse_pairs((i, (i + 1) % 6) for i in range(6))
LINE_3 = with_reverse_pairs([(0, 1), (1, 2)])
CUBE = with_reverse_pairs((i, i ^ bit) for i in range(8) for bit in (1, 2, 4))

PUZZLES: Mapping[str, Puzzle] = {
    "10-1": Puzzle("tell_everybody()", switch(8, US, GB_PER_S), 0, ALL_GATHER, optimum_s=3 * US),
    "10-2": Puzzle(
        "down_the_line()", wired_topology("line", 5, LINE_5), 12 * KB, ALL_GATHER, pairs=LINE_5,
        optimum_s=27 * US,
    ),
    "10-3": Puzzle(
        "gather()", switch(5, US, GB_PER_S), 5 * KB, ALL_GATHER, owner=tuple(range(5)),
        optimum_s=7 * US,
    ),
    "10-4": Puzzle(
        "both_ways_round()", wired_topology("ring", 6, RING_6), 6 * KB, REDUCE_SCATTER,
        owner=tuple(range(6)), pairs=RING_6, optimum_s=6 * US,
    ),
    "10-5": Puzzle(
        "three_in_a_row()", wired_topology("line", 3, LINE_3), 9 * KB, pairs=LINE_3,
        optimum_s=16 * US,
    ),
    "10-6": Puzzle("around_the_slow_wire()", slow_wire_topology(), 2 * KB, optimum_s=4 * US),
    "10-7": Puzzle("two_hosts()", two_host_topology(), 20 * KB, optimum_s=28 * US),
    "10-8": Puzzle(
        "the_cube()", wired_topology("cube", 8, CUBE, latency_s=0), 12 * KB, pairs=CUBE,
        optimum_s=7 * US,
    ),
}  # fmt: skip

SUMMARIES = {
    "10-1": "A broadcast to eight devices behind a switch, in the fewest messages in turn.",
    "10-2": "A broadcast of a long array along a line of five devices.",
    "10-3": "An all-gather of five devices with one port each.",
    "10-4": "A reduce-scatter on a ring of six devices whose links work both ways.",
    "10-5": "An allreduce of three devices on a line, with both directions of each link in use.",
    "10-6": "An allreduce of four devices of which two have a slow wire between them.",
    "10-7": "An allreduce over two hosts of four devices with one network port each.",
    "10-8": "An allreduce on a cube that keeps all of its wires busy to the end.",
}


def _make_checker(puzzle: Puzzle, summary: str) -> Callable[[Answer], None]:
    def check(answer: Answer) -> None:
        puzzle.check_optimum(puzzle.read_proved_schedule(answer))

    check.__doc__ = summary
    return check


for name, puzzle in PUZZLES.items():
    exercise(name)(_make_checker(puzzle, SUMMARIES[name]))


# --- The guesses


# fmt: off
register_guess("10-a", NumberForm(0, example=11, factor=1.05),
      "how many µs does it take to tell seven others?",
      "ほかの 7 台に伝えるのに最短で何 µs かかるか")
register_guess("10-b", DictForm(NumberForm(0, example=11, factor=1.05), "10-2", "10-3"),
      "how many µs are the optima of 10-2 and 10-3?",
      "10-2 と 10-3 の最適値は何 µs か")
register_guess("10-c", DictForm(NumberForm(0, example=11, factor=1.05), "10-4", "10-5"),
      "how many µs are the optima of 10-4 and 10-5?",
      "10-4 と 10-5 の最適値は何 µs か")
register_guess("10-d", DictForm(NumberForm(0, example=11, factor=1.05), "10-6", "10-7"),
      "how many µs are the optima of 10-6 and 10-7?",
      "10-6 と 10-7 の最適値は何 µs か")
register_guess("10-e", NumberForm(0, example=11, factor=1.05),
      "how many µs is the optimum of 10-8?",
      "10-8 の最適値は何 µs か")
