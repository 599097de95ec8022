"""Remarks on a run: what a person would say of it, once, and nothing of a run that is all right."""

import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import device_spec

from gluonlab.config import TrainConfig
from gluonlab.data.sets.dataset import ArraySplit, Dataset, Defaults
from gluonlab.data.sets.standard_datasets import SYNTHETIC
from gluonlab.training import training_setup
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter
from gluonlab.training.user_components import UserComponents

CHANCE = (
    r"test accuracy 0\.\d{4} on 360 images may still be chance "
    r"\(always saying \d has 0\.\d{4}\): "
)


class Heard(Reporter):
    def __init__(self):
        self.remarks = []

    def say(self, line):
        title, _, text = line.partition(" ")
        if title == "remark":
            self.remarks.append(text.strip())


def data_set(train_labels, test_labels, classes, name="noise"):
    """Noise with these labels."""
    random = np.random.RandomState(0)

    def split(labels):
        images = random.randint(0, 256, (len(labels), 1, 8, 8), dtype=np.uint8)
        return ArraySplit(images, np.array(labels, np.int32))

    names = tuple(f"class {number}" for number in range(classes))
    return Dataset(name, split(train_labels), split(test_labels), names, Defaults(0.01, 1))


def remarks_on(tmp_path, dataset=None, **settings):
    heard = Heard()
    given = {"model": "mlp", "epochs": 1, **settings}
    config = TrainConfig(devices=device_spec(2), out=str(tmp_path / "run"), **given)
    train(config, dataset=dataset, reporter=heard)
    return heard.remarks


def test_a_run_that_learns_has_no_warning(tmp_path):
    assert remarks_on(tmp_path, epochs=2) == []


def test_a_batch_of_more_than_all_images(tmp_path):
    [remark, *_] = remarks_on(tmp_path, batch_size=1000)
    assert remark.startswith("a batch of 2,000 is more than all 1,437 training images: each epoch")


def test_images_of_one_class(tmp_path):
    dataset = data_set([1] * 64, [0, 1] * 8, classes=2)
    assert remarks_on(tmp_path, dataset, batch_size=4)[0] == (
        "all training images are of one class, class 1: there is nothing to tell apart"
    )


@pytest.mark.parametrize(
    ("settings", "start"),
    [
        ({"lr": "1"}, r"loss \d"),  # adam: as large as the weights
        ({"lr": "1e-9"}, CHANCE),
    ],
)
def test_a_network_that_learned_nothing_has_one_warning(tmp_path, settings, start):
    [remark] = remarks_on(tmp_path, **settings)
    assert re.match(start, remark)
    assert "--lr; --find-lr 100 finds one" in remark


@given(st.lists(st.integers(0, 4), min_size=1, max_size=200), st.integers(0, 200), st.floats(0.01, 1e20))
def test_an_accuracy_of_chance_has_a_warning(labels, right, loss):
    """Beside the binomial distribution itself: the better guess is right with one class."""
    dataset = data_set([0], labels, classes=5)
    accuracy = min(right, len(labels)) / len(labels)
    last = SimpleNamespace(accuracy=accuracy, loss=loss)
    result = SimpleNamespace(plan=SimpleNamespace(dataset=dataset, user_components=UserComponents()), kept_epoch=last)
    said = list(training_setup._warn_of_failed_training(result))
    most = max(labels.count(label) for label in labels)
    share = most / len(labels)
    by_chance = accuracy <= share + 2 * math.sqrt(share * (1 - share) / len(labels))
    if loss > 10 * math.log(5):
        assert [line[:5] for line in said] == ["loss "]
    else:
        assert len(said) == (by_chance and most < len(labels))


def test_random_labels_are_for_measuring(tmp_path):
    dataset = data_set([0, 1] * 32, [0, 1] * 8, classes=2, name=SYNTHETIC)
    assert remarks_on(tmp_path, dataset, batch_size=4) == []
