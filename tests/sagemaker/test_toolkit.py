"""Requests of training/ under AWS's own training toolkit; test_spot.py has the spot job.

test_toolkit_mpi.py has horovod.json, which needs Open MPI and Horovod.
"""

import json

import pytest
from aws_machine import Machine

SMALL = {
    "gpus": "1", "dataset": '"digits"', "model": '"mlp"', "epochs": "2", "lr": "0.1",
    "optimizer": '"sgd"', "threads": "1",
}  # fmt: skip


@pytest.mark.long
def test_the_job_on_one_host_runs_under_the_toolkit(tmp_path):
    machine = Machine(tmp_path, "one-host", SMALL)
    machine.start()
    assert machine.wait_for_exit() == 0, machine.read_log()
    assert (machine.run / "parameters.params").is_file()
    assert (tmp_path / "output" / "success").is_file()


@pytest.mark.long
def test_the_job_of_the_parameter_server_runs_under_the_toolkit_of_two_hosts(tmp_path):
    """The toolkit of the first host starts the scheduler, at its own port, 8000."""
    hosts = ("localhost", "127.0.0.1")
    machines = [
        Machine(tmp_path / str(rank), "parameter-server", SMALL, hosts=hosts, host=host)
        for rank, host in enumerate(hosts)
    ]
    started = []
    try:
        for machine in machines:
            machine.start()
            started.append(machine)
        statuses = [machine.wait_for_exit() for machine in machines]
    finally:
        for machine in started:
            machine.kill()
    output = [machine.read_log() for machine in machines]
    assert statuses == [0, 0], output
    [run] = [machine.run for machine in machines if (machine.run / "config.json").is_file()]
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    assert config["settings"]["processes"] == 2
    assert sum("val accuracy" in text for text in output) == 1  # rank 0 alone evaluates
