"""What the pieces of a user's own loop answer to a mistake: one line, at once, with what to
give.
"""

import mxnet as mx
import numpy as np
import pytest
from support.devices import contexts

from gluonlab.data import Loader, load_dataset
from gluonlab.errors import DataError, DeviceError, ModelError
from gluonlab.models import get_model

NO_DEVICES = [mx.cpu(0), "cpu", None, [], (), [0, 1], ["cpu"], [None]]


@pytest.fixture(scope="module")
def split():
    return load_dataset("digits").test


@pytest.mark.parametrize("ctxs", NO_DEVICES, ids=repr)
def test_a_loader_is_given_devices(split, ctxs):
    with pytest.raises(
        DeviceError, match=r"is not a list of devices: give gluonlab.devices.devices\('cpu\*2'\)"
    ) as raised:
        Loader(split, ctxs, 8)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("size", [0, -3, 2.5, None, "8", True])
def test_a_loader_is_given_images_for_a_batch(split, size):
    with pytest.raises(DataError, match="give a number of images from 1 up"):
        Loader(split, contexts(1), size)


def test_numpys_numbers_and_tuples_are_as_good(split):
    assert len(Loader(split, tuple(contexts(2)), np.int64(100))) == 4


@pytest.mark.parametrize("ctxs", [ctxs for ctxs in NO_DEVICES if ctxs], ids=repr)
def test_a_network_is_laid_out_for_devices(ctxs):
    with pytest.raises(DeviceError, match="is not a list of devices"):
        get_model("lenet", 10, ctxs)


@pytest.mark.parametrize("classes", [0, -1, "10", None, 2.5, True])
def test_a_network_has_classes(classes):
    with pytest.raises(ModelError, match="give how many the data set has"):
        get_model("mlp", classes)
