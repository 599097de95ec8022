"""The doctor on disks, folders and memory, of ordinary machines, containers and batch jobs."""

import errno
import os
from pathlib import Path

import pytest

from gluonlab.doctor import host, packages
from gluonlab.doctor.findings import FAULT, OK, WARNING
from gluonlab.engine import installation

GIB = 2**30


@pytest.mark.parametrize(
    ("free", "status"), [(0, FAULT), (63 * 2**20, FAULT), (GIB // 2, WARNING), (2 * GIB, OK)]
)
def test_a_place_has_room(tmp_path, free, status):
    found = host.place(
        "data",
        "data sets",
        tmp_path / "not" / "yet",
        "CURE",
        lambda folder: host.Usage(GIB, GIB - free, free),
    )
    assert found.status == status
    assert not (tmp_path / "not").exists()
    assert status == OK or "CURE" in found.cure


def test_a_place_that_refuses_for_want_of_room(tmp_path, monkeypatch):
    def full(dir):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    assert "the disk is full" in host.place("data", "x", tmp_path, "CURE").what


def test_a_place_that_cannot_be_written():
    found = host.place("data", "data sets", Path("/sys/gluonlab"), "CURE")
    assert (found.status, found.cure) == (FAULT, "CURE")
    assert found.cause.startswith("/sys: ")


@pytest.fixture
def closed(tmp_path):
    """A folder below one that may not be entered, not even by root, who becomes somebody else."""
    (tmp_path / "closed" / "below").mkdir(parents=True)
    (tmp_path / "closed").chmod(0)
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_mode & 0o711 != 0o711:  # pytest's own, closed to others
            parent.chmod(parent.stat().st_mode | 0o711)
    user = os.geteuid()
    try:
        if user == 0:
            os.seteuid(65534)
        yield tmp_path / "closed" / "below"
    finally:
        os.seteuid(user)
        (tmp_path / "closed").chmod(0o700)


def test_a_place_below_a_folder_that_may_not_be_entered(closed):
    """As /root of a container that runs for somebody else."""
    found = host.place("data", "data sets", closed / "new", "CURE")
    assert (found.status, found.cause) == (FAULT, f"{closed.parent}: Permission denied")
    home = host.home(str(closed))
    assert (home.status, home.cause) == (WARNING, "Permission denied")


def test_modules_below_a_folder_that_may_not_be_entered_are_passed_over(closed, monkeypatch):
    assert packages.module_folder("mxnet", [str(closed)]) is None
    monkeypatch.setattr("sys.path", [str(closed)])
    assert packages.installed_mxnets() == {}
    assert installation.wheel_folders() == []
    assert (
        installation.users_path(installation.LIBRARIES[0], {"LD_LIBRARY_PATH": str(closed)}) is None
    )
    assert installation.other_versions("libcudnn.so.8", {"LD_LIBRARY_PATH": str(closed)}) == []


def test_the_current_folder_may_be_gone(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    found = host.current_folder()
    assert (found.status, found.what, found.cure) == (
        FAULT,
        "the current folder is gone",
        "cd to a folder that exists",
    )


def test_a_home_that_is_not_set():
    assert host.home("").status == WARNING


def machine(folder, files):
    """``files`` below ``folder``: path -> content."""
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    return host.memory(folder / "proc", folder / "cgroup")


MEMINFO = {
    "proc/meminfo": (
        f"MemTotal:       {16 * GIB // 1024} kB\nMemFree: 1 kB\n"
        f"MemAvailable:   {8 * GIB // 1024} kB\n"
    )
}


@pytest.mark.parametrize(
    "names",
    [
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "memory/memory.stat",
            "total_inactive_file",
        ),
    ],
    ids=["version 2", "version 1"],
)
@pytest.mark.parametrize(
    ("limit", "used", "files", "words", "status"),
    [
        ("max", 5, 0, "8.0 GiB of 16.0 GiB free in the machine", OK),
        (str(4 * GIB), GIB, 0, "3.0 GiB of 4.0 GiB free in this container or job", OK),
        (str(4 * GIB), 3 * GIB, 0, "1.0 GiB of 4.0 GiB free in this container or job", WARNING),
        (str(4 * GIB), 4 * GIB, 3 * GIB, "3.0 GiB of 4.0 GiB free in this container or job", OK),
        (str(4 * GIB), 5 * GIB, 0, "0.0 GiB of 4.0 GiB free in this container or job", WARNING),
        (str(2**63), 5, 0, "8.0 GiB of 16.0 GiB free in the machine", OK),
    ],
)
def test_memory_is_that_of_the_machine_or_its_container(
    tmp_path, names, limit, used, files, words, status
):
    """Pages of files count as used, but are given back."""
    most, now, stat, cached = names
    group = {
        most: f"{limit}\n",
        now: f"{used}\n",
        stat: f"anon 1\n{cached} {files}\nactive_file 7\n",
    }
    found = machine(
        tmp_path, {**MEMINFO, **{f"cgroup/{name}": content for name, content in group.items()}}
    )
    assert (found.what, found.status) == (words, status)


@pytest.mark.parametrize(
    ("membership", "folder"),
    [
        ("0::/jobs/7/step", "jobs/7"),
        ("4:cpu:/x\n9:hugetlb,memory:/jobs/7/step", "memory/jobs/7"),
    ],
)
def test_a_jobs_memory_is_limited_by_a_group_above_its_own(tmp_path, membership, folder):
    """As batch systems do on machines without containers."""
    limit, used = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes")
        if "memory" in folder
        else ("memory.max", "memory.current")
    )
    group = {f"cgroup/{folder}/{limit}": str(4 * GIB), f"cgroup/{folder}/{used}": str(GIB)}
    found = machine(tmp_path, {**MEMINFO, "proc/self/cgroup": membership, **group})
    assert found.what == "3.0 GiB of 4.0 GiB free in this container or job"


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"proc/meminfo": "MemTotal: 5 kB\n"},
        {"proc/meminfo": "odd\n", "proc/self/cgroup": "odd"},
    ],
)
def test_a_system_that_does_not_tell_its_memory(tmp_path, files):
    found = machine(tmp_path, files)
    assert (found.status, "does not say" in found.what) == (OK, True)


def test_shared_memory_of_a_container_is_small(tmp_path):
    small = host.shared_memory(tmp_path, lambda folder: host.Usage(64 * 2**20, 0, 64 * 2**20))
    assert (small.status, small.cure) == (
        WARNING,
        "docker run --shm-size=1g, or mount -o remount,size=1g /dev/shm",
    )
    assert host.shared_memory(tmp_path, lambda folder: host.Usage(GIB, 0, GIB)).status == OK
    assert host.shared_memory(tmp_path / "missing").status == WARNING
