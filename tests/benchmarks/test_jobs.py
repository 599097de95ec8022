"""Jobs of workers: gluonlab and its peers do the same work, and each job reports results."""

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon, nd
from support.bench_command import ring_without_last_transfer
from support.devices import device_spec, devices
from support.processes import clean_environment
from support.worker_processes import has_exited

from benchmarks import (
    checkpoints,
    frameworks,
    gradients,
    host_jobs,
    image_readers,
    images,
    optimize_job,
    overhead,
    threads,
)
from benchmarks.advice import COMMON
from benchmarks.advice import make as make_training_job
from benchmarks.classic_loop import lenet, train_batch
from benchmarks.gradients import STORES, TRAINERS, measure_steps
from benchmarks.optimize import TASKS as NETWORKS
from gluonlab import load_dataset
from gluonlab.bench.harness.measurement_command import find_measured_devices
from gluonlab.bench.harness.worker_processes import Worker, child_environment
from gluonlab.bench.training_job import competing_processes
from gluonlab.bench.workloads import TASKS, Task
from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.data.loading.split_batch import make_local_batch
from gluonlab.devices import devices as find_devices
from gluonlab.doctor import check_host as processes
from gluonlab.errors import DriftError, RunError
from gluonlab.kvstores import make_kvstore
from gluonlab.models import get_model
from gluonlab.models.cpu_channel_padding import choose_padding
from gluonlab.models.optimize_network import optimize
from gluonlab.parallel.data.strategy import DataParallelStep
from gluonlab.runs import checkpoint


@contextmanager
def start_worker(subject, folder):
    worker = Worker(subject.worker_command(), child_environment(subject.variables, folder), folder / "log")
    try:
        worker.read_answer(240)
        yield worker
    finally:
        worker.end(grace_s=2)


def test_the_classic_loop_and_gluonlabs_step_give_the_same_parameters():
    ctxs, random = devices(2, threads=1), np.random.RandomState(1)
    batches = [(nd.array(random.rand(16, 1, 28, 28)), nd.array(random.randint(0, 10, 16))) for _ in range(3)]
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    classic, ours = lenet(), get_model("lenet", 10)
    for net in (classic, ours):
        net.initialize(mx.init.Xavier(), ctx=ctxs)
        net(batches[0][0][:1].as_in_context(ctxs[0])).wait_to_read()  # the shapes
    pairs = list(zip(classic.collect_params().values(), ours.collect_params().values()))
    for theirs, mine in pairs:
        mine.set_data(theirs.data(ctxs[0]))

    sgd = {"learning_rate": 0.1}
    trainer = gluon.Trainer(classic.collect_params(), "sgd", sgd, kvstore="local")
    bucketed = BucketedTrainer(ours.collect_params(), "sgd", sgd, make_kvstore("device"))
    step = DataParallelStep(ours, loss, bucketed, ctxs, lambda F, x: x)
    for data, label in batches:
        train_batch(mx.io.DataBatch([data], [label]), ctxs, classic, loss, trainer)
        arrays = (data, label.astype("int32"))
        step(make_local_batch(*(gluon.utils.split_and_load(array, ctxs) for array in arrays)))
    for theirs, mine in pairs:
        expected, result = theirs.data(ctxs[1]).asnumpy(), mine.data(ctxs[1]).asnumpy()
        assert np.linalg.norm(result - expected) <= 1e-5 * np.linalg.norm(expected)


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_all_rows_train_on_the_same_images(task):
    pictures, labels = frameworks.images_and_labels(task)
    train = load_dataset("synthetic", samples=task.samples, shape=task.shape).train
    assert pictures.dtype == np.float32
    assert np.array_equal(pictures, train.images.astype("float32") / np.float32(255))
    assert np.array_equal(labels, train.labels) and len(set(labels)) == 10


def test_the_first_step_of_every_store_and_trainer_is_exact_and_wrong_sums_are_noticed(monkeypatch):
    rows = measure_steps([(3, 5), (7,), (2, 2, 2)], STORES, devices(2), rounds=1)
    assert [(row.trainer, row.store) for row in rows] == [(trainer, store) for trainer in TRAINERS for store in STORES]
    assert {row.error for row in rows} == {0.0} and all(row.time_s > 0 for row in rows)
    monkeypatch.setitem(ALGORITHMS, "ring", ring_without_last_transfer)
    rows = measure_steps([(30,)], ["device", "ring"], devices(3), rounds=1)
    assert [(row.store, row.error > 0) for row in rows] == [("device", False), ("ring", True)] * 2


# The smallest images that a network takes. BatchNorm of dense layers magnifies rounding errors in
# small batches, so there are more images where they are small.
SMALL = {"mnist-cnn": 28, "lenet": 28, "lenet-batch-norm": 28, "nin": 67, "googlenet": 17}


def make_small_task(name):
    size = SMALL[name]
    return NETWORKS[name]._replace(batch=(32 if size == 28 else 2, 1, size, size), batches=2)


@pytest.mark.cpu_only("a CPU device is optimized")
@pytest.mark.parametrize("name", NETWORKS)
def test_the_first_losses_of_an_optimized_network_are_those_of_the_plain_one(name):
    [ctx] = find_devices("cpu*1", threads=1)
    plain, optimized = (optimize_job.first_losses(make_small_task(name), ctx, how) for how in (False, True))
    assert len(set(plain)) > 1  # it learns
    optimize_job.check_same_losses(NETWORKS[name], plain, optimized)
    net = optimize_job.NETWORKS[NETWORKS[name].network]()
    net.initialize(ctx=ctx)
    # On ARM, no channels are padded, and some of the networks do not change.
    assert optimize(net, make_small_task(name).batch) or not choose_padding(ctx).multiples


@pytest.mark.cpu_only("a CPU device is optimized")
def test_a_job_fails_if_the_optimized_network_computes_something_else(monkeypatch):
    monkeypatch.setitem(NETWORKS, "mnist-cnn", make_small_task("mnist-cnn"))

    def changed(net, shape):
        weight = net[0].weight
        weight.set_data(weight.data() * 1.1)

    assert optimize_job.make("mnist-cnn", True)(steps=2)["seconds"] > 0
    monkeypatch.setattr(optimize_job, "optimize", changed)
    with pytest.raises(RunError, match="MXNet's CNN for MNIST: the optimized model has"):
        optimize_job.make("mnist-cnn", True)


def test_a_worker_of_host_reports_every_column(tmp_path):
    subject = next(subject for subject in overhead.make_subjects() if subject.name == "host-gluonlab-2")
    with start_worker(subject, tmp_path) as worker:
        answer = worker.ask({"steps": 8}, 240)
    assert set(answer) == {"seconds", *overhead.COLUMNS} and min(answer.values()) > 0


@pytest.mark.cpu_only("what a core computes is measured")
def test_the_reported_speeds_give_the_reported_seconds():
    job = host_jobs.make_efficiency()
    for steps, products in ((1, 1), (4, 2)):
        answer = job(steps)
        # an element of a product of 1024x1024 is 1024 multiplications and as many additions
        multiplied = products * 1024**2 * (1024 + 1024)
        trained = steps * 64 * 13_258_800  # LeNet, batches of 64, operations counted by hand
        seconds = (multiplied / answer["sgemm"] + trained / answer["lenet"]) / 1e9
        assert answer["seconds"] == pytest.approx(seconds) and min(answer.values()) > 0


def test_a_job_of_gradients_times_every_call_of_ours(monkeypatch):
    monkeypatch.setattr(gradients, "resnet18_shapes", lambda: [(3, 5), (70,)])
    answer = gradients.make(2, 2000, ["device", "ring"], device_spec(2))(1)
    steps = {f"step 2 {trainer} {store}" for trainer in TRAINERS for store in ("device", "ring")}
    assert answer["seconds"] > 0 and {"allreduce 2 16 ring", "allreduce 2 1 ring", *steps} <= set(answer)
    assert not {"allreduce 2 1 device", "allreduce 2 1 chapter"} & {*answer}


def test_a_job_of_verdict_trains_as_the_settings_say():
    answer = make_training_job({**COMMON, "model": "mlp", "batch_size": 3})(4)
    assert answer["images"] == 4 * 2 * 3 and answer["seconds"] > 0


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder of JPEGs, slightly more than a batch. Temporary files go into its parent."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    images.make_jpegs(tmp_path / "set", images.Photographs(20, 16, 8, images.BATCH_SIZE + 2))
    return tmp_path / "set"


@pytest.mark.cpu_only("bench images reads for two CPU devices")
@pytest.mark.parametrize("reader", image_readers.READERS)
def test_a_reader_counts_whole_epochs(folder, reader):
    answer = image_readers.make(reader, str(folder), 8)(steps=2)
    assert answer["images"] == 2 * (images.BATCH_SIZE + 2) and answer["seconds"] > 0


@pytest.mark.torch
def test_pytorch_trains_alone_and_as_two_processes_and_reads_images(tmp_path, folder):
    for name in ("torch-eager", "torch-ddp"):
        [subject] = [subject for subject in frameworks.lenet_subjects() if subject.name == name]
        with start_worker(subject, tmp_path) as worker:
            assert 2.2 < worker.ask({"steps": 2}, 60)["loss"] < 2.5  # log(10) for ten random classes
        with pytest.raises(ProcessLookupError):
            os.killpg(worker.pid, 0)
    *_, reading = images.make_subjects(folder, 8)
    with start_worker(reading, tmp_path) as worker:
        assert worker.ask({"steps": 1}, 60)["images"] == images.BATCH_SIZE + 2


def test_checkpoints_are_on_disk_at_the_end_of_a_block_and_checks_find_replicas_that_drift(tmp_path):
    tiny = Task("LeNet 28x28", "lenet", (1, 28, 28), 4)
    with ExitStack() as stack:
        spec = find_measured_devices(device_spec(2)).device_spec(2)
        runs = dict(checkpoints.make_runs(tiny, spec, 1, tmp_path, stack))
        checkpointed = runs[checkpoints.CHECKPOINTS]
        for block in range(2):
            checkpointed.train_block()
            newest = checkpoint.read_newest_checkpoint(checkpointed.run.path)
            assert newest.damaged == []
            assert newest.checkpoint.step == checkpoints.MIDDLE + checkpoints.EVERY * block
            assert len(checkpoint.list_checkpoints(checkpointed.run.path)) == block + 1
        runs[checkpoints.FILES].train_block()
        files = {path.name for path in (tmp_path / checkpoints.FILES).iterdir()}
        assert {"net.params", "trainer.states"} <= files
        params = runs[checkpoints.NONE].strategy.net.collect_params().values()
        drifted = next(iter(params)).list_data()[1]
        drifted[:] = drifted + 1
        nd.waitall()
        runs[checkpoints.NONE].train_block()
        for every in (10, 1):
            first = every * (checkpoints.MIDDLE // every + 1)  # not at the end of an epoch
            with pytest.raises(DriftError, match=f"after step {first}[;,:]"):
                runs[checkpoints.check_name(every)].train_block()


def read_ticks(pid):
    """Return the CPU time of a process, or None if it has exited."""
    return processes._read_processes(Path("/proc")).get(pid, (None, None, None))[2]


def test_competitors_compute_within_the_block_and_exit_after_it():
    with pytest.raises(KeyboardInterrupt), competing_processes(2) as pids:
        before = [read_ticks(pid) for pid in pids]
        while not all(read_ticks(pid) > ticks + 2 for pid, ticks in zip(pids, before)):
            time.sleep(0.01)
        raise KeyboardInterrupt
    assert [read_ticks(pid) for pid in pids] == [None, None]


def test_a_competitor_does_not_outlive_a_process_that_is_killed():
    code = (
        "import os, signal\nfrom gluonlab.bench.training_job import competing_processes\n"
        "with competing_processes(1) as [pid]:\n    print(pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=clean_environment(), stdout=subprocess.PIPE)
    assert done.returncode == -signal.SIGKILL
    while not has_exited(int(done.stdout)):
        time.sleep(0.01)


@pytest.mark.long
def test_two_workers_of_a_parameter_server_train_and_leave_nothing_running(tmp_path):
    [sharing, _] = [subject for subject in threads.make_subjects([], "lenet") if subject.job == "dist"]
    with start_worker(sharing, tmp_path) as worker:
        assert worker.ask({"steps": 2}, 240)["seconds"] > 0
        parents = {pid: parent for pid, (_, parent, _) in processes._read_processes(Path("/proc")).items()}
        running = processes.descendant_pids(worker.pid, parents)
        assert len(running) >= 4  # the worker, its scheduler, its server, the other worker
    assert not running & set(processes._read_processes(Path("/proc")))
