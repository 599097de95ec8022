"""Faults that are planted, and caught: in a test that leaves memory or meets an unknown kernel, and
in gluonlab's own roads.
"""

from gpus.commands import run_python
from gpus.machines import v100s

CUDA, MXNET = "from cuda_calls import *", "import mxnet as mx"
# {test: (its imports, its body, the fault that must be named)}
PLANTED = {
    "leaves_memory": (
        f"{MXNET}\nkept = []", "kept.append(mx.nd.zeros((1000,), ctx=mx.gpu(1)))", "bytes of each GPU are left over"
    ),
    "frees_all": (MXNET, "mx.nd.zeros((1000,), ctx=mx.gpu(1))", ""),
    "illegal": (
        CUDA, "with memory(4, device=1) as theirs, stream(0) as mine: mine.fill(theirs, 0, 4)",
        "reaches memory of gpu 1 without peer access",
    ),
    "after_free": (
        CUDA, "gone = Memory(4); gone.free()\n    with stream() as mine: mine.fill(gone, 0, 4)",
        "memory of gpu 0 that is freed",
    ),
    "unknown_kernel": (
        CUDA, "launch_unknown()", "unknown kernel: void mxnet::op::no_such_kernel<float>(int, float*)"
    ),
    "unknown_call": (
        "import ctypes", "ctypes.CDLL('libcufft.so.10').cufftExecC2C()", "unknown call: cufftExecC2C"
    ),
    "staged": (
        CUDA, "with memory(4, 0) as a, memory(4, 1) as b, stream(0) as mine: mine.copy(b, a, 4)",
        "goes through the host, as no peer access is enabled",
    ),
}  # fmt: skip


def test_a_test_that_meets_a_fault_fails_and_names_it_and_another_passes(tmp_path):
    for name, (imports, body, _) in PLANTED.items():
        (tmp_path / f"test_{name}.py").write_text(f"{imports}\ndef test_{name}():\n    {body}\n", encoding="utf-8")
    options = ["-m", "pytest", "-p", "gpus.faults", "-q", "-rA", "--tb=short", "-p", "no:cacheprovider"]
    output = run_python(v100s(2, promises_peers=True), tmp_path, *options).stdout
    for name, (_, _, fault) in PLANTED.items():
        lines = [
            line for line in output.splitlines() if line.startswith(("ERROR", "FAILED")) and f"::test_{name}" in line
        ]
        assert bool(lines) == bool(fault) and fault in output, output


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
    process = run_python(v100s(3, delay_us=3000), tmp_path, "-c", WITHOUT_FENCES)
    assert process.returncode == 0, process.stderr
    for line in process.stdout.splitlines():
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
    process = run_python(v100s(2), tmp_path, "-c", STALE)
    assert process.returncode == 0, process.stderr
    assert process.stdout.split() == ["1", "0", "1", "0"]
