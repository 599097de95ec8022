"""Packed folders: the same pixels as the folder's, whole or not there, and damage is noticed."""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.full_disk import limit_file_size
from support.image_folders import write_image_folder
from support.processes import clean_environment
from support.records import assert_same_splits
from support.waiting import LIMIT_S, wait_until

from gluonlab.data import ArraySplit, load_dataset
from gluonlab.data.__main__ import main
from gluonlab.data.sets.dataset_registry import DATASETS, has_image_files, image_file_datasets, is_packed_dataset
from gluonlab.data.sets.packed_folder import INDEX, PackedSplit, pack_dataset
from gluonlab.errors import DataError, OutputError


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_image_folder(tmp_path_factory.mktemp("data") / "animals", train=90)


@pytest.fixture(scope="module")
def dataset(source):
    return load_dataset(f"folder:{source}", decoders=1)


@pytest.fixture(scope="module")
def packed_once(dataset, tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed") / "packed"
    pack_dataset(dataset, folder)
    return folder


@pytest.fixture
def packed(packed_once, tmp_path):
    """A copy, which a test may damage."""
    return Path(shutil.copytree(packed_once, tmp_path / "packed"))


@pytest.mark.parametrize("memory", [0, 2**30])
def test_a_packed_folder_equals_the_original_data_set(dataset, packed, memory):
    copy = load_dataset(f"folder:{packed}", memory=memory)
    for name in ("name", "classes", "image_shape", "defaults", "normalization"):
        assert getattr(copy, name) == getattr(dataset, name)
    assert_same_splits(copy, dataset)
    assert type(copy.train) is type(copy.test) is (ArraySplit if memory else PackedSplit)
    images, labels = copy.train.batch(np.array([100, 3, 3]))
    assert np.array_equal(images[1], images[2]) and labels.tolist() == [1, 0, 0]
    assert (images.dtype, labels.dtype) == (np.uint8, np.int32)


@pytest.mark.parametrize("is_packed", [False, True])
def test_packed_folders_are_recognized_by_path_or_by_the_name_of_a_data_set(source, packed, is_packed, monkeypatch):
    folder = packed if is_packed else source
    animals = DATASETS["folder:PATH"]._replace(find=lambda root: Path(root) / folder.name)
    monkeypatch.setitem(DATASETS, "animals", animals)
    assert has_image_files("animals") and "animals" in image_file_datasets()
    assert is_packed_dataset("animals", str(folder.parent)) is is_packed
    assert is_packed_dataset(f"folder:{folder}") is is_packed


def test_an_existing_target_is_refused_before_decoding_and_an_invalid_image_leaves_nothing(ended, dataset, empty_cwd):
    root = write_image_folder(empty_cwd / "animals")
    (root / "val" / "bee" / "0001.jpg").write_bytes(b"")
    with pytest.raises(DataError, match=r"bee/0001.jpg"):
        pack_dataset(load_dataset(f"folder:{root}", decoders=1), empty_cwd / "packed")
    assert [path.name for path in empty_cwd.iterdir()] == ["animals"]
    (empty_cwd / "existing").mkdir()
    message = "error: --out existing exists: use a new folder, so that no files are overwritten\n"
    assert ended(main, "pack", f"folder:{root}", "--skip-corrupt", "--out", "existing") == (2, "", message)
    with pytest.raises(OutputError, match="existing exists: use a new folder"):
        pack_dataset(dataset, empty_cwd / "existing")
    assert list((empty_cwd / "existing").iterdir()) == []


def test_a_full_disk_is_an_error_and_leaves_nothing_behind(dataset, tmp_path):
    with limit_file_size(20_000), pytest.raises(OutputError, match=r"File too large; choose another path with --out"):
        pack_dataset(dataset, tmp_path / "packed")
    assert list(tmp_path.iterdir()) == []


def edit(name, change):
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def reindex(**changes):
    def change(content):
        return json.dumps({**json.loads(content), **changes}).encode()

    return edit(INDEX, change)


NOT_PLAIN = ["../../../outside", "/outside", "a\x1b[2J", "a\0b", "..", "", "x" * 300, "\ud800"]
DEEP_OR_LONG = ["[" * 100_000, '{"name": ' * 50_000, "1" * 5000, "\0" * 2**25]
DAMAGES = {
    **{repr(name)[:9]: (reindex(name=name), "pack.json: was not written") for name in NOT_PLAIN},
    **{content[:9]: (edit(INDEX, lambda _, content=content: content.encode()), INDEX) for content in DEEP_OR_LONG},
    "no json": (edit(INDEX, lambda content: content[:-5]), "pack.json: was not written by gluonlab data pack"),
    "another format": (reindex(format=2), "pack.json: was not written"),
    "no classes": (reindex(classes=3), "pack.json: was not written"),
    "fewer classes": (reindex(classes=["ant", "bee"]), "labels from 0 to 2 for 2 classes"),
    "another shape": (reindex(image_shape=[3, 8, 8]), r"images of shape \(270, 3, 16, 16\)"),
    "gray images": (reindex(image_shape=[1, 16, 16]), "images of 1x16x16, expected squares with 3 channels"),
    "oblong images": (reindex(image_shape=[3, 16, 8]), "images of 3x16x8, expected squares"),
    "truncated": (edit("train-images.npy", lambda content: content[:-1]), "train-images.npy: damaged"),
    "empty": (edit("train-images.npy", lambda content: b""), "train-images.npy: "),
    "other values": (edit("test-labels.npy", lambda content: content.replace(b"<i4", b"<f4")), "contains other values"),
    "missing": (lambda folder: (folder / "test-labels.npy").unlink(), "cannot be read .No such file"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_reported_with_the_file(packed, kind):
    spoil, message = DAMAGES[kind]
    spoil(packed)
    with pytest.raises(DataError, match=f"{message}.*pack the folder again"):
        load_dataset(f"folder:{packed}")


@settings(max_examples=60)
@given(st.data())
def test_damaged_files_give_a_data_set_or_a_data_error(packed_once, tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp() / "damaged-pack"
    if not folder.exists():
        shutil.copytree(packed_once, folder)
    path = data.draw(st.sampled_from(sorted(folder.iterdir())))
    whole = path.read_bytes()
    place, length = data.draw(st.integers(0, min(len(whole), 200))), data.draw(st.integers(0, 8))
    path.write_bytes(whole[:place] + data.draw(st.binary(max_size=8)) + whole[place + length :])
    try:
        load_dataset(f"folder:{folder}")
    except DataError as error:
        assert "\n" not in str(error)
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize("change", ["cut", "written to"])
def test_a_packed_file_that_changes_while_it_is_in_use_is_an_error(packed, change):
    """Reading mapped pixels that were cut off would end the process by SIGBUS."""
    data = load_dataset(f"folder:{packed}")
    assert not isinstance(data.train, ArraySplit)
    data.train.batch(np.arange(4))
    path = packed / "train-images.npy"
    if change == "cut":
        os.truncate(path, 4096)
    else:
        content = path.read_bytes()
        with path.open("r+b") as file:
            file.write(content)
        os.utime(path, ns=(1, 1))  # some disks count time in seconds
    message = f"{path}: was changed during use: pack the folder again"
    with pytest.raises(DataError, match=re.escape(message)):
        data.train.batch(np.arange(len(data.train)))


def test_a_packed_file_that_vanishes_or_is_replaced_is_read_to_the_end(packed):
    data = load_dataset(f"folder:{packed}")
    before, _ = data.train.batch(np.arange(len(data.train)))
    (packed / "train-images.npy").unlink()
    (packed / "train-images.npy").write_bytes(b"another")
    assert np.array_equal(before, data.train.batch(np.arange(len(data.train)))[0])


REFUSED = {
    "image_size": (32, "was packed with images of 16x16 pixels: omit --image-size, or pack the"),
    "decoders": (2, "are already decoded: omit --workers"),
    "skip_bad": (True, "are already decoded: omit --skip-corrupt"),
    "val_share": (0.3, "--val-split 0.3 cannot be used with"),
    "random_resized_crop": (True, "--random-resized-crop needs image files, but"),
}


@pytest.mark.parametrize("option", REFUSED)
def test_options_for_image_files_are_refused_where_they_were_packed(packed, option):
    given, message = REFUSED[option]
    with pytest.raises(DataError, match=message):
        load_dataset(f"folder:{packed}", **{option: given})
    assert load_dataset(f"folder:{packed}", image_size=16).image_shape == (3, 16, 16)


# --- the command


def test_the_command_packs_and_says_what_to_do_next(ended, source, empty_cwd):
    status, out, err = ended(main, "pack", f"folder:{source}", "--out", "packed", "--image-size", "8")
    assert (status, err) == (0, "")
    assert out.startswith("packed 270 training and 9 validation images of 3x8x8, ")
    assert out.endswith("--dataset folder:packed\n")
    assert load_dataset("folder:packed").image_shape == (3, 8, 8)


HELD = """
import os, sys, time

def hold(event, arguments):
    is_decoder = "decoder_process" in sys.argv[0]
    if event == "open" and is_decoder and str(arguments[0]).endswith("bee/0003.jpg"):
        open(os.path.join(os.path.dirname(__file__), "0003.jpg"), "w").close()
        time.sleep(600)

sys.addaudithook(hold)
"""


@pytest.mark.parametrize(("sign", "message"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "ended by SIGTERM")])
def test_a_signal_ends_the_command_and_its_processes_in_order(tmp_path, sign, message):
    root = write_image_folder(tmp_path / "animals")
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "sitecustomize.py").write_text(HELD)
    words = ["pack", f"folder:{root}", "--out", "packed", "--workers", "2"]
    environment = clean_environment(path=[str(tmp_path / "held")])
    process = subprocess.Popen(
        [sys.executable, "-m", "gluonlab.data", *words], cwd=tmp_path, env=environment,
        stderr=subprocess.PIPE, encoding="utf-8",
    )  # fmt: skip
    try:
        wait_until((tmp_path / "held" / "0003.jpg").exists)
        assert list(tmp_path.glob(".packed-*/train-images.npy"))
        process.send_signal(sign)
        # the decoders have this pipe, too: it ends with the last of them
        _, err = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, err.strip()) == (128 + sign, f"{message}: nothing was written")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["animals", "held"]


MISTAKES = {
    ("pack",): ["requires the data set", "folder:PATH --out DIR"],
    ("pack", "folder:x"): ["requires --out DIR"],
    ("pack", "folder:x", "--out", "y"): ["x does not exist"],
    ("pack", "folders:x", "--out", "y"): ["unknown data set 'folders:x'", "folder:PATH"],
    ("pack", "mnist", "--out", "y"): ["mnist has no image files", "imagenette2-320", "folder:PATH"],
    ("pack", "folder:x", "--out", "y", "--image-size", "0"): ["--image-size 0", "from 8"],
    ("pakc",): ["unknown command 'pakc'", "did you mean 'pack'?"],
}


@pytest.mark.parametrize(("arguments", "message"), MISTAKES.items(), ids=" ".join)
def test_a_mistake_is_one_line_with_value_and_remedy(ended, empty_cwd, arguments, message):
    status, out, err = ended(main, *arguments)
    assert (status, out, list(empty_cwd.iterdir())) == (2, "", [])
    [line] = err.splitlines()
    assert [words for words in message if words not in line] == [], line


def test_a_data_set_is_packed_under_a_plain_name(dataset, tmp_path):
    pack_dataset(dataclasses.replace(dataset, name="../my images"), tmp_path / "packed")
    assert load_dataset(f"folder:{tmp_path / 'packed'}").name == "..-my-images"
