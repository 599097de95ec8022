"""Files of optimizer states for parameters of other names, files of gluon.Trainer, and refusals."""

import os
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import gluon, nd
from mxnet.gluon import nn
from support.covering import product_cases
from support.damage import corrupt_bytes
from support.devices import contexts
from support.reference import arrays_equal, parameter_arrays, random_batches, relative_distance, train_on_devices
from support.updates import trainer_arguments

from gluonlab.bucketed_trainer.gluon_export import export_gluon_states
from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.bucketed_trainer.trainer_states import gather_states
from gluonlab.errors import GluonlabWarning, KVStoreError
from gluonlab.kvstores import make_kvstore
from gluonlab.optimizers import optimizer_states

BATCHES = random_batches([6, 4, 5, 7, 4], shape=(1, 2, 3), classes=4)
MOMENTUM = {"momentum": 0.9, "learning_rate": 0.1}
PARAMS = {"own sgd": MOMENTUM, "sgd": MOMENTUM, "adam": {"learning_rate": 0.02}, "signum": {}, "nadam": {}}


def make_net(ctxs=None, prefix=None, units=(3, 3, 3, 4), params=None, names=None):
    mx.random.seed(5)
    net, ctxs = nn.HybridSequential(prefix=prefix), ctxs or contexts(1)
    with net.name_scope() if names is None else nullcontext():
        prefixes = [f"{name}_" for name in names] if names else [None] * len(units)
        net.add(*[nn.Dense(n, activation="tanh", prefix=prefix) for n, prefix in zip(units, prefixes)])
    net.initialize(mx.init.Normal(0.5), ctx=ctxs)
    net(nd.zeros((1, 1, 2, 3), ctx=ctxs[0]))
    for param, value in zip(net.collect_params().values(), params or ()):
        param.set_data(nd.array(value))
    return net


def make_trainer(net, optimizer="adam", store="device", **params):
    settings = trainer_arguments(optimizer, {**PARAMS.get(optimizer, {}), **params})
    return BucketedTrainer(net.collect_params(), *settings, kvstore=make_kvstore(store))


def make_gluon_trainer(net, optimizer="adam", store=None, **settings):
    arguments = trainer_arguments(optimizer, dict(PARAMS[optimizer]))
    return gluon.Trainer(net.collect_params(), *arguments, kvstore=store, **settings)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return (file, parameters when it was saved, parameters after two more steps)."""
    path = str(tmp_path_factory.mktemp("states") / "adam")
    net = make_net(prefix="mine_")
    trainer = make_trainer(net)
    train_on_devices(net, trainer, contexts(1), BATCHES[:3])
    trainer.save_states(path)
    start = parameter_arrays(net)
    train_on_devices(net, trainer, contexts(1), BATCHES[3:])
    return path, start, parameter_arrays(net)


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
    net = make_net(prefix=prefix, params=start, names=names)
    trainer = make_trainer(net)
    message = r"taken in order, .* body_bias goes on as mine_dense0_bias$"
    with pytest.warns(GluonlabWarning, match=message) if names and names[0] == "body" else nullcontext():
        trainer.load_states(path)
    train_on_devices(net, trainer, contexts(1), BATCHES[3:])
    assert arrays_equal(parameter_arrays(net), expected)


def states_to_numpy(trainer):
    return {name: array.asnumpy() for name, array in gather_states(trainer).items()}


def check_refusal(trainer, path, message):
    """Check that load_states refuses a file in one line and changes nothing."""
    before, lr = states_to_numpy(trainer), trainer.learning_rate
    with pytest.raises(KVStoreError, match=message) as raised:
        trainer.load_states(str(path))
    assert "\n" not in str(raised.value) and lr == trainer.learning_rate
    np.testing.assert_equal(states_to_numpy(trainer), before)


def make_trained(net, *args, devices=1, **kwargs):
    trainer = make_trainer(net, *args, **kwargs)
    train_on_devices(net, trainer, contexts(devices), BATCHES[:1])
    return trainer


@pytest.mark.parametrize(
    ("optimizer", "units", "message"),
    [
        (
            "sgd",
            (3, 3, 3, 4),
            "holds the states of Adam, and the optimizer here is SGD: make the trainer with 'adam', or b",
        ),
        ("adam", (3, 5, 3, 4), r"does not fit: mine_dense1_bias is \(3,\) there, .*dense1_bias \(5,\) here"),
        ("adam", (3, 3, 4), "holds the states of 8 parameters, and this trainer has 6"),
    ],
)
@pytest.mark.parametrize("store, devices", [("device", 1), ("sharded-optimizer", 2)])
def test_states_of_another_optimizer_or_network_are_refused(saved, store, devices, optimizer, units, message):
    net = make_net(contexts(devices), units=units)
    check_refusal(make_trained(net, optimizer, store, devices=devices), saved[0], message)


def test_settings_of_the_optimizer_that_change_its_state_are_refused(tmp_path):
    path = str(tmp_path / "states")
    make_trained(make_net(), "sgd").save_states(path)
    message = "holds 1 arrays for .*, and SGD as it is set here keeps 0: give it the m"
    check_refusal(make_trained(make_net(), "sgd", momentum=0.0), path, message)


def test_files_of_other_things_are_refused(saved, tmp_path):
    net, content = make_net(), Path(saved[0]).read_bytes()
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
        "params": "'.*params' holds arrays, but no states of an optimizer: load what save_states wrote",
        "list": "cannot be read as optimizer states",
        "sharded": "an earlier version saved under 'sharded-optimizer'",
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
    trainer = make_trained(make_net(contexts(2)), store=store, devices=2)
    save_in_form(trainer, path, form)
    os.truncate(path, 2**30)
    check_refusal(trainer, path, r"has 1,073,741,824 bytes, and states of these parameters 67,.* at most: load what")
    if store == "sharded-optimizer":
        net = make_net(contexts(2))
        gluon_trainer = make_gluon_trainer(net, store=make_kvstore(store))
        train_on_devices(net, gluon_trainer, contexts(2), BATCHES[:1])
        with pytest.raises(KVStoreError, match="has 1,073,741,824 bytes"):
            gluon_trainer.load_states(path)
    with open_pipe(tmp_path / "pipe") as pipe:
        for other in (pipe, "/dev/zero"):
            check_refusal(trainer, other, r"cannot be read as optimizer states \(it is no file\)")


@pytest.mark.parametrize("form", ["gluonlab's", "gluon's"])
def test_the_size_limit_of_a_file_is_enough_for_any_states(form, monkeypatch, tmp_path):
    monkeypatch.setattr(optimizer_states, "ALWAYS_READ_BYTES", 2**13)  # little space for names
    trainer, file = make_trained(make_net(units=(200, 300, 4))), str(tmp_path / "states")
    save_in_form(trainer, file, form)
    assert Path(file).stat().st_size > 10 * optimizer_states.ALWAYS_READ_BYTES
    trainer.load_states(file)


@pytest.mark.parametrize("store", ["device", "local"])
def test_gluons_trainer_with_a_store_that_updates_reads_only_files(store, tmp_path):
    net = make_net(contexts(2))
    trainer = make_gluon_trainer(net, store=make_kvstore(store), update_on_kvstore=True)
    train_on_devices(net, trainer, contexts(2), BATCHES[:1])
    trainer.save_states(str(tmp_path / "states"))
    trainer.load_states(str(tmp_path / "states"))
    with open_pipe(tmp_path / "pipe") as pipe:
        for path, message in (
            (pipe, "it is no file"),
            ("/dev/zero", "it is no file"),
            (tmp_path / "nothing", "No such file"),
            (tmp_path, "Is a directory"),
        ):
            with pytest.raises(KVStoreError, match=message):
                trainer.load_states(str(path))


def test_a_path_may_be_bytes_as_for_gluons_trainer(tmp_path):
    net = make_net()
    trainer = make_trained(net)
    trainer.save_states(bytes(tmp_path / "states"))
    trainer.load_states(bytes(tmp_path / "states"))
    assert [path.name for path in tmp_path.iterdir()] == ["states"]


@pytest.fixture(scope="module")
def trainer(saved):
    trainer = make_trainer(make_net(prefix="mine_"))
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

WAYS = {  # of gluon.Trainer to update: devices, kvstore, settings
    "one": (1, None, {}),
    "on the store": (2, "device", {}),
    "on devices": (2, "device", {"update_on_kvstore": False}),
}


ON = [("device", 1), ("ring", 2), ("sharded-optimizer", 3)]
KEPT = [
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
    net = make_net(contexts(first))
    trainer = make_first(net)
    train_on_devices(net, trainer, contexts(first), BATCHES[:3])
    path = save(trainer)
    start = parameter_arrays(net)
    trainer.set_learning_rate(0.01)
    train_on_devices(net, trainer, contexts(first), BATCHES[3:])
    expected, net = parameter_arrays(net), make_net(contexts(second), params=start)
    trainer = make_second(net)
    trainer.load_states(path)
    if set_rate:
        trainer.set_learning_rate(0.01)
    assert trainer.learning_rate == 0.01
    train_on_devices(net, trainer, contexts(second), BATCHES[3:])
    assert relative_distance(parameter_arrays(net, contexts(second)[-1]), expected) <= 1e-5


@pytest.mark.parametrize("optimizer, way, store_on", product_cases(["sgd", "adam", "own sgd"], WAYS, ON, keep=KEPT))
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
    trainer = BucketedTrainer(make_net().collect_params(), "sgd", {"lr_scheduler": schedule})
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
        net = make_net(ctxs, params=start)
        make, store = (
            (make_trainer, "sharded-optimizer") if ours else (make_gluon_trainer, make_kvstore("sharded-optimizer"))
        )
        trainer = make(net, optimizer, store)
        if number:
            trainer.load_states(path)
        train_on_devices(net, trainer, ctxs, BATCHES[number : number + 1])
        trainer.save_states(path)
        start = parameter_arrays(net)
    whole = make_net()
    train_on_devices(whole, make_gluon_trainer(whole, optimizer), contexts(1), BATCHES[:4])
    assert relative_distance(start, parameter_arrays(whole)) <= 1e-5


def test_states_without_an_optimizer_keep_the_counts_of_the_trainer(tmp_path):
    net, store = make_net(contexts(2)), mx.kv.create("device")
    train_on_devices(net, make_gluon_trainer(net, "adam", store), contexts(2), BATCHES[:3])
    store.save_optimizer_states(str(tmp_path / "states"))
    trainer = make_trainer(make_net())
    with pytest.warns(GluonlabWarning, match="does not say how often parameters were updated"):
        trainer.load_states(str(tmp_path / "states"))
    assert trainer.optimizer.num_update == 0


def test_positions_in_a_gluon_file_are_matched_by_shape_although_dense10_precedes_dense9(tmp_path):
    path, units = str(tmp_path / "states"), (3, 5, 2, 4)
    net = make_net(prefix="", units=units, names=[f"dense{i}" for i in range(4)])
    trainer = make_gluon_trainer(net)
    train_on_devices(net, trainer, contexts(1), BATCHES[:2])
    trainer.save_states(path)
    other = make_net(prefix="", units=units, names=[f"dense{8 + i}" for i in range(4)])
    trainer = make_trainer(other)
    trainer.load_states(path)
    states = gather_states(trainer)
    for param, array in zip(other.collect_params().values(), parameter_arrays(net)):
        assert states[f"state/0/{param.name}"].shape == array.shape


@pytest.mark.parametrize("store", ["device", "sharded-optimizer"])
def test_states_move_between_mx_nd_and_mx_np(store, tmp_path):
    # Files are the same for both. Exported files are for the kind of arrays of the user.
    paths, ctxs = [str(tmp_path / name) for name in "123"], contexts(2)
    net = make_net(ctxs)
    trainer = make_trainer(net, "adam", store)
    train_on_devices(net, trainer, ctxs, BATCHES[:2])
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
    trainer = make_trained(make_net())
    arrays = gather_states(trainer)
    for old, new in (("parameter/", "parameter/a\n"), ("optimizer/", "optimizer/A\n")):
        nd.save(str(tmp_path / "states"), {name.replace(old, new): array for name, array in arrays.items()})
        check_refusal(trainer, tmp_path / "states", "load what save_states wrote|the optimizer here is")
