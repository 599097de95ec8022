"""BatchNorm's running statistics: one set for all devices.

While a network trains, every device normalises with the statistics of its own shard, and keeps
running ones of its own. Left alone, each device would evaluate with others, and none with those
that are saved. So they are averaged over the devices before anything is evaluated or saved, each
weighted by the images that its device has seen since: one that was idle has nothing to say.

The average of the running means is that of the whole batches (when the shards are of one size). The
average of the running variances is that of the shards, which on average is smaller than the whole
batch's: it lacks how much the shards' means differ. It is what normalisation in shards of this size
sees, as on one device with a batch of a shard's size.
"""

from __future__ import annotations

from typing import List, Sequence

import mxnet as mx
from mxnet import gluon, nd

from gluonlab.parallel.data.microbatches import WHOLE, Microbatches
from gluonlab.parallel.data.running_variance import CudnnVariances


class RunningStatistics:
    """What the operators of a network keep for themselves on each device (the auxiliary states of
    its graph).
    """

    def __init__(
        self, net: gluon.HybridBlock, cut: Microbatches = WHOLE, sync_bn: bool = False
    ) -> None:
        """``cut``: how shards go through the network.

        ``sync_bn``: its statistics are those of `gluonlab.parallel.data.sync_bn`.
        """
        params = net.collect_params()
        # spares writing the graph down
        stateless = all(param.grad_req != "null" for param in params.values())
        graph = None if stateless else net(mx.sym.var("data"))
        names = [] if graph is None else graph.list_auxiliary_states()
        self._params = [params[name] for name in names]
        self.exist = bool(names)
        self._images: List[int] = []  # that each device has trained on since the last `average`
        self._cut, ctxs = cut, self._params[0].list_ctx() if names and not sync_bn else []
        self._cudnns = {
            ctx: CudnnVariances(graph, params, ctx) for ctx in ctxs if ctx.device_type == "gpu"
        }

    def saw(self, shards: Sequence[nd.NDArray]) -> None:
        """Note a batch: ``shards[i]`` are the images that device i is about to be trained on."""
        if not self.exist:
            return
        self._images += [0] * (len(shards) - len(self._images))
        for device, shard in enumerate(shards):
            self._images[device] += len(shard)
            if self._cudnns and len(shard):
                parts = [
                    (end - begin, *shard.shape[1:]) for begin, end in self._cut.bounds(len(shard))
                ]
                self._cudnns[shard.context].before_step(parts)

    def average(self) -> None:
        """Give every device the average over all devices, weighted by the images that they saw;
        nothing waits.
        """
        for variances in self._cudnns.values():
            variances.settle()
        shares = [images / sum(self._images) for images in self._images]
        for param in self._params if shares else ():
            arrays = param.list_data()
            if len(arrays) > 1:
                average = nd.add_n(
                    *[
                        array.as_in_context(arrays[0].context) * share
                        for array, share in zip(arrays, shares)
                    ]
                )
                for array in arrays:
                    average.copyto(array)
        self._images = []
