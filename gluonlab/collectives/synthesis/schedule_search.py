"""Searches for schedules for the links of a topology, and computes a lower bound.

For each number of steps, `synthesize` searches for the schedule with the fewest rounds per chunk.
`rounds_lower_bound` computes a lower bound on this number with linear programming. `find_schedule`
finds a schedule with OR-tools' CP-SAT solver. `gluonlab.collectives.synthesis` explains rounds,
lanes and turning points: a chunk is summed in the steps before its turning point, and copied from
that step on. ``turning_points`` are the steps that are allowed as turning points.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, defaultdict
from typing import Any, Callable, DefaultDict, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from gluonlab.collectives.schedule import ADD, ALLREDUCE, COPY, Schedule, Transfer
from gluonlab.collectives.synthesis.flow_network import (
    FlowNetwork,
    Permutation,
    make_flow_network,
    orbit_representatives,
    symmetry_groups,
)
from gluonlab.collectives.topology import Pair, Topology
from gluonlab.collectives.verify_schedule import verify
from gluonlab.errors import ScheduleError
from gluonlab.host.signals import delayed_signals

MAX_CHUNKS = 64  # each chunk costs an operation on every device that it passes
MAX_EXTRA_STEPS = 8  # more than the fewest steps
ROUNDS_TOLERANCE = 1e-6  # rounds that differ by less are equal up to rounding
MIN_IMPROVEMENT = 0.005  # relative: one more step must promise at least so many fewer rounds


Slot = Tuple[Pair, int]  # (pair, step)


class SynthesizedSchedule(NamedTuple):
    """A schedule, its rounds, and the lower bound on the rounds for its number of steps.

    The bound (`RoundBound`) holds for the flow network, in which only fast pairs send, and each
    link carries at most one message per step.
    """

    schedule: Schedule
    rounds: float
    bound: float

    @property
    def is_optimal(self) -> bool:
        """Return whether the schedule has the fewest rounds of all that sum before they copy."""
        return self.rounds <= self.bound + ROUNDS_TOLERANCE


def synthesize(
    topology: Topology, seconds: float, workers: int = 1, report: Optional[Callable[[str], None]] = None
) -> List[SynthesizedSchedule]:
    """Search for the Pareto-optimal schedules for ``topology``, in order of increasing steps.

    ``seconds``: the maximum time for each number of steps. ``workers``: the number of search
    threads. ``report``: a function that is called with a line for each attempt. Raises
    ScheduleError if no schedule is found, or if the latencies of messages differ.
    """
    if topology.world_size < 2:
        raise ScheduleError(
            f"{topology.name} has only {topology.world_size} device: choose a topology with at least two devices"
        )
    network = make_flow_network(topology)
    min_steps = network.min_reduce_steps + network.min_broadcast_steps
    front: List[SynthesizedSchedule] = []
    last_rounds = math.inf
    for steps in range(min_steps, min_steps + MAX_EXTRA_STEPS):
        turning_points = tuple(range(network.min_reduce_steps, steps - network.min_broadcast_steps + 1))
        lower_bound = rounds_lower_bound(network, steps, turning_points, symmetry_groups(network)[0])
        if lower_bound.rounds > last_rounds * (1 - MIN_IMPROVEMENT):
            break
        if math.isinf(lower_bound.rounds):  # so few steps do not suffice
            continue
        result = _search_with_steps(
            network, steps, turning_points, lower_bound, seconds, workers, report or (lambda line: None)
        )
        if result and (not front or result.rounds < front[-1].rounds - ROUNDS_TOLERANCE):
            front.append(result)
            last_rounds = lower_bound.rounds
    if not front:
        raise ScheduleError(
            f"{topology.name}: no schedule was found with a time limit of {seconds:g} s for each number of steps: "
            "increase the limit"
        )
    return front


def _search_with_steps(
    network: FlowNetwork,
    steps: int,
    turning_points: Tuple[int, ...],
    lower_bound: RoundBound,
    seconds: float,
    workers: int,
    report: Callable[[str], None],
) -> Optional[SynthesizedSchedule]:
    """Search for the schedule with this number of steps that comes closest to the lower bound.

    If no goal succeeds within the first two thirds of ``seconds``, the remaining time goes to
    `find_any_schedule`.
    """
    deadline, best = time.monotonic() + seconds, None
    for goal, rounds in _list_goals(network, steps, turning_points, lower_bound):
        seconds_left = deadline - time.monotonic() - (0 if best else seconds / 3)
        if seconds_left <= 0:
            break
        if best and rounds >= best.rounds - ROUNDS_TOLERANCE:
            continue
        schedule = find_schedule(network, goal, min(seconds_left, seconds / 3), workers)
        description = f"{steps} steps, {goal.chunks} chunks, {goal.rounds} rounds"
        report(f"{description}, {len(goal.group)}-fold symmetry: {'found' if schedule else 'not found'}")
        if schedule:
            verify(schedule)
            best = SynthesizedSchedule(schedule, rounds, lower_bound.rounds)
            if best.is_optimal:
                break
    return best or find_any_schedule(network, steps, turning_points, lower_bound, deadline, workers, report)


def find_any_schedule(
    network: FlowNetwork,
    steps: int,
    turning_points: Tuple[int, ...],
    lower_bound: RoundBound,
    deadline: float,
    workers: int,
    report: Callable[[str], None],
) -> Optional[SynthesizedSchedule]:
    """Find a schedule of ``steps`` steps with one chunk per device, then search for fewer rounds.

    Each further search requires fewer rounds. The searches end at ``deadline``, as measured by
    `time.monotonic`.
    """
    p, best = network.world_size, None
    group = next(group for group in symmetry_groups(network) if p % len(group) == 0)
    rounds = p * p * steps  # all chunks over the same lane, in every step
    while rounds >= steps and deadline > time.monotonic():
        goal = SearchGoal(p, steps, turning_points, rounds, group)
        schedule = find_schedule(network, goal, deadline - time.monotonic(), workers)
        description = f"{steps} steps, {p} chunks, {rounds} rounds at most"
        report(f"{description}, {len(group)}-fold symmetry: {'found' if schedule else 'not found'}")
        if schedule is None:
            break
        verify(schedule)
        per_step = (Counter((t.src, t.dst) for t in step) for step in schedule.steps)
        busiest = sum(
            max(-(-sum(chunks[pair] for pair in wire.pairs) // wire.lanes) for wire in network.shared_links)
            for chunks in per_step
        )
        # as in `RoundBound`: rounds of the busiest link, summed over steps, per part of a device
        best = SynthesizedSchedule(schedule, busiest * p / schedule.chunks, lower_bound.rounds)
        rounds = round(best.rounds) - 1
    return best


def _list_goals(
    network: FlowNetwork, steps: int, turning_points: Tuple[int, ...], lower_bound: RoundBound
) -> Iterator[Tuple[SearchGoal, float]]:
    """Yield goals of the search, each with its number of rounds in the unit of `RoundBound`.

    Goals with the largest symmetry group come first, and among these the goals with the fewest
    rounds.
    """
    p = network.world_size
    for group in symmetry_groups(network):
        goals = []
        for chunks in range(len(group), MAX_CHUNKS + 1, len(group)):
            rounds = max(steps, math.ceil(lower_bound.rounds * chunks / p - ROUNDS_TOLERANCE))
            goals.append((rounds * p / chunks, chunks, rounds))
        for bound_rounds, chunks, rounds in sorted(goals):
            yield SearchGoal(chunks, steps, turning_points, rounds, group), bound_rounds


# --- the lower bound: chunks that may be divided arbitrarily, by linear programming
#
# The transfers of all chunks with the same owner and turning point are added up as a flow. Every
# device except the owner receives the whole amount. It sends on at most the amount that it received
# before. The same holds backwards in time for the sums. Every schedule satisfies these constraints,
# with any number of chunks. So it has at least as many rounds as the best flow. The bound need not
# be tight, because the flow does not distinguish which half of a chunk a device has received.


class RoundBound(NamedTuple):
    """The lower bound on the rounds of an allreduce.

    In a round, each lane moves 1/p of the buffer, for p devices. ``cost``: the rounds plus the time
    of additions, in units of a round. The rounds and the cost are infinite if no schedule has so
    few steps.
    """

    rounds: float
    cost: float


def rounds_lower_bound(
    network: FlowNetwork, steps: int, turning_points: Sequence[int], group: Sequence[Permutation]
) -> RoundBound:
    """Return a lower bound on the rounds of schedules with these steps and turning points.

    The turning point of a chunk is the step at which its sum is complete and its copies begin.

    ``group``: a symmetry of the links. The average of an optimal flow over the group is an optimal
    flow that is symmetric. So only one owner of each orbit needs variables.
    """
    from ortools.linear_solver import pywraplp

    solver = pywraplp.Solver.CreateSolver("GLOP")
    load: DefaultDict[Slot, List[Any]] = defaultdict(list)
    additions: DefaultDict[Tuple[int, int], List[Any]] = defaultdict(list)
    amounts = []
    for owner in orbit_representatives(network.world_size, group):
        for turning in turning_points:
            amount = solver.NumVar(0, solver.infinity(), "")
            amounts.append(amount)
            for (src, dst), step, flow in _add_flow(solver, network, owner, amount, turning, steps):
                for permutation in group:
                    load[(permutation[src], permutation[dst]), step].append(flow)
            # a sum is a broadcast over reversed links, backwards in time
            for (dst, src), reversed_step, flow in _add_flow(solver, network, owner, amount, 0, turning, True):
                for permutation in group:
                    load[(permutation[src], permutation[dst]), turning - 1 - reversed_step].append(flow)
                    additions[permutation[dst], turning - 1 - reversed_step].append(flow)
    solver.Add(sum(amounts) * len(group) == network.world_size)
    rounds = [solver.NumVar(0, solver.infinity(), "") for _ in range(steps)]
    adding = [solver.NumVar(0, solver.infinity(), "") for _ in range(steps)]
    for link in network.shared_links:
        for step in range(steps):
            link_flows = [flow for pair in link.pairs for flow in load[pair, step]]
            solver.Add(sum(link_flows) <= link.lanes * rounds[step])
    for (_, step), amounts_added in additions.items():
        solver.Add(sum(amounts_added) <= adding[step])
    solver.Minimize(sum(rounds) + network.addition_rounds * sum(adding))
    if solver.Solve() != pywraplp.Solver.OPTIMAL:
        return RoundBound(math.inf, math.inf)
    return RoundBound(sum(variable.solution_value() for variable in rounds), solver.Objective().Value())


def _add_flow(
    solver: Any, network: FlowNetwork, owner: int, amount: Any, first: int, last: int, back: bool = False
) -> List[Tuple[Pair, int, Any]]:
    """Add variables for the flow of an owner's chunks to all devices, and return them.

    Each variable is returned as (pair, step, variable).

    ``amount``: the variable for the size of all these chunks. The flow uses the steps from
    ``first`` to ``last`` - 1. ``back``: whether to use the reversed pairs, as for sums.
    """
    pairs = [(dst, src) for src, dst in network.pairs] if back else network.pairs
    flow: Dict[Slot, Any] = {
        (pair, step): solver.NumVar(0, solver.infinity(), "")
        for pair in pairs
        for step in range(first, last)
        if pair[1] != owner and (step > first or pair[0] == owner)
    }
    incoming: DefaultDict[int, List[Slot]] = defaultdict(list)
    for slot in flow:
        incoming[slot[0][1]].append(slot)
    for device in range(network.world_size):
        if device != owner:
            solver.Add(sum(flow[slot] for slot in incoming[device]) == amount)
    for ((src, _), step), outgoing in flow.items():
        if src != owner:
            solver.Add(outgoing <= sum(flow[slot] for slot in incoming[src] if slot[1] < step))
    return [(pair, step, outgoing) for (pair, step), outgoing in flow.items()]


# --- the search for a schedule, the trees of each chunk, by CP-SAT


class SearchGoal(NamedTuple):
    """The properties of the schedule to find.

    ``rounds``: the maximum number of rounds of all steps.
    ``group``: the symmetry that is imposed on the schedule.
    """

    chunks: int
    steps: int
    turning_points: Tuple[int, ...]
    rounds: int
    group: Sequence[Permutation]


class _ChunkVariables(NamedTuple):
    """The Boolean variables of one chunk.

    ``owned``: for each (owner, turning point), whether the chunk has this owner and turning point.
    ``sums`` and ``copies``: for each (pair, step), whether the chunk is sent to be added, or
    copied.
    """

    owned: Dict[Tuple[int, int], Any]
    sums: Dict[Slot, Any]
    copies: Dict[Slot, Any]


def find_schedule(network: FlowNetwork, goal: SearchGoal, seconds: float, workers: int) -> Optional[Schedule]:
    """Return a schedule that meets ``goal``, or None if none is found in time.

    If a schedule is found, a second search reduces the number of consecutive additions.

    ``seconds``: the maximum time for each of the two searches. If several ``workers`` (threads)
    search at once, equal arguments may result in different schedules.
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    free_chunks = goal.chunks // len(goal.group)  # the other chunks are images of these
    chunks = [_add_chunk(model, network, goal) for _ in range(free_chunks)]
    _order_chunks(model, chunks)
    max_additions = _add_link_constraints(model, network, goal, chunks)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = workers
    # otherwise it catches SIGINT, and afterwards SIGINT kills the process without a message
    solver.parameters.catch_sigint_signal = False
    if not _solve(solver, model):
        return None
    # First any schedule, then fewer additions: together both take longer.
    variables = [variable for chunk in chunks for group in chunk for variable in group.values()]
    for variable in variables:
        model.add_hint(variable, solver.value(variable))
    first = _extract_schedule(network, goal, chunks, solver)
    model.minimize(sum(max_additions))
    return _extract_schedule(network, goal, chunks, solver) if _solve(solver, model) else first


def _solve(solver: Any, model: Any) -> bool:
    """Run the solver, and return whether it found a solution. Ctrl-C stops the search."""
    status: List[Any] = []
    # An event, because an interrupted Thread.join treats a running thread as stopped. With a
    # timeout, because without one Python may miss a signal just before it waits.
    ended = threading.Event()

    def solve() -> None:
        """Run the solver, and signal when it ends. This function runs in a separate thread."""
        try:
            status.append(solver.solve(model))
        finally:
            ended.set()

    # a separate thread, because Python handles signals only between its bytecodes
    thread = threading.Thread(target=solve, daemon=True)
    try:
        with delayed_signals():  # an interrupted start would leave the solver running
            thread.start()
        while not ended.wait(0.1):
            continue
    except BaseException:
        with delayed_signals():
            # repeatedly: a solver that has not started yet ignores the request
            while thread.ident is not None and not ended.wait(0.1):
                solver.stop_search()
        raise
    return bool(status) and solver.status_name(status[0]) in ("OPTIMAL", "FEASIBLE")


def _add_chunk(model: Any, network: FlowNetwork, goal: SearchGoal) -> _ChunkVariables:
    """Add the variables and constraints of one chunk to the model, and return the variables.

    The chunk's turning point is a step. Before this step, sums flow along a tree to the chunk's
    owner. From this step on, copies flow along a tree from the owner to all devices.
    """
    owners, turning_points = orbit_representatives(network.world_size, goal.group), goal.turning_points
    owned = {(r, k): model.new_bool_var("") for r in owners for k in turning_points}
    model.add_exactly_one(owned.values())
    sums, copies = (
        {(pair, step): model.new_bool_var("") for pair in network.pairs for step in steps}
        for steps in (range(max(turning_points)), range(min(turning_points), goal.steps))
    )
    is_owner = [
        sum(variable for (rank, _), variable in owned.items() if rank == device) for device in range(network.world_size)
    ]
    sent: DefaultDict[int, List[Slot]] = defaultdict(list)
    received: DefaultDict[int, List[Slot]] = defaultdict(list)
    for pair, step in sums:
        sent[pair[0]].append((pair, step))
    for pair, step in copies:
        received[pair[1]].append((pair, step))
    for device in range(network.world_size):
        model.add(sum(sums[slot] for slot in sent[device]) == 1 - is_owner[device])
        model.add(sum(copies[slot] for slot in received[device]) == 1 - is_owner[device])
    for ((_, dst), step), variable in sums.items():
        model.add(variable <= is_owner[dst] + sum(sums[s] for s in sent[dst] if s[1] > step))
    for ((src, _), step), variable in copies.items():
        model.add(variable <= is_owner[src] + sum(copies[s] for s in received[src] if s[1] < step))
    for turning in turning_points:
        turns = sum(variable for (_, k), variable in owned.items() if k == turning)
        late = [variable for (_, step), variable in sums.items() if step >= turning]
        early = [variable for (_, step), variable in copies.items() if step < turning]
        for variable in late + early:
            model.add(variable + turns <= 1)
    return _ChunkVariables(owned, sums, copies)


def _order_chunks(model: Any, chunks: Sequence[_ChunkVariables]) -> None:
    """Require that chunks are sorted by owner and turning point, since chunks are interchangeable.

    Without this constraint, the search would try all orders of the same chunks.
    """
    ranked = [sum(index * variable for index, variable in enumerate(chunk.owned.values())) for chunk in chunks]
    for previous, following in zip(ranked, ranked[1:]):
        model.add(previous <= following)


def _add_link_constraints(
    model: Any, network: FlowNetwork, goal: SearchGoal, chunks: Sequence[_ChunkVariables]
) -> List[Any]:
    """Constrain the load of the links, and return a variable for each step.

    The variable is the largest number of additions on one device.

    A link carries ``lanes`` chunks per round. In a step, a link that several pairs share carries
    the message of one pair only.
    """
    load: DefaultDict[Slot, List[Any]] = defaultdict(list)
    additions: DefaultDict[Tuple[int, int], List[Any]] = defaultdict(list)
    for chunk in chunks:
        for permutation in goal.group:
            for adds, slots in ((True, chunk.sums), (False, chunk.copies)):
                for ((src, dst), step), variable in slots.items():
                    load[(permutation[src], permutation[dst]), step].append(variable)
                    if adds:
                        additions[permutation[dst], step].append(variable)
    max_chunks = goal.rounds * max((link.lanes for link in network.shared_links), default=1)
    rounds = [model.new_int_var(0, goal.rounds, "") for _ in range(goal.steps)]
    max_additions = [model.new_int_var(0, goal.chunks * network.world_size, "") for _ in rounds]
    model.add(sum(rounds) <= goal.rounds)
    for link in network.shared_links:
        for step in range(goal.steps):
            link_chunks = [variable for pair in link.pairs for variable in load[pair, step]]
            model.add(sum(link_chunks) <= link.lanes * rounds[step])
    for (_, step), variables in additions.items():
        model.add(sum(variables) <= max_additions[step])
    exclusive_pairs = {link.pairs for link in network.shared_links if len(link.pairs) > 1}
    sharing_pairs = {pair for pairs in exclusive_pairs for pair in pairs}
    sends = {(pair, step): model.new_bool_var("") for pair in sharing_pairs for step in range(goal.steps)}
    for slot, sends_slot in sends.items():
        model.add(sum(load[slot]) <= max_chunks * sends_slot)
    for pairs in exclusive_pairs:
        for step in range(goal.steps):
            model.add_at_most_one(sends[pair, step] for pair in pairs)
    return max_additions


def _extract_schedule(
    network: FlowNetwork, goal: SearchGoal, chunks: Sequence[_ChunkVariables], solver: Any
) -> Schedule:
    """Return the schedule that the values of the solver's variables describe."""
    steps: List[List[Transfer]] = [[] for _ in range(goal.steps)]
    owner: List[int] = []
    for chunk in chunks:
        [(rank, _)] = [key for key, variable in chunk.owned.items() if solver.value(variable)]
        for permutation in goal.group:
            for op, slots in ((ADD, chunk.sums), (COPY, chunk.copies)):
                for ((src, dst), step), variable in slots.items():
                    if solver.value(variable):
                        steps[step].append(Transfer(permutation[src], permutation[dst], len(owner), op))
            owner.append(permutation[rank])
    step_tuples = tuple(tuple(sorted(step, key=lambda t: (t.chunk, t.src, t.dst))) for step in steps)
    return Schedule("synthesized", ALLREDUCE, network.world_size, len(owner), tuple(owner), step_tuples)
