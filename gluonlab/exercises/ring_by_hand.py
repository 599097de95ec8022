"""What a ring allreduce by hand is given, and what is looked at afterwards: the sums, and who sent
how much to whom.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Callable, List, Tuple
from typing import Counter as Counts

import numpy as np

from gluonlab.exercises.exercise import Wrong


class Links:
    """``send(piece, src, dst)``: the only way from one device to another; it counts what goes
    where.
    """

    def __init__(self, ctxs: List[Any]) -> None:
        self.ctxs = ctxs
        self.elements: Counts[Tuple[int, int]] = Counter()

    def __call__(self, piece: Any, src: int, dst: int) -> Any:
        """The copy of ``piece``, which lies on device ``src``, that arrives on device ``dst``."""
        for device in (src, dst):
            if device not in range(len(self.ctxs)):
                last = len(self.ctxs) - 1
                raise Wrong(
                    en=f"send(piece, {src}, {dst}): devices go from 0 to {last}: "
                    "is a `% len(arrays)` missing?",
                    ja=f"send(piece, {src}, {dst}): デバイスは 0 から {last} までです。"
                    "`% len(arrays)` を忘れていませんか",
                )
        if piece.context != self.ctxs[src]:
            raise Wrong(
                en=f"send(piece, {src}, {dst}): the piece lies on {piece.context}, "
                f"not on device {src}",
                ja=f"send(piece, {src}, {dst}): 送ろうとした配列は {piece.context} にあり、"
                f"デバイス {src} にはありません",
            )
        self.elements[src, dst] += piece.size
        return piece.copyto(self.ctxs[dst])


def judge_ring(
    answer: Callable[[List[Any], Links], Any], devices: int, count: int, seed: int
) -> None:
    """Run an answer on small whole numbers, whose sum is exact. Raises Wrong."""
    from mxnet import nd

    from gluonlab.exercises.arrays import cpus

    ctxs = cpus(devices)
    rng = np.random.RandomState(seed)
    before = [rng.randint(-9, 10, count).astype("float32") for _ in ctxs]
    arrays, links = [nd.array(values, ctx=ctx) for values, ctx in zip(before, ctxs)], Links(ctxs)
    answer(list(arrays), links)
    total = np.sum(before, axis=0)
    en = f"{devices} device{'s' * (devices > 1)}, {count} number{'s' * (count > 1)} each"
    ja = f"{devices} 台、各 {count} 個"
    _check_sums(en, ja, before, [array.asnumpy() for array in arrays], total)
    _check_ways(en, ja, links, devices, count)


def _check_sums(en: str, ja: str, before: List[Any], after: List[Any], total: Any) -> None:
    for device, values in enumerate(after):
        wrong = np.flatnonzero(values != total)
        if not len(wrong):
            continue
        at = int(wrong[0])
        fault = (
            (": nothing was written to it", "。何も書き込まれていません")
            if np.array_equal(values, before[device])
            else ("", "")
        )
        if at >= len(total) // len(after) * len(after):
            fault = (
                (
                    f": {len(total)} is no multiple of {len(after)}, "
                    "and the last numbers belong to no chunk"
                ),
                (
                    f"。{len(total)} は {len(after)} で割り切れず、"
                    "最後の数がどのチャンクにも入っていません"
                ),
            )
        elif values[at] in (sum(part[at] for part in before[:n]) for n in range(2, len(before))):
            fault = (": that is the sum of some devices only", "。一部のデバイスだけの合計です")
        raise Wrong(
            en=f"{en}: number {at} on device {device} is {values[at]:g}, "
            f"expected {total[at]:g}{fault[0]}",
            ja=f"{ja}: デバイス {device} の {at} 番目は {values[at]:g} でしたが、"
            f"正しくは {total[at]:g} です{fault[1]}",
        )


def _check_ways(en: str, ja: str, links: Links, devices: int, count: int) -> None:
    """Nobody sends to any but one neighbour, nor more than a ring has to."""
    least = 2 * (devices - 1) * (count // devices)
    most = 2 * (devices - 1) * -(-count // devices)
    sent = [
        sum(n for (src, _), n in links.elements.items() if src == device)
        for device in range(devices)
    ]
    ways = {(dst - src) % devices for src, dst in links.elements}
    if sum(sent) < 2 * (devices - 1) * count:
        raise Wrong(
            en=f"{en}: the sums are right, but only {sum(sent)} numbers went through `send`, "
            f"and an allreduce needs {2 * (devices - 1) * count}: "
            "the devices must not read each other's arrays",
            ja=f"{ja}: 合計は正しいですが、`send` を通ったのは {sum(sent)} 個だけです。"
            f"allreduce には {2 * (devices - 1) * count} 個の転送が必要です。"
            "ほかのデバイスの配列を直接読んではいけません",
        )
    if max(sent) > most:
        raise Wrong(
            en=f"{en}: the sums are right, but device {sent.index(max(sent))} sent {max(sent)} "
            f"numbers, in a ring at most {most}: send a chunk in each step, not everything",
            ja=f"{ja}: 合計は正しいですが、デバイス {sent.index(max(sent))} が {max(sent)} "
            f"個送りました。リングなら多くても {most} 個です。"
            "各ステップで送るのは 1 チャンクだけです",
        )
    if (devices > 2 and len(ways) > 1) or min(sent) < least:
        pairs = ", ".join(f"{src} -> {dst}" for src, dst in sorted(links.elements))
        raise Wrong(
            en=f"{en}: the sums are right, but that is no ring: {pairs}: "
            "each device sends to the next one only",
            ja=f"{ja}: 合計は正しいですが、リングではありません ({pairs})。"
            "各デバイスが送る相手は次のデバイスだけです",
        )
