"""Hosts that are lost, come back, or cannot be reached: over an ssh that runs all of it here."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.launcher import PATIENCE_OPTIONS, surviving_processes
from support.processes import clean_environment
from support.small_group import SSH, start_small_group
from support.waiting import wait_until

from gluonlab.errors import RunError
from gluonlab.launch.agent_connections import AgentConnection, SshOptions
from gluonlab.launch.hosts import Host
from gluonlab.launch.worker.__main__ import check_run_is_here

HOSTS = ["h0", "h1", "h2"]
HANGS = 240  # seconds: only what hangs takes so long
# the first attempt waits to be disturbed; the second says what it finds, and ends well
ONCE = """
open(f"pid-{os.getpid()}", "w").close()
if os.environ["ATTEMPT"] == "1":
    time.sleep(3600)
print("attempt", os.environ["ATTEMPT"], os.environ.get("GLUONLAB_RAN_ON"))
tell("left")
"""
RANKS = {"rank 0": ONCE, "rank 1": ONCE, "rank 2": ONCE}


def ranks_have_begun(folder, count=3):
    wait_until(lambda: len(list(folder.glob("pid-*"))) >= count)


def lose(folder, *names):
    for name in names:
        os.kill(int((folder / f"ssh-{name}").read_text()), signal.SIGKILL)


def ended(folder, run):
    said = run.stdout.read().decode().splitlines()
    status = run.wait(HANGS)
    assert not surviving_processes(int(path.name[4:]) for path in folder.glob("pid-*"))
    return status, said


def test_several_hosts_that_are_lost_at_once_cost_one_restart(tmp_path):
    with start_small_group(tmp_path, RANKS, hosts=HOSTS, restarts=1) as run:
        ranks_have_begun(tmp_path)
        lose(tmp_path, "h1", "h2")
        status, said = ended(tmp_path, run)
    assert status == 0, said
    [warning, *others] = said
    assert re.match("warning: host h[12] has ended the connection, and host h[12] is gone: ", warning)
    assert sorted(others) == [f"[{rank}] attempt 2 None" for rank in range(3)]


@pytest.mark.long
def test_several_hosts_are_left_out_together_and_so_is_another_later(tmp_path):
    """After that there are no more workers than the hosts that are left take."""
    parts = {name: ONCE.replace('== "1"', 'in "12"') for name in [*RANKS, "rank 3"]}
    hosts = [*HOSTS, "h3"]
    with start_small_group(tmp_path, parts, hosts=hosts, restarts=2, min_workers=1) as run:
        ranks_have_begun(tmp_path, 4)
        for name in ("h1", "h3"):
            (tmp_path / f"down-{name}").touch()
        lose(tmp_path, "h1", "h3")
        ranks_have_begun(tmp_path, 6)
        lose(tmp_path, "h2")  # it comes back
        status, said = ended(tmp_path, run)
    assert status == 0, said
    assert sum("going on with 2 workers" in line for line in said) == 2
    assert sum("no route to h1" in line for line in said) == 1
    assert sorted(said[-2:]) == ["[0] attempt 3 None", "[1] attempt 3 None"]


@pytest.mark.long
def test_too_few_that_are_left_end_it_with_all_reasons(tmp_path):
    with start_small_group(tmp_path, RANKS, hosts=HOSTS, restarts=1, min_workers=2) as run:
        ranks_have_begun(tmp_path)
        for name in ("h1", "h2"):
            (tmp_path / f"down-{name}").touch()
        lose(tmp_path, "h1", "h2")
        status, said = ended(tmp_path, run)
    assert status == 1
    assert said[-1].startswith("error: host h1: no agent can be started there: no route to h1: ")
    assert "; host h2: no agent can be started there: no route to h2: " in said[-1]
    assert said[-1].endswith("; 1 worker is left, and --min-workers is 2")


def test_the_workers_learn_that_rank_0_was_elsewhere(tmp_path):
    with start_small_group(tmp_path, RANKS, hosts=HOSTS, restarts=1, min_workers=2, window=0.1) as run:
        ranks_have_begun(tmp_path)
        (tmp_path / "down-h0").touch()
        lose(tmp_path, "h0")
        status, said = ended(tmp_path, run)
    assert status == 0, said
    assert sorted(said[-2:]) == ["[0] attempt 2 h0", "[1] attempt 2 h0"]


def test_a_run_that_is_not_where_rank_0_is_now_is_one_line(tmp_path):
    with pytest.raises(RuntimeError) as raised:
        check_run_is_here(str(tmp_path / "run"), "h0")
    assert str(raised.value).startswith(f"the run in {tmp_path / 'run'} was on h0, where rank 0 was")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    check_run_is_here(str(tmp_path / "run"), "h0")


def launcher(folder, *words, ssh=SSH):
    """The command itself, with the same ssh, or another."""
    (folder / "ssh").write_text(ssh)
    (folder / "ssh").chmod(0o755)
    command = [sys.executable, "-m", "gluonlab.launch", "--backend", "dist_sync", "--ssh", "./ssh"]
    return subprocess.Popen(
        [*command, *words], env=clean_environment(), cwd=folder, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGINT, "interrupted"),
        pytest.param(signal.SIGTERM, "ended by SIGTERM", marks=pytest.mark.long),
        pytest.param(signal.SIGHUP, "ended by SIGHUP", marks=pytest.mark.long),
    ],
)
def test_a_signal_ends_who_waits_for_a_host(number, said, tmp_path):
    """At once, and with it the agents that are there, and the ssh that waits."""
    (tmp_path / "silent-h1").touch()
    with launcher(tmp_path, "--hosts", "h0,h1", *PATIENCE_OPTIONS) as run:
        wait_until(lambda: (tmp_path / "ssh-h0").exists() and waits_for_host(run.pid))
        pids = [int(pid) for pid in _children(run.pid)]
        assert len(pids) == 2
        run.send_signal(number)
        assert (run.wait(HANGS), run.stdout.read().strip()) == (128 + number, said)
    assert not surviving_processes(pids)


def waits_for_host(pid):
    """Whether one of the two connections has an ssh that says nothing."""
    commands = [Path(f"/proc/{child}/cmdline").read_bytes() for child in _children(pid)]
    return len(commands) == 2 and any(command.startswith(b"sleep") for command in commands)


def _children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return file.read().split()


def test_a_shell_that_greets_is_quoted_with_the_remedy(tmp_path):
    (tmp_path / "banner-h0").write_text("Welcome to h0!\nYou have mail.\n")
    with launcher(tmp_path, "--hosts", "h0") as run:
        said = run.stdout.read()
        assert run.wait(HANGS) == 1
    assert said == (
        "error: host h0: no agent can be started there: its shell prints 'Welcome to h0!' first: "
        "print nothing where no person reads it, such as with [ -t 1 ] in ~/.bashrc\n"
    )


def test_a_host_that_complains_at_length_is_read_to_its_end(tmp_path):
    """A line of more than 1 MiB on standard error, and then the reason."""
    script = '#!/bin/sh\nhead -c 3000000 /dev/zero | tr "\\0" x >&2\necho >&2\necho no key >&2\n'
    with launcher(tmp_path, "--hosts", "h0", ssh=script) as run:
        said = run.stdout.read()
        assert run.wait(HANGS) == 1
    assert said.startswith("error: host h0: no agent can be started there: no key: try ./ssh")


def test_an_ssh_that_is_given_up_has_ended_when_that_is_said(tmp_path):
    """It prints what no agent says, and would go on for an hour."""
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\necho Welcome!\nexec sleep 3600\n")
    ssh.chmod(0o755)

    async def opened():
        connection = AgentConnection(Host("h1", 1), SshOptions(ssh=[str(ssh)]))
        with pytest.raises(RunError, match="prints 'Welcome!' first"):
            await connection.open(asyncio.Queue())
        return connection._process.returncode

    assert asyncio.run(opened()) == -signal.SIGKILL


def test_nobody_waits_for_an_agent_that_somebody_else_has_started():
    """It has come by itself: there is no process whose end could be seen."""

    async def closing():
        await AgentConnection(Host("h1", 1), SshOptions()).wait_closed()

    asyncio.run(closing())
