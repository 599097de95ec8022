"""A dense layer in the place of a convolution that gives one pixel: the same results, gradients and
names as the convolution.
"""

import json
from itertools import compress

import mxnet as mx
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from mxnet import gluon, nd
from mxnet.gluon import nn
from support.devices import contexts, device, on_gpus
from support.reference import as_is, distance, random_batches, train_on_one_device, values

from gluonlab.data.loading.batch import whole
from gluonlab.data.loading.shards import shard
from gluonlab.kvstores import make_kvstore
from gluonlab.models import get_model
from gluonlab.models.one_pixel import dense_where_one_pixel
from gluonlab.parallel.data.strategy import DataParallelStep
from gluonlab.update.trainer import BucketedTrainer

SHAPE = (3, 4, 4)

sides = st.tuples(st.integers(1, 5), st.integers(1, 5))
convolutions = st.fixed_dictionaries(
    {
        "kernel": sides,
        "stride": st.tuples(st.integers(1, 3), st.integers(1, 3)),
        "pad": st.tuples(st.integers(0, 3), st.integers(0, 3)),
        "dilate": st.sampled_from([(1, 1), (1, 1), (1, 2)]),
        "num_group": st.sampled_from([1, 1, 2]),
        "num_filter": st.sampled_from([2, 4]),
        "no_bias": st.booleans(),
    }
)


def operators(graph):
    return [node["op"] for node in json.loads(graph.tojson())["nodes"]]


def convolution(attrs, image_shape):
    """A convolution of images, and the shapes of its arguments; None when there is no place for its
    window.
    """
    graph = mx.sym.Convolution(mx.sym.var("images"), name="conv", **attrs)
    try:
        shapes, outputs, _ = graph.infer_shape(images=image_shape)
    except mx.MXNetError:
        return None
    return graph, dict(zip(graph.list_arguments(), shapes)), outputs[0]


def results(graph, arrays, heads):
    """The output, and the gradients of all arguments by name."""
    ctx = device()
    grads = {
        name: nd.array(np.full(array.shape, np.nan, np.float32), ctx=ctx)
        for name, array in arrays.items()
    }
    executor = graph.bind(
        ctx, {name: nd.array(array, ctx=ctx) for name, array in arrays.items()}, args_grad=grads
    )
    output = executor.forward(is_train=True)[0].asnumpy()
    executor.backward([nd.array(heads, ctx=ctx)])
    predicted = executor.forward(is_train=False)[0].asnumpy()
    return output, predicted, {name: grad.asnumpy() for name, grad in grads.items()}


@settings(max_examples=150)
@given(sides, convolutions, st.integers(0, 2**31 - 1))
# sees padding only
@example(
    (1, 1),
    {"kernel": (1, 1), "stride": (1, 3), "pad": (0, 1), "num_filter": 2, "no_bias": False},
    0,
)
# not all pixels
@example(
    (2, 3), {"kernel": (3, 1), "stride": (2, 3), "pad": (1, 0), "num_filter": 2, "no_bias": True}, 0
)
def test_equals_the_convolution(side, attrs, seed):
    made = convolution(attrs, (3, 4, *side))
    assume(made is not None and min(made[2]) > 0)
    graph, shapes, output_shape = made
    dense = dense_where_one_pixel(graph, {"images": shapes["images"]})
    assert (dense.list_arguments(), dense.list_outputs()) == (
        graph.list_arguments(),
        graph.list_outputs(),
    )
    random = np.random.RandomState(seed)
    arrays = {
        name: random.uniform(0.5, 1, shape).astype(np.float32) for name, shape in shapes.items()
    }
    output, predicted, grads = results(graph, arrays, np.ones(output_shape, np.float32))
    own, own_predicted, own_grads = results(dense, arrays, np.ones(output_shape, np.float32))
    np.testing.assert_allclose(own, output, rtol=1e-5)
    np.testing.assert_allclose(own_predicted, predicted, rtol=1e-5)
    for name, grad in grads.items():
        np.testing.assert_allclose(own_grads[name], grad, rtol=1e-5, atol=1e-6, err_msg=name)
    # with positive images, weights that only meet the padding and no others
    idle = grads["conv_weight"] == 0
    usual = attrs.get("dilate", (1, 1)) == (1, 1) and attrs.get("num_group", 1) == 1
    replaced = idle.any() and not idle.all() and output_shape[2:] == (1, 1) and usual
    assert ("FullyConnected" in operators(dense)) == replaced
    assert replaced or dense is graph


def test_the_weights_that_only_meet_the_padding_get_no_gradient_at_all():
    graph, shapes, _ = convolution(
        {"kernel": (3, 3), "pad": (1, 1), "num_filter": 2, "no_bias": True}, (2, 2, 1, 1)
    )
    arrays = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    _, _, grads = results(
        dense_where_one_pixel(graph, {"images": (2, 2, 1, 1)}), arrays, np.ones((2, 2, 1, 1))
    )
    expected = np.zeros((2, 2, 3, 3))
    expected[:, :, 1, 1] = 2  # images
    np.testing.assert_array_equal(grads["conv_weight"], expected)


@pytest.mark.parametrize("side, replaced", [(32, 4), (33, 0), (64, 0)])
def test_resnet18s_last_layers(side, replaced):
    """Of 32x32 pixels one is left for its last stage: four of its five convolutions have 3x3
    weights, the fifth has 1x1.
    """
    scores = get_model("resnet18", 10, contexts(1))(mx.sym.var("images"))
    dense = dense_where_one_pixel(scores, {"images": (1, 3, side, side)})
    before, after = operators(scores), operators(dense)
    assert before.count("Convolution") - after.count("Convolution") == replaced
    assert after.count("FullyConnected") - before.count("FullyConnected") == replaced


def make_net(ctxs, start=None):
    """4x4, 2x2, 1x1 pixels; with BatchNorm, and a convolution whose weight two layers share."""
    net = nn.HybridSequential()
    shared = nn.Conv2D(6, 3, padding=1, in_channels=6)
    net.add(
        nn.Conv2D(6, 3, padding=1, strides=2, use_bias=False), nn.BatchNorm(),
        nn.Activation("relu"), nn.Conv2D(6, 3, padding=1, strides=2), nn.Activation("tanh"), shared,
        nn.Activation("tanh"), nn.Conv2D(6, 3, padding=1, in_channels=6, params=shared.params),
        nn.Dense(5),
    )  # fmt: skip
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    net(nd.zeros((1, *SHAPE), ctx=ctxs[0]))
    for param, array in zip(net.collect_params().values(), start or []):
        param.set_data(nd.array(array))
    return net


@pytest.mark.parametrize("sync_bn", [False, True])
def test_training_and_prediction_are_gluons(sync_bn):
    """On one device, and on two with shards of unequal sizes, whose BatchNorm sees both."""
    ctxs = contexts(2 if sync_bn else 1)
    start = values(make_net([mx.cpu()]))
    batches = random_batches([7, 7, 5], shape=SHAPE, classes=5)
    net = make_net(ctxs, start)
    trainer = BucketedTrainer(
        net.collect_params(),
        "sgd",
        {"learning_rate": 0.1, "momentum": 0.9},
        make_kvstore("device", ctxs),
    )
    step = DataParallelStep(
        net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, ctxs, as_is, sync_bn=sync_bn
    )
    for images, labels in batches:
        step(whole(shard(nd.array(images), ctxs), shard(nd.array(labels), ctxs)))
        scores = [
            part.scores.asnumpy()
            for part in step.score(whole(*(shard(nd.array(a), ctxs) for a in (images, labels))))
        ]
        predicted = [net(x).asnumpy() for x in shard(nd.array(images), ctxs)]
        np.testing.assert_allclose(
            np.concatenate(scores), np.concatenate(predicted), rtol=1e-3, atol=1e-5
        )
    expected = train_on_one_device(
        make_net([mx.cpu()], start), batches, "sgd", learning_rate=0.1, momentum=0.9
    )
    # without sync_bn a step alone leaves cuDNN's running variances, which are unbiased; a run puts
    # them right
    cudnns = on_gpus() and not sync_bn
    as_cpus = [not (cudnns and name.endswith("running_var")) for name in net.collect_params()]
    assert (
        distance([*compress(values(net, ctxs[0]), as_cpus)], [*compress(expected, as_cpus)]) < 1e-4
    )
