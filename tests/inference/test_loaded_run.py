"""load_run: predictions equal the network's scores, computed by plain Gluon and numpy on Pillow's pixels."""

import numpy as np
import pytest
from mxnet import nd
from mxnet.gluon import nn
from PIL import Image
from support.completed import make_initialized_net
from support.devices import device, device_spec
from support.image_folders import CLASSES, make_image, write_image_folder
from support.quick_runs import run_quickly

from gluonlab import load_run
from gluonlab.config import TrainConfig
from gluonlab.data import from_arrays, load_dataset
from gluonlab.data.images.decode_image import decode_image
from gluonlab.data.images.resize_image import default_resizer
from gluonlab.errors import ConfigError, DataError, RunError
from gluonlab.inference.input_images import to_gray
from gluonlab.inference.predictions import Predictions
from gluonlab.training.evaluate_run import evaluate_run
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter

pytestmark = pytest.mark.filterwarnings("ignore:no GPU on this machine:gluonlab.errors.GluonlabWarning")
MODES = ("RGB", "L", "RGBA", "P", "1", "LA", "CMYK")
SPLITS = [
    {"strategy": "tensor", "tensor_parallel": 2},
    pytest.param({"strategy": "layers"}, marks=pytest.mark.long),
    pytest.param({"strategy": "pipeline", "microbatches": 2}, marks=pytest.mark.long),
]


@pytest.fixture(scope="module")
def gray(tmp_path_factory):
    """A run on the digits."""
    return run_quickly(tmp_path_factory.mktemp("gray"), lr=0.01)


@pytest.fixture(scope="module")
def color(tmp_path_factory):
    """A run on a folder of images, which lies beside it."""
    folder = tmp_path_factory.mktemp("color")
    root = write_image_folder(folder / "images", size=20, suffix=".png")
    return run_quickly(folder, model="mlp", dataset=f"folder:{root}", image_size=12, batch_size=4, normalize="imagenet")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Pictures of many shapes and modes; JPEGs are so small that they are decoded in full size."""
    folder = tmp_path_factory.mktemp("pictures")
    random = np.random.RandomState(3)
    for number in range(40):
        width, height = random.randint(1, 90, 2)
        mode = MODES[number % len(MODES)]
        if mode == "CMYK":
            width, height = 13, 17
        is_jpeg = mode == "CMYK" or (mode in ("RGB", "L") and number % 2 and max(width, height) < 24)
        image = make_image(number % 3, width, height, number, mode)
        image.save(folder / f"{number:02}.{'jpg' if is_jpeg else 'png'}")
    return sorted(folder.iterdir())


def plain_scores(result, shape, images):
    """Return the scores (n, classes) of the run's network for its input, computed by plain Gluon."""
    classes = len(result.plan.dataset.classes)
    net = make_initialized_net(result.plan.model, shape, classes)
    net.load_parameters(str(result.run_dir / "parameters.params"), ctx=device())
    return net(nd.array(images, ctx=device())).asnumpy()


def softmax(scores):
    return np.array([np.exp(row - row.max()) / np.exp(row - row.max()).sum() for row in scores])


def test_probabilities_are_the_softmax_of_the_networks_scores_in_color(color, pictures):
    decoded = np.stack([decode_image(str(path), 12, resizer=default_resizer()) for path in pictures])
    decoded = decoded.astype("float32") / 255
    mean, deviation = np.array([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]).reshape(2, 3, 1, 1)
    scores = plain_scores(color, (3, 12, 12), (decoded - mean) / deviation)
    result = load_run(color.run_dir, devices=device_spec(2), batch_size=7).predict(pictures)
    np.testing.assert_allclose(result.probabilities, softmax(scores), rtol=1e-3, atol=1e-5)
    assert (result.images, result.classes) == (tuple(map(str, pictures)), CLASSES)
    assert result.names == [CLASSES[label] for label in scores.argmax(axis=1)]
    for row, best in zip(result.probabilities, result.top(2)):
        assert [guess.probability for guess in best] == sorted(row, reverse=True)[:2]


def test_probabilities_are_the_softmax_of_the_networks_scores_in_gray(gray, pictures):
    colors = [decode_image(str(path), 28, resizer=default_resizer()) for path in pictures]
    decoded = np.stack([convert_with_pillow(pixels) for pixels in colors]).astype("float32")
    scores = plain_scores(gray, (1, 28, 28), decoded[:, None] / 255)
    result = load_run(gray.run_dir, devices=device_spec(1)).predict(pictures[0].parent)
    np.testing.assert_allclose(result.probabilities, softmax(scores), rtol=1e-3, atol=1e-5)
    assert len(result) == len(pictures) and result.scores.shape == (len(pictures), 10)


def convert_with_pillow(pixels):
    return np.asarray(Image.fromarray(pixels.transpose(1, 2, 0)).convert("L"))


def test_gray_equals_pillows_conversion():
    pixels = np.random.RandomState(0).randint(0, 256, (1, 3, 300, 300)).astype(np.uint8)
    np.testing.assert_array_equal(to_gray(pixels)[0, 0], convert_with_pillow(pixels[0]))


@pytest.mark.parametrize("devices", [1, 3])
def test_accuracy_and_mistakes_on_the_validation_images_equal_the_evaluation(gray, devices):
    test = load_dataset("digits").test
    images, labels = test.batch(np.arange(len(test)))
    loaded = load_run(gray.run_dir, devices=device_spec(devices), batch_size=50)
    predictions, result = loaded.predict(images), loaded.mistakes()
    score = evaluate_run(str(gray.run_dir), devices=device_spec(devices)).score
    assert (predictions.labels == labels).mean() == result.accuracy == score.accuracy < 1
    expected = plain_scores(gray, (1, 28, 28), images / np.float32(255)).argmax(axis=1)
    assert [wrong.number for wrong in result.wrong] == np.flatnonzero(expected != labels).tolist()
    for wrong in result.wrong:
        n = wrong.number
        assert (wrong.file, wrong.true, wrong.predicted) == (None, str(labels[n]), str(expected[n]))
        assert wrong.probability == predictions.probabilities[n].max()
        np.testing.assert_array_equal(wrong.pixels, images[n])


@pytest.mark.long
def test_mistakes_name_the_files_of_their_images(tmp_path):
    root = write_image_folder(tmp_path / "images", size=20, suffix=".png")
    result = run_quickly(tmp_path, dataset=f"folder:{root}", image_size=12, batch_size=4, optimizer="sgd", lr=1e-9)
    loaded = load_run(result.run_dir, devices=device_spec(1))
    files = sorted((root / "val").glob("*/*"))
    names, mistakes = loaded.predict(files).names, loaded.mistakes().wrong
    guesses = [(str(file), file.parent.name, name) for file, name in zip(files, names)]
    assert mistakes
    assert [(it.file, it.true, it.predicted) for it in mistakes] == [it for it in guesses if it[1] != it[2]]


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_runs_of_every_split_predict_on_one_device(tmp_path, split):
    result = run_quickly(tmp_path, lr=0.01, **split)
    assert load_run(result.run_dir, devices=device_spec(1)).mistakes().accuracy == result.val_accuracy


def small_data(channels=3, side=8):
    random = np.random.RandomState(1)
    images = random.randint(0, 256, (40, channels, side, side)).astype("uint8")
    labels = np.arange(40) % 4
    return from_arrays(images, labels, images[:20], labels[:20], classes="abcd")


def small_run(folder, data, net=None):
    settings = dict(epochs=1, batch_size=20, lr=0.01, optimizer="sgd", model=None if net else "mlp")
    config = TrainConfig(devices=device_spec(1), out=str(folder), **settings)
    return train(config, dataset=data, reporter=Reporter(), net=net)


def make_net(classes):
    net = nn.HybridSequential()
    net.add(nn.Flatten(), nn.Dense(classes))
    return net


def test_a_users_network_and_data_must_be_given_again(tmp_path):
    data = small_data()
    result = small_run(tmp_path / "own", data, net=make_net)
    with pytest.raises(
        ConfigError, match=r"used your network make_net, .*: pass the same network to gluonlab.load_run in Python"
    ):
        load_run(tmp_path / "own")
    loaded = load_run(tmp_path / "own", net=make_net, devices=device_spec(2))
    with pytest.raises(
        ConfigError, match="used your data set arrays, not the default data set: pass the same data set"
    ):
        loaded.mistakes()
    assert load_run(tmp_path / "own", net=make_net, data=data).mistakes().accuracy == result.val_accuracy
    images, labels = data.test.batch(np.arange(20))
    assert (loaded.predict(images).labels == labels).mean() == result.val_accuracy


def test_shapes_that_pictures_do_not_have_are_taken_as_arrays(tmp_path, pictures):
    data = small_data(channels=2)
    small_run(tmp_path / "run", data)
    loaded = load_run(tmp_path / "run")
    with pytest.raises(DataError, match="the run's images have the shape 2x8x8, which image files cannot have"):
        loaded.predict(pictures)
    assert len(loaded.predict(data.test.images)) == 20


@pytest.mark.parametrize("count", [0, -1, 2.5, True, "2", None])
def test_the_best_classes_are_counted_from_one(count):
    predictions = Predictions(("a", "b"), ("x",), np.array([[1.0, 2.0]], "float32"))
    with pytest.raises(DataError, match=r"top\(.*\): the number of classes must be a whole number"):
        predictions.top(count)
    assert [[guess.name for guess in best] for best in predictions.top(9)] == [["b", "a"]]


@pytest.mark.parametrize(
    "kind", [lambda x: x / 255, lambda x: nd.array(x, dtype="uint8"), lambda x: list(nd.array(x / 255))]
)
def test_floats_and_arrays_of_mxnet_are_seen_as_bytes_are(gray, kind):
    images = load_dataset("digits").test.images[:9]
    run = load_run(str(gray.run_dir))
    assert (run.predict(kind(images)).scores == run.predict(images).scores).all()


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([], "no images were passed"),
        ([3], "the image was passed as an int: pass files"),
        (b"GIF", "the image was passed as bytes: pass the path"),
        (np.zeros((2, 1, 28, 27), np.uint8), r"uint8 and shape \(2, 1, 28, 27\): use bytes"),
        (np.full((2, 28, 28), np.nan), "images contains a value that is not finite, in image 0"),
        (np.zeros((2, 28, 28), bool), "images has type bool"),
        (nd.zeros((28, 28)), r"use bytes \(uint8\) or floats of shape \(n, 1, 28, 28\), where n is at least"),
        (np.zeros((1, 28, 28, 1)), r"use bytes \(uint8\) or floats of shape \(n, 1, 28, 28\), where n is at least"),
        (None, "the image was passed as a NoneType: pass files"),
        (Image.new("L", (28, 28)), "the image was passed as a Pillow image: pass the path"),
        ([Image.new("RGBA", (28, 28))] * 2, "the image was passed as a Pillow image: pass the path"),
        (np.zeros((0, 28, 28), np.uint8), "images have type uint8 and shape \\(0, 28, 28\\)"),
    ],
)
def test_input_that_is_not_an_image_is_refused(gray, images, message):
    with pytest.raises(DataError, match=message):
        load_run(gray.run_dir, devices=device_spec(1)).predict(images)


def test_parameters_and_scores_that_are_not_finite_fail(tmp_path):
    result = run_quickly(tmp_path, lr=0.01)
    file = str(result.run_dir / "parameters.params")
    arrays = nd.load(file)
    # too large only in the last layer: ReLU would turn NaN into 0
    large = {"2.weight": 1e20, "3.weight": 1e20}
    nd.save(file, {name: array * large.get(name, 1) for name, array in arrays.items()})
    with pytest.raises(RunError, match="for image 0 are not finite: train again with a smaller --lr"):
        load_run(result.run_dir).predict(np.full((1, 28, 28), 255, np.uint8))
    nd.save(file, {name: array * float("nan") for name, array in arrays.items()})
    with pytest.raises(RunError, match="contains NaN or infinity in"):
        load_run(result.run_dir)


def test_another_setting_is_refused(gray):
    with pytest.raises(ConfigError, match="--lr has no effect on predictions: use only --gpus, "):
        load_run(gray.run_dir, lr=0.1)
