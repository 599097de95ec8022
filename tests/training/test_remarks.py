"""Warnings about a run: once each, and none about a run that learns."""

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


def make_noise_dataset(train_labels, test_labels, classes, name="noise"):
    random = np.random.RandomState(0)
    splits = [
        ArraySplit(random.randint(0, 256, (len(labels), 1, 8, 8), dtype=np.uint8), np.array(labels, np.int32))
        for labels in (train_labels, test_labels)
    ]
    return Dataset(name, *splits, tuple(f"class {number}" for number in range(classes)), Defaults(0.01, 1))


def collect_remarks(tmp_path, dataset=None, **settings):
    reporter, lines = Reporter(), []
    reporter.say = lines.append
    settings = {"model": "mlp", "epochs": 1, **settings}
    train(TrainConfig(devices=device_spec(2), out=str(tmp_path / "run"), **settings), None, reporter, dataset)
    return [line[len("remark") :].strip() for line in lines if line.startswith("remark ")]


ONE_CLASS = make_noise_dataset([1] * 64, [0, 1] * 8, classes=2)
RANDOM_LABELS = make_noise_dataset([0, 1] * 32, [0, 1] * 8, classes=2, name=SYNTHETIC)


@pytest.mark.parametrize(
    ("dataset", "settings", "first"),
    [
        (None, {"epochs": 2}, None),
        (RANDOM_LABELS, {"batch_size": 4}, None),
        (None, {"batch_size": 1000}, "a batch of 2,000 exceeds the 1,437 training images, so each epoch"),
        (ONE_CLASS, {"batch_size": 4}, "all training images belong to one class, class 1: add images of other classes"),
    ],
    ids=["a run that learns", "random labels", "a large batch", "one class"],
)
def test_data_that_nothing_can_be_learned_from_has_a_warning(tmp_path, dataset, settings, first):
    remarks = collect_remarks(tmp_path, dataset, **settings)
    assert remarks == [] if first is None else remarks[0].startswith(first)


@pytest.mark.parametrize(
    ("lr", "start"),
    [
        ("1", r"loss \d"),  # adam: as large as the weights
        (
            "1e-9",
            r"validation accuracy 0\.\d{4} on 360 images may be due to chance \(always predicting \d gives 0\.\d{4}\)",
        ),
    ],
)
def test_a_network_that_learned_nothing_has_one_warning(tmp_path, lr, start):
    [remark] = collect_remarks(tmp_path, lr=lr)
    assert re.match(start, remark)
    assert "--lr, for example from gluonlab find-lr" in remark


@given(st.lists(st.integers(0, 4), min_size=1, max_size=200), st.integers(0, 200), st.floats(0.01, 1e20))
def test_an_accuracy_of_chance_has_a_warning(labels, correct, loss):
    """Compared with the binomial distribution of always guessing the most frequent class."""
    accuracy = min(correct, len(labels)) / len(labels)
    dataset = make_noise_dataset([0], labels, classes=5)
    plan = SimpleNamespace(dataset=dataset, user_components=UserComponents(), steps_per_epoch=1)
    result = SimpleNamespace(plan=plan, kept_epoch=SimpleNamespace(val_accuracy=accuracy, loss=loss))
    remarks = list(training_setup._warn_of_failed_training(result))
    most = max(labels.count(label) for label in labels)
    share = most / len(labels)
    by_chance = accuracy <= share + 2 * math.sqrt(share * (1 - share) / len(labels))
    if loss > 10 * math.log(5):
        assert [line[:5] for line in remarks] == ["loss "]
    else:
        assert len(remarks) == (by_chance and most < len(labels))
        assert all("choose a smaller --batch-size (an epoch has only 1 step), train" in remark for remark in remarks)
