"""Training by hand: the network is Gluon's, and k devices do what one does."""

import math
from functools import lru_cache

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import autograd, gluon, nd
from mxnet.gluon.data import ArrayDataset, DataLoader
from support.covering import pairwise
from support.devices import contexts, device, devices
from support.examples import examples
from support.reference import (
    arrays_equal,
    random_batches,
    relative_distance,
    set_parameter_arrays,
    textbook_lenet,
    to_gluon_layout,
    train_on_one_device,
)

from gluonlab.collectives.schedule_executor import make_allreduce
from gluonlab.data import ArraySplit, Dataset, Defaults, load_dataset
from gluonlab.errors import ConfigError, DataError, DivergedError, ModelError
from gluonlab.models import get_model
from gluonlab.scratch.data_parallel import allreduce, get_params, split_batch, train_batch
from gluonlab.scratch.lenet import SHAPES, cross_entropy, init_params, lenet
from gluonlab.scratch.loop import LOSS_DELAY, accuracy, train, train_epoch
from gluonlab.scratch.recipes import chapter_deviation, he_deviation, recipe_for

TOLERANCE = 1e-5  # relative, after 5 steps: only the order of summation differs
SIZES = {"even": (12,) * 5, "ragged": (7,) * 5, "tiny": (12, 1, 7, 2, 12)}


@lru_cache(maxsize=None)
def trained_by_gluon(sizes, lr):
    net = textbook_lenet(pool="avg")
    set_parameter_arrays(net, to_gluon_layout(init_params(seed=1)))
    return train_on_one_device(net, random_batches(sizes), "sgd", learning_rate=lr)


def replicas_on(ctxs, **kwargs):
    return [get_params(init_params(**kwargs), ctx) for ctx in ctxs]


def same_bits(a, b):
    return arrays_equal([x.asnumpy() for x in a], [y.asnumpy() for y in b])


def test_lenet_is_gluons_with_average_pooling():
    """Scores, losses and gradients, with the same weights."""
    net, (ctx,) = get_model("lenet-avg", 10), contexts(1)
    net.initialize(ctx=ctx)
    net(nd.zeros((1, 1, 28, 28), ctx))
    ((params, grads),) = replicas_on([ctx], seed=4)
    set_parameter_arrays(net, to_gluon_layout(params))
    ((images, labels),) = random_batches([9], seed=1)
    x, y = nd.array(images, ctx), nd.array(labels, ctx, "int32")
    with autograd.record():
        scores, expected = lenet(x, params), net(x)
        losses, expected_losses = cross_entropy(scores, y), gluon.loss.SoftmaxCrossEntropyLoss()(expected, y)
    autograd.backward([losses, expected_losses])
    assert losses.shape == (9,)
    pairs = (scores, expected), (losses, expected_losses)
    assert all(relative_distance([one.asnumpy()], [other.asnumpy()]) <= TOLERANCE for one, other in pairs)
    gradients = [param.grad(ctx).asnumpy() for param in net.collect_params().values()]
    assert relative_distance(to_gluon_layout(grads), gradients) <= TOLERANCE


@pytest.mark.parametrize(
    ("spread", "variance"),
    [(he_deviation, {9: 2 / 9, 500: 2 / 500, 800: 2 / 800, 128: 2 / 128}), (chapter_deviation, None)],
)
def test_weights_are_as_spread_as_the_initialization_says_and_biases_zero(spread, variance):
    params = init_params(spread, seed=2)
    assert [param.shape for param in params] == list(SHAPES)
    for weights, fan_in in zip(params[::2], (9, 500, 800, 128)):
        values = weights.asnumpy()
        expected = variance[fan_in] if variance else 0.01**2
        # six standard errors
        assert values.var() == pytest.approx(expected, rel=6 * math.sqrt(2 / values.size))
        assert abs(values.mean()) <= 6 * math.sqrt(expected / values.size)
    assert all(not bias.asnumpy().any() for bias in params[1::2])
    assert same_bits(params, init_params(spread, seed=2))
    assert not same_bits(params, init_params(spread, seed=3))


@examples(15, 30)
@given(st.data())
def test_allreduce_leaves_the_sum_on_every_device(data):
    ctxs = devices(data.draw(st.integers(1, 4), "devices"), threads=1)
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple), "shape")
    dtype = data.draw(st.sampled_from(["float32", "float64", "float16", "int32"]), "dtype")
    random = np.random.RandomState(data.draw(st.integers(0, 99), "seed"))
    # whole numbers: every order of summation gives the same
    parts = [random.randint(-99, 99, shape) for _ in ctxs]
    arrays = [nd.array(part, ctx=ctx, dtype=dtype) for part, ctx in zip(parts, ctxs)]
    allreduce(arrays)
    for array, ctx in zip(arrays, ctxs):
        assert (array.context, array.dtype) == (ctx, np.dtype(dtype))
        assert np.array_equal(array.asnumpy(), sum(parts))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 12])
def test_split_batch_deals_out_every_image_with_its_label(size):
    ctxs = devices(3)
    ((images, labels),) = random_batches([size])
    xs, ys = split_batch(nd.array(images), nd.array(labels, dtype="int32"), ctxs)
    assert [x.context for x in xs] == [y.context for y in ys] == ctxs[:size]
    assert [len(x) for x in xs] == [len(y) for y in ys]
    assert max(map(len, xs)) - min(map(len, xs)) <= 1
    assert np.array_equal(np.concatenate([x.asnumpy() for x in xs]), images)
    assert np.array_equal(np.concatenate([y.asnumpy() for y in ys]), labels)


def test_a_batch_with_labels_missing_is_refused():
    with pytest.raises(DataError, match="got 5 images but 4 labels"):
        split_batch(nd.zeros((5, 2)), nd.zeros((4,)), contexts(2))


def test_get_params_copies_and_begins_without_gradient():
    params = init_params()
    replica = get_params(params, device())
    assert same_bits(params, replica.params)
    assert [grad.shape for grad in replica.grads] == list(SHAPES)
    assert all(not grad.asnumpy().any() for grad in replica.grads)
    replica.params[0][:] = 0
    assert params[0].asnumpy().any()


@pairwise(k=[1, 2, 3], sizes=list(SIZES), name=["star", "ring"])
def test_k_devices_make_gluons_update_on_one(k, name, sizes):
    sizes = SIZES[sizes]
    ctxs = devices(k, threads=1)
    replicas = replicas_on(ctxs, seed=1)
    sum_up = allreduce if name == "star" else make_allreduce(name, ctxs)
    for images, labels in random_batches(sizes):
        train_batch(nd.array(images), nd.array(labels, dtype="int32"), replicas, 0.1, sum_up)
    for replica in replicas:
        assert relative_distance(to_gluon_layout(replica.params), trained_by_gluon(sizes, 0.1)) <= TOLERANCE
        assert same_bits(replica.params, replicas[0].params)


def test_an_allreduce_is_given_the_same_arrays_in_every_batch():
    """So that one that prepares itself for its arrays does it once."""
    replicas, seen = replicas_on(devices(2)), []
    for images, labels in random_batches([4, 1]):
        train_batch(nd.array(images), nd.array(labels, dtype="int32"), replicas, 0.1, seen.append)
    assert [[grad.context for grad in grads] for grads in seen] == [devices(2)] * 16
    assert [grads[0].shape for grads in seen] == [grads[1].shape for grads in seen] == 2 * list(SHAPES)
    assert all(a is b for first, second in zip(seen[:8], seen[8:]) for a, b in zip(first, second))


@pytest.mark.parametrize("name", ["star", "ring"])
def test_a_batch_waits_for_nothing(name, monkeypatch):
    ctxs = devices(2)
    replicas = replicas_on(ctxs)
    ((images, labels),) = random_batches([5])
    x, y = nd.array(images), nd.array(labels, dtype="int32")
    sum_up = allreduce if name == "star" else make_allreduce(name, ctxs)
    train_batch(x, y, replicas, 0.1, sum_up)  # makes what is made once

    def wait(*args):
        raise AssertionError("the host waits for the devices")

    for owner, name in ((nd.NDArray, "asnumpy"), (nd.NDArray, "wait_to_read"), (nd, "waitall")):
        monkeypatch.setattr(owner, name, wait)
    losses = train_batch(x, y, replicas, 0.1, sum_up)
    monkeypatch.undo()
    assert [loss.context for loss in losses] == ctxs


def dataset(train_split, test_split, classes=10):
    return Dataset("some", train_split, test_split, tuple(map(str, range(classes))), Defaults())


def some_digits(train_images, test_images):
    digits = load_dataset("digits")
    splits = (digits.train, train_images), (digits.test, test_images)
    return dataset(*(ArraySplit(split.images[:count], split.labels[:count]) for split, count in splits))


def test_training_learns_the_digits_and_accuracy_counts_every_test_image_once():
    digits, reported = some_digits(400, 100), []
    trained = train(digits, init_params(), devices(2), 16, 0.1, 3, report=reported.append)
    assert [epoch.epoch for epoch in trained.epochs] == [1, 2, 3]
    assert reported == trained.epochs
    assert trained.epochs[-1].loss < trained.epochs[0].loss / 2
    assert trained.val_accuracy >= 0.5  # guessing: 0.1
    second = [param.as_in_context(mx.cpu(0)) for param in trained.replicas[1].params]
    scores = lenet(nd.array(digits.test.images / np.float32(255)), second).asnumpy()
    right = (scores.argmax(axis=1) == digits.test.labels).sum()
    assert trained.val_accuracy == right / 100
    for global_batch_size in (7, 1000):
        assert accuracy(digits.test, trained.replicas, global_batch_size) == right / 100


def test_the_loss_of_an_epoch_is_the_mean_over_its_images():
    """Also of batches of different sizes, and more than are read late. The rate changes nothing."""
    sizes = [1 + i % 5 for i in range(2 * LOSS_DELAY + 3)]
    batches = random_batches(sizes)
    replicas = replicas_on(devices(3))
    result = train_epoch([(nd.array(x), nd.array(y, dtype="int32")) for x, y in batches], replicas, 1e-30)
    scores = lenet(nd.array(np.concatenate([x for x, _ in batches])), init_params()).asnumpy().astype("float64")
    labels = np.concatenate([y for _, y in batches])
    expected = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(labels)), labels]
    assert result == pytest.approx(expected.mean(), rel=1e-5)


def test_same_seed_same_bits():
    few = some_digits(50, 10)

    def run(seed):
        return train(few, init_params(), devices(2), 16, 0.1, 2, seed, report=lambda epoch: None)

    one, same, other = run(5), run(5), run(6)
    assert all(same_bits(replica.params, one.replicas[0].params) for replica in (*one.replicas, *same.replicas))
    assert [epoch.loss for epoch in one.epochs] == [epoch.loss for epoch in same.epochs]
    assert not same_bits(other.replicas[0].params, one.replicas[0].params)  # another order of the images


def test_a_loss_that_is_no_number_ends_the_training():
    with pytest.raises(DivergedError, match="loss became nan: use a smaller learning rate"):
        train(some_digits(50, 10), init_params(), devices(2), 16, 1e20)


def test_impossible_numbers_and_images_that_do_not_fit_are_refused():
    for name, value in (("global_batch_size", 0), ("lr", math.nan), ("epochs", 0)):
        with pytest.raises(ConfigError, match=name):
            train(some_digits(5, 5), init_params(), contexts(1), **{name: value})
    large = ArraySplit(np.zeros((5, 3, 32, 32), np.uint8), np.zeros(5, np.int32))
    with pytest.raises(ModelError, match=r"3x32x32 in 10 classes.*needs images of shape 1x28x28 in 10"):
        train(dataset(large, large), init_params(), contexts(1))
    small = some_digits(5, 5)
    with pytest.raises(ModelError, match="11 classes"):
        train(dataset(small.train, small.test, classes=11), init_params(), contexts(1))
    for other, message in ((small.train, "dataset is a split"), (None, "dataset is a NoneType")):
        with pytest.raises(DataError, match=message):
            train(other, init_params(), contexts(1))


def test_data_sets_of_gluon_train_as_their_arrays():
    few = some_digits(30, 10)
    images, labels = few.train.batch(np.arange(30))
    gluon_sets = [ArrayDataset(images, labels), DataLoader(ArrayDataset(images, labels), 8)]
    result, expected = (
        train(data, init_params(), contexts(1), 16, epochs=1, report=lambda epoch: None)
        for data in (gluon_sets, dataset(few.train, few.train))
    )
    assert result.epochs[0].loss == expected.epochs[0].loss
    assert same_bits(result.replicas[0].params, expected.replicas[0].params)


def test_recipes_keep_the_chapters_numbers():
    assert recipe_for("fashion-mnist") == ("chapter", 10, 256, 0.2)
    assert recipe_for("digits")[2:] == recipe_for("mnist")[2:] == (256, 0.2)
