"""The table of bench host has what its workers report, and these report what they have done."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import host, host_jobs
from benchmarks.host_jobs import LENET, conv, dense, training_flops
from benchmarks.peers import images_and_labels
from gluonlab import load_dataset
from gluonlab.bench.harness.record import Record, Series
from gluonlab.bench.harness.rounds import Measurement
from gluonlab.bench.harness.workers import Worker, child_environment
from gluonlab.bench.tasks import TASKS


def test_a_host_worker_reports_every_column(tmp_path):
    subject = next(subject for subject in host.subjects() if subject.name == "host-gluonlab-2")
    worker = Worker(
        subject.command(), child_environment(subject.variables, tmp_path), tmp_path / "log"
    )
    try:
        worker.answer(240)
        found = host.series([Measurement(subject, [worker.ask({"steps": 8}, 240)])])
    finally:
        worker.end(grace_s=2)
    [row] = host.make_rows(found)
    assert (row.label, row.devices, {one.unit for one in found}) == ("gluonlab", 2, {"us"})
    assert set(row.microseconds) == set(host.COLUMNS) and min(row.microseconds.values()) > 0
    assert max(map(len, host.table([row]).split("\n"))) <= 80


def test_the_verdict_is_the_share_of_gluons_loop_in_the_same_rounds():
    rounds = {"gluonlab-2": (10.0, 30.0, 13.0), "gluon-2": (100.0, 200.0, 100.0)}
    series = [Series(f"host-{name} total", name, "us", each) for name, each in rounds.items()]
    record = Record("host", {}, 3, "", {}, tuple(series))
    assert [line.partition(": ")[2] for line in host.verdicts(record)] == [
        "0.13 reached", "not measured", "not measured",
    ]  # fmt: skip
    dearer = Series("host-gluonlab-2 total", "", "us", (14.0, 40.0, 13.0))
    record = replace(record, series=(dearer, series[1]))
    assert host.verdicts(record)[0].endswith("0.14 not reached")


@pytest.mark.cpu_only("what a core computes is measured")
def test_all_that_was_computed_at_the_speeds_reported_takes_the_seconds_reported():
    job = host_jobs.make_efficiency()
    for steps, products in ((1, 1), (3, 1), (4, 2)):
        found = job(steps)
        # an element of a product of 1024x1024 is 1024 multiplications and as many additions
        multiplied = products * 1024**2 * (1024 + 1024)
        # LeNet on batches of 64; the operations for an image are counted below
        trained = steps * 64 * 13_258_800
        seconds = (multiplied / found["sgemm"] + trained / found["lenet"]) / 1e9
        assert found["seconds"] == pytest.approx(seconds) and min(found.values()) > 0


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
