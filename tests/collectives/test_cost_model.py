"""Costs of schedules, compared with closed forms of the literature and with a reference."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.covering import long_cases
from support.examples import examples
from support.schedule_reference import step_cost

from gluonlab.collectives.algorithms import ALGORITHMS, HALVES, make_schedule
from gluonlab.collectives.cost_model import algbw, bus_factor, estimate_cost, traffic
from gluonlab.collectives.named_topologies import Link, Route, Topology, fully_connected, p3_16xlarge, switch
from gluonlab.collectives.schedule import Schedule, Transfer
from gluonlab.collectives.topology import all_pairs, shared_memory_topology
from gluonlab.errors import ScheduleError

OFTEN = (1, 2, 3, 5, 8)  # the sizes of make test; make test-all has all of them
EXACT = 1e-12
N = 46_000_003.0  # bytes
# seconds a message (alpha), a byte sent (beta), a byte added (gamma): all, and each alone
FIGURES = [(31e-6, 1 / 12e9, 1 / 700e9), (31e-6, 0.0, 0.0), (0.0, 1 / 12e9, 0.0), (0.0, 0.0, 1 / 700e9)]


def log2(power):
    return power.bit_length() - 1


# --- the closed forms, independent of any schedule: (messages, bytes sent, bytes added), in units
# of alpha, n beta and n gamma


def ring(p):  # and sharded: a ring's messages go in 2 (p-1) steps, sharded's in two
    return 2 * (p - 1), 2 * (p - 1) / p, (p - 1) / p


def tree(p, c):
    d, e = log2(p), int(p == 1 << log2(p))
    if p == 1:
        return 0, 0, 0
    if p == 2:
        return 2 * c, 2, 1
    messages = 4 * (d + c - 1) - 2 * e
    return messages, messages / c, (2 * (d + c - 1) - e) / c


def double_tree(p, c):
    if p == 2:
        return 2 * c, 1, 1 / 2
    turns = 2 * (log2(p) + c - 1) - 1
    return 2 * turns, 2 * turns / (2 * c), turns / (2 * c)


def bidirectional_ring(p, ways=1):
    """``ways``: 2 if both directions have links of their own."""
    return (4 * (p - 1) / ways, 2 * (p - 1) / p / ways, (p - 1) / p) if p > 2 else ring(p)


def halving_doubling(p):
    q = 1 << log2(p)
    folded = int(p != q)
    return 2 * log2(q) + 2 * folded, 2 * (q - 1) / q + 2 * folded, (q - 1) / q + folded


def closed_forms(p):
    """Yield (schedule, closed form, topology)."""
    yield make_schedule("star", p), (2 * (p - 1), 2 * (p - 1), p - 1), switch
    for name, form in (("sharded", ring), ("ring", ring), ("halving_doubling", halving_doubling)):
        yield make_schedule(name, p), form(p), switch
        messages, sent, added = form(p)
        for half, adds in zip(HALVES[name], (added, 0)):
            yield half(p), (messages / 2, sent / 2, adds), switch
    yield make_schedule("ring", p), ring(p), fully_connected
    for ways, topology in ((1, switch), (2, fully_connected)):
        yield make_schedule("bidirectional_ring", p), bidirectional_ring(p, ways), topology
    for c in (1, 2, 3, 8):
        yield make_schedule("tree", p, chunks=c), tree(p, c), switch
        if p in (2, 4, 8, 16):
            yield make_schedule("double_tree", p, chunks=2 * c), double_tree(p, c), switch
    for members in (size for size in range(1, p + 1) if p % size == 0):
        groups = [range(first, first + members) for first in range(0, p, members)]
        others = members + p // members - 2
        form = 2 * others, 2 * others / members, others / members
        yield make_schedule("hierarchical", p, groups=groups), form, switch


@pytest.mark.parametrize("world_size", [*OFTEN, *long_cases(*(p for p in range(1, 18) if p not in OFTEN))])
def test_on_a_uniform_topology_the_cost_is_the_closed_form(world_size):
    for schedule, (messages, sent, added), topology in closed_forms(world_size):
        for alpha, beta, gamma in FIGURES:
            speeds = [1 / seconds if seconds else math.inf for seconds in (beta, gamma)]
            expected = messages * alpha + sent * N * beta + added * N * gamma
            result = estimate_cost(schedule, topology(world_size, alpha, *speeds), N).seconds
            assert result == pytest.approx(expected, EXACT, 0), schedule.name


def test_every_algorithm_has_a_closed_form_here():
    assert {schedule.name for schedule, *_ in closed_forms(2)} == set(ALGORITHMS)


def make_steps(world_size, chunks, *steps):
    steps = tuple(tuple(Transfer(*transfer) for transfer in step) for step in steps)
    return Schedule("steps", "allreduce", world_size, chunks, (0,) * chunks, steps)


def test_steps_add_up_and_an_empty_one_costs_nothing():
    copy = [(0, 1, 0, "copy")]
    priced = estimate_cost(make_steps(2, 2, copy, [], copy), fully_connected(2, 1.0, 10.0), 200)
    assert [(step.seconds, step.bottleneck) for step in priced.steps] == [(11, "0 to 1"), (0, ""), (11, "0 to 1")]
    assert priced.seconds == 22


@st.composite
def steps_and_topologies(draw):
    """Draw up to five links on every route, each passed once, and any transfers."""
    world_size = draw(st.integers(2, 4))
    speeds = draw(st.lists(st.integers(1, 9), min_size=5, max_size=5))
    links = st.sampled_from([Link(f"link {i}", float(speed)) for i, speed in enumerate(speeds)])
    latencies = st.integers(0, 3).map(lambda quarters: quarters / 4)
    route = st.builds(Route, st.lists(links, min_size=1, unique=True).map(tuple), latencies)
    pairs = list(all_pairs(world_size))
    routes = {pair: draw(route) for pair in pairs}
    transfers = st.tuples(st.sampled_from(pairs), st.integers(0, 3), st.sampled_from(["add", "copy"]))
    step = [(*pair, chunk, op) for pair, chunk, op in draw(st.lists(transfers, max_size=12))]
    speeds = draw(st.sampled_from([1.0, 9.0])), draw(st.sampled_from([2.0, math.inf]))  # of additions
    topology = Topology("random", world_size, routes, *speeds)
    return make_steps(world_size, 4, step), topology


@examples(60)
@given(steps_and_topologies())
def test_a_step_is_as_long_as_its_busiest_link_and_rank(case):
    schedule, topology = case
    longest, busiest, reduce_s = step_cost(schedule.steps[0], topology, 50)
    [priced] = estimate_cost(schedule, topology, 200).steps
    assert (priced.transfer_s, priced.reduce_s) == pytest.approx((longest, reduce_s), rel=EXACT)
    assert priced.bottleneck in busiest


def test_on_one_memory_what_moves_the_same_bytes_differs_by_how_often_it_adds():
    """Several summands of a chunk are added at once: by a star all, by a tree of four ranks two and
    one, by a ring one after the other. A ring only gains the use of all cores.
    """
    shared = shared_memory_topology(4, 0.0, 20e9, 15e9)
    moved = [estimate_cost(make_schedule(name, 4), shared, N).seconds for name in ("star", "sharded", "tree", "ring")]
    more = N / 15e9 - N / 20e9  # of an addition than of a copy
    expected = [6 * N / 20e9 + additions * more for additions in (1, 1, 2, 3)]
    assert moved == pytest.approx(expected, rel=EXACT)
    slow_cores = shared_memory_topology(4, 0.0, 20e9, 15e9, device_copy_bytes_per_s=10e9, device_add_bytes_per_s=7.5e9)
    star, ring = (estimate_cost(make_schedule(name, 4), slow_cores, N).seconds for name in ("star", "ring"))
    assert star == pytest.approx(6 * N / 10e9 + N / 7.5e9 - N / 10e9, rel=EXACT)
    assert ring == pytest.approx(moved[3], rel=EXACT)


def test_a_ring_on_the_cube_mesh_by_hand():
    """The proposed order uses doubled links only; as numbered, 3 to 4 and 7 to 0 pass the CPUs."""
    topology = p3_16xlarge()
    chunk, latency, add = 100e6 / 8, 10e-6, 7 * 100e6 / 8 / (900e9 / 3)
    as_numbered, placed = (
        estimate_cost(make_schedule("ring", 8).placed(order), topology, 100e6)
        for order in (range(8), topology.ring_order())
    )
    assert placed.seconds == pytest.approx(14 * (latency + chunk / 50e9) + add, rel=EXACT)
    assert as_numbered.seconds == pytest.approx(14 * (latency + chunk / 10e9) + add, rel=EXACT)
    assert all(step.bottleneck.startswith("NVLink") for step in placed.steps)
    assert not any(step.bottleneck.startswith("NVLink") for step in as_numbered.steps)


@pytest.mark.parametrize("world_size", [1, 2, 5, 8])
def test_traffic_is_the_closed_form(world_size):
    least = 2 * (world_size - 1) / world_size  # no allreduce that cuts the buffer evenly sends less
    for name in ("ring", "bidirectional_ring", "sharded"):
        assert traffic(make_schedule(name, world_size), 1.0) == [pytest.approx((least, least))] * world_size, name
    hub, *others = traffic(make_schedule("star", world_size), 1.0)
    assert hub == (world_size - 1, world_size - 1)
    assert others == [(1.0, 1.0)] * (world_size - 1)


def test_bandwidths_are_those_of_nccl_tests():
    """A ring's busbw is the links' speed if latency is 0."""
    assert algbw(1e9, 1.0) == 1e9
    factors = {"allreduce": 1.5, "reduce_scatter": 0.75, "all_gather": 0.75}
    assert {collective: bus_factor(collective, 4) for collective in factors} == factors
    links = switch(4, 0.0, 12e9)
    for schedule in (make_schedule("ring", 4), *(half(4) for half in HALVES["ring"])):
        priced = estimate_cost(schedule, links, N)
        assert priced.busbw == pytest.approx(12e9, rel=EXACT)
        assert priced.algbw == pytest.approx(N / priced.seconds, rel=EXACT)


def test_nothing_to_do_and_nothing_to_send():
    alone = estimate_cost(make_schedule("ring", 1), switch(1, 1e-5, 1e9), N)
    assert (alone.seconds, alone.algbw, alone.busbw) == (0, math.inf, 0)
    empty = estimate_cost(make_schedule("ring", 4), switch(4, 1e-5, 1e9), 0)
    assert (empty.seconds, empty.algbw, empty.busbw) == (pytest.approx(6e-5), 0, 0)
    assert algbw(0, 0.0) == 0


@pytest.mark.parametrize(
    ("topology", "size_bytes", "words"),
    [
        (p3_16xlarge(), N, r"ring has 4 ranks, but p3\.16xlarge has 8 devices"),
        *((switch(4, 1e-5, 1e9), size, f"size={size}: must be a finite number of bytes")
          for size in (-1, math.inf, math.nan)),
    ],
)  # fmt: skip
def test_invalid_sizes_and_world_sizes_have_no_price(topology, size_bytes, words):
    with pytest.raises(ScheduleError, match=words):
        estimate_cost(make_schedule("ring", 4), topology, size_bytes)
