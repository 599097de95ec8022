"""The sharded optimizer keeps a share of the state on each device and updates as plain Gluon."""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mxnet import gluon, nd
from mxnet.gluon import nn
from support.covering import pairwise
from support.devices import contexts
from support.examples import examples
from support.kvstore_runs import BATCHES, OPTIMIZERS, train_small_net
from support.reference import arrays_equal, parameter_arrays, relative_distance, train_on_devices

from gluonlab import optimizers
from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.collectives.algorithms import make_schedule
from gluonlab.errors import KVStoreError
from gluonlab.kvstores import make_kvstore
from gluonlab.kvstores.sharded_optimizer import ShardedKVStore


def test_the_sharded_optimizer_runs_reduce_scatter_and_all_gather():
    store = make_kvstore("sharded-optimizer")
    train_small_net(gluon.Trainer, store, "sgd", contexts(3))
    assert store.transfers_run == 4 * len(BATCHES) * make_schedule("sharded", 3).transfers


@pytest.mark.parametrize(("optimizer", "copies"), [("sgd", 1), ("adam", 2)])
@pytest.mark.parametrize("devices", [2, 3, 4])
def test_the_sharded_optimizer_keeps_a_share_of_the_state_on_each_device(optimizer, copies, devices):
    ctxs, store = contexts(devices), make_kvstore("sharded-optimizer")
    _, trainer = train_small_net(BucketedTrainer, store, optimizer, ctxs)
    kept = dict.fromkeys(ctxs, 0)
    for update in store._updates.values():
        for owned in (shard for shards in update.shards.values() for shard in shards):
            for array in owned.state_arrays():
                kept[array.context] += array.size
    whole = copies * sum(bucket.weights[0].size for bucket in trainer.buckets)
    assert sum(kept.values()) == whole
    assert max(kept.values()) - whole / devices < copies * len(trainer.buckets)
    assert all(not updater.states for updater in trainer._updaters)  # and nothing beside it


@pytest.mark.parametrize("loaded", [False, True])
def test_the_sharded_state_stays_if_arrays_are_replaced(loaded, tmp_path):
    # cast() gives the parameters new arrays; states loaded before must not come back.
    ctxs, results = contexts(2), []
    for store in (make_kvstore("device"), ShardedKVStore()):
        net, trainer = train_small_net(gluon.Trainer, store, "adam", ctxs, BATCHES[:2])
        if loaded:
            trainer.save_states(str(tmp_path / "states"))
            trainer.load_states(str(tmp_path / "states"))
        train_on_devices(net, trainer, ctxs, BATCHES[2:3])
        net.cast("float64")
        net.cast("float32")
        train_on_devices(net, trainer, ctxs, BATCHES[3:])
        results.append(parameter_arrays(net))
    assert relative_distance(results[1], results[0]) < 1e-5


def make_convolutions(ctxs):
    """Return a net whose weights have separate buckets, which are small enough to be coalesced."""
    mx.random.seed(4)
    net = nn.HybridSequential()
    net.add(*(nn.Conv2D(8, 3, padding=1) for _ in range(2)), nn.Activation("tanh"))
    net.add(nn.Conv2D(16, 3), nn.Dense(4))
    net.initialize(mx.init.Normal(0.3), ctx=ctxs)
    net(nd.zeros((1, 1, 4, 4), ctx=ctxs[0]))
    return net


@pairwise(devices=[2, 3], optimizer=list(OPTIMIZERS), clip_norm=[None, 0.1])
def test_coalesced_buckets_are_updated_as_separate_ones(optimizer, devices, clip_norm):
    results, calls = [], []
    large, ours = 4 * 2**20, "sharded-optimizer"
    for store, bucket_bytes in (("device", large), (ours, 0), (ours, large)):
        ctxs = contexts(devices)
        net = make_convolutions(ctxs)
        params = {**OPTIMIZERS[optimizer], "learning_rate": 0.01}
        settings = {"bucket_bytes": bucket_bytes, "clip_norm": clip_norm}
        trainer = BucketedTrainer(net.collect_params(), optimizer, params, make_kvstore(store), **settings)
        train_on_devices(net, trainer, ctxs, BATCHES)
        results += [parameter_arrays(net, ctx) for ctx in ctxs]
        calls.append(len(trainer._kvstore_calls))
    assert max(relative_distance(one, results[0]) for one in results[1:]) < 1e-5
    assert calls[1] > calls[2] == 1


def test_states_of_keys_that_are_updated_together_are_saved(tmp_path):
    path, half, nets = str(tmp_path / "states"), len(BATCHES) // 2, []
    for parts in ([BATCHES], [BATCHES[:half], BATCHES[half:]]):
        ctxs = contexts(2)
        net = make_convolutions(ctxs)
        for number, batches in enumerate(parts):
            store, rate = make_kvstore("sharded-optimizer"), {"learning_rate": 0.01}
            trainer = BucketedTrainer(net.collect_params(), "adam", rate, store)
            if number:
                trainer.load_states(path)
            train_on_devices(net, trainer, ctxs, batches)
            trainer.save_states(path)
        nets.append(parameter_arrays(net))
    assert arrays_equal(*nets)


def test_a_key_must_always_be_updated_with_the_same_keys():
    store, ctxs = make_kvstore("sharded-optimizer"), contexts(2)
    store.set_optimizer(mx.optimizer.SGD(learning_rate=0.1, momentum=0.9))
    grads, weights = ([[nd.ones((5,), ctx=ctx) for ctx in ctxs] for _ in range(3)] for _ in range(2))
    store.pushpull(["a", "b"], grads[:2], out=weights[:2])
    refused = (
        "key 'b' cannot be updated, because an earlier call updated keys 'a', 'b': pass the same keys in every call"
    )
    with pytest.raises(KVStoreError, match=refused):
        store.pushpull("b", grads[1], out=weights[1])
    store.pushpull("c", grads[2], out=weights[2])
    updated = [array.asnumpy()[0] for of_key in weights for array in of_key]
    assert updated == pytest.approx([1 - 0.1 * 2] * 6)


# --- random parameters, compared with plain Gluon on one device


def make_parameters(shapes, ctxs, dtype):
    names = [f"p{number}_weight" for number in range(len(shapes))]
    params = [gluon.Parameter(name, shape=shape, dtype=dtype) for name, shape in zip(names, shapes)]
    for param in params:
        param.initialize(mx.init.One(), ctx=ctxs)
    return params


def mark_fresh(params):
    for param in params:
        for array in param.list_data():
            array._fresh_grad = True


class TwoTrainings:
    """Equal parameters on some devices with the store, and on one without; ``sides``: both."""

    def __init__(self, shapes, devices, dtype, optimizer, path):
        self.path, self.params = path, make_parameters(shapes, contexts(devices), dtype)
        self.alone = make_parameters(shapes, [mx.cpu()], dtype)
        store = make_kvstore("sharded-optimizer")
        self.trainer = gluon.Trainer(self.params, optimizer(), kvstore=store)
        plain = gluon.Trainer(self.alone, optimizer(), kvstore=None)
        self.sides = [(self.trainer, self.params), (plain, self.alone)]
        self.tolerance = 1e-2 if dtype == "float16" else 1e-5

    def step(self, random, parity=None):
        """Make a step with new integer gradients for all parameters, or for every other one."""
        for number, (param, single) in enumerate(zip(self.params, self.alone)):
            grads = param.list_grad()
            for device, grad in enumerate(grads):
                if parity is None or (number + device) % 2 == parity:
                    grad[:] = nd.array(random.randint(-3, 4, param.shape), dtype=param.dtype)
            total = sum(grad.asnumpy().astype("float64") for grad in grads)
            single.grad()[:] = nd.array(total, dtype=param.dtype)
        before = [grad.asnumpy() for param in self.params for grad in param.list_grad()]
        for trainer, params in self.sides:
            mark_fresh(params)
            trainer.step(4)
        after = [grad.asnumpy() for param in self.params for grad in param.list_grad()]
        assert arrays_equal(before, after)

    def check(self):
        for param, single in zip(self.params, self.alone):
            for data in param.list_data():
                assert relative_distance([data.asnumpy()], [single.data().asnumpy()]) < self.tolerance


def new_gradients(trainings):
    for _, params in trainings.sides:
        for param in params:
            param.grad_req = "add"
            param.grad_req = "write"


def other_devices(trainings):
    for param in trainings.params:
        first, *others = param.list_ctx()
        param.reset_ctx([first, *contexts(8)[8 - len(others) :]])


def cast_and_back(trainings):
    for _, params in trainings.sides:
        for param in params:
            dtype = param.dtype
            param.cast("float64")
            param.cast(dtype)


def load(trainings):
    for trainer, _ in trainings.sides:
        trainer.save_states(trainings.path)
        trainer.load_states(trainings.path)


def load_while_frozen(trainings):
    for _, params in trainings.sides:
        params[0].grad_req = "null"
    load(trainings)
    for _, params in trainings.sides:
        params[0].grad_req = "write"


def another_trainer(trainings):
    others = make_parameters([(3,)], trainings.params[0].list_ctx(), "float32")
    other = gluon.Trainer(others, "adam", kvstore=trainings.trainer._kvstore)
    for grad in others[0].list_grad():
        grad[:] = 1
    mark_fresh(others)
    other.step(1)


def sgd(kind=mx.optimizer.SGD, **settings):
    return lambda: kind(learning_rate=0.25, momentum=0.5, **settings)


KINDS = [  # an optimizer, a type
    (sgd(), "float64"),
    (sgd(multi_precision=True), "float16"),
    (sgd(wd=0.125, clip_gradient=0.5), "float32"),
    (sgd(optimizers.SGD), "float32"),
    (lambda: mx.optimizer.Adam(learning_rate=0.01), "float32"),
    (mx.optimizer.AdaDelta, "float32"),
]
SHAPES = [(1,), (2,), (7,), (5, 3), (8, 8, 3, 3), (1, 1)]
EVENTS = [new_gradients, other_devices, cast_and_back, load, load_while_frozen, another_trainer]
cases = st.tuples(
    st.integers(1, 5),
    st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3),
    st.sampled_from(KINDS),
    st.lists(st.sampled_from([None, 0, 1, *EVENTS]), min_size=2, max_size=5),
    st.integers(0, 99),
)


@examples(8, 300)
@given(case=cases)
@example(case=(2, [(7,), (5, 3)], KINDS[1], [load_while_frozen], 0))
@example(case=(3, [(5, 3)], KINDS[0], [other_devices, 1], 0))
def test_parameters_are_updated_as_on_one_device_and_gradients_stay(case, tmp_path_factory):
    devices, shapes, (optimizer, dtype), events, seed = case
    path = str(tmp_path_factory.mktemp("states") / "states")
    trainings, random = TwoTrainings(shapes, devices, dtype, optimizer, path), np.random.RandomState(seed)
    for event in [None, *events, None]:
        if not callable(event):
            trainings.step(random, event)
        elif dtype != "float16" or event is not cast_and_back:  # no Trainer continues with other types
            event(trainings)
        trainings.check()


def test_a_state_that_does_not_fit_is_refused():
    [param] = params = make_parameters([(7,)], contexts(2), "float32")
    optimizer = sgd(multi_precision=True)()
    trainer = gluon.Trainer(params, optimizer, kvstore=make_kvstore("sharded-optimizer"))
    trainer.step(1, ignore_stale_grad=True)
    param.cast("float16")
    message = r"the optimizer state does not match the weight, float16\[7\] on [cg]pu\(0\): use .* types"
    with pytest.raises(KVStoreError, match=f"^kvstore 'sharded-optimizer', key 0: {message}"):
        trainer.step(1, ignore_stale_grad=True)
