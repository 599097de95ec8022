"""cuDNN's running variance, of n - 1, becomes that of CPU devices, of n. cuDNN's rule is simulated."""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import nd
from mxnet.gluon import nn
from support.examples import examples

from gluonlab.parallel.data.running_statistics import CudnnVarianceCorrection

CHANNELS = 3


def two_layers(momenta, pixels):
    """BatchNorm on images of ``pixels`` squared, and then, of means of images, on one value each."""
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(
            nn.BatchNorm(momentum=momenta[0], in_channels=CHANNELS),
            nn.GlobalAvgPool2D(),
            nn.BatchNorm(momentum=momenta[1], in_channels=CHANNELS),
            nn.BatchNorm(use_global_stats=True, in_channels=CHANNELS),
        )
    net.initialize()
    return net


class SimulatedLayer:
    """A layer's running variances by both rules, in float64."""

    def __init__(self, param, momentum, positions, zero_variance):
        self.param, self.momentum, self.positions, self.zero_variance = param, momentum, positions, zero_variance
        self.mxnets = self.cudnns = param.data().asnumpy().astype("float64")

    def see(self, images, variance):
        values = images * self.positions
        unbiased = variance * values / (values - 1) if values > 1 else np.full(CHANNELS, self.zero_variance)
        variance = variance if values > 1 else np.zeros(CHANNELS)
        self.mxnets = self.momentum * self.mxnets + (1 - self.momentum) * variance
        self.cudnns = self.momentum * self.cudnns + (1 - self.momentum) * unbiased
        self.param.set_data(nd.array(self.cudnns))


pytestmark = pytest.mark.cpu_only("cuDNN is played; tests/gpus/test_running_variance.py is about the simulated one")
MOMENTUM = st.sampled_from([0.0, 0.5, 0.9, 0.99])
# (images, steps) of batches alike
SIZES = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), min_size=1, max_size=4)


@examples(12, 25)
@given(momenta=st.tuples(MOMENTUM, MOMENTUM), pixels=st.integers(1, 3), epochs=st.lists(SIZES, min_size=1, max_size=2))
def test_cudnns_variances_become_those_of_cpu_devices(momenta, pixels, epochs):
    net, random = two_layers(momenta, pixels), np.random.RandomState(0)
    params, graph = net.collect_params(), net(mx.sym.var("data"))
    layers = [
        SimulatedLayer(params[f"net_batchnorm{n}_running_var"], momenta[n], positions, 0.0 if momenta[n] else np.nan)
        for n, positions in enumerate((pixels**2, 1))
    ]
    variances = CudnnVarianceCorrection(graph, params, mx.cpu())
    for epoch in epochs:
        for images, steps in epoch:
            for _ in range(steps):
                variances.record_step([(images, CHANNELS, pixels, pixels)])
                for layer in layers:  # where cuDNN would begin: at what is there now
                    layer.cudnns = layer.param.data().asnumpy().astype("float64")
                    layer.see(images, random.uniform(0.1, 3, CHANNELS))
        variances.correct_variances()
        for layer in layers:
            np.testing.assert_allclose(layer.param.data().asnumpy(), layer.mxnets, rtol=2e-5, atol=1e-6)
            layer.param.set_data(nd.array(layer.mxnets))
    assert (params["net_batchnorm2_running_var"].data().asnumpy() == 1).all()  # nobody moves it


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_variance_correction_counts_microbatches_as_batches_and_corrects_once(steps):
    """A part of one value has variance 0."""
    net = two_layers((0.9, 0.9), 1)
    params = net.collect_params()
    layer = SimulatedLayer(params["net_batchnorm0_running_var"], 0.9, 1, 0.0)
    variances = CudnnVarianceCorrection(net(mx.sym.var("data")), params, mx.cpu())
    variances.correct_variances()  # without a step
    for _ in range(steps):
        variances.record_step([(4, CHANNELS, 1, 1)] * 2 + [(1, CHANNELS, 1, 1)])
        layer.cudnns = layer.param.data().asnumpy().astype("float64")
        for images in (4, 4, 1):
            layer.see(images, np.ones(CHANNELS))
    for _ in range(2):
        variances.correct_variances()
        np.testing.assert_allclose(layer.param.data().asnumpy(), layer.mxnets, rtol=2e-5)


def test_a_layer_that_is_called_twice_sees_each_time_as_many_values_as_it_gets():
    twice = nn.BatchNorm(prefix="twice_", in_channels=CHANNELS)
    twice.initialize()
    data = mx.sym.var("data")
    pooled = mx.sym.Pooling(data, global_pool=True, pool_type="avg", kernel=(1, 1))
    graph = mx.sym.concat(twice(data), twice(pooled).tile((1, 1, 3, 3)))
    passes = CudnnVarianceCorrection(graph, twice.collect_params(), mx.cpu())._passes_by_variance((4, CHANNELS, 3, 3))
    assert [one.values for one in passes["twice_running_var"]] == [4 * 9, 4]
