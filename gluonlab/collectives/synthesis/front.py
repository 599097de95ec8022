"""The front of schedules: for each number of steps, the one with the fewest rounds a chunk."""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import Callable, Iterator, List, NamedTuple, Optional, Tuple

from gluonlab.collectives.check import check
from gluonlab.collectives.links import Topology
from gluonlab.collectives.schedule import Schedule
from gluonlab.collectives.synthesis.automorphisms import symmetries
from gluonlab.collectives.synthesis.lanes import Lanes, lanes_of
from gluonlab.collectives.synthesis.relaxation import Bound, bound
from gluonlab.collectives.synthesis.search import Sought, search
from gluonlab.errors import ScheduleError

MOST_CHUNKS = 64  # each costs an operation for every device that it passes
MORE_STEPS = 8  # beyond the fewest, at most
EQUAL = 1e-6  # rounds that differ by less are the same, rounded otherwise
WORTH = 0.005  # a step more must promise at least so much less moving


class Found(NamedTuple):
    """A schedule, its rounds, and the bound under all of as many steps, both as in `Bound`.

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
) -> List[Found]:
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
    front: List[Found] = []
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
    least: Bound,
    seconds: float,
    workers: int,
    told: Callable[[str], None],
) -> Optional[Found]:
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
            best = Found(made, ratio, least.moving)
            if best.optimal:
                break
    return best or anything(lanes, steps, turnings, least, until, workers, told)


def anything(
    lanes: Lanes,
    steps: int,
    turnings: Tuple[int, ...],
    least: Bound,
    until: float,
    workers: int,
    told: Callable[[str], None],
) -> Optional[Found]:
    """Any schedule of a chunk for each device, then ones of fewer rounds.

    That goes on until there is none, or none was found ``until`` then, of `time.monotonic`.
    """
    p, best = lanes.world_size, None
    group = next(group for group in symmetries(lanes) if p % len(group) == 0)
    rounds = p * p * steps  # all chunks over the same lane, in every step
    while rounds >= steps and until > time.monotonic():
        made = search(
            lanes, Sought(p, steps, turnings, rounds, group), until - time.monotonic(), workers
        )
        what = f"{steps} steps, {p} chunks, {rounds} rounds at most"
        told(f"{what}, {len(group)}-fold symmetry: {'found' if made else 'not found'}")
        if made is None:
            break
        check(made)
        best = Found(made, rounds_of(lanes, made), least.moving)
        rounds = round(best.rounds) - 1
    return best


def rounds_of(lanes: Lanes, schedule: Schedule) -> float:
    """As in `Bound`: of the busiest wire, summed over the steps, for each device's part."""
    rounds = 0
    for step in schedule.steps:
        chunks = Counter((t.src, t.dst) for t in step)
        rounds += max(-(-sum(chunks[p] for p in w.pairs) // w.lanes) for w in lanes.wires)
    return rounds * lanes.world_size / schedule.chunks


def _tries(
    lanes: Lanes, steps: int, turnings: Tuple[int, ...], least: Bound
) -> Iterator[Tuple[Sought, float]]:
    """What to look for, with its rounds as in `Bound`: the nearest to the bound first."""
    p = lanes.world_size
    for group in symmetries(lanes):
        tries = []
        for chunks in range(len(group), MOST_CHUNKS + 1, len(group)):
            rounds = max(steps, math.ceil(least.moving * chunks / p - EQUAL))
            tries.append((rounds * p / chunks, chunks, rounds))
        for ratio, chunks, rounds in sorted(tries):
            yield Sought(chunks, steps, turnings, rounds, group), ratio
