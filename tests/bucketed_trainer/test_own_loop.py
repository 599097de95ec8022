"""BucketedTrainer in a user's own Gluon loop: the one of docs/own-training.md, networks, and mistakes."""

import functools
import re
from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon, nd
from mxnet.contrib import amp as mxnets_amp
from mxnet.gluon import nn
from support.covering import pairwise
from support.devices import contexts, device, device_spec
from support.processes import REPOSITORY
from support.reference import arrays_equal, parameter_arrays, random_batches, relative_distance, train_on_devices

from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.data import Loader, load_dataset
from gluonlab.errors import DataError, DeviceError, ModelError, RunError
from gluonlab.kvstores import make_kvstore
from gluonlab.models import get_model
from gluonlab.scratch.data_parallel import split_batch
from gluonlab.scratch.loop import train

PAGE = REPOSITORY / "docs" / "own-training.md"
SGD = {"learning_rate": 0.1, "momentum": 0.9}
BATCHES = random_batches([6, 7, 1, 6, 2], shape=(1, 8, 8), classes=4)


# --- the loop of the page


def read_loop(**changes):
    """Return the training loop of the page. ``changes``: (old, new) texts."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    [loop] = [block for block in blocks if "trainer.step(" in block]
    for old, new in changes.values():
        assert old in loop
        loop = loop.replace(old, new)
    return loop


def run_loop(text):
    mx.random.seed(1)
    variables = {}
    exec(compile(text, PAGE.name, "exec"), variables)
    return variables


@pytest.mark.cpu_only("the page prints cpu*2")
def test_the_loop_of_the_page_runs_as_it_is_printed(capsys):
    variables = run_loop(read_loop())
    assert len(variables["ctxs"]) > 1
    assert variables["accuracy"] > 0.85 and f"{variables['accuracy']:.3f}" in capsys.readouterr().out


def run_short_loop(batch_size, device_names, trainer="gluonlab.BucketedTrainer("):
    sizes = {"epochs": ("range(10)", "range(2)"), "batch": ("128", str(batch_size))}
    old_trainer = ("gluonlab.BucketedTrainer(", trainer)
    return run_loop(read_loop(devices=('"cpu*2"', f'"{device_names}"'), trainer=old_trainer, **sizes))


@functools.lru_cache(maxsize=None)
def run_short_loop_with_gluon(batch_size):
    variables = run_short_loop(batch_size, "cpu", "gluon.Trainer(")
    assert not isinstance(variables["trainer"], BucketedTrainer)
    return parameter_arrays(variables["net"])


# 1437 images: the last batch of 359 has one image, for one of four devices
@pytest.mark.parametrize(("devices", "batch_size"), [(1, 128), (3, 128), (4, 359)])
def test_the_loop_of_the_page_trains_any_number_of_devices_as_gluon_trains_one(devices, batch_size):
    result = run_short_loop(batch_size, device_spec(devices))
    assert isinstance(result["trainer"], BucketedTrainer)
    arrays = parameter_arrays(result["net"], result["ctxs"][-1])
    assert relative_distance(arrays, run_short_loop_with_gluon(batch_size)) <= 1e-4


@pytest.mark.cpu_only("it is about imports")
def test_subpackages_of_gluonlab_need_no_import(python):
    process = python("-c", "import gluonlab; print(*gluonlab.devices.devices('cpu*2'), gluonlab.training.__name__)")
    assert process.stdout.split() == ["cpu(0)", "cpu(1)", "gluonlab.training"], process.stderr


# --- however the network is compiled, and whenever the trainer is made


def make_net(ctxs):
    mx.random.seed(5)
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3, activation="tanh"), nn.Flatten(), nn.Dense(9, activation="tanh"), nn.Dense(7), nn.Dense(4))
    net.initialize(mx.init.Normal(0.3), ctx=ctxs)
    return net


@functools.lru_cache(maxsize=None)
def train_on_one_device():
    net = make_net(contexts(1))
    trainer = gluon.Trainer(net.collect_params(), "sgd", dict(SGD), kvstore=None)
    train_on_devices(net, trainer, contexts(1), BATCHES)
    return parameter_arrays(net)


def compute_gradients(net, ctxs, batch):
    train_on_devices(net, SimpleNamespace(step=lambda batch_size: None), ctxs, [batch])


COMPILED = {
    "eager": None,
    "hybridized": {},
    "static_alloc": {"static_alloc": True},
    "static_shape": {"static_alloc": True, "static_shape": True},
}


@pairwise(k=[1, 3], compiled=list(COMPILED), when=["first of all", "after a forward", "after a backward"])
def test_networks_train_with_any_compilation_and_with_a_trainer_made_at_any_time(k, compiled, when):
    ctxs, net = contexts(k), make_net(contexts(k))
    if COMPILED[compiled] is not None:
        net.hybridize(**COMPILED[compiled])
    if when == "after a forward":
        net(nd.zeros((1, 1, 8, 8), ctx=ctxs[0]))
    elif when == "after a backward":
        compute_gradients(net, ctxs, BATCHES[0])
    trainer = BucketedTrainer(net.collect_params(), "sgd", dict(SGD))
    train_on_devices(net, trainer, ctxs, BATCHES)
    assert relative_distance(parameter_arrays(net, ctxs[-1]), train_on_one_device()) <= 1e-5


def clip_before_step(make, ctxs):
    """Change what param.grad() returns between backward and step."""
    net = make_net(ctxs)
    net.hybridize(static_alloc=True, static_shape=True)
    trainer = make(net.collect_params(), "sgd", dict(SGD), kvstore=None)
    norms = []
    for batch in BATCHES:
        compute_gradients(net, ctxs, batch)
        grads = [param.grad(ctxs[0]) for param in net.collect_params().values()]
        norms.append(gluon.utils.clip_global_norm(grads, 0.3))
        trainer.step(len(batch[0]))
    return norms + parameter_arrays(net)


def clip_sums(make, ctxs, store):
    """Clip the sums between allreduce_grads and update. Small batches leave devices idle."""
    net = make_net(ctxs)
    store = store if len(ctxs) > 1 else None
    trainer = make(net.collect_params(), "sgd", dict(SGD), kvstore=store, update_on_kvstore=False)
    for batch in BATCHES:
        compute_gradients(net, ctxs, batch)
        trainer.allreduce_grads()
        for ctx in ctxs:
            gluon.utils.clip_global_norm([param.grad(ctx) for param in net.collect_params().values()], 0.3)
        trainer.update(len(batch[0]))
    return parameter_arrays(net, ctxs[-1])


def share_parameters(make, ctxs):
    """Train two compiled networks that share parameters, in turns."""
    net = make_net(ctxs)
    both = [nn.HybridSequential() for _ in range(2)]
    for outer in both:
        outer.add(*net)
        outer.hybridize(static_alloc=True, static_shape=True)
        compute_gradients(outer, ctxs, BATCHES[0])
    trainer = make(net.collect_params(), "sgd", dict(SGD), kvstore="device")
    for turn in (0, 0, 0, 1, 0, 1, 1):
        train_on_devices(both[turn], trainer, ctxs, BATCHES[:1])
    return parameter_arrays(net)


def repeat_backward(make, ctxs):
    """Run backward twice before each step; the second replaces the gradients of the first."""
    net = make_net(ctxs)
    net.hybridize(static_alloc=True, static_shape=True)
    trainer = make(net.collect_params(), "sgd", dict(SGD), kvstore="device")
    for batch in BATCHES[:2] * 2:
        compute_gradients(net, ctxs, batch)
        train_on_devices(net, trainer, ctxs, [batch])
    return parameter_arrays(net)


@pytest.mark.parametrize(
    ("program", "gluon_devices", "devices"),
    [
        (clip_before_step, 1, 1),
        (functools.partial(clip_sums, store="device"), 1, 3),
        (functools.partial(clip_sums, store="ring"), 1, 3),
        (share_parameters, 2, 2),
        (repeat_backward, 2, 2),
    ],
)
def test_a_program_computes_what_it_computes_with_gluons_trainer(program, gluon_devices, devices):
    expected = program(gluon.Trainer, contexts(gluon_devices))
    assert relative_distance(program(BucketedTrainer, contexts(devices)), expected) <= 1e-5


def test_buckets_cannot_be_made_before_the_shapes_are_known():
    net = make_net(contexts(2))
    trainer = BucketedTrainer(net.collect_params(), "sgd", dict(SGD))
    message = r"the shapes of some parameters, such as conv\d+_weight, are not known yet"
    for call in (trainer.prepare, lambda: trainer.step(1), trainer.allreduce_grads):
        with pytest.raises(RunError, match=message) as raised:
            call()
        assert "\n" not in str(raised.value)
    net(nd.zeros((1, 1, 8, 8), ctx=device()))
    trainer.prepare()
    train_on_devices(net, trainer, contexts(2), BATCHES)
    assert np.isfinite(parameter_arrays(net)[0]).all()


# --- what else surrounds a step


@pytest.mark.parametrize(
    ("store", "settings"),
    [("device", {}), ("ring", {"clip_norm": 0.1}), ("sharded-optimizer", {}), ("local", {"optimizer": "lamb"})],
    ids=str,
)
def test_a_step_inside_record_is_not_recorded(store, settings):
    # MXNet refuses to write to arrays that it records: gluon.Trainer fails here.
    results = []
    for recorded in (False, True):
        net = make_net(contexts(2))
        arguments = {"optimizer": "sgd", "kvstore": store, "bucket_bytes": 0, **settings}
        trainer = BucketedTrainer(net.collect_params(), **arguments)
        with autograd.record() if recorded else autograd.pause():
            train_on_devices(net, trainer, contexts(2), BATCHES)
            assert autograd.is_recording() == recorded
        results.append(parameter_arrays(net))
    assert arrays_equal(*results)


@pytest.fixture
def amp(monkeypatch):
    """Return mxnet.contrib.amp as after init(), which would change all operators of MXNet."""
    monkeypatch.setattr(mxnets_amp.amp, "_amp_initialized", True)
    monkeypatch.setattr(mxnets_amp.amp, "_loss_scaler", mxnets_amp.loss_scaler.LossScaler())
    return mxnets_amp


def train_with_amp(amp, make, ctxs, store):
    """Return the parameters and loss scales of three steps; the second overflows on one device."""
    net = make_net(ctxs)
    trainer = make(net.collect_params(), "sgd", dict(SGD), kvstore=store, update_on_kvstore=False)
    amp.init_trainer(trainer)
    scales = []
    for number, (images, labels) in enumerate(BATCHES[:2] + BATCHES[3:4]):
        xs, ys = (gluon.utils.split_and_load(nd.array(array), ctxs, even_split=False) for array in (images, labels))
        with autograd.record():
            losses = [gluon.loss.SoftmaxCrossEntropyLoss()(net(x), y) for x, y in zip(xs, ys)]
            with amp.scale_loss(losses, trainer) as scaled:
                autograd.backward(scaled)
        if number == 1:
            next(iter(net.collect_params().values())).grad(ctxs[-1])[:] = np.inf
        scales.append(trainer._amp_loss_scaler.loss_scale)
        trainer.step(len(images))
    return [*parameter_arrays(net), np.array(scales)]


@pytest.mark.parametrize(("devices", "store"), [(1, None), (3, "ring")])
def test_amp_skips_the_steps_that_it_skips_with_gluons_trainer(amp, devices, store):
    expected = train_with_amp(amp, gluon.Trainer, contexts(1), None)
    result = train_with_amp(amp, BucketedTrainer, contexts(devices), store)
    assert np.isfinite(np.concatenate([array.ravel() for array in result])).all()
    assert np.array_equal(result[-1], expected[-1]) and relative_distance(result[:-1], expected[:-1]) <= 1e-5


def test_amp_and_a_store_that_updates_are_refused_together(amp):
    net = make_net(contexts(2))
    trainer = BucketedTrainer(net.collect_params(), "sgd", dict(SGD), "sharded-optimizer")
    amp.init_trainer(trainer)
    with pytest.raises(
        RunError, match=r"kvstore 'sharded-optimizer' updates the parameters before amp can check for an overflow"
    ) as raised:
        train_on_devices(net, trainer, contexts(2), BATCHES[:1])
    assert "\n" not in str(raised.value)


@pytest.fixture(scope="module")
def split():
    return load_dataset("digits").test


@pytest.mark.parametrize("ctxs", [mx.cpu(0), "cpu", None, [], (), [0, 1], ["cpu"], [None]], ids=repr)
def test_other_values_than_lists_of_devices_are_refused(split, ctxs):
    message = r"is not a list of devices: use gluonlab.devices.devices\('cpu\*2'\)"
    for call in (lambda: Loader(split, ctxs, 8), lambda: get_model("lenet", 10, ctxs))[: 2 if ctxs else 1]:
        with pytest.raises(DeviceError, match=message) as raised:
            call()
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("number", [0, -3, 2.5, None, "8", True])
def test_other_values_than_positive_numbers_are_refused(split, number):
    with pytest.raises(
        DataError, match=f"^global_batch_size={re.escape(repr(number))}: use a whole number of at least 1"
    ):
        Loader(split, contexts(1), number)
    with pytest.raises(
        ModelError, match=f"^classes={re.escape(repr(number))}: must be a positive whole number, such as "
    ):
        get_model("mlp", number)


def test_a_loader_takes_numbers_of_numpy_and_tuples(split):
    assert len(Loader(split, tuple(contexts(2)), np.int64(100))) == 4


def make_trainer(ctxs, store):
    net = nn.Dense(2, in_units=3)
    net.initialize(ctx=ctxs)
    return BucketedTrainer(net.collect_params(), "sgd", kvstore=store)


@pytest.mark.parametrize(
    "take",
    [
        lambda split, ctxs: Loader(split, ctxs, 8),
        lambda split, ctxs: get_model("lenet", 10, ctxs),
        lambda split, ctxs: make_kvstore("ring", ctxs),
        lambda split, ctxs: make_trainer(ctxs, "device"),
        lambda split, ctxs: make_trainer(ctxs, make_kvstore("ring")),
        lambda split, ctxs: split_batch(nd.zeros((4, 2)), nd.zeros((4,)), ctxs),
        lambda split, ctxs: train(load_dataset("digits"), None, ctxs),
    ],
    ids=["Loader", "get_model", "make_kvstore", "trainer", "ring", "split_batch", "from scratch"],
)
@pytest.mark.parametrize("places", [(0, 0), (0, 1, 0)])
def test_a_repeated_device_is_refused_with_an_example(split, take, places):
    # Backward writes only one of two replicas on a device: gradients would be lost silently.
    ctxs = [contexts(2)[place] for place in places]
    with pytest.raises(DeviceError) as raised:
        take(split, ctxs)
    assert f"contains {ctxs[0]} 2 times: list each device only once, as in " in str(raised.value)
    assert f"[mx.{ctxs[0].device_type}(i) for i in range({len(ctxs)})]" in str(raised.value)
