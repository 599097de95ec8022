"""Which graphs MXNet must not fuse on GPUs. tests/gpus/test_fusion.py runs them there."""

import json
import math

import mxnet as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluonlab.engine.mxnet_fixes import cannot_be_fused
from gluonlab.models import get_model

X, Y = mx.sym.var("x"), mx.sym.var("y")
WHOLE = {"begin": (0, None), "end": (None, None)}
FAULTY = {
    "sliced and whole": X * mx.sym.sigmoid(mx.sym.slice_axis(X, axis=1, begin=0, end=None)),
    "sliced and added": mx.sym.add_n(X, mx.sym.slice(X, **WHOLE)),
    "sliced and cast": mx.sym.exp(mx.sym.slice_axis(X, axis=1, begin=0, end=2)).sum()
    + mx.sym.amp_cast(X, dtype="float16").sum(),
    "like itself": mx.sym.exp(X) + mx.sym.slice_like(X, X),
    "repeated and whole": mx.sym.broadcast_like(X, Y) * mx.sym.broadcast_like(mx.sym.exp(X), Y),
    "a tuple of one": mx.sym.slice(X, begin=(1,), end=(None,)),
    "a list": mx.sym.slice(X, begin=[0, 1], end=[None, None]),
    "perhaps beyond the end": mx.sym.slice(X, begin=(0, 1), end=(None, 9)),
    "perhaps before the beginning": mx.sym.slice(X, begin=(0, -9), end=(None, None)),
    "no act_type": mx.sym.LeakyReLU(X),
    "no type": mx.sym._internal._zeros(shape=(2,)),
    "no upper end": mx.sym.clip(X, 0, math.inf),
    "no lower end": mx.sym.clip(X, -math.inf, 0),
    "not a number": X * math.nan,
}
RIGHT = {
    "nothing": lambda x, y: x,
    "slices alone": lambda x, y: (
        mx.sym.slice_axis(x, axis=1, begin=0, end=2) * mx.sym.slice_axis(x, axis=1, begin=2, end=4)
    ),
    "whole for a product": lambda x, y: mx.sym.dot(mx.sym.sigmoid(mx.sym.slice_axis(x, axis=1, begin=0, end=None)), x),
    "another output": lambda x, y: (
        mx.sym.split(x, 2)[0] * mx.sym.slice_axis(mx.sym.split(x, 2)[1], axis=1, begin=0, end=None)
    ),
    "a step": lambda x, y: mx.sym.slice(x, begin=(0, 1), end=(3, 9), step=(1, 1)),
    "ends from behind": lambda x, y: mx.sym.exp(mx.sym.slice(x, begin=(None, 2), end=(-1, None))),
    "leaky": lambda x, y: mx.sym.LeakyReLU(x, act_type="leaky"),
    "zeros": lambda x, y: x + mx.sym.zeros((2, 2)),
    "numbers": lambda x, y: mx.sym.clip(x * 1e-5 - 3, -2.5, 1e30),
}


def to_nodes(graph):
    return json.loads(graph.tojson(remove_amp_cast=False))


@pytest.mark.parametrize("graph", FAULTY.values(), ids=FAULTY)
def test_a_graph_that_fuses_wrongly_is_found_anywhere_in_a_graph(graph):
    assert cannot_be_fused(to_nodes(graph))
    assert cannot_be_fused(to_nodes(mx.sym.Group([mx.sym.dot(Y, Y), mx.sym.exp(graph)])))


@given(st.lists(st.sampled_from(list(RIGHT)), min_size=1, max_size=4))
def test_graphs_that_fuse_correctly_are_fused(names):
    parts = [RIGHT[name](mx.sym.var(f"x{i}"), mx.sym.var(f"y{i}")) for i, name in enumerate(names)]
    assert not cannot_be_fused(to_nodes(mx.sym.Group(parts)))


@pytest.mark.parametrize("model", ["lenet", "resnet8"])
def test_our_networks_are_fused(model):
    assert not cannot_be_fused(to_nodes(get_model(model, 10)(X)))
