"""Training jobs that benchmarks run and time in worker processes.

A job trains in one process or in a group of processes.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Dict, Iterator, List, Mapping, Optional

import mxnet as mx
from mxnet import nd

from gluonlab.bench.harness.worker_processes import start_group
from gluonlab.bench.worker_main import Job
from gluonlab.bench.workloads import CLASSES, LEARNING_RATE, TASKS
from gluonlab.config import TrainConfig
from gluonlab.data.loading.batch_loader import Loader
from gluonlab.data.loading.split_batch import Batch
from gluonlab.data.sets.dataset_registry import load_dataset
from gluonlab.engine.mxnet_setup import BackwardBulkSize, use_backward_bulk_size
from gluonlab.kvstores.process_groups import SINGLE_PROCESS, ProcessGroup
from gluonlab.parallel import strategy_class
from gluonlab.parallel.strategy import Strategy
from gluonlab.parallel.training_loss import make_loss
from gluonlab.timeline.recorder import Recorder
from gluonlab.training.build_network import make_net
from gluonlab.training.loss_meter import AsyncLossMeter
from gluonlab.training.plan import make_plan


def make_training_job(
    task: str,
    device_count: int,
    threads: int,
    kvstore: str = "device",
    global_batch_size: Optional[int] = None,
    competitors: int = 0,
    devices: Optional[str] = None,
    group: ProcessGroup = SINGLE_PROCESS,
    overlap: Optional[BackwardBulkSize] = None,
    traced: int = 0,
    split: Optional[Mapping[str, Any]] = None,
) -> Job:
    """Return a job that trains on ``device_count`` CPU devices with ``threads`` threads each.

    Args:
        task: A key of `TASKS`.
        device_count: The number of CPU devices.
        threads: The number of threads of each device.
        kvstore: The kvstore that sums the gradients.
        global_batch_size: Images per step on all devices; None for the task's number.
        competitors: The number of other processes that compute at the same time.
        devices: Devices to train on instead of the CPU devices, as in --devices.
        group: The processes that train together, each on the same number of devices.
        overlap: See `TrainConfig`.
        traced: Steps to record after the timed steps. From these steps, the job also computes
            ``beside``, the fraction of the gradient sums that overlaps with backward.
        split: The run options that split the network over the devices; None for data parallelism.
    """
    workload = TASKS[task]
    global_batch_size = global_batch_size or workload.global_batch_size
    config = TrainConfig(
        devices=devices or f"cpu*{device_count}", threads=threads, model=workload.model,
        dataset="synthetic", global_batch_size=global_batch_size, optimizer="sgd",
        lr=LEARNING_RATE, momentum=workload.momentum, kvstore=kvstore, **(split or {}),
    )  # fmt: skip
    dataset = load_dataset("synthetic", samples=workload.samples, shape=workload.shape, classes=CLASSES)
    plan = dataclasses.replace(make_plan(config), dataset=dataset)
    make_strategy = strategy_class(plan.parallelism.mode)
    strategy = make_strategy(partial(make_net, plan), make_loss(), plan, group)
    loader = Loader(
        plan.dataset.train, strategy.inputs, global_batch_size, rank=group.rank,
        world_size=group.size, raw=True, resident_bytes=plan.device_cache_bytes,
    )  # fmt: skip
    log, batches = AsyncLossMeter(plan.ctxs), _repeat_epochs(loader)

    def run(steps: int) -> Dict[str, float]:
        """Train for ``steps`` steps, and return the seconds and, if traced, ``beside``."""
        with competing_processes(competitors), use_backward_bulk_size(overlap):
            started = time.perf_counter()
            for batch in itertools.islice(batches, steps):
                log.append(strategy.step(batch), batch.size)
            log.flush()
            nd.waitall()
            seconds = time.perf_counter() - started
            return {"seconds": seconds, **_measure_overlap(plan.ctxs, strategy, batches, traced)}

    return run


def _measure_overlap(
    ctxs: List[mx.Context], strategy: Strategy, batches: Iterator[Batch], steps: int
) -> Dict[str, float]:
    """Record steps, and return ``beside``, the fraction of sums that overlaps with backward."""
    if not steps:
        return {}
    recorder = Recorder(ctxs, 1)
    recorder.learn(partial(strategy.step, next(batches)))
    for batch in itertools.islice(batches, steps):
        recorder.record(partial(strategy.step, batch))
    return {"beside": recorder.end().overlap() or 0.0}


def _repeat_epochs(loader: Loader) -> Iterator[Batch]:
    while True:  # one epoch after the other
        yield from loader


def make_group_job(backend: str, processes: int, first: bool = True, **training: Any) -> Job:
    """Return the job for one process in a group that trains together.

    ``first``: whether this process is rank 0, which starts the others. ``training``: arguments for
    `make_training_job`.
    """
    options = {"backend": backend, "processes": processes, "first": False, **training}
    others = start_group(backend, processes, "member", options) if first else []
    from gluonlab.launch.backends import BACKENDS  # MXNet, now that the environment is complete

    train = make_training_job(**training, group=BACKENDS[backend]())

    def run(steps: int) -> Dict[str, float]:
        for rank in others:
            rank.send(steps=steps)
        return train(steps)

    return run


# --- processes that compute at the same time

# Longer than any round. Such a process exits after this time, or when its parent has ended.
MAX_COMPETING_S = 120.0
_BUSY = """
import os, sys, time
parent, end = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
print(flush=True)
while os.getppid() == parent and time.monotonic() < end:
    for _ in range(10**5):
        pass
"""


@contextmanager
def competing_processes(count: int) -> Iterator[List[int]]:
    """Keep ``count`` cores busy during a with block, with one process per core.

    Yield the process IDs.
    """
    command = [sys.executable, "-I", "-S", "-c", _BUSY, str(os.getpid()), str(MAX_COMPETING_S)]
    with ExitStack() as stack:
        pids = []
        for _ in range(count):
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
            stack.enter_context(process)  # closes its pipe, after kill and wait
            stack.callback(process.wait)
            stack.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()  # wait until the process has started
            pids.append(process.pid)
        yield pids
