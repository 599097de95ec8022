"""The job that each process runs when ``allreduce bench`` measures sums across processes.

The job measures how long it takes to sum arrays. Each process has one CPU device with one thread,
and all processes run on this host. The benchmark starts rank 0, and rank 0 starts the other ranks.
"""

from __future__ import annotations

import time
from typing import Dict, Tuple

import numpy as np

from gluonlab.bench.harness.worker_processes import start_group
from gluonlab.bench.worker_main import Job


def make_sum_job(backend: str, processes: int, first: bool = True) -> Job:
    """Return the job for one process in a group that sums arrays together.

    ``first``: whether this process is rank 0, which starts the others.

    The job is a function with the arguments ``steps``, ``count`` and ``arrays``. The job sums
    ``arrays`` arrays with ``count`` elements in total. It repeats the sum ``steps`` times, and
    returns the total seconds. If ``steps`` is 0, the job sums random whole numbers, and returns the
    largest ``difference`` from the exact sum in any process.
    """
    options = {"backend": backend, "processes": processes, "first": False}
    others = start_group(backend, processes, "sum", options) if first else []
    # these modules load MXNet, which needs the environment of `start_group`
    from mxnet import nd

    from gluonlab.bench.allreduce.measure_allreduce import AllreduceBuffers
    from gluonlab.devices import devices
    from gluonlab.launch.backends import BACKENDS

    group, ctxs = BACKENDS[backend](), devices("cpu", threads=1)
    buffers_by_shape: Dict[Tuple[int, int], AllreduceBuffers] = {}

    def run(steps: int, count: int, arrays: int) -> Dict[str, float]:
        for rank in others:
            rank.send(steps=steps, count=count, arrays=arrays)
        if (count, arrays) not in buffers_by_shape:
            buffers_by_shape[count, arrays] = AllreduceBuffers(ctxs, count, "float32", arrays, group.rank, group.size)
        buffers = buffers_by_shape[count, arrays]
        [arrays_of_device] = buffers.arrays
        if not steps:
            difference = buffers.check(lambda: group.allreduce(arrays_of_device))
            buffers.clear()
            return {"seconds": 0.0, "difference": float(group.all_gather(np.array(difference)).max())}
        started = time.perf_counter()
        for _ in range(steps):
            group.allreduce(arrays_of_device)
        nd.waitall()
        return {"seconds": time.perf_counter() - started}

    return run
