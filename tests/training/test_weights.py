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
from gluonlab.data.sets.array_dataset import apply_class_weights, balanced_weights
from gluonlab.data.sets.dataset import PixelSplit
from gluonlab.errors import ConfigError, DataError
from gluonlab.kvstores import make_kvstore
from gluonlab.parallel.data.microbatches import WHOLE_SHARDS, Microbatches
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


def learned(net, ctx=None):
    """The parameters that have gradients; BatchNorm also has running statistics."""
    every = zip(net.collect_params().values(), parameter_arrays(net, ctx))
    return [value for param, value in every if param.grad_req != "null"]


def trained_by_gluon(weights, epochs=1, mixup=0.0, batch_norm=False):
    """One device and Gluon's own loss with ``sample_weight``; the mean of its training losses."""
    net = network(cpu_contexts(1), batch_norm)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": LR}, kvstore=None)
    loss, losses = gluon.loss.SoftmaxCrossEntropyLoss(), []
    for epoch in range(epochs):
        order = np.random.RandomState([0, epoch]).permutation(len(IMAGES))
        for step, begin in enumerate(range(0, len(order), BATCH)):
            own = order[begin : begin + BATCH]
            pairs = [(1.0, own)]
            if mixup:
                share = Mixup(mixup).draw(0, epoch, step)
                pairs = [(share, own), (1 - share, own[::-1])]
            x = nd.array(sum(share * (IMAGES[taken] / 255) for share, taken in pairs))
            with autograd.record():
                scores = net(x)
                total = sum(
                    share * loss(scores, nd.array(LABELS[taken]), nd.array(weights[taken]).expand_dims(1)).sum()
                    for share, taken in pairs
                )
            total.backward()
            losses.append(total.asscalar())
            trainer.step(len(own))
    test = loss(net(nd.array(IMAGES[:9] / 255)), nd.array(LABELS[:9])).mean().asscalar()
    return learned(net), sum(losses[-4:]) / len(IMAGES), test


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
        expected, _, _ = trained_by_gluon(weights, mixup=mixup, batch_norm=sync_bn)
        trainer = BucketedTrainer(net.collect_params(), "sgd", {"learning_rate": LR}, make_kvstore("device"))
        loss = make_loss(mixed=bool(mixup), weighted=True)
        step = DataParallelStep(net, loss, trainer, ctxs, to_float, cut, sync_bn and k > 1)
        mixing = Mixup(mixup) if mixup else None
        options = {"raw": True, "resident_bytes": resident_bytes, "mixup": mixing}
        for batch in Loader(split, ctxs, BATCH, **options):
            step(batch)
        for ctx in ctxs:
            assert relative_distance(learned(net, ctx), expected) <= 1e-5


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"split": "pipeline", "microbatches": 2, "cut": "3"},
        pytest.param({"split": "layers", "cut": "3"}, marks=LONG),
        {"split": "channels"},
        pytest.param({"loss": gluon.loss.SoftmaxCrossEntropyLoss()}, marks=LONG),
        pytest.param({"device_weights": "3,1"}, marks=LONG),
    ],
    ids=lambda options: "-".join(options),
)
def test_a_run_trains_as_gluon_and_reports_a_weighted_and_a_plain_loss(options, tmp_path):
    balanced = len(LABELS) / (CLASSES * np.bincount(LABELS))
    assert balanced[LABELS].mean() == pytest.approx(1)
    expected, train_loss, test_loss = trained_by_gluon(balanced[LABELS], epochs=2)
    options = dict(options)
    own = options.pop("loss", None)
    config = TrainConfig(
        devices=device_spec(2), epochs=2, global_batch_size=BATCH, optimizer="sgd", lr=LR,
        class_weights="balanced", out=str(tmp_path / "run"), **options,
    )  # fmt: skip
    result = train(config, dataset=data(), net=network(contexts(1)), loss=own, reporter=Reporter())
    assert relative_distance(parameter_arrays(result.net), expected) <= 1e-5
    assert result.history[-1].loss == pytest.approx(train_loss, rel=1e-4)
    assert result.history[-1].validation_loss == pytest.approx(test_loss, rel=1e-4)
    used = json.loads((tmp_path / "run" / "config.json").read_text())["settings"]
    assert used["class_weights"] == "balanced" and used["weighted_loss"] is True


def test_a_run_goes_on_with_its_weights_only(tmp_path):
    config = TrainConfig(
        devices=device_spec(2), epochs=1, global_batch_size=BATCH, optimizer="sgd", lr=LR,
        model="mlp",
        class_weights=OF_CLASSES, checkpoint_every="1epoch", out=str(tmp_path / "run"),
    )  # fmt: skip
    train(config, dataset=data(OF_IMAGES), reporter=Reporter())
    whole = train(config.replace(epochs=2, out=str(tmp_path / "whole")), dataset=data(OF_IMAGES), reporter=Reporter())
    again = config.replace(epochs=2, out=None)
    with pytest.raises(ConfigError, match="its train split had"):
        train(again, dataset=data(OF_IMAGES * 2), resume=tmp_path / "run", reporter=Reporter())
    with pytest.raises(ConfigError, match=r"--class-weights was 4,0,1\.5,0\.25, and would be 1,2"):
        other = again.replace(class_weights="1,2,3,4")
        train(other, dataset=data(OF_IMAGES), resume=tmp_path / "run", reporter=Reporter())
    resumed = train(again, dataset=data(OF_IMAGES), resume=tmp_path / "run", reporter=Reporter())
    assert relative_distance(parameter_arrays(resumed.net), parameter_arrays(whole.net)) == 0


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


@pytest.mark.parametrize(
    "given, words",
    [
        ("1,-1", "give balanced, or a number from 0 up for each class"),
        ("nan,1", "give balanced, or a number from 0 up"),
        ([1, float("inf")], "give balanced, or a number from 0 up"),
        ("", "give balanced, or a number from 0 up"),
        (True, "give balanced, or a number from 0 up"),
        ({"a": 1}, "give balanced, or a number from 0 up"),
        ([], r"--class-weights \[\]: give balanced, or a number"),
        ("0,0", "learns nothing if every class has weight 0"),
        ("Balanced", "--class-weights Balanced: give balanced"),
    ],
)  # fmt: skip
def test_impossible_class_weights_are_refused_in_one_line(given, words):
    with pytest.raises(ConfigError, match=words) as caught:
        TrainConfig(class_weights=given)
    assert "\n" not in str(caught.value)


def test_class_weights_are_taken_as_list_array_and_text():
    for weights in ("1, 2.5", [1, 2.5], (1, 2.5), np.array([1, 2.5]), nd.array([1, 2.5])):
        assert TrainConfig(class_weights=weights).class_weights == "1,2.5"
    assert TrainConfig(class_weights=[1e22, 1e-3, 0.0]).class_weights == f"{10**22},0.001,0"


class OfOnes:
    """A split of a user's own, whose labels nobody knows before they are read."""

    image_shape = SHAPE

    def __len__(self):
        return 4

    def batch(self, indices):
        return IMAGES[indices], np.ones(len(indices), np.int32)


def test_class_weights_that_do_not_fit_the_data_are_refused(empty_cwd):
    with pytest.raises(DataError, match=r"has 3 numbers, but arrays has 4 classes \(0, 1, 2, 3\)"):
        train(TrainConfig(class_weights="1,2,3"), dataset=data())
    only = from_arrays(IMAGES, LABELS * 0, IMAGES, LABELS * 0, classes="abcd")
    with pytest.raises(DataError, match="0 for every class that occurs"):
        train(TrainConfig(class_weights="0,2,3,4"), dataset=only)
    with pytest.raises(DataError, match="the split of arrays, a OfOnes, has no labels"):
        own = dataclasses.replace(data(), train=OfOnes())
        train(TrainConfig(class_weights="1,2,3,4"), dataset=own)
    images = (IMAGES / 255).astype("float32")
    for numbers in ("balanced", "1,2,3,4"):
        with pytest.raises(DataError, match="the labels of arrays are float32: leave it out"):
            split = PixelSplit(images, LABELS.astype("float32"))
            own = dataclasses.replace(data(), train=split)
            train(TrainConfig(class_weights=numbers), dataset=own)
    assert not list(empty_cwd.iterdir())


@pytest.mark.parametrize(
    "weights, words",
    [
        ([1, 2], r"weights has the shape \(2,\), but there are 31 images"),
        (OF_IMAGES[:, None], r"shape \(31, 1\), but there are 31"),
        ([-1] + [1] * 30, r"weights\[0\] is -1: give finite numbers from 0 up"),
        ([1] * 30 + [float("nan")], r"weights\[30\] is nan"),
        ([0] * 31, "0 for every image, so the network would learn nothing"),
        (["a"] * 31, "not numbers"),
    ],
)
def test_impossible_weights_of_images_are_refused(weights, words):
    with pytest.raises(DataError, match=words):
        data(weights)
