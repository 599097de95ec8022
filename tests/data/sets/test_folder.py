"""Folders of images as data sets: what is in them, and what is said of those that are not as they
should be.
"""

import gc
import re

import numpy as np
import pytest
from support.image_folders import CLASSES, decode_with_pillow, encode_image, make_image, write_image_folder
from support.worker_processes import has_exited

from gluonlab.data import ArraySplit, load_dataset
from gluonlab.data.fetching.download_sources import SOURCES
from gluonlab.data.images.image_locations import FORMAT_NAMES
from gluonlab.data.sets.image_file_splits import FileSplit, median_short_side
from gluonlab.data.sets.image_folder import IMAGENETTE_CLASSES as IMAGENETTE
from gluonlab.data.sets.image_folder import IMAGENETTE_NAMES as IMAGENETTES
from gluonlab.errors import DataError, GluonlabWarning

EVERYTHING = 2**30


@pytest.fixture
def root(tmp_path):
    return write_image_folder(tmp_path / "animals")


def load(root, **options):
    return load_dataset(f"folder:{root}", **{"decoders": 1, **options})


def files(root, part):
    return [(path, label) for label, name in enumerate(CLASSES) for path in sorted((root / part / name).iterdir())]


@pytest.mark.parametrize(("memory", "other"), [(0, "val"), (EVERYTHING, "test")])
def test_a_folder_is_every_image_with_the_class_of_its_folder(root, memory, other):
    (root / "val").rename(root / other)
    dataset = load(root, memory=memory)
    assert (dataset.name, dataset.classes, dataset.image_shape) == ("animals", CLASSES, (3, 16, 16))
    for part, split in (("train", dataset.train), (other, dataset.test)):
        assert isinstance(split, ArraySplit if memory else FileSplit)
        expected = files(root, part)
        images, labels = split.batch(np.arange(len(split)))
        assert labels.tolist() == [label for _, label in expected]
        assert labels.dtype == np.int32
        assert all(np.array_equal(image, decode_with_pillow(path, 16)) for image, (path, _) in zip(images, expected))


def test_the_processes_are_there_for_what_streams_alone(root):
    streaming = load(root, decoders=2).train.decoders
    children = [worker.process.pid for worker in streaming._workers]
    assert len(children) == 2
    in_memory = load(root, memory=EVERYTHING)
    assert not hasattr(in_memory.train, "decoders")
    del streaming
    gc.collect()
    assert all(map(has_exited, children))


@pytest.mark.parametrize(("sides", "size"), [([16] * 9, 16), ([64, 64, 80], 64), ([500] * 3, 224)])
def test_images_keep_their_size_when_they_are_small(tmp_path, sides, size):
    paths = []
    for number, side in enumerate(sides):
        paths.append(str(tmp_path / f"{number}.jpg"))
        (tmp_path / f"{number}.jpg").write_bytes(encode_image(make_image(0, side + 7, side)))
    assert median_short_side(paths) == size


def test_a_tilde_is_the_home_folder(root, monkeypatch):
    monkeypatch.setenv("HOME", str(root.parent))
    dataset = load_dataset("folder:~/animals", decoders=1)
    assert dataset.train.paths[0] == str(root / "train" / "ant" / "0000.jpg")
    with pytest.raises(DataError, match="folder:~nobody-here/animals names an unknown home folder"):
        load_dataset("folder:~nobody-here/animals")


def test_a_bad_image_is_an_error_in_the_batch_that_has_it(root):
    cut = encode_image(make_image(0))[:-300]
    for content, said in ((cut, r"damaged \("), (b"no image", f"not a {FORMAT_NAMES}")):
        (root / "train" / "bee" / "0002.jpg").write_bytes(content)
        with pytest.raises(DataError, match=rf"train/bee/0002.jpg: {said}.*--skip-bad"):
            load(root, memory=EVERYTHING)
    split = load(root, image_size=24).train
    assert split.batch(np.array([0, 1, 17]))[0].shape == (3, 3, 24, 24)
    with pytest.raises(DataError, match=rf"train/bee/0002.jpg: not a {FORMAT_NAMES}"):
        split.batch(np.array([0, 8]))


@pytest.mark.parametrize("memory", [0, EVERYTHING], ids=["streaming", "in memory"])
def test_bad_images_are_left_out_and_counted_on_request(root, memory):
    bad = ["train/ant/0003.jpg", "train/bee/0000.jpg", "train/bee/0002.jpg", "train/cow/0005.jpg"]
    places = [root / place for place in bad]
    good = [(path, label) for path, label in files(root, "train") if path not in places]
    expected = [decode_with_pillow(path, 16) for path, _ in good]
    for place in places:
        place.write_bytes(b"no image")
    named = ", ".join(map(str, places[:3]))
    wanted = f"4 of 18 training images cannot be decoded and are left out: {named} and 1 more"
    with pytest.warns(GluonlabWarning, match=re.escape(wanted)) as warned:
        dataset = load(root, memory=memory, skip_bad=True)
    assert len(warned) == 1
    images, labels = dataset.train.batch(np.arange(len(dataset.train)))
    assert labels.tolist() == [label for _, label in good]
    assert np.array_equal(images, expected)
    assert len(dataset.test) == 9


def test_a_class_of_which_nothing_is_left_is_an_error(root):
    for path in (root / "val" / "bee").iterdir():
        path.write_bytes(b"")
    with pytest.warns(GluonlabWarning, match="3 of 9 test images"), pytest.raises(DataError, match="of the class bee"):
        load(root, skip_bad=True)


def test_a_path_that_the_system_refuses_is_a_data_error():
    with pytest.raises(DataError, match=r"x{5000}: cannot be read \(File name too long\)"):
        load_dataset("folder:" + "x" * 5000)


@pytest.mark.parametrize("name", ["folder:", "folder", "folder: ", "Folder:x"])
def test_a_folder_without_its_path_is_an_unknown_name(name):
    with pytest.raises(DataError, match=r"unknown data set .*folder:PATH"):
        load_dataset(name)


# --- Imagenette


@pytest.fixture(scope="module")
def imagenette(tmp_path_factory):
    return write_image_folder(tmp_path_factory.mktemp("data") / "imagenette2-160", 2, 1, classes=tuple(IMAGENETTE))


@pytest.mark.parametrize("inside", [False, True])
def test_imagenette_has_ten_classes_that_a_person_can_read(imagenette, inside):
    where = imagenette if inside else imagenette.parent
    dataset = load_dataset("imagenette2-160", str(where), decoders=1, memory=EVERYTHING)
    assert dataset.name == "imagenette2-160"
    assert (dataset.classes[0], dataset.classes[9]) == ("tench", "parachute")
    assert (len(dataset.train), len(dataset.test)) == (20, 10)


@pytest.mark.parametrize("name", IMAGENETTES)
def test_where_imagenette_should_lie_is_said(name, tmp_path):
    fetch = f"gluonlab.data download {name}" if name in SOURCES else f"unpack {name}.tgz there"
    nowhere = str(tmp_path / "x")
    for root, said in ((None, fetch), (nowhere, "is not a folder"), (str(tmp_path), fetch)):
        with pytest.raises(DataError, match=f"give.*{name}|{name}.*give") as error:
            load_dataset(name, root)
        assert said in str(error.value)


def test_other_classes_than_imagenettes_are_refused(tmp_path):
    write_image_folder(tmp_path / "imagenette")
    with pytest.raises(DataError, match="imagenette has the classes ant, bee, cow, expected n01440764"):
        load_dataset("imagenette", str(tmp_path), decoders=1)
