"""Check the schedules that learners write, compute their costs, and animate them.

`gluonlab.collectives.verify_schedule` finds the error in a schedule. This module describes the
wrong transfer and the reason, in English and Japanese. A `Puzzle` is the task of writing a schedule
for a given machine.

A schedule is verified by `gluonlab.collectives.verify_schedule`, and its cost is estimated by
`gluonlab.collectives.cost_model`.
"""

from __future__ import annotations

import html
from collections import Counter
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any, Callable, FrozenSet, Iterable, List, Optional, Sequence, Tuple

from gluonlab.collectives.cost_model import ScheduleCost, StepCost, estimate_cost
from gluonlab.collectives.lower_bounds import find_lower_bound
from gluonlab.collectives.named_topologies import Topology
from gluonlab.collectives.render import as_page
from gluonlab.collectives.render.schedule_scene import complete_contributions
from gluonlab.collectives.schedule import ADD, ALL_GATHER, ALLREDUCE, OPS, REDUCE_SCATTER, Schedule, Transfer
from gluonlab.collectives.verify_schedule import simulate_contributions, verify
from gluonlab.errors import ScheduleError
from gluonlab.exercises.exercise_registry import Wrong
from gluonlab.exercises.explain_wrong_answers import (
    NO_TEXT,
    CaseText,
    TextPair,
    counterexample,
    pick_explanation,
    wrong_return,
)
from gluonlab.exercises.languages import choose_text, language
from gluonlab.files.atomic_files import write_text
from gluonlab.plain_text import format_size

Steps = Tuple[Tuple[Transfer, ...], ...]


def read_steps(returned: Any, call: str) -> Steps:
    """Convert an answer's return value to steps. The value is a Schedule or a list of steps.

    ``call``: the call as text, such as ``gather()``, for messages. Raises Wrong for other values.
    """
    if isinstance(returned, Schedule):
        return returned.steps
    if not _is_collection(returned):
        shown_value = returned if returned is None or len(repr(returned)) < 80 else type(returned)
        raise wrong_return(shown_value, call, *_STEPS_TEXTS)
    return tuple(_read_step(step, call, number) for number, step in enumerate(returned))


_STEPS_TEXTS = (
    "a list of steps, each a list of `Transfer(src, dst, chunk, op)`",
    "`Transfer(src, dst, chunk, op)` のリスト (ステップ) のリスト",
)


def _is_collection(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, (str, dict))


def _read_step(step: Any, call: str, number: int) -> Tuple[Transfer, ...]:
    """Return the transfers of step ``number``. Raises Wrong for a value that is not a transfer."""
    is_transfer = isinstance(step, tuple) and len(step) == len(Transfer._fields)
    if not _is_collection(step) or (is_transfer and isinstance(step[-1], str)):  # a single transfer instead of a list
        raise counterexample(
            f"{call}: step {number} is {_format_value(step)}, not a list: return {_STEPS_TEXTS[0]}",
            f"{call} のステップ {number} が {_format_value(step)} で、リストではありません。"
            f"{_STEPS_TEXTS[1]}を返してください",
        )
    transfers = []
    for position, item in enumerate(step):
        try:
            src, dst, chunk, op = item
            transfers.append(Transfer(index(src), index(dst), index(chunk), op))
        except (TypeError, ValueError):
            raise counterexample(
                f"{call}, step {number}, transfer {position} is {_format_value(item)}, not "
                "`Transfer(src, dst, chunk, op)` with three integers and the name of an operation",
                f"{call} のステップ {number}、転送 {position} が {_format_value(item)} です。"
                "`Transfer(src, dst, chunk, op)` の前の 3 つは整数、最後は文字列です",
            ) from None
    return tuple(transfers)


def _format_value(value: Any) -> str:
    value = tuple(value) if isinstance(value, Transfer) else value
    text = repr(value)
    return f"`{text}`" if len(text) < 80 else f"a {type(value).__name__}"


def check_step_rules(
    call: str, world_size: int, chunks: int, steps: Sequence[Sequence[Transfer]], hint: TextPair
) -> None:
    """Raise Wrong for the first transfer that breaks a rule for schedules.

    The rules exclude unknown ranks, chunks and operations, transfers from a rank to itself, and
    data races in a step. ``chunks``: the number of chunks. ``hint``: texts to append to the message
    about a rank or chunk that is out of range, such as the usual reason.
    """
    for number, step in enumerate(steps):
        read, written = {(t.src, t.chunk) for t in step}, Counter((t.dst, t.chunk) for t in step)
        for position, transfer in enumerate(step):
            src, dst, chunk, op = transfer
            ranks = range(world_size)
            in_range = src in ranks and dst in ranks and chunk in range(chunks)
            describe_transfer(call, (number, position), transfer).check_faults(
                (op not in OPS, "the operation is 'add' or 'copy'", "操作は 'add' か 'copy' です"),
                (not in_range, f"ranks go from 0 to {world_size - 1}, chunks from 0 to {chunks - 1}{hint[0]}",
                 f"ランクは 0 から {world_size - 1} まで、チャンクは 0 から {chunks - 1} までです{hint[1]}"),
                (src == dst, "a rank cannot send to itself", "自分自身には送れません"),
                ((dst, chunk) in read,
                 f"chunk {chunk} of rank {dst} is written and read in one step, so the result depends on which "
                     "happens first",
                 f"ランク {dst} のチャンク {chunk} を同じステップで書いて読んでいます。順序によって結果が変わります"),
                (op != ADD and written[dst, chunk] > 1,
                 f"chunk {chunk} of rank {dst} is also written by another transfer in this step: only additions may "
                     "share a target",
                 f"ランク {dst} のチャンク {chunk} に同じステップで複数の書き込みがあります。"
                 "許されるのは加算どうしだけです"),
            )  # fmt: skip


def describe_transfer(call: str, place: Tuple[int, int], transfer: Transfer) -> CaseText:
    """Describe a transfer. ``place``: (step, index in the step), both counted from 0."""
    step, position = place
    shown_transfer = f"`{tuple(transfer)}`"
    return CaseText(
        f"{call}, step {step}, transfer {position}, {shown_transfer}",
        f"{call} のステップ {step}、転送 {position}、{shown_transfer}",
    )


def check_proof(call: str, schedule: Schedule) -> None:
    """Raise Wrong unless the schedule computes its collective.

    The error names the first of these transfers that exists:

    - the first transfer that overwrites the last copy of a rank's contribution,
    - the first transfer that counts a contribution twice,
    - the last transfer into a chunk whose final value is incomplete.
    """
    try:
        verify(schedule)
    except ScheduleError as error:
        raise _explain_failed_proof(call, schedule, error) from None


def _explain_failed_proof(call: str, schedule: Schedule, error: ScheduleError) -> Wrong:
    """Return a counterexample for a schedule that `verify` rejects with this ``error``."""
    all_states = list(simulate_contributions(schedule))
    lost_place = None if schedule.collective == ALL_GATHER else _find_lost_contribution(schedule, all_states)
    if lost_place is not None:
        return explain_lost_contribution(call, schedule, *lost_place)
    if error.step is None or error.transfer is None:
        rank, chunk = _find_unfinished_chunk(schedule, all_states[-1])
        elsewhere = _locate_sum(schedule, all_states[-1], chunk)
        return CaseText(call, call).counterexample(
            f"no transfer ever writes chunk {chunk} of rank {rank}{elsewhere[0]}",
            f"ランク {rank} のチャンク {chunk} には何も送られていません{elsewhere[1]}",
        )
    transfer = schedule.steps[error.step][error.transfer]
    transfer_case = describe_transfer(call, (error.step, error.transfer), transfer)
    rank, chunk = transfer.dst, transfer.chunk
    if schedule.collective != ALL_GATHER:
        counted_twice = [r for r, count in enumerate(all_states[error.step + 1][rank][chunk]) if count > 1]
        if counted_twice:
            return transfer_case.counterexample(
                f"from here on chunk {chunk} of rank {rank} contains the contribution of rank "
                f"{_join_ranks(counted_twice)} more than once",
                f"ここから、ランク {rank} のチャンク {chunk} でランク {_join_ranks(counted_twice)} "
                "の寄与が重複しています",
            )
    if schedule.collective == ALL_GATHER:
        sent_state = all_states[error.step][transfer.src][chunk]
        return _explain_wrong_copy(
            transfer_case, schedule, transfer, sent_state == complete_contributions(schedule, chunk)
        )
    missing = missing_ranks(all_states[-1][rank][chunk], complete_contributions(schedule, chunk))
    if missing:
        elsewhere = _locate_sum(schedule, all_states[-1], chunk)
        return transfer_case.counterexample(
            f"the last transfer into chunk {chunk} of rank {rank}, but the contribution of rank "
            f"{_join_ranks(missing)} is still missing{elsewhere[0]}",
            f"これがランク {rank} のチャンク {chunk} への最後の書き込みですが、"
            f"ランク {_join_ranks(missing)} の寄与がありません{elsewhere[1]}",
        )
    return transfer_case.counterexample(
        f"all contributions are there, but other ranks add up chunk {chunk} in another order, so the results are not "
        "bit-identical",
        f"すべての寄与がそろっていますが、チャンク {chunk} を足す順序がほかのランクと違うため、"
        "ビット単位では一致しません",
    )


def _explain_wrong_copy(place: CaseText, schedule: Schedule, last: Transfer, has: bool) -> Wrong:
    """Return a counterexample for an all-gather that leaves the wrong content in a chunk.

    ``last``: the last transfer into the chunk. ``has``: whether the sender had the right content.
    """
    src, rank, chunk, op = last
    owner = schedule.owner[chunk]
    return place.counterexample(
        f"the last transfer into chunk {chunk} of rank {rank}, but the chunk is not the same as on its owner, rank "
            f"{owner}",
        f"これがランク {rank} のチャンク {chunk} への最後の書き込みですが、"
        f"担当ランク {owner} が最初に持っていたものになりません",
        pick_explanation(
            (op == ADD, 'this transfer adds to the old content: use "copy"', "もとからあったものに足しています"),
            (not has, f"rank {src} does not have it yet in this step",
             f"このステップで、ランク {src} はまだそれを持っていません"),
        ),
    )  # fmt: skip


def explain_lost_contribution(call: str, schedule: Schedule, place: Tuple[int, int], rank: int) -> Wrong:
    """Return a counterexample for a transfer that overwrites the last copy of a contribution.

    ``rank``: the rank whose contribution is lost. ``place``: (step, index in the step) of the
    transfer.
    """
    transfer = schedule.steps[place[0]][place[1]]
    chunk, dst = transfer.chunk, transfer.dst
    return describe_transfer(call, place, transfer).counterexample(
        f"the copy overwrites chunk {chunk} of rank {dst}, so the contribution of rank {rank} is lost: no other rank "
        "has it",
        f"このコピーがランク {dst} のチャンク {chunk} を上書きします。"
        f"ほかのどのランクも持っていないランク {rank} の寄与が失われます",
    )


def _find_lost_contribution(schedule: Schedule, all_states: Any) -> Optional[Tuple[Tuple[int, int], int]]:
    """Find the first transfer that overwrites the last copy of a rank's contribution.

    Return the transfer as (step, index in the step) and the rank, or None if there is none.
    ``all_states[step][rank][chunk][r]``: how many times the chunk contains the contribution of rank
    r before the step.
    """
    for number, step in enumerate(schedule.steps):
        state_before, state_after = all_states[number], all_states[number + 1]
        for position, transfer in enumerate(step):
            if transfer.op == ADD:
                continue
            chunk = transfer.chunk
            for rank, count in enumerate(state_before[transfer.dst][chunk]):
                if count and not any(row[chunk][rank] for row in state_after):
                    return (number, position), rank
    return None


def missing_ranks(contributions: Sequence[int], complete: Sequence[int]) -> List[int]:
    """Return the ranks whose contribution is missing in a chunk.

    ``contributions``: how many times the chunk contains each rank's contribution. ``complete``: the
    same counts for a complete chunk.
    """
    return [rank for rank, count in enumerate(contributions) if count < complete[rank]]


def _join_ranks(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))


def _find_unfinished_chunk(schedule: Schedule, last: Any) -> Tuple[int, int]:
    """Return the first (rank, chunk) that is incomplete in ``last``, the final state."""
    for chunk, owner in enumerate(schedule.owner):
        ranks = [owner] if schedule.collective == REDUCE_SCATTER else range(schedule.world_size)
        for rank in ranks:
            if last[rank][chunk] != complete_contributions(schedule, chunk):
                return rank, chunk
    raise AssertionError("verification failed, although every chunk is complete")


def _locate_sum(schedule: Schedule, last: Any, chunk: int) -> TextPair:
    """Return texts about the rank that has the chunk's sum instead of the owner, or empty texts."""
    complete = complete_contributions(schedule, chunk)
    holder: Optional[int] = next((rank for rank in range(schedule.world_size) if last[rank][chunk] == complete), None)
    if schedule.collective != REDUCE_SCATTER or holder is None:
        return "", ""
    return (
        f"; the sum of chunk {chunk} is on rank {holder} instead",
        f"。チャンク {chunk} の合計はランク {holder} にあります",
    )


FRAME_HEIGHT_PX = 980  # height of the frame in which a notebook shows the page


@dataclass(frozen=True)
class SchedulePlayback:
    """A text about a schedule, and an animation of the schedule, to display in a notebook.

    ``page``: the HTML page with the animation, or None.
    """

    text: str
    page: Optional[str] = None

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        """Return the text as HTML, followed by the page in a frame if there is a page."""
        text = f'<pre style="white-space: pre-wrap">{html.escape(self.text)}</pre>'
        if self.page is None:
            return f"<div>{text}</div>"
        source = f'srcdoc="{html.escape(self.page)}" sandbox="allow-scripts"'
        frame = f'<iframe {source} width="100%" height="{FRAME_HEIGHT_PX}" style="border: 0"></iframe>'
        return f"<div>{text}{frame}</div>"


def unwritten_playback() -> SchedulePlayback:
    """Return a playback without an animation, for an answer that is not written yet."""
    return SchedulePlayback(
        choose_text(
            en="not written yet: write the function, run its cell, then run this cell again",
            ja="まだ書かれていません。関数を書いてそのセルを実行し、このセルをもう一度実行してください",
        )
    )


def make_playback(schedule: Schedule, lines: List[str], file: Optional[str]) -> SchedulePlayback:
    """Return a playback with ``lines`` as text, and write its page to ``file`` if given."""
    try:
        page = as_page([schedule], (schedule.name, schedule.world_size), language=language())
    except ScheduleError as error:  # too large to draw
        return SchedulePlayback("\n".join([*lines, str(error)]))
    if file is not None:
        write_text(Path(file), page)
        lines = [*lines, choose_text(en=f"written to {file}", ja=f"{file} に書き込みました")]
    return SchedulePlayback("\n".join(lines), page)


def describe_cost(cost: ScheduleCost, least_s: float, *, is_lower_bound: bool) -> List[str]:
    """Return lines of text about the cost of a correct schedule.

    ``least_s``: the seconds to compare with. This is a lower bound if ``is_lower_bound`` is true, or else
    the optimum.
    """
    steps = len(cost.steps)
    size = format_size(int(cost.size_bytes)) if cost.size_bytes else ""
    time, least = format_microseconds(cost.seconds), format_microseconds(least_s)
    ratio = f"{cost.seconds / least_s:.3f}"
    lines = [
        choose_text(en="verified: it does what it should", ja="証明済み: 求められた動作をします"),
        choose_text(
            en=f"simulated time: {time} in {steps} step{'s' * (steps != 1)}"
            + f", for {size} on each device" * bool(size),
            ja=f"見積もり: {steps} ステップで {time}" + f" (各デバイス {size})" * bool(size),
        ),
    ]
    if is_lower_bound:
        en, ja = f"; the simulated time is {ratio} times that", f"。見積もりはその {ratio} 倍です"
        return [*lines, choose_text(en=f"lower bound: {least}{en}", ja=f"下限: {least}{ja}")]
    return [*lines, choose_text(en=f"optimum: {least}", ja=f"最適値: {least}")]


def format_microseconds(seconds: float) -> str:
    """Return a time such as ``1,598.3 µs``, without decimals for whole numbers."""
    micros = round(seconds * 1e6, 1)
    return f"{micros:,.0f} µs" if micros == int(micros) else f"{micros:,.1f} µs"


MAX_CHUNKS = 512  # largest number of chunks in an answer; more chunks are not useful
COST_TOLERANCE = 1e-9  # relative tolerance; smaller differences are rounding errors
Answer = Callable[[], Any]  # returns steps; a step is a list of Transfer(src, dst, chunk, op)


@dataclass(frozen=True)
class Puzzle:
    """The task of writing a schedule for a collective on a given machine.

    Attributes:
        call: the call of the learner's function, such as ``gather()``, for messages.
        topology: the devices and their links.
        size_bytes: the size of the buffer on each device.
        collective: the collective to write.
        owner: the owner of each chunk. If the tuple has one element, this rank owns all chunks, and
            the learner chooses the number of chunks.
        pairs: the pairs (src, dst) with a link for transfers, or None to allow all pairs.
        optimum_s: the lowest possible cost in seconds, or None if it is unknown.
    """

    call: str
    topology: Topology
    size_bytes: float
    collective: str = ALLREDUCE
    owner: Tuple[int, ...] = (0,)
    pairs: Optional[FrozenSet[Tuple[int, int]]] = None
    optimum_s: Optional[float] = None

    def read_schedule(self, answer: Answer) -> Schedule:
        """Return the answer's schedule. Raises Wrong for the first transfer that breaks a rule.

        The method does not check whether the schedule computes the collective.
        """
        steps = read_steps(answer(), self.call)
        world_size, owner = self.topology.world_size, self.owner
        if len(owner) == 1:
            last_chunk = max((t.chunk for step in steps for t in step), default=0)
            owner *= min(max(last_chunk + 1, 1), MAX_CHUNKS)
        check_step_rules(self.call, world_size, len(owner), steps, NO_TEXT)
        if self.pairs is not None:
            self._check_pairs(steps, self.pairs)
        nonempty = tuple(step for step in steps if step)
        return Schedule(self.call, self.collective, world_size, len(owner), owner, nonempty)

    def _check_pairs(self, steps: Any, pairs: FrozenSet[Tuple[int, int]]) -> None:
        """Raise Wrong for the first transfer whose (src, dst) is not in ``pairs``."""
        for number, step in enumerate(steps):
            for position, transfer in enumerate(step):
                src, dst = transfer.src, transfer.dst
                describe_transfer(self.call, (number, position), transfer).check_faults(
                    ((src, dst) not in pairs, f"there is no link from {src} to {dst}",
                     f"{src} から {dst} へのリンクはありません"),
                )  # fmt: skip

    def read_proved_schedule(self, answer: Answer) -> Schedule:
        """Return the answer's schedule. Raises Wrong unless it computes the collective."""
        schedule = self.read_schedule(answer)
        check_proof(self.call, schedule)
        return schedule

    def estimate_cost(self, schedule: Schedule) -> ScheduleCost:
        """Return the cost of a schedule on the puzzle's topology."""
        return estimate_cost(schedule, self.topology, self.size_bytes)

    def check_optimum(self, schedule: Schedule) -> None:
        """Raise Wrong for a schedule that costs more than the optimum."""
        cost, optimum = self.estimate_cost(schedule), self.optimum_s or 0.0
        en, ja = describe_total_cost(cost)
        CaseText(self.call, self.call).check_faults(
            (cost.seconds > optimum * (1 + COST_TOLERANCE),
             f"the schedule is correct, but it takes {en}, although {format_microseconds(optimum)} would be "
                 f"enough{describe_costliest_step(cost)[0]}",
             f"正しいことは証明されましたが、{ja}かかります。{format_microseconds(optimum)} "
             f"で済みます{describe_costliest_step(cost)[1]}"),
        )  # fmt: skip

    def play(self, answer: Answer, file: Optional[str] = None) -> SchedulePlayback:
        """Return a text about the schedule's first error or its cost, and an animation.

        Args:
            answer: the learner's function. If it is a stub, the text tells the learner to write the
                function.
            file: a file to which the page is also written.

        Returns:
            The text and the page, which a notebook displays.
        """
        try:
            schedule = self.read_schedule(answer)
        except NotImplementedError:
            return unwritten_playback()
        except Wrong as wrong:  # a schedule that breaks a rule cannot be animated
            return SchedulePlayback(wrong.texts[language()])
        try:
            check_proof(self.call, schedule)
        except Wrong as wrong:
            return make_playback(schedule, [wrong.texts[language()]], file)
        least_s = self.optimum_s
        if least_s is None:
            least_s = find_lower_bound(self.topology, self.collective).seconds(self.size_bytes)
        lines = describe_cost(self.estimate_cost(schedule), least_s, is_lower_bound=self.optimum_s is None)
        return make_playback(schedule, lines, file)


def describe_total_cost(cost: ScheduleCost) -> TextPair:
    """Return texts with the cost and the number of steps."""
    steps = len(cost.steps)
    return (
        f"{format_microseconds(cost.seconds)} in {steps} step{'s' * (steps != 1)}",
        f"{steps} ステップで {format_microseconds(cost.seconds)} ",
    )


def describe_costliest_step(cost: ScheduleCost) -> TextPair:
    """Return texts about the most expensive step and its busiest link."""
    if not cost.steps:
        return NO_TEXT

    def step_seconds(number: int) -> float:
        return cost.steps[number].seconds

    number = max(range(len(cost.steps)), key=step_seconds)
    step: StepCost = cost.steps[number]
    time = format_microseconds(step.seconds)
    are_equal = step.seconds <= min(map(step_seconds, range(len(cost.steps)))) * (1 + COST_TOLERANCE)
    if are_equal and len(cost.steps) > 1:
        first = cost.steps[0].bottleneck  # rounding may make another step the longest
        return (
            f". Each step takes {time}; step 0 waits for the link `{first}`",
            f"。どのステップも {time} です。ステップ 0 はリンク `{first}` を待っています",
        )
    return (
        f". Step {number} takes longest, {time}: it waits for the link `{step.bottleneck}`",
        f"。最も長いのはステップ {number} の {time} で、リンク `{step.bottleneck}` を待っています",
    )
