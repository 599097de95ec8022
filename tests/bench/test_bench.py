"""The benchmarks: that they compare the same work, count correctly, and outlive their workers."""

import importlib.util
import os
import signal
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon, nd
from support.devices import devices
from support.processes import REPOSITORY

from gluonlab import load_dataset
from gluonlab.bench.__main__ import main
from gluonlab.bench.harness import rounds
from gluonlab.bench.harness.environment import child_environment
from gluonlab.bench.harness.machine import Others, busy_seconds
from gluonlab.bench.harness.process import Worker, WorkerError
from gluonlab.bench.harness.record import Series, read_record
from gluonlab.bench.harness.rounds import Measurement, Subject, measure, rotated
from gluonlab.bench.host import table as host
from gluonlab.bench.peers import table as peers
from gluonlab.bench.peers.classic_loop import lenet, train_batch
from gluonlab.bench.peers.work import LENET, TASKS, conv, dense, images_and_labels, training_flops
from gluonlab.errors import GluonlabWarning
from gluonlab.kvstores import make_kvstore
from gluonlab.models import get_model
from gluonlab.parallel.data.step import DataParallelStep
from gluonlab.update.trainer import BucketedTrainer

TASK, TARGETS = peers.COMPARISONS["lenet"].task, peers.COMPARISONS["lenet"].targets
REFERENCE = peers.lenet()[0].name
ROOT = REPOSITORY

# Speaks the protocol of gluonlab.bench.worker, a thousand steps a second, until it misbehaves as it
# is told.
FAKE = """
import json, os, subprocess, sys, time
how, folder = sys.argv[1:]
own = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
with open(os.path.join(folder, "pids"), "a+") as file:
    print(os.getpid(), own.pid, file=file, flush=True)
    slowness = file.seek(0) or len(file.readlines()) if how == "lucky" else 1  # for as long as it lives
print('{"ready": true}', flush=True)
for number, line in enumerate(sys.stdin):
    if number == 3 and how == "hangs":
        time.sleep(60)
    if number == 3 and how == "dies":
        sys.exit("out of luck")
    if number == 3 and how == "reports":
        print('{"error": "ValueError: too large"}', flush=True)
    print(json.dumps({"seconds": json.loads(line)["steps"] / 1000 * slowness}), flush=True)
"""


@dataclass(frozen=True)
class FakeSubject(Subject):
    folder: str = ""

    def command(self):
        return [sys.executable, "-c", FAKE, self.name, self.folder]


def fakes(folder, *names):
    return [FakeSubject(name, name, "fake", folder=str(folder)) for name in names]


def running(folder):
    """Those of the fakes' processes that have not ended (a zombie has)."""
    pids = (folder / "pids").read_text().split()
    time.sleep(0.1)  # what init has to clear away
    states = [Path(f"/proc/{pid}/stat") for pid in pids]
    return [stat for stat in states if stat.exists() and ") Z " not in stat.read_text()]


def test_a_worker_that_hangs_or_dies_is_a_row_with_a_reason_and_leaves_nothing_running(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(rounds, "ROUND_TIMEOUT_S", 1.0)
    subjects = [
        *fakes(tmp_path, "works", "hangs", "dies", "reports"),
        Subject("absent", "absent", "none", missing="not here"),
    ]
    works, *broken = measure(subjects, rounds=3)
    assert works.reason is None and works.steps == 700 and works.column("seconds") == [0.7] * 3
    assert [measurement.reason for measurement in broken] == [
        "no answer within 1 s",
        "ended with status 1: out of luck",
        "ValueError: too large",
        "not here",
    ]
    assert running(tmp_path) == []
    table = peers.table(TASK, rows_of([works, *broken]), rounds=3)
    assert "out of luck" in table and max(map(len, table.split("\n"))) <= 80


@pytest.mark.parametrize(
    ("restart_every", "seconds"),
    [
        (None, [0.7] * 5),
        (5, [0.7] * 5),
        (2, [0.7, 0.7, 1.4, 1.4, 2.1]),
        (1, [0.7, 1.4, 2.1, 2.8, 3.5]),
    ],
)
def test_new_processes_share_the_rounds_and_the_old_ones_are_gone(tmp_path, restart_every, seconds):
    """Each process is as many times slower as there were processes before it; all do the steps that
    the first one did.
    """
    [found] = measure(fakes(tmp_path, "lucky"), rounds=5, restart_every=restart_every)
    assert (found.reason, found.steps) == (None, 700)
    assert found.column("seconds") == pytest.approx(seconds)
    assert running(tmp_path) == []


def test_a_worker_that_fails_once_is_not_started_again(tmp_path):
    works, dies = measure(fakes(tmp_path, "works", "dies"), rounds=4, restart_every=3)
    assert (
        dies.reason == "ended with status 1: out of luck" and works.column("seconds") == [0.7] * 4
    )
    assert len((tmp_path / "pids").read_text().splitlines()) == 3


def test_ctrl_c_leaves_no_worker_running(tmp_path, monkeypatch):
    def interrupted(self, number, bar):
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(rounds._Bench, "round", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure(fakes(tmp_path, "works", "works-too"), rounds=3)
    assert running(tmp_path) == []


def test_the_rounds_begin_with_another_row_each():
    assert [rotated("abc", number) for number in range(4)] == [
        list("abc"),
        list("bca"),
        list("cab"),
        list("abc"),
    ]


def rows_of(measurements):
    return peers.make_rows(peers.series(TASK, measurements))


def measured(name, steps, seconds):
    return Measurement(Subject(name, name, "job"), [{"seconds": s} for s in seconds], steps)


def test_ratios_are_medians_of_each_rounds_ratio():
    # 128 * 10 images in 1, 2, 4 s; the peer does half as many steps in 1, 4, 2 s
    rows = rows_of([measured(REFERENCE, 10, [1, 2, 4]), measured("classic", 5, [1, 4, 2])])
    assert (rows[0].images_per_second, rows[0].lowest, rows[0].highest, rows[0].ratio) == (
        640,
        320,
        1280,
        1,
    )
    assert (rows[1].images_per_second, rows[1].lowest, rows[1].highest) == (320, 160, 640)
    assert rows[1].ratio == 2  # the median of 1280/640, 640/160 and 320/320
    assert peers.verdicts(TARGETS, rows) == [
        "2 devices >= 2x the classic loop: 2.00x reached",
        "2 devices >= 1.15x the best PyTorch row: not measured",
        "2 devices >= 1.8x gluonlab 1 device 1 thread: not measured",
    ]


def test_the_best_pytorch_row_is_the_one_that_counts():
    rows = [
        peers.Row(name, name, ratio=ratio)
        for name, ratio in [("torch-eager", 1.3), ("torch-ddp", 1.1), ("classic", 1.9)]
    ]
    assert peers.verdicts(TARGETS, rows)[0].endswith("1.90x not reached")
    assert peers.verdicts(TARGETS, rows)[1].endswith("1.10x not reached")


def test_without_torch_its_rows_say_how_to_get_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    missing = [Measurement(subject, reason=subject.missing) for subject in peers.lenet()]
    table = peers.table(TASK, rows_of(missing), rounds=1).split("\n")
    assert (
        sum(
            line.endswith("torch is not installed: pip install 'gluonlab[bench]'") for line in table
        )
        == 4
    )
    assert max(map(len, table)) <= 80


def test_the_flops_of_training_are_those_counted_by_hand():
    # forward, gradient of the weights
    assert training_flops([conv(1, 2, 3, side_out=4, data_gradient=False)]) == 2 * 288 * 2
    assert training_flops([dense(3, 5)]) == 2 * 15 * 3  # and of the input
    forward = 2 * (26 * 26 * 20 * 9 + 9 * 9 * 50 * 20 * 25 + 800 * 128 + 128 * 10)
    assert training_flops(LENET) == 3 * forward - 2 * 26 * 26 * 20 * 9 == 13_258_800


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_all_rows_train_on_the_same_images(task):
    images, labels = images_and_labels(task)
    train = load_dataset("synthetic", samples=task.samples, shape=task.shape).train
    assert (
        np.array_equal(images, train.images.astype("float32") / np.float32(255))
        and images.dtype == np.float32
    )
    assert np.array_equal(labels, train.labels) and len(set(labels)) == 10


def test_the_classic_loop_and_gluonlabs_step_make_the_same_parameters():
    ctxs = devices(2, threads=1)
    random = np.random.RandomState(1)
    batches = [
        mx.io.DataBatch(
            [nd.array(random.rand(16, 1, 28, 28))], [nd.array(random.randint(0, 10, 16))]
        )
        for _ in range(3)
    ]
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    classic, ours = lenet(), get_model("lenet", 10)
    for net in (classic, ours):
        net.initialize(mx.init.Xavier(), ctx=ctxs)
        net(batches[0].data[0][:1].as_in_context(ctxs[0])).wait_to_read()  # the shapes
    pairs = list(zip(classic.collect_params().values(), ours.collect_params().values()))
    for theirs, mine in pairs:
        mine.set_data(theirs.data(ctxs[0]))

    sgd = {"learning_rate": 0.1}
    trainer = gluon.Trainer(classic.collect_params(), "sgd", sgd, kvstore="local")
    step = DataParallelStep(
        ours,
        loss,
        BucketedTrainer(ours.collect_params(), "sgd", sgd, make_kvstore("device")),
        ctxs,
        lambda F, x: x,
    )
    for batch in batches:
        train_batch(batch, ctxs, classic, loss, trainer)
        step(
            *(
                gluon.utils.split_and_load(array, ctxs)
                for array in (batch.data[0], batch.label[0].astype("int32"))
            )
        )
    for theirs, mine in pairs:
        want, got = theirs.data(ctxs[1]).asnumpy(), mine.data(ctxs[1]).asnumpy()
        assert np.linalg.norm(got - want) <= 1e-5 * np.linalg.norm(want)


def test_a_host_worker_reports_every_column(tmp_path):
    subject = next(subject for subject in host.subjects() if subject.name == "host-gluonlab-2")
    worker = Worker(
        subject.command(), child_environment(subject.variables, tmp_path), tmp_path / "log"
    )
    try:
        worker.answer(60)
        found = host.series([Measurement(subject, [worker.ask({"steps": 8}, 60)])])
    finally:
        worker.end(grace_s=2)
    [row] = host.make_report(found).rows
    assert (row.label, row.devices, {one.unit for one in found}) == ("gluonlab", 2, {"us"})
    assert set(row.microseconds) == set(host.COLUMNS) and min(row.microseconds.values()) > 0
    assert max(map(len, host.table([row]).split("\n"))) <= 80
    assert "not measured" in host.verdict([row])


@pytest.mark.torch
def test_pytorch_trains_alone_and_as_two_processes(tmp_path):
    for name in ("torch-eager", "torch-ddp"):
        subject = next(subject for subject in peers.lenet() if subject.name == name)
        worker = Worker(
            subject.command(), child_environment(subject.variables, tmp_path), tmp_path / "log"
        )
        try:
            worker.answer(90)
            # log(10) for ten classes that nothing tells apart
            assert 2.2 < worker.ask({"steps": 2}, 60)["loss"] < 2.5
        finally:
            worker.end(grace_s=2)
        with pytest.raises(ProcessLookupError):
            os.killpg(worker.pid, 0)


def test_an_unknown_job_is_reported(tmp_path):
    command = [sys.executable, "-m", "gluonlab.bench.worker", "nonesuch", "{}"]
    worker = Worker(command, child_environment({}, tmp_path), tmp_path / "log")
    with pytest.raises(WorkerError, match="KeyError: 'nonesuch'"):
        worker.answer(30)


def test_what_tunes_an_engine_does_not_reach_the_workers_by_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    environment = child_environment({"MXNET_CPU_TEMP_COPY": "4"}, tmp_path)
    assert "OMP_NUM_THREADS" not in environment
    assert [name for name in environment if name.startswith("MXNET_")] == ["MXNET_CPU_TEMP_COPY"]


def test_the_command_lists_its_measurements_and_refuses_others(capsys):
    main([])
    listed = capsys.readouterr().out
    assert "  peers " in listed and "  host " in listed
    for args, message in (
        (["peer"], "did you mean 'peers'?"),
        (["peers", "--rounds", "0"], "--rounds 0: give a whole number"),
        (["peers", "--network", "resnet"], "unknown network 'resnet'"),
        (
            ["host", "--restart-every", "2"],
            "--restart-every 2 is for --beside DIR: give both, or neither",
        ),
        (
            ["host", "--beside", str(ROOT), "--restart-every", "0"],
            "--restart-every 0: give a whole number",
        ),
    ):
        with pytest.raises(SystemExit) as ended:
            main(args)
        error = capsys.readouterr().err
        assert (
            ended.value.code == 2
            and message in error
            and error.startswith("error: ")
            and error.count("\n") == 1
        )


def test_other_processes_are_counted_from_the_ticks_of_proc_stat():
    # all but idle and iowait
    assert busy_seconds("cpu  100 20 30 800 10 1 2 3 0 0\ncpu0 1 2 3", ticks_per_second=100) == 1.56


def test_a_table_from_a_busy_machine_comes_with_a_warning(capsys, monkeypatch):
    monkeypatch.setattr(
        "gluonlab.bench.__main__.measure",
        lambda subjects, rounds: [measured(REFERENCE, 10, [1.0] * rounds)],
    )
    monkeypatch.setattr(Others, "cores", lambda self: 1.25)
    with warnings.catch_warnings(), pytest.raises(SystemExit) as ended:
        warnings.simplefilter("always", GluonlabWarning)
        main(["peers"])
    assert (
        ended.value.code == 0 and "warning: other processes kept 1.2 of " in capsys.readouterr().err
    )


def test_json_is_a_record_alone_on_standard_output_and_out_writes_the_same(
    capsys, monkeypatch, tmp_path
):
    monkeypatch.setattr(Others, "cores", lambda self: 0.0)
    monkeypatch.setattr(
        "gluonlab.bench.__main__.measure",
        lambda subjects, rounds: [measured(REFERENCE, 10, [1.0] * rounds)],
    )
    with pytest.raises(SystemExit) as ended:
        main(["peers", "--rounds", "2", "--json", "--out", str(tmp_path / "record.json")])
    printed = capsys.readouterr().out
    assert ended.value.code == 0 and printed == (tmp_path / "record.json").read_text()
    record = read_record(tmp_path / "record.json")
    assert (record.bench, dict(record.options), record.rounds) == ("peers", {"network": "lenet"}, 2)
    assert record.series == (Series(REFERENCE, REFERENCE, "images/s", (1280.0, 1280.0)),)
    assert set(record.about) == {
        "gluonlab", "commit", "cpu", "cores", "versions", "began", "seconds", "load", "others"
    }  # fmt: skip
    flavours = {"mxnet", "mxnet-cu112"}
    assert {"python", "numpy"} <= set(record.about["versions"]) and flavours & set(
        record.about["versions"]
    )
