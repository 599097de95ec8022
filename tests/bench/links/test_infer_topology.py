"""Links that copies share are found where they are, and the topology prices what was measured."""

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
from gluonlab.collectives.cost_model import price
from gluonlab.collectives.named_topologies import make_topology, nvswitch, p3_16xlarge, pcie
from gluonlab.collectives.schedule import COPY, Schedule, Transfer
from gluonlab.collectives.topology import Link, Route, Topology, all_pairs, fully_connected, switch

LINKS = st.tuples(st.floats(1e-6, 1e-4), st.floats(1e8, 3e11))  # latency_s, bytes_per_s


def times(latency_s, bytes_per_s, noise=lambda: 1.0, rounds=1):
    return {
        size: [(latency_s + size / bytes_per_s) * noise() for _ in range(rounds)] for size in parse_sizes(DEFAULT_SIZES)
    }


@given(LINKS)
def test_exact_times_give_the_link_that_they_were_made_of(link):
    found = fit_link(times(*link))
    assert (found.latency_s, found.bytes_per_s) == pytest.approx(link, rel=1e-6)
    assert found.off < 1e-6
    assert found.seconds(2**20) == pytest.approx(link[0] + 2**20 / link[1])


@given(LINKS, st.randoms(use_true_random=False))
def test_noise_and_disturbed_rounds_change_little(link, rng):
    """3 % of noise, and in two rounds of seven up to ten times as long."""

    def noise():
        return rng.uniform(0.97, 1.03)

    exact, noisy = times(*link), times(*link, noise, rounds=7)
    for rounds in noisy.values():
        for place in rng.sample(range(7), 2):
            rounds[place] *= rng.uniform(1, 10)
    found = fit_link(noisy)
    for size, (seconds,) in exact.items():
        assert found.seconds(size) == pytest.approx(seconds, rel=0.08)
    latency_s, bytes_per_s = link
    if latency_s > 4 * 2**12 / bytes_per_s:  # the smallest copies show it
        assert found.latency_s == pytest.approx(latency_s, rel=0.15)
    if latency_s < 2**24 / bytes_per_s / 4:  # the largest ones do
        assert found.bytes_per_s == pytest.approx(bytes_per_s, rel=0.15)


@given(st.dictionaries(st.integers(1, 2**40), st.floats(1e-9, 1e3), min_size=2, max_size=5))
def test_whatever_was_measured_is_a_link(seconds):
    found = fit_link({size: [t] for size, t in seconds.items()})
    assert found.latency_s >= 0 and 0 < found.bytes_per_s < float("inf")


def test_a_copy_that_takes_no_longer_the_larger_it_is_has_half_of_its_time_for_moving():
    found = fit_link({1000: [2e-5], 1_000_000: [2e-5]})
    assert (found.latency_s, found.bytes_per_s) == (1e-5, pytest.approx(1e11))


@given(st.lists(st.floats(1, 1e12), max_size=20), st.floats(1, 2))
def test_what_is_alike_gets_the_same_value(values, within):
    found = merge_similar(values, within)
    for one, new in zip(values, found):
        assert one / within <= new <= one * within
        for other, also in zip(values, found):
            assert (one <= other) <= (new <= also)


def test_noise_is_levelled_and_kinds_of_links_stay_apart():
    levelled = merge_similar([50.1, 24.9, 49.7, 10, 25.2], 1.1)
    assert levelled == pytest.approx([49.9, 25.05, 49.9, 10, 25.05])
    assert levelled[0] == levelled[2] and levelled[1] == levelled[4]


SIZE = 2**24
LATENCIES, SPEEDS = st.sampled_from([1e-6, 1e-5, 1e-4]), st.sampled_from([1e9, 25e9, 3e11])


def seconds(topology, pairs, size=SIZE):
    """The price of these copies as one step."""
    step = tuple(Transfer(src, dst, 0, COPY) for src, dst in pairs)
    schedule = Schedule("probe", "allreduce", topology.world_size, 1, (0,), (step,))
    return price(schedule, topology, size).seconds


def measured(topology, noise=lambda: 1.0):
    """What a measurement of such a machine would find."""
    pairs = {
        pair: LinkFit(route.latency_s * noise(), route.bytes_per_s * noise(), 0.0)
        for pair, route in topology.routes.items()
    }
    together = {group: seconds(topology, group[1]) * noise() for group in list_simultaneous_groups(pairs)}
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
@given(
    st.sampled_from(list(KINDS)), st.integers(3, 6), LATENCIES, SPEEDS,
    st.randoms(use_true_random=False),
)  # fmt: skip
def test_shared_links_are_found_and_no_others_also_in_noise(make, count, latency_s, speed, rng):
    truth = make(count, latency_s, speed, 3e11)
    what = measured(truth, lambda: rng.uniform(0.97, 1.03))
    shared = infer_topology.find_shared_links(what)
    moving = SIZE / speed > latency_s  # else the messages themselves are what is shared
    if moving:
        assert {each.kind for each in shared} == KINDS[make]
    found = infer_topology.build_topology(what, "found", "")
    for group, measured_s in what.together.items():
        assert seconds(found, group[1]) == pytest.approx(measured_s, rel=0.35)
    for route in found.routes.values():
        assert route.latency_s == pytest.approx(latency_s, rel=0.06)
        assert route.bytes_per_s == pytest.approx(speed, rel=0.06)
    assert found.reduce_bytes_per_s == pytest.approx(3e11, rel=0.06)
    assert found.ring_order() == list(range(count))  # all rings are equal


def test_the_best_ring_of_a_cube_mesh_is_found_in_its_measurements():
    rng, truth = random.Random(1), p3_16xlarge()
    found = infer_topology.build_topology(measured(truth, lambda: rng.uniform(0.97, 1.03)), "found", "")
    assert found.ring_order() == truth.ring_order()


@pytest.mark.parametrize(
    ("name", "least"), [("p3.16xlarge", 0.6), ("nvswitch", 0.9), ("pcie", 0.5), ("p2.16xlarge", 0.5)]
)
def test_schedules_on_what_was_found_cost_what_they_do_on_the_machine(name, least):
    """Never much more; less, where some pairs alone share a link: the ways up from PCIe switches,
    and for a tree of the cube mesh those between CPUs, whose directions are not told apart.
    """
    rng, truth = random.Random(2), make_topology(name)
    exact, noisy = measured(truth), measured(truth, lambda: rng.uniform(0.97, 1.03))
    for what, off in ((exact, 1.02), (noisy, 1.1)):
        found = infer_topology.build_topology(what, "found", "")
        for algorithm in ALGORITHMS:
            schedule = make_schedule(algorithm, truth.world_size).placed(truth.ring_order())
            ratio = price(schedule, found, 1e8).seconds / price(schedule, truth, 1e8).seconds
            assert least < ratio < off, algorithm


def test_the_ways_between_cpus_are_shared_by_the_pairs_without_nvlinks_alone():
    shared = infer_topology.find_shared_links(measured(p3_16xlarge()))
    assert {each.kind for each in shared} == {OUT, INTO, "all pairs of 10 GB/s"}
    assert all(src // 4 != dst // 4 for each in shared for src, dst in each.pairs)
    assert "out of 0 to 5 6 7" in {each.link.name for each in shared}
    assert infer_topology.describe_shared_links(shared)[-1].startswith("all pairs of 10 GB/s share 20.")


@pytest.mark.parametrize("truth", [nvswitch(2), pcie(2), one_bus(2, 1e-5, 1e9, 1e9)])
def test_two_devices_share_at_most_their_wire(truth):
    shared = infer_topology.find_shared_links(measured(truth))
    assert [each.link.name for each in shared] == (["0 and 1"] if truth.name == "bus" else [])


def test_words_say_what_is_shared():
    of = infer_topology.find_shared_links(measured(switch(3, 1e-6, 1e9, 1e9)))
    assert infer_topology.describe_shared_links(of) == [
        "copies out of a device share 1 GB/s",
        "copies into a device share 1 GB/s",
    ]
    faster = of[0]._replace(link=Link("out of 0", 2e9))
    assert infer_topology.describe_shared_links([faster, *of[1:]])[0] == "copies out of a device share 1 to 2 GB/s"
    assert infer_topology.describe_shared_links([]) == ["copies that are made at once share no link"]


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
