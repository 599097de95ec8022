"""Faults in the middle of a run end it in one line, and leave whole files."""

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

SMALL = ["--model", "mlp", "--threads", "1", "--out", "run"]
IMAGES = [
    *SMALL, "--dataset", "folder:data", "--image-size", "16", "--device-cache-bytes", "0", "--workers", "1",
    "--global-batch-size", "6",
]  # fmt: skip


@pytest.fixture
def run_with_fault(run, monkeypatch):
    """Return ``run_with_fault(fault, *arguments)``: status and error line of a run with a fault in epoch 2."""

    def run_command(fault, *arguments):
        class FaultyReporter(Reporter):
            def epoch_begins(self, epoch, epochs, images):
                self.epoch = epoch

            def step_done(self, images, known):
                if self.epoch == 2:
                    self.epoch = 0
                    fault()

        monkeypatch.setattr("gluonlab.cli.print_results.make_reporter", lambda silent: FaultyReporter())
        status, out, err = run(*arguments, "--epochs", "9", "--quiet")
        assert out == ""
        return status, read_only_line(err)

    return run_command


def read_only_line(errors):
    [line] = [line for line in errors.splitlines() if not line.startswith("warning: ")]
    return line


def of_kind(kind, run=Path("run")):
    return [line for line in read_metrics(run) if line["kind"] == kind]


def truncate_images():
    for path in Path("data/train").rglob("*.jpg"):
        os.truncate(path, 100)


def kill_youngest_child():
    """The older ones may be left by other tests."""
    start_times = {}
    for pid in child_pids(os.getpid()):
        with suppress(FileNotFoundError, ProcessLookupError):
            start_times[pid] = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
    os.kill(max(start_times, key=start_times.get), signal.SIGKILL)


SHORT_OF_MEMORY = "was killed, probably because memory is low: use fewer processes with --workers"
FAULTS = {  # fault -> exit status, and a part of the line
    "the data vanish": (
        lambda: shutil.rmtree("data/train"),
        2,
        "No such file or directory): replace or remove the image",
    ),
    "the data are cut off": (truncate_images, 2, ".jpg is damaged ("),
    "a decoder dies": (kill_youngest_child, 1, SHORT_OF_MEMORY),
}


@pytest.mark.parametrize("name", FAULTS)
def test_damaged_images_end_the_run_and_leave_whole_epochs(run_with_fault, empty_cwd, name):
    write_image_folder(empty_cwd / "data", train=12)
    fault, expected, message = FAULTS[name]
    status, line = run_with_fault(fault, *IMAGES)
    assert status == expected and line.startswith("error: ") and message in line
    assert file_names(Path("run")) == ["config.json", "curves.png", "metrics.jsonl", "parameters.params"]
    assert 1 <= len(of_kind("epoch")) <= 3


@pytest.mark.parametrize("fault", [lambda: shutil.rmtree("run"), lambda: Path("run/metrics.jsonl").unlink()])
def test_a_run_whose_folder_or_file_is_removed_ends_when_it_writes(run_with_fault, fault):
    status, line = run_with_fault(fault, *SMALL)
    assert status == 2 and line.startswith("error: cannot write run/") and "epoch" not in line
    assert not Path("run/metrics.jsonl").exists()


def test_clock_jumps_change_neither_periods_nor_seconds(run, monkeypatch):
    jumps, clock = itertools.cycle([5 * 3600, -9 * 3600, 0, 86400]), time.time
    monkeypatch.setattr("time.time", lambda: clock() + next(jumps))
    monkeypatch.setattr("time.time_ns", lambda: int(1e9 * (clock() + next(jumps))))
    start = time.perf_counter()
    words = "--epochs 3 --quiet --checkpoint-every 100minutes --keep-checkpoints 100"
    status, _, _ = run(*SMALL, *words.split())
    lines, elapsed_s = read_metrics(Path("run")), time.perf_counter() - start
    seconds = [line["seconds"] for line in lines if line.get("seconds") is not None]
    assert status == 0 and len(seconds) > 50 and seconds == sorted(seconds)
    assert seconds[0] > 0 and seconds[-1] <= elapsed_s < 6000
    last_steps = {f"step-{line['step']:09d}" for line in lines if line["kind"] == "epoch"}
    assert set(file_names(Path("run/checkpoints"))) <= last_steps  # those of the best epochs


@pytest.mark.parametrize("forbidden", ["folders", "files"])
def test_a_full_disk_for_checkpoints_ends_the_run_with_one_line(run_with_fault, empty_cwd, forbidden):
    def fault():
        if forbidden == "folders":
            replace_folder_by_file(Path("run/checkpoints"), empty_cwd / "away")
        else:
            make_read_only(stack, Path("run/checkpoints"))

    with ExitStack() as stack:
        status, line = run_with_fault(fault, *SMALL, "--checkpoint-every", "5 steps")
    assert status == 2 and line.startswith("error: cannot write run/checkpoints/")
    assert line.endswith("; free disk space there; the files written before are complete")
    assert 1 <= len(of_kind("epoch")) <= 2


def replace_folder_by_file(folder, away):
    """A checkpoint that is written meanwhile creates the folder again."""
    while not folder.is_file():
        if folder.exists():
            folder.rename(away.with_name(f"{away.name}-{time.monotonic_ns()}"))
        with suppress(FileExistsError):
            folder.touch(exist_ok=False)


def make_read_only(stack, folder):
    """Forbid new files in the folder until the stack is closed."""
    folder.chmod(0o500)
    stack.callback(folder.chmod, 0o700)
    if os.geteuid() == 0:  # permissions do not bind root
        os.chown(folder, 12345, 12345)
        for path in (folder.parent, *folder.parent.iterdir()):
            os.chown(path, 12345, 12345)
        os.seteuid(12345)
        stack.callback(os.seteuid, 0)


REMOUNTED = """
import subprocess, time
from pathlib import Path
import gluonlab.cli.print_results as print_results
from gluonlab.run import main
from gluonlab.training.reporter import Reporter

class RemountingReporter(Reporter):
    def epoch_begins(self, epoch, epochs, images):
        if epoch == 1:
            Path("run/checkpoints").symlink_to("../disk")
        if epoch == 2:
            words = ["mount", "-o", "remount,ro", "disk"]
            while subprocess.run(words, stderr=subprocess.DEVNULL).returncode:
                time.sleep(0.01)  # busy: a checkpoint is being written

print_results.make_reporter = lambda silent: RemountingReporter()
words = "--model mlp --threads 1 --epochs 9 --quiet --out run --checkpoint-every".split()
main([*words, "5 steps"])
"""


@pytest.mark.long
def test_checkpoints_on_a_disk_that_becomes_read_only_end_the_run_in_one_line(tmp_path):
    """A separate disk: the system refuses to remount the disk of metrics.jsonl, which is open."""
    mount = "mkdir -p disk && mount -t tmpfs tmpfs disk"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], cwd=tmp_path, check=False).returncode:
        reason = "this user may not mount a file system: run it as root"
        if os.environ.get("GLUONLAB_HOSTS") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    script = f'{mount} && "$0" -c "$1"; status=$?; cp -r disk kept; exit $status'  # the disk goes with its last process
    status, out, err = run_process(["unshare", "-m", "sh", "-c", script, sys.executable, REMOUNTED], tmp_path)
    line = read_only_line(err)
    assert (status, out) == (2, "")
    assert line.startswith("error: cannot write run/checkpoints/") and "Read-only file system" in line
    assert 1 <= len(of_kind("epoch", tmp_path / "run")) <= 2
    assert file_names(tmp_path / "kept")


def run_process(command, folder):
    result = subprocess.run(
        command, cwd=folder, env=clean_environment(), stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
        timeout=600, check=False,
    )  # fmt: skip
    return result.returncode, result.stdout, result.stderr


def test_the_error_about_too_few_descriptors_names_the_limit_and_the_option(run, empty_cwd):
    write_image_folder(empty_cwd / "data", train=12)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = len(list(Path("/proc/self/fd").iterdir())) + 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, limits[1]))
    try:
        status, out, err = run(*IMAGES, "--workers", "64", "--quiet")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (status, out) == (1, "")
    hint = "use fewer --workers, or raise the limit (ulimit -n)"
    assert read_only_line(err) == f"error: there are no free file descriptors: this process may open {few:,}; {hint}"
    assert file_names(empty_cwd) == ["data"]


def run_with_limit(limit_mib, folder, *arguments):
    """Return the status of a run with this address space, gluonlab's lines and all other lines."""
    limit = limit_mib * 2**20
    command = [sys.executable, "-m", "gluonlab.run", "--quiet", *arguments]
    status, _, err = run_process(["prlimit", f"--as={limit}:{limit}", "--core=0", *command], folder)
    lines = err.replace("\nlibgomp: ", "libgomp: ").splitlines()  # OpenMP starts a line of its own
    ours = [line for line in lines if line.startswith("error: ")]
    return status, ours, [line for line in lines if not line.startswith(("warning: ", "error: "))]


# Printed before the end of a process by C without memory for its heap or an exception, and by OpenMP without threads.
OF_C = re.compile(
    r"((free|malloc|realloc|munmap_chunk|corrupted|double)\b|libgomp: ).*"
    r"|libgcc_s\.so\.1 must be installed for unwinding to work"
)
OF_LINKER = "cannot allocate memory for thread-local data: ABORT"  # no handler is called


def check_limited_run(folder, limit_mib, *arguments):
    """Check that a run under a limit finishes, or ends with one line; return its status."""
    status, ours, others = run_with_limit(limit_mib, folder, *arguments)
    if (status, others) == (127, [OF_LINKER]):
        return status
    assert all(OF_C.fullmatch(line) for line in others), others
    assert (status, len(ours)) in [(0, 0), (1, 1), (6, 1)], ours
    assert status == 0 or "MiB (ulimit -v)" in ours[0]
    return status


# What C prints about its heap or an exception that finds no memory, and OpenMP about its threads,
# before it ends a process.
# the linker's own end, at which it calls nobody


@pytest.mark.cpu_only("GPUs reserve addresses as they like")
@pytest.mark.parametrize("limit_mib", [300, 820])
def test_too_little_address_space_before_the_first_step_gives_one_line(tmp_path, limit_mib):
    assert check_limited_run(tmp_path, limit_mib, "--model", "lenet", "--out", "run") != 0


@pytest.mark.long
@pytest.mark.cpu_only("GPUs reserve addresses as they like")
@settings(max_examples=15, deadline=None, phases=[Phase.generate])  # an example takes seconds
@given(limit_mib=st.integers(40, 2700), devices=st.sampled_from([1, 2]))
def test_too_little_address_space_gives_one_line_and_the_run_can_resume(tmp_path_factory, limit_mib, devices):
    folder = tmp_path_factory.mktemp("limited")
    words = [
        "--model",
        "resnet8",
        "--epochs",
        "2",
        "--global-batch-size",
        "256",
        "--checkpoint-every",
        "2steps",
        "--out",
        "run",
    ]
    words += ["--devices", f"cpu*{devices}", "--threads", str(3 - devices)]
    status = check_limited_run(folder, limit_mib, *words)
    event(f"ends with {status}, {limit_mib // 300 * 300} MiB and more")
    if status and list_checkpoints(folder / "run"):
        if len(of_kind("epoch", folder / "run")) < 2:  # otherwise it may have ended in its last picture
            assert run_with_limit(2**20, folder, "--resume", "run") == (0, [], [])
        steps = [line["step"] for line in of_kind("step", folder / "run")]
        assert steps == list(range(1, 13))


SHORT_OF_MEMORY_PROGRAM = """
import re, resource
from gluonlab.config import TrainConfig
from gluonlab.run import main
from gluonlab.study import compare_device_counts
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter

train(TrainConfig(model="mlp", epochs=1, threads=1, out="first"), reporter=Reporter())
[size] = re.findall(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())
limit = int(size) * 1024 + 30 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
main("--model lenet --global-batch-size 1437 --threads 1 --quiet --out run".split())
"""


@pytest.mark.long
@pytest.mark.cpu_only("GPUs reserve addresses as they like")
def test_too_little_memory_is_reported_with_options_that_need_less(python, tmp_path):
    result = python("-c", SHORT_OF_MEMORY_PROGRAM)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert result.stderr.startswith("error: there is not enough memory: this process may use ")
    for text in (" (ulimit -v)", "--batch-size", "--microbatches", "find-batch-size"):
        assert text in result.stderr
    assert all(line["kind"] for line in read_metrics(tmp_path / "run"))
