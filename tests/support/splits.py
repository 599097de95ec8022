"""Random chains of layers, and plans that split them over devices."""

from types import SimpleNamespace

import mxnet as mx
import numpy as np
from hypothesis import strategies as st
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

from gluonlab.data.loading.split_batch import WHOLE_SHARDS, make_local_batch, shard
from gluonlab.kvstores import make_kvstore
from gluonlab.optimizers.optimizer_registry import make_optimizer
from gluonlab.parallel.mixed_precision import keep_float32
from gluonlab.parallel.strategy import Parallelism
from support.reference import identity

IMAGE, CLASSES = (2, 6, 6), 3
# The epsilon prevents large steps from rounding errors of tiny gradients.
OPTIMIZERS = {"sgd": {"learning_rate": 0.1, "momentum": 0.9}, "adam": {"learning_rate": 0.02, "epsilon": 1e-2}}


class Residual(nn.HybridBlock):
    """A residual block x + body(x), which no cut can split."""

    def __init__(self, body):
        super().__init__()
        self.body = body

    def hybrid_forward(self, F, x):
        return x + self.body(x)


# Functions that make a layer of a number of units. IMAGE_LAYERS keep the shape of images.
IMAGE_LAYERS = {
    "conv": lambda units: nn.Conv2D(units, 3, padding=1, activation="tanh"),
    "one by one": lambda units: nn.Conv2D(units, 1, use_bias=False),
    "average": lambda units: nn.AvgPool2D(2, 1),
    "tanh": lambda units: nn.Activation("tanh"),
    "in a row": lambda units: _sequence(nn.Conv2D(units, 1), nn.Activation("tanh")),
    "widened": lambda units: _sequence(nn.Conv2D(units, 1), Residual(nn.Conv2D(units, 1))),
}
VECTOR_LAYERS = {
    "dense": lambda units: nn.Dense(units, activation="tanh"),
    "plain": lambda units: nn.Dense(units, use_bias=False),
    "sigmoid": lambda units: nn.Activation("sigmoid"),
    "widened": lambda units: _sequence(nn.Dense(units), Residual(nn.Dense(units))),
}


def _sequence(*layers):
    net = nn.HybridSequential()
    net.add(*layers)
    return net


def _layer_lists(kinds, most):
    layer = st.tuples(st.sampled_from(sorted(kinds)), st.integers(1, 5))
    return st.lists(layer, max_size=most)


# Image layers, vector layers, whether the first layer is frozen, and whether a Flatten precedes the
# dense layers, which also flatten images.
chains = st.tuples(_layer_lists(IMAGE_LAYERS, 3), _layer_lists(VECTOR_LAYERS, 3), st.booleans(), st.booleans())


def make_chain(drawn, ctx=None):
    """Return the network of a draw, with random parameters that depend on the draw only."""
    image_layers, vector_layers, frozen_begin, flatten = drawn
    mx.random.seed(len(image_layers) + 7 * len(vector_layers))
    with mx.name.NameManager():
        net = nn.HybridSequential(prefix="chain_")
        with net.name_scope():
            net.add(*[IMAGE_LAYERS[kind](units) for kind, units in image_layers])
            net.add(*[nn.Flatten()] * flatten)
            net.add(*[VECTOR_LAYERS[kind](units) for kind, units in vector_layers], nn.Dense(CLASSES))
    net.initialize(mx.init.Xavier(), ctx=ctx)
    net(nd.zeros((1, *IMAGE), ctx=None if ctx is None else ctx[0]))
    if frozen_begin and len(net) > 1:
        net[0].collect_params().setattr("grad_req", "null")
    return net


def make_strategy_plan(
    split, optimizer="sgd", microbatches=WHOLE_SHARDS, kvstore="device", clip_norm=None, loss_scale=None, **more
):
    """Return a plan with the fields that a strategy reads."""
    copies = [copy[0] for copy in split.copies]
    return SimpleNamespace(
        **{
            "ctxs": [ctx for copy in split.copies for ctx in copy], "parallelism": split,
            "kvstore": make_kvstore(kvstore, copies), "bucket_bytes": None,
            "new_kvstore": lambda ctxs: make_kvstore(kvstore, ctxs),
            "postprocessing": {"clip_norm": clip_norm, "loss_scale": loss_scale},
            "microbatches": microbatches, "sync_bn": False, "on_servers": False,
            "conversion": keep_float32, "preprocess": identity,
            "make_optimizer": lambda: make_optimizer(optimizer, OPTIMIZERS[optimizer]), **more,
        }
    )  # fmt: skip


def make_parallelism(way, ctxs, size, **more):
    """Return a split over replicas of ``size`` devices each."""
    copies = [ctxs[begin : begin + size] for begin in range(0, len(ctxs), size)]
    return Parallelism(way, copies, "chain", image_shape=IMAGE, **more)


def make_batches(sizes, seed=0, image=IMAGE, classes=CLASSES):
    """Return random (images, labels) of each size as numpy arrays."""
    rng = np.random.RandomState(seed)
    return [(rng.rand(size, *image).astype("float32"), rng.randint(0, classes, size)) for size in sizes]


def train_strategy(strategy, batches):
    """Train on batches; return the losses, and the parameters by their places in the network."""
    losses = []
    for images, labels in batches:
        xs = shard(nd.array(images), strategy.inputs)
        ys = shard(nd.array(labels, dtype="int32"), strategy.inputs)
        losses.append(sum(loss.asscalar() for loss in strategy.step(make_local_batch(xs, ys))))
    nd.waitall()
    return losses, {name: array.asnumpy() for name, array in strategy.parameters().items()}


def softmax_loss():
    return gluon.loss.SoftmaxCrossEntropyLoss()


def train_chain_on_one_device(net, batches, case):
    """Train a whole network with plain Gluon, with gradient clipping in numpy."""
    loss = softmax_loss()
    [ctx] = next(iter(net.collect_params().values())).list_ctx()
    optimizer = make_optimizer(case["optimizer"], OPTIMIZERS[case["optimizer"]])
    trainer = gluon.Trainer(net.collect_params(), optimizer, kvstore=None)
    losses = []
    for images, labels in batches:
        with autograd.record():
            total = loss(net(nd.array(images, ctx=ctx)), nd.array(labels, ctx=ctx)).sum()
        total.backward()
        losses.append(total.asscalar())
        if case["clip_norm"] is not None:
            learned = [p for p in net.collect_params().values() if p.grad_req != "null"]
            norm = np.sqrt(sum((p.grad(ctx).asnumpy().astype("float64") ** 2).sum() for p in learned))
            factor = min(1.0, case["clip_norm"] / (norm / len(images)))
            for param in learned:
                param.grad(ctx)[:] *= factor
        trainer.step(len(images))
    places = net._collect_params_with_prefix()
    return losses, {name: param.list_data()[0].asnumpy() for name, param in places.items()}


def relative_difference(one, other):
    """Return ||one - other|| / ||other|| over all parameters."""
    a, b = (np.concatenate([params[name].ravel() for name in sorted(params)]) for params in (one, other))
    return np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-30)
