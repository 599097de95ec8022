"""--dtype float16: which types a network computes in after conversion, and float16 itself, as far
as CPUs have it.

MXNet has no float16 products on the CPU: there the graphs are bound, which finds every type,
forward and backward, but not run.
"""

import dataclasses
import functools
import json
import math
import re
from functools import partial

import mxnet as mx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mxnet import gluon, nd
from mxnet.gluon import nn
from support.devices import contexts, device, device_spec
from support.drawn_runs import load_few_digits
from support.reference import identity, parameter_arrays, random_batches, relative_distance
from support.run_files import read_metrics

from gluonlab.bucketed_trainer.loss_scale import LossScale
from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.config import TrainConfig
from gluonlab.data.loading.augmentation import make_input_transform
from gluonlab.data.loading.split_batch import make_local_batch, shard
from gluonlab.engine.mxnet_setup import disable_fusion
from gluonlab.errors import ConfigError, DivergedError
from gluonlab.kvstores import make_kvstore
from gluonlab.models import get_model
from gluonlab.models.infer_shapes import complete_initialization
from gluonlab.models.own_networks import LeNet
from gluonlab.parallel.data.replica import IMAGES, LABELS, loss_graph
from gluonlab.parallel.data.strategy import DataParallel, DataParallelStep, data_parallel
from gluonlab.parallel.data.sync_bn import split_at_batch_norm
from gluonlab.parallel.data.sync_bn_replicas import infer_boundary_specs
from gluonlab.parallel.mixed_precision import (
    FLOAT16_OPERATORS,
    FLOAT32_OPERATORS,
    check_dtype_on,
    graph_conversion,
    keep_float32,
    mixed_precision,
    mixed_precision_for_sync_bn,
)
from gluonlab.parallel.training_loss import make_loss
from gluonlab.training import loop, plan
from gluonlab.training.build_network import make_net
from gluonlab.training.plan import make_plan
from gluonlab.training.reporter import Reporter
from gluonlab.training.run_memory import MemoryEstimator

NETWORKS = {
    "lenet": (1, 28, 28), "mlp": (1, 28, 28), "resnet8": (3, 32, 32), "resnet18": (3, 64, 64),
    "resnet50": (3, 64, 64), "cifar_resnet20": (3, 32, 32), "gluoncv:mobilenetv2_0.25": (3, 64, 64),
    "gluoncv:se_resnext50_32x4d": (3, 64, 64),
}  # fmt: skip
LARGE = ("resnet50", "gluoncv:se_resnext50_32x4d")
COLOURS = ((0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
PRODUCTS = {"Convolution", "FullyConnected"}
EXACT = {"log_softmax", "pick", "sum", "mean", "_image_normalize"}
# which CPUs can compute
HALVES = partial(
    mixed_precision, float16_operators=("tanh", "Pooling"), float32_operators=(*FLOAT32_OPERATORS, *FLOAT16_OPERATORS)
)
GPU = mx.gpu(0)
NOWHERE = partial(mixed_precision, float16_operators=(), float32_operators=(*FLOAT32_OPERATORS, *FLOAT16_OPERATORS))


@functools.lru_cache(maxsize=None)
def net_of(name, lanes_as):
    """The network, which no test trains."""
    net = get_model(name, 10, [lanes_as])
    net.initialize()
    complete_initialization(net, name, NETWORKS[name], 10)
    return net


def graph_of(name, convert, lanes_as=GPU):
    """The graph of loss and scores, and the network; as on GPUs, where channels are not padded."""
    net = net_of(name, lanes_as)
    colours = None if NETWORKS[name][0] == 1 else COLOURS
    return loss_graph(net, make_loss(0.1), make_input_transform(colours), convert), net


def types_in(graph, **inputs):
    """(operator, types of its inputs, type of its output) of each node."""
    everything = graph.get_internals()
    outputs = dict(zip(everything.list_outputs(), everything.infer_type(**inputs)[1]))
    nodes = json.loads(graph.tojson(remove_amp_cast=False))["nodes"]
    first = {}  # a node's name -> the type of its first output
    for output, dtype in zip(everything, outputs.values()):
        first.setdefault(output.name, np.dtype(dtype).name)
    for node in nodes:
        if node["op"] != "null":
            yield (node["op"], [first[nodes[place]["name"]] for place, *_ in node["inputs"]], first[node["name"]])


def check_types(graph, net, **inputs):
    """Everything that adds up or is kept is float32; the rest of the types follow from it."""
    arguments, outputs, states = graph.infer_type(**inputs)
    kept = [t for name, t in zip(graph.list_arguments(), arguments) if name not in inputs]
    assert {np.dtype(t).name for t in [*kept, *outputs, *states]} == {"float32"}
    assert len(kept) + len(states) == len(list(net.collect_params().keys()))


@pytest.mark.parametrize("lanes_as", [GPU, mx.cpu(0)], ids=str)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name in LARGE)) for name in NETWORKS])
def test_products_are_float16_and_all_that_adds_up_or_is_kept_is_float32(name, lanes_as):
    graph, net = graph_of(name, mixed_precision, lanes_as)
    plain = graph_of(name, keep_float32, lanes_as)[0]
    inputs = {IMAGES: np.uint8, LABELS: np.int32}
    check_types(graph, net, **inputs)
    assert len(graph.list_arguments()) == len(plain.list_arguments())
    assert len(graph.list_auxiliary_states()) == len(plain.list_auxiliary_states())
    found = {"product": 0, "exact": 0}
    for operator, of_inputs, of_output in types_in(graph, **inputs):
        if operator in PRODUCTS:
            found["product"] += 1
            assert {*of_inputs, of_output} == {"float16"}
        elif operator in EXACT:
            found["exact"] += 1
            assert {of_inputs[0], of_output} == {"float32"}
        elif operator == "BatchNorm":
            assert of_inputs == ["float16"] + ["float32"] * 4
        elif operator == "Cast":
            assert (of_inputs, of_output) == (["uint8"], "float32")
        elif operator in ("Pooling", "Activation"):
            assert of_output == "float16"
    assert found["product"] == sum(param.name.endswith("weight") for param in net.collect_params().values())
    assert found["exact"] >= 5


def test_images_are_normalized_in_float32():
    """Nothing before the first product is cast: bytes to float32, and normalised there."""
    first = list(types_in(graph_of("resnet8", mixed_precision)[0], **{IMAGES: np.uint8, LABELS: np.int32}))[:4]
    assert [node[0] for node in first[:3]] == ["Cast", "_mul_scalar", "_image_normalize"]
    assert first[3] == ("amp_cast", ["float32"], "float16")


# Images (n, 3, 6, 6) -> the same, in float16, in float32, in the widest of both, or as they come.
LAYERS = {
    "product": lambda x, y: mx.sym.Convolution(x, kernel=(3, 3), pad=(1, 1), num_filter=3),
    "exp": lambda x, y: mx.sym.exp(x), "sum": lambda x, y: x + y, "relu": lambda x,
    y: mx.sym.relu(x), "join": lambda x,
    y: mx.sym.slice_axis(mx.sym.concat(x, y, dim=1), axis=1, begin=1, end=4), "pool": lambda x,
    y: mx.sym.Pooling(x, kernel=(3, 3), pad=(1, 1), pool_type="avg"), "turn": lambda x,
    y: mx.sym.transpose(x, axes=(0, 1, 3, 2)), "twice": lambda x, y: mx.sym.add_n(x, y, x),
    "soft": lambda x, y: mx.sym.Activation(x, act_type="softrelu"),
}  # fmt: skip
STEPS = st.lists(st.tuples(st.sampled_from(list(LAYERS)), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=7)


@settings(max_examples=30)
@given(STEPS)
@example([("product", 0, 0), ("relu", 1, 0), ("relu", 0, 0), ("join", 2, 3)])
@example([("product", 0, 0), ("turn", 0, 0), ("product", 2, 0)])
@example([("turn", 0, 0), ("join", 1, 0), ("exp", 2, 0), ("relu", 2, 0), ("product", 0, 0), ("sum", 4, 5)])
def test_readers_of_a_cast_array_get_matching_types(steps):
    """A copy in float16 is for the product alone."""
    values = [mx.sym.var("data")]
    for name, one, other in steps:
        values.append(LAYERS[name](values[one % len(values)], values[other % len(values)]))
    plain = mx.sym.add_n(*[value.sum() for value in values])
    graph = mixed_precision(plain)
    assert graph.list_arguments() == plain.list_arguments()
    assert "_copy" not in {node["op"] for node in json.loads(graph.tojson(remove_amp_cast=False))["nodes"]}
    bound(graph, {"data": (2, 3, 6, 6)}, {"data": "float32"})
    everything = graph.get_internals()
    types = everything.infer_type(**dict.fromkeys(graph.list_arguments(), np.float32))[1]
    for node, dtype in zip(everything, types):
        assert not re.fullmatch(r"convolution\d+", node.name) or dtype == np.float16


def bound(graph, shapes, types):
    """The graph bound with gradients of all that is float32, whose memory nobody uses."""
    arguments, _, states = graph.infer_shape(**shapes)
    names = graph.list_arguments()
    ctx = device()
    args = [nd.zeros(shape, ctx, dtype=types.get(name, "float32")) for name, shape in zip(names, arguments)]
    grads = {name: nd.zeros(shape, ctx) for name, shape in zip(names, arguments) if name not in types}
    requests = {name: "add" if name in grads else "null" for name in names}
    return graph.bind(ctx, args, grads, requests, [nd.zeros(shape, ctx) for shape in states])


@pytest.mark.parametrize("name", ["lenet", "resnet8", "cifar_resnet20"])
def test_backward_has_matching_types(name):
    """Bound with gradients in float32, to which microbatches add; the executor refuses types that
    do not fit.
    """
    graph = graph_of(name, mixed_precision)[0]
    shapes = {IMAGES: (4, *NETWORKS[name]), LABELS: (4,)}
    executor = bound(graph, shapes, {IMAGES: "uint8", LABELS: "int32"})
    operators = executor.debug_str()
    assert "_backward_amp_cast" in operators
    assert [np.dtype(output.dtype).name for output in executor.outputs] == ["float32"] * 3


def test_synchronised_batchnorm_is_float32_in_all_stages():
    graph, net = graph_of("resnet8", mixed_precision_for_sync_bn)
    kinds = {IMAGES: ((4, 3, 32, 32), np.uint8), LABELS: ((4,), np.int32)}
    kinds.update({name: (param.shape, param.dtype) for name, param in net.collect_params().items()})
    stages = split_at_batch_norm(graph)
    for layer in (layer for stage in stages for layer in stage.layers):
        kinds.update((name, kinds[layer.beta]) for name in layer.input_names)
    between, products = infer_boundary_specs(stages, kinds), 0
    for stage in stages:
        inputs = {name: between[name][1] for name in stage.graph.list_arguments()}
        for operator, of_inputs, _ in types_in(stage.graph, **inputs):
            if operator == "BatchNorm":
                assert set(of_inputs) == {"float32"}
            if operator in PRODUCTS:
                assert set(of_inputs) == {"float16"}
                products += 1
    assert products == sum(param.name.endswith("weight") for param in net.collect_params().values())
    assert {np.dtype(between[layer.data][1]).name for stage in stages for layer in stage.layers} == {"float32"}


def make_step(net, ctxs, convert, loss_scale=None, loss=None, **params):
    trainer = BucketedTrainer(net.collect_params(), "sgd", params, make_kvstore("device"), loss_scale=loss_scale)
    return DataParallelStep(net, loss or make_loss(), trainer, ctxs, identity, convert=convert)


def feed(step, batch, ctxs):
    images, labels = batch
    return step(make_local_batch(shard(nd.array(images), ctxs), shard(nd.array(labels, dtype="int32"), ctxs)))


def lenet(ctxs):
    mx.random.seed(3)
    net = LeNet(10)
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    net(nd.zeros((1, 1, 16, 16), ctx=ctxs[0]))
    return net


def smooth(ctxs):
    """Like LeNet, without kinks: one of LeNet's ReLUs got 1e-5 on a CPU, and -3e-6 on a GPU, which
    adds up otherwise.
    """
    mx.random.seed(3)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Conv2D(20, 3), nn.MaxPool2D(2), nn.HybridLambda("tanh"))
        net.add(
            nn.Conv2D(50, 5),
            nn.AvgPool2D(2),
            nn.HybridLambda("tanh"),
            nn.Dense(64),
            nn.HybridLambda("tanh"),
            nn.Dense(10),
        )
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    net(nd.zeros((1, 1, 16, 16), ctx=ctxs[0]))
    return net


def trained(convert, loss_scale=None, make_net=lenet, shape=(1, 16, 16)):
    """The parameters on the second device; nothing is fused, for fused operators have float32
    between their casts.
    """
    ctxs = contexts(2)
    net = make_net(ctxs)
    step = make_step(net, ctxs, convert, loss_scale, learning_rate=0.1, momentum=0.9)
    with disable_fusion():
        for batch in random_batches([9, 9, 5], shape=shape):
            feed(step, batch, ctxs)
    return parameter_arrays(net, ctxs[1])


def test_a_conversion_that_leaves_everything_float32_changes_no_bit():
    assert all(np.array_equal(a, b) for a, b in zip(trained(NOWHERE), trained(keep_float32)))


def test_a_network_with_real_float16_pooling_trains_like_float32():
    plain, mixed = trained(keep_float32, None, smooth), trained(HALVES, LossScale(2.0**8), smooth)
    assert 1e-6 < relative_distance(mixed, plain) < 5e-3  # float16 has three digits


class Faint(gluon.HybridBlock):
    """A layer whose gradients are some 1e-10, less than float16 can say: what follows it has very
    small weights.
    """

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.first, self.last = nn.Dense(8, in_units=16), nn.Dense(4, in_units=8)

    def hybrid_forward(self, F, x):
        return self.last(F.tanh(self.first(x)))


def first_weights(convert, loss_scale=None, steps=1):
    """How the first layer's weights move, and after how many steps that were left out."""
    mx.random.seed(3)
    net = Faint()
    net.initialize(mx.init.Normal(0.3), ctx=contexts(1))
    net.last.weight.set_data(net.last.weight.list_data()[0] * 1e-9)
    step = make_step(net, contexts(1), convert, loss_scale, learning_rate=1e6)
    before = net.first.weight.list_data()[0].asnumpy()
    batch = random_batches([8], shape=(1, 4, 4), classes=4)[0]
    for _ in range(steps):
        skipped = loss_scale.skipped if loss_scale is not None else 0
        with disable_fusion():
            feed(step, batch, contexts(1))
        if loss_scale is None or loss_scale.skipped == skipped:
            break
    return net.first.weight.list_data()[0].asnumpy() - before


def test_gradients_that_vanish_in_float16_are_saved_by_the_scale():
    expected = first_weights(keep_float32)
    assert np.abs(expected).max() > 1e-6
    assert (first_weights(HALVES) == 0).all()
    assert relative_distance([first_weights(HALVES, LossScale(2.0**24))], [expected]) < 2e-3


def test_a_scale_that_is_too_large_overflows_float16_and_comes_down():
    scale = LossScale(2.0**60, largest=2.0**60)
    moved = first_weights(HALVES, scale, steps=60)
    assert 5 < scale.skipped == math.log2(2.0**60 / scale.value)
    assert relative_distance([moved], [first_weights(keep_float32)]) < 2e-3


class Lines(Reporter):
    def __init__(self):
        self.describe = []

    def say(self, line):
        self.describe.append(line)


def whole_run(out, monkeypatch, loss_scale, strategy=data_parallel):
    """A run as on GPUs, with the operators in float16 that a CPU has."""
    monkeypatch.setattr(plan, "make_loss_scale", lambda *asked: loss_scale)
    monkeypatch.setattr(plan, "graph_conversion", lambda dtype, sync_bn: HALVES)
    reporter = Lines()
    config = TrainConfig(devices=device_spec(2), model="lenet", lr=0.05, epochs=1, batch_size=8, out=str(out))
    found = loop.train(config, strategy, reporter, dataset=load_few_digits(6 * 2 * 8))
    return found, reporter.describe


class BrightBatches(DataParallel):
    """A strategy in which the images of some batches are so bright that float16 has no numbers for
    them.

    LeNet's ReLU makes 0 of what is no number; the losses are those of a network that ends where
    float16 does.
    """

    def __init__(self, bright, *parts):
        super().__init__(*parts)
        self.bright, self.count = bright, 0

    def step(self, batch):
        self.count += 1
        if self.count not in self.bright:
            return super().step(batch)
        bright = make_local_batch([x.astype("float32") * 1e9 for x in batch.xs], batch.ys)
        return [loss * math.inf for loss in super().step(bright)]


def test_a_run_tells_how_often_gradients_overflowed(tmp_path, monkeypatch):
    """float16 ends at 65504, so a scale of 2**24 is too large for the gradients of pooling."""
    result, said = whole_run(tmp_path / "run", monkeypatch, LossScale(2.0**24))
    scale = result.plan.loss_scale
    assert 0 < scale.skipped == math.log2(2.0**24 / scale.value)
    noted = [line for line in read_metrics(result.run_dir) if line.get("event") == "loss_scale"]
    assert [(line["epoch"], line["step"]) for line in noted] == [(1, 6)]
    assert (noted[0]["skipped"], noted[0]["loss_scale"]) == (scale.skipped, scale.value)
    assert f"loss scale {scale.value:g}; {scale.skipped} of 6 steps left out" in said


def test_a_batch_whose_loss_overflows_is_left_out_and_the_run_goes_on(tmp_path, monkeypatch):
    result, said = whole_run(tmp_path / "run", monkeypatch, LossScale(64.0), partial(BrightBatches, (2, 5)))
    metrics = read_metrics(result.run_dir)
    steps = [line for line in metrics if line["kind"] == "step"]
    assert [line["step"] for line in steps] == [1, 3, 4, 6]
    assert "loss scale 16; 2 of 6 steps left out" in said
    mean = sum(line["images"] * line["loss"] for line in steps) / sum(line["images"] for line in steps)
    assert [line["loss"] for line in metrics if line["kind"] == "epoch"] == [pytest.approx(mean)]


def test_an_epoch_in_which_every_loss_overflows_ends_the_run(tmp_path, monkeypatch):
    with pytest.raises(DivergedError, match="the loss overflows in every step of epoch 1: use a smaller"):
        whole_run(tmp_path / "run", monkeypatch, LossScale(64.0), partial(BrightBatches, range(1, 7)))


def test_a_run_whose_gradients_always_overflow_ends_and_says_why(tmp_path, monkeypatch):
    with pytest.raises(DivergedError, match="the gradients overflow at step 1, even with the smallest"):
        whole_run(tmp_path / "run", monkeypatch, LossScale(2.0**24, smallest=2.0**24))
    *_, last = read_metrics(tmp_path / "run")
    assert last["event"] == "diverged"
    assert "overflow" in last["message"]


@pytest.mark.parametrize("sync_bn", [False, True])
def test_memory_is_told_as_if_float16_took_four_bytes(sync_bn):
    """As MXNet's plan counts, whatever the type: an upper bound, casts included."""
    config = TrainConfig(devices=device_spec(2), model="resnet8", dataset="synthetic", sync_bn=sync_bn)
    exact = make_plan(config)
    half = dataclasses.replace(exact, dtype="float16")
    first, second = (MemoryEstimator(plan, make_net(plan)).memory(64) for plan in (exact, half))
    assert second._replace(activations=0) == first._replace(activations=0)
    assert first.activations <= second.activations < 1.5 * first.activations


@pytest.mark.cpu_only("float16 is refused on CPUs")
def test_float16_is_refused_on_cpus_in_one_line(tmp_path):
    with pytest.raises(
        ConfigError,
        match=r"--dtype float16 is for GPUs, and MXNet has no .* on cpu\(0\) cpu\(1\): "
        r"leave --dtype out",
    ):
        loop.train(TrainConfig(devices=device_spec(2), dtype="float16", out=str(tmp_path / "run")))
    assert not (tmp_path / "run").exists()
    check_dtype_on("float16", [mx.gpu(0), mx.gpu(1)])
    check_dtype_on("float32", contexts(2))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "float17"}, "unknown --dtype 'float17': choose float16, float32"),
        ({"dtype": "bfloat16"}, "unknown --dtype 'bfloat16': choose float16, float32"),
        ({"dtype": "float16", "compress": "2bit"}, "--dtype float16 and --compress 2bit:0.5 contradict each other"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        make_plan(TrainConfig(devices=device_spec(2), **settings))


def test_what_each_setting_does_to_the_graph():
    assert graph_conversion("float32", sync_bn=False) is keep_float32
    assert graph_conversion("float32", sync_bn=True) is keep_float32
    assert graph_conversion("float16", sync_bn=False) is mixed_precision
    assert graph_conversion("float16", sync_bn=True) is mixed_precision_for_sync_bn
