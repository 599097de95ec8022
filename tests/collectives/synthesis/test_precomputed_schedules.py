"""The schedules that come with the package: right, cheap, and for any order of devices."""

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
from gluonlab.collectives.cost_model import estimate_cost, estimate_costs, find_best_order
from gluonlab.collectives.lower_bounds import find_lower_bound
from gluonlab.collectives.named_topologies import make_topology, switch
from gluonlab.collectives.synthesis import precomputed_schedules
from gluonlab.collectives.synthesis.flow_network import make_flow_network
from gluonlab.collectives.topology_aware import make_for_links
from gluonlab.errors import ScheduleError

MACHINES = ["p3.8xlarge", "p3.16xlarge", "p4d.24xlarge", "g4dn.12xlarge"]
FILES = sorted(precomputed_schedules.FOLDER.glob("*.json"))


def make_choice(topology):
    return make_for_links(precomputed_schedules.SYNTHESIZED, topology, topology.world_size)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_stored_schedules_and_their_halves_are_right_and_their_rounds_are_those_of_the_busiest_links(path):
    stored = precomputed_schedules.read_schedules(path)
    network = stored.network
    for entry in stored.front:
        halves = precomputed_schedules.split_halves(entry.schedule)
        assert all(map(has_correct_sums, (entry.schedule, *halves)))
        assert sum(half.transfers for half in halves) == entry.schedule.transfers
        rounds = 0
        for step in entry.schedule.steps:
            chunks = Counter((t.src, t.dst) for t in step)
            assert set(chunks) <= set(network.pairs)
            rounds += max(-(-sum(chunks[pair] for pair in link.pairs) // link.lanes) for link in network.shared_links)
            for link in network.shared_links:
                assert len(link.pairs) == 1 or sum(pair in chunks for pair in link.pairs) <= 1
        per_part = rounds * network.world_size / entry.schedule.chunks
        assert entry.bound - 1e-6 <= per_part <= entry.rounds + 1e-9
    order = [(len(entry.schedule.steps), -entry.rounds) for entry in stored.front]
    assert order == sorted(order)


@pytest.mark.parametrize("name", MACHINES)
def test_each_machine_has_schedules_no_dearer_than_the_algorithms(name):
    topology = make_topology(name)
    assert precomputed_schedules.find_stored_schedules(topology)
    schedules = [algorithm(topology.world_size) for algorithm in ALGORITHMS.values()]
    placed = [schedule.placed(find_best_order(schedule, topology)) for schedule in schedules]
    sizes = [4**power * 1024 for power in range(11)]
    others = zip(*([priced.seconds for priced in estimate_costs(schedule, topology, sizes)] for schedule in placed))
    for size, seconds in zip(sizes, others):
        result = estimate_cost(make_choice(topology).cheapest(size), topology, size).seconds
        assert result <= min(seconds) * (1 + 1e-9)


def test_a_p3_16xlarge_is_within_15_percent_of_the_lower_bound_at_every_size():
    topology = make_topology("p3.16xlarge")
    bound, choice = find_lower_bound(topology), make_choice(topology)
    for size in 2 ** np.arange(10, 30.01, 0.125):
        seconds = estimate_cost(choice.cheapest(size), topology, size).seconds
        assert bound.seconds(size) <= seconds <= 1.15 * bound.seconds(size)


@examples(25)
@given(st.sampled_from(["p3.8xlarge", "p3.16xlarge", "p4d.24xlarge"]), st.data())
def test_devices_may_have_other_numbers(name, data):
    machine = make_topology(name)
    topology = machine.subset(data.draw(st.permutations(range(machine.world_size))))
    assert precomputed_schedules.find_stored_schedules(topology)
    choices = [(machine, make_choice(machine)), (topology, make_choice(topology))]
    for size in (1024, 10**8):
        first, second = (estimate_cost(choice.cheapest(size), each, size).seconds for each, choice in choices)
        assert first == pytest.approx(second, rel=1e-9)


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8, *long_cases(4, 6, 7)])
def test_links_without_schedules_of_their_own_get_those_of_a_switch(world_size):
    schedule = make_choice(make_topology("pcie", world_size)).cheapest(10**6)
    assert has_correct_sums(schedule) and schedule.world_size == world_size
    ports, fewest = switch(world_size, 1e-5, 1e9), (world_size - 1).bit_length()
    seconds = estimate_cost(make_choice(ports).cheapest(1e6), ports, 1e6).seconds
    assert seconds == pytest.approx(2 * fewest * 1e-5 + 2 * (world_size - 1) / world_size * 1e-3)


def test_more_devices_than_there_are_files_for_are_one_line():
    with pytest.raises(ScheduleError, match=r"for the 16 devices of p2.16xlarge: choose .*p3"):
        make_choice(make_topology("p2.16xlarge"))


@examples(25)
@given(st.sampled_from(FILES))
def test_a_file_that_is_written_is_read_as_it_was(tmp_path_factory, path):
    stored = precomputed_schedules.read_schedules(path)
    copy = tmp_path_factory.mktemp("copy") / "copy.json"
    copy.write_text(precomputed_schedules.to_file_text(stored.machines, stored.network, stored.front))
    assert precomputed_schedules.read_schedules(copy) == stored
    assert json.loads(path.read_text())["devices"] == stored.network.world_size


def test_a_flow_network_of_several_hosts_is_refused():
    with pytest.raises(ScheduleError, match=r"messages have different latencies, for example within and between hosts"):
        make_flow_network(make_topology("p3.16xlarge*2"))
