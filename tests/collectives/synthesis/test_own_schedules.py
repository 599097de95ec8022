"""Schedules for a user's topology, in a file that is also a topology."""

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.lanes import mesh_topologies
from support.schedule_reference import has_correct_sums

from gluonlab.collectives import topology_aware
from gluonlab.collectives.algorithms import make_schedule
from gluonlab.collectives.cost_model import estimate_cost
from gluonlab.collectives.named_topologies import make_topology
from gluonlab.collectives.synthesis import precomputed_schedules
from gluonlab.collectives.synthesis.schedule_search import SynthesizedSchedule
from gluonlab.collectives.topology import Link, Route, Topology, all_pairs
from gluonlab.collectives.topology_aware import make_for_links
from gluonlab.collectives.topology_file import read_topology, schedules_file_text, write_topology
from gluonlab.errors import ScheduleError


def make_star(world_size, hub):
    """Return a schedule that sums on one device and copies from there."""
    order = [hub, *(rank for rank in range(world_size) if rank != hub)]
    placed = replace(make_schedule("star", world_size).placed(order), name="synthesized")
    return SynthesizedSchedule(placed, 99.0, 1.0)


def make_unequal_topology():
    """Return a machine whose wires all differ."""
    speed = random.Random(1).uniform
    routes = {(a, b): Route((Link(f"{a} to {b}", speed(1e9, 2e9)),), 1e-5) for a, b in all_pairs(5)}
    return Topology("five", 5, routes, 1e11, gpu="V100")


@pytest.fixture
def file(tmp_path):
    """Return ``file(change)``, which writes a file with schedules after a change of its content."""

    def write(change=lambda content: None):
        content = json.loads(schedules_file_text(make_unequal_topology(), [make_star(5, 3)]))
        change(content)
        (tmp_path / "f.json").write_text(json.dumps(content), encoding="utf-8")
        return tmp_path / "f.json"

    return write


def test_a_file_of_schedules_is_the_topology_that_they_were_found_for(file):
    path, topology = file(), make_unequal_topology()
    read = make_topology(str(path))
    assert read.schedules == (make_star(5, 3).schedule,)
    assert (read.routes, read.name, read.gpu) == (topology.routes, "five", "V100")
    choice = make_for_links("synthesized", read, 5)
    assert choice.schedules == list(read.schedules) != precomputed_schedules.choose_schedules(topology)
    assert read.schedules[0] in topology_aware.candidate_schedules(read)
    with pytest.raises(ScheduleError, match="a topology file cannot contain schedules"):
        write_topology(read, path.with_name("again.json"))


@given(st.permutations(range(5)))
def test_devices_in_any_order_keep_the_schedules_and_fewer_devices_lose_them(order):
    star = make_star(5, 3).schedule
    topology = replace(make_unequal_topology(), schedules=(star,))
    [schedule] = topology.subset(order).schedules
    assert has_correct_sums(schedule) and schedule.owner == (order.index(3),)
    seconds = estimate_cost(schedule, topology.subset(order), 1e6).seconds
    assert seconds == pytest.approx(estimate_cost(star, topology, 1e6).seconds)
    assert topology.subset(order[:4]).schedules == ()


@examples(40)
@given(mesh_topologies(most=4))
def test_a_file_of_found_schedules_is_read_as_written(tmp_path_factory, topology):
    front = [make_star(topology.world_size, 0)]
    path = tmp_path_factory.mktemp("own") / "f.json"
    path.write_text(schedules_file_text(topology, front), encoding="utf-8")
    assert list(read_topology(path).schedules) == [entry.schedule for entry in front]
    assert precomputed_schedules.read_schedules(path).front == tuple(front)


MISTAKES = [
    (lambda content: content["front"][0]["steps"][0]["add"].pop("0>3"),
     r"f.json: synthesized.*rank \d ends with chunk 0 without the contribution of rank \d"),
    (lambda content: content["topology"]["links"][0].update(bytes_per_s=1e9 / 2),
     "the schedules were computed for different links"),
    (lambda content: content.pop("topology"), "the file contains schedules, but no topology"),
    (lambda content: content.update(devices=4), "the schedules are for 4 devices, but the topology has 5"),
    (lambda content: content.update(devices=10**12), "are for 1000000000000 devices"),
    (lambda content: content.pop("wires"), "is not a valid file of schedules"),
    (lambda content: content.update(front=3), "is not a valid file of schedules"),
    (lambda content: content.update(format="x"), "format is 'x'|unknown key"),
    (lambda content: content["topology"].update(latency_s=-1), "f.json: topology: latency_s is -1"),
    (lambda content: content["front"][0].update(owner=[9]), "list one of the 5 ranks for each of the 1 chunks"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), MISTAKES)
def test_a_changed_file_of_schedules_is_refused(file, change, message):
    path = file(change)
    with pytest.raises(ScheduleError, match=message) as error:
        make_topology(str(path))
    assert "\n" not in str(error.value)


TEXTS = [
    *(path.read_text() for path in sorted(precomputed_schedules.FOLDER.glob("*.json"))[:3]),
    schedules_file_text(make_topology("g4dn.12xlarge", 3), [make_star(3, 1)]),
]


@examples(80)
@given(st.data())
def test_a_damaged_file_is_an_error_of_one_line_or_has_right_schedules(tmp_path_factory, data):
    text = data.draw(st.sampled_from(TEXTS))
    at = data.draw(st.integers(0, len(text) - 1))
    damaged = text[:at] + data.draw(st.sampled_from(["", "9", "-", '"', "x", "}"])) + text[at + 1 :]
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    path.write_text(damaged, encoding="utf-8")
    try:
        if text == TEXTS[-1]:
            schedules = read_topology(path).schedules
        else:
            schedules = [entry.schedule for entry in precomputed_schedules.read_schedules(path).front]
    except ScheduleError as error:
        assert "\n" not in str(error)
    else:
        assert all(map(has_correct_sums, schedules))
