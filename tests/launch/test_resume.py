"""Runs of several processes that are killed or ended by signals, and go on."""

import json
import re
import signal
import subprocess
import sys

import pytest
from support import group_kills
from support.idx_files import write_mnist
from support.interrupted_runs import read_comparable_metrics, read_parameter_bytes
from support.launched import each_backend, each_slow_backend, parameter_vectors, run_launches
from support.processes import clean_environment
from support.reference import relative_distance
from support.run_files import read_metrics
from support.waiting import wait_until

from gluonlab.runs.checkpoint import read_newest_checkpoint

pytestmark = pytest.mark.cpu_only("the processes compute on CPU devices, whoever started them")
SETTINGS = {
    "threads": 1, "model": "drawn", "epochs": 6, "lr": 0.01, "global_batch_size": 20,
    "optimizer": "sgd", "momentum": 0.9, "flip": True, "check_replicas": 5, "checkpoint_every": "2 steps",
}  # fmt: skip
LAYERS = ["convolution", "norm", "dropout"]


def kill_group(folder, **how):
    """The folders of the run that was killed, and of the undisturbed one."""
    case = {"seed": 0, "settings": SETTINGS, "layers": LAYERS, **how}
    process = subprocess.run(
        [sys.executable, group_kills.__file__, str(folder), json.dumps(case)],
        env=clean_environment(), capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout)["resumed"] >= how["kills"] // 2
    for run in (folder / "run", folder / "whole"):
        steps = [line["step"] for line in read_comparable_metrics(run) if line["kind"] == "step"]
        assert steps == list(range(1, 8 * case["settings"]["epochs"] + 1))
    return folder / "run", folder / "whole"


LONG = pytest.mark.long
MORE = {"optimizer": "adam", "momentum": None, "mixup": 0.2, "microbatches": 2, "clip_norm": 0.5}


@pytest.mark.parametrize(
    ("devices", "kills", "more"),
    [
        ([2, 1], 4, {}),
        pytest.param([1, 1], 15, {}, marks=LONG),
        pytest.param([2, 2], 15, MORE, marks=LONG),
        pytest.param([2, 2], 15, {"lr_schedule": "cosine", "kvstore": "ring"}, marks=LONG),
    ],
    ids=str,
)
@pytest.mark.long
def test_killed_at_any_moments_a_group_ends_with_the_same_bits(tmp_path, devices, kills, more):
    settings = {**SETTINGS, "epochs": 2 + kills, **more}
    run, whole = kill_group(tmp_path, devices=devices, kills=kills, settings=settings)
    assert read_parameter_bytes(run) == read_parameter_bytes(whole)
    assert read_comparable_metrics(run) == read_comparable_metrics(whole)


@pytest.mark.parametrize(
    ("devices", "then"),
    [([2, 2], [4]), pytest.param([4], [2, 2], marks=LONG), pytest.param([1, 3], [2, 2], marks=LONG)],
    ids=str,
)
@pytest.mark.long
def test_other_processes_with_as_many_devices_go_on(tmp_path, devices, then):
    """Of the same number of devices each has the same images, as BatchNorm wants it."""
    settings, layers = {**SETTINGS, "epochs": 3}, ["norm", "convolution"]
    run, whole = kill_group(tmp_path, devices=devices, then=then, kills=1, settings=settings, layers=layers)
    assert relative_distance(parameter_vectors(run), parameter_vectors(whole)) <= 1e-5
    [event] = [line for line in read_metrics(run) if line.get("event") == "resumed"]
    assert "gradients are summed in another order" in event["message"]


OPTIONS = ("--threads", "1", "--model", "mlp", "--global-batch-size", "12", "--devices", "cpu*2")


def end_by_signal(sign, ranks, backend, tmp_path):
    """A run in ``tmp_path/run`` of two processes, of which ``ranks`` get a signal."""
    write_mnist(tmp_path, train=120, test=30)
    metrics = tmp_path / "run" / "metrics.jsonl"

    def send(processes):
        wait_until(lambda: metrics.exists() and '"epoch", ' in metrics.read_text())
        for rank in ranks:
            processes[rank].send_signal(sign)

    data = ("--dataset", "fashion-mnist", "--data-dir", tmp_path)
    return run_launches(backend, tmp_path, *OPTIONS, *data, "--epochs", "100000", "--out", "run", meanwhile=send)


@pytest.mark.parametrize(
    ("sign", "ranks"),
    [
        (signal.SIGTERM, [0]),
        pytest.param(signal.SIGINT, [0, 1], marks=LONG),
        pytest.param(signal.SIGHUP, [1], marks=LONG),
    ],
)
@each_slow_backend
def test_a_signal_ends_all_processes_after_the_same_step_and_they_go_on(backend, sign, ranks, tmp_path):
    run = tmp_path / "run"
    processes = end_by_signal(sign, ranks, backend, tmp_path)
    assert [process.status for process in processes] == [128 + sign] * 2, processes
    assert all("Traceback" not in process.err for process in processes)
    go_on = f"; to resume: gluonlab launch --backend {backend} -- resume run"
    assert sum(process.err.splitlines()[-1].endswith(go_on) for process in processes) == 1  # rank 0
    [checkpoint] = (run / "checkpoints").iterdir()
    before = read_newest_checkpoint(run).checkpoint
    assert before.step == int(checkpoint.name[5:])

    epochs = before.state["loader"]["epoch"] + 1
    processes = run_launches(backend, tmp_path, "--resume", run, "--epochs", epochs)
    assert [process.status for process in processes] == [0, 0], processes
    steps = [line["step"] for line in read_metrics(run) if line["kind"] == "step"]
    assert steps == list(range(1, 10 * epochs + 1))

    # what one of them finds wrong ends all of them, and changes nothing
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    other = tmp_path / "other"
    other.mkdir()
    write_mnist(other, train=119, test=30)
    processes = run_launches(
        backend, tmp_path, "--resume", run, "--epochs", epochs + 1, of_rank={1: ("--data-dir", other)}
    )
    assert sorted(process.status for process in processes) == [1, 2], processes
    [error] = [process.err for process in processes if process.status == 2]
    assert re.search("^error: .*its train split contained 120 images.* contains 119", error, re.M)
    assert files == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


@LONG
@each_backend
def test_the_same_command_begins_a_run_goes_on_and_says_that_it_has_ended(backend, tmp_path):
    command = (*OPTIONS, "--global-batch-size", "48", "--epochs", "3", "--autoresume", "--out", "run")
    run = tmp_path / "run"

    def kill(processes):
        wait_until(lambda: any(run.glob("checkpoints/step-*")))
        for process in processes:
            process.kill()

    run_launches(backend, tmp_path, *command, meanwhile=kill)
    for message in ("resumed", "ended      run has finished its 3 epochs"):
        processes = run_launches(backend, tmp_path, *command)
        assert [process.status for process in processes] == [0, 0], processes
        assert sum(message in process.out for process in processes) == 1  # rank 0's
    kinds = [line.get("event", line["kind"]) for line in read_metrics(run)]
    assert [kinds.count(kind) for kind in ("step", "epoch", "resumed", "ended")] == [90, 3, 1, 1]
