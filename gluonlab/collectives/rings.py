"""The best order of devices for rings: the one whose busiest link has the least to do.

It is a Hamiltonian cycle.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Tuple

# About a second. Known machines need some hundred; on sixteen devices whose links all differ, as
# those of a file may, all orders would take minutes.
MOST_LOOKS = 200_000
MOST_DEVICES = 256  # of more there are none but uniform machines, whose orders are all alike
# seconds per byte of the busiest link, then what the pairs' bytes/s fall short of the fastest
# pair's
Cost = Tuple[float, float]


def best_ring(world_size: int, routes: Mapping[Tuple[int, int], Any]) -> List[int]:
    """The first of the best orders, device 0 in front. ``routes[src, dst]``: a `links.Route`.

    Depth first through all orders. Both parts of a cost only grow as a ring does, so what is no
    better than the best ring so far need not be finished; on uniform topologies that leaves about
    n² looks, on eight GPUs in a cube mesh some hundred. After MOST_LOOKS the best so far is taken;
    more than MOST_DEVICES stay as they are numbered.
    """
    if world_size > MOST_DEVICES:
        return list(range(world_size))
    fastest = max((route.bytes_per_s for route in routes.values()), default=0.0)
    lowest: Cost = (float("inf"), float("inf"))
    best_order = list(range(world_size))
    load: Dict[Any, int] = {}  # link -> how many of the ring's messages pass it
    looks = 0

    free = [device != 0 for device in range(world_size)]

    def visit(order: List[int], cost: Cost) -> None:
        nonlocal lowest, best_order
        if len(order) == world_size:
            whole = extended(order[-1], order[0], cost)
            pass_links(order[-1], order[0], -1)
            if whole < lowest:
                lowest, best_order = whole, list(order)
            return
        for device in range(world_size):
            if looks >= MOST_LOOKS:
                return
            if free[device]:
                longer = extended(order[-1], device, cost)
                if longer < lowest:
                    free[device] = False
                    visit([*order, device], longer)
                    free[device] = True
                pass_links(order[-1], device, -1)

    def extended(src: int, dst: int, cost: Cost) -> Cost:
        nonlocal looks
        looks += 1
        pass_links(src, dst, 1)
        route = routes[src, dst]
        busiest = max(load[link] / link.bytes_per_s for link in route.links)
        return max(cost[0], busiest), cost[1] + fastest - route.bytes_per_s

    def pass_links(src: int, dst: int, messages: int) -> None:
        for link in routes[src, dst].links:
            load[link] = load.get(link, 0) + messages

    if world_size > 1:
        visit([0], (0.0, 0.0))
    return best_order
