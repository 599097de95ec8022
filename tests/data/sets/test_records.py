"""Record files of im2rec: the same images as the folder that they were made of."""

import json
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import recordio
from support.image_folders import CLASSES, encode_image, make_image, write_image_folder
from support.records import assert_same_splits, write_folder_records, write_records

from gluonlab.data import load_dataset
from gluonlab.data.images.image_locations import open_image_file
from gluonlab.data.sets.csv_and_record_files import find_record_images as find_images
from gluonlab.data.sets.csv_and_record_files import read_records
from gluonlab.data.sets.data_fingerprint import split_fingerprint
from gluonlab.data.sets.image_file_splits import FileSplit
from gluonlab.errors import DataError

MAGIC = (0xCED7230A).to_bytes(4, "little")
RECORDS = [encode_image(make_image(label, seed=seed)) for seed in range(3) for label in range(3)]
LABELS = [0, 1, 2] * 3


@pytest.fixture(scope="module")
def written_files(tmp_path_factory):
    """A folder of images, and in rec/ the records of the same images."""
    root = write_image_folder(tmp_path_factory.mktemp("images") / "pictures", train=3, val=2)
    write_folder_records(root, root.parent / "rec")
    return root.parent


@pytest.fixture
def place(written_files, tmp_path):
    """A copy of the records."""
    shutil.copytree(written_files / "rec", tmp_path / "rec")
    return tmp_path / "rec"


def load(name, **options):
    return load_dataset(f"record:{name}", **{"decoders": 1, **options})


@pytest.mark.parametrize("memory", [0, pytest.param(2**30, marks=pytest.mark.long)])
def test_the_images_are_those_of_the_folder(written_files, memory):
    folder = load_dataset(f"folder:{written_files / 'pictures'}", decoders=1, memory=memory)
    result = load(written_files / "rec" / "train.rec", memory=memory)
    assert result.classes == folder.classes == CLASSES and result.name == "rec"
    assert isinstance(result.train, FileSplit) is (memory == 0)
    assert_same_splits(result, folder)
    if not memory:
        indices, seeds = np.array([3, 1]), [5, 6]
        ours, theirs = (each.train.start_reading(indices, seeds).result()[0] for each in (result, folder))
        np.testing.assert_array_equal(ours, theirs)


def test_the_idx_is_not_needed_and_without_the_lst_classes_are_numbers(place):
    for path in place.iterdir():
        if path.suffix != ".rec":
            path.unlink()
    assert find_images(f"{place}/train.rec").classes == ("0", "1", "2")


def test_a_lst_that_does_not_tell_classes_apart_names_none(place):
    lines = (place / "train.lst").read_text().replace("bee/", "ant/")
    (place / "train.lst").write_text(lines)
    (place / "val.lst").unlink()
    assert find_images(f"{place}/train.rec").classes == ("0", "1", "2")


@settings(max_examples=30)
@given(
    st.lists(
        st.lists(st.sampled_from([MAGIC, b"\0", b"abcd", b"x", MAGIC[:2], b"12"]), max_size=9), min_size=1, max_size=5
    )
)
def test_bytes_are_found_where_mxnet_finds_them(tmp_path_factory, contents):
    """Also where a record holds the number with which frames begin."""
    path = tmp_path_factory.mktemp("bytes") / "a.rec"
    images = [b"".join(parts) for parts in contents]
    write_records(path, images, [0] * len(images))
    places = read_records(path).locations
    assert [open_image_file(json.loads(json.dumps(each))).read() for each in places] == images


def test_images_are_held_out_by_their_ids_and_keep_their_numbers(tmp_path):
    write_records(tmp_path / "a.rec", RECORDS, LABELS, ids=range(10, 19))
    data = find_images(f"{tmp_path}/a.rec", 0.34)
    assert sorted(data.train[1]) == [0, 0, 1, 1, 2, 2] and sorted(data.val[1]) == [0, 1, 2]
    order = [4, 0, 8, 2, 6, 1, 7, 3, 5]
    write_records(
        tmp_path / "b.rec", [RECORDS[i] for i in order], [LABELS[i] for i in order], ids=[10 + i for i in order]
    )
    again = find_images(f"{tmp_path}/b.rec", 0.34)
    contents = [{open_image_file(place).read() for place in each.val[0]} for each in (data, again)]
    assert contents[0] == contents[1]
    for place in (*data.train[0], *data.val[0]):
        number = int(re.search(r"a\.rec, record (\d+)$", place.name)[1])
        assert open_image_file(place).read() == RECORDS[number]


def test_two_files_and_other_names(place):
    (place / "train.rec").rename(place / "pets_train.rec")
    (place / "val.rec").rename(place / "pets_test.rec")
    assert len(find_images(f"{place}/pets_train.rec").val[0]) == 6
    (place / "pets_test.rec").rename(place / "other.rec")
    assert len(find_images(f"{place}/pets_train.rec,{place}/other.rec").val[0]) == 6
    (place / "pets_train.rec").rename(place / "a,b.rec")
    assert len(find_images(f"{place}/a,b.rec", 0.4).val[0]) == 3


def test_a_digest_tells_other_records_apart(tmp_path):
    texts = set()
    for number, images in enumerate((RECORDS, [*RECORDS[:-1], RECORDS[-1] + b"\0" * 4], RECORDS)):
        folder = tmp_path / str(number)
        folder.mkdir()
        places = read_records(write_records(folder / "a.rec", images, LABELS)).locations
        decoders = SimpleNamespace(size=16)  # a digest decodes nothing
        texts.add(split_fingerprint(FileSplit(places, np.array(LABELS), decoders)))
    assert len(texts) == 2


def test_labels_with_gaps_are_classes_of_these_names(tmp_path):
    write_records(tmp_path / "a.rec", RECORDS, [0, 5, 900_000] * 3)
    data = find_images(f"{tmp_path}/a.rec", 0.4)
    assert data.classes == ("0", "5", "900000") and data.train[1].max() == 2
    assert any("labels from 0 to 900000 are 3 classes: a network" in it for it in data.warnings())


def cut(path, by=9):
    path.write_bytes(path.read_bytes()[:-by])


def with_zeros(path):
    path.write_bytes(path.read_bytes() + b"\0" * 8)


def of_label(label):
    def make(path):
        write_records(path, RECORDS, [0, 1, label] * 3)

    return make


def short_record(path, content=b"short"):
    writer = recordio.MXRecordIO(str(path), "w")
    writer.write(content)
    writer.close()


def swapped_names(path):
    other = path.with_name("val.lst")
    other.write_text(other.read_text().replace("bee/", "fly/"))


SPOILED = {
    "truncated": (cut, ["truncated, damaged or not a record file after 8 records", "im2rec"]),
    "zeros": (with_zeros, ["after 9 records, at byte"]),
    "no records": (lambda path: path.write_bytes(b"x" * 99), ["from its beginning, at byte 0 of"]),
    "empty": (lambda path: path.write_bytes(b""), ["has no records", "im2rec"]),
    "empty record": (lambda path: short_record(path, b""), ["record 0 is not an image"]),
    "short": (short_record, ["train.rec, record 0 is not an image with a label"]),
    "several labels": (of_label([1.0, 2.0]), ["record 2 has 2 numbers for a label", "one label"]),
    "fraction": (of_label(0.5), ["record 2 has the label 0.5", "whole numbers from 0"]),
    "negative": (of_label(-1), ["record 2 has the label -1"]),
    "nan": (of_label(float("nan")), ["record 2 has the label nan"]),
    "one class": (lambda path: write_records(path, RECORDS, [3] * 9), ["has one class, 3"]),
    "no image": (
        lambda path: write_records(path, [b"no image"] * 9, LABELS),
        ["train.rec, record 0: not a JPEG, PNG", "--skip-bad"],
    ),
    "other class": (
        lambda path: write_records(path.with_name("val.rec"), RECORDS, [0, 1, 7] * 3),
        ["val.rec has the class 7, which", "train.rec lacks"],
    ),
    "other names": (swapped_names, ["label 1 is bee in", "and fly in", "same numbers in both"]),
}


@pytest.mark.parametrize("what", SPOILED)
def test_what_is_wrong_is_one_line_that_names_it(what, place):
    spoil, words = SPOILED[what]
    spoil(place / "train.rec")
    with pytest.raises(DataError) as caught:
        load(place / "train.rec", memory=2**30)
    message = str(caught.value)
    assert all(word in message for word in words) and "\n" not in message, message


WRONG_NAMES = {
    "missing.rec": ["missing.rec does not exist: give a .rec file"],
    "train.idx": ["train.idx is not a .rec file", "such as record:train.rec"],
    "train.lst": ["train.lst is not a .rec file", "such as record:train.rec"],
    ".": [". is a folder: give a .rec file"],
    "train.rec,val.rec,more.rec": ["names 3 files", "record:train.rec,val.rec"],
    "train.rec,": ["names 2 files: give one, or two"],
    "val.rec": ["val.rec has no validation file", "--val-share 0.2", "record:val.rec,FILE"],
    "~nobody-here/train.rec": ["names an unknown home folder"],
}


@pytest.mark.parametrize("name", WRONG_NAMES)
def test_wrong_names_are_refused(name, place, monkeypatch):
    monkeypatch.chdir(place)
    with pytest.raises(DataError) as caught:
        load(name)
    message = str(caught.value)
    assert all(word in message for word in WRONG_NAMES[name]) and "\n" not in message, message


def test_options_that_contradict_the_files_are_refused(place, monkeypatch):
    monkeypatch.chdir(place)
    with pytest.raises(DataError, match=r"--val-share 0.2 holds .*train.rec, but val.rec exists"):
        load("train.rec", val_share=0.2)
    with pytest.raises(DataError, match=r"data set 'train.rec' is a file: write record:train.rec"):
        load_dataset("train.rec")
    with pytest.raises(DataError, match=r"is read from the path in its name, not from \."):
        load_dataset("record:train.rec", ".")
