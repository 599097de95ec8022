"""The proof of a schedule agrees with its effect on numbers, and names the fault of a wrong one."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.schedule_reference import (
    contribution_counts,
    digit_contributions,
    execute_schedule,
    expected_values,
    find_broken_rule,
    has_correct_sums,
    is_valid,
    mutated_schedules,
    ranks_end_equal,
)

from gluonlab.collectives.algorithms import ALGORITHMS, HALVES
from gluonlab.collectives.schedule import Schedule, Transfer
from gluonlab.collectives.verify_schedule import simulate_contributions, verify
from gluonlab.errors import ScheduleError

CHUNKED = ("star", "tree", "double_tree", "sharded", "hierarchical")
MAKERS = {**ALGORITHMS, **{half.__name__: half for halves in HALVES.values() for half in halves}}


def find_error(schedule):
    try:
        verify(schedule)
    except ScheduleError as error:
        return error


def make_by_hand(world_size, *steps, collective="allreduce", chunks=1, owner=None):
    steps = tuple(tuple(Transfer(*transfer) for transfer in step) for step in steps)
    return Schedule("by hand", collective, world_size, chunks, owner or (0,) * chunks, steps)


@st.composite
def valid_schedules(draw, max_world_size=8):
    name = draw(st.sampled_from(sorted(MAKERS)))
    chunks = draw(st.sampled_from([None, 2, 3])) if name in CHUNKED else None
    return MAKERS[name](draw(st.integers(2, max_world_size)), chunks=chunks)


@examples(150, 400)
@given(valid_schedules().flatmap(mutated_schedules))
def test_a_mutant_is_accepted_exactly_if_it_is_right_and_the_error_points_at_the_fault(case):
    mutant, kind, touched = case
    error = find_error(mutant)
    assert (error is None) == is_valid(mutant)
    if error is None:
        return
    broken = [number for number, step in enumerate(mutant.steps) if find_broken_rule(mutant, step)]
    if broken:  # at the first transfer that breaks a rule together with those before it
        step = mutant.steps[broken[0]]
        first = next(position for position in range(len(step)) if find_broken_rule(mutant, step[: position + 1]))
        assert (error.step, error.transfer) == (broken[0], first)
    elif error.step is None:
        assert "no transfer sends this chunk to rank" in str(error)
        assert kind in ("remove", "move", "swap", "dst", "chunk")
    else:
        check_fault(mutant, error)
        transfer = mutant.steps[error.step][error.transfer]
        assert transfer.chunk in {changed.chunk for changed in touched}  # chunks are independent
        assert f"step {error.step}, transfer {error.transfer} ({transfer})" in str(error)


def check_fault(schedule, error):
    """Check that the transfer is the last into a wrong cell, or the first to count a rank twice."""
    start, base = digit_contributions(schedule)
    end, written = execute_schedule(schedule, start)
    index = sum(map(len, schedule.steps[: error.step])) + error.transfer
    transfers = [transfer for step in schedule.steps for transfer in step]
    src, *cell = transfers[index][:3]
    cell = tuple(cell)

    def value_before(rank):
        values = [value for t, value in zip(transfers[:index], written) if (t.dst, t.chunk) == (rank, cell[1])]
        return [start[rank, cell[1]], *values][-1]

    def counts_twice(number):
        return max(contribution_counts(number, base, schedule.world_size)) > 1

    doubles = counts_twice(written[index]) and not any(map(counts_twice, map(value_before, (cell[0], src))))
    is_last = cell not in [(transfer.dst, transfer.chunk) for transfer in transfers[index + 1 :]]
    # if all sums are right, their bits differ
    ends_wrong = end[cell] != expected_values(schedule, start).get(cell, end[cell]) or has_correct_sums(schedule)
    assert doubles or (is_last and ends_wrong)


@examples(40, 100)
@given(valid_schedules(), st.data())
def test_a_transfer_made_twice_in_a_step_is_named(schedule, data):
    number = data.draw(st.integers(0, len(schedule.steps) - 1))
    step = schedule.steps[number]
    twin = data.draw(st.integers(0, len(step) - 1))
    copy = data.draw(st.integers(twin + 1, len(step)))
    changed = (*step[:copy], step[twin], *step[copy:])
    steps = (*schedule.steps[:number], changed, *schedule.steps[number + 1 :])
    error = find_error(replace(schedule, steps=steps))
    assert (error.step, error.transfer) == (number, copy)


@examples(25, 50)
@given(valid_schedules())
def test_states_are_the_counts_of_the_reference_after_every_step(schedule):
    start, base = digit_contributions(schedule)
    for number, state in enumerate(simulate_contributions(schedule)):
        numbers, _ = execute_schedule(replace(schedule, steps=schedule.steps[:number]), start)
        expected = [[tuple(contribution_counts(cell, base, schedule.world_size)) for cell in row] for row in numbers]
        assert [list(map(tuple, row)) for row in state] == expected
    assert number == len(schedule.steps)


SUM_AND_BACK = [[(1, 0, 0, "add")], [(0, 1, 0, "copy")]]
SPOILED_AND_FIXED = [[(0, 1, 0, "add")], [(0, 1, 0, "copy")]]  # counts rank 1 twice, and copies over it
TWICE = "written twice in this step, which only additions can do"
NOTHING_SENT = (
    "rank {0} ends with chunk 0 without the contribution of rank {1}: no transfer sends this chunk to rank {0}"
)


@pytest.mark.parametrize(
    ("world_size", "steps", "location", "words"),
    [
        (2, [[(1, 0, 0, "mul")]], (0, 0), "'mul' is not a valid operation: choose add, copy"),
        (2, [[(1, 2, 0, "add")]], (0, 0), "ranks must be below 2 and chunks below 1, counted from 0"),
        (2, [[(-1, 0, 0, "add")]], (0, 0), "ranks must be below 2 and chunks below 1, counted from 0"),
        (2, [[(1, 0, 1, "add")]], (0, 0), "ranks must be below 2 and chunks below 1, counted from 0"),
        (2, [SUM_AND_BACK[0], [(1, 1, 0, "copy")]], (1, 0), "cannot send to itself"),
        (2, [[(1, 0, 0, "add"), (0, 1, 0, "add")]], (0, 1), "rank 0 is also written in this step"),
        (3, [[(0, 2, 0, "add"), (1, 0, 0, "add")]], (0, 1), "rank 0 is also read in this step"),
        (3, [[(0, 2, 0, "copy"), (1, 2, 0, "add")]], (0, 1), TWICE),
        (3, [[(0, 2, 0, "add"), (1, 2, 0, "copy")]], (0, 1), TWICE),
        (3, [[(0, 2, 0, "copy"), (1, 2, 0, "copy")]], (0, 1), TWICE),
        (2, [*SUM_AND_BACK, [(1, 0, 0, "add")]], (2, 0), "counting ranks 0, 1 more than once"),
        (2, [SUM_AND_BACK[0], *SPOILED_AND_FIXED, SUM_AND_BACK[0]], (3, 0), "counting ranks 0, 1 more than once"),
        (3, [*SUM_AND_BACK, [(0, 2, 0, "copy")]], (0, 0), "without the contribution of rank 2"),
        (2, [[(1, 0, 0, "add")]], (None, None), NOTHING_SENT.format(1, 0)),
        (2, [], (None, None), NOTHING_SENT.format(0, 1)),
    ],
)  # fmt: skip
def test_a_fault_is_named(world_size, steps, location, words):
    error = find_error(make_by_hand(world_size, *steps))
    assert (error.step, error.transfer) == location
    assert words in str(error)
    assert "\n" not in str(error)


def test_a_wrong_chunk_that_is_overwritten_and_sums_that_only_commute_are_accepted():
    verify(make_by_hand(2, SUM_AND_BACK[0], *SPOILED_AND_FIXED))
    commuted = make_by_hand(  # rank 0 ends with (x0 + x2) + x1, rank 1 with x1 + (x0 + x2)
        3, [(2, 0, 0, "add")], [(0, 2, 0, "copy")], [(1, 0, 0, "add")], [(2, 1, 0, "add")], [(0, 2, 0, "copy")]
    )
    assert ranks_end_equal(commuted)
    verify(commuted)


def test_sums_in_another_order_are_refused_though_they_are_exact():
    steps = [
        [(3, 2, 0, "add")], [(0, 3, 0, "copy")],  # y on rank 2; x0 on ranks 0 and 3
        [(2, 0, 0, "add")],  # x0 + y on rank 0
        [(1, 0, 0, "add")],  # (x0 + y) + x1 on rank 0
        [(3, 1, 0, "add")], [(2, 1, 0, "add")],  # (x1 + x0) + y on rank 1
        [(0, 2, 0, "copy"), (0, 3, 0, "copy")],
    ]  # fmt: skip
    schedule = make_by_hand(4, *steps)
    assert has_correct_sums(schedule) and not ranks_end_equal(schedule)
    error = find_error(schedule)
    assert (error.step, error.transfer) == (5, 0)
    assert (
        "ranks 0 and 1 add the contributions to chunk 0 in a different order, so their results are not bit-identical"
    ) in str(error)


def draw_sum(draw, ranks):
    """Draw steps that sum over ``ranks``; return them and the sum as a tree of unordered pairs."""
    trees, steps = {rank: rank - ranks[0] for rank in ranks}, []
    while len(trees) > 1:
        into, gone = draw(st.permutations(sorted(trees)))[:2]
        steps.append([(gone, into, 0, "add")])
        trees[into] = frozenset([trees[into], trees.pop(gone)])
    ((root, tree),) = trees.items()
    return [*steps, [(root, rank, 0, "copy") for rank in ranks if rank != root]], tree


@examples(60, 150)
@given(st.data(), st.integers(2, 5))
def test_two_sums_are_accepted_exactly_if_they_differ_by_swapped_summands_only(data, half):
    """Ranks r and r + half hold the same, and each half adds up in its own order."""
    doubled = [
        [(rank + half, rank, 0, "add") for rank in range(half)],
        [(rank, rank + half, 0, "copy") for rank in range(half)],
    ]
    here, tree = draw_sum(data.draw, list(range(half)))
    other_steps, other_tree = draw_sum(data.draw, list(range(half, 2 * half)))
    schedule = make_by_hand(2 * half, *doubled, *here, *other_steps)
    assert has_correct_sums(schedule)
    assert (find_error(schedule) is None) == (tree == other_tree) == ranks_end_equal(schedule)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"collective": "broadcast"}, "is not a valid collective: choose allreduce, reduce_scatter, all_g"),
        ({"world_size": 0}, "0 ranks and 1 chunks"),
        ({"chunks": 0}, "2 ranks and 0 chunks"),
        *(({"owner": owner}, "list one of the 2 ranks for each of the 1 chunks") for owner in [(), (2,), (-1,)]),
    ],
)
def test_a_schedule_with_invalid_fields_is_refused(change, words):
    error = find_error(replace(make_by_hand(2, *SUM_AND_BACK), **change))
    assert words in str(error)
    assert (error.step, error.transfer) == (None, None)


FROM_1 = [(1, 0, 0, "copy"), (1, 2, 0, "copy")]
OTHERS = "rank {} ends with a chunk 0 that does not come from its owner, rank {}"


@pytest.mark.parametrize(
    ("collective", "ranks", "steps", "owner", "location", "words"),
    [
        ("reduce_scatter", 2, [[(0, 1, 0, "add")]], 1, None, ""),
        ("reduce_scatter", 2, [[(0, 1, 0, "add")]], 0, (None, None), "rank 0 ends with chunk 0 wi"),
        ("all_gather", 3, [FROM_1], 1, None, ""),
        ("all_gather", 3, [FROM_1, [(0, 2, 0, "add")]], 1, (1, 0), OTHERS.format(2, 1)),
        ("all_gather", 3, [FROM_1], 2, (0, 0), OTHERS.format(0, 2)),
    ],
)
def test_a_reduce_scatter_must_sum_on_owners_and_an_all_gather_must_copy_from_owners(
    collective, ranks, steps, owner, location, words
):
    error = find_error(make_by_hand(ranks, *steps, collective=collective, owner=(owner,)))
    assert (error and (error.step, error.transfer)) == location
    assert words in str(error)
