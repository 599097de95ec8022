"""03-1: one update from a batch of any size, on any number of devices."""

from __future__ import annotations

from typing import Any, Callable, List, Sequence

import numpy as np
from mxnet import gluon, init, nd

from gluonlab.data.loading.shards import shard_bounds
from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.shared.arrays import cpus
from gluonlab.exercises.shared.counterexamples import Case, in_english
from gluonlab.exercises.shared.softmax_regression import (
    CLASSES,
    FEATURES,
    LR,
    TOLERANCE,
    Values,
    make_trainer,
)
from gluonlab.kvstores import make_kvstore

Array = Any  # np.ndarray
BATCHES = ((1, 4), (2, 4), (2, 5), (3, 7), (2, 3), (3, 6))  # devices, images


@exercise("03-1")
def train_batch(answer: Callable[..., Any]) -> None:
    """One update from a batch of any size, the same on any number of devices."""
    for seed, (devices, images) in enumerate(BATCHES):
        batch = OneBatch(devices, images, seed)
        moved = batch.run(answer)
        for device, own in enumerate(moved[1:], 1):
            if not np.array_equal(own, moved[0]):
                raise batch.case.wrong(
                    f"devices 0 and {device} end with different parameters: "
                    "all of them need the same update",
                    f"更新後のパラメータがデバイス 0 と {device} で違います。"
                    "全デバイスで同じ更新が必要です",
                )
        _check_update(batch, moved[0])


class OneBatch:
    """A batch, the weights of a dense layer, and what its gradients are by the closed form."""

    def __init__(self, devices: int, images: int, seed: int) -> None:
        rng = draws(seed)
        self.devices = devices
        self.images = rng.normal(size=(images, FEATURES)).astype("float32")
        self.labels = rng.randint(0, CLASSES, images).astype("float32")
        self.weight = rng.normal(size=(CLASSES, FEATURES)).astype("float32")
        self.case = Case(
            f"{images} images on {in_english(devices, 'device')}",
            f"{devices} 台のデバイスに {images} 枚",
        )

    def gradient(self, begin: int, end: int) -> Array:
        """Of the sum of the losses of some images."""
        labels = self.labels[begin:end].astype(int)
        values = Values(self.weight, np.zeros(CLASSES))
        return values.gradient((self.images[begin:end], labels)).weight

    def run(self, answer: Callable[..., Any]) -> List[Array]:
        """How far the weights moved on each device."""
        ctxs = cpus(self.devices)
        net = gluon.nn.Dense(CLASSES, use_bias=False, in_units=FEATURES)
        net.initialize(init.Zero(), ctx=ctxs)
        net.weight.set_data(nd.array(self.weight))
        trainer = make_trainer(net, kvstore=make_kvstore("device"))
        loss = gluon.loss.SoftmaxCrossEntropyLoss()
        answer(nd.array(self.images), nd.array(self.labels), ctxs, net, loss, trainer)
        return [array.asnumpy() - self.weight for array in net.weight.list_data()]


def _check_update(batch: OneBatch, moved: Array) -> None:
    """Raise Wrong unless the update is that of the mean gradient; it names the fault if known."""
    images, ways = len(batch.images), shard_bounds(len(batch.images), batch.devices)
    step = -LR * batch.gradient(0, images) / images
    if _close(moved, step):
        return
    factor = float((moved * step).sum() / (step * step).sum())
    by_means = -LR * sum(batch.gradient(*way) / (way[1] - way[0]) for way in ways)
    batch.case.check(
        (not np.any(moved),
         "no parameter changed: `trainer.step` was not called, or nothing was recorded for it",
         "パラメータが変化していません。"
         "`trainer.step` を呼んでいないか、計算が記録されていません"),
        (_parallel(moved, step),
         f"the update is {factor:.3g} times the right one: "
         "`trainer.step` divides the sum of the gradients by the number that it is given, "
         "which must be that of all images in the batch",
         f"更新量が正しい値の {factor:.3g} 倍です。"
         "`trainer.step` は勾配の合計を渡された数で割ります。"
         "バッチ全体の画像の枚数を渡してください"),
        (len(ways) > 1 and _parallel(moved, -batch.gradient(*ways[0])),
         "only the gradient of device 0 is in the update: "
         "run backward for the losses of all shards",
         "デバイス 0 の勾配だけで更新されています。"
         "すべてのシャードの損失に対して backward を実行してください"),
    )  # fmt: skip
    sizes = " + ".join(str(end - begin) for begin, end in ways)
    if _parallel(moved, by_means):
        raise Case(f"{batch.case.en} ({sizes})", f"{batch.case.ja} ({sizes})").wrong(
            "each shard's mean loss counts alike, so images of the small shard count more: "
            "leave the losses unaveraged, and let `trainer.step` divide by the number of images",
            "シャードごとに損失を平均しているため、小さいシャードの画像の寄与が大きくなっています。"
            "損失は平均せずに backward を実行し、`trainer.step` に画像の枚数を渡してください",
        )
    raise batch.case.wrong(
        f"the first weights moved by {numbers(moved[0])}, "
        f"expected {numbers(step[0])}: that is not the update by the mean gradient of the batch",
        f"最初の重みの変化は {numbers(moved[0])}、"
        f"正しくは {numbers(step[0])} です。バッチの平均勾配による更新になっていません",
    )


def _close(a: Array, b: Array) -> bool:
    return bool(np.linalg.norm(a - b) <= TOLERANCE * np.linalg.norm(b))


def _parallel(a: Array, b: Array) -> bool:
    """Whether a is a positive multiple of b."""
    factor = (a * b).sum() / (b * b).sum()
    return bool(factor > 0 and _close(a, factor * b))


def numbers(values: Sequence[float]) -> str:
    """``[1, 0.5]``"""
    return "[" + ", ".join(f"{value:.3g}" for value in np.ravel(values)) + "]"
