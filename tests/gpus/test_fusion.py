"""Fused operators: MXNet writes their source, the simulated NVRTC compiles it, the simulated driver
runs it.

Their numbers are those of the same operators one by one on the same GPU, and of a CPU.
"""

import json
from collections import Counter
from contextlib import contextmanager

import mxnet as mx
import numpy as np
import pytest
from gpus.simulated import counting
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from mxnet import autograd, gluon, nd
from support.reference import relative_distance

# Each is smooth where its operands are: between 1/4 and 3/4, or between -1 and 1 of the sums below.
ONE = {
    "relu": lambda F, x: F.relu(x), "sigmoid": lambda F, x: F.sigmoid(x), "tanh": lambda F, x: F.tanh(x),
    "softsign": lambda F, x: F.softsign(x), "softrelu": lambda F, x: F.Activation(x, act_type="softrelu"),
    "gelu": lambda F, x: F.LeakyReLU(x, act_type="gelu"), "exp": lambda F, x: F.exp(x),
    "expm1": lambda F, x: F.expm1(x), "log": lambda F, x: F.log(x * x + 1), "log1p": lambda F, x: F.log1p(x * x),
    "sin": lambda F, x: F.sin(x), "arctan": lambda F, x: F.arctan(x), "sqrt": lambda F, x: F.sqrt(x * x + 1),
    "rsqrt": lambda F, x: F.rsqrt(x * x + 1), "rcbrt": lambda F, x: F.rcbrt(x * x + 1),
    "cbrt": lambda F, x: F.cbrt(x * x + 1), "square": lambda F, x: F.square(x), "erf": lambda F, x: F.erf(x),
    "erfinv": lambda F, x: F.erfinv(F.tanh(x) * 0.5), "clip": lambda F, x: F.clip(x, -0.4, 0.6),
    "abs": lambda F, x: F.abs(x), "scaled": lambda F, x: 3 * x - 1, "power": lambda F, x: (x * x + 1) ** 1.5,
    "from_scalar": lambda F, x: 2 / (x * x + 1) - (1 - x), "smooth": lambda F, x: F.smooth_l1(x, scalar=1.0),
    "negative": lambda F, x: -x, "reciprocal": lambda F, x: F.reciprocal(x * x + 1),
    "arcsinh": lambda F, x: F.arcsinh(x),
}  # fmt: skip
TWO = {
    "add": lambda F, x, y: x + y, "sub": lambda F, x, y: x - y, "mul": lambda F, x, y: x * y,
    "div": lambda F, x, y: x / (y * y + 1), "sum": lambda F, x, y: F.add_n(x, y, x),
    "max": lambda F, x, y: F.maximum(x, y), "min": lambda F, x, y: F.minimum(x, y),
    "power": lambda F, x, y: F.elemwise_add(x * x, y * y) ** 1.5,
}  # fmt: skip
STEPS = st.lists(st.tuples(st.sampled_from([*ONE, *TWO]), st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=6)
TOLERANCE = {"float32": 1e-5, "float16": 4e-3}


class Graph(gluon.HybridBlock):
    """Pointwise operators over what came before; each step takes its operands by their numbers."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def hybrid_forward(self, F, x, y):
        values = [x, y]
        for name, one, other in self.steps:
            first, second = values[one % len(values)], values[other % len(values)]
            values.append(TWO[name](F, first, second) if name in TWO else ONE[name](F, first))
        return F.tanh(F.add_n(*values[2:]))


def run_graph(graph, arrays, ctx, dtype, request="write", start=1):
    """The output, and the gradients of all inputs, which hold ``start`` before."""
    inputs = [nd.array(array, ctx=ctx, dtype=dtype) for array in arrays]
    for array in inputs:
        array.attach_grad(request)
        array.grad[:] = start
    graph.hybridize(static_alloc=True, static_shape=True)
    with autograd.record():
        out = graph(*inputs)
    out.backward()
    return [out.asnumpy(), *[array.grad.asnumpy() for array in inputs]]


@contextmanager
def without_fusion(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("MXNET_USE_FUSION", "0")  # MXNet asks for it when a graph is bound
        yield


def assert_fused_is_same(make_graph, arrays, dtype, monkeypatch, request="write"):
    """What is fused on a GPU is what a CPU computes in float32 and, in float32, what the operators
    compute one by one.

    In float16, the result may be twice as far from float32 as that of the operators one by one,
    because cancellation, such as in the gradient 1 - t * t of t = tanh(x), enlarges rounding errors
    by a factor that depends on the graph.
    """
    added = int(request == "add")  # here, since MXNet does not always do it right: docs/mxnet-known-issues.md
    with counting() as fused:
        result = run_graph(make_graph(), arrays, mx.gpu(0), dtype, request, start=1)
    with without_fusion(monkeypatch), counting() as single:
        unfused = run_graph(make_graph(), arrays, mx.gpu(0), dtype, start=1 - added)
    assert fused.fused_launches > 0
    assert single.fused_launches == 0 and single.launches > fused.launches + fused.fused_launches
    reference = run_graph(make_graph(), arrays, mx.cpu(0), "float32", start=1 - added)
    for place, (own, one_by_one, expected) in enumerate(zip(result, unfused, reference)):
        assert own.dtype == dtype and np.isfinite(own).all()
        before = added if place > 0 else 0
        one_by_one, expected = one_by_one.astype("float32") + before, expected + before
        bound = TOLERANCE[dtype]
        if dtype == "float32":
            assert relative_distance(own, one_by_one) <= bound
        else:
            bound = max(bound, 2 * relative_distance(one_by_one, expected))
        assert relative_distance(own.astype("float32"), expected) <= bound


def draw_arrays(*shapes, seed=0):
    random = np.random.RandomState(seed)
    return [random.uniform(-1, 1, shape).astype("float16").astype("float32") for shape in shapes]


SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


@settings(max_examples=10)
@example([("relu", 0, 0), ("clip", 1, 0)], (1,), "float32", "add")
@example([("relu", 0, 0), ("sigmoid", 0, 0), ("softrelu", 0, 0)], (2,), "float16", "write")
@given(STEPS, SHAPES, st.sampled_from(list(TOLERANCE)), st.sampled_from(["write", "add"]))
def test_a_fused_graph_computes_what_its_operators_compute(steps, shape, dtype, request):
    assume(count_reads(Graph(steps)(mx.sym.var("x"), mx.sym.var("y"))) < 8)  # others are not fused
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert_fused_is_same(lambda: Graph(steps), draw_arrays(shape, shape), dtype, monkeypatch, request)


def count_reads(symbol):
    """Return the number of reads of the array that is read most often."""
    nodes = json.loads(symbol.tojson())["nodes"]
    return max(Counter(tuple(entry[:2]) for node in nodes for entry in node["inputs"]).values())


class Star(gluon.HybridBlock):
    """An array is read ``reads`` times, by pointwise operators."""

    def __init__(self, inner, reads):
        super().__init__()
        self.inner, self.reads = inner, reads

    def hybrid_forward(self, F, x):
        read = F.sigmoid(x) if self.inner else x
        values = [F.tanh(read), F.sin(read), F.exp(read), F.erf(read), F.relu(read), read * 2, F.arctan(read), read]
        return F.tanh(F.add_n(*values[-self.reads :]))


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("reads", [7, 8])
def test_an_array_that_is_read_often_has_its_gradient(reads, inner):
    """MXNet cannot fuse all graphs in which an array is read 8 times."""
    arrays = draw_arrays((3, 4))
    with counting() as happened:
        result = run_graph(Star(inner, reads), arrays, mx.gpu(0), "float32")
    assert (happened.fused_launches > 0) == (reads < 8)
    expected = run_graph(Star(inner, reads), arrays, mx.cpu(0), "float32")
    assert relative_distance(result, expected) <= TOLERANCE["float32"]


class Sliced(gluon.HybridBlock):
    """Operands that are parts of others, or are repeated."""

    def hybrid_forward(self, F, x, wide, low):
        part = F.slice_axis(wide, axis=1, begin=1, end=-1) + F.slice(wide, begin=(None, 2), end=(None, None))
        return F.relu(x * 2 - part) + F.broadcast_like(low, x)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("columns", [2, 3, 4, 8])
def test_parts_and_repeated_rows_are_read_where_they_lie(dtype, columns, monkeypatch):
    arrays = draw_arrays((3, columns), (3, columns + 2), (1, columns))
    assert_fused_is_same(Sliced, arrays, dtype, monkeypatch)


# Operators that MXNet cannot fuse with what stands beside them: array (3, 4) -> array (3, 4).
UNFUSIBLE = {
    "slice_axis": lambda F, x: F.slice_axis(x, axis=1, begin=0, end=None),
    "slice": lambda F, x: F.slice(x, begin=(None, 0), end=(None, None)),
    "slice beyond the end": lambda F, x: F.slice(x, begin=(0, 0), end=(3, 9)),
    "slice by one number": lambda F, x: F.slice(x, begin=(0,), end=(3,)),
    "slice by lists": lambda F, x: F.slice(x, begin=[0, 0], end=[3, 4]), "slice_like": lambda F, x: F.slice_like(x, x),
    "broadcast_like": lambda F, x: F.broadcast_like(x, x), "leaky": lambda F, x: F.LeakyReLU(x),
    "clip": lambda F, x: F.clip(x, -np.inf, 0.4),
}  # fmt: skip
BESIDE = {
    "mul": lambda F, x, y: x * F.sigmoid(y), "add_n": lambda F, x, y: F.add_n(x, F.exp(x), y),
    "alone": lambda F, x, y: F.exp(y) + 1, "activation": lambda F, x, y: F.Activation(x, act_type="tanh") + y,
}  # fmt: skip


class Beside(gluon.HybridBlock):
    """An operator of UNFUSIBLE, with pointwise ones beside it."""

    def __init__(self, unfusible, beside):
        super().__init__()
        self.unfusible, self.beside = UNFUSIBLE[unfusible], BESIDE[beside]

    def hybrid_forward(self, F, x):
        return self.beside(F, x, self.unfusible(F, x)) * 2


@settings(max_examples=25)
@given(
    st.sampled_from(list(UNFUSIBLE)),
    st.sampled_from(list(BESIDE)),
    st.sampled_from(list(TOLERANCE)),
    st.sampled_from(["write", "add"]),
)
def test_what_mxnet_cannot_fuse_is_computed_one_by_one(unfusible, beside, dtype, request):
    arrays = draw_arrays((3, 4))
    result = run_graph(Beside(unfusible, beside), arrays, mx.gpu(0), dtype, request)
    for own, expected in zip(result, run_graph(Beside(unfusible, beside), arrays, mx.cpu(0), "float32", request)):
        assert own.dtype == dtype and relative_distance(own.astype("float32"), expected) <= TOLERANCE[dtype]


@pytest.mark.parametrize("method", ["bind", "simple_bind"])
def test_executors_of_such_graphs_are_not_fused_and_others_are(method):
    """Whoever binds them, and on both sides of an executor that is fused."""
    [array] = draw_arrays((3, 4))
    wrong, right = (block(mx.sym.var("x")) for block in (Beside("slice_axis", "mul"), Bytes()))
    for graph, fused in ((right, 1), (wrong, 0), (right, 1)):
        arguments = {"x": nd.array(array, ctx=mx.gpu(0))} if method == "bind" else {}
        shape = {} if method == "bind" else {"x": array.shape}
        executor = getattr(graph, method)(mx.gpu(0), **({"args": arguments} if arguments else shape))
        with counting() as happened:
            result = executor.forward(x=nd.array(array, ctx=mx.gpu(0)))[0].asnumpy()
        assert (happened.fused_launches > 0) == bool(fused)
        assert relative_distance(result, graph.bind(mx.cpu(), {"x": nd.array(array)}).forward()[0].asnumpy()) <= 1e-6
        if method == "simple_bind":
            fewer = nd.array(array[:2], ctx=mx.gpu(0))
            assert relative_distance(executor.reshape(x=fewer.shape).forward(x=fewer)[0].asnumpy(), result[:2]) <= 1e-6


class Turned(gluon.HybridBlock):
    """A transposition is no pointwise operator: what is fused ends before it and begins after it."""

    def hybrid_forward(self, F, x, y):
        return F.exp(F.transpose(F.relu(x) * 3) - y).reshape((-1,)) + 1


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_what_lies_between_fused_parts_is_done_in_order(dtype, monkeypatch):
    assert_fused_is_same(Turned, draw_arrays((3, 5), (5, 3)), dtype, monkeypatch)


class Halves(gluon.HybridBlock):
    """tanh in float16, as mixed precision has it."""

    def hybrid_forward(self, F, x):
        return F.amp_cast(F.tanh(F.amp_cast(x, dtype="float16")), dtype="float32")


def test_between_its_casts_a_fused_operator_computes_in_float32(monkeypatch):
    """Only what backward needs is rounded: gradients of 1e-10, which float16 makes 0, do not
    vanish.
    """
    x = np.linspace(-1, 1, 7).astype("float32")
    head = nd.full((7,), 1e-10, ctx=mx.gpu(0))

    def outputs_and_gradients():
        array = nd.array(x, ctx=mx.gpu(0))
        array.attach_grad()
        block = Halves()
        block.hybridize(static_alloc=True, static_shape=True)
        with autograd.record():
            out = block(array)
        out.backward(head)
        return out.asnumpy(), array.grad.asnumpy()

    out, gradient = outputs_and_gradients()
    np.testing.assert_allclose(out, np.tanh(x), rtol=1e-6)
    np.testing.assert_allclose(gradient, 1e-10 * (1 - np.tanh(x) ** 2), rtol=1e-3)
    with without_fusion(monkeypatch):
        out, gradient = outputs_and_gradients()
    np.testing.assert_array_equal(out, np.tanh(x.astype("float16")).astype("float32"))
    assert (gradient == 0).all()


class Bytes(gluon.HybridBlock):
    """What a run does with its images."""

    def hybrid_forward(self, F, images):
        return F.cast(images, "float32") * (1 / 255) - 0.5


@pytest.mark.parametrize("size", [1, 3, 4, 5, 784])
def test_bytes_are_read_four_at_once(size):
    images = np.random.RandomState(0).randint(0, 256, (3, size)).astype("uint8")
    block = Bytes()
    block.hybridize(static_alloc=True, static_shape=True)
    with counting() as happened:
        result = block(nd.array(images, ctx=mx.gpu(0), dtype="uint8")).asnumpy()
    assert happened.fused_launches == 1 and happened.launches == 0
    assert relative_distance(result, images / np.float32(255) - np.float32(0.5)) <= 1e-6
