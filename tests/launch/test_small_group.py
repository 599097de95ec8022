"""What a launcher does with lines and ends of processes; here they are small ones, not MXNet's."""

import fcntl
import os
import signal
import sys
import termios
import time
from pathlib import Path

import pytest
from support.gatherings import HANG_LIMIT_S
from support.launcher import surviving_processes
from support.small_group import start_small_group
from support.waiting import wait_until
from support.worker_processes import has_exited

PIPE_SIZE = 1031  # fcntl's F_SETPIPE_SZ
COUNT = 6_000  # lines, more than all pipes and programs on the way keep
PADDING = "." * 100
LINES = f"""
for n in range({COUNT}):
    print(f"line {{n}} {PADDING}")
sys.stdout.flush()
open("written", "w").close()
"""
LAST = 'tell("left")\n'
PRINTED = [f"[0] line {n} {PADDING}\n" for n in range(COUNT)]
WAIT = 'open(f"pid-{os.getpid()}", "w").close()\ntime.sleep(3600)\n'


def narrow(process):
    """Let what nobody reads be noticed at once."""
    fcntl.fcntl(process.stdout, PIPE_SIZE, 4096)


def has_output(process):
    """Whether the launcher has printed, and what it prints next has no room."""
    waiting = fcntl.ioctl(process.stdout, termios.FIONREAD, bytes(4))
    return int.from_bytes(waiting, sys.byteorder) > 0


def children(pid):
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def read_to_end(process):
    """Return the launcher's exit status and all that it has printed."""
    output = process.stdout.read().decode()
    return process.wait(HANG_LIMIT_S), output


def pids(folder, name="pid"):
    return [int(path.name.split("-")[1]) for path in folder.glob(f"{name}-*")]


def test_output_that_nobody_takes_makes_processes_wait_and_loses_nothing(tmp_path):
    """As Ctrl-S does, and less: longer than the patience with silence."""
    with start_small_group(tmp_path, {"rank 0": LINES + LAST, "server 0": WAIT}, patience=4) as run:
        narrow(run)
        time.sleep(4.5)
        assert run.poll() is None and not (tmp_path / "written").exists()
        assert read_to_end(run) == (0, "".join(PRINTED))
    assert (tmp_path / "written").exists()
    assert not surviving_processes(pids(tmp_path))


@pytest.mark.long
@pytest.mark.parametrize("who", ["the launcher", "launcher and agent"])
def test_a_launcher_that_was_stopped_goes_on(who, tmp_path):
    """As by kill -STOP, or with its job: for longer than the patience with silence."""
    code = 'open("began", "w").close()\ntime.sleep(5)\nprint("here")\n' + LAST
    with start_small_group(tmp_path, {"rank 0": code}, patience=4) as run:
        wait_until((tmp_path / "began").exists)
        stopped = [*(children(run.pid) if who == "launcher and agent" else []), run.pid]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(3.5)
        for pid in reversed(stopped):
            os.kill(pid, signal.SIGCONT)
        assert read_to_end(run) == (0, "[0] here\n")


def test_whoever_reads_one_line_of_it_ends_nothing(tmp_path):
    """As | head -1 does."""
    with start_small_group(tmp_path, {"rank 0": LINES.replace(str(COUNT), "2000") + LAST}) as run:
        narrow(run)
        assert run.stdout.readline().decode() == PRINTED[0]
        run.stdout.close()
        assert run.wait(HANG_LIMIT_S) == 0
    assert (tmp_path / "written").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_signal_ends_it_while_nobody_reads(number, tmp_path):
    with start_small_group(tmp_path, {"rank 0": LINES + LAST, "server 0": WAIT}) as run:
        narrow(run)
        wait_until(lambda: pids(tmp_path) and has_output(run))
        run.send_signal(number)
        assert run.wait(HANG_LIMIT_S) == 128 + number
    assert not surviving_processes(pids(tmp_path))


def test_a_signal_before_the_training_ends_ranks_that_do_not_hear_it(tmp_path):
    """It does not take the launcher's patience, which is an hour."""
    deaf = f"signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{WAIT}"
    parts = {"rank 0": deaf, "server 0": WAIT}
    with start_small_group(tmp_path, parts, silent=True, patience=3600, window=0.1) as run:
        wait_until(lambda: len(pids(tmp_path)) == 2)
        run.send_signal(signal.SIGHUP)
        assert read_to_end(run) == (129, "ended by SIGHUP before the training started\n")
    assert not surviving_processes(pids(tmp_path))


@pytest.mark.long
def test_a_signal_after_the_end_leaves_what_nobody_reads(tmp_path):
    few = 'print("x" * 9000)\n' + LAST
    with start_small_group(tmp_path, {"rank 0": few}) as run:
        narrow(run)
        wait_until(lambda: has_output(run) and not children(run.pid))
        assert run.poll() is None  # all has ended but what is to be read
        run.send_signal(signal.SIGINT)
        assert run.wait(HANG_LIMIT_S) == 130


def test_the_last_words_of_who_dies_stand_before_the_reason(tmp_path):
    """Though nobody reads them at that time."""
    pid = 'open(f"dies-{os.getpid()}", "w").close()\n'
    dies = f"{LINES.replace(str(COUNT), '500')}{pid}os.kill(os.getpid(), signal.SIGKILL)\n"
    with start_small_group(tmp_path, {"rank 0": dies, "rank 1": WAIT}, window=0.1) as run:
        narrow(run)
        wait_until(lambda: all(map(has_exited, pids(tmp_path, "dies"))) and pids(tmp_path, "dies"))
        status, output = read_to_end(run)
    assert status == 128 + signal.SIGKILL
    assert output == "".join([*PRINTED[:500], "error: rank 0 on localhost was killed by SIGKILL\n"])
    assert not surviving_processes(pids(tmp_path))


@pytest.mark.parametrize(
    "name", ["server 0", *(pytest.param(name, marks=pytest.mark.long) for name in ("scheduler", "rank 1"))]
)
def test_a_process_that_ends_too_early_has_failed_even_with_status_0(name, tmp_path):
    parts = {"scheduler": WAIT, "server 0": WAIT, "rank 0": WAIT, "rank 1": WAIT, name: ""}
    with start_small_group(tmp_path, parts, window=0.1) as run:
        assert read_to_end(run) == (1, f"error: {name} on localhost exited with status 0 before the training ended\n")
    assert not surviving_processes(pids(tmp_path))


@pytest.mark.long
def test_whoever_has_left_a_process_behind_does_not_keep_the_launcher_waiting(tmp_path):
    """It has a session of its own, and the pipe of standard output."""
    code = """
import subprocess
left = subprocess.Popen(["sleep", "3600"], start_new_session=True)
open(f"pid-{left.pid}", "w").close()
print("here")
"""
    with start_small_group(tmp_path, {"rank 0": code + LAST}) as run:
        assert read_to_end(run) == (0, "[0] here\n")
    [left] = pids(tmp_path)
    os.kill(left, signal.SIGKILL)


@pytest.mark.long
def test_a_full_disk_is_said_and_the_training_ends_well(tmp_path):
    """What standard output leads to takes nothing; the worker is not ended."""
    with open("/dev/full", "w") as full, start_small_group(
        tmp_path, {"rank 0": LINES.replace(str(COUNT), "99") + LAST}, stdout=full, stderr=full
    ) as run:
        assert run.wait(HANG_LIMIT_S) == 0  # gluonlab.launch looks at `fault`
    assert (tmp_path / "written").exists()
