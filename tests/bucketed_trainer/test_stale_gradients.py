"""Gradients that backward has not written since the last step: refused, or left out, on every
device alike.
"""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import autograd, gluon
from support.branching import (
    backward,
    make_branching_net,
    make_shards,
    train_branches_on_devices,
    train_branches_on_one_device,
)
from support.covering import pairwise
from support.devices import contexts
from support.examples import examples
from support.reference import arrays_equal, parameter_arrays, relative_distance

from gluonlab.bucketed_trainer.loss_scale import LossScale
from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.optimizers import NAG, SGD, Adamax

STORES = ("device", "local", "ring", "double_tree", "sharded-optimizer")
OPTIMIZERS = {
    "sgd": lambda: mx.optimizer.SGD(learning_rate=0.2, momentum=0.9, wd=0.01),
    "corrected": lambda: SGD(momentum=0.9, lr_scheduler=mx.lr_scheduler.FactorScheduler(1, 0.6, base_lr=0.2)),
    "nag": lambda: NAG(momentum=0.9, wd=0.01, lr_scheduler=mx.lr_scheduler.FactorScheduler(1, 0.6, base_lr=0.1)),
    "adam": lambda: mx.optimizer.Adam(learning_rate=0.05, wd=0.01),
    "ftml": lambda: mx.optimizer.FTML(learning_rate=0.05),
    "adamax": lambda: Adamax(learning_rate=0.05),
    "rmsprop": lambda: mx.optimizer.RMSProp(learning_rate=0.05, centered=True),
    "lamb": lambda: mx.optimizer.LAMB(learning_rate=0.05),
}
SCHEDULED = ("corrected", "nag")
BOTH, FIRST, SECOND, NONE = (0, 1), (0,), (1,), ()


def bucketed(net, optimizer="sgd", store="device", **settings):
    return BucketedTrainer(net.collect_params(), OPTIMIZERS[optimizer](), kvstore=store, **settings)


def replicas_of(net, ctxs):
    return [parameter_arrays(net, ctx) for ctx in ctxs]


def identical(net, ctxs):
    first, *others = replicas_of(net, ctxs)
    return all(np.array_equal(a, b) for other in others for a, b in zip(first, other))


@st.composite
def runs(draw):
    """How many branches and devices there are, and which branches each device uses in each step; ()
    is an idle device.
    """
    branches, devices = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    used = st.sets(st.integers(0, branches - 1)).map(lambda some: tuple(sorted(some)))
    steps = draw(st.lists(st.tuples(*[used] * devices), min_size=1, max_size=4))
    return branches, devices, steps


CHOICES = {
    "run": runs(),
    "store": st.sampled_from(STORES),
    "optimizer": st.sampled_from([name for name in OPTIMIZERS if name != "lamb"]),
    "bucket_bytes": st.sampled_from([0, 130, 4096]),
    "clip_norm": st.sampled_from([None, 0.05]),
    "scaled": st.booleans(),
}


@examples(6, 300)
@given(**CHOICES)
def test_what_is_fresh_somewhere_is_updated_everywhere_and_the_rest_stays(
    run, store, optimizer, bucket_bytes, clip_norm, scaled
):
    """As gluon.Trainer's own flag does on one device: weights, states and counts of updates."""
    branches, devices, steps = run
    ctxs = contexts(devices)
    net = make_branching_net(branches, ctxs)
    # with a scale, every step counts for the schedule
    scale = LossScale(8.0) if scaled and optimizer not in SCHEDULED else None
    settings = {"bucket_bytes": bucket_bytes, "clip_norm": clip_norm, "loss_scale": scale}
    trainer = bucketed(net, optimizer, store, **settings)
    train_branches_on_devices(net, trainer, steps, ctxs)
    expected = train_branches_on_one_device(branches, steps, OPTIMIZERS[optimizer](), clip_norm)
    assert identical(net, ctxs)
    assert relative_distance(parameter_arrays(net, ctxs[0]), parameter_arrays(expected)) <= 2e-5


@examples(4, 5)
@given(run=runs(), clip_norm=CHOICES["clip_norm"])
def test_optimizers_that_look_at_whole_parameters_leave_out_the_stale_ones_too(run, clip_norm):
    test = test_what_is_fresh_somewhere_is_updated_everywhere_and_the_rest_stays.hypothesis
    test.inner_test(run, "device", "lamb", 4096, clip_norm, False)


@pytest.mark.parametrize("store", STORES)
def test_an_idle_device_counts_as_zero_without_a_word(store):
    """The last update of an epoch, with fewer images than devices, is that of one device."""
    ctxs, steps = contexts(3), [(BOTH, BOTH, BOTH), (BOTH, NONE, NONE), (BOTH, BOTH, NONE)]
    net = make_branching_net(2, ctxs)
    trainer = bucketed(net, store=store)
    for number, uses in enumerate(steps):
        shards = make_shards(number, 3)
        backward(net, shards, uses, ctxs)
        trainer.step(6)  # without ignore_stale_grad
    assert identical(net, ctxs)
    assert (
        relative_distance(
            parameter_arrays(net), parameter_arrays(train_branches_on_one_device(2, steps, OPTIMIZERS["sgd"]()))
        )
        <= 1e-5
    )


NAMED = {  # which branches the devices use: what is named
    (BOTH, FIRST): r"dense\d+_weight on [cg]pu\(1\)",
    (SECOND, SECOND): r"dense\d+_weight on [cg]pu\(0\)",
    (FIRST, NONE): r"dense\d+_weight on [cg]pu\(0\)",
    (NONE, NONE): r"dense\d+_weight on any device",
}


@pairwise(uses=list(NAMED), store=["device", "ring", "sharded-optimizer"], first=[True, False])
def test_a_parameter_that_a_busy_device_did_not_use_is_named_before_anything_changes(store, uses, first):
    ctxs, named = contexts(2), NAMED[uses]
    net = make_branching_net(2, ctxs)
    trainer = bucketed(net, store=store)
    if not first:
        train_branches_on_devices(net, trainer, [(BOTH, BOTH)], ctxs)
    before = replicas_of(net, ctxs)
    grads = [grad.asnumpy() for param in net.collect_params().values() for grad in param.list_grad()]
    backward(net, make_shards(1, 2), uses, ctxs)
    for _ in range(2):  # the flags are not used up by complaining
        with pytest.raises(
            UserWarning, match=f"no fresh gradient since the last step: .*{named}.*ignore_stale_grad=True"
        ):
            trainer.step(4)
    assert all(np.array_equal(a, b) for old, new in zip(before, replicas_of(net, ctxs)) for a, b in zip(old, new))
    assert grads  # and what follows is as if nobody had asked
    trainer.step(4, ignore_stale_grad=True)
    steps = [(uses)] if first else [(BOTH, BOTH), uses]
    reference = make_branching_net(2, ctxs)
    other = bucketed(reference, store=store)
    if not first:
        train_branches_on_devices(reference, other, [(BOTH, BOTH)], ctxs)
    backward(reference, make_shards(1, 2), steps[-1], ctxs)
    other.step(4, ignore_stale_grad=True)
    assert arrays_equal(parameter_arrays(net), parameter_arrays(reference))


def test_both_halves_of_a_step_see_the_same_gradients():
    """allreduce_grads, a change of the sums by hand, update: the norm is that of what is fresh."""
    steps = [(BOTH, BOTH), (FIRST, FIRST), (BOTH, NONE), (NONE, FIRST)]
    ctxs = contexts(2)
    net = make_branching_net(2, ctxs)
    trainer = bucketed(net, "adam")
    for number, uses in enumerate(steps):
        backward(net, make_shards(number, 2), uses, ctxs)
        trainer.allreduce_grads()
        for ctx in ctxs:
            grads = [param.grad(ctx) for param in net.collect_params().values()]
            gluon.utils.clip_global_norm(grads, 0.05 * 4)
        if FIRST in uses:
            with pytest.raises(UserWarning, match="no fresh gradient"):
                trainer.update(4)
        trainer.update(4, ignore_stale_grad=True)
    expected = train_branches_on_one_device(2, steps, OPTIMIZERS["adam"](), clip_norm=0.05)
    assert identical(net, ctxs)
    assert relative_distance(parameter_arrays(net), parameter_arrays(expected)) <= 1e-5


def test_gradients_that_are_added_up_are_fresh_after_one_backward_of_several():
    """grad_req "add": each device's second part of a batch may be missing."""
    results = []
    for make in (lambda params: gluon.Trainer(params, OPTIMIZERS["sgd"](), kvstore=None), BucketedTrainer):
        several = make is BucketedTrainer
        ctxs = contexts(3) if several else contexts(1) * 3
        net = make_branching_net(2, ctxs if several else ctxs[:1])
        net.collect_params().setattr("grad_req", "add")
        trainer = make(net.collect_params(), OPTIMIZERS["sgd"]()) if several else make(net.collect_params())
        for number in range(3):
            for part, uses in enumerate([(BOTH, BOTH, BOTH), (BOTH, NONE, NONE)]):
                shards = make_shards(2 * number + part, 3)
                with autograd.record():
                    pairs = zip(shards, uses, ctxs)
                    losses = [
                        ((net(mx.nd.array(x, ctx=ctx), used) - mx.nd.array(y, ctx=ctx)) ** 2).sum()
                        for (x, y), used, ctx in pairs
                        if used
                    ]
                autograd.backward(losses)
            trainer.step(8)
            net.collect_params().zero_grad()
        results.append(parameter_arrays(net))
    assert relative_distance(results[1], results[0]) <= 1e-5


def test_a_frozen_parameter_has_no_gradient_to_be_fresh():
    ctxs = contexts(2)
    net = make_branching_net(2, ctxs)
    net.branches[1].collect_params().setattr("grad_req", "null")
    trainer = bucketed(net)
    backward(net, make_shards(0, 2), (BOTH, FIRST), ctxs)
    trainer.step(4)
    backward(net, make_shards(1, 2), (NONE, FIRST), ctxs)
    trainer.step(4)
    assert identical(net, ctxs)


# --- and what else goes by counts of updates


@pytest.mark.parametrize("optimizer", ["adam", "corrected"])
@pytest.mark.parametrize("store", ["device", "ring", "sharded-optimizer"])
def test_states_that_are_saved_know_which_parameters_stayed_behind(store, optimizer, tmp_path):
    """Parameters of one bucket that were updated more often than others go on, each from its own
    count.
    """
    before, after = [(BOTH, FIRST), (FIRST, FIRST), (NONE, FIRST)], [(BOTH, BOTH), (SECOND, FIRST)]
    ctxs = contexts(2)
    net, other = make_branching_net(2, ctxs), make_branching_net(2, ctxs)
    trainer = bucketed(net, optimizer, store)
    train_branches_on_devices(net, trainer, before, ctxs)
    trainer.save_states(str(tmp_path / "states"))
    net.save_parameters(str(tmp_path / "params"))
    other.load_parameters(str(tmp_path / "params"), ctx=ctxs)
    resumed = bucketed(other, optimizer, store)
    resumed.load_states(str(tmp_path / "states"))
    train_branches_on_devices(net, trainer, after, ctxs)
    train_branches_on_devices(other, resumed, after, ctxs)
    assert identical(other, ctxs)
    assert relative_distance(parameter_arrays(other), parameter_arrays(net)) <= 1e-6
