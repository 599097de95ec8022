"""Allreduce algorithms, also over hosts: right sums, the promised shape, and mistakes."""

import inspect
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.covering import long_cases
from support.examples import examples
from support.schedule_reference import is_valid

from gluonlab.collectives import algorithms
from gluonlab.collectives.algorithms import ALGORITHMS, HALVES, make_schedule, make_schedule_over_hosts, nest_over_hosts
from gluonlab.collectives.schedule import join_reduce_scatter_and_all_gather
from gluonlab.collectives.verify_schedule import simulate_contributions, verify
from gluonlab.errors import ScheduleError

# in make test ranks alone, a pair, odd and even numbers, and a power of two
WORLD_SIZES = [1, 2, 3, 5, 8]
WORLD_SIZES += long_cases(*(p for p in range(1, 18) if p not in WORLD_SIZES))
WITH_CHUNKS = ("star", "sharded", "tree", "double_tree", "hierarchical")
HALF_MAKERS = list(chain.from_iterable(HALVES.values()))
every_world_size = pytest.mark.parametrize("world_size", WORLD_SIZES)
several_ranks = pytest.mark.parametrize("world_size", WORLD_SIZES[1:])


def assert_right(schedule):
    verify(schedule)
    assert is_valid(schedule)


@pytest.mark.parametrize("name", ALGORITHMS)
@every_world_size
def test_every_algorithm_leaves_the_same_sum_on_every_rank(name, world_size):
    schedule = make_schedule(name, world_size)
    assert_right(schedule)
    assert (schedule.name, schedule.collective) == (name, "allreduce")
    assert all(schedule.steps)  # no step is empty; one rank alone has nothing to do
    assert (schedule.transfers == 0) == (world_size == 1)
    for chunk, owner in enumerate(schedule.owner):  # no rank has a sum before its owner
        complete = (
            {rank for rank, chunks in enumerate(state) if chunks[chunk] == (1,) * world_size}
            for state in simulate_contributions(schedule)
        )
        assert owner in next(filter(None, complete))


@pytest.mark.parametrize("half", HALF_MAKERS, ids=lambda half: half.__name__)
@every_world_size
def test_every_half_is_right(half, world_size):
    schedule = half(world_size)
    assert_right(schedule)
    assert schedule.collective in half.__name__


@pytest.mark.parametrize("name", HALVES)
def test_an_allreduce_is_its_halves(name):
    (first, second), whole = (half(6) for half in HALVES[name]), ALGORITHMS[name](6)
    assert whole.steps == first.steps + second.steps
    assert whole.owner == first.owner == second.owner


@pytest.mark.parametrize("name", WITH_CHUNKS)
@pytest.mark.parametrize("chunks", [1, 2, 3, 7, 8])
def test_any_number_of_chunks_is_right(name, chunks):
    if (name, chunks) != ("double_tree", 1):  # it needs one for each tree: refused below
        for make in (ALGORITHMS[name], *HALVES.get(name, ())):
            for world_size in (1, 2, 5, 8, 17):
                schedule = make(world_size, chunks=chunks)
                verify(schedule)
                assert schedule.chunks == chunks


@examples(40)
@given(st.data(), st.integers(1, 10))
def test_hierarchical_is_right_for_any_groups(data, world_size):
    ranks = data.draw(st.permutations(range(world_size)))
    cuts = sorted(data.draw(st.sets(st.integers(1, world_size), max_size=4)))
    groups = [ranks[begin:end] for begin, end in zip([0, *cuts], [*cuts, world_size])]
    assert_right(make_schedule("hierarchical", world_size, groups=groups, chunks=data.draw(st.sampled_from([None, 5]))))


@settings(max_examples=60)
@given(st.sampled_from(sorted(ALGORITHMS)), st.integers(1, 9), st.data())
def test_a_placed_schedule_is_right_and_plays_the_same_parts(name, world_size, data):
    order = data.draw(st.permutations(range(world_size)))
    schedule = make_schedule(name, world_size)
    placed = schedule.placed(order)
    verify(placed)
    assert placed.owner == tuple(order[owner] for owner in schedule.owner)
    for step, placed_step in zip(schedule.steps, placed.steps):
        assert [(order[src], order[dst], chunk, op) for src, dst, chunk, op in step] == [*placed_step]
    assert placed.placed([order.index(rank) for rank in range(world_size)]) == schedule


def neighbors(name, world_size, rank):
    messages = [(t.src, t.dst) for step in make_schedule(name, world_size).steps for t in step]
    return {other for ends in messages if rank in ends for other in ends} - {rank}


@several_ranks
def test_each_rank_exchanges_messages_with_the_expected_neighbors(world_size):
    for rank in range(world_size):
        beside = {(rank - 1) % world_size, (rank + 1) % world_size} - {rank}
        assert neighbors("star", world_size, rank) == ({0} if rank else set(range(1, world_size)))
        assert neighbors("ring", world_size, rank) == neighbors("bidirectional_ring", world_size, rank) == beside
        if world_size in (2, 4, 8, 16):
            apart = {rank ^ (1 << bit) for bit in range(world_size.bit_length() - 1)}
            assert neighbors("halving_doubling", world_size, rank) == apart


@every_world_size
def test_the_number_of_steps_is_the_closed_form(world_size):
    core = world_size.bit_length() - 1
    expected = {
        **dict.fromkeys(["star", "sharded"], 2 * (world_size > 1)),
        **dict.fromkeys(["ring", "bidirectional_ring"], 2 * (world_size - 1)),
        "halving_doubling": 2 * (core + (world_size != 1 << core)),
        "tree": 2 * core,
    }
    assert {name: len(make_schedule(name, world_size).steps) for name in expected} == expected


@several_ranks
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
        for half, distance in ((0, 1), (1, 4)):
            assert {(t.dst - t.src) % 5 for t in step if t.chunk // 5 == half} == {distance}


def test_hierarchical_crosses_between_groups_once_each_way_per_chunk():
    schedule = make_schedule("hierarchical", 8, groups=((0, 1, 2, 3), (4, 5, 6, 7)))
    assert schedule == make_schedule("hierarchical", 8)  # two groups are the default
    crossing = [t for step in schedule.steps for t in step if (t.src < 4) != (t.dst < 4)]
    assert sorted((t.chunk, t.op) for t in crossing) == [(chunk, op) for chunk in range(4) for op in ("add", "copy")]
    # every member speaks for one chunk, and the groups own the chunks in turns
    assert all({t.src, t.dst} == {t.chunk, t.chunk + 4} for t in crossing)
    assert schedule.owner == (0, 5, 2, 7)
    assert make_schedule("hierarchical", 5) == make_schedule("hierarchical", 5, groups=((0, 1, 2), (3, 4)))


# beside and between powers of two
TREE_SIZES = [1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17, 31, 32, 33, 64, 65, 69]
TREE_SIZES += long_cases(*(p for p in range(1, 70) if p not in TREE_SIZES))


def children(tree):
    ranks = range(len(tree.parent))
    return [[child for child, parent in enumerate(tree.parent) if parent == rank != child] for rank in ranks]


def depth(tree, rank):
    """Return the steps from a rank up to the root; RecursionError if it is no tree."""
    return 0 if tree.parent[rank] == rank else 1 + depth(tree, tree.parent[rank])


@pytest.mark.parametrize("world_size", TREE_SIZES)
def test_trees_are_binary_and_flat_and_no_rank_has_children_in_both_mirrored_ones(world_size):
    """Except the first root for an odd p: there are (p-1)/2 leaves for (p+1)/2 inner ranks."""
    floor, ceiling = world_size.bit_length() - 1, (world_size - 1).bit_length()  # of log2
    first, second = algorithms.make_mirrored_trees(world_size)
    for tree, deepest in ((algorithms.make_balanced_tree(world_size), floor), (first, ceiling), (second, ceiling)):
        assert max(depth(tree, rank) for rank in range(world_size)) <= deepest
        assert sum(rank == parent for rank, parent in enumerate(tree.parent)) == 1
        for rank, below in enumerate(children(tree)):
            assert len(below) <= 2
            assert all(tree.ready_step[rank] > tree.ready_step[child] for child in below)
        assert tree.ready_step[tree.root] <= deepest
    if world_size > 1:
        inner = [{rank for rank, below in enumerate(children(tree)) if below} for tree in (first, second)]
        assert inner[0] & inner[1] == ({first.root} if world_size % 2 else set())
        assert len(children(first)[first.root]) == len(children(second)[second.root]) == 1


@pytest.mark.parametrize("world_size", [2, 4, 8, 16])
def test_a_double_tree_uses_every_port_no_more_than_twice_in_a_step(world_size):
    for step in make_schedule("double_tree", world_size, chunks=8).steps:
        for ports in zip(*((t.src, t.dst) for t in step)):
            assert max(map(ports.count, ports)) <= 2


HOSTS = st.integers(1, 4)


@examples(40)
@given(HOSTS, HOSTS, st.sampled_from(sorted(ALGORITHMS)), st.sampled_from(sorted(HALVES)), st.data())
def test_any_algorithms_within_and_across_hosts_are_right(hosts, devices, across, within, data):
    order = data.draw(st.none() | st.permutations(range(devices)))
    schedule = make_schedule_over_hosts(hosts, devices, across, within=within, order=order)
    assert_right(schedule)
    assert (schedule.collective, schedule.world_size) == ("allreduce", hosts * devices)
    assert all(schedule.steps)


@given(HOSTS, HOSTS)
def test_rings_send_as_few_bytes_between_hosts_as_possible(hosts, devices):
    """2 (h-1)/h of the buffer out of every host, and as much in, shared by all of its devices."""
    schedule = make_schedule_over_hosts(hosts, devices)
    between = [t for step in schedule.steps for t in step if t.src // devices != t.dst // devices]
    assert all(t.src % devices == t.dst % devices for t in between)
    for ends in ([t.src for t in between], [t.dst for t in between]):
        for rank in range(hosts * devices):
            assert ends.count(rank) * hosts * devices == 2 * (hosts - 1) * schedule.chunks


def test_with_one_device_a_host_it_is_the_schedule_across():
    for across in algorithms.ACROSS_HOSTS:
        schedule = make_schedule_over_hosts(5, 1, across)
        assert schedule.steps == make_schedule(across, 5).steps
        assert schedule.name == f"hierarchical, {across}"


@pytest.mark.parametrize("maker", [*ALGORITHMS.values(), *HALF_MAKERS], ids=lambda maker: maker.__name__)
def test_options_that_an_algorithm_cannot_use_are_refused(maker):
    name = maker.__name__
    assert set(inspect.signature(maker).parameters) == {"world_size", "chunks", "groups"}
    for world_size in (0, "2", 2.0, True):
        with pytest.raises(ScheduleError, match=f"for world_size={world_size!r}: use a whole number of at least 1"):
            maker(world_size)
    for chunks in (0, "2", 1.5, True, *([1] if name == "double_tree" else [])):
        with pytest.raises(ScheduleError, match=f"chunks={chunks!r}") as error:
            maker(4, chunks=chunks)
        assert "\n" not in str(error.value)
    if not name.startswith(WITH_CHUNKS):
        with pytest.raises(ScheduleError, match=f"chunks=4: omit chunks, or choose {', '.join(WITH_CHUNKS[:-1])}"):
            maker(4, chunks=4)
    if name != "hierarchical":
        with pytest.raises(ScheduleError, match=r"cannot be used with groups=.*choose hierarchical"):
            maker(4, groups=[[0, 1], [2, 3]])


RING, (SCATTER, GATHER) = make_schedule("ring", 2), (half(2) for half in HALVES["ring"])
GATHER_OF_3, OTHER_GATHER = HALVES["ring"][1](3), HALVES["sharded"][1](4)
BAD_GROUPS = [[0, 1], [2]], [[0, 1], [1, 2, 3]], [[0, 1], [2, 3, 4]], [[0, 1, 2, 3], [0, 1, 2, 3]], []
UNKNOWN = rf"^unknown algorithm 'rign': choose {', '.join(sorted(ALGORITHMS))} \(did you mean 'ring'\?\)$"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *((lambda groups=groups: make_schedule("hierarchical", 4, groups=groups),
           "list each of the ranks 0 to 3 in exactly one group") for groups in BAD_GROUPS),
        (lambda: make_schedule("rign", 4), UNKNOWN),
        *((lambda order=order: make_schedule("ring", 3).placed(order), "list each of the devices 0 to 2 exactly once")
          for order in ([0, 1], [0, 1, 1], [0, 1, 3])),
        (lambda: join_reduce_scatter_and_all_gather("both", GATHER, SCATTER), "combine a reduce_scatter with an"),
        (lambda: join_reduce_scatter_and_all_gather("both", SCATTER, SCATTER), "combine a reduce_scatter with an"),
        (
            lambda: join_reduce_scatter_and_all_gather("both", HALVES["ring"][0](4), OTHER_GATHER),
            "leaves its chunks on ranks",
        ),
        (lambda: join_reduce_scatter_and_all_gather("both", SCATTER, GATHER_OF_3), "leaves its chunks on ranks"),
        (lambda: nest_over_hosts("both", GATHER, RING, SCATTER), "combine a reduce_scatter with an all_gather"),
        (lambda: nest_over_hosts("both", SCATTER, RING, GATHER_OF_3), "use the same owners"),
        (lambda: nest_over_hosts("both", SCATTER, SCATTER, GATHER), "the schedule across hosts, ring, is of type"),
        (lambda: make_schedule_over_hosts(2, 2, within="star"), "within='star': choose one of sharded, ring, hal"),
        (lambda: make_schedule_over_hosts(2, 2, "rign"), "unknown algorithm 'rign'"),
        (lambda: make_schedule_over_hosts(0, 2), "use a whole number of at least 1"),
        (lambda: make_schedule_over_hosts(2, 1.5), "use a whole number of at least 1"),
        (lambda: make_schedule_over_hosts(2, 2, order=[0, 0]), "list each of the devices 0 to 1 exactly once"),
    ],
)  # fmt: skip
def test_schedules_that_do_not_fit_are_refused(make, message):
    with pytest.raises(ScheduleError, match=message):
        make()
