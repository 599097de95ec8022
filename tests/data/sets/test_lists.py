"""CSV lists of images and labels: the images of a folder, named one by one."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.image_folders import CLASSES, encode_image, make_image, write_image_folder
from support.records import assert_same_splits, write_folder_list

from gluonlab.data import load_dataset
from gluonlab.data.sets.csv_and_record_files import ImageList, ListedImages, read_image_list
from gluonlab.data.sets.csv_and_record_files import find_listed_images as find_images
from gluonlab.errors import DataError, GluonlabWarning


@pytest.fixture(scope="module")
def written_files(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    write_image_folder(root / "pictures", train=3, val=2)
    for part in ("train", "val"):
        write_folder_list(root / "pictures" / part, root / f"{part}.csv")
    return root


@pytest.fixture
def place(written_files, tmp_path, monkeypatch):
    """A copy of the folder with both lists, in which the test works."""
    shutil.copytree(written_files, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def load(name, *root, **options):
    return load_dataset(f"list:{name}", *root, **{"decoders": 1, **options})


@pytest.mark.parametrize("memory", [0, pytest.param(2**30, marks=pytest.mark.long)])
def test_the_images_are_those_of_the_folder(written_files, memory):
    folder = load_dataset(f"folder:{written_files / 'pictures'}", decoders=1, memory=memory)
    result = load(written_files / "train.csv", memory=memory)
    assert result.classes == folder.classes == CLASSES
    assert_same_splits(result, folder)


def ways(lines):
    """The same list, written in other ways."""
    image = [line.split(",")[0] for line in lines]
    label = [line.split(",")[1] for line in lines]
    rows = list(zip(image, label))
    yield "\n".join(lines)
    yield "\r\n".join(["image,label", *lines, ""])
    yield "\ufeff" + "\n".join(["Path, Class", *(f"{a}, {b}" for a, b in rows)])
    yield "\n".join(["id,label,filename", *(f"7,{b},{a}" for a, b in rows)])
    yield "\n".join(["a,b", "", *(f'"{a}","{b}"' for a, b in rows), ",", ""])
    yield "\n".join(f"./pictures/../{a},{b}" for a, b in rows)


def test_every_way_to_write_a_list_is_read_alike(place):
    lines = (place / "train.csv").read_text().splitlines()[1:]
    expected = find_images("train.csv")
    for text in ways(lines):
        (place / "train.csv").write_bytes(text.encode())
        result = find_images("train.csv")
        assert result.train[0] == expected.train[0]
        assert result.classes == CLASSES and (result.train[1] == expected.train[1]).all()


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
    data = ListedImages(listed([*map(str, labels)]), listed([str(labels[0])]), None)
    values = sorted(set(labels))
    assert data.classes == tuple(map(str, values))
    assert [values[label] for label in data.train[1]] == labels
    assert any("a network numbers them" in line for line in data.warnings()) is (values != [*range(len(values))])


@given(st.lists(st.sampled_from(["0", "1", "01", "x", "é"]), min_size=2, max_size=8))
def test_other_labels_are_names(labels):
    if len({*labels}) > 1 and "x" in labels:
        data = ListedImages(listed(labels), listed(labels[:1]), None)
        assert data.classes == tuple(sorted(set(labels)))
        assert [data.classes[label] for label in data.train[1]] == labels


def listed(labels):
    names = [f"{number}.jpg" for number in range(len(labels))]
    return ImageList(Path("a.csv"), names, labels, names)


def test_the_folder_of_the_images_is_that_of_the_list_or_of_data_dir(place, tmp_path):
    aside = tmp_path / "lists"
    aside.mkdir()
    for part in ("train", "val"):
        (place / f"{part}.csv").rename(aside / f"{part}.csv")
    with pytest.raises(DataError, match=r"9 of them are missing .* paths are relative to .*/lists"):
        load(aside / "train.csv")
    assert len(find_images(f"{aside}/train.csv", str(place)).train[0]) == 9
    with pytest.raises(DataError, match="--data-dir nowhere is not a folder"):
        load(aside / "train.csv", "nowhere")


def test_links_lead_anywhere_and_names_do_not(place, tmp_path):
    lines = (place / "train.csv").read_text()
    (place / "pictures").rename(tmp_path / "far")
    for outside in (f"{tmp_path}/far/train", "../far/train", "pictures/../../far/train"):
        (place / "train.csv").write_text(lines.replace("pictures/train", outside))
        with pytest.raises(DataError, match=r"line 2 lists .* outside .*here: .* --data-dir"):
            load("train.csv")
    (place / "train.csv").write_text(lines.replace("pictures/train", f"{tmp_path}/far/train"))
    assert len(read_image_list(place / "train.csv", tmp_path).locations) == 9
    (place / "pictures").symlink_to(tmp_path / "far")
    (place / "train.csv").write_text(lines)
    assert len(find_images("train.csv").train[0]) == 9


def test_images_are_held_out_whatever_their_order(place):
    (place / "val.csv").unlink()
    result = find_images("train.csv", None, 0.34)
    assert sorted(result.train[1]) == [0, 0, 1, 1, 2, 2] and sorted(result.val[1]) == [0, 1, 2]
    turned = (place / "train.csv").read_text().splitlines()
    (place / "train.csv").write_text("\n".join(turned[:1] + turned[:0:-1]))
    assert set(find_images("train.csv", None, 0.34).val[0]) == set(result.val[0])


def test_what_is_listed_twice_or_never_is_said(place):
    lines = (place / "val.csv").read_text().splitlines()
    (place / "val.csv").write_text("\n".join([*lines[:3], "pictures/train/bee/0000.jpg,bee"]))
    with pytest.warns(GluonlabWarning, match="1 image is listed for training and for validation"):
        said = find_images("train.csv").warnings()
    assert said == ["no validation image is of the classes cow"]


A, B = "pictures/train/ant/0000.jpg", "pictures/train/bee/0000.jpg"
SPOILED = {
    "missing": (f"{A},ant\nx.jpg,bee", ["lists 2 images, and 1 of them", "x.jpg in line 2"]),
    "windows": (f"{A},ant\n{B.replace('/', chr(92))},bee", ["write / between folders, not \\"]),
    "folder": (f"{A},ant\npictures/train,bee", ["pictures/train in line 2", "regular files"]),
    "no label": (f"{A},ant\n{B},", ["line 2 has no label for pictures/train/bee", "remove"]),
    "no image": (f"{A},ant\n,bee", ["line 2 names no image", "write image,label"]),
    "twice": (f"{A},ant\n{B},bee\n{A},ant", ["line 3 lists", "as line 1 does", "once"]),
    "columns": (f"{A},ant\n{B},bee,1", ["line 2 has 3 columns, but the first", "quotes"]),
    "one column": (f"{A}\n{B}", ["line 1 has 1 column: write image,label"]),
    "semicolons": (f"{A};ant\n{B};bee", ["separated by semicolons: use commas"]),
    "tabs": (f"{A}\tant\n{B}\tbee", ["separated by tabs: use commas"]),
    "three columns": (f"{A},ant,1\n{B},bee,2", ["line 1 has 3 columns", "or a header"]),
    "several labels": (f"image,label1,label2\n{A},1,2", ["line 1 has 3 columns", "a header"]),
    "two labels": (f"image,class,class_name\n{A},1,ant", ["may be the label, class, class_name"]),
    "swapped": (f"ant,{A}\nbee,{B}", ["in its second column", "header, label,image"]),
    "empty": ("", ["lists no images", "write image,label"]),
    "header": ("image,label\n", ["lists no images"]),
    "one class": (f"{A},ant\n{B},ant", ["has one class, ant", "at least two"]),
    "quote": (f'{A},ant\n"{B},bee', ["line 2 is not CSV", "close each quote"]),
    "control": (f"{A},ant\n{B},b\x1b[2J", ["line 2 has no label"]),
    "other class": (f"{A},ant\n{B},fly", ["val.csv has the class bee, which", "lacks"]),
}


@pytest.mark.parametrize("what", SPOILED)
def test_what_is_wrong_is_one_line_that_names_it(what, place):
    text, words = SPOILED[what]
    (place / "train.csv").write_text(text)
    with pytest.raises(DataError) as caught:
        load("train.csv")
    message = str(caught.value)
    assert all(word in message for word in words) and "\n" not in message, message


def test_other_encodings_are_named(place):
    for content in (f"{A},Gruß".encode("latin-1"), f"{A},ant".encode("utf-16")):
        (place / "train.csv").write_bytes(content)
        with pytest.raises(DataError, match=r"train.csv is not text in UTF-8: save it as CSV"):
            load("train.csv")


def test_a_nul_is_no_traceback(place):
    (place / "train.csv").write_text(f"{A},ant\npictures\0,bee")
    with pytest.raises(DataError, match="line 2"):
        load("train.csv")
