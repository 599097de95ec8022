"""Jobs of `gluonlab.bench.worker_main`: gluonlab's own training, in one process or in several.

It is made of the parts that `gluonlab.training.loop` is made of.
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
from gluonlab.kvstores.process_groups import ALONE, Group
from gluonlab.parallel import strategy_class
from gluonlab.parallel.strategy import Strategy
from gluonlab.parallel.training_loss import make_loss
from gluonlab.timeline.recorder import Recorder
from gluonlab.training.build_network import make_net
from gluonlab.training.loss_meter import LossLog
from gluonlab.training.plan import make_plan


def make(
    task: str,
    device_count: int,
    threads: int,
    kvstore: str = "device",
    global_batch_size: Optional[int] = None,
    competitors: int = 0,
    devices: Optional[str] = None,
    group: Group = ALONE,
    overlap: Optional[BackwardBulkSize] = None,
    traced: int = 0,
    split: Optional[Mapping[str, Any]] = None,
) -> Job:
    """Train on ``device_count`` CPU devices of ``threads`` threads each.

    ``competitors``: the number of other processes that compute meanwhile. ``devices``: train on
    those instead. ``group``: the processes that train together, each on so many devices.
    ``overlap``: as `TrainConfig` has it. ``traced``: so many steps more are recorded after those
    that are timed, for ``beside``, the share of sums beside backward. ``split``: the options of a
    run that spread its network over its devices; None for data parallelism.
    """
    work = TASKS[task]
    global_batch_size = global_batch_size or work.global_batch_size
    config = TrainConfig(
        devices=devices or f"cpu*{device_count}",
        threads=threads,
        model=work.model,
        dataset="synthetic",
        global_batch_size=global_batch_size,
        optimizer="sgd",
        lr=LEARNING_RATE,
        momentum=work.momentum,
        kvstore=kvstore,
        **(split or {}),
    )
    dataset = load_dataset("synthetic", samples=work.samples, shape=work.shape, classes=CLASSES)
    plan = dataclasses.replace(make_plan(config), dataset=dataset)
    make_strategy = strategy_class(plan.split.way)
    strategy = make_strategy(partial(make_net, plan), make_loss(), plan, group)
    loader = Loader(
        plan.dataset.train,
        strategy.inputs,
        global_batch_size,
        rank=group.rank,
        world_size=group.size,
        raw=True,
        resident_bytes=plan.resident_bytes,
    )
    log, batches = LossLog(plan.ctxs), _for_ever(loader)

    def run(steps: int) -> Dict[str, float]:
        with competing(competitors), use_backward_bulk_size(overlap):
            began = time.perf_counter()
            for batch in itertools.islice(batches, steps):
                log.append(strategy.step(batch), batch.size)
            log.flush()
            nd.waitall()
            seconds = time.perf_counter() - began
            return {"seconds": seconds, **_beside(plan.ctxs, strategy, batches, traced)}

    return run


def _beside(
    ctxs: List[mx.Context], strategy: Strategy, batches: Iterator[Batch], steps: int
) -> Dict[str, float]:
    if not steps:
        return {}
    recorder = Recorder(ctxs, 1)
    recorder.learn(partial(strategy.step, next(batches)))
    for batch in itertools.islice(batches, steps):
        recorder.record(partial(strategy.step, batch))
    return {"beside": recorder.end().overlap() or 0.0}


def _for_ever(loader: Loader) -> Iterator[Batch]:
    while True:  # an epoch after the other
        yield from loader


def make_member(backend: str, processes: int, first: bool = True, **training: Any) -> Job:
    """A process of a group; ``training``: as `make` takes it, for each of them.

    ``first``: it is rank 0.
    """
    options = {"backend": backend, "processes": processes, "first": False, **training}
    others = start_group(backend, processes, "member", options) if first else []
    from gluonlab.launch.backends import BACKENDS  # MXNet, now that the environment is complete

    train = make(**training, group=BACKENDS[backend]())

    def run(steps: int) -> Dict[str, float]:
        for other in others:
            other.order(steps=steps)
        return train(steps)

    return run


# --- processes that compute meanwhile

# longer than any round may take: it ends by itself then, or when its parent has gone
MOST_S = 120.0
_BUSY = """
import os, sys, time
parent, end = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
print(flush=True)
while os.getppid() == parent and time.monotonic() < end:
    for _ in range(10**5):
        pass
"""


@contextmanager
def competing(count: int) -> Iterator[List[int]]:
    """``count`` processes that keep a core busy each until the block ends; gives their ids."""
    command = [sys.executable, "-I", "-S", "-c", _BUSY, str(os.getpid()), str(MOST_S)]
    with ExitStack() as stack:
        pids = []
        for _ in range(count):
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
            stack.enter_context(process)  # its pipe is closed
            stack.callback(process.wait)
            stack.callback(process.kill)  # the first of the three
            assert process.stdout is not None
            process.stdout.readline()  # it has started
            pids.append(process.pid)
        yield pids
