"""Processes that a scheduler has started: rank 0 gathers the others, and they are one group."""

import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.launched_environments import blaunch, srun, torchrun_in_srun
from support.launcher import QUICK
from support.parameter_server import free_port
from support.processes import clean_environment
from support.worker_processes import sockets

from gluonlab.runs.reader import read_lines

pytestmark = pytest.mark.cpu_only("the processes compute on CPU devices, whoever started them")
SCHEDULERS = {"srun": srun, "blaunch": blaunch, "torchrun": torchrun_in_srun}


@contextmanager
def started(
    folder, scheduler, words, *, count=2, first=0, come=None, of_rank=None, patience=45, port=None
):
    """The processes of a job on this host, from rank ``first`` to ``come``, or all."""
    port, processes = str(port or free_port()), []
    told = SCHEDULERS[scheduler]((count,))
    for rank, variables in list(enumerate(told))[first : come or count]:
        variables = {**variables, "GLUONLAB_ROOT": "127.0.0.1", "GLUONLAB_PORT": port}
        command = [sys.executable, "-m", "gluonlab.launch", "--backend", "dist_sync"]
        more = (of_rank or {}).get(rank, [])
        processes.append(
            subprocess.Popen(
                [*command, "--patience", str(patience), "--", *words, *more], cwd=folder,
                env=clean_environment(**variables), stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
            )
        )  # fmt: skip
    try:
        yield processes
    finally:
        for each in processes:
            each.kill()
            each.wait()
            each.stdout.close()


def wait_for(done, timeout=60):
    until = time.monotonic() + timeout
    while not done():
        assert time.monotonic() < until
        time.sleep(0.05)


def has_come(pid):
    """Whether the process has a connection."""
    inodes = sockets(pid)
    table = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return any(state == "01" and inode in inodes
               for _, _, _, state, *_, inode in (row[:4] + row[9:10] for row in table))  # fmt: skip


def hears_sigterm(pid):
    [caught] = re.findall(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(int(caught, 16) & 1 << (signal.SIGTERM - 1))


def ended(folder, scheduler, words, **how):
    """How the processes of a job have ended, by rank: (status, what was said)."""
    with started(folder, scheduler, words, **how) as processes:
        return [(each.wait(90), each.stdout.read()) for each in processes]


@pytest.mark.parametrize(
    "scheduler",
    ["srun", *(pytest.param(n, marks=pytest.mark.long) for n in ("blaunch", "torchrun"))],
)
@pytest.mark.long
def test_the_processes_of_a_job_train_as_one_group(scheduler, tmp_path):
    run = [*QUICK, "--epochs", "1", "--out", "run"]
    (status, said), *others = ended(tmp_path, scheduler, run)
    assert status == 0, said
    assert "2 processes (dist_sync)" in said and others == [(0, "")]  # rank 0 speaks for all
    read_lines(tmp_path / "run")


@pytest.mark.long
def test_other_options_than_those_of_rank_0_are_named(tmp_path):
    run, other = [*QUICK, "--epochs", "1"], {1: ["--lr", "0.5"]}
    (status, said), (also, _) = ended(tmp_path, "srun", run, of_rank=other)
    assert status == also == 2
    assert said.splitlines()[-1].endswith(
        "the options of this process differ from rank 0's: here --lr, there nothing more: "
        "start all with the same ones"
    )


def test_a_port_that_is_taken_is_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        [(status, said)] = ended(tmp_path, "srun", QUICK, count=1, port=port)
    assert status == 2
    assert said.startswith(
        f"error: port {port} cannot be had (Address already in use): set another"
    )


def test_why_rank_0_cannot_be_reached_is_in_the_systems_words(tmp_path):
    [(status, said)] = ended(tmp_path, "srun", QUICK, first=1, patience=5)
    assert status == 1 and "in 5 s (Connection refused): it was not started, or" in said


@pytest.mark.parametrize("of_rank", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_signal_to_one_that_waits_for_the_others_ends_all_at_once(of_rank, tmp_path):
    """Of three ranks one never comes; the patience is 90 s."""
    with started(tmp_path, "srun", QUICK, count=3, come=2, patience=90) as processes:
        wait_for(lambda: has_come(processes[1].pid))
        time.sleep(0.5)  # what it says first is read
        processes[of_rank].send_signal(signal.SIGTERM)
        assert [each.wait(10) for each in processes] == [143, 143]
        assert [each.stdout.read().strip() for each in processes] == ["ended by SIGTERM", ""]


@pytest.mark.long
def test_patience_ends_one_whose_rank_0_takes_no_connection(tmp_path):
    """Its queue of connections is full, and the system drops what comes."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as stack:
        for _ in range(4):
            waits = stack.enter_context(socket.socket())
            waits.setblocking(False)
            waits.connect_ex(full.getsockname())
        port, began = full.getsockname()[1], time.monotonic()
        [(status, said)] = ended(tmp_path, "srun", QUICK, first=1, patience=5, port=port)
    assert status == 1 and time.monotonic() - began < 5 + 10
    assert said.startswith(f"error: rank 1 cannot reach rank 0 at 127.0.0.1:{port} in 5 s (")


def test_a_signal_ends_one_that_does_not_find_rank_0(tmp_path):
    with started(tmp_path, "srun", QUICK, count=2, come=2, first=1, patience=90) as [alone]:
        wait_for(lambda: hears_sigterm(alone.pid))
        alone.send_signal(signal.SIGTERM)
        assert (alone.wait(10), alone.stdout.read().strip()) == (143, "ended by SIGTERM")


@pytest.mark.long
def test_a_rank_that_does_not_come_is_named(tmp_path):
    (status, said), (also, other) = ended(tmp_path, "srun", QUICK, count=3, come=2, patience=8)
    assert status == also == 1
    assert said.startswith("error: of 3 processes that srun has started, rank 2 has not come")
    assert other == ""  # rank 0 speaks for all
