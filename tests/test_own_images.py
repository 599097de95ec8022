"""docs/own-images.md: its commands run on a folder of images, and its lists are complete."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.image_folders import encode_image, make_image, write_image_folder
from support.records import write_folder_list, write_folder_records

import gluonlab.data.__main__
import gluonlab.predict
import gluonlab.run
from gluonlab.data.images.decode_image import MAX_PIXELS
from gluonlab.data.images.image_locations import SUFFIXES, open_image_file
from gluonlab.data.sets.csv_and_record_files import IMAGE_COLUMNS, LABEL_COLUMNS, find_record_images
from gluonlab.data.sets.image_file_dataset import TRAIN, VAL
from gluonlab.data.sets.image_folder import SYSTEM_FOLDERS

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "own-images.md").read_text("utf-8")
COMMANDS = [
    line.partition(" #")[0].strip()
    for code in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.M | re.S)
    for line in code.splitlines()
]
COMMAND_OF = {"gluonlab.run": gluonlab.run.main, "gluonlab.predict": gluonlab.predict.main}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with the files that the commands of the page use."""
    folder = tmp_path_factory.mktemp("page")
    for name in ("pictures", "photos"):
        write_image_folder(folder / name)
    (folder / "more-pictures").mkdir()
    write_folder_records(folder / "photos", folder)
    for part in ("train", "val"):
        write_folder_list(folder / "photos" / part, folder / "photos" / f"{part}.csv")
    for source, copy in (("train.rec", "all.rec"), ("val.rec", "other.rec"), ("photos/train.csv", "labels.csv")):
        shutil.copy(folder / source, folder / copy)
    for name in ("a.jpg", "more-pictures/b.png"):
        (folder / name).write_bytes(encode_image(make_image(1), "PNG"))
    return folder


@pytest.mark.parametrize("line", COMMANDS)
def test_every_option_of_every_command_exists(line):
    _, _, module, *words = shlex.split(line)
    commands = gluonlab.data.__main__.COMMANDS
    command = commands[words.pop(0)] if module == "gluonlab.data" else COMMAND_OF[module]
    command.make_context(module, words)


@pytest.mark.long
def test_the_commands_run_in_their_order(folder):
    for line in COMMANDS:
        _, _, module, *words = shlex.split(line)
        words = [word.replace("runs/NAME", "run") for word in words]
        if "--val-split" in words and (folder / "pictures" / "val").exists():
            (folder / "pictures" / "val").rename(folder / "aside")
        if module == "gluonlab.run":
            out = "run" if not (folder / "run").exists() else f"run{len(list(folder.iterdir()))}"
            words += ["--model", "mlp", "--epochs", "1", "--out", out]
        done = subprocess.run([sys.executable, "-m", module, *words], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, (line, done.stderr)
        assert "Traceback" not in done.stderr


def test_the_block_makes_a_record_file(folder, monkeypatch):
    monkeypatch.chdir(folder)
    [block] = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    exec(block, {})
    images = find_record_images("two.rec,two.rec").train[0]
    expected = [Path(f"photos/train/{name}/0000.jpg").read_bytes() for name in ("ant", "bee")]
    assert [open_image_file(image).read() for image in images] == expected


def test_the_page_names_every_ending_every_folder_and_the_limit():
    text = " ".join(PAGE.split())
    for word in (*SUFFIXES, *TRAIN, *VAL, *IMAGE_COLUMNS, *LABEL_COLUMNS):
        assert re.search(rf"(?<!\w){re.escape(word)}\b", text), word
    assert all(f"`{name}`" in text.lower() for name in SYSTEM_FOLDERS)
    assert f"{MAX_PIXELS // 10**6} million pixels" in text
