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

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon, nd

from gluonlab.engine.invoke import Fence
from gluonlab.kvstores.groups import ALONE, Group
from gluonlab.parallel.data.microbatches import WHOLE, Microbatches
from gluonlab.parallel.data.running_variance import CudnnVariances


def graph_with_states(net: gluon.HybridBlock) -> Optional[mx.sym.Symbol]:
    """The network's graph, of images called "data", if it can have auxiliary states at all."""
    stateless = all(param.grad_req != "null" for param in net.collect_params().values())
    return None if stateless else net(mx.sym.var("data"))


class RunningStatistics:
    """The running statistics of a network: the auxiliary states of its graph."""

    def __init__(
        self,
        net: gluon.HybridBlock,
        cut: Microbatches = WHOLE,
        sync_bn: bool = False,
        group: Group = ALONE,
    ) -> None:
        """``cut``: how shards go through the network. ``group``: the processes that train it.

        ``sync_bn``: its statistics are those of `gluonlab.parallel.data.sync_bn`.
        """
        params, graph = net.collect_params(), graph_with_states(net)
        names = [] if graph is None else graph.list_auxiliary_states()
        self._params = [params[name] for name in names]
        self.exist = bool(names)
        self._images: List[int] = []  # that each device has trained on since the last `average`
        self._group = group
        self._flat: Optional[nd.NDArray] = None
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
                bounds = self._cut.bounds(len(shard))
                parts = [(end - begin, *shard.shape[1:]) for begin, end in bounds]
                self._cudnns[shard.context].before_step(parts)

    def average(self) -> None:
        """Give every device the average over all devices of all processes.

        It is weighted by the images that they saw. Nothing waits in a process alone.
        """
        for variances in self._cudnns.values():
            variances.settle()
        images, self._images = self._images, []
        devices = len(self._params[0].list_ctx()) if self.exist else 0
        if devices * self._group.size < 2:
            return
        seen = float(self._group.total(np.array([sum(images)]))[0])
        if not seen:
            return
        shares = [count / seen for count in images]
        parts = [_weighted(param.list_data(), shares) for param in self._params]
        for param, average in zip(self._params, self._over_group(parts)):
            for array in param.list_data():
                average.copyto(array)

    def state(
        self, grads: Sequence[Sequence[nd.NDArray]]
    ) -> "Tuple[Dict[str, nd.NDArray], Dict[str, Any]]":
        """Copies on the CPU of each device's statistics, and what was seen; nothing waits.

        ``grads[i]``: the gradients that device i writes, no two of them in one memory. MXNet's
        BatchNorm moves its statistics in backward without telling the engine, so that a copy must
        be told to come after it; the next forward comes after the copy.
        """
        for device, after in enumerate(grads if self.exist else ()):
            own = [param.list_data()[device] for param in self._params]
            Fence(own[0].context, after, own)()
        arrays = {
            f"running/{device}/{place}": array.copyto(mx.cpu())
            for place, param in enumerate(self._params)
            for device, array in enumerate(param.list_data())
        }
        counts: Dict[str, Any] = {"seen": list(self._images)} if self.exist else {}
        for device, variances in enumerate(self._cudnns.values()):
            start, counts[f"cudnn/{device}"] = variances.state()
            arrays.update({f"start/{device}/{place}": each for place, each in enumerate(start)})
        return arrays, counts

    def restore(self, arrays: Mapping[str, nd.NDArray], counts: Mapping[str, Any]) -> None:
        """Go on from a `state` of as many devices; of others from the average of theirs."""
        if not self.exist:
            return
        saved = [_numbered(arrays, f"running/{device}/") for device in range(_devices(arrays))]
        own, seen = len(self._params[0].list_ctx()), list(counts["seen"])
        if len(saved) != own:
            shares = np.array([*seen, *[0] * (len(saved) - len(seen))]) / max(1, sum(seen))
            shares = shares if sum(seen) else np.full(len(saved), 1 / len(saved))
            saved, seen = (
                [[_weighted(each, shares.tolist()) for each in zip(*saved)]] * own,
                [sum(seen)],
            )
        for device, of_device in enumerate(saved):
            for param, array in zip(self._params, of_device):
                array.copyto(param.list_data()[device])
        self._images = seen
        for device, variances in enumerate(self._cudnns.values()):
            if f"cudnn/{device}" in counts:
                start = _numbered(arrays, f"start/{device}/")
                variances.restore(start, counts[f"cudnn/{device}"])

    def _over_group(self, parts: List[nd.NDArray]) -> List[nd.NDArray]:
        """The sums of ``parts`` over the processes, which have them in one array for all."""
        if self._group.size == 1:
            return parts
        if self._flat is None:
            self._flat = nd.zeros((sum(part.size for part in parts),), ctx=parts[0].context)
        ends = np.cumsum([part.size for part in parts]).tolist()
        views = [self._flat[end - part.size : end] for part, end in zip(parts, ends)]
        for view, part in zip(views, parts):
            view[:] = part.reshape((-1,))
        self._group.allreduce([self._flat])
        return [view.reshape(part.shape) for view, part in zip(views, parts)]


def _devices(arrays: Mapping[str, nd.NDArray]) -> int:
    """Of how many devices there are running statistics."""
    return len({name.split("/")[1] for name in arrays if name.startswith("running/")})


def _numbered(arrays: Mapping[str, nd.NDArray], prefix: str) -> List[nd.NDArray]:
    """The arrays prefix0, prefix1, ..."""
    return [
        arrays[f"{prefix}{place}"]
        for place in range(sum(name.startswith(prefix) for name in arrays))
    ]


def _weighted(arrays: Sequence[nd.NDArray], shares: Sequence[float]) -> nd.NDArray:
    """The sum of arrays in these shares, on the first one's device; a device may have none."""
    first = arrays[0].context
    parts = [array.as_in_context(first) * share for array, share in zip(arrays, shares)]
    return nd.add_n(*parts) if parts else nd.zeros_like(arrays[0])
