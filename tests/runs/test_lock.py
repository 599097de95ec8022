"""A folder belongs to one process at a time, and to no dead one."""

import errno
import fcntl
import json
import os
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from support.commands import names
from support.full_disk import full_at

from gluonlab.errors import OutputError
from gluonlab.runs.lock import LOCK, FolderLock, check_free
from gluonlab.runs.writer import RunDirectory

KILLED = """
import os, pathlib, signal, sys
from gluonlab.files.whole import atomic_path
from gluonlab.runs.lock import FolderLock
run = pathlib.Path(sys.argv[1])
lock = FolderLock(run)
with atomic_path(run / "parameters.params"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def without_locks(monkeypatch):
    def flock(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)


def owned(folder, **changes):
    """The folder's lock file as a process of another time or host left it."""
    folder.mkdir(exist_ok=True)
    with_own = json.loads(here(folder))
    (folder / LOCK).write_text(json.dumps({**with_own, **changes}))


def here(folder):
    lock = FolderLock(folder)
    content = (folder / LOCK).read_text()
    lock.release()
    assert names(folder) == []
    return content


@pytest.mark.parametrize("out", ["run", None])
def test_of_many_at_once_one_gets_a_folder_and_the_others_another_or_none(empty_cwd, out):
    many = 8
    together = Barrier(many)

    def create(_):
        together.wait()
        try:
            return RunDirectory.create(out, "name")
        except OutputError as error:
            assert "is in use by" in str(error) or "is not empty" in str(error)

    with ThreadPoolExecutor(many) as pool:
        runs = [run for run in pool.map(create, range(many)) if run is not None]
    assert len({run.path for run in runs}) == len(runs) == (many if out is None else 1)
    for run in runs:
        run.close()
        assert names(run.path) == ["metrics.jsonl"]


def test_the_message_names_process_and_host_until_the_folder_is_free(tmp_path):
    run = RunDirectory.create(str(tmp_path / "run"), "name")
    said = f"run is in use by process {os.getpid()} on {socket.gethostname()}: give another folder"
    for refused in (lambda: RunDirectory.check(str(run.path)), lambda: FolderLock(run.path)):
        with pytest.raises(OutputError, match=said):
            refused()
    run.close()
    FolderLock(run.path).release()


def test_the_folder_of_a_killed_process_is_free_and_its_files_go_when_the_next_run_begins(
    python, empty_cwd
):
    killed = empty_cwd / "runs" / "killed"
    killed.mkdir(parents=True)
    (killed / ".mine-0123abcd").touch()
    assert python("-c", KILLED, str(killed)).returncode == -9
    left = re.compile(r"\.in-use|\.mine-0123abcd|\.parameters\.params-[0-9a-f]{8}")
    assert len(names(killed)) == 3
    assert all(left.fullmatch(name) for name in names(killed))
    RunDirectory.create(None, "next").close()
    assert names(killed) == [LOCK, ".mine-0123abcd"]
    check_free(killed)
    FolderLock(killed).release()
    assert names(killed) == [".mine-0123abcd"]


@pytest.mark.parametrize(
    ("changes", "free"),
    [
        ({}, False),
        ({"pid": 2**22 + 1}, True),  # more than Linux gives out
        ({"began": 1}, True),  # its number was given out again
        ({"host": "elsewhere"}, False),  # nobody can tell
    ],
    ids=str,
)
def test_on_a_disk_without_locks_the_process_that_is_named_decides(
    tmp_path, without_locks, changes, free
):
    run = tmp_path / "run"
    owned(run, **changes)
    if free:
        FolderLock(run).release()
        assert names(run) == []
    else:
        with pytest.raises(OutputError, match="is in use by"):
            FolderLock(run)
        assert names(run) == [LOCK]


@pytest.mark.parametrize("content", ["", "null", "[1]", '{"pid": "x"}', "\0" * 50, "9" * 5000])
def test_whatever_stands_in_a_lock_file_that_nobody_holds(tmp_path, content):
    (tmp_path / LOCK).write_text(content)
    check_free(tmp_path)
    FolderLock(tmp_path).release()


def test_no_room_for_the_lock_leaves_nothing(tmp_path):
    with full_at(0), pytest.raises(OutputError, match="File too large"):
        RunDirectory.create(str(tmp_path / "a" / "run"), "name")
    assert names(tmp_path) == []
