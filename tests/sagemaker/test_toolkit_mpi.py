"""training/horovod.json under AWS's own training toolkit: Open MPI starts two processes of one
host, and Horovod adds up over MPI, as in AWS's image. make check-sagemaker-mpi compiles that.

The second host of the request is left out: the toolkit reaches it by ssh, at the image's own keys.
"""

import json

import pytest
from aws_machine import Machine
from made_up_notebook import SAGEMAKER
from support.job_charts import ACCURACY, LOSS, SPEED, chart_values, metric_regexes

SMALL = {
    "dataset": '"digits"', "model": '"mlp"', "epochs": "2", "lr": "0.1", "optimizer": '"sgd"',
    "threads": "1", "sagemaker_mpi_num_of_processes_per_host": "2",
}  # fmt: skip
# The toolkit starts an sshd and preloads a library that reads the host's name below /opt/ml: both
# stay in namespaces that end with the job.
ALONE = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
PLACE = (
    'set -e; ip link set lo up; mount -t tmpfs none /opt; mkdir /opt/ml; mount --bind "$1" /opt/ml; shift; exec "$@"'
)


@pytest.mark.mpi
def test_the_job_of_horovod_runs_under_the_toolkit(tmp_path, monkeypatch):
    import horovod.mxnet as hvd

    assert hvd.mpi_built() and not hvd.gloo_built()  # what AWS's image sums with
    monkeypatch.setattr("aws_machine.LIMIT_S", 600)  # it waits 30 s after the program's end
    machine = Machine(tmp_path / "machine", "horovod", SMALL, interface="lo")
    machine.entry = [*ALONE, "sh", "-c", PLACE, "sh", str(machine.root), *machine.entry]
    machine.start()
    assert machine.wait_for_exit() == 0, machine.read_log()
    output = machine.read_log()
    assert "mpirun --host localhost:2 -np 2" in output
    # rank 0 alone evaluates, once an epoch
    drawn = chart_values(output, metric_regexes(SAGEMAKER / "training" / "horovod.json"))
    assert {name: len(numbers) for name, numbers in drawn.items()} == {LOSS: 2, SPEED: 2, ACCURACY: 2}
    config = json.loads((machine.run / "config.json").read_text(encoding="utf-8"))
    assert config["settings"]["processes"] == 2
    assert (machine.root / "output" / "success").is_file()
