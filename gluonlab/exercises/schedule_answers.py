"""Schedules that learners write: their first fault, their price, and the page that plays them.

`gluonlab.collectives.verify_schedule` finds the fault, and says it in English; here both languages
name the transfer. A `Puzzle` asks for a schedule for a machine.
"""

from __future__ import annotations

import html
from collections import Counter
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any, Callable, FrozenSet, Iterable, List, Optional, Sequence, Tuple

from gluonlab.collectives.cost_model import Price, StepPrice, price
from gluonlab.collectives.lower_bounds import floor_of
from gluonlab.collectives.named_topologies import Topology
from gluonlab.collectives.render import as_page
from gluonlab.collectives.render.schedule_scene import goal
from gluonlab.collectives.schedule import (
    ADD,
    ALL_GATHER,
    ALLREDUCE,
    OPS,
    REDUCE_SCATTER,
    Schedule,
    Transfer,
)
from gluonlab.collectives.verify_schedule import check as prove
from gluonlab.collectives.verify_schedule import states
from gluonlab.errors import ScheduleError
from gluonlab.exercises.checkers import Wrong
from gluonlab.exercises.counterexamples import (
    NOTHING,
    CaseText,
    Pair,
    looks_like,
    returned,
    wrong,
)
from gluonlab.exercises.languages import language, say
from gluonlab.files.atomic_files import write_text
from gluonlab.plain_text import format_size

Steps = Tuple[Tuple[Transfer, ...], ...]


def as_steps(given: Any, call: str) -> Steps:
    """What ``call`` returned, a Schedule or its steps. Raises Wrong for what is neither."""
    if isinstance(given, Schedule):
        return given.steps
    if not _is_several(given):
        shown = given if given is None or len(repr(given)) < 80 else type(given)
        raise returned(shown, call, *_STEPS)
    return tuple(_as_step(step, call, number) for number, step in enumerate(given))


_STEPS = (
    "a list of steps, each a list of `Transfer(src, dst, chunk, op)`",
    "`Transfer(src, dst, chunk, op)` のリスト (ステップ) のリスト",
)


def _is_several(given: Any) -> bool:
    return isinstance(given, Iterable) and not isinstance(given, (str, dict))


def _as_step(given: Any, call: str, number: int) -> Tuple[Transfer, ...]:
    """A step's transfers. Raises Wrong for the first thing that is none."""
    alone = isinstance(given, tuple) and len(given) == len(Transfer._fields)
    if not _is_several(given) or (alone and isinstance(given[-1], str)):  # a transfer, not a list
        raise wrong(
            f"{call}: step {number} is {_shown(given)}, not a list: return {_STEPS[0]}",
            f"{call} のステップ {number} が {_shown(given)} で、リストではありません。"
            f"{_STEPS[1]}を返してください",
        )
    found = []
    for position, each in enumerate(given):
        try:
            src, dst, chunk, op = each
            found.append(Transfer(index(src), index(dst), index(chunk), op))
        except (TypeError, ValueError):
            raise wrong(
                f"{call}, step {number}, transfer {position} is {_shown(each)}, not "
                "`Transfer(src, dst, chunk, op)` with three integers and a word",
                f"{call} のステップ {number}、転送 {position} が {_shown(each)} です。"
                "`Transfer(src, dst, chunk, op)` の前の 3 つは整数、最後は文字列です",
            ) from None
    return tuple(found)


def _shown(given: Any) -> str:
    given = tuple(given) if isinstance(given, Transfer) else given
    text = repr(given)
    return f"`{text}`" if len(text) < 80 else f"a {type(given).__name__}"


def check_rules(
    call: str, world_size: int, chunks: int, steps: Sequence[Sequence[Transfer]], hint: Pair
) -> None:
    """Raise Wrong for the first transfer that breaks a rule of steps.

    ``hint``: what a number out of range often comes from.
    """
    for number, step in enumerate(steps):
        read, written = {(t.src, t.chunk) for t in step}, Counter((t.dst, t.chunk) for t in step)
        for position, transfer in enumerate(step):
            src, dst, chunk, op = transfer
            ranks = range(world_size)
            here = src in ranks and dst in ranks and chunk in range(chunks)
            at_place(call, (number, position), transfer).check(
                (op not in OPS,
                 "the operation is 'add' or 'copy'", "操作は 'add' か 'copy' です"),
                (not here,
                 f"ranks go from 0 to {world_size - 1}, chunks from 0 to {chunks - 1}{hint[0]}",
                 f"ランクは 0 から {world_size - 1} まで、チャンクは 0 から {chunks - 1} "
                 f"までです{hint[1]}"),
                (src == dst, "a rank cannot send to itself", "自分自身には送れません"),
                ((dst, chunk) in read,
                 f"chunk {chunk} of rank {dst} is written and read in one step, "
                 "so the result depends on who is first",
                 f"ランク {dst} のチャンク {chunk} を同じステップで書いて読んでいます。"
                 "順序によって結果が変わります"),
                (op != ADD and written[dst, chunk] > 1,
                 f"chunk {chunk} of rank {dst} is written by others in this step: "
                 "only additions may share a target",
                 f"ランク {dst} のチャンク {chunk} に同じステップで複数の書き込みがあります。"
                 "許されるのは加算どうしだけです"),
            )  # fmt: skip


def at_place(call: str, place: Tuple[int, int], transfer: Transfer) -> CaseText:
    """A transfer of what ``call`` returned; step and transfer are counted from 0."""
    step, position = place
    what = f"`{tuple(transfer)}`"
    return CaseText(
        f"{call}, step {step}, transfer {position}, {what}",
        f"{call} のステップ {step}、転送 {position}、{what}",
    )


def check_proof(call: str, schedule: Schedule) -> None:
    """Raise Wrong for a schedule that obeys the rules and is not what it should be.

    It names the first transfer that overwrites the last copy of a contribution, else that which
    `prove` names: the first that counts a contribution twice, or the last one into a chunk that
    ends incomplete.
    """
    try:
        prove(schedule)
    except ScheduleError as error:
        raise _named(call, schedule, error) from None


def _named(call: str, schedule: Schedule, error: ScheduleError) -> Wrong:
    every = list(states(schedule))
    lost = None if schedule.collective == ALL_GATHER else _first_lost(schedule, every)
    if lost is not None:
        return lost_at(call, schedule, *lost)
    if error.step is None or error.transfer is None:
        rank, chunk = _first_unfinished(schedule, every[-1])
        elsewhere = _elsewhere(schedule, every[-1], chunk)
        return CaseText(call, call).wrong(
            f"nothing is ever sent into chunk {chunk} of rank {rank}{elsewhere[0]}",
            f"ランク {rank} のチャンク {chunk} には何も送られていません{elsewhere[1]}",
        )
    transfer = schedule.steps[error.step][error.transfer]
    place = at_place(call, (error.step, error.transfer), transfer)
    rank, chunk = transfer.dst, transfer.chunk
    if schedule.collective != ALL_GATHER:
        twice = [r for r, count in enumerate(every[error.step + 1][rank][chunk]) if count > 1]
        if twice:
            return place.wrong(
                f"from here on chunk {chunk} of rank {rank} counts the contribution of rank "
                f"{_listed(twice)} more than once",
                f"ここから、ランク {rank} のチャンク {chunk} でランク {_listed(twice)} の寄与が"
                "重複しています",
            )
    if schedule.collective == ALL_GATHER:
        held = every[error.step][transfer.src][chunk]
        return _not_the_owners(place, schedule, transfer, held == goal(schedule, chunk))
    without = missing(every[-1][rank][chunk], goal(schedule, chunk))
    if without:
        elsewhere = _elsewhere(schedule, every[-1], chunk)
        return place.wrong(
            f"the last one into chunk {chunk} of rank {rank}, which ends without the contribution "
            f"of rank {_listed(without)}{elsewhere[0]}",
            f"これがランク {rank} のチャンク {chunk} への最後の書き込みですが、"
            f"ランク {_listed(without)} の寄与がありません{elsewhere[1]}",
        )
    return place.wrong(
        f"all contributions are there, but other ranks add up chunk {chunk} in another order, "
        "and so with other bits",
        f"すべての寄与がそろっていますが、チャンク {chunk} を足す順序がほかのランクと違うため、"
        "ビット単位では一致しません",
    )


def _not_the_owners(place: CaseText, schedule: Schedule, last: Transfer, has: bool) -> Wrong:
    """The counterexample of the last transfer into a chunk that ends with something else.

    ``has``: whether the rank that sends has it.
    """
    src, rank, chunk, op = last
    owner = schedule.owner[chunk]
    return place.wrong(
        f"the last one into chunk {chunk} of rank {rank}, which does not end as rank {owner}, its "
        "owner, had it",
        f"これがランク {rank} のチャンク {chunk} への最後の書き込みですが、"
        f"担当ランク {owner} が最初に持っていたものになりません",
        looks_like(
            (op == ADD, "it is added to what was there", "もとからあったものに足しています"),
            (not has,
             f"rank {src} does not have it yet in this step",
             f"このステップで、ランク {src} はまだそれを持っていません"),
        ),
    )  # fmt: skip


def lost_at(call: str, schedule: Schedule, place: Tuple[int, int], rank: int) -> Wrong:
    """The counterexample of a copy after which no rank holds what ``rank`` has contributed."""
    transfer = schedule.steps[place[0]][place[1]]
    chunk, dst = transfer.chunk, transfer.dst
    return at_place(call, place, transfer).wrong(
        f"the copy overwrites chunk {chunk} of rank {dst}, and the contribution of rank {rank}, "
        "which no other rank holds, is lost",
        f"このコピーがランク {dst} のチャンク {chunk} を上書きします。"
        f"ほかのどのランクも持っていないランク {rank} の寄与が失われます",
    )


def _first_lost(schedule: Schedule, every: Any) -> Optional[Tuple[Tuple[int, int], int]]:
    """The first copy that overwrites the last sum with some contribution, and whose that is."""
    for number, step in enumerate(schedule.steps):
        before, after = every[number], every[number + 1]
        for position, transfer in enumerate(step):
            if transfer.op == ADD:
                continue
            chunk = transfer.chunk
            for rank, count in enumerate(before[transfer.dst][chunk]):
                if count and not any(row[chunk][rank] for row in after):
                    return (number, position), rank
    return None


def missing(held: Sequence[int], whole: Sequence[int]) -> List[int]:
    """The ranks whose contribution a chunk lacks."""
    return [rank for rank, count in enumerate(held) if count < whole[rank]]


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))


def _first_unfinished(schedule: Schedule, last: Any) -> Tuple[int, int]:
    for chunk, owner in enumerate(schedule.owner):
        ranks = [owner] if schedule.collective == REDUCE_SCATTER else range(schedule.world_size)
        for rank in ranks:
            if last[rank][chunk] != goal(schedule, chunk):
                return rank, chunk
    raise AssertionError("the proof failed, and every chunk is complete")


def _elsewhere(schedule: Schedule, last: Any, chunk: int) -> Pair:
    """Where the whole sum of a reduce-scatter's chunk is instead."""
    whole = goal(schedule, chunk)
    found: Optional[int] = next(
        (rank for rank in range(schedule.world_size) if last[rank][chunk] == whole), None
    )
    if schedule.collective != REDUCE_SCATTER or found is None:
        return "", ""
    return (
        f"; the sum of chunk {chunk} is on rank {found} instead",
        f"。チャンク {chunk} の合計はランク {found} にあります",
    )


HEIGHT = 980  # px of the page in a notebook, which scrolls in it


@dataclass(frozen=True)
class Played:
    """``text`` in words, and ``page``, HTML that plays the schedule; None where there is none."""

    text: str
    page: Optional[str] = None

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        said = f'<pre style="white-space: pre-wrap">{html.escape(self.text)}</pre>'
        if self.page is None:
            return f"<div>{said}</div>"
        source = f'srcdoc="{html.escape(self.page)}" sandbox="allow-scripts"'
        frame = f'<iframe {source} width="100%" height="{HEIGHT}" style="border: 0"></iframe>'
        return f"<div>{said}{frame}</div>"


def unwritten() -> Played:
    """What is said of a stub."""
    return Played(
        say(
            en="not written yet: write the function, run its cell, then this one again",
            ja="まだ書かれていません。関数を書いてそのセルを実行し、"
            "このセルをもう一度実行してください",
        )
    )


def played(schedule: Schedule, lines: List[str], file: Optional[str]) -> Played:
    """``lines`` and the page, which is written to ``file``, too, if one is named."""
    try:
        page = as_page([schedule], (schedule.name, schedule.world_size), language=language())
    except ScheduleError as error:  # too large to draw
        return Played("\n".join([*lines, str(error)]))
    if file is not None:
        write_text(Path(file), page)
        lines = [*lines, say(en=f"written to {file}", ja=f"{file} に書き込みました")]
    return Played("\n".join(lines), page)


def standing(cost: Price, least_s: float, *, is_floor: bool) -> List[str]:
    """Of a proved schedule: its price, and ``least_s``, which is the floor or the optimum."""
    steps = len(cost.steps)
    size = format_size(int(cost.size_bytes)) if cost.size_bytes else ""
    time, least = microseconds(cost.seconds), microseconds(least_s)
    times = f"{cost.seconds / least_s:.3f}"
    lines = [
        say(en="proved: it does what it should", ja="証明済み: 求められた動作をします"),
        say(
            en=f"price: {time} in {steps} step{'s' * (steps != 1)}"
            + f", for {size} on each device" * bool(size),
            ja=f"見積もり: {steps} ステップで {time}" + f" (各デバイス {size})" * bool(size),
        ),
    ]
    if is_floor:
        en, ja = f"; the price is {times} times that", f"。見積もりはその {times} 倍です"
        return [*lines, say(en=f"floor: {least}{en}", ja=f"下限: {least}{ja}")]
    return [*lines, say(en=f"optimum: {least}", ja=f"最適値: {least}")]


def microseconds(seconds: float) -> str:
    """``1,598.3 µs``; whole ones without a point."""
    micros = round(seconds * 1e6, 1)
    return f"{micros:,.0f} µs" if micros == int(micros) else f"{micros:,.1f} µs"


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
        en, ja = price_in_words(cost)
        CaseText(self.call, self.call).check(
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


def price_in_words(cost: Price) -> Pair:
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
