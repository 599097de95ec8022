"""A user's network, data, loss and metrics train as a plain Gluon loop trains them."""

import json
from contextlib import contextmanager

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from sklearn.metrics import f1_score
from support.devices import device, device_spec
from support.interrupted_runs import RunStopped, StoppingReporter, read_comparable_metrics, read_parameter_bytes
from support.process_group import run_in_threads
from support.reference import parameter_arrays, relative_distance
from support.run_files import read_metrics

from gluonlab.config import TrainConfig
from gluonlab.data import Loader, from_arrays
from gluonlab.errors import ConfigError, DataError, ModelError
from gluonlab.study.compare_device_counts import compare
from gluonlab.training.callbacks import Callback
from gluonlab.training.evaluate_run import evaluate_run
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter

CLASSES, BATCH = 4, 12
RANDOM = np.random.RandomState(5)
# bright corners, so that something can be learned; 40 images are three batches and a ragged one
LABELS = RANDOM.randint(0, CLASSES, 70)
IMAGES = RANDOM.randint(0, 120, (70, 2, 6, 6))
for image, label in zip(IMAGES, LABELS):
    image[:, label // 2 * 3 :, label % 2 * 3 :] += 60
ARRAYS = (IMAGES[:40].astype("uint8"), LABELS[:40], IMAGES[40:].astype("uint8"), LABELS[40:])


class Focal(gluon.HybridBlock):
    """Lin et al., "Focal loss for dense object detection", 2017, with gamma 2."""

    def hybrid_forward(self, F, scores, labels):
        right = F.pick(F.log_softmax(scores), labels)
        return -((1 - F.exp(right)) ** 2) * right


def make_net(classes):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(3, 3, activation="tanh"), nn.Flatten(), nn.Dense(classes))
    return net


def config(folder, devices=2, **more):
    base = {"threads": 1, "lr": 0.5, "optimizer": "sgd", "epochs": 2, "global_batch_size": BATCH}
    return TrainConfig(**{**base, **more}, devices=device_spec(devices), out=str(folder))


def macro_f1(scores, labels):
    return f1_score(labels, scores.argmax(axis=1), average="macro")


def margins(scores, labels):
    assert scores.dtype == np.float32 and labels.dtype == np.int32
    best = np.sort(scores.astype("float64"), axis=1)
    return (best[:, -1] - best[:, -2]).mean()


OWN = {"net": make_net, "loss": Focal(), "metrics": {"f1": macro_f1, "margin": margins}}


def run(folder, reporter=None, callbacks=(), own=OWN, **more):
    data = from_arrays(*ARRAYS)
    return train(config(folder, **more), reporter=reporter or Reporter(), dataset=data, callbacks=callbacks, **own)


def train_batches(net, loss, batches, lr):
    """Train with Gluon's own loop on one device."""
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": lr}, kvstore=None)
    for x, y in batches:
        with autograd.record():
            losses = loss(net(x), y)
        losses.backward()
        trainer.step(len(x))
    return net


def plain_loop(net, loss, epochs=2, lr=0.5, seed=0):
    """Train with Gluon's own loop on the batches of a run."""
    loader = Loader(from_arrays(*ARRAYS).train, [mx.cpu()], BATCH, seed)
    return train_batches(net, loss, [(x, y) for _ in range(epochs) for (x,), (y,) in loader], lr)


def with_values(arrays):
    net = make_net(CLASSES)
    net.initialize()
    net(nd.zeros((1, 2, 6, 6)))
    for param, array in zip(net.collect_params().values(), arrays):
        param.set_data(nd.array(array))
    return net


def scores_of(net):
    images = nd.array(ARRAYS[2].astype("float32") / 255)
    return with_values(parameter_arrays(net))(images).asnumpy()


START = [RANDOM.normal(0, 0.3, shape) for shape in ((3, 2, 3, 3), (3,), (CLASSES, 48), (CLASSES,))]


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_it_trains_as_the_plain_loop_on_any_number_of_devices(tmp_path, devices):
    """With a block that has parameters already."""
    result = run(tmp_path / "run", own={**OWN, "net": with_values(START)}, devices=devices, lr=0.1)
    expected = plain_loop(with_values(START), Focal(), lr=0.1)
    assert relative_distance(parameter_arrays(result.net), parameter_arrays(expected)) < 1e-5
    assert relative_distance(parameter_arrays(result.net), START) > 1e-2
    scores, last = scores_of(expected), result.history[-1]
    focal = Focal()(nd.array(scores), nd.array(ARRAYS[3])).asnumpy()
    assert last.val_loss == pytest.approx(focal.mean(), rel=1e-4)
    assert last.metrics["margin"] == pytest.approx(margins(scores, ARRAYS[3].astype("int32")), 1e-4)


@pytest.mark.filterwarnings("ignore:Cannot decide type")
def test_an_imported_network_trains_as_the_one_that_it_was_exported_from(tmp_path):
    """Also after set_np. Its parameters have arrays, and no shapes: other images do not fit."""
    net = with_values(START)
    net.hybridize()
    net(nd.zeros((1, 2, 6, 6)))
    net.export(str(tmp_path / "net"))
    files = str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params")
    result = run(tmp_path / "run", own={**OWN, "net": gluon.SymbolBlock.imports(*files)}, lr=0.1)
    expected = plain_loop(with_values(START), Focal(), lr=0.1)
    assert relative_distance(parameter_arrays(result.net), parameter_arrays(expected)) < 1e-5
    own = {**OWN, "net": gluon.SymbolBlock.imports(*files)}
    with numpy_arrays():
        again = run(tmp_path / "again", own=own, lr=0.1).net
        scores = again(mx.np.array(ARRAYS[2], dtype="float32", ctx=device()) / 255)
        assert relative_distance(parameter_arrays(again), parameter_arrays(expected)) < 1e-5
    assert type(scores) is mx.np.ndarray
    assert relative_distance([scores.asnumpy()], [scores_of(expected)]) < 1e-4
    smaller = from_arrays(*(array[..., :5] if array.ndim == 4 else array for array in ARRAYS))
    with pytest.raises(ModelError, match=r"_weight of .* has shape \(4, 48\), but images of shape 2x6x5 require shape"):
        train(config(tmp_path / "smaller"), dataset=smaller, net=gluon.SymbolBlock.imports(*files))


@contextmanager
def numpy_arrays():
    """Make mx.np arrays the default, as after set_np."""
    mx.npx.set_np()
    try:
        yield
    finally:
        mx.npx.reset_np()


class Weighted(gluon.HybridBlock):
    """Cross entropy by class, with constant and frozen weights."""

    def __init__(self, **prefix):
        super().__init__(**prefix)
        self.weight = self.params.get_constant("weight", [1.0, 2.0, 0.5, 3.0])
        self.more = self.params.get("more", shape=(CLASSES,), init=mx.init.One(), grad_req="null")

    def hybrid_forward(self, F, scores, labels, weight, more):
        return -F.pick(F.log_softmax(scores), labels) * F.take(weight * more, labels)


@pytest.mark.parametrize(
    "more",
    [
        {"microbatches": 2},
        {"strategy": "layers"},
        {"strategy": "tensor"},
        pytest.param({"kvstore": "ring"}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_a_loss_with_constants_trains_as_the_plain_loop(tmp_path, more):
    loss = Weighted()
    loss.initialize()
    loss.more.set_data(nd.array([1.0, 1.0, 4.0, 0.5]))
    expected = plain_loop(with_values(START), loss, epochs=1, lr=0.1)
    result = run(tmp_path / "run", own={"net": with_values(START), "loss": loss}, lr=0.1, epochs=1, **more)
    assert relative_distance(parameter_arrays(result.net), parameter_arrays(expected)) < 1e-5
    losses = loss(nd.array(scores_of(expected)), nd.array(ARRAYS[3]))
    assert result.history[-1].val_loss == pytest.approx(losses.asnumpy().mean(), rel=1e-4)


class Unshaped(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.weight = self.params.get("w", grad_req="null", allow_deferred_init=True)

    def hybrid_forward(self, F, scores, labels, weight):
        return F.pick(scores, labels) * F.take(weight, labels)


class OfNd(gluon.HybridBlock):
    """Two layers with a constant between them, written for mx.nd."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2D(3, 3, in_channels=2)
        self.dense = nn.Dense(CLASSES, in_units=48)
        self.scale = self.params.get_constant("scale", [[[[0.5]], [[1.0]], [[2.0]]]])

    def hybrid_forward(self, F, x, scale):
        return self.dense(F.broadcast_mul(F.tanh(self.conv(x)), scale))


class OfNp(OfNd):
    """The same for mx.np."""

    def hybrid_forward(self, F, x, scale):
        return self.dense(F.np.tanh(self.conv(x)) * scale)


class FocalOfNp(gluon.HybridBlock):
    """Focal for mx.np."""

    def hybrid_forward(self, F, scores, labels):
        right = F.npx.pick(F.npx.log_softmax(scores), labels)
        return -((1 - F.np.exp(right)) ** 2) * right


def scaled(kind):
    """Such a network with START's values, of the arrays that the user has chosen."""
    net = kind()
    net.initialize()
    arrays = mx.np if mx.util.is_np_array() else nd
    for layer, start in ((net.conv, START[:2]), (net.dense, START[2:])):
        for param, array in zip((layer.weight, layer.bias), start):
            param.set_data(arrays.array(array))
    return net


def mean_score(scores, labels):
    return mx.np.array(scores).mean()


def gradients(net):
    params = net.collect_params().values()
    return [param.list_grad()[0].asnumpy() for param in params if param.grad_req != "null"]


@pytest.mark.parametrize(
    ("kind", "loss", "made"),
    [
        (OfNd, Focal, "before set_np"),
        (OfNd, FocalOfNp, "by a function"),
        (OfNp, FocalOfNp, "after set_np"),
        pytest.param(OfNp, Focal, "by a function", marks=pytest.mark.long),
    ],
)
def test_after_set_np_code_of_either_kind_trains_as_the_plain_loop(tmp_path, kind, loss, made):
    """And the user gets arrays of mx.np."""
    expected = plain_loop(scaled(OfNd), Focal(), epochs=1, lr=0.1)
    net, scores_in_run = scaled(kind) if made == "before set_np" else lambda: scaled(kind), []
    callback = Callback()
    callback.on_epoch_end = lambda run, epoch: scores_in_run.append(run.net(mx.np.zeros((1, 2, 6, 6), ctx=device())))
    with numpy_arrays():
        own = {"net": net() if made == "after set_np" else net, "loss": loss(), "metrics": [mean_score]}
        result = run(tmp_path / "run", own=own, lr=0.1, epochs=1, callbacks=[callback])
        images = mx.np.array(ARRAYS[2], dtype="float32", ctx=device()) / 255
        with autograd.record():
            scores = result.net(images)
        scores.backward()
        parameters, outputs = parameter_arrays(result.net), [scores.asnumpy(), *gradients(result.net)]
        assert {type(array) for array in (scores, *scores_in_run)} == {mx.np.ndarray}
        result.net.save_parameters(str(tmp_path / "parameters"))
        evaluated = evaluate_run(str(tmp_path / "run"), data=from_arrays(*ARRAYS), **own).score
    assert relative_distance(parameters, parameter_arrays(expected)) < 1e-5
    with autograd.record():
        plain = expected(nd.array(ARRAYS[2]) / 255)
    plain.backward()
    assert relative_distance(outputs, [plain.asnumpy(), *gradients(expected)]) < 1e-4
    assert evaluated.accuracy == result.val_accuracy
    assert evaluated.metrics["mean_score"] == pytest.approx(plain.asnumpy().mean(), rel=1e-3)


def test_after_set_np_a_user_error_has_the_same_message(tmp_path):
    five = from_arrays(IMAGES[:40], np.arange(40) % 5, IMAGES[40:], np.arange(len(IMAGES) - 40) % 5)
    with numpy_arrays():
        for kind in (OfNd, OfNp):
            with pytest.raises(ModelError, match=r"returns shape \(1, 4\) for an image, .* 5 classes"):
                train(config(tmp_path / "run"), net=kind, dataset=five)


@pytest.mark.parametrize("resident", [0, 2**20])
def test_floats_train_as_the_plain_loop_gets_them(tmp_path, resident):
    """Negative ones, and those that no byte has, also if they stay on the devices."""
    floats = (IMAGES[:40] - 90.0) / 61
    data = from_arrays(floats, LABELS[:40], floats, LABELS[:40])
    config_ = config(tmp_path / "run", lr=0.1, device_cache_bytes=resident)
    result = train(config_, None, Reporter(), data, net=with_values(START), loss=Focal())
    net, loss = with_values(START), Focal()
    orders = [np.random.RandomState([0, epoch]).permutation(40) for epoch in range(2)]
    batches = [order[begin : begin + BATCH] for order in orders for begin in range(0, 40, BATCH)]
    train_batches(net, loss, [(nd.array(floats[batch]), nd.array(LABELS[batch])) for batch in batches], lr=0.1)
    assert relative_distance(parameter_arrays(result.net), parameter_arrays(net)) < 1e-5
    expected = loss(net(nd.array(floats)), nd.array(LABELS[:40])).mean().asscalar()
    assert result.history[-1].val_loss == pytest.approx(float(expected), rel=1e-4)


@settings(max_examples=2)
@given(plug=st.integers(1, 8), every=st.integers(1, 3), mixup=st.sampled_from([0.0, 0.3]))
def test_a_resumed_run_is_bit_identical_to_an_uninterrupted_one(tmp_path_factory, plug, every, mixup):
    folder, more = tmp_path_factory.mktemp("runs"), {"mixup": mixup}
    run(folder / "whole", **more)
    try:
        run(folder / "run", StoppingReporter(plug), checkpoint_every=f"{every} steps", **more)
    except RunStopped:
        if plug <= every:
            return
        data = from_arrays(*ARRAYS)
        train(resume=folder / "run", reporter=Reporter(), dataset=data, **OWN)
    assert read_parameter_bytes(folder / "run") == read_parameter_bytes(folder / "whole")
    assert read_comparable_metrics(folder / "run") == read_comparable_metrics(folder / "whole")


@pytest.mark.filterwarnings("ignore::gluonlab.errors.GluonlabWarning")
def test_a_comparison_trains_the_same_on_each_number_of_devices(tmp_path):
    config_ = config(tmp_path / "both").replace(devices=None)
    one, two = compare(config_, [1, 2], Reporter(), from_arrays(*ARRAYS), **OWN)
    assert one.val_accuracy == two.val_accuracy
    first, second = (read_metrics(tmp_path / "both" / name) for name in ("1-device", "2-devices"))
    losses = [[line["val_loss"] for line in lines if line["kind"] == "epoch"] for lines in (first, second)]
    assert losses[0][-1] == pytest.approx(losses[1][-1], rel=1e-5)
    with pytest.raises(ModelError, match="each run of a comparison needs its own model: pass a function"):
        compare(config_, [1, 2], Reporter(), from_arrays(*ARRAYS), net=make_net(4))


TOP2 = {
    "function": lambda: lambda scores, labels: float(np.mean(in_top2(scores, labels))),
    "class": lambda: type(
        "Two", (mx.metric.TopKAccuracy,), {"__init__": lambda self: mx.metric.TopKAccuracy.__init__(self, 2)}
    ),
    "object": lambda: mx.metric.TopKAccuracy(2),
}


def in_top2(scores, labels):
    return [label in row.argsort()[-2:] for row, label in zip(scores, labels)]


@settings(max_examples=3)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 31), st.sampled_from([*TOP2]))
def test_metrics_see_every_image_once_and_in_order(tmp_path_factory, processes, devices, batch, kind):
    """Also metrics that are not means over images, and need all images at once."""
    folder, calls = tmp_path_factory.mktemp("runs"), []

    def record(scores, labels):
        calls.append((scores, labels))
        return 0.0

    def work(group):
        config_ = config(folder / "run", devices, global_batch_size=batch, epochs=1, lr=0.01)
        metrics = {"f1": macro_f1, "top2": TOP2[kind](), "record": record}
        # a loss of this process, which is a thread here: threads cannot share Gluon's blocks
        own = {"net": make_net, "loss": Focal(), "metrics": metrics}
        return train(config_, reporter=Reporter(), dataset=from_arrays(*ARRAYS), group=group, **own)

    results = run_in_threads(processes, work)
    scores = scores_of(results[0].net)
    assert len(calls) == 2 * processes  # with the trial before training, which has random scores
    for metric_scores, labels in calls[processes:]:
        assert np.array_equal(labels, ARRAYS[3]) and np.allclose(metric_scores, scores, atol=1e-4)
    top2 = pytest.approx(np.mean(in_top2(scores, ARRAYS[3])), abs=1e-6)
    f1 = pytest.approx(macro_f1(calls[-1][0], ARRAYS[3]), abs=1e-12)
    for result in results:
        assert result.history[-1].metrics == {"f1": f1, "top2": top2, "record": 0.0}


def test_a_run_records_the_users_components_and_is_evaluated_and_resumed_only_with_them(tmp_path):
    folder, data = tmp_path / "run", from_arrays(*ARRAYS)
    result = run(folder, export=True, checkpoint_every="1 epoch", epochs=1)
    used = json.loads((folder / "config.json").read_text())["settings"]
    assert used["own"] == {"net": "make_net", "loss": "Focal", "data": "arrays"}
    assert used["model"] == "make_net"
    score = evaluate_run(str(folder), data=data, **OWN).score
    assert score.accuracy == result.val_accuracy
    assert score.metrics == pytest.approx(result.history[-1].metrics)
    assert score.loss == pytest.approx(result.history[-1].val_loss)
    for own, message in (
        ({}, "used your network make_net, not the default network: pass"),
        ({"data": data, "net": make_net}, "used your loss Focal, not the default loss"),
        ({"net": make_net, "loss": Focal()}, "used your data set arrays, not the default data set"),
    ):
        with pytest.raises(ConfigError, match=message):
            evaluate_run(str(folder), **own)
    with pytest.raises(ConfigError, match="used your network make_net, not the default network"):
        train(config(folder, epochs=2).replace(out=None), reporter=Reporter(), resume=folder, dataset=data)
    files = str(folder / "export" / "model-symbol.json"), ["data"], str(folder / "export" / "model-0000.params")
    images = nd.array(ARRAYS[2].astype("float32") / 255)
    exported = gluon.SymbolBlock.imports(*files, ctx=mx.cpu())(images).asnumpy()
    assert np.allclose(exported, scores_of(result.net), atol=1e-5)


class NotHybrid(gluon.Block):
    def forward(self, x):
        return x


def block(name, forward):
    """Return a HybridBlock with this hybrid_forward."""
    return type(name, (gluon.HybridBlock,), {"hybrid_forward": lambda self, F, *inputs: forward(F, *inputs)})()


COUNTS = block("Counts", lambda F, x: F.flatten(x) * x.shape[0])
MEAN = block("Mean", lambda F, scores, labels: F.pick(scores, labels).mean())
OF_NOTHING = block("OfNothing", lambda F, *inputs: F.ones((3,)))
ENTROPY = block("Entropy", lambda F, scores, labels: -(F.softmax(scores) * F.log_softmax(scores)).sum(axis=1))
APART = block("Apart", lambda F, scores, labels: F.abs(scores.max(axis=1) - labels))
PAIR = block("Pair", lambda F, *inputs: (inputs[0], inputs[0]))
HALVES = block("Halves", lambda F, x: F.split(x, num_outputs=2))
BREAKS = block("Breaks", lambda F, *inputs: breaks())


class OfBytes(nn.HybridSequential):
    """Scores by a table for bytes, whose gradient is sparse or not."""

    def __init__(self, sparse=True):
        super().__init__()
        with self.name_scope():
            self.add(nn.HybridLambda(lambda F, x: F.round(255 * x)))
            self.add(nn.Embedding(256, 2, sparse_grad=sparse), nn.Dense(4))


class Twins(nn.HybridBlock):
    """Two layers of one prefix."""

    def __init__(self):
        super().__init__()
        self.first, self.scores = nn.Dense(5, prefix="twin_"), nn.Dense(4, prefix="twin_")

    def hybrid_forward(self, F, x):
        return self.scores(self.first(x))


class Whole(nn.HybridSequential):
    """Scores that are whole numbers."""

    def __init__(self):
        super().__init__()
        self.add(nn.Dense(4), nn.HybridLambda(lambda F, x: F.cast(x, "int32")))


class Idle(nn.HybridBlock):
    """Has a layer that it does not use, for so many inputs; 0 if that is not said."""

    def __init__(self, inputs):
        super().__init__()
        with self.name_scope():
            self.scores, self.unused = nn.Dense(4), nn.Dense(2, in_units=inputs, prefix="idle_")

    def hybrid_forward(self, F, x):
        return self.scores(x)


def breaks(*given):
    raise ValueError("one\n  two")


def mxnet_fails(scores, labels):
    return (mx.nd.ones((2, 3)) + mx.nd.ones((4, 5))).asscalar()


WEIGHTED = {"net": nn.Dense(CLASSES, prefix="w_"), "loss": Weighted(prefix="w_")}


@pytest.mark.parametrize(
    ("error", "own", "said"),
    [
        (ModelError, {"net": NotHybrid()}, "NotHybrid is a NotHybrid, but the network of a run must be a"),
        (ModelError, {"net": 5}, "net 5: pass a gluon.HybridBlock, or a function"),
        (ModelError, {"net": COUNTS}, "Counts cannot be compiled for images of shape .2, 6, 6.: "),
        (ModelError, {"net": nn.Dense(7)}, r"Dense returns shape \(1, 7\) for an image, .* 4 class"),
        (ModelError, {"net": PAIR}, "^Pair returns a tuple of 2, but must return one array:"),
        (ModelError, {"net": HALVES}, "^Halves returns 2 arrays, but must return one array:"),
        (ModelError, {"net": Twins()}, "^Twins has parameters with the same name, .*twin_.*: use"),
        (ModelError, {"net": Whole()}, "^Whole returns scores of type int32, but a loss needs flo"),
        (ModelError, {"net": OfBytes()}, "embedding.*_weight has sparse.*sparse_grad=False"),
        (ModelError, {"net": Idle(0)}, "does not use idle.*weight .*: remove the unused layer, or set"),
        (ModelError, {"net": OF_NOTHING}, "OfNothing ignores the images: comp"),
        (ConfigError, {"net": make_net, "model": "lenet"}, "--model lenet and the network make_"),
        (
            ConfigError,
            {"net": make_net, "estimate_memory": True},
            "--estimate-memory measures the run in another process",
        ),
        (ConfigError, {"loss": MEAN}, r"loss Mean returns shape \(1,\) for 3 images: return one value"),
        (ConfigError, {"loss": nn.Dense(1)}, "loss Dense has parameters .*self.params.get_constant"),
        (ConfigError, {"loss": Unshaped()}, "the shape None of unshaped0_w is incomplete"),
        (ConfigError, WEIGHTED, "loss Weighted and the network both have a parameter named w_weight: add a"),
        (ConfigError, {"loss": len}, "loss <built-in function len>: pass a gluon.HybridBlock"),
        (ConfigError, {"loss": gluon.loss.L2Loss()}, "L2Loss is for regression"),
        (ConfigError, {"loss": Focal(), "label_smoothing": 0.1}, "--label-smoothing 0.1 works only with"),
        (ConfigError, {"loss": OF_NOTHING}, "OfNothing ignores the scores and la"),
        (ConfigError, {"loss": ENTROPY}, "loss Entropy ignores the labels: comp"),
        (ConfigError, {"loss": PAIR}, "loss Pair cannot be .*: the output is a tuple, not a sin"),
        (ConfigError, {"loss": APART}, r"loss Apart cannot be .* got int32: convert the labels with F.cast\(labels"),
        (ConfigError, {"loss": BREAKS}, "loss Breaks cannot be compiled .*: one two$"),
        # a Block's repr has several lines
        (ConfigError, {"loss": gluon.nn.Sequential()}, r"loss Sequential\( \): pass a "),
        (ConfigError, {"metrics": 3}, "metric 3: pass a function"),
        (ConfigError, {"metrics": [macro_f1, macro_f1]}, "two metrics have the name 'macro_f1'"),
        (ConfigError, {"metrics": {"x": lambda s, y: "?"}}, "metric x returned '[?]': return"),
        (ConfigError, {"metrics": {"x": lambda s, y: "1"}}, "metric x returned .1.: return"),
        (ConfigError, {"metrics": {"x": lambda s, y: None}}, "metric x returned None: return"),
        (ConfigError, {"metrics": {"x": lambda s, y: s}}, "returned an array of shape .30, 4"),
        (ConfigError, {"metrics": {"x": breaks}}, "metric x failed: ValueError: one two .te"),
        (ConfigError, {"metrics": {"x": mxnet_fails}}, "x failed: MXNetError: .*broadcast"),
        (ConfigError, {"metrics": {"x": lambda s: 0}}, "metric x failed: TypeError"),
    ],
)
def test_a_user_error_is_one_line(tmp_path, capfd, error, own, said):
    more = {"model": None if "net" in own else "mlp"}
    more.update((name, own[name]) for name in own if name not in ("net", "loss", "metrics"))
    own = {name: own[name] for name in own if name in ("net", "loss", "metrics")}
    with pytest.raises(error, match=said) as caught:
        run(tmp_path / "run", own=own, **more)
    assert "\n" not in str(caught.value) and "Traceback" not in str(caught.value)
    assert not (tmp_path / "run").exists()
    assert capfd.readouterr().out == ""


def test_a_metric_may_return_a_number_of_any_type_and_nan_is_null(tmp_path):
    numbers = {
        "float32": np.float32(2), "array": np.array([2.0]), "nd": mx.nd.array([2]), "int": 2, "nan": float("nan")
    }  # fmt: skip
    metrics = {name: lambda scores, labels, number=number: number for name, number in numbers.items()}
    result = run(tmp_path / "run", own={"net": make_net, "metrics": metrics}, epochs=1)
    expected = {**dict.fromkeys(numbers, 2.0), "nan": None}
    assert result.history[-1].metrics == read_metrics(tmp_path / "run")[-2]["metrics"] == expected


X, Y = ARRAYS[0], ARRAYS[1]


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ((X, Y, X[0, 0], Y), r"x_test has type uint8 and shape \(6, 6\): use images"),
        ((X, Y[:5], X, Y), r"y_train has type int64 and shape \(5,\): use one class number for each image.*40,"),
        ((X, Y - 1, X, Y), "y_train has values from -1 to 2, but labels must be class numbers that start at 0"),
        ((X, Y, X[:0], Y[:0]), "x_test has the shape .* and contains no images"),
        ((X, Y, X[:, :1], Y), r"x_train has images of shape \(2, 6, 6\), but x_test has images of shape \(1, 6, 6\)"),
        ((X, Y, X, Y, 4), "classes=4: use a list with a name for each class"),
        ((X, Y, X, Y, ["a", "b"]), "the largest label is 3, but classes contains only 2 names"),
    ],
)
def test_invalid_arrays_give_a_one_line_error(arrays, said):
    with pytest.raises(DataError, match=said):
        from_arrays(*arrays)


def test_gray_images_get_their_channel():
    data = from_arrays(X[:, 0], Y, X[:, 0], Y)
    assert data.image_shape == (1, 6, 6) and data.classes == ("0", "1", "2", "3")
