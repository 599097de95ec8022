"""gluonlab's own training, by the parts that `gluonlab.training.loop` is made of."""

from __future__ import annotations

import itertools
import time
from typing import Dict, Iterator

from mxnet import gluon, nd

from gluonlab.bench.work import GLOBAL_BATCH_SIZE, LEARNING_RATE, SAMPLES
from gluonlab.bench.worker import Job
from gluonlab.config import TrainConfig
from gluonlab.data.loader import Loader
from gluonlab.training.loop import data_parallel, make_net
from gluonlab.training.losses import LossLog
from gluonlab.training.plan import make_plan


def make(device_count: int, threads: int, global_batch_size: int = GLOBAL_BATCH_SIZE) -> Job:
    """LeNet on ``device_count`` CPU devices of ``threads`` threads each."""
    plan = make_plan(
        TrainConfig(
            devices=f"cpu*{device_count}",
            threads=threads,
            model="lenet",
            dataset="synthetic",
            global_batch_size=global_batch_size,
            optimizer="sgd",
            lr=LEARNING_RATE,
        )
    )
    assert len(plan.dataset.train) == SAMPLES
    step = data_parallel(make_net(plan), gluon.loss.SoftmaxCrossEntropyLoss(), plan)
    loader = Loader(plan.dataset.train, plan.ctxs, global_batch_size, raw=True, resident_bytes=plan.config.resident_bytes)
    log, batches = LossLog(plan.ctxs), _for_ever(loader)

    def run(steps: int) -> Dict[str, float]:
        began = time.perf_counter()
        for xs, ys in itertools.islice(batches, steps):
            log.append(step(xs, ys), sum(len(x) for x in xs))
        log.flush()
        nd.waitall()
        return {"seconds": time.perf_counter() - began}

    return run


def _for_ever(loader: Loader) -> "Iterator[tuple[list[nd.NDArray], list[nd.NDArray]]]":
    while True:  # an epoch after the other
        yield from loader
