"""Networks with BatchNorm train as in Gluon; running statistics are averaged over devices."""

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
    arrays_equal,
    parameter_arrays,
    random_batches,
    relative_distance,
    set_parameter_arrays,
    shard_batch,
    train_on_devices,
    train_on_one_device,
)
from support.steps import SHAPE, make_step, train_steps

from gluonlab.config import TrainConfig
from gluonlab.data import ArraySplit, Dataset, Defaults
from gluonlab.data.loading.augmentation import to_float
from gluonlab.models import get_model
from gluonlab.parallel.data.running_statistics import RunningStatistics
from gluonlab.runs.run_schema import PARAMETERS
from gluonlab.training import loop
from gluonlab.training.reporter import Reporter

NO_GPU_WARNING = pytest.mark.filterwarnings("ignore:no GPU on this machine:gluonlab.errors.GluonlabWarning")
RECIPE = {"model": "resnet8", "lr": 0.05, "optimizer": "sgd"}


@pytest.fixture(scope="module")
def start():
    mx.random.seed(1)
    return parameter_arrays(make_initialized_net("resnet8", SHAPE))


def resnet8(ctxs, start):
    net = make_initialized_net("resnet8", SHAPE, ctxs=ctxs)
    set_parameter_arrays(net, start)
    return net


def skip_cudnn_variances(net, arrays):
    """The arrays without the running variances of GPUs, which a step corrects and Gluon does not."""
    named = zip(net.collect_params(), arrays)
    return [array for name, array in named if not (runs_on_gpus() and name.endswith("running_var"))]


def resnet8_not_hybridized(ctxs, start):
    net = resnet8(ctxs, start)
    net.hybridize(False)
    return net


def test_one_device_trains_resnet8_as_gluon_does(start):
    batches = random_batches([16, 9, 16], shape=SHAPE)
    reference, ctxs = resnet8_not_hybridized(contexts(1), start), devices(1, threads=1)
    expected = train_on_one_device(reference, batches, "sgd", learning_rate=0.05, momentum=0.9)
    net = resnet8(ctxs, start)
    train_steps(make_step(net, ctxs, learning_rate=0.05, momentum=0.9), batches, ctxs)
    result, expected = (skip_cudnn_variances(net, arrays) for arrays in (parameter_arrays(net), expected))
    assert relative_distance(result, expected) <= 1e-4


def test_several_devices_train_resnet8_as_gluon_does_on_as_many(start):
    """Each shard is normalized by its own statistics; the running ones are each device's own."""
    batches, ctxs = random_batches([16, 9, 16], shape=SHAPE), devices(2)
    reference, net = resnet8_not_hybridized(ctxs, start), resnet8(ctxs, start)
    trainer = gluon.Trainer(reference.collect_params(), "sgd", {"learning_rate": 0.05}, kvstore=mx.kv.create("device"))
    trainer._init_kvstore()
    # it sends device 0's statistics to all others, else after the first batch
    trainer._init_params()
    train_on_devices(reference, trainer, ctxs, batches)
    train_steps(make_step(net, ctxs, learning_rate=0.05), batches, ctxs)
    for ctx in ctxs:
        result, expected = (skip_cudnn_variances(net, parameter_arrays(each, ctx)) for each in (net, reference))
        assert relative_distance(result, expected) <= 1e-4
    assert relative_distance(parameter_arrays(net, ctxs[0]), parameter_arrays(net, ctxs[1])) > 0.01


def test_batchnorm_makes_another_update_on_two_devices_than_on_one(start):
    """The exception to "any number of devices makes the same update": a shard is not the batch."""
    results = []
    for ctxs in (devices(1, threads=1), devices(2)):
        net = resnet8(ctxs, start)
        train_steps(make_step(net, ctxs, learning_rate=0.05), random_batches([16], shape=SHAPE), ctxs)
        results.append(parameter_arrays(net, ctxs[0]))
    assert relative_distance(*results) > 0.01


@examples(6, 10)
@given(k=st.integers(1, 3), each=st.integers(2, 6), seed=st.integers(0, 1000))
def test_averaged_means_are_those_of_the_whole_batch_and_variances_not_larger(k, each, seed):
    """With shards of equal size, the variance lacks only the variance of the shards' means."""
    ctxs = devices(k, threads=1)
    momentum = 0.5
    ((images, labels),) = random_batches([k * each], seed, shape=(2, 3, 3), classes=4)
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


def make_running_means(means):
    """RunningStatistics of a BatchNorm of one channel, and functions that set and read its means."""
    ctxs, net = contexts(len(means)), nn.BatchNorm(in_channels=1)
    net.initialize(ctx=ctxs)
    statistics = RunningStatistics(net)

    def set_means(means):
        for ctx, mean in zip(ctxs, means):
            net.running_mean.data(ctx)[:] = mean

    def average_after_batches(*batches):
        for sizes in batches:
            statistics.record_batch([nd.zeros((size, 1), ctx=ctx) for size, ctx in zip(sizes, ctxs)])
        statistics.average()
        return [net.running_mean.data(ctx).asscalar() for ctx in ctxs]

    set_means(means)
    return set_means, average_after_batches


def test_the_average_is_weighted_by_the_images_that_a_device_saw_since_the_last_average():
    """A device that was idle gets the average, and has no part in it."""
    set_means, average_after_batches = make_running_means([1, 4, 16])
    for batches in ([(3, 2), (3,), (1,)], []):
        assert average_after_batches(*batches) == pytest.approx([(7 * 1 + 2 * 4) / 9] * 3)
    set_means([0, 1, 16])
    assert average_after_batches((1, 3)) == [0.75] * 3


@NO_GPU_WARNING
def test_devices_that_never_get_an_image_change_nothing(tmp_path, few_stripes):
    """Batches of two images leave one of three devices, and two of four, without any."""
    results = []
    for k in (2, 3, 4):
        config = TrainConfig(gpus=k, epochs=1, global_batch_size=2, threads=1, **RECIPE, out=str(tmp_path / str(k)))
        results.append(parameter_arrays(loop.train(config, reporter=Reporter()).net))
    assert all(relative_distance(result, results[0]) < 1e-4 for result in results[1:])


def stripes(count, seed):
    """Three classes of images that differ in where they are bright."""
    random = np.random.RandomState(seed)
    labels = random.randint(0, 3, count)
    images = random.randint(0, 150, (count, *SHAPE))
    for image, label in zip(images, labels):
        image[:, 4 * label : 4 * label + 4] += 100
    return ArraySplit(images.astype(np.uint8), labels.astype(np.int32))


def use_stripes(monkeypatch, train_size, test_size):
    splits, defaults = (stripes(train_size, 0), stripes(test_size, 1)), Defaults(model="resnet8", lr=0.05)
    dataset = Dataset("stripes", *splits, ("a", "b", "c"), defaults)
    monkeypatch.setattr("gluonlab.training.plan.load_dataset", lambda name, root: dataset)
    return dataset


@pytest.fixture
def striped(monkeypatch):
    return use_stripes(monkeypatch, 120, 50)


@pytest.fixture
def few_stripes(monkeypatch):
    return use_stripes(monkeypatch, 20, 10)


@NO_GPU_WARNING
@pytest.mark.parametrize("k", [1, 2, 3])
def test_all_devices_evaluate_like_one_that_reads_the_saved_parameters(tmp_path, striped, k):
    """Like plain Gluon on one device."""
    config = TrainConfig(gpus=k, epochs=1, global_batch_size=25, threads=1, **RECIPE, out=str(tmp_path / "run"))
    result = loop.train(config, reporter=Reporter())
    net = get_model("resnet8", 3)
    net.load_parameters(str(tmp_path / "run" / PARAMETERS), ctx=mx.cpu(0))
    images, labels = striped.test.batch(np.arange(50))
    scores = net(to_float(nd, nd.array(images, dtype="uint8")))
    loss = gluon.loss.SoftmaxCrossEntropyLoss()(scores, nd.array(labels)).mean().asscalar()
    assert result.val_accuracy == (scores.asnumpy().argmax(axis=1) == labels).mean()
    assert result.history[-1].val_loss == pytest.approx(loss, rel=1e-4)
    for ctx in result.plan.ctxs:  # what was saved is what every replica has, to the bit
        assert arrays_equal(parameter_arrays(result.net, ctx), parameter_arrays(net))


@NO_GPU_WARNING
def test_resnet8_learns_in_a_few_steps(tmp_path, striped):
    config = TrainConfig(gpus=2, epochs=8, batch_size=10, **RECIPE, out=str(tmp_path / "run"))
    result = loop.train(config, reporter=Reporter())
    assert result.history[-1].loss < result.history[0].loss / 3
    assert result.val_accuracy > 0.9


def test_dropout_is_off_in_evaluation():
    ctxs = devices(2)
    net = nn.HybridSequential()
    net.add(nn.Dense(50, activation="relu", in_units=12), nn.Dropout(0.5), nn.Dense(4, in_units=50))
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    ((images, labels),) = random_batches([10], shape=(1, 3, 4), classes=4)
    step = make_step(net, ctxs, learning_rate=1e-30)
    batch, trained, evaluated = shard_batch((images, labels), ctxs), [], []
    for _ in range(2):
        trained.append([loss.asscalar() for loss in step(batch)])
        evaluated.append([part.scores.asnumpy() for part in step.score(batch)])
    assert trained[0] != trained[1]
    assert arrays_equal(*evaluated)
    assert relative_distance(evaluated[0], [net(x).asnumpy() for x in batch.xs]) <= 1e-5


def test_gluons_own_loop_keeps_the_statistics_of_a_network_that_get_model_has_compiled(start):
    """Compiled with static_shape, it would lose updates of them in most of these runs."""
    batches, ctxs, results = random_batches([16, 9, 16], shape=SHAPE), devices(1, threads=1), []
    for net in (resnet8_not_hybridized(ctxs, start), *(resnet8(ctxs, start) for _ in range(3))):
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05}, kvstore=mx.kv.create("device"))
        train_on_devices(net, trainer, ctxs, batches)
        results.append(parameter_arrays(net))
    assert all(relative_distance(result, results[0]) <= 1e-4 for result in results[1:])
