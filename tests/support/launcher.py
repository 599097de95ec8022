"""python -m gluonlab.launch as a user starts it, and the processes that belong to it."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from mxnet import nd

from gluonlab.runs.run_schema import PARAMETERS
from support.processes import clean_environment
from support.worker_processes import socket_inodes

QUICK_LAUNCH_OPTIONS = ["--model", "mlp", "--dataset", "synthetic", "--devices", "cpu*1"]
PATIENCE_OPTIONS = ["--patience", "3600"]  # a busy machine may need long to load MXNet


class RunningLauncher:
    """A launcher that runs. ``said()``: all that it has printed so far."""

    def __init__(self, process, output):
        self.process, self._output = process, output

    def said(self):
        return self._output.read_text()

    def wait_for(self, text):
        """Wait until it has printed this."""
        self.wait_until(lambda: text in self.said())

    def wait_until(self, holds, timeout=240):
        """Wait until ``holds()`` while it runs."""
        until = time.monotonic() + timeout
        while not holds():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < until, self.said()
            time.sleep(0.01)

    def parts(self):
        """name -> pid of all that belongs to it, in any namespace: agents, scheduler, servers,
        ranks.
        """
        here, found = self._output.parent, {}
        for place in Path("/proc").iterdir():
            if place.name.isdigit() and _working_folder(place) == here:
                found[_process_role(int(place.name))] = int(place.name)
        found.pop("", None)
        # what has lost its parent in this moment belongs to init, which is no agent
        agents = sorted({int(_process_stat(pid)[1]) for pid in found.values()} - {1})
        return {**found, **{f"agent {n}": pid for n, pid in enumerate(agents)}}

    def end(self, timeout=240):
        """Exit status, and what was said."""
        return self.process.wait(timeout), self.said()


@contextmanager
def start_launcher(folder, *words, before=(), output="said", **variables):
    """A launcher with these words, in ``folder``. ``before``: what stands before the command."""
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
    return mine.keys() == theirs.keys() and all(
        (mine[name].asnumpy() == theirs[name].asnumpy()).all() for name in mine
    )


def surviving_processes(pids, timeout=60):
    """Those that still run when so many seconds have gone by."""
    until = time.monotonic() + timeout
    left = {pid for pid in pids if _is_running(pid)}
    while left and time.monotonic() < until:
        time.sleep(0.05)
        left = {pid for pid in left if _is_running(pid)}
    return left


def listening_ports(pids=None):
    """The TCP ports at which these processes listen, or anybody, in this namespace."""
    inodes = None if pids is None else {inode for pid in pids for inode in socket_inodes(pid)}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {
        int(row[1].split(":")[1], 16)
        for row in rows
        if row[3] == "0A" and (inodes is None or row[9] in inodes)
    }


def _working_folder(place):
    try:
        return Path(os.readlink(place / "cwd"))
    except OSError:
        return None


def _process_role(pid):
    """What a launcher has started this process as; empty for others."""
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
    """Whether any of its threads does: until the last has ended, its ports are open."""
    state = (_process_stat(pid) or [""])[0]
    try:
        return state not in ("Z", "") or len(os.listdir(f"/proc/{pid}/task")) > 1  # noqa: PTH208
    except OSError:
        return False
