"""MXNet's operators that choose and move elements, and their gradients, are on simulated GPUs what
they are on the CPU.
"""

import mxnet as mx
import numpy as np
from gpus.compared import assert_same, drawn
from hypothesis import given
from hypothesis import strategies as st
from mxnet import nd

REALS = st.sampled_from(["float32", "float64", "float16"])
REQUESTS = st.sampled_from(["write", "add"])
SHAPES = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple)
INDICES = st.sampled_from(["float32", "int32", "int64", "uint8"])


def indices(x, most, *shape, least=0, dtype="float32"):
    values = np.random.RandomState(sum(shape) + most).randint(least, most, shape)
    return nd.array(values, ctx=x.context, dtype=dtype)


@given(
    shape=st.tuples(*[st.integers(1, 6)] * 3),
    axis=st.integers(0, 2),
    kind=INDICES,
    dtype=REALS,
    request=REQUESTS,
)
def test_pick(shape, axis, kind, dtype, request):
    rest = shape[:axis] + shape[axis + 1 :]
    assert_same(
        lambda x: nd.pick(x, indices(x, shape[axis], *rest, dtype=kind), axis=axis),
        drawn(*shape),
        dtype=dtype,
        request=request,
    )


@given(
    shape=st.tuples(*[st.integers(1, 6)] * 3),
    axis=st.integers(0, 2),
    count=st.integers(1, 9),
    dtype=REALS,
    mode=st.sampled_from(["clip", "wrap"]),
)
def test_take_along_any_axis(shape, axis, count, dtype, mode):
    most, least = (shape[axis] + 2, -2) if axis == 0 else (shape[axis], 0)
    count += 8 * (axis > 0)  # see the next test
    assert_same(
        lambda x: nd.take(x, indices(x, most, count, least=least), axis=axis, mode=mode),
        drawn(*shape),
        dtype=dtype,
    )


def test_mxnet_gives_wrong_gradients_of_take_along_other_axes_than_the_first():
    """MXNet's own faults, as a real GPU shows them: it sorts indices by as many bits as say how
    many there are, and clips those that are too large to the axis's size, where there is no
    element.
    """

    def gradient(ctx, chosen):
        x = nd.zeros((1, 8), ctx=ctx)
        x.attach_grad()
        with mx.autograd.record():
            taken = nd.take(x, nd.array(chosen, ctx=ctx), axis=1, mode="clip")
        taken.backward(nd.array([[10, 20]], ctx=ctx))
        return x.grad.asnumpy().ravel().tolist()

    assert gradient(mx.cpu(), [4, 1]) == [0, 20, 0, 0, 10, 0, 0, 0]
    assert gradient(mx.gpu(0), [4, 1]) == [0, 10, 0, 0, 20, 0, 0, 0]
    assert gradient(mx.cpu(), [0, 9]) == [10, 0, 0, 0, 0, 0, 0, 20]
    assert gradient(mx.gpu(0), [0, 9]) == [10, 0, 0, 0, 0, 0, 0, 0]


@given(
    words=st.integers(1, 9),
    width=st.integers(1, 9),
    count=st.integers(1, 12),
    kind=INDICES,
    dtype=REALS,
    request=REQUESTS,
)
def test_embedding(words, width, count, kind, dtype, request):
    def function(table):
        return nd.Embedding(indices(table, words, count, dtype=kind), table, words, width)

    assert_same(function, drawn(words, width), dtype=dtype, request=request)


@given(
    count=st.integers(1, 9),
    depth=st.integers(1, 6),
    kind=INDICES,
    dtype=st.sampled_from(["float32", "int32", "float16"]),
)
def test_one_hot(count, depth, kind, dtype):
    for_both = [
        nd.one_hot(
            indices(nd.zeros((1,), ctx=ctx), depth + 2, count, dtype=kind),
            depth,
            on_value=2,
            dtype=dtype,
        ).asnumpy()
        for ctx in (mx.gpu(0), mx.cpu())
    ]
    np.testing.assert_array_equal(*for_both)


@given(shape=SHAPES, dtype=REALS, request=REQUESTS, by_rows=st.booleans())
def test_where(shape, dtype, request, by_rows):
    def function(x, y):
        condition = (x > 0).astype("float32")
        return nd.where(
            condition.reshape((shape[0], -1)).max(axis=1) if by_rows else condition, x, y
        )

    assert_same(function, drawn(*shape), drawn(*shape, seed=1), dtype=dtype, request=request)


@given(shape=st.tuples(*[st.integers(1, 5)] * 3), count=st.integers(1, 8), axes=st.integers(1, 3))
def test_gather_nd(shape, count, axes):
    def function(x):
        return nd.gather_nd(x, nd.stack(*[indices(x, extent, count) for extent in shape[:axes]]))

    assert_same(function, drawn(*shape))


@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=6).map(tuple),
    data=st.data(),
    dtype=REALS,
    request=REQUESTS,
)
def test_transposition(shape, data, dtype, request):
    axes = data.draw(st.permutations(range(len(shape))))
    assert_same(lambda x: nd.transpose(x, axes=axes), drawn(*shape), dtype=dtype, request=request)


@given(
    shape=st.lists(st.integers(2, 7), min_size=1, max_size=4).map(tuple),
    data=st.data(),
    dtype=REALS,
    request=REQUESTS,
)
def test_slices_with_steps(shape, data, dtype, request):
    begins, ends, steps = [], [], []
    for extent in shape:
        first, last = sorted(
            data.draw(st.lists(st.integers(0, extent), min_size=2, max_size=2, unique=True))
        )
        backwards = data.draw(st.booleans()) and first > 0
        begins.append(last - 1 if backwards else first)
        ends.append(first - 1 if backwards else last)
        steps.append((-1 if backwards else 1) * data.draw(st.integers(1, 2)))
    assert_same(
        lambda x: nd.slice(x, begin=begins, end=ends, step=steps),
        drawn(*shape),
        dtype=dtype,
        request=request,
    )


@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple),
    data=st.data(),
    dtype=REALS,
    request=REQUESTS,
)
def test_what_is_joined_and_taken_apart(shape, data, dtype, request):
    axis = data.draw(st.integers(0, len(shape) - 1))
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    arrays = [
        drawn(*shape[:axis], size, *shape[axis + 1 :], seed=place)
        for place, size in enumerate(sizes)
    ]
    assert_same(lambda *xs: nd.concat(*xs, dim=axis), *arrays, dtype=dtype, request=request)
    assert_same(
        lambda *xs: nd.stack(*xs, axis=axis),
        *[drawn(*shape, seed=seed) for seed in sizes],
        dtype=dtype,
        request=request,
    )
    whole, cuts = np.concatenate(arrays, axis), tuple(np.cumsum(sizes)[:-1])
    if cuts:
        assert_same(
            lambda x: nd.concat(*[2 * part for part in nd.split_v2(x, cuts, axis=axis)], dim=axis),
            whole,
            dtype=dtype,
        )


REPEATED = {
    "tile": lambda x, axis: nd.tile(x, (2, 3)),
    "repeat": lambda x, axis: nd.repeat(x, 3, axis=axis),
    "flip": lambda x, axis: nd.flip(x, axis=axis),
    "broadcast": lambda x, axis: nd.broadcast_axis(x.expand_dims(axis), axis=axis, size=3),
    "swapaxes": lambda x, axis: nd.swapaxes(x, 0, axis),
    "slice_axis": lambda x, axis: nd.slice_axis(x, axis=axis, begin=0, end=1),
    "cumsum": lambda x, axis: nd.cumsum(x, axis=axis),
}


@given(name=st.sampled_from(sorted(REPEATED)), shape=SHAPES, data=st.data(), dtype=REALS)
def test_what_is_repeated_or_turned(name, shape, data, dtype):
    axis = data.draw(st.integers(0, len(shape) - 1))
    assert_same(lambda x: REPEATED[name](x, axis), drawn(*shape), dtype=dtype)


@given(
    shape=st.tuples(*[st.integers(2, 5)] * 4),
    mode=st.sampled_from(["constant", "edge", "reflect"]),
    pads=st.tuples(*[st.integers(0, 1)] * 4),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_padding(shape, mode, pads, dtype):
    width = (0, 0, 0, 0, *pads)
    assert_same(
        lambda x: nd.pad(x, mode=mode, pad_width=width, constant_value=2),
        drawn(*shape),
        dtype=dtype,
    )


@given(longest=st.integers(1, 5), batch=st.integers(1, 4), width=st.integers(1, 4), dtype=REALS,
       name=st.sampled_from(["SequenceMask", "SequenceLast", "SequenceReverse"]))  # fmt: skip
def test_sequences_of_several_lengths(longest, batch, width, dtype, name):
    function = lambda x: getattr(nd, name)(  # noqa: E731
        x,
        indices(x, longest + 1, batch, least=1, dtype="float32").astype(x.dtype),
        use_sequence_length=True,
    )
    assert_same(function, drawn(longest, batch, width), dtype=dtype)


@given(
    shape=st.tuples(*[st.integers(1, 5)] * 3),
    channels=st.sampled_from([1, 3]),
    batch=st.booleans(),
    dtype=st.sampled_from(["uint8", "float32"]),
)
def test_images_as_tensors_and_normalised(shape, channels, batch, dtype):
    """to_tensor and normalize, and the gradient of the latter."""
    count, height, width = shape
    images = np.abs(drawn(*([count] if batch else []), height, width, channels)) * 50
    tensors = [
        nd.image.to_tensor(nd.array(images, ctx=ctx, dtype=dtype)).asnumpy()
        for ctx in (mx.gpu(0), mx.cpu())
    ]
    np.testing.assert_allclose(*tensors, rtol=1e-6)
    means, deviations = (0.25, 0.5, 0.75)[:channels], (0.5, 1.0, 2.0)[:channels]
    assert_same(lambda x: nd.image.normalize(x, mean=means, std=deviations), tensors[1])


def test_an_array_without_elements_is_a_grid_without_blocks(planted):
    """MXNet's own fault, as a real GPU shows it: CUDA refuses such a launch, and MXNet's thread
    takes all later ones for failed.
    """
    with mx.util.np_shape(True):
        store, arrays = (
            mx.kv.create("device"),
            [nd.zeros((0,), ctx=mx.gpu(device)) for device in range(2)],
        )
        store.init(0, nd.zeros((0,)))
        store.pushpull(0, arrays)
        nd.waitall()
    found = planted()
    assert found and all(
        fault.startswith("invalid configuration argument: a grid without blocks") for fault in found
    )
