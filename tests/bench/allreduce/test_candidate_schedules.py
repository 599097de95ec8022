"""The sizes and the schedules that a measurement compares."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluonlab.bench.allreduce.candidate_schedules import make_plans, parse_groups
from gluonlab.bench.allreduce.message_sizes import parse_sizes
from gluonlab.collectives.algorithms import ALGORITHMS, make_schedule
from gluonlab.collectives.named_topologies import make_topology
from gluonlab.collectives.verify_schedule import verify
from gluonlab.errors import ConfigError, ScheduleError
from gluonlab.plain_text import UNITS, format_size


@given(st.integers(1, 10**6), st.sampled_from(sorted(UNITS)), st.booleans(), st.sampled_from(["", " "]))
def test_a_size_is_its_number_times_its_unit(number, unit, upper, space):
    text = f"{number}{space}{unit.upper() if upper else unit}"
    assert parse_sizes(text) == [number * UNITS[unit]]
    assert parse_sizes(f"{text},{text}") == [number * UNITS[unit]]


@given(st.integers(1, 10**9), st.integers(0, 10**9), st.integers(2, 9))
def test_a_range_goes_by_factors_from_its_begin_to_at_most_its_end(begin, more, factor):
    sizes = parse_sizes(f"{begin}:{begin + more}B:{factor}")
    assert sizes[0] == begin and sizes[-1] <= begin + more < sizes[-1] * factor
    assert all(b == a * factor for a, b in zip(sizes, sizes[1:]))


@given(st.integers(1, 2**50))
def test_a_size_in_words_is_that_size(size):
    assert parse_sizes(format_size(size)) == [size]


def test_sizes_as_the_help_writes_them():
    assert parse_sizes("1KiB:64MiB") == [2**exponent for exponent in range(10, 27, 2)]
    assert parse_sizes("46mb,1KiB:4KiB:2,1.5KiB") == [1024, 1536, 2048, 4096, 46_000_000]


NOT_SIZES = "5..2|64MiB:1KiB|0|0.5B|-4KiB|many|| |1KiB:|1:2:3:4|1KiB:1MiB:1|1KiB,|1Kib B|1e3"


@pytest.mark.parametrize("text", NOT_SIZES.split("|"))
def test_invalid_sizes_are_refused_and_quoted(text):
    with pytest.raises(ConfigError, match="^" + re.escape(f"--bytes {text if text.strip() else repr(text)}")):
        parse_sizes(text)


def test_rings_also_come_in_the_topologys_order_if_it_differs():
    cube = make_topology("p3.16xlarge")
    plans = {plan.label: plan for plan in make_plans(None, 8, topology=cube)}
    for_links = {"multi_ring", "synthesized, 4 steps", "synthesized, 5 steps"}
    assert set(plans) == {*for_links, *ALGORITHMS, "ring placed", "bidirectional_ring placed"}
    assert plans["ring placed"].order == tuple(cube.ring_order()) != tuple(range(8))
    assert plans["ring placed"].schedule == make_schedule("ring", 8).placed(cube.ring_order())
    assert plans["hierarchical"].schedule == make_schedule("hierarchical", 8, groups=cube.groups)
    behind_switch = make_plans(None, 8, topology=make_topology("nvswitch"))
    assert [plan.label for plan in behind_switch] == ["multi_ring", "synthesized, 6 steps", *ALGORITHMS]
    [pairs] = make_plans(["hierarchical"], 6, topology=make_topology("pcie", 6))
    assert pairs.schedule == make_schedule("hierarchical", 6, groups=((0, 1), (2, 3), (4, 5)))


def test_chunks_and_groups_go_to_the_algorithms_that_take_them():
    plans = {plan.label: plan.schedule for plan in make_plans(None, 4, chunks=6, groups=((0, 3), (1, 2)))}
    unchanged = {name for name, schedule in plans.items() if schedule == make_schedule(name, 4)}
    assert unchanged == {"ring", "bidirectional_ring", "halving_doubling"}
    assert plans["hierarchical"] == make_schedule("hierarchical", 4, chunks=6, groups=((0, 3), (1, 2)))
    assert plans["double_tree"].chunks == 6
    for wrong in ({"chunks": 6}, {"groups": ((0, 3), (1, 2))}):
        with pytest.raises(ScheduleError, match="ring"):
            make_plans(["ring"], 4, **wrong)
    with pytest.raises(ScheduleError, match="groups"):
        make_plans(None, 4, groups=((0, 1), (1, 2)))


@given(st.lists(st.lists(st.integers(0, 4095), min_size=1, max_size=4), min_size=1, max_size=4))
def test_groups_are_read_as_they_are_written(groups):
    assert parse_groups("/".join(",".join(map(str, group)) for group in groups)) == tuple(map(tuple, groups))


def test_groups_may_be_ranges():
    assert parse_groups("0-3/4, 5-6") == ((0, 1, 2, 3), (4, 5, 6))
    for text in ("", "0-", "a", "0/", "1.5", "0-99999"):
        with pytest.raises(ScheduleError, match="--groups"):
            parse_groups(text)


def test_several_hosts_also_have_schedules_made_for_hosts():
    """If each host has as many devices, and the user gives no groups."""
    topology = make_topology("p3.16xlarge*2")
    schedules = {plan.label: plan.schedule for plan in make_plans(None, 16, topology=topology)}
    added = ["hierarchical, ring", "hierarchical, tree", "hierarchical, double_tree"]
    assert [label for label in schedules if label.startswith("hierarchical, ")] == added
    for label in added:
        verify(schedules[label])
    within = {(t.src, t.dst) for step in schedules[added[0]].steps for t in step if t.src < 8 and t.dst < 8}
    assert {topology.routes[pair].bytes_per_s for pair in within} == {50e9}  # doubled NVLinks
    for ranks, groups in ((9, None), (16, ((*range(16),),))):
        part = make_topology("p3.16xlarge*2", ranks)
        assert [plan.label for plan in make_plans(["hierarchical"], ranks, groups=groups, topology=part)] == [
            "hierarchical"
        ]
