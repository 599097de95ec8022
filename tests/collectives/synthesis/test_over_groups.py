"""Schedules over groups of one host, one after the other and as pipelines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.schedule_reference import keeps_promise

from gluonlab.collectives.algorithms import ALGORITHMS, make_schedule
from gluonlab.collectives.bounds import floor_of
from gluonlab.collectives.check import check
from gluonlab.collectives.cost import price, prices
from gluonlab.collectives.for_links import make_for_links
from gluonlab.collectives.synthesis import stored
from gluonlab.collectives.synthesis.stored import pipeline
from gluonlab.collectives.topology import make_topology, switch


@examples(40)
@given(st.sampled_from(sorted(ALGORITHMS)), st.integers(2, 5), st.integers(1, 4))
def test_a_pipeline_of_any_schedule_is_right_and_a_step_longer_for_each_part(name, p, parts):
    one = make_schedule(name, p)
    whole = pipeline(one, parts)
    assert keeps_promise(whole) and whole.transfers == parts * one.transfers
    assert len(whole.steps) == len(one.steps) + parts - 1
    topology = switch(p, 0.0, 1e9)  # where a message costs nothing, it is not dearer
    seconds = [price(each, topology, 1e6).seconds for each in (one, whole)]
    assert seconds[1] <= seconds[0] * (1 + 1e-9)


@pytest.mark.parametrize("name, devices", [("g5.48xlarge", 8), ("pcie", 8), ("pcie", 6)])
def test_of_groups_each_choice_is_right_and_none_below_the_floor(name, devices):
    topology = make_topology(name, devices)
    floor, sizes = floor_of(topology), (1024, 2**20, 2**30)
    for schedule in stored.choices(topology):
        check(schedule)
        for size, priced in zip(sizes, prices(schedule, topology, sizes)):
            assert priced.seconds >= floor.seconds(size) * (1 - 1e-9)


def test_on_a_g5_48xlarge_large_buffers_keep_all_links_busy():
    """Rings are priced at 1.48 times the floor: between the CPUs they send each byte twice."""
    topology = make_topology("g5.48xlarge")
    made, floor = make_for_links("synthesised", topology, 8), floor_of(topology)
    ring = make_schedule("ring", 8)
    for size, factor in ((2**24, 1.39), (10**8, 1.15), (2**30, 1.05)):
        seconds = price(made.cheapest(size), topology, size).seconds
        assert seconds <= factor * floor.seconds(size)
        assert seconds < price(ring, topology, size).seconds * 0.95


def test_groups_of_unequal_sizes_get_the_schedules_of_a_switch():
    topology = make_topology("g5.48xlarge", 6)
    assert topology.groups == ((0, 1, 2, 3), (4, 5))
    assert len(stored.choices(topology)) == 1
