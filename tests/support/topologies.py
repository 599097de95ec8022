"""Random topologies with links, routes, groups and hosts, and topology files."""

import itertools
import json

from hypothesis import strategies as st

from gluonlab.collectives.topology import INFINITE, Link, Route, Topology
from gluonlab.collectives.topology_file import read_topology

SPEEDS = st.floats(1, 1e18) | st.sampled_from([25e9, 12e9, 10 / 3]) | st.integers(1, 10**18)
LATENCIES = st.sampled_from([0.0, 1e-5, 5e-5]) | st.floats(0, 1e6)
NAMES = st.text(st.characters(blacklist_categories=["C", "Z"]) | st.just(" "), min_size=1, max_size=8).filter(str.strip)


def ordered_pairs(world_size):
    return list(itertools.permutations(range(world_size), 2))


@st.composite
def device_partitions(draw, world_size):
    """Draw a partition of all devices into groups, in any order."""
    homes = draw(st.lists(st.integers(0, 2), min_size=world_size, max_size=world_size))
    order = draw(st.permutations(range(world_size)))
    parts = [tuple(device for device in order if homes[device] == home) for home in sorted(set(homes))]
    return tuple(parts)


@st.composite
def topologies(draw, most=5, speeds=SPEEDS, latencies=LATENCIES):
    """Draw a topology without infinitely fast links and without two links of one name."""
    world_size = draw(st.integers(1, most))
    names = draw(st.lists(NAMES, min_size=1, max_size=6, unique=True))
    links = st.sampled_from([Link(name, draw(speeds)) for name in names])
    routes = {
        pair: Route(tuple(draw(st.lists(links, min_size=1, max_size=4))), draw(latencies))
        for pair in ordered_pairs(world_size)
    }
    return Topology(
        draw(NAMES.map(str.strip)), world_size, routes, reduce_bytes_per_s=draw(st.just(INFINITE) | speeds),
        shared_reduce_bytes_per_s=draw(st.just(INFINITE) | speeds),
        groups=draw(st.just(()) | device_partitions(world_size)),
        note=draw(st.text(st.characters(blacklist_categories=["C", "Z"]), max_size=9)),
        hosts=draw(st.just(()) | device_partitions(world_size)), gpu=draw(st.sampled_from(["", "V100"])),
    )  # fmt: skip


def link_between(one, other, **more):
    """Return a link of a topology file in both directions."""
    return {"between": [one, other], **more}


def read_topology_content(file, content):
    """Write content, text or a JSON value, to a file; return the topology that it describes."""
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_topology(file)
