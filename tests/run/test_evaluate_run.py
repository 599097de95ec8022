"""gluonlab evaluate: a finished run has the same result on any devices; other folders are errors."""

import json
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import nd
from support.commands import file_names, read_error_line
from support.completed import make_initialized_net
from support.damage import mutated_json
from support.devices import device, device_spec
from support.idx_files import write_mnist
from support.run_files import read_metrics

from gluonlab.config import TrainConfig
from gluonlab.errors import RunError, UsageError
from gluonlab.export.export_network import DESCRIPTION, SYMBOL, WEIGHTS
from gluonlab.training.evaluate_run import evaluate_run, plan_evaluation
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter

pytestmark = pytest.mark.filterwarnings("ignore:no GPU on this machine:gluonlab.errors.GluonlabWarning")
RUN_FILES = ["config.json", "curves.png", "metrics.jsonl", "parameters.params"]
EXPORTED = sorted([SYMBOL, WEIGHTS, DESCRIPTION])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run on two devices, with its result."""
    out = tmp_path_factory.mktemp("runs") / "run"
    config = TrainConfig(
        gpus=2, epochs=1, model="mlp", lr=0.01, batch_size=50, confusion=True, export=True, out=str(out)
    )
    return train(config, reporter=Reporter())


@pytest.fixture
def copy(finished, tmp_path):
    """The run's folder, to be spoiled."""
    return Path(shutil.copytree(finished.run_dir, tmp_path / "copy"))


@pytest.mark.parametrize(
    "devices", ["--threads 1", "--gpus 2", f"--devices {device_spec(3)}", "--gpus 2 --batch-size 7"]
)
def test_a_finished_run_gives_the_same_accuracy_on_any_devices(run, finished, devices):
    status, out, _ = run("evaluate", str(finished.run_dir), *devices.split(), "--json")
    found, last = json.loads(out), finished.history[-1]
    assert (status, found["images"], found["accuracy"]) == (0, 360, last.val_accuracy)
    assert found["top5_accuracy"] == last.val_top5_accuracy
    assert found["loss"] == pytest.approx(last.val_loss, rel=1e-4)
    assert (found["model"], found["dataset"], "confusion" in found) == ("mlp", "digits", False)
    assert file_names(finished.run_dir) == sorted([*RUN_FILES, "confusion.png", "export"])


def test_the_result_is_two_lines_and_files_go_to_the_requested_folder(run, empty_cwd, copy):
    (copy / "confusion.png").unlink()
    shutil.rmtree(copy / "export")
    words = ["evaluate", str(copy), "--threads", "1"]
    status, out, err = run(*words)
    assert (status, err) == (0, "")
    first, second = out.splitlines()
    assert first.startswith(f"mlp on digits, 360 images, {device()}, ")
    assert re.match(r"accuracy 0\..*\(top-5 [01]\.", second)
    status, out, _ = run(*words, "--confusion", "--export", "mxnet", "--out", "elsewhere")
    assert (status, file_names(copy)) == (0, RUN_FILES)
    assert file_names(empty_cwd / "elsewhere") == ["confusion.png", "export"]
    assert "written to elsewhere/export, elsewhere/confusion.png\n\nrows: true classes" in out
    assert max(map(len, out.splitlines())) <= 80
    assert run(*words, "--export", "mxnet")[0] == 0
    assert file_names(copy) == sorted([*RUN_FILES, "export"])


def test_a_run_with_confusion_and_export_writes_and_prints_both(run, finished):
    lines, matrix = read_metrics(finished.run_dir), finished.confusion
    assert file_names(finished.run_dir / "export") == EXPORTED
    assert (matrix.sum(), matrix.trace()) == (360, round(finished.val_accuracy * 360))
    [event] = [line for line in lines if "matrix" in line]
    assert event == {"kind": "event", "event": "confusion", "matrix": matrix.tolist()}
    [epoch] = [line for line in lines if line["kind"] == "epoch"]
    assert epoch["val_top5_accuracy"] == finished.history[0].val_top5_accuracy >= epoch["val_accuracy"]
    assert json.loads(json.dumps(finished.summary()))["confusion"] == matrix.tolist()
    assert (finished.run_dir / "confusion.png").read_bytes().startswith(b"\x89PNG")
    out = run(*["--model", "mlp", "--epochs", "1", "--gpus", "2", "--confusion", "--out", "a", "--quiet"])[1]
    assert "rows: true classes; columns: predicted classes" in out


def test_the_export_is_written_although_the_picture_cannot_be(run, empty_cwd, finished):
    (empty_cwd / "out" / "confusion.png").mkdir(parents=True)
    words = f"evaluate {finished.run_dir} --threads 1 --confusion --export mxnet --out out"
    status, _, err = run(*words.split())
    message = "cannot write out/confusion.png: Is a directory; choose another path with --out"
    assert (status, err) == (2, f"error: {message}\n")
    assert file_names(empty_cwd / "out" / "export") == EXPORTED


def test_image_files_are_read_from_the_recorded_or_another_folder(run, tmp_path):
    data, moved = tmp_path / "data", tmp_path / "moved"

    def accuracy(words, key="accuracy"):
        return json.loads(run(*words.split(), "--threads", "1", "--json")[1])[key]

    write_mnist(data)
    words = f"--dataset mnist --data-dir {data} --model mlp --epochs 1 --devices {device_spec(1)}"
    expected = accuracy(f"{words} --out run", "val_accuracy")
    assert accuracy("evaluate run") == expected
    data.rename(moved)
    status, out, err = run("evaluate", "run")
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert f"{data} is not a folder" in err
    assert accuracy(f"evaluate run --data-dir {moved}") == expected


def change_config(change):
    """Return a function that changes config.json of a folder as a dictionary."""

    def rewrite(folder):
        content = json.loads((folder / "config.json").read_text())
        change(content)
        (folder / "config.json").write_text(json.dumps(content))

    return rewrite


def test_images_of_another_shape_are_refused(run, copy, empty_cwd):
    change_config(lambda content: content["settings"].update(image_shape=[3, 32, 32]))(copy)
    line = read_error_line(run("evaluate", str(copy)), empty_cwd)
    assert f"digits has images of shape 1x28x28, but {copy} was trained on images of shape 3x32x32" in line


def test_a_run_without_recorded_classes_and_shape_is_evaluated(run, copy):
    change_config(lambda content: (content.pop("classes"), content["settings"].pop("image_shape")))(copy)
    assert run("evaluate", str(copy), "--threads", "1")[0] == 0


@given(st.data())
def test_a_damaged_config_raises_a_usage_error_or_gives_a_plan(finished, tmp_path_factory, data):
    content = json.loads((finished.run_dir / "config.json").read_text())
    folder = tmp_path_factory.mktemp("run")
    (folder / "parameters.params").touch()
    (folder / "config.json").write_text(json.dumps(data.draw(mutated_json(content))))
    try:
        plan_evaluation(folder, {"threads": 1})
    except UsageError as error:
        assert "\n" not in str(error)


def write_parameters(name, shape, classes=10):
    return lambda folder: make_initialized_net(name, shape, classes).save_parameters(str(folder / "parameters.params"))


def write_config(content):
    return lambda folder: (folder / "config.json").write_bytes(content)


def remove(name):
    return lambda folder: (folder / name).unlink()


FOREIGN = "config.json was not written by gluonlab run"
# what was done to a run's folder, what the line must say
SPOILED = {
    "no config": (remove("config.json"), "contains no config.json | finished run"),
    "no parameters": (remove("parameters.params"), "contains no parameters.params | did not finish an epoch"),
    "cut off": (write_config(b'{"conf'), "config.json is not valid JSON | directory of a finished run"),
    "not text": (write_config(b"\xff\xfe\x00"), "config.json is not valid JSON | directory of a finished run"),
    "nested": (write_config(b"[" * 100_000), "config.json is not valid JSON | directory of a finished run"),
    "nested settings": (write_config(b'{"config": {"lr": ' + b"[" * 200 + b"]" * 200 + b"}}"), FOREIGN),
    "a folder": (
        lambda folder: (remove("config.json")(folder), (folder / "config.json").mkdir()),
        "config.json cannot be read"),
    "a list": (write_config(b"[1]"), FOREIGN),
    "no settings": (change_config(lambda content: content.pop("settings")), FOREIGN),
    "a number": (change_config(lambda content: content.update(config=3)), FOREIGN),
    "a comparison": (
        change_config(lambda content: content.update(compare=[1, 2])),
        "is the directory of a comparison | directory of one of its runs"),
    "no batch": (
        change_config(lambda content: (content["settings"].update(global_batch_size=10**400),
                                content["config"].update(microbatches=3))),
        "config.json is damaged | --microbatch-size 1666"),
    "no shape": (
        change_config(lambda content: content["settings"].update(image_shape="x")),
        "config.json is damaged | image_shape x"),
    "newer": (
        change_config(lambda content: content["config"].update(turbo=1)),
        "settings that this version of gluonlab does not support (turbo)"),
    "nonsense": (
        change_config(lambda content: content["config"].update(batch_size="x")),
        "config.json is damaged | --batch-size x"),
    "unknown data": (
        change_config(lambda content: content["config"].update(dataset="cats")),
        "unknown data set 'cats' | digits"),
    "unknown network": (
        change_config(lambda content: content["settings"].update(model="nett")), "unknown model 'nett'"),
    "other network": (
        write_parameters("lenet", (1, 28, 28)),
        "parameters.params does not match the model (1.weight is missing | same model"),
    "other classes": (
        write_parameters("mlp", (1, 28, 28), 7), "3.weight has shape (7, 64), not (10, 64) | same model"),
    "damaged parameters": (
        lambda folder: (folder / "parameters.params").write_bytes(b"0" * 99),
        "parameters.params cannot be read as a parameter file"),
}  # fmt: skip


@pytest.mark.parametrize("kind", SPOILED)
def test_an_unfinished_run_prints_one_line_and_exits_with_2(run, empty_cwd, copy, kind):
    spoil, message = SPOILED[kind]
    spoil(copy)
    files = file_names(copy)
    line = read_error_line(run("evaluate", str(copy), "--confusion", "--export", "mxnet"), empty_cwd)
    parts = [str(copy)] * ("unknown" not in kind) + message.split(" | ")
    assert [part for part in parts if part not in line] == [], line
    assert file_names(copy) == files


@pytest.mark.parametrize(
    ("words", "message"),
    [
        *(
            (setting, f"{setting.split('=')[0]} has no effect on an evaluation")
            for setting in ("--model=mlp", "--epochs=3", "--lr=0.1", "--kvstore=ring", "--seed=1", "--scale-lr")
        ),
        ("--export mxnet --out /dev/null", "--out /dev/null is a file"),
        ("--out new", "--out new has no effect on an evaluation that writes no files: add --confusion or --export"),
        ("--export mxnet --out /proc/gluonlab", "cannot write /proc/gluonlab: "),
        ("--export mxnet --out a/new", "cannot be read as a parameter file"),
    ],
)
def test_a_user_error_is_found_before_the_parameters_are_read(run, copy, empty_cwd, words, message):
    (copy / "parameters.params").write_text("damaged")
    assert message in read_error_line(run("evaluate", str(copy), *words.split()), empty_cwd)


def test_parameters_that_are_not_finite_fail(copy):
    arrays = nd.load(str(copy / "parameters.params"))
    nd.save(str(copy / "parameters.params"), {name: array * float("nan") for name, array in arrays.items()})
    with pytest.raises(RunError, match=r"the validation loss of the run .* is nan"):
        evaluate_run(str(copy))


def test_a_run_with_a_pretrained_file_starts_where_the_other_ended(run, finished):
    file = str(finished.run_dir / "parameters.params")
    words = f"--model mlp --epochs 1 --lr 1e-9 --devices {device_spec(1)} --threads 1 --out a --pretrained {file}"
    status, out, _ = run(*words.split())
    assert status == 0 and out.startswith(f"pretrained {file}: all parameters\n")
    [epoch] = [line for line in read_metrics(Path("a")) if line["kind"] == "epoch"]
    assert epoch["val_accuracy"] == finished.val_accuracy
    line = run("--pretrained", file, "--out", "b")[2].splitlines()[-1]
    assert "does not match the model (0.weight is missing; 0.bias is missing; " in line
    assert not Path("b").exists()
