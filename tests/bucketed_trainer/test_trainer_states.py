"""Optimizer states move between stores, buckets, devices, names and trainers; bad files are refused."""

import os
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import gluon, nd
from mxnet.gluon import nn
from support.covering import product_cases
from support.damage import corrupt_bytes
from support.devices import contexts, device
from support.examples import examples
from support.full_disk import limit_file_size
from support.reference import arrays_equal, parameter_arrays, random_batches, relative_distance, train_on_devices
from support.updates import trainer_arguments

from gluonlab.bucketed_trainer.gluon_export import export_gluon_states
from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.bucketed_trainer.trainer_states import gather_states, restore_states
from gluonlab.data.loading.split_batch import shard
from gluonlab.errors import GluonlabWarning, KVStoreError, OutputError
from gluonlab.kvstores import make_kvstore
from gluonlab.optimizers import optimizer_states
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


def make_net(ctxs=None, start=None, shapes=True, prefix=None, units=(7, 1, 4), names=None):
    """Return a net with fewer elements in a layer than some runs have devices."""
    mx.random.seed(5)
    net, ctxs = nn.HybridSequential(prefix=prefix), ctxs or contexts(1)
    with net.name_scope() if names is None else nullcontext():
        prefixes = [f"{name}_" for name in names] if names else [None] * len(units)
        net.add(*[nn.Dense(n, activation="tanh", prefix=prefix) for n, prefix in zip(units, prefixes)])
    net.initialize(mx.init.Normal(0.3), ctx=ctxs)
    if shapes:
        net(nd.zeros((1, 1, 2, 3), ctx=ctxs[0]))
    set_arrays(net, start)
    return net


make_deep_net = partial(make_net, units=(3, 3, 3, 4))  # layers of equal shapes


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


def make_trainer(net, optimizer="adam", store="device", **params):
    return Setting(store).trainer(net, optimizer, **params)


def make_gluon_trainer(net, optimizer="adam", store=None, params=None, **settings):
    arguments = trainer_arguments(optimizer, {**OPTIMIZERS[optimizer], **(params or {})})
    store = make_kvstore(store) if store == "sharded-optimizer" else store
    return gluon.Trainer(net.collect_params(), *arguments, kvstore=store, **settings)


SETTINGS = st.builds(Setting, st.sampled_from(STORES), st.integers(1, 4), st.sampled_from([0, 40, 4 * 2**20]))


def halving():
    return mx.lr_scheduler.FactorScheduler(step=2, factor=0.5)


def train(net, trainer, ctxs, begin=0, end=None):
    train_on_devices(net, trainer, ctxs, BATCHES[begin:end])
    return parameter_arrays(net)


def train_three_steps(setting, optimizer, schedule=halving):
    """Return net, trainer, and parameters after three of the five steps."""
    net = make_net(contexts(setting.devices))
    trainer = setting.trainer(net, optimizer, schedule())
    return net, trainer, train(net, trainer, contexts(setting.devices), end=3)


def train_interrupted(optimizer, first, second, file):
    """Train for some steps with one setting, save the states, and continue with the other."""
    _, trainer, start = train_three_steps(first, optimizer)
    trainer.save_states(file)
    net = make_net(contexts(second.devices), start)
    trainer = second.trainer(net, optimizer, halving())
    trainer.load_states(file)
    return train(net, trainer, contexts(second.devices), 3)


@lru_cache(maxsize=None)
def train_uninterrupted(optimizer, setting=None, schedule=halving):
    """Train with a setting, or with gluon.Trainer on one device."""
    ctxs = contexts(setting.devices if setting else 1)
    net = make_net(ctxs)
    if setting:
        return train(net, setting.trainer(net, optimizer, schedule()), ctxs)
    params = {"lr_scheduler": schedule()}
    params["lr_scheduler"].base_lr = OPTIMIZERS[optimizer].get("learning_rate", 0.01)
    return train(net, make_gluon_trainer(net, optimizer, params=params), ctxs)


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
    result = train_interrupted(optimizer, setting, setting, str(tmp_path / "states"))
    assert arrays_equal(result, train_uninterrupted(optimizer, setting))


def ending():
    return mx.lr_scheduler.PolyScheduler(max_update=4)


def ended():  # before the states are saved
    return mx.lr_scheduler.PolyScheduler(max_update=2, final_lr=0.003)


class FunctionSchedule(SimpleNamespace):
    """A schedule as the function ``rates``, with the base_lr that MXNet expects."""

    def __call__(self, step):
        return self.rates(step)


def cosine():
    return FunctionSchedule(base_lr=0, rates=LearningRates(0.01, 5, "cosine"))


MIDDLE = [("own sgd", STORE[1], halving), ("adam", "device", ended), ("own sgd", STORE[1], cosine)]


@pytest.mark.parametrize(
    "optimizer, store, schedule",
    product_cases(["own sgd", "adam"], STORE, [halving, ending, ended, cosine], keep=MIDDLE),
)
def test_states_may_be_loaded_in_the_middle_of_training(optimizer, store, schedule, tmp_path):
    setting, ctxs = Setting(store, 2), contexts(2)
    net, trainer, start = train_three_steps(setting, optimizer, schedule)
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
    results = []

    def make_trainer(params):  # on one device, so that optimizers whose replicas drift apart can take part
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
    _, trainer, start = train_three_steps(setting, "adam")
    trainer.save_states(path)
    later, saved = make_net(ctxs, shapes=False), nd.load(path)
    trainer = setting.trainer(later, "adam", halving())
    trainer.load_states(path)
    trainer.save_states(path)  # pending states are saved unchanged, with the names of this network
    assert sorted(array.shape for array in nd.load(path).values()) == sorted(array.shape for array in saved.values())
    later(nd.zeros((1, 1, 2, 3), ctx=ctxs[0]))
    set_arrays(later, start)
    assert arrays_equal(train(later, trainer, ctxs, 3), train_uninterrupted("adam", setting))


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("store", STORE)
def test_states_may_be_loaded_after_the_parameters(store, steps, tmp_path):
    # load_parameters makes a trainer whose store updates prepare the store again.
    params, states, setting, ctxs = str(tmp_path / "params"), str(tmp_path / "states"), Setting(store, 2), contexts(2)
    net, trainer, _ = train_three_steps(setting, "sgd")
    net.save_parameters(params)
    trainer.save_states(states)
    resumed = make_net(ctxs)
    trainer = setting.trainer(resumed, "sgd", halving())
    train(resumed, trainer, ctxs, end=steps)
    resumed.load_parameters(params, ctx=ctxs)
    trainer.load_states(states)
    assert arrays_equal(train(resumed, trainer, ctxs, 3), train_uninterrupted("sgd", setting))


@pytest.mark.parametrize(
    "optimizer, store", product_cases(["sgd", "adam"], STORE, keep=[("adam", "sharded-optimizer")])
)
def test_gathered_states_are_copies_that_can_be_restored(optimizer, store):
    setting, ctxs = Setting(store, 2), contexts(2)
    net, trainer, start = train_three_steps(setting, optimizer)
    states = gather_states(trainer)
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
    for schedule, expected in ((None, 0.003), (FunctionSchedule(base_lr=0, rates=rates), rates(2))):
        other = setting.trainer(make_net(ctxs), "adam", schedule)
        other.load_states(path)
        assert other.learning_rate == expected


@pytest.mark.parametrize(
    "optimizer, bucket_bytes", product_cases(["sgd", "adam"], [0, 4 * 2**20], keep=[("adam", 4 * 2**20)])
)
def test_parameters_that_were_frozen_have_their_own_counts(optimizer, bucket_bytes, tmp_path):
    # In one bucket with parameters that were not; gluon.Trainer counts each by itself.
    results, ctxs = [], contexts(1)
    for make in (make_gluon_trainer, Setting(bucket_bytes=bucket_bytes).trainer):
        net = make_net(ctxs)
        net[0].collect_params().setattr("grad_req", "null")
        trainer = make(net, optimizer)
        train(net, trainer, ctxs, end=3)
        net[0].collect_params().setattr("grad_req", "write")
        if make is not make_gluon_trainer:
            trainer.save_states(str(tmp_path / "states"))
            trainer = make(net, optimizer)
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
    content, message = file.read_bytes(), r"File too large; choose another path"
    with limit_file_size(len(content) - 1), pytest.raises(OutputError, match=message):
        trainer.save_states(str(file))
    assert file.read_bytes() == content


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return (file, parameters when it was saved, parameters after two more steps)."""
    path = str(tmp_path_factory.mktemp("states") / "adam")
    net = make_deep_net(prefix="mine_")
    trainer = make_trainer(net)
    start = train(net, trainer, contexts(1), end=3)
    trainer.save_states(path)
    return path, start, train(net, trainer, contexts(1), 3)


@pytest.mark.parametrize(
    "prefix, names",
    [
        # In text, dense10 comes before dense9; the layers have equal shapes, so that another order
        # would go unnoticed.
        *[("other_", [f"dense{first + i}" for i in range(4)]) for first in (0, 8, 97)],
        *[(prefix, None) for prefix in ("mine_", "yours_", "mine_again_", None, "")],
        ("", ["body", "head", "middle", "tail"]),
    ],
)
def test_names_may_have_other_numbers_and_prefixes_and_other_names_are_matched_in_order(saved, prefix, names):
    path, start, expected = saved
    net = make_deep_net(prefix=prefix, start=start, names=names)
    trainer = make_trainer(net)
    message = r"states are assigned by position: body_bias uses the state of mine_dense0_bias$"
    with pytest.warns(GluonlabWarning, match=message) if names and names[0] == "body" else nullcontext():
        trainer.load_states(path)
    assert arrays_equal(train(net, trainer, contexts(1), 3), expected)


def check_refusal(trainer, path, message):
    """Check that load_states refuses a file in one line and changes nothing."""
    before, lr = states_to_numpy(gather_states(trainer)), trainer.learning_rate
    with pytest.raises(KVStoreError, match=message) as raised:
        trainer.load_states(str(path))
    assert "\n" not in str(raised.value) and lr == trainer.learning_rate
    np.testing.assert_equal(states_to_numpy(gather_states(trainer)), before)


def make_trained(net, *args, devices=1, **kwargs):
    trainer = make_trainer(net, *args, **kwargs)
    train(net, trainer, contexts(devices), end=1)
    return trainer


@pytest.mark.parametrize(
    ("optimizer", "units", "message"),
    [
        ("sgd", (3, 3, 3, 4), "create the trainer with 'adam', or start without saved states"),
        (
            "adam",
            (3, 5, 3, 4),
            (
                r"the saved mine_dense1_bias has shape \(3,\), but .*dense1_bias has shape \(5,\): "
                r"use the network"
            ),
        ),
        ("adam", (3, 3, 4), "use the network that the states were saved with"),
    ],
)
@pytest.mark.parametrize("store, devices", [("device", 1), ("sharded-optimizer", 2)])
def test_states_of_another_optimizer_or_network_are_refused(saved, store, devices, optimizer, units, message):
    net = make_deep_net(contexts(devices), units=units)
    check_refusal(make_trained(net, optimizer, store, devices=devices), saved[0], message)


def test_settings_of_the_optimizer_that_change_its_state_are_refused(tmp_path):
    path = str(tmp_path / "states")
    make_trained(make_deep_net(), "sgd").save_states(path)
    message = ": the number of state arrays of .* is 1, but SGD needs 0 with the current settings: use the settings"
    check_refusal(make_trained(make_deep_net(), "sgd", momentum=0.0), path, message)


def test_files_of_other_things_are_refused(saved, tmp_path):
    net, content = make_deep_net(), Path(saved[0]).read_bytes()
    net.save_parameters(str(tmp_path / "params"))
    nd.save(str(tmp_path / "list"), [nd.ones((1,))])
    nd.save(str(tmp_path / "sharded"), {"0/0/0": nd.ones((3,)), "0/updates": nd.ones((1,))})
    (tmp_path / "text").write_text("states")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    (tmp_path / "short").write_bytes(content[:-20])
    (tmp_path / "twice").write_bytes(content + content)
    trainer = make_trained(net)
    for name, message in {
        "params": "'.*params' contains no optimizer states, only other arrays: load a file that save_states wrote",
        "list": "cannot be read as optimizer states",
        "sharded": "contains states of kvstore 'sharded-optimizer' from an earlier version of gluonlab, ",
        "text": "neither a list of arrays nor a pickle",
        "empty": "neither a list of arrays nor a pickle",
        "short": "cut off",
        "twice": "bytes after the end of the list",
        "folder": "cannot be read: Is a directory",
        "none": "cannot be read: No such file",
    }.items():
        check_refusal(trainer, tmp_path / name, message)


def save_in_form(trainer, path, form):
    trainer.save_states(path) if form == "gluonlab's" else export_gluon_states(trainer, path)


@contextmanager
def open_pipe(path):
    """Make a pipe that contains some bytes and is not closed."""
    os.mkfifo(path)
    end = os.open(path, os.O_RDWR)
    os.write(end, b"something")
    yield path
    os.close(end)


@pytest.mark.parametrize("store", ["device", "sharded-optimizer"])
@pytest.mark.parametrize("form", ["gluonlab's", "gluon's"])
def test_pipes_devices_and_files_that_are_too_large_are_refused(saved, store, form, tmp_path):
    path = str(tmp_path / "states")
    trainer = make_trained(make_deep_net(contexts(2)), store=store, devices=2)
    save_in_form(trainer, path, form)
    os.truncate(path, 2**30)
    check_refusal(
        trainer,
        path,
        r"has 1,073,741,824 bytes, but the states of this model's parameters need at most 67,.* bytes: load",
    )
    if store == "sharded-optimizer":
        net = make_deep_net(contexts(2))
        gluon_trainer = make_gluon_trainer(net, store=store)
        train(net, gluon_trainer, contexts(2), end=1)
        with pytest.raises(KVStoreError, match="has 1,073,741,824 bytes"):
            gluon_trainer.load_states(path)
    with open_pipe(tmp_path / "pipe") as pipe:
        for other in (pipe, "/dev/zero"):
            check_refusal(trainer, other, r"cannot be read as optimizer states \(the path is not a regular file\)")


@pytest.mark.parametrize("form", ["gluonlab's", "gluon's"])
def test_the_size_limit_of_a_file_is_enough_for_any_states(form, monkeypatch, tmp_path):
    monkeypatch.setattr(optimizer_states, "ALWAYS_READ_BYTES", 2**13)  # little space for names
    trainer, file = make_trained(make_deep_net(units=(200, 300, 4))), str(tmp_path / "states")
    save_in_form(trainer, file, form)
    assert Path(file).stat().st_size > 10 * optimizer_states.ALWAYS_READ_BYTES
    trainer.load_states(file)


@pytest.mark.parametrize("store", ["device", "local"])
def test_gluons_trainer_with_a_store_that_updates_reads_only_files(store, tmp_path):
    net = make_deep_net(contexts(2))
    trainer = make_gluon_trainer(net, store=make_kvstore(store), update_on_kvstore=True)
    train(net, trainer, contexts(2), end=1)
    trainer.save_states(str(tmp_path / "states"))
    trainer.load_states(str(tmp_path / "states"))
    with open_pipe(tmp_path / "pipe") as pipe:
        for path, message in (
            (pipe, "the path is not a regular file"),
            ("/dev/zero", "the path is not a regular file"),
            (tmp_path / "nothing", "No such file"),
            (tmp_path, "Is a directory"),
        ):
            with pytest.raises(KVStoreError, match=message):
                trainer.load_states(str(path))


def test_a_path_may_be_bytes_as_for_gluons_trainer(tmp_path):
    net = make_deep_net()
    trainer = make_trained(net)
    trainer.save_states(bytes(tmp_path / "states"))
    trainer.load_states(bytes(tmp_path / "states"))
    assert [path.name for path in tmp_path.iterdir()] == ["states"]


@pytest.fixture(scope="module")
def trainer(saved):
    trainer = make_trainer(make_deep_net(prefix="mine_"))
    trainer.load_states(saved[0])
    return trainer


@settings(max_examples=20)
@given(st.data())
def test_a_damaged_file_is_loaded_or_refused_in_one_line(saved, trainer, tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "damaged-states"
    path.write_bytes(corrupt_bytes(data, Path(saved[0]).read_bytes()))
    try:
        trainer.load_states(str(path))
    except KVStoreError as error:
        assert "\n" not in str(error)
    gather_states(trainer)


# --- from and to gluon.Trainer

WAYS = {  # devices, kvstore and settings of gluon.Trainer
    "one": (1, None, {}),
    "on the store": (2, "device", {}),
    "on devices": (2, "device", {"update_on_kvstore": False}),
}


ON = [("device", 1), ("ring", 2), ("sharded-optimizer", 3)]
LOADED = [
    ("sgd", "one", ON[2]),
    ("adam", "on the store", ON[1]),
    ("adam", "on devices", ON[0]),
    ("own sgd", "one", ON[1]),
]


EXPORTED = [("adam", "on devices", ON[2]), ("own sgd", "on devices", ON[0])]


def check_move(make_first, first, save, make_second, second, set_rate):
    """Check that training continues after ``save(trainer)``, on other devices, with another trainer.

    The learning rate changes there: momentum must know its former value.
    """
    net = make_deep_net(contexts(first))
    trainer = make_first(net)
    start = train(net, trainer, contexts(first), end=3)
    path = save(trainer)
    trainer.set_learning_rate(0.01)
    expected = train(net, trainer, contexts(first), 3)
    net = make_deep_net(contexts(second), start)
    trainer = make_second(net)
    trainer.load_states(path)
    if set_rate:
        trainer.set_learning_rate(0.01)
    assert trainer.learning_rate == 0.01
    train(net, trainer, contexts(second), 3)
    assert relative_distance(parameter_arrays(net, contexts(second)[-1]), expected) <= 1e-5


@pytest.mark.parametrize("optimizer, way, store_on", product_cases(["sgd", "adam", "own sgd"], WAYS, ON, keep=LOADED))
def test_files_of_gluons_trainer_are_loaded(optimizer, way, store_on, tmp_path):
    (store, devices), (gluon_devices, kvstore, settings) = store_on, WAYS[way]

    def save(trainer):
        trainer.set_learning_rate(0.01)
        trainer.save_states(str(tmp_path / "states"))
        return str(tmp_path / "states")

    make_gluon = partial(make_gluon_trainer, optimizer=optimizer, store=kvstore, **settings)
    check_move(make_gluon, gluon_devices, save, partial(make_trainer, optimizer=optimizer, store=store), devices, False)


@pytest.mark.parametrize("optimizer, way, store_on", product_cases(["sgd", "adam", "own sgd"], WAYS, ON, keep=EXPORTED))
def test_states_are_exported_for_gluons_trainer(optimizer, way, store_on, tmp_path):
    (store, devices), (gluon_devices, kvstore, settings) = store_on, WAYS[way]

    def save(trainer):
        export_gluon_states(trainer, str(tmp_path / "states"))
        return str(tmp_path / "states")

    make_gluon = partial(make_gluon_trainer, optimizer=optimizer, store=kvstore, **settings)
    check_move(partial(make_trainer, optimizer=optimizer, store=store), devices, save, make_gluon, gluon_devices, True)


def test_an_optimizer_that_cannot_be_pickled_is_not_exported(tmp_path):
    schedule = mx.lr_scheduler.LRScheduler()
    schedule.rate = lambda step: 0.1
    trainer = BucketedTrainer(make_deep_net().collect_params(), "sgd", {"lr_scheduler": schedule})
    with pytest.raises(KVStoreError, match="cannot be pickled"):
        export_gluon_states(trainer, str(tmp_path / "states"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "optimizer, devices", product_cases(["sgd", "adam"], [(2, 3), (3, 1), (2, 2)], keep=[("adam", (2, 3))])
)
def test_sharded_states_move_between_devices_and_trainers(optimizer, devices, tmp_path):
    path, start = str(tmp_path / "states"), None
    for number, ours in enumerate((False, False, True, False)):
        ctxs = contexts(devices[number % 2])
        net = make_deep_net(ctxs, start=start)
        make = make_trainer if ours else make_gluon_trainer
        trainer = make(net, optimizer, "sharded-optimizer")
        if number:
            trainer.load_states(path)
        start = train(net, trainer, ctxs, number, number + 1)
        trainer.save_states(path)
    whole = make_deep_net()
    train_on_devices(whole, make_gluon_trainer(whole, optimizer), contexts(1), BATCHES[:4])
    assert relative_distance(start, parameter_arrays(whole)) <= 1e-5


def test_states_without_an_optimizer_keep_the_counts_of_the_trainer(tmp_path):
    net, store = make_deep_net(contexts(2)), mx.kv.create("device")
    train_on_devices(net, make_gluon_trainer(net, "adam", store), contexts(2), BATCHES[:3])
    store.save_optimizer_states(str(tmp_path / "states"))
    trainer = make_trainer(make_deep_net())
    with pytest.warns(GluonlabWarning, match="does not contain the number of updates"):
        trainer.load_states(str(tmp_path / "states"))
    assert trainer.optimizer.num_update == 0


def test_positions_in_a_gluon_file_are_matched_by_shape_although_dense10_precedes_dense9(tmp_path):
    path, units = str(tmp_path / "states"), (3, 5, 2, 4)
    net = make_deep_net(prefix="", units=units, names=[f"dense{i}" for i in range(4)])
    trainer = make_gluon_trainer(net)
    train(net, trainer, contexts(1), end=2)
    trainer.save_states(path)
    other = make_deep_net(prefix="", units=units, names=[f"dense{8 + i}" for i in range(4)])
    trainer = make_trainer(other)
    trainer.load_states(path)
    states = gather_states(trainer)
    for param, array in zip(other.collect_params().values(), parameter_arrays(net)):
        assert states[f"state/0/{param.name}"].shape == array.shape


@pytest.mark.parametrize("store", ["device", "sharded-optimizer"])
def test_states_move_between_mx_nd_and_mx_np(store, tmp_path):
    # Files are the same for both. Exported files are for the kind of arrays of the user.
    paths, ctxs = [str(tmp_path / name) for name in "123"], contexts(2)
    net = make_deep_net(ctxs)
    trainer = make_trainer(net, "adam", store)
    train(net, trainer, ctxs, end=2)
    trainer.save_states(paths[0])
    with mx.util.np_shape(True), mx.util.np_array(True):
        other = nn.HybridSequential()
        other.add(*[nn.Dense(n, in_units=m) for n, m in ((3, 6), (3, 3), (3, 3), (4, 3))])
        other.initialize(ctx=ctxs)
        trainer = make_trainer(other, "adam", store)
        trainer.load_states(paths[0])
        with mx.autograd.record():
            losses = [other(mx.np.ones((2, 6), ctx=ctx)).sum() for ctx in ctxs]
        mx.autograd.backward(losses)
        trainer.step(4)
        trainer.load_states(paths[0])
        trainer.save_states(paths[1])
        export_gluon_states(trainer, paths[2])
        make_gluon_trainer(other).load_states(paths[2])
    first, second = (Path(path).stat().st_size - sum(map(len, nd.load(path))) for path in paths[:2])
    assert first == second  # names have other lengths


def test_a_name_with_a_line_break_makes_a_message_of_one_line(tmp_path):
    trainer = make_trained(make_deep_net())
    arrays = gather_states(trainer)
    for old, new in (("parameter/", "parameter/a\n"), ("optimizer/", "optimizer/A\n")):
        nd.save(str(tmp_path / "states"), {name.replace(old, new): array for name, array in arrays.items()})
        check_refusal(trainer, tmp_path / "states", "load a file that save_states wrote|this trainer uses")
