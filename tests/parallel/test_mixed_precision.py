"""--dtype float16: the types of a converted network, and training with the float16 that CPUs have.

MXNet has no float16 products on the CPU. There graphs are bound, which infers every type, but do
not run.
"""

import dataclasses
import functools
import json
import math
import re
from collections import Counter
from functools import partial

import mxnet as mx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mxnet import nd
from mxnet.gluon import nn
from support.devices import contexts, device, device_spec
from support.drawn_runs import load_few_digits
from support.reference import arrays_equal, parameter_arrays, random_batches, relative_distance
from support.run_files import read_metrics
from support.steps import make_step, train_steps

from gluonlab.bucketed_trainer.loss_scale import LossScale
from gluonlab.config import TrainConfig
from gluonlab.data.loading.augmentation import make_input_transform
from gluonlab.data.loading.split_batch import make_local_batch
from gluonlab.engine.mxnet_setup import disable_fusion
from gluonlab.errors import ConfigError, DivergedError
from gluonlab.models import get_model
from gluonlab.models.builtin_networks import LeNet
from gluonlab.models.infer_shapes import complete_initialization
from gluonlab.parallel.data.replica import IMAGES, LABELS, loss_graph
from gluonlab.parallel.data.strategy import DataParallel, data_parallel
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
COLORS = ((0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
PRODUCTS = {"Convolution", "FullyConnected"}
EXACT = {"log_softmax", "pick", "sum", "mean", "_image_normalize"}
# which CPUs can compute
HALVES = partial(
    mixed_precision, float16_operators=("tanh", "Pooling"), float32_operators=(*FLOAT32_OPERATORS, *FLOAT16_OPERATORS)
)
GPU = mx.gpu(0)
NOWHERE = partial(mixed_precision, float16_operators=(), float32_operators=(*FLOAT32_OPERATORS, *FLOAT16_OPERATORS))


@functools.lru_cache(maxsize=None)
def make_complete_net(name, ctx):
    """The network for a device; channels are padded on CPUs only."""
    net = get_model(name, 10, [ctx])
    net.initialize()
    complete_initialization(net, name, NETWORKS[name], 10)
    return net


def make_graph(name, convert, ctx=GPU):
    """The graph of loss and scores, and the network."""
    net = make_complete_net(name, ctx)
    colors = None if NETWORKS[name][0] == 1 else COLORS
    return loss_graph(net, make_loss(0.1), make_input_transform(colors), convert), net


def operator_types(graph, **inputs):
    """(operator, types of its inputs, type of its output) of each node."""
    internals = graph.get_internals()
    nodes = json.loads(graph.tojson(remove_amp_cast=False))["nodes"]
    types = {}  # of the first output of each node
    for output, dtype in zip(internals, internals.infer_type(**inputs)[1]):
        types.setdefault(output.name, np.dtype(dtype).name)
    for node in nodes:
        if node["op"] != "null":
            yield node["op"], [types[nodes[index]["name"]] for index, *_ in node["inputs"]], types[node["name"]]


@pytest.mark.parametrize("ctx", [GPU, mx.cpu(0)], ids=str)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name in LARGE)) for name in NETWORKS])
def test_products_are_float16_and_all_that_adds_up_or_is_kept_is_float32(name, ctx):
    graph, net = make_graph(name, mixed_precision, ctx)
    plain = make_graph(name, keep_float32, ctx)[0]
    inputs = {IMAGES: np.uint8, LABELS: np.int32}
    arguments, outputs, states = graph.infer_type(**inputs)
    params = [dtype for name, dtype in zip(graph.list_arguments(), arguments) if name not in inputs]
    assert {np.dtype(dtype).name for dtype in [*params, *outputs, *states]} == {"float32"}
    assert len(params) + len(states) == len(list(net.collect_params().keys()))
    assert len(graph.list_arguments()) == len(plain.list_arguments())
    assert len(graph.list_auxiliary_states()) == len(plain.list_auxiliary_states())
    counts = Counter()
    for operator, of_inputs, of_output in operator_types(graph, **inputs):
        counts[operator] += 1
        if operator in PRODUCTS:
            assert {*of_inputs, of_output} == {"float16"}
        elif operator in EXACT:
            assert {of_inputs[0], of_output} == {"float32"}
        elif operator == "BatchNorm":
            assert of_inputs == ["float16"] + ["float32"] * 4
        elif operator == "Cast":
            assert (of_inputs, of_output) == (["uint8"], "float32")
        elif operator in ("Pooling", "Activation"):
            assert of_output == "float16"
    assert sum(counts[operator] for operator in PRODUCTS) == count_weights(net)
    assert sum(counts[operator] for operator in EXACT) >= 5


def count_weights(net):
    return sum(param.name.endswith("weight") for param in net.collect_params().values())


def test_images_are_normalized_in_float32():
    """Nothing before the first product is cast."""
    first = list(operator_types(make_graph("resnet8", mixed_precision)[0], **{IMAGES: np.uint8, LABELS: np.int32}))[:4]
    assert [node[0] for node in first[:3]] == ["Cast", "_mul_scalar", "_image_normalize"]
    assert first[3] == ("amp_cast", ["float32"], "float16")


# Images (n, 3, 6, 6) -> the same, in float16, in float32, in the widest of both, or as they come.
LAYERS = {
    "product": lambda x, y: mx.sym.Convolution(x, kernel=(3, 3), pad=(1, 1), num_filter=3),
    "exp": lambda x, y: mx.sym.exp(x),
    "sum": lambda x, y: x + y,
    "relu": lambda x, y: mx.sym.relu(x),
    "join": lambda x, y: mx.sym.slice_axis(mx.sym.concat(x, y, dim=1), axis=1, begin=1, end=4),
    "pool": lambda x, y: mx.sym.Pooling(x, kernel=(3, 3), pad=(1, 1), pool_type="avg"),
    "turn": lambda x, y: mx.sym.transpose(x, axes=(0, 1, 3, 2)),
    "twice": lambda x, y: mx.sym.add_n(x, y, x),
    "soft": lambda x, y: mx.sym.Activation(x, act_type="softrelu"),
}
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
    bind(graph, {"data": (2, 3, 6, 6)}, {"data": "float32"})
    internals = graph.get_internals()
    types = internals.infer_type(**dict.fromkeys(graph.list_arguments(), np.float32))[1]
    for node, dtype in zip(internals, types):
        assert not re.fullmatch(r"convolution\d+", node.name) or dtype == np.float16


def bind(graph, shapes, types):
    """Bind the graph with gradients of all parameters, to which backward adds."""
    arguments, _, states = graph.infer_shape(**shapes)
    names, ctx = graph.list_arguments(), device()
    args = [nd.zeros(shape, ctx, dtype=types.get(name, "float32")) for name, shape in zip(names, arguments)]
    grads = {name: nd.zeros(shape, ctx) for name, shape in zip(names, arguments) if name not in types}
    requests = {name: "add" if name in grads else "null" for name in names}
    return graph.bind(ctx, args, grads, requests, [nd.zeros(shape, ctx) for shape in states])


@pytest.mark.parametrize("name", ["lenet", "resnet8", "cifar_resnet20"])
def test_backward_has_matching_types(name):
    """The executor refuses types that do not fit."""
    graph = make_graph(name, mixed_precision)[0]
    shapes = {IMAGES: (4, *NETWORKS[name]), LABELS: (4,)}
    executor = bind(graph, shapes, {IMAGES: "uint8", LABELS: "int32"})
    assert "_backward_amp_cast" in executor.debug_str()
    assert [np.dtype(output.dtype).name for output in executor.outputs] == ["float32"] * 3


def test_synchronized_batchnorm_is_float32_in_all_stages():
    graph, net = make_graph("resnet8", mixed_precision_for_sync_bn)
    kinds = {IMAGES: ((4, 3, 32, 32), np.uint8), LABELS: ((4,), np.int32)}
    kinds.update({name: (param.shape, param.dtype) for name, param in net.collect_params().items()})
    stages = split_at_batch_norm(graph)
    for layer in (layer for stage in stages for layer in stage.layers):
        kinds.update((name, kinds[layer.beta]) for name in layer.input_names)
    between, products = infer_boundary_specs(stages, kinds), 0
    for stage in stages:
        types = {name: between[name][1] for name in stage.graph.list_arguments()}
        for operator, inputs, _ in operator_types(stage.graph, **types):
            if operator == "BatchNorm":
                assert set(inputs) == {"float32"}
            if operator in PRODUCTS:
                assert set(inputs) == {"float16"}
                products += 1
    assert products == count_weights(net)
    assert {np.dtype(between[layer.data][1]).name for stage in stages for layer in stage.layers} == {"float32"}


def make_smooth_net():
    """Like LeNet, without ReLUs, for which 1e-5 on a CPU may be -3e-6 on a GPU."""
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Conv2D(20, 3), nn.MaxPool2D(2), nn.HybridLambda("tanh"))
        net.add(nn.Conv2D(50, 5), nn.AvgPool2D(2), nn.HybridLambda("tanh"))
        net.add(nn.Dense(64), nn.HybridLambda("tanh"), nn.Dense(10))
    return net


def train(convert, loss_scale=None, make_net=lambda: LeNet(10)):
    """Return the parameters on the second device. Fused operators would have no casts between them."""
    ctxs, net = contexts(2), make_net()
    mx.random.seed(3)
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    net(nd.zeros((1, 1, 16, 16), ctx=ctxs[0]))
    step = make_step(
        net, ctxs, convert=convert, loss=make_loss(), loss_scale=loss_scale, learning_rate=0.1, momentum=0.9
    )
    with disable_fusion():
        train_steps(step, random_batches([9, 9, 5], shape=(1, 16, 16)), ctxs)
    return parameter_arrays(net, ctxs[1])


def test_a_conversion_that_leaves_everything_float32_changes_no_bit():
    assert arrays_equal(train(NOWHERE), train(keep_float32))


def test_a_network_with_real_float16_pooling_trains_like_float32():
    plain, mixed = train(keep_float32, None, make_smooth_net), train(HALVES, LossScale(2.0**8), make_smooth_net)
    assert 1e-6 < relative_distance(mixed, plain) < 5e-3  # float16 has three digits


def move_first_weights(convert, loss_scale=None, max_steps=1):
    """Return the first update that is not skipped of a layer whose gradients are about 1e-10."""
    mx.random.seed(3)
    net, ctxs = nn.HybridSequential(), contexts(1)
    net.add(nn.Dense(8, in_units=16), nn.HybridLambda("tanh"), nn.Dense(4, in_units=8))
    net.initialize(mx.init.Normal(0.3), ctx=ctxs)
    net[2].weight.set_data(net[2].weight.list_data()[0] * 1e-9)
    step = make_step(net, ctxs, convert=convert, loss=make_loss(), loss_scale=loss_scale, learning_rate=1e6)
    previous = net[0].weight.list_data()[0].asnumpy()
    for _ in range(max_steps):
        skipped = loss_scale and loss_scale.skipped
        with disable_fusion():
            train_steps(step, random_batches([8], shape=(1, 4, 4), classes=4), ctxs)
        if loss_scale is None or loss_scale.skipped == skipped:
            break
    return net[0].weight.list_data()[0].asnumpy() - previous


def test_gradients_that_vanish_in_float16_are_saved_by_the_scale():
    expected = move_first_weights(keep_float32)
    assert np.abs(expected).max() > 1e-6
    assert (move_first_weights(HALVES) == 0).all()
    assert relative_distance([move_first_weights(HALVES, LossScale(2.0**24))], [expected]) < 2e-3


def test_a_scale_that_is_too_large_overflows_float16_and_comes_down():
    scale = LossScale(2.0**60, largest=2.0**60)
    result = move_first_weights(HALVES, scale, max_steps=60)
    assert 5 < scale.skipped == math.log2(2.0**60 / scale.value)
    assert relative_distance([result], [move_first_weights(keep_float32)]) < 2e-3


class LineRecorder(Reporter):
    def __init__(self):
        self.lines = []

    def say(self, line):
        self.lines.append(line)


def run_training(out, monkeypatch, loss_scale, strategy=data_parallel):
    """A run as on GPUs, with the operators in float16 that a CPU has."""
    monkeypatch.setattr(plan, "make_loss_scale", lambda *args: loss_scale)
    monkeypatch.setattr(plan, "graph_conversion", lambda dtype, sync_bn: HALVES)
    reporter = LineRecorder()
    config = TrainConfig(devices=device_spec(2), model="lenet", lr=0.05, epochs=1, batch_size=8, out=str(out))
    return loop.train(config, strategy, reporter, dataset=load_few_digits(6 * 2 * 8)), reporter.lines


class BrightBatches(DataParallel):
    """A strategy in which float16 has no numbers for the images of some batches.

    LeNet's ReLU makes 0 of NaN, so the losses are made infinite here.
    """

    def __init__(self, bright, *args):
        super().__init__(*args)
        self.bright, self.count = bright, 0

    def step(self, batch):
        self.count += 1
        if self.count not in self.bright:
            return super().step(batch)
        bright = make_local_batch([x.astype("float32") * 1e9 for x in batch.xs], batch.ys)
        return [loss * math.inf for loss in super().step(bright)]


def test_a_run_tells_how_often_gradients_overflowed(tmp_path, monkeypatch):
    """float16 ends at 65504, so a scale of 2**24 is too large for the gradients of pooling."""
    result, lines = run_training(tmp_path / "run", monkeypatch, LossScale(2.0**24))
    scale = result.plan.loss_scale
    assert 0 < scale.skipped == math.log2(2.0**24 / scale.value)
    [event] = [line for line in read_metrics(result.run_dir) if line.get("event") == "loss_scale"]
    expected = {"epoch": 1, "step": 6, "skipped": scale.skipped, "loss_scale": scale.value}
    assert {key: event[key] for key in expected} == expected
    assert f"loss scale {scale.value:g}; {scale.skipped} of 6 steps skipped" in lines


def test_a_batch_whose_loss_overflows_is_left_out_and_the_run_goes_on(tmp_path, monkeypatch):
    result, lines = run_training(tmp_path / "run", monkeypatch, LossScale(64.0), partial(BrightBatches, (2, 5)))
    metrics = read_metrics(result.run_dir)
    steps = [line for line in metrics if line["kind"] == "step"]
    assert [line["step"] for line in steps] == [1, 3, 4, 6]
    assert "loss scale 16; 2 of 6 steps skipped" in lines
    mean = sum(line["images"] * line["loss"] for line in steps) / sum(line["images"] for line in steps)
    assert [line["loss"] for line in metrics if line["kind"] == "epoch"] == [pytest.approx(mean)]


def test_an_epoch_in_which_every_loss_overflows_ends_the_run(tmp_path, monkeypatch):
    with pytest.raises(DivergedError, match="the loss overflowed in every step of epoch 1: use a smaller"):
        run_training(tmp_path / "run", monkeypatch, LossScale(64.0), partial(BrightBatches, range(1, 7)))


def test_a_run_whose_gradients_always_overflow_ends_and_says_why(tmp_path, monkeypatch):
    with pytest.raises(DivergedError, match="the gradients overflow at step 1, even with the smallest"):
        run_training(tmp_path / "run", monkeypatch, LossScale(2.0**24, smallest=2.0**24))
    *_, last = read_metrics(tmp_path / "run")
    assert last["event"] == "diverged" and "overflow" in last["message"]


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
    message = r"--dtype float16 needs GPUs, because MXNet does not support .* on cpu\(0\) cpu\(1\): omit --dtype"
    with pytest.raises(ConfigError, match=message):
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


def test_float16_converts_the_graph_and_batchnorm_differently_with_sync_bn():
    assert [graph_conversion("float32", sync_bn) for sync_bn in (False, True)] == [keep_float32] * 2
    expected = [mixed_precision, mixed_precision_for_sync_bn]
    assert [graph_conversion("float16", sync_bn) for sync_bn in (False, True)] == expected
