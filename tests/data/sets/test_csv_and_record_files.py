"""CSV lists and record files of im2rec: the same images as the folder that they were made of."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import recordio
from support.image_folders import CLASSES, encode_image, make_image, write_image_folder
from support.records import assert_same_splits, write_folder_list, write_folder_records, write_records

from gluonlab.data import load_dataset
from gluonlab.data.images.image_locations import open_image_file
from gluonlab.data.sets.csv_and_record_files import (
    ImageList,
    ListedImages,
    find_listed_images,
    find_record_images,
    read_image_list,
    read_records,
)
from gluonlab.data.sets.data_fingerprint import split_fingerprint
from gluonlab.data.sets.image_file_dataset import FileSplit
from gluonlab.errors import DataError, GluonlabWarning


@pytest.fixture(scope="module")
def written_files(tmp_path_factory):
    """pictures/, train.csv and val.csv with its images, and rec/ with records of the same images."""
    root = tmp_path_factory.mktemp("images")
    write_image_folder(root / "pictures", train=3, val=2)
    for part in ("train", "val"):
        write_folder_list(root / "pictures" / part, root / f"{part}.csv")
    write_folder_records(root / "pictures", root / "rec")
    return root


@pytest.fixture
def place(written_files, tmp_path, monkeypatch):
    """A copy of these files, in which the test works."""
    shutil.copytree(written_files, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture
def records(place):
    return place / "rec"


def load(name, *root, **options):
    return load_dataset(name, *root, **{"decoders": 1, **options})


@pytest.mark.parametrize(("source", "name"), [("list:train.csv", "here"), ("record:rec/train.rec", "rec")])
@pytest.mark.parametrize("memory", [0, pytest.param(2**30, marks=pytest.mark.long)])
def test_the_images_are_those_of_the_folder(place, source, name, memory):
    folder, result = load(f"folder:{place / 'pictures'}", memory=memory), load(source, memory=memory)
    assert result.classes == folder.classes == CLASSES and result.name == name
    assert isinstance(result.train, FileSplit) is (memory == 0)
    assert_same_splits(result, folder)
    if not memory:
        crops = [dataset.train.start_reading(np.array([3, 1]), [5, 6]).result()[0] for dataset in (result, folder)]
        np.testing.assert_array_equal(*crops)


def assert_one_line_error(name, words, **options):
    with pytest.raises(DataError) as caught:
        load(name, **options)
    message = str(caught.value)
    assert all(word in message for word in words) and "\n" not in message, message


# --- CSV lists


def write_variants(lines):
    """Yield the same list, written in different write_variants."""
    rows = [line.split(",") for line in lines]
    yield "\n".join(lines)
    yield "\r\n".join(["image,label", *lines, ""])
    yield "\ufeff" + "\n".join(["Path, Class", *(f"{a}, {b}" for a, b in rows)])
    yield "\n".join(["id,label,filename", *(f"7,{b},{a}" for a, b in rows)])
    yield "\n".join(["a,b", "", *(f'"{a}","{b}"' for a, b in rows), ",", ""])
    yield "\n".join(f"./pictures/../{a},{b}" for a, b in rows)


def test_every_way_to_write_a_list_is_read_alike(place):
    lines = (place / "train.csv").read_text().splitlines()[1:]
    expected = find_listed_images("train.csv")
    for text in write_variants(lines):
        (place / "train.csv").write_bytes(text.encode())
        result = find_listed_images("train.csv")
        assert (result.classes, result.train[0]) == (CLASSES, expected.train[0])
        assert (result.train[1] == expected.train[1]).all()


def test_names_with_commas_quotes_and_letters_of_any_script(place):
    images = ['a, "b".jpg', "é.jpg", "画像"]
    for number, name in enumerate(images):
        (place / name).write_bytes(encode_image(make_image(number)))
    text = '"a, ""b"".jpg",Ä b\n"é.jpg","c,d"\n画像,Ä b\n'
    (place / "own.csv").write_text(text, encoding="utf-8")
    result = read_image_list(place / "own.csv", place)
    assert list(result.locations) == [str(place / name) for name in images]
    assert list(result.labels) == ["Ä b", "c,d", "Ä b"]


@given(st.lists(st.integers(0, 30), min_size=2, max_size=8).filter(lambda them: len({*them}) > 1))
def test_whole_numbers_are_classes_in_their_order(labels):
    data = ListedImages(make_list([*map(str, labels)]), make_list([str(labels[0])]), None)
    values = sorted(set(labels))
    assert data.classes == tuple(map(str, values))
    assert [values[label] for label in data.train[1]] == labels
    assert any("become the class names" in line for line in data.warnings()) is (values != [*range(len(values))])


@given(st.lists(st.sampled_from(["0", "1", "01", "x", "é"]), min_size=2, max_size=8))
def test_other_labels_are_names(labels):
    if len({*labels}) > 1 and "x" in labels:
        data = ListedImages(make_list(labels), make_list(labels[:1]), None)
        assert data.classes == tuple(sorted(set(labels)))
        assert [data.classes[label] for label in data.train[1]] == labels


def make_list(labels):
    names = [f"{number}.jpg" for number in range(len(labels))]
    return ImageList(Path("a.csv"), names, labels, names)


def test_the_folder_of_the_images_is_that_of_the_list_or_of_data_dir(place, tmp_path):
    aside = tmp_path / "lists"
    aside.mkdir()
    for part in ("train", "val"):
        (place / f"{part}.csv").rename(aside / f"{part}.csv")
    with pytest.raises(DataError, match=r"are missing .*9 of .* use paths relative to .*/lists"):
        load(f"list:{aside}/train.csv")
    assert len(find_listed_images(f"{aside}/train.csv", str(place)).train[0]) == 9
    with pytest.raises(DataError, match="--data-dir nowhere is not a folder"):
        load(f"list:{aside}/train.csv", "nowhere")


def test_links_lead_anywhere_and_names_do_not(place, tmp_path):
    lines = (place / "train.csv").read_text()
    (place / "pictures").rename(tmp_path / "far")
    for outside in (f"{tmp_path}/far/train", "../far/train", "pictures/../../far/train"):
        (place / "train.csv").write_text(lines.replace("pictures/train", outside))
        with pytest.raises(DataError, match=r"line 2 lists .* outside .*here: .* --data-dir"):
            load("list:train.csv")
    (place / "train.csv").write_text(lines.replace("pictures/train", f"{tmp_path}/far/train"))
    assert len(read_image_list(place / "train.csv", tmp_path).locations) == 9
    (place / "pictures").symlink_to(tmp_path / "far")
    (place / "train.csv").write_text(lines)
    assert len(find_listed_images("train.csv").train[0]) == 9


def test_images_are_held_out_whatever_their_order(place):
    (place / "val.csv").unlink()
    result = find_listed_images("train.csv", None, 0.34)
    assert sorted(result.train[1]) == [0, 0, 1, 1, 2, 2] and sorted(result.val[1]) == [0, 1, 2]
    header, *lines = (place / "train.csv").read_text().splitlines()
    (place / "train.csv").write_text("\n".join([header, *lines[::-1]]))
    assert set(find_listed_images("train.csv", None, 0.34).val[0]) == set(result.val[0])


def test_images_in_both_lists_and_classes_without_validation_images_cause_warnings(place):
    lines = (place / "val.csv").read_text().splitlines()
    (place / "val.csv").write_text("\n".join([*lines[:3], "pictures/train/bee/0000.jpg,bee"]))
    with pytest.warns(GluonlabWarning, match="1 image is listed for training and for validation"):
        message = find_listed_images("train.csv").warnings()
    assert message == ["there are no validation images of the classes cow"]


A, B = "pictures/train/ant/0000.jpg", "pictures/train/bee/0000.jpg"
SPOILED_LISTS = {
    "missing": (f"{A},ant\nx.jpg,bee", ["(1 of 2)", "x.jpg in line 2"]),
    "windows": (f"{A},ant\n{B.replace('/', chr(92))},bee", ["write / between folders, not \\"]),
    "folder": (f"{A},ant\npictures/train,bee", ["pictures/train in line 2", "regular files"]),
    "no label": (f"{A},ant\n{B},", ["line 2 has no label for pictures/train/bee", "remove"]),
    "no image": (f"{A},ant\n,bee", ["line 2 does not name an image", "write image,label"]),
    "twice": (f"{A},ant\n{B},bee\n{A},ant", ["line 3 lists", "which line 1 already lists", "once"]),
    "columns": (f"{A},ant\n{B},bee,1", ["line 2 has 3 columns, but the first", "quotes"]),
    "one column": (f"{A}\n{B}", ["line 1 has only 1 column: write image,label"]),
    "semicolons": (f"{A};ant\n{B};bee", ["contains semicolons instead of commas"]),
    "tabs": (f"{A}\tant\n{B}\tbee", ["contains tabs instead of commas"]),
    "three columns": (f"{A},ant,1\n{B},bee,2", ["line 1 has 3 columns", "or add a header"]),
    "several labels": (f"image,label1,label2\n{A},1,2", ["line 1 has 3 columns", "a header"]),
    "two labels": (f"image,class,class_name\n{A},1,ant", ["2 possible label columns (class, class_name)"]),
    "swapped": (f"ant,{A}\nbee,{B}", ["in its second column", "header label,image"]),
    "empty": ("", ["lists no images", "write image,label"]),
    "header": ("image,label\n", ["lists no images"]),
    "one class": (f"{A},ant\n{B},ant", ["contains only one class, ant", "at least two"]),
    "quote": (f'{A},ant\n"{B},bee', ["line 2 is not valid CSV", "close each quote"]),
    "control": (f"{A},ant\n{B},b\x1b[2J", ["line 2 has no label"]),
    "nul": (f"{A},ant\npictures\0,bee", ["line 2"]),
    "other class": (f"{A},ant\n{B},fly", ["val.csv contains the class bee, but", "does not"]),
}


@pytest.mark.parametrize("fault", SPOILED_LISTS)
def test_a_fault_of_a_list_is_one_line_that_names_it(fault, place):
    text, words = SPOILED_LISTS[fault]
    (place / "train.csv").write_text(text)
    assert_one_line_error("list:train.csv", words)


@pytest.mark.parametrize("content", [f"{A},Gruß".encode("latin-1"), f"{A},ant".encode("utf-16")])
def test_other_encodings_are_named(place, content):
    (place / "train.csv").write_bytes(content)
    with pytest.raises(DataError, match=r"train.csv is not UTF-8 text: save it as a CSV file"):
        load("list:train.csv")


# --- record files

MAGIC = (0xCED7230A).to_bytes(4, "little")
RECORDS = [encode_image(make_image(label, seed=seed)) for seed in range(3) for label in range(3)]
LABELS = [0, 1, 2] * 3


def test_the_idx_is_not_needed_and_without_the_lst_classes_are_numbers(records):
    for path in records.iterdir():
        if path.suffix != ".rec":
            path.unlink()
    assert find_record_images(f"{records}/train.rec").classes == ("0", "1", "2")


def test_a_lst_that_does_not_tell_classes_apart_names_none(records):
    lines = (records / "train.lst").read_text().replace("bee/", "ant/")
    (records / "train.lst").write_text(lines)
    (records / "val.lst").unlink()
    assert find_record_images("rec/train.rec").classes == ("0", "1", "2")


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
    data = find_record_images(f"{tmp_path}/a.rec", 0.34)
    assert sorted(data.train[1]) == [0, 0, 1, 1, 2, 2] and sorted(data.val[1]) == [0, 1, 2]
    write_records(tmp_path / "b.rec", RECORDS[::-1], LABELS[::-1], ids=range(18, 9, -1))
    reversed_data = find_record_images(f"{tmp_path}/b.rec", 0.34)
    held_out = [{open_image_file(place).read() for place in images.val[0]} for images in (data, reversed_data)]
    assert held_out[0] == held_out[1]
    for place in (*data.train[0], *data.val[0]):
        number = int(re.search(r"a\.rec, record (\d+)$", place.name)[1])
        assert open_image_file(place).read() == RECORDS[number]


def test_two_files_and_other_names(records):
    (records / "train.rec").rename(records / "pets_train.rec")
    (records / "val.rec").rename(records / "pets_test.rec")
    assert len(find_record_images(f"{records}/pets_train.rec").val[0]) == 6
    (records / "pets_test.rec").rename(records / "other.rec")
    assert len(find_record_images(f"{records}/pets_train.rec,{records}/other.rec").val[0]) == 6
    (records / "pets_train.rec").rename(records / "a,b.rec")
    assert len(find_record_images(f"{records}/a,b.rec", 0.4).val[0]) == 3


def test_a_digest_tells_other_records_apart(tmp_path):
    digests = []
    for images in (RECORDS, [*RECORDS[:-1], RECORDS[-1] + b"\0" * 4], RECORDS):
        places = read_records(write_records(tmp_path / "a.rec", images, LABELS)).locations
        decoders = SimpleNamespace(size=16)  # a digest decodes nothing
        digests.append(split_fingerprint(FileSplit(places, np.array(LABELS), decoders)))
    assert digests[0] == digests[2] != digests[1]


def test_labels_with_gaps_are_classes_of_these_names(tmp_path):
    write_records(tmp_path / "a.rec", RECORDS, [0, 5, 900_000] * 3)
    data = find_record_images(f"{tmp_path}/a.rec", 0.4)
    assert data.classes == ("0", "5", "900000") and data.train[1].max() == 2
    assert any("the 3 different labels from 0 to 900000 become classes 0 to 2" in it for it in data.warnings())


def write_label(label):
    return lambda path: write_records(path, RECORDS, [0, 1, label] * 3)


def write_record(path, content=b"short"):
    writer = recordio.MXRecordIO(str(path), "w")
    writer.write(content)
    writer.close()


def rename_class(path):
    other = path.with_name("val.lst")
    other.write_text(other.read_text().replace("bee/", "fly/"))


SPOILED_RECORDS = {
    "truncated": (
        lambda path: path.write_bytes(path.read_bytes()[:-9]),
        ["truncated, damaged or not a record file after 8 records", "im2rec"],
    ),
    "zeros": (lambda path: path.write_bytes(path.read_bytes() + b"\0" * 8), ["after 9 records, at byte"]),
    "no records": (lambda path: path.write_bytes(b"x" * 99), ["at its beginning, at byte 0 of"]),
    "empty": (lambda path: path.write_bytes(b""), ["contains no records", "im2rec"]),
    "empty record": (lambda path: write_record(path, b""), ["record 0 does not contain an image"]),
    "short": (write_record, ["train.rec, record 0 does not contain an image with a label"]),
    "several labels": (write_label([1.0, 2.0]), ["record 2 has a label of 2 numbers", "one class number"]),
    "fraction": (write_label(0.5), ["record 2 has the label 0.5", "whole numbers starting at 0"]),
    "negative": (write_label(-1), ["record 2 has the label -1"]),
    "nan": (write_label(float("nan")), ["record 2 has the label nan"]),
    "one class": (lambda path: write_records(path, RECORDS, [3] * 9), ["contains only one class, 3"]),
    "no image": (
        lambda path: write_records(path, [b"no image"] * 9, LABELS),
        ["train.rec, record 0 is not a JPEG, PNG", "--skip-corrupt"],
    ),
    "other class": (
        lambda path: write_records(path.with_name("val.rec"), RECORDS, [0, 1, 7] * 3),
        ["val.rec contains the class 7, but", "train.rec does not: add"],
    ),
    "other names": (rename_class, ["label 1 is bee in", "but fly in", "same class numbers in both"]),
}


@pytest.mark.parametrize("fault", SPOILED_RECORDS)
def test_a_fault_of_a_record_file_is_one_line_that_names_it(fault, records):
    spoil, words = SPOILED_RECORDS[fault]
    spoil(records / "train.rec")
    assert_one_line_error(f"record:{records}/train.rec", words, memory=2**30)


WRONG_NAMES = {
    "missing.rec": ["missing.rec does not exist: use an existing .rec file"],
    "train.idx": ["train.idx is not a .rec file", "such as record:train.rec"],
    "train.lst": ["train.lst is not a .rec file", "such as record:train.rec"],
    ".": [". is a folder: use a .rec file"],
    "train.rec,val.rec,more.rec": ["does not name one or two files", "record:train.rec,val.rec"],
    "train.rec,": ["does not name one or two files"],
    "val.rec": ["there is no validation file, such as", "--val-split 0.2", "record:val.rec,FILE"],
    "~nobody-here/train.rec": ["names an unknown home directory"],
}


@pytest.mark.parametrize("name", WRONG_NAMES)
def test_wrong_names_are_refused(name, records, monkeypatch):
    monkeypatch.chdir(records)
    assert_one_line_error(f"record:{name}", WRONG_NAMES[name])


def test_options_that_contradict_the_files_are_refused(records, monkeypatch):
    monkeypatch.chdir(records)
    with pytest.raises(
        DataError, match=r"--val-split 0.2 would hold .*train.rec, but the validation file val.rec exists"
    ):
        load("record:train.rec", val_share=0.2)
    with pytest.raises(DataError, match=r"data set 'train.rec' is a file: use record:train.rec"):
        load_dataset("train.rec")
    with pytest.raises(DataError, match=r"is read from the path in its name, not from \."):
        load_dataset("record:train.rec", ".")
