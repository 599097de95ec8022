"""A process group on this host: its processes, and the address in their environments."""

import json
import os
import sys
from collections import Counter
from unittest.mock import patch

import pytest
from support.waiting import wait_until

from gluonlab.bench.harness import worker_processes as workers
from gluonlab.bench.harness.worker_processes import start_group

# Replaces Python: writes its environment and its arguments, and a worker its order.
REPORT_SCRIPT = """#!/bin/sh
{ env; echo "WORDS=$*"; } > "$TOLD/$$.new"
[ -z "$GLUONLAB_RANK" ] || { read -r order; echo "ORDER=$order" >> "$TOLD/$$.new"; }
mv "$TOLD/$$.new" "$TOLD/$$"
"""


@pytest.fixture
def read_variables(tmp_path, monkeypatch):
    """Return ``read_variables(count)``, which waits for the variables of as many processes."""
    folder, exit_calls, python = tmp_path / "told", [], tmp_path / "python"
    folder.mkdir()
    python.write_text(REPORT_SCRIPT)
    python.chmod(0o755)

    def list_files():
        return [file for file in folder.iterdir() if not file.suffix]  # other files are not complete

    def read(count):
        wait_until(lambda: len(list_files()) == count)
        texts = [file.read_text() for file in list_files()]
        return [dict(line.split("=", 1) for line in text.splitlines() if "=" in line) for text in texts]

    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(workers.atexit, "register", exit_calls.append)
    with patch.dict(os.environ, {"TOLD": str(folder)}):
        yield read
    for call in exit_calls:
        call()


@pytest.mark.parametrize("size", [1, 3])
def test_a_group_of_servers_has_every_rank_once_and_this_process_is_the_first(read_variables, size):
    others = start_group("dist_sync", size, "sum", {"bytes": 8})
    for number, other in enumerate(others):
        other.send(steps=number)
    processes = [dict(os.environ), *read_variables(len(others) + 2)]
    assert Counter(process["DMLC_ROLE"] for process in processes) == {**{"scheduler": 1, "server": 1}, "worker": size}
    workers = [process for process in processes if process["DMLC_ROLE"] == "worker"]
    assert workers[0]["GLUONLAB_RANK"] == "0" and len(others) == size - 1
    assert sorted(int(process["GLUONLAB_RANK"]) for process in workers) == list(range(size))
    for process in processes:
        assert (process["DMLC_NUM_WORKER"], process["DMLC_NUM_SERVER"]) == (str(size), "1")
    [(address, port)] = {(p["DMLC_PS_ROOT_URI"], p["DMLC_PS_ROOT_PORT"]) for p in processes}
    assert address == "127.0.0.1" and 1024 <= int(port) < 2**16
    # the others do the same job, and get their orders
    words = [process["WORDS"] for process in workers[1:]]
    assert words == ['-m gluonlab.bench.worker_main sum {"bytes": 8}'] * (size - 1)
    orders = sorted(json.loads(process["ORDER"])["steps"] for process in workers[1:])
    assert orders == list(range(size - 1))


def test_a_group_of_horovod_has_every_rank_once_at_one_rendezvous(read_variables):
    start_group("horovod", 3, "sum", {})[0].send(steps=1)
    rendezvous, second = sorted(read_variables(2), key=lambda process: "HOROVOD_RANK" in process)
    port = os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]
    assert rendezvous["WORDS"] == f"-m gluonlab.launch.server_process rendezvous 127.0.0.1 {port} localhost:3"
    assert [os.environ["HOROVOD_RANK"], second["HOROVOD_RANK"]] == ["0", "1"]
    assert second["HOROVOD_GLOO_RENDEZVOUS_PORT"] == port
    assert second["HOROVOD_SIZE"] == os.environ["HOROVOD_SIZE"] == "3"
