"""Gradients that backward has not written since the last step are refused or ignored, everywhere."""

import mxnet as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import gluon
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


def make_trainer(net, optimizer="sgd", store="device", **settings):
    return BucketedTrainer(net.collect_params(), OPTIMIZERS[optimizer](), kvstore=store, **settings)


def replica_arrays(net, ctxs):
    return [parameter_arrays(net, ctx) for ctx in ctxs]


def replicas_are_equal(net, ctxs):
    first, *others = replica_arrays(net, ctxs)
    return all(arrays_equal(first, other) for other in others)


@st.composite
def runs(draw):
    """Draw the numbers of branches and devices, and the branches that each device uses per step."""
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
def test_parameters_with_a_fresh_gradient_anywhere_are_updated_everywhere_and_others_stay(
    run, store, optimizer, bucket_bytes, clip_norm, scaled
):
    branches, devices, steps = run
    ctxs = contexts(devices)
    net = make_branching_net(branches, ctxs)
    # with a scale, every step counts for the schedule
    scale = LossScale(8.0) if scaled and optimizer not in SCHEDULED else None
    settings = {"bucket_bytes": bucket_bytes, "clip_norm": clip_norm, "loss_scale": scale}
    trainer = make_trainer(net, optimizer, store, **settings)
    train_branches_on_devices(net, trainer, steps, ctxs)
    expected = train_branches_on_one_device(branches, steps, OPTIMIZERS[optimizer](), clip_norm)
    assert replicas_are_equal(net, ctxs)
    assert relative_distance(parameter_arrays(net, ctxs[0]), parameter_arrays(expected)) <= 2e-5


@examples(4, 5)
@given(run=runs(), clip_norm=CHOICES["clip_norm"])
def test_optimizers_of_whole_parameters_ignore_stale_ones_too(run, clip_norm):
    test = test_parameters_with_a_fresh_gradient_anywhere_are_updated_everywhere_and_others_stay
    test.hypothesis.inner_test(run, "device", "lamb", 4096, clip_norm, False)


@pytest.mark.parametrize("store", STORES)
def test_idle_devices_count_as_zero_also_without_ignore_stale_grad(store):
    ctxs, steps = contexts(3), [(BOTH, BOTH, BOTH), (BOTH, NONE, NONE), (BOTH, BOTH, NONE)]
    net = make_branching_net(2, ctxs)
    trainer = make_trainer(net, store=store)
    for number, uses in enumerate(steps):
        backward(net, make_shards(number, 3), uses, ctxs)
        trainer.step(6)
    expected = parameter_arrays(train_branches_on_one_device(2, steps, OPTIMIZERS["sgd"]()))
    assert replicas_are_equal(net, ctxs)
    assert relative_distance(parameter_arrays(net), expected) <= 1e-5


NAMED = {  # which branches the devices use: what is named
    (BOTH, FIRST): r"dense\d+_weight on [cg]pu\(1\)",
    (SECOND, SECOND): r"dense\d+_weight on [cg]pu\(0\)",
    (FIRST, NONE): r"dense\d+_weight on [cg]pu\(0\)",
    (NONE, NONE): r"dense\d+_weight on any device",
}


@pairwise(uses=list(NAMED), store=["device", "ring", "sharded-optimizer"], first=[True, False])
def test_a_parameter_that_a_busy_device_did_not_use_is_named_before_anything_changes(store, uses, first):
    ctxs = contexts(2)
    message = f"received no gradient since the last step: .*{NAMED[uses]}.*ignore_stale_grad=True"
    results = []
    for refused in (True, False):  # the refusals change nothing for the step after them
        net = make_branching_net(2, ctxs)
        trainer = make_trainer(net, store=store)
        if not first:
            train_branches_on_devices(net, trainer, [(BOTH, BOTH)], ctxs)
        before = replica_arrays(net, ctxs)
        backward(net, make_shards(1, 2), uses, ctxs)
        for _ in range(2 * refused):
            with pytest.raises(UserWarning, match=message):
                trainer.step(4)
        assert all(arrays_equal(*replicas) for replicas in zip(before, replica_arrays(net, ctxs)))
        trainer.step(4, ignore_stale_grad=True)
        results.append(parameter_arrays(net))
    assert arrays_equal(*results)


def test_allreduce_grads_and_update_see_the_same_fresh_gradients():
    steps = [(BOTH, BOTH), (FIRST, FIRST), (BOTH, NONE), (NONE, FIRST)]
    ctxs = contexts(2)
    net = make_branching_net(2, ctxs)
    trainer = make_trainer(net, "adam")
    for number, uses in enumerate(steps):
        backward(net, make_shards(number, 2), uses, ctxs)
        trainer.allreduce_grads()
        for ctx in ctxs:
            grads = [param.grad(ctx) for param in net.collect_params().values()]
            gluon.utils.clip_global_norm(grads, 0.05 * 4)
        if FIRST in uses:
            with pytest.raises(UserWarning, match="received no gradient"):
                trainer.update(4)
        trainer.update(4, ignore_stale_grad=True)
    expected = train_branches_on_one_device(2, steps, OPTIMIZERS["adam"](), clip_norm=0.05)
    assert replicas_are_equal(net, ctxs)
    assert relative_distance(parameter_arrays(net), parameter_arrays(expected)) <= 1e-5


def test_added_gradients_are_fresh_after_one_of_several_backwards():
    results = []
    for ctxs, several in ((contexts(1) * 3, False), (contexts(3), True)):
        net = make_branching_net(2, ctxs if several else ctxs[:1])
        net.collect_params().setattr("grad_req", "add")
        make, settings = (BucketedTrainer, {}) if several else (gluon.Trainer, {"kvstore": None})
        trainer = make(net.collect_params(), OPTIMIZERS["sgd"](), **settings)
        for number in range(3):
            for part, uses in enumerate([(BOTH, BOTH, BOTH), (BOTH, NONE, NONE)]):
                backward(net, make_shards(2 * number + part, 3), uses, ctxs)
            trainer.step(8)
            net.collect_params().zero_grad()
        results.append(parameter_arrays(net))
    assert relative_distance(results[1], results[0]) <= 1e-5


def test_a_frozen_parameter_needs_no_fresh_gradient():
    ctxs = contexts(2)
    net = make_branching_net(2, ctxs)
    net.branches[1].collect_params().setattr("grad_req", "null")
    trainer = make_trainer(net)
    backward(net, make_shards(0, 2), (BOTH, FIRST), ctxs)
    trainer.step(4)
    backward(net, make_shards(1, 2), (NONE, FIRST), ctxs)
    trainer.step(4)
    assert replicas_are_equal(net, ctxs)


@pytest.mark.parametrize("optimizer", ["adam", "corrected"])
@pytest.mark.parametrize("store", ["device", "ring", "sharded-optimizer"])
def test_saved_states_contain_the_number_of_updates_of_each_parameter(store, optimizer, tmp_path):
    before, after = [(BOTH, FIRST), (FIRST, FIRST), (NONE, FIRST)], [(BOTH, BOTH), (SECOND, FIRST)]
    ctxs = contexts(2)
    net, other = make_branching_net(2, ctxs), make_branching_net(2, ctxs)
    trainer = make_trainer(net, optimizer, store)
    train_branches_on_devices(net, trainer, before, ctxs)
    trainer.save_states(str(tmp_path / "states"))
    net.save_parameters(str(tmp_path / "params"))
    other.load_parameters(str(tmp_path / "params"), ctx=ctxs)
    resumed = make_trainer(other, optimizer, store)
    resumed.load_states(str(tmp_path / "states"))
    train_branches_on_devices(net, trainer, after, ctxs)
    train_branches_on_devices(other, resumed, after, ctxs)
    assert replicas_are_equal(other, ctxs)
    assert relative_distance(parameter_arrays(other), parameter_arrays(net)) <= 1e-6
