"""The doctor on disks, folders and memory, of ordinary machines, containers and batch jobs."""

import errno
import os
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.waiting import wait_until

from gluonlab.doctor import check_host, check_software
from gluonlab.doctor.findings import FAULT, OK, WARNING
from gluonlab.engine import mxnet_and_cuda_libraries

GIB = 2**30
Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(("free", "status"), [(0, FAULT), (63 * 2**20, FAULT), (GIB // 2, WARNING), (2 * GIB, OK)])
def test_the_free_space_of_a_folder_is_judged(tmp_path, free, status):
    folder = tmp_path / "not" / "yet"
    finding = check_host.check_folder("data", "data sets", folder, "CURE", lambda folder: Usage(GIB, GIB - free, free))
    assert finding.status == status and (status == OK or "CURE" in finding.cure)
    assert not folder.parent.exists()


def test_a_folder_that_is_full_or_cannot_be_written(tmp_path, monkeypatch):
    finding = check_host.check_folder("data", "data sets", Path("/sys/gluonlab"), "CURE")
    assert (finding.status, finding.cure) == (FAULT, "CURE") and finding.cause.startswith("/sys: ")

    def full(dir):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    assert "the disk is full" in check_host.check_folder("data", "x", tmp_path, "CURE").what


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
    finding = check_host.check_folder("data", "data sets", closed / "new", "CURE")
    assert (finding.status, finding.cause) == (FAULT, f"{closed.parent}: Permission denied")
    home = check_host.check_home(str(closed))
    assert (home.status, home.cause) == (WARNING, "Permission denied")
    assert check_host.check_home("").status == WARNING


def test_modules_below_a_folder_that_may_not_be_entered_are_passed_over(closed, monkeypatch):
    assert check_software.module_folder("mxnet", [str(closed)]) is None
    monkeypatch.setattr("sys.path", [str(closed)])
    assert check_software.installed_mxnets() == {}
    assert mxnet_and_cuda_libraries.wheel_folders() == []
    environ = {"LD_LIBRARY_PATH": str(closed)}
    assert mxnet_and_cuda_libraries.path_in_ld_library_path(mxnet_and_cuda_libraries.LIBRARIES[0], environ) is None
    assert mxnet_and_cuda_libraries.find_other_versions("libcudnn.so.8", environ) == []


def test_the_current_folder_may_be_gone(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    finding = check_host.check_current_folder()
    assert (finding.status, finding.what) == (FAULT, "the current folder no longer exists")
    assert finding.cure == "cd to a folder that exists"


def check_machine_memory(folder, files):
    """``files``: the content of each file below ``folder``."""
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    return check_host.check_memory(folder / "proc", folder / "cgroup")


MEMINFO = {
    "proc/meminfo": (f"MemTotal:       {16 * GIB // 1024} kB\nMemFree: 1 kB\nMemAvailable:   {8 * GIB // 1024} kB\n")
}


@pytest.mark.parametrize(
    "names",
    [
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
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
def test_memory_is_that_of_the_machine_or_its_container(tmp_path, names, limit, used, files, words, status):
    """Pages of files count as used, but are given back."""
    contents = (f"{limit}\n", f"{used}\n", f"anon 1\n{names[-1]} {files}\nactive_file 7\n")
    group = {f"cgroup/{name}": content for name, content in zip(names, contents)}
    finding = check_machine_memory(tmp_path, {**MEMINFO, **group})
    assert (finding.what, finding.status) == (words, status)


@pytest.mark.parametrize(
    ("membership", "folder", "limit", "used"),
    [
        ("0::/jobs/7/step", "jobs/7", "memory.max", "memory.current"),
        ("4:cpu:/x\n9:hugetlb,memory:/jobs/7/step", "memory/jobs/7", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ],
)
def test_a_jobs_memory_is_limited_by_a_group_above_its_own(tmp_path, membership, folder, limit, used):
    """As batch systems do on machines without containers."""
    group = {f"cgroup/{folder}/{limit}": str(4 * GIB), f"cgroup/{folder}/{used}": str(GIB)}
    finding = check_machine_memory(tmp_path, {**MEMINFO, "proc/self/cgroup": membership, **group})
    assert finding.what == "3.0 GiB of 4.0 GiB free in this container or job"


@pytest.mark.parametrize(
    "files", [{}, {"proc/meminfo": "MemTotal: 5 kB\n"}, {"proc/meminfo": "odd\n", "proc/self/cgroup": "odd"}]
)
def test_a_system_that_does_not_tell_its_memory(tmp_path, files):
    finding = check_machine_memory(tmp_path, files)
    assert finding.status == OK and "does not contain it" in finding.what


def test_shared_memory_of_a_container_is_small(tmp_path):
    small = check_host.check_shared_memory(tmp_path, lambda folder: Usage(64 * 2**20, 0, 64 * 2**20))
    assert (small.status, small.cure) == (WARNING, "docker run --shm-size=1g, or mount -o remount,size=1g /dev/shm")
    assert check_host.check_shared_memory(tmp_path, lambda folder: Usage(GIB, 0, GIB)).status == OK
    assert check_host.check_shared_memory(tmp_path / "missing").status == WARNING


@pytest.fixture
def cpu_machine(monkeypatch):
    """``cpu_machine(cpus, allowed, cores, load)``: one that is not this one."""

    def make(cpus=8, allowed=8, cores=8, load=0.0):
        monkeypatch.setattr(os, "cpu_count", lambda: cpus)
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(allowed)))
        monkeypatch.setattr(os, "getloadavg", lambda: (load, 9.0, 9.0))
        monkeypatch.setattr("gluonlab.host.resources.available_cores", lambda: cores)

    return make


def test_a_quiet_machine_is_one_line(cpu_machine):
    cpu_machine()
    [finding] = check_host.check_cpu()
    assert (finding.check, finding.status) == ("cpu", OK)
    assert finding.what.startswith("8 cores, load 0.0; one CPU device uses 8 threads; idle threads sleep")


@pytest.mark.parametrize(
    ("cpus", "allowed", "cores", "words"),
    [
        (8, 8, 8, "8 cores"),
        (1, 1, 1, "1 core"),
        (8, 2, 2, "2 cores (2 of the machine's 8 CPUs are allowed by affinity)"),
        (8, 8, 4, "4 cores (the rest are hyper-threads, or beyond this container's limit)"),
    ],
)
def test_cores_that_are_not_to_be_had_are_explained(cpu_machine, cpus, allowed, cores, words):
    cpu_machine(cpus, allowed, cores)
    assert check_host.describe_cores() == words


@pytest.mark.parametrize(
    ("cores", "load", "status"), [(8, 0.5, OK), (8, 1.2, WARNING), (2, 5.0, OK), (2, 7.2, WARNING), (1, 99.0, OK)]
)
def test_a_load_that_leaves_a_team_too_few_cores_is_a_warning(cpu_machine, cores, load, status):
    """Of a cpu_machine with 8 CPUs, of which a device uses as many as it has cores; alone, a thread
    waits for no other.
    """
    cpu_machine(8, cores, cores, load)
    [finding] = check_host.check_cpu()
    assert finding.status == status and (status == OK or "--threads N" in finding.cure)


def test_who_computes_is_named_but_not_what_the_doctor_has_started():
    """A process of another parent: it is started by one that ends."""
    code = "import os, sys\nif os.fork(): os._exit(0)\nprint(os.getpid(), flush=True)\nwhile True: pass"
    stranger = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid = int(stranger.stdout.readline())
    own = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    named = []

    def have_both_computed():
        """For the stranger that is to be named, for one's own to have computed meanwhile."""
        before = check_host._read_processes(check_host.PROC)[own.pid][2]
        named.extend(check_host.busy_processes(share=0.0, most=10**6))
        is_named = any(f"(pid {pid})" in words for words in named)
        return is_named and check_host._read_processes(check_host.PROC)[own.pid][2] > before

    try:
        wait_until(have_both_computed)
    finally:
        os.kill(pid, 9)
        own.kill()
        own.wait()
        stranger.wait()
        stranger.stdout.close()
    assert not any(f"(pid {own.pid})" in words or f"(pid {os.getpid()})" in words for words in named)


def test_the_share_of_a_core_is_the_clock_ticks_of_the_time_in_between(tmp_path, monkeypatch):
    def has_computed(pid, name, ticks, parent=1):
        (tmp_path / f"{pid}").mkdir(exist_ok=True)
        zeros = "0 " * 9
        stat = f"{pid} ({name}) R {parent} {zeros}{ticks // 3} {ticks - ticks // 3} 0 0"
        (tmp_path / f"{pid}" / "stat").write_text(stat)

    def later(seconds):
        core = seconds * os.sysconf("SC_CLK_TCK")  # what one core has in this time
        for pid, name, cores in processes:
            has_computed(pid, name, 1000 + round(core * cores))
        has_computed(8, "child", 1000 + round(core), parent=os.getpid())
        has_computed(9, "new", round(core))

    processes = [(17, "half (a) b", 0.5), (5, "two", 2.0), (6, "little", 0.1), (7, "one", 1.0)]
    for pid, name, _ in processes:
        has_computed(pid, name, 1000)
    has_computed(8, "child", 1000, parent=os.getpid())
    (tmp_path / "uptime").write_text("1000.00 1000.00")
    monkeypatch.setattr(check_host, "time", SimpleNamespace(sleep=later))
    assert check_host.busy_processes(tmp_path) == ["two (pid 5) 200 %", "one (pid 7) 100 %", "half (a) b (pid 17) 50 %"]
    for pid, name, _ in processes:
        has_computed(pid, name, 1000)
    assert check_host.busy_processes(tmp_path, share=0.05, most=1) == ["two (pid 5) 200 %"]


@pytest.mark.parametrize(
    ("exported", "warned"),
    [
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "OMP_WAIT_POLICY=ACTIVE is exported"),
        ({"OMP_WAIT_POLICY": "passive"}, None),
        *(
            ({"GOMP_SPINCOUNT": count}, f"GOMP_SPINCOUNT={count} is exported")
            for count in ("300000", "infinite", "3 G")
        ),
        ({"GOMP_SPINCOUNT": "10", "OMP_WAIT_POLICY": "active"}, None),
        *(({f"{name}_THREADS": "9"}, "9 threads are exported for 8 cores") for name in ("OMP_NUM", "MXNET_OMP_MAX")),
        ({"OMP_NUM_THREADS": "8"}, None),
        ({"GOMP_SPINCOUNT": "1e9"}, None),  # libgomp passes it over, and gluonlab sets its own
        ({"OMP_DYNAMIC": "true"}, "OMP_DYNAMIC=true is overridden for MXNet"),
        (
            {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "3", "DMLC_PS_ROOT_URI": "10.0.0.7"},
            "3 workers of a parameter server share cores",
        ),
    ],
    ids=str,
)
def test_settings_that_slow_a_device_are_warnings_with_cause_and_cure(cpu_machine, monkeypatch, exported, warned):
    cpu_machine()
    for name, value in exported.items():
        monkeypatch.setenv(name, value)
    _, *others = check_host.check_cpu()
    assert [finding.what for finding in others] == [warned] * (warned is not None)
    assert all(finding.status == WARNING and finding.cause and finding.cure for finding in others)


def test_the_line_names_settings_and_processes(cpu_machine, monkeypatch):
    cpu_machine()
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    [finding] = check_host.check_cpu()
    words = "uses 2 threads, as 1 of 4 processes of a training; idle threads wait as OMP_WAIT_POLICY=passive says"
    assert words in finding.what
