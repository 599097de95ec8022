"""gluon.Trainer under our stores is what it is under MXNet's own, or on one device: compared in the
same test.
"""

import functools

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from support.devices import contexts
from support.kvstore_runs import BATCHES, make_small_net
from support.reference import (
    cpu_contexts,
    parameter_arrays,
    relative_distance,
    set_parameter_arrays,
    train_on_devices,
    train_on_one_device,
)
from support.stores import FAST_STORES, FROM_SCRATCH, STORE_CASES, STORES

from gluonlab.bucketed_trainer.gluon_export import export_gluon_states
from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.errors import KVStoreError
from gluonlab.kvstores import make_kvstore

MOMENTUM = {"learning_rate": 0.1, "momentum": 0.9}
NATIVE = ["device", "local"]
WHERE = [(name, None) for name in STORES] + [(name, update) for name in NATIVE for update in (True, False)]
DEVICES = [count if count == 2 else pytest.param(count, marks=pytest.mark.long) for count in (1, 2, 3, 4, 5)]
WHERE = [where if where[0] in FAST_STORES else pytest.param(*where, marks=pytest.mark.long) for where in WHERE]


def trainer_of(net, store, update=None, optimizer="sgd", **settings):
    return gluon.Trainer(
        net.collect_params(), optimizer, {**MOMENTUM, **settings}, kvstore=store, update_on_kvstore=update
    )


def on_every_device(net, ctxs):
    """The parameters, which are alike on all devices."""
    found = [parameter_arrays(net, ctx) for ctx in ctxs]
    assert all(np.array_equal(a, b) for others in found[1:] for a, b in zip(others, found[0]))
    return found[0]


def interrupted(store, devices, update, file):
    """Four steps, but after the third the parameters are again what they were after the first."""
    ctxs = contexts(devices)
    net = make_small_net(ctxs)
    trainer = trainer_of(net, store, update)
    for step, batch in enumerate(BATCHES[:4]):
        train_on_devices(net, trainer, ctxs, [batch])
        if step == 0:
            net.save_parameters(file)
        if step == 2:
            net.load_parameters(file, ctx=ctxs)
    return on_every_device(net, ctxs)


@pytest.fixture(scope="module")
def interrupted_on_one_device(tmp_path_factory):
    return interrupted(None, 1, None, str(tmp_path_factory.mktemp("one") / "parameters"))


@pytest.mark.parametrize(("name", "update"), WHERE)
def test_training_goes_on_from_parameters_that_are_loaded(name, update, tmp_path, interrupted_on_one_device):
    """With the momentum that there is, as on one device.

    Under MXNet's own name a store that updates forgets it.
    """
    found = interrupted(make_kvstore(name), 3, update, str(tmp_path / "parameters"))
    assert relative_distance(found, interrupted_on_one_device) < 1e-5


def with_parameters_set(store, devices, update):
    """Three steps, after each of which the parameters are set."""
    ctxs = contexts(devices)
    net = make_small_net(ctxs)
    trainer = trainer_of(net, store, update, momentum=0.0)
    for batch in BATCHES[:3]:
        train_on_devices(net, trainer, ctxs, [batch])
        set_parameter_arrays(net, [array * 0.5 + 0.1 for array in parameter_arrays(net)])
    return on_every_device(net, ctxs)


with_parameters_set_once = functools.lru_cache(maxsize=None)(with_parameters_set)


@pytest.mark.parametrize(("name", "update"), WHERE)
def test_parameters_that_are_set_are_those_of_the_next_step(name, update):
    expected = with_parameters_set_once(None, 1, None)
    assert relative_distance(with_parameters_set_once("device", 2, update), expected) < 1e-5
    assert relative_distance(with_parameters_set(make_kvstore(name), 2, update), expected) < 1e-5


def two(ctxs):
    mx.random.seed(4)
    other = nn.HybridSequential()
    other.add(nn.Dense(5, activation="tanh"), nn.Dense(3, activation="tanh"), nn.Dense(4))
    other.initialize(mx.init.Normal(0.3), ctx=ctxs)
    other(nd.zeros((1, 1, 4, 4), ctx=ctxs[0]))
    return [make_small_net(ctxs), other]


@functools.lru_cache(maxsize=None)
def train_alone(plan):
    """What the two nets would be, each with a Trainer of its own and on one device; ``plan``: the
    number of a net for each batch.
    """
    nets = two(cpu_contexts(1))
    for number, net in enumerate(nets):
        train_on_one_device(net, [batch for batch, turn in zip(BATCHES, plan) if turn == number], "sgd", **MOMENTUM)
    return [parameter_arrays(net) for net in nets]


@pytest.mark.parametrize("plan", [(0, 0, 0, 1, 1), (0, 1, 1, 0, 1)], ids=["one after the other", "in turns"])
@pytest.mark.parametrize(("name", "update"), WHERE)
def test_one_store_serves_several_trainers(name, update, plan):
    ctxs, store = contexts(2), make_kvstore(name)
    nets = two(ctxs)
    trainers = [trainer_of(net, store, update) for net in nets]
    for batch, turn in zip(BATCHES, plan):
        train_on_devices(nets[turn], trainers[turn], ctxs, [batch])
    for net, values_ in zip(nets, train_alone(plan)):
        assert relative_distance(on_every_device(net, ctxs), values_) < 1e-5


@pytest.mark.parametrize("name", STORE_CASES)
def test_a_net_gets_another_trainer_with_the_store_that_it_had(name):
    found = []
    for devices in (1, 3):
        ctxs, net = contexts(devices), make_small_net(contexts(devices))
        store = make_kvstore(name) if devices > 1 else None
        for optimizer, of_trainer in (("sgd", BATCHES[:2]), ("nag", BATCHES[2:4])):
            train_on_devices(net, trainer_of(net, store, None, optimizer), ctxs, of_trainer)
        trainer = BucketedTrainer(net.collect_params(), "sgd", dict(MOMENTUM), kvstore=store)
        train_on_devices(net, trainer, ctxs, BATCHES[4:])
        found.append(on_every_device(net, ctxs))
    assert relative_distance(found[1], found[0]) < 1e-5


@pytest.mark.parametrize("name", NATIVE)
def test_a_trainer_that_only_sums_does_not_get_another_ones_updates(name):
    ctxs, store = contexts(2), make_kvstore(name)
    nets = [make_small_net(ctxs) for _ in range(2)]
    updates, sums = (trainer_of(net, store, update) for net, update in zip(nets, (True, False)))
    train_on_devices(nets[1], sums, ctxs, BATCHES[:1])
    train_on_devices(nets[0], updates, ctxs, BATCHES[:1])
    with pytest.raises(KVStoreError, match="updates for another Trainer now: make a kvstore for each"):
        train_on_devices(nets[1], sums, ctxs, BATCHES[1:2])


def by_a_schedule(store, devices):
    """The rates and the parameters of a few steps."""
    ctxs = contexts(devices)
    net = make_small_net(ctxs)
    schedule = mx.lr_scheduler.CosineScheduler(max_update=6, base_lr=0.2, warmup_steps=2)
    settings = {"learning_rate": 0.2, "lr_scheduler": schedule}
    trainer = gluon.Trainer(net.collect_params(), "adam" if devices == 2 else "sgd", settings, kvstore=store)
    rates = []
    for batch in BATCHES[:4]:
        train_on_devices(net, trainer, ctxs, [batch])
        rates.append(trainer.learning_rate)
    return rates, on_every_device(net, ctxs)


by_a_schedule_under_device = functools.lru_cache(maxsize=None)(functools.partial(by_a_schedule, "device"))


@pytest.mark.parametrize("name", STORE_CASES)
@pytest.mark.parametrize(
    "devices", [1, 2, pytest.param(3, marks=pytest.mark.long), 4, pytest.param(5, marks=pytest.mark.long)]
)
def test_rates_follow_their_schedule(name, devices):
    expected_rates, expected = by_a_schedule_under_device(devices)
    rates, found = by_a_schedule(make_kvstore(name), devices)
    assert rates == expected_rates
    assert relative_distance(found, expected) < 1e-5


@pytest.mark.parametrize("name", STORE_CASES)
@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_saved_states_go_on_where_they_stopped(name, optimizer, devices, tmp_path):
    found, batches = [], [batch for batch in BATCHES if len(batch[0]) >= devices]
    for store, resumed in ((None, False), (name, True)):
        ctxs = contexts(devices if resumed else 1)
        net = make_small_net(ctxs)
        settings = {"learning_rate": 0.05, **({"momentum": 0.9} if optimizer == "sgd" else {})}
        trainer = gluon.Trainer(net.collect_params(), optimizer, dict(settings), kvstore=store and make_kvstore(store))
        train_on_devices(net, trainer, ctxs, batches[:3])
        if resumed:
            trainer.save_states(str(tmp_path / "states"))
            net.save_parameters(str(tmp_path / "parameters"))
            net = make_small_net(ctxs)
            net.load_parameters(str(tmp_path / "parameters"), ctx=ctxs)
            trainer = gluon.Trainer(net.collect_params(), optimizer, dict(settings), kvstore=make_kvstore(store))
            trainer.load_states(str(tmp_path / "states"))
        train_on_devices(net, trainer, ctxs, batches[3:])
        found.append(on_every_device(net, ctxs))
    assert relative_distance(found[1], found[0]) < 1e-5


class TwoHeads(nn.HybridBlock):
    """A branch that is not always used."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.body, self.one, self.other = (nn.Dense(6, activation="tanh"), nn.Dense(3), nn.Dense(3))

    def hybrid_forward(self, F, x, both=False):
        y = self.body(x)
        return self.one(y) + self.other(y) if both else self.one(y)


def with_stale_gradients(store, devices, update, ignore):
    """Two steps with both heads, two with one: the parameters, or what is raised."""
    ctxs = contexts(devices)
    mx.random.seed(5)
    net = TwoHeads()
    net.initialize(mx.init.Normal(0.3), ctx=ctxs)
    net(nd.zeros((1, 4), ctx=ctxs[0]), True)
    trainer = trainer_of(net, store, update)
    random = np.random.RandomState(0)
    try:
        for both in (True, True, False, False):
            xs = gluon.utils.split_and_load(nd.array(random.normal(size=(6, 4))), ctxs, even_split=False)
            with autograd.record():
                losses = [(net(x, both) ** 2).sum() for x in xs]
            autograd.backward(losses)
            trainer.step(6, ignore_stale_grad=ignore)
    except UserWarning as warning:
        return str(warning).replace(net.prefix, "")
    return parameter_arrays(net)


@pytest.mark.parametrize("ignore", [False, True])
@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("name", STORE_CASES)
def test_stale_gradients_are_what_they_are_under_mxnets_store(name, devices, ignore):
    store = make_kvstore(name)
    expected = with_stale_gradients(mx.kv.create("device"), devices, store.is_capable("optimizer"), ignore)
    found = with_stale_gradients(store, devices, None, ignore)
    assert found == expected if isinstance(expected, str) else relative_distance(found, expected) < 1e-5


def test_compressed_gradients_are_those_of_mxnets_store_and_of_this_trainer_only():
    params, found, store = {"type": "2bit", "threshold": 0.05}, [], make_kvstore("device")
    for kvstore in ("device", store, store):
        ctxs = contexts(3)
        net = make_small_net(ctxs)
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore, params)
        train_on_devices(net, trainer, ctxs, BATCHES)
        found.append(on_every_device(net, ctxs))
    assert all(np.array_equal(a, b) for other in found[1:] for a, b in zip(other, found[0]))


@pytest.mark.parametrize("name", [*FROM_SCRATCH, "local"])
def test_a_store_that_cannot_compress_says_so(name):
    net = make_small_net(contexts(2))
    trainer = gluon.Trainer(net.collect_params(), "sgd", {}, make_kvstore(name), {"type": "2bit"})
    with pytest.raises(KVStoreError, match="cannot compress gradients: choose device"):
        train_on_devices(net, trainer, contexts(2), BATCHES[:1])


@pytest.mark.parametrize("name", NATIVE)
def test_what_crashes_mxnet_is_summed_or_said(name):
    """More arrays of a key than in its first call, a key that nobody knows: segmentation faults of
    its own stores.
    """
    store = make_kvstore(name)
    for count in (2, 5, 3):
        arrays = [nd.ones((4,), ctx=ctx) for ctx in contexts(count)]
        store.pushpull("unknown", arrays)
        assert all((array.asnumpy() == count).all() for array in arrays)
    for call in (lambda: store.pull("x", out=arrays), lambda: store.row_sparse_pull("x", arrays[0], row_ids=arrays[0])):
        with pytest.raises(KVStoreError, match="knows no key 'x': broadcast or init it first"):
            call()
    with pytest.raises(KVStoreError, match="numbers or words, not both"):
        store.pushpull(3, arrays)
    store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
    weights = [nd.zeros((4,), ctx=ctx) for ctx in contexts(5)]
    with pytest.raises(KVStoreError, match="knows no key 'w'"):
        store.pushpull("w", arrays, out=weights)
    store.broadcast("w", nd.full((4,), 10.0), weights)
    for count in (2, 5):
        store.pushpull("w", [nd.ones((4,), ctx=ctx) for ctx in contexts(count)], out=weights)
    assert all((weight.asnumpy() == 10 - 2 - 5).all() for weight in weights)
    with pytest.raises(KVStoreError, match=r"float32\[2\] cannot update float32\[4\]"):
        store.pushpull("w", [nd.ones((2,), ctx=ctx) for ctx in contexts(2)], out=weights[:2])


@pytest.mark.parametrize("name", NATIVE)
def test_states_that_are_no_pickle_are_refused_with_the_way_to_write_one(name, tmp_path):
    ctxs, file = contexts(2), str(tmp_path / "states")
    net = make_small_net(ctxs)
    trainer = BucketedTrainer(net.collect_params(), "sgd", dict(MOMENTUM))
    train_on_devices(net, trainer, ctxs, BATCHES[:1])
    trainer.save_states(file)
    with pytest.raises(KVStoreError, match=r"write states with .*export_gluon_states"):
        trainer_of(net, make_kvstore(name), update=True).load_states(file)
    export_gluon_states(trainer, file)
    trainer_of(net, make_kvstore(name), update=True).load_states(file)


@pytest.mark.parametrize("name", NATIVE)
def test_a_call_costs_the_same_however_many_keys_there_are(name):
    """A Trainer calls once per parameter: looking at all keys in each call would cost their square
    in a step.
    """
    store, keys = make_kvstore(name), Counted()
    for key in range(50):
        store.init(key, nd.zeros((1,)))
    keys.update(store._key_entries)
    store._key_entries = keys
    store.pushpull(7, [nd.ones((1,), ctx=ctx) for ctx in contexts(2)])
    assert keys.walks == 0


class Counted(dict):
    """Counts who goes through all of it."""

    walks = 0

    def __iter__(self):
        self.walks += 1
        return super().__iter__()
