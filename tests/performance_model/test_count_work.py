"""The work of networks: closed forms, and what is published of known networks."""

import math

import mxnet as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision

from benchmarks.host_jobs import LENET
from gluonlab.errors import ModelError
from gluonlab.performance_model.count_work import count_graph_work, count_model_work, count_network_work
from gluonlab.performance_model.roofline import CONVOLUTION, DENSE, DEPTHWISE, MEMORY
from prediction.validate import NETWORKS, published_work

SIDES = st.integers(8, 20)
SMALL = st.integers(1, 5)


@settings(max_examples=25, deadline=None)
@given(
    channels=st.integers(1, 3), filters=SMALL, groups=st.integers(1, 2), kernel=st.integers(1, 4),
    stride=st.integers(1, 3), padding=st.integers(0, 2), height=SIDES, width=SIDES,
)  # fmt: skip
def test_a_convolution_has_a_product_for_each_output_channel_of_its_group_and_place_of_its_window(
    channels, filters, groups, kernel, stride, padding, height, width
):
    net = nn.Conv2D(filters * groups, kernel, stride, padding, groups=groups)
    work = count_network_work(net, (channels * groups, height, width), "net")
    rows, columns = ((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
    outputs = filters * groups * rows * columns
    (layer,) = work.operators
    assert layer.kind == CONVOLUTION and layer.outputs == outputs
    assert work.multiply_adds == outputs * channels * kernel**2
    weights = filters * groups * channels * kernel**2
    assert work.tensors == (weights, filters * groups) and layer.weights == sum(work.tensors)
    assert layer.kernel == (kernel if (stride, groups) == (1, 1) else 0)
    assert (layer.name == DEPTHWISE) == (groups > 1 and channels == 1)
    assert not layer.data_gradient  # nobody asks for the gradient of images


@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(1, 30), min_size=2, max_size=5))
def test_a_dense_layer_is_a_product_of_matrices(sizes):
    net = nn.HybridSequential()
    net.add(*[nn.Dense(size) for size in sizes[1:]])
    work = count_network_work(net, (sizes[0],), "net")
    assert work.multiply_adds == sum(a * b for a, b in zip(sizes, sizes[1:]))
    assert work.parameters == sum((a + 1) * b for a, b in zip(sizes, sizes[1:]))
    gradients = [layer.data_gradient for layer in work.operators if layer.kind == DENSE]
    assert gradients == [False] + [True] * (len(sizes) - 2)


@pytest.mark.parametrize(
    ("net", "giga", "millions"),
    [  # multiply-adds of forward at 224 x 224, and parameters, as papers and model zoos give them
        (vision.resnet50_v2, 4.1, 25.6), (vision.resnet152_v2, 11.5, 60.2), (vision.resnet18_v1, 1.8, 11.7),
        (vision.vgg16, 15.5, 138.4), (vision.alexnet, 0.7, 61.1), (vision.mobilenet1_0, 0.57, 4.2),
    ],
)  # fmt: skip
def test_known_networks_have_their_published_operations_and_parameters(net, giga, millions):
    work = count_network_work(net(), (3, 224, 224), "net")
    assert work.multiply_adds / 1e9 == pytest.approx(giga, rel=0.03)
    assert work.parameters / 1e6 == pytest.approx(millions, rel=0.01)
    assert work.uncounted == ()


def test_inception_has_its_published_operations():
    assert published_work("Inception-v3").multiply_adds == pytest.approx(5.7e9, rel=0.02)


def test_the_parameters_are_those_that_gluon_would_train():
    net = vision.resnet18_v1(classes=7)
    net.initialize()
    net(mx.nd.zeros((1, 3, 32, 32)))
    trained = [p for p in net.collect_params().values() if p.grad_req != "null"]
    work = count_network_work(net, (3, 32, 32), "net")
    assert sorted(work.tensors) == sorted(math.prod(param.shape) for param in trained)


def test_lenets_operations_are_those_that_the_bench_counts():
    assert published_work("LeNet").multiply_adds == sum(layer.multiply_adds for layer in LENET)


def test_where_an_output_is_used_twice_its_gradients_are_added():
    x = mx.sym.var("data")
    hidden = mx.sym.FullyConnected(x, num_hidden=6, name="fc")
    once = count_graph_work(mx.sym.relu(hidden), (4,), "net")
    twice = count_graph_work(mx.sym.relu(hidden) + mx.sym.tanh(hidden), (4,), "net")
    assert all(operator.name != "sum of gradients" for operator in once.operators)
    (added,) = [operator for operator in twice.operators if operator.name == "sum of gradients"]
    assert (added.kind, added.backward_moved) == (MEMORY, 3 * 6)  # two are read, one is written


def test_operators_whose_operations_are_not_counted_are_named():
    x = mx.sym.var("data")
    assert count_graph_work(mx.sym.batch_dot(x, x, transpose_b=True), (3, 4), "net").uncounted == ("batch_dot",)


def test_networks_by_name_and_images_that_do_not_fit():
    assert count_model_work("lenet", 10, (1, 28, 28)).tensors == published_work("LeNet").tensors
    with pytest.raises(ModelError, match=r"resnet50|lenet"):
        count_model_work("lenett", 10, (1, 28, 28))
    with pytest.raises(ModelError, match="does not accept images of shape 1x4x4"):
        count_model_work("lenet", 10, (1, 4, 4))
    with pytest.raises(ModelError, match=", ".join(sorted(NETWORKS))[:20]):
        published_work("LeNet-6")
