"""from_arrays: whatever library arrays are of, a split has their numbers; mistakes get one line."""

import doctest

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from gluonlab.data import ArraySplit, Loader, from_arrays
from gluonlab.data.sets import convert_user_arrays
from gluonlab.errors import DataError, GluonlabWarning

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
    with pytest.raises(DataError, match=r"looks like \(N, H, W, C\): give its transpose\(0, 3, 1,"):
        from_arrays(last, Y, last, Y)
    data = from_arrays(last, Y, last, Y, layout="NHWC")
    assert (data.train.images == X[:, :1]).all()
    assert from_arrays(last, Y, last, Y, layout="NCHW").image_shape == (5, 7, 1)
    features = np.zeros((12, 20, 4, 4), "uint8")  # of a network: no channels last
    assert from_arrays(features, Y, features, Y).image_shape == (20, 4, 4)
    with pytest.raises(DataError, match=r"images has the shape \(12, 5, 7, 1\), which looks like"):
        ArraySplit(last, Y)
    assert (ArraySplit(last, Y, "NHWC").images == X[:, :1]).all()
    with pytest.raises(DataError, match="layout 'HWC': give NCHW or NHWC"):
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
        (np.eye(3)[Y], r"y_train is float64 .*, one-hot: give .*, y_train.argmax\(axis=1\)$"),
        (Y + 0.5, "y_train has 0.5 at 0: give whole numbers of classes; a run trains classifiers"),
        (np.where(Y, Y, np.nan), "y_train has nan at 0"),
        (np.array(["cat", "dog", "emu"])[Y], "give a whole number from 0 .*return_inverse=True"),
        ([[0], [0, 1]] * 6, "y_train .*equal"),
        (Y - 3, "y_train goes from -3 to -1: give classes from 0 up"),
        (None, "y_train is a NoneType: give an array"),
        (np.where(Y, Y, 900000), r"4 classes occur .*0 to 900,000 \(0, 1, 2, 900000\), so the net"),
    ],
)
def test_invalid_labels_are_reported_in_one_line(labels, message):
    with pytest.raises(DataError, match=message) as caught:
        from_arrays(X, labels, X, Y)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([X, np.zeros((12, 4))], r"unequal shape, \(12, 2, 5, 7\) at 0 and \(12, 4\) at 1: .*own-lo"),
        ([*X[:11], X[0][:, :4]], r"unequal shape, \(2, 5, 7\) at 0 and \(2, 4, 7\) at 11"),
        ({"x": X}, "x_train is a dict: give an array"),
        (mx.gluon.data.ArrayDataset(X, Y), "x_train is a ArrayDataset: give an array"),
        (np.where(X > 250, np.nan, X / 255), "x_train has a number that is not finite in image"),
        (X.astype("int64") * 2, "x_train is int64 .*: give bytes from 0 to 255, or floats"),
        (X > 9, "x_train is bool .*: give bytes"),
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
        ((X[Y < 2], Y[Y < 2], X, Y), "test images have the label 2, but no training image"),
        ((X * 1.0, Y, X, Y), "float64 with whole numbers up to 25., and networks"),
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
    with pytest.raises(DataError, match=r"labels of shape .12,., float64: give one label per image"):
        ArraySplit(X, Y + 0.5)
