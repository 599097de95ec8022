"""Faults that are planted, and caught: in a test that leaves memory or meets an unknown kernel, and
in gluonlab's own roads.
"""

import subprocess
import sys
from pathlib import Path

from gpus.machines import environment, v100s
from support.processes import clean_environment

HERE = Path(__file__).parent


def ended(machine, folder, *words):
    """A process on such a machine, to its end."""
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=clean_environment(path=[str(HERE)], **environment(machine, folder)),
        capture_output=True, encoding="utf-8", timeout=300,
    )  # fmt: skip


PLANTED = {
    "test_leaves_memory": (
        (
            "import mxnet as mx\nkept = []\ndef test_leaves_memory():\n"
            "    kept.append(mx.nd.zeros((1000,), ctx=mx.gpu(1)))\n"
        ),
        "bytes of each GPU are left over",
    ),
    "test_frees_all": ("import mxnet as mx\ndef test_frees_all():\n    mx.nd.zeros((1000,), ctx=mx.gpu(1))\n", ""),
    "test_illegal": (
        (
            "from cuda_calls import *\ndef test_illegal():\n"
            "    with memory(4, device=1) as theirs, stream(0) as mine:\n"
            "        mine.fill(theirs, 0, 4)\n"
        ),
        "reaches memory of gpu 1 without peer access",
    ),
    "test_after_free": (
        "from cuda_calls import *\ndef test_after_free():\n    gone = Memory(4)\n    gone.free()\n"
        "    with stream() as mine:\n        mine.fill(gone, 0, 4)\n",
        "memory of gpu 0 that is freed",
    ),
    "test_unknown": (
        "from cuda_calls import *\ndef test_unknown():\n    launch_unknown()\n",
        "unknown kernel: void mxnet::op::no_such_kernel<float>(int, float*)",
    ),
    "test_unknown_call": (
        ("import ctypes\ndef test_unknown_call():\n    ctypes.CDLL('libcufft.so.10').cufftExecC2C()\n"),
        "unknown call: cufftExecC2C",
    ),
    "test_staged": (
        (
            "from cuda_calls import *\ndef test_staged():\n"
            "    with memory(4, 0) as a, memory(4, 1) as b, stream(0) as mine:\n"
            "        mine.copy(b, a, 4)\n"
        ),
        "goes through the host, as no peer access is enabled",
    ),
}


def test_a_test_that_meets_a_fault_fails_and_names_it_and_another_passes(tmp_path):
    for name, (source, _) in PLANTED.items():
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
    machine = v100s(2, promises_peers=True)
    report = ended(
        machine, tmp_path, "-m", "pytest", "-p", "gpus.faults", "-q", "-rA", "--tb=short", "-p", "no:cacheprovider"
    )
    for name, (_, fault) in PLANTED.items():
        lines = [
            line for line in report.stdout.splitlines() if line.startswith(("ERROR", "FAILED")) and f"::{name}" in line
        ]
        assert bool(lines) == bool(fault), report.stdout
        assert fault in report.stdout


WITHOUT_FENCES = """
import sys
import gluonlab, mxnet as mx, numpy as np
from mxnet import nd
from gluonlab.collectives.algorithms import make_schedule
from gluonlab.collectives.schedule_executor import Executor

ctxs = [mx.gpu(i) for i in range(3)]
def wrong(fences, algorithm):
    arrays = [nd.zeros((4000,), ctx=ctx) for ctx in ctxs]
    executor = Executor(make_schedule(algorithm, 3), [[array] for array in arrays])
    if not fences:
        executor._fences = []
    count = 0
    for step in range(12):
        for rank, array in enumerate(arrays):
            array[:] = rank + step
            array += 1
        executor.run()
        copies = [array * 1 for array in arrays]  # queued behind the last transfer, or too early
        for array in arrays:
            array[:] = -1
        count += sum((copy.asnumpy() != 3 * step + 6).any() for copy in copies)
    return count
for algorithm in ("ring", "sharded"):
    print(wrong(True, algorithm), wrong(False, algorithm))
"""


def test_a_fence_that_is_left_out_shows(tmp_path):
    """With delays: whoever comes too early reads what is not there yet."""
    report = ended(v100s(3, delay_us=3000), tmp_path, "-c", WITHOUT_FENCES)
    assert report.returncode == 0, report.stderr
    for line in report.stdout.splitlines():
        with_fences, without = map(int, line.split())
        assert with_fences == 0
        assert without > 0


STALE = """
import gluonlab, mxnet as mx, numpy as np
from mxnet import autograd, gluon, nd
from gluonlab.kvstores import make_kvstore
from gluonlab.bucketed_trainer.trainer import BucketedTrainer

def weights(ctxs, store, leaves_out):
    param = gluon.Parameter("weight", shape=(6, 500))
    param.initialize(mx.init.One(), ctx=ctxs)
    kvstore = make_kvstore(store, ctxs)
    trainer = BucketedTrainer([param], "sgd", {"learning_rate": 0.5}, kvstore)
    for step in range(3):
        with autograd.record():
            losses = [(param.data(ctx) * (rank + 1)).sum() for rank, ctx in enumerate(ctxs)]
        autograd.backward(losses)
        if leaves_out and step == 1:
            [sums] = kvstore._plans.values()
            sums._executors[0]._calls.pop()  # the last copy of the schedule
        trainer.step(1)
    return [param.data(ctx).asnumpy() for ctx in ctxs]

ctxs = [mx.gpu(i) for i in range(2)]
for store in ("ring", "star"):
    for leaves_out in (False, True):
        found = weights(ctxs, store, leaves_out)
        print(int(all((replica == 1 - 3 * 0.5 * 3).all() for replica in found)), end=" ")
"""


def test_a_replica_that_is_left_behind_shows(tmp_path):
    report = ended(v100s(2), tmp_path, "-c", STALE)
    assert report.returncode == 0, report.stderr
    assert report.stdout.split() == ["1", "0", "1", "0"]
