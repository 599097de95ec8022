"""The share of a core's arithmetic that training uses: LeNet's FLOP/s over a matrix product's."""

from __future__ import annotations

import time
from typing import Dict

from mxnet import nd

from gluonlab.bench.peers import gluonlab_loop
from gluonlab.bench.peers.work import LENET, training_flops
from gluonlab.bench.worker import Job

SIDE = 1024
BATCH_SIZE = 64


def make() -> Job:
    """On one device of one thread; the job's numbers are GFLOP/s of ``sgemm`` and of ``lenet``."""
    train = gluonlab_loop.make("lenet", device_count=1, threads=1, global_batch_size=BATCH_SIZE)
    left, right = nd.random.uniform(shape=(SIDE, SIDE)), nd.random.uniform(shape=(SIDE, SIDE))

    def run(steps: int) -> Dict[str, float]:
        products = max(1, steps // 2)  # a product takes about as long as two steps
        sgemm_s = _sgemm_s(left, right, products)
        lenet_s = train(steps)["seconds"]
        return {
            "seconds": sgemm_s + lenet_s,
            "sgemm": products * 2 * SIDE**3 / sgemm_s / 1e9,
            "lenet": steps * BATCH_SIZE * training_flops(LENET) / lenet_s / 1e9,
        }

    return run


def _sgemm_s(left: nd.NDArray, right: nd.NDArray, times: int) -> float:
    nd.waitall()
    began = time.perf_counter()
    for _ in range(times):
        nd.dot(left, right)
    nd.waitall()
    return time.perf_counter() - began
