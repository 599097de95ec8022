"""Running statistics that are read between two passes, which MXNet's engine does not order."""

from contextlib import nullcontext

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd
from support.devices import contexts, runs_on_gpus
from support.drawn_runs import BATCH_SIZE, load_few_digits, register_drawn_network, split_settings
from support.reference import arrays_equal

from gluonlab.config import TrainConfig
from gluonlab.engine.engine_hold import EngineHold
from gluonlab.engine.fast_invoke import order_between_passes
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


def read_statistics(bound):
    nd.waitall()
    return [array.asnumpy() for array in bound.aux_arrays]


def assert_same(copies, expected):
    assert arrays_equal([copy.asnumpy() for copy in copies], expected)


def test_parameters_are_read_after_all_passes_queued_before():
    there, here = contexts(2)  # whoever waits for a CPU device waits for the first one's worker
    layer = make_layer(here)
    initial = read_statistics(layer)
    copies = [nd.empty(array.shape, there) for array in layer.aux_arrays]
    gate = EngineHold([layer.arg_dict["images"]], HELD_S)
    queue_pass(layer)
    with order_between_passes(layer.aux_arrays):
        for array, copy in zip(layer.aux_arrays, copies):
            array.copyto(copy)
    open_later(gate, there)  # the pass does not begin before
    assert_same(copies, read_statistics(layer))
    assert not np.array_equal(copies[0].asnumpy(), initial[0])


def test_parameters_are_read_before_passes_queued_afterwards():
    here, there = contexts(2)
    layer = make_layer(here)
    initial = read_statistics(layer)
    copies = [nd.empty(array.shape, there) for array in layer.aux_arrays]
    gate = EngineHold(copies, HELD_S)
    with order_between_passes(layer.aux_arrays):
        for array, copy in zip(layer.aux_arrays, copies):
            array.copyto(copy)
    queue_pass(layer)
    open_later(gate, here)  # nothing is copied before
    assert not np.array_equal(read_statistics(layer)[0], initial[0])
    assert_same(copies, initial)


class StateRecorder:
    """Makes a run's own strategy, of which ``states`` are taken after each step."""

    def __init__(self, waits):
        self.waits, self.states = waits, []

    def __call__(self, make_net, loss, plan, group):
        strategy = strategy_class(plan.parallelism.mode)(make_net, loss, plan, group)
        step = strategy.step

        def step_and_take_state(batch, around=None):
            losses = step(batch, around)
            if self.waits:
                nd.waitall()
            self.states.append({**strategy.state().devices, **strategy.parameters()})
            return losses

        strategy.step = step_and_take_state
        return strategy


def delay_queued_work():
    """On GPUs everything that is queued begins later, at random."""
    if not runs_on_gpus():
        return nullcontext()
    from gpus.simulated import delays

    return delays(500, seed=1)


@pytest.mark.parametrize("mode", ["data", "cut", "channels"])
def test_a_checkpoint_during_training_equals_one_of_idle_devices(mode):
    """Running statistics of all copies, and those among the parameters, after each step."""
    recorders = StateRecorder(waits=False), StateRecorder(waits=True)
    for recorder in recorders:
        with register_drawn_network(["convolution", "norm", "convolution"]), delay_queued_work():
            config = TrainConfig(**split_settings(mode, epochs=1))
            train(config, recorder, reporter=Reporter(), dataset=load_few_digits(IMAGES))
        assert len(recorder.states) == STEPS
    for in_training, idle in zip(*(recorder.states for recorder in recorders)):
        running = [name for name in idle if "running" in name]
        assert len(running) >= 4
        for name in running:
            np.testing.assert_allclose(in_training[name].asnumpy(), idle[name].asnumpy(), rtol=1e-4, atol=1e-5)
