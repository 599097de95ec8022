"""The first fault of a schedule that was handed in, in both languages: its place, and what it is.

`gluonlab.collectives.check` finds it, and says it in English.
"""

from __future__ import annotations

from collections import Counter
from operator import index
from typing import Any, Iterable, List, Optional, Sequence, Tuple

from gluonlab.collectives.check import check as prove
from gluonlab.collectives.check import states
from gluonlab.collectives.render.scene import goal
from gluonlab.collectives.schedule import ADD, ALL_GATHER, OPS, REDUCE_SCATTER, Schedule, Transfer
from gluonlab.errors import ScheduleError
from gluonlab.exercises.exercise import Wrong
from gluonlab.exercises.shared.counterexamples import Case, Pair, looks_like, returned, wrong

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


def at_place(call: str, place: Tuple[int, int], transfer: Transfer) -> Case:
    """A transfer of what ``call`` returned; step and transfer are counted from 0."""
    step, position = place
    what = f"`{tuple(transfer)}`"
    return Case(
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
        return Case(call, call).wrong(
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


def _not_the_owners(place: Case, schedule: Schedule, last: Transfer, has: bool) -> Wrong:
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
