"""Layouts of image folders, error messages for others, and held-out images."""

import os
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

from gluonlab.data import load_dataset
from gluonlab.data.images.image_locations import FORMATS
from gluonlab.data.sets.image_file_splits import select_held_out
from gluonlab.data.sets.image_folder import ImageFolder
from gluonlab.data.sets.packed_folder import pack_dataset
from gluonlab.errors import DataError, GluonlabWarning

IMAGE = encode_image(make_image(0))
CAFE = "caf\N{LATIN SMALL LETTER E WITH ACUTE}"
APART = unicodedata.normalize("NFD", CAFE)


@pytest.fixture
def root(tmp_path):
    return write_image_folder(tmp_path / "animals")


def put(root, *places, content=b"junk"):
    for place in places:
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_bytes(content)


def only_train(root):
    shutil.rmtree(root / "val")


def flat(root):
    """root/CLASS/*, as flower_photos and many others come."""
    only_train(root)
    for name in CLASSES:
        (root / "train" / name).rename(root / name)
    (root / "train").rmdir()


def wrapped(root):
    """Move the folder into another one, as archives unpack: root/inner/..."""
    inside = [*root.iterdir()]
    (root / "inner").mkdir()
    for each in inside:
        each.rename(root / "inner" / each.name)


def moved(folder, old, new):
    (folder / old).rename(folder / new)


def renamed(root, old, new):
    for part in ("train", "val"):
        moved(root / part, old, new)


def elsewhere(root, place):
    """A link to it, which has moved out of the folder."""
    (root / place).rename(root.parent / "far")
    (root / place).symlink_to(root.parent / "far")


READ = {  # folders, and what the classes are
    "as it should be": (lambda root: None, CLASSES),
    "wrapped": (wrapped, CLASSES),
    "wrapped by macOS": (lambda root: [wrapped(root), put(root, "__MACOSX/inner/train/ant/._a.jpg")], CLASSES),
    "other names": (lambda root: [moved(root, "train", "Training"), moved(root, "val", "VALID")], CLASSES),
    "hidden": (
        lambda root: put(
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
    "spaces and Unicode": (lambda root: renamed(root, "ant", "red ant \u8d64"), ("bee", "cow", "red ant \u8d64")),
    "composed in train": (
        lambda root: [renamed(root, "ant", CAFE), moved(root / "val", CAFE, APART)],
        ("bee", CAFE, "cow"),
    ),
    "composed in val": (
        lambda root: [renamed(root, "ant", APART), moved(root / "val", APART, CAFE)],
        ("bee", CAFE, "cow"),
    ),
    "a class elsewhere": (lambda root: elsewhere(root, "train/ant"), CLASSES),
    "an image elsewhere": (lambda root: elsewhere(root, "train/ant/0003.jpg"), CLASSES),
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
    put(root, "train/ant/Thumbs.db", "train/ant/note.txt", "val/bee/x.TXT", "val/bee/README")
    put(root, "train/cow/IMG_1.HEIC")
    (root / "train" / "ant" / "empty.jpg").mkdir()
    with pytest.warns(GluonlabWarning) as warned:
        dataset = load_dataset(f"folder:{root}", decoders=1)
    assert [str(each.message) for each in warned] == [
        "left out 6 files in formats that are not read (2 .txt, 1 .db, 1 folder without images, "
        f"1 .heic, 1 others), such as {root}/train/ant/Thumbs.db; "
        "convert .heic to JPEG or PNG to use them"
    ]
    assert (len(dataset.train), len(dataset.test)) == (18, 9)


def test_images_beside_the_classes_are_counted(root):
    put(root, "train/a.jpg", "val/b.png", content=IMAGE)
    assert ImageFolder(root).warnings() == [f"left out 2 images in no class's folder, such as {root}/train/a.jpg"]


def test_every_format_is_read_as_pillow_reads_it(root):
    paths = {}
    for number, (format, suffixes) in enumerate(FORMATS.items()):
        paths[format] = root / "train" / "ant" / f"{number}{suffixes[-1].upper()}"
        paths[format].write_bytes(encode_image(make_image(0), format))
    result = {Path(each).name: place for place, each in enumerate(ImageFolder(root).train[0])}
    places = [result[path.name] for path in paths.values()]
    images, _ = load_dataset(f"folder:{root}", decoders=1).train.batch(np.array(places))
    for image, format in zip(images, paths):
        assert np.array_equal(image, decode_with_pillow(paths[format], 16)), format


def junk_only(root):
    shutil.rmtree(root / "train" / "ant")
    put(root, "train/ant/a.HEIC", "train/ant/b.heic", "train/ant/Thumbs.db")


def loose(root):
    flat(root)
    for name in CLASSES:
        shutil.rmtree(root / name)
    put(root, "a.jpg", "b.jpg", content=IMAGE)


REFUSED = {
    "nothing": (lambda root: [shutil.rmtree(root), root.mkdir()], "folders of classes and --val"),
    "too far down": (
        lambda root: [
            root.rename(root.parent / "x"),
            (root / "a").mkdir(parents=True),
            (root.parent / "x").rename(root / "a" / "b"),
        ],
        "has no folder train, but images further down: give folder:",
    ),
    "an archive": (lambda root: [shutil.rmtree(root), root.write_bytes(b"PK")], "is a file: give a folder"),
    "flat": (flat, r"but folders of images (ant, bee, cow): --val-share 0.2 takes them"),
    "images only": (loose, "but 2 images of no class: put those of each class into a folder"),
    "two data sets": (
        lambda root: [wrapped(root), shutil.copytree(str(root / "inner"), str(root / "other"))],
        "2 of its folders do (inner, other): give one of them, such as folder:",
    ),
    "no val": (only_train, "no folder val or test: hold images out of train with --val-share 0.2"),
    "no train": (lambda root: shutil.rmtree(root / "train"), "has val, and no folder train"),
    "missing": (shutil.rmtree, "animals does not exist: give a folder with folders train and val"),
    "no class": (
        lambda root: [shutil.rmtree(root / "train" / name) for name in CLASSES],
        "has folders for no class: give at least two",
    ),
    "one class": (
        lambda root: [shutil.rmtree(root / "train" / name) for name in CLASSES[1:]],
        "has folders for one class, ant: give at least two",
    ),
    "an empty class": (
        lambda root: [path.unlink() for path in (root / "train" / "bee").iterdir()],
        "train/bee holds no images: give each class images",
    ),
    "a class less in val": (lambda root: shutil.rmtree(root / "val" / "cow"), "train has the class cow, which"),
    "images in train": (
        lambda root: [shutil.rmtree(root / "train"), put(root, "train/a.jpg", content=IMAGE)],
        "has folders for no class, and 1 image directly in it: give at least two",
    ),
    "junk only": (junk_only, "train/ant holds no images, only 2 .heic, 1 .db: give each class"),
    "a class more in val": (lambda root: put(root, "val/dog/a.jpg", content=IMAGE), "has the class dog, which"),
    "misspelt": (lambda root: (root / "val" / "ant").rename(root / "val" / "Ant "), "(it has 'Ant ')"),
    "twice": (
        lambda root: [renamed(root, "ant", CAFE), renamed(root, "bee", APART)],
        f"two folders named {CAFE}, whose letters are composed differently",
    ),
    "not UTF-8": (
        lambda root: (root / "train" / "ant").rename(root / "train" / os.fsdecode(b"\xff")),
        r"a folder whose name is not UTF-8, b'\xff': rename it",
    ),
    "a loop": (
        lambda root: (root / "train" / "ant" / "again").symlink_to(root / "train"),
        "ant/again is a folder with images",
    ),
    "a link to itself": (lambda root: (root / "train" / "ant" / "a.jpg").symlink_to("a.jpg"), "is a broken link"),
    "a pipe": (lambda root: os.mkfifo(root / "train" / "ant" / "a.jpg"), "not a regular file"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_read_is_one_line_with_what_to_do(root, kind):
    spoil, said = REFUSED[kind]
    spoil(root)
    with pytest.raises(DataError) as error:
        ImageFolder(root)
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("inside", ["train", "val", "train/ant"])
def test_a_part_names_the_whole(root, inside):
    with pytest.raises(DataError, match=rf"is a part of a data set: give folder:{root}$"):
        ImageFolder(root / inside)


def test_an_archive_is_to_be_unpacked(tmp_path):
    put(tmp_path, "flowers.tgz")
    with pytest.raises(DataError, match=r"flowers\.tgz is a file: unpack it, and give the folder"):
        ImageFolder(tmp_path / "flowers.tgz")


# --- --val-share

UNSPLIT = {
    "train": only_train,
    "flat": flat,
    "wrapped": lambda root: [only_train(root), wrapped(root)],
    "flat and wrapped": lambda root: [flat(root), wrapped(root)],
    "with junk": lambda root: [flat(root), put(root, "LICENSE.txt", "__MACOSX/ant/._a.jpg")],
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


def test_a_class_with_one_image_keeps_it_for_training(root):
    only_train(root)
    for path in sorted((root / "train" / "bee").iterdir())[1:]:
        path.unlink()
    with pytest.warns(GluonlabWarning, match="of classes with a single one: bee$"):
        dataset = load_dataset(f"folder:{root}", decoders=1, val_share=0.2, memory=2**30)
    assert np.bincount(dataset.train.labels).tolist() == [5, 1, 5]
    assert np.bincount(dataset.test.labels, minlength=3).tolist() == [1, 0, 1]


def test_classes_of_one_image_each_leave_nothing_to_hold_out(root):
    only_train(root)
    for name in CLASSES:
        for path in sorted((root / "train" / name).iterdir())[1:]:
            path.unlink()
    with pytest.raises(DataError, match=r"a single image: --val-share 0\.2 needs two of a class"):
        ImageFolder(root, 0.2)


@pytest.mark.parametrize("spoil", [lambda root: None, wrapped], ids=["plain", "wrapped"])
def test_a_folder_with_val_is_not_divided(root, spoil):
    spoil(root)
    with pytest.raises(DataError, match=r"--val-share 0\.2 holds images out of train, but .*/val exists: leave"):
        ImageFolder(root, 0.2)


def test_what_was_packed_has_the_same_parts(root, tmp_path):
    flat(root)
    original = load_dataset(f"folder:{root}", decoders=1, val_share=0.3)
    pack_dataset(original, tmp_path / "packed")
    assert_same_splits(load_dataset(f"folder:{tmp_path / 'packed'}"), original)


# --- which images are held out: so many of each class, by their names alone

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
    before = dict(zip(names, select_held_out(names, share)))
    random.shuffle(names)
    assert dict(zip(names, select_held_out(names, share))) == before


@given(NAMES.filter(bool), SHARES)
def test_an_image_more_moves_one_other_at_most(names, share):
    before = select_held_out(names, share)
    after = select_held_out([*names, "one more"], share)[:-1]
    assert sum(was != now for was, now in zip(before, after)) <= 1


def test_letters_composed_in_either_way_are_the_same():
    names = [f"caf\N{LATIN SMALL LETTER E WITH ACUTE}/{n}.jpg" for n in range(20)]
    apart = [unicodedata.normalize("NFD", name) for name in names]
    assert names != apart
    assert select_held_out(names, 0.3) == select_held_out(apart, 0.3)


@pytest.mark.parametrize(("share", "held"), [(0.2, [3, 7]), (0.5, [0, 3, 6, 7, 9])])
def test_the_choice_is_the_same_for_ever(share, held):
    """Runs that were begun with an earlier release go on with the same images."""
    result = select_held_out([f"ant/{n}.jpg" for n in range(10)], share)
    assert [n for n, out in enumerate(result) if out] == held
