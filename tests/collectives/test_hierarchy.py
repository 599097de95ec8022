"""Allreduces over hosts are right for any number of hosts and devices, and send no byte twice."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import devices as some_devices
from support.examples import examples
from support.schedule_reference import is_right

from gluonlab.collectives.algorithms import (
    ACROSS,
    ALGORITHMS,
    HALVES,
    make_schedule,
    nested,
    over_hosts,
)
from gluonlab.collectives.check import check
from gluonlab.collectives.executor import allreduce
from gluonlab.errors import ScheduleError

from mxnet import nd  # isort: skip

HOSTS = st.integers(1, 4)


@examples(40)
@given(
    HOSTS, HOSTS, st.sampled_from(sorted(ALGORITHMS)), st.sampled_from(sorted(HALVES)), st.data()
)
def test_any_algorithms_within_and_across_are_proved(hosts, devices, across, within, data):
    order = data.draw(st.none() | st.permutations(range(devices)))
    schedule = over_hosts(hosts, devices, across, within=within, order=order)
    check(schedule)
    assert is_right(schedule)
    assert (schedule.collective, schedule.world_size) == ("allreduce", hosts * devices)
    assert all(schedule.steps)


@given(HOSTS, HOSTS)
def test_rings_send_as_few_bytes_between_hosts_as_possible(hosts, devices):
    """2 (h-1)/h of the buffer out of every host, and as much in, shared by all of its devices."""
    schedule = over_hosts(hosts, devices)
    between = [t for step in schedule.steps for t in step if t.src // devices != t.dst // devices]
    assert all(t.src % devices == t.dst % devices for t in between)
    for rank in range(hosts * devices):
        for end in ("src", "dst"):
            count = sum(getattr(t, end) == rank for t in between)
            assert count * hosts * devices == 2 * (hosts - 1) * schedule.chunks


def test_with_one_device_a_host_it_is_the_schedule_across():
    for across in ACROSS:
        schedule = over_hosts(5, 1, across)
        assert schedule.steps == make_schedule(across, 5).steps
        assert schedule.name == f"hierarchical, {across}"


@pytest.mark.parametrize(("hosts", "devices"), [(2, 2), (2, 4), (3, 2), (4, 2)])
@pytest.mark.parametrize("across", ACROSS)
def test_hosts_of_devices_end_with_numpys_sum(hosts, devices, across):
    random = np.random.RandomState(hosts * 10 + devices)
    sizes = (1, 37, 1000)
    parts = [[random.randint(-9, 10, n) for n in sizes] for _ in range(hosts * devices)]
    arrays = [
        [nd.array(array, ctx=ctx) for array in own]
        for own, ctx in zip(parts, some_devices(hosts * devices))
    ]
    allreduce(over_hosts(hosts, devices, across), arrays)
    for own in arrays:
        for array, same in zip(own, zip(*parts)):
            assert (array.asnumpy() == sum(same)).all()


def test_schedules_that_do_not_fit_are_refused():
    scatter, gather = (half(2) for half in HALVES["ring"])
    ring = make_schedule("ring", 2)
    for parts in ((gather, ring, scatter), (scatter, ring, HALVES["ring"][1](3))):
        with pytest.raises(ScheduleError, match=r"then|begins with"):
            nested("both", *parts)
    with pytest.raises(ScheduleError, match="across hosts goes an allreduce, not ring, a reduce"):
        nested("both", scatter, scatter, gather)
    with pytest.raises(ScheduleError, match="'star' within hosts: choose sharded, ring, halving"):
        over_hosts(2, 2, within="star")
    with pytest.raises(ScheduleError, match="unknown algorithm 'rign'"):
        over_hosts(2, 2, "rign")
    for counts in ((0, 2), (2, 0), (1.5, 2)):
        with pytest.raises(ScheduleError, match="there must be at least 1"):
            over_hosts(*counts)
    with pytest.raises(ScheduleError, match="name each of the devices 0 to 1 once"):
        over_hosts(2, 2, order=[0, 0])
