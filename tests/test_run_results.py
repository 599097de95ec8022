"""python -m gluonlab.run: what it prints is what it did, and however it ends, what it leaves is whole."""

import dataclasses
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import mxnet as mx
import pytest
from conftest import clean_environment
from idx_files import write_mnist

from gluonlab.config import TrainConfig, option_name
from gluonlab.data import DATASETS
from gluonlab.errors import GluonlabError
from gluonlab.kvstores import KVSTORES
from gluonlab.models import MODELS, get_model
from gluonlab.training.loop import train
from gluonlab.training.record import PARAMETERS, read_metrics
from gluonlab.training.reporter import Reporter

pytestmark = pytest.mark.filterwarnings("default::gluonlab.errors.GluonlabWarning")
QUICK = ["--model", "mlp", "--epochs", "1", "--gpus", "2"]


def test_help_names_every_setting(run):
    status, out, err = run("--help")
    assert (status, err) == (0, "")
    words = " ".join(out.split())
    for field in dataclasses.fields(TrainConfig):
        assert f"{option_name(field.name)} " in words
    for extra in ("--compare", "--evaluate", "--json", "--quiet", "--list", "--debug"):
        assert extra in words
    assert run("-h")[1] == out


def test_list_names_everything_that_can_be_chosen(run):
    status, out, err = run("--list")
    assert (status, err) == (0, "")
    for registry in (MODELS, DATASETS, KVSTORES):
        for name, kind in registry.items():
            assert re.search(rf"^  {re.escape(name)} +{re.escape(kind.summary)}$", out, re.M)


def test_json_is_one_document_and_nothing_else(run, empty_cwd):
    status, out, err = run(*QUICK, "--json", "--out", "run", "--seed", "7")
    assert status == 0
    result = json.loads(out)
    assert result["devices"] == ["cpu(0)", "cpu(1)"]
    assert (result["model"], result["epochs"], result["seed"], result["run_dir"]) == ("mlp", 1, 7, "run")
    [epoch] = [line for line in read_metrics(Path("run")) if line["kind"] == "epoch"]
    assert result["accuracy"] == epoch["accuracy"] == result["history"][0]["accuracy"]
    assert err == "warning: no GPU on this machine: 2 CPU devices stand in for GPUs\n"


def test_quiet_prints_two_lines(run):
    status, out, _ = run(*QUICK, "--quiet", "--out", "run")
    assert status == 0
    first, second = out.splitlines()
    accuracy = r"accuracy [01]\.\d{4} \(top-5 [01]\.\d{4}\)"
    assert re.fullmatch(accuracy + r", [\d,]+ images/s, [\d.]+ s in all, [\d.]+% waiting for images", first)
    assert second == "written to run"


def test_a_run_prints_what_it_does_and_ends_with_the_same_two_lines(run):
    status, out, _ = run(*QUICK, "--epochs", "2", "--out", "run")
    assert status == 0
    assert [len(re.findall(rf"^epoch {epoch}/2 ", out, re.M)) for epoch in (1, 2, 3)] == [1, 1, 0]
    for name in ("devices", "network", "data", "batch", "optimizer", "kvstore"):
        assert re.search(rf"^{name} ", out, re.M)
    assert out.splitlines()[-1] == "written to run"


def test_images_from_files_can_be_trained_on(run, tmp_path):
    write_mnist(tmp_path / "data", ending=".gz")
    status, out, _ = run("--dataset", "mnist", "--data-dir", str(tmp_path / "data"), "--json", *QUICK)
    assert status == 0
    assert json.loads(out)["history"][0]["images"] == 40


def test_a_comparison_as_json_is_one_document(run):
    status, out, _ = run("--compare", "1,2", "--model", "mlp", "--epochs", "1", "--json", "--out", "run")
    assert status == 0
    assert [row["devices"] for row in json.loads(out)] == [1, 2]


# --- how it ends when it goes wrong on the way


def test_a_learning_rate_that_is_too_large_ends_with_the_step_that_it_spoiled(run):
    status, out, err = run("--model", "mlp", "--lr", "1e6", "--optimizer", "sgd", "--out", "run", "--quiet")
    assert (status, out) == (1, "")
    [line] = err.splitlines()
    step = int(re.fullmatch(r"error: the loss became (nan|inf|-inf) at step (\d+): use a smaller learning rate \(--lr\)", line)[2])
    metrics = read_metrics(Path("run"))
    assert [entry["message"] for entry in metrics if entry["kind"] == "event"] == [line[len("error: ") :]]
    assert all(entry["step"] < step for entry in metrics if entry["kind"] == "step")


def test_a_run_that_diverges_ends_within_eight_steps(empty_cwd):
    class Counter(Reporter):
        steps = 0

        def step_done(self, images, known):
            self.steps += 1

    counter = Counter()
    with pytest.raises(GluonlabError, match="at step") as error:
        train(TrainConfig(model="mlp", lr=1e6, optimizer="sgd", out="run"), reporter=counter)
    step = int(re.search(r"at step (\d+)", str(error.value))[1])
    assert step <= counter.steps + 1
    assert counter.steps <= step + 8


def interrupted(folder, arguments, after):
    """A real process in ``folder`` that gets SIGINT ``after`` seconds after its second epoch: exit status and errors."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "gluonlab.run", *arguments],
        cwd=folder,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    try:
        while not re.match(r"epoch +2/", process.stdout.readline()):
            assert process.poll() is None, process.stderr.read()
        time.sleep(after)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        return process.returncode, err
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("after", [0, 0.35])
def test_ctrl_c_ends_a_run_and_leaves_whole_files(tmp_path, after):
    status, err = interrupted(tmp_path, ["--gpus", "2", "--epochs", "1000", "--out", "run"], after)
    assert status == 130
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("interrupted: ")
    run = tmp_path / "run"
    assert [path.name for path in run.iterdir() if path.name.startswith(".")] == []
    metrics = (run / "metrics.jsonl").read_text()
    assert metrics.endswith("\n")
    assert all(json.loads(line)["kind"] in ("step", "epoch", "event") for line in metrics.splitlines())
    json.loads((run / "config.json").read_text())
    net = get_model("lenet", 10)
    net.load_parameters(str(run / PARAMETERS), ctx=mx.cpu())
    assert net(mx.nd.zeros((1, 1, 28, 28))).shape == (1, 10)
