"""Costs and lower bounds computed in plain Python and with NumPy are bit-identical."""

from unittest.mock import patch

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.schedule_reference import mutated_schedules
from support.topologies import topologies

from gluonlab.collectives import cost_model, lower_bounds
from gluonlab.collectives.algorithms import ALGORITHMS, make_schedule
from gluonlab.collectives.cost_model import estimate_costs
from gluonlab.collectives.lower_bounds import find_lower_bound
from gluonlab.collectives.named_topologies import TOPOLOGIES, make_topology
from gluonlab.collectives.schedule import COLLECTIVES

MODULES = ((cost_model, "MAX_PLAIN_TRANSFERS"), (lower_bounds, "MAX_PLAIN_RANKS"))
SIZES = [0, 1, 12_345, 10**8, 0.1]


def both_ways(compute):
    """Return the results of ``compute()`` in plain Python and with NumPy."""
    results = []
    for limit in (10**9, -1):
        with patch.object(*MODULES[0], limit), patch.object(*MODULES[1], limit):
            results.append(compute())
    return results


@given(topologies(most=6), st.data())
def test_costs_are_bit_identical(topology, data):
    schedule = make_schedule(data.draw(st.sampled_from([*ALGORITHMS])), topology.world_size)
    if schedule.steps:
        schedule, *_ = data.draw(mutated_schedules(schedule, possible=True))
    assume(all(transfer.src != transfer.dst for step in schedule.steps for transfer in step))
    plain, arrays = both_ways(lambda: estimate_costs(schedule, topology, SIZES))
    assert plain == arrays


@given(topologies(most=6), st.sampled_from(COLLECTIVES))
def test_lower_bounds_are_bit_identical(topology, collective):
    plain, arrays = both_ways(lambda: find_lower_bound(topology, collective))
    assert plain == arrays


@pytest.mark.parametrize("name", [*TOPOLOGIES, "p3.16xlarge*2"])
def test_known_machines_have_the_same_costs_and_bounds(name):
    topology = make_topology(name)

    def compute():
        schedules = [algorithm(topology.world_size) for algorithm in ALGORITHMS.values()]
        bounds = [find_lower_bound(topology, collective) for collective in COLLECTIVES]
        return [estimate_costs(schedule, topology, SIZES) for schedule in schedules], bounds

    plain, arrays = both_ways(compute)
    assert plain == arrays
