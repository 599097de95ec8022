"""idle-stop.py against a real Jupyter server: what keeps a notebook running, and what does not."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from jupyter import TOKEN, Server
from made_up_notebook import RESOURCE_METADATA, SAGEMAKER, Quiet
from support.waiting import LIMIT_S, wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("jupyter"))
    try:
        server.wait_for_start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def timer(idle_stop, server, tmp_path):
    """A Watch of that server, of its processes alone, and of a heartbeat file that is not there
    yet; without GPUs and a network.
    """

    class OfTheServer(idle_stop.ProcessActivity):
        def cpu_seconds(self):
            mine, every = server.process_ids(), super().cpu_seconds()
            return {item: used for item, used in every.items() if int(item[0]) in mine}

    jupyter = idle_stop.JupyterClient(server.url, TOKEN)
    parts = jupyter, OfTheServer(), Quiet(), Quiet()
    return idle_stop.IdleTimer(*parts, heartbeat=str(tmp_path / "heartbeat"))


@contextlib.contextmanager
def open_kernel(server):
    name, client = server.start_kernel()
    try:
        yield name, client
    finally:
        client.stop_channels()
        server.request("DELETE", f"kernels/{name}")


@contextlib.contextmanager
def open_terminal(server):
    name, socket = server.start_terminal()
    try:
        yield socket
    finally:
        socket.close()
        server.request("DELETE", f"terminals/{name}")


def settle(timer, now=0.0):
    """Update the timer until there is no news; return the time of the last update."""
    while True:
        now += 3600
        if timer.update(now)[1] is None and timer.update(now + 3600)[1] is None:
            return now + 3600
        time.sleep(0.2)


class Idle:
    """A check that updates at these later times count the idle time, and find no activity."""

    def __init__(self, timer, *later, begin=0.0):
        self.timer, self.later, self.now = timer, later, begin

    def __call__(self):
        begin = settle(self.timer, self.now)
        idle, self.now = self.timer.update(begin)[0], begin + self.later[-1]
        return [self.timer.update(begin + seconds) for seconds in self.later] == [
            (idle + seconds, None) for seconds in self.later
        ]


def test_an_idle_kernel_and_an_idle_terminal_are_idle_for_as_long_as_the_clock_says(server, timer):
    with open_kernel(server), open_terminal(server):
        wait_until(Idle(timer, 1000, 2500))


def test_a_busy_kernel_is_busy_though_it_computes_and_prints_nothing(server, timer):
    with open_kernel(server) as (name, client):
        settle(timer)
        client.execute("import time; time.sleep(3000)")
        server.wait_for_kernel(name, "busy")
        assert timer.update(10**6) == (0, "kernel python3 is busy")
        assert timer.update(2 * 10**6) == (0, "kernel python3 is busy")
        server.request("POST", f"kernels/{name}/interrupt", {})
        server.wait_for_kernel(name, "idle")
        wait_until(Idle(timer, 600, begin=3 * 10**6))


def test_a_kernel_that_ran_something_between_two_looks_was_used(server, timer):
    with open_kernel(server) as (name, client):
        now = settle(timer)
        client.execute("1 + 1")
        client.get_shell_msg(timeout=LIMIT_S)
        server.wait_for_kernel(name, "idle")
        wait_until(lambda: timer.update(now + 600) == (0, "a kernel or terminal was used"))


def test_a_terminal_whose_job_prints_nothing_is_busy(server, timer):
    """A training run with --quiet, which AWS's own sample would stop."""
    with open_terminal(server) as socket:
        now = settle(timer)
        socket.send(json.dumps(["stdin", f"exec {sys.executable} -c 'while True: pass'\r"]))
        for _ in range(3):
            wait_until(lambda: max_computed_s(timer) > 0.5)
            now += 2.0  # however long that took
            idle, why = timer.update(now)
            assert idle == 0 and "computed for" in why
        assert timer.update(now + 1)[0] <= 1


def max_computed_s(timer):
    """The seconds that a process has computed since the last look."""
    before, now = timer.processes.previous, timer.processes.cpu_seconds()
    return max(used - before.get(item, (0.0, ""))[0] for item, (used, _) in now.items())


def test_a_terminal_that_is_written_to_is_used(server, timer):
    with open_terminal(server) as socket:
        now = settle(timer)
        socket.send(json.dumps(["stdin", "true\r"]))
        wait_until(lambda: timer.update(now + 600) == (0, "a kernel or terminal was used"))


def test_a_terminal_whose_job_waits_is_kept_by_the_heartbeat_alone(server, timer):
    with open_terminal(server) as socket:
        socket.send(json.dumps(["stdin", "sleep 3000\r"]))
        wait_until(lambda: "sleep" in [name for _, name in timer.processes.cpu_seconds().values()])
        quiet = Idle(timer, 600)
        wait_until(quiet)
        now = quiet.now - 600
        with open(timer.heartbeat, "w", encoding="utf-8"):
            pass
        assert timer.update(now + 1200) == (0, "the heartbeat was touched")
        assert timer.update(now + 1800) == (600, None)


def test_a_clock_that_was_set_neither_stops_a_notebook_nor_keeps_it(idle_stop, tmp_path, monkeypatch):
    """Times of the server and of the heartbeat far in the future, and a time of day that jumps:
    only changes count.
    """
    heartbeat = tmp_path / "heartbeat"
    heartbeat.touch()
    os.utime(str(heartbeat), (4e9, 4e9))

    class Ahead:
        def read_state(self):
            return None, [("kernel", "2099-01-01T00:00:00Z")]

    timer = idle_stop.IdleTimer(Ahead(), Quiet(), Quiet(), Quiet(), heartbeat=str(heartbeat))
    times = iter([5e9, 0.0, 2e9])
    monkeypatch.setattr(time, "time", lambda: next(times))
    assert [timer.update(now) for now in (50, 60, 3650)] == [(0, None), (10, None), (3600, None)]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("printf '0\\n37\\n'", "GPU 1 works at 37 %"),
        ("printf '0\\n4\\n'", None),
        ("echo '[N/A]'", None),
        ("exit 9", None),
    ],
)
def test_a_gpu_at_work_is_seen(idle_stop, tmp_path, monkeypatch, answer, why):
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\n{answer}\n", encoding="utf-8")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert idle_stop.GPUActivity().find_activity() == why


def test_without_nvidia_smi_no_gpu_is_at_work(idle_stop, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert idle_stop.GPUActivity().find_activity() is None


@pytest.mark.parametrize("dies", [True, False], ids=["killed", "cannot be killed"])
def test_an_nvidia_smi_that_hangs_holds_up_nothing(idle_stop, tmp_path, monkeypatch, dies):
    """Below a driver that hangs.

    Its child has its output, too: who reads to the end of that waits for ever.
    """
    smi, pids = tmp_path / "nvidia-smi", tmp_path / "pids"
    smi.write_text(f'#!/bin/sh\nsleep 600 &\necho $$ $! >>"{pids}"\nwait\n', encoding="utf-8")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    plain = subprocess.Popen.communicate

    def communicate(process, timeout):
        wait_until(lambda: pids.exists() and str(process.pid) in pids.read_text().split())
        return plain(process, timeout=timeout)

    with monkeypatch.context() as unkillable:
        if not dies:
            unkillable.setattr(subprocess.Popen, "kill", lambda process: None)
        gpus = idle_stop.GPUActivity(timeout=0.1)  # which begins once it is known to hang
        unkillable.setattr(subprocess.Popen, "communicate", communicate)
        try:
            assert [gpus.find_activity(), gpus.find_activity()] == [None, None]
            for line in pids.read_text().splitlines():
                os.kill(int(line.split()[1]), 0)  # the child runs: its output was not waited for
            if not dies:
                assert len(pids.read_text().splitlines()) == 1  # it was not asked again
        finally:
            for pid in map(int, pids.read_text().split()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    gpus.process.wait(LIMIT_S)
    smi.write_text("#!/bin/sh\necho 50\n", encoding="utf-8")
    assert gpus.find_activity() == "GPU 0 works at 50 %"


def test_many_short_processes_are_a_job(idle_stop):
    """Each ends before it could be seen; their parent has their time."""
    job = "while true; do grep -c x /proc/self/status; done >/dev/null 2>&1"
    with subprocess.Popen(["bash", "-c", job]) as shell:

        def computed():
            every = idle_stop.ProcessActivity().cpu_seconds().items()
            return sum(used for (pid, _), (used, _) in every if pid == str(shell.pid))

        try:
            first = computed()
            wait_until(lambda: computed() > first + 0.2)
        finally:
            shell.kill()


def test_addresses_of_other_machines_are_refused(idle_stop):
    with pytest.raises(SystemExit, match="is not on this machine"):
        idle_stop.JupyterClient("https://example.com:8443")


PROGRAM = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("idle_stop", sys.argv.pop(1))
idle_stop = importlib.util.module_from_spec(spec)
spec.loader.exec_module(idle_stop)
idle_stop.METADATA, idle_stop.HEARTBEAT = sys.argv.pop(1), "/nonexistent"
idle_stop.BUSY_CPU = idle_stop.BUSY_NETWORK = 1e12  # other tests compute, too
idle_stop.main()
"""


@pytest.fixture
def program(server, tmp_path):
    """``program(url)`` starts the whole program, which looks every 0.2 s and stops after 2 s, with
    a shim for aws.
    """
    (tmp_path / "aws").write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/stopped\n', encoding="utf-8")
    (tmp_path / "aws").chmod(0o755)
    (tmp_path / "metadata.json").write_text(json.dumps(RESOURCE_METADATA), encoding="utf-8")
    started = []

    def start(url=server.url):
        files = [SAGEMAKER / "idle-stop.py", tmp_path / "metadata.json"]
        options = ["--minutes", str(2 / 60), "--every", "0.2", "--url", url]
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *files, *options], stdout=subprocess.PIPE,
                env={"PATH": f"{tmp_path}:{os.defpath}", "JUPYTER_TOKEN": TOKEN}, encoding="utf-8",
            )
        )  # fmt: skip
        return started[0]

    yield start
    for process in started:
        process.kill()
        process.wait(LIMIT_S)
        process.stdout.close()


def test_the_program_stops_its_own_notebook(program, server, tmp_path):
    with open_kernel(server):
        process = program()
        wait_until((tmp_path / "stopped").exists)
        wait_until((tmp_path / "stopped").read_text)
        assert process.poll() is None  # it goes on: a stop that AWS refused is tried again
    expected = "sagemaker stop-notebook-instance --region eu-west-1 --notebook-instance-name mine"
    assert (tmp_path / "stopped").read_text(encoding="utf-8").splitlines()[0] == expected


def test_the_program_stops_a_notebook_whose_server_has_ended(program, tmp_path):
    process = program("http://127.0.0.1:9")
    wait_until((tmp_path / "stopped").exists)
    assert "from Jupyter" in process.stdout.readline()


def test_the_program_does_not_stop_a_notebook_with_a_busy_kernel(program, server, tmp_path):
    with open_kernel(server) as (name, client):
        client.execute("import time; time.sleep(3000)")
        server.wait_for_kernel(name, "busy")
        process = program()
        lines = [process.stdout.readline() for _ in range(20)]  # at least 4 s
        assert all("kernel python3 is busy" in line for line in lines)
        assert not (tmp_path / "stopped").exists()


def test_the_program_is_written_for_the_system_python_of_a_notebook():
    import ast

    ast.parse((SAGEMAKER / "idle-stop.py").read_text(encoding="utf-8"), feature_version=(3, 7))
