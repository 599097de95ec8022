"""training/spot.json under AWS's own training toolkit: a job that is ended and started again."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from made_up_notebook import SAGEMAKER

REPOSITORY = SAGEMAKER.parent
SMALL = {
    "gpus": "2", "dataset": '"digits"', "model": '"mlp"', "epochs": "25", "lr": "0.1",
    "optimizer": '"sgd"', "threads": "1", "checkpoint-every": '"15 steps"',
}  # fmt: skip
PATIENCE = 120  # seconds


def request():
    return json.loads((SAGEMAKER / "training" / "spot.json").read_text(encoding="utf-8"))


class Machine:
    """What AWS gives a job: the request's files below a folder in place of /opt/ml, and the image's
    entry point.
    """

    def __init__(self, root, kept):
        """``kept``: what lies in the S3 folder of the request's checkpoints."""
        self.root, config = root, root / "input" / "config"
        for folder in (config, root / "output", root / "model"):
            folder.mkdir(parents=True)
        shutil.copytree(kept, root / "checkpoints")
        values = {**request()["HyperParameters"], **SMALL}
        del values["data-dir"]  # the built-in digits
        values["sagemaker_submit_directory"] = json.dumps(str(self._source()))
        values = {name: text.replace("/opt/ml", str(root)) for name, text in values.items()}
        hosts = {"current_host": "localhost", "hosts": ["localhost"]}
        for name, content in (
            ("hyperparameters", values), ("resourceconfig", hosts), ("inputdataconfig", {}),
        ):  # fmt: skip
            (config / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
        self.run = root / "checkpoints" / "run"

    def _source(self):
        place = self.root / "source.tar.gz"
        with tarfile.open(place, "w:gz") as archive:
            for name in ("gluonlab", "labs", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
                archive.add(REPOSITORY / name, name)
        return place

    def start(self):
        """The entry point installs the program, beside what is installed here, and runs it."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        pip = {"NO_DEPS": "1", "NO_BUILD_ISOLATION": "0", "TARGET": str(self.root / "installed")}
        self.log = (self.root / "log").open("wb")
        self.process = subprocess.Popen(
            request()["AlgorithmSpecification"]["ContainerEntrypoint"],
            cwd=self.root,
            env={
                **kept,
                **{f"PIP_{name}": value for name, value in pip.items()},
                "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
                "SAGEMAKER_BASE_DIR": str(self.root),
                "SAGEMAKER_TRAINING_MODULE": "sagemaker_mxnet_container.training:main",
            },
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait_for(self, lines):
        """Until metrics.jsonl has so many, and a checkpoint is there."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.process.poll() is None:
            if self.lines() >= lines and list(self.run.glob("checkpoints/step-*")):
                return
            time.sleep(0.01)
        raise AssertionError(self.said())

    def wait_to_say(self, words):
        """Until they are in the log."""
        end = time.monotonic() + PATIENCE
        while words not in self.said():
            assert time.monotonic() < end, self.said()
            time.sleep(0.05)

    def lines(self):
        file = self.run / "metrics.jsonl"
        return file.read_bytes().count(b"\n") if file.exists() else 0

    def ended(self):
        """The status of the job."""
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.end()

    def end(self):
        """The machine is gone."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.log.close()

    def said(self):
        return (self.root / "log").read_text(encoding="utf-8", errors="replace")


def synced(machine, store, late):
    """AWS has copied the folder to S3, a file named ``late`` only in part, and left its markers."""
    shutil.copytree(machine.root / "checkpoints", store)
    for file in [each for each in store.rglob("*") if each.is_file()]:
        file.with_name(f"{file.name}.sagemaker-uploaded").touch()
        if file.name == late:
            text = file.read_bytes()
            file.write_bytes(text[: len(text) // 2])
    return store


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The run of the same hyperparameters, without AWS."""
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    options = [
        word for name, text in SMALL.items() for word in (f"--{name}", str(json.loads(text)))
    ]
    subprocess.run(
        [sys.executable, "-m", "gluonlab.run", *options, "--out", out],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        timeout=PATIENCE,
    )
    return out


def without_times(folder):
    lines = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    clock = ("seconds", "training_seconds", "waiting")
    return [
        {name: value for name, value in line.items() if name not in clock}
        for line in lines
        if line.get("event") != "resumed"
    ]


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "late"), [(signal.SIGTERM, ""), (signal.SIGKILL, "metrics.jsonl")], ids=str
)
def test_a_job_that_is_ended_and_started_again_ends_with_the_same_bits(
    undisturbed, tmp_path, number, late
):
    (tmp_path / "empty").mkdir()
    first = Machine(tmp_path / "first", tmp_path / "empty")
    first.start()
    try:
        first.wait_for(60)
        if number == signal.SIGTERM:  # AWS's notice, which comes to the entry point alone
            os.kill(first.process.pid, number)
            first.wait_to_say("ended by SIGTERM")
            assert first.process.poll() is None  # AWS ends the job: an end of its own is a failure
            newest = max(int(path.name[5:]) for path in first.run.glob("checkpoints/step-*"))
            assert newest >= without_times(first.run)[-1]["step"]  # nothing is computed again
    finally:
        first.end()
    second = Machine(tmp_path / "second", synced(first, tmp_path / "s3", late))
    shutil.rmtree(first.root)
    second.start()
    assert second.ended() == 0, second.said()
    assert "resumed    goes on from step" in second.said()
    if number == signal.SIGTERM:
        assert f"goes on from step {newest}" in second.said(), re.findall(
            "goes on.*", second.said()
        )
    assert ("metrics.jsonl has lost lines" in second.said()) is bool(late)
    one, other = (folder / "parameters.params" for folder in (second.run, undisturbed))
    assert one.read_bytes() == other.read_bytes()
    assert without_times(second.run) == without_times(undisturbed)
