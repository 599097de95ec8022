"""After npx.set_np() everything takes and returns mx.np arrays, and computes the same."""

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
from gluonlab.engine.nd_and_np_arrays import nd_semantics, np_semantics
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


def np_is_set():
    return mx.util.is_np_array() and mx.util.is_np_shape()


LOADER_OPTIONS = {"plain": {}, "augmented": {"augment": Augment(2, True), "mixup": Mixup(0.3)}, "raw": {"raw": True}}


@pytest.mark.parametrize("resident_bytes", [0, 2**30])
@pytest.mark.parametrize("options", LOADER_OPTIONS.values(), ids=LOADER_OPTIONS)
def test_a_loader_gives_the_same_batches_as_np_arrays(resident_bytes, options, set_np):
    split = load_few_digits().test

    def load_arrays():
        loader = Loader(split, contexts(3), 33, seed=2, resident_bytes=resident_bytes, **options)
        return [array for xs, ys in loader for array in (*xs, *ys)]

    result = load_arrays()
    with nd_semantics():
        expected = load_arrays()
    assert ({type(array) for array in result}, {type(array) for array in expected}) == ({mx.np.ndarray}, {nd.NDArray})
    assert arrays_equal([array.asnumpy() for array in result], [array.asnumpy() for array in expected])


@pytest.mark.parametrize(
    ("name", "shape"),
    [("lenet", (1, 28, 28)), ("lenet-avg", (1, 28, 28)), ("mlp", (1, 9, 9)), ("resnet8", (3, 16, 16))],
)
def test_networks_give_the_same_scores_and_gradients_for_np_arrays(name, shape):
    results, start = [], None
    images = np.random.RandomState(0).uniform(size=(5, *shape)).astype("float32")
    for semantics, kind in ((nd_semantics, nd), (np_semantics, mx.np)):
        with semantics():
            net = get_model(name, 7, contexts(1))
            net.initialize(mx.init.Xavier())
            net(kind.array(images))  # makes the shapes known; mx.nd and mx.np draw other numbers
            start = start or parameter_arrays(net)
            for param, array in zip(net.collect_params().values(), start):
                param.set_data(kind.array(array))
            with autograd.record():
                scores = net(kind.array(images))
            scores.backward()
            assert isinstance(scores, mx.np.ndarray) == (kind is mx.np)
            trained = [param for param in net.collect_params().values() if param.grad_req != "null"]
            results.append([scores.asnumpy(), *(param.list_grad()[0].asnumpy() for param in trained)])
    assert relative_distance(results[1], results[0]) < 1e-5


def test_networks_of_gluoncv_are_refused_in_one_line(set_np):
    for name in ("cifar_resnet20", "gluoncv:mobilenetv2_0.25"):
        with pytest.raises(ModelError, match=r"needs mx\.nd, .*: create it before npx\.set_np\(\)"):
            get_model(name, 10)


@pytest.mark.parametrize("model", [pytest.param("lenet", marks=pytest.mark.long), "mlp"])
def test_a_run_and_its_network_are_the_same_as_without(model, empty_cwd):
    config = TrainConfig(devices=device_spec(2), model=model, epochs=1, kvstore="ring")
    expected = train(config, dataset=load_few_digits())
    mx.npx.set_np()
    try:
        result = train(config, dataset=load_few_digits())
        assert np_is_set()
        images = np.random.RandomState(0).uniform(size=(4, 1, 28, 28)).astype("float32")
        with autograd.record():
            scores = result.net(mx.np.array(images, ctx=device()))
        scores.backward()
        assert type(scores) is mx.np.ndarray
        gradient = next(iter(result.net.collect_params().values())).list_grad()[0]
        assert type(gradient) is mx.np.ndarray
        assert float(abs(gradient).sum()) > 0
        assert 0 < evaluate_run(str(result.run_dir), devices=device_spec(3)).score.accuracy < 1
        assert np_is_set()
        file = str(empty_cwd / "again")
        result.net.save_parameters(file)
        result.net.load_parameters(file)
    finally:
        mx.npx.reset_np()
    assert result.val_accuracy == expected.val_accuracy
    assert arrays_equal(parameter_arrays(result.net), parameter_arrays(expected.net))
    np.testing.assert_array_equal(scores.asnumpy(), expected.net(nd.array(images, ctx=device())).asnumpy())


def test_training_by_hand_is_the_same_as_without(set_np):
    data, params = load_few_digits(), init_params()

    def accuracy():
        return train_by_hand(data, params, contexts(2), epochs=1, report=lambda epoch: None).val_accuracy

    result = accuracy()
    with nd_semantics():
        assert accuracy() == result


# The program of d2l's chapter on several GPUs with Gluon.

BATCHES = [
    (np.random.RandomState(step).normal(size=(n, 1, 10, 10)).astype("float32"), np.arange(n, dtype="int32") % 4)
    for step, n in enumerate((8, 8, 6))
]


@lru_cache(maxsize=None)
def train_gluon_on_one_device(hybridize):
    return train_gluon(cpu_contexts(1), None, hybridize)


def train_gluon(ctxs, store, hybridize):
    mx.random.seed(2)
    net = nn.HybridSequential()
    net.add(nn.Conv2D(3, 3, activation="relu"), nn.AvgPool2D(2, 2), nn.Dense(4))
    net.initialize(mx.init.Normal(0.3), ctx=ctxs)
    net(mx.np.zeros((1, 1, 10, 10), ctx=ctxs[0]))
    if hybridize:
        net.hybridize(static_alloc=True, static_shape=True)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, kvstore=store)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    for batch in BATCHES:
        arrays = (mx.np.array(array, dtype=array.dtype) for array in batch)
        xs, ys = (gluon.utils.split_and_load(array, ctxs, even_split=False) for array in arrays)
        with autograd.record():
            losses = [loss(net(x), y) for x, y in zip(xs, ys)]
        for device_loss in losses:
            device_loss.backward()
        trainer.step(len(batch[0]))
    assert {type(param.data(ctxs[-1])) for param in net.collect_params().values()} == {mx.np.ndarray}
    return parameter_arrays(net, ctxs[-1])


@pytest.mark.parametrize("devices", [2, 3])
@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize("name", STORE_CASES)
def test_gluons_trainer_with_several_devices_and_np_arrays_trains_as_one_device(name, hybridize, devices, set_np):
    result = train_gluon(contexts(devices), make_kvstore(name), hybridize)
    assert relative_distance(result, train_gluon_on_one_device(hybridize)) < 1e-5
