"""gluon.Trainer trains with our stores as with MXNet's own stores, or as on one device."""

import functools
import re
import tempfile
from pathlib import Path

import mxnet as mx
import pytest
from mxnet import gluon, nd
from mxnet.gluon import nn
from support.branching import backward, make_branching_net, make_shards
from support.devices import contexts
from support.kvstore_runs import BATCHES, make_small_net
from support.reference import (
    arrays_equal,
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
LONG = pytest.mark.long
DEVICES = [2, *(pytest.param(count, marks=LONG) for count in (1, 3, 4, 5))]
CASES = [(name, None) for name in STORES] + [(name, update) for name in NATIVE for update in (True, False)]
CASES = [case if case[0] in FAST_STORES else pytest.param(*case, marks=LONG) for case in CASES]


def make_trainer(net, store, update=None, optimizer="sgd", **settings):
    params = {**MOMENTUM, **settings}
    return gluon.Trainer(net.collect_params(), optimizer, params, kvstore=store, update_on_kvstore=update)


def shared_arrays(net, ctxs):
    """Return the parameters, which must be equal on all devices."""
    first, *others = [parameter_arrays(net, ctx) for ctx in ctxs]
    assert all(arrays_equal(other, first) for other in others)
    return first


def train_and_load_parameters(store, devices, update):
    """Train for four steps; after the third, load the parameters from after the first."""
    ctxs = contexts(devices)
    net = make_small_net(ctxs)
    trainer = make_trainer(net, store, update)
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "parameters")
        for step, batch in enumerate(BATCHES[:4]):
            train_on_devices(net, trainer, ctxs, [batch])
            if step == 0:
                net.save_parameters(file)
            if step == 2:
                net.load_parameters(file, ctx=ctxs)
    return shared_arrays(net, ctxs)


def train_and_set_parameters(store, devices, update):
    """Train for three steps; set the parameters after each."""
    ctxs = contexts(devices)
    net = make_small_net(ctxs)
    trainer = make_trainer(net, store, update, momentum=0.0)
    for batch in BATCHES[:3]:
        train_on_devices(net, trainer, ctxs, [batch])
        set_parameter_arrays(net, [array * 0.5 + 0.1 for array in parameter_arrays(net)])
    return shared_arrays(net, ctxs)


@functools.lru_cache(maxsize=None)
def run_on_one_device(program):
    return program(None, 1, None)


@pytest.mark.parametrize("program", [train_and_load_parameters, train_and_set_parameters])
@pytest.mark.parametrize(("name", "update"), CASES)
def test_training_continues_with_new_parameters_as_on_one_device(program, name, update):
    assert relative_distance(program(make_kvstore(name), 3, update), run_on_one_device(program)) < 1e-5


def make_two_nets(ctxs):
    mx.random.seed(4)
    other = nn.HybridSequential()
    other.add(nn.Dense(5, activation="tanh"), nn.Dense(3, activation="tanh"), nn.Dense(4))
    other.initialize(mx.init.Normal(0.3), ctx=ctxs)
    other(nd.zeros((1, 1, 4, 4), ctx=ctxs[0]))
    return [make_small_net(ctxs), other]


@functools.lru_cache(maxsize=None)
def train_separately(turns):
    """Train the two nets on one device; ``turns``: the number of the net for each batch."""
    nets = make_two_nets(cpu_contexts(1))
    for number, net in enumerate(nets):
        train_on_one_device(net, [batch for batch, turn in zip(BATCHES, turns) if turn == number], "sgd", **MOMENTUM)
    return [parameter_arrays(net) for net in nets]


@pytest.mark.parametrize("turns", [(0, 0, 0, 1, 1), (0, 1, 1, 0, 1)], ids=["one after the other", "in turns"])
@pytest.mark.parametrize(("name", "update"), CASES)
def test_one_store_serves_several_trainers(name, update, turns):
    ctxs, store = contexts(2), make_kvstore(name)
    nets = make_two_nets(ctxs)
    trainers = [make_trainer(net, store, update) for net in nets]
    for batch, turn in zip(BATCHES, turns):
        train_on_devices(nets[turn], trainers[turn], ctxs, [batch])
    for net, expected in zip(nets, train_separately(turns)):
        assert relative_distance(shared_arrays(net, ctxs), expected) < 1e-5


@pytest.mark.parametrize("name", STORE_CASES)
def test_a_net_may_change_its_trainer_and_keep_its_store(name):
    results = []
    for devices in (1, 3):
        ctxs, net = contexts(devices), make_small_net(contexts(devices))
        store = make_kvstore(name) if devices > 1 else None
        for optimizer, of_trainer in (("sgd", BATCHES[:2]), ("nag", BATCHES[2:4])):
            train_on_devices(net, make_trainer(net, store, None, optimizer), ctxs, of_trainer)
        trainer = BucketedTrainer(net.collect_params(), "sgd", dict(MOMENTUM), kvstore=store)
        train_on_devices(net, trainer, ctxs, BATCHES[4:])
        results.append(shared_arrays(net, ctxs))
    assert relative_distance(results[1], results[0]) < 1e-5


@pytest.mark.parametrize("name", NATIVE)
def test_a_trainer_that_only_sums_does_not_get_the_updates_of_another_trainer(name):
    ctxs, store = contexts(2), make_kvstore(name)
    nets = [make_small_net(ctxs) for _ in range(2)]
    updates, sums = (make_trainer(net, store, update) for net, update in zip(nets, (True, False)))
    train_on_devices(nets[1], sums, ctxs, BATCHES[:1])
    train_on_devices(nets[0], updates, ctxs, BATCHES[:1])
    with pytest.raises(KVStoreError, match="create a separate kvstore for each"):
        train_on_devices(nets[1], sums, ctxs, BATCHES[1:2])


def train_by_schedule(store, devices):
    """Return the rates and the parameters after some steps."""
    ctxs = contexts(devices)
    net = make_small_net(ctxs)
    schedule = mx.lr_scheduler.CosineScheduler(max_update=6, base_lr=0.2, warmup_steps=2)
    settings = {"learning_rate": 0.2, "lr_scheduler": schedule}
    trainer = gluon.Trainer(net.collect_params(), "adam" if devices == 2 else "sgd", settings, kvstore=store)
    rates = []
    for batch in BATCHES[:4]:
        train_on_devices(net, trainer, ctxs, [batch])
        rates.append(trainer.learning_rate)
    return rates, shared_arrays(net, ctxs)


train_by_schedule_with_device = functools.lru_cache(maxsize=None)(functools.partial(train_by_schedule, "device"))


@pytest.mark.parametrize("name", STORE_CASES)
@pytest.mark.parametrize("devices", [1, 2, 4, *(pytest.param(count, marks=LONG) for count in (3, 5))])
def test_rates_follow_their_schedule(name, devices):
    expected_rates, expected = train_by_schedule_with_device(devices)
    rates, result = train_by_schedule(make_kvstore(name), devices)
    assert rates == expected_rates
    assert relative_distance(result, expected) < 1e-5


@pytest.mark.parametrize("name", STORE_CASES)
@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_training_continues_with_saved_states(name, optimizer, devices, tmp_path):
    results, batches = [], [batch for batch in BATCHES if len(batch[0]) >= devices]
    settings = {"learning_rate": 0.05, **({"momentum": 0.9} if optimizer == "sgd" else {})}
    for store, resumed in ((None, False), (name, True)):
        ctxs = contexts(devices if resumed else 1)

        def make_net_and_trainer(ctxs=ctxs, store=store):
            net = make_small_net(ctxs)
            kvstore = store and make_kvstore(store)
            return net, gluon.Trainer(net.collect_params(), optimizer, dict(settings), kvstore=kvstore)

        net, trainer = make_net_and_trainer()
        train_on_devices(net, trainer, ctxs, batches[:3])
        if resumed:
            trainer.save_states(str(tmp_path / "states"))
            net.save_parameters(str(tmp_path / "parameters"))
            net, trainer = make_net_and_trainer()
            net.load_parameters(str(tmp_path / "parameters"), ctx=ctxs)
            trainer.load_states(str(tmp_path / "states"))
        train_on_devices(net, trainer, ctxs, batches[3:])
        results.append(shared_arrays(net, ctxs))
    assert relative_distance(results[1], results[0]) < 1e-5


def train_with_stale_gradients(store, devices, update, ignore):
    """Return the parameters after two steps with both branches and two with one, or the error."""
    ctxs = contexts(devices)
    net = make_branching_net(2, ctxs)
    trainer = make_trainer(net, store, update)
    try:
        for step, used in enumerate([(0, 1), (0, 1), (0,), (0,)]):
            backward(net, make_shards(step, devices), [used] * devices, ctxs)
            trainer.step(2 * devices, ignore_stale_grad=ignore)
    except UserWarning as warning:
        return re.sub(r"dense\d+", "dense", str(warning))
    return parameter_arrays(net)


@pytest.mark.parametrize("ignore", [False, True])
@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("name", STORE_CASES)
def test_stale_gradients_are_treated_as_by_mxnets_store(name, devices, ignore):
    store = make_kvstore(name)
    expected = train_with_stale_gradients(mx.kv.create("device"), devices, store.is_capable("optimizer"), ignore)
    result = train_with_stale_gradients(store, devices, None, ignore)
    assert result == expected if isinstance(expected, str) else relative_distance(result, expected) < 1e-5


def test_compression_gives_the_bits_of_mxnets_store_also_for_a_second_trainer():
    params, results, store = {"type": "2bit", "threshold": 0.05}, [], make_kvstore("device")
    for kvstore in ("device", store, store):
        ctxs = contexts(3)
        net = make_small_net(ctxs)
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore, params)
        train_on_devices(net, trainer, ctxs, BATCHES)
        results.append(shared_arrays(net, ctxs))
    assert all(arrays_equal(other, results[0]) for other in results[1:])


@pytest.mark.parametrize("name", [*FROM_SCRATCH, "local"])
def test_a_store_that_cannot_compress_refuses(name):
    net = make_small_net(contexts(2))
    trainer = gluon.Trainer(net.collect_params(), "sgd", {}, make_kvstore(name), {"type": "2bit"})
    with pytest.raises(KVStoreError, match="cannot compress gradients: choose device, or omit"):
        train_on_devices(net, trainer, contexts(2), BATCHES[:1])


@pytest.mark.parametrize("name", NATIVE)
def test_calls_that_crash_mxnet_are_summed_or_refused(name):
    # MXNet's own stores end with a segmentation fault.
    store = make_kvstore(name)
    for count in (2, 5, 3):
        arrays = [nd.ones((4,), ctx=ctx) for ctx in contexts(count)]
        store.pushpull("unknown", arrays)
        assert all((array.asnumpy() == count).all() for array in arrays)
    for call in (lambda: store.pull("x", out=arrays), lambda: store.row_sparse_pull("x", arrays[0], row_ids=arrays[0])):
        with pytest.raises(KVStoreError, match="call broadcast or init first"):
            call()
    with pytest.raises(KVStoreError, match="3 differs in type from the other keys: use only numbers or only strings"):
        store.pushpull(3, arrays)
    store.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
    weights = [nd.zeros((4,), ctx=ctx) for ctx in contexts(5)]
    with pytest.raises(KVStoreError, match="the key 'w' does not exist: call broadcast or init first"):
        store.pushpull("w", arrays, out=weights)
    store.broadcast("w", nd.full((4,), 10.0), weights)
    for count in (2, 5):
        store.pushpull("w", [nd.ones((4,), ctx=ctx) for ctx in contexts(count)], out=weights)
    assert all((weight.asnumpy() == 10 - 2 - 5).all() for weight in weights)
    with pytest.raises(KVStoreError, match=r"float32\[2\] cannot update float32\[4\]"):
        store.pushpull("w", [nd.ones((2,), ctx=ctx) for ctx in contexts(2)], out=weights[:2])


@pytest.mark.parametrize("name", NATIVE)
def test_states_that_are_not_a_pickle_are_refused_with_the_way_to_write_one(name, tmp_path):
    ctxs, file = contexts(2), str(tmp_path / "states")
    net = make_small_net(ctxs)
    trainer = BucketedTrainer(net.collect_params(), "sgd", dict(MOMENTUM))
    train_on_devices(net, trainer, ctxs, BATCHES[:1])
    trainer.save_states(file)
    with pytest.raises(
        KVStoreError,
        match=r"write the states with gluonlab\.bucketed_trainer\.gluon_export\.export_gluon_states, or "
        r"load them with a BucketedTrainer",
    ):
        make_trainer(net, make_kvstore(name), update=True).load_states(file)
    export_gluon_states(trainer, file)
    make_trainer(net, make_kvstore(name), update=True).load_states(file)


@pytest.mark.parametrize("name", NATIVE)
def test_the_cost_of_a_call_does_not_depend_on_the_number_of_keys(name):
    class CountingDict(dict):
        iterations = 0

        def __iter__(self):
            self.iterations += 1
            return super().__iter__()

    store, keys = make_kvstore(name), CountingDict()
    for key in range(50):
        store.init(key, nd.zeros((1,)))
    keys.update(store._key_entries)
    store._key_entries = keys
    store.pushpull(7, [nd.ones((1,), ctx=ctx) for ctx in contexts(2)])
    assert keys.iterations == 0
