"""Several hosts: each has the links of the machine, and NICs that its devices share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluonlab.collectives.algorithms import make_schedule, make_schedule_over_hosts
from gluonlab.collectives.cost_model import estimate_cost, find_best_order
from gluonlab.collectives.named_topologies import (
    MAX_HOSTS,
    NETWORKS,
    TOPOLOGIES,
    HostNetwork,
    Link,
    fully_connected,
    make_topology,
    repeat_host,
    switch,
)
from gluonlab.errors import ScheduleError

ROUNDING = 1e-9
ALL_ON_NVLINKS = {"p3.8xlarge", "p4d.24xlarge"}


def no_links(device):
    return ()


def make_network(nics=1, bytes_per_s=5.0, latency_s=2.0, out=no_links, into=no_links):
    return HostNetwork(nics, bytes_per_s, latency_s, out, into)


def test_a_message_passes_both_nics_and_the_links_to_them():
    out, into = (lambda device, way=way: (Link(f"lane {way} {device}", 7.0),) for way in ("of", "to"))
    two = repeat_host(fully_connected(4, 1.0, 10.0, 3.0), 2, make_network(2, out=out, into=into))

    def describe(pair):
        route = two.routes[pair]
        return route.latency_s, route.bytes_per_s, ", ".join(link.name for link in route.links)

    assert (two.name, two.world_size, two.reduce_bytes_per_s) == ("fully_connected*2", 8, 3.0)
    far = 2.0, 5.0
    assert describe((1, 7)) == (*far, "host 0: lane of 1, host 0: NIC 0 out, host 1: NIC 1 in, host 1: lane to 3")
    assert describe((7, 1)) == (*far, "host 1: lane of 3, host 1: NIC 1 out, host 0: NIC 0 in, host 0: lane to 1")
    assert describe((5, 6)) == (1.0, 10.0, "host 1: 1 to 2")
    assert two.hosts == two.groups == ((0, 1, 2, 3), (4, 5, 6, 7))


@pytest.mark.parametrize("name", NETWORKS)
def test_every_host_has_the_links_of_the_machine_alone(name):
    one, three = make_topology(name), make_topology(f"{name}*3")
    assert three.name == f"{name}*3" and three.world_size == 3 * one.world_size
    for host in range(3):
        for pair, route in one.routes.items():
            links = tuple(link._replace(name=f"host {host}: {link.name}") for link in route.links)
            assert three.subset(three.hosts[host]).routes[pair] == route._replace(links=links)


@pytest.mark.parametrize(
    ("name", "nics", "gigabits"), [("p3.16xlarge", 1, 25), ("p3dn.24xlarge", 1, 100), ("p4d.24xlarge", 4, 400)]
)
def test_hosts_send_at_the_published_speed(name, nics, gigabits):
    """Neighbors share a NIC. On a p4d these are two GPUs below each PCIe switch: aws-ofi-nccl's
    topology/p4d-24xl-topo.xml.
    """
    routes = make_topology(f"{name}*2").routes
    for host, way in ((0, "out"), (1, "in")):
        links = {
            gpu: link
            for gpu in range(8)
            for link in routes[gpu, gpu + 8].links
            if link.name.startswith(f"host {host}: NIC")
        }
        assert [links[gpu].name[8:] for gpu in range(8)] == [f"NIC {gpu * nics // 8} {way}" for gpu in range(8)]
        assert sum(link.bytes_per_s for link in set(links.values())) * 8 == gigabits * 1e9
    assert name in TOPOLOGIES and "inferred" in NETWORKS[name].note


@pytest.mark.parametrize("name", sorted(set(NETWORKS) - ALL_ON_NVLINKS - {"p3.2xlarge"}))
def test_the_path_to_a_nic_uses_links_of_the_machine(name):
    """Except for one GPU alone, and if NVLinks carry everything within the host."""
    machine = {link for route in make_topology(name).routes.values() for link in route.links}
    for gpu in range(make_topology(name).world_size):
        assert {*NETWORKS[name].out_links(gpu), *NETWORKS[name].in_links(gpu)} <= machine


def test_a_ring_over_hosts_goes_from_host_to_host():
    topology = make_topology("p3.16xlarge*3")
    best = [0, 3, 2, 1, 5, 6, 7, 4]  # on doubled NVLinks
    assert topology.ring_order() == [8 * host + gpu for host in range(3) for gpu in best]
    ring = make_schedule("ring", 24)
    placed = estimate_cost(ring.placed(find_best_order(ring, topology)), topology, 1e8).seconds
    assert placed <= estimate_cost(ring, topology, 1e8).seconds


def test_a_part_of_several_hosts_keeps_their_hosts():
    part = make_topology("p3.16xlarge*3", 19)
    assert [len(host) for host in part.hosts] == [8, 8, 3]
    assert part.subset([18, 0, 1, 9]).hosts == ((1, 2), (3,), (0,))
    assert make_topology("p3.16xlarge*3", 8).routes == make_topology("p3.16xlarge*2", 8).routes


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(0, 1000))
def test_rings_within_and_across_hosts_cost_the_closed_form(hosts, devices, nics, size):
    """2 (g-1) (alpha + n/gb) within, and 2 (h-1) s (alpha' + n/ghb') for s devices at a NIC."""
    host = switch(devices, 0.5, 10.0)
    topology = repeat_host(host, hosts, make_network(nics))
    assert hosts > 1 or topology is host
    shares = [device * nics // devices for device in range(devices)]
    most = max(map(shares.count, shares))
    within = 2 * (devices - 1) * (0.5 + size / devices / 10)
    across = 2 * (hosts - 1) * most * (2 + size / devices / hosts / 5)
    priced = estimate_cost(make_schedule_over_hosts(hosts, devices), topology, size).seconds
    assert priced == pytest.approx(within + across, rel=ROUNDING)


@pytest.mark.parametrize("hosts", ["0", "-1", "1.5", "129", "", "two", "2*2", "9" * 23, "\u0662", "16xlarge*2"])
def test_an_invalid_number_of_hosts_is_refused(hosts):
    with pytest.raises(ScheduleError) as error:
        make_topology(f"p3*{hosts}")
    expected = (
        f"topology 'p3*{hosts}': {hosts!r} is not a valid number of hosts: use 1 to {MAX_HOSTS}, as in p3.16xlarge*8"
    )
    assert str(error.value) == expected


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: make_topology("p3.16xlrage*2"), f"unknown topology.* up to {MAX_HOSTS}"),
        (lambda: make_topology("*2"), f"unknown topology.* up to {MAX_HOSTS}"),
        (lambda: make_topology("pcie*2"), f"hosts of pcie is unknown.* {', '.join(NETWORKS)}$"),
        (lambda: make_topology("nvswitch*2"), "hosts of nvswitch is unknown"),
        (lambda: make_topology("p3.8xlarge*2", 9), r"\*2 has 8 devices, but 9 are requested: choose 1 to 8"),
        *((lambda hosts=hosts: repeat_host(switch(2, 1.0, 1.0), hosts, make_network()),
           "use at least 1") for hosts in (0, 1.5, True, "2")),
        *((lambda figures=figures: make_network(*figures), "use at least 1 NIC")
          for figures in ((0, 5.0, 2.0), (1, 0.0, 2.0), (1, 5.0, -1.0), (1.5, 5.0, 2.0))),
    ],
)  # fmt: skip
def test_invalid_hosts_and_networks_are_refused_in_one_line(make, words):
    with pytest.raises(ScheduleError, match=words) as error:
        make()
    assert "\n" not in str(error.value)
