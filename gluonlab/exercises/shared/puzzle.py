"""A schedule to be written for a machine: the proof, the price, and the page that plays it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, FrozenSet, Optional, Tuple

from gluonlab.collectives.bounds import floor_of
from gluonlab.collectives.cost import Price, StepPrice, price
from gluonlab.collectives.schedule import ALLREDUCE, Schedule
from gluonlab.collectives.topology import Topology
from gluonlab.exercises.exercise import Wrong
from gluonlab.exercises.languages import language
from gluonlab.exercises.shared.counterexamples import NOTHING, Case, Pair
from gluonlab.exercises.shared.played import Played, microseconds, played, standing, unwritten
from gluonlab.exercises.shared.schedule_faults import (
    as_steps,
    at_place,
    check_proof,
    check_rules,
)

MOST_CHUNKS = 512  # of an answer; nothing is gained by more
ROUNDING = 1e-9  # relative: prices that differ by less are the same number
Answer = Callable[[], Any]  # the steps, each a list of Transfer(src, dst, chunk, op)


@dataclass(frozen=True)
class Puzzle:
    """A collective to be written for ``topology``, for a buffer of ``size_bytes`` on each device.

    ``call``: of the function that the learner writes. ``owner``: of each chunk; a single rank owns
    all chunks, of which there may be as many as the learner likes. ``pairs``: those (src, dst) that
    have a link, where not all have. ``optimum_s``: the price that no schedule can fall below, or
    None where that is not known.
    """

    call: str
    topology: Topology
    size_bytes: float
    collective: str = ALLREDUCE
    owner: Tuple[int, ...] = (0,)
    pairs: Optional[FrozenSet[Tuple[int, int]]] = None
    optimum_s: Optional[float] = None

    def schedule(self, answer: Answer) -> Schedule:
        """What ``answer`` gives, as it stands: its transfers obey the rules, no more.

        Raises Wrong, which names the first transfer that does not.
        """
        steps = as_steps(answer(), self.call)
        world_size, owner = self.topology.world_size, self.owner
        if len(owner) == 1:
            most = max((t.chunk for step in steps for t in step), default=0)
            owner *= min(max(most + 1, 1), MOST_CHUNKS)
        check_rules(self.call, world_size, len(owner), steps, NOTHING)
        if self.pairs is not None:
            self._check_pairs(steps, self.pairs)
        nonempty = tuple(step for step in steps if step)
        return Schedule(self.call, self.collective, world_size, len(owner), owner, nonempty)

    def _check_pairs(self, steps: Any, pairs: FrozenSet[Tuple[int, int]]) -> None:
        for number, step in enumerate(steps):
            for position, transfer in enumerate(step):
                src, dst = transfer.src, transfer.dst
                at_place(self.call, (number, position), transfer).check(
                    ((src, dst) not in pairs,
                     f"there is no link from {src} to {dst}",
                     f"{src} から {dst} へのリンクはありません"),
                )  # fmt: skip

    def proved(self, answer: Answer) -> Schedule:
        """The same, proved. Raises Wrong for a schedule that is not what it should be."""
        schedule = self.schedule(answer)
        check_proof(self.call, schedule)
        return schedule

    def price(self, schedule: Schedule) -> Price:
        """What it costs here."""
        return price(schedule, self.topology, self.size_bytes)

    def check_optimum(self, schedule: Schedule) -> None:
        """Raise Wrong for a schedule that costs more than the optimum."""
        cost, optimum = self.price(schedule), self.optimum_s or 0.0
        en, ja = in_words(cost)
        Case(self.call, self.call).check(
            (cost.seconds > optimum * (1 + ROUNDING),
             f"proved, but it costs {en}; {microseconds(optimum)} are possible"
             f"{costliest(cost)[0]}",
             f"正しいことは証明されましたが、{ja}かかります。{microseconds(optimum)} で済みます"
             f"{costliest(cost)[1]}"),
        )  # fmt: skip

    def play(self, answer: Answer, file: Optional[str] = None) -> Played:
        """The proof or its first fault, the price, and the page; ``file``: write that there, too.

        A notebook shows all three. A function that is not written yet gives a word about that.
        """
        try:
            schedule = self.schedule(answer)
        except NotImplementedError:
            return unwritten()
        except Wrong as wrong:  # it breaks a rule, and cannot be played
            return Played(wrong.texts[language()])
        try:
            check_proof(self.call, schedule)
        except Wrong as wrong:
            return played(schedule, [wrong.texts[language()]], file)
        least_s = self.optimum_s
        if least_s is None:
            least_s = floor_of(self.topology, self.collective).seconds(self.size_bytes)
        lines = standing(self.price(schedule), least_s, is_floor=self.optimum_s is None)
        return played(schedule, lines, file)


def in_words(cost: Price) -> Pair:
    """The price and the steps that it is the sum of."""
    steps = len(cost.steps)
    return (
        f"{microseconds(cost.seconds)} in {steps} step{'s' * (steps != 1)}",
        f"{steps} ステップで {microseconds(cost.seconds)} ",
    )


def costliest(cost: Price) -> Pair:
    """The step that takes longest, and what it waits for."""
    if not cost.steps:
        return NOTHING

    def seconds(number: int) -> float:
        return cost.steps[number].seconds

    number = max(range(len(cost.steps)), key=seconds)
    step: StepPrice = cost.steps[number]
    time = microseconds(step.seconds)
    alike = step.seconds <= min(map(seconds, range(len(cost.steps)))) * (1 + ROUNDING)
    if alike and len(cost.steps) > 1:
        first = cost.steps[0].bottleneck  # the longest but for rounding may be another step
        return (
            f". Each step takes {time}; step 0 waits for the link `{first}`",
            f"。どのステップも {time} です。ステップ 0 はリンク `{first}` を待っています",
        )
    return (
        f". Step {number} takes longest, {time}: it waits for the link `{step.bottleneck}`",
        f"。最も長いのはステップ {number} の {time} で、リンク `{step.bottleneck}` を待っています",
    )
