"""Synchronised BatchNorm in stages, as GPUs have it, is BatchNorm on one device with the whole batch; tried on any devices."""

import dataclasses
import re

import mxnet as mx
import numpy as np
import pytest
from devices import contexts, named
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from reference import as_is, cpus, distance, random_batches, set_values, train_on_one_device, values
from test_training_sync_bn import SHAPE, Residual, shards

from gluonlab.config import TrainConfig
from gluonlab.data import load_dataset
from gluonlab.data.loader import Loader
from gluonlab.kvstores import make_kvstore
from gluonlab.training.accumulate import WHOLE, Microbatches
from gluonlab.training.buckets import BucketedTrainer
from gluonlab.training.joint import JointReplicas
from gluonlab.training.loop import data_parallel
from gluonlab.training.loop import make_net as make_plan_net
from gluonlab.training.memory import MIB, Needs
from gluonlab.training.plan import make_plan
from gluonlab.training.replica import IMAGES, LABELS, loss_graph
from gluonlab.training.stage_memory import planned_mib
from gluonlab.training.staged import StagedReplicas
from gluonlab.training.stages import cut
from gluonlab.training.step import DataParallelStep


class Twice(nn.HybridBlock):
    """A layer that is used twice, on images and on what it made of them; another one's gamma and beta stay as they are."""

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


NETWORKS = {"residual": Residual, "twice": Twice}


def at_its_start(make, ctxs, dtype="float32"):
    net = make()
    net.initialize(ctx=ctxs)
    net.cast(dtype)
    net(nd.zeros((1, *SHAPE), ctx=ctxs[0], dtype=dtype))
    random = np.random.RandomState(3)
    start = [random.uniform(0.2, 1, param.shape) * random.choice([-1, 1], param.shape) for param in net.collect_params().values()]
    names = list(net.collect_params())
    set_values(net, [abs(array) if "var" in name else array for name, array in zip(names, start)])
    for block in getattr(net, "second", []):
        if isinstance(block, nn.BatchNorm):
            block.gamma.set_data(nd.ones(block.gamma.shape, dtype=dtype))  # MXNet's float64 writes it there where scale=False
    return net


def comparable(net, ctx=None):
    """Without the running statistics of a layer that is used twice, which MXNet moves in the order of backward on CPUs."""
    twice = re.compile(r"^twice\d+_batchnorm0_running")
    return [array for name, array in zip(net.collect_params(), values(net, ctx)) if not twice.match(name)]


def precise(make, batches, rate):
    """The parameters after plain training on one CPU in float64, where MXNet's own BatchNorm sees the whole batch."""
    net = at_its_start(make, [mx.cpu()], "float64")
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": rate}, kvstore=None)
    for images, labels in batches:
        with autograd.record():
            loss = gluon.loss.SoftmaxCrossEntropyLoss()(net(nd.array(images, dtype="float64")), nd.array(labels)).sum()
        loss.backward()
        trainer.step(len(images))
    return comparable(net)


def staged(make, ctxs, cut=WHOLE, rate=0.5):
    net = at_its_start(make, ctxs)
    trainer = BucketedTrainer(net.collect_params(), "sgd", {"learning_rate": rate}, make_kvstore("device", ctxs))
    step = DataParallelStep(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, ctxs, as_is, cut, sync_bn=True)
    step.joint = StagedReplicas(step.replicas[0].graph, dict(net.collect_params().items()), ctxs)
    return net, step


@settings(max_examples=4)
@given(
    name=st.sampled_from(sorted(NETWORKS)),
    k=st.integers(1, 4),
    sizes=st.lists(st.sampled_from([1, 3, 4, 7, 12]), min_size=1, max_size=3),
    mean=st.sampled_from([0.0, 30.0]),
)
@example(name="twice", k=3, sizes=[7, 3, 7], mean=0.0)
@example(name="residual", k=2, sizes=[12, 1, 12], mean=30.0)
def test_it_is_batchnorm_of_the_whole_batch(name, k, sizes, mean):
    """Weights and running statistics, on all devices, also idle ones; in float32, whose digits images with a mean cost."""
    batches = [(images * 2 + np.float32(mean), labels) for images, labels in random_batches(sizes, shape=SHAPE)]
    ctxs = contexts(k)
    net, step = staged(NETWORKS[name], ctxs, rate=0.05)
    for batch in batches:
        step(*shards(batch, ctxs))
    expected = precise(NETWORKS[name], batches, 0.05)
    for ctx in ctxs:
        assert distance(comparable(net, ctx), expected) <= (1e-5 if mean == 0 else 1e-4)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_where_images_have_a_large_mean_it_is_as_exact_as_batchnorm_on_one_device(k):
    """A mean of 1000 costs float32 three of its seven digits, and what is left of them the weight that meets the mean."""
    batches = [(images + np.float32(1000), labels) for images, labels in random_batches([12, 5], shape=SHAPE)]
    wanted = precise(Residual, batches, 0.05)
    plain = at_its_start(Residual, [mx.cpu()])
    train_on_one_device(plain, batches, "sgd", learning_rate=0.05)
    ctxs = contexts(k)
    net, step = staged(Residual, ctxs, rate=0.05)
    for batch in batches:
        step(*shards(batch, ctxs))
    assert distance(comparable(net), wanted) <= 4 * distance(comparable(plain), wanted)


def test_a_layer_that_is_used_twice_moves_its_running_statistics_twice():
    """As in the graph of all devices."""
    batches = random_batches([7, 5], shape=SHAPE)
    found = []
    for staged_too in (True, False):
        ctxs = contexts(2) if staged_too else cpus(2)
        net, step = staged(Twice, ctxs, rate=0.05)
        if not staged_too:
            step.joint = JointReplicas(step.replicas[0].graph, dict(net.collect_params().items()), ctxs)
        for batch in batches:
            step(*shards(batch, ctxs))
        found.append([values(net, ctx) for ctx in ctxs])
    for one, other in zip(*found):
        assert distance(one, other) <= 1e-5


@pytest.mark.parametrize("name", NETWORKS)
def test_with_microbatches_gradients_add_up(name):
    """Rounds of two devices' parts: 3 + 3, 2 + 3, 2 images."""
    ctxs = contexts(2)
    ((images, labels),) = random_batches([13], shape=SHAPE)
    net, step = staged(NETWORKS[name], ctxs, Microbatches(size=3))
    step(*shards((images, labels), ctxs))
    one = at_its_start(NETWORKS[name], [mx.cpu()], "float64")
    trained = [param for param in one.collect_params().values() if param.grad_req != "null"]
    for param in trained:
        param.grad_req = "add"
    for part in [[0, 1, 2, 7, 8, 9], [3, 4, 10, 11, 12], [5, 6]]:
        with autograd.record():
            scores = one(nd.array(images[part], dtype="float64"))
            total = gluon.loss.SoftmaxCrossEntropyLoss()(scores, nd.array(labels[part])).sum()
        total.backward()
    gluon.Trainer(trained, "sgd", {"learning_rate": 0.5}, kvstore=None).step(13)
    for ctx in ctxs:
        assert distance(comparable(net, ctx), comparable(one)) <= 1e-5


def test_the_scale_of_the_loss_changes_no_bit_of_the_gradients():
    ctxs = contexts(2)
    (batch,) = random_batches([9], shape=SHAPE)
    found = []
    for scale in (1.0, 256.0):
        net, step = staged(Residual, ctxs)
        parts = next(iter(WHOLE.rounds(*shards(batch, ctxs))))
        for _ in range(2):
            step.joint.forward(parts)
            step.joint.backward(scale)
        trained = [param for param in net.collect_params().values() if param.grad_req != "null"]
        found.append([param.grad(ctx).asnumpy() / scale for param in trained for ctx in ctxs])
    assert all(np.array_equal(one, other) for one, other in zip(*found))


def test_stages_together_have_the_nodes_of_the_network():
    """Each operator lies in one stage, and what crosses is given by one stage and taken by later ones only."""
    net = at_its_start(Twice, contexts(1))
    graph = loss_graph(net, gluon.loss.SoftmaxCrossEntropyLoss(), as_is)
    stages = cut(graph)
    assert [len(stage.layers) for stage in stages] == [1, 1, 1, 0]
    given = set()
    for stage in stages:
        taken = set(stage.graph.list_arguments()) - set(net.collect_params()) - {IMAGES, LABELS}
        assert {name for name in taken if re.search(r"\.\d+$", name)} <= given
        given |= set(stage.gives)
    operators = [name for stage in stages for name in stage.graph.get_internals().list_outputs() if name.endswith("_output")]
    for name in graph.get_internals().list_outputs():
        assert not name.endswith("_output") or operators.count(name) >= 1, name


@pytest.mark.parametrize("images", [16, 37])
def test_memory_is_told_as_the_stages_take_it(images):
    settings = {"model": "resnet8", "dataset": "synthetic", "sync_bn": True, "global_batch_size": 2 * images}
    plan = make_plan(TrainConfig(devices=named(2), **settings))
    plan = dataclasses.replace(plan, dataset=load_dataset("synthetic", samples=2 * images))
    net = make_plan_net(plan)
    step = data_parallel(net, gluon.loss.SoftmaxCrossEntropyLoss(), plan)
    params = dict(net.collect_params().items())
    step.joint = StagedReplicas(step.replicas[0].graph, params, plan.ctxs)
    for xs, ys in Loader(plan.dataset.train, plan.ctxs, plan.global_batch_size, raw=True):
        step(xs, ys)
    [bound] = step.joint._bound.values()
    stages = [int(re.findall(r"Total (\d+) MB", run.executor.debug_str())[0]) for run in bound.towers[0].runs]
    between = bound.towers[0]._gradients.bytes / MIB
    needs = Needs(plan, net)
    kinds = {name: (param.shape, param.dtype) for name, param in params.items()}
    kinds.update({IMAGES: ((images, *plan.dataset.image_shape), np.uint8), LABELS: ((images,), np.int32)})
    told = planned_mib(needs._graph, params, kinds, lambda shape, dtype=np.float32: nd.empty(shape, mx.cpu(), dtype))
    assert abs(told - sum(stages) - between) <= len(stages)
