"""Padded channels: the same outputs, gradients, running statistics and names as without."""

import json

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.graphs import assert_same_results, evaluate_graph

from gluonlab.models.cpu_channel_padding import Padding, choose_padding, pad_channels
from gluonlab.models.rewrite_network import convert_odd_concatenations

CHANNELS = st.integers(1, 20)
ACTIVATIONS = [
    *(
        lambda x, name, kind=kind: mx.sym.Activation(x, name=name, act_type=kind)
        for kind in ("relu", "sigmoid", "tanh", "softrelu", "softsign")
    ),
    lambda x, name: mx.sym.LeakyReLU(x, name=name, act_type="leaky", slope=0.2),
    lambda x, name: mx.sym.clip(x, name=name, a_min=-0.4, a_max=0.7),
    lambda x, name: mx.sym.exp(x, name=name),
    lambda x, name: x + 0.5,
]
MIXING = [  # operators that do not keep channels apart, or are not known to
    lambda x: mx.sym.softmax(x, axis=1),
    lambda x: mx.sym.SwapAxis(x, dim1=2, dim2=3),
    lambda x: mx.sym.sqrt(mx.sym.abs(x) + 0.1),
]


class Drawn:
    """A network of drawn layers on images (n, C, H, W), and the shapes of its arguments."""

    def __init__(self, draw):
        self.draw, self.count = draw, 0
        self.shape = (draw(st.integers(1, 3)), draw(st.integers(1, 12)), 7, 6)
        channels, image = self.shape[1], mx.sym.var("images")
        for _ in range(draw(st.integers(1, 5))):
            image, channels = draw(st.sampled_from(LAYERS))(self, image, channels)
        self.graph = draw(st.sampled_from(ENDS))(image)

    def name(self, kind):
        self.count += 1
        return f"{kind}{self.count}"


def convolution(net, image, channels):
    kernel = net.draw(st.sampled_from([(1, 1), (3, 3), (1, 3), (5, 5)]))
    filters = net.draw(CHANNELS)
    attrs = {"kernel": kernel, "pad": tuple(side // 2 for side in kernel), "num_filter": filters}
    attrs["no_bias"] = net.draw(st.booleans())
    groups = net.draw(st.sampled_from(["one", "one", "one", "depthwise", "two"]))
    if groups == "depthwise":
        attrs.update(num_filter=channels, num_group=channels)
    elif groups == "two" and channels % 2 == 0:
        attrs.update(num_filter=2 * filters, num_group=2)
    return mx.sym.Convolution(image, name=net.name("conv"), **attrs), attrs["num_filter"]


def batch_norm(net, image, channels):
    attrs = {"fix_gamma": net.draw(st.booleans()), "use_global_stats": net.draw(st.booleans())}
    return mx.sym.BatchNorm(image, name=net.name("norm"), eps=1e-2, **attrs), channels


def activation(net, image, channels):
    return net.draw(st.sampled_from(ACTIVATIONS))(image, net.name("activation")), channels


def pooling(net, image, channels):
    kind = net.draw(st.sampled_from(["max", "avg", "sum"]))
    attrs = dict(name=net.name("pool"), kernel=(2, 2), pad=(1, 1), pool_type=kind)
    return mx.sym.Pooling(image, **attrs), channels


def mix_channels(net, image, channels):
    return net.draw(st.sampled_from(MIXING))(image), channels


def first_channel(net, image, channels):
    return mx.sym.slice_axis(image, axis=1, begin=0, end=1), 1


def residual(net, image, channels):
    """Two branches of the same shape, added, multiplied or subtracted."""
    attrs = {"kernel": (3, 3), "pad": (1, 1), "num_filter": net.draw(CHANNELS)}
    both = [mx.sym.Convolution(image, name=net.name("branch"), **attrs) for _ in range(2)]
    join = net.draw(st.sampled_from([mx.sym.elemwise_add, mx.sym.elemwise_mul, mx.sym.broadcast_sub]))
    return join(*both), attrs["num_filter"]


def branches(net, image, channels):
    """Branches with different channels, and the image itself, concatenated."""
    parts = [convolution(net, image, channels) for _ in range(net.draw(st.integers(1, 2)))]
    joined = mx.sym.Concat(image, *(part for part, _ in parts), name=net.name("join"), dim=1)
    return joined, channels + sum(count for _, count in parts)


LAYERS = [convolution, convolution, convolution, batch_norm, activation, pooling, mix_channels, first_channel]
LAYERS += [residual, branches]
ENDS = [
    lambda image: image,
    lambda image: mx.sym.FullyConnected(image, name="scores", num_hidden=3),
    lambda image: mx.sym.Flatten(mx.sym.Pooling(image, global_pool=True, kernel=(1, 1), pool_type="avg")),
    lambda image: mx.sym.Group([mx.sym.relu(image, name="first"), mx.sym.sum(image, axis=(2, 3))]),
]


def draw_values(graph, shape, seed):
    """Return NumPy arrays for all arguments and states of a graph of ``images``."""
    shapes, _, states = graph.infer_shape(images=shape)
    random, args, aux = np.random.RandomState(seed), {}, {}
    for name, each in zip(graph.list_arguments(), shapes):
        scale = 1 if name == "images" else 1 / np.sqrt(max(1, np.prod(each[1:])))
        args[name] = random.uniform(-scale, scale, each) + name.endswith("gamma")
    for name, each in zip(graph.list_auxiliary_states(), states):
        aux[name] = random.uniform(0.5, 1.5, each)
    return args, aux


def pad(graph, shape, multiple):
    types = dict.fromkeys(graph.list_arguments(), "float32")
    return pad_channels(graph, {"images": shape}, types, Padding((multiple,)))


@pytest.mark.cpu_only("channels are padded on CPUs")
@settings(max_examples=60)
@given(st.data(), st.sampled_from([8, 16, 3]), st.integers(0, 2**16))
def test_padding_changes_neither_results_nor_gradients(data, multiple, seed):
    """The reference is the plain graph in float64, and its rounding that in float32."""
    net = Drawn(data.draw)
    padded = pad(net.graph, net.shape, multiple)
    assert padded.list_arguments() == net.graph.list_arguments()
    assert padded.list_outputs() == net.graph.list_outputs()
    assert padded.list_auxiliary_states() == net.graph.list_auxiliary_states()
    args, aux = draw_values(net.graph, net.shape, seed)
    shapes = {name: each.shape for name, each in args.items()}
    outputs = net.graph.infer_shape(**shapes)[1]
    assert padded.infer_shape(**shapes)[1] == outputs
    random = np.random.RandomState(seed)
    heads = [random.uniform(-1, 1, shape) for shape in outputs]
    # as in a run: MXNet's backward may end the process where odd channels are joined
    whole, padded = (convert_odd_concatenations(each, shapes) for each in (net.graph, padded))
    exact, plain = (evaluate_graph(whole, args, heads, aux, dtype) for dtype in ("float64", "float32"))
    for name, own in evaluate_graph(padded, args, heads, aux, "float32").items():
        size = max(1.0, np.abs(exact[name]).max(initial=0))
        rounding = np.abs(plain[name] - exact[name]).max(initial=0)
        assert np.abs(own - exact[name]).max(initial=0) <= max(1e-6 * size, 4 * rounding), name


def check_padded(graph, shape):
    """Check that outputs, gradients and states are the same as without padding."""
    args, aux = ({k: v.astype("float32") for k, v in arrays.items()} for arrays in draw_values(graph, shape, 0))
    heads = [np.ones(each, "float32") for each in graph.infer_shape(images=shape)[1]]
    assert_same_results(pad(graph, shape, 8), graph, args, heads, aux, atol=1e-5)


def convolved(image="images"):
    image = mx.sym.var(image) if isinstance(image, str) else image
    return mx.sym.Convolution(image, name="conv", kernel=(3, 3), num_filter=5)


def _depthwise_of_one_pixel(image):
    """Add a depthwise convolution whose padded output has no reader."""
    return mx.sym.Convolution(image, name="each", kernel=(1, 1), num_filter=5, num_group=5)


def _variance_as_scale(image):
    """Add another operator that reads the running statistics of BatchNorm."""
    variance = mx.sym.var("variance")
    norm = mx.sym.BatchNorm(image, name="norm", moving_var=variance)
    return mx.sym.broadcast_mul(norm, mx.sym.reshape(variance, shape=(1, -1, 1, 1)))


@pytest.mark.cpu_only("channels are padded on CPUs")
@pytest.mark.parametrize("last", [_depthwise_of_one_pixel, _variance_as_scale])
def test_readers_of_the_true_channels_get_them(last):
    check_padded(last(convolved()), (2, 3, 6, 6))


@pytest.mark.cpu_only("channels are padded on CPUs")
def test_graphs_that_mxnet_saved_on_python_2_are_read():
    old = mx.sym.load_json(convolved().tojson().replace("(3, 3)", "(3L, 3L)"))
    assert "3L" in old.tojson()
    operators = [pad(each, (2, 3, 6, 6), 8).get_internals() for each in (convolved(), old)]
    assert operators[0].list_outputs() == operators[1].list_outputs()
    assert len(operators[0].list_outputs()) > 4


def test_graphs_with_control_flow_stay():
    """MXNet's compiled blocks now and then compute them wrongly when they are padded."""
    step = lambda each, states: (mx.sym.relu(each), [states[0] * 0.5])  # noqa: E731
    graph, _ = mx.sym.contrib.foreach(step, convolved(), [mx.sym.var("begin", shape=(1,))])
    assert pad(graph, (2, 3, 6, 6), 8) is graph


def channels_of(graph):
    """The channels of all convolutions, in order."""
    nodes = json.loads(graph.tojson())["nodes"]
    return [int(node["attrs"]["num_filter"]) for node in nodes if node["op"] == "Convolution"]


@pytest.mark.parametrize(
    "channels, with_norm, larger, expected",
    [
        ((20, 50), False, 1.1, [24, 56]),  # LeNet's
        ((20, 50), False, 1.6, [32, 64]),
        ((60, 62), False, 1.1, [64, 64]),  # the same arithmetic
        ((12, 20), False, 1.1, [16, 24]),
        ((12, 20), True, 1.1, [16, 32]),  # so that BatchNorm has blocks of 16 both ways
        ((18, 36), True, 1.1, [24, 40]),  # blocks of 8 both ways
        ((16, 24), True, 1.1, [16, 24]),  # as it is without padding
        ((12, 1, 1, 1), True, 1.1, [12, 1, 1, 1]),  # 16 would be more than twice the arithmetic
    ],
)
def test_the_fastest_multiple_is_chosen(channels, with_norm, larger, expected):
    image = mx.sym.var("images")
    for number, filters in enumerate(channels):
        attrs = {"kernel": (3, 3), "pad": (1, 1), "num_filter": filters}
        image = mx.sym.Convolution(image, name=f"conv{number}", **attrs)
        if with_norm:
            image = mx.sym.relu(mx.sym.BatchNorm(image, name=f"norm{number}"))
    types = dict.fromkeys(image.list_arguments(), "float32")
    padded = pad_channels(image, {"images": (8, 3, 9, 9)}, types, Padding((8, 16), larger))
    assert channels_of(padded) == expected


def test_devices_that_do_not_gain_from_padding_do_not_pad():
    assert choose_padding(mx.gpu(0)) == Padding()
    assert choose_padding(mx.cpu(3)) == choose_padding(mx.cpu(0))


def _norm_along(axis):
    return mx.sym.BatchNorm(mx.sym.var("images"), name="norm", axis=axis)


def _norm_of_rows():
    rows = mx.sym.reshape(mx.sym.var("images"), shape=(0, -1))
    return mx.sym.reshape(mx.sym.BatchNorm(rows, name="norm"), shape=(0, 8, 6, 6))


@pytest.mark.cpu_only("channels are padded on CPUs")
@pytest.mark.parametrize("norm", [*map(_norm_along, (2, 3, -1, -3)), _norm_of_rows()])
def test_gradients_of_unusual_batch_norm_can_be_computed(norm):
    """The backward of such a layer raises an error in MXNet for gradients in oneDNN's blocks."""
    check_padded(convolved(norm), (2, 8, 6, 6))


@pytest.mark.cpu_only("channels are padded on CPUs")
def test_padding_stays_where_batch_norm_of_rows_follows():
    """For example, a classifier with BatchNorm after a dense layer."""
    dense = mx.sym.FullyConnected(convolved(), num_hidden=4, name="dense")
    graph = mx.sym.BatchNorm(dense, name="norm")
    assert pad(graph, (2, 3, 6, 6), 8) is not graph
