"""GroupKVStore: sums over the devices of some processes, whole, in float16, and in two bits."""

from itertools import accumulate

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import autograd, gluon, init, nd
from mxnet.gluon import nn
from support.devices import device
from support.examples import examples
from support.kvstore_runs import rank_devices, sum_over_processes
from support.process_group import run_in_threads
from support.reference import random_batches, relative_distance

from gluonlab.bucketed_trainer.loss_scale import LossScale, SkipNotFinite
from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.data.loading.split_batch import shard
from gluonlab.errors import GluonlabWarning, KVStoreError, RunError
from gluonlab.kvstores import make_kvstore
from gluonlab.kvstores.gradient_compression import FLOAT32_CODE_LIMIT, TwoBitCompressor, max_packed_digits
from gluonlab.kvstores.process_group_store import GroupKVStore
from gluonlab.kvstores.process_groups import SINGLE_PROCESS, SummingGroup
from gluonlab.models import get_model

LOCAL = ["device", "local", "ring", "sharded", "tree", "hierarchical"]
SHAPES = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple), min_size=1, max_size=4)


def store_on(group, ctxs, compress=None):
    return GroupKVStore(make_kvstore("device", ctxs), group, compress=compress)


@settings(max_examples=10)
@given(
    counts=st.lists(st.integers(1, 3), min_size=1, max_size=3).filter(lambda all: sum(all) <= 8),
    shapes=SHAPES,
    dtypes=st.lists(st.sampled_from(["float32", "float64", "float16"]), min_size=4, max_size=4),
    name=st.sampled_from(LOCAL),
    together=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_the_sum_over_all_devices_of_all_processes_is_on_each(counts, shapes, dtypes, name, together, seed):
    random, kinds = np.random.RandomState(seed), list(zip(shapes, dtypes))
    turns = [[random.uniform(-1, 1, (sum(counts), *shape)).astype(dtype) for shape, dtype in kinds] for _ in range(2)]
    by_process = sum_over_processes(counts, turns, name, together=together)
    for turn, numbers in enumerate(turns):
        for key, values in enumerate(numbers):
            sums = [array for result, _ in by_process for array in result[turn][key]]
            assert len(sums) == sum(counts)
            assert all(np.array_equal(array, sums[0]) for array in sums)  # bits, on every device
            tolerance = 2e-2 if values.dtype == np.float16 else 1e-5
            np.testing.assert_allclose(sums[0], values.astype("float64").sum(axis=0), rtol=tolerance, atol=tolerance)


def test_a_call_moves_one_flat_array_for_each_type():
    nets = []  # Conv2D and Dense name their types differently
    for ctxs in ([device(0), device(1)], [device(2), device(3)]):
        nets.append(get_model("lenet", 10, ctxs))
        nets[-1].initialize(mx.init.Xavier(), ctx=ctxs)
        nets[-1](nd.zeros((1, 1, 28, 28), ctx=ctxs[0]))

    def work(group):
        ctxs, net = rank_devices(group, [2, 2]), nets[group.rank]
        trainer = BucketedTrainer(net.collect_params(), "sgd", {}, kvstore=store_on(group, ctxs))
        group.sums.clear()
        for _ in range(3):
            for param in net.collect_params().values():
                for grad in param.list_grad():
                    grad[:] = 1
            trainer.apply(4)
        return group.sums, sum(bucket.size for bucket in trainer.buckets)

    for sums, elements in run_in_threads(2, work):
        assert sums == [(elements, "float32")] * 3


def make_net(ctxs, seed):
    """Return a net with frozen parameters and layers numbered from 0, as in a process of its own."""
    mx.random.seed(seed)
    with mx.name.NameManager():
        net = nn.HybridSequential()
        net.add(nn.Conv2D(4, 3, in_channels=1, activation="tanh"), nn.BatchNorm(in_channels=4, use_global_stats=True))
        net.add(nn.Flatten(), nn.Dense(5, in_units=64, activation="tanh"), nn.Dense(3, in_units=5))
    net.initialize(mx.init.Normal(0.3), ctx=ctxs)
    net[3].bias.grad_req = "null"
    net[3].bias.set_data(nd.full((5,), 0.1 * seed))
    return net


BATCHES = random_batches([9, 7, 12, 8], shape=(1, 6, 6), classes=3)


def train(net, trainer, ctxs, rank=0, size=1):
    """Train one process of ``size`` on its part of each batch; return the parameters by device."""
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    for images, labels in BATCHES:
        places = np.array_split(np.arange(len(images)), size)[rank]
        xs, ys = (shard(nd.array(array[places]), ctxs) for array in (images, labels))
        with autograd.record():
            losses = [loss(net(x), y) for x, y in zip(xs, ys)]
        autograd.backward(losses)
        trainer.step(len(images))
    return [[param.data(ctx).asnumpy() for param in net.collect_params().values()] for ctx in ctxs]


@pytest.mark.cpu_only("MXNet keeps scratch memory for each thread, which counts as left over")
@pytest.mark.parametrize("counts", [[2, 2], [1, 2]], ids=str)
@pytest.mark.parametrize("trainer", [BucketedTrainer, gluon.Trainer])
def test_a_trainer_makes_the_updates_of_one_process_with_all_devices(trainer, counts):
    ours = trainer is BucketedTrainer
    settings = {"learning_rate": 0.5, "momentum": 0.9, "wd": 0.01}
    clip = {"clip_norm": 0.2} if ours else {"update_on_kvstore": False}
    alone = make_net([device()], seed=1)
    begin = [param.data().asnumpy() for param in alone.collect_params().values()]
    single = trainer(alone.collect_params(), "sgd", settings, kvstore="device", **clip)
    [expected] = train(alone, single, [device()])
    nets = [make_net([device(sum(counts[:rank]) + i) for i in range(counts[rank])], seed=rank + 1) for rank in range(2)]

    def work(group):
        ctxs, net = rank_devices(group, counts), nets[group.rank]
        group_trainer = trainer(net.collect_params(), "sgd", settings, kvstore=store_on(group, ctxs), **clip)
        if not ours:  # it would ask for rank 0's parameters in its first step, after backward
            group_trainer._init_kvstore()
            group_trainer._init_params()
        return train(net, group_trainer, ctxs, group.rank, group.size)

    replicas = [replica for process in run_in_threads(2, work) for replica in process]
    assert relative_distance(expected, begin) > 0.01
    for replica in replicas:
        assert relative_distance(replica, expected) <= 1e-5
        assert all(np.array_equal(one, other) for one, other in zip(replica, replicas[0]))


# --- compress rounds only what processes send each other


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
    # The group of the tests adds in float64 and rounds once, as a sum of two float16 is rounded anyway.
    random = np.random.RandomState(seed)

    def draw(shape):
        return (random.uniform(-9, 9, (size * devices, *shape)).astype(dtype) * 10.0**exponent).astype(dtype)

    turns = [[draw(shape) for shape in shapes] for _ in range(2)]
    by_process = sum_over_processes([devices] * size, turns, compress="fp16")
    for result, sums in by_process:
        assert [kind for _, kind in sums] == ["float16"] * 2  # one flat array for each turn
        for numbers, sums_of_turn in zip(turns, result):
            for values, arrays in zip(numbers, sums_of_turn):
                sent = values.reshape(size, devices, *values.shape[1:]).sum(axis=1).astype("float16")
                total = sent.astype("float64").sum(axis=0).astype("float16").astype(dtype)
                for array in arrays:
                    assert array.dtype == dtype and np.array_equal(array, total)


@pytest.mark.parametrize("compress", ["fp16", "2bit:0.5"])
def test_whole_numbers_and_broadcasts_are_exact(compress):
    def work(group):
        [ctx] = rank_devices(group, [1, 1])
        store = store_on(group, [ctx], compress)
        begin = nd.array([1 / 3, 1e30, 1e-30], ctx)
        store.broadcast("begin", begin, begin)
        counts = nd.array([2**20 + 1, group.rank], ctx, dtype="int32")
        halves = nd.array([0.25, group.rank], ctx, dtype="float16")
        store.pushpull(["counts", "halves"], [[counts], [halves]])
        return begin.asnumpy(), counts.asnumpy(), halves.asnumpy(), group.sums[-2:]

    for begin, counts, halves, sums in run_in_threads(2, work):
        assert np.array_equal(begin, np.array([1 / 3, 1e30, 1e-30], "float32"))
        assert (counts.tolist(), halves.tolist()) == ([2**21 + 2, 1], [0.5, 1.0])
        assert sorted(sums) == [(2, "float16"), (2, "int32")]


@pytest.mark.parametrize("compress", [None, "fp16"])
def test_all_processes_skip_a_step_whose_sum_overflows_float16(compress):
    def work(group):
        ctxs = rank_devices(group, [1, 1])
        net = gluon.nn.Dense(2, in_units=3)
        net.initialize(init.One(), ctx=ctxs)
        scale = SkipNotFinite()
        store, params = store_on(group, ctxs, compress), net.collect_params()
        trainer = BucketedTrainer(params, "sgd", {"learning_rate": 1.0}, kvstore=store, loss_scale=scale)
        for grad in (4e4, 1.0):
            for param in net.collect_params().values():
                param.list_grad()[0][:] = grad
            trainer.apply(2)
        return net.weight.data(ctxs[0]).asnumpy(), scale.skipped

    for weight, skipped in run_in_threads(2, work):  # the sums are 80,000 and 2
        assert skipped == (compress == "fp16")
        assert (weight == 1 - 1 - (0 if skipped else 4e4)).all()


# --- mistakes


def make_group(servers=0):
    group = SummingGroup(0, 2)
    group.servers = servers
    return group


def make_store(name="device", group=None, **options):
    return GroupKVStore(make_kvstore(name), group or make_group(), **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: make_store("sharded-optimizer"),
            "kvstore 'sharded-optimizer' updates weights, but a group of processes needs a kvstore that only sums",
        ),
        (lambda: GroupKVStore(make_store("ring"), make_group()), "choose a single-process kvstore, such as 'device'"),
        (lambda: make_store(compress="fp16"), "compress=fp16 only works with Horovod, not with a group"),
        (
            lambda: make_store(compress="fp16", group=SINGLE_PROCESS),
            "only works with Horovod, not with a single process",
        ),
        (lambda: make_store(compress="4bit"), "^compress 4bit: use 2bit:THRESHOLD, such as 2bit:0.5, or fp16$"),
        (
            lambda: make_store(compress="2bit:-1"),
            "^compress 2bit:-1: the threshold must be a number of at least 1e-30$",
        ),
        (lambda: make_store(compress="2bit:nan"), "^compress 2bit:nan: "),
        (
            lambda: make_store(compress="2bit:0.5", on_servers=True, group=make_group(servers=1)),
            (
                "compress=2bit:0\\.5 and on_servers contradict each other, because the servers need "
                "uncompressed gradients"
            ),
        ),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(call, message):
    with pytest.raises(KVStoreError, match=message) as raised:
        call()
    assert "\n" not in str(raised.value)


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
            for array in (array for result, _ in processes for array in result[turn][key]):
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
        store = make_store(group=group, compress="2bit:0.5")
        array, results = nd.zeros((size,), device(group.rank), dtype), []
        for step in range(3):
            array[:] = 1.0
            if step == 1 and group.rank == 1:
                array[place] = bad
            store.pushpull(0, [array])
            results.append(array.asnumpy())
        return results

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
        store = make_store(group=group, compress="2bit:0.5")
        array = nd.array([0.4, 0.6, -3.0], mx.cpu(group.rank)).as_np_ndarray()
        results = []
        for _ in range(2):
            store.pushpull(0, [array])
            results.append(array.asnumpy().tolist())
            array[:] = mx.np.array([0.4, 0.0, 0.0], ctx=array.ctx)
        return results

    for results in run_in_threads(2, work):
        assert results == [[0.0, 1.0, -1.0], [1.0, 0.0, -1.0]]


def make_mlp(ctxs):
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
    nets = [make_mlp(own) for own in ctxs]
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


def test_a_single_process_does_not_compress():
    def work(group):
        store, array = make_store(group=group, compress="2bit"), nd.array([0.3], device())
        store.pushpull(0, [array])
        return array.asnumpy().tolist()

    for run in (lambda: [work(SINGLE_PROCESS)], lambda: run_in_threads(1, work)):
        with pytest.warns(GluonlabWarning, match="^compress=2bit:0.5: a single process does not send"):
            assert run() == [[np.float32(0.3)]]


def test_trainers_that_skip_steps_do_not_compress():
    # The rests of a skipped step would be wrong: it has sent its rounded gradients.
    net, store = make_mlp([device()]), make_store(compress="2bit:0.5")
    parameters = net.collect_params()
    store.broadcast = lambda *given, **options: None  # there is no other process
    trainer = BucketedTrainer(parameters, "sgd", {}, store)
    trainer._amp_loss_scaler = object()  # as amp.init_trainer does
    with pytest.raises(RunError, match=r"compress=2bit:0.5 would keep residuals"):
        trainer.apply(1)
    with pytest.raises(
        KVStoreError, match=r"compress=2bit:0\.5 would keep residuals of the steps that loss_scale skips"
    ):
        BucketedTrainer(parameters, "sgd", {}, store, loss_scale=LossScale())
    params = {"type": "2bit", "threshold": 0.25}
    with pytest.raises(KVStoreError, match=r"only when it is created: pass compress='2bit:0\.25'"):
        BucketedTrainer(parameters, "sgd", {}, store, compression_params=params)
    with pytest.raises(KVStoreError, match=r"compress='2bit:0.5'"):
        store.set_gradient_compression(params)
