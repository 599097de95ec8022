"""MXNet's operators that choose and move elements, and their gradients, are on simulated GPUs what
they are on the CPU.
"""

import mxnet as mx
import numpy as np
from gpus.compared import (
    EXACT,
    HOW,
    REALS,
    YES,
    assert_equal,
    assert_same,
    draw_array,
    integers_up_to,
    run_on_both,
    shapes,
    shapes_of_axes,
)
from hypothesis import given
from hypothesis import strategies as st
from mxnet import nd

INDICES = st.sampled_from(["float32", "int32", "int64", "uint8"])


def indices(ctx, most, *shape, least=0, dtype="float32"):
    values = np.random.RandomState(sum(shape) + most).randint(least, most, shape)
    return nd.array(values, ctx=ctx, dtype=dtype)


@given(shape=shapes_of_axes(3), axis=st.integers(0, 2), kind=INDICES, how=HOW)
def test_pick(shape, axis, kind, how):
    rest = shape[:axis] + shape[axis + 1 :]

    def pick(x):
        return nd.pick(x, indices(x.context, shape[axis], *rest, dtype=kind), axis=axis)

    assert_same(pick, draw_array(*shape), **how)


@given(
    shape=shapes_of_axes(3),
    axis=st.integers(0, 2),
    count=integers_up_to(9),
    dtype=REALS,
    mode=st.sampled_from(["clip", "wrap"]),
)
def test_take_along_any_axis(shape, axis, count, dtype, mode):
    most, least = (shape[axis] + 2, -2) if axis == 0 else (shape[axis], 0)
    count += 8 * (axis > 0)  # see the next test

    def take(x):
        return nd.take(x, indices(x.context, most, count, least=least), axis=axis, mode=mode)

    assert_same(take, draw_array(*shape), dtype=dtype)


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


@given(words=integers_up_to(9), width=integers_up_to(9), count=integers_up_to(12), kind=INDICES, how=HOW)
def test_embedding(words, width, count, kind, how):
    def embed(table):
        chosen = indices(table.context, words, count, dtype=kind)
        return nd.Embedding(chosen, table, words, width)

    assert_same(embed, draw_array(words, width), **how)


@given(
    count=integers_up_to(9),
    depth=integers_up_to(6),
    kind=INDICES,
    dtype=st.sampled_from(["float32", "int32", "float16"]),
)
def test_one_hot(count, depth, kind, dtype):
    def one_hot(ctx):
        chosen = indices(ctx, depth + 2, count, dtype=kind)
        return nd.one_hot(chosen, depth, on_value=2, dtype=dtype)

    assert_equal(one_hot)


@given(shape=shapes(), how=HOW, by_rows=YES)
def test_where(shape, how, by_rows):
    def where(x, y):
        condition = (x > 0).astype("float32")
        rows = condition.reshape((shape[0], -1)).max(axis=1)
        return nd.where(rows if by_rows else condition, x, y)

    assert_same(where, draw_array(*shape), draw_array(*shape, seed=1), **how)


@given(shape=shapes_of_axes(3, most=5), count=integers_up_to(8), axes=integers_up_to(3))
def test_gather_nd(shape, count, axes):
    def gather(x):
        chosen = [indices(x.context, extent, count) for extent in shape[:axes]]
        return nd.gather_nd(x, nd.stack(*chosen))

    assert_same(gather, draw_array(*shape))


@given(shape=shapes(axes=6), data=st.data(), how=HOW)
def test_transposition(shape, data, how):
    axes = data.draw(st.permutations(range(len(shape))))
    assert_same(lambda x: nd.transpose(x, axes=axes), draw_array(*shape), **how)


@given(shape=st.lists(st.integers(2, 7), min_size=1, max_size=4), data=st.data(), how=HOW)
def test_slices_with_steps(shape, data, how):
    begins, ends, steps = [], [], []
    for extent in shape:
        ranges = st.lists(st.integers(0, extent), min_size=2, max_size=2, unique=True)
        first, last = sorted(data.draw(ranges))
        backwards = data.draw(YES) and first > 0
        begins.append(last - 1 if backwards else first)
        ends.append(first - 1 if backwards else last)
        steps.append((-1 if backwards else 1) * data.draw(integers_up_to(2)))
    cut = lambda x: nd.slice(x, begin=begins, end=ends, step=steps)  # noqa: E731
    assert_same(cut, draw_array(*shape), **how)


@given(shape=shapes(most=4), data=st.data(), how=HOW)
def test_what_is_joined_and_taken_apart(shape, data, how):
    axis = data.draw(st.integers(0, len(shape) - 1))
    sizes = data.draw(st.lists(integers_up_to(3), min_size=1, max_size=4))
    arrays = [draw_array(*shape[:axis], size, *shape[axis + 1 :], seed=place) for place, size in enumerate(sizes)]
    alike = [draw_array(*shape, seed=seed) for seed in sizes]
    assert_same(lambda *xs: nd.concat(*xs, dim=axis), *arrays, **how)
    assert_same(lambda *xs: nd.stack(*xs, axis=axis), *alike, **how)
    cuts = tuple(np.cumsum(sizes)[:-1])

    def doubled(x):
        return nd.concat(*[2 * part for part in nd.split_v2(x, cuts, axis=axis)], dim=axis)

    if cuts:
        assert_same(doubled, np.concatenate(arrays, axis), dtype=how["dtype"])


REPEATED = {
    "tile": lambda x, axis: nd.tile(x, (2, 3)),
    "repeat": lambda x, axis: nd.repeat(x, 3, axis=axis),
    "flip": lambda x, axis: nd.flip(x, axis=axis),
    "broadcast": lambda x, axis: nd.broadcast_axis(x.expand_dims(axis), axis=axis, size=3),
    "swapaxes": lambda x, axis: nd.swapaxes(x, 0, axis),
    "slice_axis": lambda x, axis: nd.slice_axis(x, axis=axis, begin=0, end=1),
    "cumsum": lambda x, axis: nd.cumsum(x, axis=axis),
}


@given(name=st.sampled_from(sorted(REPEATED)), shape=shapes(), data=st.data(), dtype=REALS)
def test_what_is_repeated_or_turned(name, shape, data, dtype):
    axis = data.draw(st.integers(0, len(shape) - 1))
    assert_same(lambda x: REPEATED[name](x, axis), draw_array(*shape), dtype=dtype)


@given(
    shape=st.tuples(*[st.integers(2, 5)] * 4), pads=st.tuples(*[st.integers(0, 1)] * 4),
    mode=st.sampled_from(["constant", "edge", "reflect"]), dtype=EXACT,
)  # fmt: skip
def test_padding(shape, mode, pads, dtype):
    how = dict(mode=mode, pad_width=(0, 0, 0, 0, *pads), constant_value=2)
    assert_same(lambda x: nd.pad(x, **how), draw_array(*shape), dtype=dtype)


@given(
    shape=shapes_of_axes(3, most=5),
    dtype=REALS,
    name=st.sampled_from(["SequenceMask", "SequenceLast", "SequenceReverse"]),
)
def test_sequences_of_several_lengths(shape, dtype, name):
    longest, batch, _ = shape

    def function(x):
        lengths = indices(x.context, longest + 1, batch, least=1).astype(x.dtype)
        return getattr(nd, name)(x, lengths, use_sequence_length=True)

    assert_same(function, draw_array(*shape), dtype=dtype)


@given(
    shape=shapes_of_axes(3, most=5),
    channels=st.sampled_from([1, 3]),
    batch=YES,
    dtype=st.sampled_from(["uint8", "float32"]),
)
def test_images_as_tensors_and_normalized(shape, channels, batch, dtype):
    """to_tensor and normalize, and the gradient of the latter."""
    images = np.abs(draw_array(*shape[0 if batch else 1 :], channels)) * 50
    [on_gpu], [on_cpu] = run_on_both(lambda ctx: nd.image.to_tensor(nd.array(images, ctx=ctx, dtype=dtype)))
    np.testing.assert_allclose(on_gpu, on_cpu, rtol=1e-6)
    means, deviations = (0.25, 0.5, 0.75)[:channels], (0.5, 1.0, 2.0)[:channels]
    assert_same(lambda x: nd.image.normalize(x, mean=means, std=deviations), on_cpu)


def test_an_array_without_elements_is_a_grid_without_blocks(take_faults):
    """MXNet's own fault, as a real GPU shows it: CUDA refuses such a launch, and MXNet's thread
    takes all later ones for failed.
    """
    with mx.util.np_shape(True):
        store = mx.kv.create("device")
        arrays = [nd.zeros((0,), ctx=mx.gpu(device)) for device in range(2)]
        store.init(0, nd.zeros((0,)))
        store.pushpull(0, arrays)
        nd.waitall()
    result, refused = take_faults(), "invalid configuration argument: a grid without blocks"
    assert result and all(fault.startswith(refused) for fault in result)
