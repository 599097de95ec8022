"""Transfers joined to larger moves: nothing is lost, and overlapping moves are ordered."""

import functools
import itertools
import operator
from collections import defaultdict

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
from gluonlab.engine.sum_calls import gpu_sum_calls

NAMES = st.sampled_from(sorted(ALGORITHMS))


@examples(40)
@given(NAMES, st.integers(1, 9), st.lists(st.integers(1, 40), min_size=1, max_size=3))
def test_every_element_of_every_transfer_is_moved_once_in_its_step_and_order(name, world_size, sizes):
    schedule = make_schedule(name, world_size)
    parts = partition(sizes, schedule.chunks)
    moves = list(coalesce_transfers(schedule, parts))
    expected, result = defaultdict(list), defaultdict(list)  # sources of each element of each rank
    for src, dst, chunk, op in itertools.chain(*schedule.steps):
        for part in parts[chunk]:
            for index in range(part.begin, part.end):
                expected[dst, part.array, index].append((op, src))
    for move in moves:
        for index in range(move.part.begin, move.part.end):
            result[move.dst, move.part.array, index] += [(move.op, source) for source in move.sources]
    assert result == expected
    if schedule.chunks <= sizes[0] and len(sizes) == 1:  # no chunk is empty
        assert sum(move.transfers for move in moves) == schedule.transfers


def check_ready_sources(schedule):
    """Check that the engine orders all earlier writers of a ready source before its readers."""
    writes = list_chunk_writes(schedule)
    cells = [(write.dst, write.chunk) for write in writes]
    reads = [{(src, chunk) for src in (sources[:-1] if ready else sources)} for _, chunk, _, sources, ready in writes]
    after = [set() for _ in writes]  # the writes that wait for each
    for early in reversed(range(len(writes))):
        for late in range(early + 1, len(writes)):
            if cells[early] in reads[late] | {cells[late]} or cells[late] in reads[early]:
                after[early] |= {late, *after[late]}
    for number, (_, chunk, _, sources, ready) in enumerate(writes):
        last = sources[-1], chunk
        assert not ready or {other for other, cell in enumerate(cells) if cell == last} <= after[number]


@given(NAMES, st.integers(1, 7))
def test_a_last_source_that_is_ready_has_no_earlier_or_unordered_writer(name, world_size):
    check_ready_sources(make_schedule(name, world_size))


@pytest.mark.parametrize("name", [*TOPOLOGY_AWARE, *HALVES])
def test_the_same_holds_for_halves_and_topology_aware_schedules(name):
    halves = [half(5) for half in HALVES.get(name, ())]
    for schedule in halves or make_for_links(name, make_topology("p3.16xlarge"), 8).schedules:
        check_ready_sources(schedule)


def test_sources_of_a_sharded_sum_and_leaves_of_a_tree_are_ready():
    additions = [write for write in list_chunk_writes(make_schedule("sharded", 4)) if write.op == "add"]
    assert [write.last_source_ready for write in additions] == [True] * 4
    tree = {write.dst: write.last_source_ready for write in list_chunk_writes(make_schedule("tree", 7))[:3]}
    assert tree == {1: True, 2: True, 0: False}  # the root's children have added before


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
@pytest.mark.parametrize("world_size", [3, 4, 8])
def test_no_pair_of_ranks_has_more_than_one_message_in_a_step(name, world_size):
    schedule = make_schedule(name, world_size)
    moves = list(coalesce_transfers(schedule, partition([1000], schedule.chunks)))
    pairs = sum(len({transfer[:2] for transfer in step}) for step in schedule.steps)
    assert sum(len(move.sources) for move in moves) == pairs
    if name == "halving_doubling" and world_size != 3:  # log2(p) steps each way, with a message from each rank
        additions = sum(move.op == "add" for move in moves)
        assert 2 * additions == pairs == 2 * world_size * (world_size.bit_length() - 1)


RANGES = st.builds(
    lambda array, begin, size: ArrayRange(array, begin, begin + size),
    st.integers(0, 1),
    st.integers(0, 7),
    st.integers(1, 8),
)


@examples(40)
@given(st.lists(st.tuples(RANGES, st.booleans()), max_size=14))
def test_uses_of_common_elements_are_ordered_if_one_of_them_writes(uses):
    """The engine orders operations on the same range if one writes; a fence writes all ranges."""
    overlaps, queued, numbers = OverlapTracker(), [], []  # queued: {range: whether it is written}
    for part, writes in uses:
        others = overlaps.record_use(part, writes)
        if others:
            queued.append(dict.fromkeys((part, *others), True))
        numbers.append(len(queued))
        queued.append({part: writes})
    after = [set() for _ in queued]  # the operations that each waits for
    for late in range(len(queued)):
        for early in range(late):
            if any(queued[late][part] or queued[early][part] for part in queued[late].keys() & queued[early].keys()):
                after[late] |= {early, *after[early]}
    for (early, (one, wrote)), (late, (other, writes)) in itertools.combinations(zip(numbers, uses), 2):
        common = one.array == other.array and max(one.begin, other.begin) < min(one.end, other.end)
        assert early in after[late] or not (common and (wrote or writes))


def test_separate_ranges_and_readers_need_no_fence():
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
    if dtype != "float32":  # the CPU's add_n of float32 is oneDNN's, in an order of its own
        assert (arrays[0].asnumpy() == functools.reduce(operator.add, numbers)).all()
    assert len(calls) == (count - 1 if dtype == "float16" else -(-(count - 1) // 3))
