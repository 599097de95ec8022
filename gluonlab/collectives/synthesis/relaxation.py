"""The bound from below: chunks that may be cut at will, by linear programming.

The transfers of all chunks with one owner and one turning point are summed up. Every device but the
owner receives as much of them as there is, and passes on at most what it had received before; the
same holds backwards for the sums. Whatever schedule there is satisfies this, with any number of
chunks, so its rounds are not fewer. It is a bound and no more: it does not know that two devices
may pass on the same half.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any, DefaultDict, Dict, List, NamedTuple, Sequence, Tuple

from gluonlab.collectives.links import Pair
from gluonlab.collectives.synthesis.automorphisms import Renaming, representatives
from gluonlab.collectives.synthesis.lanes import Lanes

Slot = Tuple[Pair, int]  # a pair, and a step


class Bound(NamedTuple):
    """Rounds that an allreduce takes at least.

    A round moves, over each lane, one part in ``world_size`` of the buffer. ``cost``: with the
    additions, in the time of rounds. Infinite where no schedule has so few steps.
    """

    moving: float
    cost: float


def bound(lanes: Lanes, steps: int, turnings: Sequence[int], group: Sequence[Renaming]) -> Bound:
    """The bound of all schedules with so many steps and these turning points.

    The best schedule, averaged over a symmetry, is as good, and symmetric: so it is enough to look
    at owners up to the ``group``.
    """
    from ortools.linear_solver import pywraplp

    solver = pywraplp.Solver.CreateSolver("GLOP")
    load: DefaultDict[Slot, List[Any]] = defaultdict(list)
    added: DefaultDict[Tuple[int, int], List[Any]] = defaultdict(list)
    amounts = []
    for owner in representatives(lanes.world_size, group):
        for turning in turnings:
            amount = solver.NumVar(0, solver.infinity(), "")
            amounts.append(amount)
            for (src, dst), step, part in _gather(solver, lanes, owner, amount, turning, steps):
                for of in group:
                    load[(of[src], of[dst]), step].append(part)
            # a sum is a gather on the reversed links, backwards in time
            for (dst, src), back, part in _gather(solver, lanes, owner, amount, 0, turning, True):
                for of in group:
                    load[(of[src], of[dst]), turning - 1 - back].append(part)
                    added[of[dst], turning - 1 - back].append(part)
    solver.Add(sum(amounts) * len(group) == lanes.world_size)
    rounds = [solver.NumVar(0, solver.infinity(), "") for _ in range(steps)]
    adding = [solver.NumVar(0, solver.infinity(), "") for _ in range(steps)]
    for wire in lanes.wires:
        for step in range(steps):
            passing = [part for pair in wire.pairs for part in load[pair, step]]
            solver.Add(sum(passing) <= wire.lanes * rounds[step])
    for (_, step), parts in added.items():
        solver.Add(sum(parts) <= adding[step])
    solver.Minimize(sum(rounds) + lanes.adding * sum(adding))
    if solver.Solve() != pywraplp.Solver.OPTIMAL:
        return Bound(math.inf, math.inf)
    return Bound(sum(each.solution_value() for each in rounds), solver.Objective().Value())


def _gather(
    solver: Any, lanes: Lanes, owner: int, amount: Any, first: int, last: int, back: bool = False
) -> List[Tuple[Pair, int, Any]]:
    """(pair, step, how much) of the owner's chunks on their way to all, from step to step."""
    pairs = [(dst, src) for src, dst in lanes.pairs] if back else lanes.pairs
    flow: Dict[Slot, Any] = {
        (pair, step): solver.NumVar(0, solver.infinity(), "")
        for pair in pairs
        for step in range(first, last)
        if pair[1] != owner and (step > first or pair[0] == owner)
    }
    into: DefaultDict[int, List[Slot]] = defaultdict(list)
    for slot in flow:
        into[slot[0][1]].append(slot)
    for device in range(lanes.world_size):
        if device != owner:
            solver.Add(sum(flow[slot] for slot in into[device]) == amount)
    for ((src, _), step), part in flow.items():
        if src != owner:
            solver.Add(part <= sum(flow[slot] for slot in into[src] if slot[1] < step))
    return [(pair, step, part) for (pair, step), part in flow.items()]
