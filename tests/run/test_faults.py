"""What breaks under a run that is under way ends it in one line, and tears nothing."""

import itertools
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from hypothesis import Phase, event, given, settings
from hypothesis import strategies as st
from support.commands import file_names
from support.image_folders import write_image_folder
from support.processes import clean_environment
from support.run_files import read_metrics

from gluonlab.host.resources import child_pids
from gluonlab.runs.checkpoint import list_checkpoints
from gluonlab.training.reporter import Reporter

IMAGES = ["--dataset", "folder:data", "--image-size", "16", "--resident-bytes", "0", "--decoders",
          "1", "--model", "mlp", "--global-batch-size", "6", "--threads", "1",
          "--out", "run"]  # fmt: skip


SMALL = ["--model", "mlp", "--threads", "1", "--out", "run"]


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

        monkeypatch.setattr("gluonlab.cli.print_results.make_reporter", lambda silent: Breaks())
        status, out, err = run(*arguments, "--epochs", "9", "--quiet")
        assert out == ""
        return status, only_line(err)

    return end


def only_line(errors):
    """The one that is no warning."""
    [line] = [line for line in errors.splitlines() if not line.startswith("warning: ")]
    return line


def of_kind(kind, run=Path("run")):
    return [line for line in read_metrics(run) if line["kind"] == kind]


def cut():
    for path in Path("data/train").rglob("*.jpg"):
        os.truncate(path, 100)


def youngest_child():
    """Of the processes that tests before this one have left there may be others, which may end."""
    begun = {}
    for pid in child_pids(os.getpid()):
        with suppress(FileNotFoundError, ProcessLookupError):
            begun[pid] = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
    return max(begun, key=begun.get)


FAULTS = {  # fault -> exit status, and what the line says
    "the data vanish": (lambda: shutil.rmtree("data/train"), 2, "No such file or directory): replace or remove it"),
    "the data are cut off": (cut, 2, ".jpg: damaged ("),
    "a decoder dies": (
        lambda: os.kill(youngest_child(), signal.SIGKILL),
        1,
        "was killed, as the system does when memory is short: use fewer with --decoders",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_images_that_break_end_the_run_and_leave_whole_epochs(broken, empty_cwd, name):
    write_image_folder(empty_cwd / "data", train=12)
    fault, status, said = FAULTS[name]
    ended, line = broken(fault, *IMAGES)
    assert ended == status
    assert line.startswith("error: ")
    assert said in line
    assert file_names(Path("run")) == ["config.json", "curves.png", "metrics.jsonl", "parameters.params"]
    assert 1 <= len(of_kind("epoch")) <= 3


@pytest.mark.parametrize("gone", ["the folder", "metrics.jsonl"])
def test_a_run_whose_folder_or_file_is_removed_ends_when_it_writes(broken, empty_cwd, gone):
    def fault():
        shutil.rmtree("run") if gone == "the folder" else Path("run/metrics.jsonl").unlink()

    status, line = broken(fault, *SMALL)
    assert status == 2
    assert line.startswith("error: cannot write run/")
    assert not Path("run/metrics.jsonl").exists()
    assert "epoch" not in line


def test_clock_jumps_change_neither_periods_nor_seconds(run, monkeypatch):
    jumps, clock = itertools.cycle([5 * 3600, -9 * 3600, 0, 86400]), time.time
    monkeypatch.setattr("time.time", lambda: clock() + next(jumps))
    monkeypatch.setattr("time.time_ns", lambda: int(1e9 * (clock() + next(jumps))))
    began = time.perf_counter()
    words = "--epochs 3 --quiet --checkpoint-every 100minutes --keep 100"
    status, _, _ = run(*SMALL, *words.split())
    lines, seconds = read_metrics(Path("run")), time.perf_counter() - began
    assert status == 0
    noted = [line["seconds"] for line in lines if line.get("seconds") is not None]
    assert len(noted) > 50 and noted == sorted(noted)
    assert noted[0] > 0 and noted[-1] <= seconds < 6000
    ends = {f"step-{line['step']:09d}" for line in lines if line["kind"] == "epoch"}
    assert set(file_names(Path("run/checkpoints"))) <= ends  # those of the best epochs


@pytest.mark.parametrize("gone", ["no folder can be made", "no file can be made"])
def test_a_full_disk_for_checkpoints_ends_the_run_with_one_line(broken, empty_cwd, gone):
    def fault():
        if gone == "no folder can be made":
            put_a_file_in_its_place(Path("run/checkpoints"), empty_cwd / "away")
        else:
            forbid(stack, Path("run/checkpoints"))

    with ExitStack() as stack:
        status, line = broken(fault, *SMALL, "--checkpoint-every", "5 steps")
    assert status == 2
    assert line.startswith("error: cannot write run/checkpoints/")
    assert line.endswith("; free space there; what was written before is whole")
    assert 1 <= len(of_kind("epoch")) <= 2


def put_a_file_in_its_place(folder, away):
    """A checkpoint that is written meanwhile makes the folder again."""
    while not folder.is_file():
        if folder.exists():
            folder.rename(away.with_name(f"{away.name}-{time.monotonic_ns()}"))
        with suppress(FileExistsError):
            folder.touch(exist_ok=False)


def forbid(stack, folder):
    """Nobody makes anything in the folder any more, as on a disk that is only read."""
    folder.chmod(0o500)
    stack.callback(folder.chmod, 0o700)
    if os.geteuid() == 0:  # whom permissions do not bind
        os.chown(folder, 12345, 12345)
        for path in (folder.parent, *folder.parent.iterdir()):
            os.chown(path, 12345, 12345)
        os.seteuid(12345)
        stack.callback(os.seteuid, 0)


REMOUNTED = """
import subprocess
import time
from pathlib import Path
import gluonlab.cli.print_results as speaking
from gluonlab.run import main
from gluonlab.training.reporter import Reporter

class Breaks(Reporter):
    def epoch_begins(self, epoch, epochs, images):
        if epoch == 1:
            Path("run/checkpoints").symlink_to("../disk")
        if epoch == 2:
            words = ["mount", "-o", "remount,ro", "disk"]
            while subprocess.run(words, stderr=subprocess.DEVNULL).returncode:
                time.sleep(0.01)  # busy: a checkpoint is being written

speaking.make_reporter = lambda silent: Breaks()
words = "--model mlp --threads 1 --epochs 9 --quiet --out run --checkpoint-every".split()
main([*words, "5 steps"])
"""


@pytest.mark.long
def test_checkpoints_on_a_disk_that_becomes_read_only_end_the_run_in_one_line(tmp_path):
    """One of their own: the system refuses to remount that of metrics.jsonl, which is open."""
    mounted = "mkdir -p disk && mount -t tmpfs tmpfs disk"
    if subprocess.run(["unshare", "-m", "sh", "-c", mounted], cwd=tmp_path, check=False).returncode:
        lacks = "this user may not mount a file system: run it as root"
        if os.environ.get("GLUONLAB_HOSTS") == "required":
            pytest.fail(lacks)
        pytest.skip(lacks)
    look = "status=$?; cp -r disk kept; exit $status"  # the disk goes with its last process
    ended = subprocess.run(
        ["unshare", "-m", "sh", "-c", f'{mounted} && "$0" -c "$1"; {look}', sys.executable]
        + [REMOUNTED],
        cwd=tmp_path, env=clean_environment(), stdin=subprocess.DEVNULL, capture_output=True,
        encoding="utf-8", timeout=600, check=False,
    )  # fmt: skip
    line = only_line(ended.stderr)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert line.startswith("error: cannot write run/checkpoints/")
    assert "Read-only file system" in line
    assert 1 <= len(of_kind("epoch", tmp_path / "run")) <= 2
    assert file_names(tmp_path / "kept")


def test_too_few_descriptors_name_the_limit_and_the_option(run, empty_cwd):
    write_image_folder(empty_cwd / "data", train=12)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, before[1]))
    try:
        status, out, err = run(*IMAGES, "--decoders", "64", "--quiet")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert (status, out) == (1, "")
    assert only_line(err) == (
        f"error: no file descriptor is left: this process may have {used + 20:,}; "
        "use fewer --decoders, or raise the limit (ulimit -n)"
    )
    assert file_names(empty_cwd) == ["data"]


def ended_with(limit_mib, folder, *arguments):
    """Status, our lines and all other lines of a run of which so much may be mapped."""
    most = limit_mib * 2**20
    command = [sys.executable, "-m", "gluonlab.run", "--quiet", *arguments]
    ended = subprocess.run(
        ["prlimit", f"--as={most}:{most}", "--core=0", *command],
        cwd=folder, env=clean_environment(), stdin=subprocess.DEVNULL, capture_output=True,
        encoding="utf-8", timeout=600, check=False,
    )  # fmt: skip
    said = ended.stderr.replace("\nlibgomp: ", "libgomp: ")  # which begins a line of its own
    lines = [line for line in said.splitlines() if not line.startswith("warning: ")]
    ours = [line for line in lines if line.startswith("error: ")]
    return ended.returncode, ours, [line for line in lines if line not in ours]


# What C prints about its heap or an exception that finds no memory, and OpenMP about its threads,
# before it ends a process.
OF_C = re.compile(
    r"((free|malloc|realloc|munmap_chunk|corrupted|double)\b|libgomp: ).*"
    r"|libgcc_s\.so\.1 must be installed for unwinding to work"
)
# the linker's own end, at which it calls nobody
OF_LINKER = "cannot allocate memory for thread-local data: ABORT"


def one_line_or_whole(folder, limit_mib, *arguments):
    """What a run ends with under a limit: its status, and its line."""
    status, ours, others = ended_with(limit_mib, folder, *arguments)
    if (status, others) == (127, [OF_LINKER]):
        return status
    assert all(OF_C.fullmatch(line) for line in others), others
    assert (status, len(ours)) in [(0, 0), (1, 1), (6, 1)], ours
    assert status == 0 or "MiB (ulimit -v)" in ours[0]
    return status


@pytest.mark.cpu_only("GPUs reserve addresses as they like")
@pytest.mark.parametrize("limit_mib", [300, 820])
def test_too_little_address_space_before_the_first_step_gives_one_line(tmp_path, limit_mib):
    assert one_line_or_whole(tmp_path, limit_mib, "--model", "lenet", "--out", "run") != 0


@pytest.mark.long
@pytest.mark.cpu_only("GPUs reserve addresses as they like")
@settings(max_examples=15, deadline=None, phases=[Phase.generate])  # an example takes seconds
@given(limit_mib=st.integers(40, 2700), devices=st.sampled_from([1, 2]))
def test_too_little_address_space_gives_one_line_and_the_run_can_resume(tmp_path_factory, limit_mib, devices):
    folder = tmp_path_factory.mktemp("limited")
    words = [
        "--model", "resnet8", "--devices", f"cpu*{devices}", "--threads", str(3 - devices),
        "--epochs", "2", "--global-batch-size", "256", "--checkpoint-every", "2 steps",
        "--out", "run",
    ]  # fmt: skip
    status = one_line_or_whole(folder, limit_mib, *words)
    event(f"ends with {status}, {limit_mib // 300 * 300} MiB and more")
    if status and list_checkpoints(folder / "run"):
        if len(of_kind("epoch", folder / "run")) < 2:  # all else may have ended in its last picture
            assert ended_with(2**20, folder, "--resume", "run") == (0, [], [])
        steps = [line["step"] for line in of_kind("step", folder / "run")]
        assert steps == list(range(1, 13))


SHORT = """
import re, resource
from gluonlab.config import TrainConfig
from gluonlab.run import main
from gluonlab.study import compare_devices as compare
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
def test_too_little_memory_is_reported_with_options_that_need_less(python, tmp_path):
    ended = python("-c", SHORT)
    assert (ended.returncode, ended.stdout) == (1, "")
    start, end = "error: there is not enough memory: this process may have ", " (ulimit -v)"
    assert ended.stderr.startswith(start)
    assert ended.stderr.count("\n") == 1
    for words in (end, "--batch-size", "--microbatches", "--find-batch-size"):
        assert words in ended.stderr
    assert all(line["kind"] for line in read_metrics(tmp_path / "run"))
