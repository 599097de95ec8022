"""A softmax regression in NumPy that checks the parameter updates of a learner's answer.

The answer trains a Gluon network. The NumPy reference computes the right parameters with the closed
form of the gradient: d(sum of losses) / d(scores) = softmax(scores) - onehot(y). The images have
the shape (n, FEATURES), and the labels y have the shape (n,).

`check_updates` runs an answer that trains with microbatches. `explain_wrong_update` finds a typical
mistake that leads to the same wrong parameters.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Iterator, List, NamedTuple, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon, nd
from mxnet.gluon import nn

from gluonlab.data.loading.split_batch import shard_bounds
from gluonlab.exercises.array_tracking import ACTIVATIONS_KEPT_EN, ACTIVATIONS_KEPT_JA, ForwardRecorder, cpu_devices
from gluonlab.exercises.exercise_registry import Wrong, case_rng
from gluonlab.exercises.explain_wrong_answers import NO_TEXT, check_faults, count_in_english, counterexample

FEATURES, CLASSES = 4, 3
LR = 0.5
TOLERANCE = 1e-4  # relative tolerance; wrong updates differ by at least 0.1

Array = Any  # np.ndarray
Batch = Tuple[Array, Array]  # images (n, FEATURES) float32, labels (n,) int32


class LayerParams(NamedTuple):
    """Weight (CLASSES, FEATURES) and bias (CLASSES,) of a dense layer, as float64."""

    weight: Array
    bias: Array

    def step(self, batch: Batch, scale: float) -> "LayerParams":
        """Return the parameters minus ``scale`` times the gradient of the total loss."""
        return self.subtract(self.gradient(batch), scale)

    def subtract(self, other: "LayerParams", scale: float) -> "LayerParams":
        """Return these parameters minus ``scale`` times ``other``."""
        return LayerParams(self.weight - scale * other.weight, self.bias - scale * other.bias)

    def gradient(self, batch: Batch) -> "LayerParams":
        """Return the gradient of the batch's total loss."""
        images, labels = batch
        probabilities = self._probabilities(images)
        probabilities[np.arange(len(labels)), labels] -= 1
        return LayerParams(probabilities.T @ images, probabilities.sum(axis=0))

    def image_losses(self, batch: Batch) -> Array:
        """Return the loss of each image, as an array of shape (n,)."""
        images, labels = batch
        return -np.log(self._probabilities(images)[np.arange(len(labels)), labels])

    def _probabilities(self, images: Array) -> Array:
        """Return the softmax of the scores, of shape (n, CLASSES)."""
        scores = images.astype(np.float64) @ self.weight.T + self.bias  # (n, CLASSES)
        exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
        return exponentials / exponentials.sum(axis=1, keepdims=True)

    def train(self, batches: Sequence[Batch]) -> "LayerParams":
        """Return the parameters after plain SGD, with one update per batch by its mean gradient."""
        params = self
        for batch in batches:
            params = params.step(batch, LR / len(batch[0]))
        return params

    def is_close(self, other: "LayerParams") -> bool:
        """Return whether two sets of parameters are equal up to float32 rounding errors."""
        return relative_distance(self, other) <= TOLERANCE


def relative_distance(a: LayerParams, b: LayerParams) -> float:
    """Return the norm of ``a - b`` divided by the norm of ``b``, over all parameters."""
    ours, theirs = (np.concatenate([part.ravel() for part in values]) for values in (a, b))
    return float(np.linalg.norm(ours - theirs) / (np.linalg.norm(theirs) or 1))


def initial_params() -> LayerParams:
    """Return the initial parameters for all training runs."""
    random = case_rng(0)
    return LayerParams(random.normal(0, 0.5, (CLASSES, FEATURES)), random.normal(0, 0.5, CLASSES))


def random_batches(sizes: Sequence[int]) -> List[Batch]:
    """Return random batches. ``sizes``: the number of images in each batch."""
    random = case_rng([0, *sizes])
    return [
        (random.normal(0, 1, (size, FEATURES)).astype(np.float32), random.randint(0, CLASSES, size).astype(np.int32))
        for size in sizes
    ]


def make_net(
    params: LayerParams, ctxs: Sequence[mx.Context], grad_req: str = "write", flatten: bool = True
) -> gluon.Block:
    """Return a dense layer with these parameters on every device."""
    net = nn.Dense(CLASSES, in_units=FEATURES, flatten=flatten)
    net.collect_params().setattr("grad_req", grad_req)
    net.initialize(ctx=list(ctxs))
    net.weight.set_data(nd.array(params.weight))
    net.bias.set_data(nd.array(params.bias))
    return net


def read_params(net: gluon.Block, ctx: mx.Context) -> LayerParams:
    """Return the current parameters of the layer on a device."""
    params = (net.weight, net.bias)
    return LayerParams(*(param.data(ctx).asnumpy().astype(np.float64) for param in params))


def make_trainer(net: gluon.Block, **settings: Any) -> gluon.Trainer:
    """Return a trainer with plain SGD."""
    return gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": LR}, **settings)


def to_cpu_arrays(batch: Batch) -> Tuple[nd.NDArray, nd.NDArray]:
    """Return the batch as arrays on the CPU."""
    images, labels = batch
    return nd.array(images, dtype="float32"), nd.array(labels, dtype="int32")


class ExerciseTraining:
    """The network, loss and trainer that an answer trains with."""

    def __init__(self, ctxs: Sequence[mx.Context], grad_req: str = "write") -> None:
        self.initial = initial_params()
        self.net = make_net(self.initial, ctxs, grad_req)
        self.trainer = make_trainer(self.net)

    def run_answer(self, answer: Callable[..., Any], batch: Batch, *more: Any) -> Any:
        """Call the answer with the network, loss, trainer, images and labels. Return its result.

        ``more``: additional arguments for the answer.
        """
        loss = gluon.loss.SoftmaxCrossEntropyLoss()
        return answer(self.net, loss, self.trainer, *to_cpu_arrays(batch), *more)

    def read_params(self, ctx: mx.Context) -> LayerParams:
        """Return the current parameters on a device."""
        return read_params(self.net, ctx)


# The parameters after a mistaken update, and the mistake's description in English and in Japanese.
_MistakenUpdate = Tuple[LayerParams, str, str]


class Update(NamedTuple):
    """The parameters ``got`` after one update for each of ``batches``, starting from ``initial``.

    All updates except the last one were right. ``microbatches``: the number of microbatches per
    batch.
    """

    got: LayerParams
    initial: LayerParams
    batches: List[Batch]
    microbatches: int

    @property
    def params_before(self) -> LayerParams:
        """The parameters before the last batch."""
        return self.initial.train(self.batches[:-1])

    @property
    def want(self) -> LayerParams:
        """The right parameters after the last batch."""
        return self.initial.train(self.batches)


def check_updates(
    answer: Callable[..., Any],
    sizes: Sequence[int],
    microbatches: int,
    fault: Callable[[Update], Wrong],
    as_even: bool = False,
) -> List[Any]:
    """Call ``answer`` once for each size, to train on a batch of this size. Return its results.

    The answer must split each batch into ``microbatches`` microbatches. Raises ``fault(update)``
    for the first update that differs from an update with the whole batch. Raises Wrong if a
    microbatch was too large, or if there were too many microbatches. ``as_even``: whether to also
    raise Wrong for unequal or too few microbatches, and for activations that are kept too long.
    """
    [ctx], batches = cpu_devices(1), random_batches(sizes)
    training, returned = ExerciseTraining([ctx], "add"), []  # type: ExerciseTraining, List[Any]
    recorder = ForwardRecorder(training.net)
    for number, (batch, size) in enumerate(zip(batches, sizes)):
        recorder.reset()
        returned.append(training.run_answer(answer, batch, microbatches))
        update = Update(training.read_params(ctx), training.initial, batches[: number + 1], microbatches)
        if not update.got.is_close(update.want):
            raise fault(update)
        _check_microbatches(recorder, size, microbatches, as_even)
    return returned


def _check_microbatches(recorder: ForwardRecorder, size: int, microbatches: int, as_even: bool) -> None:
    """Raise Wrong unless the recorded forward calls match the number of ``microbatches``.

    ``size``: the number of images in the batch. ``as_even``: whether the sizes must be as equal as
    possible, and activations must be freed in time.
    """
    sizes, largest = recorder.batch_sizes, math.ceil(size / microbatches)
    check_faults(
        (max(sizes) > largest,
         f"the update of a batch of {size} in {microbatches} microbatches is right, but {max(sizes)} images went "
             f"through the model at once, expected at most {largest}: that does not save memory",
         f"{size} 枚のバッチを {microbatches} 個のマイクロバッチにした更新は正しいのですが、一度に {max(sizes)} "
         f"枚がネットワークを通りました (多くても {largest} 枚のはず)。これではメモリは減りません"),
        (as_even and len(sizes) == microbatches and min(sizes) < size // microbatches,
         f"the update of a batch of {size} in {microbatches} microbatches is right, but they have {sizes} images: "
             f"divide as evenly as possible, so that the smallest has {size // microbatches}",
         f"{size} 枚のバッチを {microbatches} 個のマイクロバッチにした更新は正しいのですが、枚数が {sizes} です。"
         f"できるだけ均等に分けると、最小でも {size // microbatches} 枚になります"),
        (len(sizes) > microbatches or (as_even and len(sizes) < microbatches),
         f"a batch of {size} went through the model in {len(sizes)} parts, expected {microbatches}",
         f"{size} 枚のバッチが {len(sizes)} 個に分けられました。{microbatches} 個のはずです"),
        (as_even and recorder.overlapping_forwards,
         f"the update of a batch of {size} in {microbatches} microbatches is right, but {ACTIVATIONS_KEPT_EN}",
         f"{size} 枚のバッチを {microbatches} 個のマイクロバッチにした更新は正しいのですが、{ACTIVATIONS_KEPT_JA}"),
    )  # fmt: skip


def explain_wrong_update(update: Update) -> Wrong:
    """Return a counterexample for a wrong update.

    If a known mistake leads to the same parameters, the counterexample names it.
    """
    got, _, batches, microbatches = update
    params_before, last = update.params_before, batches[-1]
    moved, expected = (weight_distance(got, params_before), weight_distance(update.want, params_before))
    explanation = next(((en, ja) for wrong, en, ja in _mistaken_updates(update) if got.is_close(wrong)), NO_TEXT)
    if explanation is NO_TEXT and abs(moved / expected - 1) < 0.01:
        explanation = ("the length is right, but not the direction", "動いた量は合っていますが、向きが違います")
    size, number = len(last[0]), len(batches)
    return counterexample(
        f"batch {number}, of {size} images, in {count_in_english(microbatches, 'microbatch', 'es')}: the weights moved "
        f"by {moved:.4g}, expected {expected:.4g}, as with the whole batch at once",
        f"{number} 番目のバッチ ({size} 枚、マイクロバッチ {microbatches} 個): 重みが {moved:.4g} "
        f"動きました。バッチ全体を一度に使ったときの {expected:.4g} になるはずです",
        explanation,
    )


def cut_larger_last(count: int, parts: int) -> List[Tuple[int, int]]:
    """Return (begin, end) of each part like `shard_bounds`, but with larger parts near the end."""
    return [(count * part // parts, count * (part + 1) // parts) for part in range(parts)]


def cut_rest_last(count: int, parts: int) -> List[Tuple[int, int]]:
    """Return (begin, end) of equal parts of a batch. The last part also gets the remainder."""
    ends = [*(count // parts * part for part in range(parts)), count]
    return list(zip(ends, ends[1:]))


def weight_distance(a: LayerParams, b: LayerParams) -> float:
    """Return the norm of the difference of the weights, without the biases."""
    return float(np.linalg.norm(a.weight - b.weight))


def _mistaken_updates(update: Update) -> Iterator[_MistakenUpdate]:
    """For each common mistake in the last update, yield the parameters and a description."""
    _, begin, batches, microbatches = update
    params_before, batch = update.params_before, batches[-1]
    yield from _wrongly_scaled_updates(params_before, batch, microbatches)
    yield from _partial_updates(params_before, batch, microbatches)
    yield (params_with_stale_gradients(begin, batches), "the update still contains the gradients of the previous batch",
           "前のバッチの勾配が残ったままです")  # fmt: skip


def _wrongly_scaled_updates(params_before: LayerParams, batch: Batch, microbatches: int) -> Iterator[_MistakenUpdate]:
    """Yield the parameters after updates with a wrong divisor or wrong image weights."""
    size, cuts = len(batch[0]), _split_batch(batch, microbatches)
    yield (params_before, "the parameters have not changed", "パラメータがまったく変わっていません")
    yield (params_before.step(batch, LR), "the sum of the gradients was not divided by the number of images",
           "勾配の合計が画像の枚数で割られていません")  # fmt: skip
    for cut in (cuts[0], cuts[-1]):
        yield (params_before.step(batch, LR / len(cut[0])),
               "the sum is divided by the images of one part, or the means of the parts are added up",
               "合計が 1 個のマイクロバッチの枚数で割られているか、部分ごとの平均を足しています")  # fmt: skip
    for factor, en, ja in (
        (1 / size, "the loss of each part is a mean, but `step` divides again",
         "損失が平均なのに `step` がもう一度割っています"),
        (1 / microbatches, "that is a mean of means: images of a small part count more than others",
         "平均の平均なので、小さい部分の画像の寄与が大きくなります"),
        (1.0, f"the means are added up: the update is {microbatches} times too large",
         f"平均を足しているので、更新がおよそ {microbatches} 倍になっています"),
    ):  # fmt: skip
        after = params_before
        for cut in cuts:
            after = after.subtract(params_before.gradient(cut), LR / len(cut[0]) * factor)
        yield after, en, ja


def _partial_updates(params_before: LayerParams, batch: Batch, microbatches: int) -> Iterator[_MistakenUpdate]:
    """Yield the parameters after updates that omit images, and after one update per microbatch."""
    size, cuts = len(batch[0]), _split_batch(batch, microbatches)
    for cut, en, ja in (
        (cuts[-1], "only the last part counts", "最後の部分しか効いていません"),
        (cuts[0], "only the first part counts", "最初の部分しか効いていません"),
    ):
        yield params_before.step(cut, LR / size), en, ja
    whole = size // microbatches * microbatches
    for used in (size, whole):
        yield (params_before.step((batch[0][:whole], batch[1][:whole]), LR / used),
               "the remaining images are lost if the batch does not divide evenly",
               "割り切れずに余った画像が捨てられています")  # fmt: skip
    for sizes in ([size] * microbatches, [len(images) for images, _ in cuts]):
        with_zeroing = without_zeroing = params_before
        gradients: List[LayerParams] = []
        for cut, divisor in zip(cuts, sizes):
            gradients.append(without_zeroing.gradient(cut))
            with_zeroing = with_zeroing.step(cut, LR / divisor)
            for gradient in gradients:
                without_zeroing = without_zeroing.subtract(gradient, LR / divisor)
        for after in (with_zeroing, without_zeroing):
            yield (after, "there is an update after every part, expected one per batch",
                   "部分ごとに更新しています。バッチに 1 回のはずです")  # fmt: skip


def params_with_stale_gradients(begin: LayerParams, batches: Sequence[Batch]) -> LayerParams:
    """Return the parameters if the last update also adds the gradients of all earlier batches."""
    params_before, scale = begin.train(batches[:-1]), LR / len(batches[-1][0])
    after = params_before.step(batches[-1], scale)
    for number in range(len(batches) - 1):
        after = after.subtract(begin.train(batches[:number]).gradient(batches[number]), scale)
    return after


def _split_batch(batch: Batch, microbatches: int) -> List[Batch]:
    images, labels = batch
    return [(images[begin:end], labels[begin:end]) for begin, end in shard_bounds(len(images), microbatches)]
