"""A network, data, a loss and metrics of the user's own train as a plain Gluon loop trains them."""

import json

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
from gluonlab.study.compare_devices import compare
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


def plain_loop(net, loss, epochs=2, lr=0.5, seed=0):
    """Gluon's own loop on one device, over the batches that a run has."""
    loader = Loader(from_arrays(*ARRAYS).train, [mx.cpu()], BATCH, seed)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": lr}, kvstore=None)
    for _ in range(epochs):
        for (x,), (y,) in loader:
            with autograd.record():
                losses = loss(net(x), y)
            losses.backward()
            trainer.step(len(x))
    return net


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
    """With a block that has parameters already, which the textbook's begins with, too."""
    own = {**OWN, "net": with_values(START)}
    result = run(tmp_path / "run", own=own, devices=devices, lr=0.1)
    expected = plain_loop(with_values(START), Focal(), lr=0.1)
    assert relative_distance(parameter_arrays(result.net), parameter_arrays(expected)) < 1e-5
    assert relative_distance(parameter_arrays(result.net), [np.array(each, "float32") for each in START]) > 1e-2
    scores = scores_of(expected)
    last = result.history[-1]
    focal = Focal()(nd.array(scores), nd.array(ARRAYS[3])).asnumpy()
    assert last.validation_loss == pytest.approx(focal.mean(), rel=1e-4)
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
    mx.npx.set_np()
    try:
        again = run(tmp_path / "again", own=own, lr=0.1).net
        scores = again(mx.np.array(ARRAYS[2], dtype="float32", ctx=device()) / 255)
        assert relative_distance(parameter_arrays(again), parameter_arrays(expected)) < 1e-5
    finally:
        mx.npx.reset_np()
    assert type(scores) is mx.np.ndarray
    assert relative_distance([scores.asnumpy()], [scores_of(expected)]) < 1e-4
    smaller = from_arrays(*(each[..., :5] if each.ndim == 4 else each for each in ARRAYS))
    with pytest.raises(ModelError, match=r"_weight \(4, 48\), but needs \(4, 36\) for images"):
        train(config(tmp_path / "smaller"), dataset=smaller, net=gluon.SymbolBlock.imports(*files))


class Weighted(gluon.HybridBlock):
    """Cross entropy by class, with weights that are a constant and some that nobody trains."""

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
        {"split": "layers"},
        {"split": "channels"},
        pytest.param({"kvstore": "ring"}, marks=pytest.mark.long),
    ],
    ids=lambda more: "-".join(map(str, *more.items())),
)
def test_a_loss_may_keep_constants_and_the_numbers_are_those_of_the_plain_loop(tmp_path, more):
    loss = Weighted()
    loss.initialize()
    loss.more.set_data(nd.array([1.0, 1.0, 4.0, 0.5]))
    expected = plain_loop(with_values(START), loss, epochs=1, lr=0.1)
    own = {"net": with_values(START), "loss": loss}
    result = run(tmp_path / "run", own=own, lr=0.1, epochs=1, **more)
    assert relative_distance(parameter_arrays(result.net), parameter_arrays(expected)) < 1e-5
    losses = loss(nd.array(scores_of(expected)), nd.array(ARRAYS[3]))
    assert result.history[-1].validation_loss == pytest.approx(losses.asnumpy().mean(), rel=1e-4)


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


class Looks:
    """A callback that computes with the run's network, in mx.np."""

    def __init__(self):
        self.seen = []

    def on_epoch_end(self, run, epoch):
        self.seen.append(run.net(mx.np.zeros((1, 2, 6, 6), ctx=device())))


def mean_score(scores, labels):
    return mx.np.array(scores).mean()


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
    """And what the user gets, or is told, is mx.np's."""
    expected = plain_loop(scaled(OfNd), Focal(), epochs=1, lr=0.1)
    net = scaled(kind) if made == "before set_np" else lambda: scaled(kind)
    mx.npx.set_np()
    try:
        net = net() if made == "after set_np" else net
        looks, own = Looks(), {"net": net, "loss": loss(), "metrics": [mean_score]}
        result = run(tmp_path / "run", own=own, lr=0.1, epochs=1, callbacks=[looks])
        images = mx.np.array(ARRAYS[2], dtype="float32", ctx=device()) / 255
        with autograd.record():
            scores = result.net(images)
        scores.backward()
        trained, found = parameter_arrays(result.net), [scores.asnumpy(), *gradients(result.net)]
        assert {type(each) for each in (scores, *looks.seen)} == {mx.np.ndarray}
        result.net.save_parameters(str(tmp_path / "parameters"))
        evaluated = evaluate_run(str(tmp_path / "run"), data=from_arrays(*ARRAYS), **own).score
    finally:
        mx.npx.reset_np()
    assert relative_distance(trained, parameter_arrays(expected)) < 1e-5
    with autograd.record():
        plain = expected(nd.array(ARRAYS[2]) / 255)
    plain.backward()
    assert relative_distance(found, [plain.asnumpy(), *gradients(expected)]) < 1e-4
    assert evaluated.accuracy == result.accuracy
    assert evaluated.metrics["mean_score"] == pytest.approx(plain.asnumpy().mean(), rel=1e-3)


def gradients(net):
    params = net.collect_params().values()
    return [param.list_grad()[0].asnumpy() for param in params if param.grad_req != "null"]


def test_after_set_np_a_mistake_is_told_in_the_words_of_its_kind(tmp_path):
    five = from_arrays(IMAGES[:40], np.arange(40) % 5, IMAGES[40:], np.arange(len(IMAGES) - 40) % 5)
    mx.npx.set_np()
    try:
        for kind in (OfNd, OfNp):
            with pytest.raises(ModelError, match=r"gives \(1, 4\) for an image, .* 5 classes"):
                train(config(tmp_path / "run"), net=kind, dataset=five)
    finally:
        mx.npx.reset_np()


@pytest.mark.parametrize("resident", [0, 2**20])
def test_floats_train_as_the_plain_loop_gets_them(tmp_path, resident):
    """Negative ones, and those that no byte has, also where they stay on the devices."""
    floats = (IMAGES[:40] - 90.0) / 61
    data = from_arrays(floats, LABELS[:40], floats, LABELS[:40])
    asked = config(tmp_path / "run", lr=0.1, resident_bytes=resident)
    result = train(asked, None, Reporter(), data, net=with_values(START), loss=Focal())
    net, loss = with_values(START), Focal()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=None)
    for epoch in range(2):
        places = np.random.RandomState([0, epoch]).permutation(40)
        for begin in range(0, 40, BATCH):
            batch = places[begin : begin + BATCH]
            with autograd.record():
                losses = loss(net(nd.array(floats[batch])), nd.array(LABELS[batch]))
            losses.backward()
            trainer.step(len(batch))
    assert relative_distance(parameter_arrays(result.net), parameter_arrays(net)) < 1e-5
    assert result.history[-1].validation_loss == pytest.approx(
        float(loss(net(nd.array(floats)), nd.array(LABELS[:40])).mean().asscalar()), rel=1e-4
    )


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
    asked = config(tmp_path / "both").replace(devices=None, threads=1)
    rows = compare(asked, [1, 2], Reporter(), from_arrays(*ARRAYS), **OWN)
    assert rows[0].accuracy == rows[1].accuracy
    first, second = (
        [line for line in read_metrics(tmp_path / "both" / name) if line["kind"] == "epoch"][-1]
        for name in ("1-device", "2-devices")
    )
    assert first["validation_loss"] == pytest.approx(second["validation_loss"], rel=1e-5)
    with pytest.raises(ModelError, match="each run of a comparison needs its own: give a function"):
        compare(asked, [1, 2], Reporter(), from_arrays(*ARRAYS), net=make_net(4))


@settings(max_examples=3)
@given(
    processes=st.integers(1, 3), devices=st.integers(1, 3), batch=st.integers(1, 31),
    kind=st.sampled_from(["function", "class", "object"]),
)  # fmt: skip
def test_metrics_see_every_image_once_and_in_order_however_batches_are_shared(
    tmp_path_factory, processes, devices, batch, kind
):
    """Also those that are no means over images, and need all of them at once."""
    folder, seen = tmp_path_factory.mktemp("runs"), []

    def spy(scores, labels):
        seen.append((scores, labels))
        return 0.0

    top2 = {
        "function": lambda scores, labels: float(
            np.mean([label in row.argsort()[-2:] for row, label in zip(scores, labels)])
        ),
        "class": type("Two", (mx.metric.TopKAccuracy,), {"__init__": two}),
        "object": mx.metric.TopKAccuracy(2),
    }[kind]

    def work(group):
        given = config(folder / "run", devices, global_batch_size=batch, epochs=1, lr=0.01)
        own = {**OWN, "metrics": {"f1": macro_f1, "top2": top2, "spy": spy}}
        own["loss"] = Focal()  # of this process, which is a thread here: Gluon's blocks are of one
        if group.size > 1 and kind == "object":
            own["metrics"]["top2"] = mx.metric.TopKAccuracy(2)
        data = from_arrays(*ARRAYS)
        return train(given, reporter=Reporter(), dataset=data, group=group, **own)

    results = run_in_threads(processes, work)
    scores = scores_of(results[0].net)
    assert len(seen) == 2 * processes  # with the trial before training, which has random scores
    for told, labels in seen[processes:]:
        assert np.array_equal(labels, ARRAYS[3]) and np.allclose(told, scores, atol=1e-4)
    right = [label in row.argsort()[-2:] for row, label in zip(scores, ARRAYS[3])]
    for result in results:
        assert result.history[-1].metrics == {
            "f1": pytest.approx(macro_f1(seen[-1][0], ARRAYS[3]), abs=1e-12),
            "top2": pytest.approx(np.mean(right), abs=1e-6), "spy": 0.0,
        }  # fmt: skip


def two(self):
    mx.metric.TopKAccuracy.__init__(self, 2)


def test_the_folder_names_what_is_own_and_is_evaluated_with_it_alone(tmp_path):
    folder = tmp_path / "run"
    result = run(folder, export=True)
    used = json.loads((folder / "config.json").read_text())["settings"]
    assert used["own"] == {"net": "make_net", "loss": "Focal", "data": "arrays"}
    assert used["model"] == "make_net"
    found = evaluate_run(str(folder), data=from_arrays(*ARRAYS), **OWN)
    assert found.score.accuracy == result.accuracy
    assert found.score.metrics == pytest.approx(result.history[-1].metrics)
    assert found.score.loss == pytest.approx(result.history[-1].validation_loss)
    with pytest.raises(ConfigError, match="had the network make_net, and now gets none: give"):
        evaluate_run(str(folder))
    data = from_arrays(*ARRAYS)
    with pytest.raises(ConfigError, match="had the loss Focal, and now gets none"):
        evaluate_run(str(folder), data=data, net=make_net)
    with pytest.raises(ConfigError, match="had the data set arrays, and now gets none"):
        evaluate_run(str(folder), net=make_net, loss=Focal())
    exported = gluon.SymbolBlock.imports(
        str(folder / "export" / "model-symbol.json"), ["data"],
        str(folder / "export" / "model-0000.params"), ctx=mx.cpu(),
    )  # fmt: skip
    images = nd.array(ARRAYS[2].astype("float32") / 255)
    assert np.allclose(exported(images).asnumpy(), scores_of(result.net), atol=1e-5)


def test_a_run_resumes_only_with_its_own_components(tmp_path):
    run(tmp_path / "run", checkpoint_every="1 epoch", epochs=1)
    with pytest.raises(ConfigError, match="had the network make_net, and now gets none"):
        train(
            TrainConfig(epochs=2, global_batch_size=BATCH, lr=0.5, optimizer="sgd"),
            reporter=Reporter(), resume=tmp_path / "run", dataset=from_arrays(*ARRAYS),
        )  # fmt: skip


class NotHybrid(gluon.Block):
    def forward(self, x):
        return x


class Counts(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return F.flatten(x) * x.shape[0]


class Mean(gluon.HybridBlock):
    def hybrid_forward(self, F, scores, labels):
        return F.pick(scores, labels).mean()


class OfNothing(gluon.HybridBlock):
    def hybrid_forward(self, F, *given):
        return F.ones((3,))


class Entropy(gluon.HybridBlock):
    def hybrid_forward(self, F, scores, labels):
        return -(F.softmax(scores) * F.log_softmax(scores)).sum(axis=1)


class Apart(gluon.HybridBlock):
    def hybrid_forward(self, F, scores, labels):
        return F.abs(scores.max(axis=1) - labels)


class Pair(gluon.HybridBlock):
    def hybrid_forward(self, F, *given):
        return given[0], given[0]


class Halves(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return F.split(x, num_outputs=2)


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


class Breaks(gluon.HybridBlock):
    def hybrid_forward(self, F, scores, labels):
        return breaks()


def mxnet_fails(scores, labels):
    return (mx.nd.ones((2, 3)) + mx.nd.ones((4, 5))).asscalar()


WEIGHTED = {"net": nn.Dense(CLASSES, prefix="w_"), "loss": Weighted(prefix="w_")}


@pytest.mark.parametrize(
    ("error", "own", "said"),
    [
        (ModelError, {"net": NotHybrid()}, "NotHybrid is a NotHybrid, not a gluon.HybridBlock"),
        (ModelError, {"net": 5}, "net 5: give a gluon.HybridBlock, or a function"),
        (ModelError, {"net": Counts()}, "Counts cannot be compiled for images .2, 6, 6.: "),
        (ModelError, {"net": nn.Dense(7)}, r"Dense gives \(1, 7\) for an image, .* 4 class"),
        (ModelError, {"net": Pair()}, "^Pair returns a tuple of 2, but must return one array:"),
        (ModelError, {"net": Halves()}, "^Halves returns 2 arrays, but must return one array:"),
        (ModelError, {"net": Twins()}, "^Twins: .*twin_.*: parameters are saved by name, so give"),
        (ModelError, {"net": Whole()}, "^Whole returns scores of type int32, but a loss needs flo"),
        (ModelError, {"net": OfBytes()}, "embedding.*_weight has sparse.*: make them dense"),
        (ModelError, {"net": Idle(0)}, "does not use idle.*weight .*: leave the layer out, or give"),
        (ModelError, {"net": OfNothing()}, "OfNothing takes no account of the images: comp"),
        (ConfigError, {"net": make_net, "model": "lenet"}, "--model lenet and the network make_"),
        (ConfigError, {"net": make_net, "memory": True}, "--memory measures in another process"),
        (ConfigError, {"loss": Mean()}, r"loss Mean gives \(1,\) for 3 images: give a value"),
        (ConfigError, {"loss": nn.Dense(1)}, "loss Dense has parameters .*self.params.get_constant"),
        (ConfigError, {"loss": Unshaped()}, "has unshaped0_w of shape None: give its whole sh"),
        (ConfigError, WEIGHTED, "loss Weighted and the network both have w_weight: give the loss a"),
        (ConfigError, {"loss": len}, "loss <built-in function len>: give a gluon.HybridBlock"),
        (ConfigError, {"loss": gluon.loss.L2Loss()}, "L2Loss compares scores with targets of the"),
        (ConfigError, {"loss": Focal(), "label_smoothing": 0.1}, "--label-smoothing 0.1 is of"),
        (ConfigError, {"loss": OfNothing()}, "OfNothing takes no account of the scores and la"),
        (ConfigError, {"loss": Entropy()}, "loss Entropy takes no account of the labels: comp"),
        (ConfigError, {"loss": Pair()}, "loss Pair cannot be .*: it gives a tuple, not one ar"),
        (
            ConfigError,
            {"loss": Apart()},
            r"loss Apart cannot be .* got int32; F.cast\(labels, 'float32'\) makes floats of them$",
        ),
        (ConfigError, {"loss": Breaks()}, "loss Breaks cannot be compiled .*: one two$"),
        # a Block's repr has several lines
        (ConfigError, {"loss": gluon.nn.Sequential()}, r"loss Sequential\( \): give a "),
        (ConfigError, {"metrics": 3}, "metric 3: give a function"),
        (ConfigError, {"metrics": [macro_f1, macro_f1]}, "two metrics are called 'macro_f1'"),
        (ConfigError, {"metrics": {"x": lambda s, y: "?"}}, "metric x gave '[?]': let it g"),
        (ConfigError, {"metrics": {"x": lambda s, y: "1"}}, "metric x gave '1': let it give"),
        (ConfigError, {"metrics": {"x": lambda s, y: None}}, "metric x gave None: let it"),
        (ConfigError, {"metrics": {"x": lambda s, y: s}}, "gave an array of shape .30, 4"),
        (ConfigError, {"metrics": {"x": breaks}}, "metric x failed: ValueError: one two; tr"),
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


def test_a_metric_may_give_a_number_in_any_form_and_nan_is_null(tmp_path):
    forms = {
        "float32": np.float32(2), "array": np.array([2.0]), "nd": mx.nd.array([2]), "int": True + 1,
        "nan": float("nan"),
    }  # fmt: skip
    metrics = {name: lambda scores, labels, form=form: form for name, form in forms.items()}
    result = run(tmp_path / "run", own={"net": make_net, "metrics": metrics}, epochs=1)
    expected = {**dict.fromkeys(forms, 2.0), "nan": None}
    assert result.history[-1].metrics == expected
    assert read_metrics(tmp_path / "run")[-2]["metrics"] == expected


X, Y = ARRAYS[0], ARRAYS[1]


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ((X, Y, X[0, 0], Y), r"x_test is uint8 of shape \(6, 6\): give images"),
        ((X, Y[:5], X, Y), r"y_train is int64 of shape \(5,\): give the number of its class .*40,"),
        ((X, Y - 1, X, Y), "y_train goes from -1 to 2: give classes from 0 up"),
        ((X, Y, X[:0], Y[:0]), "x_test has the shape .* and contains no images"),
        ((X, Y, X[:, :1], Y), r"x_train has images of \(2, 6, 6\), but x_test of \(1, 6, 6\)"),
        ((X, Y, X, Y, 4), "classes 4: give a name for each, in a list"),
        ((X, Y, X, Y, ["a", "b"]), "a label is 3, but there are only 2 classes"),
    ],
)
def test_invalid_arrays_give_a_one_line_error(arrays, said):
    with pytest.raises(DataError, match=said):
        from_arrays(*arrays)


def test_grey_images_get_their_channel():
    data = from_arrays(X[:, 0], Y, X[:, 0], Y)
    assert data.image_shape == (1, 6, 6) and data.classes == ("0", "1", "2", "3")
