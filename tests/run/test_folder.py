"""gluonlab run on folders of images: training, time waiting for images, and user errors."""

import inspect
import json
import shutil
from unittest.mock import Mock

import numpy as np
import pytest
from support.commands import read_error_line
from support.devices import contexts
from support.image_folders import encode_image, make_image, write_image_folder
from support.run_files import read_metrics

from gluonlab.bench.harness.machine_info import OtherProcessLoad
from gluonlab.data import DATASETS, load_dataset
from gluonlab.data.images.image_locations import FORMAT_NAMES
from gluonlab.data.sets.packed_folder import pack_dataset
from gluonlab.inference.loaded_network import load_run
from gluonlab.training.train_state import TimedIterator

pytestmark = pytest.mark.filterwarnings("default::gluonlab.errors.GluonlabWarning")
STREAMED = ["--device-cache-bytes", "0", "--workers", "2"]
ONE = ["--workers", "1"]  # a process less to start


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A folder of three classes of images of 16x16 pixels."""
    return write_image_folder(tmp_path_factory.mktemp("data") / "animals", train=14, val=5)


def result_of(run, *arguments):
    status, out, err = run(*arguments, "--model", "mlp", "--json")
    assert status == 0, err
    return json.loads(out)


def losses(result):
    return [epoch["loss"] for epoch in result["history"]]


@pytest.mark.parametrize(
    "more",
    [ONE, pytest.param(STREAMED, marks=pytest.mark.long), [*STREAMED, "--crop-padding", "2", "--flip"]],
    ids=["memory", "streamed", "augmented"],
)
def test_the_loss_falls_on_two_devices_and_every_image_counts_once(run, small, more):
    words = f"--dataset folder:{small} --gpus 2 --epochs 6 --global-batch-size 11"
    result = result_of(run, *words.split(), *more)
    assert (result["dataset"], result["devices"]) == ("animals", [str(ctx) for ctx in contexts(2)])
    assert [epoch["images"] for epoch in result["history"]] == [42] * 6
    assert losses(result)[-1] < 0.5 * losses(result)[0]
    assert result["val_accuracy"] > 0.9


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(ONE, marks=pytest.mark.long),
        [*ONE, "--crop-padding", "3", "--flip"],
        [*ONE, "--random-resized-crop", "--mixup", "0.2"],
    ],
    ids=["plain", "augmented", "cut and mixed"],
)
def test_one_and_three_devices_see_the_same_images(run, small, more):
    """With one step per epoch, the losses of the first two differ only by the order of sums."""
    words = f"--dataset folder:{small} --epochs 2 --global-batch-size 42 --optimizer sgd --lr 0.01".split()
    one, three = (losses(result_of(run, *words, *more, "--gpus", count, "--out", count)) for count in "13")
    np.testing.assert_allclose(three, one, rtol=1e-5)


def test_random_crops_are_streamed_and_validation_is_whole(run, small, empty_cwd):
    """With a learning rate of nearly zero only the crops change the loss."""
    words = f"--dataset folder:{small} --model mlp --epochs 2 --optimizer sgd --lr 1e-30".split()
    epochs, cut = {}, "--random-resized-crop"
    for out, more in (("whole", ONE), ("cut", [cut, *ONE]), ("cut3", [cut, "--workers", "3"])):
        status, printed, _ = run(*words, *more, "--out", out)
        assert status == 0
        texts = ("42 training, 15 validation images, streamed", "options    random resized crop")
        assert [text in printed for text in texts] == [cut in more] * 2
        epochs[out] = [line for line in read_metrics(empty_cwd / out) if line["kind"] == "epoch"]
    whole, cut, cut3 = ([line["loss"] for line in epochs[out]] for out in ("whole", "cut", "cut3"))
    assert whole[0] == pytest.approx(whole[1], rel=1e-6)
    assert abs(cut[0] - cut[1]) > 1e-4 < abs(cut[0] - whole[0])
    assert cut3 == cut
    assert len({line["val_loss"] for lines in epochs.values() for line in lines}) == 1


def test_the_same_seed_gives_the_same_bits_streamed_or_from_memory(run, small, empty_cwd):
    words = f"--dataset folder:{small} --gpus 2 --epochs 2 --batch-size 8 --crop-padding 2 --flip"
    for out, more in (("a", STREAMED), ("b", ONE), ("c", [*ONE, "--seed", "1"])):
        result_of(run, *words.split(), *more, "--out", out)
    a, b, c = ((empty_cwd / out / "parameters.params").read_bytes() for out in "abc")
    assert a == b != c


def test_the_share_of_waiting_is_printed_and_recorded(run, small, empty_cwd):
    words = f"--dataset folder:{small} --gpus 2 --model mlp --epochs 2 --out run"
    status, out, _ = run(*words.split(), *STREAMED)
    epochs = [line for line in read_metrics(empty_cwd / "run") if line["kind"] == "epoch"]
    assert (status, len(epochs)) == (0, 2) and all(0 < epoch["waiting"] < 1 for epoch in epochs)
    seconds = [epoch["training_seconds"] for epoch in epochs]
    share = np.average([epoch["waiting"] for epoch in epochs], weights=seconds)
    assert f", {share:.1%} waiting for images\n" in out


def test_waiting_time_is_that_of_the_data_source(monkeypatch):
    clock = iter([10.0, 10.5, 20.0, 20.25, 30.0, 31.0])
    monkeypatch.setattr("gluonlab.training.train_state.time.perf_counter", lambda: next(clock))
    waiting = TimedIterator(iter("ab"))
    assert list(waiting) == ["a", "b"]
    assert waiting.seconds == 1.75


def test_bad_images_are_left_out_on_request(run, tmp_path):
    root = write_image_folder(tmp_path / "animals")
    (root / "train" / "bee" / "0003.jpg").write_bytes(b"")
    words = f"--dataset folder:{root} --model mlp --epochs 1 --skip-corrupt --json"
    status, out, err = run(*words.split(), *STREAMED)
    assert (status, json.loads(out)["history"][0]["images"]) == (0, 17)
    [line] = [line for line in err.splitlines() if "GPU" not in line]
    assert line == f"warning: 1 of 18 training images cannot be decoded and are skipped: {root}/train/bee/0003.jpg"


# what is written, {} is the folder -> what the line must say
MISTAKES = {
    "--dataset folder:{}x": "animalsx does not exist | train | val",
    "--dataset folder:": "unknown data set 'folder:' | folder:PATH",
    "--data-dir {}": "is read from the path in its name | omit --data-dir",
    "--dataset folder:{}/train": "animals/train has no train folder | use folder: | animals",
    "--dataset {}": "is a folder: use folder: | animals",
    "--val-split 0.2": "--val-split 0.2 is only for data without a val folder | animals/val exists | omit --val-split",
    "--dataset digits --val-split 0.2": "--val-split works only with image files | remove --val-split | folder:PATH",
    "--val-split 1": "--val-split 1 | less than 1",
    "--image-size 4": "--image-size 4 | from 8 to 2048",
    "--workers 0": "--workers 0 | from 1 to 256",
    "--dataset digits --image-size 32": "--image-size | digits | folder:PATH",
    "--dataset digits --skip-corrupt": "--skip-corrupt | digits | folder:PATH",
    "--dataset digits --random-resized-crop": "--random-resized-crop | digits | remove --random | folder:PATH",
    "--crop-padding -1": "--crop-padding -1 | from 0 to 1024",
    "--dataset imagenette2-160": "imagenette2-160 | gluonlab data download imagenette2-160 | use another --data-dir",
}


def check_mistake(run, folder, words, message):
    line = read_error_line(run(*words.split()), folder)
    assert [part for part in message.split(" | ") if part not in line] == [], line


@pytest.mark.parametrize("words", MISTAKES)
def test_a_user_error_prints_one_line_and_writes_nothing(run, tmp_path, empty_cwd, words):
    root = write_image_folder(tmp_path / "animals", train=2, val=2)
    check_mistake(run, empty_cwd, f"--dataset folder:{root} --model mlp {words.format(root)}", MISTAKES[words])


def test_one_class_or_a_truncated_image_is_one_line(run, tmp_path, empty_cwd):
    root = write_image_folder(tmp_path / "animals", train=2, val=2)
    words = f"--dataset folder:{root} --model mlp"
    (root / "val/ant/0001.jpg").write_bytes(encode_image(make_image(0))[:200])
    check_mistake(run, empty_cwd, words, "val/ant/0001.jpg is damaged | --skip-corrupt")
    for name in ("ant", "bee"):
        (root / "train" / name).rename(root / name)
    check_mistake(run, empty_cwd, words, "only one class folder, cow")


def write_damaged_folder(folder):
    """Write a folder of images of which one cannot be decoded: whoever reads it all fails."""
    root = write_image_folder(folder)
    (root / "train" / "bee" / "0003.jpg").write_bytes(b"no image")
    return root


CHEAP = {
    "--out .": "--out . is not empty",
    "--pretrained file": "--pretrained file cannot be read as a parameter file",
    "--gpus 2 --optimizer lamb --kvstore sharded-optimizer": "lamb",
    "compare 1,2 --out .": "--out . is not empty",
    "compare 1,2 --pretrained file": "--pretrained file cannot be read as a parameter file",
    "compare 1,2 --threads 2": "--threads 2",
}
CPU_ONLY = pytest.mark.cpu_only("threads are of CPU devices")


@pytest.mark.parametrize("words", [pytest.param(words, marks=[CPU_ONLY] * ("--threads" in words)) for words in CHEAP])
def test_cheap_checks_run_before_any_image_is_read(run, tmp_path, empty_cwd, words):
    (empty_cwd / "file").write_text("no parameters")
    root = write_damaged_folder(tmp_path / "animals")
    status, _, err = run(*f"{words} --dataset folder:{root} --model mlp".split())
    assert status == 2 and CHEAP[words] in err.splitlines()[-1]


def test_a_comparison_reads_its_images_once(run, small, monkeypatch):
    kind = DATASETS["folder:PATH"]
    load = Mock(side_effect=kind.load, __signature__=inspect.signature(kind.load))
    monkeypatch.setitem(DATASETS, "folder:PATH", kind._replace(load=load))
    words = f"compare 1,2,3 --dataset folder:{small} --model mlp --epochs 1 --json"
    status, out, _ = run(*words.split(), *ONE)
    assert (status, len(json.loads(out)), load.call_count) == (0, 3, 1)


@pytest.mark.parametrize("others", [0.0, 1.25])
def test_a_comparison_reports_other_busy_processes(run, monkeypatch, others):
    monkeypatch.setattr(OtherProcessLoad, "busy_cores", lambda self: others)
    status, _, err = run("compare", "1,2", "--model", "mlp", "--epochs", "1", "--quiet")
    assert (status, "warning: other processes kept 1.2 of " in err) == (0, others > 0)
    lines = err.splitlines()  # both runs, and the checks before them, give the same warnings
    assert len(lines) == len(set(lines)) >= 1


@pytest.mark.parametrize("more", [[], ["--out", "a/run"], ["compare", "1,2"]], ids=["run", "out", "compare"])
def test_a_bad_image_during_training_ends_the_run_with_its_name(run, tmp_path, empty_cwd, more):
    root = write_damaged_folder(tmp_path / "animals")
    status, _, err = run(*more, *f"--dataset folder:{root} --model mlp --quiet".split(), *STREAMED)
    assert (status, list(empty_cwd.iterdir())) == (2, [])
    assert err.splitlines()[-1] == (
        f"error: {root}/train/bee/0003.jpg is not a {FORMAT_NAMES} image, or its header is damaged: "
        "replace or remove the image, or skip corrupt images with --skip-corrupt"
    )


@pytest.fixture
def unsplit(tmp_path):
    """A folder of only training images: 14 of each class, of which a quarter is 4."""
    root = write_image_folder(tmp_path / "animals", train=14, val=0)
    shutil.rmtree(root / "val")
    return root


def test_images_held_out_are_the_same_on_more_devices_and_packed(run, unsplit, tmp_path):
    pack_dataset(load_dataset(f"folder:{unsplit}", decoders=1, val_share=0.25), tmp_path / "packed")
    words = [
        *[
            "--epochs",
            "1",
            "--global-batch-size",
            "30",
            "--optimizer",
            "sgd",
            "--lr",
            "0.01",
            "--seed",
            "3",
            "--dataset",
        ]
    ]
    three = result_of(run, *words, f"folder:{unsplit}", "--val-split", "0.25", "--gpus", "3", *STREAMED)
    packed = result_of(run, *words, f"folder:{tmp_path / 'packed'}", "--gpus", "1")
    assert three["history"][0]["images"] == packed["history"][0]["images"] == 30
    np.testing.assert_allclose(losses(three), losses(packed), rtol=1e-5)
    assert three["val_accuracy"] == packed["val_accuracy"]


def test_a_run_with_images_held_out_is_resumed_and_evaluated_on_the_same(run, unsplit):
    words = f"--dataset folder:{unsplit} --model mlp --val-split 0.25 --epochs 1 --checkpoint-every 1epochs --out a"
    status, out, err = run(*words.split(), *ONE)
    assert status == 0 and "30 training, 12 validation images" in out, err
    status, out, err = run("resume", "a", "--epochs", "2", "--json")
    assert status == 0, err
    accuracy = json.loads(out)["val_accuracy"]
    status, out, _ = run("evaluate", "a", "--json")
    assert (status, json.loads(out)["images"], json.loads(out)["accuracy"]) == (0, 12, accuracy)
    mistakes = load_run("a").mistakes()
    assert (mistakes.images, len(mistakes.wrong)) == (12, round(12 * (1 - accuracy)))
    (unsplit / "train" / "ant" / "0099.jpg").write_bytes(encode_image(make_image(0, seed=99)))
    status, _, err = run("resume", "a", "--epochs", "3")
    assert (status, err.count("\n")) == (2, 1) and "images" in err
