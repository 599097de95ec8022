"""Allreduce over real processes, in the table beside those of one process."""

import json

import pytest

from gluonlab.bench.allreduce.command_output import measure_algorithms
from gluonlab.bench.allreduce.measure_allreduce import AllreduceBuffers
from gluonlab.bench.harness.machine_info import OtherProcessLoad
from gluonlab.devices import devices

HOROVOD = pytest.mark.horovod
SERVERS = pytest.param("dist_sync", marks=pytest.mark.long)


@pytest.mark.parametrize("backend", [SERVERS, pytest.param("horovod", marks=HOROVOD)])
def test_processes_sum_exactly_and_stand_in_the_table(backend, monkeypatch):
    monkeypatch.setattr(OtherProcessLoad, "busy_cores", lambda self: 0.0)  # a busy machine is another test
    words = {"devices": "cpu*2", "bytes": "1KiB,4KiB", "algorithms": "ring", "rounds": "2"}
    text, failure = measure_algorithms({**words, "arrays": "3", "processes": backend, "json": True})
    rows = json.loads(text)["rows"]
    label = f"{backend}, processes"
    assert [row["algorithm"] for row in rows] == [label, "ring"] * 2
    assert failure is None and {row["error"] for row in rows} == {0.0}
    served = [row for row in rows if row["algorithm"] == label]
    assert all(row["time_us"] > 0 and row["predicted_us"] is None for row in served)


def test_a_process_that_kept_its_own_numbers_would_be_noticed():
    """What each contributes to the same sum differs, so none has it by itself."""
    buffers_by_rank = [
        AllreduceBuffers(devices("cpu"), 1000, "float32", 2, first_rank=rank, world_size=3) for rank in range(3)
    ]
    assert [buffers.check(lambda: None) > 0 for buffers in buffers_by_rank] == [True] * 3
