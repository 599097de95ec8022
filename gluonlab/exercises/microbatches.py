"""What a wrong update from microbatches tells: each mistake that is often made gives parameters of
its own.
"""

from __future__ import annotations

import math
from typing import Iterator, List, Sequence, Tuple

import numpy as np

from gluonlab.data.loading.shards import shard_bounds
from gluonlab.exercises.exercise import Wrong
from gluonlab.exercises.softmax_regression import LR, Batch, Values

Mistake = Tuple[Values, str, str]  # the parameters that it leads to, and its name in both languages


def check_parts(seen: List[int], size: int, parts: int) -> None:
    """Raise Wrong when the images ``seen`` by the network, call by call, are not those of so many
    microbatches.
    """
    most = math.ceil(size / parts)
    if max(seen) > most:
        raise Wrong(
            en=f"the update of a batch of {size} in {parts} microbatches is right, "
            f"but {max(seen)} images went through the network at once, "
            f"expected at most {most}: that saves no memory",
            ja=f"{size} 枚のバッチを {parts} 個のマイクロバッチにした更新は正しいのですが、"
            f"一度に {max(seen)} 枚がネットワークを通りました (多くても {most} 枚のはず)。"
            "これではメモリは減りません",
        )
    if len(seen) > parts:
        raise Wrong(
            en=f"a batch of {size} went through the network in {len(seen)} parts, expected {parts}",
            ja=f"{size} 枚のバッチが {len(seen)} 個に分けられました。{parts} 個のはずです",
        )


def wrong_update(got: Values, begin: Values, batches: Sequence[Batch], parts: int) -> Wrong:
    """The counterexample: parameters ``got`` after all ``batches``, of which only the last one was
    wrong.
    """
    before, last = begin.train(batches[:-1]), batches[-1]
    mistakes = [*_scales(before, last, parts), *_parts(before, last, parts)]
    mistakes.append(
        (
            left_over(begin, batches),
            "the gradients of the batch before are still in it",
            "前のバッチの勾配が残ったままです",
        )
    )
    en, ja = next(((en, ja) for wrong, en, ja in mistakes if got.near(wrong)), ("", ""))
    went, wanted = (
        float(np.linalg.norm(after.weight - before.weight)) for after in (got, before.train([last]))
    )
    size, number = len(last[0]), len(batches)
    if not en and abs(went / wanted - 1) < 0.01:
        en, ja = (
            "as far as it should, but not in the same direction",
            "動いた量は合っていますが、向きが違います",
        )
    return Wrong(
        en=(
            f"batch {number}, of {size} images, in {parts} microbatch{'es' * (parts > 1)}: "
            f"the weights moved by {went:.4g}, expected {wanted:.4g}, "
            "as with the whole batch at once"
        )
        + (f": {en}" if en else ""),
        ja=(
            f"{number} 番目のバッチ ({size} 枚、マイクロバッチ {parts} 個): "
            f"重みが {went:.4g} 動きました。バッチ全体を一度に使ったときの {wanted:.4g} "
            "になるはずです"
        )
        + (f"。{ja}" if ja else ""),
    )


def _scales(before: Values, batch: Batch, parts: int) -> Iterator[Mistake]:
    """The gradients of all images, divided by a wrong number, or weighted."""
    size, cuts = len(batch[0]), _cuts(batch, parts)
    yield before, "the parameters have not changed at all", "パラメータがまったく変わっていません"
    yield (
        before.step(batch, LR),
        "the sum of the gradients was not divided by the number of images",
        "勾配の合計が画像の枚数で割られていません",
    )
    for cut in (cuts[0], cuts[-1]):
        yield (
            before.step(batch, LR / len(cut[0])),
            "the sum is divided by the images of one part, or means of parts are added up",
            "合計が 1 個のマイクロバッチの枚数で割られているか、部分ごとの平均を足しています",
        )
    means = [(before.gradient(cut), LR / len(cut[0])) for cut in cuts]
    for factor, en, ja in (
        (
            1 / size,
            "the loss of each part is a mean, and `step` divides once more",
            "損失が平均なのに `step` がもう一度割っています",
        ),
        (
            1 / parts,
            "a mean of means: images of a small part count more than others",
            "平均の平均なので、小さい部分の画像が重く数えられます",
        ),
        (
            1.0,
            f"means are added up: the update is {parts} times too large",
            f"平均を足しているので、更新がおよそ {parts} 倍になっています",
        ),
    ):
        after = before
        for gradient, scale in means:
            after = after.minus(gradient, scale * factor)
        yield after, en, ja


def _parts(before: Values, batch: Batch, parts: int) -> Iterator[Mistake]:
    """Images are left out, or there is more than one update."""
    size, cuts = len(batch[0]), _cuts(batch, parts)
    yield (
        before.step(cuts[-1], LR / size),
        "only the last part counts",
        "最後の部分しか効いていません",
    )
    yield (
        before.step(cuts[0], LR / size),
        "only the first part counts",
        "最初の部分しか効いていません",
    )
    whole = size // parts * parts
    for used in (size, whole):
        yield (
            before.step((batch[0][:whole], batch[1][:whole]), LR / used),
            "the images that are left over when the batch does not divide are lost",
            "割り切れずに余った画像が捨てられています",
        )
    for sizes in ([size] * parts, [len(images) for images, _ in cuts]):
        zeroed = kept = before
        gradients: List[Tuple[Values, float]] = []
        for cut, divisor in zip(cuts, sizes):
            gradients.append((kept.gradient(cut), LR / divisor))
            zeroed = zeroed.step(cut, LR / divisor)
            for gradient, _ in gradients:
                kept = kept.minus(gradient, LR / divisor)
        for after in (zeroed, kept):
            yield (
                after,
                "there is an update after every part, expected one for the batch",
                "部分ごとに更新しています。バッチに 1 回のはずです",
            )


def left_over(begin: Values, batches: Sequence[Batch]) -> Values:
    """The parameters when the last update alone has the gradients of all batches before in it."""
    before, scale = begin.train(batches[:-1]), LR / len(batches[-1][0])
    after = before.step(batches[-1], scale)
    for number in range(len(batches) - 1):
        after = after.minus(begin.train(batches[:number]).gradient(batches[number]), scale)
    return after


def _cuts(batch: Batch, parts: int) -> List[Batch]:
    return [
        (batch[0][begin:end], batch[1][begin:end])
        for begin, end in shard_bounds(len(batch[0]), parts)
    ]
