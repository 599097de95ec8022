"""The table of bench host has what its workers report."""

from gluonlab.bench.harness.environment import child_environment
from gluonlab.bench.harness.process import Worker
from gluonlab.bench.harness.rounds import Measurement
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
