"""Whose states a file holds: parameters of other names, files of other things, gluon.Trainer's own;
and what is refused.
"""

import os
from contextlib import nullcontext
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
from support.devices import contexts, device
from support.reference import (
    arrays_equal,
    parameter_arrays,
    random_batches,
    relative_distance,
    set_parameter_arrays,
    train_on_devices,
)
from support.updates import trainer_arguments

from gluonlab.bucketed_trainer.gluon_export import export_gluon_states
from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.bucketed_trainer.trainer_states import gather_states
from gluonlab.errors import GluonlabWarning, KVStoreError
from gluonlab.kvstores import make_kvstore
from gluonlab.optimizers import optimizer_states

BATCHES = random_batches([6, 4, 5, 7, 4], shape=(1, 2, 3), classes=4)
PARAMS = {
    "own sgd": {"momentum": 0.9, "learning_rate": 0.1},
    "sgd": {"momentum": 0.9, "learning_rate": 0.1},
    "adam": {"learning_rate": 0.02},
    "signum": {},
    "nadam": {},
}


def network(ctxs=None, prefix=None, units=(3, 3, 3, 4), params=None):
    mx.random.seed(5)
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(*[nn.Dense(n, activation="tanh") for n in units])
    net.initialize(mx.init.Normal(0.5), ctx=ctxs or contexts(1))
    net(nd.zeros((1, 1, 2, 3), ctx=(ctxs or contexts(1))[0]))
    for param, value in zip(net.collect_params().values(), params or ()):
        for array in param.list_data():
            array[:] = nd.array(value)
    return net


def trainer_of(net, optimizer="adam", store="device", **params):
    settings = trainer_arguments(optimizer, {**PARAMS.get(optimizer, {}), **params})
    return BucketedTrainer(net.collect_params(), *settings, kvstore=make_kvstore(store))


def gluons(net, optimizer="adam", store=None, **settings):
    return gluon.Trainer(
        net.collect_params(), *trainer_arguments(optimizer, dict(PARAMS[optimizer])), kvstore=store, **settings
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """(file, parameters when it was saved, parameters after two more steps) of a network whose
    layers look alike.
    """
    path = str(tmp_path_factory.mktemp("states") / "adam")
    net = network(prefix="mine_")
    trainer = trainer_of(net)
    train_on_devices(net, trainer, contexts(1), BATCHES[:3])
    trainer.save_states(path)
    start = parameter_arrays(net)
    train_on_devices(net, trainer, contexts(1), BATCHES[3:])
    return path, start, parameter_arrays(net)


def named_network(names, prefix):
    net = nn.HybridSequential(prefix=prefix)
    layers = zip((3, 3, 3, 4), names)
    net.add(*[nn.Dense(n, activation="tanh", prefix=f"{name}_") for n, name in layers])
    net.initialize(ctx=contexts(1))
    net(nd.zeros((1, 1, 2, 3), ctx=device()))
    return net


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
def test_names_may_have_other_numbers_and_prefixes_and_any_others_are_taken_in_order(saved, prefix, names):
    path, start, expected = saved
    net = named_network(names, prefix) if names else network(prefix=prefix)
    set_parameter_arrays(net, start)
    trainer = trainer_of(net)
    other = names and names[0] == "body"
    message = r"taken in order, .* body_bias goes on as mine_dense0_bias$"
    with pytest.warns(GluonlabWarning, match=message) if other else nullcontext():
        trainer.load_states(path)
    train_on_devices(net, trainer, contexts(1), BATCHES[3:])
    assert arrays_equal(parameter_arrays(net), expected)


def contents(trainer):
    return {name: array.asnumpy() for name, array in gather_states(trainer).items()}


def refused(trainer, path, message):
    """One line, and nothing has changed."""
    before, lr = contents(trainer), trainer.learning_rate
    with pytest.raises(KVStoreError, match=message) as caught:
        trainer.load_states(str(path))
    assert "\n" not in str(caught.value)
    after = contents(trainer)
    assert lr == trainer.learning_rate and before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def trained(net, *args, ctxs=None, **kwargs):
    trainer = trainer_of(net, *args, **kwargs)
    train_on_devices(net, trainer, ctxs or contexts(1), BATCHES[:1])
    return trainer


@pytest.mark.parametrize("store, devices", [("device", 1), ("sharded-optimizer", 2)])
def test_states_of_another_optimizer_or_network_are_refused(saved, store, devices):
    path, ctxs = saved[0], contexts(devices)

    def refuse(message, optimizer="adam", units=(3, 3, 3, 4), **params):
        refused(trained(network(ctxs, units=units), optimizer, store, ctxs=ctxs, **params), path, message)

    refuse(
        r"holds the states of Adam, and the optimizer here is SGD: "
        r"make the trainer with 'adam', or begin",
        "sgd",
    )
    refuse(r"does not fit: mine_dense1_bias is \(3,\) there, .*dense1_bias \(5,\) here", units=(3, 5, 3, 4))
    refuse(r"holds the states of 8 parameters, and this trainer has 6", units=(3, 3, 4))


def test_other_settings_of_an_optimizer_that_change_its_state_are_refused(tmp_path):
    path = str(tmp_path / "states")
    trained(network(), "sgd").save_states(path)
    refused(
        trained(network(), "sgd", momentum=0.0),
        path,
        r"holds 1 arrays for .*, and SGD as it is set here keeps 0: give it the m",
    )


def test_files_of_other_things_are_refused(saved, tmp_path):
    path = saved[0]
    net = network()
    net.save_parameters(str(tmp_path / "params"))
    nd.save(str(tmp_path / "list"), [nd.ones((1,))])
    nd.save(str(tmp_path / "sharded"), {"0/0/0": nd.ones((3,)), "0/updates": nd.ones((1,))})
    (tmp_path / "text").write_text("states")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    with open(path, "rb") as file:
        content = file.read()
    (tmp_path / "short").write_bytes(content[:-20])
    (tmp_path / "twice").write_bytes(content + content)
    trainer = trained(net)
    for name, message in {
        "params": (
            r"'.*params' holds arrays, but no states of an optimizer: "
            r"load what save_states wrote"
        ),
        "list": "cannot be read as optimizer states",
        "sharded": "an earlier version saved under 'sharded-optimizer'",
        "text": "neither a list of arrays nor a pickle",
        "empty": "neither a list of arrays nor a pickle",
        "short": "cut off",
        "twice": "bytes after the end of the list",
        "folder": "cannot be read: Is a directory",
        "none": "cannot be read: No such file",
    }.items():
        refused(trainer, tmp_path / name, message)


@pytest.mark.parametrize("store", ["device", "sharded-optimizer"])
@pytest.mark.parametrize("form", ["gluonlab's", "gluon's"])
def test_only_files_are_read_and_no_more_than_states_can_have(saved, store, form, tmp_path):
    """A pipe is waited for, a device may never end, and a file that is empty but long costs nothing
    to make.
    """
    path = str(tmp_path / "states")
    trainer = trained(network(ctxs=contexts(2)), store=store, ctxs=contexts(2))
    trainer.save_states(path) if form == "gluonlab's" else export_gluon_states(trainer, path)
    os.truncate(path, 2**30)
    refused(trainer, path, r"has 1,073,741,824 bytes, and states of these parameters 67,.* at most: load what")
    if store == "sharded-optimizer":
        with pytest.raises(KVStoreError, match="has 1,073,741,824 bytes"):
            gluons_under_shards(network(ctxs=contexts(2))).load_states(path)
    os.mkfifo(tmp_path / "pipe")
    end = os.open(tmp_path / "pipe", os.O_RDWR)
    os.write(end, b"something")
    for other in (tmp_path / "pipe", "/dev/zero"):
        refused(trainer, other, r"cannot be read as optimizer states \(it is no file\)")
    os.close(end)


@pytest.mark.parametrize("form", ["gluonlab's", "gluon's"])
def test_what_a_file_may_have_at_most_is_enough_for_any_states(form, monkeypatch, tmp_path):
    """With next to nothing to spare for names and the like."""
    monkeypatch.setattr(optimizer_states, "ALWAYS_READ_BYTES", 2**13)
    trainer, file = trained(network(units=(200, 300, 4))), str(tmp_path / "states")
    trainer.save_states(file) if form == "gluonlab's" else export_gluon_states(trainer, file)
    assert Path(file).stat().st_size > 10 * optimizer_states.ALWAYS_READ_BYTES
    trainer.load_states(file)


@pytest.mark.parametrize("store", ["device", "local"])
def test_a_store_of_mxnets_own_reads_files_alone(store, tmp_path):
    """gluon.Trainer.load_states under a store that updates."""
    net = network(ctxs=contexts(2))
    trainer = gluons(net, store=make_kvstore(store), update_on_kvstore=True)
    train_on_devices(net, trainer, contexts(2), BATCHES[:1])
    trainer.save_states(str(tmp_path / "states"))
    trainer.load_states(str(tmp_path / "states"))
    os.mkfifo(tmp_path / "pipe")
    end = os.open(tmp_path / "pipe", os.O_RDWR)
    os.write(end, b"something")
    for other, why in (("pipe", "it is no file"), ("nothing", "No such file"), ("", "Is a directory")):
        with pytest.raises(KVStoreError, match=why):
            trainer.load_states(str(tmp_path / other))
    with pytest.raises(KVStoreError, match="it is no file"):
        trainer.load_states("/dev/zero")
    os.close(end)


def gluons_under_shards(net):
    trainer = gluons(net, store=make_kvstore("sharded-optimizer"))
    train_on_devices(net, trainer, contexts(2), BATCHES[:1])
    return trainer


def test_a_path_may_be_bytes_as_for_gluons_trainer(tmp_path):
    net = network()
    trainer = trained(net)
    trainer.save_states(bytes(tmp_path / "states"))
    trainer.load_states(bytes(tmp_path / "states"))
    assert [path.name for path in tmp_path.iterdir()] == ["states"]


@pytest.fixture(scope="module")
def trainer(saved):
    made = trainer_of(network(prefix="mine_"))
    # it has its states before a test, which would seem to leave them over
    made.load_states(saved[0])
    return made


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

WAYS = {
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


@pytest.mark.parametrize("optimizer, way, store_on", product_cases(["sgd", "adam", "own sgd"], WAYS, ON, keep=KEPT))
def test_files_of_gluons_trainer_are_loaded(optimizer, way, store_on, tmp_path):
    store, devices = store_on
    path, (before, kvstore, settings) = str(tmp_path / "states"), WAYS[way]
    net = network(contexts(before))
    trainer = gluons(net, optimizer, kvstore, **settings)
    train_on_devices(net, trainer, contexts(before), BATCHES[:3])
    trainer.set_learning_rate(0.01)
    trainer.save_states(path)
    start = parameter_arrays(net)
    train_on_devices(net, trainer, contexts(before), BATCHES[3:])
    expected, net = parameter_arrays(net), network(contexts(devices), params=start)
    trainer = trainer_of(net, optimizer, store)
    trainer.load_states(path)
    assert trainer.learning_rate == 0.01
    train_on_devices(net, trainer, contexts(devices), BATCHES[3:])
    assert relative_distance(parameter_arrays(net), expected) <= 1e-5


EXPORTED = [("adam", "on devices", ON[2]), ("own sgd", "on devices", ON[0])]


@pytest.mark.parametrize("optimizer, way, store_on", product_cases(["sgd", "adam", "own sgd"], WAYS, ON, keep=EXPORTED))
def test_states_are_exported_for_gluons_trainer(optimizer, way, store_on, tmp_path):
    """With what they hang on besides: the rate changes then, and a momentum must know its former
    one.
    """
    store, devices = store_on
    path, (after, kvstore, settings) = str(tmp_path / "states"), WAYS[way]
    net = network(contexts(devices))
    trainer = trainer_of(net, optimizer, store)
    train_on_devices(net, trainer, contexts(devices), BATCHES[:3])
    export_gluon_states(trainer, path)
    start = parameter_arrays(net)
    trainer.set_learning_rate(0.01)
    train_on_devices(net, trainer, contexts(devices), BATCHES[3:])
    expected, net = parameter_arrays(net), network(contexts(after), params=start)
    trainer = gluons(net, optimizer, kvstore, **settings)
    trainer.load_states(path)
    trainer.set_learning_rate(0.01)
    train_on_devices(net, trainer, contexts(after), BATCHES[3:])
    assert relative_distance(parameter_arrays(net, contexts(after)[-1]), expected) <= 1e-5


def test_an_optimizer_that_cannot_be_pickled_is_not_exported(tmp_path):
    schedule = mx.lr_scheduler.LRScheduler()
    schedule.rate = lambda step: 0.1
    trainer = BucketedTrainer(network().collect_params(), "sgd", {"lr_scheduler": schedule})
    with pytest.raises(KVStoreError, match="cannot be pickled"):
        export_gluon_states(trainer, str(tmp_path / "states"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "optimizer, devices", product_cases(["sgd", "adam"], [(2, 3), (3, 1), (2, 2)], keep=[("adam", (2, 3))])
)
def test_gluons_trainer_under_the_sharded_optimizer_takes_other_devices_and_bucketed_states(
    optimizer, devices, tmp_path
):
    """Three trainers after each other: gluon's on some devices, gluon's on others,
    BucketedTrainer.
    """
    makers = [
        lambda net: gluons(net, optimizer, make_kvstore("sharded-optimizer")),
        lambda net: gluons(net, optimizer, make_kvstore("sharded-optimizer")),
        lambda net: trainer_of(net, optimizer, "sharded-optimizer"),
        lambda net: gluons(net, optimizer, make_kvstore("sharded-optimizer")),
    ]
    path, start = str(tmp_path / "states"), None
    for number, make in enumerate(makers):
        ctxs = contexts(devices[number % 2])
        net = network(ctxs, params=start)
        trainer = make(net)
        if number:
            trainer.load_states(path)
        train_on_devices(net, trainer, ctxs, BATCHES[number : number + 1])
        trainer.save_states(path)
        start = parameter_arrays(net)
    whole = network()
    train_on_devices(whole, gluons(whole, optimizer), contexts(1), BATCHES[:4])
    assert relative_distance(start, parameter_arrays(whole)) <= 1e-5


def test_states_without_the_optimizer_go_on_from_this_trainers_counts(tmp_path):
    """What a kvstore's own save_optimizer_states writes."""
    net = network(contexts(2))
    store = mx.kv.create("device")
    trainer = gluons(net, "adam", store)
    train_on_devices(net, trainer, contexts(2), BATCHES[:3])
    store.save_optimizer_states(str(tmp_path / "states"))
    trainer = trainer_of(network())
    with pytest.warns(GluonlabWarning, match="does not say how often parameters were updated"):
        trainer.load_states(str(tmp_path / "states"))
    assert trainer.optimizer.num_update == 0


def test_gluons_positions_are_found_although_it_sorts_dense10_before_dense9(tmp_path):
    """Where shapes tell."""
    path, results = str(tmp_path / "states"), []
    for first, make in ((0, gluons), (8, trainer_of)):
        net = nn.HybridSequential(prefix="")
        net.add(*[nn.Dense(n, prefix=f"dense{first + i}_", activation="tanh") for i, n in enumerate((3, 5, 2, 4))])
        net.initialize(ctx=contexts(1))
        net(nd.zeros((1, 1, 2, 3), ctx=device()))
        set_parameter_arrays(net, results)
        trainer = make(net)
        if results:
            trainer.load_states(path)
            state = gather_states(trainer)
            for param, shape in zip(net.collect_params().values(), [value.shape for value in results]):
                assert state[f"state/0/{param.name}"].shape == shape
        else:
            train_on_devices(net, trainer, contexts(1), BATCHES[:2])
            trainer.save_states(path)
            results = parameter_arrays(net)


@pytest.mark.parametrize("store", ["device", "sharded-optimizer"])
def test_states_go_between_mx_nd_and_mx_np(store, tmp_path):
    """Files are the same in both; what is exported is for the kind of arrays that the user has."""
    path, ctxs = str(tmp_path / "states"), contexts(2)
    net = network(ctxs)
    trainer = trainer_of(net, "adam", store)
    train_on_devices(net, trainer, ctxs, BATCHES[:2])
    trainer.save_states(path)
    with open(path, "rb") as file:
        content = file.read()
    with mx.util.np_shape(True), mx.util.np_array(True):
        other = nn.HybridSequential()
        other.add(*[nn.Dense(n, in_units=m) for n, m in ((3, 6), (3, 3), (3, 3), (4, 3))])
        other.initialize(ctx=ctxs)
        trainer = trainer_of(other, "adam", store)
        trainer.load_states(path)
        with mx.autograd.record():
            losses = [other(mx.np.ones((2, 6), ctx=ctx)).sum() for ctx in ctxs]
        mx.autograd.backward(losses)
        trainer.step(4)
        trainer.load_states(path)
        trainer.save_states(path + "2")
        export_gluon_states(trainer, path + "3")
        gluons(other).load_states(path + "3")
    with open(path + "2", "rb") as file:
        assert len(file.read()) - len(content) == sum(
            len(a) - len(b) for a, b in zip(nd.load(path + "2"), nd.load(path))
        )


def test_a_name_with_a_line_break_makes_no_message_of_two_lines(tmp_path):
    trainer = trained(network())
    arrays = gather_states(trainer)
    for old, new in (("parameter/", "parameter/a\n"), ("optimizer/", "optimizer/A\n")):
        nd.save(str(tmp_path / "states"), {name.replace(old, new): array for name, array in arrays.items()})
        refused(trainer, tmp_path / "states", "load what save_states wrote|the optimizer here is")
