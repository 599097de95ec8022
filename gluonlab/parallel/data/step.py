"""One batch, data-parallel: forward and backward on shards, gradients summed, all updated.

The losses of a batch are added up, not averaged, and the update divides by the size of the whole
batch; so it does not matter how the batch was cut, and any batch size gives on k devices the update
that one device would make.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Iterator, List, Optional, Protocol, Sequence, Tuple

import mxnet as mx
from mxnet import autograd, gluon, nd

from gluonlab.data.loading.batch import Batch
from gluonlab.gpu.cuda import enable_peer_access
from gluonlab.kvstores.groups import ALONE, Group
from gluonlab.parallel.data.microbatches import WHOLE, LossSums, Microbatch, Microbatches
from gluonlab.parallel.data.replica import replicas
from gluonlab.parallel.data.staged import StagedReplicas
from gluonlab.parallel.data.statistics import RunningStatistics
from gluonlab.parallel.data.sync_bn import check_waits
from gluonlab.parallel.objective import constants_of
from gluonlab.parallel.precision import Conversion, as_it_is
from gluonlab.parallel.strategy import Around, Phase, Scored, queue_all
from gluonlab.update.loss_scale import LossScale
from gluonlab.update.trainer import BucketedTrainer


class Trained(Protocol):
    """A copy of a network, such as a `gluonlab.parallel.data.replica.Replica`."""

    @property
    def ctx(self) -> mx.Context:
        """The device on which its losses appear."""

    def forward(
        self, images: nd.NDArray, labels: nd.NDArray, train: bool = True, add: bool = False
    ) -> Tuple[nd.NDArray, nd.NDArray]:
        """As `Replica.forward`."""

    def backward(self, scale: float = 1.0) -> None:
        """As `Replica.backward`."""


class Statistics(Protocol):
    """Running statistics, such as `gluonlab.parallel.data.statistics.RunningStatistics`."""

    def saw(self, shards: Sequence[nd.NDArray]) -> None:
        """Note a batch: ``shards[i]`` are the images of copy i."""


class Updates(Protocol):
    """What sums gradients and updates, such as a `gluonlab.update.trainer.BucketedTrainer`."""

    @property
    def loss_scale(self) -> Optional[LossScale]:
        """What the loss is multiplied by."""

    def zero_grad(self, devices: Sequence[int]) -> None:
        """Set the gradients of these copies to zero."""

    def phases(self, batch_size: float) -> "Tuple[Phase, ...]":
        """``allreduce`` and ``update``."""


def _just(call: Callable[[], object]) -> object:
    return call()


class CopiesStep:
    """``step(batch)`` trains copies of a network on a batch; each shard's sum of losses.

    It waits for none of it.
    """

    def __init__(
        self,
        replicas: Sequence[Trained],
        trainer: Updates,
        microbatches: Microbatches,
        statistics: Statistics,
        staged: Optional[StagedReplicas] = None,
    ) -> None:
        """``replicas[i]`` trains on shard i; ``trainer`` sums and updates.

        ``staged``: trains them in their place.
        """
        self.replicas, self.trainer, self.microbatches = list(replicas), trainer, microbatches
        self.statistics, self.staged = statistics, staged
        self._sums = LossSums([replica.ctx for replica in replicas])
        self._losses: List[nd.NDArray] = []
        self._meeting: List[Any] = [each for each in replicas if hasattr(each, "meet")]

    def __call__(self, batch: Batch, around: Optional[Around] = None) -> List[nd.NDArray]:
        """The sum of losses (1,) of each shard; the next step overwrites them.

        ``around``: see `queue_all`.
        """
        if autograd.is_recording():
            with autograd.pause():  # which costs some microseconds
                return self(batch, around)
        if around is None or not self._meeting:
            queue_all(self.phases(batch), around)
            return self._losses
        self._watch(around)
        try:
            queue_all(self.phases(batch), around)
        finally:
            self._watch(None)
        return self._losses

    def _watch(self, around: Optional[Around]) -> None:
        """Show ``around`` the sums that are part of a pass, where replicas make some."""
        for replica in self._meeting:
            replica.meet = _just if around is None else partial(around, "allreduce")

    def phases(self, batch: Batch) -> Iterator[Phase]:
        """``forward`` and ``backward`` of each microbatch, ``allreduce``, ``update``.

        Call each before taking the next.
        """
        self._losses = []
        self.statistics.saw(batch.xs)
        rounds = self.microbatches.rounds(batch)
        for number, parts in enumerate(rounds):
            yield "forward", partial(self._forward, parts, number, len(rounds) > 1)
            yield "backward", partial(self._backward, parts)
        if len(batch.xs) < len(self.replicas):  # idle devices: their last gradients must not count
            self.trainer.zero_grad(range(len(batch.xs), len(self.replicas)))
        yield from self.trainer.phases(batch.size)  # executors set no flags of freshness

    def score(self, batch: Batch) -> Iterator[Scored]:
        """The scores of all shards, part by part, without training.

        Each is overwritten when the next is asked for.
        """
        for parts in self.microbatches.rounds(batch):
            for part in parts:
                replica = self.replicas[part.device]
                loss, scores = replica.forward(part.images, part.labels, train=False)
                yield Scored(part.device, loss, scores, part.labels)

    def _forward(self, parts: Sequence[Microbatch], number: int, several: bool) -> None:
        """Round ``number`` of the batch, which may have ``several``."""
        add = number > 0
        losses = (
            self.staged.forward(parts, add)
            if self.staged is not None
            else [
                self.replicas[device].forward(images, labels, add=add)[0]
                for device, images, labels in parts
            ]
        )
        if several:
            losses = [
                self._sums.add(part.device, loss, first=not add)
                for part, loss in zip(parts, losses)
            ]
        self._losses = self._losses or losses

    def _backward(self, parts: Sequence[Microbatch]) -> None:
        scale = self.trainer.loss_scale.value if self.trainer.loss_scale is not None else 1.0
        if self.staged is not None:
            self.staged.backward(scale)
        else:
            for device, _, _ in parts:
                self.replicas[device].backward(scale)


class DataParallelStep(CopiesStep):
    """`CopiesStep` of replicas that each have a device."""

    def __init__(
        self,
        net: gluon.HybridBlock,
        loss: gluon.HybridBlock,
        trainer: BucketedTrainer,
        ctxs: Sequence[mx.Context],
        preprocess: Callable[[Any, Any], Any],
        microbatches: Microbatches = WHOLE,
        sync_bn: bool = False,
        convert: Conversion = as_it_is,
        group: Group = ALONE,
    ) -> None:
        """``net`` is initialised on ``ctxs``, and ``preprocess(F, images)`` makes its input.

        All its shapes are known.
        ``sync_bn``: BatchNorm takes mean and variance of the images of all devices; without it, of
        each device's own. ``convert``: how the network computes (`gluonlab.parallel.precision`).
        The trainer's ``loss_scale`` is what the loss is multiplied by. ``group``: the processes
        whose running statistics are averaged; the trainer's kvstore sums over them.
        """
        enable_peer_access(ctxs)
        trainer.prepare()  # before the graphs are bound: it moves the parameters into buckets
        made = replicas(net, loss, preprocess, list(ctxs), convert)
        check_waits(made[0].graph, type(net).__name__, len(ctxs))
        params = {**net.collect_params(), **constants_of(loss)}
        staged = StagedReplicas(made[0].graph, params, ctxs) if sync_bn else None
        self.running = RunningStatistics(net, microbatches, sync_bn, group)
        super().__init__(made, trainer, microbatches, self.running, staged)
