"""Fits of measured copies, shared links, and the costs of schedules on the inferred topology."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gluonlab.bench.allreduce.message_sizes import parse_sizes
from gluonlab.bench.links import infer_topology
from gluonlab.bench.links.__main__ import DEFAULT_SIZES
from gluonlab.bench.links.infer_topology import (
    ALL,
    BOTH,
    INTO,
    OUT,
    DeviceMeasurement,
    LinkFit,
    fit_link,
    list_simultaneous_groups,
    merge_similar,
)
from gluonlab.bench.links.topology_from_links import common_gpu_kind
from gluonlab.collectives.algorithms import ALGORITHMS, make_schedule
from gluonlab.collectives.cost_model import estimate_cost
from gluonlab.collectives.named_topologies import make_topology, nvswitch, p3_16xlarge, pcie
from gluonlab.collectives.schedule import COPY, Schedule, Transfer
from gluonlab.collectives.topology import Link, Route, Topology, all_pairs, fully_connected, switch

LINKS = st.tuples(st.floats(1e-6, 1e-4), st.floats(1e8, 3e11))  # latency_s, bytes_per_s


def make_noise(rng):
    return lambda: rng.uniform(0.97, 1.03)


@given(LINKS, st.randoms(use_true_random=False))
def test_a_fit_is_the_link_that_the_times_were_made_of_also_with_noise_and_disturbed_rounds(link, rng):
    """3 % of noise, and in two rounds of seven up to ten times as long."""
    (latency_s, bytes_per_s), noise = link, make_noise(rng)
    exact = {size: [latency_s + size / bytes_per_s] for size in parse_sizes(DEFAULT_SIZES)}
    fit = fit_link(exact)
    assert (fit.latency_s, fit.bytes_per_s) == pytest.approx(link, rel=1e-6) and fit.worst_error < 1e-6
    assert fit.seconds(2**20) == pytest.approx(latency_s + 2**20 / bytes_per_s)
    noisy = {size: [seconds * noise() for _ in range(7)] for size, (seconds,) in exact.items()}
    for rounds in noisy.values():
        for index in rng.sample(range(7), 2):
            rounds[index] *= rng.uniform(1, 10)
    fit = fit_link(noisy)
    for size, (seconds,) in exact.items():
        assert fit.seconds(size) == pytest.approx(seconds, rel=0.08)
    if latency_s > 4 * 2**12 / bytes_per_s:  # the smallest copies show it
        assert fit.latency_s == pytest.approx(latency_s, rel=0.15)
    if latency_s < 2**24 / bytes_per_s / 4:  # the largest copies show it
        assert fit.bytes_per_s == pytest.approx(bytes_per_s, rel=0.15)


@given(st.dictionaries(st.integers(1, 2**40), st.floats(1e-9, 1e3), min_size=2, max_size=5))
def test_any_times_give_a_link(seconds):
    fit = fit_link({size: [t] for size, t in seconds.items()})
    assert fit.latency_s >= 0 and 0 < fit.bytes_per_s < float("inf")


def test_if_larger_copies_take_no_longer_half_of_the_time_is_latency():
    fit = fit_link({1000: [2e-5], 1_000_000: [2e-5]})
    assert (fit.latency_s, fit.bytes_per_s) == (1e-5, pytest.approx(1e11))


@given(st.lists(st.floats(1, 1e12), max_size=20), st.floats(1, 2))
def test_merged_values_stay_near_and_in_order(values, within):
    merged = merge_similar(values, within)
    for one, new in zip(values, merged):
        assert one / within <= new <= one * within
        assert all((one <= other) <= (new <= other_new) for other, other_new in zip(values, merged))


def test_similar_values_are_merged_to_their_mean_and_kinds_of_links_stay_apart():
    merged = merge_similar([50.1, 24.9, 49.7, 10, 25.2], 1.1)
    assert merged == pytest.approx([49.9, 25.05, 49.9, 10, 25.05])
    assert merged[0] == merged[2] and merged[1] == merged[4]


SIZE = 2**24
LATENCIES, SPEEDS = st.sampled_from([1e-6, 1e-5, 1e-4]), st.sampled_from([1e9, 25e9, 3e11])


def cost_of_copies(topology, pairs):
    """Return the seconds of these copies as one step."""
    step = tuple(Transfer(src, dst, 0, COPY) for src, dst in pairs)
    return estimate_cost(Schedule("probe", "allreduce", topology.world_size, 1, (0,), (step,)), topology, SIZE).seconds


def simulate_measurement(topology, noise=lambda: 1.0):
    """Return the result of a measurement of such a machine."""
    pairs = {
        pair: LinkFit(route.latency_s * noise(), route.bytes_per_s * noise(), 0.0)
        for pair, route in topology.routes.items()
    }
    together = {group: cost_of_copies(topology, group[1]) * noise() for group in list_simultaneous_groups(pairs)}
    adds = [topology.reduce_bytes_per_s * noise() for _ in range(topology.world_size)]
    return DeviceMeasurement(topology.world_size, pairs, adds, SIZE, together)


def one_bus(count, latency_s, bytes_per_s, reduce_bytes_per_s):
    bus = Route((Link("bus", bytes_per_s),), latency_s)
    return Topology("bus", count, dict.fromkeys(all_pairs(count), bus), reduce_bytes_per_s)


def half_duplex(count, latency_s, bytes_per_s, reduce_bytes_per_s):
    routes = {
        pair: Route((Link("{} - {}".format(*sorted(pair)), bytes_per_s),), latency_s) for pair in all_pairs(count)
    }
    return Topology("wires", count, routes, reduce_bytes_per_s)


KINDS = {fully_connected: set(), half_duplex: {BOTH}, switch: {OUT, INTO}, one_bus: {BOTH, OUT, INTO, ALL}}


@settings(max_examples=60)
@given(st.sampled_from(list(KINDS)), st.integers(3, 6), LATENCIES, SPEEDS, st.randoms(use_true_random=False))
def test_shared_links_are_found_and_no_others_also_in_noise(make, count, latency_s, speed, rng):
    measurement = simulate_measurement(make(count, latency_s, speed, 3e11), make_noise(rng))
    if SIZE / speed > latency_s:  # else the latency of messages is shared
        assert {link.kind for link in infer_topology.find_shared_links(measurement)} == KINDS[make]
    inferred = infer_topology.build_topology(measurement, "inferred", "")
    for group, measured_s in measurement.together.items():
        assert cost_of_copies(inferred, group[1]) == pytest.approx(measured_s, rel=0.35)
    for route in inferred.routes.values():
        assert (route.latency_s, route.bytes_per_s) == pytest.approx((latency_s, speed), rel=0.06)
    assert inferred.reduce_bytes_per_s == pytest.approx(3e11, rel=0.06)
    assert inferred.ring_order() == list(range(count))  # all rings are equal


@pytest.mark.parametrize(
    ("name", "least"), [("p3.16xlarge", 0.6), ("nvswitch", 0.9), ("pcie", 0.5), ("p2.16xlarge", 0.5)]
)
def test_schedules_on_the_inferred_topology_cost_as_on_the_machine(name, least):
    """Never much more. Less, if only some pairs share a link: the links up from PCIe switches, and
    for a tree of the cube mesh the links between CPUs, whose directions are not distinguished.
    """
    truth = make_topology(name)
    exact, noisy = simulate_measurement(truth), simulate_measurement(truth, make_noise(random.Random(2)))
    for measurement, most in ((exact, 1.02), (noisy, 1.1)):
        inferred = infer_topology.build_topology(measurement, "inferred", "")
        assert name != "p3.16xlarge" or inferred.ring_order() == truth.ring_order()
        for algorithm in ALGORITHMS:
            schedule = make_schedule(algorithm, truth.world_size).placed(truth.ring_order())
            ratio = estimate_cost(schedule, inferred, 1e8).seconds / estimate_cost(schedule, truth, 1e8).seconds
            assert least < ratio < most, algorithm


def test_links_between_cpus_are_shared_only_by_pairs_without_nvlinks():
    shared = infer_topology.find_shared_links(simulate_measurement(p3_16xlarge()))
    assert {link.kind for link in shared} == {OUT, INTO, "all pairs of 10 GB/s"}
    assert all(src // 4 != dst // 4 for link in shared for src, dst in link.pairs)
    assert "out of 0 to 5 6 7" in {link.link.name for link in shared}
    assert infer_topology.describe_shared_links(shared)[-1].startswith("all pairs of 10 GB/s share 20.")


@pytest.mark.parametrize("truth", [nvswitch(2), pcie(2), one_bus(2, 1e-5, 1e9, 1e9)])
def test_two_devices_share_at_most_their_wire(truth):
    shared = infer_topology.find_shared_links(simulate_measurement(truth))
    assert [link.link.name for link in shared] == (["0 and 1"] if truth.name == "bus" else [])


def test_shared_links_are_described():
    links = infer_topology.find_shared_links(simulate_measurement(switch(3, 1e-6, 1e9, 1e9)))
    expected = ["copies out of a device share 1 GB/s", "copies into a device share 1 GB/s"]
    assert infer_topology.describe_shared_links(links) == expected
    faster = links[0]._replace(link=Link("out of 0", 2e9))
    assert infer_topology.describe_shared_links([faster, *links[1:]])[0] == "copies out of a device share 1 to 2 GB/s"
    assert infer_topology.describe_shared_links([]) == ["simultaneous copies share no link"]


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["Tesla V100-SXM2-16GB"] * 3, "V100"),
        (["NVIDIA A100-SXM4-80GB"], "A100-80GB"),
        (["NVIDIA A100-SXM4-40GB"], "A100"),
        (["NVIDIA A10G"] * 2, "A10G"),
        (["Tesla T4", "Tesla V100-SXM2-16GB"], None),
        (["NVIDIA H100 80GB HBM3"], None),
        ([], None),
    ],
)
def test_a_kind_of_gpu_is_known_by_the_drivers_name(names, kind):
    assert common_gpu_kind(names) == kind
