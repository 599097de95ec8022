"""Data sets by name and from arrays: their images, options and messages about mistakes."""

import doctest

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from support.devices import device_spec
from support.examples import examples
from support.made_up_sources import RECORDS, cifar_batches

from gluonlab.config import TrainConfig
from gluonlab.data import DATASETS, ArraySplit, Loader, from_arrays, load_dataset
from gluonlab.data.sets import convert_user_arrays
from gluonlab.data.sets.standard_datasets import enlarge_to_28x28
from gluonlab.errors import ConfigError, DataError, GluonlabWarning, UsageError
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
    with pytest.raises(ConfigError, match="4,000,000,000 images need an array of 3,136,000,000,000 elements"):
        make_plan(TrainConfig(dataset="synthetic", devices=device_spec(1), global_batch_size=4 * 10**9))


@pytest.mark.parametrize(
    "settings",
    [pytest.param({"recipe": "quick"}, id="lenet"), pytest.param({}, id="cifar_resnet20", marks=pytest.mark.long)],
)
def test_an_epoch_of_cifar10s_own_networks_runs(tmp_path, monkeypatch, settings):
    """They take images of 32x32 in three colors."""
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
UNKNOWN.update(
    {"digit": r"did you mean 'digits'\?", "no.csv": "data set 'no\\.csv': there is no such file: use list:FILE"}
)


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
        ("digits", {"batch_size": 8}, "digits has no options, but 'batch_size' was set"),
        ("synthetic", {"sample": 8}, "unknown option of synthetic 'sample': .*'samples'"),
        ("synthetic", {"samples": 0}, "samples 0: must be a whole number of at least 1"),
        ("folder:nowhere", {"path": "."}, "unknown option of folder:nowhere 'path'"),
        ("folder:nowhere", {"image_size": (8, 8)}, r"image_size \(8, 8\): must be a whole number"),
        ("record:no.rec", {"image_size": 0}, "image_size 0: must be a whole number from 8 to 2048"),
        ("list:no.csv", {"val_share": 2}, "val_share 2: must be a number greater than 0 and less than 1"),
        ("list:no.csv", {"decoders": "two"}, "decoders two: must be a whole number from 1 to 256"),
    ],
)
def test_options_that_a_data_set_does_not_take_get_one_line(name, options, message):
    with pytest.raises(UsageError, match=message) as caught:
        load_dataset(name, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("images", "dtype", "labels", "message"),
    [
        ((4, 28, 28), "uint8", (4,), r"images have type uint8 and shape \(4, 28, 28\)"),
        ((4, 1, 2, 2), "float64", (4,), "images have type float64"),
        ((4, 1, 2, 2), "uint8", (3,), r"the labels of 4 images have type int.* and shape \(3,\)"),
        ((4, 1, 2, 2), "uint8", (4, 1), r"type .* and shape \(4, 1\)"),
    ],
)
def test_arrays_that_are_no_split_are_refused(images, dtype, labels, message):
    with pytest.raises(DataError, match=message):
        ArraySplit(np.zeros(images, dtype), np.zeros(labels, np.int32))


# --- from_arrays: arrays of any library


RANDOM = np.random.RandomState(3)
Y = np.arange(12) % 3
X = RANDOM.randint(0, 256, (12, 2, 5, 7)).astype("uint8")
FLOATS = RANDOM.normal(0, 2, X.shape)


def load_images(split):
    """Return the images of a split as a Loader passes them to a network."""
    [(xs, _)] = Loader(split, [mx.cpu()], len(split), shuffle=False)
    return xs[0].asnumpy()


@pytest.mark.parametrize(
    "kind",
    [
        lambda x: mx.nd.array(x, dtype=x.dtype),
        lambda x: mx.np.array(x, dtype=x.dtype),
        lambda x: [mx.nd.array(image, dtype=x.dtype) for image in x],
        list,
        np.asfortranarray,
    ],
)
@pytest.mark.parametrize("images", [X, FLOATS.astype("float32")])
def test_arrays_of_any_library_are_read_at_once(kind, images, monkeypatch):
    for array in (mx.nd.NDArray, mx.np.ndarray):  # without a length, no array is read number by number
        monkeypatch.setattr(array, "__len__", pytest.fail)
    labels = kind(Y.astype("int32"))
    data = from_arrays(kind(images), labels, kind(images), labels)
    monkeypatch.undo()
    expected = images / np.float32(255) if images.dtype == np.uint8 else images
    np.testing.assert_allclose(load_images(data.train), expected, rtol=3e-7)
    assert data.train.labels.tolist() == Y.tolist()


@examples(20)
@given(st.sampled_from(["float32", "float64", "int64", "uint8"]), st.integers(0, 2**32 - 1))
def test_bytes_as_fractions_become_the_same_bytes_and_other_floats_stay(dtype, seed):
    pixels = np.random.RandomState(seed).randint(0, 256, (4, 1, 3, 3)).astype("uint8")
    floats = np.dtype(dtype).kind == "f"
    given = (pixels / 255).astype(dtype) if floats else pixels.astype(dtype)
    data = from_arrays(given, Y[:4], given * 2 if floats else given, Y[:4])
    assert data.train.dtype == np.uint8 and (data.train.images == pixels).all()
    np.testing.assert_allclose(load_images(data.test), pixels / 255 * (1 + floats), rtol=1e-6, atol=1e-7)


def test_images_with_channels_last_are_refused_unless_a_layout_says_what_they_are():
    last = X.transpose(0, 2, 3, 1)[..., :1]
    with pytest.raises(
        DataError,
        match=r"x_train has the shape \(12, 5, 7, 1\), which looks like \(N, H, W, C\): use "
        r"x_train\.transpose\(0, 3, 1, 2\) or layout='NHWC'",
    ):
        from_arrays(last, Y, last, Y)
    data = from_arrays(last, Y, last, Y, layout="NHWC")
    assert (data.train.images == X[:, :1]).all()
    assert from_arrays(last, Y, last, Y, layout="NCHW").image_shape == (5, 7, 1)
    features = np.zeros((12, 20, 4, 4), "uint8")  # of a network: no channels last
    assert from_arrays(features, Y, features, Y).image_shape == (20, 4, 4)
    with pytest.raises(DataError, match=r"images has the shape \(12, 5, 7, 1\), which looks like"):
        ArraySplit(last, Y)
    assert (ArraySplit(last, Y, "NHWC").images == X[:, :1]).all()
    with pytest.raises(DataError, match="layout='HWC': use NCHW or NHWC, or omit layout"):
        from_arrays(X, Y, X, Y, layout="HWC")


@pytest.mark.parametrize("images", [X, FLOATS.astype("float32"), X.astype("int64")])
def test_later_writes_to_an_array_do_not_change_the_data(images):
    x, y = images.copy(), Y.astype("int32")
    data = from_arrays(x, y, x, y)
    expected = load_images(data.train)
    x[:], y[:] = 7, 7
    assert (load_images(data.train) == expected).all()
    assert data.train.labels.tolist() == Y.tolist()


def test_a_mapped_file_is_not_copied(tmp_path):
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert np.may_share_memory(from_arrays(mapped, Y, X, Y).train.images, mapped)


@pytest.mark.parametrize("labels", [Y * 1.0, Y.astype("uint8"), Y[:, None], list(Y), mx.nd.array(Y)])
def test_whole_numbers_of_any_kind_are_labels(labels):
    assert from_arrays(X, labels, X, labels).test.labels.tolist() == Y.tolist()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            np.eye(3)[Y],
            (
                r"y_train has type float64 and shape \(12, 3\), and is one-hot encoded: convert it to class numbers "
                r"with argmax\(axis=1\)"
            ),
        ),
        (Y + 0.5, r"y_train contains 0\.5 at index 0: use whole numbers as labels, or write"),
        (np.where(Y, Y, np.nan), "y_train contains nan at index 0: use"),
        (np.array(["cat", "dog", "emu"])[Y], "but labels must be class numbers that start at 0: use np"),
        ([[0], [0, 1]] * 6, "y_train .*same shape"),
        (Y - 3, "y_train has values from -3 to -1, but labels must be class numbers that start at 0"),
        (None, "y_train has type NoneType: use a numpy or MXNet array"),
        (
            np.where(Y, Y, 900000),
            (
                r"4 classes occur among the labels from 0 to 900,000 \(0, 1, 2, 900000\), so the model "
                r"would have 900,001 outputs"
            ),
        ),
    ],
)
def test_invalid_labels_are_reported_in_one_line(labels, message):
    with pytest.raises(DataError, match=message) as caught:
        from_arrays(X, labels, X, Y)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([X, np.zeros((12, 4))], r"x_train\[0\] has shape \(12, 2, 5, 7\), but x_train\[1\] has shape \(12, 4\)"),
        ([*X[:11], X[0][:, :4]], r"x_train\[0\] has shape \(2, 5, 7\), but x_train\[11\] has shape \(2, 4, 7\)"),
        ({"x": X}, "x_train has type dict: use a numpy or MXNet array"),
        (mx.gluon.data.ArrayDataset(X, Y), "x_train has type ArrayDataset"),
        (np.where(X > 250, np.nan, X / 255), "x_train contains a value that is not finite, in image 0"),
        (
            X.astype("int64") * 2,
            (
                r"x_train has type int64 and shape \(12, 2, 5, 7\), with values from 0 to 510: use bytes "
                r"\(uint8\) from 0 to 255, or floats, which are not scaled"
            ),
        ),
        (X > 9, "x_train has type bool and shape \\(12, 2, 5, 7\\)"),
    ],
)
def test_invalid_images_are_reported_in_one_line(images, message):
    with pytest.raises(DataError, match=message) as caught:
        from_arrays(images, Y, X, Y)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((X, Y + 1, X, Y + 1), r"3 classes occur among the labels from 0 to 3 \(1, 2"),
        ((X[Y < 2], Y[Y < 2], X, Y), "validation images have the label 2, but no training image"),
        ((X * 1.0, Y, X, Y), "float64 with whole numbers up to 25., but floats are not"),
    ],
)
def test_labels_with_gaps_and_floats_that_look_like_pixels_cause_a_warning(arrays, message):
    with pytest.warns(GluonlabWarning, match=message):
        from_arrays(*arrays)
    assert from_arrays(X, Y + 1, X, Y + 1, classes="abcd").classes == tuple("abcd")  # no warning if all are named


def test_the_example_is_true():
    assert doctest.testmod(convert_user_arrays) == (0, 1)


def test_a_split_takes_arrays_of_mxnet_and_no_labels_that_are_cut_off():
    split = ArraySplit(mx.nd.array(X, dtype="uint8"), mx.nd.array(Y, dtype="int32"))
    assert (split.images == X).all() and split.labels.tolist() == Y.tolist()
    with pytest.raises(
        DataError, match=r"the labels of 12 images have type float64 and shape \(12,\): use one whole number per image"
    ):
        ArraySplit(X, Y + 0.5)
