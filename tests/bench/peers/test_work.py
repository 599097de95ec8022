"""The work that rows share: the same images, and as many operations as were counted."""

import numpy as np
import pytest

from gluonlab import load_dataset
from gluonlab.bench.peers.work import LENET, TASKS, conv, dense, images_and_labels, training_flops


def test_the_flops_of_training_are_those_counted_by_hand():
    # forward, gradient of the weights
    assert training_flops([conv(1, 2, 3, side_out=4, data_gradient=False)]) == 2 * 288 * 2
    assert training_flops([dense(3, 5)]) == 2 * 15 * 3  # and of the input
    forward = 2 * (26 * 26 * 20 * 9 + 9 * 9 * 50 * 20 * 25 + 800 * 128 + 128 * 10)
    assert training_flops(LENET) == 3 * forward - 2 * 26 * 26 * 20 * 9 == 13_258_800


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_all_rows_train_on_the_same_images(task):
    images, labels = images_and_labels(task)
    train = load_dataset("synthetic", samples=task.samples, shape=task.shape).train
    assert (
        np.array_equal(images, train.images.astype("float32") / np.float32(255))
        and images.dtype == np.float32
    )
    assert np.array_equal(labels, train.labels) and len(set(labels)) == 10
