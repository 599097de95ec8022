"""Networks with BatchNorm: trained as Gluon trains them, with one set of running statistics for all
devices.
"""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import gluon, nd
from mxnet.gluon import nn
from support.completed import make_initialized_net
from support.devices import contexts, devices, runs_on_gpus
from support.examples import examples
from support.reference import (
    parameter_arrays,
    random_batches,
    relative_distance,
    set_parameter_arrays,
    train_on_devices,
    train_on_one_device,
)
from support.steps import SHAPE, make_step, train_steps

from gluonlab.config import TrainConfig
from gluonlab.data import ArraySplit, Dataset, Defaults
from gluonlab.data.loading.augmentation import to_float
from gluonlab.data.loading.split_batch import make_local_batch
from gluonlab.models import get_model
from gluonlab.parallel.data.running_statistics import RunningStatistics
from gluonlab.runs.run_schema import PARAMETERS
from gluonlab.training import loop
from gluonlab.training.reporter import Reporter

RECIPE = {"model": "resnet8", "lr": 0.05, "optimizer": "sgd"}


@pytest.fixture(scope="module")
def start():
    mx.random.seed(1)
    return parameter_arrays(make_initialized_net("resnet8", SHAPE))


def resnet8(ctxs, start):
    net = make_initialized_net("resnet8", SHAPE, ctxs=ctxs)
    set_parameter_arrays(net, start)
    return net


def as_in_gluon(net, arrays):
    """Of the parameters what Gluon's loop has alike: on GPUs all but running variances.

    A step brings cuDNN's back to what they are on CPUs (tests/gpus/test_running_variance.py).
    """
    named = zip(net.collect_params(), arrays)
    return [array for name, array in named if not (runs_on_gpus() and name.endswith("running_var"))]


def by_gluon(ctxs, start):
    """The network for Gluon's own loop, not hybridized."""
    net = resnet8(ctxs, start)
    net.hybridize(False)
    return net


def test_one_device_trains_resnet8_as_gluon_does(start):
    """Parameters and running statistics alike."""
    batches = random_batches([16, 9, 16], shape=SHAPE)
    expected = train_on_one_device(by_gluon(contexts(1), start), batches, "sgd", learning_rate=0.05, momentum=0.9)
    ctxs = devices(1, threads=1)
    net = resnet8(ctxs, start)
    train_steps(make_step(net, ctxs, learning_rate=0.05, momentum=0.9), batches, ctxs)
    assert relative_distance(as_in_gluon(net, parameter_arrays(net)), as_in_gluon(net, expected)) <= 1e-4


def test_several_devices_train_resnet8_as_gluon_does_on_as_many(start):
    """Each shard is normalised by its own statistics, in Gluon and here; the running ones are each
    device's own.
    """
    batches, ctxs = random_batches([16, 9, 16], shape=SHAPE), devices(2)
    reference, net = by_gluon(ctxs, start), resnet8(ctxs, start)
    trainer = gluon.Trainer(reference.collect_params(), "sgd", {"learning_rate": 0.05}, kvstore=mx.kv.create("device"))
    trainer._init_kvstore()
    # it sends device 0's statistics to all others, else after the first batch
    trainer._init_params()
    train_on_devices(reference, trainer, ctxs, batches)
    train_steps(make_step(net, ctxs, learning_rate=0.05), batches, ctxs)
    for ctx in ctxs:
        own, gluons = (as_in_gluon(net, parameter_arrays(each, ctx)) for each in (net, reference))
        assert relative_distance(own, gluons) <= 1e-4
    assert relative_distance(parameter_arrays(net, ctxs[0]), parameter_arrays(net, ctxs[1])) > 0.01


def test_batchnorm_makes_another_update_on_two_devices_than_on_one(start):
    """The exception to "any number of devices makes the same update", by nature: a shard is not the
    batch.
    """
    batches, found = random_batches([16], shape=SHAPE), []
    for ctxs in (devices(1, threads=1), devices(2)):
        net = resnet8(ctxs, start)
        train_steps(make_step(net, ctxs, learning_rate=0.05), batches, ctxs)
        found.append(parameter_arrays(net, ctxs[0]))
    assert relative_distance(*found) > 0.01


@examples(6, 10)
@given(k=st.integers(1, 3), each=st.integers(2, 6), seed=st.integers(0, 1000))
def test_averaged_means_are_those_of_the_whole_batch_and_variances_not_larger(k, each, seed):
    """With shards of equal size: of the variance, what the shards' means differ by is missing, and
    nothing else.
    """
    ctxs = devices(k, threads=1)
    momentum, ((images, labels),) = (0.5, random_batches([k * each], seed, shape=(2, 3, 3), classes=4))
    net = nn.HybridSequential()
    net.add(nn.BatchNorm(momentum=momentum, in_channels=2), nn.Dense(4, in_units=18))
    net.initialize(ctx=ctxs)
    statistics = RunningStatistics(net)
    statistics.record_batch([nd.array(images[:each], ctx=ctx) for ctx in ctxs])
    train_steps(make_step(net, ctxs, learning_rate=0.1), [(images, labels)], ctxs)
    statistics.average()
    shards = images.astype("float64").reshape(k, each, 2, 9).transpose(0, 2, 1, 3).reshape(k, 2, -1)
    between = shards.mean(axis=2).var(axis=0)
    for ctx in ctxs:
        mean, variance = (param.data(ctx).asnumpy() for param in (net[0].running_mean, net[0].running_var))
        assert mean == pytest.approx((1 - momentum) * images.mean(axis=(0, 2, 3)), rel=1e-4, abs=1e-6)
        assert variance == pytest.approx(momentum + (1 - momentum) * (images.var(axis=(0, 2, 3)) - between), rel=1e-4)


def test_averaging_leaves_other_arrays_unchanged():
    net = nn.HybridSequential()
    net.add(nn.Dense(3, in_units=2), nn.BatchNorm(in_channels=3))
    net.initialize(ctx=contexts(2))
    net[0].weight.grad_req = "null"  # frozen, and different on purpose
    for device, ctx in enumerate(contexts(2)):
        net[0].weight.data(ctx)[:] = device
        net[1].running_mean.data(ctx)[:] = device
    statistics = RunningStatistics(net)
    statistics.record_batch([nd.zeros((1, 2), ctx=ctx) for ctx in contexts(2)])
    statistics.average()
    for device, ctx in enumerate(contexts(2)):
        assert (net[0].weight.data(ctx).asnumpy() == device).all()
        assert (net[1].running_mean.data(ctx).asnumpy() == 0.5).all()


def test_the_average_is_weighted_by_the_images_that_a_device_saw():
    """In all batches since the last average; a device that was idle in all of them gets the
    average, and has no part in it.
    """
    net = nn.BatchNorm(in_channels=1)
    net.initialize(ctx=contexts(3))
    for device, ctx in enumerate(contexts(3)):
        net.running_mean.data(ctx)[:] = 4.0**device
    statistics = RunningStatistics(net)
    for sizes in ((3, 2), (3,), (1,)):
        statistics.record_batch([nd.zeros((size, 1), ctx=ctx) for size, ctx in zip(sizes, contexts(3))])
    statistics.average()
    assert [net.running_mean.data(ctx).asscalar() for ctx in contexts(3)] == pytest.approx([(7 * 1 + 2 * 4) / 9] * 3)
    statistics.average()  # of nothing
    assert [net.running_mean.data(ctx).asscalar() for ctx in contexts(3)] == pytest.approx([(7 * 1 + 2 * 4) / 9] * 3)


@pytest.mark.filterwarnings("ignore:no GPU on this machine:gluonlab.errors.GluonlabWarning")
def test_devices_that_never_get_an_image_change_nothing(tmp_path, few_stripes):
    """Batches of two images leave one of three devices, and two of four, without any."""
    found = []
    for k in (2, 3, 4):
        config = TrainConfig(gpus=k, epochs=1, global_batch_size=2, threads=1, **RECIPE, out=str(tmp_path / str(k)))
        found.append(parameter_arrays(loop.train(config, reporter=Reporter()).net))
    assert max(relative_distance(one, found[0]) for one in found[1:]) < 1e-4


def stripes(count, seed):
    """Three classes of images that differ in where they are bright, so that a few steps teach
    them.
    """
    random = np.random.RandomState(seed)
    labels = random.randint(0, 3, count)
    images = random.randint(0, 150, (count, *SHAPE))
    for image, label in zip(images, labels):
        image[:, 4 * label : 4 * label + 4] += 100
    return ArraySplit(images.astype(np.uint8), labels.astype(np.int32))


def use_stripes(monkeypatch, train, test):
    """Runs get so many images to train and to test with."""
    dataset = Dataset(
        "stripes", stripes(train, 0), stripes(test, 1), ("a", "b", "c"), Defaults(model="resnet8", lr=0.05)
    )
    monkeypatch.setattr("gluonlab.training.plan.load_dataset", lambda name, root: dataset)
    return dataset


@pytest.fixture
def striped(monkeypatch):
    return use_stripes(monkeypatch, 120, 50)


@pytest.fixture
def few_stripes(monkeypatch):
    return use_stripes(monkeypatch, 20, 10)


@pytest.mark.filterwarnings("ignore:no GPU on this machine:gluonlab.errors.GluonlabWarning")
@pytest.mark.parametrize("k", [1, 2, 3])
def test_all_devices_evaluate_like_one_that_reads_the_saved_parameters(tmp_path, striped, k):
    """The accuracy and loss of the last epoch are those of plain Gluon on one device, from the
    file.
    """
    config = TrainConfig(gpus=k, epochs=1, global_batch_size=25, threads=1, **RECIPE, out=str(tmp_path / "run"))
    result = loop.train(config, reporter=Reporter())
    net = get_model("resnet8", 3)
    net.load_parameters(str(tmp_path / "run" / PARAMETERS), ctx=mx.cpu(0))
    images, labels = striped.test.batch(np.arange(50))
    scores = net(to_float(nd, nd.array(images, dtype="uint8")))
    loss = gluon.loss.SoftmaxCrossEntropyLoss()(scores, nd.array(labels)).mean().asscalar()
    assert result.accuracy == (scores.asnumpy().argmax(axis=1) == labels).mean()
    assert result.history[-1].validation_loss == pytest.approx(loss, rel=1e-4)
    for ctx in result.plan.ctxs:  # what was saved is what every replica has, to the bit
        assert all(np.array_equal(a, b) for a, b in zip(parameter_arrays(result.net, ctx), parameter_arrays(net)))


@pytest.mark.filterwarnings("ignore:no GPU on this machine:gluonlab.errors.GluonlabWarning")
def test_resnet8_learns_in_a_few_steps(tmp_path, striped):
    result = loop.train(
        TrainConfig(gpus=2, epochs=8, batch_size=10, **RECIPE, out=str(tmp_path / "run")), reporter=Reporter()
    )
    first, last = result.history[0].loss, result.history[-1].loss
    assert last < first / 3
    assert result.accuracy > 0.9


def test_dropout_is_off_in_evaluation():
    """Two evaluations agree to the bit, two training steps do not."""
    ctxs = devices(2)
    net = nn.HybridSequential()
    net.add(nn.Dense(50, activation="relu", in_units=12), nn.Dropout(0.5), nn.Dense(4, in_units=50))
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    ((images, labels),) = random_batches([10], shape=(1, 3, 4), classes=4)
    step = make_step(net, ctxs, learning_rate=1e-30)
    xs, ys = ([nd.array(part, ctx=ctx) for part, ctx in zip(np.split(whole, 2), ctxs)] for whole in (images, labels))
    trained, evaluated = [], []
    for _ in range(2):
        trained.append([loss.asscalar() for loss in step(make_local_batch(xs, ys))])
        evaluated.append([part.scores.asnumpy() for part in step.score(make_local_batch(xs, ys))])
    assert trained[0] != trained[1]
    assert all(np.array_equal(a, b) for a, b in zip(*evaluated))
    assert relative_distance(evaluated[0], [net(x).asnumpy() for x in xs]) <= 1e-5


def test_gluons_own_loop_keeps_the_statistics_of_a_network_that_get_model_has_compiled(start):
    """Compiled with static_shape, as networks without statistics are, it would lose updates of them
    in most of these runs.
    """
    batches, ctxs, found = random_batches([16, 9, 16], shape=SHAPE), devices(1, threads=1), []
    for net in (by_gluon(ctxs, start), *(resnet8(ctxs, start) for _ in range(3))):
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05}, kvstore=mx.kv.create("device"))
        train_on_devices(net, trainer, ctxs, batches)
        found.append(parameter_arrays(net))
    assert [relative_distance(one, found[0]) <= 1e-4 for one in found[1:]] == [True] * 3


def test_each_image_counts_in_only_one_average():
    """What a device saw before the last average says nothing of what its statistics have become
    since.
    """
    net = nn.BatchNorm(in_channels=1)
    net.initialize(ctx=contexts(2))
    statistics = RunningStatistics(net)
    statistics.record_batch([nd.zeros((size, 1), ctx=ctx) for size, ctx in zip((9, 1), contexts(2))])
    statistics.average()
    for device, ctx in enumerate(contexts(2)):
        net.running_mean.data(ctx)[:] = device
    statistics.record_batch([nd.zeros((size, 1), ctx=ctx) for size, ctx in zip((1, 3), contexts(2))])
    statistics.average()
    assert [net.running_mean.data(ctx).asscalar() for ctx in contexts(2)] == [0.75, 0.75]
