"""A group on this host: all the processes that it has, each where the others look for it."""

import json
import os
import sys
from collections import Counter
from unittest.mock import patch

import pytest
from support.waiting import wait_until

from gluonlab.bench.harness import worker_processes as workers
from gluonlab.bench.harness.worker_processes import start_group

# Stands in for Python: tells its environment and its arguments, and a worker what it is to do.
TELLS = """#!/bin/sh
{ env; echo "WORDS=$*"; } > "$TOLD/$$.new"
[ -z "$GLUONLAB_RANK" ] || { read -r order; echo "ORDER=$order" >> "$TOLD/$$.new"; }
mv "$TOLD/$$.new" "$TOLD/$$"
"""


@pytest.fixture
def read_variables(tmp_path, monkeypatch):
    """Return the variables of ``count`` processes, once all have written them:
    ``read_variables(count)``. The processes end with the test.
    """
    folder, ends = tmp_path / "told", []
    folder.mkdir()
    python = tmp_path / "python"
    python.write_text(TELLS)
    python.chmod(0o755)

    def written_files():
        return [each for each in folder.iterdir() if not each.suffix]

    def of(count):
        wait_until(lambda: len(written_files()) == count)
        lines = [each.read_text().splitlines() for each in written_files()]
        return [dict(line.split("=", 1) for line in own if "=" in line) for own in lines]

    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(workers.atexit, "register", ends.append)
    with patch.dict(os.environ, {"TOLD": str(folder)}):
        yield of
    for end in ends:
        end()


@pytest.mark.parametrize("size", [1, 3])
def test_a_group_of_servers_has_every_rank_once_and_this_process_is_the_first(read_variables, size):
    others = start_group("dist_sync", size, "sum", {"bytes": 8})
    for number, other in enumerate(others):
        other.send(steps=number)
    processes = [dict(os.environ), *read_variables(len(others) + 2)]
    assert Counter(each["DMLC_ROLE"] for each in processes) == {**{"scheduler": 1, "server": 1}, "worker": size}
    workers = [each for each in processes if each["DMLC_ROLE"] == "worker"]
    assert workers[0]["GLUONLAB_RANK"] == "0" and len(others) == size - 1
    assert sorted(int(each["GLUONLAB_RANK"]) for each in workers) == list(range(size))
    for each in processes:
        assert (each["DMLC_NUM_WORKER"], each["DMLC_NUM_SERVER"]) == (str(size), "1")
    [(address, port)] = {(p["DMLC_PS_ROOT_URI"], p["DMLC_PS_ROOT_PORT"]) for p in processes}
    assert address == "127.0.0.1" and 1024 <= int(port) < 2**16
    # the others do the same job, and hear what they are to do
    words = [each["WORDS"] for each in workers[1:]]
    assert words == ['-m gluonlab.bench.worker_main sum {"bytes": 8}'] * (size - 1)
    orders = sorted(json.loads(each["ORDER"])["steps"] for each in workers[1:])
    assert orders == list(range(size - 1))


def test_a_group_of_horovod_has_every_rank_once_at_one_rendezvous(read_variables):
    start_group("horovod", 3, "sum", {})[0].send(steps=1)
    rendezvous, second = sorted(read_variables(2), key=lambda each: "HOROVOD_RANK" in each)
    port = os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]
    assert rendezvous["WORDS"] == f"-m gluonlab.launch.server_process rendezvous 127.0.0.1 {port} localhost:3"
    assert [os.environ["HOROVOD_RANK"], second["HOROVOD_RANK"]] == ["0", "1"]
    assert second["HOROVOD_GLOO_RENDEZVOUS_PORT"] == port
    assert second["HOROVOD_SIZE"] == os.environ["HOROVOD_SIZE"] == "3"
