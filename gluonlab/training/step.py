"""One batch, data-parallel: a shard on each device, forward and backward there, gradients summed, every replica updated.

The losses of a batch are added up, not averaged, and the update divides by the size of the whole batch; so it does not matter
how the batch was cut, and any batch size gives on k devices the update that one device would make.
"""

from __future__ import annotations

from typing import Any, Callable, List, Sequence, Tuple

import mxnet as mx
from mxnet import gluon, nd

from gluonlab.training.buckets import BucketedTrainer
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
    ) -> None:
        """``net`` is initialised on ``ctxs`` with all its shapes known; ``preprocess(F, images)`` makes them its input."""
        trainer.prepare()  # before the graphs are bound: it moves the parameters into buckets
        self.trainer = trainer
        self.replicas: List[Replica] = replicas(net, loss, preprocess, list(ctxs))

    def __call__(self, xs: Sequence[nd.NDArray], ys: Sequence[nd.NDArray]) -> List[nd.NDArray]:
        """``xs[i]``, ``ys[i]``: the shard of device i. The returned arrays (1,) are overwritten by the next step."""
        busy = self.replicas[: len(xs)]
        losses = [replica.forward(x, y)[0] for replica, x, y in zip(busy, xs, ys)]
        for replica in busy:
            replica.backward()
        self._silence_idle(len(busy))
        self.trainer.step(sum(replica.shard_size for replica in busy))
        return losses

    def score(self, xs: Sequence[nd.NDArray], ys: Sequence[nd.NDArray]) -> List[Tuple[nd.NDArray, nd.NDArray]]:
        """Each shard's sum of losses and its scores, without training; overwritten by the next call."""
        return [replica.forward(x, y, train=False) for replica, x, y in zip(self.replicas, xs, ys)]

    def _silence_idle(self, busy: int) -> None:
        """A batch with fewer images than devices leaves some without a shard: their last gradients must not count again."""
        if busy < len(self.replicas):
            self.trainer.zero_grad(range(busy, len(self.replicas)))
