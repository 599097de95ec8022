"""Worker job of MXNet's parameter server: a user's loop with gluon.Trainer and dist_sync.

The parent starts rank 0, which starts scheduler, server and the other workers.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

from benchmarks.frameworks import images_and_labels
from gluonlab.bench.harness.worker_processes import RankProcess, start_rank
from gluonlab.bench.worker_main import Job
from gluonlab.bench.workloads import CLASSES, LEARNING_RATE, TASKS


def make(task: str, world_size: int, threads: Optional[int] = None, port: Optional[int] = None) -> Job:
    """Return the job of a worker, with its share of the host's cores or with ``threads`` threads.

    ``port``: the scheduler's; rank 0 chooses it.
    """
    others = _start_other_processes(task, world_size, threads) if port is None else []
    train = _make_training_job(task, world_size, threads)

    def run(steps: int) -> Dict[str, float]:
        for rank in others:
            rank.send(steps=steps)
        return train(steps)

    return run


def parameter_server_variables(role: str, port: int, workers: int) -> Dict[str, str]:
    """Return the environment of a process; ``role``: scheduler, server or worker."""
    return {
        "DMLC_ROLE": role, "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NUM_SERVER": "1", "DMLC_NUM_WORKER": str(workers),
    }  # fmt: skip


def _start_other_processes(task: str, world_size: int, threads: Optional[int]) -> List[RankProcess]:
    """Start scheduler, server and the other workers, and return these workers.

    This process becomes a worker as well.
    """
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
    for role in ("scheduler", "server"):
        # it serves as soon as MXNet is imported
        RankProcess(["-c", "import gluonlab, mxnet"], parameter_server_variables(role, port, world_size))
    variables = parameter_server_variables("worker", port, world_size)
    os.environ.update(variables)  # before MXNet is imported, which reads them
    options = {"task": task, "world_size": world_size, "threads": threads, "port": port}
    return [start_rank("dist", options, variables) for _ in range(world_size - 1)]


def _make_training_job(task: str, world_size: int, threads: Optional[int]) -> Job:
    import mxnet as mx
    from mxnet import autograd, gluon, nd

    from gluonlab.devices import devices
    from gluonlab.models import get_model

    [ctx] = devices("cpu", threads)
    workload, loss = TASKS[task], gluon.loss.SoftmaxCrossEntropyLoss()
    net = get_model(workload.model, CLASSES)
    net.initialize(mx.init.Xavier(), ctx=ctx)
    net.hybridize(static_alloc=True, static_shape=True)
    loss.hybridize(static_alloc=True, static_shape=True)
    store = mx.kv.create("dist_sync")
    params, sgd = net.collect_params(), {"learning_rate": LEARNING_RATE}
    trainer = gluon.Trainer(params, "sgd", sgd, kvstore=store, update_on_kvstore=False)
    images, labels = (nd.array(array, ctx=ctx) for array in images_and_labels(workload))
    batches = _worker_batches((images, labels), workload.global_batch_size, store.rank, world_size)

    def run(steps: int) -> Dict[str, float]:
        started = time.perf_counter()
        for _ in range(steps):
            x, y = next(batches)
            with autograd.record():
                value = loss(net(x), y)
            value.backward()
            trainer.step(workload.global_batch_size)
        nd.waitall()
        return {"seconds": time.perf_counter() - started}

    return run


def _worker_batches(
    arrays: Tuple[Any, Any], global_batch_size: int, rank: int, world_size: int
) -> Iterator[Tuple[Any, Any]]:
    """Yield this worker's part of every batch, epoch after epoch."""
    size = global_batch_size // world_size
    while True:
        for start in range(rank * size, len(arrays[0]) - size + 1, global_batch_size):
            yield arrays[0][start : start + size], arrays[1][start : start + size]
