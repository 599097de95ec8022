"""Data parallelism over processes that somebody else has started, on several hosts or on one, each
with the same settings.

All begin with the parameters of rank 0, take their part of every global batch, and make the same
update, that of one process with the whole batch. Rank 0 evaluates and writes, with the running
statistics of BatchNorm that its own images gave.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Deque, Dict, List, Sequence, Type, Union

import mxnet as mx
from mxnet import autograd, gluon, nd

from gluonlab.config import TrainConfig
from gluonlab.data.loading.batch import Batch
from gluonlab.data.loading.loader import Loader
from gluonlab.data.loading.pixels import make_input
from gluonlab.engine.neighbours import tell
from gluonlab.errors import ConfigError, EngineError
from gluonlab.finite import check_parameters, check_validation_loss
from gluonlab.launch.same_host import workers_here
from gluonlab.parallel.data.statistics import RunningStatistics
from gluonlab.parallel.strategy import Scored
from gluonlab.runs.schema import Epoch
from gluonlab.runs.writer import RunDirectory
from gluonlab.training.evaluate import evaluate, evaluation_loader
from gluonlab.training.network import make_net
from gluonlab.training.plan import make_plan
from gluonlab.training.recipes import QUICK


class ParameterServer:
    """Workers of MXNet's parameter server, whose addresses its launcher, or SageMaker's image, has
    put into the environment.

    A worker has the devices that its options name, and its part of the host's cores.
    Raises EngineError where nobody has started scheduler and servers.
    """

    def __init__(self) -> None:
        try:
            self.store = mx.kv.create("dist_sync")
        except mx.base.MXNetError:
            raise EngineError(
                "--backend parameter-server: nobody has told this process where the scheduler "
                "is: start it with MXNet's launch.py, or on SageMaker with "
                "sagemaker_parameter_server_enabled"
            ) from None
        self.rank, self.size = self.store.rank, self.store.num_workers
        tell(workers_here(self.store))  # before devices take threads, and decoders start

    def place(self, config: TrainConfig) -> TrainConfig:
        """The configuration of this worker: as it is."""
        return config

    def trainer(
        self, net: gluon.HybridBlock, optimizer: str, params: Dict[str, float]
    ) -> gluon.Trainer:
        """The servers sum, the devices update: what is sent is numbers, and no optimizer as a
        pickle.

        Returns when the parameters of rank 0 have arrived. Left to itself, the trainer asks for
        them in its first step, and sends the gradients without waiting. But a busy server may take
        the last message first (ThreadsafePQueue of ps-lite): it then answers with the sum of the
        gradients, which it keeps in the same place.
        """
        trainer = gluon.Trainer(
            net.collect_params(), optimizer, params, kvstore=self.store, update_on_kvstore=False
        )
        trainer._init_kvstore()
        trainer._init_params()
        nd.waitall()
        return trainer

    def step(self, trainer: gluon.Trainer, images: int) -> None:
        """One update with the gradients of a global batch of so many images."""
        trainer.step(images)


class Horovod:
    """Processes of horovodrun or mpirun, one for each device.

    Raises EngineError where Horovod is not installed.
    """

    def __init__(self) -> None:
        try:
            import horovod.mxnet as hvd
        except ImportError as error:
            raise EngineError(
                f"--backend horovod: Horovod for MXNet cannot be imported ({error}): "
                "install it, as it is in SageMaker's image"
            ) from None
        hvd.init()
        self.hvd = hvd
        self.rank, self.size = hvd.rank(), hvd.size()
        tell(hvd.local_size())

    def place(self, config: TrainConfig) -> TrainConfig:
        """The device with this process's number on its host; on a host without GPUs one CPU
        device.
        """
        if config.devices is not None or config.gpus not in (None, 1):
            raise ConfigError(
                "--backend horovod gives each process one device: leave --gpus and --devices out"
            )
        device = f"gpu:{self.hvd.local_rank()}" if mx.context.num_gpus() else "cpu*1"
        return config.replace(gpus=None, devices=device)

    def trainer(
        self, net: gluon.HybridBlock, optimizer: str, params: Dict[str, float]
    ) -> gluon.Trainer:
        """Horovod's own trainer, and the parameters of rank 0 for all."""
        self.hvd.broadcast_parameters(net.collect_params(), root_rank=0)
        return self.hvd.DistributedTrainer(net.collect_params(), optimizer, params)

    def step(self, trainer: gluon.Trainer, images: int) -> None:
        """One update with the gradients of a global batch of so many images; that trainer divides
        by the processes by itself.
        """
        trainer.step(images / self.size)


STEPS_AHEAD = 8  # of the devices: what is queued takes memory

BACKENDS: "Dict[str, Type[Union[ParameterServer, Horovod]]]" = {
    "parameter-server": ParameterServer,
    "horovod": Horovod,
}


def train_on_hosts(
    config: TrainConfig, group: "ParameterServer | Horovod"
) -> "Dict[str, Any] | None":
    """Train as ``config`` says, ``group`` being this process's part in it; rank 0 returns the last
    epoch's figures.

    ``config.batch_size`` is per device, as ever; the learning rate is that of the global batch.
    Raises the errors of make_plan.
    """
    # other recipes have schedules and crops, of which this loop knows nothing; and these trainers
    # are given single parameters
    config = group.place(config).replace(recipe=QUICK, bucket_bytes=0)
    plan = make_plan(config)
    global_batch_size = config.global_batch_size or plan.global_batch_size * group.size
    net = make_net(plan)
    net.hybridize(static_alloc=True)
    replicas = Replicas(net, plan.ctxs, make_input(plan.dataset.colours))
    run = (
        RunDirectory.create(plan.out, f"{plan.model}-{plan.dataset.name}")
        if group.rank == 0
        else None
    )
    trainer = group.trainer(net, plan.optimizer, plan.optimizer_params)
    loader = Loader(
        plan.dataset.train,
        plan.ctxs,
        global_batch_size,
        plan.seed,
        group.rank,
        group.size,
        raw=True,
    )
    images, result = len(plan.dataset.train), None
    if run is not None:
        settings = {
            **plan.settings(),
            "global_batch_size": global_batch_size,
            "processes": group.size,
        }
        run.describe(config.to_dict(), settings=settings)
    for epoch in range(1, plan.epochs + 1):
        began = time.perf_counter()
        for batch in loader:
            replicas.gradients(batch)
            group.step(trainer, batch.size)
        nd.waitall()
        seconds = time.perf_counter() - began
        replicas.statistics.average()
        # on every rank: all end, and none waits for the others
        check_parameters(net, f"after epoch {epoch}")
        if run is not None:
            score = evaluate(
                replicas, evaluation_loader(plan, plan.ctxs), len(plan.dataset.classes)
            )
            check_validation_loss(score.loss, f"after epoch {epoch}", replicas.statistics.exist)
            result = {
                "epoch": epoch,
                "accuracy": score.accuracy,
                "images_per_second": images / seconds,
                "processes": group.size,
            }
            run.parameters(net)
            # nothing here adds up the training losses
            done = Epoch(
                epoch, epoch * len(loader), images, seconds, score.loss, score.accuracy, score.loss
            )
            run.write(done)
            speed = f"{images / seconds:,.0f} images/s"
            print(
                f"epoch {epoch}/{plan.epochs}  {speed}  validation accuracy {score.accuracy:.4f}",
                flush=True,
            )
    if run is not None:
        run.close()
    return result


class Replicas:
    """A network on the devices of this process."""

    def __init__(self, net: gluon.HybridBlock, ctxs: Sequence[mx.Context], prepare: Any) -> None:
        self.net, self.outputs, self.prepare = net, list(ctxs), prepare
        self.loss, self.statistics = gluon.loss.SoftmaxCrossEntropyLoss(), RunningStatistics(net)
        self.queued: "Deque[List[nd.NDArray]]" = deque()
        self.learned = [
            param for param in net.collect_params().values() if param.grad_req != "null"
        ]

    def gradients(self, batch: Batch) -> None:
        """The sums over the images of each shard; zero on devices without one, where the last ones
        would be added again.
        """
        xs, ys = batch
        self.statistics.saw(xs)
        with autograd.record():
            losses = [self.loss(self.net(self.prepare(nd, x)), y) for x, y in zip(xs, ys)]
        if losses:  # a small last batch has no part for the last ones
            autograd.backward(losses)
        self.queued.append(losses)
        for loss in self.queued.popleft() if len(self.queued) > STEPS_AHEAD else ():
            loss.wait_to_read()
        for ctx in self.outputs[len(xs) :]:
            for param in self.learned:
                param.grad(ctx)[:] = 0

    def score(self, batch: Batch) -> "List[Scored]":
        """What the network makes of the shards of a batch."""
        xs, ys = batch
        outputs = [self.net(self.prepare(nd, x)) for x in xs]
        return [
            Scored(i, self.loss(scores, y).sum(), scores, y)
            for i, (scores, y) in enumerate(zip(outputs, ys))
        ]
