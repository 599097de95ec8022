"""--dtype float16 on simulated GPUs: what a product of float16 is, on any number of them, and what
it asks of the libraries.
"""

from functools import partial
from typing import NamedTuple, Tuple

import mxnet as mx
import numpy as np
import pytest
from gpus.simulated import counting
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from support.reference import identity, parameter_arrays, random_batches

from gluonlab.bucketed_trainer.loss_scale import LossScale
from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.data.loading.augmentation import make_input_transform
from gluonlab.data.loading.split_batch import make_local_batch, shard
from gluonlab.kvstores import make_kvstore
from gluonlab.models.builtin_networks import LeNet
from gluonlab.models.cpu_channel_padding import Padding, choose_padding
from gluonlab.models.symbol_graph import replace_nodes
from gluonlab.parallel.data.strategy import DataParallelStep
from gluonlab.parallel.mixed_precision import keep_float32, mixed_precision, mixed_precision_for_sync_bn
from gluonlab.parallel.training_loss import make_loss

RATE, SCALE = 0.1, 2.0**8
PRODUCTS = ("Convolution", "FullyConnected")


class Layer(NamedTuple):
    channels: int
    norm: bool
    act: str
    pool: bool


class Network(NamedTuple):
    """Images (n, colors, 8, 8) through these layers, and a dense one."""

    colors: int
    layers: Tuple[Layer, ...]

    def build(self, ctxs, dtype="float32"):
        net = nn.HybridSequential(prefix="net_")
        with net.name_scope():
            for layer in self.layers:
                net.add(nn.Conv2D(layer.channels, 3, padding=1))
                net.add(*([nn.BatchNorm()] if layer.norm else []), nn.Activation(layer.act))
                net.add(*([nn.AvgPool2D(2)] if layer.pool else []))
            net.add(nn.Dense(7, activation="tanh"), nn.Dense(10))
        net.initialize(ctx=ctxs)
        net.cast(dtype)
        net(nd.zeros((1, self.colors, 8, 8), ctx=ctxs[0], dtype=dtype))
        random = np.random.RandomState(4)
        for name, param in net.collect_params().items():
            width = np.prod(param.shape[1:]) if len(param.shape) > 1 else 4
            start = random.standard_normal(param.shape) / np.sqrt(width)
            param.set_data(nd.array(abs(start) + 1 if name.endswith(("var", "gamma")) else start, dtype=dtype))
        return net


@st.composite
def networks(draw):
    norm = draw(st.booleans())
    layer = st.builds(Layer, st.integers(1, 9), st.just(norm), st.sampled_from(["relu", "tanh"]), st.booleans())
    return Network(draw(st.integers(1, 3)), tuple(draw(st.lists(layer, min_size=1, max_size=2))))


def train_on_gpus(network, k, batches, convert, sync_bn):
    """(parameters on each GPU, the sums of losses) after a step for each batch."""
    ctxs = [mx.gpu(device) for device in range(k)]
    net = network.build(ctxs)
    store = make_kvstore("device", ctxs) if k > 1 else None
    scale = None if convert is keep_float32 else LossScale(SCALE)
    trainer = BucketedTrainer(net.collect_params(), "sgd", {"learning_rate": RATE}, store, loss_scale=scale)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    step = DataParallelStep(net, loss, trainer, ctxs, identity, sync_bn=sync_bn, convert=convert)
    losses = []
    for images, labels in batches:
        result = step(make_local_batch(shard(nd.array(images), ctxs), shard(nd.array(labels, dtype="int32"), ctxs)))
        losses.append(sum(float(loss.asscalar()) for loss in result))
    assert scale is None or scale.skipped == 0
    return [trained_arrays(net, ctx) for ctx in ctxs], losses


def train_on_cpu(network, batches, dtype="float32", convert=None):
    """The same by Gluon's own recording; ``convert``: of the network's graph."""
    net = network.build([mx.cpu()], dtype)
    called, scale = net, 1.0
    if convert is not None:
        data = mx.sym.var("data", dtype="float32")
        called, scale = gluon.SymbolBlock(convert(net(data)), data, net.collect_params()), SCALE
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": RATE}, kvstore=None)
    losses = []
    for images, labels in batches:
        with autograd.record():
            scores = called(nd.array(images, dtype=dtype))
            total = gluon.loss.SoftmaxCrossEntropyLoss()(scores, nd.array(labels)).sum()
            scaled = total * scale
        scaled.backward()
        trainer.step(len(images) * scale)
        losses.append(float(total.asscalar()))
    return trained_arrays(net), losses


def trained_arrays(net, ctx=None):
    return [
        array
        for array, param in zip(parameter_arrays(net, ctx), net.collect_params().values())
        if param.grad_req != "null"
    ]


def round_products(graph, shape):
    """A graph of mixed precision whose products are of float32, of factors that float16 holds, and
    then rounded to float16.
    """

    def exactly(node, add, entries):
        factors = [add("Cast", f"_factor{i}", [entry], dtype="float32") for i, entry in enumerate(entries)]
        add("Cast", "", [add(node["op"], "_product", factors, **node["attrs"])], dtype="float16")

    def choose(node, *_):
        return partial(exactly, node) if node["op"] in PRODUCTS else None

    return replace_nodes(graph, {"data": shape}, choose)


def relative_deviation(result, expected, start):
    """How far all parameters together have gone elsewhere, beside how far they were to go."""
    ours, theirs, before = (np.concatenate([array.ravel() for array in arrays]) for arrays in (result, expected, start))
    return np.linalg.norm(ours - theirs) / np.linalg.norm(theirs - before)


@settings(max_examples=5)
@given(network=networks(), k=st.integers(1, 4), sizes=st.sampled_from([(9, 9), (7, 4), (12, 1)]))
@example(Network(1, (Layer(3, True, "tanh", False), Layer(1, True, "tanh", False))), 2, (9, 9))
@example(Network(3, (Layer(5, False, "relu", True),)), 3, (7, 4))
def test_k_gpus_train_as_one_cpu_that_rounds_what_goes_into_products_and_comes_out(network, k, sizes):
    """Channels of any number; with BatchNorm over all devices.

    Three digits, but where rounding takes ReLU past its kink.
    """
    sync_bn = network.layers[0].norm and k > 1
    convert = mixed_precision_for_sync_bn if sync_bn else mixed_precision
    batches = random_batches(sizes, shape=(network.colors, 8, 8))
    start = trained_arrays(network.build([mx.cpu()]))
    devices, losses = train_on_gpus(network, k, batches, convert, sync_bn)
    shape = (1, network.colors, 8, 8)
    expected, wanted_losses = train_on_cpu(
        network, batches, convert=lambda graph: round_products(convert(graph), shape)
    )
    exact, exact_losses = train_on_cpu(network, batches, "float64")
    np.testing.assert_allclose(losses, wanted_losses, rtol=1e-3)
    np.testing.assert_allclose(losses, exact_losses, rtol=1e-3)
    smooth = all(layer.act == "tanh" for layer in network.layers)
    for result in devices:
        assert relative_deviation(result, expected, start) <= (0.004 if smooth else 0.03)
        assert relative_deviation(result, exact, start) <= (0.004 if smooth else 0.03)


@pytest.mark.parametrize("settings", [{"loss_scale": True}, {"clip_norm": 1.0}], ids=str)
@pytest.mark.parametrize(("k", "store"), [(1, None), (2, "device"), (2, "sharded-optimizer")])
def test_what_a_fused_operator_writes_beyond_a_gradient_stops_no_step(settings, k, store):
    """MXNet stores vectors there, of whatever lay behind the operator's inputs."""
    network = Network(1, (Layer(3, False, "relu", False),))
    batches = random_batches([6], shape=(1, 8, 8))
    result = []
    for beyond in (0.0, np.nan):  # as it may be
        ctxs = [mx.gpu(device) for device in range(k)]
        net = network.build(ctxs)
        arguments = {**settings, **({"loss_scale": LossScale(SCALE)} if "loss_scale" in settings else {})}
        kvstore = store and make_kvstore(store, ctxs)
        trainer = BucketedTrainer(net.collect_params(), "sgd", {"learning_rate": RATE}, kvstore, **arguments)
        step = DataParallelStep(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, ctxs, identity)
        for _ in range(2):
            for bucket in trainer.buckets:
                for array in bucket.grads:
                    for place in bucket.padding_indices():
                        array[place : place + 1] = beyond
            assert beyond == 0.0 or all(bucket.padding_indices() for bucket in trainer.buckets)
            for images, labels in batches:
                step(make_local_batch(shard(nd.array(images), ctxs), shard(nd.array(labels, dtype="int32"), ctxs)))
        assert trainer.loss_scale is None or trainer.loss_scale.skipped == 0
        result.append(trained_arrays(net))
    for clean, other in zip(*result):
        np.testing.assert_allclose(other, clean, rtol=1e-5, atol=1e-7)


def count_step(net, convert):
    """What a step of LeNet on one GPU takes."""
    ctxs = [mx.gpu(0)]
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    net(nd.zeros((1, 1, 28, 28), ctx=ctxs[0]))
    trainer = BucketedTrainer(net.collect_params(), "sgd", {"learning_rate": RATE}, None)
    step = DataParallelStep(net, make_loss(), trainer, ctxs, make_input_transform(None), convert=convert)
    images, labels = (nd.zeros((2, 1, 28, 28), ctx=ctxs[0], dtype="uint8"), nd.zeros((2,), ctx=ctxs[0], dtype="int32"))
    step(make_local_batch([images], [labels]))
    with counting() as happened:
        step(make_local_batch([images], [labels]))
    return happened


def test_channels_are_left_as_they_are_because_the_libraries_take_any_to_tensor_cores():
    """LeNet's 1, 20, 50 and 10: each product of float16 is one that may run there."""
    assert choose_padding(mx.gpu(0)) == Padding()
    plain = count_step(LeNet(10), mixed_precision)
    convolutions = {"Forward": 2, "BackwardFilter": 2, "BackwardData": 1}
    products = {"cublasGemmEx": 6, **{f"cudnnConvolution{name}": count for name, count in convolutions.items()}}
    for name, count in products.items():
        assert plain.names[name] == plain.names[f"{name} on tensor cores"] == count
    exact = count_step(LeNet(10), keep_float32)
    assert not any("on tensor cores" in name for name in exact.names)
