"""Averages BatchNorm's running statistics over all devices, before evaluation and checkpoints.

In training every device normalizes with the statistics of its own shard, and keeps its own running
statistics. Without averaging, devices would evaluate differently from each other and from the saved
network. Each device is weighted by the number of images it has trained on since the last average,
so an idle device has no weight.

If all shards have the same size, the averaged means are the means of the whole batches. The
averaged variances are smaller than the variances of the whole batches, because they lack the
variance between the shards' means. But training also normalizes with the variances of shards.

cuDNN computes running variances with the denominator n - 1 instead of n. `CudnnVarianceCorrection`
corrects the variances.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd

from gluonlab.data.loading.split_batch import WHOLE_SHARDS, Microbatches
from gluonlab.engine.fast_invoke import order_between_passes
from gluonlab.kvstores.process_groups import SINGLE_PROCESS, ProcessGroup
from gluonlab.models.symbol_graph import Node, iterate_output_shapes, parse_graph


def stateful_graph(net: gluon.HybridBlock) -> Optional[mx.sym.Symbol]:
    """Return the network's graph with input "data", or None if it has no auxiliary states."""
    stateless = all(param.grad_req != "null" for param in net.collect_params().values())
    return None if stateless else net(mx.sym.var("data"))


class RunningStatistics:
    """Running statistics of a network: the auxiliary states of its graph."""

    def __init__(
        self,
        net: gluon.HybridBlock,
        microbatches: Microbatches = WHOLE_SHARDS,
        sync_bn: bool = False,
        group: ProcessGroup = SINGLE_PROCESS,
        copies: Optional[Sequence[Sequence[mx.Context]]] = None,
    ) -> None:
        """Find the running statistics of ``net``.

        Args:
            net: The network, with initialized parameters.
            microbatches: How shards are divided into microbatches in training.
            sync_bn: Whether `gluonlab.parallel.data.sync_bn` computes the batch statistics.
            group: The processes that train the network.
            copies: Devices of each replica of the network, if a replica has several devices.
        """
        params, graph = net.collect_params(), stateful_graph(net)
        names = [] if graph is None else graph.list_auxiliary_states()
        self._params = [params[name] for name in names]
        self.names, self.exist = names, bool(names)
        params_by_path = net._collect_params_with_prefix()
        paths = {param.name: path for path, param in params_by_path.items()}
        self._paths = [paths[name] for name in names]  # the same in every process, unlike names
        self._images: List[int] = []  # by device: images trained on since the last `average`
        self._group = group
        local_copies = len(self._params[0].list_ctx()) if self.exist else 0
        copies_by_rank = group.all_gather(np.array(local_copies)).astype(int).tolist()
        # Copies of the network are numbered over all processes.
        self._first_copy = sum(copies_by_rank[: group.rank])
        self._copy_count = sum(copies_by_rank)
        self._flat: Optional[nd.NDArray] = None
        self._microbatches = microbatches
        ctxs = self._params[0].list_ctx() if names and not sync_bn else []
        self._cudnn_corrections = {
            (copy, ctx): CudnnVarianceCorrection(graph, params, ctx)
            for copy, of_copy in enumerate(copies or [[ctx] for ctx in ctxs] if ctxs else ())
            for ctx in of_copy
            if ctx.device_type == "gpu"
        }

    def record_batch(self, shards: Sequence[nd.NDArray]) -> None:
        """Record that each device i is about to train on the images ``shards[i]``."""
        if not self.exist:
            return
        self._images += [0] * (len(shards) - len(self._images))
        for device, shard in enumerate(shards):
            self._images[device] += len(shard)
            if self._cudnn_corrections and len(shard):
                bounds = self._microbatches.bounds(len(shard))
                parts = [(end - begin, *shard.shape[1:]) for begin, end in bounds]
                for (copy, _), variances in self._cudnn_corrections.items():
                    if copy == device:
                        variances.record_step(parts)

    def average(self) -> None:
        """Set the statistics of every device to the average over all devices of all processes.

        Each device is weighted by the number of images it has trained on. If there is only one
        process, the call does not wait for the devices.
        """
        with order_between_passes(self._arrays()):
            self._queue_average()

    def _queue_average(self) -> None:
        """Queue the correction of cuDNN's variances, and the averaging over all devices."""
        for correction in self._cudnn_corrections.values():
            correction.correct_variances()
        images, self._images = self._images, []
        devices = len(self._params[0].list_ctx()) if self.exist else 0
        if devices * self._group.size < 2:
            return
        total = float(self._group.all_reduce_values(np.array([sum(images)]))[0])
        if not total:
            return
        weights = [count / total for count in images]
        local_sums = [_weighted_sum(param.list_data(), weights) for param in self._params]
        for param, average in zip(self._params, self._sum_over_processes(local_sums)):
            for array in param.list_data():
                average.copyto(array)

    def _arrays(self) -> List[nd.NDArray]:
        return [array for param in self._params for array in param.list_data()]

    def state(self) -> "Tuple[Dict[str, nd.NDArray], Dict[str, Any]]":
        """Return the running statistics as CPU arrays, and plain values such as image counts.

        Keys: "running/COPY/PATH", "start/COPY/PATH" (arrays), "seen/COPY" and "cudnn/COPY" (plain
        values), where COPY is the number of a replica and PATH the path of a parameter. Replicas
        are numbered over all processes, so that the states of all processes can be merged. The call
        does not wait for the devices.
        """
        with order_between_passes(self._arrays()):
            arrays = {
                f"running/{copy}/{path}": array.copyto(mx.cpu())
                for path, param in zip(self._paths, self._params)
                for copy, array in enumerate(param.list_data(), start=self._first_copy)
            }
        counts: Dict[str, Any] = {
            f"seen/{copy}": images for copy, images in enumerate(self._images, start=self._first_copy)
        }
        for (local_copy, _), correction in self._cudnn_corrections.items():
            copy = self._first_copy + local_copy
            start, counts[f"cudnn/{copy}"] = correction.state()
            paths = dict(zip(self.names, self._paths))
            arrays.update({f"start/{copy}/{paths[name]}": array for name, array in start.items()})
        return arrays, counts

    def restore(self, arrays: Mapping[str, nd.NDArray], counts: Mapping[str, Any]) -> None:
        """Restore the statistics from the results of `state`, merged over all processes.

        If the state was saved with another number of replicas, every replica starts with the
        average of the saved statistics.
        """
        if not self.exist:
            return
        copies = _saved_copies(arrays)
        saved = [[arrays[f"running/{copy}/{path}"] for path in self._paths] for copy in copies]
        seen = {copy: counts.get(f"seen/{copy}") for copy in copies}
        if len(saved) != self._copy_count:
            images = np.array([count or 0 for count in seen.values()])
            weights = images / images.sum() if images.any() else np.full(len(saved), 1 / len(saved))
            average = [_weighted_sum(of_copies, weights.tolist()) for of_copies in zip(*saved)]
            saved, seen = [average] * self._copy_count, {0: int(images.sum())}
        for param, *of_param in zip(self._params, *saved[self._first_copy :]):
            for array, target in zip(of_param, param.list_data()):
                array.copyto(target)
        last = self._first_copy + len(self._params[0].list_ctx())
        local_seen = (seen.get(copy) for copy in range(self._first_copy, last))
        self._images = [images for images in local_seen if images is not None]
        for (local_copy, _), correction in self._cudnn_corrections.items():
            copy = self._first_copy + local_copy
            if f"cudnn/{copy}" in counts:
                start = [arrays.get(f"start/{copy}/{path}") for path in self._paths]
                known = {n: array for n, array in zip(self.names, start) if array is not None}
                correction.restore(known, counts[f"cudnn/{copy}"])

    def _sum_over_processes(self, arrays: List[nd.NDArray]) -> List[nd.NDArray]:
        """Return the sum of each array over the processes, using one allreduce of a flat array."""
        if self._group.size == 1:
            return arrays
        if self._flat is None:
            self._flat = nd.zeros((sum(array.size for array in arrays),), ctx=arrays[0].context)
        ends = np.cumsum([array.size for array in arrays]).tolist()
        views = [self._flat[end - array.size : end] for array, end in zip(arrays, ends)]
        for view, array in zip(views, arrays):
            view[:] = array.reshape((-1,))
        self._group.allreduce([self._flat])
        return [view.reshape(array.shape) for view, array in zip(views, arrays)]


def _saved_copies(arrays: Mapping[str, nd.NDArray]) -> range:
    """Return the numbers of the replicas in a saved state."""
    return range(len({name.split("/")[1] for name in arrays if name.startswith("running/")}))


def _weighted_sum(arrays: Sequence[nd.NDArray], weights: Sequence[float]) -> nd.NDArray:
    """Return the weighted sum on the first array's device.

    If there are fewer weights than arrays, the last arrays are ignored.
    """
    first = arrays[0].context
    terms = [array.as_in_context(first) * weight for array, weight in zip(arrays, weights)]
    return nd.add_n(*terms) if terms else nd.zeros_like(arrays[0])


_IMAGES = "data"


class _Pass(NamedTuple):
    """A forward pass through a BatchNorm layer, which averages ``values`` values per channel."""

    momentum: float
    values: int


class CudnnVarianceCorrection:
    """Corrects cuDNN's running variances on one GPU, for a network or a part of it.

    Let n be the number of values per channel. MXNet's CPU operators and sync BatchNorm divide the
    sum of squares by n. cuDNN and PyTorch divide the sum by n - 1 (documentation of
    cudnnBatchNormalizationForwardTraining), so their variance is n / (n - 1) times as large. The
    difference matters for small batches of small images. This class restores the division by n.

    Steps need no extra computation. After k passes with the same n, the correct variance is

            m^k start + (n - 1) / n (running - m^k start)

    Here m is the layer's momentum, start the variance before these passes, and running cuDNN's
    variance. The variances are copied when n changes, for example at the last batch of an epoch.
    The variances are corrected when n changes again, or when the epoch ends. No call waits for the
    GPU.

    ``graph``: the network's graph, whose image input is named "data".
    """

    def __init__(self, graph: mx.sym.Symbol, params: "gluon.ParameterDict", ctx: mx.Context) -> None:
        nodes = parse_graph(graph)["nodes"]
        self._graph = graph
        all_layers = [(node, nodes[node["inputs"][4][0]]["name"]) for node in nodes if _runs_on_cudnn(node)]
        layers = [(node, name) for node, name in all_layers if ctx in params[name].list_ctx()]
        self._layers = [node for node, _ in layers]
        self._names = [name for _, name in layers]
        self._running = {name: params[name].data(ctx) for name in self._names}
        known = [name for name in graph.list_arguments() if name in params]
        self._shapes = {name: params[name].shape for name in known}
        self._start: Dict[str, nd.NDArray] = {}
        self._batch: Tuple[Tuple[int, ...], ...] = ()  # shapes of the microbatches of a step
        self._steps = 0
        self._pass_cache: Dict[Tuple[int, ...], Dict[str, List[_Pass]]] = {}

    def record_step(self, parts: Sequence[Tuple[int, ...]]) -> None:
        """Record that the next step trains on microbatches with the shapes ``parts``."""
        if tuple(parts) != self._batch:
            self.correct_variances()
            self._batch = tuple(parts)
            with autograd.pause(), order_between_passes(list(self._running.values())):
                self._start = {name: array.copy() for name, array in self._running.items()}
        self._steps += 1

    def correct_variances(self) -> None:
        """Correct the running variances.

        Call this method before the variances are read or changed.
        """
        if self._steps:
            with autograd.pause():
                for name, running in self._running.items():
                    passes = [one for shape in self._batch for one in self._passes_by_variance(shape)[name]]
                    _undo_cudnn_variance_factor(running, self._start[name], passes, self._steps)
        self._batch, self._start, self._steps = (), {}, 0

    def state(self) -> "Tuple[Dict[str, nd.NDArray], Dict[str, Any]]":
        """Return the initial variances, copied to the CPU, and the steps since then."""
        start = {name: array.copyto(mx.cpu()) for name, array in self._start.items()}
        return start, {"batch": [list(shape) for shape in self._batch], "steps": self._steps}

    def restore(self, initial_variances: Mapping[str, nd.NDArray], progress: Mapping[str, Any]) -> None:
        """Resume a correction that was pending when `state` was called.

        The arguments are the two results of `state`. Variances that are not on this GPU are
        ignored. ``progress`` contains "batch", the shapes of the microbatches, and "steps", the
        number of steps.
        """
        self._batch = tuple(tuple(shape) for shape in progress["batch"])
        self._steps = progress["steps"]
        self._start = {
            name: initial_variances[name].as_in_context(running.context)
            for name, running in self._running.items()
            if name in initial_variances
        }

    def _passes_by_variance(self, shape: Tuple[int, ...]) -> Dict[str, List[_Pass]]:
        """Return, for each running variance, the passes of a microbatch that update it.

        ``shape``: the shape of the microbatch. The keys are the names of the variances.
        """
        if shape not in self._pass_cache:
            outputs = iterate_output_shapes(self._graph, {**self._shapes, _IMAGES: shape})
            passes: Dict[str, List[_Pass]] = {name: [] for name in self._names}
            for node, name in zip(self._layers, self._names):
                output_name, attrs = f"{node['name']}_output", node.get("attrs", {})
                output_shape = next(shape for output, shape in outputs if output == output_name)
                values = math.prod(output_shape) // output_shape[int(attrs.get("axis", 1))]
                passes[name].append(_Pass(float(attrs.get("momentum", 0.9)), values))
            self._pass_cache[shape] = passes
        return self._pass_cache[shape]


def biased_variance_ratio(passes: Sequence[_Pass]) -> float:
    """Return (n - 1) / n, the ratio of the biased variance to cuDNN's unbiased variance.

    The ratio is exact if all passes have the same n, or equal variances. The ratio is 0 if every
    pass had a single value per channel, whose variance is 0.
    """
    biased = unbiased = 0.0
    for momentum, values in passes:
        biased, unbiased = biased * momentum, unbiased * momentum
        if values > 1:
            biased += 1 - momentum
            unbiased += (1 - momentum) * values / (values - 1)
    return biased / unbiased if unbiased else 0.0


def _undo_cudnn_variance_factor(running: nd.NDArray, start: nd.NDArray, passes: Sequence[_Pass], steps: int) -> None:
    """Convert cuDNN's variance ``running`` to the biased variance, in one operation.

    running = ratio * running + (1 - ratio) * decay * start. ``ratio`` is the result of
    `biased_variance_ratio`, and ``decay`` is the weight of ``start`` after ``steps`` steps.
    """
    ratio, decay = biased_variance_ratio(passes), math.prod(momentum for momentum, _ in passes) ** steps
    if not ratio:  # every pass had one value per channel, for which cuDNN may compute 0 / 0
        nd.sgd_update(start, start, lr=1, wd=1 - decay, rescale_grad=0, out=running)
        return
    # the update of SGD: weight -= lr * (wd * weight + rescale_grad * gradient)
    rescale = -(1 - ratio) * decay
    nd.sgd_update(running, start, lr=1, wd=1 - ratio, rescale_grad=rescale, out=running)


def _runs_on_cudnn(node: Node) -> bool:
    attrs = node.get("attrs", {})
    on_mxnet = any(attrs.get(name) in ("True", "1") for name in ("use_global_stats", "cudnn_off"))
    return bool(node["op"] == "BatchNorm" and not on_mxnet)
