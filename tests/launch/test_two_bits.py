"""--compress 2bit between real processes: their sums, to the bit, and a training."""

import json
import subprocess
import sys

import numpy as np
import pytest
from support.launched import BACKENDS, each_slow_backend, option_words, run_launches
from support.parameter_server import kill_processes
from support.run_files import read_metrics

from gluonlab.runs import run_schema

pytestmark = pytest.mark.cpu_only("the processes compute on CPU devices, whoever started them")
THRESHOLD, STEPS = np.float32(0.1), 4
SHAPES = [(40, 30), (7,), (3, 5, 2)]
# Two devices each; the same keys in every step.
SUMS = """
import sys
import numpy as np, mxnet as mx
from mxnet import nd
from gluonlab.devices import devices
from gluonlab.kvstores import make_kvstore
from gluonlab.kvstores.process_group_store import GroupKVStore
from gluonlab.launch.backends import BACKENDS

ctxs = devices("cpu*2")
with BACKENDS[sys.argv[1]]() as group, np.load("given.npz") as given:
    store = GroupKVStore(make_kvstore("ring", ctxs), group, compress="2bit:0.1")
    arrays = [[nd.zeros(given[name].shape[3:], ctx) for ctx in ctxs] for name in given.files]
    sums = {}
    for step in range(len(given[given.files[0]])):
        for name, copies in zip(given.files, arrays):
            for device, array in enumerate(copies):
                array[:] = nd.array(given[name][step, group.rank, device])
        store.pushpull(given.files, arrays)
        for name, copies in zip(given.files, arrays):
            sums.update({f"{name} {step} {device}": array.asnumpy() for device, array in enumerate(copies)})
    np.savez(f"sums-{group.rank}.npz", **sums)
"""


def sum_in_two_bits(rests, grads):
    """Sum the gradients of two processes, and what each has left over, with numpy."""
    total = np.zeros_like(grads[0])
    for rest, grad in zip(rests, grads):
        rest += grad
        sent = (rest >= THRESHOLD).astype("float32") - (rest <= -THRESHOLD).astype("float32")
        rest -= THRESHOLD * sent
        total += sent
    return THRESHOLD * total


@each_slow_backend
def test_sums_over_real_processes_are_numpys_to_the_bit(backend, tmp_path):
    random = np.random.RandomState(0)
    given = {str(n): random.normal(0, 0.1, (STEPS, 2, 2, *shape)).astype("float32") for n, shape in enumerate(SHAPES)}
    np.savez(tmp_path / "given.npz", **given)
    with BACKENDS[backend](2) as (environments, _):
        processes = [
            subprocess.Popen([sys.executable, "-c", SUMS, backend], env=each, cwd=tmp_path) for each in environments
        ]
        try:
            assert [process.wait(120) for process in processes] == [0, 0]
        finally:
            kill_processes(processes)
    results = [np.load(tmp_path / f"sums-{rank}.npz") for rank in range(2)]
    for name, steps in given.items():
        rests = [np.zeros(steps.shape[3:], "float32") for _ in range(2)]
        for step, grads in enumerate(steps):
            expected = sum_in_two_bits(rests, grads.sum(axis=1))
            for sums in results:
                assert all(np.array_equal(sums[f"{name} {step} {device}"], expected) for device in range(2))


@pytest.mark.parametrize(
    "backend", [pytest.param("dist_sync", marks=pytest.mark.long), pytest.param("horovod", marks=pytest.mark.horovod)]
)
def test_processes_learn_and_hold_the_same_bits(backend, tmp_path):
    """--check-replicas ends the run, with status 1, at the first bit that differs."""
    options = option_words(
        dataset="digits", model="mlp", epochs=5, global_batch_size=60, optimizer="sgd", lr=0.1,
        momentum=0, devices="cpu*2", kvstore="ring", compress="2bit:1", check_replicas=3, out=tmp_path / "run",
    )  # fmt: skip
    ended = run_launches(backend, tmp_path, *options)
    assert [process.status for process in ended] == [0, 0], ended
    [*_, last] = [line for line in read_metrics(tmp_path / "run") if line["kind"] == "epoch"]
    assert last["val_accuracy"] > 0.8
    config = json.loads((tmp_path / "run" / run_schema.CONFIG).read_text())
    assert config["settings"]["compress"] == config["config"]["compress"] == "2bit:1.0"
