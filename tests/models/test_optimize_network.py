"""gluonlab.optimize: a user's network computes the same, and its files do not change."""

import json
import warnings

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from support.devices import contexts, device
from support.reference import relative_distance

import gluonlab
from gluonlab.errors import ModelError
from gluonlab.models import rewrite_network
from gluonlab.models.cpu_channel_padding import Padding

SHAPE = (4, 3, 12, 12)


@pytest.fixture(autouse=True)
def padded_to_8(monkeypatch):
    """Pad to multiples of 8 on any CPU."""
    on_cpus = lambda ctx: Padding((8,) if ctx.device_type == "cpu" else ())  # noqa: E731
    monkeypatch.setattr(rewrite_network, "choose_padding", on_cpus)


class Residual(nn.HybridBlock):
    """A convolution with BatchNorm beside the image itself."""

    def __init__(self, channels):
        super().__init__()
        self.body = nn.Conv2D(channels, 3, padding=1, use_bias=False)
        self.norm = nn.BatchNorm()

    def hybrid_forward(self, F, x):
        return F.relu(x + self.norm(self.body(x)))


def odd_net(ctxs=None, seed=0):
    mx.random.seed(seed)
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(5, 3, padding=1, activation="relu"), nn.MaxPool2D(), Residual(5), Residual(5),
        nn.PReLU(), nn.GlobalAvgPool2D(), nn.Dense(3),
    )  # fmt: skip
    net.initialize(mx.init.Xavier(), ctx=ctxs or contexts(1))
    net(nd.zeros(SHAPE, ctx=(ctxs or contexts(1))[0]))
    return net


def batches(count, seed=0):
    random = np.random.RandomState(seed)
    sizes = random.randint(2, 6, count)
    return [(random.uniform(0, 1, (size, *SHAPE[1:])), random.randint(0, 3, size)) for size in sizes]


def train(net, ctxs, steps=6):
    """Plain Gluon's loop: each device has a batch of its own size. Returns the losses."""
    loss, losses = gluon.loss.SoftmaxCrossEntropyLoss(), []
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05, "momentum": 0.9})
    for step in range(steps):
        shards = batches(len(ctxs), seed=step)
        with autograd.record():
            each = [loss(net(nd.array(x, ctx=ctx)), nd.array(y, ctx=ctx)) for (x, y), ctx in zip(shards, ctxs)]
        autograd.backward(each)
        trainer.step(sum(len(x) for x, _ in shards))
        losses.append([float(one.sum().asscalar()) for one in each])
    return np.array(losses)


def values(net, ctx):
    return [param.data(ctx).asnumpy() for param in net.collect_params().values()]


def operators(graph):
    return [node["op"] for node in json.loads(graph.tojson())["nodes"]]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("options", [None, {"static_alloc": True}])
def test_a_plain_loop_trains_as_before(count, options):
    """The reference runs without compiling, where MXNet's PReLU has the right gradient."""
    ctxs, trained = contexts(count), []
    for is_optimized in (False, True):
        net = odd_net(ctxs)
        if is_optimized:
            if options is not None:
                net.hybridize(**options)
            gluonlab.optimize(net, SHAPE)
        losses = train(net, ctxs)
        trained.append([losses, *(array for ctx in ctxs for array in values(net, ctx))])
    assert relative_distance(*trained) <= 2e-5


def test_optimize_reports_its_changes():
    changes = gluonlab.optimize(odd_net(), SHAPE)
    result = {change.effect: len(change.operators) for change in changes}
    on_cpus = {"padded with zero channels": 3, "average of all pixels computed as a matrix product": 1}
    assert result == {
        "replaced, because MXNet computes a wrong gradient": 1,
        "swapped, so that ReLU follows max pooling": 2,
        **(on_cpus if device().device_type == "cpu" else {}),
    }
    assert len(str(changes).splitlines()) == len(changes)
    dense = nn.Dense(3)
    dense.initialize(ctx=device())
    assert str(gluonlab.optimize(dense, (2, 5))) == "no operators can be optimized"


def test_saved_files_are_those_of_the_original_network(tmp_path):
    net = odd_net()
    gluonlab.optimize(net, SHAPE)
    train(net, contexts(1))
    net.save_parameters(str(tmp_path / "net.params"))
    net.export(str(tmp_path / "net"))
    images = nd.array(batches(1)[0][0], ctx=device())
    expected = net(images).asnumpy()
    plain = odd_net(seed=1)
    plain.load_parameters(str(tmp_path / "net.params"), ctx=device())
    graph = mx.sym.load(str(tmp_path / "net-symbol.json"))
    assert operators(graph) == operators(plain(mx.sym.var("data")))
    for other in (plain, import_network(tmp_path)):
        assert relative_distance([other(images).asnumpy()], [expected]) <= 1e-5


def test_loaded_parameters_take_effect_at_once():
    """Running statistics, too, although they lie in larger arrays."""
    net, other = odd_net(seed=1), odd_net(seed=2)
    gluonlab.optimize(net, SHAPE)
    images = nd.array(batches(1)[0][0], ctx=device())
    for param, another in zip(net.collect_params().values(), other.collect_params().values()):
        param.set_data(another.data() + 0.25)
        another.set_data(another.data() + 0.25)
    assert relative_distance([net(images).asnumpy()], [other(images).asnumpy()]) <= 1e-5


@settings(max_examples=8)
@given(st.lists(st.integers(6, 14), min_size=1, max_size=3), st.booleans())
def test_images_of_any_size_are_scored_as_before(sides, is_np):
    """Whole averages and dense layers are made for one size; another one gets its own graph."""
    net = odd_net()
    images = [np.random.RandomState(side).uniform(0, 1, (2, 3, side, side)) for side in sides]
    expected = [net(nd.array(image, ctx=device())).asnumpy() for image in images]
    gluonlab.optimize(net, SHAPE)
    for _ in range(2):
        result = [net(nd.array(image, ctx=device())).asnumpy() for image in images]
        assert relative_distance(result, expected) <= 1e-5


def test_networks_of_numpy_arrays_give_numpy_arrays():
    with mx.util.np_shape(True), mx.util.np_array(True):
        net = nn.HybridSequential()
        net.add(nn.Conv2D(5, 3, activation="relu"), nn.MaxPool2D(), nn.BatchNorm(), nn.Dense(3))
        net.initialize(ctx=device())
        image = mx.np.random.uniform(size=(2, 3, 8, 8), ctx=device())
        expected = net(image).asnumpy()
        assert len(gluonlab.optimize(net, image)) >= 1
        scores = net(image)
        assert isinstance(scores, mx.np.ndarray)
        np.testing.assert_allclose(scores.asnumpy(), expected, atol=1e-6)


def test_hybridize_and_new_layers_keep_the_optimization():
    net = odd_net()
    gluonlab.optimize(net, SHAPE)
    kind = type(net)
    net.add(nn.Dense(2))
    net.initialize(ctx=device())
    net.hybridize(static_alloc=True)
    assert gluonlab.optimize(net) == () and type(net) is kind and kind.__name__ == "HybridSequential"
    assert net(nd.zeros(SHAPE, ctx=device())).shape == (4, 2)
    assert isinstance(net, nn.HybridSequential)
    other = nn.HybridSequential()
    gluonlab.optimize(other)
    assert type(other) is kind


def test_networks_may_change_their_type():
    net = odd_net()
    images = nd.array(batches(1)[0][0], ctx=device(), dtype="float64")
    expected = net(images.astype("float32")).asnumpy()
    gluonlab.optimize(net, SHAPE)
    net.cast("float64")
    assert relative_distance([net(images).asnumpy()], [expected]) <= 1e-5


def import_network(folder):
    files = str(folder / "net-symbol.json"), ["data"], str(folder / "net-0000.params")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MXNet's about types
        return gluon.SymbolBlock.imports(*files, device())


def test_imported_networks_are_optimized(tmp_path):
    net = odd_net()
    net.hybridize()
    images = nd.array(batches(1)[0][0], ctx=device())
    expected = net(images).asnumpy()
    net.export(str(tmp_path / "net"))
    imported = import_network(tmp_path)
    assert len(gluonlab.optimize(imported, SHAPE)) >= 1
    assert relative_distance([imported(images).asnumpy()], [expected]) <= 1e-5


class _Optional(nn.HybridBlock):
    def __init__(self):
        super().__init__()
        self.body = nn.Conv2D(5, 3)

    def hybrid_forward(self, F, x, masks=None, scale=None):
        scores = self.body(x)
        scores = scores if masks is None else scores * masks[0] * masks[1]
        return scores if scale is None else F.broadcast_mul(scores, scale)


@pytest.mark.cpu_only("channels are padded on CPUs")
@pytest.mark.parametrize("inputs", [[None, (1, 1, 1, 1)], [[(4, 5, 10, 10), (4, 5, 10, 10)]], [None], []])
def test_inputs_may_be_optional_or_lists(inputs):
    net = _Optional()
    net.initialize(ctx=device())
    changes = gluonlab.optimize(net, SHAPE, *inputs)
    assert [change.effect for change in changes] == ["padded with zero channels"]


class _Forward(nn.HybridBlock):
    def forward(self, x):
        return x * 2


class _ReadsShape(nn.HybridBlock):
    def hybrid_forward(self, F, x):
        return x.reshape(x.shape[0], -1)


@pytest.mark.parametrize(
    "net, inputs, message",
    [
        (nn.Sequential(), [SHAPE], "optimize\\(\\) needs a HybridBlock, not a Sequential"),
        (3, [], "optimize\\(\\) needs a HybridBlock, not a int"),
        (nn.Conv2D(5, 3), [SHAPE], "Conv2D: .*initialize"),
        (nn.Flatten(), SHAPE, "optimize\\(\\) needs arrays, or shapes such as \\(64, 3, 32, 32\\), not 4"),
        (nn.Flatten(), [(4, 3.0)], r"optimize\(\) needs arrays, or shapes such as \(64, 3, 32, 32\), not \(4, 3\.0\)"),
        (nn.Flatten(), [np.zeros((4, 3))], "optimize\\(\\) needs arrays, or shapes such as \\(64, 3, 32, 32\\), not a"),
        (nn.Flatten(), [SHAPE, SHAPE], "Flatten: TypeError: .*hybrid_forward"),
        (_Forward(), [SHAPE], "_Forward has no hybrid_forward"),
        (_ReadsShape(), [SHAPE], "_ReadsShape: AttributeError: .*shape"),
        (odd_net, [(4, 7, 12, 12)], "HybridSequential: "),
    ],
)
def test_mistakes_are_reported_in_one_line(net, inputs, message):
    with pytest.raises(ModelError, match=message) as error:
        gluonlab.optimize(net() if net is odd_net else net, *inputs)
    assert "\n" not in str(error.value)
