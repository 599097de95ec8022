"""The search for a schedule: what each chunk's trees are, by OR-tools' CP-SAT."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any, DefaultDict, Dict, List, NamedTuple, Optional, Sequence, Tuple

from gluonlab.collectives.links import Pair
from gluonlab.collectives.schedule import ADD, ALLREDUCE, COPY, Schedule, Transfer
from gluonlab.collectives.synthesis.automorphisms import Renaming, representatives
from gluonlab.collectives.synthesis.lanes import Lanes
from gluonlab.host.signals import delayed_signals

Slot = Tuple[Pair, int]  # a pair, and a step


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
