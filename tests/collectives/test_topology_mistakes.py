"""Mistakes in a topology's file: one line with the file, the place, and what is possible."""

from functools import partial

import pytest
from support.topologies import both, read_content

from gluonlab.collectives.topology import make_topology, p3_16xlarge
from gluonlab.collectives.topology_file import LARGEST_BYTES, read_topology, write_topology
from gluonlab.errors import ScheduleError
from gluonlab.plain import one_line


@pytest.fixture
def read(tmp_path):
    return partial(read_content, tmp_path / "m.json")


TWO = {"devices": 2, "latency_s": 1e-5, "links": [both(0, 1, bytes_per_s=1e9)]}


def with_link(**changes):
    return {**TWO, "links": [{**both(0, 1, bytes_per_s=1e9), **changes}]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is no JSON"),
        ("{", "is no JSON"),
        ('{"devices": NaN}', r"is no JSON \(NaN is no number\)"),
        ('{"devices": 2, "devices": 3}', "the key 'devices' is there twice"),
        ("[" * 100_000, "is no JSON"),
        ("[]", r"a list of 0 is no object: give \{...\} with format, name"),
        ({}, "devices is missing: give a whole number, 1 to 256"),
        ({**TWO, "device": 2}, r"unknown key 'device': choose .* \(did you mean 'devices'\?\)"),
        ({**TWO, "devices": 257}, "devices is 257: give a whole number, 1 to 256"),
        ({**TWO, "devices": 2.0}, "devices is 2.0: give a whole number"),
        ({**TWO, "devices": True}, "devices is True: give a whole number"),
        ({**TWO, "format": 2}, "format is 2: give a whole number, 1 to 1"),
        ({**TWO, "name": "a\nb"}, "name is .*: give text on one line"),
        ({**TWO, "note": 5}, "note is 5: give text on one line"),
        ({**TWO, "latency_s": -1}, "latency_s is -1: give a number from 0 to 1e"),
        ({"devices": 2, "links": TWO["links"]}, "latency_s is missing: give a number from 0 to 1e"),
        ('{"devices": 2, "latency_s": 1e999, "links": [{"between": [0, 1], "bytes_per_s": 1}]}',
         "latency_s is inf: give a number from 0 to 1e"),
        ({**TWO, "reduce_bytes_per_s": 0}, "reduce_bytes_per_s is 0: give a number from 1 to 1e"),
        ({**TWO, "links": 3}, r"links is 3: give a list, \[...\]"),
        ({**TWO, "links": [3]}, r"links\[0\]: 3 is no object"),
        ({"devices": 2, "latency_s": 0}, "no way leads from device 0 to device 1: link them"),
        (with_link(bytes_per_s=-5), r"links\[0\]: bytes_per_s is -5: give a number from 1 to 1e"),
        (with_link(bytes_per_s=10**400), r"bytes_per_s is 1000.*: give a number from 1 to 1e"),
        (with_link(bytes_per_s="25e9"), r"bytes_per_s is '25e9': give a number from 1 to 1e"),
        (with_link(byte_per_s=1), r"links\[0\]: unknown key 'byte_per_s': .*'bytes_per_s'\?\)"),
        (with_link(lanes=2), "give bytes_per_s or lanes, not both"),
        (with_link(lane_bytes_per_s=2), "lane_bytes_per_s is for lanes"),
        (with_link(between=[0, 2]), r"links\[0\]: between\[1\]: 2 is no device: choose 0 to 1"),
        (with_link(between=[0, -1]), r"-1 is no device: choose 0 to 1"),
        (with_link(between=[0, "1"]), "'1' is none of the switches.*numbers without quotes"),
        (with_link(between=[0]), "between names two ends"),
        (with_link(between=[0, 0]), "the link from 0 to 0 leads nowhere"),
        (with_link(**{"from": 0}), "between names two ends"),
        ({**TWO, "links": [*TWO["links"], {"from": 0, "to": 1, "bytes_per_s": 1}]},
         r"links\[1\]: the link from 0 to 1 is the second one: give one more lanes"),
        ({**TWO, "links": [*TWO["links"], {"name": "0 to 1", "bytes_per_s": 1}]},
         r"links\[1\]: two links are called '0 to 1'"),
        ({**TWO, "links": [{"from": 0, "bytes_per_s": 1}]}, "to is missing: give a device's"),
        ({**TWO, "links": [{"bytes_per_s": 1}]}, "name is missing: give one, or a link's ends"),
        ({**TWO, "links": [{"name": " ", "bytes_per_s": 1}]}, "name is ' ': give one"),
        ({**TWO, "links": [both(0, 1, lanes=1)]}, "lane_bytes_per_s is missing"),
        ({**TWO, "links": [both(0, 1, lanes=10**6, lane_bytes_per_s=1e308)]},
         r"lane_bytes_per_s is 1e\+308: give a number from 1"),
        ({**TWO, "links": [both(0, 1, lanes=10**6, lane_bytes_per_s=1e18)]},
         r"1000000 lanes have 1e\+24 bytes/s together: 1e\+18 are the most"),
        ({**TWO, "links": [{"name": "a", "bytes_per_s": 1, "latency_s": 1}]},
         "latency_s is for links with ends"),
        ({**TWO, "switches": ["a", "a"]}, r"switches\[1\]: two switches are called 'a'"),
        ({**TWO, "switches": [5]}, r"switches\[0\]: 5 is no object"),
        ({**TWO, "switches": ["PCIe"], "links": [both(0, "PCI", bytes_per_s=1)]},
         "unknown switch 'PCI': choose PCIe; devices are numbers without quotes"),
        ({**TWO, "routes": [{"from": 0, "to": 1, "links": ["0 to 2"]}]},
         r"routes\[0\]: links\[0\]: unknown link '0 to 2': choose 0 to 1, 1 to 0 \(did you"),
        ({**TWO, "routes": [{"from": 0, "to": 1, "links": []}]}, "from 0 to 1 over 0 links"),
        ({**TWO, "routes": [{"from": 0, "to": 1, "links": [4]}]}, "4 is no link"),
        ({**TWO, "routes": [{"from": 0, "to": 1, "links": ["0 to 1"]}] * 2},
         r"routes\[1\]: it is the second one from 0 to 1"),
        ({**TWO, "groups": [[0]]}, "groups: give every device, 0 to 1, once"),
        ({**TWO, "groups": [[0, 1], [1]]}, "groups: give every device, 0 to 1, once"),
        ({**TWO, "hosts": [[0, 1], []]}, r"hosts\[1\]: a list of 0 is no list of devices"),
        ({**TWO, "hosts": [[0, 5]]}, r"hosts\[0\]: 5 is no device: choose 0 to 1"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_the_file_the_place_and_what_is_possible(read, content, words):
    with pytest.raises(ScheduleError, match=words) as error:
        read(content)
    assert str(error.value).startswith("topology ") and "m.json" in str(error.value)
    assert one_line(str(error.value)) == str(error.value)


def test_files_that_are_none_are_refused(tmp_path):
    with pytest.raises(ScheduleError, match=r"no.json cannot be read \(No such file"):
        make_topology(str(tmp_path / "no.json"))
    with pytest.raises(ScheduleError, match=r"cannot be read \(Is a directory\)"):
        read_topology(tmp_path)
    large = tmp_path / "large.json"
    with large.open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(ScheduleError, match=f"more than the {LARGEST_BYTES:,} bytes"):
        read_topology(large)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\0")
    with pytest.raises(ScheduleError, match="is no JSON"):
        read_topology(tmp_path / "binary.json")


def test_a_file_takes_the_place_of_a_name(tmp_path):
    file = str(tmp_path / "m.JSON")
    write_topology(p3_16xlarge(), file)
    assert make_topology(file, 3) == make_topology("p3.16xlarge", 3)
    with pytest.raises(ScheduleError, match=r"p3.16xlarge has 8 devices: choose 1 to 8, not 9"):
        make_topology(file, 9)
    with pytest.raises(ScheduleError, match=r"under hosts: give .*m.JSON alone"):
        make_topology(f"{file}*2")
    with pytest.raises(ScheduleError, match=r"unknown topology 'm': .* is a file, m.json"):
        make_topology("m")
