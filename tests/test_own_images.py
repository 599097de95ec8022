"""docs/own-images.md: its commands run on a folder of images, and its lists are the program's."""

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
from gluonlab.data.sets.image_file_splits import TRAIN, VAL
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
    place = tmp_path_factory.mktemp("page")
    write_image_folder(place / "pictures")
    (place / "more-pictures").mkdir()
    write_image_folder(place / "photos")
    write_folder_records(place / "photos", place)
    for copied, name in (("train", "all"), ("val", "other")):
        shutil.copy(place / f"{copied}.rec", place / f"{name}.rec")
    for part in ("train", "val"):
        write_folder_list(place / "photos" / part, place / "photos" / f"{part}.csv")
    shutil.copy(place / "photos" / "train.csv", place / "labels.csv")
    for name in ("a.jpg", "more-pictures/b.png"):
        (place / name).write_bytes(encode_image(make_image(1), "PNG"))
    return place


@pytest.mark.parametrize("line", COMMANDS)
def test_every_option_of_every_command_exists(line):
    _, _, module, *words = shlex.split(line)
    if module == "gluonlab.data":
        command = gluonlab.data.__main__.COMMANDS[words.pop(0)]
    else:
        command = COMMAND_OF[module]
    command.make_context(module, words)


@pytest.mark.long
def test_the_commands_run_in_their_order(folder):
    for line in COMMANDS:
        _, _, module, *words = shlex.split(line)
        words = [word.replace("runs/NAME", "run") for word in words]
        if "--val-share" in words and (folder / "pictures" / "val").exists():
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
    paths = [Path("photos/train/ant/0000.jpg"), Path("photos/train/bee/0000.jpg")]
    assert [open_image_file(image).read() for image in images] == [path.read_bytes() for path in paths]


def test_the_page_names_every_ending_every_folder_and_the_limit():
    said = " ".join(PAGE.split())
    for word in (*SUFFIXES, *TRAIN, *VAL, *IMAGE_COLUMNS, *LABEL_COLUMNS):
        assert re.search(rf"(?<!\w){re.escape(word)}\b", said), word
    assert all(f"`{name}`" in said.lower() for name in SYSTEM_FOLDERS)
    assert f"{MAX_PIXELS // 10**6} million pixels" in said
