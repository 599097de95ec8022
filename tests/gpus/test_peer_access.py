"""Copies between GPUs that can reach each other are direct, whoever makes them and whatever the
process did before.

Each is tried in a process of its own: peer access, once enabled, stays. There a copy through the
host between GPUs that could copy directly is a fault, with which the process ends badly.
"""

import json

import pytest
from gpus.commands import run_python
from gpus.machines import G4DN_12XLARGE, P3_16XLARGE, v100s

COUNT = 3
HEAD = """
import json, sys, numpy as np
import gluonlab, mxnet as mx
from mxnet import autograd, gluon, nd
from gpus.simulated import counters
from gluonlab.kvstores import make_kvstore
ctxs = [mx.gpu(i) for i in range(%d)]
def report(**others):
    nd.waitall()
    print(json.dumps({**counters(), **others}), flush=True)
"""
STORE = """
store = make_kvstore(sys.argv[1])
outs = [nd.zeros((40,), ctx=ctx) for ctx in ctxs]
store.broadcast("weight", nd.ones((40,), ctx=ctxs[0]), outs)
for _ in range(2):
    store.pushpull("weight", outs)
report(sums=[float(out[7].asscalar()) for out in outs])
"""
TRAINER = """
net = gluon.nn.Dense(3, in_units=4)
net.initialize(ctx=ctxs)
store = make_kvstore(sys.argv[1], ctxs)
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5}, kvstore=store)
for _ in range(2):
    with autograd.record():
        losses = [net(nd.ones((2, 4), ctx=ctx) * (rank + 1)).sum() for rank, ctx in enumerate(ctxs)]
    autograd.backward(losses)
    trainer.step(6)
weights = [net.weight.data(ctx).asnumpy() for ctx in ctxs]
assert all(np.array_equal(weight, weights[0]) for weight in weights)
report()
"""
BY_HAND = """
from gluonlab.scratch.data_parallel import allreduce
from gluonlab.exercises.lab_environment import setup
arrays = [nd.ones((40,), ctx=ctx) for ctx in setup(%d).devices]
allreduce(arrays)
report(sums=[float(array[7].asscalar()) for array in arrays])
"""
MADE = """
from gluonlab.collectives.schedule_executor import make_allreduce
arrays = [nd.ones((40,), ctx=ctx) for ctx in ctxs]
make_allreduce("ring", ctxs)(arrays)
report(sums=[float(array[7].asscalar()) for array in arrays])
"""


def run_code(tmp_path, code, *words, machine=None, count=COUNT, **variables):
    """Run HEAD and code on a machine; return the last counters that it printed, and its standard error."""
    machine = machine or v100s(count, promises_peers=True)
    process = run_python(machine, tmp_path, "-c", (HEAD % count) + code, *words, MXNET_USE_FUSION="0", **variables)
    assert process.returncode == 0, process.stdout + process.stderr
    return json.loads(process.stdout.strip().split("\n")[-1]), process.stderr


@pytest.mark.parametrize("name", ["ring", "sharded-optimizer", "device", "local", "nccl"])
def test_no_store_copies_through_the_host_between_gpus(name, tmp_path):
    """Not even what the first broadcast copies. `local` copies to the host, as it says."""
    report, _ = run_code(tmp_path, STORE, name)
    assert report["sums"] == [COUNT**2] * COUNT
    assert report["copies_staged"] == 0
    assert (report["copies_direct"] > 0) == (name != "local")


@pytest.mark.parametrize("name", ["sharded-optimizer"])
def test_gluons_trainer_copies_directly(name, tmp_path):
    report, _ = run_code(tmp_path, TRAINER, name)
    assert report["copies_staged"] == 0 < report["copies_direct"]


@pytest.mark.parametrize("code", [BY_HAND % COUNT, MADE], ids=["by hand, after a lab's setup", "make_allreduce"])
def test_what_is_copied_by_hand_goes_directly(code, tmp_path):
    report, _ = run_code(tmp_path, code)
    assert report["sums"] == [COUNT] * COUNT
    assert report["copies_staged"] == 0 < report["copies_direct"]


@pytest.mark.parametrize("name", ["ring", "device"])
def test_access_is_not_enabled_where_the_user_forbids_it(name, tmp_path):
    report, _ = run_code(tmp_path, STORE, name, machine=v100s(COUNT), MXNET_ENABLE_GPU_P2P="0")
    assert report["sums"] == [COUNT**2] * COUNT
    assert report["copies_direct"] == 0 < report["copies_staged"]


@pytest.mark.parametrize("name", ["ring", "device"])
def test_gpus_that_cannot_reach_each_other_are_no_error_and_no_noise(name, tmp_path):
    """MXNet would print a matrix of pairs for the store device; the errors of CUDA do not stay with
    the thread.
    """
    code = STORE + "assert mx.base._LIB.cudaGetLastError() == 0\n"
    report, said = run_code(tmp_path, code, name, machine=G4DN_12XLARGE)
    assert report["sums"] == [COUNT**2] * COUNT
    assert report["copies_direct"] == 0 < report["copies_staged"]
    assert "direct access" not in said


def test_a_placed_ring_of_a_p3_16xlarge_copies_along_nvlinks_only(tmp_path):
    """In the order of numbers GPUs 7 and 0, and 3 and 4, have no link, and no access to each
    other's memory either.
    """
    code = """
arrays = [nd.ones((80,), ctx=ctx) for ctx in ctxs]
store = make_kvstore("ring", ctxs)
store.pushpull("weight", arrays)
report(order=store.placement(ctxs).order, sums=[float(array[7].asscalar()) for array in arrays])
"""
    report, _ = run_code(tmp_path, code, machine=P3_16XLARGE, count=8)
    assert report["sums"] == [8] * 8
    assert report["order"] == [0, 3, 2, 1, 5, 6, 7, 4]
    assert report["copies_staged"] == 0 < report["copies_direct"]


def test_the_numbers_of_cuda_are_not_those_of_nvml(tmp_path):
    """CUDA_VISIBLE_DEVICES puts the machine's best ring in order: then the order of numbers is that
    ring.
    """
    code = "store = make_kvstore('ring', ctxs)\nreport(order=store.placement(ctxs).order)\n"
    visible = ",".join(map(str, (0, 3, 2, 1, 5, 6, 7, 4)))
    report, _ = run_code(tmp_path, code, machine=P3_16XLARGE, count=8, CUDA_VISIBLE_DEVICES=visible)
    assert report["order"] == list(range(8))


def test_current_gpu_and_last_error_of_the_thread_are_as_before(tmp_path):
    code = """
import ctypes
from gluonlab.gpu.cuda import enable_peer_access, peer_pairs
cuda, current = mx.base._LIB, ctypes.c_int(0)
assert peer_pairs(ctxs) == [(0, 1), (0, 2), (1, 2)]
cuda.cudaSetDevice(2)
cuda.cudaDeviceEnablePeerAccess(0, 0)  # as somebody else may have
for _ in range(2):
    enable_peer_access(ctxs)
cuda.cudaGetDevice(ctypes.byref(current))
report(current=current.value, error=cuda.cudaGetLastError())
"""
    report, _ = run_code(tmp_path, code)
    assert (report["current"], report["error"]) == (2, 0)
