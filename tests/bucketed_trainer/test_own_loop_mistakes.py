"""Mistakes in a user's own loop are refused at once, in one line that says what to give."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd
from mxnet.gluon import nn
from support.devices import contexts

from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.data import Loader, load_dataset
from gluonlab.errors import DataError, DeviceError, ModelError
from gluonlab.kvstores import make_kvstore
from gluonlab.models import get_model
from gluonlab.scratch.data_parallel import split_batch
from gluonlab.scratch.loop import train

NO_DEVICES = [mx.cpu(0), "cpu", None, [], (), [0, 1], ["cpu"], [None]]


@pytest.fixture(scope="module")
def split():
    return load_dataset("digits").test


@pytest.mark.parametrize("ctxs", NO_DEVICES, ids=repr)
def test_a_loader_is_given_devices(split, ctxs):
    message = r"is not a list of devices: give gluonlab.devices.devices\('cpu\*2'\)"
    with pytest.raises(DeviceError, match=message) as raised:
        Loader(split, ctxs, 8)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("size", [0, -3, 2.5, None, "8", True])
def test_a_loader_is_given_images_for_a_batch(split, size):
    with pytest.raises(DataError, match="give a number of images from 1 up"):
        Loader(split, contexts(1), size)


def test_a_loader_takes_numbers_of_numpy_and_tuples(split):
    assert len(Loader(split, tuple(contexts(2)), np.int64(100))) == 4


@pytest.mark.parametrize("ctxs", [ctxs for ctxs in NO_DEVICES if ctxs], ids=repr)
def test_a_network_is_laid_out_for_devices(ctxs):
    with pytest.raises(DeviceError, match="is not a list of devices"):
        get_model("lenet", 10, ctxs)


@pytest.mark.parametrize("classes", [0, -1, "10", None, 2.5, True])
def test_a_network_has_classes(classes):
    with pytest.raises(ModelError, match="give how many the data set has"):
        get_model("mlp", classes)


def make_trainer(ctxs, store):
    net = nn.Dense(2, in_units=3)
    net.initialize(ctx=ctxs)
    return BucketedTrainer(net.collect_params(), "sgd", kvstore=store)


@pytest.mark.parametrize(
    "take",
    [
        lambda split, ctxs: Loader(split, ctxs, 8),
        lambda split, ctxs: get_model("lenet", 10, ctxs),
        lambda split, ctxs: make_kvstore("ring", ctxs),
        lambda split, ctxs: make_trainer(ctxs, "device"),
        lambda split, ctxs: make_trainer(ctxs, make_kvstore("ring")),
        lambda split, ctxs: split_batch(nd.zeros((4, 2)), nd.zeros((4,)), ctxs),
        lambda split, ctxs: train(load_dataset("digits"), None, ctxs),
    ],
    ids=["Loader", "get_model", "make_kvstore", "trainer", "ring", "split_batch", "from scratch"],
)
@pytest.mark.parametrize("places", [(0, 0), (0, 1, 0)])
def test_a_device_that_comes_twice_is_refused_with_what_to_write(split, take, places):
    # Backward writes only one of two replicas on a device: gradients would be lost silently.
    ctxs = [contexts(2)[place] for place in places]
    with pytest.raises(DeviceError) as raised:
        take(split, ctxs)
    assert f"names {ctxs[0]} 2 times: give each device once, such as " in str(raised.value)
    assert f"[mx.{ctxs[0].device_type}(i) for i in range({len(ctxs)})]" in str(raised.value)
