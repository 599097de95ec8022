"""Synchronized BatchNorm in stages, as on GPUs, is BatchNorm on one device with the whole batch."""

import dataclasses
import re
from functools import partial

import mxnet as mx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from support.devices import contexts, device_spec
from support.examples import examples
from support.reference import (
    arrays_equal,
    identity,
    parameter_arrays,
    random_batches,
    relative_distance,
    set_parameter_arrays,
    shard_batch,
    train_on_one_device,
)
from support.steps import make_step, train_steps
from support.sync_bn import SHAPE, SyncBatchNormNet

from gluonlab.config import TrainConfig
from gluonlab.data import load_dataset
from gluonlab.data.loading.batch_loader import Loader
from gluonlab.data.loading.split_batch import WHOLE_SHARDS, Microbatches
from gluonlab.kvstores.process_groups import SINGLE_PROCESS
from gluonlab.parallel.data.replica import IMAGES, LABELS, loss_graph
from gluonlab.parallel.data.strategy import data_parallel
from gluonlab.parallel.data.sync_bn import split_at_batch_norm as cut_graph
from gluonlab.parallel.memory_estimate import MIB
from gluonlab.training.build_network import make_net
from gluonlab.training.plan import make_plan
from gluonlab.training.run_memory import MemoryEstimator


class Twice(nn.HybridBlock):
    """A layer that is used twice, and one whose gamma and beta are frozen."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.norm, self.conv = nn.BatchNorm(momentum=0.6), nn.Conv2D(2, 3, padding=1)
            self.frozen, self.scores = nn.BatchNorm(epsilon=1e-3), nn.Dense(10)
        for param in (self.frozen.gamma, self.frozen.beta):
            param.grad_req = "null"

    def hybrid_forward(self, F, x):
        y = self.norm(x)
        return self.scores(F.tanh(self.frozen(F.tanh(self.norm(self.conv(y))) + x)))


NETWORKS = {"residual": SyncBatchNormNet, "twice": Twice}


def make_initial_net(make, ctxs, dtype="float32"):
    net = make()
    net.initialize(ctx=ctxs)
    net.cast(dtype)
    net(nd.zeros((1, *SHAPE), ctx=ctxs[0], dtype=dtype))
    random = np.random.RandomState(3)
    start = [
        random.uniform(0.2, 1, param.shape) * random.choice([-1, 1], param.shape)
        for param in net.collect_params().values()
    ]
    names = list(net.collect_params())
    set_parameter_arrays(net, [abs(array) if "var" in name else array for name, array in zip(names, start)])
    for block in getattr(net, "second", []):
        if isinstance(block, nn.BatchNorm):
            # MXNet's float64 writes it there where scale=False
            block.gamma.set_data(nd.ones(block.gamma.shape, dtype=dtype))
    return net


def comparable_arrays(net, ctx=None):
    """Without the statistics of a layer that is used twice: MXNet moves them in backward order on CPUs."""
    twice = re.compile(r"^twice\d+_batchnorm0_running")
    return [array for name, array in zip(net.collect_params(), parameter_arrays(net, ctx)) if not twice.match(name)]


def make_float64_trainer(net, rate):
    return gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": rate}, kvstore=None)


def step_in_float64(net, trainer, *parts):
    """A step of plain Gluon, on parts (images, labels) of a batch."""
    for images, labels in parts:
        with autograd.record():
            scores = net(nd.array(images, dtype="float64"))
            loss = gluon.loss.SoftmaxCrossEntropyLoss()(scores, nd.array(labels)).sum()
        loss.backward()
    trainer.step(sum(len(images) for images, _ in parts))


def train_in_float64(make, batches, rate):
    """The parameters after plain training on one CPU, where MXNet's own BatchNorm sees the whole batch."""
    net = make_initial_net(make, [mx.cpu()], "float64")
    trainer = make_float64_trainer(net, rate)
    for batch in batches:
        step_in_float64(net, trainer, batch)
    return comparable_arrays(net)


def train_in_stages(make, ctxs, batches=(), **settings):
    """Network and step, after these batches."""
    net = make_initial_net(make, ctxs)
    step = make_step(net, ctxs, sync_bn=True, **{"learning_rate": 0.05, **settings})
    train_steps(step, batches, ctxs)
    return net, step


def train_as_three(make, ctxs, batches, **settings):
    """Return the parameters: of each device, in float64, and on one device in float32."""
    net, _ = train_in_stages(make, ctxs, batches, **settings)
    plain = make_initial_net(make, [mx.cpu()])
    train_on_one_device(plain, batches, "sgd", learning_rate=0.05)
    expected = train_in_float64(make, batches, 0.05)
    return [comparable_arrays(net, ctx) for ctx in ctxs], expected, comparable_arrays(plain)


@settings(max_examples=4)
@given(
    name=st.sampled_from(sorted(NETWORKS)),
    k=st.integers(1, 4),
    sizes=st.lists(st.sampled_from([1, 3, 4, 7, 12]), min_size=1, max_size=3),
    mean=st.sampled_from([0.0, 30.0]),
    store=st.sampled_from(["device", "ring"]),
)
@example(name="twice", k=3, sizes=[7, 3, 7], mean=0.0, store="ring")
@example(name="residual", k=2, sizes=[12, 1, 12], mean=30.0, store="device")
def test_sync_bn_equals_batchnorm_of_the_whole_batch(name, k, sizes, mean, store):
    """Weights and running statistics, on all devices, also idle ones.

    Images with a mean cost float32 some of its digits, so the error may be four times that of
    MXNet's own BatchNorm in float32 on one device.
    """
    batches = [(images * 2 + np.float32(mean), labels) for images, labels in random_batches(sizes, shape=SHAPE)]
    results, expected, plain = train_as_three(NETWORKS[name], contexts(k), batches, store=store)
    bound = 1e-5 if mean == 0 else max(1e-5, 4 * relative_distance(plain, expected))
    assert all(relative_distance(result, expected) <= bound for result in results)


@settings(max_examples=3)
@given(
    k=st.integers(1, 4),
    mean=st.floats(-3000, 3000),
    deviation=st.sampled_from([0.5, 1.0, 10.0]),
    seed=st.integers(0, 99),
)
@example(k=2, mean=1000.0, deviation=1.0, seed=0)
@example(k=3, mean=1000.0, deviation=1.0, seed=4)
def test_where_images_have_a_large_mean_it_is_as_exact_as_batchnorm_on_one_device(k, mean, deviation, seed):
    """A mean of 1000 costs float32 three of its seven digits."""
    batches = [
        (images * np.float32(2 * deviation) + np.float32(mean), labels)
        for images, labels in random_batches([12, 5], seed, shape=SHAPE)
    ]
    results, expected, plain = train_as_three(SyncBatchNormNet, contexts(k), batches)
    # what rounding the mean may cost; one device may have luck
    rounding = 2.0**-24 * (1 + (mean / deviation) ** 2 / 256)
    assert relative_distance(results[0], expected) <= 4 * max(relative_distance(plain, expected), rounding)


def test_a_gamma_that_is_fixed_is_one_whatever_the_parameter_holds():
    batches, ctxs, results = random_batches([7, 5], shape=SHAPE), contexts(2), []
    for held in (1.0, 3.0):
        net, step = train_in_stages(SyncBatchNormNet, ctxs)
        fixed = net.second[1].gamma
        fixed.set_data(nd.full(fixed.shape, held))
        train_steps(step, batches, ctxs)
        others = [param for param in net.collect_params().values() if param is not fixed]
        results.append([param.data(ctx).asnumpy() for param in others for ctx in ctxs])
    assert arrays_equal(*results)


class Crossing(nn.HybridBlock):
    """A value that many stages take, each in another way."""

    def __init__(self, ways):
        super().__init__()
        self.ways = ways
        with self.name_scope():
            self.conv, self.scores = nn.Conv2D(3, 3, padding=1), nn.Dense(10)
            self.norms = [nn.BatchNorm() for _ in ways]
            for norm in self.norms:
                self.register_child(norm)

    def hybrid_forward(self, F, x):
        y = z = F.tanh(self.conv(x))
        for way, norm in zip(self.ways, self.norms):
            z = norm(z)
            z = WAYS[way](F, z, y)
        return self.scores(z)


WAYS = {
    "added": lambda F, z, y: z + y,
    "twice": lambda F, z, y: (z + y) + y,
    "taken away": lambda F, z, y: z - y,
    "multiplied": lambda F, z, y: z * y,
    "divided": lambda F, z, y: y / (F.square(z) + 1),
    "joined": lambda F, z, y: F.slice_axis(F.concat(z, y, dim=1), axis=1, begin=1, end=4),
    "masked": lambda F, z, y: F.where(z > 0.5, z, y),
    "averaged": lambda F, z, y: F.broadcast_mul(z, F.mean(y, axis=(2, 3), keepdims=True)),
    "summed": lambda F, z, y: F.add_n(z, y, z),
}


@examples(4, 5)
@given(ways=st.lists(st.sampled_from(sorted(WAYS)), min_size=2, max_size=5), k=st.integers(1, 3))
@example(ways=["added"] * 9, k=2)
def test_a_value_of_several_stages_gets_the_gradients_of_all(ways, k):
    batches = random_batches([7], shape=SHAPE)
    net, _ = train_in_stages(lambda: Crossing(ways), contexts(k), batches, learning_rate=0.1)
    assert relative_distance(parameter_arrays(net), train_in_float64(lambda: Crossing(ways), batches, 0.1)) <= 5e-4


class GammaElsewhere(nn.HybridBlock):
    """The parameter gamma of a layer is also the bias of a layer behind it, in the same stage."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.units, self.scores = nn.Dense(4), nn.Dense(10)
            self.norm = nn.BatchNorm(in_channels=4)
            self.weight = self.params.get("weight", shape=(4, 4))
        self._reg_params.update(gamma=self.norm.gamma)

    def hybrid_forward(self, F, x, weight, gamma):
        return self.scores(F.tanh(F.FullyConnected(self.norm(self.units(x)), weight, gamma, num_hidden=4)))


@pytest.mark.parametrize("k", [1, 2])
def test_a_gamma_that_is_used_elsewhere_has_both_gradients(k):
    batches = random_batches([6, 5], shape=SHAPE)
    net, _ = train_in_stages(GammaElsewhere, contexts(k), batches)
    assert relative_distance(parameter_arrays(net), train_in_float64(GammaElsewhere, batches, 0.05)) <= 1e-5


def make_frozen_net():
    """Only the last layers are trained."""
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3), nn.Activation("relu"), nn.BatchNorm())
    net.add(nn.Conv2D(4, 3), nn.Activation("relu"), nn.BatchNorm(), nn.Dense(10))
    for layer in (net[0], net[2], net[3]):
        for param in layer.collect_params().values():
            param.grad_req = "null"
    return net


@pytest.mark.parametrize("k", [1, 2])
def test_frozen_weights_may_change_between_steps(k):
    """Without gradients, MXNet's oneDNN would keep using copies of them."""
    batches = random_batches([6, 6], shape=SHAPE)
    ctxs = contexts(k)
    net, step = train_in_stages(make_frozen_net, ctxs, learning_rate=0.1)
    one = make_initial_net(make_frozen_net, [mx.cpu()], "float64")
    trainer = make_float64_trainer(one[5:], 0.1)
    for batch in batches:
        for layer in (net[0], net[3], one[0], one[3]):
            weight = layer.weight.list_data()[0]
            layer.weight.set_data(weight.as_in_context(mx.cpu()) * nd.array([0.5], dtype=weight.dtype))
        train_steps(step, [batch], ctxs)
        step_in_float64(one, trainer, batch)
    assert relative_distance(parameter_arrays(net[5:]), parameter_arrays(one[5:])) <= 1e-5


@pytest.mark.parametrize("epsilon", [1e-5, 1.1e-5, 1e-3])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_running_variance_of_equal_images_is_never_negative(k, epsilon):
    ctxs = contexts(k)
    net = nn.HybridSequential()
    net.add(nn.BatchNorm(epsilon=epsilon, running_variance_initializer="zeros"), nn.Dense(10))
    net.initialize(ctx=ctxs)
    net(nd.zeros((1, *SHAPE), ctx=ctxs[0]))
    step = make_step(net, ctxs, sync_bn=True, learning_rate=0.1)
    train_steps(step, [(np.full((7, *SHAPE), 3, np.float32), np.zeros(7))], ctxs)
    for ctx in ctxs:
        variance = net[0].running_var.data(ctx).asnumpy()
        assert ((variance >= 0) & (variance <= 1e-5 * epsilon)).all()


@pytest.mark.parametrize("name", NETWORKS)
def test_with_microbatches_gradients_add_up(name):
    """Rounds of two devices' parts: 3 + 3, 2 + 3, 2 images."""
    ctxs = contexts(2)
    ((images, labels),) = random_batches([13], shape=SHAPE)
    net, _ = train_in_stages(NETWORKS[name], ctxs, [(images, labels)], cut=Microbatches(size=3), learning_rate=0.5)
    one = make_initial_net(NETWORKS[name], [mx.cpu()], "float64")
    for param in one.collect_params().values():
        param.grad_req = "null" if param.grad_req == "null" else "add"
    parts = [(images[part], labels[part]) for part in ([0, 1, 2, 7, 8, 9], [3, 4, 10, 11, 12], [5, 6])]
    step_in_float64(one, make_float64_trainer(one, 0.5), *parts)
    for ctx in ctxs:
        assert relative_distance(comparable_arrays(net, ctx), comparable_arrays(one)) <= 1e-5


def test_gradients_of_parameters_with_grad_req_add_are_summed_over_passes():
    (batch,) = random_batches([9], shape=SHAPE)
    gradients = []
    for request, passes in (("write", 1), ("add", 2)):

        def make_net(request=request):
            net = SyncBatchNormNet()
            net.collect_params().setattr("grad_req", request)
            return net

        net, step = train_in_stages(make_net, contexts(2))
        [parts] = WHOLE_SHARDS.split_into_rounds(shard_batch(batch, contexts(2)))
        for _ in range(passes):
            step.sync_bn_replicas.forward(parts)
            step.sync_bn_replicas.backward()
        trained = [param for param in net.collect_params().values() if param.grad_req != "null"]
        gradients.append([param.grad(ctx).asnumpy() / passes for param in trained for ctx in contexts(2)])
    assert relative_distance(*gradients) <= 1e-6


def test_the_scale_of_the_loss_changes_no_bit_of_the_gradients():
    ctxs = contexts(2)
    (batch,) = random_batches([9], shape=SHAPE)
    gradients = []
    for scale in (1.0, 256.0):
        net, step = train_in_stages(SyncBatchNormNet, ctxs)
        [parts] = WHOLE_SHARDS.split_into_rounds(shard_batch(batch, ctxs))
        for _ in range(2):
            step.sync_bn_replicas.forward(parts)
            step.sync_bn_replicas.backward(scale)
        trained = [param for param in net.collect_params().values() if param.grad_req != "null"]
        gradients.append([param.grad(ctx).asnumpy() / scale for param in trained for ctx in ctxs])
    assert arrays_equal(*gradients)


def test_stages_contain_all_nodes_of_the_network():
    """Values that cross come from earlier stages only."""
    net = make_initial_net(Twice, contexts(1))
    graph = loss_graph(net, gluon.loss.SoftmaxCrossEntropyLoss(), identity)
    stages = cut_graph(graph)
    assert [len(stage.layers) for stage in stages] == [1, 1, 1, 0]
    outputs, operators = set(), set()
    for stage in stages:
        inputs = set(stage.graph.list_arguments()) - set(net.collect_params()) - {IMAGES, LABELS}
        assert {name for name in inputs if re.search(r"\.\d+$", name)} <= outputs
        outputs |= set(stage.boundary_names)
        operators |= set(stage.graph.get_internals().list_outputs())
    assert {name for name in graph.get_internals().list_outputs() if name.endswith("_output")} <= operators


@pytest.mark.parametrize("microbatches", [None, pytest.param(3, marks=pytest.mark.long)])
def test_estimated_memory_equals_the_allocated_memory_of_stages(microbatches):
    """By MXNet's account of each graph that is bound, and the other arrays."""
    settings = dict(model="resnet8", dataset="synthetic", sync_bn=True, global_batch_size=64)
    plan = make_plan(TrainConfig(devices=device_spec(2), microbatches=microbatches, **settings))
    plan = dataclasses.replace(plan, dataset=load_dataset("synthetic", samples=100))
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    step = data_parallel(partial(make_net, plan), loss, plan, SINGLE_PROCESS)
    for split, use in ((plan.dataset.train, step), (plan.dataset.test, step.score)):
        for batch in Loader(split, plan.ctxs, plan.global_batch_size, raw=True):
            list(use(batch))
    bound = step.sync_bn_replicas._bound.values()
    # the last batch, and what adds, have their own
    assert len(bound) == (2 if microbatches is None else 5)
    executors = [batch.executors[0] for batch in bound]
    stages = [max(map(allocated_bytes, runs)) for runs in zip(*(executor.runs for executor in executors))]
    # MXNet's, of what is given to it
    copies = [array for executor in executors for run in executor.runs for array in (run.heads or ())]
    evaluating = max(allocated_bytes(graph.bound) for graph in step.replicas[0]._bound.values())
    arrays = sum(array.size * 4 for array in copies) + step.sync_bn_replicas._memory[0].gradients.bytes
    estimated = MemoryEstimator(plan, make_net(plan)).memory(32).activations
    # MXNet leaves fractions of a MiB out
    assert abs(estimated - sum(stages) - arrays - evaluating) <= (len(stages) + 1) * MIB
    assert estimated > 4 * (len(stages) + 1) * MIB


def allocated_bytes(bound):
    return int(re.findall(r"Total (\d+) MB allocated", bound.executor.debug_str())[0]) * MIB
