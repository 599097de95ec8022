"""Class and sample weights: training is that of Gluon's own loss with ``sample_weight``."""

import dataclasses
import json

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from support.devices import contexts, device_spec
from support.reference import cpu_contexts, parameter_arrays, relative_distance

from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.config import TrainConfig
from gluonlab.data import Loader, from_arrays
from gluonlab.data.loading.augmentation import Mixup, to_float
from gluonlab.data.loading.split_batch import WHOLE_SHARDS, Microbatches
from gluonlab.data.sets.array_dataset import apply_class_weights, balanced_weights
from gluonlab.data.sets.dataset import PixelSplit
from gluonlab.errors import ConfigError, DataError
from gluonlab.kvstores import make_kvstore
from gluonlab.parallel.data.strategy import DataParallelStep
from gluonlab.parallel.training_loss import make_loss
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter

CLASSES, SHAPE, BATCH, LR = 4, (2, 6, 6), 10, 0.5
RANDOM = np.random.RandomState(3)
# the last batch has one image, which leaves devices idle
IMAGES = RANDOM.randint(0, 256, (31, *SHAPE)).astype(np.uint8)
LABELS = RANDOM.permutation(np.repeat(range(CLASSES), [3, 6, 10, 12]))
OF_IMAGES = RANDOM.uniform(0, 3, 31)
LONG = pytest.mark.long
OF_CLASSES = [4.0, 0.0, 1.5, 0.25]
SETTINGS = {"devices": device_spec(2), "global_batch_size": BATCH, "optimizer": "sgd", "lr": LR}


def data(weights=None):
    return from_arrays(IMAGES, LABELS, IMAGES[:9], LABELS[:9], weights=weights)


def network(ctxs, batch_norm=False):
    net = nn.HybridSequential()
    norm = [nn.BatchNorm()] * batch_norm
    conv = nn.Conv2D(4, 3, use_bias=not batch_norm)
    net.add(conv, *norm, nn.Activation("tanh"), nn.Flatten(), nn.Dense(CLASSES))
    mx.random.seed(3)
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    net(nd.zeros((1, *SHAPE), ctx=ctxs[0]))
    return net


def trained_arrays(net, ctx=None):
    """Return the parameters without BatchNorm's running statistics."""
    pairs = zip(net.collect_params().values(), parameter_arrays(net, ctx))
    return [array for param, array in pairs if param.grad_req != "null"]


def train_with_gluon(weights, epochs=1, mixup=0.0, batch_norm=False):
    """Train on one device with Gluon's ``sample_weight``.

    Return the parameters, and the mean losses of training and of the test images.
    """
    net = network(cpu_contexts(1), batch_norm)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": LR}, kvstore=None)
    loss, losses = gluon.loss.SoftmaxCrossEntropyLoss(), []
    for epoch in range(epochs):
        order = np.random.RandomState([0, epoch]).permutation(len(IMAGES))
        for step, begin in enumerate(range(0, len(order), BATCH)):
            batch = order[begin : begin + BATCH]
            share = Mixup(mixup).draw(0, epoch, step) if mixup else 1.0
            pairs = [(share, batch), (1 - share, batch[::-1])][: 2 if mixup else 1]
            x = nd.array(sum(share * (IMAGES[images] / 255) for share, images in pairs))
            with autograd.record():
                scores, total = net(x), 0.0
                for share, images in pairs:
                    labels, sample_weight = nd.array(LABELS[images]), nd.array(weights[images]).expand_dims(1)
                    total = total + share * loss(scores, labels, sample_weight).sum()
            total.backward()
            losses.append(total.asscalar())
            trainer.step(len(batch))
    test = loss(net(nd.array(IMAGES[:9] / 255)), nd.array(LABELS[:9])).mean().asscalar()
    return trained_arrays(net), sum(losses[-4:]) / len(IMAGES), test


@pytest.mark.parametrize("mixup", [0.0, 0.7])
@pytest.mark.parametrize("k", [1, pytest.param(2, marks=LONG), 3])
def test_any_devices_microbatches_and_mixtures_make_gluons_update(k, mixup):
    weights = OF_IMAGES * np.array(OF_CLASSES)[LABELS]
    split = apply_class_weights(data(OF_IMAGES), OF_CLASSES).train
    for resident_bytes, cut, sync_bn in (
        (2**20, WHOLE_SHARDS, False), (0, Microbatches(2), False), (0, WHOLE_SHARDS, True),
    ):  # fmt: skip
        ctxs = contexts(k)
        net = network(ctxs, sync_bn)
        expected, _, _ = train_with_gluon(weights, mixup=mixup, batch_norm=sync_bn)
        trainer = BucketedTrainer(net.collect_params(), "sgd", {"learning_rate": LR}, make_kvstore("device"))
        loss = make_loss(mixed=bool(mixup), weighted=True)
        step = DataParallelStep(net, loss, trainer, ctxs, to_float, cut, sync_bn and k > 1)
        options = {"raw": True, "resident_bytes": resident_bytes, "mixup": Mixup(mixup) if mixup else None}
        for batch in Loader(split, ctxs, BATCH, **options):
            step(batch)
        for ctx in ctxs:
            assert relative_distance(trained_arrays(net, ctx), expected) <= 1e-5


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"strategy": "pipeline", "microbatches": 2, "cut": "3"},
        pytest.param({"strategy": "layers", "cut": "3"}, marks=LONG),
        {"strategy": "tensor"},
        pytest.param({"loss": gluon.loss.SoftmaxCrossEntropyLoss()}, marks=LONG),
        pytest.param({"device_weights": "3,1"}, marks=LONG),
    ],
    ids=lambda options: "-".join(options),
)
def test_a_run_trains_as_gluon_and_reports_a_weighted_and_a_plain_loss(options, tmp_path):
    balanced = len(LABELS) / (CLASSES * np.bincount(LABELS))
    expected, train_loss, test_loss = train_with_gluon(balanced[LABELS], epochs=2)
    options = dict(options)
    loss = options.pop("loss", None)
    config = TrainConfig(**SETTINGS, epochs=2, class_weights="balanced", out=str(tmp_path / "run"), **options)
    result = train(config, dataset=data(), net=network(contexts(1)), loss=loss, reporter=Reporter())
    assert relative_distance(parameter_arrays(result.net), expected) <= 1e-5
    assert result.history[-1].loss == pytest.approx(train_loss, rel=1e-4)
    assert result.history[-1].val_loss == pytest.approx(test_loss, rel=1e-4)
    used = json.loads((tmp_path / "run" / "config.json").read_text())["settings"]
    assert used["class_weights"] == "balanced" and used["weighted_loss"] is True


def test_a_run_resumes_only_with_its_weights(tmp_path):
    options = {"model": "mlp", "class_weights": OF_CLASSES, "checkpoint_every": "1epoch"}
    config = TrainConfig(**SETTINGS, **options, epochs=1, out=str(tmp_path / "run"))
    train(config, dataset=data(OF_IMAGES), reporter=Reporter())
    whole = train(config.replace(epochs=2, out=str(tmp_path / "whole")), dataset=data(OF_IMAGES), reporter=Reporter())

    def resume(weights, **settings):
        more = config.replace(epochs=2, out=None, **settings)
        return train(more, dataset=data(weights), resume=tmp_path / "run", reporter=Reporter())

    with pytest.raises(ConfigError, match="its train split contained"):
        resume(OF_IMAGES * 2)
    with pytest.raises(ConfigError, match=r"--class-weights was 4,0,1\.5,0\.25, and would now be 1,2"):
        resume(OF_IMAGES, class_weights="1,2,3,4")
    assert relative_distance(parameter_arrays(resume(OF_IMAGES).net), parameter_arrays(whole.net)) == 0


def test_smoothed_losses_have_weights():
    scores, labels = nd.array(RANDOM.normal(0, 3, (31, CLASSES))), nd.array(LABELS)
    weighted = nd.array(np.stack([LABELS, OF_IMAGES], axis=1))
    found = make_loss(0.3, weighted=True)(scores, weighted).asnumpy()
    np.testing.assert_allclose(found, OF_IMAGES * make_loss(0.3)(scores, labels).asnumpy(), 1e-6)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_balanced_classes_have_the_same_share(labels):
    labels = np.array(labels)
    weights = np.array(balanced_weights(labels, 7))[labels]
    shares = [weights[labels == each].sum() for each in set(labels)]
    assert shares == pytest.approx([len(labels) / len(shares)] * len(shares))


GIVE = "use balanced, or a number of at least 0 for each class"


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        *((weights, GIVE) for weights in ("1,-1", "nan,1", [1, float("inf")], "", True, {"a": 1})),
        ([], rf"--class-weights \[\]: {GIVE}"),
        ("Balanced", f"--class-weights Balanced: {GIVE}"),
        ("0,0", "learns nothing if all classes have weight 0"),
    ],
)
def test_impossible_class_weights_are_refused_in_one_line(weights, message):
    with pytest.raises(ConfigError, match=message) as raised:
        TrainConfig(class_weights=weights)
    assert "\n" not in str(raised.value)


def test_class_weights_are_taken_as_list_array_and_text():
    for weights in ("1, 2.5", [1, 2.5], (1, 2.5), np.array([1, 2.5]), nd.array([1, 2.5])):
        assert TrainConfig(class_weights=weights).class_weights == "1,2.5"
    assert TrainConfig(class_weights=[1e22, 1e-3, 0.0]).class_weights == f"{10**22},0.001,0"


class SplitWithoutLabels:
    """A user's split, whose labels are unknown before they are read."""

    image_shape = SHAPE

    def __len__(self):
        return 4

    def batch(self, indices):
        return IMAGES[indices], np.ones(len(indices), np.int32)


def test_class_weights_that_do_not_fit_the_data_are_refused(empty_cwd):
    with pytest.raises(DataError, match=r"has 3 numbers, but arrays has 4 classes \(0, 1, 2, 3\)"):
        train(TrainConfig(class_weights="1,2,3"), dataset=data())
    only = from_arrays(IMAGES, LABELS * 0, IMAGES, LABELS * 0, classes="abcd")
    with pytest.raises(DataError, match="0 for every class of the training images"):
        train(TrainConfig(class_weights="0,2,3,4"), dataset=only)
    with pytest.raises(DataError, match="the training split of arrays, a SplitWithoutLabels, has no labels"):
        train(TrainConfig(class_weights="1,2,3,4"), dataset=dataclasses.replace(data(), train=SplitWithoutLabels()))
    floats = PixelSplit((IMAGES / 255).astype("float32"), LABELS.astype("float32"))
    for weights in ("balanced", "1,2,3,4"):
        with pytest.raises(DataError, match="the labels of arrays have type float32: omit --class-weights"):
            train(TrainConfig(class_weights=weights), dataset=dataclasses.replace(data(), train=floats))
    assert not list(empty_cwd.iterdir())


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, 2], r"weights has the shape \(2,\), but there are 31 images"),
        (OF_IMAGES[:, None], r"shape \(31, 1\), but there are 31"),
        ([-1] + [1] * 30, r"weights\[0\] is -1: use finite numbers of at least 0"),
        ([1] * 30 + [float("nan")], r"weights\[30\] is nan"),
        ([0] * 31, "0 for every image, so the model would not learn anything"),
        (["a"] * 31, "not numbers"),
    ],
)
def test_impossible_weights_of_images_are_refused(weights, message):
    with pytest.raises(DataError, match=message):
        data(weights)
