"""Hosts that are lost, come back, or cannot be reached: over an ssh that runs all of it here."""

import asyncio
import os
import re
import signal
from pathlib import Path

import pytest
from support.gatherings import HANG_LIMIT_S
from support.launcher import PATIENCE_OPTIONS, start_launcher, surviving_processes
from support.small_group import SSH, start_small_group
from support.waiting import wait_until

from gluonlab.errors import RunError
from gluonlab.launch.agent_connections import AgentConnection, SshOptions
from gluonlab.launch.hosts import Host
from gluonlab.launch.worker.__main__ import check_run_is_here

HOSTS = ["h0", "h1", "h2"]
# the first attempt waits to be disturbed; the second says what it finds, and ends well
ONCE = """
open(f"pid-{os.getpid()}", "w").close()
if os.environ["ATTEMPT"] == "1":
    time.sleep(3600)
print("attempt", os.environ["ATTEMPT"], os.environ.get("GLUONLAB_RAN_ON"))
tell("left")
"""
RANKS = {"rank 0": ONCE, "rank 1": ONCE, "rank 2": ONCE}


def wait_for_ranks(folder, count=3):
    wait_until(lambda: len(list(folder.glob("pid-*"))) >= count)


def kill_ssh(folder, *names):
    for name in names:
        os.kill(int((folder / f"ssh-{name}").read_text()), signal.SIGKILL)


def wait_for_end(folder, run):
    """Return the exit status and the lines of a launcher, which has left no process."""
    lines = run.stdout.read().decode().splitlines()
    status = run.wait(HANG_LIMIT_S)
    assert not surviving_processes(int(path.name[4:]) for path in folder.glob("pid-*"))
    return status, lines


def test_several_hosts_that_are_lost_at_once_cost_one_restart(tmp_path):
    with start_small_group(tmp_path, RANKS, hosts=HOSTS, restarts=1) as run:
        wait_for_ranks(tmp_path)
        kill_ssh(tmp_path, "h1", "h2")
        status, lines = wait_for_end(tmp_path, run)
    assert status == 0, lines
    [warning, *others] = lines
    assert re.match("warning: host h[12] has closed the connection, and host h[12] is lost: ", warning)
    assert sorted(others) == [f"[{rank}] attempt 2 None" for rank in range(3)]


@pytest.mark.long
def test_several_hosts_are_left_out_together_and_so_is_another_later(tmp_path):
    """After that there are no more workers than the hosts that are left take."""
    parts = {name: ONCE.replace('== "1"', 'in "12"') for name in [*RANKS, "rank 3"]}
    hosts = [*HOSTS, "h3"]
    with start_small_group(tmp_path, parts, hosts=hosts, restarts=2, min_workers=1) as run:
        wait_for_ranks(tmp_path, 4)
        for name in ("h1", "h3"):
            (tmp_path / f"down-{name}").touch()
        kill_ssh(tmp_path, "h1", "h3")
        wait_for_ranks(tmp_path, 6)
        kill_ssh(tmp_path, "h2")  # it comes back
        status, lines = wait_for_end(tmp_path, run)
    assert status == 0, lines
    assert sum("continuing with 2 workers" in line for line in lines) == 2
    assert sum("no route to h1" in line for line in lines) == 1
    assert sorted(lines[-2:]) == ["[0] attempt 3 None", "[1] attempt 3 None"]


@pytest.mark.long
def test_too_few_that_are_left_end_it_with_all_reasons(tmp_path):
    with start_small_group(tmp_path, RANKS, hosts=HOSTS, restarts=1, min_workers=2) as run:
        wait_for_ranks(tmp_path)
        for name in ("h1", "h2"):
            (tmp_path / f"down-{name}").touch()
        kill_ssh(tmp_path, "h1", "h2")
        status, lines = wait_for_end(tmp_path, run)
    assert status == 1
    assert lines[-1].startswith("error: host h1: cannot start the agent: no route to h1: ")
    assert "; host h2: cannot start the agent: no route to h2: " in lines[-1]
    assert lines[-1].endswith("; 1 worker is left, but --min-np is 2")


def test_the_workers_learn_that_rank_0_was_elsewhere(tmp_path):
    with start_small_group(tmp_path, RANKS, hosts=HOSTS, restarts=1, min_workers=2, window=0.1) as run:
        wait_for_ranks(tmp_path)
        (tmp_path / "down-h0").touch()
        kill_ssh(tmp_path, "h0")
        status, lines = wait_for_end(tmp_path, run)
    assert status == 0, lines
    assert sorted(lines[-2:]) == ["[0] attempt 2 h0", "[1] attempt 2 h0"]


def test_a_run_that_is_not_where_rank_0_is_now_is_one_line(tmp_path):
    with pytest.raises(RuntimeError) as raised:
        check_run_is_here(str(tmp_path / "run"), "h0")
    assert str(raised.value).startswith(f"the files of the run in {tmp_path / 'run'} are on another host, h0: ")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    check_run_is_here(str(tmp_path / "run"), "h0")


def launch_over_ssh(folder, *words, ssh=SSH):
    """Start the command itself, with the same ssh, or another."""
    (folder / "ssh").write_text(ssh)
    (folder / "ssh").chmod(0o755)
    return start_launcher(folder, "--backend", "dist_sync", "--ssh", "./ssh", *words)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (signal.SIGINT, "interrupted"),
        pytest.param(signal.SIGTERM, "ended by SIGTERM", marks=pytest.mark.long),
        pytest.param(signal.SIGHUP, "ended by SIGHUP", marks=pytest.mark.long),
    ],
)
def test_a_signal_ends_who_waits_for_a_host(number, message, tmp_path):
    """At once, and with it the agents that are there, and the ssh that waits."""
    (tmp_path / "silent-h1").touch()
    with launch_over_ssh(tmp_path, "--hosts", "h0,h1", *PATIENCE_OPTIONS) as run:
        wait_until(lambda: (tmp_path / "ssh-h0").exists() and waits_for_host(run.process.pid))
        pids = [int(pid) for pid in _children(run.process.pid)]
        assert len(pids) == 2
        run.process.send_signal(number)
        status, text = run.wait_for_exit()
        assert (status, text.strip()) == (128 + number, message)
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
    with launch_over_ssh(tmp_path, "--hosts", "h0") as run:
        assert run.wait_for_exit() == (
            1,
            "error: host h0: cannot start the agent: its shell prints 'Welcome to h0!' before the agent starts: "
            "print nothing in non-interactive shells, for example with [ -t 1 ] in ~/.bashrc\n",
        )


def test_a_host_that_complains_at_length_is_read_to_its_end(tmp_path):
    """A line of more than 1 MiB on standard error, and then the reason."""
    script = '#!/bin/sh\nhead -c 3000000 /dev/zero | tr "\\0" x >&2\necho >&2\necho no key >&2\n'
    with launch_over_ssh(tmp_path, "--hosts", "h0", ssh=script) as run:
        status, text = run.wait_for_exit()
    assert status == 1 and text.startswith(
        "error: host h0: cannot start the agent: no key: check the connection with ./ssh"
    )


def test_an_ssh_that_is_given_up_has_ended_when_that_is_said(tmp_path):
    """It prints what no agent says, and would go on for an hour."""
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\necho Welcome!\nexec sleep 3600\n")
    ssh.chmod(0o755)

    async def opened():
        connection = AgentConnection(Host("h1", 1), SshOptions(ssh=[str(ssh)]))
        with pytest.raises(RunError, match="prints 'Welcome!' before the agent starts"):
            await connection.open(asyncio.Queue())
        return connection._process.returncode

    assert asyncio.run(opened()) == -signal.SIGKILL
