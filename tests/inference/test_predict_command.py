"""gluonlab predict: tables, sheets of pictures, and mistakes, each one line."""

import csv
import fcntl
import functools
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.commands import file_names, read_error_line
from support.devices import device_spec
from support.image_folders import encode_image, make_image
from support.processes import clean_environment
from support.quick_runs import run_quickly

from gluonlab import load_run
from gluonlab.data.images.decode_image import decode_image
from gluonlab.data.images.resize_image import default_resizer
from gluonlab.inference import predictions
from gluonlab.inference.predictions import Predictions, predictions_as_text
from gluonlab.predict import main
from gluonlab.training.evaluate_run import evaluate_run

pytestmark = pytest.mark.filterwarnings("ignore:no GPU on this machine:gluonlab.errors.GluonlabWarning")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run on the digits."""
    return run_quickly(tmp_path_factory.mktemp("runs"), lr=0.01).run_dir


@pytest.fixture
def predict(ended, empty_cwd):
    return functools.partial(ended, main)


@pytest.fixture
def pictures(tmp_path):
    """a.png, b.jpg, more/c.PNG, and other files."""
    folder = tmp_path / "pictures"
    (folder / "more").mkdir(parents=True)
    make_image(0, 30, 40).save(folder / "a.png")
    make_image(1, 28, 28).save(folder / "b.jpg")
    make_image(2, 9, 9).save(folder / "more" / "c.PNG", "PNG")
    (folder / "notes.txt").write_text("no picture")
    (folder / ".hidden.png").write_text("no picture")
    return folder


def test_table_json_and_csv_equal_the_python_result(predict, finished, pictures):
    result = load_run(finished, devices=device_spec(1)).predict(pictures)
    assert [Path(name).name for name in result.images] == ["a.png", "b.jpg", "c.PNG"]
    expected = [(name, *guess) for name, best in zip(result.images, result.top(2)) for guess in best]
    words = (str(finished), str(pictures), "--devices", device_spec(1), "--top-k", "2")
    status, out, err = predict(*words, "--json")
    assert (status, err) == (0, "")
    rows = [(row["image"], *guess.values()) for row in json.loads(out)["images"] for guess in row["top"]]
    assert rows == expected
    rows = csv.DictReader(io.StringIO(predict(*words, "--csv")[1]))
    assert [(row["image"], row["class"], float(row["probability"])) for row in rows] == expected
    lines = predict(*words)[1].splitlines()
    assert lines[0].split() == ["image", "class", "probability"]
    assert len(lines) == 7 and lines[1].endswith(f"{expected[0][2]:.4f}")
    assert len(set(map(len, lines))) == 1


@pytest.mark.long
def test_standard_input_is_the_file(predict, finished, pictures, monkeypatch):
    file = pictures / "a.png"
    words = ("--devices", device_spec(1), "--json")
    with open(file, encoding="latin-1") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        [piped] = json.loads(predict(str(finished), "-", *words)[1])["images"]
    [named_one] = json.loads(predict(str(finished), str(file), *words)[1])["images"]
    assert (piped.pop("image"), named_one.pop("image")) == ("-", str(file))
    assert piped == named_one


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "standard input is empty"),
        (b"text", "standard input is not a JPEG, PNG"),
        (encode_image(make_image(0), "PNG")[:-40], "standard input is damaged"),
    ],
)
def test_standard_input_without_an_image_is_refused(predict, finished, empty_cwd, tmp_path, monkeypatch, content, said):
    (tmp_path / "piped").write_bytes(content)
    with open(tmp_path / "piped", encoding="latin-1") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert said in read_error_line(predict(str(finished), "-"), empty_cwd)


def test_wrong_draws_and_names_exactly_the_images_that_the_run_gets_wrong(predict, finished, empty_cwd, monkeypatch):
    drawn = []

    def draw(title, tiles):
        drawn.extend([title, *tiles])
        return draw_sheet(title, tiles)

    draw_sheet = predictions.draw_sheet
    monkeypatch.setattr(predictions, "draw_sheet", draw)
    result = load_run(finished, devices=device_spec(1)).mistakes()
    words = (str(finished), "--misclassified", "--devices", device_spec(1))
    status, out, err = predict(*words, "--json", "--grid", "wrong.png")
    document = json.loads(out)
    assert (status, err, document["sheet"], file_names(empty_cwd)) == (0, "", "wrong.png", ["wrong.png"])
    accuracy = evaluate_run(str(finished), devices=device_spec(1)).score.accuracy
    assert (document["images"], document["accuracy"]) == (360, accuracy)
    assert [(row["number"], row["true"], row["predicted"]) for row in document["wrong"]] == [
        (wrong.number, wrong.true, wrong.predicted) for wrong in result.wrong
    ]
    title, *tiles = drawn
    assert title.startswith(f"{len(result.wrong)} of 360 validation images misclassified by digits, accuracy 0.")
    assert sorted([words for words, _ in tile.lines] for tile in tiles) == sorted(
        [f"true {it.true}", f"predicted {it.predicted}", f"{it.probability:.1%}", f"no. {it.number}"]
        for it in result.wrong
    )
    probabilities = [float(tile.lines[2][0].rstrip("%")) for tile in tiles]
    assert probabilities == sorted(probabilities, reverse=True)
    assert Image.open("wrong.png").format == "PNG"


def test_an_earlier_picture_of_mistakes_is_replaced_and_no_other_file(predict, finished, empty_cwd):
    words = (str(finished), "--misclassified", "--devices", device_spec(1))
    status, out, _ = predict(*words, "--json")
    assert (status, json.loads(out)["sheet"], file_names(empty_cwd)) == (0, None, [])
    for _ in range(2):
        status, out, _ = predict(*words)
        assert status == 0 and out.endswith("written to wrong.png\n")
    Image.new("RGB", (3, 3)).save("wrong.png")
    before = (empty_cwd / "wrong.png").read_bytes()
    status, out, err = predict(*words)
    assert (status, out) == (2, "") and "--grid wrong.png exists: choose another name" in err
    assert (empty_cwd / "wrong.png").read_bytes() == before
    assert "must end in .png" in predict(*words, "--grid", "wrong.jpg")[2]


def test_a_sheet_shows_each_picture_as_the_network_sees_it(predict, finished, pictures, empty_cwd):
    words = (str(finished), str(pictures / "a.png"), "--devices", device_spec(1))
    status, out, _ = predict(*words, "--grid", "sheet.png")
    assert status == 0 and out.endswith("\n\nwritten to sheet.png\n")
    drawn = np.asarray(Image.open("sheet.png"))
    pixels = decode_image(str(pictures / "a.png"), 28, resizer=default_resizer())
    seen = Image.fromarray(pixels.transpose(1, 2, 0))
    gray = np.asarray(seen.convert("L"))
    top, left = predictions.MARGIN + 2 * predictions.LINE, predictions.MARGIN
    tile = drawn[top : top + predictions.TILE_SIDE, left : left + predictions.TILE_SIDE]
    np.testing.assert_array_equal(tile, gray.repeat(4, 0).repeat(4, 1)[:, :, None].repeat(3, 2))
    status, out, err = predict(*words, "--grid", "sheet.png")
    assert (status, out) == (2, "") and "--grid sheet.png exists" in err


def test_names_of_any_letters_and_length_are_drawn_within_their_picture():
    pixels = np.zeros((3, 40, 300), np.uint8)
    words = ["w" * 500, "naïve Ωμέγα", "\x1b[2J", "", "a\nb"]
    tiles = [predictions.Tile(pixels, [(each, predictions.BLACK)]) for each in words]
    image = np.asarray(predictions.draw_sheet("t", tiles))
    across = predictions.TILE_SIDE + predictions.GAP
    assert image.shape[1] == 2 * predictions.MARGIN + 4 * across - predictions.GAP
    gaps = image[:, predictions.MARGIN + predictions.TILE_SIDE :: across]
    assert (gaps[predictions.MARGIN + predictions.TITLE :, :3] == 255).all()


# arguments after the run -> words of the error
MISTAKES = {
    "": "no images were given: use gluonlab predict RUN_DIR IMAGE..., or add --misclassified",
    "none.png": "none.png does not exist: use image files",
    "empty": "empty contains no images (.jpg, .png, .webp, .bmp, .gif, .tif, .ppm)",
    "notes.txt": "notes.txt is not a JPEG, PNG",
    "cut.png": "cut.png is damaged",
    "good.png cut.png --skip": "unknown option '--skip': did you mean '--skip-corrupt'?",
    "cut.png --skip-corrupt": "no image could be decoded: cut.png is damaged",
    "pipe": "pipe is not a regular file",
    "- -": "- is listed twice",
    "good.png --json --csv": "--json and --csv contradict each other",
    "good.png --top-k 0": "--top-k 0: must be a whole number of at least 1",
    "good.png --gpus x": "--gpus x: must be a whole number",
    "good.png --data-dir d": "--data-dir d has no effect without --misclassified",
    "good.png --misclassified": "one predicted class per image: omit good.png",
    "--misclassified --top-k 3": "omit --top-k 3",
    "good.png --grid none/x.png": "the folder none does not exist",
    "good.png --grid good.png": "--grid good.png exists",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line(ended, finished, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(encode_image(make_image(0), "PNG"))))
    make_image(0).save("good.png")
    Path("cut.png").write_bytes(Path("good.png").read_bytes()[:-40])
    Path("notes.txt").write_text("a text")
    Path("empty").mkdir()
    os.mkfifo("pipe")
    before = file_names(tmp_path)
    status, out, err = ended(main, str(finished), *words.split())
    assert (status, out, err.count("\n"), file_names(tmp_path)) == (2, "", 1, before), err
    assert err.startswith("error: ") and MISTAKES[words] in err


def test_a_folder_without_a_run_is_reported_in_one_line(predict, finished, tmp_path, empty_cwd):
    run = shutil.copytree(finished, tmp_path / "copy")
    (run / "parameters.params").unlink()
    assert "the run directory is missing" in read_error_line(predict(), empty_cwd)
    for folder, message in (
        (run, "contains no parameters.params, because the run did not finish an epoch"),
        (tmp_path / "none", "is not a folder: use the directory of a finished run"),
        (empty_cwd, "contains no config.json"),
    ):
        assert message in read_error_line(predict(str(folder), "x.png"), empty_cwd)


@pytest.mark.long
@pytest.mark.filterwarnings("default::gluonlab.errors.GluonlabWarning")
def test_with_skip_bad_a_warning_says_what_is_left_out(predict, finished, pictures):
    (pictures / "b.jpg").write_text("a text")
    status, out, err = predict(str(finished), str(pictures), "--skip-corrupt", "--csv", "--top-k", "1")
    assert status == 0
    assert [row["image"][-5:] for row in csv.DictReader(io.StringIO(out))] == ["a.png", "c.PNG"]
    assert "warning: 1 of 3 images are skipped: " in err and "b.jpg is not a JPEG" in err


def unread(pipe):
    """Return whether a pipe contains bytes."""
    return fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)) != bytes(4)


def test_ctrl_c_ends_with_one_line_and_leaves_nothing(finished, pictures, tmp_path):
    """While it waits for standard input."""
    command = [sys.executable, "-m", "gluonlab.predict", str(finished), "-", "--grid", "s.png"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(command, cwd=tmp_path, env=clean_environment(), encoding="utf-8", **pipes)
    process.stdin.write("\x89PNG")
    process.stdin.flush()
    while unread(process.stdin):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out, err.lstrip()) == (130, "", "interrupted: nothing was written\n")
    assert file_names(tmp_path) == ["pictures"]


def test_a_table_is_aligned_also_for_wide_letters():
    """犬 and 猫 are two columns wide; a combining accent takes none."""
    predictions = Predictions(("犬 と 猫", "cat"), ("a/犬.png", "cafe\u0301.png"), np.eye(2, dtype="float32"))
    assert predictions_as_text(predictions, 1).splitlines() == [
        "image     class     probability",
        "a/犬.png  犬 と 猫       0.7311",
        "cafe\u0301.png  cat            0.7311",
    ]
