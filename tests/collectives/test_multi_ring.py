"""Rings packed onto links: each through all devices, all of them within the lanes."""

from collections import Counter
from itertools import permutations

import pytest
from hypothesis import given
from support.examples import examples
from support.lanes import cliques, meshes, unlike
from support.schedule_reference import keeps_promise

from gluonlab.collectives.algorithms import make_schedule
from gluonlab.collectives.bounds import floor_of
from gluonlab.collectives.cost import price
from gluonlab.collectives.for_links import MOST_AT_ONCE, MOST_TRANSFERS, multi_ring, packed
from gluonlab.collectives.synthesis.lanes import lanes_of
from gluonlab.collectives.topology import fully_connected, make_topology


@examples(40)
@given(meshes())
def test_rings_fit_on_the_lanes_together_and_no_other_ring_fits_beside_them(topology):
    lanes, p = lanes_of(topology), topology.world_size
    rings = packed(lanes)
    used = Counter((ring[place], ring[(place + 1) % p]) for ring in rings for place in range(p))
    left = {wire.pairs[0]: wire.lanes - used.pop(wire.pairs[0], 0) for wire in lanes.wires}
    assert not used and min(left.values()) >= 0
    assert all(sorted(ring) == list(range(p)) for ring in rings)
    for others in permutations(range(1, p)):
        ring = (0, *others)
        hops = [(ring[place], ring[(place + 1) % p]) for place in range(p)]
        assert min(left.get(hop, 0) for hop in hops) == 0


@given(meshes())
@pytest.mark.long
def test_its_allreduce_is_right_and_not_below_the_floor(topology):
    schedule = multi_ring(topology)
    assert keeps_promise(schedule)
    assert len(schedule.steps) == 2 * (topology.world_size - 1)
    for size in (0, 10**6):
        assert price(schedule, topology, size).seconds >= floor_of(topology).seconds(size) - 1e-12


@pytest.mark.parametrize("p, rings", [(3, 2), (5, 4), (7, 6)])
def test_devices_that_are_all_neighbours_use_every_link_if_they_are_a_prime(p, rings):
    topology = fully_connected(p, 1e-5, 1e9)
    assert len(packed(lanes_of(topology))) == rings
    seconds = price(multi_ring(topology), topology, 1e8).seconds
    assert seconds == pytest.approx(2 * (p - 1) * (1e-5 + 1e8 / rings / p / 1e9))


def test_a_p3_16xlarge_carries_six_rings():
    topology = make_topology("p3.16xlarge")
    assert len(packed(lanes_of(topology))) == 6
    assert price(multi_ring(topology), topology, 1e8).seconds == pytest.approx(1598.3e-6, rel=1e-4)
    assert multi_ring(make_topology("p3.2xlarge")).steps == ()


@pytest.mark.parametrize(
    "topology", [make_topology("p3.16xlarge", 5), make_topology("g4dn.12xlarge*2")]
)
def test_where_fast_links_form_no_ring_it_is_the_best_single_one(topology):
    schedule = multi_ring(topology)
    assert keeps_promise(schedule) and schedule.chunks == topology.world_size
    one = make_schedule("ring", topology.world_size).placed(topology.ring_order())
    for size in (0, 10**8):
        same, other = (price(each, topology, size).seconds for each in (one, schedule))
        assert same == pytest.approx(other)


def test_a_search_for_rings_that_do_not_exist_ends():
    """Two sets of twelve, all neighbours, and one link between: 11! ways lead to the link."""
    topology = cliques(12)
    assert packed(lanes_of(topology)) == []
    assert multi_ring(topology).chunks == 24


@given(unlike())
@pytest.mark.long
def test_speeds_that_all_differ_make_few_rings_no_dearer_than_the_single_one(topology):
    schedule, p = multi_ring(topology), topology.world_size
    assert keeps_promise(schedule) and schedule.chunks <= MOST_AT_ONCE * p
    single = make_schedule("ring", p).placed(topology.ring_order())
    most, least = (price(each, topology, 2**30).seconds for each in (single, schedule))
    assert least <= most * (1 + 1e-9)


def test_the_rings_of_many_devices_are_a_schedule_of_bounded_size():
    topology = fully_connected(128, 1e-5, 1e9)
    rings = packed(lanes_of(topology))
    assert 0 < 2 * 127 * 128 * len(rings) <= MOST_TRANSFERS
