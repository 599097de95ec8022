"""The schedules that come with the package: right, cheap, and found whatever devices' numbers."""

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.covering import long_cases
from support.examples import examples
from support.schedule_reference import has_correct_sums

from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.collectives.cost_model import find_best_order, price, prices
from gluonlab.collectives.lower_bounds import floor_of
from gluonlab.collectives.named_topologies import make_topology, switch
from gluonlab.collectives.synthesis import precomputed_schedules
from gluonlab.collectives.synthesis.flow_network import make_flow_network
from gluonlab.collectives.topology_aware import make_for_links
from gluonlab.errors import ScheduleError

MACHINES = ["p3.8xlarge", "p3.16xlarge", "p4d.24xlarge", "g4dn.12xlarge"]
FILES = sorted(precomputed_schedules.FOLDER.glob("*.json"))


def made_for(topology):
    return make_for_links(precomputed_schedules.SYNTHESIZED, topology, topology.world_size)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_stored_schedule_leaves_each_contribution_once_everywhere(path):
    """Also cut into a reduce-scatter and an all-gather."""
    for found in precomputed_schedules.read_schedules(path).front:
        scatter, gather = precomputed_schedules.split_halves(found.schedule)
        assert all(map(has_correct_sums, (found.schedule, scatter, gather)))
        assert scatter.transfers + gather.transfers == found.schedule.transfers


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_rounds_are_those_of_the_busiest_wires_and_not_below_the_bound(path):
    held = precomputed_schedules.read_schedules(path)
    for found in held.front:
        rounds = 0
        for step in found.schedule.steps:
            chunks = Counter((t.src, t.dst) for t in step)
            assert set(chunks) <= set(held.network.pairs)
            rounds += max(
                -(-sum(chunks[pair] for pair in wire.pairs) // wire.lanes) for wire in held.network.shared_links
            )
            for wire in held.network.shared_links:
                assert len(wire.pairs) == 1 or sum(pair in chunks for pair in wire.pairs) <= 1
        of_part = rounds * held.network.world_size / found.schedule.chunks
        assert of_part <= found.rounds + 1e-9 and of_part >= found.bound - 1e-6
    ordered = [(len(found.schedule.steps), -found.rounds) for found in held.front]
    assert ordered == sorted(ordered)


@pytest.mark.parametrize("name", MACHINES)
def test_each_machine_has_schedules_no_dearer_than_the_algorithms(name):
    topology = make_topology(name)
    assert precomputed_schedules.find_stored_schedules(topology)
    every = [algorithm(topology.world_size) for algorithm in ALGORITHMS.values()]
    placed = [schedule.placed(find_best_order(schedule, topology)) for schedule in every]
    made, sizes = made_for(topology), [4**power * 1024 for power in range(11)]
    others = [[each.seconds for each in prices(one, topology, sizes)] for one in placed]
    for size, *of_size in zip(sizes, *others):
        lowest = price(made.cheapest(size), topology, size).seconds
        assert lowest <= min(of_size) * (1 + 1e-9)


def test_a_p3_16xlarge_is_within_15_percent_of_the_floor_at_every_size():
    topology = make_topology("p3.16xlarge")
    floor, made = floor_of(topology), made_for(topology)
    for exponent in np.arange(10, 30.01, 0.125):
        size = 2**exponent
        seconds = price(made.cheapest(size), topology, size).seconds
        assert floor.seconds(size) <= seconds <= 1.15 * floor.seconds(size)


@examples(25)
@given(st.sampled_from(["p3.8xlarge", "p3.16xlarge", "p4d.24xlarge"]), st.data())
def test_devices_may_have_other_numbers(name, data):
    machine = make_topology(name)
    order = data.draw(st.permutations(range(machine.world_size)))
    topology = machine.subset(order)
    assert precomputed_schedules.find_stored_schedules(topology)
    both = [(each, made_for(each)) for each in (machine, topology)]
    for size in (1024, 10**8):
        same, other = (price(made.cheapest(size), each, size) for each, made in both)
        assert other.seconds == pytest.approx(same.seconds, rel=1e-9)


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8, *long_cases(4, 6, 7)])
def test_links_without_schedules_of_their_own_get_those_of_a_switch(world_size):
    schedule = made_for(make_topology("pcie", world_size)).cheapest(10**6)
    assert has_correct_sums(schedule) and schedule.world_size == world_size
    ports, fewest = switch(world_size, 1e-5, 1e9), (world_size - 1).bit_length()
    seconds = price(made_for(ports).cheapest(1e6), ports, 1e6).seconds
    assert seconds == pytest.approx(2 * fewest * 1e-5 + 2 * (world_size - 1) / world_size * 1e-3)


def test_more_devices_than_there_are_files_for_are_one_line():
    with pytest.raises(ScheduleError, match=r"16 devices of p2.16xlarge: there are some for .*p3"):
        made_for(make_topology("p2.16xlarge"))


@examples(25)
@given(st.sampled_from(FILES))
def test_a_file_that_is_written_is_read_as_it_was(tmp_path_factory, path):
    held = precomputed_schedules.read_schedules(path)
    copy = tmp_path_factory.mktemp("copy") / "copy.json"
    copy.write_text(precomputed_schedules.to_file_text(held.machines, held.network, held.front))
    again = precomputed_schedules.read_schedules(copy)
    assert again == held and json.loads(path.read_text())["devices"] == held.network.world_size


def test_lanes_of_hosts_are_refused():
    with pytest.raises(ScheduleError, match=r"differ in latency.*within one host"):
        make_flow_network(make_topology("p3.16xlarge*2"))
