"""09-4: an epoch whose last batch has fewer images than there are devices."""

from __future__ import annotations

from typing import Any, Callable, List, Sequence, Tuple

import mxnet as mx

from gluonlab.data.loading.shards import shard_bounds
from gluonlab.exercises.exercise import Wrong, exercise
from gluonlab.exercises.lab09.losses import check_losses
from gluonlab.exercises.lab09.symptom import STILL
from gluonlab.exercises.shared.arrays import cpus
from gluonlab.exercises.shared.counterexamples import Case, in_english, looks_like
from gluonlab.exercises.shared.microbatches import moved
from gluonlab.exercises.shared.softmax_regression import (
    LR,
    Batch,
    Training,
    Values,
    some_batches,
)


@exercise("09-4")
def idle_replica(answer: Callable[..., Any]) -> None:
    """An epoch whose last batch has fewer images than there are devices."""
    returned: List[Tuple[Any, List[float]]] = []
    for count, size, devices in ((8, 4, 2), (5, 4, 2), (9, 4, 3), (10, 4, 3), (21, 5, 2)):
        ctxs, [(images, labels)] = cpus(devices), some_batches([count])
        batches = [(images[i : i + size], labels[i : i + size]) for i in range(0, count, size)]
        training = Training(ctxs)
        for epoch in (1, 2):
            losses = training.run(answer, (images, labels), size, ctxs)
            for ctx in ctxs:
                got, begin = training.values(ctx), training.begin
                if not got.near(begin.train(batches * epoch)):
                    raise _wrong_epoch(got, begin, batches, epoch, ctxs, ctx)
            done = batches * (epoch - 1)
            means = [
                begin.train([*done, *batches[:number]]).losses(batch).mean()
                for number, batch in enumerate(batches)
            ]
            returned.append((losses, means))
    for given, means in returned:
        en, ja = "the mean loss of each batch", "バッチごとの平均損失"
        check_losses(given, means, "train_epoch", en, ja)


def _wrong_epoch(
    got: Values,
    begin: Values,
    batches: List[Batch],
    epoch: int,
    ctxs: Sequence[mx.Context],
    ctx: mx.Context,
) -> Wrong:
    done, count = batches * epoch, len(ctxs)
    before, last = begin.train(done[:-1]), batches[-1]
    left, images, size = len(last[0]), sum(len(y) for _, y in batches), len(batches[0][0])
    went, wanted = moved(got, before), moved(begin.train(done), before)
    en = f"{images} images in batches of {size} on {in_english(count, 'device')}"
    ja = f"{images} 枚を {size} 枚ずつ、{count} 台のデバイスで"
    if got.near(_stale(begin, done, count)):
        return STILL.wrong(
            f"{en}: the last batch, of {left}, moved the weights by {went:.4g}, "
            f"expected {wanted:.4g}, as on one device",
            f"{ja}: 最後のバッチ ({left} 枚) で重みが {went:.4g} 動きました。"
            f"1 台のデバイスと同じ {wanted:.4g} になるはずです",
        )
    scales = (LR, LR * count / left, LR / count)
    return Case(en, ja).wrong(
        f"after epoch {epoch} the parameters on {ctx} are not those of one device; "
        f"the last batch, of {left}, moved the weights by {went:.4g}, expected {wanted:.4g}",
        f"エポック {epoch} の後、{ctx} のパラメータが 1 台のデバイスの結果と違います。"
        f"最後のバッチ ({left} 枚) で重みが {went:.4g} 動きました。{wanted:.4g} のはずです",
        looks_like(
            (got.near(before),
             f"the last {left} were not used at all", f"最後の {left} 枚が使われていません"),
            (any(got.near(before.step(last, scale)) for scale in scales),
             "an image of the last batch counts more or less than once",
             "最後のバッチの画像が 1 回ずつ数えられていません"),
        ),
    )  # fmt: skip


def _stale(begin: Values, batches: List[Batch], count: int) -> Values:
    """The parameters when a device without a shard adds what it added in the batch before."""
    values, added = begin, [Values(0 * begin.weight, 0 * begin.bias)] * count
    for images, labels in batches:
        for device, (a, b) in enumerate(shard_bounds(len(images), count)):
            added[device] = values.gradient((images[a:b], labels[a:b]))
        for gradient in added:
            values = values.minus(gradient, LR / len(images))
    return values
