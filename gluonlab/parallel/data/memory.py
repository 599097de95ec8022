"""Memory estimate of data parallelism, for each device."""

from __future__ import annotations

from typing import Dict, List, Tuple

import mxnet as mx
from mxnet import gluon

from gluonlab.models.rewrite_network import rewrite_graph
from gluonlab.parallel.compiled_graph import ArraySpecs, array_bytes
from gluonlab.parallel.data.replica import loss_graph
from gluonlab.parallel.memory_estimate import (
    MemoryEstimate,
    ShardSizes,
    UnboundGraph,
    input_specs,
    measure_scaled_bytes,
    parameter_bytes,
    unallocated_array,
)
from gluonlab.parallel.strategy import StrategyPlan
from gluonlab.parallel.training_loss import label_columns, loss_parameters

# Batches are multiplied until the plan of all stages has this many MiB, so that MXNet's rounding of
# each of 20 to 60 stages to whole MiB no longer matters.
MIN_SCALED_PLAN_MIB = 4096


class ReplicaMemory:
    """Estimates the memory of a device that holds a complete replica of ``net``."""

    def __init__(self, net: gluon.HybridBlock, loss: gluon.HybridBlock, plan: StrategyPlan) -> None:
        self.graph = loss_graph(net, loss, plan.preprocess, plan.conversion)
        self._plan, self._columns = plan, label_columns(loss)
        params = dict(net.collect_params().items())
        self._params = {**params, **loss_parameters(loss)}
        self._parameter_bytes = parameter_bytes(params.values(), plan.make_optimizer(), plan.kvstore, len(plan.ctxs))
        self._activations: Dict[Tuple[int, ...], int] = {}

    def estimate_memory(self, shards: ShardSizes) -> List[MemoryEstimate]:
        """Return a list with one estimate, because each replica of the network has one device."""
        images = shards.train_sizes[0]
        part = self._plan.microbatches.largest_part(images)
        # The first microbatch overwrites gradients, and later ones add to them. So there are two
        # graphs, each with arrays for images and labels.
        copies = 2 if part < images else 1
        inputs = copies * sum(map(array_bytes, self._input_specs(part).values()))
        return [MemoryEstimate(*self._parameter_bytes, self._activation_bytes(shards), inputs)]

    def _activation_bytes(self, shards: ShardSizes) -> int:
        """Return how many bytes the activations need on a device.

        The graphs of `GraphReplica` share one memory area, which is as large as the largest graph
        needs. With --sync-bn these graphs are only used for evaluation, and training additionally
        needs the graphs of `SyncBatchNormReplicas`.
        """
        largest_part = self._plan.microbatches.largest_part
        if not self._plan.sync_bn:
            return self._plan_activations(largest_part(shards.train_sizes[0]))
        scoring = self._plan_activations(max(map(largest_part, shards.score_sizes), default=0))
        return scoring + self._plan_staged_activations(*self._train_graph_sizes(shards))

    def _train_graph_sizes(self, shards: ShardSizes) -> List[int]:
        """Return the batch size of each graph that training binds, in descending order.

        A graph that accumulates gradients is bound separately from a graph that overwrites
        gradients.
        """
        cuts = (enumerate(self._plan.microbatches.bounds(share)) for share in shards.train_sizes)
        bound = {(end - begin, number > 0) for cut in cuts for number, (begin, end) in cut}
        return sorted((images for images, _ in bound), reverse=True)

    def _plan_activations(self, images: int) -> int:
        """Return the bytes that MXNet plans for the activations of a batch of ``images`` images."""
        if (images,) not in self._activations:
            graph = UnboundGraph(self.graph, self._params)
            self._activations[images,] = graph.activation_bytes(self._input_specs(images))
        return self._activations[images,]

    def _plan_staged_activations(self, *parts: int) -> int:
        """Return the bytes that MXNet plans for all graphs of `SyncBatchNormReplicas`.

        ``parts``: the number of images of each graph.
        """
        from gluonlab.parallel.data.sync_bn_replicas import estimate_stages_mib

        def plan_mib(factor: int) -> float:
            graphs = [self._rewritten_graph(part * factor) for part in parts]
            return estimate_stages_mib(graphs, self._params, unallocated_array)

        key = (0, *parts)
        if key not in self._activations:
            self._activations[key] = measure_scaled_bytes(MIN_SCALED_PLAN_MIB, plan_mib)
        return self._activations[key]

    def _input_specs(self, images: int) -> ArraySpecs:
        split = self._plan.parallelism
        return input_specs(images, split.image_shape, self._columns, split.image_dtype)

    def _rewritten_graph(self, images: int) -> Tuple[mx.sym.Symbol, ArraySpecs]:
        """Return the graph for ``images`` images, and the shapes and types of its arguments."""
        specs: ArraySpecs = {name: (param.shape, param.dtype) for name, param in self._params.items()}
        specs.update(self._input_specs(images))
        trained = {name for name, param in self._params.items() if param.grad_req != "null"}
        return rewrite_graph(self.graph, mx.cpu(), specs, trained, pad=False), specs
