"""GroupKVStore(compress="fp16"): what processes send each other is float16, and nothing else is."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import gluon, init, nd
from support.devices import device
from support.process_group import in_processes

from gluonlab.errors import KVStoreError
from gluonlab.kvstores import make_kvstore
from gluonlab.kvstores.group_store import GroupKVStore
from gluonlab.kvstores.groups import ALONE, SummingGroup
from gluonlab.update.loss_scale import SkipNotFinite
from gluonlab.update.trainer import BucketedTrainer

SHAPES = st.lists(
    st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple), min_size=1, max_size=3
)


def own_devices(group, count):
    return [device(group.rank * count + number) for number in range(count)]


def halved(group, ctxs, compress="fp16"):
    return GroupKVStore(make_kvstore("device", ctxs), group, compress=compress)


def in_numpy(by_process):
    """[process][device] -> the sum, by numpy: of devices as they are, of processes in float16.

    The group of the tests adds in float64 and rounds once, as two float16 are added anyway.
    """
    sent = [np.sum(of_devices, axis=0).astype("float16") for of_devices in by_process]
    total = np.sum([each.astype("float64") for each in sent], axis=0)
    return total.astype("float16").astype(by_process[0][0].dtype)


@settings(max_examples=10)
@given(
    size=st.integers(2, 3),
    devices=st.integers(1, 2),
    shapes=SHAPES,
    dtype=st.sampled_from(["float32", "float64"]),
    exponent=st.integers(-6, 3),
    seed=st.integers(0, 2**16),
)
def test_sums_are_those_of_numpys_float16_to_the_bit(size, devices, shapes, dtype, exponent, seed):
    """Two turns with the same arrays; numbers from below float16's to the largest."""
    random = np.random.RandomState(seed)
    turns = [
        [random.uniform(-9, 9, (size, devices, *shape)).astype(dtype) * 10.0**exponent
         for shape in shapes] for _ in range(2)
    ]  # fmt: skip
    turns = [[every.astype(dtype) for every in numbers] for numbers in turns]

    def work(group):
        ctxs, found = own_devices(group, devices), []
        store = halved(group, ctxs)
        arrays = [[nd.zeros(shape, ctx, dtype) for ctx in ctxs] for shape in shapes]
        for numbers in turns:
            for of_key, every in zip(arrays, numbers):
                for array, own in zip(of_key, every[group.rank]):
                    array[:] = nd.array(own, dtype=dtype)
            store.pushpull(list(range(len(arrays))), arrays)
            found.append([[array.asnumpy() for array in of_key] for of_key in arrays])
        assert {kind for _, kind in group.sums} == {"float16"}
        assert len(group.sums) == len(turns)  # one flat array for each turn
        return found

    for process in in_processes(size, work):
        for numbers, found in zip(turns, process):
            for every, on_devices in zip(numbers, found):
                for array in on_devices:
                    assert array.dtype == dtype
                    assert np.array_equal(array, in_numpy(every))


def test_whole_numbers_and_broadcasts_are_exact():
    """Only gradients are rounded: parameters begin alike, to the bit."""

    def work(group):
        [ctx] = own_devices(group, 1)
        store = halved(group, [ctx])
        begin = nd.array([1 / 3, 1e30, 1e-30], ctx)
        store.broadcast(0, begin, begin)
        counts = nd.array([2**20 + 1, group.rank], ctx, dtype="int32")
        store.pushpull(1, [counts])
        return begin.asnumpy(), counts.asnumpy()

    for begin, counts in in_processes(2, work):
        assert np.array_equal(begin, np.array([1 / 3, 1e30, 1e-30], "float32"))
        assert counts.tolist() == [2**21 + 2, 1]


@pytest.mark.parametrize("compress", [None, "fp16"])
def test_a_step_whose_sum_is_beyond_float16_is_left_out_by_all(compress):
    """Each process's own gradient, 40,000, is a float16, and their sum is none."""

    def work(group):
        ctxs = own_devices(group, 1)
        net = gluon.nn.Dense(2, in_units=3)
        net.initialize(init.One(), ctx=ctxs)
        scale = SkipNotFinite()
        trainer = BucketedTrainer(
            net.collect_params(), "sgd", {"learning_rate": 1.0},
            kvstore=halved(group, ctxs, compress), loss_scale=scale,
        )  # fmt: skip
        for grad in (4e4, 1.0):
            for param in net.collect_params().values():
                param.list_grad()[0][:] = grad
            trainer.apply(2)
        return net.weight.data(ctxs[0]).asnumpy(), scale.skipped

    for weight, skipped in in_processes(2, work):
        assert skipped == (compress == "fp16")
        # of a batch of 2; the sums are 80,000 and 2
        assert (weight == 1 - 1 - (0 if skipped else 4e4)).all()


@pytest.mark.parametrize(
    ("group", "compress", "said"),
    [
        (SummingGroup(0, 2), "fp16", "a group cannot send that: it is possible with Horovod"),
        (ALONE, "fp16", "a process alone cannot send that"),
    ],
)
def test_what_a_group_cannot_send_is_refused(group, compress, said):
    with pytest.raises(KVStoreError, match=said):
        GroupKVStore(make_kvstore("device"), group, compress=compress)
