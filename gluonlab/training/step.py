"""One batch, data-parallel: a shard on each device, forward and backward there, gradients summed, every replica updated.

The losses of a batch are added up, not averaged, and the update divides by the size of the whole batch; so it does not matter
how the batch was cut, and any batch size gives on k devices the update that one device would make.
"""

from __future__ import annotations

from typing import Any, Callable, List, Sequence, Tuple

import mxnet as mx
from mxnet import gluon, nd

from gluonlab.training.accumulate import WHOLE, Microbatches, Part, PartSums
from gluonlab.training.buckets import BucketedTrainer
from gluonlab.training.joint import JointReplicas
from gluonlab.training.replica import Replica, replicas


class DataParallelStep:
    """``step(xs, ys)`` trains on one batch and returns each shard's sum of losses, without waiting for any of it."""

    def __init__(
        self,
        net: gluon.HybridBlock,
        loss: gluon.HybridBlock,
        trainer: BucketedTrainer,
        ctxs: Sequence[mx.Context],
        preprocess: Callable[[Any, Any], Any],
        microbatches: Microbatches = WHOLE,
        sync_bn: bool = False,
    ) -> None:
        """``net`` is initialised on ``ctxs`` with all its shapes known; ``preprocess(F, images)`` makes them its input.

        ``sync_bn``: BatchNorm takes mean and variance of the images of all devices; without it, of each device's own.
        """
        trainer.prepare()  # before the graphs are bound: it moves the parameters into buckets
        self.trainer = trainer
        self.replicas: List[Replica] = replicas(net, loss, preprocess, list(ctxs))
        self.microbatches = microbatches
        self.joint = JointReplicas(self.replicas[0].graph, dict(net.collect_params().items()), ctxs) if sync_bn else None
        self._sums = PartSums(ctxs)

    def __call__(self, xs: Sequence[nd.NDArray], ys: Sequence[nd.NDArray]) -> List[nd.NDArray]:
        """``xs[i]``, ``ys[i]``: the shard of device i. The returned arrays (1,) are overwritten by the next step."""
        scores = self._run(xs, ys, train=True)
        self._silence_idle(len(xs))
        self.trainer.step(sum(len(x) for x in xs))
        return [loss for loss, _ in scores]

    def score(self, xs: Sequence[nd.NDArray], ys: Sequence[nd.NDArray]) -> List[Tuple[nd.NDArray, nd.NDArray]]:
        """Each shard's sum of losses and number of correct answers, without training; overwritten by the next call."""
        return self._run(xs, ys, train=False)

    def _run(self, xs: Sequence[nd.NDArray], ys: Sequence[nd.NDArray], train: bool) -> List[Tuple[nd.NDArray, nd.NDArray]]:
        """All shards, microbatch by microbatch: forward, and backward when training."""
        scores: List[Tuple[nd.NDArray, nd.NDArray]] = []
        rounds = list(self.microbatches.rounds(xs, ys))
        for number, parts in enumerate(rounds):
            found = self._forward(parts, train, add=train and number > 0)
            if len(rounds) > 1:
                found = [self._sums.add(part.device, score, first=number == 0) for part, score in zip(parts, found)]
            if train:
                self._backward(parts)
            scores = scores or found
        return scores

    def _forward(self, parts: Sequence[Part], train: bool, add: bool) -> List[Tuple[nd.NDArray, nd.NDArray]]:
        if self.joint is not None and train:
            return self.joint.forward(parts, add)
        return [self.replicas[part.device].forward(part.images, part.labels, train, add) for part in parts]

    def _backward(self, parts: Sequence[Part]) -> None:
        if self.joint is not None:
            self.joint.backward()
        else:
            for part in parts:
                self.replicas[part.device].backward()

    def _silence_idle(self, busy: int) -> None:
        """A batch with fewer images than devices leaves some without a shard: their last gradients must not count again."""
        if busy < len(self.replicas):
            self.trainer.zero_grad(range(busy, len(self.replicas)))
