"""GroupKVStore(compress="2bit:T"): processes send each other -T, 0 or T, and keep the rest."""

from itertools import accumulate

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import gluon, nd
from mxnet.gluon import nn
from support.devices import device
from support.examples import examples
from support.kvstore_runs import sum_over_processes
from support.process_group import run_in_threads

from gluonlab.bucketed_trainer.loss_scale import LossScale
from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.errors import GluonlabWarning, KVStoreError, RunError
from gluonlab.kvstores import make_kvstore
from gluonlab.kvstores.gradient_compression import FLOAT32_CODE_LIMIT, TwoBitCompressor, max_packed_digits
from gluonlab.kvstores.process_group_store import GroupKVStore
from gluonlab.kvstores.process_groups import SINGLE_PROCESS, SummingGroup

LOCAL = ["device", "local", "ring", "sharded", "tree", "hierarchical"]
SHAPES = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple), min_size=1, max_size=4)
THRESHOLDS = st.sampled_from([0.5, 0.1, 1e-30, 1e30]) | st.floats(1e-3, 10)
PROCESSES = st.integers(2, 40) | st.sampled_from([127, 128, 160, 161, 2895, 2896, 9999])


def round_to_threshold(rest, grad, threshold):
    """Return what a process sends, in multiples of the threshold, and what remains."""
    rest = rest + grad
    sent = (rest >= threshold).astype(rest.dtype) - (rest <= -threshold).astype(rest.dtype)
    return sent, rest - threshold * sent


def sum_rounded(rests, grads, threshold):
    """Return the sum over processes; update their rests. ``threshold``: of the gradients' type."""
    total = np.zeros_like(grads[0])
    for rank, grad in enumerate(grads):
        sent, rests[rank] = round_to_threshold(rests[rank], grad, threshold)
        total += sent
    return threshold * total


@examples(9, 15)
@given(
    counts=st.lists(st.integers(1, 2), min_size=2, max_size=4).filter(lambda all: sum(all) <= 6),
    shapes=SHAPES,
    dtypes=st.lists(st.sampled_from(["float32", "float64"]), min_size=4, max_size=4),
    name=st.sampled_from(LOCAL),
    threshold=THRESHOLDS,
    size=st.sampled_from([0.3, 1.0, 3.0]),
    together=st.booleans(),
    anew=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_sums_are_those_of_numpy_to_the_bit(counts, shapes, dtypes, name, threshold, size, together, anew, seed):
    # Each step starts with the rests of the steps before; ``anew``: in other arrays every time.
    random, threshold = np.random.RandomState(seed), np.float32(threshold)
    kinds = list(zip(shapes, dtypes))
    steps = [
        [(random.normal(0, size, (sum(counts), *shape)) * threshold).astype(dtype) for shape, dtype in kinds]
        for _ in range(5)
    ]
    begins = [0, *accumulate(counts)]
    compress = f"2bit:{float(threshold)!r}"
    processes = sum_over_processes(counts, steps, name, compress, together, anew)
    for key, (shape, dtype) in enumerate(kinds):
        rests = [np.zeros(shape, dtype) for _ in counts]
        for turn, numbers in enumerate(steps):
            grads = [numbers[key][begin:end].sum(axis=0) for begin, end in zip(begins, begins[1:])]
            expected = sum_rounded(rests, grads, np.asarray(threshold, dtype)[()])
            for array in (array for found, _ in processes for array in found[turn][key]):
                assert array.dtype == dtype
                assert np.array_equal(array, expected)


@settings(max_examples=30)
@given(processes=PROCESSES, seed=st.integers(0, 2**16), extreme=st.booleans())
def test_every_sum_of_packed_digits_is_decoded_exactly(processes, seed, extreme):
    base, low, high = max_packed_digits(processes)
    assert base == 2 * processes + 1 and low - high in (0, 1)
    assert base ** (low + high) + base**low <= FLOAT32_CODE_LIMIT
    random, most = np.random.RandomState(seed), processes
    rows = 40
    digits = random.randint(-most, most + 1, (rows, low + high))
    if extreme:
        digits = random.choice([-most, 0, most], digits.shape)
    digits[0], digits[1] = most, -most
    numbers = [sum(int(digit) * base**place for place, digit in enumerate(row)) for row in digits]
    assert max(map(abs, numbers)) < 2**24
    # the low half of every number lies first, then the high half
    flat = np.concatenate([digits[:, :low].ravel(), digits[:, low:].ravel()])
    two_bits = TwoBitCompressor(digits.size, np.dtype("float32"), device(), 0.1, processes)
    two_bits.packed[:] = nd.array(np.array(numbers, "float32"))
    two_bits.decode()
    assert np.array_equal(two_bits.sums.asnumpy(), np.float32(0.1) * flat.astype("float32"))


@settings(max_examples=15)
@given(
    processes=st.integers(2, 40),
    size=st.integers(1, 100),
    dtype=st.sampled_from(["float32", "float64"]),
    alike=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_float32_adds_packed_digits_in_any_order(processes, size, dtype, alike, seed):
    random = np.random.RandomState(seed)
    signs = random.choice([-1, 1] if alike else [-1, 0, 1], (processes, size))
    signs = np.broadcast_to(signs[0], signs.shape) if alike else signs
    sender = TwoBitCompressor(size, np.dtype(dtype), device(), 1.0, processes)
    sent = []
    for own in signs:
        sender.residual[:size] = nd.array(own, dtype=dtype)
        sender.encode()
        sent.append(sender.packed.asnumpy())
        assert not sender.residual.asnumpy().any()
    for order in (range(processes), random.permutation(processes)):
        total = np.zeros_like(sent[0])
        for place in order:
            total = total + sent[place]
        assert total.dtype == np.float32
        sender.packed[:] = nd.array(total)
        sender.decode()
        assert np.array_equal(sender.sums.asnumpy()[:size], signs.sum(axis=0))


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [1, 23])
def test_all_processes_get_nan_after_the_first_value_that_is_not_finite(bad, dtype, size):
    place = size // 2  # values packed into the same number may also become nan

    def work(group):
        store = GroupKVStore(make_kvstore("device"), group, compress="2bit:0.5")
        array, found = nd.zeros((size,), device(group.rank), dtype), []
        for step in range(3):
            array[:] = 1.0
            if step == 1 and group.rank == 1:
                array[place] = bad
            store.pushpull(0, [array])
            found.append(array.asnumpy())
        return found

    one, other = run_in_threads(2, work)
    for step, (mine, others) in enumerate(zip(one, other)):
        assert np.array_equal(mine, others, equal_nan=True)
        assert np.isnan(mine[place]) == (step > 0)
        assert np.isnan(mine).sum() <= 10 * (step > 0)
        assert (mine[np.isfinite(mine)] == 1.0).all()


def test_two_processes_send_a_tenth_of_the_bytes():
    ones = [np.ones((2, *shape), "float32") for shape in [(40, 30), (7,), (3, 5, 2)]]
    for _, sums in sum_over_processes([1, 1], [ones], compress="2bit:0.5"):
        assert sums == [(-(-(1200 + 7 + 30) // 10), "float32")]


@pytest.mark.cpu_only("mx.np arrays are the same memory on any device")
def test_mx_np_arrays_are_summed():
    def work(group):
        store = GroupKVStore(make_kvstore("device"), group, compress="2bit:0.5")
        array = nd.array([0.4, 0.6, -3.0], mx.cpu(group.rank)).as_np_ndarray()
        found = []
        for _ in range(2):
            store.pushpull(0, [array])
            found.append(array.asnumpy().tolist())
            array[:] = mx.np.array([0.4, 0.0, 0.0], ctx=array.ctx)
        return found

    for found in run_in_threads(2, work):
        assert found == [[0.0, 1.0, -1.0], [1.0, 0.0, -1.0]]


def make_net(ctxs):
    net = nn.HybridSequential()
    with mx.name.NameManager():  # all have the same names, as in processes of their own
        net.add(nn.Dense(7, in_units=5, activation="tanh"), nn.Dense(4, in_units=7))
    net.initialize(mx.init.Normal(0.3), ctx=ctxs)
    return net


@pytest.mark.parametrize("bucket_bytes", [0, 100, 2**20, None], ids=str)
def test_trainers_update_with_the_rounded_sums(bucket_bytes):
    # None: gluon.Trainer
    counts, threshold = [1, 2], np.float32(0.25)
    ctxs = [[device(0)], [device(1), device(2)]]
    nets = [make_net(own) for own in ctxs]
    shapes = [param.shape for param in nets[0].collect_params().values()]
    random = np.random.RandomState(0)
    steps = [
        [[random.normal(0, 0.2, (count, *shape)).astype("float32") for shape in shapes] for count in counts]
        for _ in range(6)
    ]
    expected = [param.data(device(0)).asnumpy() for param in nets[0].collect_params().values()]

    def work(group):
        net, own = nets[group.rank], ctxs[group.rank]
        store = GroupKVStore(make_kvstore("device"), group, compress="2bit:0.25")
        given = (net.collect_params(), "sgd", {"learning_rate": 1.0}, store)
        if bucket_bytes is None:
            trainer = gluon.Trainer(*given, update_on_kvstore=False)
            trainer._init_kvstore()
            trainer._init_params()
        else:
            trainer = BucketedTrainer(*given, bucket_bytes=bucket_bytes)
        params = net.collect_params().values()
        for step in steps:
            for param, grads in zip(params, step[group.rank]):
                for ctx, grad in zip(own, grads):
                    param.grad(ctx)[:] = nd.array(grad, ctx)
                    param.data(ctx)._fresh_grad = True  # as backward does
            trainer.step(1)
        return [[param.data(ctx).asnumpy() for param in params] for ctx in own]

    replicas = [replica for process in run_in_threads(2, work) for replica in process]
    for place, shape in enumerate(shapes):
        rests, value = [np.zeros(shape, "float32") for _ in counts], expected[place]
        for step in steps:
            grads = [process[place].sum(axis=0) for process in step]
            value = value - sum_rounded(rests, grads, threshold)
        for replica in replicas:
            assert np.array_equal(replica[place], value)


# --- mistakes


def make_store(group=None, **given):
    return GroupKVStore(make_kvstore("device"), group or SummingGroup(0, 2), **given)


def test_a_single_process_does_not_compress():
    def work(group):
        store, array = make_store(group, compress="2bit"), nd.array([0.3], device())
        store.pushpull(0, [array])
        return array.asnumpy().tolist()

    for run in (lambda: [work(SINGLE_PROCESS)], lambda: run_in_threads(1, work)):
        with pytest.warns(GluonlabWarning, match="^compress 2bit:0.5: one process has nobody to send"):
            assert run() == [[np.float32(0.3)]]


def test_trainers_that_skip_steps_do_not_compress():
    # The rests of a skipped step would be wrong: it has sent its rounded gradients.
    net, store = make_net([device()]), make_store(compress="2bit:0.5")
    parameters = net.collect_params()
    store.broadcast = lambda *given, **options: None  # there is no other process
    trainer = BucketedTrainer(parameters, "sgd", {}, store)
    trainer._amp_loss_scaler = object()  # as amp.init_trainer does
    with pytest.raises(RunError, match=r"^amp.init_trainer: .* compress 2bit:0.5 .*leave co"):
        trainer.apply(1)
    with pytest.raises(KVStoreError, match=r"compress 2bit:0.5: .* loss_scale leaves out"):
        BucketedTrainer(parameters, "sgd", {}, store, loss_scale=LossScale())
    params = {"type": "2bit", "threshold": 0.25}
    with pytest.raises(KVStoreError, match=r"compresses as it is made to: give it compress='2bit:0.25' instead$"):
        BucketedTrainer(parameters, "sgd", {}, store, compression_params=params)
    with pytest.raises(KVStoreError, match=r"compress='2bit:0.5'"):
        store.set_gradient_compression(params)
