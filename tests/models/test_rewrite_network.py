"""Rewritten graphs compute the same results and gradients, under the same names."""

import json
from itertools import compress

import mxnet as mx
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from support.completed import make_initialized_net
from support.devices import contexts, devices, runs_on_gpus
from support.graphs import assert_same_results
from support.reference import (
    cpu_contexts,
    identity,
    parameter_arrays,
    random_batches,
    relative_distance,
    train_on_one_device,
)

from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.data.loading.split_batch import make_local_batch, shard
from gluonlab.kvstores import make_kvstore
from gluonlab.models import get_model
from gluonlab.models.rewrite_network import (
    convert_global_average_pooling,
    convert_odd_concatenations,
    convert_one_pixel_convolutions,
    move_relu_after_pooling,
)
from gluonlab.models.symbol_graph import parse_graph
from gluonlab.parallel.data.strategy import DataParallelStep

sides = st.tuples(st.integers(1, 5), st.integers(1, 5))


def operators(graph):
    return [node["op"] for node in json.loads(graph.tojson())["nodes"]]


def names(graph):
    return graph.list_arguments(), graph.list_outputs()


# --- a convolution with one pixel of output as a dense layer

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


def convolution(attrs, image_shape):
    """Return a convolution, the shapes of its arguments and of its output; None if the window does not fit."""
    graph = mx.sym.Convolution(mx.sym.var("images"), name="conv", **attrs)
    try:
        shapes, outputs, _ = graph.infer_shape(images=image_shape)
    except mx.MXNetError:
        return None
    return graph, dict(zip(graph.list_arguments(), shapes)), outputs[0]


@settings(max_examples=150)
@given(sides, convolutions, st.integers(0, 2**31 - 1))
# sees padding only
@example((1, 1), {"kernel": (1, 1), "stride": (1, 3), "pad": (0, 1), "num_filter": 2, "no_bias": False}, 0)
# not all pixels
@example((2, 3), {"kernel": (3, 1), "stride": (2, 3), "pad": (1, 0), "num_filter": 2, "no_bias": True}, 0)
def test_a_dense_layer_equals_the_convolution(side, attrs, seed):
    built = convolution(attrs, (3, 4, *side))
    assume(built is not None and min(built[2]) > 0)
    graph, shapes, output_shape = built
    dense = convert_one_pixel_convolutions(graph, {"images": shapes["images"]})
    assert names(dense) == names(graph)
    random = np.random.RandomState(seed)
    arrays = {name: random.uniform(0.5, 1, each).astype("f4") for name, each in shapes.items()}
    result = assert_same_results(dense, graph, arrays, [np.ones(output_shape, np.float32)])
    weight = result["gradient conv_weight"]
    # with positive images, weights that only meet the padding and no others
    idle = weight == 0
    usual = attrs.get("dilate", (1, 1)) == (1, 1) and attrs.get("num_group", 1) == 1
    replaced = idle.any() and not idle.all() and output_shape[2:] == (1, 1) and usual
    assert ("FullyConnected" in operators(dense)) == replaced
    assert replaced or dense is graph


@pytest.mark.parametrize("side, replaced", [(32, 4), (33, 0), (64, 0)])
def test_the_last_convolutions_of_resnet18_become_dense_layers(side, replaced):
    """For 32x32 pixels, one pixel is left in the last stage."""
    scores = get_model("resnet18", 10, contexts(1))(mx.sym.var("images"))
    dense = convert_one_pixel_convolutions(scores, {"images": (1, 3, side, side)})
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
    net(nd.zeros((1, 3, 4, 4), ctx=ctxs[0]))
    for param, array in zip(net.collect_params().values(), start or []):
        param.set_data(nd.array(array))
    return net


def make_step(net, ctxs, learning_rate, **options):
    """Return a step of data parallelism on these devices."""
    sgd = {"learning_rate": learning_rate, **options}
    store = make_kvstore("device", ctxs)
    trainer = BucketedTrainer(net.collect_params(), "sgd", sgd, store)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    return DataParallelStep(net, loss, trainer, ctxs, identity, sync_bn=len(ctxs) > 1)


def on_devices(batch, ctxs):
    return make_local_batch(*(shard(nd.array(each, dtype=each.dtype), ctxs) for each in batch))


@pytest.mark.parametrize("count", [1, 2])
def test_training_and_prediction_equal_gluon(count):
    """On one device, and on two with shards of unequal sizes."""
    ctxs = contexts(count)
    start = parameter_arrays(make_net([mx.cpu()]))
    batches = random_batches([7, 7, 5], shape=(3, 4, 4), classes=5)
    net, sgd = make_net(ctxs, start), {"learning_rate": 0.1, "momentum": 0.9}
    step = make_step(net, ctxs, **sgd)
    for batch in batches:
        step(on_devices(batch, ctxs))
        scores = [part.scores.asnumpy() for part in step.score(on_devices(batch, ctxs))]
        predicted = [net(x).asnumpy() for x in on_devices(batch, ctxs).xs]
        np.testing.assert_allclose(np.concatenate(scores), np.concatenate(predicted), rtol=1e-3, atol=1e-5)
    expected = train_on_one_device(make_net([mx.cpu()], start), batches, "sgd", **sgd)
    # without sync_bn a single step leaves cuDNN's unbiased running variances; a run corrects them
    cudnns = runs_on_gpus() and count == 1
    as_cpus = [not (cudnns and name.endswith("running_var")) for name in net.collect_params()]
    result = parameter_arrays(net, ctxs[0])
    assert relative_distance([*compress(result, as_cpus)], [*compress(expected, as_cpus)]) < 1e-4


# --- ReLU behind max pooling

windows = st.fixed_dictionaries(
    {
        "kernel": st.tuples(st.integers(2, 4), st.integers(2, 4)),
        "stride": st.tuples(st.integers(1, 5), st.integers(1, 5)),
        "pad": st.tuples(st.integers(0, 1), st.integers(0, 1)),
        "pooling_convention": st.sampled_from(["valid", "full"]),
        "global_pool": st.sampled_from([False, False, False, True]),
        "pool_type": st.sampled_from(["max", "max", "max", "avg"]),
    }
)


def order(graph):
    return [op for op in operators(graph) if op in ("Activation", "relu", "Pooling")]


@settings(max_examples=60)
@given(
    attrs=windows,
    side=st.tuples(st.integers(4, 9), st.integers(4, 9)),
    is_activation=st.booleans(),
    is_read=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_relu_behind_pooling_equals_the_relu_in_front(attrs, side, is_activation, is_read, seed):
    """Bit-identical, even for images of few values, whose windows have several maxima."""
    image = mx.sym.var("image")
    own = mx.sym.Activation(image, act_type="relu") if is_activation else mx.sym.relu(image)
    pooled = mx.sym.Pooling(own, name="pool", **attrs)
    graph = mx.sym.Group([pooled, own]) if is_read else mx.sym.tanh(pooled, name="end")
    shape = (2, 2, *side)
    try:
        _, outputs, _ = graph.infer_shape(image=shape)
    except mx.MXNetError:
        return  # there is no place for the window
    exchanged = move_relu_after_pooling(graph)
    assert exchanged.list_outputs() == graph.list_outputs()
    assert exchanged is graph or order(exchanged)[0] == "Pooling"
    if is_read or attrs["pool_type"] != "max":
        assert exchanged is graph
    elif attrs["global_pool"] or attrs["pooling_convention"] == "valid":
        assert exchanged is not graph
    random = np.random.RandomState(seed)
    image_values = random.randint(-2, 3, shape).astype("float32")
    heads = [random.uniform(-1, 1, each).astype("float32") for each in outputs]
    assert_same_results(exchanged, graph, {"image": image_values}, heads, rtol=0, atol=0)


def test_a_chain_of_both_is_exchanged_as_a_whole():
    image = mx.sym.var("image")
    for _ in range(2):
        image = mx.sym.Pooling(mx.sym.relu(image), kernel=(2, 2), stride=(2, 2), pool_type="max")
    assert order(move_relu_after_pooling(image)) == ["Pooling", "relu", "Pooling", "relu"]


# --- the average over all pixels as a product with ones

lengths = st.integers(1, 6)
poolings = st.one_of(
    st.builds(dict, global_pool=st.just(True), kernel=st.sampled_from([(1, 1), (7, 7)]), pad=st.just((3, 3))),
    st.builds(dict, kernel=st.tuples(lengths, lengths), stride=st.just((2, 2))),
    # oneDNN wants less padding than window
    st.builds(dict, kernel=st.tuples(lengths, st.integers(2, 6)), pad=st.just((0, 1))),
)


@settings(max_examples=40)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 4), lengths, lengths),
    attrs=poolings,
    kind=st.sampled_from(["avg", "avg", "avg", "max", "sum"]),
    dtype=st.sampled_from(["float32", "float32", "float64"]),
    seed=st.integers(0, 2**16),
)
def test_a_product_equals_the_pooling(shape, attrs, kind, dtype, seed):
    image = mx.sym.var("image")
    pooling = mx.sym.Pooling(image, name="pool", pool_type=kind, **attrs)
    try:
        _, [output_shape], _ = pooling.infer_shape(image=shape)
    except mx.MXNetError:
        return  # there is no place for its window
    product = convert_global_average_pooling(pooling, {"image": shape}, {"image": dtype})
    is_whole = attrs.get("global_pool") or (attrs["kernel"] == shape[2:] and "pad" not in attrs)
    replaced = bool(kind == "avg" and dtype == "float32" and is_whole and shape[2:] != (1, 1))
    assert ("dot" in operators(product)) == replaced and (replaced or product is pooling)
    assert names(product) == names(pooling)
    random = np.random.RandomState(seed)
    arrays = {"image": random.uniform(-1, 1, shape).astype(dtype)}
    heads = [random.uniform(-1, 1, output_shape).astype(dtype)]
    assert_same_results(product, pooling, arrays, heads)


@pytest.mark.parametrize("name", ["resnet8", "resnet18", "gluoncv:mobilenet0.5", "lenet-avg"])
def test_networks_end_with_an_average(name):
    """Their last pooling averages all pixels. LeNet's averages only pairs of pixels."""
    graph = get_model(name, 10, contexts(1))(mx.sym.var("image"))
    shapes = {"image": (2, 1 if name == "lenet-avg" else 3, 64, 64)}
    product = convert_global_average_pooling(graph, shapes, dict.fromkeys(graph.list_arguments(), "float32"))
    assert operators(product).count("dot") == (name != "lenet-avg")


def test_a_block_that_is_called_twice_averages_each_time_what_it_gets():
    block = nn.HybridSequential()
    block.add(nn.Activation("tanh"), nn.GlobalAvgPool2D())
    image = mx.sym.var("image")
    part = mx.sym.slice(image, begin=(None, None, 1, 1), end=(None,) * 4)
    both = block(image) + block(part)
    check_on_images(both, replaced=0)  # its names stand for two shapes


def check_on_images(pooling, replaced):
    """Check that the graph computes the same, with this many averages replaced by products."""
    shape = (2, 3, 4, 5)
    product = convert_global_average_pooling(pooling, {"image": shape}, {"image": "float32"})
    assert operators(product).count("dot") == replaced
    arrays = {"image": np.random.RandomState(0).uniform(-1, 1, shape).astype("float32")}
    [output] = pooling.infer_shape(image=shape)[1]
    assert_same_results(product, pooling, arrays, [np.ones(output, np.float32)])


def some(x, count):
    """(n, count): the first numbers of each image."""
    return mx.sym.slice_axis(mx.sym.Flatten(x), axis=1, begin=0, end=count)


# MXNet 1.9.1 raises an error where any type is asked for before that of their inputs is known
NEEDS_TYPE = {
    "SwapAxis": lambda x: mx.sym.SwapAxis(x, dim1=1, dim2=2),
    "Dropout": lambda x: mx.sym.Dropout(x, p=0),
    "LRN": lambda x: mx.sym.LRN(x, nsize=3),
    "UpSampling": lambda x: mx.sym.UpSampling(x, scale=2, sample_type="nearest"),
    "SequenceReverse": mx.sym.SequenceReverse,
    "SequenceMask": mx.sym.SequenceMask,
    "ROIPooling": lambda x: mx.sym.ROIPooling(x, some(x, 5) * 0, pooled_size=(2, 2), spatial_scale=1),
    "BilinearSampler": lambda x: mx.sym.BilinearSampler(
        x, mx.sym.GridGenerator(some(x, 6), transform_type="affine", target_shape=(3, 3))
    ),
    "SpatialTransformer": lambda x: mx.sym.SpatialTransformer(
        x, some(x, 6), target_shape=(3, 3), transform_type="affine", sampler_type="bilinear"
    ),
    "take": lambda x: mx.sym.take(x, some(x, 1) * 0 + 1, axis=0).sum(1),
}


@pytest.mark.parametrize("name", NEEDS_TYPE)
def test_images_may_pass_operators_that_need_a_known_type(name):
    graph = NEEDS_TYPE[name](mx.sym.tanh(mx.sym.var("image")))
    with pytest.raises(mx.MXNetError, match="type"):
        graph.infer_type_partial()  # else the case proves nothing
    check_on_images(mx.sym.Pooling(graph, kernel=(1, 1), global_pool=True, pool_type="avg"), replaced=1)


# --- odd numbers of channels joined without oneDNN

SHAPE = (3, 4, 6)


class Branches(nn.HybridBlock):
    """Parallel convolutions of the same images, optionally joined with the images, and a network after them."""

    def __init__(self, channels, own, activated):
        super().__init__()
        self.own, self.activated = own, activated
        with self.name_scope():
            self.parts = nn.HybridSequential()
            self.parts.add(*(nn.Conv2D(each, 3, padding=1) for each in channels))
            self.rest = nn.HybridSequential()
            self.rest.add(nn.Conv2D(16, 3, padding=1), nn.BatchNorm())
            self.rest.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(10))

    def hybrid_forward(self, F, x):
        parts = [part(x) for part in self.parts._children.values()]
        joined = F.concat(*parts, *([x] if self.own else []), dim=1)
        return self.rest(F.relu(joined) if self.activated else joined)


def initialize(net, ctxs):
    mx.random.seed(3)
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    net(nd.zeros((1, *SHAPE), ctx=ctxs[0]))
    return net


def grads_of(net):
    trained = [each for each in net.collect_params().values() if each.grad_req != "null"]
    return np.concatenate([param.list_grad()[0].asnumpy().ravel() for param in trained])


def step_once(net, batch, ctxs):
    """The sum of losses; the second step of the same batch reads what the first has left."""
    step = make_step(net, ctxs, learning_rate=1e-12)
    for _ in range(2):
        loss = sum(float(part.asscalar()) for part in step(on_devices(batch, ctxs)))
    return loss


def assert_as_in_float64(make, k):
    """The losses and gradients of a network on k devices."""
    (batch,) = random_batches([7], shape=SHAPE)
    exact, net = initialize(make(), cpu_contexts(1)), initialize(make(), devices(k, threads=1))
    exact.cast("float64")
    images, labels = (nd.array(array, dtype="float64") for array in batch)
    with autograd.record():
        losses = gluon.loss.SoftmaxCrossEntropyLoss()(exact(images), labels).sum()
    losses.backward()
    loss = step_once(net, batch, devices(k, threads=1))
    assert loss == pytest.approx(losses.asscalar(), rel=1e-5)
    assert relative_distance([grads_of(net)], [grads_of(exact)]) <= 1e-4


@settings(max_examples=2)
@given(
    channels=st.lists(st.sampled_from([1, 4, 5, 8, 12, 16, 24, 32]), min_size=1, max_size=3),
    own=st.booleans(),
    activated=st.booleans(),
    k=st.integers(1, 2),
)
@example(channels=[24, 40], own=False, activated=True, k=1)
@example(channels=[24, 40], own=False, activated=False, k=2)
@example(channels=[32], own=True, activated=False, k=1)
def test_any_numbers_of_channels_give_the_losses_and_gradients_of_float64(channels, own, activated, k):
    assert_as_in_float64(lambda: Branches(channels, own, activated), k)


@pytest.mark.parametrize("channels, axes, replaced", [([16, 32], 4, False), ([16, 33], 4, True), ([5, 3], 2, False)])
def test_only_images_with_odd_numbers_of_channels_are_joined_differently(channels, axes, replaced):
    parts = [f"part{i}" for i in range(len(channels))]
    graph = mx.sym.Concat(*[mx.sym.relu(mx.sym.var(part)) for part in parts], dim=1, name="joined")
    shapes = {part: (2, each, 3, 4)[:axes] for part, each in zip(parts, channels)}
    result = convert_odd_concatenations(graph, shapes)
    assert (result is not graph) == replaced
    assert (len(parse_graph(result)["nodes"]) != len(parse_graph(graph)["nodes"])) == replaced
    assert names(result) == names(graph)
    assert result.infer_shape(**shapes)[1] == graph.infer_shape(**shapes)[1]


def parts_of(kind):
    """Return arrays to join: outputs of one operator, outputs of the graph, or the same array twice."""
    x, y = mx.sym.var("x"), mx.sym.var("y")
    if kind == "split":
        first, second, third = mx.sym.split(x, num_outputs=3, axis=1)
        return [third, first, y, second]
    return [x, mx.sym.topk(x, k=2, axis=1, ret_typ="both")[0], y] if kind == "topk" else [x, y, x]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    "kind, dim",
    [(kind, dim) for kind in ("split", "twice", "topk") for dim in (1, -3)] + [("twice", dim) for dim in (0, 2, -1)],
)
def test_a_graph_computes_the_same_however_its_parts_are_made(kind, dtype, dim):
    joined = mx.sym.concat(*parts_of(kind), dim=dim, name="joined")
    graph = mx.sym.Group([mx.sym.concat(joined, joined, dim=1), joined])
    shapes = {"x": (2, 9, 4, 5), "y": (2, 5 if dim in (1, -3) else 9, 4, 5)}
    result = convert_odd_concatenations(graph, shapes)
    assert result is not graph and result.list_outputs() == graph.list_outputs()
    random = np.random.RandomState(0)
    arrays = {name: random.normal(size=shape).astype(dtype) for name, shape in shapes.items()}
    heads = [np.full(each, 0.5, dtype) for each in graph.infer_shape(**shapes)[1]]
    assert_same_results(result, graph, arrays, heads, rtol=0, atol=0)


class Shuffled(nn.HybridBlock):
    """Channels that change places, as ShuffleNet's do."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.conv, self.norm = nn.Conv2D(6, 3), nn.BatchNorm()
            self.pool, self.scores = nn.GlobalAvgPool2D(), nn.Dense(10)

    def hybrid_forward(self, F, x):
        parts = self.conv(x).reshape((0, -4, 2, 3, -2))  # (n, 2, 3, H, W)
        return self.scores(self.pool(self.norm(F.swapaxes(parts, 1, 2).reshape((0, -3, -2)))))


@pytest.mark.parametrize("k", [1, 2])
def test_channels_may_change_places(k):
    assert_as_in_float64(Shuffled, k)


@pytest.mark.long
@pytest.mark.parametrize("k", [2, 3])
def test_shufflenet_trains_with_batchnorm_over_all_devices(k):
    """Its branches have 24 and 216 channels."""
    shape = (3, 64, 64)
    (batch,) = random_batches([2 * k + 1], shape=shape)
    losses = []
    for count in (1, k):
        mx.random.seed(0)
        ctxs = devices(count, threads=1)
        net = make_initialized_net("gluoncv:shufflenet_v1", shape, ctxs=ctxs)
        losses.append(step_once(net, batch, ctxs))
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
