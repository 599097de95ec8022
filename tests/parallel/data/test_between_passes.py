"""Running statistics that are read between two passes, which MXNet's engine does not order."""

from contextlib import nullcontext

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd
from support.devices import contexts, runs_on_gpus
from support.drawn_runs import BATCH_SIZE, load_few_digits, register_drawn_network, split_settings

from gluonlab.config import TrainConfig
from gluonlab.engine.fast_invoke import EngineHold, order_between_passes
from gluonlab.parallel import strategy_class
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter

STEPS = 4  # of an epoch
IMAGES = BATCH_SIZE * STEPS - 1
HELD_S = 120  # where nobody opens a gate, which makes a test fail


def make_layer(ctx):
    """A BatchNorm layer, bound on a device."""
    graph = mx.sym.BatchNorm(mx.sym.var("images"), name="norm", fix_gamma=False)
    bound = graph.simple_bind(ctx, images=(4, 3, 8, 8), grad_req="write")
    images = np.random.default_rng(1).normal(1, 1, (4, 3, 8, 8))
    bound.arg_dict["images"][:] = nd.array(images)
    bound.arg_dict["norm_gamma"][:] = 1
    bound.forward(is_train=True)  # so that no pass below allocates, or compiles, anything
    bound.backward(nd.ones_like(bound.outputs[0]))
    nd.waitall()
    return bound


def queue_pass(bound):
    bound.forward(is_train=True)
    bound.backward(nd.ones_like(bound.outputs[0]))


def open_later(gate, idle):
    """Open a gate once the device ``idle``, which it does not stop, has done all that it can."""
    for _ in range(5):  # what ends may make something else ready, forward a backward
        nd.ones((1,), ctx=idle).wait_to_read()
    assert gate.held_until_release
    gate.release()


def statistics(bound):
    nd.waitall()
    return [array.asnumpy() for array in bound.aux_arrays]


def assert_same(copies, expected):
    for copy, array in zip(copies, expected):
        np.testing.assert_array_equal(copy.asnumpy(), array)


def test_parameters_are_read_after_all_passes_queued_before():
    there, here = contexts(2)  # whoever waits for a CPU device waits for the first one's worker
    layer = make_layer(here)
    began = statistics(layer)
    copies = [nd.empty(array.shape, there) for array in layer.aux_arrays]
    gate = EngineHold([layer.arg_dict["images"]], HELD_S)
    queue_pass(layer)
    with order_between_passes(layer.aux_arrays):
        for array, copy in zip(layer.aux_arrays, copies):
            array.copyto(copy)
    open_later(gate, there)  # the pass does not begin before
    assert_same(copies, statistics(layer))
    assert not np.array_equal(copies[0].asnumpy(), began[0])


def test_parameters_are_read_before_passes_queued_afterwards():
    here, there = contexts(2)
    layer = make_layer(here)
    began = statistics(layer)
    copies = [nd.empty(array.shape, there) for array in layer.aux_arrays]
    gate = EngineHold(copies, HELD_S)
    with order_between_passes(layer.aux_arrays):
        for array, copy in zip(layer.aux_arrays, copies):
            array.copyto(copy)
    queue_pass(layer)
    open_later(gate, here)  # nothing is copied before
    assert not np.array_equal(statistics(layer)[0], began[0])
    assert_same(copies, began)


class TakesStates:
    """Makes a run's own strategy, of which ``states`` are taken after each step."""

    def __init__(self, rests):
        self.rests, self.states = rests, []

    def __call__(self, make_net, loss, plan, group):
        strategy = strategy_class(plan.split.mode)(make_net, loss, plan, group)
        strategy.step = ThenCalls(strategy.step, lambda: self.take(strategy))
        return strategy

    def take(self, strategy):
        if self.rests:
            nd.waitall()
        self.states.append({**strategy.state().devices, **strategy.parameters()})


class ThenCalls:
    """A step, and then something else."""

    def __init__(self, step, then):
        self.step, self.then = step, then

    def __call__(self, batch, around=None):
        losses = self.step(batch, around)
        self.then()
        return losses

    def __getattr__(self, name):
        return getattr(self.step, name)


def late():
    """On GPUs everything that is queued begins later, at random."""
    if not runs_on_gpus():
        return nullcontext()
    from gpus.simulated import delays

    return delays(500, seed=1)


@pytest.mark.parametrize("way", ["data", "cut", "channels"])
def test_a_checkpoint_during_training_equals_one_of_idle_devices(way):
    """Running statistics of all copies, and those among the parameters, after each step."""
    passing, resting = (TakesStates(rests) for rests in (False, True))
    for each in (passing, resting):
        with register_drawn_network(["convolution", "norm", "convolution"]), late():
            train(
                TrainConfig(**split_settings(way, epochs=1)), each, reporter=Reporter(),
                dataset=load_few_digits(IMAGES),
            )  # fmt: skip
    assert len(passing.states) == len(resting.states) == STEPS
    for in_passing, at_rest in zip(passing.states, resting.states):
        running = [name for name in at_rest if "running" in name]
        assert len(running) >= 4
        for name in running:
            found, expected = (state[name].asnumpy() for state in (in_passing, at_rest))
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
