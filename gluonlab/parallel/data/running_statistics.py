"""BatchNorm's running statistics: one set for all devices.

While a network trains, every device normalises with the statistics of its own shard, and keeps
running ones of its own. Left alone, each device would evaluate with others, and none with those
that are saved. So they are averaged over the devices before anything is evaluated or saved, each
weighted by the images that its device has seen since: one that was idle has nothing to say.

The average of the running means is that of the whole batches (when the shards are of one size). The
average of the running variances is that of the shards, which on average is smaller than the whole
batch's: it lacks how much the shards' means differ. It is what normalisation in shards of this size
sees, as on one device with a batch of a shard's size."""

from __future__ import annotations

import math
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd

from gluonlab.engine.fast_invoke import order_between_passes
from gluonlab.kvstores.process_groups import ALONE, Group
from gluonlab.models.symbol_graph import Node, outputs_in, parsed
from gluonlab.parallel.data.microbatches import WHOLE, Microbatches


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
        copies: Optional[Sequence[Sequence[mx.Context]]] = None,
    ) -> None:
        """``cut``: how shards go through the network. ``group``: the processes that train it.

        ``sync_bn``: its statistics are those of `gluonlab.parallel.data.sync_bn`. ``copies``: the
        devices of each copy of the network, where it lies on several.
        """
        params, graph = net.collect_params(), graph_with_states(net)
        names = [] if graph is None else graph.list_auxiliary_states()
        self._params = [params[name] for name in names]
        self.names, self.exist = names, bool(names)
        whole = net._collect_params_with_prefix()
        places = {param.name: place for place, param in whole.items()}
        self._places = [places[name] for name in names]  # the same in every process, unlike names
        self._images: List[int] = []  # that each device has trained on since the last `average`
        self._group = group
        own = len(self._params[0].list_ctx()) if self.exist else 0
        everyones = group.everyones(np.array(own)).astype(int).tolist()
        # the first of this process's copies of the network among those of all, and their number
        self._first, self._everywhere = sum(everyones[: group.rank]), sum(everyones)
        self._flat: Optional[nd.NDArray] = None
        self._cut, ctxs = cut, self._params[0].list_ctx() if names and not sync_bn else []
        self._cudnns = {
            (copy, ctx): CudnnVariances(graph, params, ctx)
            for copy, of_copy in enumerate(copies or [[ctx] for ctx in ctxs] if ctxs else ())
            for ctx in of_copy
            if ctx.device_type == "gpu"
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
                for (copy, _), variances in self._cudnns.items():
                    if copy == device:
                        variances.before_step(parts)

    def average(self) -> None:
        """Give every device the average over all devices of all processes.

        It is weighted by the images that they saw. Nothing waits in a process alone.
        """
        with order_between_passes(self._arrays()):
            self._average()

    def _average(self) -> None:
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

    def _arrays(self) -> List[nd.NDArray]:
        return [array for param in self._params for array in param.list_data()]

    def state(self) -> "Tuple[Dict[str, nd.NDArray], Dict[str, Any]]":
        """Copies on the CPU of each copy's statistics, by place, and what was seen; nothing waits.

        Copies have their numbers among those of all processes, whose states can so be united.
        """
        with order_between_passes(self._arrays()):
            arrays = {
                f"running/{copy}/{place}": array.copyto(mx.cpu())
                for place, param in zip(self._places, self._params)
                for copy, array in enumerate(param.list_data(), start=self._first)
            }
        counts: Dict[str, Any] = {
            f"seen/{copy}": images for copy, images in enumerate(self._images, start=self._first)
        }
        for (own_copy, _), variances in self._cudnns.items():
            copy = self._first + own_copy
            start, counts[f"cudnn/{copy}"] = variances.state()
            places = dict(zip(self.names, self._places))
            arrays.update({f"start/{copy}/{places[name]}": each for name, each in start.items()})
        return arrays, counts

    def restore(self, arrays: Mapping[str, nd.NDArray], counts: Mapping[str, Any]) -> None:
        """Go on from the `state` of all processes, of as many copies in all.

        Of others it is the average of theirs.
        """
        if not self.exist:
            return
        copies, own = _copies(arrays), len(self._params[0].list_ctx())
        saved = [[arrays[f"running/{copy}/{place}"] for place in self._places] for copy in copies]
        seen = {copy: counts.get(f"seen/{copy}") for copy in copies}
        if len(saved) != self._everywhere:
            images = np.array([count or 0 for count in seen.values()])
            shares = images / images.sum() if images.any() else np.full(len(saved), 1 / len(saved))
            average = [_weighted(each, shares.tolist()) for each in zip(*saved)]
            saved, seen = [average] * self._everywhere, {0: int(images.sum())}
        for param, *of_param in zip(self._params, *saved[self._first :]):
            for array, target in zip(of_param, param.list_data()):
                array.copyto(target)
        counted = (seen.get(copy) for copy in range(self._first, self._first + own))
        self._images = [images for images in counted if images is not None]
        for (own_copy, _), variances in self._cudnns.items():
            copy = self._first + own_copy
            if f"cudnn/{copy}" in counts:
                start = [arrays.get(f"start/{copy}/{place}") for place in self._places]
                known = {n: array for n, array in zip(self.names, start) if array is not None}
                variances.restore(known, counts[f"cudnn/{copy}"])

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


def _copies(arrays: Mapping[str, nd.NDArray]) -> range:
    """Of which copies of the network there are running statistics."""
    return range(len({name.split("/")[1] for name in arrays if name.startswith("running/")}))


def _weighted(arrays: Sequence[nd.NDArray], shares: Sequence[float]) -> nd.NDArray:
    """The sum of arrays in these shares, on the first one's device; a device may have none."""
    first = arrays[0].context
    parts = [array.as_in_context(first) * share for array, share in zip(arrays, shares)]
    return nd.add_n(*parts) if parts else nd.zeros_like(arrays[0])


_IMAGES = "data"


class _Pass(NamedTuple):
    """A batch in a BatchNorm layer: the layer's momentum, and the values of each channel."""

    momentum: float
    values: int


class CudnnVariances:
    """Puts right what cuDNN keeps as running variances of a network, or its part, on one GPU.

    Of n values per channel MXNet's CPU operators, and sync BatchNorm, keep the sum of squares
    divided by n; so does evaluation then what training did. cuDNN keeps it divided by n - 1 (its
    documentation of cudnnBatchNormalizationForwardTraining; PyTorch, too), which is n / (n - 1)
    times as much: a lot where a device has few images of few pixels. Here cuDNN's is brought back.

    Nothing is computed in a step for that. While every pass has the same n, after k of them

        running = m^k start + n / (n - 1) (running with n - m^k start)

    where m is the layer's momentum and start what there was before. So the variances are remembered
    when n changes, which is at the last batch of an epoch, and put right when it changes again, or
    the epoch ends.

    ``graph``: the network's, of the images called "data". Raises nothing; its work is queued, and
    nothing waits.
    """

    def __init__(
        self, graph: mx.sym.Symbol, params: "gluon.ParameterDict", ctx: mx.Context
    ) -> None:
        nodes = parsed(graph)["nodes"]
        self._graph = graph
        layers = [(node, nodes[node["inputs"][4][0]]["name"]) for node in nodes if _is_cudnns(node)]
        here = [(node, name) for node, name in layers if ctx in params[name].list_ctx()]
        self._layers = [node for node, _ in here]
        self._names = [name for _, name in here]
        self._running = {name: params[name].data(ctx) for name in self._names}
        known = [name for name in graph.list_arguments() if name in params]
        self._shapes = {name: params[name].shape for name in known}
        self._start: Dict[str, nd.NDArray] = {}
        self._batch: Tuple[Tuple[int, ...], ...] = ()  # the shapes of the parts of a step
        self._steps = 0
        self._seen: Dict[Tuple[int, ...], Dict[str, List[_Pass]]] = {}

    def before_step(self, parts: Sequence[Tuple[int, ...]]) -> None:
        """Note that the network is about to be trained on parts (n, C, H, W) of these shapes."""
        if tuple(parts) != self._batch:
            self.settle()
            self._batch = tuple(parts)
            with autograd.pause(), order_between_passes(list(self._running.values())):
                self._start = {name: array.copy() for name, array in self._running.items()}
        self._steps += 1

    def settle(self) -> None:
        """Have the variances right, as they are to be read or changed by others."""
        if self._steps:
            with autograd.pause():
                for name, running in self._running.items():
                    passes = [seen for shape in self._batch for seen in self._passes(shape)[name]]
                    _put_right(running, self._start[name], passes, self._steps)
        self._batch, self._start, self._steps = (), {}, 0

    def state(self) -> "Tuple[Dict[str, nd.NDArray], Dict[str, Any]]":
        """What it remembers: the variances there were before, copied to the CPU, and since when."""
        start = {name: array.copyto(mx.cpu()) for name, array in self._start.items()}
        return start, {"batch": [list(shape) for shape in self._batch], "steps": self._steps}

    def restore(self, start: Mapping[str, nd.NDArray], counts: Mapping[str, Any]) -> None:
        """Go on from a `state`, whose ``start`` may know more variances than are here."""
        self._batch = tuple(tuple(shape) for shape in counts["batch"])
        self._steps = counts["steps"]
        self._start = {
            name: start[name].as_in_context(running.context)
            for name, running in self._running.items()
            if name in start
        }

    def _passes(self, shape: Tuple[int, ...]) -> Dict[str, List[_Pass]]:
        """For each running variance, the passes through its layers in a part of this shape."""
        if shape not in self._seen:
            outputs = outputs_in(self._graph, {**self._shapes, _IMAGES: shape})
            found: Dict[str, List[_Pass]] = {name: [] for name in self._names}
            for node, name in zip(self._layers, self._names):
                own, attrs = f"{node['name']}_output", node.get("attrs", {})
                seen = next(made for output, made in outputs if output == own)
                values = math.prod(seen) // seen[int(attrs.get("axis", 1))]
                found[name].append(_Pass(float(attrs.get("momentum", 0.9)), values))
            self._seen[shape] = found
        return self._seen[shape]


def kept_share(passes: Sequence[_Pass]) -> float:
    """The ratio of the passes' variances, divided by n, to cuDNN's; 0 where it has none to divide.

    Exact where all have the same n; else that of passes which vary equally. The variance of one
    value is 0 either way.
    """
    plain = unbiased = 0.0
    for momentum, values in passes:
        plain, unbiased = plain * momentum, unbiased * momentum  # earlier ones fade
        if values > 1:
            plain += 1 - momentum
            unbiased += (1 - momentum) * values / (values - 1)
    return plain / unbiased if unbiased else 0.0


def _put_right(running: nd.NDArray, start: nd.NDArray, passes: Sequence[_Pass], steps: int) -> None:
    """running = share * running + (1 - share) * faded * start, in one operation."""
    share, faded = kept_share(passes), math.prod(momentum for momentum, _ in passes) ** steps
    if not share:  # nothing but 0 came, whatever cuDNN makes of 0 / 0
        nd.sgd_update(start, start, lr=1, wd=1 - faded, rescale_grad=0, out=running)
        return
    # the update of SGD: weight -= lr * (wd * weight + rescale_grad * gradient)
    rescale = -(1 - share) * faded
    nd.sgd_update(running, start, lr=1, wd=1 - share, rescale_grad=rescale, out=running)


def _is_cudnns(node: Node) -> bool:
    attrs = node.get("attrs", {})
    mxnets = any(attrs.get(name) in ("True", "1") for name in ("use_global_stats", "cudnn_off"))
    return bool(node["op"] == "BatchNorm" and not mxnets)
