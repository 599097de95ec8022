"""09-2 and 09-3: updates that hold their own batch alone, and the same on any number of devices."""

from __future__ import annotations

from typing import Any, Callable, Iterator, List, Sequence, Tuple

import mxnet as mx

from gluonlab.data.loading.shards import shard_bounds
from gluonlab.exercises.exercise import Wrong, exercise
from gluonlab.exercises.lab09.losses import check_losses
from gluonlab.exercises.lab09.symptom import still
from gluonlab.exercises.shared.arrays import cpus
from gluonlab.exercises.shared.counterexamples import in_english, looks_like, wrong
from gluonlab.exercises.shared.microbatches import (
    Update,
    check_updates,
    left_over,
    moved,
    wrong_update,
)
from gluonlab.exercises.shared.softmax_regression import (
    LR,
    Batch,
    Training,
    Values,
    some_batches,
    some_values,
)


@exercise("09-2")
def accumulated(answer: Callable[..., Any]) -> None:
    """Microbatches whose every update is that of its own batch."""
    cases: List[Tuple[Tuple[int, ...], int]] = [((4,), 2), ((4, 4), 2), ((4, 4, 4), 1)]
    returned: List[Tuple[Any, float]] = []
    for sizes, parts in [*cases, ((8, 8, 3, 8), 3), ((9, 5, 7), 4)]:
        losses = check_updates(answer, sizes, parts, _fault_of_update)
        returned += zip(losses, _means(sizes))
    for loss, mean in returned:
        check_losses(loss, [mean], "train_batch", "the batch's mean loss", "バッチの平均損失")


def _means(sizes: Sequence[int]) -> Iterator[float]:
    """The mean loss of each batch of these sizes, before its update."""
    batches, begin = some_batches(sizes), some_values()
    for number, batch in enumerate(batches):
        yield begin.train(batches[:number]).losses(batch).mean()


def _fault_of_update(update: Update) -> Wrong:
    if not update.got.near(left_over(update.begin, update.batches)):
        return wrong_update(update)
    count, before = len(update.batches), update.before
    went, wanted = moved(update.got, before), moved(update.want, before)
    return still(
        f"of {count} batches the last one moved the weights by {went:.4g}, "
        f"expected {wanted:.4g}, as without microbatches; the first one was right",
        f"{count} 番目のバッチで重みが {went:.4g} 動きました。"
        f"マイクロバッチなしでは {wanted:.4g} です。1 番目のバッチは正しい動きでした",
    )


@exercise("09-3")
def step_size(answer: Callable[..., Any]) -> None:
    """An update that is the same on one device and on several."""
    returned: List[Tuple[Any, Sequence[float]]] = []
    for size, count in ((4, 1), (4, 2), (6, 3), (7, 2), (10, 4), (5, 4), (33, 2)):
        ctxs, batches = cpus(count), some_batches([size, size])
        training = Training(ctxs)
        for number, batch in enumerate(batches):
            losses = training.run(answer, batch, ctxs)
            before, want = map(training.begin.train, (batches[:number], batches[: number + 1]))
            for ctx in ctxs:
                got = training.values(ctx)
                if not got.near(want):
                    raise _wrong_step(got, before, want, batch, ctxs, ctx)
            returned.append((losses, before.losses(batch)))
    for given, each in returned:
        en, ja = "the losses of each shard", "各シャードの損失"
        check_losses(given, each, "train_batch_on", en, ja)


def _wrong_step(
    got: Values,
    before: Values,
    want: Values,
    batch: Batch,
    ctxs: Sequence[mx.Context],
    ctx: mx.Context,
) -> Wrong:
    size, count = len(batch[0]), len(ctxs)
    share = shard_bounds(size, count)[0][1]
    went, wanted = moved(got, before), moved(want, before)
    if got.near(before.step(batch, LR / share)):
        return still(
            f"with {size} images on {count} devices the weights moved by {went:.4g}, "
            f"with the same images on one device by {wanted:.4g}",
            f"{size} 枚を {count} 台のデバイスで学習すると重みが {went:.4g} 動きました。"
            f"同じ画像を 1 台のデバイスで学習すると {wanted:.4g} です",
        )
    return wrong(
        f"{size} images on {in_english(count, 'device')}: on {ctx} the weights moved by "
        f"{went:.4g}, expected {wanted:.4g}, as on one device",
        f"{size} 枚を {count} 台のデバイスで: {ctx} の重みが {went:.4g} 動きました。"
        f"1 台のデバイスと同じ {wanted:.4g} になるはずです",
        looks_like(
            (got.near(before),
             "the parameters do not move at all", "パラメータがまったく動いていません"),
            (got.near(before.step(batch, LR / share / count)),
             "it was right for batches that divide evenly",
             "均等に割り切れるバッチでは正しい値でした"),
            (got.near(before.step(batch, LR)),
             "the gradients are added up, and nothing divides them",
             "勾配の合計がどこでも割られていません"),
        ),
    )  # fmt: skip
