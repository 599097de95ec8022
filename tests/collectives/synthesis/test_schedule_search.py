"""Schedules sought here: right on any wires, bounded from below, symmetric where they say so."""

import signal
import threading
import time
from collections import Counter
from contextlib import suppress
from itertools import permutations
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.lanes import LATENCY, SPEED, mesh_topologies, unequal_topologies
from support.schedule_reference import has_correct_sums

from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.collectives.cost_model import price
from gluonlab.collectives.lower_bounds import floor_of
from gluonlab.collectives.named_topologies import fully_connected, make_topology, switch
from gluonlab.collectives.schedule import ADD
from gluonlab.collectives.synthesis import schedule_search as search_module
from gluonlab.collectives.synthesis.flow_network import (
    MIN_SPEED_RATIO,
    SharedLink,
    find_isomorphism,
    is_symmetry,
    make_flow_network,
    symmetry_groups,
)
from gluonlab.collectives.synthesis.schedule_search import (
    SearchGoal,
    find_any_schedule,
    find_schedule,
    rounds_lower_bound,
    synthesize,
)
from gluonlab.collectives.topology import Link, Route, Topology, all_pairs
from gluonlab.errors import ScheduleError

SUMMED_ON_TREES = ["ring", "sharded", "halving_doubling", "tree", "star", "bidirectional_ring"]


def front_of(topology):
    """Return the front found in as little time as a schedule takes to find."""
    for seconds in (0.03, 0.1, 1.0, 10.0):
        with suppress(ScheduleError):  # a machine may be slow, or have other things to do
            return synthesize(topology, seconds)
    return synthesize(topology, 100.0)


@examples(4, 5)
@given(mesh_topologies(most=3, lanes=2))
def test_a_found_schedule_is_correct_and_not_below_its_bounds(topology):
    front = front_of(topology)
    floor = floor_of(topology)
    for found in front:
        assert has_correct_sums(found.schedule)
        assert found.rounds >= found.bound - 1e-6
        for size in (0, 10**4, 10**7):
            assert price(found.schedule, topology, size).seconds >= floor.seconds(size) - 1e-12
    steps, rounds = zip(*((len(found.schedule.steps), found.rounds) for found in front))
    assert list(steps) == sorted(steps) and list(rounds) == sorted(rounds, reverse=True)


@examples(40)
@given(mesh_topologies(), st.sampled_from(SUMMED_ON_TREES), st.data())
def test_no_algorithm_undercuts_the_bound_of_its_steps(topology, name, data):
    """Each sums up a chunk on a tree, and then copies it: its rounds, counted here."""
    p = topology.world_size
    placed = ALGORITHMS[name](p).placed(data.draw(st.permutations(range(p))))
    lanes = make_flow_network(topology)
    if not {(t.src, t.dst) for step in placed.steps for t in step} <= set(lanes.pairs):
        lanes = make_flow_network(fully_connected(p, 1e-5, 1e9, 1e10))  # every pair has a wire there
    rounds = sum(
        max(Counter((t.src, t.dst) for t in step)[pair] / wire.lanes
            for wire in lanes.shared_links for pair in wire.pairs)
        for step in placed.steps
    )  # fmt: skip
    steps = len(placed.steps)
    least = rounds_lower_bound(lanes, steps, range(1, steps), symmetry_groups(lanes)[0])
    assert rounds * p / placed.chunks >= least.rounds - 1e-6


@examples(40)
@given(unequal_topologies())
def test_pairs_half_as_fast_as_those_that_are_needed_to_reach_all_are_used(topology):
    p, speed_of = topology.world_size, {p: r.bytes_per_s for p, r in topology.routes.items()}

    def connect(pairs):
        reached = np.eye(p, dtype=int)
        reached[tuple(zip(*pairs))] = 1
        return (np.linalg.matrix_power(reached, p) > 0).all()

    needed = max(s for s in speed_of.values() if connect([q for q in speed_of if speed_of[q] >= s]))
    used = {pair for pair, speed in speed_of.items() if speed >= MIN_SPEED_RATIO * needed}
    assert set(make_flow_network(topology).pairs) == used


@examples(40)
@given(mesh_topologies())
def test_a_symmetry_changes_no_bound(topology):
    lanes = make_flow_network(topology)
    steps = lanes.min_reduce_steps + lanes.min_broadcast_steps + 1
    turnings = range(lanes.min_reduce_steps, steps - lanes.min_broadcast_steps + 1)
    costs = [rounds_lower_bound(lanes, steps, turnings, group).cost for group in symmetry_groups(lanes)]
    assert costs == pytest.approx([costs[0]] * len(costs), rel=1e-6)


@examples(40)
@given(mesh_topologies())
def test_symmetries_are_renamings_under_which_every_pair_keeps_its_lanes(topology):
    lanes = make_flow_network(topology)
    of_pair = {wire.pairs[0]: wire.lanes for wire in lanes.shared_links}
    for renaming in permutations(range(topology.world_size)):
        same = all(of_pair.get((renaming[src], renaming[dst])) == count for (src, dst), count in of_pair.items())
        assert is_symmetry(lanes, renaming) == same
    assert all(is_symmetry(lanes, each) for group in symmetry_groups(lanes) for each in group)


@examples(40)
@given(mesh_topologies(), st.data())
def test_renamed_links_are_recognized_as_isomorphic(topology, data):
    order = data.draw(st.permutations(range(topology.world_size)))
    one, other = make_flow_network(topology), make_flow_network(topology.subset(order))
    renaming = find_isomorphism(one, other)
    assert renaming is not None
    for pairs, lanes in one.shared_links:
        same = tuple(sorted((renaming[src], renaming[dst]) for src, dst in pairs))
        assert SharedLink(same, lanes) in other.shared_links
    assert len(one.shared_links) == len(other.shared_links)


def test_a_p3_16xlarge_in_four_steps_is_proved_optimal():
    lanes = make_flow_network(make_topology("p3.16xlarge"))
    group = symmetry_groups(lanes)[0]
    assert sorted(group) == [tuple(rank ^ bits for rank in range(8)) for bits in (0, 1, 4, 5)]
    least = rounds_lower_bound(lanes, 4, (2,), group)
    assert least.rounds == pytest.approx(8 / 3)
    schedule = find_schedule(lanes, SearchGoal(12, 4, (2,), 4, group), 300, 1)
    assert schedule is not None and has_correct_sums(schedule)
    assert all(op == ADD for step in schedule.steps[:2] for *_, op in step)
    assert find_schedule(lanes, SearchGoal(12, 4, (2,), 3, group), 300, 1) is None


def test_behind_a_switch_one_message_passes_a_port_in_a_step():
    front = synthesize(switch(3, 1e-5, 1e9), 300.0)
    assert [found.is_optimal for found in front] == [True]
    for step in front[0].schedule.steps:
        for ends in zip(*{(t.src, t.dst) for t in step}):
            assert len(set(ends)) == len(ends)


def test_a_schedule_is_found_even_if_the_bound_cannot_be_reached():
    """All into device 0 is 64 times slower than the rest: of the fewest rounds a chunk for each."""
    routes = {(a, b): Route((Link(f"{a} to {b}", SPEED * (1 if b == 0 else 64)),), LATENCY) for a, b in all_pairs(4)}
    lanes = make_flow_network(Topology("slow into 0", 4, routes))
    least = rounds_lower_bound(lanes, 2, (1,), symmetry_groups(lanes)[0])
    found = find_any_schedule(lanes, 2, (1,), least, time.monotonic() + 300, 1, lambda line: None)
    assert found is not None and has_correct_sums(found.schedule) and len(found.schedule.steps) == 2
    assert found.rounds == 2 >= least.rounds  # a chunk for each device; a round for each step


def test_one_device_and_too_little_time_are_one_line():
    with pytest.raises(ScheduleError, match="nothing to sum over"):
        synthesize(make_topology("p3.2xlarge"), 1.0)
    with pytest.raises(ScheduleError, match=r"no schedule was found in 1e-06 s .* more time"):
        synthesize(make_topology("p3.8xlarge"), 1e-6)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_ctrl_c_stops_a_search_and_still_works_after_one(moment, monkeypatch):
    """The signal comes just before the solver begins, or when it has found out what it is given."""
    from ortools.sat.python.cp_model import CpSolver

    lanes = make_flow_network(make_topology("p3.16xlarge"))
    group = symmetry_groups(lanes)[-1]
    main = threading.main_thread().ident
    solve = CpSolver.solve

    def solve_and_interrupt(solver, model):
        def interrupt(line=""):
            if moment in sent:
                sent.remove(moment)
                signal.pthread_kill(main, signal.SIGINT)

        sent = [moment]
        if moment == "before":
            interrupt()
        else:
            solver.parameters.log_search_progress = True
            solver.parameters.log_to_stdout = False
            solver.log_callback = interrupt
        return solve(solver, model)

    monkeypatch.setattr(CpSolver, "solve", solve_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        find_schedule(lanes, SearchGoal(24, 5, (2, 3), 7, group), 3600, 1)  # takes minutes
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
        time.sleep(0)


@pytest.mark.parametrize("in_vain", [3, None])
def test_a_third_of_the_time_is_for_what_is_easy_to_find_until_anything_is_found(in_vain, monkeypatch):
    """A clock that only searches move, a second each; the fourth one finds something, or none.

    The fourth is for a ratio above the bound, which the searches with less symmetry may reach.
    """
    now, asked = [1000.0], []

    def search_in_made_time(lanes, sought, seconds, workers):
        assert 0 < seconds <= 1009.0 - now[0]
        asked.append((now[0] - 1000.0, seconds, sought.rounds * 4 / sought.chunks))
        now[0] += 1.0
        return ALGORITHMS["ring"](4) if len(asked) - 1 == in_vain else None

    monkeypatch.setattr(search_module, "find_schedule", search_in_made_time)
    monkeypatch.setattr(search_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    lanes, turnings = make_flow_network(make_topology("p3.8xlarge")), (1, 2)
    least, lines = rounds_lower_bound(lanes, 3, turnings, symmetry_groups(lanes)[0]), []
    best = search_module._find_best(lanes, 3, turnings, least, 9.0, 1, lines.append)
    easy = [number for number, line in enumerate(lines) if "rounds at most" in line]
    assert all(seconds <= 3.0 for _, seconds, _ in asked)
    if in_vain is None:
        assert best is None and easy == [6]
        assert all(began + seconds <= 6.0 for began, seconds, _ in asked[:6])
        assert asked[6][:2] == (6.0, 3.0)
    else:
        assert easy == [] and len(asked) == 9  # all nine seconds
        ratios = [ratio for *_, ratio in asked]
        assert best.rounds == pytest.approx(ratios[3]) and best.rounds > least.rounds + 1e-3
        assert max(ratios[4:]) < best.rounds  # nothing that would be no better
