"""The exercises of lab 10: eight schedule puzzles, with a proof of each optimum.

Symbols: ``p`` is the number of devices, ``n`` is the size of the array on each device in bytes,
``T`` is the number of steps, and ``alpha`` is the latency of a message. On most of these machines,
alpha is 1 us, and a link transfers 1 KB in 1 us. A step costs alpha for each message on its busiest
link, plus the time of the bytes on this link. No chunk of a rank is both read and written in one
step, so a byte crosses at most one link per step. A rank is a device, and us means microseconds.
For 10-3, 10-6 and 10-7, `tests/labs/test_puzzle_optima.py` also tries all schedules that could be
cheaper.

**10-1** (3 us). Let m be the largest number of messages that a port sends in a step. The step costs
at least m alpha. The step multiplies the number of devices that have the chunk by at most 1 + m,
which is at most 2^m. A factor of 8 = 2^3 therefore costs at least 3 alpha.

**10-2** (27 us). Number the links 1 to 4 from device 0. Let x_t be the bytes on the busiest link in
step t. Choose any three steps r < s < t. Each byte that arrives at device 4 has crossed link 1
before r, or link 2 between r and s, or link 3 between s and t, or link 4 after t. Therefore, the
sum of x over the other T - 3 steps is at least n. The average over all choices of three steps
shows that the sum of x over all steps is at least n T / (T - 3). The cost is at least
T alpha + n T / (T - 3), which is smallest for T = 9.

**10-3** (7 us). Each rank receives 4/5 n = 4 KB, which takes 4 us. Three or more steps cost at
least 3 alpha more. In two steps with one message per rank and step, a rank collects only 4 chunks.
Therefore, in a schedule of two steps, some rank receives two messages in one step, and the messages
at its port cost 3 alpha. A schedule of one step needs 4 messages per rank, which cost 4 alpha.

**10-4** (6 us). The contribution of the opposite device needs three steps. Each step costs at least
alpha plus the time of one chunk of 1 KB.

**10-5** (16 us). The contributions of device 2 cross two links on the way to device 0. The
argument is the same as in 10-2, but with one chosen step s. Each byte crosses the first link before
s, or the second link after s. The cost is at least T alpha + n T / (T - 1), which is smallest for
T = 4.

**10-6** (4 us). A message on the slow wire costs 10 us. In a schedule of two steps, each chunk has
one device that receives it from all other devices and sends them the sum. This device must be 2 or
3, because 0 and 1 would need the slow wire. Device 2 or 3 sums at least half of the array, so both
steps cost at least 1 + 1 us. In three or more steps, 2 (p - 1) n = 6 n bytes must cross 10 fast
wires, which costs at least 3 + 1.2 us. (Each direction of a connection counts as one wire.)

**10-7** (28 us). Each network port transfers n bytes in each direction, which takes 20 us. Two
steps with network messages cost at least 2 * 5 + 20 us. If only one step has network messages, each
host must send its complete sum in this step. The sending rank is read in this step, so another rank
receives the other host's sum. The receiving rank has the sum of its own host only after an
additional step, before or after the network step. Together with the sum within the host and the
copies at the end, there are three further steps of 1 us.

**10-8** (7 us). The latency is 0, and 2 (p - 1) n = 14 n bytes must cross the 24 wires
(`gluonlab.collectives.lower_bounds`).
"""

from __future__ import annotations

from typing import Callable, Dict, FrozenSet, Iterable, Mapping, Tuple

from gluonlab.collectives.schedule import ALL_GATHER, REDUCE_SCATTER
from gluonlab.collectives.topology import INFINITE, Link, Route, Topology, all_pairs, fully_connected, switch
from gluonlab.exercises.exercise_registry import exercise
from gluonlab.exercises.guesses import DictForm, NumberForm, register_guess
from gluonlab.exercises.schedule_answers import Answer, Puzzle

US, KB, GB_PER_S = 1e-6, 1e3, 1e9
RankPair = Tuple[int, int]


def with_reverse_pairs(pairs: Iterable[RankPair]) -> FrozenSet[RankPair]:
    """Return the given (src, dst) pairs and their reverse (dst, src) pairs."""
    forward_pairs = list(pairs)
    return frozenset(forward_pairs) | {(dst, src) for src, dst in forward_pairs}


def wired_topology(name: str, world_size: int, pairs: FrozenSet[RankPair], latency_s: float = US) -> Topology:
    """Return a topology in which every pair of devices has a wire of 1 GB/s in each direction.

    A `Topology` needs a route for every pair, but ``pairs`` are the only pairs (src, dst) that the
    puzzle allows. The checker of the puzzle rejects other transfers.
    """
    routes = {(src, dst): Route((Link(f"{src} to {dst}", GB_PER_S),), latency_s) for src, dst in all_pairs(world_size)}
    assert pairs <= routes.keys()
    return Topology(name, world_size, routes)


def slow_wire_topology() -> Topology:
    """Return a topology of four fully connected devices, with a slow wire between 0 and 1."""
    routes = dict(fully_connected(4, US, GB_PER_S).routes)
    for pair in ((0, 1), (1, 0)):
        routes[pair] = Route(routes[pair].links, 10 * US)
    return Topology("a slow link", 4, routes)


def two_host_topology() -> Topology:
    """Return a topology of two hosts, with devices 0-3 and 4-7.

    The bandwidth inside a host is infinite. Each host has one network port per direction.
    """
    routes: Dict[RankPair, Route] = {}
    for src, dst in all_pairs(8):
        local_links = (Link(f"{src} to {dst}", INFINITE),)
        out_name, in_name = (f"network {way} host {rank // 4}" for way, rank in (("from", src), ("to", dst)))
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
    "10-1": "A broadcast to eight devices behind a switch, in the fewest steps.",
    "10-2": "A broadcast of a long array along a line of five devices.",
    "10-3": "An all-gather of five devices with one port each.",
    "10-4": "A reduce-scatter on a ring of six devices whose links work both ways.",
    "10-5": "An allreduce of three devices on a line that uses both directions of each link.",
    "10-6": "An allreduce of four devices, with a slow link between two of them.",
    "10-7": "An allreduce over two hosts of four devices with one network port each.",
    "10-8": "An allreduce on a cube that keeps all links busy until the end.",
}


def _make_checker(puzzle: Puzzle, summary: str) -> Callable[[Answer], None]:
    """Return the checker of a puzzle. ``summary`` becomes the docstring of the checker."""

    def check(answer: Answer) -> None:
        puzzle.check_optimum(puzzle.read_proved_schedule(answer))

    check.__doc__ = summary
    return check


for name, puzzle in PUZZLES.items():
    exercise(name)(_make_checker(puzzle, SUMMARIES[name]))


# --- The guesses


# fmt: off
register_guess("10-a", NumberForm(0, example=11, factor=1.05),
    "how many µs does it take to send a chunk to seven other devices?",
    "ほかの 7 台に伝えるのに最短で何 µs かかるか")
register_guess("10-b", DictForm(NumberForm(0, example=11, factor=1.05), "10-2", "10-3"),
    "what are the optima of 10-2 and 10-3 in µs?", "10-2 と 10-3 の最適値は何 µs か")
register_guess("10-c", DictForm(NumberForm(0, example=11, factor=1.05), "10-4", "10-5"),
    "what are the optima of 10-4 and 10-5 in µs?", "10-4 と 10-5 の最適値は何 µs か")
register_guess("10-d", DictForm(NumberForm(0, example=11, factor=1.05), "10-6", "10-7"),
    "what are the optima of 10-6 and 10-7 in µs?", "10-6 と 10-7 の最適値は何 µs か")
register_guess("10-e", NumberForm(0, example=11, factor=1.05), "what is the optimum of 10-8 in µs?",
    "10-8 の最適値は何 µs か")
