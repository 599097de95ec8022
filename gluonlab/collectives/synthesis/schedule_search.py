"""The synthesis: the front of schedules for some links, its bound from below, and the search.

For each number of steps the front has the schedule with the fewest rounds a chunk (`synthesise`).
`bound` says by linear programming how few there can be, and `search` finds a schedule with CP-SAT
of OR-tools.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, defaultdict
from typing import (
    Any,
    Callable,
    DefaultDict,
    Dict,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

from gluonlab.collectives.schedule import ADD, ALLREDUCE, COPY, Schedule, Transfer
from gluonlab.collectives.synthesis.flow_network import (
    Lanes,
    Renaming,
    lanes_of,
    representatives,
    symmetries,
)
from gluonlab.collectives.topology import Pair, Topology
from gluonlab.collectives.verify_schedule import check
from gluonlab.errors import ScheduleError
from gluonlab.host.signals import delayed_signals

MOST_CHUNKS = 64  # each costs an operation for every device that it passes
MORE_STEPS = 8  # beyond the fewest, at most
EQUAL = 1e-6  # rounds that differ by less are the same, rounded otherwise
WORTH = 0.005  # a step more must promise at least so much less moving


Slot = Tuple[Pair, int]  # a pair, and a step


class SynthesizedSchedule(NamedTuple):
    """A schedule, its rounds, and the bound under all of as many steps, both as in `RoundBound`.

    The bound is for what `Lanes` knows: the fast pairs alone, and one message on a wire in a step.
    """

    schedule: Schedule
    rounds: float
    bound: float

    @property
    def optimal(self) -> bool:
        """Whether no schedule on these lanes that sums on trees and then copies has fewer."""
        return self.rounds <= self.bound + EQUAL


def synthesise(
    topology: Topology,
    seconds: float,
    workers: int = 1,
    told: Optional[Callable[[str], None]] = None,
) -> List[SynthesizedSchedule]:
    """The front for ``topology``, by rising number of steps.

    ``seconds``: for each number of steps. ``told``: gets a line for everything that is tried.
    Raises ScheduleError where there is nothing to find, or messages differ in latency.
    """
    if topology.world_size < 2:
        raise ScheduleError(
            f"{topology.name} has {topology.world_size} device: there is nothing to sum over; "
            "choose a topology of two or more"
        )
    lanes = lanes_of(topology)
    fewest = lanes.fewest_in + lanes.fewest_out
    front: List[SynthesizedSchedule] = []
    promised = math.inf
    for steps in range(fewest, fewest + MORE_STEPS):
        turnings = tuple(range(lanes.fewest_in, steps - lanes.fewest_out + 1))
        least = bound(lanes, steps, turnings, symmetries(lanes)[0])
        if least.moving > promised * (1 - WORTH):
            break
        if math.isinf(least.moving):  # so few steps do not suffice
            continue
        found = _best(lanes, steps, turnings, least, seconds, workers, told or (lambda line: None))
        if found and (not front or found.rounds < front[-1].rounds - EQUAL):
            front.append(found)
            promised = least.moving
    if not front:
        raise ScheduleError(
            f"{topology.name}: no schedule was found in {seconds:g} s for each number of steps: "
            "give more time"
        )
    return front


def _best(
    lanes: Lanes,
    steps: int,
    turnings: Tuple[int, ...],
    least: RoundBound,
    seconds: float,
    workers: int,
    told: Callable[[str], None],
) -> Optional[SynthesizedSchedule]:
    """What comes nearest to the bound, in so many seconds; a third is for what is easy to find."""
    until, best = time.monotonic() + seconds, None
    for sought, ratio in _tries(lanes, steps, turnings, least):
        left = until - time.monotonic() - (0 if best else seconds / 3)
        if left <= 0:
            break
        if best and ratio >= best.rounds - EQUAL:
            continue
        made = search(lanes, sought, min(left, seconds / 3), workers)
        what = f"{steps} steps, {sought.chunks} chunks, {sought.rounds} rounds"
        told(f"{what}, {len(sought.group)}-fold symmetry: {'found' if made else 'not found'}")
        if made:
            check(made)
            best = SynthesizedSchedule(made, ratio, least.moving)
            if best.optimal:
                break
    return best or anything(lanes, steps, turnings, least, until, workers, told)


def anything(
    lanes: Lanes,
    steps: int,
    turnings: Tuple[int, ...],
    least: RoundBound,
    until: float,
    workers: int,
    told: Callable[[str], None],
) -> Optional[SynthesizedSchedule]:
    """Any schedule of a chunk for each device, then ones of fewer rounds.

    That goes on until there is none, or none was found ``until`` then, of `time.monotonic`.
    """
    p, best = lanes.world_size, None
    group = next(group for group in symmetries(lanes) if p % len(group) == 0)
    rounds = p * p * steps  # all chunks over the same lane, in every step
    while rounds >= steps and until > time.monotonic():
        sought = Sought(p, steps, turnings, rounds, group)
        made = search(lanes, sought, until - time.monotonic(), workers)
        what = f"{steps} steps, {p} chunks, {rounds} rounds at most"
        told(f"{what}, {len(group)}-fold symmetry: {'found' if made else 'not found'}")
        if made is None:
            break
        check(made)
        per_step = (Counter((t.src, t.dst) for t in step) for step in made.steps)
        busiest = sum(
            max(-(-sum(chunks[pair] for pair in wire.pairs) // wire.lanes) for wire in lanes.wires)
            for chunks in per_step
        )
        # as in `RoundBound`: of the busiest wire, summed over the steps, for each device's part
        best = SynthesizedSchedule(made, busiest * p / made.chunks, least.moving)
        rounds = round(best.rounds) - 1
    return best


def _tries(
    lanes: Lanes, steps: int, turnings: Tuple[int, ...], least: RoundBound
) -> Iterator[Tuple[Sought, float]]:
    """What to look for, with its rounds as in `RoundBound`: the nearest to the bound first."""
    p = lanes.world_size
    for group in symmetries(lanes):
        tries = []
        for chunks in range(len(group), MOST_CHUNKS + 1, len(group)):
            rounds = max(steps, math.ceil(least.moving * chunks / p - EQUAL))
            tries.append((rounds * p / chunks, chunks, rounds))
        for ratio, chunks, rounds in sorted(tries):
            yield Sought(chunks, steps, turnings, rounds, group), ratio


# --- the bound from below: chunks that may be cut at will, by linear programming
#
# The transfers of all chunks with one owner and one turning point are summed up. Every device but
# the owner receives as much of them as there is, and passes on at most what it had received before;
# the same holds backwards for the sums. Whatever schedule there is satisfies this, with any number
# of chunks, so its rounds are not fewer. It is a bound and no more: it does not know that two
# devices may pass on the same half.


class RoundBound(NamedTuple):
    """Rounds that an allreduce takes at least.

    A round moves, over each lane, one part in ``world_size`` of the buffer. ``cost``: with the
    additions, in the time of rounds. Infinite where no schedule has so few steps.
    """

    moving: float
    cost: float


def bound(
    lanes: Lanes, steps: int, turnings: Sequence[int], group: Sequence[Renaming]
) -> RoundBound:
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
        return RoundBound(math.inf, math.inf)
    return RoundBound(sum(each.solution_value() for each in rounds), solver.Objective().Value())


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


# --- the search for a schedule: what the trees of each chunk are, by CP-SAT


class Sought(NamedTuple):
    """A schedule of so many chunks and steps, with at most so many rounds in all."""

    chunks: int
    steps: int
    turnings: Tuple[int, ...]
    rounds: int
    group: Sequence[Renaming]


class _Chunk(NamedTuple):
    """What may happen to one chunk: its owner and turning point, sums, and copies."""

    owned: Dict[Tuple[int, int], Any]  # by owner and turning point
    sums: Dict[Slot, Any]
    copies: Dict[Slot, Any]


def search(lanes: Lanes, sought: Sought, seconds: float, workers: int) -> Optional[Schedule]:
    """A schedule, with few additions one after the other, or None where none was found.

    ``seconds`` at most for the schedule, and again for the additions. The same arguments may give
    another schedule where several ``workers`` search at once.
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    drawn = sought.chunks // len(sought.group)  # the others are their images
    chunks = [_chunk(model, lanes, sought) for _ in range(drawn)]
    _in_order(model, chunks)
    adding = _shared(model, lanes, sought, chunks)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = workers
    # else it catches SIGINT, and leaves it to end the process without a word for ever after
    solver.parameters.catch_sigint_signal = False
    if not _solved(solver, model):
        return None
    # Any schedule first, then the additions: sought together, both take longer.
    variables = [each for chunk in chunks for part in chunk for each in part.values()]
    for each in variables:
        model.add_hint(each, solver.value(each))
    first = _schedule(lanes, sought, chunks, solver)
    model.minimize(sum(adding))
    return _schedule(lanes, sought, chunks, solver) if _solved(solver, model) else first


def _solved(solver: Any, model: Any) -> bool:
    """Whether there is a solution. Ctrl-C ends the search, as it ends everything else."""
    status: List[Any] = []
    # An interrupted Thread.join takes a running thread for a stopped one. Without a timeout Python
    # may miss a signal that comes just before it waits.
    ended = threading.Event()

    def solve() -> None:
        try:
            status.append(solver.solve(model))
        finally:
            ended.set()

    # a thread of its own: Python hears of signals between its own lines alone
    thread = threading.Thread(target=solve, daemon=True)
    try:
        with delayed_signals():  # an interrupted start would leave a running solver
            thread.start()
        while not ended.wait(0.1):
            continue
    except BaseException:
        with delayed_signals():
            # a solver that has not begun forgets that it was stopped
            while thread.ident is not None and not ended.wait(0.1):
                solver.stop_search()
        raise
    return bool(status) and solver.status_name(status[0]) in ("OPTIMAL", "FEASIBLE")


def _chunk(model: Any, lanes: Lanes, sought: Sought) -> _Chunk:
    """A tree on which it is summed up on its owner, and then one on which it is copied to all."""
    owners, turnings = representatives(lanes.world_size, sought.group), sought.turnings
    owned = {(r, k): model.new_bool_var("") for r in owners for k in turnings}
    model.add_exactly_one(owned.values())
    sums, copies = (
        {(pair, step): model.new_bool_var("") for pair in lanes.pairs for step in steps}
        for steps in (range(max(turnings)), range(min(turnings), sought.steps))
    )
    is_owner = [
        sum(each for (rank, _), each in owned.items() if rank == device)
        for device in range(lanes.world_size)
    ]
    sent: DefaultDict[int, List[Slot]] = defaultdict(list)
    received: DefaultDict[int, List[Slot]] = defaultdict(list)
    for pair, step in sums:
        sent[pair[0]].append((pair, step))
    for pair, step in copies:
        received[pair[1]].append((pair, step))
    for device in range(lanes.world_size):
        model.add(sum(sums[slot] for slot in sent[device]) == 1 - is_owner[device])
        model.add(sum(copies[slot] for slot in received[device]) == 1 - is_owner[device])
    for ((_, dst), step), each in sums.items():
        model.add(each <= is_owner[dst] + sum(sums[s] for s in sent[dst] if s[1] > step))
    for ((src, _), step), each in copies.items():
        model.add(each <= is_owner[src] + sum(copies[s] for s in received[src] if s[1] < step))
    for turning in turnings:
        turns = sum(each for (_, k), each in owned.items() if k == turning)
        late = [each for (_, step), each in sums.items() if step >= turning]
        early = [each for (_, step), each in copies.items() if step < turning]
        for each in late + early:
            model.add(each + turns <= 1)
    return _Chunk(owned, sums, copies)


def _in_order(model: Any, chunks: Sequence[_Chunk]) -> None:
    """Chunks that differ in nothing have an order, so that the search sees each set once."""
    ranked = [
        sum(place * each for place, each in enumerate(chunk.owned.values())) for chunk in chunks
    ]
    for one, following in zip(ranked, ranked[1:]):
        model.add(one <= following)


def _shared(model: Any, lanes: Lanes, sought: Sought, chunks: Sequence[_Chunk]) -> List[Any]:
    """What all chunks share: wires, each with one message in a step, and devices that add.

    The most additions of any device, by step.
    """
    load: DefaultDict[Slot, List[Any]] = defaultdict(list)
    added: DefaultDict[Tuple[int, int], List[Any]] = defaultdict(list)
    for chunk in chunks:
        for of in sought.group:
            for adds, slots in ((True, chunk.sums), (False, chunk.copies)):
                for ((src, dst), step), each in slots.items():
                    load[(of[src], of[dst]), step].append(each)
                    if adds:
                        added[of[dst], step].append(each)
    most = sought.rounds * max((wire.lanes for wire in lanes.wires), default=1)
    rounds = [model.new_int_var(0, sought.rounds, "") for _ in range(sought.steps)]
    adding = [model.new_int_var(0, sought.chunks * lanes.world_size, "") for _ in rounds]
    model.add(sum(rounds) <= sought.rounds)
    for wire in lanes.wires:
        for step in range(sought.steps):
            passing = [each for pair in wire.pairs for each in load[pair, step]]
            model.add(sum(passing) <= wire.lanes * rounds[step])
    for (_, step), each in added.items():
        model.add(sum(each) <= adding[step])
    alone = {wire.pairs for wire in lanes.wires if len(wire.pairs) > 1}
    shared = {pair for pairs in alone for pair in pairs}
    sends = {
        (pair, step): model.new_bool_var("") for pair in shared for step in range(sought.steps)
    }
    for slot, each in sends.items():
        model.add(sum(load[slot]) <= most * each)
    for pairs in alone:
        for step in range(sought.steps):
            model.add_at_most_one(sends[pair, step] for pair in pairs)
    return adding


def _schedule(lanes: Lanes, sought: Sought, chunks: Sequence[_Chunk], solver: Any) -> Schedule:
    steps: List[List[Transfer]] = [[] for _ in range(sought.steps)]
    owner: List[int] = []
    for chunk in chunks:
        [(rank, _)] = [key for key, each in chunk.owned.items() if solver.value(each)]
        for of in sought.group:
            for op, slots in ((ADD, chunk.sums), (COPY, chunk.copies)):
                for ((src, dst), step), each in slots.items():
                    if solver.value(each):
                        steps[step].append(Transfer(of[src], of[dst], len(owner), op))
            owner.append(of[rank])
    made = tuple(tuple(sorted(step, key=lambda t: (t.chunk, t.src, t.dst))) for step in steps)
    return Schedule("synthesised", ALLREDUCE, lanes.world_size, len(owner), tuple(owner), made)
