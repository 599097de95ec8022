"""Optimizer states move between any stores, buckets and devices; training continues as without."""

from dataclasses import dataclass, replace
from functools import lru_cache

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import gluon, nd
from mxnet.gluon import nn
from support.covering import product_cases
from support.devices import contexts, device
from support.examples import examples
from support.full_disk import limit_file_size
from support.reference import arrays_equal, parameter_arrays, random_batches, relative_distance, train_on_devices
from support.updates import trainer_arguments

from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.bucketed_trainer.trainer_states import gather_states, restore_states
from gluonlab.data.loading.split_batch import shard
from gluonlab.errors import OutputError
from gluonlab.kvstores import make_kvstore
from gluonlab.optimizers.optimizer_registry import OPTIMIZERS as OWN
from gluonlab.training.learning_rate_schedule import LearningRates

BATCHES = random_batches([6, 4, 5, 7, 4], shape=(1, 2, 3), classes=4)
STORE = ["device", "sharded-optimizer"]
STORES = ["device", "local", "star", "ring", "halving_doubling", "sharded-optimizer"]
OPTIMIZERS = {
    "sgd": {"momentum": 0.9, "learning_rate": 0.2, "wd": 0.01},
    "nag": {"momentum": 0.9, "learning_rate": 0.1}, "adam": {"learning_rate": 0.02},
    "rmsprop": {"learning_rate": 0.01, "centered": True, "epsilon": 1e-3},
    "adagrad": {"learning_rate": 0.1}, "adadelta": {}, "adamax": {"learning_rate": 0.02},
    "ftrl": {}, "ftml": {"learning_rate": 0.02}, "signum": {}, "lamb": {},
    "dcasgd": {"learning_rate": 0.1},
    "own sgd": {"momentum": 0.9, "learning_rate": 0.2, "wd": 0.01},
    "own nag": {"momentum": 0.9, "learning_rate": 0.1}, "own adamax": {"learning_rate": 0.02},
    "own nadam": {"learning_rate": 0.01}, "own lars": {"learning_rate": 0.2, "momentum": 0.9},
    "own ftml": {"learning_rate": 0.02},
}  # fmt: skip
WHOLE = ("lamb", "dcasgd", "own lars")  # not element-wise


def make_net(ctxs, start=None, shapes=True, prefix=None):
    mx.random.seed(5)
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():  # one layer has fewer elements than some runs have devices
        net.add(nn.Dense(7, activation="tanh"), nn.Dense(1, activation="tanh"), nn.Dense(4))
    net.initialize(mx.init.Normal(0.3), ctx=ctxs)
    if shapes:
        net(nd.zeros((1, 1, 2, 3), ctx=ctxs[0]))
    set_arrays(net, start)
    return net


def set_arrays(net, start):
    for param, value in zip(net.collect_params().values(), start or ()):
        for array in param.list_data():
            array[:] = nd.array(value)


@dataclass(frozen=True)
class Setting:
    store: str = "device"
    devices: int = 1
    bucket_bytes: int = 4 * 2**20

    def trainer(self, net, optimizer, schedule=None, **params):
        params = {**OPTIMIZERS.get(optimizer, {}), **params}
        if schedule is not None:
            params["lr_scheduler"] = schedule
            schedule.base_lr = params.get("learning_rate", 0.01)
        settings = {"kvstore": make_kvstore(self.store), "bucket_bytes": self.bucket_bytes}
        return BucketedTrainer(net.collect_params(), *trainer_arguments(optimizer, params), **settings)


SETTINGS = st.builds(Setting, st.sampled_from(STORES), st.integers(1, 4), st.sampled_from([0, 40, 4 * 2**20]))


def halving():
    return mx.lr_scheduler.FactorScheduler(step=2, factor=0.5)


def train(net, trainer, ctxs, begin=0, end=None):
    train_on_devices(net, trainer, ctxs, BATCHES[begin:end])
    return parameter_arrays(net)


def train_interrupted(optimizer, first, second, file, schedule=halving, stop=3):
    """Train for some steps with one setting, save the states, and continue with the other."""
    net = make_net(contexts(first.devices))
    trainer = first.trainer(net, optimizer, schedule())
    start = train(net, trainer, contexts(first.devices), end=stop)
    trainer.save_states(file)
    net = make_net(contexts(second.devices), start)
    trainer = second.trainer(net, optimizer, schedule())
    trainer.load_states(file)
    return train(net, trainer, contexts(second.devices), stop)


@lru_cache(maxsize=None)
def train_uninterrupted(optimizer, setting=None, schedule=halving):
    """Train with a setting, or with gluon.Trainer on one device."""
    ctxs = contexts(setting.devices if setting else 1)
    net = make_net(ctxs)
    if setting:
        return train(net, setting.trainer(net, optimizer, schedule()), ctxs)
    params = {**OPTIMIZERS[optimizer], "lr_scheduler": schedule()}
    params["lr_scheduler"].base_lr = params.get("learning_rate", 0.01)
    return train(net, gluon.Trainer(net.collect_params(), *trainer_arguments(optimizer, params), kvstore=None), ctxs)


@examples(4, 120)
@given(st.sampled_from(sorted(OPTIMIZERS)), SETTINGS, SETTINGS)
def test_states_move_to_any_store_buckets_and_devices(tmp_path_factory, optimizer, first, second):
    settings = [first, second]
    if optimizer in WHOLE:
        settings = [replace(s, store="ring") if s.store == "sharded-optimizer" else s for s in settings]
    result = train_interrupted(optimizer, *settings, str(tmp_path_factory.getbasetemp() / "states"))
    assert relative_distance(result, train_uninterrupted(optimizer)) <= 1e-5


@pytest.mark.parametrize(
    "optimizer, store", product_cases(["sgd", "adam", "own nag"], STORE, keep=[("own nag", "sharded-optimizer")])
)
def test_the_same_setting_continues_with_the_same_bits(optimizer, store, tmp_path):
    setting = Setting(store, 3, 40)
    found = train_interrupted(optimizer, setting, setting, str(tmp_path / "states"))
    assert arrays_equal(found, train_uninterrupted(optimizer, setting))


def ending():
    return mx.lr_scheduler.PolyScheduler(max_update=4)


def ended():
    """Return a scheduler that ends before the states are saved."""
    return mx.lr_scheduler.PolyScheduler(max_update=2, final_lr=0.003)


class FunctionSchedule:
    """A schedule as a function of the step, with the base_lr that MXNet expects."""

    def __init__(self, rates):
        self.rates, self.base_lr = rates, 0

    def __call__(self, step):
        return self.rates(step)


def cosine():
    return FunctionSchedule(LearningRates(0.01, 5, "cosine"))


MIDDLE = [
    ("own sgd", "sharded-optimizer", halving),
    ("adam", "device", ended),
    ("own sgd", "sharded-optimizer", cosine),
]


@pytest.mark.parametrize(
    "optimizer, store, schedule",
    product_cases(["own sgd", "adam"], STORE, [halving, ending, ended, cosine], keep=MIDDLE),
)
def test_states_may_be_loaded_in_the_middle_of_training(optimizer, store, schedule, tmp_path):
    setting, ctxs = Setting(store, 2), contexts(2)
    net = make_net(ctxs)
    trainer = setting.trainer(net, optimizer, schedule())
    start = train(net, trainer, ctxs, end=3)
    trainer.save_states(str(tmp_path / "states"))
    for _ in range(3):  # counts and rates are reset, although MXNet's schedulers have moved on
        set_arrays(net, start)
        trainer.load_states(str(tmp_path / "states"))
        assert arrays_equal(train(net, trainer, ctxs, 3), train_uninterrupted(optimizer, setting, schedule))


FAST = {"lars": {"eta": 1.0}, "own lars": {"eta": 1.0}}  # its steps would be lost in float16
ALL = [
    *sorted(set(mx.optimizer.Optimizer.opt_registry) - {"test", "groupadagrad", "sgld"}),
    *(f"own {name}" for name in OWN),
]


def make_products(dtype, start=None):
    """Return parameters with gradients that MXNet computes also in float16, and a training step."""
    params = [
        gluon.Parameter(f"p{i}_weight", shape=shape, dtype=dtype) for i, shape in enumerate([(3, 4), (5,), (2, 2)])
    ]
    for i, param in enumerate(params):
        param.initialize(mx.init.Normal(0.3), ctx=device())
        values = start[i] if start else np.random.RandomState(i).normal(0, 0.3, param.shape)
        param.set_data(nd.array(values, dtype=dtype))

    def step(trainer, number):
        with mx.autograd.record():
            losses = [((param.list_data()[0] - number * 0.01) ** 2 * (i + 1)).sum() for i, param in enumerate(params)]
        mx.autograd.backward(losses)
        trainer.step(2)

    return params, step


KEPT = [("lbsgd", "float32"), ("nadam", "float32"), ("lamb", "float32"), ("sgd", "float16"), ("own nag", "float16")]


@pytest.mark.parametrize("optimizer, dtype", product_cases(ALL, ["float32", "float16"], keep=KEPT))
def test_every_optimizer_continues_with_the_same_bits(optimizer, dtype, tmp_path):
    # On one device, so that optimizers whose replicas drift apart can take part; with master copies of float16.
    results = []

    def make_trainer(params):
        settings = {"multi_precision": dtype == "float16", "lr_scheduler": halving(), **FAST.get(optimizer, {})}
        return BucketedTrainer(params, *trainer_arguments(optimizer, settings))

    for is_interrupted in (False, True):
        params, step = make_products(dtype)
        trainer, start = make_trainer(params), [param.list_data()[0].asnumpy() for param in params]
        for number in range(6):
            if is_interrupted and number == 3:
                trainer.save_states(str(tmp_path / "states"))
                params, step = make_products(dtype, [param.list_data()[0].asnumpy() for param in params])
                trainer = make_trainer(params)
                trainer.load_states(str(tmp_path / "states"))
            step(trainer, number)
        results.append([param.list_data()[0].asnumpy() for param in params])
    assert arrays_equal(*results) and all(np.isfinite(array).all() for array in results[0])
    assert not any(np.array_equal(*arrays) for arrays in zip(results[0], start))


@pytest.mark.parametrize(
    "setting", [Setting("device", 2, 40), Setting("sharded-optimizer", 3), Setting("ring", 2, 0)], ids=str
)
def test_states_wait_for_shapes_that_are_not_known_yet(setting, tmp_path):
    path, ctxs = str(tmp_path / "states"), contexts(setting.devices)
    net = make_net(ctxs)
    trainer = setting.trainer(net, "adam")
    start = train(net, trainer, ctxs, end=3)
    trainer.save_states(path)
    expected = train(net, trainer, ctxs, 3)
    later = make_net(ctxs, shapes=False)
    trainer = setting.trainer(later, "adam")
    trainer.load_states(path)
    saved = nd.load(path)
    trainer.save_states(path)  # pending states are saved unchanged, with the names of this network
    assert sorted(array.shape for array in nd.load(path).values()) == sorted(array.shape for array in saved.values())
    later(nd.zeros((1, 1, 2, 3), ctx=ctxs[0]))
    set_arrays(later, start)
    train_on_devices(later, trainer, ctxs, BATCHES[3:])
    assert arrays_equal(parameter_arrays(later), expected)


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("store", STORE)
def test_states_may_be_loaded_after_the_parameters(store, steps, tmp_path):
    # load_parameters makes a trainer whose store updates prepare the store again.
    params, states, setting, ctxs = str(tmp_path / "params"), str(tmp_path / "states"), Setting(store, 2), contexts(2)
    net, resumed = make_net(ctxs), make_net(ctxs)
    trainer = setting.trainer(net, "sgd")
    train(net, trainer, ctxs, end=3)
    net.save_parameters(params)
    trainer.save_states(states)
    expected = train(net, trainer, ctxs, 3)
    trainer = setting.trainer(resumed, "sgd")
    train(resumed, trainer, ctxs, end=steps)
    resumed.load_parameters(params, ctx=ctxs)
    trainer.load_states(states)
    assert arrays_equal(train(resumed, trainer, ctxs, 3), expected)


@pytest.mark.parametrize(
    "optimizer, store", product_cases(["sgd", "adam"], STORE, keep=[("adam", "sharded-optimizer")])
)
def test_gathered_states_are_copies_that_can_be_restored(optimizer, store):
    setting, ctxs = Setting(store, 2), contexts(2)
    net = make_net(ctxs)
    trainer = setting.trainer(net, optimizer, halving())
    start, states = train(net, trainer, ctxs, end=3), gather_states(trainer)
    before = states_to_numpy(states)
    train(net, trainer, ctxs, 3)
    set_arrays(net, start)
    restore_states(trainer, states)
    np.testing.assert_equal(states_to_numpy(gather_states(trainer)), before)
    assert arrays_equal(train(net, trainer, ctxs, 3), train_uninterrupted(optimizer, setting))
    np.testing.assert_equal(states_to_numpy(states), before)


def states_to_numpy(states):
    return {name: array.asnumpy() for name, array in states.items()}


def test_a_state_is_whole_and_named_by_its_parameter():
    # Adam's mean after one step is a tenth of the gradient.
    results = []
    for setting in (Setting(), Setting("device", 3, 40), Setting("sharded-optimizer", 4), Setting("ring", 2, 0)):
        net = make_net(contexts(setting.devices), prefix="net_")
        trainer = setting.trainer(net, "adam")
        train(net, trainer, contexts(setting.devices), end=1)
        results.append(states_to_numpy(gather_states(trainer)))
    net = make_net(contexts(1), prefix="net_")
    with mx.autograd.record():
        images, labels = (nd.array(array, ctx=device()) for array in BATCHES[0])
        loss = gluon.loss.SoftmaxCrossEntropyLoss()(net(images), labels).mean()
    loss.backward()
    for name, param in net.collect_params().items():
        for arrays in results:
            assert np.allclose(arrays[f"state/0/{name}"], 0.1 * param.list_grad()[0].asnumpy(), rtol=1e-4, atol=1e-8)
            assert arrays[f"parameter/{name}"].tolist() == [1, *param.shape]
    assert all(arrays.keys() == results[0].keys() for arrays in results)


@pytest.mark.parametrize("setting", [Setting("device", 2), Setting("sharded-optimizer", 2)], ids=str)
def test_a_rate_set_by_hand_is_restored_and_the_rate_of_a_schedule_is_not(setting, tmp_path):
    path, ctxs, rates = str(tmp_path / "states"), contexts(2), LearningRates(0.5, 10, "linear")
    net = make_net(ctxs)
    trainer = setting.trainer(net, "adam")
    train(net, trainer, ctxs, end=2)
    trainer.set_learning_rate(0.003)
    trainer.save_states(path)
    for schedule, expected in ((None, 0.003), (FunctionSchedule(rates), rates(2))):
        other = setting.trainer(make_net(ctxs), "adam", schedule)
        other.load_states(path)
        assert other.learning_rate == expected


@pytest.mark.parametrize(
    "optimizer, bucket_bytes", product_cases(["sgd", "adam"], [0, 4 * 2**20], keep=[("adam", 4 * 2**20)])
)
def test_parameters_that_were_frozen_have_their_own_counts(optimizer, bucket_bytes, tmp_path):
    # In one bucket with parameters that were not; gluon.Trainer counts each by itself.
    results, ctxs = [], contexts(1)
    for ours in (False, True):
        net = make_net(ctxs)

        def make_trainer(net=net, ours=ours):
            if ours:
                return Setting(bucket_bytes=bucket_bytes).trainer(net, optimizer)
            return gluon.Trainer(net.collect_params(), optimizer, dict(OPTIMIZERS[optimizer]), kvstore=None)

        net[0].collect_params().setattr("grad_req", "null")
        trainer = make_trainer()
        train(net, trainer, ctxs, end=3)
        net[0].collect_params().setattr("grad_req", "write")
        if ours:
            trainer.save_states(str(tmp_path / "states"))
            trainer = make_trainer()
            trainer.load_states(str(tmp_path / "states"))
            assert update_counts(net, trainer) == [0, 0, 3, 3, 3, 3]
        results.append(train(net, trainer, ctxs, 3))
    assert relative_distance(results[1], results[0]) <= 1e-6


def update_counts(net, trainer):
    states = gather_states(trainer)
    return [int(states[f"parameter/{name}"].asnumpy()[0]) for name in net.collect_params()]


CUT, WHOLE_KEYS = Setting("sharded-optimizer", 3), Setting("ring", 2)
LEFT_OUT = [("adam", CUT), ("own sgd", WHOLE_KEYS)]


@pytest.mark.parametrize("optimizer, second", product_cases(["own sgd", "adam"], [CUT, WHOLE_KEYS], keep=LEFT_OUT))
def test_parameters_that_some_steps_leave_out_have_their_own_counts(optimizer, second, tmp_path):
    # In one bucket with others; the reference uses no files, and a bucket for each parameter.
    results = []
    for setting in (Setting(bucket_bytes=0), second):
        ctxs = contexts(setting.devices)
        net = make_net(ctxs)
        trainer = setting.trainer(net, optimizer, halving())
        for number, batch in enumerate(BATCHES):
            if setting is second and number in (2, 4):
                trainer.save_states(str(tmp_path / "states"))
                net = make_net(ctxs, parameter_arrays(net))
                trainer = setting.trainer(net, optimizer, halving())
                trainer.load_states(str(tmp_path / "states"))
            images, labels = (shard(nd.array(array), ctxs) for array in batch)
            used = net[0] if number in (0, 3) else net
            with mx.autograd.record():
                losses = [(used(x).sum(axis=1) * (1 + y)).sum() for x, y in zip(images, labels)]
            mx.autograd.backward(losses)
            trainer.step(len(batch[0]), ignore_stale_grad=True)
        results.append(parameter_arrays(net))
        assert update_counts(net, trainer) == [5, 5, 3, 3, 3, 3]
    assert relative_distance(results[1], results[0]) <= 1e-5


def test_a_full_disk_is_an_error_and_keeps_the_old_states(tmp_path):
    file = tmp_path / "states"
    trainer = Setting().trainer(make_net(contexts(1)), "adam")
    trainer.save_states(str(file))
    content, message = file.read_bytes(), r"cannot write .*states: File too large; choose another place$"
    with limit_file_size(len(content) - 1), pytest.raises(OutputError, match=message):
        trainer.save_states(str(file))
    assert file.read_bytes() == content
