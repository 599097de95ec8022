"""The search for schedules: right results on any links, lower bounds, symmetries, and Ctrl-C."""

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
from gluonlab.collectives.cost_model import estimate_cost
from gluonlab.collectives.lower_bounds import find_lower_bound
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


def search_briefly(topology):
    """Return the schedules found in as little time as the search needs on this machine."""
    for seconds in (0.03, 0.1, 1.0, 10.0):
        with suppress(ScheduleError):
            return synthesize(topology, seconds)
    return synthesize(topology, 100.0)


@examples(4, 5)
@given(mesh_topologies(most=3, lanes=2))
def test_a_found_schedule_is_correct_and_not_below_its_bounds(topology):
    front, bound = search_briefly(topology), find_lower_bound(topology)
    for result in front:
        assert has_correct_sums(result.schedule)
        assert result.rounds >= result.bound - 1e-6
        for size in (0, 10**4, 10**7):
            assert estimate_cost(result.schedule, topology, size).seconds >= bound.seconds(size) - 1e-12
    steps, rounds = zip(*((len(result.schedule.steps), result.rounds) for result in front))
    assert list(steps) == sorted(steps) and list(rounds) == sorted(rounds, reverse=True)


@examples(40)
@given(mesh_topologies(), st.sampled_from(SUMMED_ON_TREES), st.data())
def test_no_algorithm_undercuts_the_bound_of_its_steps(topology, name, data):
    """Each algorithm sums a chunk on a tree and then copies it; the test counts its rounds."""
    p = topology.world_size
    placed = ALGORITHMS[name](p).placed(data.draw(st.permutations(range(p))))
    network = make_flow_network(topology)
    if not {(t.src, t.dst) for step in placed.steps for t in step} <= set(network.pairs):
        network = make_flow_network(fully_connected(p, 1e-5, 1e9, 1e10))  # has a link for every pair
    lanes = {pair: link.lanes for link in network.shared_links for pair in link.pairs}
    messages = [Counter((t.src, t.dst) for t in step) for step in placed.steps]
    rounds = sum(max(count / lanes[pair] for pair, count in step.items()) for step in messages)
    steps = len(placed.steps)
    bound = rounds_lower_bound(network, steps, range(1, steps), symmetry_groups(network)[0])
    assert rounds * p / placed.chunks >= bound.rounds - 1e-6


@examples(40)
@given(unequal_topologies())
def test_pairs_half_as_fast_as_the_slowest_needed_pair_are_used(topology):
    p, speed_of = topology.world_size, {p: r.bytes_per_s for p, r in topology.routes.items()}

    def connect(pairs):
        reached = np.eye(p, dtype=int)
        reached[tuple(zip(*pairs))] = 1
        return (np.linalg.matrix_power(reached, p) > 0).all()

    needed = max(s for s in speed_of.values() if connect([q for q in speed_of if speed_of[q] >= s]))
    used = {pair for pair, speed in speed_of.items() if speed >= MIN_SPEED_RATIO * needed}
    assert set(make_flow_network(topology).pairs) == used


@examples(40)
@given(mesh_topologies(), st.data())
def test_symmetries_keep_every_pairs_lanes_and_change_no_bound(topology, data):
    network = make_flow_network(topology)
    lanes = {link.pairs[0]: link.lanes for link in network.shared_links}
    for renaming in permutations(range(topology.world_size)):
        same = all(lanes.get((renaming[src], renaming[dst])) == count for (src, dst), count in lanes.items())
        assert is_symmetry(network, renaming) == same
    assert all(is_symmetry(network, renaming) for group in symmetry_groups(network) for renaming in group)
    steps = network.min_reduce_steps + network.min_broadcast_steps + 1
    turning_points = range(network.min_reduce_steps, steps - network.min_broadcast_steps + 1)
    costs = [rounds_lower_bound(network, steps, turning_points, group).cost for group in symmetry_groups(network)]
    assert costs == pytest.approx([costs[0]] * len(costs), rel=1e-6)
    # a network with renamed devices has the renamed links
    other = make_flow_network(topology.subset(data.draw(st.permutations(range(topology.world_size)))))
    renaming = find_isomorphism(network, other)
    renamed = {
        SharedLink(tuple(sorted((renaming[src], renaming[dst]) for src, dst in pairs)), count)
        for pairs, count in network.shared_links
    }
    assert renamed == set(other.shared_links)


def test_a_p3_16xlarge_in_four_steps_is_proved_optimal():
    network = make_flow_network(make_topology("p3.16xlarge"))
    group = symmetry_groups(network)[0]
    assert sorted(group) == [tuple(rank ^ bits for rank in range(8)) for bits in (0, 1, 4, 5)]
    assert rounds_lower_bound(network, 4, (2,), group).rounds == pytest.approx(8 / 3)
    schedule = find_schedule(network, SearchGoal(12, 4, (2,), 4, group), 300, 1)
    assert has_correct_sums(schedule)
    assert all(op == ADD for step in schedule.steps[:2] for *_, op in step)
    assert find_schedule(network, SearchGoal(12, 4, (2,), 3, group), 300, 1) is None


def test_behind_a_switch_one_message_passes_a_port_in_a_step():
    [result] = synthesize(switch(3, 1e-5, 1e9), 300.0)
    assert result.is_optimal
    for step in result.schedule.steps:
        for ends in zip(*{(t.src, t.dst) for t in step}):
            assert len(set(ends)) == len(ends)


def test_a_schedule_is_found_even_if_the_bound_cannot_be_reached():
    """Links into device 0 are 64 times slower than the others."""
    routes = {(a, b): Route((Link(f"{a} to {b}", SPEED * (1 if b == 0 else 64)),), LATENCY) for a, b in all_pairs(4)}
    network = make_flow_network(Topology("slow into 0", 4, routes))
    bound = rounds_lower_bound(network, 2, (1,), symmetry_groups(network)[0])
    result = find_any_schedule(network, 2, (1,), bound, time.monotonic() + 300, 1, lambda line: None)
    assert has_correct_sums(result.schedule) and len(result.schedule.steps) == 2
    assert result.rounds == 2 >= bound.rounds  # a chunk for each device; a round for each step


def test_one_device_and_too_little_time_are_one_line():
    with pytest.raises(ScheduleError, match="choose a topology with at least two devices"):
        synthesize(make_topology("p3.2xlarge"), 1.0)
    with pytest.raises(
        ScheduleError, match=r"no schedule was found with a time limit of 1e-06 s for each number of steps"
    ):
        synthesize(make_topology("p3.8xlarge"), 1e-6)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_ctrl_c_stops_a_search_and_still_works_after_one(moment, monkeypatch):
    """The signal comes just before the solver starts, or with its first line of progress."""
    from ortools.sat.python.cp_model import CpSolver

    network = make_flow_network(make_topology("p3.16xlarge"))
    main, solve, unsent = threading.main_thread().ident, CpSolver.solve, [moment]

    def interrupt(line=""):
        if unsent:
            unsent.pop()
            signal.pthread_kill(main, signal.SIGINT)

    def solve_and_interrupt(solver, model):
        if moment == "before":
            interrupt()
        else:
            solver.parameters.log_search_progress = True
            solver.parameters.log_to_stdout = False
            solver.log_callback = interrupt
        return solve(solver, model)

    monkeypatch.setattr(CpSolver, "solve", solve_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        find_schedule(network, SearchGoal(24, 5, (2, 3), 7, symmetry_groups(network)[-1]), 3600, 1)  # takes minutes
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
        time.sleep(0)


@pytest.mark.parametrize("success", [3, None])
def test_a_third_of_the_time_is_for_easy_goals_until_a_schedule_is_found(success, monkeypatch):
    """Only searches move the clock, by a second each; the fourth finds a schedule, or none does.

    The fourth is for a ratio above the bound, which the searches with less symmetry may reach.
    """
    now, searches = [1000.0], []

    def search_for_a_second(network, goal, seconds, workers):
        assert 0 < seconds <= 1009.0 - now[0]
        searches.append((now[0] - 1000.0, seconds, goal.rounds * 4 / goal.chunks))
        now[0] += 1.0
        return ALGORITHMS["ring"](4) if len(searches) - 1 == success else None

    monkeypatch.setattr(search_module, "find_schedule", search_for_a_second)
    monkeypatch.setattr(search_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    network, turning_points, lines = make_flow_network(make_topology("p3.8xlarge")), (1, 2), []
    bound = rounds_lower_bound(network, 3, turning_points, symmetry_groups(network)[0])
    best = search_module._search_with_steps(network, 3, turning_points, bound, 9.0, 1, lines.append)
    easy = [number for number, line in enumerate(lines) if "rounds at most" in line]
    assert all(seconds <= 3.0 for _, seconds, _ in searches)
    if success is None:
        assert best is None and easy == [6]
        assert all(start + seconds <= 6.0 for start, seconds, _ in searches[:6])
        assert searches[6][:2] == (6.0, 3.0)
    else:
        assert easy == [] and len(searches) == 9  # all nine seconds
        ratios = [ratio for *_, ratio in searches]
        assert best.rounds == pytest.approx(ratios[3]) and best.rounds > bound.rounds + 1e-3
        assert max(ratios[4:]) < best.rounds  # no goal that would not be better
