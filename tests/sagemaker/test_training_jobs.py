"""The programs of training/*.json, called as SageMaker's images call them."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from made_up_notebook import SAGEMAKER
from support.job_charts import ACCURACY, LOSS, SPEED, chart_values, metric_regexes
from support.run_files import read_metrics
from support.waiting import wait_until

REPOSITORY = SAGEMAKER.parent
SMALL = {"dataset": "digits", "model": "mlp", "epochs": 1, "lr": 0.1, "optimizer": "sgd", "momentum": 0.9}


def command(name, **instead):
    """Return the image's command for a job: python -m PROGRAM, with hyperparameters as options.

    A hyperparameter of None is left out.
    """
    request = json.loads((SAGEMAKER / "training" / f"{name}.json").read_text(encoding="utf-8"))
    values = {key: json.loads(text) for key, text in request["HyperParameters"].items()}
    options = {key: value for key, value in values.items() if not key.startswith("sagemaker_")}
    options.update(instead)
    given = {key: value for key, value in options.items() if value is not None}
    return [sys.executable, "-m", values["sagemaker_program"], *as_words(given)]


def as_words(options):
    return [word for key, value in options.items() for word in (f"--{key}", str(value))]


def environment(**more):
    theirs = ("DMLC_", "OMP_", "MXNET_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(theirs)}
    return {**kept, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", **more}


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def run(words, **more):
    return subprocess.run(words, env=environment(**more), capture_output=True, encoding="utf-8", timeout=300)


def check_charts(name, output, folder):
    """Check that AWS's charts of a job's output show the metrics of each epoch once."""
    epochs = [line for line in read_metrics(folder) if line["kind"] == "epoch"]
    assert len(epochs) == SMALL["epochs"]
    speeds = [line["images"] / line["training_seconds"] for line in epochs]
    assert chart_values(output, metric_regexes(SAGEMAKER / "training" / f"{name}.json")) == {
        LOSS: pytest.approx([line["loss"] for line in epochs], abs=1e-4),
        SPEED: pytest.approx(speeds, abs=0.5),
        ACCURACY: pytest.approx([line["val_accuracy"] for line in epochs], abs=1e-4),
    }


def parameters(folder):
    from mxnet import nd

    arrays = nd.load(str(folder / "parameters.params"))
    return {name: array.asnumpy() for name, array in arrays.items()}


@contextmanager
def cluster(servers):
    """Scheduler and servers for two workers: what starts another process of a role, and the list of
    all.
    """
    shared = {
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": str(servers),
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
    }
    started = []

    def start(role, words):
        started.append(
            subprocess.Popen(
                words, env=environment(DMLC_ROLE=role, **shared), stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, encoding="utf-8",
            )
        )  # fmt: skip
        return started[-1]

    try:
        for role in ["scheduler"] + ["server"] * servers:
            start(role, [sys.executable, "-c", "import gluonlab, mxnet"])
        yield start, started
    finally:
        for process in started:
            process.kill()


def test_two_workers_of_the_parameter_server_train_as_one_process_does(tmp_path):
    """1,437 images in batches of 2 x 2 x 37: the last one is ragged.

    The reference is python -m gluonlab.run on one device.
    """
    import numpy as np

    size = 148
    words = command(
        "parameter-server", gpus=2, **{"data-dir": None, "global-batch-size": size, "out": tmp_path / "many"}, **SMALL
    )
    with cluster(servers=2) as (start, started):
        for _ in range(2):
            start("worker", words)
        output = [process.communicate(timeout=300)[0] for process in started]
    assert [process.returncode for process in started] == [0] * 5, output
    check_charts("parameter-server", "".join(output), tmp_path / "many")  # rank 0 alone evaluates
    own = {"devices": "cpu", "global-batch-size": size, "out": tmp_path / "one", **SMALL}
    done = run([sys.executable, "-m", "gluonlab.run", *as_words(own)])
    assert done.returncode == 0, done.stderr
    many, item = parameters(tmp_path / "many"), parameters(tmp_path / "one")
    assert set(many) == set(item)
    for name in item:
        assert np.linalg.norm(many[name] - item[name]) <= 1e-4 * np.linalg.norm(item[name]), name
    config = json.loads((tmp_path / "many" / "config.json").read_text(encoding="utf-8"))
    assert (config["settings"]["processes"], config["settings"]["global_batch_size"]) == (2, size)


# Rank 0 begins with ones, rank 1 with twos. The loss is 2.5 w^2 for half of the parameters, whose
# gradient 5 w wants rank 0's w, and 5 w for the others, whose gradient waits for no w. The server
# stops when the parameters are to be sent, and goes on once the workers have done all that they do
# without an answer: their gradients could be sent by then.
BEHIND = """
import os, signal, sys
import gluonlab, mxnet as mx
from mxnet import autograd
from mxnet.gluon import nn
from gluonlab.kvstores import make_kvstore
from gluonlab.kvstores.process_group_store import GroupKVStore
from gluonlab.launch.parameter_server_group import ParameterServer
from gluonlab.bucketed_trainer.trainer import BucketedTrainer

server = int(sys.argv[1])
group = ParameterServer()
net = nn.HybridSequential()
for _ in range(20):
    net.add(nn.Dense(1, in_units=1, use_bias=False))
net.initialize(mx.init.Constant(1 + group.rank))
if group.rank == 0:
    os.kill(server, signal.SIGSTOP)
store = GroupKVStore(make_kvstore("device"), group)
settings = {"learning_rate": 0.1}
trainer = BucketedTrainer(net.collect_params(), "sgd", settings, kvstore=store, bucket_bytes=0)
with autograd.record():
    weights = [layer.weight.data() for layer in net]
    squares = [2.5 * weight ** 2 for weight in weights[::2]]
    loss = mx.nd.add_n(*squares, *[5 * weight for weight in weights[1::2]])
loss.backward()
trainer.step(2)
print("weights", *[float(layer.weight.data().asscalar()) for layer in net])
"""


def any_exited(workers):
    return any(worker.poll() is not None for worker in workers)


def process_state(pid):
    """A process's state, and the ticks that it has computed."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return stat[0], sum(map(int, stat[11:13]))


class Rest:
    """A condition that is true when these processes have not computed for some calls."""

    def __init__(self, processes):
        self.processes, self.before, self.quiet = processes, None, 0

    def __call__(self):
        ticks = [process_state(process.pid)[1] for process in self.processes]
        self.quiet = self.quiet + 1 if ticks == self.before else 0
        self.before = ticks
        return self.quiet >= 100


def test_workers_begin_with_the_parameters_of_rank_0_however_late_the_server_answers():
    """1 - 0.1 * (5 + 5) / 2.

    Where a worker does not wait for them, it may get the sum of the gradients in their place.
    """
    with cluster(servers=1) as (start, started):
        workers = [start("worker", [sys.executable, "-c", BEHIND, str(started[1].pid)]) for _ in range(2)]
        server = started[1].pid
        wait_until(lambda: any_exited(workers) or process_state(server)[0] == "T")
        rest = Rest(workers)
        wait_until(lambda: any_exited(workers) or rest())
        os.kill(server, signal.SIGCONT)
        output = [worker.communicate(timeout=300)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], output
    for text in output:
        [weights] = [line.split()[1:] for line in text.splitlines() if line.startswith("weights")]
        assert [float(weight) for weight in weights] == pytest.approx([0.5] * 20)


def test_the_job_on_one_host_trains(tmp_path):
    process = run(command("one-host", gpus=2, **{"data-dir": None, "out": tmp_path / "run"}, **SMALL))
    assert process.returncode == 0, process.stderr
    assert (tmp_path / "run" / "parameters.params").is_file()
    check_charts("one-host", process.stdout + process.stderr, tmp_path / "run")


def test_the_spot_job_trains_and_started_again_says_that_it_has_ended(tmp_path):
    """tests/sagemaker/test_spot.py ends it in the middle."""
    words = command("spot", gpus=2, **{"data-dir": None, "out": tmp_path / "run"}, **SMALL)
    assert words[words.index("--autoresume") + 1] == "True"
    trained, again = run(words), run(words)
    assert (trained.returncode, again.returncode) == (0, 0), again.stderr
    assert f"{tmp_path / 'run'} has finished its 1 epochs" in again.stdout
    check_charts("spot", trained.stdout + again.stdout, tmp_path / "run")


GONE = "ml.g5.12xlarge has GPUs, but MXNet finds none: "
CURE = "(with --no-require-gpu, or in a job with the hyperparameter require-gpu: false)"


@pytest.mark.parametrize("more", [{}, {"gpus": None}, {"gpus": None, "devices": 2}], ids=str)
def test_a_job_on_paid_gpus_that_mxnet_does_not_find_ends_at_once(tmp_path, more):
    """Older toolkits set the machine's type in SM_RESOURCE_CONFIG alone."""
    words = command("one-host", **{**SMALL, "data-dir": None, "out": tmp_path / "run", **more})
    resources = json.dumps({"current_instance_type": "ml.g5.12xlarge"})
    process = run(words, SM_RESOURCE_CONFIG=resources)
    assert process.returncode == 2 and not (tmp_path / "run").exists()
    [error] = [line for line in process.stderr.splitlines() if line.startswith("error: ")]
    assert GONE in error and CURE in error


@pytest.mark.parametrize(("instance", "required"), [("ml.g5.12xlarge", False), ("ml.c5.xlarge", None)])
def test_a_job_trains_on_cpus_that_were_asked_for(tmp_path, instance, required):
    words = command(
        "one-host", **{**SMALL, "data-dir": None, "out": tmp_path / "run", "require-gpu": required, "gpus": 2}
    )
    process = run(words, SM_CURRENT_INSTANCE_TYPE=instance)
    assert process.returncode == 0, process.stderr
    assert "2 CPU devices are used instead" in process.stderr


def test_workers_on_paid_gpus_that_mxnet_does_not_find_end_at_once(tmp_path):
    words = command("parameter-server", **{**SMALL, "data-dir": None, "out": tmp_path / "run"})
    with cluster(servers=1) as (start, _):
        os.environ["SM_CURRENT_INSTANCE_TYPE"] = "ml.g5.12xlarge"
        try:
            workers = [start("worker", words) for _ in range(2)]
        finally:
            del os.environ["SM_CURRENT_INSTANCE_TYPE"]
        output = [worker.communicate(timeout=300)[0] for worker in workers]
    for worker, text in zip(workers, output):
        assert worker.returncode != 0, text
    assert any(GONE in text and CURE in text for text in output), output
    assert "Traceback" not in "".join(output)


@pytest.mark.parametrize("name", ["horovod", "parameter-server"])
def test_a_process_that_nobody_has_placed_says_so_in_one_line(tmp_path, name):
    process = run(command(name, **{"data-dir": None, "out": tmp_path / "run"}, **SMALL))
    assert process.returncode == 2
    [line] = [line for line in process.stderr.splitlines() if line.startswith("error: ")]
    assert "the number of processes is missing" in line
    assert "Traceback" not in process.stderr


def test_an_unknown_backend_is_answered_with_the_known_ones(tmp_path):
    process = run(command("horovod", backend="horovood"))
    assert process.returncode == 2
    output = "choose dist_async, dist_device_sync, dist_sync, horovod (did you mean 'horovod'?)"
    assert output in process.stderr
