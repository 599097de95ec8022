"""Image folders as data sets: their images and layouts, held-out images, and messages about what cannot be read."""

import gc
import os
import re
import shutil
import unicodedata
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.image_folders import CLASSES, decode_with_pillow, encode_image, make_image, write_image_folder
from support.records import assert_same_splits
from support.worker_processes import has_exited

from gluonlab.data import ArraySplit, load_dataset
from gluonlab.data.fetching.download_sources import SOURCES
from gluonlab.data.images.image_locations import FORMAT_NAMES, FORMATS
from gluonlab.data.sets.image_file_dataset import FileSplit, median_short_side, select_held_out
from gluonlab.data.sets.image_folder import IMAGENETTE_CLASSES as IMAGENETTE
from gluonlab.data.sets.image_folder import IMAGENETTE_NAMES as IMAGENETTES
from gluonlab.data.sets.image_folder import ImageFolder
from gluonlab.data.sets.packed_folder import pack_dataset
from gluonlab.errors import DataError, GluonlabWarning

IMAGE = encode_image(make_image(0))
CAFE = "caf\N{LATIN SMALL LETTER E WITH ACUTE}"
APART = unicodedata.normalize("NFD", CAFE)
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


def test_only_streamed_images_have_decoder_processes(root):
    decoders = load(root, decoders=2).train.decoders
    children = [worker.process.pid for worker in decoders._workers]
    assert len(children) == 2
    assert not hasattr(load(root, memory=EVERYTHING).train, "decoders")
    del decoders
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
    with pytest.raises(DataError, match="folder:~nobody-here/animals names an unknown home directory"):
        load_dataset("folder:~nobody-here/animals")


def test_a_bad_image_is_an_error_in_the_batch_that_has_it(root):
    cut = encode_image(make_image(0))[:-300]
    for content, message in ((cut, r"damaged \("), (b"no image", f"not a {FORMAT_NAMES}")):
        (root / "train" / "bee" / "0002.jpg").write_bytes(content)
        with pytest.raises(DataError, match=rf"train/bee/0002.jpg is {message}.*--skip-corrupt"):
            load(root, memory=EVERYTHING)
    split = load(root, image_size=24).train
    assert split.batch(np.array([0, 1, 17]))[0].shape == (3, 3, 24, 24)
    with pytest.raises(DataError, match=rf"train/bee/0002.jpg is not a {FORMAT_NAMES}"):
        split.batch(np.array([0, 8]))


@pytest.mark.parametrize("memory", [0, EVERYTHING], ids=["streaming", "in memory"])
def test_bad_images_are_left_out_and_counted_on_request(root, memory):
    bad = ["train/ant/0003.jpg", "train/bee/0000.jpg", "train/bee/0002.jpg", "train/cow/0005.jpg"]
    places = [root / place for place in bad]
    good = [(path, label) for path, label in files(root, "train") if path not in places]
    expected = [decode_with_pillow(path, 16) for path, _ in good]
    for place in places:
        place.write_bytes(b"no image")
    names = ", ".join(map(str, places[:3]))
    message = f"4 of 18 training images cannot be decoded and are skipped: {names} and 1 more"
    with pytest.warns(GluonlabWarning, match=re.escape(message)) as warned:
        dataset = load(root, memory=memory, skip_bad=True)
    assert len(warned) == 1
    images, labels = dataset.train.batch(np.arange(len(dataset.train)))
    assert labels.tolist() == [label for _, label in good]
    assert np.array_equal(images, expected)
    assert len(dataset.test) == 9


def test_a_class_of_which_nothing_is_left_is_an_error(root):
    for path in (root / "val" / "bee").iterdir():
        path.write_bytes(b"")
    with pytest.warns(GluonlabWarning, match="3 of 9 validation images"), pytest.raises(
        DataError, match="of the class bee"
    ):
        load(root, skip_bad=True)


@pytest.mark.parametrize("name", ["folder:", "folder", "folder: ", "Folder:x"])
def test_a_folder_without_a_valid_path_is_refused(name):
    with pytest.raises(DataError, match=r"unknown data set .*folder:PATH"):
        load_dataset(name)
    with pytest.raises(DataError, match=r"x{5000} cannot be read \(File name too long\)"):
        load_dataset("folder:" + "x" * 5000)


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
def test_without_its_folder_imagenette_is_refused_with_instructions(name, tmp_path):
    fetch = f"run gluonlab data download {name}" if name in SOURCES else f"unpack {name}.tgz in "
    nowhere = str(tmp_path / "x")
    for root, message in ((None, fetch), (nowhere, "is not a folder"), (str(tmp_path), fetch)):
        with pytest.raises(DataError, match=f"use.*{name}|{name}.*use") as error:
            load_dataset(name, root)
        assert message in str(error.value)


def test_other_classes_than_imagenettes_are_refused(tmp_path):
    write_image_folder(tmp_path / "imagenette")
    with pytest.raises(DataError, match="imagenette has the classes ant, bee, cow instead of n01440764"):
        load_dataset("imagenette", str(tmp_path), decoders=1)


# --- layouts


def write_files(root, *places, content=b"junk"):
    for place in places:
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_bytes(content)


def remove(root, *places):
    for place in places:
        shutil.rmtree(root / place)


def remove_val(root):
    remove(root, "val")


def flatten(root):
    """Make root/CLASS/* of root/train/CLASS/*, as in flower_photos."""
    remove_val(root)
    for name in CLASSES:
        rename(root, f"train/{name}", name)
    (root / "train").rmdir()


def wrap(root):
    """Move the content into root/inner, as archives unpack."""
    content = [*root.iterdir()]
    (root / "inner").mkdir()
    for path in content:
        path.rename(root / "inner" / path.name)


def rename(folder, old, new):
    (folder / old).rename(folder / new)


def rename_class(root, old, new):
    for part in ("train", "val"):
        rename(root / part, old, new)


def replace_by_link(root, place):
    (root / place).rename(root.parent / "far")
    (root / place).symlink_to(root.parent / "far")


READ = {  # folders, and what the classes are
    "as it should be": (lambda root: None, CLASSES),
    "wrap": (wrap, CLASSES),
    "wrap by macOS": (lambda root: [wrap(root), write_files(root, "__MACOSX/inner/train/ant/._a.jpg")], CLASSES),
    "other names": (lambda root: [rename(root, "train", "Training"), rename(root, "val", "VALID")], CLASSES),
    "hidden": (
        lambda root: write_files(
            root,
            "train/.ipynb_checkpoints/a.jpg",
            "train/ant/._a.jpg",
            "train/@eaDir/a.jpg",
            "val/$RECYCLE.BIN/a.jpg",
            "train/ant/.DS_Store",
            "readme.txt",
            "train/labels.csv",
        ),
        CLASSES,
    ),
    "spaces and Unicode": (lambda root: rename_class(root, "ant", "red ant \u8d64"), ("bee", "cow", "red ant \u8d64")),
    "composed in train": (
        lambda root: [rename_class(root, "ant", CAFE), rename(root / "val", CAFE, APART)],
        ("bee", CAFE, "cow"),
    ),
    "composed in val": (
        lambda root: [rename_class(root, "ant", APART), rename(root / "val", APART, CAFE)],
        ("bee", CAFE, "cow"),
    ),
    "a class replace_by_link": (lambda root: replace_by_link(root, "train/ant"), CLASSES),
    "an image replace_by_link": (lambda root: replace_by_link(root, "train/ant/0003.jpg"), CLASSES),
}


@pytest.mark.parametrize("kind", READ)
def test_folders_in_order_are_read_without_a_word(root, kind):
    spoil, classes = READ[kind]
    spoil(root)
    folder = ImageFolder(root)
    assert (folder.classes, folder.warnings()) == (classes, [])
    assert all(Path(path).read_bytes()[:2] == b"\xff\xd8" for path in folder.train[0])
    for (paths, labels), each in ((folder.train, 6), (folder.val, 3)):
        assert labels.tolist() == [label for label in range(3) for _ in range(each)]
        named = [unicodedata.normalize("NFC", Path(path).parent.name) for path in paths]
        assert named == [classes[label] for label in labels]


def test_what_is_no_image_is_left_out_and_counted_in_one_remark(root):
    write_files(root, "train/ant/Thumbs.db", "train/ant/note.txt", "val/bee/x.TXT", "val/bee/README")
    write_files(root, "train/cow/IMG_1.HEIC")
    (root / "train" / "ant" / "empty.jpg").mkdir()
    with pytest.warns(GluonlabWarning) as warned:
        dataset = load_dataset(f"folder:{root}", decoders=1)
    assert [str(warning.message) for warning in warned] == [
        "skipped 6 files in unsupported formats (2 .txt, 1 .db, 1 folder without images, "
        f"1 .heic, 1 others), such as {root}/train/ant/Thumbs.db; "
        "convert .heic to JPEG or PNG to use them"
    ]
    assert (len(dataset.train), len(dataset.test)) == (18, 9)


def test_images_outside_of_the_classes_are_counted(root):
    write_files(root, "train/a.jpg", "val/b.png", content=IMAGE)
    assert ImageFolder(root).warnings() == [
        f"skipped 2 images outside of the class folders, such as {root}/train/a.jpg"
    ]


def test_every_format_is_read_as_pillow_reads_it(root):
    for number, (format, suffixes) in enumerate(FORMATS.items()):
        path = root / "train" / "ant" / f"{number}{suffixes[-1].upper()}"
        path.write_bytes(encode_image(make_image(0), format))
    split = load(root).train
    assert len(split) == 18 + len(FORMATS)
    for path, image in zip(split.paths, split.batch(np.arange(len(split)))[0]):
        assert np.array_equal(image, decode_with_pillow(path, 16)), path


REFUSED = {
    "nothing": (lambda root: [shutil.rmtree(root), root.mkdir()], "one folder of images per class and --val"),
    "too far down": (
        lambda root: [
            root.rename(root.parent / "x"),
            (root / "a").mkdir(parents=True),
            (root.parent / "x").rename(root / "a" / "b"),
        ],
        "has no train folder, but images in deeper folders",
    ),
    "an archive": (lambda root: [shutil.rmtree(root), root.write_bytes(b"PK")], "is a file: "),
    "flatten": (flatten, r"has no train folder, but folders of images (ant, bee, cow): add"),
    "images only": (
        lambda root: [flatten(root), remove(root, *CLASSES), write_files(root, "a.jpg", "b.jpg", content=IMAGE)],
        "but 2 images without a class: move the images of each class into",
    ),
    "two data sets": (
        lambda root: [wrap(root), shutil.copytree(str(root / "inner"), str(root / "other"))],
        "but 2 of its subfolders have one (inner, other): use one of these subfolders, such as",
    ),
    "no val": (remove_val, "has no val folder: add --val-split 0.2 to hold out training images, or"),
    "no train": (lambda root: shutil.rmtree(root / "train"), "has a val folder, but no train folder"),
    "missing": (shutil.rmtree, "does not exist: use a folder with train and val folders, each with"),
    "no class": (lambda root: remove(root / "train", *CLASSES), "has no class folders: add at least two"),
    "one class": (lambda root: remove(root / "train", *CLASSES[1:]), "has only one class folder, ant"),
    "an empty class": (
        lambda root: [path.unlink() for path in (root / "train" / "bee").iterdir()],
        "to this class folder, or remove it",
    ),
    "a class less in val": (lambda root: shutil.rmtree(root / "val" / "cow"), "train has the class cow, which"),
    "images in train": (
        lambda root: [shutil.rmtree(root / "train"), write_files(root, "train/a.jpg", content=IMAGE)],
        "has no class folders, and 1 image outside of class folders",
    ),
    "junk only": (
        lambda root: [remove(root, "train/ant"), write_files(root / "train/ant", "a.HEIC", "b.heic", "Thumbs.db")],
        "contains no images, only 2 .heic, 1 .db",
    ),
    "a class more in val": (lambda root: write_files(root, "val/dog/a.jpg", content=IMAGE), "has the class dog, which"),
    "misspelled": (lambda root: (root / "val" / "ant").rename(root / "val" / "Ant "), "(it has 'Ant ')"),
    "twice": (
        lambda root: [rename_class(root, "ant", CAFE), rename_class(root, "bee", APART)],
        f"two folders named {CAFE}, which differ only in their Unicode normalization",
    ),
    "not UTF-8": (
        lambda root: (root / "train" / "ant").rename(root / "train" / os.fsdecode(b"\xff")),
        r"a folder whose name is not UTF-8, b'\xff': rename this folder",
    ),
    "a loop": (
        lambda root: (root / "train" / "ant" / "again").symlink_to(root / "train"),
        "ant/again are in a subfolder of a class folder",
    ),
    "a link to itself": (lambda root: (root / "train" / "ant" / "a.jpg").symlink_to("a.jpg"), "is a broken link"),
    "a pipe": (lambda root: os.mkfifo(root / "train" / "ant" / "a.jpg"), "not a regular file"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_read_is_one_line_with_what_to_do(root, kind):
    spoil, message = REFUSED[kind]
    spoil(root)
    with pytest.raises(DataError) as error:
        ImageFolder(root)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("inside", ["train", "val", "train/ant", "flowers.tgz"])
def test_a_part_names_the_whole_and_an_archive_is_to_be_unpacked(root, inside):
    write_files(root, "flowers.tgz")
    is_part, is_archive = rf"is part of a data set: use folder:{root}$", "unpack it, and use a folder"
    with pytest.raises(DataError, match=is_archive if inside == "flowers.tgz" else is_part):
        ImageFolder(root / inside)


# --- --val-split

UNSPLIT = {
    "train": remove_val,
    "flatten": flatten,
    "wrap": lambda root: [remove_val(root), wrap(root)],
    "flatten and wrap": lambda root: [flatten(root), wrap(root)],
    "with junk": lambda root: [flatten(root), write_files(root, "LICENSE.txt", "__MACOSX/ant/._a.jpg")],
}


@pytest.mark.parametrize("kind", UNSPLIT)
def test_a_share_of_each_class_is_held_out_the_same_in_every_layout(root, kind):
    UNSPLIT[kind](root)
    folder = ImageFolder(root, 0.3)
    assert folder.classes == CLASSES
    (train, ours), (val, theirs) = folder.train, folder.val
    assert (ours.tolist(), theirs.tolist()) == ([0] * 4 + [1] * 4 + [2] * 4, [0, 0, 1, 1, 2, 2])
    held = ["/".join(Path(path).parts[-2:]) for path in val]
    names = [[f"{name}/{n:04}.jpg" for n in range(6)] for name in CLASSES]
    ranked = [sorted(each, key=lambda name: sha256(name.encode()).digest()) for each in names]
    assert held == [name for each in ranked for name in sorted(each[:2])]
    assert not set(train) & set(val) and len({*train, *val}) == 18


def test_classes_with_one_image_keep_it_for_training(root):
    remove_val(root)
    for path in [*(root / "train" / "bee").iterdir()][1:]:
        path.unlink()
    with pytest.warns(GluonlabWarning, match="of classes with a single image: bee$"):
        dataset = load(root, val_share=0.2, memory=EVERYTHING)
    assert np.bincount(dataset.train.labels).tolist() == [5, 1, 5]
    assert np.bincount(dataset.test.labels, minlength=3).tolist() == [1, 0, 1]
    for name in ("ant", "cow"):
        for path in [*(root / "train" / name).iterdir()][1:]:
            path.unlink()
    with pytest.raises(DataError, match=r"only one image, but --val-split 0\.2 needs a class with at least two"):
        ImageFolder(root, 0.2)


@pytest.mark.parametrize("spoil", [lambda root: None, wrap], ids=["plain", "wrap"])
def test_a_folder_with_val_is_not_divided(root, spoil):
    spoil(root)
    with pytest.raises(DataError, match=r"--val-split 0\.2 is only for data without a val folder, but"):
        ImageFolder(root, 0.2)


def test_a_packed_folder_has_the_same_held_out_images(root, tmp_path):
    flatten(root)
    original = load(root, val_share=0.3)
    pack_dataset(original, tmp_path / "packed")
    assert_same_splits(load_dataset(f"folder:{tmp_path / 'packed'}"), original)


# --- which images are held out: a share of each class, chosen by their names

SHARES = st.floats(0, 1, exclude_min=True, exclude_max=True)
NAMES = st.lists(st.text(min_size=1, max_size=8), unique=True, max_size=40)


@given(NAMES, SHARES)
def test_of_two_or_more_one_is_on_each_side_and_the_share_is_kept(names, share):
    count = sum(select_held_out(names, share))
    if len(names) < 2:
        assert count == 0
    else:
        assert 1 <= count <= len(names) - 1
        assert abs(count - share * len(names)) <= 1


@given(NAMES, SHARES, st.randoms())
def test_the_order_of_the_names_does_not_matter(names, share, random):
    names = [*{unicodedata.normalize("NFC", name) for name in names}]
    expected = dict(zip(names, select_held_out(names, share)))
    random.shuffle(names)
    assert dict(zip(names, select_held_out(names, share))) == expected


@given(NAMES.filter(bool), SHARES)
def test_an_image_more_moves_one_other_at_most(names, share):
    before = select_held_out(names, share)
    after = select_held_out([*names, "one more"], share)[:-1]
    assert sum(was != now for was, now in zip(before, after)) <= 1


def test_letters_composed_in_either_way_are_the_same():
    names = [[f"{cafe}/{n}.jpg" for n in range(20)] for cafe in (CAFE, APART)]
    assert select_held_out(names[0], 0.3) == select_held_out(names[1], 0.3)


@pytest.mark.parametrize(("share", "held"), [(0.2, [3, 7]), (0.5, [0, 3, 6, 7, 9])])
def test_the_choice_never_changes(share, held):
    """Runs of an earlier release resume with the same images."""
    result = select_held_out([f"ant/{n}.jpg" for n in range(10)], share)
    assert [n for n, out in enumerate(result) if out] == held
