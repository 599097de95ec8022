"""The step of a trainer whose store updates: each device its own part of the parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, Sequence

import mxnet as mx

from gluonlab.optimizers.updates.key_update import foresee
from gluonlab.update.bucket import Bucket
from gluonlab.update.calls import Call
from gluonlab.update.fresh import Stale
from gluonlab.update.gaps import Gaps
from gluonlab.update.loss_scale import LossScale
from gluonlab.update.summed import SummedGradients

if TYPE_CHECKING:
    from gluonlab.kvstores.sharded import ShardedKVStore


class UpdateOnStore:
    """Has ``store`` sum the gradients of the buckets and update their weights.

    A bucket is updated as soon as it is summed, unless the first update depends on the sums of all:
    of ``clip_norm`` and ``loss_scale``, and where parameters differ in their counts of updates.
    """

    def __init__(
        self,
        store: "ShardedKVStore",
        calls: Sequence[Call],
        buckets: Sequence[Bucket],
        ctxs: Sequence[mx.Context],
        clip_norm: Optional[float],
        loss_scale: Optional[LossScale],
        gaps: Gaps,
    ) -> None:
        self._store, self._calls, self._buckets = store, calls, buckets
        self._ctxs, self._clip_norm, self._loss_scale = ctxs, clip_norm, loss_scale
        self._gaps, self._looks = gaps, clip_norm is not None or loss_scale is not None
        self._adds = any(bucket.adds for bucket in buckets)
        self._summed: Optional[SummedGradients] = None

    def run(self, optimizer: Any, stale: Stale, uneven: bool) -> None:
        """Queue a step that leaves ``stale.parameters`` as they are.

        ``uneven``: parameters may have been updated more often than others.
        """
        if self._looks or uneven:
            self._run_in_halves(optimizer, stale, uneven)
        else:
            for call in self._calls:
                call.run()

    def _run_in_halves(self, optimizer: Any, stale: Stale, uneven: bool) -> None:
        store: Any = self._store
        shards = [
            shard
            for call in self._calls
            for shard in store.reduce_scatter(
                call.key, call.grads, call.weights, call.priority, keep=self._adds
            )
        ]
        if self._summed is None:
            parts = [[part for part in shards if part.context == ctx] for ctx in self._ctxs]
            self._summed = SummedGradients(
                parts, self._ctxs, self._clip_norm, self._loss_scale, self._gaps, parts=True
            )
        if not self._summed.prepare(optimizer):
            return
        ranges = {key: each.ranges(stale.parameters) for key, each in enumerate(self._buckets)}
        if uneven:
            keys = [key for call in self._calls for key in store.keys_to_update(call.key, ranges)]
            foresee(optimizer, keys)
        for call in self._calls:
            store.update(call.key, priority=call.priority, stale=ranges)
