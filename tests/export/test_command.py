"""--export onnx: its output and files, mistakes before training starts, and the program in docs/predict.md."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from mxnet.gluon import nn
from PIL import Image
from support.commands import QUICK_OPTIONS, read_error_line
from support.drawn_runs import load_few_digits
from support.image_folders import CLASSES, write_image_folder
from support.process_group import run_in_threads
from support.quick_runs import run_quickly

from gluonlab.config import TrainConfig
from gluonlab.errors import ModelError
from gluonlab.export import export_network
from gluonlab.export.export_network import DESCRIPTION, ONNX_FILE
from gluonlab.export.onnx_graph import TOLERANCE, to_onnx
from gluonlab.inference.loaded_network import load_run
from gluonlab.models import MODELS, ModelKind
from gluonlab.training.evaluate_run import evaluate_run
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter
from gluonlab.training.resume import read_resume_point, resumed_config

pytestmark = [
    pytest.mark.cpu_only("onnxruntime is compared with MXNet on the CPU"),
    pytest.mark.filterwarnings("ignore:no GPU on this machine:gluonlab.errors.GluonlabWarning"),
]
PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "predict.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
[PROGRAM] = [block for block in BLOCKS if "InferenceSession" in block]
MESSAGE = r"the scores of model\.onnx differ from MXNet's by \d\.\de-\d\d of the largest, on 12 validation images"

ORIENTATION = 0x0112  # EXIF's tag


def check_program(python, tmp_path, run, pictures, labels):
    """Check the classes, probabilities and confusion matrix of the page's program, in a process without MXNet."""
    program = tmp_path / "classify.py"
    program.write_text(PROGRAM)
    without_mxnet = (
        "import runpy, sys; sys.modules.update(mxnet=None, gluonlab=None); del sys.argv[0]; "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    result = python("-c", without_mxnet, str(program), str(run.run_dir / "export"), *map(str, pictures))
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    guesses = [line[len(str(picture)) + 1 :].rsplit(" ", 1) for line, picture in zip(lines, pictures)]
    names = [name for name, _ in guesses]
    expected = load_run(str(run.run_dir)).predict(pictures)
    assert names == expected.names and len(lines) == len(pictures)
    probabilities = [float(probability) for _, probability in guesses]
    np.testing.assert_allclose(probabilities, expected.probabilities.max(axis=1), atol=5e-5)
    confusion = np.zeros_like(run.confusion)
    for label, name in zip(labels, names):
        confusion[label, list(run.plan.dataset.classes).index(name)] += 1
    np.testing.assert_array_equal(confusion, run.confusion)


def test_the_pages_program_classifies_gray_digits_as_gluonlab_does(python, tmp_path):
    few = load_few_digits()
    options = dict(model="lenet", batch_size=10, export="onnx", confusion=True)
    result, test = run_quickly(tmp_path, dataset=few, **options), few.test
    images, labels = test.batch(np.arange(len(test)))
    pictures = [tmp_path / f"{number}.png" for number in range(len(test))]
    for picture, image in zip(pictures, images):
        Image.fromarray(image[0]).save(picture)
    check_program(python, tmp_path, result, pictures, labels)


def test_the_pages_program_classifies_color_photographs_of_any_shape_as_gluonlab_does(python, tmp_path):
    folder = write_image_folder(tmp_path / "images", suffix=".png", size=24)
    pictures = sorted((folder / "val").glob("*/*.png"))
    for number, picture in enumerate(pictures):  # of different shapes and orientations
        exif = Image.Exif()
        exif[ORIENTATION] = 1 + number % 8
        size = (30 + number, 24) if number % 2 else (24, 30 + number)
        Image.open(picture).resize(size).save(picture, exif=exif)
    result = run_quickly(
        tmp_path, model="resnet8", dataset=f"folder:{folder}", image_size=20, batch_size=3,
        normalize="imagenet", export="onnx", confusion=True, resizer="pillow",
    )  # fmt: skip
    assert result.onnx.images == len(pictures) < 12
    check_program(python, tmp_path, result, pictures, [CLASSES.index(picture.parent.name) for picture in pictures])


def test_a_run_and_its_evaluation_print_how_closely_the_model_agrees(run, tmp_path):
    out = tmp_path / "run"
    status, output, err = run(*QUICK_OPTIONS, "--export", "onnx", "--out", str(out))
    assert status == 0 and re.search(rf"^export +{MESSAGE}$", output + err, re.M)
    assert json.loads((out / "config.json").read_text())["config"]["export"] == "onnx"
    status, output, _ = run("evaluate", str(out), "--export=onnx", "--out", str(tmp_path / "other"))
    assert status == 0 and re.search(rf"^{MESSAGE}$", output, re.M)
    for folder in (out, tmp_path / "other"):
        assert (folder / "export" / ONNX_FILE).read_bytes()
    status, output, _ = run("evaluate", str(out), "--export", "onnx", "--json")
    assert status == 0 and 0 <= json.loads(output)["onnx_difference"] <= TOLERANCE


def test_only_the_first_process_writes_the_model(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(export_network, "to_onnx", lambda *of: written.append(of[-1]) or to_onnx(*of))
    config = TrainConfig(devices="cpu", model="mlp", epochs=1, batch_size=180, export="onnx", out=str(tmp_path / "r"))
    results = run_in_threads(2, lambda group: train(config, reporter=Reporter(), group=group))
    assert results[0].onnx.difference <= TOLERANCE and results[1].onnx is None
    assert written == ["mlp"]
    assert evaluate_run(str(tmp_path / "r"), export="onnx").onnx.difference <= TOLERANCE


def test_export_alone_writes_mxnets_files(run, tmp_path):
    out = tmp_path / "run"
    assert run(*QUICK_OPTIONS, "--export", "mxnet", "--out", str(out))[0] == 0
    assert json.loads((out / "config.json").read_text())["config"]["export"] == "mxnet"
    assert not (out / "export" / ONNX_FILE).exists()
    assert "onnx" not in json.loads((out / "export" / DESCRIPTION).read_text())
    assert evaluate_run(str(out), export=True).onnx is None  # as older versions called it


def test_a_resumed_run_exports_at_its_end(tmp_path):
    run_quickly(tmp_path, export="onnx", checkpoint_every="1 epoch")
    (tmp_path / "run" / "export" / ONNX_FILE).unlink()
    resume_point = read_resume_point(tmp_path / "run")
    result = train(resumed_config(resume_point, epochs=2), reporter=Reporter(), resume=resume_point)
    assert result.onnx.difference <= TOLERANCE
    assert (tmp_path / "run" / "export" / ONNX_FILE).exists()


def test_a_network_of_the_users_own_is_exported_or_refused(tmp_path):
    def make_net(classes, *layers):
        net = nn.HybridSequential()
        net.add(nn.Conv2D(3, 3), nn.BatchNorm(scale=False), *layers, nn.Dense(classes))
        return net

    config = TrainConfig(devices="cpu*2", epochs=1, lr=0.01, export="onnx", out=str(tmp_path / "r"))
    result = train(config, reporter=Reporter(), net=make_net)
    assert result.onnx.difference <= TOLERANCE
    evaluation = evaluate_run(str(tmp_path / "r"), net=make_net, export="onnx", out=str(tmp_path / "again"))
    assert evaluation.onnx.difference <= TOLERANCE  # with other threads, the last bits differ
    with pytest.raises(ModelError, match="contains the operator erf, which MXNet cannot translate to ONNX"):
        odd = config.replace(out=str(tmp_path / "odd"))
        train(odd, reporter=Reporter(), net=lambda classes: make_net(classes, Erf()))
    assert not (tmp_path / "odd").exists()


@pytest.mark.parametrize("name", ["onnx", "onnxruntime"])
def test_without_its_packages_the_error_names_the_command_that_installs_them(run, empty_cwd, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)  # import raises ModuleNotFoundError then
    line = read_error_line(run(*QUICK_OPTIONS, "--export", "onnx"), empty_cwd)
    assert line == (
        f"error: --export onnx needs onnx and onnxruntime, but {name} is not installed: "
        "run pip install 'gluonlab[onnx]', or use --export mxnet"
    )


class Erf(nn.HybridBlock):
    """An operator that MXNet's exporter does not know."""

    def hybrid_forward(self, F, x):
        return F.erf(x)


def test_what_cannot_be_exported_is_refused_before_training(run, empty_cwd, monkeypatch):
    def odd(classes):
        net = nn.HybridSequential()
        net.add(Erf(), nn.Dense(classes))
        return net

    line = read_error_line(run("--export", "tflite"), empty_cwd)
    assert line == "error: --export tflite: must be mxnet or onnx"
    monkeypatch.setitem(MODELS, "odd", ModelKind(odd, "for this test"))
    line = read_error_line(run("--model", "odd", "--epochs", "1", "--export", "onnx"), empty_cwd)
    assert line.startswith(
        "error: --export onnx: odd contains the operator erf, which MXNet cannot translate to ONNX: "
    )
    out = str(empty_cwd / "run")
    assert run("--model", "odd", "--epochs", "1", "--lr", "0.001", "--out", out)[0] == 0
    line = run("evaluate", out, "--export", "onnx")[2].splitlines()[-1]
    assert line.startswith("error: --export onnx: odd contains the operator erf, which MXNet cannot translate to ONNX")
