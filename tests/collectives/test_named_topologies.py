"""Topologies of known machines: the published tables, the best ring, and parts of a machine."""

import itertools
import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from gluonlab.collectives.named_topologies import TOPOLOGIES, make_topology, p3_16xlarge, pcie
from gluonlab.collectives.topology import (
    Link,
    Route,
    Topology,
    all_pairs,
    fully_connected,
    shared_memory_topology,
    switch,
)
from gluonlab.errors import ScheduleError

# nvidia-smi topo -m of a DGX-1V: NVLinks between GPUs, row by row; 0 is by way of PCIe
CUBE_MESH = """
    - 1 1 2 2 0 0 0
    1 - 2 1 0 2 0 0
    1 2 - 2 0 0 1 0
    2 1 2 - 0 0 0 1
    2 0 0 0 - 1 1 2
    0 2 0 0 1 - 2 1
    0 0 1 0 1 2 - 2
    0 0 0 1 2 1 2 -
"""


def hops(order):
    return list(zip(order, [*order[1:], *order[:1]])) if len(order) > 1 else []


@pytest.mark.parametrize("name", ["p3.16xlarge", "p3dn.24xlarge"])
def test_a_cube_mesh_has_the_links_of_the_published_matrix(name):
    topology = make_topology(name)
    table = [line.split() for line in CUBE_MESH.split("\n") if line.strip()]
    for src, dst in all_pairs(8):
        route, links = topology.routes[src, dst], int(table[src][dst])
        assert route.bytes_per_s == (links * 25e9 or 10e9)
        assert [link.name.split()[0] for link in route.links] == (
            ["NVLink"] if links else ["PCIe", "PCIe", "CPU", "PCIe", "PCIe"]
        )
    assert topology.groups == ((0, 1, 2, 3), (4, 5, 6, 7))


def test_the_smaller_p3_is_the_first_quad_by_inference():
    quad = make_topology("p3.8xlarge")
    assert quad.routes == make_topology("p3.16xlarge", 4).routes
    assert quad.note.startswith("inferred from the quad 0-3 of p3.16xlarge")


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_every_machine_is_complete_and_says_what_is_inferred(name):
    topology = make_topology(name)
    assert topology.name == name
    assert set(topology.routes) == set(all_pairs(topology.world_size))
    assert "inferred" in topology.note
    assert 0 < topology.reduce_bytes_per_s < math.inf
    assert sorted(itertools.chain(*topology.groups)) == list(range(topology.world_size))
    for (src, dst), route in topology.routes.items():
        assert route.latency_s == 10e-6
        back = topology.routes[dst, src]
        assert not set(route.links) & set(back.links)  # each direction for itself
        assert route.bytes_per_s == back.bytes_per_s


@pytest.mark.parametrize(
    ("name", "devices", "gigabytes"),
    [
        ("g4dn.12xlarge", 4, 12),
        ("g5.12xlarge", 4, 24),
        ("nvswitch", 8, 300),
        ("p4d.24xlarge", 8, 300),
        ("p3.2xlarge", 1, 10),
    ],
)
def test_machines_whose_devices_have_one_port_each(name, devices, gigabytes):
    assert make_topology(name).routes == switch(devices, 10e-6, gigabytes * 1e9).routes


def test_pairs_share_the_expected_pcie_links():
    """Neighbors below a switch stay below it; all others share its links up and down."""
    routes = pcie(4).routes
    assert not set(routes[0, 1].links) & set(routes[1, 2].links)
    shared = set(routes[0, 2].links) & set(routes[1, 3].links)
    assert [link.name for link in sorted(shared)] == ["PCIe switch 0 up", "PCIe switch 1 down"]
    own = set(routes[0, 2].links) & set(routes[0, 1].links)
    assert [link.name for link in own] == ["PCIe out of 0"]
    assert pcie(5).groups == ((0, 1), (2, 3), (4,))
    cube = p3_16xlarge().routes
    assert "CPU 0 to 1" in {link.name for link in set(cube[0, 5].links) & set(cube[3, 4].links)}
    assert not set(cube[0, 5].links) & set(cube[5, 0].links)


def test_sixteen_gpus_on_eight_boards():
    """Each board's switch carries the bytes of both of its GPUs."""
    p2 = make_topology("p2.16xlarge")
    assert p2.world_size == 16 and {route.bytes_per_s for route in p2.routes.values()} == {12e9}
    boards = tuple((first, first + 1) for first in range(0, 16, 2))
    near = {pair for pair, route in p2.routes.items() if len(route.links) == 2}
    assert p2.groups == boards and near == {pair for a, b in boards for pair in ((a, b), (b, a))}
    assert p2.ring_order() == list(range(16))


def test_four_gpus_below_each_of_two_cpus():
    """As aws-ofi-nccl's file has it: no switch, so only the way between CPUs is shared."""
    g5 = make_topology("g5.48xlarge")
    for (src, dst), route in g5.routes.items():
        apart = (src < 4) != (dst < 4)
        assert route.bytes_per_s == (16e9 if apart else 24e9)
        assert ("CPU 0 to 1" in {link.name for link in route.links}) == (src < 4 <= dst)
    assert not set(g5.routes[0, 1].links) & set(g5.routes[2, 3].links)
    assert g5.groups == ((0, 1, 2, 3), (4, 5, 6, 7))


def test_uniform_topologies():
    for make, links in ((switch, 2 * 5), (fully_connected, 5 * 4)):
        topology = make(5, 1e-5, 2e9, 3e9)
        routes = topology.routes.values()
        assert {(route.latency_s, route.bytes_per_s) for route in routes} == {(1e-5, 2e9)}
        assert topology.reduce_bytes_per_s == 3e9
        assert len({link for route in routes for link in route.links}) == links


@pytest.mark.parametrize(
    ("add", "of_one", "speed", "own_add"),
    [
        (15e9, {}, 20e9, 15e9),
        (15e9, {"device_copy_bytes_per_s": 8e9, "device_add_bytes_per_s": 6e9}, 8e9, 6e9),
        (21e9, {"device_copy_bytes_per_s": 25e9}, 20e9, math.inf),  # faster than is possible
    ],
)
def test_devices_of_a_shared_memory_topology_share_one_link(add, of_one, speed, own_add):
    topology = shared_memory_topology(3, 40e-6, 20e9, add, **of_one)
    assert set.intersection(*[set(route.links) for route in topology.routes.values()]) == {Link("memory", 20e9)}
    assert {route.bytes_per_s for route in topology.routes.values()} == {speed}
    # seconds of a byte that is added: the copy, and the extra time of the addition
    assert 1 / 20e9 + 1 / topology.shared_reduce_bytes_per_s == pytest.approx(1 / min(add, 20e9))
    assert 1 / speed + 1 / topology.reduce_bytes_per_s == pytest.approx(1 / min(own_add, speed))


@st.composite
def random_topologies(draw):
    world_size = draw(st.integers(1, 5))
    speeds = draw(st.lists(st.sampled_from([1.0, 2.0, 4.0, 8.0]), min_size=2, max_size=6))
    links = st.sampled_from([Link(f"link {i}", speed) for i, speed in enumerate(speeds)])
    own = st.builds(lambda i, speed: [Link(f"own {i}", speed)], st.integers(), st.floats(1, 4))
    chosen = (st.lists(links, min_size=1, max_size=2, unique=True) | own).map(tuple)
    return Topology("random", world_size, {pair: Route(draw(chosen), 1e-5) for pair in all_pairs(world_size)})


@examples(60, 150)
@given(random_topologies())
def test_the_proposed_ring_is_the_best_of_all(topology):
    """The least time per byte on the busiest link, then the most bytes/s, then the first order."""

    def rank(order):
        routes = [topology.routes[hop] for hop in hops(order)]
        load = Counter(link for route in routes for link in route.links)
        busiest = max((count / link.bytes_per_s for link, count in load.items()), default=0)
        return busiest, -sum(route.bytes_per_s for route in routes), order

    orders = [[0, *others] for others in itertools.permutations(range(1, topology.world_size))]
    assert topology.ring_order() == min(orders, key=rank)


def test_a_ring_of_twenty_different_links_is_no_worse_than_the_order_of_numbers():
    speed = random.Random(0).uniform
    topology = Topology(
        "drawn", 20, {pair: Route((Link(str(pair), speed(5e9, 25e9)),), 1e-5) for pair in all_pairs(20)}
    )
    order = topology.ring_order()
    best, numbered = (min(topology.routes[hop].bytes_per_s for hop in hops(ring)) for ring in (order, range(20)))
    assert sorted(order) == list(range(20)) and best >= numbered


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_the_first_devices_are_linked_as_in_the_whole_machine(name):
    whole = make_topology(name)
    for world_size in range(1, whole.world_size + 1):
        part = make_topology(name, world_size)
        assert part.world_size == world_size
        assert dict(part.routes) == {pair: whole.routes[pair] for pair in all_pairs(world_size)}
        assert part.reduce_bytes_per_s == whole.reduce_bytes_per_s
        groups = (tuple(device for device in group if device < world_size) for group in whole.groups)
        assert part.groups == tuple(filter(None, groups))


def test_listed_devices_get_the_ranks_of_their_positions():
    whole, devices = p3_16xlarge(), [7, 0, 4]
    part = whole.subset(devices)
    assert part.world_size == 3
    assert dict(part.routes) == {(a, b): whole.routes[devices[a], devices[b]] for a, b in all_pairs(3)}
    assert part.groups == ((1,), (0, 2))


def test_an_unknown_machine_is_refused_with_the_choices():
    with pytest.raises(ScheduleError) as error:
        make_topology("p3.16xlrage")
    assert str(error.value) == (
        f"unknown topology 'p3.16xlrage': choose {', '.join(sorted(TOPOLOGIES))} (did you mean "
        "'p3.16xlarge'?); for up to 128 hosts, use NAME*HOSTS; for your own machine, pass a file "
        "such as m.json, which gluonlab bench links --save FILE writes"
    )


@pytest.mark.parametrize("name", ["p3.16xlarge", "nvswitch", "pcie"])
@pytest.mark.parametrize("world_size", [0, True, "2", 2.5])
def test_an_impossible_number_of_devices_is_refused(name, world_size):
    with pytest.raises(ScheduleError, match=f"{world_size!r}") as error:
        make_topology(name, world_size)
    assert "\n" not in str(error.value)


def test_more_devices_than_the_machine_has_are_refused():
    with pytest.raises(ScheduleError, match=r"g4dn.12xlarge has 4 devices, but 5 are requested: choose 1 to 4"):
        make_topology("g4dn.12xlarge", 5)
    assert make_topology("nvswitch", 11).world_size == 11


@pytest.mark.parametrize("devices", [[], [0, 0], [8], [-1], [0, "1"]])
def test_devices_that_the_machine_does_not_have_are_refused(devices):
    with pytest.raises(ScheduleError, match=r"choose one or more of the devices 0 to .*, each at most once"):
        p3_16xlarge().subset(devices)


WIRE = Route((Link("wire", 1e9),), 1e-5)
BAD_FIGURES = (0, 1e-5, 1e9), ("2", 1e-5, 1e9), (2, -1e-5, 1e9), (2, 1e-5, 0.0)
BAD_MEMORY = (0, 1e-5, 1e9, 1e9), (2, -1e-5, 1e9, 1e9), (2, 1e-5, 0.0, 1e9), (2, 1e-5, 1e9, -1.0)


def make_pair(speed=1e9, latency_s=1e-5, **speeds):
    back = Route((Link("wire", speed),), latency_s)
    return Topology("by hand", 2, {(0, 1): WIRE, (1, 0): back}, **speeds)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Topology("by hand", 2, {(0, 1): WIRE}), "define a route for each of the 2 pairs \\(src, dst\\)"),
        (lambda: Topology("by hand", 2, {(0, 1): WIRE, (0, 2): WIRE}), "define a route for each of the 2 pairs"),
        (lambda: Topology("by hand", 5, {}), "define a route for each of the 20 pairs \\(src, dst\\) of the 5 devices"),
        (lambda: Topology("by hand", 2, {(0, 1): WIRE, (1, 0): Route((), 1e-5)}), "is not a valid route"),
        (lambda: make_pair(0.0), "bytes/s above 0"),
        (lambda: make_pair(math.nan), "bytes/s above 0"),
        (lambda: make_pair(1e9, -1e-5), "a latency of 0 s or more"),
        (lambda: make_pair(reduce_bytes_per_s=0), "use a number above 0"),
        (lambda: make_pair(shared_reduce_bytes_per_s=-1.0), "use a number above 0"),
        *((lambda make=make, figures=figures: make(*figures), "use at least 1|not a valid route")
          for make in (switch, fully_connected) for figures in BAD_FIGURES),
        *((lambda figures=figures: shared_memory_topology(*figures), "use at least 1|not a valid route|above 0 b")
          for figures in BAD_MEMORY),
    ],
)  # fmt: skip
def test_invalid_devices_and_links_are_refused(make, message):
    with pytest.raises(ScheduleError, match=message):
        make()
