"""Data sets by name: their images, options and messages about mistakes."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from support.devices import device_spec
from support.made_up_sources import RECORDS, cifar_batches

from gluonlab.config import TrainConfig
from gluonlab.data import DATASETS, ArraySplit, load_dataset
from gluonlab.data.sets.standard_datasets import enlarge_to_28x28
from gluonlab.errors import ConfigError, DataError, UsageError
from gluonlab.training.loop import train
from gluonlab.training.plan import make_plan


def everything(split):
    return split.batch(np.arange(len(split)))


def test_digits_are_all_of_scikit_learns_each_in_one_split():
    dataset, source = load_dataset("digits"), load_digits()
    (train, train_labels), (test, test_labels) = everything(dataset.train), everything(dataset.test)
    assert (len(dataset.train), len(dataset.test)) == (1437, 360)
    # every fourth pixel of three, within the border, is the original's
    small = np.concatenate([train, test])[:, 0, 3:26:3, 3:26:3]
    labels = np.concatenate([train_labels, test_labels])
    result = sorted((image.tobytes(), label) for image, label in zip(small, labels))
    expected = np.rint(source.images * 255 / 16).astype(np.uint8)
    assert result == sorted((image.tobytes(), label) for image, label in zip(expected, source.target))


def test_pixels_are_enlarged_threefold_with_a_border():
    images = np.random.RandomState(0).randint(0, 17, (5, 8, 8)).astype(float)
    result = enlarge_to_28x28(images)
    expected = np.zeros((5, 1, 28, 28), np.uint8)
    expected[:, 0, 2:26, 2:26] = np.kron(np.rint(images * 255 / 16), np.ones((1, 3, 3)))
    assert result.dtype == np.uint8 and np.array_equal(result, expected)


def test_synthetic_images_have_the_requested_shape_and_number_and_depend_on_the_seed():
    dataset = load_dataset("synthetic", samples=100, shape=(3, 8, 9), classes=7)
    images, labels = everything(dataset.train)
    assert (images.shape, images.dtype, labels.dtype) == ((100, 3, 8, 9), np.uint8, np.int32)
    assert set(labels) == set(range(7)) and len(dataset.classes) == 7
    assert dataset.image_shape == dataset.test.image_shape == (3, 8, 9)
    assert (len(dataset.test), len(load_dataset("synthetic", samples=1).test)) == (25, 1)
    one, same, other = (load_dataset("synthetic", seed=seed).train.images for seed in (1, 1, 2))
    assert np.array_equal(one, same) and not np.array_equal(one, other)


@pytest.mark.parametrize(("batch", "images"), [({}, 8192), ({"batch_size": 4096}, 8192), ({"batch_size": 4097}, 8194)])
def test_a_run_on_synthetic_images_has_as_many_as_its_batch(batch, images):
    plan = make_plan(TrainConfig(dataset="synthetic", devices=device_spec(2), **batch))
    assert len(plan.dataset.train) == images
    assert plan.largest_shard_size * 2 == min(images, plan.global_batch_size)


def test_more_synthetic_images_than_an_array_holds_are_refused():
    with pytest.raises(ConfigError, match="4,000,000,000 images make an array of 3,136,000,000,000 elements"):
        make_plan(TrainConfig(dataset="synthetic", devices=device_spec(1), global_batch_size=4 * 10**9))


@pytest.mark.parametrize(
    "settings",
    [pytest.param({"recipe": "quick"}, id="lenet"), pytest.param({}, id="cifar_resnet20", marks=pytest.mark.long)],
)
def test_an_epoch_of_cifar10s_own_networks_runs(tmp_path, monkeypatch, settings):
    """They take images of 32x32 in three colours."""
    for name, content in cifar_batches().items():
        (tmp_path / name).write_bytes(content)
    dataset = load_dataset("cifar10", str(tmp_path), records=RECORDS)
    monkeypatch.setattr("gluonlab.training.plan.load_dataset", lambda name, root: dataset)
    common = dict(dataset="cifar10", devices=device_spec(2), epochs=1, batch_size=4)
    result = train(TrainConfig(out=str(tmp_path / "run"), **common, **settings))
    assert result.plan.model == ("lenet" if settings else "cifar_resnet20")
    assert result.history[0].images == 5 * RECORDS


CHOICES = f"unknown data set .*: choose {', '.join(sorted(DATASETS))}"
UNKNOWN = dict.fromkeys(("mnits", "Digits", "", None), CHOICES)
UNKNOWN.update({"digit": r"did you mean 'digits'\?", "no.csv": "'no.csv' is a file, and does not exist: write list:"})


@pytest.mark.parametrize(("name", "message"), UNKNOWN.items())
def test_an_unknown_data_set_is_answered_with_the_choices(name, message):
    with pytest.raises(DataError, match=message):
        load_dataset(name)


@pytest.mark.parametrize("name", ["digits", "synthetic"])
def test_a_folder_that_would_not_be_read_is_refused(name):
    """With --data-dir but without --dataset, a run would train on the wrong images."""
    with pytest.raises(DataError, match=rf"{name} is built in .* /data/mnist: .*choose mnist, fashion-mnist"):
        load_dataset(name, "/data/mnist")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("digits", {"batch_size": 8}, "digits has no option 'batch_size', and no others"),
        ("synthetic", {"sample": 8}, "unknown option of synthetic 'sample': .*'samples'"),
        ("synthetic", {"samples": 0}, "samples 0: give a whole number from 1 up"),
        ("folder:nowhere", {"path": "."}, "unknown option of folder:nowhere 'path'"),
        ("folder:nowhere", {"image_size": (8, 8)}, r"image_size \(8, 8\): give a whole number"),
        ("record:no.rec", {"image_size": 0}, "image_size 0: give a whole number from 8 to 2048"),
        ("list:no.csv", {"val_share": 2}, "val_share 2: give a number above 0 and below 1"),
        ("list:no.csv", {"decoders": "two"}, "decoders two: give a whole number from 1 to 256"),
    ],
)
def test_options_that_a_data_set_does_not_take_get_one_line(name, options, message):
    with pytest.raises(UsageError, match=message) as caught:
        load_dataset(name, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("images", "dtype", "labels", "message"),
    [
        ((4, 28, 28), "uint8", (4,), r"uint8 of shape \(4, 28, 28\): give uint8"),
        ((4, 1, 2, 2), "float64", (4,), "images are float64"),
        ((4, 1, 2, 2), "uint8", (3,), r"4 images have labels of shape \(3,\)"),
        ((4, 1, 2, 2), "uint8", (4, 1), r"labels of shape \(4, 1\)"),
    ],
)
def test_arrays_that_are_no_split_are_refused(images, dtype, labels, message):
    with pytest.raises(DataError, match=message):
        ArraySplit(np.zeros(images, dtype), np.zeros(labels, np.int32))


def test_a_batch_holds_the_images_at_its_indices_in_their_order():
    split = ArraySplit(np.arange(10, dtype=np.uint8).reshape(10, 1, 1, 1), np.arange(10)[::-1])
    images, labels = split.batch(np.array([7, 2, 2]))
    assert (images.ravel().tolist(), labels.tolist()) == ([7, 2, 2], [2, 7, 7])
