"""Workers and their rounds: they take turns, and none outlives its parent."""

import os
import select
import signal
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.waiting import wait_until
from support.worker_processes import has_exited

from gluonlab.bench.harness import interleaved_rounds, table_format, worker_processes
from gluonlab.bench.harness.interleaved_rounds import Subject, image_rates, measure_subjects
from gluonlab.bench.harness.worker_processes import Worker, WorkerError, child_environment

HANG_LIMIT_S = 240  # only a hang takes so long

# Speaks the protocol of gluonlab.bench.worker_main, a thousand steps a second, until it misbehaves.
FAKE = """
import json, os, subprocess, sys, time
how, folder = sys.argv[1:]
own = subprocess.Popen(["sleep", "3600"], stdout=subprocess.DEVNULL)
with open(os.path.join(folder, "pids"), "a+") as file:
    print(os.getpid(), own.pid, file=file, flush=True)
    slowness = file.seek(0) or len(file.readlines()) if how == "lucky" else 1
print('{"ready": true}', flush=True)
for number, line in enumerate(sys.stdin):
    if number == 3 and how == "hangs":
        time.sleep(3600)
    if number == 3 and how == "dies":
        sys.exit("out of luck")
    if number == 3 and how == "reports":
        print('{"error": "ValueError: too large"}', flush=True)
    print(json.dumps({"seconds": json.loads(line)["steps"] / 1000 * slowness}), flush=True)
"""


@dataclass(frozen=True)
class FakeSubject(Subject):
    folder: str = ""

    def worker_command(self):
        return [sys.executable, "-c", FAKE, self.label, self.folder]


def make_fakes(folder, *behaviors):
    return [FakeSubject(f"{i}", behavior, "fake", folder=str(folder)) for i, behavior in enumerate(behaviors)]


def wait_until_all_exited(folder):
    pids = (folder / "pids").read_text().split()
    wait_until(lambda: all(map(has_exited, pids)))


def test_a_worker_that_hangs_or_dies_is_a_row_with_a_reason_and_leaves_nothing_running(tmp_path, monkeypatch):
    ask, requests = Worker.ask, Counter()

    def ask_once(worker, message, timeout_s):
        """Wait for the hanging worker for half a second, and for others as long as usual."""
        requests[worker.pid] += 1
        hangs = "hangs" in worker._process.args and requests[worker.pid] == 4
        assert not hangs or timeout_s == interleaved_rounds.ROUND_TIMEOUT_S
        return ask(worker, message, 0.5 if hangs else timeout_s)

    monkeypatch.setattr(Worker, "ask", ask_once)
    subjects = make_fakes(tmp_path, "works", "hangs", "dies", "reports")
    absent = Subject("absent", "absent", "none", missing="not here")
    works, *broken = measure_subjects([*subjects, absent], rounds=3)
    assert (works.reason, works.steps, works.numbers_by_round("seconds")) == (None, 700, [0.7] * 3)
    assert [measurement.reason for measurement in broken] == [
        "did not answer within 0.5 s", "exited with status 1: out of luck", "ValueError: too large", "not here",
    ]  # fmt: skip
    wait_until_all_exited(tmp_path)
    lines = [table_format.missing_row(f"{one.label:<28}", one.reason) for one in image_rates(broken)]
    assert "out of luck" in lines[1] and max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("restart_every", "seconds"),
    [(None, [0.7] * 5), (5, [0.7] * 5), (2, [0.7, 0.7, 1.4, 1.4, 2.1]), (1, [0.7, 1.4, 2.1, 2.8, 3.5])],
)
def test_new_processes_share_the_rounds_and_the_old_ones_are_gone(tmp_path, restart_every, seconds):
    """The second process takes twice as long, and so on; all do as many steps as the first one."""
    [result] = measure_subjects(make_fakes(tmp_path, "lucky"), rounds=5, restart_every=restart_every)
    assert (result.reason, result.steps) == (None, 700)
    assert result.numbers_by_round("seconds") == pytest.approx(seconds)
    wait_until_all_exited(tmp_path)


@pytest.mark.parametrize(("count", "restart_every"), [(2, 1), (2, 2), (2, 3), (3, 3)])
def test_each_is_as_often_the_first_to_be_started(tmp_path, count, restart_every):
    """A process that starts later gets other memory."""
    subjects, rounds = make_fakes(tmp_path, *["lucky"] * count), count * restart_every
    results = measure_subjects(subjects, rounds=rounds, restart_every=restart_every)
    # the position of each process in the order of starts, by round
    starts = [[round(1000 * s / one.steps) for s in one.numbers_by_round("seconds")] for one in results]
    first = [min(range(count), key=lambda n: starts[n][start]) for start in range(0, rounds, restart_every)]
    assert sorted(first) == list(range(count))


def test_a_worker_that_fails_once_is_not_started_again(tmp_path):
    works, dies = measure_subjects(make_fakes(tmp_path, "works", "dies"), rounds=4, restart_every=3)
    assert dies.reason == "exited with status 1: out of luck" and works.numbers_by_round("seconds") == [0.7] * 4
    assert len((tmp_path / "pids").read_text().splitlines()) == 3


def test_ctrl_c_leaves_no_worker_running(tmp_path, monkeypatch):
    interrupt = lambda self, number, bar: os.kill(os.getpid(), signal.SIGINT)  # noqa: E731
    monkeypatch.setattr(interleaved_rounds._InterleavedWorkers, "round", interrupt)
    with pytest.raises(KeyboardInterrupt):
        measure_subjects(make_fakes(tmp_path, "works", "works-too"), rounds=3)
    wait_until_all_exited(tmp_path)


def test_an_unknown_job_is_reported(tmp_path):
    command = [sys.executable, "-m", "gluonlab.bench.worker_main", "nonesuch", "{}"]
    worker = Worker(command, child_environment({}, tmp_path), tmp_path / "log")
    with pytest.raises(WorkerError, match="KeyError: 'nonesuch'"):
        worker.read_answer(HANG_LIMIT_S)


def test_workers_do_not_inherit_engine_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    environment = child_environment({"MXNET_CPU_TEMP_COPY": "4"}, tmp_path)
    assert "OMP_NUM_THREADS" not in environment
    assert [name for name in environment if name.startswith("MXNET_")] == ["MXNET_CPU_TEMP_COPY"]


BUSY = """
import json, subprocess, sys, threading
own = subprocess.Popen([sys.executable, "-c", "while True: pass"])
def spin():
    while True:
        pass
threading.Thread(target=spin, daemon=True).start()
print(json.dumps({"ready": True, "own": own.pid}), flush=True)
for line in sys.stdin:
    print(json.dumps({"seconds": 0.1}), flush=True)
"""


def has_stopped(pid):
    """Return whether all threads of a process are stopped."""
    tasks = Path(f"/proc/{pid}/task").glob("*/stat")
    try:
        return all(task.read_text().rsplit(")", 1)[1].split()[0] == "T" for task in tasks)
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_pausing_worker_computes_only_if_asked_and_still_ends(tmp_path):
    command = [sys.executable, "-c", BUSY]
    worker = Worker(command, child_environment({}, tmp_path), tmp_path / "log", pauses=True)
    try:
        own = worker.read_answer(HANG_LIMIT_S)["own"]
        for _ in range(2):
            wait_until(lambda: has_stopped(worker.pid) and has_stopped(own))
            assert worker.ask({"steps": 1}, HANG_LIMIT_S) == {"seconds": 0.1}
    finally:
        worker.end(grace_s=2)
    assert not Path(f"/proc/{worker.pid}").exists()
    wait_until(lambda: has_exited(own))


@pytest.mark.parametrize(
    ("command", "grace_s", "status"),
    [("cat", HANG_LIMIT_S, 0), ("sleep 100", 0.1, -signal.SIGKILL), ("sleep 100", 0, -signal.SIGKILL)],
)
def test_a_worker_may_exit_by_itself_and_is_killed_after_its_grace_period(command, grace_s, status, tmp_path):
    worker = Worker(command.split(), dict(os.environ), tmp_path / "log")
    worker.end(grace_s)
    assert worker._process.returncode == status and not Path(f"/proc/{worker.pid}").exists()


def test_the_limit_for_an_answer_is_for_all_its_parts_together(tmp_path, monkeypatch):
    waits = []

    def wait(reading, writing, failing, seconds):
        waits.append(seconds)
        return select.select(reading, writing, failing, seconds)

    monkeypatch.setattr(worker_processes, "select", SimpleNamespace(select=wait))
    command = ["sh", "-c", "printf half; exec sleep 100"]  # half a line
    worker = Worker(command, dict(os.environ), tmp_path / "log")
    with pytest.raises(WorkerError, match=r"^did not answer within 0\.1 s$"):
        worker.read_answer(0.1)
    assert waits == sorted(waits, reverse=True) and 0 <= waits[-1] <= waits[0] <= 0.1
    assert has_exited(worker.pid)
