"""Our stores do with every call what MXNet's own stores do."""

import ast
from functools import lru_cache

import mxnet as mx
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mxnet import autograd, nd
from support.covering import pairwise
from support.devices import contexts, device
from support.examples import examples
from support.reference import cpu_contexts
from support.stores import FROM_SCRATCH, STORES

from gluonlab.errors import KVStoreError
from gluonlab.kvstores import make_kvstore

LENGTH, PARENT = 4, 12  # elements of an array, and of what it is a slice of

# device, where the slice begins
places = st.tuples(st.integers(0, 4), st.sampled_from([0, 2, 4, 8]))
lists_of_places = st.lists(places, min_size=1, max_size=5)
# MXNet makes no copy of a single value, and reads it while it writes outs.
several_places = st.lists(places, min_size=2, max_size=5)
calls = st.lists(st.tuples(several_places, st.none() | lists_of_places), min_size=1, max_size=3)


def make_parents(dtype="float32"):
    """Return different integers on each of five devices."""
    return [nd.array(np.arange(PARENT) + 1 + 2 * rank, ctx=ctx, dtype=dtype) for rank, ctx in enumerate(contexts(5))]


def slices(arrays, of_key):
    return [arrays[device][begin : begin + LENGTH] for device, begin in of_key]


def pushpull(store, call, rounds, dtype="float32"):
    """Return all memory after some equal calls of pushpull with the keys 0, 1, 2 ..."""
    arrays = make_parents(dtype)
    keys = list(range(len(call)))
    store.broadcast(keys, [nd.zeros((LENGTH,), dtype=dtype) for _ in keys], [[] for _ in keys])
    values = [slices(arrays, of_key) for of_key, _ in call]
    outs = [own if of_key is None else slices(arrays, of_key) for own, (_, of_key) in zip(values, call)]
    for _ in range(rounds):
        store.pushpull(keys, values, out=outs, priority=-3)
    return np.stack([array.asnumpy() for array in arrays])


@lru_cache(maxsize=None)
def _pushpull_of_mxnet(call_text, rounds, dtype):
    return pushpull(mx.kv.create("device"), ast.literal_eval(call_text), rounds, dtype)


def pushpull_of_mxnet(call, rounds, dtype="float32"):
    return _pushpull_of_mxnet(repr(call), rounds, dtype)


@pytest.mark.parametrize("name", FROM_SCRATCH)
@examples(8, 150)
@given(call=calls)
@example(call=[([(0, 0), (1, 0), (2, 0)], None)] * 2)  # one list of arrays for two keys
@example(call=[([(0, 0), (1, 0), (2, 0)], [(0, 4), (1, 4)]), ([(0, 4), (1, 4)], [(0, 0), (1, 0)])])
@example(call=[([(0, 0), (0, 0), (1, 2)], None)])  # one array twice
@example(call=[([(4, 0), (1, 0), (2, 0)], [(3, 8)])])  # one out, on another device
@example(call=[([(i, 0) for i in range(5)], None), ([(i, 2) for i in range(5)], None)])  # overlapping slices
# one out for two keys
@example(call=[([(0, 0), (1, 0)], [(2, 0), (3, 0)]), ([(1, 4)], [(2, 0), (3, 0)])])
def test_arrays_that_share_memory_are_summed_as_mxnet_does(name, call):
    expected = pushpull_of_mxnet(call, rounds=2)
    np.testing.assert_array_equal(pushpull(make_kvstore(name), call, rounds=2), expected)


def make_arrays(devices, value, shape=(3, 2), dtype="float32"):
    return [nd.full(shape, value + ctx.device_id, ctx=ctx, dtype=dtype) for ctx in devices]


def sum_into_one(store, keys, *values):
    """Leave the sums of two keys in the same arrays: MXNet writes in the order of keys."""
    outs = [nd.zeros_like(array) for array in values[0]]
    store.pushpull(keys, list(values), out=[outs] * len(keys))
    return outs


FORMS = {  # (store, arrays of key 0, arrays of key 1) -> tuple whose last item is everything written
    "a list": lambda store, a, b: (store.pushpull(0, a), a),
    "a tuple": lambda store, a, b: (store.pushpull(0, tuple(a)), a),
    "an array": lambda store, a, b: (store.pushpull(0, a[-1]), [a[-1]]),
    "an array and an out": lambda store, a, b: (store.pushpull(0, a[-1], out=b[0]), [a[-1], b[0]]),
    "outs": lambda store, a, b: (store.pushpull(0, a, out=b), [*a, *b]),
    "an out": lambda store, a, b: (store.pushpull(0, a, out=b[0]), [*a, *b]),
    "its own out": lambda store, a, b: (store.pushpull(0, a, out=a, priority=7), a),
    "keys": lambda store, a, b: (store.pushpull([0, 1], [a, b], priority=-9), [*a, *b]),
    "a tuple of keys": lambda store, a, b: (store.pushpull((1, 0), (a, b)), [*a, *b]),
    "keys with outs": lambda store, a, b: (store.pushpull([0, 1], [a, a], out=[b, a]), [*a, *b]),
    "a key twice": lambda store, a, b: (store.pushpull([0, 0], [a, b]), [*a, *b]),
    "arrays as keys come": lambda store, a, b: (store.pushpull([0, 1], [a[0], b[0]]), [a[0], b[0]]),
    "other devices": lambda store, a, b: (
        store.pushpull(0, a[::-1]),
        store.pushpull(0, a[:1]),
        store.pushpull(1, b[1:]),
        [*a, *b],
    ),
    "an out for two keys": lambda store, a, b: (
        [*sum_into_one(store, [0, 1], a, b), *sum_into_one(store, [1, 0], a, b)],
    ),
    "no keys": lambda store, a, b: (store.pushpull([], []), []),
}


@pairwise(
    form=list(FORMS),
    devices=[1, 2, 5],
    name=STORES,
    where=lambda form, devices, name: devices > 1 or form != "other devices",
)
def test_every_form_of_pushpull_works_as_in_mxnet(form, devices, name):
    assert run_form(make_kvstore(name), form, devices) == run_form_of_mxnet(form, devices)


@lru_cache(maxsize=None)
def run_form_of_mxnet(form, devices):
    return run_form(mx.kv.create("device"), form, devices)


def run_form(store, form, devices):
    """Return all arrays after two equal calls, on unordered devices without the first."""
    ctxs = [device(2 + (i * 3) % 5) for i in range(devices)]
    a, b = make_arrays(ctxs, 1), make_arrays(ctxs, 10)
    store.broadcast([0, 1], [nd.zeros((3, 2)), nd.zeros((3, 2))], [[], []])
    for _ in range(2):
        arrays = FORMS[form](store, a, b)[-1]
    return [array.asnumpy().tolist() for array in arrays]


def gradients_around(store, ctxs):
    """Return the gradients of a graph whose arrays a store writes during recording."""
    weights = [nd.full((3,), 2.0, ctx=ctx) for ctx in ctxs]
    for weight in weights:
        weight.attach_grad()
    with autograd.record():
        store.broadcast("w", weights[0] * 3, weights)
        squares = [weight * weight for weight in weights]
        sums = [nd.zeros((3,), ctx=ctx) for ctx in ctxs]
        store.pushpull("w", squares, out=sums)
        store.pushpull("s", make_arrays(ctxs, 1, (3,)))
        losses = [(total * square).sum() for total, square in zip(sums, squares)]
    autograd.backward(losses)
    return np.stack([array.asnumpy() for array in (*weights, *sums, *squares, *(weight.grad for weight in weights))])


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("devices", [1, 3])
def test_nothing_is_recorded_for_autograd(name, devices):
    store = mx.kv.create("device")
    store.broadcast("s", nd.zeros((3,)), [])
    expected = gradients_around(store, contexts(devices))
    np.testing.assert_allclose(gradients_around(make_kvstore(name), contexts(devices)), expected, rtol=1e-6)


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8", "int8", "int32", "int64"])
def test_every_type_is_summed_as_mxnet_does(name, dtype):
    call = [([(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)], None), ([(0, 4), (1, 8)], [(3, 4)])]
    expected = pushpull_of_mxnet(call, 2, dtype)
    np.testing.assert_array_equal(pushpull(make_kvstore(name), call, 2, dtype), expected)


NO_BLOCKS = pytest.mark.cpu_only("MXNet's stores launch kernels without blocks for empty arrays, which CUDA refuses")


@pytest.mark.parametrize(
    "name", [*FROM_SCRATCH, *(pytest.param(name, marks=NO_BLOCKS) for name in ("device", "local"))]
)
@pytest.mark.parametrize("shapes", [[(0,)], [(3, 0)], [()], [(2,), (0,), (), (3, 0, 2), (1, 1)]], ids=str)
def test_empty_arrays_and_scalars_are_summed_alone_and_with_others(name, shapes):
    results = []
    with mx.util.np_shape(True):
        for store, ctxs in ((mx.kv.create("device"), cpu_contexts(3)), (make_kvstore(name), contexts(3))):
            arrays, keys = [make_arrays(ctxs, 1, shape) for shape in shapes], list(range(len(shapes)))
            outs = [make_arrays(ctxs, 0, shape) for shape in shapes]
            store.broadcast(keys, [of_key[1] for of_key in arrays], outs)
            for _ in range(2):
                store.pushpull(keys, arrays)
            results.append([array.asnumpy() for of_key in (*arrays, *outs) for array in of_key])
    assert all(a.shape == b.shape and np.array_equal(a, b) for a, b in zip(*results))


@pytest.mark.parametrize("name", STORES)
def test_broadcast_reads_all_values_before_it_writes(name):
    results = []
    for store in (mx.kv.create("local"), make_kvstore(name)):
        a, b = make_arrays(contexts(3), 1), make_arrays(contexts(3), 10)
        store.broadcast([5], [a[2]], [a])
        store.broadcast([1, 2, 3], [a[0], b[1], b[2]], [b, a, [a[1]]])
        results.append([array.asnumpy().tolist() for array in (*a, *b)])
    assert results[0] == results[1]


@pytest.mark.parametrize("name", FROM_SCRATCH)
def test_shapes_types_and_devices_of_a_key_may_change(name):
    store = make_kvstore(name)
    kinds = [
        (3, (4,), "float32"),
        (3, (2, 5), "float64"),
        (2, (4,), "float32"),
        (1, (1,), "int32"),
        (5, (4,), "float32"),
    ]
    for count, shape, dtype in kinds:
        arrays = make_arrays(contexts(count), 1, shape, dtype)
        for times in (1, count):
            store.pushpull("key", arrays)
            assert all((array.asnumpy() == times * sum(range(1, count + 1))).all() for array in arrays)


@pytest.mark.parametrize("name", STORES)
def test_np_arrays_are_summed_and_stay_np_arrays(name):
    with mx.util.np_shape(True), mx.util.np_array(True):
        store = make_kvstore(name)
        arrays = [mx.np.arange(12, dtype="float32").reshape(3, 4).copyto(ctx) + 1 for ctx in contexts(3)]
        store.broadcast(0, arrays[1] * 2, arrays)
        store.pushpull(0, arrays)
        assert all(type(array) is mx.np.ndarray for array in arrays)
        outs = [mx.np.zeros((3, 4), ctx=ctx) for ctx in contexts(3)]
        store.pushpull([0, 1], [arrays, [array.as_nd_ndarray() for array in arrays]], out=[outs, outs])
    for times, of_key in ((3, arrays), (9, outs)):
        for array in of_key:
            np.testing.assert_array_equal(array.asnumpy(), times * 2 * (np.arange(12).reshape(3, 4) + 1))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda store: store.pushpull([0, 1], [make_arrays(contexts(2), 1)]), "there are 2 keys, but 1 values or outs"),
        (
            lambda store: store.pushpull([0], [make_arrays(contexts(2), 1)], out=[]),
            "there are 1 keys, but 0 values or outs",
        ),
        (lambda store: store.pushpull(0, []), "the list of arrays is empty"),
        (lambda store: store.pushpull(0, [1.0]), "float is not an array"),
        (lambda store: store.broadcast(0, nd.ones((2,)), [nd.ones((3,))]), "cannot be written to"),
        (lambda store: store.push(0, make_arrays(contexts(2), 1)), "does not support push"),
        (lambda store: store.pull(0, out=make_arrays(contexts(2), 1)), "does not support pull"),
        (lambda store: store.init(0, nd.ones((2,))), "does not support init"),
        (
            lambda store: store.row_sparse_pull(0, out=nd.ones((2,)), row_ids=nd.ones((1,))),
            "does not support row_sparse_pull",
        ),
        (lambda store: store._set_updater(lambda key, grad, weight: None), "does not support updaters"),
    ],
)
@pytest.mark.parametrize("name", ["ring", "sharded-optimizer"])
def test_invalid_and_unsupported_calls_are_refused_in_one_line(name, call, message):
    with pytest.raises(KVStoreError, match=message) as raised:
        call(make_kvstore(name))
    assert "\n" not in str(raised.value)
