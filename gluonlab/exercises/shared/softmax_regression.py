"""Softmax regression in numpy and in Gluon: the reference for an answer's updates.

The gradient has a closed form: for images x (n, f) with labels y, d(sum of losses) / d(scores) =
softmax(scores) - onehot(y).
"""

from __future__ import annotations

from typing import Any, Callable, List, NamedTuple, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon, nd
from mxnet.gluon import nn

from gluonlab.exercises.cases import draws

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


def make_net(values: Values, ctxs: Sequence[mx.Context], grad_req: str = "write") -> gluon.Block:
    """The layer with these values on every device."""
    net = nn.Dense(CLASSES, in_units=FEATURES)
    net.collect_params().setattr("grad_req", grad_req)
    net.initialize(ctx=list(ctxs))
    net.weight.set_data(nd.array(values.weight))
    net.bias.set_data(nd.array(values.bias))
    return net


def make_trainer(net: gluon.Block, **settings: Any) -> gluon.Trainer:
    """Plain SGD."""
    return gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": LR}, **settings)


def on_host(batch: Batch) -> Tuple[nd.NDArray, nd.NDArray]:
    """The batch as arrays on the CPU."""
    images, labels = batch
    return nd.array(images, dtype="float32"), nd.array(labels, dtype="int32")


class Training:
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
        params = (self.net.weight, self.net.bias)
        return Values(*(param.data(ctx).asnumpy().astype(np.float64) for param in params))
