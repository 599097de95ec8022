"""Softmax regression in numpy and in Gluon: the reference for an answer's updates.

The gradient has a closed form: for images x (n, f) with labels y, d(sum of losses) / d(scores) =
softmax(scores) - onehot(y). `check_updates` has an answer train in microbatches, and names the
mistake that leads to the same parameters.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Iterator, List, NamedTuple, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon, nd
from mxnet.gluon import nn

from gluonlab.data.loading.split_batch import shard_bounds
from gluonlab.exercises.array_tracking import KEPT_EN, KEPT_JA, Calls, cpus
from gluonlab.exercises.checkers import Wrong, draws
from gluonlab.exercises.counterexamples import NOTHING, check, wrong

FEATURES, CLASSES = 4, 3
LR = 0.5
TOLERANCE = 1e-4  # relative; wrong updates are wrong by a tenth and more

Array = Any  # of numpy
Batch = Tuple[Array, Array]  # images (n, FEATURES) float32, labels (n,) int32


class Values(NamedTuple):
    """Weight (CLASSES, FEATURES) and bias (CLASSES,) as float64."""

    weight: Array
    bias: Array

    def step(self, batch: Batch, scale: float) -> "Values":
        """The values minus ``scale`` times the gradient of the sum of the batch's losses."""
        return self.minus(self.gradient(batch), scale)

    def minus(self, other: "Values", scale: float) -> "Values":
        """The values minus ``scale`` times others."""
        return Values(self.weight - scale * other.weight, self.bias - scale * other.bias)

    def gradient(self, batch: Batch) -> "Values":
        """Of the sum of the batch's losses."""
        images, labels = batch
        chances = self._chances(images)
        chances[np.arange(len(labels)), labels] -= 1
        return Values(chances.T @ images, chances.sum(axis=0))

    def losses(self, batch: Batch) -> Array:
        """Of each image: (n,)."""
        images, labels = batch
        return -np.log(self._chances(images)[np.arange(len(labels)), labels])

    def _chances(self, images: Array) -> Array:
        scores = images.astype(np.float64) @ self.weight.T + self.bias  # (n, CLASSES)
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        return chances / chances.sum(axis=1, keepdims=True)

    def train(self, batches: Sequence[Batch]) -> "Values":
        """Plain SGD, one update for each batch: the mean of its gradients."""
        values = self
        for batch in batches:
            values = values.step(batch, LR / len(batch[0]))
        return values

    def near(self, other: "Values") -> bool:
        """Whether the two agree, but for the rounding of float32."""
        return distance(self, other) <= TOLERANCE


def distance(a: Values, b: Values) -> float:
    """The norm of the difference, relative to that of ``b``."""
    ours, theirs = (np.concatenate([part.ravel() for part in values]) for values in (a, b))
    return float(np.linalg.norm(ours - theirs) / (np.linalg.norm(theirs) or 1))


def some_values() -> Values:
    """Those that trainings begin with."""
    random = draws(0)
    return Values(random.normal(0, 0.5, (CLASSES, FEATURES)), random.normal(0, 0.5, CLASSES))


def some_batches(sizes: Sequence[int]) -> List[Batch]:
    """Random batches of these sizes; neither gradients nor labels of any two are alike."""
    random = draws([0, *sizes])
    return [
        (
            random.normal(0, 1, (size, FEATURES)).astype(np.float32),
            random.randint(0, CLASSES, size).astype(np.int32),
        )
        for size in sizes
    ]


def make_net(
    values: Values, ctxs: Sequence[mx.Context], grad_req: str = "write", flatten: bool = True
) -> gluon.Block:
    """The layer with these values on every device."""
    net = nn.Dense(CLASSES, in_units=FEATURES, flatten=flatten)
    net.collect_params().setattr("grad_req", grad_req)
    net.initialize(ctx=list(ctxs))
    net.weight.set_data(nd.array(values.weight))
    net.bias.set_data(nd.array(values.bias))
    return net


def values_of(net: gluon.Block, ctx: mx.Context) -> Values:
    """What the layer now has on a device."""
    params = (net.weight, net.bias)
    return Values(*(param.data(ctx).asnumpy().astype(np.float64) for param in params))


def make_trainer(net: gluon.Block, **settings: Any) -> gluon.Trainer:
    """Plain SGD."""
    return gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": LR}, **settings)


def on_host(batch: Batch) -> Tuple[nd.NDArray, nd.NDArray]:
    """The batch as arrays on the CPU."""
    images, labels = batch
    return nd.array(images, dtype="float32"), nd.array(labels, dtype="int32")


class ExerciseTraining:
    """What the answers that train are given: the layer on some devices, a loss, a trainer."""

    def __init__(self, ctxs: Sequence[mx.Context], grad_req: str = "write") -> None:
        self.begin = some_values()
        self.net = make_net(self.begin, ctxs, grad_req)
        self.trainer = make_trainer(self.net)

    def run(self, answer: Callable[..., Any], batch: Batch, *more: Any) -> Any:
        """Have the answer train on images and labels; what it returns."""
        loss = gluon.loss.SoftmaxCrossEntropyLoss()
        return answer(self.net, loss, self.trainer, *on_host(batch), *more)

    def values(self, ctx: mx.Context) -> Values:
        """What the layer now has on a device."""
        return values_of(self.net, ctx)


_Leads = Tuple[Values, str, str]  # the parameters that it leads to, and its name in both languages


class Update(NamedTuple):
    """The parameters ``got`` after ``batches``; all updates but the last one were right."""

    got: Values
    begin: Values
    batches: List[Batch]
    parts: int

    @property
    def before(self) -> Values:
        """The parameters before the last batch."""
        return self.begin.train(self.batches[:-1])

    @property
    def want(self) -> Values:
        """The right parameters after it."""
        return self.begin.train(self.batches)


def check_updates(
    answer: Callable[..., Any],
    sizes: Sequence[int],
    parts: int,
    fault: Callable[[Update], Wrong],
    as_even: bool = False,
) -> List[Any]:
    """Have ``answer`` train on batches of these sizes in microbatches; what it returns for each.

    ``as_even``: the microbatches are to be as even as can be. Raises ``fault`` of the first update
    that is not the whole batch's, Wrong where the network did not see the images in so many parts.
    """
    [ctx], batches = cpus(1), some_batches(sizes)
    training, returned = ExerciseTraining([ctx], "add"), []  # type: ExerciseTraining, List[Any]
    calls = Calls(training.net)
    for number, (batch, size) in enumerate(zip(batches, sizes)):
        calls.forget()
        returned.append(training.run(answer, batch, parts))
        update = Update(training.values(ctx), training.begin, batches[: number + 1], parts)
        if not update.got.near(update.want):
            raise fault(update)
        _check_parts(calls, size, parts, as_even)
    return returned


def _check_parts(calls: Calls, size: int, parts: int, as_even: bool) -> None:
    """Raise Wrong unless the images of each call are those of ``parts`` microbatches."""
    seen, most = calls.sizes, math.ceil(size / parts)
    check(
        (max(seen) > most,
         f"the update of a batch of {size} in {parts} microbatches is right, "
         f"but {max(seen)} images went through the network at once, expected at most {most}: "
         "that saves no memory",
         f"{size} 枚のバッチを {parts} 個のマイクロバッチにした更新は正しいのですが、"
         f"一度に {max(seen)} 枚がネットワークを通りました (多くても {most} 枚のはず)。"
         "これではメモリは減りません"),
        (as_even and len(seen) == parts and min(seen) < size // parts,
         f"the update of a batch of {size} in {parts} microbatches is right, but they have {seen} "
         f"images: as even as can be, the smallest has {size // parts}",
         f"{size} 枚のバッチを {parts} 個のマイクロバッチにした更新は正しいのですが、"
         f"枚数が {seen} です。"
         f"できるだけ均等に分けると、最小でも {size // parts} 枚になります"),
        (len(seen) > parts or (as_even and len(seen) < parts),
         f"a batch of {size} went through the network in {len(seen)} parts, expected {parts}",
         f"{size} 枚のバッチが {len(seen)} 個に分けられました。{parts} 個のはずです"),
        (as_even and calls.kept_before_backward,
         f"the update of a batch of {size} in {parts} microbatches is right, but {KEPT_EN}",
         f"{size} 枚のバッチを {parts} 個のマイクロバッチにした更新は正しいのですが、{KEPT_JA}"),
    )  # fmt: skip


def wrong_update(update: Update) -> Wrong:
    """The counterexample of an update, and the mistake that leads to the same parameters."""
    got, _, batches, parts = update
    before, last = update.before, batches[-1]
    went, wanted = moved(got, before), moved(update.want, before)
    why = next(((en, ja) for wrong, en, ja in _mistakes(update) if got.near(wrong)), NOTHING)
    if why is NOTHING and abs(went / wanted - 1) < 0.01:
        why = (
            "as far as it should, but not in the same direction",
            "動いた量は合っていますが、向きが違います",
        )
    size, number = len(last[0]), len(batches)
    return wrong(
        f"batch {number}, of {size} images, in {parts} microbatch{'es' * (parts > 1)}: "
        f"the weights moved by {went:.4g}, expected {wanted:.4g}, as with the whole batch at once",
        f"{number} 番目のバッチ ({size} 枚、マイクロバッチ {parts} 個): 重みが {went:.4g} "
        f"動きました。バッチ全体を一度に使ったときの {wanted:.4g} になるはずです",
        why,
    )


def moved(after: Values, before: Values) -> float:
    """How far the weights lie apart."""
    return float(np.linalg.norm(after.weight - before.weight))


def _mistakes(update: Update) -> Iterator[_Leads]:
    """Each mistake that is often made, and the parameters of its own that it gives."""
    _, begin, batches, parts = update
    before, batch = update.before, batches[-1]
    yield from _scales(before, batch, parts)
    yield from _parts(before, batch, parts)
    yield (left_over(begin, batches),
           "the gradients of the batch before are still in it",
           "前のバッチの勾配が残ったままです")  # fmt: skip


def _scales(before: Values, batch: Batch, parts: int) -> Iterator[_Leads]:
    """The gradients of all images, divided by a wrong number, or weighted."""
    size, cuts = len(batch[0]), _cuts(batch, parts)
    yield before, "the parameters have not changed at all", "パラメータがまったく変わっていません"
    yield (before.step(batch, LR),
           "the sum of the gradients was not divided by the number of images",
           "勾配の合計が画像の枚数で割られていません")  # fmt: skip
    for cut in (cuts[0], cuts[-1]):
        yield (before.step(batch, LR / len(cut[0])),
               "the sum is divided by the images of one part, or means of parts are added up",
               (
                   "合計が 1 個のマイクロバッチの枚数で割られているか、"
                   "部分ごとの平均を足しています"
               ))  # fmt: skip
    for factor, en, ja in (
        (1 / size, "the loss of each part is a mean, and `step` divides once more",
         "損失が平均なのに `step` がもう一度割っています"),
        (1 / parts, "a mean of means: images of a small part count more than others",
         "平均の平均なので、小さい部分の画像の寄与が大きくなります"),
        (1.0, f"means are added up: the update is {parts} times too large",
         f"平均を足しているので、更新がおよそ {parts} 倍になっています"),
    ):  # fmt: skip
        after = before
        for cut in cuts:
            after = after.minus(before.gradient(cut), LR / len(cut[0]) * factor)
        yield after, en, ja


def _parts(before: Values, batch: Batch, parts: int) -> Iterator[_Leads]:
    """Images are left out, or there is more than one update."""
    size, cuts = len(batch[0]), _cuts(batch, parts)
    for cut, en, ja in (
        (cuts[-1], "only the last part counts", "最後の部分しか効いていません"),
        (cuts[0], "only the first part counts", "最初の部分しか効いていません"),
    ):
        yield before.step(cut, LR / size), en, ja
    whole = size // parts * parts
    for used in (size, whole):
        yield (before.step((batch[0][:whole], batch[1][:whole]), LR / used),
               "the images that are left over when the batch does not divide are lost",
               "割り切れずに余った画像が捨てられています")  # fmt: skip
    for sizes in ([size] * parts, [len(images) for images, _ in cuts]):
        zeroed = kept = before
        gradients: List[Values] = []
        for cut, divisor in zip(cuts, sizes):
            gradients.append(kept.gradient(cut))
            zeroed = zeroed.step(cut, LR / divisor)
            for gradient in gradients:
                kept = kept.minus(gradient, LR / divisor)
        for after in (zeroed, kept):
            yield (after,
                   "there is an update after every part, expected one for the batch",
                   "部分ごとに更新しています。バッチに 1 回のはずです")  # fmt: skip


def left_over(begin: Values, batches: Sequence[Batch]) -> Values:
    """The parameters when the last update alone has the gradients of all batches before in it."""
    before, scale = begin.train(batches[:-1]), LR / len(batches[-1][0])
    after = before.step(batches[-1], scale)
    for number in range(len(batches) - 1):
        after = after.minus(begin.train(batches[:number]).gradient(batches[number]), scale)
    return after


def _cuts(batch: Batch, parts: int) -> List[Batch]:
    images, labels = batch
    return [
        (images[begin:end], labels[begin:end]) for begin, end in shard_bounds(len(images), parts)
    ]
