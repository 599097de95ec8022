"""Small networks by chance, for properties that any network must have: layers, shapes, what is trained and how fast.

What a network gives for an image depends on this image alone (BatchNorm takes its running statistics), and is smooth but for max
pooling, so that k devices must train as one does. Weights and losses are divided by the number of inputs, so that training
converges: where it diverges, each step multiplies what rounding left of the order of a sum.
"""

from dataclasses import dataclass
from typing import Any, Tuple

import mxnet as mx
import numpy as np
from hypothesis import strategies as st
from mxnet import autograd, gluon
from mxnet.gluon import nn

OPTIMIZERS = {  # with an epsilon that keeps rounding errors of tiny gradients from becoming whole steps
    "sgd": {"learning_rate": 0.05, "wd": 0.01},
    "momentum": {"learning_rate": 0.03, "momentum": 0.9, "clip_gradient": 5.0},
    "nag": {"learning_rate": 0.03, "momentum": 0.9},
    "adam": {"learning_rate": 0.02, "epsilon": 1e-2, "wd": 0.01},
    "rmsprop": {"learning_rate": 0.02, "epsilon": 0.1},
    "adagrad": {"learning_rate": 0.05, "eps": 0.1},
}
OF_FLOAT32 = ("rmsprop", "adagrad")  # whose states MXNet makes of this type
MXNETS_NAME = {"momentum": "sgd"}
HYBRIDIZED = {
    "as it is": None,
    "hybridized": {},
    "static_alloc": {"static_alloc": True},
    "static_shape": {"static_alloc": True, "static_shape": True},
}


class Scaled(nn.HybridBlock):
    """Times a parameter of an odd shape, (1,) or (1, 1): one number."""

    def __init__(self, axes):
        super().__init__()
        with self.name_scope():
            self.scale = self.params.get("scale", shape=(1,) * axes)

    def hybrid_forward(self, F, x, scale):
        if mx.util.is_np_array():
            return x * scale.reshape(-1)
        return F.broadcast_mul(x, scale.reshape((1,) * 2) if self.scale.shape != (1, 1) else scale)


class Branches(nn.HybridBlock):
    """x -> one(x) + other(x), both dense; the same one twice if ``shared``."""

    def __init__(self, units, shared):
        super().__init__()
        with self.name_scope():
            self.one = nn.Dense(units, activation="tanh")
            self.other = nn.Dense(units, params=self.one.params if shared else None)

    def hybrid_forward(self, F, x):
        return self.one(x) + self.other(x)


LAYERS = {
    "dense": lambda units, bias: nn.Dense(units, activation="tanh", use_bias=bias),
    "branches": Branches,
    "scaled": lambda units, flag: Scaled(1 + flag),
    "layer norm": lambda units, flag: nn.LayerNorm(center=flag),
    "conv": lambda units, bias: nn.Conv2D(units, 3, padding=1, activation="sigmoid", use_bias=bias),
    "strided": lambda units, bias: nn.Conv2D(units, (2, 1), strides=2, use_bias=bias),
    "batch norm": lambda units, flag: nn.BatchNorm(use_global_stats=True, scale=flag),
    "pool": lambda units, largest: (nn.MaxPool2D if largest else nn.AvgPool2D)(2, 1),
}
OF_IMAGES = ("conv", "strided", "batch norm", "pool")
OF_VECTORS = ("dense", "branches", "scaled", "layer norm")

layers = lambda kinds, most: st.lists(  # noqa: E731
    st.tuples(st.sampled_from(kinds), st.sampled_from([1, 2, 3, 5, 8, 16]), st.booleans()), max_size=most
)
rules = st.tuples(st.sampled_from(["write", "write", "null"]), st.sampled_from([1.0, 0.5, 2.0]), st.sampled_from([1.0, 0.0]))


@dataclass(frozen=True)
class Network:
    """What is built and how it is trained; `trained` does it."""

    layers: Tuple[Any, ...]
    classes: int
    shape: Tuple[int, ...]
    dtype: str
    rules: Tuple[Any, ...]  # grad_req, lr_mult and wd_mult of each parameter, in turn
    optimizer: str
    sizes: Tuple[int, ...]  # of the batches
    seed: int

    def build(self, ctxs, hybridize, kind):
        net = nn.HybridSequential()
        for name, units, flag in self.layers:
            net.add(LAYERS[name](units, flag))
        net.add(nn.Dense(self.classes))
        net.initialize(mx.init.Zero(), ctx=ctxs)  # mx.np cannot draw float64
        net.cast(self.dtype)
        net(kind.zeros((1, *self.shape), ctx=ctxs[0], dtype=self.dtype))  # which makes all shapes known
        random = np.random.RandomState(self.seed)
        params = list(net.collect_params().values())
        own = list(dict.fromkeys(_layer(param) for param in params))
        for param in params:
            low = 0.5 if param.name.endswith("running_var") else -0.6
            values = (random.uniform(low, 0.9, param.shape) / _inputs(param) ** 0.5).astype(self.dtype)
            param.set_data(kind.array(values, dtype=self.dtype))
            if param.grad_req != "null" and _layer(param) != own[-1]:
                # of a layer: with its weight frozen, MXNet computes no gradient of a bias, and leaves what was there
                rule = self.rules[own.index(_layer(param)) % len(self.rules)]
                param.grad_req, param.lr_mult, param.wd_mult = rule
        if HYBRIDIZED[hybridize] is not None:
            net.hybridize(**HYBRIDIZED[hybridize])
        return net

    def batches(self):
        random = np.random.RandomState(self.seed + 1)
        for size in self.sizes:
            yield random.normal(size=(size, *self.shape)).astype(self.dtype), random.randint(0, self.classes, size)


def _inputs(param):
    """How many numbers each output of a dense layer or a convolution is a sum of; 1 for all else."""
    return int(np.prod(param.shape[1:])) if param.name.endswith("weight") else 1


def _layer(param):
    return param.name.rsplit("_", 1)[0]


@st.composite
def networks(draw, devices):
    """A network, and batches with an image for each of so many devices."""
    of_images, optimizer = draw(st.booleans()), draw(st.sampled_from(sorted(OPTIMIZERS)))
    return Network(
        layers=tuple((draw(layers(OF_IMAGES, 3)) if of_images else []) + draw(layers(OF_VECTORS, 3))),
        classes=draw(st.integers(1, 4)),
        shape=(draw(st.integers(1, 3)), 9, 8) if of_images else (draw(st.integers(1, 7)),),
        dtype="float32" if optimizer in OF_FLOAT32 else draw(st.sampled_from(["float32", "float64"])),
        rules=tuple(draw(st.lists(rules, min_size=1, max_size=4))),
        optimizer=optimizer,
        sizes=tuple(draw(st.lists(st.integers(devices, devices + 5), min_size=2, max_size=4))),
        seed=draw(st.integers(0, 2**20)),
    )


def trained(network, trainer_class, store, ctxs, hybridize="as it is", numpy=False):
    """The parameters after a step for each batch: those of the first device, and whether all others have the same bits."""
    with mx.util.np_shape(numpy), mx.util.np_array(numpy):
        kind = mx.np if numpy else mx.nd
        net = network.build(ctxs, hybridize, kind)
        name = MXNETS_NAME.get(network.optimizer, network.optimizer)
        trainer = trainer_class(net.collect_params(), name, dict(OPTIMIZERS[network.optimizer]), kvstore=store)
        loss_class = gluon.loss.SoftmaxCrossEntropyLoss if network.classes > 1 else gluon.loss.L2Loss
        loss = loss_class(weight=1 / _inputs(net[-1].weight))
        for images, labels in network.batches():
            xs, ys = (
                gluon.utils.split_and_load(kind.array(array, dtype=array.dtype), ctxs, even_split=False)
                for array in (images, labels.astype(network.dtype))
            )
            with autograd.record():
                losses = [loss(net(x), y) for x, y in zip(xs, ys)]
            autograd.backward(losses)
            trainer.step(len(images))
        found = [[param.data(ctx).asnumpy() for param in net.collect_params().values()] for ctx in ctxs]
    alike = all(np.array_equal(a, b) for others in found[1:] for a, b in zip(others, found[0]))
    return found[0], alike
