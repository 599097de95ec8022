"""ReLU behind max pooling instead of in front of it: the same function, gradient and names."""

import json

import mxnet as mx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import nd
from support.devices import device

from gluonlab.models.rewriting import pool_before_relu

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
    """The operators, as they come."""
    nodes = json.loads(graph.tojson())["nodes"]
    return [node["op"] for node in nodes if node["op"] in ("Activation", "relu", "Pooling")]


def results(graph, image, heads):
    ctx = device()
    gradient = nd.full(image.shape, np.nan, ctx=ctx)
    executor = graph.bind(ctx, {"image": nd.array(image, ctx=ctx)}, args_grad={"image": gradient})
    outputs = [each.asnumpy() for each in executor.forward(is_train=True)]
    executor.backward([nd.array(head, ctx=ctx) for head in heads])
    return [*outputs, gradient.asnumpy()]


@settings(max_examples=60)
@given(
    attrs=windows,
    side=st.tuples(st.integers(4, 9), st.integers(4, 9)),
    is_activation=st.booleans(),
    is_read=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_equals_the_relu_in_front(attrs, side, is_activation, is_read, seed):
    """To the bit, even for images of few values, most windows of which have several maxima."""
    image = mx.sym.var("image")
    own = mx.sym.Activation(image, act_type="relu") if is_activation else mx.sym.relu(image)
    pooled = mx.sym.Pooling(own, name="pool", **attrs)
    graph = mx.sym.Group([pooled, own]) if is_read else mx.sym.tanh(pooled, name="end")
    shape = (2, 2, *side)
    try:
        _, outputs, _ = graph.infer_shape(image=shape)
    except mx.MXNetError:
        return  # there is no place for the window
    exchanged = pool_before_relu(graph)
    assert exchanged.list_outputs() == graph.list_outputs()
    assert exchanged is graph or order(exchanged)[0] == "Pooling"
    if is_read or attrs["pool_type"] != "max":
        assert exchanged is graph
    elif attrs["global_pool"] or attrs["pooling_convention"] == "valid":
        assert exchanged is not graph
    random = np.random.RandomState(seed)
    values = random.randint(-2, 3, shape).astype("float32")
    heads = [random.uniform(-1, 1, each).astype("float32") for each in outputs]
    for ours, theirs in zip(results(exchanged, values, heads), results(graph, values, heads)):
        np.testing.assert_array_equal(ours, theirs)


def test_a_chain_of_both_is_exchanged_as_a_whole():
    image = mx.sym.var("image")
    for _ in range(2):
        image = mx.sym.Pooling(mx.sym.relu(image), kernel=(2, 2), stride=(2, 2), pool_type="max")
    assert order(pool_before_relu(image)) == ["Pooling", "relu", "Pooling", "relu"]
