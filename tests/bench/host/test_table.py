"""The table of bench host has what its workers report, and these report what they have done."""

import pytest

from gluonlab.bench.harness.environment import child_environment
from gluonlab.bench.harness.process import Worker
from gluonlab.bench.harness.rounds import Measurement
from gluonlab.bench.host import efficiency
from gluonlab.bench.host import table as host


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
    assert "not measured" in host.verdict([row])


@pytest.mark.cpu_only("what a core computes is measured")
def test_all_that_was_computed_at_the_speeds_reported_takes_the_seconds_reported():
    job = efficiency.make()
    for steps, products in ((1, 1), (3, 1), (4, 2)):
        found = job(steps)
        # an element of a product of 1024x1024 is 1024 multiplications and as many additions
        multiplied = products * 1024**2 * (1024 + 1024)
        # LeNet on batches of 64; bench/peers/test_work.py counts the operations for an image
        trained = steps * 64 * 13_258_800
        seconds = (multiplied / found["sgemm"] + trained / found["lenet"]) / 1e9
        assert found["seconds"] == pytest.approx(seconds) and min(found.values()) > 0
