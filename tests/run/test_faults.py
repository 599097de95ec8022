"""What breaks under a run that is under way ends it in one line, and tears nothing."""

import os
import resource
import shutil
import signal
from pathlib import Path

import pytest
from support.commands import names
from support.image_folders import write_folder
from support.run_files import read_metrics

from gluonlab.host.memory import children
from gluonlab.training.reporter import Reporter

IMAGES = ["--dataset", "folder:data", "--image-size", "16", "--resident-bytes", "0", "--decoders",
          "1", "--model", "mlp", "--global-batch-size", "6", "--threads", "1",
          "--out", "run"]  # fmt: skip


@pytest.fixture
def broken(run, monkeypatch):
    """``broken(fault, *arguments)``: the run of which ``fault()`` happens in the second epoch."""

    def end(fault, *arguments):
        class Breaks(Reporter):
            def epoch_begins(self, epoch, epochs, images):
                self.epoch = epoch

            def step_done(self, images, known):
                if self.epoch == 2:
                    self.epoch = 0
                    fault()

        monkeypatch.setattr("gluonlab.training.reporter.Reporter", Breaks)
        status, out, err = run(*arguments, "--epochs", "9", "--quiet")
        [line] = [line for line in err.splitlines() if not line.startswith("warning: ")]
        assert out == ""
        return status, line

    return end


def cut():
    for path in Path("data/train").rglob("*.jpg"):
        os.truncate(path, 100)


def youngest_child():
    """Of the processes that tests before this one have left there may be others."""
    return max(
        children(os.getpid()),
        key=lambda pid: int(Path(f"/proc/{pid}/stat").read_text().split()[21]),
    )


FAULTS = {  # fault -> exit status, and what the line says
    "the data vanish": (
        lambda: shutil.rmtree("data/train"), 2, "No such file or directory): replace or remove it",
    ),
    "the data are cut off": (cut, 2, ".jpg: damaged ("),
    "a decoder dies": (
        lambda: os.kill(youngest_child(), signal.SIGKILL), 1,
        "was killed, as the system does when memory is short: use fewer with --decoders",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_images_that_break_end_the_run_and_leave_whole_epochs(broken, empty_cwd, name):
    write_folder(empty_cwd / "data", train=12)
    fault, status, said = FAULTS[name]
    ended, line = broken(fault, *IMAGES)
    assert ended == status
    assert line.startswith("error: ")
    assert said in line
    assert names(Path("run")) == [
        "config.json", "curves.png", "metrics.jsonl", "parameters.params",
    ]  # fmt: skip
    epochs = [line["epoch"] for line in read_metrics(Path("run")) if line["kind"] == "epoch"]
    assert 1 <= len(epochs) <= 3


@pytest.mark.parametrize("gone", ["the folder", "metrics.jsonl"])
def test_a_run_whose_folder_or_file_is_removed_ends_when_it_writes(broken, empty_cwd, gone):
    def fault():
        shutil.rmtree("run") if gone == "the folder" else Path("run/metrics.jsonl").unlink()

    status, line = broken(fault, "--model", "mlp", "--threads", "1", "--out", "run")
    assert status == 2
    assert line.startswith("error: cannot write run/")
    assert not Path("run/metrics.jsonl").exists()
    assert "epoch" not in line


def test_too_few_descriptors_name_the_limit_and_the_option(run, empty_cwd):
    write_folder(empty_cwd / "data", train=12)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, before[1]))
    try:
        status, out, err = run(*IMAGES, "--decoders", "64", "--quiet")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert (status, out) == (1, "")
    [line] = [line for line in err.splitlines() if not line.startswith("warning: ")]
    assert line == (
        f"error: no file descriptor is left: this process may have {used + 20:,}; "
        "use fewer --decoders, or raise the limit (ulimit -n)"
    )
    assert names(empty_cwd) == ["data"]


SHORT = """
import re, resource
from gluonlab.config import TrainConfig
from gluonlab.run import main
from gluonlab.study import compare
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter

train(TrainConfig(model="mlp", epochs=1, threads=1, out="first"), reporter=Reporter())
[size] = re.findall(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())
most = int(size) * 1024 + 30 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (most, most))
main("--model lenet --global-batch-size 1437 --threads 1 --quiet --out run".split())
"""


@pytest.mark.long
@pytest.mark.cpu_only("GPUs reserve addresses as they like")
def test_too_little_memory_names_it_and_what_takes_less(python, tmp_path):
    ended = python("-c", SHORT)
    assert (ended.returncode, ended.stdout) == (1, "")
    start, end = "error: there is not enough memory: this process may have ", " (ulimit -v)"
    assert ended.stderr.startswith(start)
    assert ended.stderr.count("\n") == 1
    for words in (end, "--batch-size", "--microbatches", "--find-batch-size"):
        assert words in ended.stderr
    assert all(line["kind"] for line in read_metrics(tmp_path / "run"))
