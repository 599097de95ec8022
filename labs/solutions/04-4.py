from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.collectives.cost_model import estimate_cost


def fastest(topology, size_bytes):
    """Return the Schedule for topology.world_size ranks with the lowest estimated time.

    Use ALGORITHMS, estimate_cost, Schedule.placed and topology.ring_order().
    """
    schedules = [algorithm(topology.world_size) for algorithm in ALGORITHMS.values()]
    schedules += [schedule.placed(topology.ring_order()) for schedule in schedules]
    return min(schedules, key=lambda schedule: estimate_cost(schedule, topology, size_bytes).seconds)
