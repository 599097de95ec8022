"""Small random networks, for properties of all networks.

The output for an image depends on this image only (BatchNorm uses its running statistics), and is
smooth except for max pooling. Therefore k devices must train like one device. Weights and losses
are divided by the number of inputs, so that training converges: a divergence would multiply
rounding errors in each step.
"""

from dataclasses import dataclass
from typing import Any, Tuple

import mxnet as mx
import numpy as np
from hypothesis import strategies as st
from mxnet import autograd, gluon
from mxnet.gluon import nn

from gluonlab.data.loading.split_batch import shard_sizes
from support.network_layers import IMAGE_LAYERS, LAYERS, SEQUENCE_LAYERS, VECTOR_LAYERS, VOCABULARY_SIZE, WORD_LAYERS

# The epsilons prevent large steps from rounding errors of tiny gradients.
OPTIMIZERS = {
    "sgd": {"learning_rate": 0.05, "wd": 0.01},
    "momentum": {"learning_rate": 0.03, "momentum": 0.9, "clip_gradient": 5.0},
    "nag": {"learning_rate": 0.03, "momentum": 0.9},
    "adam": {"learning_rate": 0.02, "epsilon": 1e-2, "wd": 0.01},
    "rmsprop": {"learning_rate": 0.02, "epsilon": 0.1},
    "adagrad": {"learning_rate": 0.05, "eps": 0.1},
}
FLOAT32_OPTIMIZERS = ("rmsprop", "adagrad")  # MXNet creates their states in float32
MXNET_NAMES = {"momentum": "sgd"}
HYBRIDIZE_OPTIONS = {
    "as it is": None,
    "hybridized": {},
    "static_alloc": {"static_alloc": True},
    "static_shape": {"static_alloc": True, "static_shape": True},
}
LOSSES = [gluon.loss.SoftmaxCrossEntropyLoss, gluon.loss.L2Loss]


class MultiHeadNet(gluon.Block):
    """A network with several dense heads, of which a batch uses those in ``used``."""

    def __init__(self, body, sizes):
        super().__init__()
        self.body, self.heads, self.used = body, nn.HybridSequential(), range(len(sizes))
        self.heads.add(*[nn.Dense(units) for units in sizes])

    def forward(self, x):
        x = self.body(x) if len(self.body) else x
        return [self.heads[number](x) for number in self.used]


@dataclass(frozen=True)
class Batch:
    """A batch of one step, with a backward pass for each part.

    ``parts``: the number of images of each part. ``used``: the heads whose losses are summed.
    """

    parts: Tuple[int, ...]
    used: Tuple[int, ...]


layer_lists = lambda kinds, most, least=0: st.lists(  # noqa: E731
    st.tuples(st.sampled_from(sorted(kinds)), st.sampled_from([1, 2, 3, 5, 8, 16]), st.booleans()),
    min_size=least,
    max_size=most,
)
parameter_rules = st.tuples(
    st.sampled_from(["write", "write", "add", "null"]), st.sampled_from([1.0, 0.5, 2.0]), st.sampled_from([1.0, 0.0])
)


@dataclass(frozen=True)
class NetworkCase:
    """A random network, and its training by `train_network`."""

    layers: Tuple[Any, ...]
    heads: Tuple[int, ...]
    shape: Tuple[int, ...]
    dtype: str
    rules: Tuple[Any, ...]  # grad_req, lr_mult and wd_mult of each parameter, in turn
    optimizer: str
    batches: Tuple[Batch, ...]
    seed: int

    def build(self, ctxs, hybridize, kind):
        body = nn.HybridSequential()
        for name, units, flag in self.layers:
            body.add(LAYERS[name](units, flag))
        net = MultiHeadNet(body, self.heads)
        net.initialize(mx.init.Zero(), ctx=ctxs)  # mx.np cannot draw float64
        net.cast(self.dtype)
        # the first forward infers all shapes
        net(kind.zeros((1, *self.shape), ctx=ctxs[0], dtype=self.dtype))
        random = np.random.RandomState(self.seed)
        params = list(net.collect_params().values())
        body_names = set(body.collect_params())
        layer_names = list(dict.fromkeys(_layer_name(param) for param in params))
        accumulated = any(len(batch.parts) > 1 for batch in self.batches)
        for param in params:
            low = 0.5 if param.name.endswith("running_var") else -0.6
            values = (random.uniform(low, 0.9, param.shape) / fan_in(param) ** 0.5).astype(self.dtype)
            if param.grad_req == "null" and param.name.endswith("gamma"):
                values[:] = 1  # the first forward sets it, but only on devices with images
            param.set_data(kind.array(values, dtype=self.dtype))
            if param.grad_req != "null":
                # One rule per layer: if its weight is frozen, MXNet leaves the gradient of the bias
                # unwritten.
                rule = self.rules[layer_names.index(_layer_name(param)) % len(self.rules)]
                frozen = rule[0] == "null" and param.name in body_names
                param.grad_req = "null" if frozen else "add" if accumulated else rule[0].replace("null", "write")
                param.lr_mult, param.wd_mult = rule[1:]
        # after npx.set_np(), MXNet gives a compiled recurrent layer states of size 0
        compiles = kind is mx.nd or not self._has(SEQUENCE_LAYERS)
        if HYBRIDIZE_OPTIONS[hybridize] is not None and compiles:
            net.hybridize(**HYBRIDIZE_OPTIONS[hybridize])
        return net

    def make_batches(self):
        """Yield (parts of (images, labels), used heads) for each batch."""
        random = np.random.RandomState(self.seed + 1)
        for batch in self.batches:
            yield (
                [(self._images(random, size), random.randint(0, self.heads[0], size)) for size in batch.parts],
                batch.used,
            )

    def _images(self, random, size):
        shape = (size, *self.shape)
        drawn = random.randint(0, VOCABULARY_SIZE, shape) if self._has(WORD_LAYERS) else random.normal(size=shape)
        return drawn.astype(self.dtype)

    def _has(self, kinds):
        return any(name in kinds for name, _, _ in self.layers)


def fan_in(param):
    """Return the number of inputs of each output of a weight; 1 for other parameters."""
    return int(np.prod(param.shape[1:])) if param.name.endswith("weight") else 1


def _layer_name(param):
    return param.name.rsplit("_", 1)[0]


# For each kind of input: the layers that may come first, how many, and the shape of an image.
INPUT_KINDS = {
    "vectors": ([], st.tuples(st.integers(1, 7))),
    "images": ([(IMAGE_LAYERS, 0, 3)], st.tuples(st.integers(1, 3), st.just(9), st.just(8))),
    "sequences": ([(SEQUENCE_LAYERS, 1, 1)], st.tuples(st.integers(1, 4), st.integers(1, 4))),
    "words": ([(WORD_LAYERS, 1, 1), (SEQUENCE_LAYERS, 0, 1)], st.tuples(st.integers(1, 4))),
}


@st.composite
def network_cases(draw, fewest, some_heads=False):
    """Draw a network and batches of at least ``fewest`` images.

    ``some_heads``: whether a batch may leave the parameters of a head unused.
    """
    kind, optimizer = (draw(st.sampled_from(sorted(INPUT_KINDS))), draw(st.sampled_from(sorted(OPTIMIZERS))))
    first, shapes = INPUT_KINDS[kind]
    heads = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=2)))
    every = tuple(range(len(heads)))
    passes = draw(st.sampled_from([1, 1, 1, 2]))
    sizes = st.lists(st.integers(fewest, fewest + 5), min_size=passes, max_size=passes).map(tuple)
    used = st.sampled_from([every, *((head,) for head in every)] if some_heads else [every])
    return NetworkCase(
        layers=tuple([layer for kinds, least, most in first for layer in draw(layer_lists(kinds, most, least))])
        + tuple(draw(layer_lists(VECTOR_LAYERS, 3))),
        heads=heads,
        shape=draw(shapes),
        dtype="float32"
        if optimizer in FLOAT32_OPTIMIZERS or kind in ("words", "sequences")
        else draw(st.sampled_from(["float32", "float64"])),
        rules=tuple(draw(st.lists(parameter_rules, min_size=1, max_size=4))),
        optimizer=optimizer,
        batches=tuple(draw(st.lists(st.builds(Batch, sizes, used), min_size=2, max_size=4))),
        seed=draw(st.integers(0, 2**20)),
    )


def train_network(network, trainer_class, store, ctxs, hybridize="as it is", numpy=False, weights=None):
    """Train a network; return the parameters of the first device, and whether all devices agree.

    ``weights``: the proportions in which the devices share each batch.
    """
    with mx.util.np_shape(numpy), mx.util.np_array(numpy):
        kind = mx.np if numpy else mx.nd
        net = network.build(ctxs, hybridize, kind)
        params = list(net.collect_params().values())
        name = MXNET_NAMES.get(network.optimizer, network.optimizer)
        trainer = trainer_class(net.collect_params(), name, dict(OPTIMIZERS[network.optimizer]), kvstore=store)
        losses = [LOSSES[units == 1](weight=1 / fan_in(head.weight)) for units, head in zip(network.heads, net.heads)]
        for parts, net.used in network.make_batches():
            for images, labels in parts:
                _backward(
                    net, [losses[number] for number in net.used], images, labels.astype(network.dtype), ctxs,
                    kind, weights,
                )  # fmt: skip
            left_out = len(net.used) < len(network.heads)
            trainer.step(sum(len(images) for images, _ in parts), ignore_stale_grad=left_out)
            if any(param.grad_req == "add" for param in params):
                net.collect_params().zero_grad()  # a Parameter's own fails after npx.set_np()
        # forward passes change the layout of frozen weights without a record in the engine
        mx.nd.waitall()
        arrays = [[param.data(ctx).asnumpy() for param in params] for ctx in ctxs]
    alike = all(np.array_equal(a, b) for others in arrays[1:] for a, b in zip(others, arrays[0]))
    return arrays[0], alike


def _backward(net, losses, images, labels, ctxs, kind, weights):
    ends = np.cumsum(shard_sizes(len(images), len(ctxs), weights))[: len(ctxs) - 1]
    with autograd.record():
        device_losses = []
        for ctx, x, y in zip(ctxs, np.split(images, ends), np.split(labels, ends)):
            if len(x):
                y = kind.array(y, dtype=y.dtype, ctx=ctx)
                outputs = net(kind.array(x, dtype=x.dtype, ctx=ctx))
                device_losses += [loss(output, y) for loss, output in zip(losses, outputs)]
    autograd.backward(device_losses)
