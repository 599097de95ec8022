"""Schedules made for links: auto is the cheapest, and rings fit on the links together."""

from collections import Counter
from contextlib import suppress
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.lanes import mesh_topologies, two_cliques, unequal_topologies
from support.schedule_reference import has_correct_sums, reference_cost
from support.topologies import topologies

from gluonlab.collectives import topology_aware
from gluonlab.collectives.algorithms import ALGORITHMS, make_schedule
from gluonlab.collectives.cost_model import SIZES, estimate_cost, find_best_order, lowest_cost_index
from gluonlab.collectives.lower_bounds import find_lower_bound
from gluonlab.collectives.named_topologies import fully_connected, make_topology
from gluonlab.collectives.synthesis.flow_network import make_flow_network
from gluonlab.collectives.topology import typical_cpu_topology
from gluonlab.collectives.topology_aware import (
    MAX_PARALLEL_RINGS,
    MAX_TRANSFERS,
    TOPOLOGY_AWARE,
    make_for_links,
    multi_ring,
    pack_rings,
)
from gluonlab.errors import ScheduleError

EQUAL = 1 + 2e-9
random_topologies = topologies(4, st.sampled_from([1e9, 3e9, 25e9, 1e11]), st.sampled_from([0.0, 1e-6, 1e-5]))


def list_schedules(topology):
    """Yield every algorithm, as numbered and placed, and the schedules made for the links."""
    for name in ALGORITHMS:
        schedule = make_schedule(name, topology.world_size)
        yield from (schedule, schedule.placed(find_best_order(schedule, topology)))
    for name in {*TOPOLOGY_AWARE} - {topology_aware.AUTO}:
        with suppress(ScheduleError):  # there is none
            yield from make_for_links(name, topology, topology.world_size).schedules


@examples(5, 8)
@given(random_topologies, st.sampled_from(SIZES), st.floats(0, 1))
def test_auto_uses_the_cheapest_schedule_and_lists_its_size_thresholds(topology, size, beyond):
    """No schedule is cheaper at the compared sizes, and none is much cheaper between them."""
    auto = make_for_links(topology_aware.AUTO, topology, topology.world_size)
    schedules = list(list_schedules(topology))
    for buffer_bytes, slack in ((size, EQUAL), (size * (1 + beyond), 1.05)):
        chosen = reference_cost(auto.cheapest(buffer_bytes), topology, buffer_bytes)
        assert chosen <= min(reference_cost(schedule, topology, buffer_bytes) for schedule in schedules) * slack
    assert all(has_correct_sums(schedule) for schedule in auto.schedules)
    table = auto.size_thresholds()
    assert table[0].size_bytes == 1
    for size in SIZES:
        [*_, row] = [row for row in table if row.size_bytes <= size]
        assert row.schedule is auto.cheapest(size)
    assert {id(row.schedule) for row in table} == {id(schedule) for schedule in auto.schedules}


def test_algorithms_with_a_choice_of_chunks_are_also_tried_with_more_chunks():
    topology = make_topology("p3.8xlarge")
    chunks = {}
    for schedule in topology_aware.candidate_schedules(topology):
        chunks.setdefault(schedule.name, set()).add(schedule.chunks)
    assert chunks["tree"] == {1, *topology_aware.CHUNK_MULTIPLES} and chunks["ring"] == {4}
    assert chunks["sharded"] == {4 * times for times in (1, *topology_aware.CHUNK_MULTIPLES)}


@pytest.mark.parametrize(
    "machine, gap", [("p3.8xlarge", 1.07), ("p3.16xlarge", 1.15), ("g4dn.12xlarge", 1.16), ("g5.12xlarge", 1.16)]
)
def test_on_known_machines_auto_is_near_the_lower_bound_at_every_size(machine, gap):
    topology = make_topology(machine)
    auto, bound = make_for_links(topology_aware.AUTO, topology, topology.world_size), find_lower_bound(topology)
    for power in range(10, 31):
        seconds = reference_cost(auto.cheapest(2**power), topology, 2**power)
        assert bound.seconds(2**power) / EQUAL <= seconds <= gap * bound.seconds(2**power)


def test_of_equal_costs_the_first_is_chosen():
    assert lowest_cost_index([2.0, 1.0, 1.0 - 1e-12]) == 1
    tables = [make_for_links(topology_aware.AUTO, typical_cpu_topology(4), 4).size_thresholds() for _ in range(2)]
    assert str(tables[0]) == str(tables[1])


@pytest.mark.parametrize(
    "topology",
    [typical_cpu_topology(5), make_topology("g4dn.12xlarge"), make_topology("p3.2xlarge*4")],
    ids=lambda topology: topology.name,
)
@examples(30)
@given(st.data())
def test_all_orders_of_interchangeable_devices_have_the_same_price(topology, data):
    assert topology.routes.is_symmetric and not make_topology("pcie", 8).routes.is_symmetric
    schedule = make_schedule(data.draw(st.sampled_from(sorted(ALGORITHMS))), topology.world_size)
    order = data.draw(st.permutations(range(topology.world_size)))
    assert find_best_order(schedule, topology) == list(range(topology.world_size))
    seconds = [reference_cost(candidate, topology, 1e6) for candidate in (schedule, schedule.placed(order))]
    assert seconds[1] == pytest.approx(seconds[0])


@examples(40)
@given(mesh_topologies())
def test_rings_fit_on_the_lanes_together_and_no_other_ring_fits_beside_them(topology):
    network, p = make_flow_network(topology), topology.world_size
    rings = pack_rings(network)
    used = Counter(hop for ring in rings for hop in zip(ring, (*ring[1:], ring[0])))
    left = {link.pairs[0]: link.lanes - used.pop(link.pairs[0], 0) for link in network.shared_links}
    assert not used and min(left.values()) >= 0
    assert all(sorted(ring) == list(range(p)) for ring in rings)
    for order in permutations(range(1, p)):
        assert min(left.get(hop, 0) for hop in zip((0, *order), (*order, 0))) == 0


@given(mesh_topologies())
@pytest.mark.long
def test_multi_ring_is_correct_and_not_below_the_lower_bound(topology):
    schedule = multi_ring(topology)
    assert has_correct_sums(schedule)
    assert len(schedule.steps) == 2 * (topology.world_size - 1)
    for size in (0, 10**6):
        assert estimate_cost(schedule, topology, size).seconds >= find_lower_bound(topology).seconds(size) - 1e-12


@pytest.mark.parametrize("p, rings", [(3, 2), (5, 4), (7, 6)])
def test_a_prime_number_of_fully_connected_devices_uses_every_link(p, rings):
    topology = fully_connected(p, 1e-5, 1e9)
    assert len(pack_rings(make_flow_network(topology))) == rings
    seconds = estimate_cost(multi_ring(topology), topology, 1e8).seconds
    assert seconds == pytest.approx(2 * (p - 1) * (1e-5 + 1e8 / rings / p / 1e9))


def test_a_p3_16xlarge_carries_six_rings_and_one_device_none():
    topology = make_topology("p3.16xlarge")
    assert len(pack_rings(make_flow_network(topology))) == 6
    assert estimate_cost(multi_ring(topology), topology, 1e8).seconds == pytest.approx(1598.3e-6, rel=1e-4)
    assert multi_ring(make_topology("p3.2xlarge")).steps == ()


@pytest.mark.parametrize("topology", [make_topology("p3.16xlarge", 5), make_topology("g4dn.12xlarge*2")])
def test_without_a_ring_of_fast_links_multi_ring_is_the_best_single_ring(topology):
    schedule = multi_ring(topology)
    assert has_correct_sums(schedule) and schedule.chunks == topology.world_size
    ring = make_schedule("ring", topology.world_size).placed(topology.ring_order())
    for size in (0, 10**8):
        assert estimate_cost(schedule, topology, size).seconds == pytest.approx(
            estimate_cost(ring, topology, size).seconds
        )


def test_a_search_for_rings_that_do_not_exist_ends():
    """11! ways lead to the link between the two sets of twelve devices."""
    topology = two_cliques(12)
    assert pack_rings(make_flow_network(topology)) == []
    assert multi_ring(topology).chunks == 24


@given(unequal_topologies())
@pytest.mark.long
def test_different_speeds_make_few_rings_that_cost_no_more_than_a_single_ring(topology):
    schedule, p = multi_ring(topology), topology.world_size
    assert has_correct_sums(schedule) and schedule.chunks <= MAX_PARALLEL_RINGS * p
    single = make_schedule("ring", p).placed(topology.ring_order())
    most, least = (estimate_cost(ring, topology, 2**30).seconds for ring in (single, schedule))
    assert least <= most * (1 + 1e-9)


def test_the_rings_of_many_devices_are_a_schedule_of_bounded_size():
    topology = fully_connected(128, 1e-5, 1e9)
    rings = pack_rings(make_flow_network(topology))
    assert 0 < 2 * 127 * 128 * len(rings) <= MAX_TRANSFERS
