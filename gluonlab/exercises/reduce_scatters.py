"""Whether steps that a student wrote obey the rules of a schedule, and leave every sum where it
belongs.
"""

from __future__ import annotations

from collections import Counter
from typing import Mapping, Sequence, Tuple

from gluonlab.collectives.check import states
from gluonlab.collectives.schedule import ADD, OPS, REDUCE_SCATTER, Schedule, Transfer
from gluonlab.exercises.exercise import Wrong


def check_rules(
    who: Mapping[str, str], world_size: int, number: int, step: Sequence[Transfer]
) -> None:
    """Raise Wrong for the first transfer that a step may not have."""
    read, written = {(t.src, t.chunk) for t in step}, Counter((t.dst, t.chunk) for t in step)
    for transfer in step:
        src, dst, chunk, op = transfer
        where = {
            "en": f"{who['en']}, step {number}, `{tuple(transfer)}`",
            "ja": f"{who['ja']} のステップ {number}、`{tuple(transfer)}`",
        }
        if op not in OPS:
            raise Wrong(
                en=f"{where['en']}: the operation is 'add' or 'copy'",
                ja=f"{where['ja']}: 操作は 'add' か 'copy' です",
            )
        if not all(0 <= value < world_size for value in (src, dst, chunk)):
            raise Wrong(
                en=f"{where['en']}: ranks and chunks go from 0 to {world_size - 1}: "
                "is a `% world_size` missing?",
                ja=f"{where['ja']}: ランクもチャンクも 0 から {world_size - 1} までです。"
                "`% world_size` を忘れていませんか",
            )
        if src == dst:
            raise Wrong(
                en=f"{where['en']}: a rank cannot send to itself",
                ja=f"{where['ja']}: 自分自身には送れません",
            )
        if (dst, chunk) in read:
            raise Wrong(
                en=f"{where['en']}: chunk {chunk} of rank {dst} is written and read in one step, "
                "so the result depends on who is first",
                ja=f"{where['ja']}: ランク {dst} のチャンク {chunk} "
                "を同じステップで書いて読んでいます。順序によって結果が変わります",
            )
        if op != ADD and written[dst, chunk] > 1:
            raise Wrong(
                en=f"{where['en']}: chunk {chunk} of rank {dst} is written by others in this "
                "step: only additions may share a target",
                ja=f"{where['ja']}: ランク {dst} のチャンク {chunk} "
                "に同じステップで複数の書き込みがあります。許されるのは加算どうしだけです",
            )


def check_sums(
    who: Mapping[str, str], world_size: int, steps: Tuple[Tuple[Transfer, ...], ...]
) -> None:
    """Raise Wrong for the first chunk that its rank does not have once from everybody."""
    schedule = Schedule(
        "yours", REDUCE_SCATTER, world_size, world_size, tuple(range(world_size)), steps
    )
    *_, last = states(schedule)
    for rank in range(world_size):
        counts = last[rank][rank]
        without = [str(other) for other, count in enumerate(counts) if count == 0]
        often = [str(other) for other, count in enumerate(counts) if count > 1]
        if not without and not often:
            continue
        elsewhere = [
            other for other in range(world_size) if all(count == 1 for count in last[other][rank])
        ]
        en = [f"without the contribution of rank {', '.join(without)}"] * bool(without)
        en += [f"with that of rank {', '.join(often)} more than once"] * bool(often)
        ja = [f"ランク {', '.join(without)} の寄与がありません"] * bool(without)
        ja += [f"ランク {', '.join(often)} の寄与が重複しています"] * bool(often)
        hint = f"; the sum of chunk {rank} is on rank {elsewhere[0]} instead" if elsewhere else ""
        hint_ja = f"。チャンク {rank} の合計はランク {elsewhere[0]} にあります" if elsewhere else ""
        raise Wrong(
            en=f"{who['en']}: rank {rank} ends with chunk {rank} {' and '.join(en)}{hint}",
            ja=f"{who['ja']}: 終了時、ランク {rank} のチャンク {rank} に{'、'.join(ja)}{hint_ja}",
        )
