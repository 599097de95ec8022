"""Schedules of 1,024 ranks: proved and priced as small ones are; one wrong transfer is found."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.schedule_reference import keeps_promise

from gluonlab.collectives.algorithms import ALGORITHMS, make_schedule
from gluonlab.collectives.check import check
from gluonlab.collectives.schedule import OPS, Schedule
from gluonlab.errors import ScheduleError

MUTATIONS = ["gone", "twice", "src", "dst", "op"]


def alone(schedule, chunk):
    """What happens to one chunk, as a schedule of one chunk."""
    steps = tuple(
        tuple(t._replace(chunk=0) for t in step if t.chunk == chunk) for step in schedule.steps
    )
    return Schedule("alone", schedule.collective, schedule.world_size, 1,
                    (schedule.owner[chunk],), steps)  # fmt: skip


def mutated(schedule, step, position, how, rank):
    """The schedule with one transfer changed, and the chunk that it concerns."""
    transfers = list(schedule.steps[step])
    old = transfers[position]
    if how == "gone":
        del transfers[position]
    elif how == "twice":
        transfers.append(old)
    elif how == "op":
        transfers[position] = old._replace(op=OPS[1 - OPS.index(old.op)])
    else:
        transfers[position] = old._replace(**{how: rank})
    steps = (*schedule.steps[:step], tuple(transfers), *schedule.steps[step + 1 :])
    changed = Schedule(schedule.name, schedule.collective, schedule.world_size, schedule.chunks,
                       schedule.owner, steps)  # fmt: skip
    return changed, old.chunk


def verdict(schedule):
    """(the step of the first fault,), or None; no step is named where nothing is ever sent."""
    try:
        check(schedule)
    except ScheduleError as error:
        return (error.step,)
    return None


def draw_mutated(data, schedule):
    step = data.draw(st.integers(0, len(schedule.steps) - 1))
    position = data.draw(st.integers(0, len(schedule.steps[step]) - 1))
    rank = data.draw(st.integers(0, schedule.world_size - 1))
    return mutated(schedule, step, position, data.draw(st.sampled_from(MUTATIONS)), rank)


@settings(max_examples=60)
@given(st.sampled_from([*ALGORITHMS]), st.integers(2, 40), st.data())
def test_a_changed_transfer_is_wrong_where_its_chunk_alone_is(name, world_size, data):
    """The chunk alone has no other to be compared with, and a reference of numbers."""
    changed, chunk = draw_mutated(data, make_schedule(name, world_size))
    single = alone(changed, chunk)
    found = verdict(single)
    assert verdict(changed) == found
    if found is None:
        assert keeps_promise(single)


@pytest.mark.long
@settings(max_examples=8)
@given(st.sampled_from(["ring", "halving_doubling", "sharded", "double_tree"]), st.data())
def test_one_changed_transfer_among_1024_ranks_is_found(name, data):
    changed, chunk = draw_mutated(data, make_schedule(name, 1024))
    assert verdict(changed) == verdict(alone(changed, chunk))


MEASURED = """
import resource, sys, time
from gluonlab.collectives.algorithms import make_schedule
from gluonlab.collectives.check import check
from gluonlab.collectives.cost import price
from gluonlab.collectives.hierarchy import over_hosts
from gluonlab.collectives.topology import make_topology, switch
name, began = sys.argv[1], time.process_time()
if name == "over_hosts":
    schedule, topology = over_hosts(128, 8), make_topology("p3.16xlarge*128")
else:
    schedule, topology = make_schedule(name, 1024), switch(1024, 1e-5, 1e10, 1e11)
check(schedule)
assert price(schedule, topology, 1e8).seconds > 0
print(time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.parametrize("name", [*ALGORITHMS, "over_hosts"])
def test_1024_ranks_are_made_proved_and_priced_in_ten_seconds_and_a_gigabyte(name):
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, name], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    seconds, gigabytes = map(float, done.stdout.split())
    assert gigabytes <= 1 and seconds <= 10
