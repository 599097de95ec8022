"""Schedules of up to 1,024 ranks: one wrong transfer is found, and costs are exact."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.schedule_reference import has_correct_sums, mutated_schedules, step_cost
from support.topologies import topologies

from gluonlab.collectives.algorithms import ALGORITHMS, make_schedule
from gluonlab.collectives.cost_model import estimate_costs, find_best_order
from gluonlab.collectives.named_topologies import switch
from gluonlab.collectives.schedule import Schedule
from gluonlab.collectives.verify_schedule import verify
from gluonlab.errors import ScheduleError


def select_chunk(schedule, chunk):
    """Return the transfers of one chunk as a schedule of one chunk."""
    steps = tuple(tuple(t._replace(chunk=0) for t in step if t.chunk == chunk) for step in schedule.steps)
    return Schedule("alone", schedule.collective, schedule.world_size, 1, (schedule.owner[chunk],), steps)


def find_fault(schedule):
    """Return the first fault, (wrong at the end, step or None, position or None), or None."""
    try:
        verify(schedule)
    except ScheduleError as error:
        at_the_end = bool(re.search(r"ends with|add the contributions", str(error)))  # and not a broken rule of a step
        return at_the_end, error.step, error.transfer
    return None


def find_fault_by_chunks(schedule, chunks):
    """Return the first fault of the chunks alone: broken rules by step, then faults by chunk."""
    faults = []
    for chunk in sorted(chunks):
        fault = find_fault(select_chunk(schedule, chunk))
        if fault and fault[1] is not None:  # the position among all transfers of the step
            positions = [index for index, t in enumerate(schedule.steps[fault[1]]) if t.chunk == chunk]
            fault = (*fault[:2], positions[fault[2]])
        faults += [fault] if fault else []
    rules = sorted(fault for fault in faults if not fault[0])
    return (rules or faults or [None])[0]


def check_faults(data, schedule):
    """Compare the fault of a changed schedule with the fault of the changed chunks; return both."""
    changed, _, touched = data.draw(mutated_schedules(schedule, possible=True))
    chunks = {transfer.chunk for transfer in touched}
    fault = find_fault(changed)
    assert fault == find_fault_by_chunks(changed, chunks)
    return fault, [select_chunk(changed, chunk) for chunk in chunks]


@examples(24, 60)
@given(st.sampled_from([*ALGORITHMS]), st.integers(2, 40), st.data())
def test_a_changed_transfer_is_found_where_its_chunk_alone_is_wrong(name, world_size, data):
    fault, chunks = check_faults(data, make_schedule(name, world_size))
    assert fault or all(map(has_correct_sums, chunks))


@pytest.mark.long
@settings(max_examples=10)
@given(st.sampled_from(["ring", "halving_doubling", "sharded", "double_tree"]), st.data())
def test_one_changed_transfer_among_1024_ranks_is_found(name, data):
    check_faults(data, make_schedule(name, 1024))


@given(topologies(most=6, speeds=st.floats(1e6, 1e12), latencies=st.floats(0, 1e-3)), st.data())
@pytest.mark.long
def test_prices_are_those_of_the_definition(topology, data):
    name = data.draw(st.sampled_from([*ALGORITHMS]))
    schedule = make_schedule(name, topology.world_size)
    sizes = data.draw(st.lists(st.just(0) | st.integers(1, 2**40), min_size=1, max_size=3))
    for size, cost in zip(sizes, estimate_costs(schedule, topology, sizes)):
        assert len(cost.steps) == len(schedule.steps)
        for step, step_result in zip(schedule.steps, cost.steps):
            longest, busiest, reduce_s = step_cost(step, topology, size / schedule.chunks)
            seconds = step_result.transfer_s, step_result.reduce_s
            assert seconds == pytest.approx((longest, reduce_s), rel=1e-12, abs=0)
            assert step_result.bottleneck in busiest


MEMORY_PROGRAM = """
import sys
from gluonlab.collectives.algorithms import make_schedule, make_schedule_over_hosts
from gluonlab.collectives.verify_schedule import verify
from gluonlab.collectives.cost_model import estimate_cost
from gluonlab.collectives.named_topologies import make_topology, switch

if sys.argv[1] == "over_hosts":
    schedule, topology = make_schedule_over_hosts(128, 8), make_topology("p3.16xlarge*128")
else:
    schedule, topology = make_schedule(sys.argv[1], 1024), switch(1024, 1e-5, 1e10, 1e11)
verify(schedule)
assert estimate_cost(schedule, topology, 1e8).seconds > 0
# getrusage's peak would be that of the process that started this one, if it was larger.
with open("/proc/self/status") as status:
    peak = next(line for line in status if line.startswith("VmHWM"))
print(int(peak.split()[1]) / 2**20)
"""


@pytest.mark.long
@pytest.mark.parametrize("name", [*ALGORITHMS, "over_hosts"])
def test_1024_ranks_take_no_more_than_a_gigabyte(python, name):
    done = python("-c", MEMORY_PROGRAM, name)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) <= 1


def test_thousands_of_interchangeable_devices_keep_their_order():
    topology = switch(1100, 1e-5, 1e10)
    assert topology.ring_order() == list(range(1100))
    assert find_best_order(make_schedule("star", 1100), topology) == list(range(1100))
