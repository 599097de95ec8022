"""One update of a small network, and what it should be: for checkers of what trains on a batch."""

from __future__ import annotations

from typing import Any, Callable, List, Mapping, Sequence, Tuple

import numpy as np

from gluonlab.exercises.exercise import Wrong

Array = Any  # np.ndarray
CLOSE = 1e-4  # relative: float32, and sums in another order
FEATURES, CLASSES, LR = 4, 3, 0.5


class Batch:
    """A batch, a dense layer on some devices, and what its gradients are by the closed form."""

    def __init__(self, devices: int, images: int, seed: int) -> None:
        rng = np.random.RandomState(seed)
        self.devices = devices
        self.images = rng.normal(size=(images, FEATURES)).astype("float32")
        self.labels = rng.randint(0, CLASSES, images).astype("float32")
        self.weight = rng.normal(size=(CLASSES, FEATURES)).astype("float32")

    def gradient(self, begin: int, end: int) -> Array:
        """Of the sum of the losses of some images: (softmax - one-hot)^T images."""
        images, labels = self.images[begin:end], self.labels[begin:end].astype(int)
        scores = images @ self.weight.T
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        return (odds / odds.sum(axis=1, keepdims=True) - np.eye(CLASSES)[labels]).T @ images

    def shards(self) -> List[Tuple[int, int]]:
        """(begin, end) of each device's images, as split_and_load cuts them."""
        each, more = divmod(len(self.images), self.devices)
        ends = np.cumsum([0] + [each + (device < more) for device in range(self.devices)])
        return list(zip(ends[:-1], ends[1:]))

    def run(self, answer: Callable[..., Any]) -> List[Array]:
        """How far the weights moved on each device."""
        from mxnet import gluon, init, nd

        from gluonlab.exercises.arrays import cpus
        from gluonlab.kvstores import make_kvstore

        ctxs = cpus(self.devices)
        net = gluon.nn.Dense(CLASSES, use_bias=False, in_units=FEATURES)
        net.initialize(init.Zero(), ctx=ctxs)
        net.weight.set_data(nd.array(self.weight))
        trainer = gluon.Trainer(
            net.collect_params(), "sgd", {"learning_rate": LR}, kvstore=make_kvstore("device")
        )
        answer(
            nd.array(self.images),
            nd.array(self.labels),
            ctxs,
            net,
            gluon.loss.SoftmaxCrossEntropyLoss(),
            trainer,
        )
        return [array.asnumpy() - self.weight for array in net.weight.list_data()]


def judge(what: Mapping[str, str], batch: Batch, moved: Array) -> None:
    """Raise Wrong, which names the fault if it is a known one, when an update is not the mean
    gradient's.
    """
    images, ways = len(batch.images), batch.shards()
    step = -LR * batch.gradient(0, images) / images
    if _close(moved, step):
        return
    factor = float((moved * step).sum() / (step * step).sum())
    by_means = -LR * sum(batch.gradient(*way) / (way[1] - way[0]) for way in ways)
    firsts = -LR * batch.gradient(*ways[0])
    if not np.any(moved):
        raise Wrong(
            en=f"{what['en']}: no parameter changed: `trainer.step` was not called, "
            "or nothing was recorded for it",
            ja=f"{what['ja']}: パラメータが変化していません。"
            "`trainer.step` を呼んでいないか、計算が記録されていません",
        )
    if _close(moved, factor * step) and factor > 0:
        raise Wrong(
            en=f"{what['en']}: the update is {factor:.3g} times the right one: "
            "`trainer.step` divides the sum of the gradients by the number that it is given, "
            "which must be that of all images in the batch",
            ja=f"{what['ja']}: 更新量が正しい値の {factor:.3g} 倍です。"
            "`trainer.step` は勾配の合計を渡された数で割ります。"
            "バッチ全体の画像の枚数を渡してください",
        )
    if len(ways) > 1 and _parallel(moved, firsts):
        raise Wrong(
            en=f"{what['en']}: only the gradient of device 0 is in the update: "
            "run backward for the losses of all shards",
            ja=f"{what['ja']}: デバイス 0 の勾配だけで更新されています。"
            "すべてのシャードの損失に対して backward を実行してください",
        )
    if _parallel(moved, by_means):
        sizes = " + ".join(str(end - begin) for begin, end in ways)
        raise Wrong(
            en=f"{what['en']} ({sizes}): each shard's mean loss counts alike, "
            "so images of the small shard count more: "
            "leave the losses unaveraged, and let `trainer.step` divide by the number of "
            "images",
            ja=f"{what['ja']} ({sizes}): シャードごとに損失を平均しているため、"
            "小さいシャードの画像が重く数えられています。"
            "平均せずに backward し、`trainer.step` に画像の枚数で割らせてください",
        )
    raise Wrong(
        en=f"{what['en']}: the first weights moved by {numbers(moved[0])}, "
        f"expected {numbers(step[0])}: that is no update by the mean gradient of the batch",
        ja=f"{what['ja']}: 最初の重みの変化は {numbers(moved[0])}、"
        f"正しくは {numbers(step[0])} です。バッチの平均勾配による更新になっていません",
    )


def in_words(devices: int, images: int) -> Mapping[str, str]:
    """The batch, for a message."""
    return {
        "en": f"{images} images on {devices} device{'s' * (devices > 1)}",
        "ja": f"{devices} 台のデバイスに {images} 枚",
    }


def _close(a: Array, b: Array) -> bool:
    return bool(np.linalg.norm(a - b) <= CLOSE * np.linalg.norm(b))


def _parallel(a: Array, b: Array) -> bool:
    """Whether a is a positive multiple of b."""
    factor = (a * b).sum() / (b * b).sum()
    return bool(factor > 0 and _close(a, factor * b))


def numbers(values: Sequence[float]) -> str:
    """``[1, 0.5]``"""
    return "[" + ", ".join(f"{value:.3g}" for value in np.ravel(values)) + "]"
