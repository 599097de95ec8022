"""The store ``nccl`` on simulated GPUs: MXNet's own behind it knows neither late keys nor other
devices.
"""

import gc
import re

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import gluon, nd
from support.kvstore_runs import OPTIMIZERS, train_small_net
from support.reference import cpu_contexts, parameter_arrays, relative_distance

from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.errors import KVStoreError
from gluonlab.kvstores import make_kvstore
from gluonlab.kvstores.nccl_store import NCCL_DTYPES

GPUS = [mx.gpu(device) for device in range(4)]
SHAPES = [(), (1,), (3,), (2, 3), (6,), (0, 2), (5, 1, 2)]


@pytest.fixture(scope="module", autouse=True)
def scratch_memory():
    """MXNet keeps the scratch memory that its operators have once needed: it is there before the
    first test counts.
    """
    train_small_net(gluon.Trainer, make_kvstore("nccl", GPUS[:3]), "sgd", GPUS[:3])


def draw_numbers(shape, ctxs, dtype="float32", seed=0):
    """Whole numbers, of which every order of additions makes the same sum."""
    random = np.random.RandomState(seed)
    numbers = [random.randint(0, 9, shape).astype(dtype) for _ in ctxs]
    return numbers, [nd.array(own, ctx=ctx, dtype=dtype) for own, ctx in zip(numbers, ctxs)]


def all_hold(arrays, total):
    return all(np.array_equal(array.asnumpy(), total) and array.dtype == total.dtype for array in arrays)


CALLS = st.tuples(
    st.sampled_from([0, 1, 2, "weight"]), st.sampled_from(SHAPES), st.permutations(GPUS), st.integers(1, 4)
)


@given(calls=st.lists(CALLS, min_size=1, max_size=6))
def test_any_key_may_come_at_any_time_with_any_shape_on_any_devices(calls):
    """MXNet's own store fails for a key that was not there when it first summed, and for a second
    set of devices.
    """
    store = make_kvstore("nccl", GPUS)
    for turn, (key, shape, order, count) in enumerate(calls):
        numbers, arrays = draw_numbers(shape, order[:count], seed=turn)
        store.pushpull(key, arrays)
        assert all_hold(arrays, np.asarray(sum(numbers), "float32"))


@pytest.mark.parametrize("dtype", NCCL_DTYPES)
def test_sums_are_of_the_arrays_own_type(dtype):
    store = make_kvstore("nccl", GPUS)
    for _ in range(2):
        numbers, arrays = draw_numbers((2, 3), GPUS, dtype)
        store.pushpull("weight", arrays)
        assert all_hold(arrays, sum(numbers).astype(dtype))


def test_several_keys_parts_of_one_array_and_separate_outputs():
    store = make_kvstore("nccl", GPUS)
    numbers, arrays = draw_numbers((10,), GPUS)
    store.pushpull([0, 1], [[array[:5] for array in arrays], [array[5:] for array in arrays]])
    assert all_hold(arrays, sum(numbers))
    numbers, arrays = draw_numbers((10,), GPUS[:3])
    outs = [nd.zeros((10,), ctx=ctx) for ctx in GPUS]
    store.pushpull(0, [*arrays, arrays[0]], out=outs)
    assert all_hold(outs, sum(numbers) + numbers[0])
    assert all(all_hold([array], own) for array, own in zip(arrays, numbers))  # as they were


def test_a_broadcast_may_come_again_and_from_the_host():
    store = make_kvstore("nccl", GPUS)
    for number in (3, 5):
        outs = [nd.zeros((4,), ctx=ctx) for ctx in GPUS]
        store.broadcast("weight", nd.full((4,), number), outs)
        assert all_hold(outs, np.full(4, number, "float32"))
        store.pushpull("weight", outs)
        assert all_hold(outs, np.full(4, 4 * number, "float32"))


def test_a_store_may_go_while_it_still_has_to_sum():
    for turn in range(3):
        numbers, arrays = draw_numbers((1000,), GPUS, seed=turn)
        store = make_kvstore("nccl", GPUS)
        store.pushpull(0, arrays)
        del store
        gc.collect()
        assert all_hold(arrays, sum(numbers))


REFUSED = {
    "the arrays are on cpu(0), but NCCL needs GPUs: choose device or local": [
        ((3,), mx.cpu(0), "float32"),
        ((3,), mx.cpu(1), "float32"),
    ],
    "the arrays are on cpu(1), but NCCL needs GPUs: choose device or local": [
        ((3,), GPUS[0], "float32"),
        ((3,), mx.cpu(1), "float32"),
    ],
    "NCCL cannot sum arrays of type int8, only float16, float32, float64, int32, int64, uint8: "
    "use array.astype('int32'), or kvstore 'device'": [((3,), ctx, "int8") for ctx in GPUS],
    "key 'weight': float32[3] on gpu(0) and float32[4] on gpu(1) cannot be summed: "
    "use the same shape and type everywhere": [((3,), GPUS[0], "float32"), ((4,), GPUS[1], "float32")],
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_summed_is_refused_in_one_line_and_left_alone(message):
    arrays = [nd.array(np.ones(shape), ctx=ctx, dtype=dtype) for shape, ctx, dtype in REFUSED[message]]
    with pytest.raises(KVStoreError, match=f"^kvstore 'nccl', {re.escape(message)}$") as refused:
        make_kvstore("nccl").pushpull("weight", arrays)
    assert "\n" not in str(refused.value)
    assert all((array.asnumpy() == 1).all() for array in arrays)


def test_sparse_arrays_are_refused():
    arrays = [nd.sparse.row_sparse_array((np.ones((1, 2)), [0]), shape=(3, 2), ctx=ctx) for ctx in GPUS]
    message = "this kvstore cannot sum sparse arrays: use array.tostype('default'), or kvstore 'device'"
    with pytest.raises(KVStoreError, match=f"^kvstore 'nccl', key 'weight': {re.escape(message)}$"):
        make_kvstore("nccl").pushpull("weight", arrays)


def test_compression_and_an_optimizer_on_the_store_are_refused():
    store = make_kvstore("nccl", GPUS)
    with pytest.raises(KVStoreError, match=r"^kvstore 'nccl' cannot compress gradients: choose device"):
        store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    with pytest.raises(KVStoreError, match=r"^kvstore 'nccl' does not support optimizers: update on the devices "):
        store.set_optimizer(mx.optimizer.SGD())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("trainer_class", [gluon.Trainer, BucketedTrainer])
def test_it_trains_as_mxnets_device_store_does_on_cpu_devices(trainer_class, optimizer):
    expected, _ = train_small_net(gluon.Trainer, mx.kv.create("device"), optimizer, cpu_contexts(3))
    net, _ = train_small_net(trainer_class, make_kvstore("nccl", GPUS[:3]), optimizer, GPUS[:3])
    assert relative_distance(parameter_arrays(net, GPUS[0]), parameter_arrays(expected)) < 1e-5
    for ctx in GPUS[1:3]:  # replicas are alike to the bit
        assert all(np.array_equal(a, b) for a, b in zip(parameter_arrays(net, ctx), parameter_arrays(net, GPUS[0])))


def test_a_store_serves_one_trainer_after_another():
    store = make_kvstore("nccl", GPUS)
    result = [parameter_arrays(train_small_net(BucketedTrainer, store, "sgd", GPUS[:3])[0], GPUS[0]) for _ in range(2)]
    assert all(np.array_equal(a, b) for a, b in zip(*result))
