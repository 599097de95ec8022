"""Every algorithm is right for every number of ranks, has the shape that its name promises, and
refuses what it cannot do; allreduces over hosts are right, and send no byte twice.
"""

import inspect
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.covering import long_cases
from support.examples import examples
from support.schedule_reference import is_valid

from gluonlab.collectives.algorithms import (
    ACROSS_HOSTS,
    ALGORITHMS,
    HALVES,
    make_balanced_tree,
    make_mirrored_trees,
    make_schedule,
    make_schedule_over_hosts,
    nest_over_hosts,
)
from gluonlab.collectives.schedule import combine_halves
from gluonlab.collectives.verify_schedule import check, simulate_contributions
from gluonlab.errors import ScheduleError

# in make test ranks alone, a pair, odd and even numbers, and a power of two
MOST = 17
WORLD_SIZES = [1, 2, 3, 5, 8]
WORLD_SIZES += long_cases(*(p for p in range(1, MOST + 1) if p not in WORLD_SIZES))
SEVERAL = WORLD_SIZES[1:]
WITH_CHUNKS = ("star", "sharded", "tree", "double_tree", "hierarchical")
HALF_MAKERS = list(chain.from_iterable(HALVES.values()))


def proved(schedule):
    check(schedule)
    return schedule


# --- right for all


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_every_algorithm_leaves_the_same_sum_on_every_rank(name, world_size):
    schedule = proved(make_schedule(name, world_size))
    assert (schedule.name, schedule.collective) == (name, "allreduce")
    assert is_valid(schedule)
    assert all(schedule.steps)  # no step is empty; one rank alone has nothing to do
    assert (schedule.transfers == 0) == (world_size == 1)
    for chunk, owner in enumerate(schedule.owner):  # nobody has a sum before its owner
        complete = [
            {rank for rank, chunks in enumerate(state) if chunks[chunk] == (1,) * world_size}
            for state in simulate_contributions(schedule)
        ]
        assert owner in next(filter(None, complete))


@pytest.mark.parametrize("half", HALF_MAKERS, ids=lambda half: half.__name__)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_every_half_keeps_its_promise(half, world_size):
    schedule = proved(half(world_size))
    assert schedule.collective in half.__name__
    assert is_valid(schedule)


@pytest.mark.parametrize("name", HALVES)
def test_an_allreduce_is_its_halves(name):
    first, second = (half(6) for half in HALVES[name])
    whole = ALGORITHMS[name](6)
    assert whole.steps == first.steps + second.steps
    assert whole.owner == first.owner == second.owner


@pytest.mark.parametrize("name", WITH_CHUNKS)
@pytest.mark.parametrize("chunks", [1, 2, 3, 7, 8])
def test_any_number_of_chunks_is_right(name, chunks):
    makers = [ALGORITHMS[name], *HALVES.get(name, ())]
    if (name, chunks) == ("double_tree", 1):
        makers = []  # it needs one for each tree: refused below
    for make in makers:
        for world_size in (1, 2, 5, 8, 17):
            assert proved(make(world_size, chunks=chunks)).chunks == chunks


@examples(40)
@given(st.data(), st.integers(1, 10))
def test_hierarchical_is_right_for_any_groups(data, world_size):
    ranks = data.draw(st.permutations(range(world_size)))
    cuts = sorted(data.draw(st.sets(st.integers(1, world_size), max_size=4)))
    groups = [ranks[begin:end] for begin, end in zip([0, *cuts], [*cuts, world_size])]
    chunks = data.draw(st.sampled_from([None, 1, 5]))
    schedule = make_schedule("hierarchical", world_size, groups=groups, chunks=chunks)
    assert is_valid(proved(schedule))


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_hierarchical_makes_two_halves_of_ranks_by_default(world_size):
    middle = (world_size + 1) // 2
    halves = [range(middle), range(middle, world_size)]
    assert make_schedule("hierarchical", world_size) == make_schedule("hierarchical", world_size, groups=halves)


@settings(max_examples=60)
@given(st.sampled_from(sorted(ALGORITHMS)), st.integers(1, 9), st.data())
def test_a_placed_schedule_is_right_and_plays_the_same_parts(name, world_size, data):
    order = data.draw(st.permutations(range(world_size)))
    schedule = make_schedule(name, world_size)
    placed = proved(schedule.placed(order))
    assert placed.owner == tuple(order[owner] for owner in schedule.owner)
    for step, same in zip(schedule.steps, placed.steps):
        assert [(order[src], order[dst], chunk, op) for src, dst, chunk, op in step] == [*same]
    back = [order.index(rank) for rank in range(world_size)]
    assert placed.placed(back) == schedule


# --- the shape that the name promises


def neighbours(schedule, rank):
    messages = [(t.src, t.dst) for step in schedule.steps for t in step]
    return {other for ends in messages if rank in ends for other in ends} - {rank}


@pytest.mark.parametrize("world_size", SEVERAL)
def test_each_rank_exchanges_messages_with_the_expected_neighbors(world_size):
    """In a star everybody knows the centre, in a ring the two beside, in halving and doubling
    log2(p).
    """
    others = set(range(1, world_size))
    for rank in range(world_size):
        assert neighbours(make_schedule("star", world_size), rank) == ({0} if rank else others)
        beside = {(rank - 1) % world_size, (rank + 1) % world_size} - {rank}
        assert neighbours(make_schedule("bidirectional_ring", world_size), rank) == beside
        assert neighbours(make_schedule("ring", world_size), rank) == beside
        if world_size in (2, 4, 8, 16):
            apart = {rank ^ (1 << bit) for bit in range(world_size.bit_length() - 1)}
            assert neighbours(make_schedule("halving_doubling", world_size), rank) == apart


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_the_number_of_steps_is_the_closed_form(world_size):
    core = world_size.bit_length() - 1
    folded = world_size != 1 << core
    expected = {
        "star": 2 * (world_size > 1),
        "sharded": 2 * (world_size > 1),
        "ring": 2 * (world_size - 1),
        "bidirectional_ring": 2 * (world_size - 1),
        "halving_doubling": 2 * (core + folded),
        "tree": 2 * core,
    }
    assert {name: len(make_schedule(name, world_size).steps) for name in expected} == expected


@pytest.mark.parametrize("world_size", SEVERAL)
@pytest.mark.parametrize("name", ["ring", "bidirectional_ring", "sharded"])
def test_ranks_send_equally_much_and_no_more_than_needed(name, world_size):
    """2 (p-1)/p of the buffer each: Patarasuk and Yuan's bound."""
    schedule = make_schedule(name, world_size)
    for rank in range(world_size):
        sent = sum(t.src == rank for step in schedule.steps for t in step)
        assert sent * world_size == 2 * (world_size - 1) * schedule.chunks
        assert schedule.owner.count(rank) * world_size == schedule.chunks


def test_a_bidirectional_ring_goes_both_ways_at_once():
    for step in make_schedule("bidirectional_ring", 5).steps:
        assert {(t.dst - t.src) % 5 for t in step if t.chunk < 5} == {1}
        assert {(t.dst - t.src) % 5 for t in step if t.chunk >= 5} == {4}


def test_hierarchical_crosses_between_groups_once_each_way_per_chunk():
    groups = ((0, 1, 2, 3), (4, 5, 6, 7))
    schedule = make_schedule("hierarchical", 8, groups=groups)
    crossing = [t for step in schedule.steps for t in step if (t.src < 4) != (t.dst < 4)]
    assert sorted((t.chunk, t.op) for t in crossing) == [(chunk, op) for chunk in range(4) for op in ("add", "copy")]
    # every member speaks for one chunk
    assert all({t.src, t.dst} == {t.chunk, t.chunk + 4} for t in crossing)
    assert schedule.owner == (0, 5, 2, 7)  # and the groups own it in turns


# --- trees

# beside and between powers of two
OF_TREES = [1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17, 31, 32, 33, 64, 65, 69]
OF_TREES += long_cases(*(p for p in range(1, 70) if p not in OF_TREES))


def children(tree):
    return [
        [child for child, parent in enumerate(tree.parent) if parent == rank != child]
        for rank in range(len(tree.parent))
    ]


def depth(tree):
    """How many steps up from the lowest rank; endless for what is no tree."""

    def steps_up(rank):
        steps = 0
        while tree.parent[rank] != rank:
            rank, steps = tree.parent[rank], steps + 1
            assert steps < len(tree.parent)
        return steps

    return max(map(steps_up, range(len(tree.parent))))


@pytest.mark.parametrize("world_size", OF_TREES)
def test_trees_are_binary_and_flat(world_size):
    floor, ceiling = world_size.bit_length() - 1, (world_size - 1).bit_length()  # of log2
    first, second = make_mirrored_trees(world_size)
    for tree, deepest in ((make_balanced_tree(world_size), floor), (first, ceiling), (second, ceiling)):
        assert depth(tree) <= deepest
        assert sum(rank == parent for rank, parent in enumerate(tree.parent)) == 1
        assert all(len(below) <= 2 for below in children(tree))
        for rank, below in enumerate(children(tree)):
            assert all(tree.ready_step[rank] > tree.ready_step[child] for child in below)
        assert tree.ready_step[tree.root] <= deepest


@pytest.mark.parametrize("world_size", OF_TREES[1:])
def test_no_rank_has_children_in_both_mirrored_trees(world_size):
    """But the first one's root, where the number of ranks is odd: there are only (p-1)/2 leaves for
    (p+1)/2 inner ranks.
    """
    first, second = make_mirrored_trees(world_size)
    inner = [{rank for rank, below in enumerate(children(tree)) if below} for tree in (first, second)]
    assert inner[0] & inner[1] == ({first.root} if world_size % 2 else set())
    assert len(children(first)[first.root]) == len(children(second)[second.root]) == 1


@pytest.mark.parametrize("world_size", [2, 4, 8, 16])
def test_a_double_tree_uses_every_port_no_more_than_twice_in_a_step(world_size):
    for step in make_schedule("double_tree", world_size, chunks=8).steps:
        for rank in range(world_size):
            assert sum(t.src == rank for t in step) <= 2
            assert sum(t.dst == rank for t in step) <= 2


# --- mistakes


every_maker = pytest.mark.parametrize("maker", [*ALGORITHMS.values(), *HALF_MAKERS], ids=lambda maker: maker.__name__)


@every_maker
def test_a_world_without_ranks_is_refused(maker):
    for world_size in (0, "2", 2.0, True):
        with pytest.raises(ScheduleError, match=f"for a world of {world_size!r} ranks: there must be at least 1"):
            maker(world_size)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_impossible_number_of_chunks_is_refused(name):
    for chunks in (0, "2", 1.5, True, *([1] if name == "double_tree" else [])):
        with pytest.raises(ScheduleError, match=f"chunks={chunks!r}") as error:
            make_schedule(name, 4, chunks=chunks)
        assert "\n" not in str(error.value)


@every_maker
def test_options_that_an_algorithm_does_not_use_are_refused(maker):
    name = maker.__name__
    assert set(inspect.signature(maker).parameters) == {"world_size", "chunks", "groups"}
    if not name.startswith(WITH_CHUNKS):
        with pytest.raises(ScheduleError, match=f"chunks=4 is for {', '.join(WITH_CHUNKS)}"):
            maker(4, chunks=4)
    if name != "hierarchical":
        with pytest.raises(ScheduleError, match="knows no groups"):
            maker(4, groups=[[0, 1], [2, 3]])


@pytest.mark.parametrize(
    "groups", [[[0, 1], [2]], [[0, 1], [1, 2, 3]], [[0, 1], [2, 3, 4]], [[0, 1, 2, 3], [0, 1, 2, 3]], []]
)
def test_groups_that_miss_or_repeat_a_rank_are_refused(groups):
    with pytest.raises(ScheduleError, match="each of the ranks 0 to 3 is in one group, once"):
        make_schedule("hierarchical", 4, groups=groups)


def test_an_unknown_algorithm_is_refused_with_the_choices():
    with pytest.raises(ScheduleError) as error:
        make_schedule("rign", 4)
    assert str(error.value) == (
        f"unknown algorithm 'rign': choose {', '.join(sorted(ALGORITHMS))} (did you mean 'ring'?)"
    )


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 1], [0, 1, 3]])
def test_an_invalid_order_is_refused(order):
    with pytest.raises(ScheduleError, match="name each of the devices 0 to 2 once"):
        make_schedule("ring", 3).placed(order)


def test_only_a_reduce_scatter_and_an_all_gather_from_its_owners_make_an_allreduce():
    scatter, gather = (half(4) for half in HALVES["ring"])
    other_owners = HALVES["sharded"][1](4)
    for first, second in (
        (gather, scatter), (scatter, scatter), (scatter, other_owners),
        (scatter, HALVES["ring"][1](5)),
    ):  # fmt: skip
        with pytest.raises(ScheduleError, match=r" then |leaves chunks with owners"):
            combine_halves("both", first, second)


# --- Allreduces over hosts are right for any number of hosts and devices, and send no byte twice


HOSTS = st.integers(1, 4)


@examples(40)
@given(HOSTS, HOSTS, st.sampled_from(sorted(ALGORITHMS)), st.sampled_from(sorted(HALVES)), st.data())
def test_any_algorithms_within_and_across_hosts_are_proved(hosts, devices, across, within, data):
    order = data.draw(st.none() | st.permutations(range(devices)))
    schedule = make_schedule_over_hosts(hosts, devices, across, within=within, order=order)
    check(schedule)
    assert is_valid(schedule)
    assert (schedule.collective, schedule.world_size) == ("allreduce", hosts * devices)
    assert all(schedule.steps)


@given(HOSTS, HOSTS)
def test_rings_send_as_few_bytes_between_hosts_as_possible(hosts, devices):
    """2 (h-1)/h of the buffer out of every host, and as much in, shared by all of its devices."""
    schedule = make_schedule_over_hosts(hosts, devices)
    between = [t for step in schedule.steps for t in step if t.src // devices != t.dst // devices]
    assert all(t.src % devices == t.dst % devices for t in between)
    for rank in range(hosts * devices):
        for end in ("src", "dst"):
            count = sum(getattr(t, end) == rank for t in between)
            assert count * hosts * devices == 2 * (hosts - 1) * schedule.chunks


def test_with_one_device_a_host_it_is_the_schedule_across():
    for across in ACROSS_HOSTS:
        schedule = make_schedule_over_hosts(5, 1, across)
        assert schedule.steps == make_schedule(across, 5).steps
        assert schedule.name == f"hierarchical, {across}"


def test_schedules_that_do_not_fit_are_refused():
    scatter, gather = (half(2) for half in HALVES["ring"])
    ring = make_schedule("ring", 2)
    for make, words in (
        (lambda: nest_over_hosts("both", gather, ring, scatter), "then"),
        (lambda: nest_over_hosts("both", scatter, ring, HALVES["ring"][1](3)), "begins with"),
        (lambda: nest_over_hosts("both", scatter, scatter, gather), "an allreduce, not ring, a reduce"),
        (lambda: make_schedule_over_hosts(2, 2, within="star"), "'star' within hosts: choose sharded, ring, hal"),
        (lambda: make_schedule_over_hosts(2, 2, "rign"), "unknown algorithm 'rign'"),
        (lambda: make_schedule_over_hosts(0, 2), "there must be at least 1"),
        (lambda: make_schedule_over_hosts(2, 1.5), "there must be at least 1"),
        (lambda: make_schedule_over_hosts(2, 2, order=[0, 0]), "name each of the devices 0 to 1 once"),
    ):
        with pytest.raises(ScheduleError, match=words):
            make()
