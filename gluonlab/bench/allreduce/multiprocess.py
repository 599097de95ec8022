"""Sums of arrays over processes on this host, each with one CPU device of one thread.

Rank 0, which the parent knows, starts the others.
"""

from __future__ import annotations

import time
from typing import Dict, Tuple

import numpy as np

from gluonlab.bench.harness.worker_processes import start_group
from gluonlab.bench.worker_main import Job


def make(backend: str, processes: int, first: bool = True) -> Job:
    """A process of a group; ``first``: it is rank 0.

    The job sums arrays with ``count`` elements in all, in ``arrays`` arrays, ``steps`` times; it
    answers with the seconds of all. With no steps, it sums random whole numbers, and answers with
    the largest ``difference`` from the exact sum in any process.
    """
    options = {"backend": backend, "processes": processes, "first": False}
    others = start_group(backend, processes, "sum", options) if first else []
    # MXNet, now that the environment is complete
    from mxnet import nd

    from gluonlab.bench.allreduce.measure_allreduce import Buffers
    from gluonlab.devices import devices
    from gluonlab.launch.backends import BACKENDS

    group, ctxs = BACKENDS[backend](), devices("cpu", threads=1)
    made: Dict[Tuple[int, int], Buffers] = {}

    def run(steps: int, count: int, arrays: int) -> Dict[str, float]:
        for other in others:
            other.order(steps=steps, count=count, arrays=arrays)
        if (count, arrays) not in made:
            made[count, arrays] = Buffers(ctxs, count, "float32", arrays, group.rank, group.size)
        buffers = made[count, arrays]
        [own] = buffers.arrays
        if not steps:
            error = buffers.check(lambda: group.allreduce(own))
            buffers.clear()
            return {"seconds": 0.0, "difference": float(group.all_gather(np.array(error)).max())}
        began = time.perf_counter()
        for _ in range(steps):
            group.allreduce(own)
        nd.waitall()
        return {"seconds": time.perf_counter() - began}

    return run
