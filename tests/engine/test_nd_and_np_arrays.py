"""After npx.set_np() the pieces take and give mx.np arrays, and a run is what it is without."""

from functools import lru_cache

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
from support.devices import contexts, device, device_spec
from support.drawn_runs import load_few_digits
from support.reference import arrays_equal, cpu_contexts, parameter_arrays, relative_distance
from support.stores import STORE_CASES

from gluonlab.config import TrainConfig
from gluonlab.data import Loader
from gluonlab.data.loading.augmentation import Augment, Mixup
from gluonlab.errors import ModelError
from gluonlab.kvstores import make_kvstore
from gluonlab.models import get_model
from gluonlab.scratch.lenet import init_params
from gluonlab.scratch.loop import train as train_by_hand
from gluonlab.training.evaluate_run import evaluate_run
from gluonlab.training.loop import train


@pytest.fixture
def set_np():
    mx.npx.set_np()
    yield
    mx.npx.reset_np()


def as_set():
    return mx.util.is_np_array(), mx.util.is_np_shape()


@pytest.mark.parametrize("resident_bytes", [0, 2**30])
@pytest.mark.parametrize("how", ["plain", "augmented and mixed", "raw"])
def test_a_loader_gives_the_same_batches_as_np_arrays(resident_bytes, how, set_np):
    split = load_few_digits().test
    changes = {"augmented and mixed": {"augment": Augment(2, True), "mixup": Mixup(0.3)}, "raw": {"raw": True}}.get(
        how, {}
    )

    def batches():
        return list(Loader(split, contexts(3), 33, seed=2, resident_bytes=resident_bytes, **changes))

    found = batches()
    with mx.util.np_array(False), mx.util.np_shape(False):
        expected = batches()
    kinds = {type(array) for xs, ys in found for array in (*xs, *ys)}
    assert kinds == {mx.np.ndarray}
    assert {type(array) for xs, ys in expected for array in (*xs, *ys)} == {nd.NDArray}
    for (xs, ys), (others, theirs) in zip(found, expected):
        assert all(np.array_equal(a.asnumpy(), b.asnumpy()) for a, b in zip((*xs, *ys), (*others, *theirs)))


@pytest.mark.parametrize(
    ("name", "shape"),
    [("lenet", (1, 28, 28)), ("lenet-avg", (1, 28, 28)), ("mlp", (1, 9, 9)), ("resnet8", (3, 16, 16))],
)
def test_networks_give_the_same_scores_and_gradients_for_np_arrays(name, shape):
    found, start = [], None
    images = np.random.RandomState(0).uniform(size=(5, *shape)).astype("float32")
    for active in (False, True):
        with mx.util.np_shape(active), mx.util.np_array(active):
            net = get_model(name, 7, contexts(1))
            net.initialize(mx.init.Xavier())
            kind = mx.np if active else nd
            # which makes the shapes known; MXNet's two kinds of arrays draw other numbers
            net(kind.array(images))
            start = start or parameter_arrays(net)
            for param, array in zip(net.collect_params().values(), start):
                param.set_data(kind.array(array))
            with autograd.record():
                scores = net(kind.array(images))
            scores.backward()
            assert isinstance(scores, mx.np.ndarray) == active
            grads = [
                param.list_grad()[0].asnumpy() for param in net.collect_params().values() if param.grad_req != "null"
            ]
            found.append([scores.asnumpy(), *grads])
    assert relative_distance(found[1], found[0]) < 1e-5


def test_networks_of_gluoncv_are_refused_in_one_line(set_np):
    for name in ("cifar_resnet20", "gluoncv:mobilenetv2_0.25"):
        with pytest.raises(ModelError, match=r"written for mx\.nd: use it before npx\.set_np\(\)"):
            get_model(name, 10)


@pytest.mark.parametrize("model", [pytest.param("lenet", marks=pytest.mark.long), "mlp"])
def test_a_run_and_its_network_are_what_they_are_without(model, empty_cwd):
    def result():
        return train(
            TrainConfig(devices=device_spec(2), model=model, epochs=1, kvstore="ring"), dataset=load_few_digits()
        )

    expected = result()
    mx.npx.set_np()
    try:
        found = result()
        assert as_set() == (True, True)
        images = np.random.RandomState(0).uniform(size=(4, 1, 28, 28)).astype("float32")
        with autograd.record():
            scores = found.net(mx.np.array(images, ctx=device()))
        scores.backward()
        assert type(scores) is mx.np.ndarray
        gradient = next(iter(found.net.collect_params().values())).list_grad()[0]
        assert type(gradient) is mx.np.ndarray
        assert float(abs(gradient).sum()) > 0
        # of all digits
        assert 0 < evaluate_run(str(found.run_dir), devices=device_spec(3)).score.accuracy < 1
        assert as_set() == (True, True)
        file = str(empty_cwd / "again")
        found.net.save_parameters(file)
        found.net.load_parameters(file)
    finally:
        mx.npx.reset_np()
    assert found.accuracy == expected.accuracy
    assert arrays_equal(parameter_arrays(found.net), parameter_arrays(expected.net))
    np.testing.assert_array_equal(scores.asnumpy(), expected.net(nd.array(images, ctx=device())).asnumpy())


def test_training_by_hand_is_what_it_is_without(set_np):
    data, params = load_few_digits(), init_params()

    def accuracy():
        return train_by_hand(data, params, contexts(2), epochs=1, report=lambda epoch: None).accuracy

    found = accuracy()
    with mx.util.np_array(False), mx.util.np_shape(False):
        assert accuracy() == found


# What d2l's two chapters on several GPUs do, in other words: a network of arrays with an allreduce
# of one's own, and gluon's.

BATCHES = [
    (np.random.RandomState(step).normal(size=(n, 1, 10, 10)).astype("float32"), np.arange(n, dtype="int32") % 4)
    for step, n in enumerate((8, 8, 6))
]


def by_hand(ctxs, store):
    """Parameters as plain arrays, gradients summed by a store, SGD in a line."""
    random, np_ = np.random.RandomState(0), mx.np
    start = [random.normal(scale=0.3, size=shape) for shape in ((3, 1, 3, 3), (3,), (48, 4), (4,))]
    replicas = [[np_.array(array, ctx=ctx, dtype="float32") for array in start] for ctx in ctxs]
    for replica in replicas:
        for array in replica:
            array.attach_grad()
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    for images, labels in BATCHES:
        xs, ys = (
            gluon.utils.split_and_load(np_.array(array, dtype=array.dtype), ctxs, even_split=False)
            for array in (images, labels)
        )
        with autograd.record():
            losses = []
            for x, y, (weight, bias, matrix, shift) in zip(xs, ys, replicas):
                seen = mx.npx.relu(mx.npx.convolution(x, weight, bias, kernel=(3, 3), num_filter=3))
                pooled = mx.npx.pooling(seen, pool_type="avg", kernel=(2, 2), stride=(2, 2))
                losses.append(loss(np_.dot(pooled.reshape(len(x), -1), matrix) + shift, y).sum())
        for each in losses:
            each.backward()
        for place in range(len(start)):
            grads = [replica[place].grad for replica in replicas]
            if store is not None:
                store.pushpull(place, grads)
            for replica, grad in zip(replicas, grads):
                replica[place][:] = replica[place] - 0.1 * grad / len(images)
    return [array.asnumpy() for array in replicas[-1]]


def by_gluon(ctxs, store, hybridize):
    mx.random.seed(2)
    net = nn.HybridSequential()
    net.add(nn.Conv2D(3, 3, activation="relu"), nn.AvgPool2D(2, 2), nn.Dense(4))
    net.initialize(mx.init.Normal(0.3), ctx=ctxs)
    net(mx.np.zeros((1, 1, 10, 10), ctx=ctxs[0]))
    if hybridize:
        net.hybridize(static_alloc=True, static_shape=True)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, kvstore=store)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    for images, labels in BATCHES:
        xs, ys = (
            gluon.utils.split_and_load(mx.np.array(array, dtype=array.dtype), ctxs, even_split=False)
            for array in (images, labels)
        )
        with autograd.record():
            losses = [loss(net(x), y) for x, y in zip(xs, ys)]
        for each in losses:
            each.backward()
        trainer.step(len(images))
    arrays = [param.data(ctxs[-1]) for param in net.collect_params().values()]
    assert {type(array) for array in arrays} == {mx.np.ndarray}
    return [array.asnumpy() for array in arrays]


@pytest.mark.parametrize("devices", [2, 3])
@pytest.mark.parametrize("name", STORE_CASES)
def test_the_chapters_on_several_devices_give_what_one_device_gives(name, devices, set_np):
    found = by_hand(contexts(devices), make_kvstore(name))
    assert relative_distance(found, by_hand_on_one_device()) < 1e-5
    for hybridize in (False, True):
        found = by_gluon(contexts(devices), make_kvstore(name), hybridize)
        assert relative_distance(found, by_gluon_on_one_device(hybridize)) < 1e-5


@lru_cache(maxsize=None)
def by_hand_on_one_device():
    return by_hand(contexts(1), None)


@lru_cache(maxsize=None)
def by_gluon_on_one_device(hybridize):
    return by_gluon(cpu_contexts(1), None, hybridize)
