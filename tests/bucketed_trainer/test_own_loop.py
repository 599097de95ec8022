"""BucketedTrainer in somebody's own Gluon loop: the one of docs/own-loop.md, and networks however
they are compiled.
"""

import functools
import re

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
from gluonlab.errors import RunError

PAGE = REPOSITORY / "docs" / "own-loop.md"
SGD = {"learning_rate": 0.1, "momentum": 0.9}
BATCHES = random_batches([6, 7, 1, 6, 2], shape=(1, 8, 8), classes=4)


# --- the loop of the page


def the_loop():
    """The block of Python of the page that trains by hand."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    [loop] = [block for block in blocks if "trainer.step(" in block]
    return loop


def run_loop(text):
    mx.random.seed(1)
    names = {}
    exec(compile(text, PAGE.name, "exec"), names)
    return names


def changed(text, **changes):
    for old, new in changes.values():
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.mark.cpu_only("the page prints cpu*2")
def test_the_loop_of_the_page_runs_as_it_is_printed(capsys):
    names = run_loop(the_loop())
    assert len(names["ctxs"]) > 1
    assert names["accuracy"] > 0.85 and f"{names['accuracy']:.3f}" in capsys.readouterr().out


def short_loop(batch_size):
    return changed(the_loop(), epochs=("range(10)", "range(2)"), batch=("128", str(batch_size)))


@functools.lru_cache(maxsize=None)
def trained_by_gluon_on_one_device(batch_size):
    names = run_loop(
        changed(
            short_loop(batch_size), devices=('"cpu*2"', '"cpu"'),
            trainer=("gluonlab.BucketedTrainer(", "gluon.Trainer("),
        )
    )  # fmt: skip
    assert not isinstance(names["trainer"], BucketedTrainer)
    return parameter_arrays(names["net"])


@pytest.mark.parametrize(("devices", "batch_size"), [(1, 128), (3, 128), (4, 359)])
def test_the_loop_of_the_page_trains_any_number_of_devices_as_gluon_trains_one(devices, batch_size):
    """1437 images: the last batch of 359 has one image, for one of four devices."""
    ours = run_loop(changed(short_loop(batch_size), devices=('"cpu*2"', f'"{device_spec(devices)}"')))
    assert isinstance(ours["trainer"], BucketedTrainer)
    expected = trained_by_gluon_on_one_device(batch_size)
    assert relative_distance(parameter_arrays(ours["net"], ours["ctxs"][-1]), expected) <= 1e-4


@pytest.mark.cpu_only("it is about imports")
def test_the_parts_of_gluonlab_need_no_import_of_their_own(python):
    done = python("-c", "import gluonlab; print(*gluonlab.devices.devices('cpu*2'), gluonlab.training.__name__)")
    assert done.stdout.split() == ["cpu(0)", "cpu(1)", "gluonlab.training"], done.stderr


# --- however the network is compiled, and whenever the trainer is made


def small_net(ctxs, known=False):
    mx.random.seed(5)
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3, activation="tanh"), nn.Flatten(), nn.Dense(9, activation="tanh"), nn.Dense(7), nn.Dense(4))
    net.initialize(mx.init.Normal(0.3), ctx=ctxs)
    if known:
        net(nd.zeros((1, 1, 8, 8), ctx=ctxs[0]))
    return net


@functools.lru_cache(maxsize=None)
def expected():
    """gluon.Trainer on one device, with the same initial values (drawn in the first call)."""
    net = small_net(contexts(1))
    trainer = gluon.Trainer(net.collect_params(), "sgd", dict(SGD), kvstore=None)
    train_on_devices(net, trainer, contexts(1), BATCHES)
    return parameter_arrays(net)


COMPILED = {
    "eager": None,
    "hybridized": {},
    "static_alloc": {"static_alloc": True},
    "static_shape": {"static_alloc": True, "static_shape": True},
}


@pairwise(k=[1, 3], compiled=list(COMPILED), when=["first of all", "after a forward", "after a backward"])
def test_networks_train_however_they_are_compiled_and_whenever_the_trainer_is_made(k, compiled, when):
    """Ragged batches on three devices: 7 images, 2 images, 1 image."""
    ctxs, net = contexts(k), small_net(contexts(k))
    if COMPILED[compiled] is not None:
        net.hybridize(**COMPILED[compiled])
    if when == "after a forward":
        net(nd.zeros((1, 1, 8, 8), ctx=ctxs[0]))
    elif when == "after a backward":
        train_on_devices(net, NoTrainer(), ctxs, BATCHES[:1])
    trainer = BucketedTrainer(net.collect_params(), "sgd", dict(SGD))
    train_on_devices(net, trainer, ctxs, BATCHES)
    assert relative_distance(parameter_arrays(net, ctxs[-1]), expected()) <= 1e-5


class NoTrainer:
    def step(self, batch_size):
        """Leaves everything as it is."""


def test_a_gradient_can_be_changed_between_backward_and_step():
    """What param.grad() gives is what the network has written and the step will use, also under
    static_shape.
    """
    norms = []
    for make in (lambda params: gluon.Trainer(params, "sgd", dict(SGD), kvstore=None), BucketedTrainer):
        net = small_net(contexts(1))
        net.hybridize(static_alloc=True, static_shape=True)
        trainer = (
            make(net.collect_params(), "sgd", dict(SGD)) if make is BucketedTrainer else make(net.collect_params())
        )
        norms.append([])
        for images, labels in BATCHES:
            with autograd.record():
                x, y = (nd.array(array, ctx=device()) for array in (images, labels))
                loss = gluon.loss.SoftmaxCrossEntropyLoss()(net(x), y).sum()
            loss.backward()
            loss = None
            norms[-1].append(
                gluon.utils.clip_global_norm([p.grad(device()) for p in net.collect_params().values()], 0.3)
            )
            trainer.step(len(images))
        norms[-1] += parameter_arrays(net)
    assert relative_distance(norms[1], norms[0]) <= 1e-5


@pytest.mark.parametrize("store", ["device", "ring"])
def test_gradients_that_were_summed_can_be_clipped_before_the_update(store):
    """allreduce_grads, gluon.utils.clip_global_norm on each device, update: with idle devices, and
    where all is fresh.
    """
    results = []
    for ctxs, make in ((contexts(1), gluon.Trainer), (contexts(3), BucketedTrainer)):
        net = small_net(ctxs)
        settings = {"kvstore": store if len(ctxs) > 1 else None, "update_on_kvstore": False}
        trainer = make(net.collect_params(), "sgd", dict(SGD), **settings)
        for images, labels in BATCHES:
            train_on_devices(net, NoTrainer(), ctxs, [(images, labels)])
            trainer.allreduce_grads()
            for ctx in ctxs:
                gluon.utils.clip_global_norm([param.grad(ctx) for param in net.collect_params().values()], 0.3)
            trainer.update(len(images))
        results.append(parameter_arrays(net, ctxs[-1]))
    assert relative_distance(results[1], results[0]) <= 1e-5


def test_two_compiled_networks_that_share_parameters_both_go_on():
    """One of them may rest for some steps."""
    ctxs, results = contexts(2), []
    for make in (gluon.Trainer, BucketedTrainer):
        net = small_net(ctxs)
        both = [nn.HybridSequential() for _ in range(2)]
        for outer in both:
            outer.add(*net)
            outer.hybridize(static_alloc=True, static_shape=True)
            train_on_devices(outer, NoTrainer(), ctxs, BATCHES[:1])
        trainer = make(net.collect_params(), "sgd", dict(SGD), kvstore="device")
        for turn in (0, 0, 0, 1, 0, 1, 1):
            train_on_devices(both[turn], trainer, ctxs, BATCHES[:1])
        results.append(parameter_arrays(net))
    assert relative_distance(results[1], results[0]) <= 1e-5


def test_a_backward_that_is_repeated_before_the_step_replaces_the_first():
    results = []
    for make in (gluon.Trainer, BucketedTrainer):
        net = small_net(contexts(2))
        net.hybridize(static_alloc=True, static_shape=True)
        trainer = make(net.collect_params(), "sgd", dict(SGD), kvstore="device")
        for batch in BATCHES[:2] * 2:
            train_on_devices(net, NoTrainer(), contexts(2), [batch])
            train_on_devices(net, trainer, contexts(2), [batch])
        results.append(parameter_arrays(net))
    assert relative_distance(results[1], results[0]) <= 1e-5


def test_buckets_cannot_be_made_before_the_shapes_are_known():
    net = small_net(contexts(2))
    trainer = BucketedTrainer(net.collect_params(), "sgd", dict(SGD))
    for act in (trainer.prepare, lambda: trainer.step(1), trainer.allreduce_grads):
        with pytest.raises(
            RunError, match=r"4 parameters are not known.* conv\d+_weight.*call the network once"
        ) as raised:
            act()
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
    """MXNet refuses to write to what it records: `gluon.Trainer` fails there."""
    results = []
    for recorded in (False, True):
        net, settings_ = small_net(contexts(2)), {"optimizer": "sgd", **settings}
        trainer = BucketedTrainer(
            net.collect_params(), settings_.pop("optimizer"), None, store, bucket_bytes=0, **settings_
        )
        with autograd.record() if recorded else autograd.pause():
            train_on_devices(net, trainer, contexts(2), BATCHES)
            assert autograd.is_recording() == recorded
        results.append(parameter_arrays(net))
    assert arrays_equal(*results)


@pytest.fixture
def amp(monkeypatch):
    """mxnet.contrib.amp, as after its init(), which changes all of MXNet's operators for good."""
    monkeypatch.setattr(mxnets_amp.amp, "_amp_initialized", True)
    monkeypatch.setattr(mxnets_amp.amp, "_loss_scaler", mxnets_amp.loss_scaler.LossScaler())
    return mxnets_amp


def amp_steps(amp, make, ctxs, store):
    """Three steps, of which the second overflows on one device; the scales of the loss, and the
    parameters.
    """
    net = small_net(ctxs)
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
def test_amp_leaves_out_the_steps_that_it_leaves_out_under_gluons_trainer(amp, devices, store):
    expected = amp_steps(amp, gluon.Trainer, contexts(1), None)
    found = amp_steps(amp, BucketedTrainer, contexts(devices), store)
    assert np.isfinite(np.concatenate([array.ravel() for array in found])).all()
    assert np.array_equal(found[-1], expected[-1]) and relative_distance(found[:-1], expected[:-1]) <= 1e-5


def test_amp_and_a_store_that_updates_are_refused_together(amp):
    net = small_net(contexts(2))
    trainer = BucketedTrainer(net.collect_params(), "sgd", dict(SGD), "sharded-optimizer")
    amp.init_trainer(trainer)
    with pytest.raises(RunError, match=r"'sharded-optimizer' updates before amp can look.*LossScale") as raised:
        train_on_devices(net, trainer, contexts(2), BATCHES[:1])
    assert "\n" not in str(raised.value)
