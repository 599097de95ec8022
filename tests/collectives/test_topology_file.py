"""Topology files: read as written, shortest routes, and mistakes in one line."""

import math
import re
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.topologies import link_between, ordered_pairs, read_topology_content, topologies

from gluonlab.collectives.named_topologies import TOPOLOGIES, make_topology, nvswitch, p3_16xlarge
from gluonlab.collectives.topology import Link, Route, Topology
from gluonlab.collectives.topology_file import MAX_FILE_BYTES, Wire, read_topology, shortest_routes, write_topology
from gluonlab.errors import OutputError, ScheduleError
from gluonlab.plain_text import one_line


@pytest.mark.parametrize("name", [*TOPOLOGIES, "p3.16xlarge*3", "p4d.24xlarge*2"])
def test_every_known_machine_is_read_as_it_was_written(name, tmp_path):
    topology, file = make_topology(name), tmp_path / "m.json"
    write_topology(topology, file)
    assert read_topology(file) == make_topology(str(file)) == topology
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert read_topology(file) == topology  # with a byte order mark


@examples(15, 30)
@given(topologies(), st.data())
def test_every_topology_and_every_part_of_it_is_read_as_it_was_written(tmp_path_factory, whole, data):
    file = tmp_path_factory.getbasetemp() / "drawn.json"
    devices = data.draw(st.permutations(range(whole.world_size)))
    part = whole.subset(devices[: data.draw(st.integers(1, whole.world_size))])
    topology = data.draw(st.sampled_from([whole, part]))
    write_topology(topology, file)
    assert read_topology(file) == topology


def test_topologies_that_a_file_cannot_hold_are_refused(tmp_path):
    wires = {(0, 1): Route((Link("wire", 1e9),), 0.0), (1, 0): Route((Link("wire", 2e9),), 0.0)}

    def make_equal_routes(name, speed, latency_s):
        return Topology("t", 2, dict.fromkeys(wires, Route((Link(name, speed),), latency_s)))

    cases = {
        "two links are called 'wire'": Topology("t", 2, wires),
        r"is not valid JSON \(Infinity is not a valid JSON number\)": make_equal_routes("w", math.inf, 0.0),
        "Infinity is no": make_equal_routes("w", 1e9, math.inf),
        r"name is 'a\\nb': it must be text on one line, with at most 100 characters": make_equal_routes(
            "a\nb", 1e9, 0.0
        ),
        "list every device, 0 to 1, exactly once": replace(make_equal_routes("w", 1e9, 0.0), groups=((0,),)),
        "devices is 257: it must be a whole number from 1 to 256": nvswitch(257),
    }
    for words, topology in cases.items():
        with pytest.raises(ScheduleError, match=words):
            write_topology(topology, tmp_path / "m.json")
    with pytest.raises(OutputError):
        write_topology(nvswitch(2), tmp_path / "nowhere" / "m.json")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def read(tmp_path):
    return partial(read_topology_content, tmp_path / "m.json")


def test_a_cube_mesh_by_hand_has_the_routes_of_the_known_machine(read):
    """Other code makes the known machine, from the published matrix."""
    pairs = {2: "03 04 12 15 23 47 56 67", 1: "01 02 13 26 37 45 46 57"}
    links = [link_between(*map(int, pair), lanes=lanes) for lanes in pairs for pair in pairs[lanes].split()]
    links += [link_between(gpu, f"switch {gpu // 2}", bytes_per_s=10e9) for gpu in range(8)]
    links += [link_between(f"switch {s}", f"CPU {s // 2}", bytes_per_s=10e9) for s in range(4)]
    links.append(link_between("CPU 0", "CPU 1", bytes_per_s=10e9))
    switches = [*(f"switch {s}" for s in range(4)), "CPU 0", "CPU 1"]
    written = read(
        {"devices": 8, "latency_s": 1e-5, "lane_bytes_per_s": 25e9, "switches": switches,
         "links": links, "reduce_bytes_per_s": 3e11, "groups": [[0, 1, 2, 3], [4, 5, 6, 7]]}
    )  # fmt: skip
    known = p3_16xlarge()
    assert written.name == "m" and written.groups == known.groups

    def shape(topology):
        """Return speeds, shared links and latencies, without names."""
        routes = topology.routes
        links = {pair: set(route.links) for pair, route in routes.items()}
        speeds = {pair: [link.bytes_per_s for link in routes[pair].links] for pair in routes}
        shared = {pairs for pairs in product(routes, repeat=2) if links[pairs[0]] & links[pairs[1]]}
        return speeds, shared, {route.latency_s for route in routes.values()}

    assert shape(written) == shape(known)
    assert written.ring_order() == known.ring_order()


def test_a_switch_with_a_speed_is_shared_by_all_routes_over_it(read):
    bus = {"name": "memory", "bytes_per_s": 20e9}
    links = [link_between(device, "memory", bytes_per_s=12e9) for device in range(3)]
    routes = read({"devices": 3, "latency_s": 0, "switches": [bus], "links": links}).routes
    assert set.intersection(*[set(route.links) for route in routes.values()]) == {Link("memory", 20e9)}
    assert [link.name for link in routes[2, 0].links] == ["2 to memory", "memory", "memory to 0"]


def test_routes_latencies_lanes_and_one_direction_as_written(read):
    topology = read(
        {"name": "pair", "devices": 2, "latency_s": 1e-5, "gpu": "T4", "hosts": [[1], [0]],
         "links": [{"name": "up", "from": 0, "to": 1, "lanes": 3, "lane_bytes_per_s": 2},
                   {"from": 1, "to": 0, "bytes_per_s": 5, "latency_s": 3e-5},
                   {"name": "bus", "bytes_per_s": 4}],
         "routes": [{"from": 0, "to": 1, "links": ["up", "bus"], "latency_s": 2e-5}]}
    )  # fmt: skip
    assert topology.routes == {
        (0, 1): Route((Link("up", 6.0), Link("bus", 4.0)), 2e-5),
        (1, 0): Route((Link("1 to 0", 5.0),), 3e-5),
    }
    assert (topology.name, topology.gpu, topology.hosts) == ("pair", "T4", ((1,), (0,)))
    assert topology.reduce_bytes_per_s == topology.shared_reduce_bytes_per_s == math.inf
    assert topology.subset([1, 0]).gpu == "T4"
    assert read({"devices": 1}).routes == {}


@st.composite
def wired(draw):
    """(devices, wires): between devices and up to four switches, some with a speed."""
    devices, switches = draw(st.integers(2, 4)), draw(st.integers(0, 4))
    nodes = [*range(devices), *(f"s{number}" for number in range(switches))]
    ends = draw(st.lists(st.tuples(*[st.sampled_from(nodes)] * 2), max_size=16, unique=True))
    speeds = st.sampled_from([1.0, 2.0, 3.0])
    wires = [Wire(a, b, Link(f"{a} to {b}", draw(speeds)), draw(speeds)) for a, b in ends if a != b]
    return devices, wires, {node: Link(node, draw(speeds)) for node in nodes[devices:][::2]}


@examples(60, 150)
@given(wired())
def test_no_way_through_switches_is_shorter_or_as_short_and_wider(drawn):
    """Of all ways, which the reference finds one by one, by depth."""
    devices, wires, buses = drawn

    def paths(node, dst, passed):
        for wire in wires:
            if wire.src != node or wire.dst in passed:
                continue
            links = [wire.link, *([buses[wire.dst]] if wire.dst in buses else [])]
            if wire.dst == dst:
                yield [(links, wire)]
            elif isinstance(wire.dst, str):
                for rest in paths(wire.dst, dst, {*passed, wire.dst}):
                    yield [(links, wire), *rest]

    routes = shortest_routes(devices, wires, buses)
    for src, dst in ordered_pairs(devices):
        found = list(paths(src, dst, {src}))
        assert ((src, dst) in routes) == bool(found)
        if found:
            route = routes[src, dst]
            every = [(len(path), -min(link.bytes_per_s for links, _ in path for link in links)) for path in found]
            hops = sum(link not in buses.values() for link in route.links)
            assert (hops, -route.bytes_per_s) == min(every)
            assert any(
                route.links == tuple(link for links, _ in path for link in links)
                and route.latency_s == max(wire.latency_s for _, wire in path)
                for path in found
            )


def test_the_example_in_the_documentation_is_correct(tmp_path):
    page = Path(__file__).resolve().parents[2] / "docs" / "topologies.md"
    (example,) = re.findall(r'^```json\n(\{"name": .*?)^```', page.read_text(), re.M | re.S)
    (tmp_path / "m.json").write_text(example)
    found = read_topology(tmp_path / "m.json")
    assert (found.name, found.world_size, found.gpu) == ("two pairs", 4, "V100")
    assert found.routes[0, 1] == Route((Link("0 to 1", 50e9),), 10e-6)
    across = {(0, 2): (6e9, 10e-6), (2, 0): (12e9, 20e-6)}
    for pair, expected in across.items():
        assert (found.routes[pair].bytes_per_s, found.routes[pair].latency_s) == expected
    assert [link.name for link in found.routes[0, 2].links] == [
        "0 to left", "left to host", "host", "slow way down", "right to 2",
    ]  # fmt: skip


TWO = {"devices": 2, "latency_s": 1e-5, "links": [link_between(0, 1, bytes_per_s=1e9)]}


def with_link(**changes):
    return {**TWO, "links": [{**link_between(0, 1, bytes_per_s=1e9), **changes}]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is not valid JSON"),
        ("{", "is not valid JSON"),
        ('{"devices": NaN}', r"is not valid JSON \(NaN is not a valid JSON number\)"),
        ('{"devices": 2, "devices": 3}', "the key 'devices' appears twice"),
        ("[" * 100_000, "is not valid JSON"),
        ("[]", r"a list of 0 is not a JSON object"),
        ({}, "devices is missing: add a whole number from 1 to 256"),
        ({**TWO, "device": 2}, r"unknown key 'device': choose .* \(did you mean 'devices'\?\)"),
        ({**TWO, "devices": 257}, "devices is 257: it must be a whole number from 1 to 256"),
        ({**TWO, "devices": 2.0}, "devices is 2\\.0: it must be a whole number from 1 to 256"),
        ({**TWO, "devices": True}, "devices is True: it must be a whole number from 1 to 256"),
        ({**TWO, "format": 2}, "format is 2: it must be a whole number from 1 to 1"),
        ({**TWO, "name": "a\nb"}, r"name is 'a\\nb': it must be text on one line, with at most 100 characters"),
        ({**TWO, "note": 5}, "note is 5: it must be text on one line, with at most 4000 characters"),
        ({**TWO, "latency_s": -1}, "latency_s is -1: it must be a number from 0 to 1e\\+06, such as 1e-5"),
        ({"devices": 2, "links": TWO["links"]}, "latency_s is missing: add a number from 0 to 1e\\+06"),
        ('{"devices": 2, "latency_s": 1e999, "links": [{"between": [0, 1], "bytes_per_s": 1}]}',
         "latency_s is inf: it must be a number from 0 to 1e\\+06, such as 1e-5"),
        ({**TWO, "reduce_bytes_per_s": 0}, "reduce_bytes_per_s is 0: it must be a number from 1 to 1e\\+18, such"),
        ({**TWO, "links": 3}, r"links is 3: it must be a list, \[\.\.\.\]"),
        ({**TWO, "links": [3]}, r"links\[0\]: 3 is not a JSON object"),
        ({"devices": 2, "latency_s": 0}, "there is no route from device 0 to device 1"),
        (with_link(bytes_per_s=-5), r"links\[0\]: bytes_per_s is -5: it must be a number from 1 to 1e\+18, such"),
        (with_link(bytes_per_s=10**400), r"bytes_per_s is 1000.*: it must be a number from 1 to 1e"),
        (with_link(bytes_per_s="25e9"), r"bytes_per_s is '25e9': it must be a number from 1 to 1e\+18, such as 25e9"),
        (with_link(byte_per_s=1), r"links\[0\]: unknown key 'byte_per_s': .*'bytes_per_s'\?\)"),
        (with_link(lanes=2), "bytes_per_s and \"lanes\" contradict each other"),
        (with_link(lane_bytes_per_s=2), "lane_bytes_per_s is only for links with .lanes.: add the number of lanes"),
        (with_link(between=[0, 2]), r"links\[0\]: between\[1\]: 2 is not a valid device: choose 0 to 1"),
        (with_link(between=[0, -1]), r"-1 is not a valid device: choose 0 to 1"),
        (with_link(between=[0, "1"]), "write device numbers without quotes"),
        (with_link(between=[0]), "use \"between\" with two ends, such as \\[0, 1\\], and without \"from\" and \"to\""),
        (with_link(between=[0, 0]), "the link from 0 to 0 has the same two ends"),
        (with_link(**{"from": 0}), "and without \"from\" and \"to\"$"),
        ({**TWO, "links": [*TWO["links"], {"from": 0, "to": 1, "bytes_per_s": 1}]},
         r"links\[1\]: the link from 0 to 1 is listed twice: list it once, with more lanes"),
        ({**TWO, "links": [*TWO["links"], {"name": "0 to 1", "bytes_per_s": 1}]},
         r"links\[1\]: two links are called '0 to 1'"),
        ({**TWO, "links": [{"from": 0, "bytes_per_s": 1}]}, "to is missing"),
        ({**TWO, "links": [{"bytes_per_s": 1}]}, "name is missing: add one, or the link's ends, \"from\" and \"to\""),
        ({**TWO, "links": [{"name": " ", "bytes_per_s": 1}]}, "name is ' '"),
        ({**TWO, "links": [link_between(0, 1, lanes=1)]}, "lane_bytes_per_s is missing"),
        ({**TWO, "links": [link_between(0, 1, lanes=10**6, lane_bytes_per_s=1e308)]},
         r"lane_bytes_per_s is 1e\+308: it must be a number from 1 to 1e\+18, such as 25e9"),
        ({**TWO, "links": [link_between(0, 1, lanes=10**6, lane_bytes_per_s=1e18)]},
         r"1000000 lanes have 1e\+24 bytes/s together"),
        ({**TWO, "links": [{"name": "a", "bytes_per_s": 1, "latency_s": 1}]}, "latency_s is only for routes, and"),
        ({**TWO, "switches": ["a", "a"]}, r"switches\[1\]: two switches are called 'a'"),
        ({**TWO, "switches": [5]}, r"switches\[0\]: 5 is not a JSON object"),
        ({**TWO, "switches": ["PCIe"], "links": [link_between(0, "PCI", bytes_per_s=1)]},
         "unknown switch 'PCI': choose PCIe; write device numbers without quotes"),
        ({**TWO, "routes": [{"from": 0, "to": 1, "links": ["0 to 2"]}]},
         r"routes\[0\]: links\[0\]: unknown link '0 to 2': choose 0 to 1, 1 to 0 \(did you"),
        ({**TWO, "routes": [{"from": 0, "to": 1, "links": []}]}, "the route from 0 to 1 has 0 links"),
        ({**TWO, "routes": [{"from": 0, "to": 1, "links": [4]}]}, "4 is not the name of a link"),
        ({**TWO, "routes": [{"from": 0, "to": 1, "links": ["0 to 1"]}] * 2},
         r"routes\[1\]: there is a second route from 0 to 1"),
        ({**TWO, "groups": [[0]]}, "groups: list every device, 0 to 1, exactly once, such as \\[\\[0, 1\\],"),
        ({**TWO, "groups": [[0, 1], [1]]}, "groups: list every device, 0 to 1, exactly once, such as \\[\\[0,"),
        ({**TWO, "hosts": [[0, 1], []]}, r"hosts\[1\]: a list of 0 is not a list of devices, such as \[0, 1\]"),
        ({**TWO, "hosts": [[0, 5]]}, r"hosts\[0\]: 5 is not a valid device: choose 0 to 1"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_the_file_the_place_and_what_is_possible(read, content, words):
    with pytest.raises(ScheduleError, match=words) as error:
        read(content)
    assert str(error.value).startswith("topology ") and "m.json" in str(error.value)
    assert one_line(str(error.value)) == str(error.value)


def test_unreadable_and_invalid_files_are_refused(tmp_path):
    large, binary = tmp_path / "large.json", tmp_path / "binary.json"
    with large.open("wb") as file:
        file.truncate(2**30)
    binary.write_bytes(b"\xff\xfe\0")
    for file, words in (
        (tmp_path / "no.json", r"no.json cannot be read \(No such file"),
        (tmp_path, r"cannot be read \(Is a directory\)"),
        (large, f"is larger than the maximum of {MAX_FILE_BYTES:,} bytes"),
        (binary, "is not valid JSON"),
    ):
        with pytest.raises(ScheduleError, match=words):
            read_topology(file)


def test_a_file_takes_the_place_of_a_name(tmp_path):
    file = str(tmp_path / "m.JSON")
    write_topology(p3_16xlarge(), file)
    assert make_topology(file, 3) == make_topology("p3.16xlarge", 3)
    with pytest.raises(ScheduleError, match=r"p3\.16xlarge has 8 devices, but 9 are requested: choose 1 to 8"):
        make_topology(file, 9)
    with pytest.raises(ScheduleError, match=r"under \"hosts\": use .*m.JSON without"):
        make_topology(f"{file}*2")
    with pytest.raises(ScheduleError, match=r"unknown topology 'm'"):
        make_topology("m")
