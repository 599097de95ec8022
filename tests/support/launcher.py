"""Launcher processes, gluonlab launch, and their child processes."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from mxnet import nd

from gluonlab.runs.run_schema import PARAMETERS
from support.parameter_server import require_parameter_server
from support.processes import clean_environment
from support.worker_processes import socket_inodes

QUICK_LAUNCH_OPTIONS = ["--model", "mlp", "--dataset", "synthetic", "--devices", "cpu*1"]
PATIENCE_OPTIONS = ["--timeout", "3600"]  # a busy machine may need long to load MXNet


class RunningLauncher:
    """A running launcher."""

    def __init__(self, process, output):
        self.process, self._output = process, output

    def read_output(self):
        """Return the output so far."""
        return self._output.read_text()

    def wait_for(self, text):
        """Wait until the launcher has printed a text."""
        self.wait_until(lambda: text in self.read_output())

    def wait_until(self, holds, timeout=240):
        """Wait until ``holds()`` while the launcher runs."""
        deadline = time.monotonic() + timeout
        while not holds():
            assert self.process.poll() is None, self.read_output()
            assert time.monotonic() < deadline, self.read_output()
            time.sleep(0.01)

    def process_ids(self):
        """Return {name: process id} of the agents, scheduler, servers and ranks."""
        folder, pids = self._output.parent, {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and _working_folder(entry) == folder:
                pids[_process_role(int(entry.name))] = int(entry.name)
        pids.pop("", None)
        # init (1) adopts a process without a parent, and is no agent
        stats = map(_process_stat, pids.values())  # empty for a process that has ended since
        agents = sorted({int(stat[1]) for stat in stats if stat} - {1})
        return {**pids, **{f"agent {n}": pid for n, pid in enumerate(agents)}}

    def wait_for_exit(self, timeout=240):
        """Return the exit status and the output."""
        return self.process.wait(timeout), self.read_output()


@contextmanager
def start_launcher(folder, *words, before=(), output="said", **variables):
    """Start a launcher with some arguments in ``folder``; ``before``: words before the command."""
    if "horovod" not in words:
        require_parameter_server()
    with (folder / output).open("w") as file:
        process = subprocess.Popen(
            [*before, sys.executable, "-m", "gluonlab.launch", *map(str, words)],
            cwd=folder, env=clean_environment(**variables), stdin=subprocess.DEVNULL,
            stdout=file, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        yield RunningLauncher(process, folder / output)
    finally:
        process.kill()
        process.wait()


def load_parameters(folder):
    return nd.load(str(folder / PARAMETERS))


def have_same_bits(one, other):
    mine, theirs = load_parameters(one), load_parameters(other)
    return mine.keys() == theirs.keys() and all((mine[name].asnumpy() == theirs[name].asnumpy()).all() for name in mine)


def surviving_processes(pids, timeout=60):
    """Return the processes that still run after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    running = {pid for pid in pids if _is_running(pid)}
    while running and time.monotonic() < deadline:
        time.sleep(0.05)
        running = {pid for pid in running if _is_running(pid)}
    return running


def listening_ports(pids=None):
    """Return the TCP ports on which some processes, or any, listen in this namespace."""
    inodes = None if pids is None else {inode for pid in pids for inode in socket_inodes(pid)}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and (inodes is None or row[9] in inodes)}


def _working_folder(entry):
    try:
        return Path(os.readlink(entry / "cwd"))
    except OSError:
        return None


def _process_role(pid):
    """Return the role of a process of a launcher, such as "rank 0", or "" for other processes."""
    try:
        text = Path(f"/proc/{pid}/environ").read_text()
    except OSError:
        return ""
    variables = dict(line.split("=", 1) for line in text.split("\0") if "=" in line)
    if "GLUONLAB_COMMAND" not in variables:
        return ""
    if "GLUONLAB_RANK" in variables:
        return f"rank {variables['GLUONLAB_RANK']}"
    return variables.get("DMLC_ROLE", "scheduler")


def _process_stat(pid):
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text[text.rindex(")") + 2 :].split()


def _is_running(pid):
    """Return whether any thread of a process runs: its ports remain open until the last exits."""
    state = (_process_stat(pid) or [""])[0]
    try:
        return state not in ("Z", "") or len(os.listdir(f"/proc/{pid}/task")) > 1  # noqa: PTH208
    except OSError:
        return False
