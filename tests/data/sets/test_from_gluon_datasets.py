"""Data sets and DataLoaders of Gluon: a run gets their samples."""

import gzip
import struct
import threading

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from mxnet.gluon.data import ArrayDataset, DataLoader, SimpleDataset
from mxnet.gluon.data.vision import transforms
from PIL import Image
from support.devices import contexts, device_spec

from gluonlab import TrainConfig, load_dataset
from gluonlab.data import ArraySplit, Loader, from_arrays, from_datasets
from gluonlab.data.sets.array_dataset import apply_class_weights
from gluonlab.data.sets.from_gluon_datasets import GluonSplit, resolve_dataset, warn_of_ignored_loader_settings
from gluonlab.errors import DataError, GluonlabWarning, UsageError
from gluonlab.study.compare_device_counts import compare
from gluonlab.training.evaluate_run import evaluate_run
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter

RANDOM = np.random.RandomState(4)
LABELS = RANDOM.randint(0, 3, 60).astype("int32")
PIXELS = (RANDOM.randint(0, 150, (60, 3, 6, 8)) + 40 * LABELS[:, None, None, None]).astype("uint8")
LAST = PIXELS.transpose(0, 2, 3, 1)  # as gluon.data.vision has images


class Lazy(gluon.data.Dataset):
    """A data set of the user, which reads an image when it is indexed."""

    def __init__(self, images, labels):
        self.images, self.labels, self.read = images, labels, []

    def __getitem__(self, index):
        self.read.append((index, threading.current_thread()))
        return self.images[index], self.labels[index]

    def __len__(self):
        return len(self.images)


def to_tensor(data):
    return data.transform_first(transforms.ToTensor())


KINDS = {
    "arrays": lambda: ArrayDataset(LAST, LABELS),
    "arrays of MXNet": lambda: ArrayDataset(mx.nd.array(LAST, dtype="uint8"), mx.nd.array(LABELS)),
    "arrays of mx.np": lambda: ArrayDataset(mx.np.array(LAST, dtype="uint8"), LABELS),
    "channels first": lambda: ArrayDataset(PIXELS, LABELS),
    "fractions": lambda: ArrayDataset((PIXELS / 255).astype("float32"), LABELS),
    "pairs": lambda: SimpleDataset(list(zip(LAST, LABELS))),
    "a list": lambda: list(zip(LAST, LABELS)),
    "transformed": lambda: to_tensor(ArrayDataset(mx.nd.array(LAST, dtype="uint8"), LABELS)),
    "a function": lambda: ArrayDataset(LAST, LABELS).transform(lambda x, y: (x, np.float32(y))),
    "whole numbers": lambda: Lazy(LAST.astype("int64"), LABELS),
    "lazy": lambda: Lazy(LAST, LABELS),
    "lazy floats": lambda: Lazy((PIXELS / 255).astype("float32"), LABELS),
    "a part": lambda: ArrayDataset(np.tile(LAST, (2, 1, 1, 1)), np.tile(LABELS, 2)).take(60),
    "a DataLoader": lambda: DataLoader(to_tensor(Lazy(mx.nd.array(LAST, dtype="uint8"), LABELS)), 9),
}


def read_all(split):
    return split.batch(np.arange(len(split)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_split_has_the_images_and_labels_of_the_data_set(kind):
    data = resolve_dataset((KINDS[kind](), KINDS[kind]()))
    images, labels = read_all(data.train)
    np.testing.assert_allclose(images, PIXELS, rtol=1e-6)
    assert labels.tolist() == LABELS.tolist() == data.train.labels.tolist()
    assert data.image_shape == (3, 6, 8) and data.classes == ("0", "1", "2")


def write_mnist(folder, count):
    """Write MNIST's files as MXNet reads them. It would download files with other digests."""
    folder.mkdir()
    for name, magic, array in (
        ("train-images-idx3-ubyte.gz", (2051, count, 28, 28), RANDOM.bytes(count * 784)),
        ("train-labels-idx1-ubyte.gz", (2049, count), bytes(range(count))),
    ):
        with gzip.open(folder / name, "wb") as file:
            file.write(struct.pack(f">{len(magic)}I", *magic) + array)


def test_data_sets_of_gluons_vision_are_read_at_once(tmp_path, monkeypatch):
    write_mnist(tmp_path / "mnist", 6)
    monkeypatch.setattr(gluon.data.vision.datasets, "check_sha1", lambda *_: True)
    find_file = lambda url, path, **_: f"{path}/{url.rpartition('/')[2]}"  # noqa: E731
    monkeypatch.setattr(gluon.data.vision.datasets, "download", find_file)
    mnist = gluon.data.vision.MNIST(str(tmp_path / "mnist"))
    monkeypatch.setattr(type(mnist), "__getitem__", None)
    split = from_datasets(mnist, mnist).train
    assert isinstance(split, ArraySplit) and split.image_shape == (1, 28, 28)
    assert (split.images[:, 0] == mnist._data.asnumpy()[..., 0]).all()
    assert split.labels.tolist() == list(range(6))


def test_a_folder_names_its_classes_and_only_labels_are_known_before_images_are_read(tmp_path):
    for label, name in enumerate(["ant", "bee"]):
        (tmp_path / name).mkdir()
        for number in range(2):
            Image.fromarray(LAST[label]).save(tmp_path / name / f"{number}.png")
    folder = gluon.data.vision.ImageFolderDataset(str(tmp_path))
    data = from_datasets(folder, to_tensor(folder.take(3)))
    assert data.classes == ("ant", "bee") and isinstance(data.train, ArraySplit)
    assert (data.train.images == PIXELS[[0, 0, 1, 1]]).all()
    (tmp_path / "bee" / "1.png").unlink()
    random = transforms.Compose([transforms.RandomFlipLeftRight(), transforms.ToTensor()])
    data = from_datasets(folder.transform_first(random), folder.take(3))
    assert data.train.labels.tolist() == [0, 0, 1, 1]
    with pytest.raises(DataError, match=r"image 3 of train cannot be read: .*No such file"):
        read_all(data.train)


def make_config(folder, **changes):
    settings = {"threads": 1, "epochs": 1, "global_batch_size": 20, "model": "mlp"}
    return TrainConfig(**{**settings, "devices": device_spec(2), "out": str(folder), **changes})


def run(folder, data, **changes):
    return train(make_config(folder, **changes), reporter=Reporter(), dataset=data)


def parameters(result):
    return [value.data(value.list_ctx()[0]).asnumpy() for value in result.net.collect_params().values()]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::gluonlab.errors.GluonlabWarning")
def test_a_comparison_reads_data_sets_and_tells_of_loaders(tmp_path):
    data = (DataLoader(Lazy(LAST[:40], LABELS[:40]), 9, True), ArrayDataset(LAST[40:], LABELS[40:]))
    with pytest.warns(GluonlabWarning, match="has batches of 9 images, but the run's config sets 20"):
        rows = compare(make_config(tmp_path / "both", devices=None), [1, 2], Reporter(), data)
    assert rows[0].val_accuracy == rows[1].val_accuracy


@pytest.mark.filterwarnings("error::gluonlab.errors.GluonlabWarning")
def test_a_run_on_data_sets_or_loaders_is_that_on_their_arrays(tmp_path):
    arrays = from_arrays(PIXELS[:40], LABELS[:40], PIXELS[40:], LABELS[40:])
    sets = [ArrayDataset(LAST[:40], LABELS[:40]), Lazy(LAST[40:], LABELS[40:])]
    loaders = (DataLoader(Lazy(LAST[:40], LABELS[:40]), 20, shuffle=True), sets[1])
    expected = run(tmp_path / "arrays", arrays)
    for name, data in {"sets": sets, "loaders": loaders}.items():
        result = run(tmp_path / name, data)
        assert all(map(np.array_equal, parameters(result), parameters(expected)))
        assert result.val_accuracy == expected.val_accuracy
    score = evaluate_run(str(tmp_path / "sets"), data=sets).score
    assert score.accuracy == expected.val_accuracy


def test_images_that_are_read_in_each_epoch_have_the_weights_of_their_classes():
    arrays, lazy = from_arrays(PIXELS, LABELS, PIXELS, LABELS), Lazy(LAST, LABELS)
    for weights in ("balanced", [1, 2, 0.5]):
        expected = read_all(apply_class_weights(arrays, weights).train)
        result = read_all(apply_class_weights(from_datasets(lazy, lazy), weights).train)
        assert result[1].shape == (60, 2)
        assert all(map(np.array_equal, result, expected))


def test_images_that_may_change_are_read_anew_in_each_epoch_by_one_thread():
    data = Lazy(np.full((10, 1, 2, 2), 0.5, "float32"), LABELS[:10])
    changing = data.transform_first(lambda image: image + np.float32(len(data.read)))
    split = from_datasets(changing, changing).train
    data.read.clear()
    loader = Loader(split, contexts(2), 4)
    epochs = [np.concatenate([x.asnumpy() for xs, _ in loader for x in xs]) for _ in range(2)]
    assert len(np.unique(epochs)) == 20  # no image is seen twice
    assert sorted(index for index, _ in data.read) == sorted([*range(10)] * 2)
    assert len({thread for _, thread in data.read}) == 1


def test_a_thread_that_reads_ahead_gives_transformations_the_users_arrays():
    def transform(image, label):
        assert isinstance(image, mx.np.ndarray)
        return mx.np.transpose(image, (2, 0, 1)).astype("float32") / 255, label

    mx.npx.set_np()
    try:
        data = ArrayDataset(mx.np.array(LAST, dtype="uint8"), LABELS).transform(transform)
        split = from_datasets(data, data).train
    finally:
        mx.npx.reset_np()
    for readable in (split, ArrayDataset(LAST, LABELS)):
        [(xs, ys)] = Loader(readable, [mx.cpu()], 60, shuffle=False)
        np.testing.assert_allclose(xs[0].asnumpy(), PIXELS / 255, rtol=1e-6)
        assert ys[0].asnumpy().tolist() == LABELS.tolist()


PAIR = r"pass two data sets of \(image, label\) samples, as in dataset=\(train, test\)"
SETS = ArrayDataset(LAST, LABELS)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("digits", (r"dataset='digits' is a name: use TrainConfig\(dataset='digits'\), or "
 r"dataset=gluonlab\.load_dataset\('digits'\)")),
        (SETS, f"dataset is a single data set, an ArrayDataset: {PAIR}$"),
        (DataLoader(SETS, 5), f"dataset is a single data set, a DataLoader: {PAIR}$"),
        ((PIXELS, LABELS), "dataset is a tuple of an array of shape .*from_arrays"),
        ((PIXELS, LABELS, PIXELS, LABELS), "dataset is a tuple of an array .*from_arrays"),
        (((PIXELS, LABELS), (PIXELS, LABELS)), "dataset is a tuple of a tuple, a tuple"),
        (PIXELS, "dataset is an array of shape"),
        (iter(DataLoader(SETS, 5)), "dataset is a generator"),
        (mx.io.NDArrayIter(PIXELS, LABELS, 5), "dataset is a NDArrayIter"),
        (ArraySplit(PIXELS, LABELS), "dataset is a split, an ArraySplit"),
        ((ArrayDataset(LAST), SETS), "sample 0 of train is a ndarray"),
        ((ArrayDataset(LAST, LABELS, LABELS), SETS), "sample 0 of train is a tuple of 3 elements"),
        ((SETS, ArrayDataset(LAST[:, :5], LABELS)), "train has images of shape .3, 6, 8., but test has images of"),
        ((Lazy([*LAST[:9], LAST[0, 1:]], LABELS), SETS), "image 9 of train has type uint8 .*Resize"),
        ((Lazy(LAST, LABELS / 2), SETS), "label of image [0-9]+ of train contains 0.5"),
        ((Lazy(LAST, np.eye(3)[LABELS]), SETS), "label of image 0 of train .*one-hot"),
        ((Lazy(LAST.astype("int64") * 2, LABELS), SETS), "image . of train has type int64 .*to 255, or"),
        ((Lazy(LAST[:0], LABELS), SETS), "train is an empty data set"),
        ((Lazy(LAST[None], LABELS), SETS), "the images of train have type uint8 and shape \\(60, 6, 8, 3\\)"),
        ((ArrayDataset, SETS), "dataset is a tuple of the class ArrayDataset, an ArrayDataset"),
        (([], []), "train is an empty data set"),
        ({"train": SETS, "test": SETS}, "dataset is a dict"),
        ((Lazy(LAST, []), SETS), "image 0 of train cannot be read: IndexError: list index"),
        ((DataLoader(SETS, 5, sampler=gluon.data.FilterSampler(bool, LABELS)), SETS),
         "DataLoader of train has a custom sampler, a FilterSampler"),
        ((DataLoader(SETS, 5, batchify_fn=list), SETS), "has a custom batchify_fn"),
    ],
)  # fmt: skip
def test_what_is_no_data_set_of_a_run_gets_one_line(tmp_path, data, message):
    with pytest.raises(DataError, match=message) as caught:
        run(tmp_path / "run", data)
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


def test_a_config_that_cannot_be_carried_out_is_refused_before_anything_is_read(tmp_path):
    data = Lazy(LAST, LABELS)
    with pytest.raises(UsageError, match="unknown optimizer 'sdg'"):
        run(tmp_path / "run", (data, data), optimizer="sdg")
    assert not data.read


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (load_dataset("digits"), "pass dataset\\.train or dataset\\.val"),
        (DataLoader(SETS, 5), "pass the DataLoader's data set"),
        ((PIXELS, LABELS), "a Loader cannot read a tuple"),
        ("digits", "a Loader cannot read a str"),
    ],
)
def test_what_a_loader_cannot_read_gets_one_line(given, message):
    with pytest.raises(DataError, match=message):
        Loader(given, [mx.cpu()], 5)


def test_settings_of_a_data_loader_that_a_run_ignores_cause_warnings():
    options = dict(num_workers=1, thread_pool=True)
    loader = DataLoader(Lazy(LAST, LABELS), 8, last_batch="discard", **options)
    test = DataLoader(SETS, 7, last_batch="rollover", **options)
    with pytest.warns(GluonlabWarning) as caught:
        warn_of_ignored_loader_settings((loader, test), resolve_dataset((loader, test)), 20, False)
    assert [str(warning.message) for warning in caught] == [
        "the DataLoader of train does not shuffle, but a run shuffles in each epoch",
        "the DataLoader of train has num_workers=1, but a run uses one thread to read data in advance",
        "the DataLoader of train has batches of 8 images, but the run's config sets a batch of 20 "
        "images for all devices: to use 8 images, set TrainConfig(global_batch_size=8)",
        "the DataLoader of train has last_batch='discard', but the run uses 'keep': set TrainConfig(drop_last=...)",
        "the DataLoader of test has last_batch='rollover', but the run uses 'keep'",
    ]


def test_a_label_that_changes_is_an_error():
    data = Lazy(LAST, LABELS.copy())
    split = from_datasets(data, SETS).train
    assert isinstance(split, GluonSplit)
    data.labels[7] += 1
    with pytest.raises(DataError, match=r"the label of image 7 of train has changed from 1 to 2"):
        read_all(split)
