"""A command within bounds: whatever it starts ends with it, and the grader learns what was too
much.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluonlab.exercises import supervisor
from gluonlab.exercises.supervisor import (
    MAX_JOBS,
    MEMORY_PER_JOB,
    Bounds,
    ProcessStat,
    ResourceMonitor,
    count_files,
    fit_memory,
    list_descendants,
    max_parallel_jobs,
)
from gluonlab.host.resources import AvailableMemory, available_memory

START = "import os, signal, subprocess, sys, time\n"
DAEMON = "os.fork() or (os.setsid(), os.fork(), time.sleep(600))\n"
BOUNDS = dict(seconds=0, spare_seconds=600, memory=2**28, processes=20, files=100, disk=2**20)


def start_supervisor(folder, code, **changes):
    """Start the supervisor of a Python process that runs ``code``; ``changes``: of BOUNDS."""
    words = ["-m", "gluonlab.exercises.supervisor", json.dumps({**BOUNDS, **changes}), str(folder)]
    return subprocess.Popen(
        [sys.executable, *words, sys.executable, "-c", START + code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )


def only_long(*values):
    return pytest.param(*values, marks=pytest.mark.long)


@pytest.mark.parametrize(
    ("code", "changes", "reason"),
    [
        (DAEMON + "print('done')", {}, ""),
        only_long("time.sleep(600)", dict(spare_seconds=1), "in time"),
        only_long("signal.pause()", dict(processes=0), "processes"),
        only_long("x = b'x' * 2**29; time.sleep(600)", {}, "memory"),
        only_long("while True: subprocess.Popen(['sleep', '99'])", {}, "processes"),
        only_long("for n in range(200): os.mkdir(str(n))\ntime.sleep(600)", {}, "files"),
        only_long("open('a', 'wb').write(bytes(2**21)); time.sleep(600)", {}, "MiB of files"),
    ],
)
def test_the_supervisor_ends_all_that_the_command_has_started(tmp_path, code, changes, reason):
    before = {process.pid for process in list_descendants(os.getpid())}
    with start_supervisor(tmp_path, code, **changes) as child:
        output = child.stdout.read()  # to its end; its input stays open
    last = json.loads(output.splitlines()[-1])["ended"]
    assert (reason in last) if reason else (last == "" and output.startswith(b"done"))
    assert child.returncode == 0
    assert {process.pid for process in list_descendants(os.getpid())} <= before
    assert not list_processes_in(tmp_path)


@pytest.mark.long
def test_the_supervisor_ends_with_the_grader_and_removes_the_folder(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    child = start_supervisor(folder, DAEMON + "open('begun', 'w').close(); time.sleep(600)")
    while not (folder / "begun").exists():
        time.sleep(0.05)
    child.communicate(timeout=240)
    assert not folder.exists() and not list_processes_in(folder)


def list_processes_in(folder):
    """Return the ids of the processes whose current folder is in ``folder``."""
    ids = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and os.readlink(process / "cwd").startswith(str(folder)):
                ids.append(process.name)
        except OSError:  # it has ended, or is somebody else's
            pass
    return ids


def test_files_are_counted_up_to_the_limit_and_sparse_ones_by_what_they_take(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    (tmp_path / "a" / "sparse").touch()
    os.truncate(tmp_path / "a" / "sparse", 10**10)
    (tmp_path / "a" / "b" / "c").write_bytes(bytes(10_000))
    count, size = count_files(tmp_path, 100)
    assert count == 5 and 10_000 <= size < 10**6
    assert count_files(tmp_path, 2)[0] == 3


def test_a_notebook_may_have_no_more_memory_than_is_left():
    assert fit_memory(Bounds(1, memory=2**50)).memory < available_memory().total
    assert fit_memory(Bounds(1, memory=2**20)).memory == 2**20


@given(st.integers(0, 2**45), st.integers(1, 300))
def test_all_jobs_together_get_three_quarters_of_what_is_left_and_not_a_byte_more(free, jobs):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor, "available_memory", lambda: AvailableMemory(2**45, free, "machine"))
        memory = fit_memory(Bounds(1, memory=2**50), jobs).memory
    assert 4 * jobs * memory <= 3 * free < 4 * jobs * (memory + 1)


@pytest.mark.parametrize(
    ("free", "cores", "jobs"),
    [
        (0, 8, 1),
        (MEMORY_PER_JOB, 8, 1),  # there is always one
        (8 * MEMORY_PER_JOB, 8, 6),
        (8 * MEMORY_PER_JOB - 1, 8, 5),
        (8 * MEMORY_PER_JOB, 4, 4),
        (10**4 * MEMORY_PER_JOB, 10**4, MAX_JOBS),
        (None, 3, 3),
        (None, 10**4, MAX_JOBS),
    ],
)
def test_as_many_jobs_run_as_there_are_cores_and_memory_in_three_quarters_of_what_is_left(
    free, cores, jobs, monkeypatch
):
    left = None if free is None else AvailableMemory(2**60, free, "machine")
    monkeypatch.setattr(supervisor, "available_memory", lambda: left)
    monkeypatch.setattr(supervisor, "available_cores", lambda: cores)
    assert max_parallel_jobs() == jobs
    if left is None:
        assert fit_memory(Bounds(1), jobs) == Bounds(1)


def test_a_process_is_read_as_the_manual_numbers_its_fields(tmp_path):
    parents = {10: 1, 11: 10, 12: 11, 13: 10, 20: 1, 21: 20}
    for pid, parent in parents.items():
        # proc(5): pid, name, state, parent and group; 24 is the number of resident pages
        fields = [pid, "(a) S (b c)", "Z", parent, 5 * pid, *range(6, 53)]
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(" ".join(map(str, fields)) + "\n")
    (tmp_path / "14").mkdir()  # it has ended meanwhile
    (tmp_path / "uptime").touch()
    pages = 24 * os.sysconf("SC_PAGE_SIZE")
    assert sorted(list_descendants(10, tmp_path)) == [
        ProcessStat(pid, parents[pid], 5 * pid, "Z", pages) for pid in (11, 12, 13)
    ]


def test_what_processes_share_is_counted_once(tmp_path):
    own = next(process for process in list_descendants(os.getppid()) if process.pid == os.getpid())
    twice = [own, ProcessStat(2**30, 1, 1, "S", own.resident)]  # gone: it has nothing any more
    watch = ResourceMonitor(Bounds(60, memory=int(own.resident * 1.5), processes=1000), tmp_path)
    assert own.resident > 10**6 and watch.find_excess(twice) == ""
    assert "memory" in ResourceMonitor(Bounds(60, memory=2**20, processes=1000), tmp_path).find_excess([own])
