"""Optimizer states go from any store, buckets and devices to any others, and training goes on as if
it had not stopped.
"""

from dataclasses import dataclass
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
WHOLE = ("lamb", "dcasgd", "own lars")  # what looks at more than an element


def network(ctxs, start=None, shapes=True, prefix=None):
    """Small layers: one has fewer elements than some runs have devices."""
    mx.random.seed(5)
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(nn.Dense(7, activation="tanh"), nn.Dense(1, activation="tanh"), nn.Dense(4))
    net.initialize(mx.init.Normal(0.3), ctx=ctxs)
    if shapes:
        net(nd.zeros((1, 1, 2, 3), ctx=ctxs[0]))
    put(net, start)
    return net


def put(net, start):
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


def interrupted(optimizer, first, second, file, schedule=halving, stop=3):
    """Some steps under the one setting, a file, and the others under the other; the last
    parameters.
    """
    ctxs = contexts(first.devices)
    net = network(ctxs)
    trainer = first.trainer(net, optimizer, schedule())
    train_on_devices(net, trainer, ctxs, BATCHES[:stop])
    trainer.save_states(file)
    ctxs = contexts(second.devices)
    net = network(ctxs, parameter_arrays(net))
    trainer = second.trainer(net, optimizer, schedule())
    trainer.load_states(file)
    train_on_devices(net, trainer, ctxs, BATCHES[stop:])
    return parameter_arrays(net)


@lru_cache(maxsize=None)
def uninterrupted(optimizer, setting=None, schedule=halving):
    """All steps: under a setting, or with gluon.Trainer on one device."""
    ctxs = contexts(setting.devices if setting else 1)
    net = network(ctxs)
    if setting:
        trainer = setting.trainer(net, optimizer, schedule())
    else:
        params = {**OPTIMIZERS[optimizer], "lr_scheduler": schedule()}
        params["lr_scheduler"].base_lr = params.get("learning_rate", 0.01)
        trainer = gluon.Trainer(net.collect_params(), *trainer_arguments(optimizer, params), kvstore=None)
    train_on_devices(net, trainer, ctxs, BATCHES)
    return parameter_arrays(net)


@examples(4, 120)
@given(st.sampled_from(sorted(OPTIMIZERS)), SETTINGS, SETTINGS)
def test_states_go_to_any_store_buckets_and_devices(tmp_path_factory, optimizer, first, second):
    if optimizer in WHOLE:
        first, second = (
            s if s.store != "sharded-optimizer" else Setting("ring", s.devices, s.bucket_bytes) for s in (first, second)
        )
    found = interrupted(optimizer, first, second, str(tmp_path_factory.getbasetemp() / "states"))
    assert relative_distance(found, uninterrupted(optimizer)) <= 1e-5


@pytest.mark.parametrize(
    "optimizer, store", product_cases(["sgd", "adam", "own nag"], STORE, keep=[("own nag", "sharded-optimizer")])
)
def test_the_same_setting_goes_on_to_the_bit(optimizer, store, tmp_path):
    setting = Setting(store, 3, 40)
    found = interrupted(optimizer, setting, setting, str(tmp_path / "states"))
    assert arrays_equal(found, uninterrupted(optimizer, setting))


def ending():
    return mx.lr_scheduler.PolyScheduler(max_update=4)


def ended():
    """Before the states are saved: MXNet's goes on with the rate that it was last asked for, which
    a new one never was.
    """
    return mx.lr_scheduler.PolyScheduler(max_update=2, final_lr=0.003)


def cosine():
    return Followed(LearningRates(0.01, 5, "cosine"))


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
    """The counts, and with them the rate, go back, although MXNet's schedulers have moved on; and a
    second time.
    """
    setting, ctxs = Setting(store, 2), contexts(2)
    net = network(ctxs)
    trainer = setting.trainer(net, optimizer, schedule())
    train_on_devices(net, trainer, ctxs, BATCHES[:3])
    trainer.save_states(str(tmp_path / "states"))
    start = parameter_arrays(net)
    for _ in range(3):
        put(net, start)
        trainer.load_states(str(tmp_path / "states"))
        train_on_devices(net, trainer, ctxs, BATCHES[3:])
        assert arrays_equal(parameter_arrays(net), uninterrupted(optimizer, setting, schedule))


class Followed:
    """A schedule as a function of the step."""

    def __init__(self, rates):
        self.rates, self.base_lr = rates, 0

    def __call__(self, step):
        return self.rates(step)


FAST = {"lars": {"eta": 1.0}, "own lars": {"eta": 1.0}}  # its steps would be lost in float16
ALL = [
    *sorted(set(mx.optimizer.Optimizer.opt_registry) - {"test", "groupadagrad", "sgld"}),
    *(f"own {name}" for name in OWN),
]


def products(dtype, start=None):
    """Parameters of which MXNet can compute gradients in float16, too, and a step with them."""
    params = [
        gluon.Parameter(f"p{i}_weight", shape=shape, dtype=dtype) for i, shape in enumerate([(3, 4), (5,), (2, 2)])
    ]
    for i, param in enumerate(params):
        param.initialize(mx.init.Normal(0.3), ctx=device())
        param.set_data(
            nd.array(start[i] if start else np.random.RandomState(i).normal(0, 0.3, param.shape), dtype=dtype)
        )

    def step(trainer, number):
        with mx.autograd.record():
            losses = [((param.list_data()[0] - number * 0.01) ** 2 * (i + 1)).sum() for i, param in enumerate(params)]
        mx.autograd.backward(losses)
        trainer.step(2)

    return params, step


KEPT = [("lbsgd", "float32"), ("nadam", "float32"), ("lamb", "float32"), ("sgd", "float16"), ("own nag", "float16")]


@pytest.mark.parametrize("optimizer, dtype", product_cases(ALL, ["float32", "float16"], keep=KEPT))
def test_every_optimizer_that_is_offered_goes_on_to_the_bit(optimizer, dtype, tmp_path):
    """On one device, also those whose replicas drift apart; with master copies of float16."""
    results = []
    for split in (False, True):
        settings = {"multi_precision": dtype == "float16", "lr_scheduler": halving(), **FAST.get(optimizer, {})}
        params, step = products(dtype)
        trainer = BucketedTrainer(params, *trainer_arguments(optimizer, settings))
        for number in range(6):
            if split and number == 3:
                trainer.save_states(str(tmp_path / "states"))
                params, step = products(dtype, [param.list_data()[0].asnumpy() for param in params])
                trainer = BucketedTrainer(
                    params, *trainer_arguments(optimizer, {**settings, "lr_scheduler": halving()})
                )
                trainer.load_states(str(tmp_path / "states"))
            step(trainer, number)
        results.append([param.list_data()[0].asnumpy() for param in params])
    assert all(np.array_equal(a, b) and np.isfinite(a).all() for a, b in zip(*results))
    assert all(
        not np.array_equal(a, param.list_data()[0].asnumpy()) for a, param in zip(results[0], products(dtype)[0])
    )


@pytest.mark.parametrize(
    "setting", [Setting("device", 2, 40), Setting("sharded-optimizer", 3), Setting("ring", 2, 0)], ids=str
)
def test_states_wait_for_shapes_that_are_not_known_yet(setting, tmp_path):
    path, ctxs = str(tmp_path / "states"), contexts(setting.devices)
    net = network(ctxs)
    trainer = setting.trainer(net, "adam")
    train_on_devices(net, trainer, ctxs, BATCHES[:3])
    trainer.save_states(path)
    start = parameter_arrays(net)
    train_on_devices(net, trainer, ctxs, BATCHES[3:])
    later = network(ctxs, shapes=False)
    trainer = setting.trainer(later, "adam")
    trainer.load_states(path)
    saved = nd.load(path)
    trainer.save_states(path)  # what waits is saved as it came, under the names of this network
    assert sorted(array.shape for array in nd.load(path).values()) == sorted(array.shape for array in saved.values())
    later(nd.zeros((1, 1, 2, 3), ctx=ctxs[0]))
    put(later, start)
    train_on_devices(later, trainer, ctxs, BATCHES[3:])
    assert arrays_equal(parameter_arrays(later), parameter_arrays(net))


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("store", STORE)
def test_states_may_be_loaded_after_the_parameters(store, steps, tmp_path):
    """load_parameters has a trainer whose store updates prepare that anew."""
    files, setting, ctxs = ([str(tmp_path / name) for name in ("params", "states")], Setting(store, 2), contexts(2))
    net = network(ctxs)
    trainer = setting.trainer(net, "sgd")
    train_on_devices(net, trainer, ctxs, BATCHES[:3])
    net.save_parameters(files[0])
    trainer.save_states(files[1])
    train_on_devices(net, trainer, ctxs, BATCHES[3:])
    resumed = network(ctxs)
    trainer = setting.trainer(resumed, "sgd")
    train_on_devices(resumed, trainer, ctxs, BATCHES[:steps])
    resumed.load_parameters(files[0], ctx=ctxs)
    trainer.load_states(files[1])
    train_on_devices(resumed, trainer, ctxs, BATCHES[3:])
    assert arrays_equal(parameter_arrays(resumed), parameter_arrays(net))


@pytest.mark.parametrize(
    "optimizer, store", product_cases(["sgd", "adam"], STORE, keep=[("adam", "sharded-optimizer")])
)
def test_states_go_through_memory_too(optimizer, store):
    """As copies: what is trained meanwhile does not change them."""
    setting, ctxs = Setting(store, 2), contexts(2)
    net = network(ctxs)
    trainer = setting.trainer(net, optimizer, halving())
    train_on_devices(net, trainer, ctxs, BATCHES[:3])
    states, start = gather_states(trainer), parameter_arrays(net)
    before = {name: array.asnumpy() for name, array in states.items()}
    train_on_devices(net, trainer, ctxs, BATCHES[3:])
    assert all(np.array_equal(array.asnumpy(), before[name]) for name, array in states.items())
    put(net, start)
    restore_states(trainer, states)
    assert all(np.array_equal(array.asnumpy(), before[name]) for name, array in gather_states(trainer).items())
    train_on_devices(net, trainer, ctxs, BATCHES[3:])
    assert all(np.array_equal(array.asnumpy(), before[name]) for name, array in states.items())
    assert arrays_equal(parameter_arrays(net), uninterrupted(optimizer, setting))


def test_a_state_is_whole_and_named_by_its_parameter():
    """Adam's mean after one step is a tenth of the gradient, wherever its parts lie."""
    found = []
    for setting in (Setting(), Setting("device", 3, 40), Setting("sharded-optimizer", 4), Setting("ring", 2, 0)):
        ctxs = contexts(setting.devices)
        net = network(ctxs, prefix="net_")
        trainer = setting.trainer(net, "adam")
        train_on_devices(net, trainer, ctxs, BATCHES[:1])
        found.append({name: array.asnumpy() for name, array in gather_states(trainer).items()})
    net = network(contexts(1), prefix="net_")
    with mx.autograd.record():
        images, labels = (nd.array(array, ctx=device()) for array in BATCHES[0])
        loss = gluon.loss.SoftmaxCrossEntropyLoss()(net(images), labels).mean()
    loss.backward()
    for name, param in net.collect_params().items():
        for arrays in found:
            assert np.allclose(arrays[f"state/0/{name}"], 0.1 * param.list_grad()[0].asnumpy(), rtol=1e-4, atol=1e-8)
            assert arrays[f"parameter/{name}"].tolist() == [1, *param.shape]
    assert all(arrays.keys() == found[0].keys() for arrays in found)


@pytest.mark.parametrize("setting", [Setting("device", 2), Setting("sharded-optimizer", 2)], ids=str)
def test_a_rate_that_was_set_by_hand_comes_back_and_one_of_a_schedule_does_not(setting, tmp_path):
    """As with gluon.Trainer."""
    path, ctxs = str(tmp_path / "states"), contexts(2)
    net = network(ctxs)
    trainer = setting.trainer(net, "adam")
    train_on_devices(net, trainer, ctxs, BATCHES[:2])
    trainer.set_learning_rate(0.003)
    trainer.save_states(path)
    other = setting.trainer(network(ctxs), "adam")
    other.load_states(path)
    assert other.learning_rate == 0.003
    other = setting.trainer(network(ctxs), "adam", Followed(LearningRates(0.5, 10, "linear")))
    other.load_states(path)
    assert other.learning_rate == LearningRates(0.5, 10, "linear")(2)


def make(net, ours, optimizer, bucket_bytes):
    if ours:
        return Setting(bucket_bytes=bucket_bytes).trainer(net, optimizer)
    return gluon.Trainer(net.collect_params(), optimizer, dict(OPTIMIZERS[optimizer]), kvstore=None)


@pytest.mark.parametrize(
    "optimizer, bucket_bytes", product_cases(["sgd", "adam"], [0, 4 * 2**20], keep=[("adam", 4 * 2**20)])
)
def test_parameters_that_were_frozen_have_their_own_counts(optimizer, bucket_bytes, tmp_path):
    """They begin anew beside those that go on, in one bucket; the reference is gluon.Trainer, which
    counts each by itself.
    """
    results = []
    for ours in (False, True):
        net = network(contexts(1))
        net[0].collect_params().setattr("grad_req", "null")
        trainer = make(net, ours, optimizer, bucket_bytes)
        train_on_devices(net, trainer, contexts(1), BATCHES[:3])
        net[0].collect_params().setattr("grad_req", "write")
        if ours:
            trainer.save_states(str(tmp_path / "states"))
            trainer = make(net, ours, optimizer, bucket_bytes)
            trainer.load_states(str(tmp_path / "states"))
            counts = [gather_states(trainer)[f"parameter/{name}"].asnumpy()[0] for name in net.collect_params()]
            assert counts == [0, 0, 3, 3, 3, 3]
        train_on_devices(net, trainer, contexts(1), BATCHES[3:])
        results.append(parameter_arrays(net))
    assert relative_distance(results[1], results[0]) <= 1e-6


CUT, WHOLE_KEYS = Setting("sharded-optimizer", 3), Setting("ring", 2)
LEFT_OUT = [("adam", CUT), ("own sgd", WHOLE_KEYS)]


@pytest.mark.parametrize("optimizer, second", product_cases(["own sgd", "adam"], [CUT, WHOLE_KEYS], keep=LEFT_OUT))
def test_parameters_that_a_step_left_out_keep_their_own_counts(optimizer, second, tmp_path):
    """Under every store, in one bucket with others; the reference goes on without files, with a
    bucket for each parameter.
    """
    results = []
    for setting in (Setting(bucket_bytes=0), second):
        ctxs = contexts(setting.devices)
        net = network(ctxs)
        trainer = setting.trainer(net, optimizer, halving())
        for number, batch in enumerate(BATCHES):
            if setting is second and number in (2, 4):
                trainer.save_states(str(tmp_path / "states"))
                net = network(ctxs, parameter_arrays(net))
                trainer = setting.trainer(net, optimizer, halving())
                trainer.load_states(str(tmp_path / "states"))
            one_step(net, trainer, ctxs, batch, net[0] if number in (0, 3) else net)
        results.append(parameter_arrays(net))
        states = gather_states(trainer)
        counts = [int(states[f"parameter/{name}"].asnumpy()[0]) for name in net.collect_params()]
        assert counts == [5, 5, 3, 3, 3, 3]
    assert relative_distance(results[1], results[0]) <= 1e-5


def one_step(net, trainer, ctxs, batch, used):
    images, labels = (shard(nd.array(array), ctxs) for array in batch)
    with mx.autograd.record():
        losses = [(used(x).sum(axis=1) * (1 + y)).sum() for x, y in zip(images, labels)]
    mx.autograd.backward(losses)
    trainer.step(len(batch[0]), ignore_stale_grad=True)


def test_states_for_which_there_is_no_room_are_an_error_and_the_old_ones_stay(tmp_path):
    file = tmp_path / "states"
    trainer = Setting().trainer(network(contexts(1)), "adam")
    trainer.save_states(str(file))
    whole = file.read_bytes()
    with limit_file_size(len(whole) - 1), pytest.raises(
        OutputError, match=r"cannot write .*states: File too large; choose another place$"
    ):
        trainer.save_states(str(file))
    assert file.read_bytes() == whole
