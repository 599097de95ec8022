"""A machine of a training job, without AWS: the files that a job finds, and AWS's own toolkit."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

from made_up_notebook import SAGEMAKER
from support.waiting import LIMIT_S, wait_until

REPOSITORY = SAGEMAKER.parent
TRAIN = [sys.executable, "-m", "sagemaker_training.cli.train"]  # what an image's entry starts


class Machine:
    """The files of a job's request, below a folder in place of /opt/ml, and its entry point."""

    def __init__(self, root, template, small, kept=None, hosts=("localhost",), host="localhost", interface=""):
        """``template``: a request's name, whose hyperparameters ``small`` replaces in part.

        ``kept``: what lies in the S3 folder of its checkpoints. ``interface``: the network's name.
        """
        path = SAGEMAKER / "training" / f"{template}.json"
        request = json.loads(path.read_text(encoding="utf-8"))
        self.entry = request["AlgorithmSpecification"].get("ContainerEntrypoint", TRAIN)
        self.root, config = root, root / "input" / "config"
        for folder in (config, root / "output", root / "model"):
            folder.mkdir(parents=True)
        if kept is not None:
            shutil.copytree(kept, root / "checkpoints")
        values = {**request["HyperParameters"], **small}
        del values["data-dir"]  # the built-in digits
        values["sagemaker_submit_directory"] = json.dumps(str(self._source()))
        values = {name: text.replace("/opt/ml", str(root)) for name, text in values.items()}
        self.run = Path(json.loads(values["out"]))
        resources = {"current_host": host, "hosts": list(hosts)}
        if interface:
            resources["network_interface_name"] = interface
        for name, content in (("hyperparameters", values), ("resourceconfig", resources), ("inputdataconfig", {})):
            (config / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")

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
            self.entry,
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

    def wait_for_checkpoint(self, lines):
        """Until metrics.jsonl has so many, and a checkpoint is there."""

        def are_there():
            assert self.process.poll() is None, self.read_log()
            return self.count_metric_lines() >= lines and list(self.run.glob("checkpoints/step-*"))

        wait_until(are_there)

    def wait_for_text(self, words):
        """Until they are in the log."""
        wait_until(lambda: words in self.read_log())

    def count_metric_lines(self):
        file = self.run / "metrics.jsonl"
        return file.read_bytes().count(b"\n") if file.exists() else 0

    def wait_for_exit(self):
        """The status of the job."""
        try:
            return self.process.wait(LIMIT_S)
        finally:
            self.kill()

    def kill(self):
        """The machine is gone."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.log.close()

    def read_log(self):
        return (self.root / "log").read_text(encoding="utf-8", errors="replace")
