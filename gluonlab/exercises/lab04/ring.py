"""04-5: a ring allreduce by hand: its sums, and who sent how much to whom."""

from __future__ import annotations

from collections import Counter
from typing import Any, Callable, List, Tuple
from typing import Counter as Counts

import numpy as np
from mxnet import nd

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.shared.arrays import cpus
from gluonlab.exercises.shared.counterexamples import Case, in_english, looks_like


class Links:
    """``send(piece, src, dst)``: the only way between devices; it counts the elements per link."""

    def __init__(self, ctxs: List[Any]) -> None:
        self.ctxs = ctxs
        self.elements: Counts[Tuple[int, int]] = Counter()

    def __call__(self, piece: Any, src: int, dst: int) -> Any:
        """The copy of ``piece``, which lies on device ``src``, that arrives on device ``dst``."""
        last, call = len(self.ctxs) - 1, Case(*[f"send(piece, {src}, {dst})"] * 2)
        if not all(device in range(last + 1) for device in (src, dst)):
            raise call.wrong(
                f"devices go from 0 to {last}: is a `% len(arrays)` missing?",
                f"デバイスは 0 から {last} までです。`% len(arrays)` を忘れていませんか",
            )
        if piece.context != self.ctxs[src]:
            raise call.wrong(
                f"the piece is on {piece.context}, not on device {src}",
                f"送ろうとした配列は {piece.context} にあり、デバイス {src} にはありません",
            )
        self.elements[src, dst] += piece.size
        return piece.copyto(self.ctxs[dst])


@exercise("04-5")
def ring_allreduce(answer: Callable[[List[Any], Links], Any]) -> None:
    """A ring: sums in place, and every device sends its share to its right neighbour alone."""
    sizes = ((2, 2), (2, 4), (3, 3), (2, 5), (3, 7), (4, 4), (4, 10), (1, 3), (4, 1001))
    for seed, (devices, count) in enumerate(sizes):
        ctxs, rng = cpus(devices), draws(seed)
        # small whole numbers, whose sum is exact
        before = [rng.randint(-9, 10, count).astype("float32") for _ in ctxs]
        arrays, links = [nd.array(part, ctx=ctx) for part, ctx in zip(before, ctxs)], Links(ctxs)
        answer(list(arrays), links)
        case = Case(
            f"{in_english(devices, 'device')}, {in_english(count, 'number')} each",
            f"{devices} 台、各 {count} 個",
        )
        _check_sums(case, before, [array.asnumpy() for array in arrays])
        _check_ways(case, links, devices, count)


def _check_sums(case: Case, before: List[Any], after: List[Any]) -> None:
    total, n = np.sum(before, axis=0), len(after)
    for device, values in enumerate(after):
        wrong = np.flatnonzero(values != total)
        if not len(wrong):
            continue
        at = int(wrong[0])
        some = [sum(part[at] for part in before[:some]) for some in range(2, n)]
        why = looks_like(
            (at >= len(total) // n * n,
             f"{len(total)} is not a multiple of {n}, and the last numbers belong to no chunk",
             f"{len(total)} は {n} で割り切れず、最後の数がどのチャンクにも入っていません"),
            (values[at] in some,
             "that is the sum of some devices only", "一部のデバイスだけの合計です"),
            (np.array_equal(values, before[device]),
             "nothing was written to it", "何も書き込まれていません"),
        )  # fmt: skip
        raise case.wrong(
            f"number {at} on device {device} is {values[at]:g}, expected {total[at]:g}",
            f"デバイス {device} の {at} 番目は {values[at]:g} でしたが、"
            f"正しくは {total[at]:g} です",
            why,
        )


def _check_ways(case: Case, links: Links, devices: int, count: int) -> None:
    """Nobody sends to any but one neighbour, nor more than a ring has to."""
    least, most = (2 * (devices - 1) * each for each in (count // devices, -(-count // devices)))
    sent = [0] * devices
    for (src, _), elements in links.elements.items():
        sent[src] += elements
    ways = {(dst - src) % devices for src, dst in links.elements}
    pairs = ", ".join(f"{src} -> {dst}" for src, dst in sorted(links.elements))
    needed = 2 * (devices - 1) * count
    case.check(
        (sum(sent) < needed,
         f"the sums are right, but only {sum(sent)} numbers went through `send`, and an allreduce "
         f"needs {needed}: the devices must not read each other's arrays",
         (
             f"合計は正しいですが、`send` を通ったのは {sum(sent)} 個だけです。"
             f"allreduce には {needed} 個の転送が必要です。"
             "ほかのデバイスの配列を直接読んではいけません"
         )),
        (max(sent) > most,
         f"the sums are right, but device {sent.index(max(sent))} sent {max(sent)} numbers, "
         f"in a ring at most {most}: send a chunk in each step, not everything",
         f"合計は正しいですが、デバイス {sent.index(max(sent))} が {max(sent)} 個送りました。"
         f"リングなら多くても {most} 個です。各ステップで送るのは 1 チャンクだけです"),
        (devices > 2 and ways == {devices - 1},
         "the sums are right, but the ring goes the wrong way round: device i sends to "
         "device i + 1, here it sends to i - 1",
         "合計は正しいですが、リングが逆回りです。デバイス i は i + 1 に送ります。"
         "ここでは i - 1 に送っています"),
        (ways - {1} or min(sent) < least,
         (
             f"the sums are right, but that is not a ring: {pairs}: "
             "each device sends to the next one only"
         ),
         f"合計は正しいですが、リングではありません ({pairs})。"
         "各デバイスが送る相手は次のデバイスだけです"),
    )  # fmt: skip
