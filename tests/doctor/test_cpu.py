"""The doctor on cores: how many, who else computes on them, and how OpenMP's threads wait."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from support.waiting import wait_until

from gluonlab.doctor import cpu
from gluonlab.doctor.findings import OK, WARNING


@pytest.fixture
def machine(monkeypatch):
    """``machine(cpus, allowed, cores, load)``: one that is not this one."""

    def make(cpus=8, allowed=8, cores=8, load=0.0):
        monkeypatch.setattr(os, "cpu_count", lambda: cpus)
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(allowed)))
        monkeypatch.setattr(os, "getloadavg", lambda: (load, 9.0, 9.0))
        monkeypatch.setattr("gluonlab.host.resources.available_cores", lambda: cores)

    return make


def test_a_quiet_machine_is_one_line(machine):
    machine()
    [found] = cpu.cpu()
    assert (found.check, found.status) == ("cpu", OK)
    assert found.what.startswith(
        "8 cores, load 0.0; one CPU device computes with 8 threads; idle threads sleep"
    )


@pytest.mark.parametrize(
    ("cpus", "allowed", "cores", "words"),
    [
        (8, 8, 8, "8 cores"),
        (1, 1, 1, "1 core"),
        (8, 2, 2, "2 cores (2 of the machine's 8 CPUs are allowed by affinity)"),
        (8, 8, 4, "4 cores (the rest are hyper-threads, or beyond this container's limit)"),
    ],
)
def test_cores_that_are_not_to_be_had_are_explained(machine, cpus, allowed, cores, words):
    machine(cpus, allowed, cores)
    assert cpu.cores_in_words() == words


@pytest.mark.parametrize(
    ("cores", "load", "status"),
    [(8, 0.5, OK), (8, 1.2, WARNING), (2, 5.0, OK), (2, 7.2, WARNING), (1, 99.0, OK)],
)
def test_a_load_that_leaves_a_team_too_few_cores_is_a_warning(machine, cores, load, status):
    """Of a machine with 8 CPUs, of which a device uses as many as it has cores; alone, a thread
    waits for no other.
    """
    machine(8, cores, cores, load)
    [found] = cpu.cpu()
    assert found.status == status
    assert status == OK or "--threads N" in found.cure


def test_who_computes_is_named_but_not_what_the_doctor_has_started():
    """A process of another parent: it is started by one that ends."""
    code = (
        "import os, sys\nif os.fork(): os._exit(0)\nprint(os.getpid(), flush=True)\n"
        "while True: pass"
    )
    stranger = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid = int(stranger.stdout.readline())
    own = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    named = []

    def have_both_computed():
        """For the stranger that is to be named, for one's own to have computed meanwhile."""
        before = cpu._processes(cpu.PROC)[own.pid][2]
        named.extend(cpu.busy(share=0.0, most=10**6))
        is_named = any(f"(pid {pid})" in words for words in named)
        return is_named and cpu._processes(cpu.PROC)[own.pid][2] > before

    try:
        wait_until(have_both_computed)
    finally:
        os.kill(pid, 9)
        own.kill()
        own.wait()
        stranger.wait()
        stranger.stdout.close()
    assert not any(
        f"(pid {own.pid})" in words or f"(pid {os.getpid()})" in words for words in named
    )


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
    monkeypatch.setattr(cpu, "time", SimpleNamespace(sleep=later))
    assert cpu.busy(tmp_path) == [
        "two (pid 5) 200 %",
        "one (pid 7) 100 %",
        "half (a) b (pid 17) 50 %",
    ]
    for pid, name, _ in processes:
        has_computed(pid, name, 1000)
    assert cpu.busy(tmp_path, share=0.05, most=1) == ["two (pid 5) 200 %"]


@pytest.mark.parametrize(
    ("exported", "warned"),
    [
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "OMP_WAIT_POLICY=ACTIVE is exported"),
        ({"OMP_WAIT_POLICY": "passive"}, None),
        ({"GOMP_SPINCOUNT": "300000"}, "GOMP_SPINCOUNT=300000 is exported"),
        ({"GOMP_SPINCOUNT": "infinite"}, "GOMP_SPINCOUNT=infinite is exported"),
        ({"GOMP_SPINCOUNT": "3 G"}, "GOMP_SPINCOUNT=3 G is exported"),
        ({"GOMP_SPINCOUNT": "10", "OMP_WAIT_POLICY": "active"}, None),
        ({"OMP_NUM_THREADS": "9"}, "9 threads are exported for 8 cores"),
        ({"OMP_NUM_THREADS": "8"}, None),
        ({"MXNET_OMP_MAX_THREADS": "9"}, "9 threads are exported for 8 cores"),
        ({"GOMP_SPINCOUNT": "1e9"}, None),  # libgomp passes it over, and gluonlab sets its own
        ({"OMP_DYNAMIC": "true"}, "OMP_DYNAMIC=true is overridden for MXNet"),
        (
            {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "3", "DMLC_PS_ROOT_URI": "10.0.0.7"},
            "3 workers of a parameter server share cores",
        ),
    ],
    ids=str,
)
def test_settings_that_slow_a_device_are_warnings_with_cause_and_cure(
    machine, monkeypatch, exported, warned
):
    machine()
    for name, value in exported.items():
        monkeypatch.setenv(name, value)
    _, *others = cpu.cpu()
    assert [found.what for found in others] == [warned] * (warned is not None)
    assert all(found.status == WARNING and found.cause and found.cure for found in others)


def test_the_line_tells_settings_and_processes(machine, monkeypatch):
    machine()
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    [found] = cpu.cpu()
    assert (
        "with 2 threads, as 1 of 4 processes of a training; "
        "idle threads wait as OMP_WAIT_POLICY=passive says"
    ) in found.what
