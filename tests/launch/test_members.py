"""Processes that a scheduler has started: rank 0 gathers the others, and they are one group."""

import socket
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.launched_environments import blaunch, srun, torchrun_in_srun
from support.launcher import QUICK
from support.parameter_server import free_port
from support.processes import clean_environment

from gluonlab.errors import ConfigError
from gluonlab.launch.parts import Site, allowed, parts
from gluonlab.runs.reader import read_lines

pytestmark = pytest.mark.cpu_only("the processes compute on CPU devices, whoever started them")
SCHEDULERS = {"srun": srun, "blaunch": blaunch, "torchrun": torchrun_in_srun}
SITES = [Site("h0", "10.0.0.1", "eth0"), Site("h1", "10.0.0.2", "eth0")]
words = st.lists(st.sampled_from(["--epochs", "3", "--lr", "0.1", "--flip"]), max_size=5)


def ended(folder, scheduler, words, *, count=2, started=None, of_rank=None, patience=45, port=None):
    """How the processes of a job on this host have ended, by rank: (status, what was said)."""
    port, processes = str(port or free_port()), []
    told = SCHEDULERS[scheduler]((count,))
    for rank, variables in list(enumerate(told))[: started or count]:
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
        return [(each.wait(90), each.stdout.read()) for each in processes]
    finally:
        for each in processes:
            each.kill()
            each.stdout.close()


@pytest.mark.parametrize(
    "scheduler",
    ["srun", *(pytest.param(n, marks=pytest.mark.long) for n in ("blaunch", "torchrun"))],
)
def test_the_processes_of_a_job_train_as_one_group(scheduler, tmp_path):
    run = [*QUICK, "--epochs", "1", "--out", "run"]
    (status, said), *others = ended(tmp_path, scheduler, run)
    assert status == 0, said
    assert "2 processes (dist_sync)" in said and others == [(0, "")]  # rank 0 speaks for all
    read_lines(tmp_path / "run")


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


def test_a_rank_that_does_not_come_is_named(tmp_path):
    (status, said), (also, other) = ended(tmp_path, "srun", QUICK, count=3, started=2, patience=8)
    assert status == also == 1
    assert said.startswith("error: of 3 processes that srun has started, rank 2 has not come")
    assert other.startswith("error: rank 1: rank 0 at 127.0.0.1 has gone")


@given(st.sampled_from(["dist_sync", "horovod"]), words, words)
def test_a_process_starts_what_its_own_options_say_and_nothing_else(backend, own, given):
    for part in parts(backend, given, [0, 1], [0], SITES, 9000):
        if part.is_worker and own != given:
            with pytest.raises(ConfigError, match=r"rank 0's: here .*, there .*: start"):
                allowed(part.words, backend, own)
        else:
            allowed(part.words, backend, own)


@pytest.mark.parametrize(
    "words", [["-c", "print(1)"], ["-m", "http.server"], ["-m", "gluonlab.launch.worker.other"], []]
)
def test_what_is_no_part_of_a_group_is_not_started(words):
    with pytest.raises(ConfigError, match="is no part of a group"):
        allowed(words, "dist_sync", ["--epochs", "3"])
