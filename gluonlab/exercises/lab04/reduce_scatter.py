"""04-1: the steps of a reduce-scatter."""

from __future__ import annotations

from collections import Counter
from typing import Callable, Sequence, Tuple

from gluonlab.collectives.check import states
from gluonlab.collectives.schedule import ADD, OPS, REDUCE_SCATTER, Schedule, Transfer
from gluonlab.exercises.cases import more
from gluonlab.exercises.exercise import Wrong, exercise
from gluonlab.exercises.shared.counterexamples import Case


@exercise("04-1")
def reduce_scatter(answer: Callable[[int], Sequence[Sequence[Transfer]]]) -> None:
    """The steps of a reduce-scatter after which rank r has the sum of chunk r."""
    others = more(3, lambda random: int(random.randint(6, 13)))
    for world_size in [2, 3, 4, 5, 8, 1, *others]:
        given, call = answer(world_size), f"reduce_scatter({world_size})"
        try:
            steps = tuple(tuple(Transfer(*transfer) for transfer in step) for step in given)
        except TypeError:
            raise Wrong(
                en=f"{call} returned {given!r}: return a list of steps, "
                "each a list of `Transfer(src, dst, chunk, op)`",
                ja=f"{call} の戻り値は {given!r} でした。"
                "`Transfer(src, dst, chunk, op)` のリスト (ステップ) のリストを返してください",
            ) from None
        for number, step in enumerate(steps):
            _check_rules(call, world_size, number, step)
        _check_sums(Case(call, call), world_size, steps)
        count, enough = sum(map(len, steps)), world_size * (world_size - 1)
        if count > enough:
            raise Case(call, call).wrong(
                f"right, but {count} transfers, where {enough} are enough: "
                f"each chunk needs {world_size - 1} additions",
                f"結果は正しいですが、転送が {count} 回あります。"
                f"チャンクごとに加算は {world_size - 1} 回なので {enough} 回で済みます",
            )


def _check_rules(call: str, world_size: int, number: int, step: Sequence[Transfer]) -> None:
    """Raise Wrong for the first transfer that a step may not have."""
    read, written = {(t.src, t.chunk) for t in step}, Counter((t.dst, t.chunk) for t in step)
    for transfer in step:
        src, dst, chunk, op = transfer
        Case(
            f"{call}, step {number}, `{tuple(transfer)}`",
            f"{call} のステップ {number}、`{tuple(transfer)}`",
        ).check(
            (op not in OPS,
             "the operation is 'add' or 'copy'", "操作は 'add' か 'copy' です"),
            (op in OPS and not all(0 <= value < world_size for value in (src, dst, chunk)),
             f"ranks and chunks go from 0 to {world_size - 1}: is a `% world_size` missing?",
             f"ランクもチャンクも 0 から {world_size - 1} までです。"
             "`% world_size` を忘れていませんか"),
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


def _check_sums(call: Case, world_size: int, steps: Tuple[Tuple[Transfer, ...], ...]) -> None:
    """Raise Wrong for the first chunk that its rank does not have once from everybody."""
    ranks = range(world_size)
    *_, last = states(
        Schedule("yours", REDUCE_SCATTER, world_size, world_size, tuple(ranks), steps)
    )
    for rank in ranks:
        counts = last[rank][rank]
        without = ", ".join(str(other) for other, count in enumerate(counts) if count == 0)
        often = ", ".join(str(other) for other, count in enumerate(counts) if count > 1)
        if not without and not often:
            continue
        elsewhere = [other for other in ranks if all(count == 1 for count in last[other][rank])]
        en = [f"without the contribution of rank {without}"] * bool(without)
        en += [f"with that of rank {often} more than once"] * bool(often)
        ja = [f"ランク {without} の寄与がありません"] * bool(without)
        ja += [f"ランク {often} の寄与が重複しています"] * bool(often)
        hint = f"; the sum of chunk {rank} is on rank {elsewhere[0]} instead" if elsewhere else ""
        hint_ja = f"。チャンク {rank} の合計はランク {elsewhere[0]} にあります" if elsewhere else ""
        raise call.wrong(
            f"rank {rank} ends with chunk {rank} {' and '.join(en)}{hint}",
            f"終了時、ランク {rank} のチャンク {rank} に{'、'.join(ja)}{hint_ja}",
        )
