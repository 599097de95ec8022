"""What bench threads compares: settings that OpenMP itself confirms, beside processes that really
compute and really end.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.bench_command import measured
from support.processes import REPOSITORY
from support.worker_processes import gone

from benchmarks import threads
from benchmarks.__main__ import main
from gluonlab.bench.harness.rounds import Measurement, image_rates
from gluonlab.bench.harness.workers import Worker, child_environment
from gluonlab.bench.training_job import competing
from gluonlab.doctor import host
from gluonlab.host import resources


def ticks(pid):
    """The time that a process has computed; None when it is gone."""
    return host._processes(Path("/proc")).get(pid, (None, None, None))[2]


def test_competitors_compute_as_long_as_they_shall_and_are_gone_afterwards():
    with competing(2) as pids:
        before = [ticks(pid) for pid in pids]
        while not all(ticks(pid) > at_first + 2 for pid, at_first in zip(pids, before)):
            time.sleep(0.01)
    assert [ticks(pid) for pid in pids] == [None, None]
    with pytest.raises(KeyboardInterrupt), competing(1) as pids:
        raise KeyboardInterrupt
    assert ticks(pids[0]) is None


def test_a_competitor_does_not_outlive_a_process_that_is_killed():
    code = (
        "import os, signal\nfrom gluonlab.bench.training_job import competing\n"
        "with competing(1) as [pid]:\n    print(pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": PACKAGES},
        stdout=subprocess.PIPE,
    )
    assert done.returncode == -signal.SIGKILL
    pid = int(done.stdout)
    while ticks(pid) is not None and not gone(pid):
        time.sleep(0.01)


PACKAGES = str(REPOSITORY)


@pytest.mark.parametrize(("name", "looks"), [("openmp", None), ("passive", "0"), ("77", "77")])
def test_openmp_itself_confirms_the_settings(name, looks, tmp_path):
    """``openmp`` is libgomp without any setting: it says the same."""
    code = "import ctypes; ctypes.CDLL('libgomp.so.1')"
    chosen = threads.settings([77])[name]

    def said(variables):
        environment = {**child_environment(variables, tmp_path), "OMP_DISPLAY_ENV": "verbose"}
        text = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, encoding="utf-8"
        ).stderr
        return [
            line.split("=")[1].strip(" '") for line in text.splitlines() if "GOMP_SPINCOUNT" in line
        ]

    assert said(chosen) == (said({}) if looks is None else [looks])


def test_every_setting_is_measured_alone_and_beside_with_all_cores():
    found = threads.subjects([5], "mlp")
    assert [one.name for one in found] == [
        f"mlp {name} {company}"
        for name in ("gluonlab", "openmp", "passive", "5")
        for company in ("quiet", "beside")
    ]
    assert {one.options["threads"] for one in found} == {resources.available_cores()}
    assert [one.options["competitors"] for one in found] == [0, 1] * 4
    assert found[0].variables == {}  # gluonlab's own setting is what gluonlab does
    pairs = [one for one in threads.subjects([], "lenet") if one.job == "dist"]
    assert [one.options.get("threads") for one in pairs] == [None, resources.available_cores()]
    assert [one.name for one in threads.ours()][:3] == [
        "lenet gluonlab quiet",
        "lenet gluonlab beside",
        "lenet sharing quiet",
    ]


def test_rows_have_medians_and_the_rounds_ratios():
    found = image_rates(
        [
            measured("lenet gluonlab quiet", 10, [1.0, 2.0, 4.0]),
            measured("lenet openmp quiet", 10, [1.0, 6.0, 4.0]),
            measured("lenet openmp beside", 10, [], reason="no answer within 60 s"),
            measured("lenet sharing quiet", 10, [0.1]),
        ]
    )
    ours, reference, sharing = threads.make_rows(found)
    assert (ours.rates, ours.ratios) == ({"lenet quiet": 640}, {"lenet quiet": 1})
    assert (reference.rates, reference.reason) == ({"lenet quiet": 320}, "no answer within 60 s")
    assert (sharing.rates, sharing.ratios) == ({"lenet quiet": 12800}, {})
    text = threads.table([ours, reference, sharing], rounds=3)
    assert max(map(len, text.split("\n"))) <= 81 and "no answer within 60 s" in text


def test_the_command_measures_one_network_after_the_other(ended, monkeypatch, tmp_path):
    asked = []

    def measure(subjects, rounds, restart_every):
        asked.append([one.name for one in subjects])
        return [Measurement(one, [{"seconds": 1.0}] * rounds, 1) for one in subjects]

    monkeypatch.setattr(threads, "measure", measure)
    monkeypatch.setattr("gluonlab.bench.harness.machine.Others.cores", lambda self: 0.0)
    status, out, err = ended(main, "threads", "--rounds", "2", "--spin-counts", "50, 7", "--json")
    assert (status, err) == (0, "")
    record = json.loads(out)
    assert [one["name"] for one in record["series"]] == [name for names in asked for name in names]
    assert {names[0].split()[0] for names in asked} == set(
        threads.NETWORKS
    ) and "mlp 7 beside" in asked[1]
    assert record["series"][0]["values"] == [128.0, 128.0] and record["options"] == {
        "spin-counts": "50, 7"
    }
    status, _, err = ended(main, "threads", "--spin-counts", "many")
    assert status == 2 and err.startswith("error: --spin-counts many") and err.count("\n") == 1


@pytest.mark.long
def test_two_workers_of_a_parameter_server_train_and_leave_nothing_running(tmp_path):
    [sharing, _] = [one for one in threads.subjects([], "lenet") if one.job == "dist"]
    worker = Worker(
        sharing.command(), child_environment(sharing.variables, tmp_path), tmp_path / "log"
    )
    try:
        worker.answer(240)
        assert worker.ask({"steps": 2}, 240)["seconds"] > 0
        started = host.descendants(
            worker.pid,
            {pid: parent for pid, (_, parent, _) in host._processes(Path("/proc")).items()},
        )
        assert len(started) >= 4  # the worker, its scheduler, its server, the other worker
    finally:
        worker.end(grace_s=2)
    assert not started & set(host._processes(Path("/proc")))
