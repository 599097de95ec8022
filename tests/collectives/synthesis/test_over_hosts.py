"""Synthesized schedules over several hosts, and over the groups of one host: right and cheap."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.schedule_reference import has_correct_sums

from gluonlab.collectives.algorithms import ACROSS_HOSTS, ALGORITHMS, make_schedule, make_schedule_over_hosts
from gluonlab.collectives.cost_model import estimate_cost, estimate_costs
from gluonlab.collectives.lower_bounds import find_lower_bound
from gluonlab.collectives.named_topologies import make_topology, switch
from gluonlab.collectives.synthesis import precomputed_schedules
from gluonlab.collectives.synthesis.precomputed_schedules import pipeline_parts
from gluonlab.collectives.topology_aware import make_for_links
from gluonlab.collectives.verify_schedule import verify
from gluonlab.errors import ScheduleError


def cheapest(topology, size):
    return make_for_links(precomputed_schedules.SYNTHESIZED, topology, topology.world_size).cheapest(size)


@pytest.mark.parametrize(
    "name", ["p3.16xlarge*2", "p3.16xlarge*4", "p4d.24xlarge*2", "g4dn.12xlarge*3", "p3.2xlarge*4"]
)
@pytest.mark.long
def test_over_hosts_every_choice_is_right_and_the_cheapest_beats_rings_within_hosts(name):
    topology = make_topology(name)
    for schedule in precomputed_schedules.choose_schedules(topology):
        verify(schedule)
    hosts, order = len(topology.hosts), topology.subset(topology.hosts[0]).ring_order()
    others = [make_schedule_over_hosts(hosts, len(order), across, order=order) for across in ACROSS_HOSTS]
    for size in (4**power * 1024 for power in range(11)):
        seconds = estimate_cost(cheapest(topology, size), topology, size).seconds
        rings = min(estimate_cost(other, topology, size).seconds for other in others)
        assert find_lower_bound(topology).seconds(size) / (1 + 1e-9) <= seconds <= rings * (1 + 1e-9)


@examples(6, 10)
@given(st.data())
def test_hosts_may_have_devices_of_any_numbers(data):
    whole = make_topology("g4dn.12xlarge*2")
    topology = whole.subset(data.draw(st.permutations(range(8))))
    for size in (1024, 10**7):
        first, second = (estimate_cost(cheapest(t, size), t, size).seconds for t in (whole, topology))
        assert first == pytest.approx(second)


def test_too_many_hosts_and_unequal_ones_are_one_line():
    for topology in (make_topology("p3.16xlarge*5"), make_topology("p3.8xlarge*2", 6)):
        with pytest.raises(ScheduleError, match=r"2 to 4 hosts with equal numbers of devices.*hierarchical"):
            cheapest(topology, 1024)


@examples(40)
@given(st.sampled_from(sorted(ALGORITHMS)), st.integers(2, 5), st.integers(1, 4))
def test_a_pipeline_of_any_schedule_is_right_and_a_step_longer_for_each_part(name, p, parts):
    one = make_schedule(name, p)
    whole = pipeline_parts(one, parts)
    assert has_correct_sums(whole) and whole.transfers == parts * one.transfers
    assert len(whole.steps) == len(one.steps) + parts - 1
    topology = switch(p, 0.0, 1e9)  # where a message costs nothing, it is not dearer
    seconds = [estimate_cost(schedule, topology, 1e6).seconds for schedule in (one, whole)]
    assert seconds[1] <= seconds[0] * (1 + 1e-9)


@pytest.mark.parametrize("name, devices", [("g5.48xlarge", 8), ("pcie", 8), ("pcie", 6)])
def test_each_choice_over_groups_is_right_and_not_below_the_lower_bound(name, devices):
    topology, sizes = make_topology(name, devices), (1024, 2**20, 2**30)
    for schedule in precomputed_schedules.choose_schedules(topology):
        verify(schedule)
        for size, priced in zip(sizes, estimate_costs(schedule, topology, sizes)):
            assert priced.seconds >= find_lower_bound(topology).seconds(size) * (1 - 1e-9)


def test_on_a_g5_48xlarge_large_buffers_keep_all_links_busy():
    """Rings cost 1.48 times the lower bound: between the CPUs they send each byte twice."""
    topology, ring = make_topology("g5.48xlarge"), make_schedule("ring", 8)
    for size, factor in ((2**24, 1.39), (10**8, 1.15), (2**30, 1.05)):
        seconds = estimate_cost(cheapest(topology, size), topology, size).seconds
        assert seconds <= factor * find_lower_bound(topology).seconds(size)
        assert seconds < estimate_cost(ring, topology, size).seconds * 0.95


def test_groups_of_unequal_sizes_get_the_schedules_of_a_switch():
    topology = make_topology("g5.48xlarge", 6)
    assert topology.groups == ((0, 1, 2, 3), (4, 5))
    assert len(precomputed_schedules.choose_schedules(topology)) == 1
