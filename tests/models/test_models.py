"""Networks by name, and channels padded to the lanes of vector registers."""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import autograd, nd
from mxnet.gluon import nn
from support.devices import contexts
from support.reference import distance

from gluonlab.errors import ModelError
from gluonlab.models import MODELS, get_model
from gluonlab.models.lanes import LaneConv2D, TrueChannels, lanes, padded
from gluonlab.models.shapes import complete

CASCADE_LAKE = (
    "processor\t: 0\ncpu family\t: 6\nmodel\t\t: 85\nmodel name\t: Xeon\n"
    "flags\t\t: fpu sse2 avx2 avx512f avx512cd\n"
)


@pytest.mark.parametrize("name", MODELS)
def test_every_network_scores_each_class(name):
    net = get_model(name, 7, contexts(2))
    net.initialize(ctx=contexts(2))
    side = 63 if name == "alexnet-2towers" else 28
    for ctx in contexts(2):
        assert net(nd.zeros((3, 1, side, side), ctx=ctx)).shape == (3, 7)


def test_alexnet_has_the_parameters_of_the_paper():
    """60 million, says the abstract of Krizhevsky et al. (2012)."""
    net = get_model("alexnet-2towers", 1000)
    complete(net, "alexnet-2towers", (3, 224, 224), 1000)
    sizes = [np.prod(param.shape) for param in net.collect_params().values()]
    assert sum(sizes) == 60_965_224
    groups = [layer._kwargs["num_group"] for layer in net if isinstance(layer, nn.Conv2D)]
    assert groups == [1, 2, 1, 2, 2]


@pytest.mark.parametrize("name", ["resnet18", "cifar_resnet20", "gluoncv:squeezenet1.0"])
def test_parameters_have_the_same_names_whatever_was_made_before(name):
    """States of an optimizer go by them, and their order decides which bucket adds up what."""
    first, second = (list(get_model(name, 10).collect_params()) for _ in range(2))
    assert first == second


def test_an_unknown_network_is_answered_with_the_choices():
    with pytest.raises(
        ModelError,
        match=r"unknown model 'lennet': choose .*, lenet, lenet-avg, mlp, "
        r".*\(did you mean 'lenet'\?\)",
    ):
        get_model("lennet", 10)


@pytest.mark.cpu_only("channels are padded for CPUs")
@pytest.mark.parametrize(
    "text, expected",
    [
        (CASCADE_LAKE, 16),
        (CASCADE_LAKE.replace("avx512f ", ""), 1),
        (CASCADE_LAKE.replace(": 85", ": 143"), 1),
        (CASCADE_LAKE.replace("family\t: 6", "family\t: 25"), 1),
        ("Processor : ARMv8\n", 1),
    ],
    ids=["measured", "no avx512", "another model", "another family", "not x86"],
)
def test_channels_are_padded_on_cpus_where_that_was_measured_to_pay(tmp_path, text, expected):
    (tmp_path / "cpuinfo").write_text(text)
    assert lanes(contexts(2), tmp_path / "cpuinfo") == expected
    assert lanes([mx.gpu(0)], tmp_path / "cpuinfo") == 1
    assert lanes(contexts(1), tmp_path / "missing") == 1


@given(st.integers(1, 300), st.integers(1, 64))
def test_padded_is_the_next_multiple(channels, multiple):
    assert padded(channels, multiple) % multiple == 0
    assert 0 <= padded(channels, multiple) - channels < multiple


@settings(max_examples=15, deadline=None)
@given(
    channels=st.tuples(st.integers(1, 3), st.integers(8, 20), st.integers(8, 40)),
    seed=st.integers(0, 1000),
)
def test_padded_convolutions_compute_what_plain_ones_do(channels, seed):
    """Two in a row, the second one fed with padded channels: same result, same gradients, true
    shapes.
    """
    inputs, first, second = channels
    mx.random.seed(seed)
    filled, plain = nn.HybridSequential(), nn.HybridSequential()
    filled.add(
        LaneConv2D(first, 3, 16),
        LaneConv2D(second, 3, 16, in_channels=first),
        TrueChannels(second, 16),
    )
    plain.add(nn.Conv2D(first, 3), nn.Conv2D(second, 3))
    x = nd.array(np.random.RandomState(seed).uniform(-1, 1, (2, inputs, 7, 7)))
    results, gradients = [], []
    for net in (filled, plain):
        net.initialize(mx.init.Xavier())
        net(x)
    for ours, theirs in zip(filled.collect_params().values(), plain.collect_params().values()):
        assert ours.shape == theirs.shape
        ours.set_data(theirs.data() + 0.1)
        theirs.set_data(theirs.data() + 0.1)
    for net in (filled, plain):
        net.hybridize()
        with autograd.record():
            y = net(x)
            total = (y * y).sum()
        total.backward()
        results.append(y.asnumpy())
        gradients.append(
            [param.list_grad()[0].asnumpy() for param in net.collect_params().values()]
        )
    assert distance(results[:1], results[1:]) <= 1e-5
    assert distance(*gradients) <= 1e-4  # a bias's gradient is a sum over pixels, which may cancel
