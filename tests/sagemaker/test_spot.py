"""training/spot.json under AWS's own training toolkit: a job that is ended and started again."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from aws_machine import REPOSITORY, Machine
from support.waiting import LIMIT_S

SMALL = {
    "gpus": "2", "dataset": '"digits"', "model": '"mlp"', "epochs": "25", "lr": "0.1",
    "optimizer": '"sgd"', "threads": "1", "checkpoint-every": '"15 steps"',
}  # fmt: skip


def sync_to_store(machine, store, late):
    """AWS has copied the folder to S3, a file named ``late`` only in part, and left its markers."""
    shutil.copytree(machine.root / "checkpoints", store)
    for file in [each for each in store.rglob("*") if each.is_file()]:
        file.with_name(f"{file.name}.sagemaker-uploaded").touch()
        if file.name == late:
            text = file.read_bytes()
            file.write_bytes(text[: len(text) // 2])
    return store


@pytest.fixture(scope="module")
def uninterrupted_run(tmp_path_factory):
    """The run of the same hyperparameters, without AWS."""
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    options = [word for name, text in SMALL.items() for word in (f"--{name}", str(json.loads(text)))]
    subprocess.run(
        [sys.executable, "-m", "gluonlab.run", *options, "--out", out],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        timeout=LIMIT_S,
    )
    return out


def read_metrics_without_times(folder):
    lines = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    clock = ("seconds", "training_seconds", "waiting")
    return [
        {name: value for name, value in line.items() if name not in clock}
        for line in lines
        if line.get("event") != "resumed"
    ]


@pytest.mark.long
@pytest.mark.parametrize(("number", "late"), [(signal.SIGTERM, ""), (signal.SIGKILL, "metrics.jsonl")], ids=str)
def test_a_job_that_is_ended_and_started_again_ends_with_the_same_bits(uninterrupted_run, tmp_path, number, late):
    (tmp_path / "empty").mkdir()
    first = Machine(tmp_path / "first", "spot", SMALL, tmp_path / "empty")
    first.start()
    try:
        first.wait_for_checkpoint(60)
        if number == signal.SIGTERM:  # AWS's notice, which comes to the entry point alone
            os.kill(first.process.pid, number)
            first.wait_for_text("ended by SIGTERM")
            assert first.process.poll() is None  # AWS ends the job: an end of its own is a failure
            newest = max(int(path.name[5:]) for path in first.run.glob("checkpoints/step-*"))
            assert newest >= read_metrics_without_times(first.run)[-1]["step"]  # nothing is computed again
    finally:
        first.kill()
    second = Machine(tmp_path / "second", "spot", SMALL, sync_to_store(first, tmp_path / "s3", late))
    shutil.rmtree(first.root)
    second.start()
    assert second.wait_for_exit() == 0, second.read_log()
    assert "resumed    from step" in second.read_log()
    if number == signal.SIGTERM:
        assert f"from step {newest}" in second.read_log(), re.findall("resumed.*", second.read_log())
    assert ("metrics.jsonl has lost lines" in second.read_log()) is bool(late)
    item, other = (folder / "parameters.params" for folder in (second.run, uninterrupted_run))
    assert item.read_bytes() == other.read_bytes()
    assert read_metrics_without_times(second.run) == read_metrics_without_times(uninterrupted_run)
