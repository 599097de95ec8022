"""What a launcher does with lines and ends of processes; here they are small ones, not MXNet's."""

import fcntl
import os
import signal
import sys
import termios
import time
from pathlib import Path

import pytest
from support.launcher import surviving_processes
from support.small_group import start_small_group
from support.waiting import wait_until
from support.worker_processes import has_exited

PIPE_SIZE = 1031  # fcntl's F_SETPIPE_SZ
HANGS = 240  # seconds: only what hangs takes so long
COUNT = 6_000  # lines, more than all pipes and programs on the way keep
PADDING = "." * 100
LINES = f"""
for n in range({COUNT}):
    print(f"line {{n}} {PADDING}")
sys.stdout.flush()
open("written", "w").close()
"""
LAST = 'tell("left")\n'
SAID = [f"[0] line {n} {PADDING}\n" for n in range(COUNT)]
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


def pids(folder, name="pid"):
    return [int(path.name.split("-")[1]) for path in folder.glob(f"{name}-*")]


def test_output_that_nobody_takes_makes_processes_wait_and_loses_nothing(tmp_path):
    """As Ctrl-S does, and less: longer than the patience with silence."""
    with start_small_group(tmp_path, {"rank 0": LINES + LAST, "server 0": WAIT}, patience=4) as run:
        narrow(run)
        time.sleep(4.5)
        assert run.poll() is None and not (tmp_path / "written").exists()
        said = run.stdout.read().decode()
        assert (run.wait(HANGS), said) == (0, "".join(SAID))
    assert (tmp_path / "written").exists()
    assert not surviving_processes(pids(tmp_path))


@pytest.mark.long
@pytest.mark.parametrize("who", ["the launcher", "launcher and agent"])
def test_a_launcher_that_was_stopped_goes_on(who, tmp_path):
    """As by kill -STOP, or with its job: for longer than the patience with silence."""
    code = 'open("began", "w").close()\ntime.sleep(5)\nprint("here")\n' + LAST
    with start_small_group(tmp_path, {"rank 0": code}, patience=4) as run:
        wait_until((tmp_path / "began").exists)
        stopped = [run.pid]
        if who == "launcher and agent":
            stopped = [*children(run.pid), run.pid]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(3.5)
        for pid in reversed(stopped):
            os.kill(pid, signal.SIGCONT)
        said = run.stdout.read().decode()
        assert (run.wait(HANGS), said) == (0, "[0] here\n")


def test_whoever_reads_one_line_of_it_ends_nothing(tmp_path):
    """As | head -1 does."""
    with start_small_group(tmp_path, {"rank 0": LINES.replace(str(COUNT), "2000") + LAST}) as run:
        narrow(run)
        assert run.stdout.readline().decode() == SAID[0]
        run.stdout.close()
        assert run.wait(HANGS) == 0
    assert (tmp_path / "written").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_signal_ends_it_while_nobody_reads(number, tmp_path):
    with start_small_group(tmp_path, {"rank 0": LINES + LAST, "server 0": WAIT}) as run:
        narrow(run)
        wait_until(lambda: pids(tmp_path) and has_output(run))
        run.send_signal(number)
        assert run.wait(HANGS) == 128 + number
    assert not surviving_processes(pids(tmp_path))


def test_a_signal_before_the_training_ends_ranks_that_do_not_hear_it(tmp_path):
    """It does not take the launcher's patience, which is an hour."""
    deaf = f"signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{WAIT}"
    parts = {"rank 0": deaf, "server 0": WAIT}
    with start_small_group(tmp_path, parts, silent=True, patience=3600, window=0.1) as run:
        wait_until(lambda: len(pids(tmp_path)) == 2)
        run.send_signal(signal.SIGHUP)
        said = run.stdout.read().decode()
        assert (run.wait(HANGS), said) == (129, "ended by SIGHUP before the training began\n")
    assert not surviving_processes(pids(tmp_path))


@pytest.mark.long
def test_a_signal_after_the_end_leaves_what_nobody_reads(tmp_path):
    few = 'print("x" * 9000)\n' + LAST
    with start_small_group(tmp_path, {"rank 0": few}) as run:
        narrow(run)
        wait_until(lambda: has_output(run) and not children(run.pid))
        assert run.poll() is None  # all has ended but what is to be read
        run.send_signal(signal.SIGINT)
        assert run.wait(HANGS) == 130


def test_the_last_words_of_who_dies_stand_before_the_reason(tmp_path):
    """Though nobody reads them at that time."""
    pid = 'open(f"dies-{os.getpid()}", "w").close()\n'
    dies = f"{LINES.replace(str(COUNT), '500')}{pid}os.kill(os.getpid(), signal.SIGKILL)\n"
    with start_small_group(tmp_path, {"rank 0": dies, "rank 1": WAIT}, window=0.1) as run:
        narrow(run)
        wait_until(lambda: all(map(has_exited, pids(tmp_path, "dies"))) and pids(tmp_path, "dies"))
        said = run.stdout.read().decode().splitlines()
        assert run.wait(HANGS) == 128 + signal.SIGKILL
    assert said[:-1] == [line.rstrip() for line in SAID[:500]]
    assert said[-1] == "error: rank 0 on localhost was killed by SIGKILL"
    assert not surviving_processes(pids(tmp_path))


ENDS = {  # who ends with status 0 too early -> what is said
    "server 0": "error: server 0 on localhost ended with status 0, before the training did",
    "scheduler": "error: scheduler on localhost ended with status 0, before the training did",
    "rank 1": "error: rank 1 on localhost ended with status 0, before the training did",
}


@pytest.mark.parametrize("name", ["server 0", *(pytest.param(each, marks=pytest.mark.long) for each in [*ENDS][1:])])
def test_whoever_ends_too_early_has_failed_whatever_the_status(name, tmp_path):
    parts = {"scheduler": WAIT, "server 0": WAIT, "rank 0": WAIT, "rank 1": WAIT, name: ""}
    with start_small_group(tmp_path, parts, window=0.1) as run:
        said = run.stdout.read().decode()
        assert (run.wait(HANGS), said) == (1, ENDS[name] + "\n")
    assert not surviving_processes(pids(tmp_path))


@pytest.mark.long
def test_servers_may_end_as_soon_as_no_worker_needs_them(tmp_path):
    """A worker that has left the group may take its time."""
    parts = {"server 0": "", "rank 0": LAST + "time.sleep(4)\n", "rank 1": LAST}
    with start_small_group(tmp_path, parts) as run:
        assert (run.stdout.read(), run.wait(HANGS)) == (b"", 0)


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
        said = run.stdout.read()
        assert (run.wait(HANGS), said) == (0, b"[0] here\n")
    [left] = pids(tmp_path)
    os.kill(left, signal.SIGKILL)


@pytest.mark.long
def test_a_full_disk_is_said_and_the_training_ends_well(tmp_path):
    """What standard output leads to takes nothing; the worker is not ended."""
    with open("/dev/full", "w") as full, start_small_group(
        tmp_path, {"rank 0": LINES.replace(str(COUNT), "99") + LAST}, stdout=full, stderr=full
    ) as run:  # fmt: skip
        assert run.wait(HANGS) == 0  # gluonlab.launch looks at `fault`
    assert (tmp_path / "written").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("told", "said", "seconds"),
    [
        ("", "did not start within 30 s: where the machine is only busy, --patience 120 gives them longer", 30),
        ('tell("arrived")\n', "found no way to the others: is a port closed?", 60),
    ],
)
def test_ranks_that_do_not_come_are_named(told, said, seconds, tmp_path):
    """Time to load MXNet on a busy host is there, however short the patience."""
    late = f"{told}{WAIT}"
    with start_small_group(tmp_path, {"rank 0": late, "rank 1": late}, silent=True, patience=5) as run:
        began = time.monotonic()
        assert run.stdout.read().decode().splitlines() == [f"error: rank 0, rank 1 {said}"]
        assert run.wait(HANGS) == 1 and time.monotonic() - began > seconds
    assert not surviving_processes(pids(tmp_path))
