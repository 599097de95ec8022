"""Transfers joined to larger moves: nothing is lost, and what overlaps is ordered; judged without
the code's own means.
"""

import functools
import itertools
import operator
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import nd
from support.examples import examples

from gluonlab.collectives.algorithms import ALGORITHMS, HALVES, make_schedule
from gluonlab.collectives.chunk_layout import (
    ArrayRange,
    OverlapTracker,
    coalesce_transfers,
    list_chunk_writes,
    partition,
)
from gluonlab.collectives.named_topologies import make_topology
from gluonlab.collectives.topology_aware import TOPOLOGY_AWARE, make_for_links
from gluonlab.engine.fast_invoke import gpu_sum_calls

NAMES = st.sampled_from(sorted(ALGORITHMS))
SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=3)


@examples(40)
@given(NAMES, st.integers(1, 9), SIZES)
def test_every_element_of_every_transfer_is_moved_once_in_its_step_and_order(name, world_size, sizes):
    schedule = make_schedule(name, world_size)
    parts = partition(sizes, schedule.chunks)
    wanted, found = defaultdict(list), defaultdict(list)  # of each element of each rank: sources
    for src, dst, chunk, op in itertools.chain(*schedule.steps):
        for part in parts[chunk]:
            for place in range(part.begin, part.end):
                wanted[dst, part.array, place].append((op, src))
    for move in coalesce_transfers(schedule, parts):
        for place in range(move.part.begin, move.part.end):
            sources = [(move.op, source) for source in move.sources]
            found[move.dst, move.part.array, place] += sources
    assert found == wanted
    # no chunk is empty, and none ends with the array it begins in
    full = schedule.chunks <= min(sizes)
    assert sum(move.transfers for move in coalesce_transfers(schedule, parts)) == schedule.transfers or not (
        full and len(sizes) == 1
    )


def check_free(schedule):
    """Judged by the engine's rules: who reads or writes what another writes comes after it."""
    found = list_chunk_writes(schedule)
    written = [(target.dst, target.chunk) for target in found]
    reads = [{(src, chunk) for src in (sources[:-1] if free else sources)} for _, chunk, _, sources, free in found]
    after = [set() for _ in found]  # what has waited for each
    for early in reversed(range(len(found))):
        for late in range(early + 1, len(found)):
            if written[early] in reads[late] | {written[late]} or written[late] in reads[early]:
                after[early] |= {late, *after[late]}
    for number, (_, chunk, _, sources, free) in enumerate(found):
        last = sources[-1], chunk
        assert not free or {n for n, cell in enumerate(written) if cell == last} <= after[number]


@given(NAMES, st.integers(1, 7))
def test_a_last_source_that_is_ready_has_no_earlier_or_unordered_writer(name, world_size):
    check_free(make_schedule(name, world_size))


@pytest.mark.parametrize("name", [*TOPOLOGY_AWARE, *HALVES])
def test_the_same_holds_for_halves_and_topology_aware_schedules(name):
    halves = [half(5) for half in HALVES.get(name, ())]
    topology = make_topology("p3.16xlarge")
    for schedule in halves or make_for_links(name, topology, 8).schedules:
        check_free(schedule)


def test_sources_of_a_sharded_sum_and_leaves_of_a_tree_are_ready():
    additions = [target for target in list_chunk_writes(make_schedule("sharded", 4)) if target.op == "add"]
    assert len(additions) == 4 and all(target.last_source_ready for target in additions)
    tree = {target.dst: target.last_source_ready for target in list_chunk_writes(make_schedule("tree", 7))[:3]}
    assert tree == {1: True, 2: True, 0: False}  # the root's children have added before


def with_its_moves(name, world_size):
    schedule = make_schedule(name, world_size)
    return schedule, list(coalesce_transfers(schedule, partition([1000], schedule.chunks)))


@pytest.mark.parametrize(("world_size", "additions", "messages"), [(2, 2, 4), (4, 8, 16), (8, 24, 48)])
def test_partners_of_halving_doubling_exchange_one_message_a_step(world_size, additions, messages):
    """log2(p) steps each way, in each of which every rank sends one."""
    ops = Counter(move.op for move in with_its_moves("halving_doubling", world_size)[1])
    assert (ops["add"], sum(ops.values())) == (additions, messages)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
@pytest.mark.parametrize("world_size", [3, 8])
def test_no_pair_of_ranks_has_more_than_one_message_in_a_step(name, world_size):
    schedule, made = with_its_moves(name, world_size)
    messages = sum(len({transfer[:2] for transfer in step}) for step in schedule.steps)
    assert sum(len(move.sources) for move in made) == messages


PARTS = st.tuples(st.integers(0, 1), st.integers(0, 7), st.integers(1, 8)).map(
    lambda drawn: ArrayRange(drawn[0], drawn[1], sum(drawn[1:]))
)


@examples(40)
@given(st.lists(st.tuples(PARTS, st.booleans()), max_size=14))
def test_uses_of_common_elements_are_ordered_wherever_one_of_them_writes(uses):
    """The engine orders what names the same part, if one of the two writes; a fence writes all that
    it names.
    """
    # each: {part: whether it is written}, or the number of a use with it
    overlaps, queued = OverlapTracker(), []
    places = []
    for part, writes in uses:
        others = overlaps.record_use(part, writes)
        if others:
            queued.append(dict.fromkeys((part, *others), True))
        places.append(len(queued))
        queued.append({part: writes})
    after = [set() for _ in queued]  # what each comes after
    for late, early in itertools.combinations(range(len(queued))[::-1], 2):
        both = queued[late].keys() & queued[early].keys()
        if any(queued[late][part] or queued[early][part] for part in both):
            after[late].add(early)
    for late in range(len(queued)):
        for early in sorted(after[late]):
            after[late] |= after[early]
    for (early, (one, wrote)), (late, (other, writes)) in itertools.combinations(zip(places, uses), 2):
        common = one.array == other.array and max(one.begin, other.begin) < min(one.end, other.end)
        assert early in after[late] or not (common and (wrote or writes))


def test_parts_that_are_apart_and_readers_need_no_fence():
    overlaps, reading = OverlapTracker(), OverlapTracker()
    for array, begin, writes in ((0, 0, True), (0, 4, True), (1, 0, True), (0, 0, False)):
        assert overlaps.record_use(ArrayRange(array, begin, begin + 4), writes) == []
    for begin in range(3):
        assert reading.record_use(ArrayRange(0, begin, 4), writes=False) == []


@examples(40)
@given(st.integers(2, 13), st.sampled_from(["float32", "float16", "float64"]), st.integers(0, 1000))
def test_arrays_are_added_in_their_order_by_few_operations(count, dtype, seed):
    random = np.random.RandomState(seed)
    numbers = [(random.normal(size=5) * 10.0 ** random.randint(-3, 4)).astype(dtype) for _ in range(count)]
    arrays = [nd.array(array, dtype=dtype) for array in numbers]
    calls = list(gpu_sum_calls(arrays, arrays[0]))
    for call in calls:
        call()
    if dtype != "float32":  # of which the CPU's add_n is oneDNN's, in an order of its own
        assert (arrays[0].asnumpy() == functools.reduce(operator.add, numbers)).all()
    assert len(calls) == (count - 1 if dtype == "float16" else -(-(count - 1) // 3))
