"""python -m gluonlab.run --evaluate: a finished run says again what it said, on any devices; what
is no run is one line.
"""

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
    status, out, _ = run("--evaluate", str(finished.run_dir), *devices.split(), "--json")
    found, last = json.loads(out), finished.history[-1]
    assert (status, found["images"], found["accuracy"]) == (0, 360, last.accuracy)
    assert found["top5_accuracy"] == last.top5_accuracy
    assert found["loss"] == pytest.approx(last.validation_loss, rel=1e-4)
    assert (found["model"], found["dataset"], "confusion" in found) == ("mlp", "digits", False)
    assert file_names(finished.run_dir) == sorted([*RUN_FILES, "confusion.png", "export"])


def test_the_result_is_two_lines_and_files_go_to_the_requested_folder(run, empty_cwd, copy):
    (copy / "confusion.png").unlink()
    shutil.rmtree(copy / "export")
    again = ["--evaluate", str(copy), "--threads", "1"]
    status, out, err = run(*again)
    assert (status, err) == (0, "")
    first, second = out.splitlines()
    assert first.startswith(f"mlp on digits, 360 test images, {device()}, ")
    assert re.match(r"accuracy 0\..*\(top-5 [01]\.", second)
    assert file_names(copy) == RUN_FILES
    status, out, _ = run(*again, "--confusion", "--export", "--out", "elsewhere")
    assert (status, file_names(copy)) == (0, RUN_FILES)
    assert file_names(empty_cwd / "elsewhere") == ["confusion.png", "export"]
    assert "written to elsewhere/export, elsewhere/confusion.png\n\nrows: true classes" in out
    assert max(map(len, out.splitlines())) <= 80
    assert run(*again, "--export")[0] == 0
    assert file_names(copy) == sorted([*RUN_FILES, "export"])


def test_a_run_with_confusion_and_export_writes_and_prints_both(run, finished):
    assert file_names(finished.run_dir / "export") == sorted([SYMBOL, WEIGHTS, DESCRIPTION])
    assert finished.confusion.sum() == 360
    assert finished.confusion.trace() == round(finished.accuracy * 360)
    [event] = [line for line in read_metrics(finished.run_dir) if "matrix" in line]
    assert event == {"kind": "event", "event": "confusion", "matrix": finished.confusion.tolist()}
    [epoch] = [line for line in read_metrics(finished.run_dir) if line["kind"] == "epoch"]
    assert epoch["top5_accuracy"] == finished.history[0].top5_accuracy >= epoch["accuracy"]
    assert json.loads(json.dumps(finished.summary()))["confusion"] == finished.confusion.tolist()
    assert (finished.run_dir / "confusion.png").read_bytes().startswith(b"\x89PNG")
    words = "--model mlp --epochs 1 --gpus 2 --confusion --out a --quiet"
    shown = run(*words.split())[1]
    assert "rows: true classes; columns: predicted classes" in shown


def test_a_picture_that_cannot_be_written_does_not_cost_the_export(run, empty_cwd, finished):
    (empty_cwd / "out" / "confusion.png").mkdir(parents=True)
    words = f"--evaluate {finished.run_dir} --threads 1 --confusion --export --out out"
    status, _, err = run(*words.split())
    said = "cannot write out/confusion.png: Is a directory; choose another place with --out"
    assert (status, err) == (2, f"error: {said}\n")
    assert file_names(empty_cwd / "out" / "export") == sorted([SYMBOL, WEIGHTS, DESCRIPTION])


def test_image_files_are_read_from_the_recorded_or_another_folder(run, tmp_path):
    data, moved = tmp_path / "data", tmp_path / "moved"

    def accuracy(words):
        return json.loads(run(*words.split(), "--threads", "1", "--json")[1])["accuracy"]

    write_mnist(data)
    words = f"--dataset mnist --data-dir {data} --model mlp --epochs 1 --devices {device_spec(1)}"
    expected = accuracy(f"{words} --out run")
    assert accuracy("--evaluate run") == expected
    data.rename(moved)
    status, out, err = run("--evaluate", "run")
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert f"{data} is not a folder" in err
    assert accuracy(f"--evaluate run --data-dir {moved}") == expected


def test_images_of_another_shape_are_refused(run, copy, empty_cwd):
    config(lambda content: content["settings"].update(image_shape=[3, 32, 32]))(copy)
    line = read_error_line(run("--evaluate", str(copy)), empty_cwd)
    assert f"digits has images of 1x28x28, but {copy} was trained on 3x32x32" in line


def test_a_run_without_recorded_classes_and_shape_is_evaluated(run, copy):
    config(lambda content: (content.pop("classes"), content["settings"].pop("image_shape")))(copy)
    assert run("--evaluate", str(copy), "--threads", "1")[0] == 0


def config(change):
    """Changes config.json as a dictionary."""

    def spoil(folder):
        content = json.loads((folder / "config.json").read_text())
        change(content)
        (folder / "config.json").write_text(json.dumps(content))

    return spoil


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


def parameters(name, shape, classes=10):
    return lambda folder: make_initialized_net(name, shape, classes).save_parameters(str(folder / "parameters.params"))


def content(text):
    """Writes config.json."""
    return lambda folder: (folder / "config.json").write_bytes(text)


def removed(name):
    return lambda folder: (folder / name).unlink()


FOREIGN = "config.json is not what a run writes"
# what was done to a run's folder, what the line must say
SPOILED = {
    "no config": (removed("config.json"), "holds no config.json | finished run"),
    "no parameters": (removed("parameters.params"), "holds no parameters.params | no epoch"),
    "cut off": (content(b'{"conf'), "config.json cannot be read | no JSON"),
    "not text": (content(b"\xff\xfe\x00"), "config.json cannot be read | no JSON"),
    "nested": (content(b"[" * 100_000), "config.json cannot be read | no JSON"),
    "nested settings": (content(b'{"config": {"lr": ' + b"[" * 200 + b"]" * 200 + b"}}"), FOREIGN),
    "a folder": (
        lambda folder: (removed("config.json")(folder), (folder / "config.json").mkdir()),
        "config.json cannot be read"),
    "a list": (content(b"[1]"), FOREIGN),
    "no settings": (config(lambda content: content.pop("settings")), FOREIGN),
    "a number": (config(lambda content: content.update(config=3)), FOREIGN),
    "a comparison": (
        config(lambda content: content.update(compare=[1, 2])),
        "is a comparison | one of the runs"),
    "no batch": (
        config(lambda content: (content["settings"].update(global_batch_size=10**400),
                                content["config"].update(microbatches=3))),
        "config.json is damaged | --microbatch-size 1666"),
    "no shape": (
        config(lambda content: content["settings"].update(image_shape="x")),
        "config.json is damaged | image_shape x"),
    "newer": (
        config(lambda content: content["config"].update(turbo=1)),
        "settings that this gluonlab does not know: turbo"),
    "nonsense": (
        config(lambda content: content["config"].update(batch_size="x")),
        "config.json is damaged | --batch-size x"),
    "unknown data": (
        config(lambda content: content["config"].update(dataset="cats")),
        "unknown data set 'cats' | digits"),
    "unknown network": (
        config(lambda content: content["settings"].update(model="nett")), "unknown model 'nett'"),
    "other network": (
        parameters("lenet", (1, 28, 28)),
        "parameters.params does not fit the network: it lacks 1.weight | same network"),
    "other classes": (
        parameters("mlp", (1, 28, 28), 7), "3.weight is (7, 64), not (10, 64) | same network"),
    "damaged parameters": (
        lambda folder: (folder / "parameters.params").write_bytes(b"0" * 99),
        "parameters.params cannot be read as parameters"),
}  # fmt: skip


@pytest.mark.parametrize("kind", SPOILED)
def test_an_unfinished_run_prints_one_line_and_exits_with_2(run, empty_cwd, copy, kind):
    spoil, said = SPOILED[kind]
    spoil(copy)
    before = file_names(copy)
    line = read_error_line(run("--evaluate", str(copy), "--confusion", "--export"), empty_cwd)
    parts = [str(copy)] * ("unknown" not in kind) + said.split(" | ")
    assert [part for part in parts if part not in line] == [], line
    assert file_names(copy) == before


@pytest.mark.parametrize(
    "setting", ["--model=mlp", "--epochs=3", "--lr=0.1", "--kvstore=ring", "--seed=1", "--scale-lr"]
)
def test_settings_that_the_run_determines_are_refused(run, empty_cwd, finished, setting):
    line = read_error_line(run("--evaluate", str(finished.run_dir), setting), empty_cwd)
    assert f"{setting.split('=')[0]} has no effect with --evaluate" in line


def test_a_file_as_output_folder_is_refused(run, finished, empty_cwd):
    (empty_cwd / "file").write_text("mine")
    status, out, err = run("--evaluate", str(finished.run_dir), "--export", "--out", "file")
    assert (status, out, (empty_cwd / "file").read_text()) == (2, "", "mine")
    assert "--out file is a file" in err


def test_an_output_folder_without_requested_files_is_refused(run, finished, empty_cwd):
    line = read_error_line(run("--evaluate", str(finished.run_dir), "--out", "new"), empty_cwd)
    said = "--out new has no effect with --evaluate alone"
    assert f"{said}: add --confusion or --export, or leave it out" in line


def test_an_unwritable_folder_is_found_before_anything_is_read(run, copy, empty_cwd):
    (copy / "parameters.params").write_text("damaged")
    line = read_error_line(run("--evaluate", str(copy), "--export", "--out", "/proc/gluonlab"), empty_cwd)
    assert "cannot write /proc/gluonlab: " in line
    assert "cannot be read as parameters" in read_error_line(
        run("--evaluate", str(copy), "--export", "--out", "a/new"), empty_cwd
    )


def test_parameters_that_are_not_finite_fail(copy):
    arrays = nd.load(str(copy / "parameters.params"))
    nd.save(str(copy / "parameters.params"), {name: array * float("nan") for name, array in arrays.items()})
    with pytest.raises(RunError, match=r"the loss of .* on its test images is nan"):
        evaluate_run(str(copy))


def test_a_run_with_a_pretrained_file_begins_where_the_other_ended(run, finished):
    file = str(finished.run_dir / "parameters.params")
    words = f"--model mlp --epochs 1 --lr 1e-9 --devices {device_spec(1)} --threads 1 --out a"
    status, out, _ = run(*words.split(), "--pretrained", file)
    assert status == 0
    assert out.startswith(f"pretrained {file}: all parameters\n")
    [epoch] = [line for line in read_metrics(Path("a")) if line["kind"] == "epoch"]
    assert epoch["accuracy"] == finished.accuracy
    line = run("--pretrained", file, "--out", "b")[2].splitlines()[-1]
    assert "does not fit the network: it lacks 0.weight; it lacks 0.bias; " in line
    assert not Path("b").exists()
