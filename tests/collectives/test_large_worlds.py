"""Schedules of 1,024 ranks: proved and priced as small ones are; one wrong transfer is found."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.schedule_reference import has_correct_sums, mutated_schedules, step_cost
from support.topologies import topologies

from gluonlab.collectives.algorithms import ALGORITHMS, make_schedule
from gluonlab.collectives.cost_model import find_best_order, prices
from gluonlab.collectives.named_topologies import switch
from gluonlab.collectives.schedule import Schedule
from gluonlab.collectives.verify_schedule import check
from gluonlab.errors import ScheduleError

AT_THE_END = re.compile(r"ends with|add up chunk")  # and not a broken rule of a step


def alone(schedule, chunk):
    """What happens to one chunk, as a schedule of one chunk."""
    steps = tuple(tuple(t._replace(chunk=0) for t in step if t.chunk == chunk) for step in schedule.steps)
    return Schedule("alone", schedule.collective, schedule.world_size, 1,
                    (schedule.owner[chunk],), steps)  # fmt: skip


def fault(schedule):
    """(broken at the end, step, position) of what `check` finds first, or None.

    No place is named where nothing is ever sent.
    """
    try:
        check(schedule)
    except ScheduleError as error:
        return bool(AT_THE_END.search(str(error))), error.step, error.transfer
    return None


def of_whole(found, schedule, chunk):
    """The same place among all transfers of the step."""
    at_the_end, step, position = found
    if step is None:
        return found
    own = [place for place, t in enumerate(schedule.steps[step]) if t.chunk == chunk]
    return at_the_end, step, own[position]


def expected(schedule, chunks):
    """The first fault by the chunks alone, which have no others to be compared with.

    Rules of steps come first, from step to step; then the chunks, one after the other.
    """
    singles = {chunk: fault(alone(schedule, chunk)) for chunk in sorted(chunks)}
    found = [of_whole(each, schedule, chunk) for chunk, each in singles.items() if each]
    rules = sorted(each for each in found if not each[0])
    return (rules or found or [None])[0]


def changed_by(data, schedule):
    """The schedule with one change, and the chunks that it concerns."""
    changed, _, touched = data.draw(mutated_schedules(schedule, possible=True))
    return changed, {transfer.chunk for transfer in touched}


@examples(24, 60)
@given(st.sampled_from([*ALGORITHMS]), st.integers(2, 40), st.data())
def test_a_changed_transfer_is_found_where_its_chunk_alone_is_wrong(name, world_size, data):
    changed, chunks = changed_by(data, make_schedule(name, world_size))
    found = fault(changed)
    assert found == expected(changed, chunks)
    if found is None:
        assert all(has_correct_sums(alone(changed, chunk)) for chunk in chunks)


@pytest.mark.long
@settings(max_examples=10)
@given(st.sampled_from(["ring", "halving_doubling", "sharded", "double_tree"]), st.data())
def test_one_changed_transfer_among_1024_ranks_is_found(name, data):
    changed, chunks = changed_by(data, make_schedule(name, 1024))
    assert fault(changed) == expected(changed, chunks)


@given(topologies(most=6, speeds=st.floats(1e6, 1e12), latencies=st.floats(0, 1e-3)), st.data())
@pytest.mark.long
def test_prices_are_those_of_the_definition(topology, data):
    name = data.draw(st.sampled_from([*ALGORITHMS]))
    schedule = make_schedule(name, topology.world_size)
    sizes = data.draw(st.lists(st.just(0) | st.integers(1, 2**40), min_size=1, max_size=3))
    for size, found in zip(sizes, prices(schedule, topology, sizes)):
        assert len(found.steps) == len(schedule.steps)
        for step, of_step in zip(schedule.steps, found.steps):
            longest, busiest, reduce_s = step_cost(step, topology, size / schedule.chunks)
            assert of_step.transfer_s == pytest.approx(longest, rel=1e-12, abs=0)
            assert of_step.reduce_s == pytest.approx(reduce_s, rel=1e-12, abs=0)
            assert of_step.bottleneck in busiest


MEASURED = """
import sys
from gluonlab.collectives.algorithms import make_schedule, make_schedule_over_hosts
from gluonlab.collectives.verify_schedule import check
from gluonlab.collectives.cost_model import price
from gluonlab.collectives.named_topologies import make_topology, switch

if sys.argv[1] == "over_hosts":
    schedule, topology = make_schedule_over_hosts(128, 8), make_topology("p3.16xlarge*128")
else:
    schedule, topology = make_schedule(sys.argv[1], 1024), switch(1024, 1e-5, 1e10, 1e11)
check(schedule)
assert price(schedule, topology, 1e8).seconds > 0
# getrusage's peak would be that of the process that started this one, if it was larger.
with open("/proc/self/status") as status:
    peak = next(line for line in status if line.startswith("VmHWM"))
print(int(peak.split()[1]) / 2**20)
"""


@pytest.mark.long
@pytest.mark.parametrize("name", [*ALGORITHMS, "over_hosts"])
def test_1024_ranks_take_no_more_than_a_gigabyte(python, name):
    done = python("-c", MEASURED, name)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) <= 1


def test_thousands_of_interchangeable_devices_keep_their_order():
    """What tries orders of devices gives up before it would take minutes, or too deep a stack."""
    topology = switch(1100, 1e-5, 1e10)
    assert topology.ring_order() == list(range(1100))
    assert find_best_order(make_schedule("star", 1100), topology) == list(range(1100))
