"""One batch, data-parallel: a shard on each device, forward and backward there, gradients summed,
every replica updated.

The losses of a batch are added up, not averaged, and the update divides by the size of the whole
batch; so it does not matter how the batch was cut, and any batch size gives on k devices the update
that one device would make.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, List, Sequence

import mxnet as mx
from mxnet import gluon, nd

from gluonlab.gpu.peers import enable_peer_access
from gluonlab.parallel.data.microbatches import WHOLE, LossSums, Microbatches, Part
from gluonlab.parallel.data.replica import Replica, replicas
from gluonlab.parallel.data.staged import StagedReplicas
from gluonlab.parallel.precision import Conversion, as_it_is
from gluonlab.parallel.strategy import Scored
from gluonlab.update.trainer import BucketedTrainer


class DataParallelStep:
    """``step(xs, ys)`` trains on one batch and returns each shard's sum of losses, without waiting
    for any of it.
    """

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
    ) -> None:
        """``net`` is initialised on ``ctxs`` with all its shapes known; ``preprocess(F, images)``
        makes them its input.

        ``sync_bn``: BatchNorm takes mean and variance of the images of all devices; without it, of
        each device's own. ``convert``: how the network computes (`gluonlab.parallel.precision`).
        The trainer's ``loss_scale`` is what the loss is multiplied by.
        """
        enable_peer_access(ctxs)
        trainer.prepare()  # before the graphs are bound: it moves the parameters into buckets
        self.trainer = trainer
        self.replicas: List[Replica] = replicas(net, loss, preprocess, list(ctxs), convert)
        self.microbatches = microbatches
        params = dict(net.collect_params().items())
        self.staged = StagedReplicas(self.replicas[0].graph, params, ctxs) if sync_bn else None
        self._sums = LossSums(ctxs)

    def __call__(self, xs: Sequence[nd.NDArray], ys: Sequence[nd.NDArray]) -> List[nd.NDArray]:
        """``xs[i]``, ``ys[i]``: the shard of device i.

        The returned arrays (1,) are overwritten by the next step.
        """
        losses: List[nd.NDArray] = []
        rounds = list(self.microbatches.rounds(xs, ys))
        for number, parts in enumerate(rounds):
            found = self._forward(parts, add=number > 0)
            if len(rounds) > 1:
                found = [
                    self._sums.add(part.device, loss, first=number == 0)
                    for part, loss in zip(parts, found)
                ]
            self._backward(parts)
            losses = losses or found
        self._silence_idle(len(xs))
        self.trainer.apply(sum(len(x) for x in xs))  # executors set no flags of freshness
        return losses

    def score(self, xs: Sequence[nd.NDArray], ys: Sequence[nd.NDArray]) -> Iterator[Scored]:
        """The scores of all shards, part by part, without training.

        Each is overwritten when the next is asked for.
        """
        for parts in self.microbatches.rounds(xs, ys):
            for part in parts:
                loss, scores = self.replicas[part.device].forward(
                    part.images, part.labels, train=False
                )
                yield Scored(part.device, loss, scores, part.labels)

    def _forward(self, parts: Sequence[Part], add: bool) -> List[nd.NDArray]:
        """The sum of losses of each part."""
        if self.staged is not None:
            return self.staged.forward(parts, add)
        return [
            self.replicas[part.device].forward(part.images, part.labels, add=add)[0]
            for part in parts
        ]

    def _backward(self, parts: Sequence[Part]) -> None:
        scale = self.trainer.loss_scale.value if self.trainer.loss_scale is not None else 1.0
        if self.staged is not None:
            self.staged.backward(scale)
        else:
            for part in parts:
                self.replicas[part.device].backward(scale)

    def _silence_idle(self, busy: int) -> None:
        """A batch with fewer images than devices leaves some without a shard: their last gradients
        must not count again.
        """
        if busy < len(self.replicas):
            self.trainer.zero_grad(range(busy, len(self.replicas)))
