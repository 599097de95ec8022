from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.collectives.cost_model import estimate_cost


def fastest(topology, size_bytes):
    """The cheapest Schedule for topology.world_size ranks.

    See ALGORITHMS, estimate_cost, Schedule.placed, topology.ring_order().
    """
    schedules = [algorithm(topology.world_size) for algorithm in ALGORITHMS.values()]
    schedules += [schedule.placed(topology.ring_order()) for schedule in schedules]
    return min(schedules, key=lambda schedule: estimate_cost(schedule, topology, size_bytes).seconds)
