"""No valid schedule costs less than the lower bound, and some reach it: random schedules, the
built-in algorithms, and an exhaustive search for three or four ranks.
"""

import heapq
from collections import defaultdict
from contextlib import suppress
from itertools import chain, permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.schedule_reference import mutated_schedules

from gluonlab.collectives.algorithms import ALGORITHMS, HALVES, make_schedule
from gluonlab.collectives.cost_model import estimate_cost, estimate_costs
from gluonlab.collectives.link_capacity import LinkCapacity
from gluonlab.collectives.lower_bounds import find_lower_bound
from gluonlab.collectives.named_topologies import TOPOLOGIES, fully_connected, make_topology, switch
from gluonlab.collectives.schedule import Schedule, Transfer
from gluonlab.collectives.topology import Link, Route, Topology, all_pairs
from gluonlab.collectives.verify_schedule import verify
from gluonlab.errors import ScheduleError

ROUNDING = 1 + 1e-9
SIZES = [0, 1, 2**10, 2**18, 2**23, 10**9]
COLLECTIVES = ("allreduce", "reduce_scatter", "all_gather")
MAKERS = [*ALGORITHMS.values(), *chain(*HALVES.values())]


def make_ring_of_links(links, latency_s=10e-6, bytes_per_s=25e9):
    """Return a ring of ``links`` devices; messages to others pass the shorter way around it."""
    routes = {}
    for src, dst in all_pairs(links):
        step = 1 if (dst - src) % links <= links / 2 else -1
        hops, here = [], src
        while here != dst:
            hops.append(Link(f"{here} to {(here + step) % links}", bytes_per_s))
            here = (here + step) % links
        routes[src, dst] = Route(tuple(hops), latency_s)
    return Topology("ring of links", links, routes, 300e9)


@st.composite
def topologies(draw, world_size):
    """Draw any links on any routes, shared or not, and equal, different or no latencies."""
    link_speeds = draw(st.lists(st.sampled_from([1e9, 10e9, 25e9, 3e11]), min_size=1, max_size=3 * world_size))
    links = st.sampled_from([Link(f"link {number}", speed) for number, speed in enumerate(link_speeds)])
    latencies = st.sampled_from(draw(st.sampled_from([[10e-6], [0.0], [5e-6, 10e-6, 50e-6]])))
    route = st.builds(Route, st.lists(links, min_size=1, max_size=3, unique=True).map(tuple), latencies)
    routes = {pair: draw(route) for pair in all_pairs(world_size)}
    speeds = st.sampled_from([1e9, 300e9, float("inf")])
    return Topology("drawn", world_size, routes, draw(speeds), draw(speeds))


@st.composite
def tree_schedules(draw, world_size, collective):
    """Draw a schedule that sums each chunk along any tree, and copies it along another."""
    chunks = draw(st.integers(1, 4))
    steps, owners = defaultdict(list), []
    halves = {"reduce_scatter": ["add"], "all_gather": ["copy"]}.get(collective, ["add", "copy"])
    for chunk in range(chunks):
        order = draw(st.permutations(range(world_size)))
        owners.append(order[0])
        for op in halves:
            fan = draw(st.booleans())
            # Sums backwards: a rank sends in a step before the one in which its parent sends.
            apart = {order[0]: 0}
            for number, rank in enumerate(order[1:], 1):
                parent = order[0 if fan else draw(st.integers(0, number - 1))]
                apart[rank] = apart[parent] + draw(st.integers(1, 1 if fan else 2))
                if op == "add":
                    steps[-apart[rank]].append(Transfer(rank, parent, chunk, op))
                else:
                    steps[apart[rank]].append(Transfer(parent, rank, chunk, op))
    ordered = tuple(tuple(steps[number]) for number in sorted(steps))
    return Schedule("drawn", collective, world_size, chunks, tuple(owners), ordered)


def assert_not_below_bound(schedule, topology, bounds=None):
    """``bounds``: lower bounds of the topology by collective, if they are known."""
    bound = (bounds or {}).get(schedule.collective) or find_lower_bound(topology, schedule.collective)
    for size, priced in zip(SIZES, estimate_costs(schedule, topology, SIZES)):
        assert bound.seconds(size) <= priced.seconds * ROUNDING


@given(st.data(), st.integers(2, 9), st.sampled_from(COLLECTIVES))
@pytest.mark.long
def test_no_tree_schedule_is_below_the_lower_bound_of_any_topology(data, p, collective):
    schedule = data.draw(tree_schedules(p, collective))
    verify(schedule)
    assert_not_below_bound(schedule, data.draw(topologies(p)))


@given(st.data(), st.integers(2, 9), st.sampled_from(MAKERS))
@pytest.mark.long
def test_no_placed_algorithm_and_no_mutant_is_below_the_lower_bound(data, p, make):
    schedule = make(p)
    topology = data.draw(topologies(p))
    assert_not_below_bound(schedule.placed(data.draw(st.permutations(range(p)))), topology)
    mutant, *_ = data.draw(mutated_schedules(schedule))
    with suppress(ScheduleError):
        verify(mutant)
        assert_not_below_bound(mutant, topology)


@pytest.mark.parametrize("name", [*TOPOLOGIES, "p3.16xlarge*2", "p4d.24xlarge*2"])
def test_no_algorithm_is_below_the_lower_bound_of_a_known_machine(name):
    topology = make_topology(name)
    bounds = {collective: find_lower_bound(topology, collective) for collective in COLLECTIVES}
    for make in MAKERS:
        assert_not_below_bound(make(topology.world_size), topology, bounds)


def find_lowest_latency(topology):
    """Return the lowest latency of any allreduce of one chunk, by Dijkstra over all states.

    A rank holds a leaf, or a set of two ranks' contents: additions commute, but do not associate.
    """
    p = topology.world_size
    queue, seen, tie = [(0.0, 0, tuple(range(p)))], set(), 0
    while queue:
        cost, _, held = heapq.heappop(queue)
        if held in seen:
            continue
        seen.add(held)
        if len(set(held)) == 1 and leaves(held[0]) == frozenset(range(p)):
            return cost
        following = [item for item in successors(held) if item[0] not in seen]
        steps = tuple(transfers for _, transfers in following)
        priced = estimate_cost(Schedule("steps", "allreduce", p, 1, (0,), steps), topology, 0).steps
        for (after, _), step in zip(following, priced):
            tie += 1
            heapq.heappush(queue, (cost + step.seconds, tie, after))
    raise AssertionError("no allreduce")


def leaves(tree):
    return frozenset([tree]) if isinstance(tree, int) else frozenset().union(*map(leaves, tree))


def successors(held):
    """Yield each way to write some ranks from ranks that are not written in the same step."""
    p = len(held)
    for roles in product([False, True], repeat=p):
        readable = [rank for rank in range(p) if not roles[rank]]
        if not readable or not any(roles):
            continue
        for written in product(*(writes(held, rank, readable) for rank in range(p) if roles[rank])):
            after, transfers = list(held), []
            for rank, (tree, op, sources) in zip((r for r in range(p) if roles[r]), written):
                after[rank] = tree
                transfers += [Transfer(source, rank, 0, op) for source in sources]
            if frozenset().union(*map(leaves, after)) == frozenset(range(p)):
                yield tuple(after), tuple(transfers)


def writes(held, rank, readable):
    for source in readable:
        yield held[source], "copy", (source,)
    for count in range(1, len(readable) + 1):
        for sources in permutations(readable, count):
            tree = held[rank]
            for source in sources:
                if leaves(tree) & leaves(held[source]):
                    break
                tree = frozenset([tree, held[source]])
            else:
                yield tree, "add", sources


@given(st.data())
@pytest.mark.long
def test_no_schedule_of_three_ranks_is_below_the_lower_bound(data):
    topology = data.draw(topologies(3))
    assert find_lower_bound(topology).seconds(0) <= find_lowest_latency(topology) * ROUNDING


@pytest.mark.parametrize(
    ("make", "p"),
    [*((make, p) for make in (switch, fully_connected, make_ring_of_links) for p in (2, 3)),
     pytest.param(switch, 4, marks=pytest.mark.long)],
)  # fmt: skip
def test_the_latency_bound_equals_an_exhaustive_search(make, p):
    topology = make(p, 10e-6, 25e9)
    assert find_lower_bound(topology).seconds(0) == pytest.approx(find_lowest_latency(topology))


@pytest.mark.parametrize("name", ["p3.8xlarge", "g4dn.12xlarge", "p4d.24xlarge", "pcie"])
def test_two_devices_reach_the_lower_bound_for_every_size(name):
    topology = make_topology(name, 2)
    costs = [priced.seconds for priced in estimate_costs(make_schedule("ring", 2), topology, SIZES)]
    assert [find_lower_bound(topology).seconds(size) for size in SIZES] == pytest.approx(costs)


def test_four_ranks_behind_a_switch_reach_the_lower_bound_for_small_sizes():
    topology = switch(4, 10e-6, 12e9, 100e9)
    halving = estimate_cost(make_schedule("halving_doubling", 4), topology, 1024).seconds
    assert find_lower_bound(topology).seconds(1024) == pytest.approx(halving)


@pytest.mark.parametrize(
    ("topology", "algorithm"),
    [(switch(8, 10e-6, 12e9, 300e9), "ring"), (switch(5, 10e-6, 12e9), "ring"),
     (make_ring_of_links(8), "bidirectional_ring"), (make_ring_of_links(5), "bidirectional_ring")],
)  # fmt: skip
def test_bytes_and_additions_are_those_of_the_rings(topology, algorithm):
    schedule = make_schedule(algorithm, topology.world_size)
    once, twice = (priced.seconds for priced in estimate_costs(schedule, topology, [1e12, 2e12]))
    floor = find_lower_bound(topology)
    assert floor.seconds(2e12) - floor.seconds(1e12) == pytest.approx(twice - once, rel=1e-6)


@pytest.mark.parametrize("collective", ["reduce_scatter", "all_gather"])
@pytest.mark.parametrize("p", [2, 8])
def test_fully_connected_devices_reach_the_lower_bound_of_both_halves(collective, p):
    topology = fully_connected(p, 10e-6, 25e9, 300e9)
    half, bound = HALVES["sharded"][collective == "all_gather"](p), find_lower_bound(topology, collective)
    costs = [priced.seconds for priced in estimate_costs(half, topology, SIZES)]
    assert [bound.seconds(size) for size in SIZES] == pytest.approx(costs)


def test_the_hybrid_cube_mesh_by_hand():
    """16 pairs have 24 NVLinks, both ways 48 of 25 GB/s; all other routes pass from one CPU to the
    other, 10 GB/s each way. 14 transfers of each byte pass one of these. 7/8 of the bytes are
    added on each V100 at 300 GB/s. Four steps of 10 µs: fewer would need 7 messages at one GPU,
    three of which pass one lane of PCIe.
    """
    topology = make_topology("p3.16xlarge")
    expected = [40e-6 + size * (14 / (48 * 25e9 + 20e9) + 7 / 8 / 300e9) for size in SIZES]
    assert [find_lower_bound(topology).seconds(size) for size in SIZES] == pytest.approx(expected)
    receives = LinkCapacity(topology).max_partners(inward=True)  # messages that a rank can receive at once
    assert [receives(1), receives(2), receives(3), receives(9)] == [5, 6, 7, 7]


def test_one_device_has_bound_0_and_an_unknown_collective_is_refused():
    for collective in COLLECTIVES:
        assert find_lower_bound(switch(1, 1.0, 1.0), collective).seconds(10**9) == 0
    with pytest.raises(ScheduleError, match=r"unknown collective 'gather'.*all_gather"):
        find_lower_bound(switch(2, 1.0, 1.0), "gather")
