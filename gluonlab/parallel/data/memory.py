"""What data parallelism takes on each device, planned."""

from __future__ import annotations

from typing import Dict, List, Tuple

import mxnet as mx
from mxnet import gluon

from gluonlab.models.rewrite_network import rewrite_graph
from gluonlab.parallel.compiled_graph import Kinds, bytes_of
from gluonlab.parallel.data.replica import loss_graph
from gluonlab.parallel.memory_estimate import (
    Graph,
    ShardSizes,
    Taken,
    divided,
    input_kinds,
    of_parameters,
    without_memory,
)
from gluonlab.parallel.strategy import StrategyPlan
from gluonlab.parallel.training_loss import constants_of, label_columns

PRECISE_MIB_OF_STAGES = 4096  # where MXNet tells whole MiB of each of some 20 to 60 stages


class ReplicaMemory:
    """Tells what each device takes that has all of ``net``, wherever its parameters are now."""

    def __init__(self, net: gluon.HybridBlock, loss: gluon.HybridBlock, plan: StrategyPlan) -> None:
        self.graph = loss_graph(net, loss, plan.preprocess, plan.conversion)
        self._plan, self._columns = plan, label_columns(loss)
        own = dict(net.collect_params().items())
        self._params = {**own, **constants_of(loss)}
        self._always = of_parameters(
            own.values(), plan.make_optimizer(), plan.kvstore, len(plan.ctxs)
        )
        self._activations: Dict[Tuple[int, ...], int] = {}

    def taken(self, shards: ShardSizes) -> List[Taken]:
        """As `gluonlab.parallel.strategy.Strategy` says."""
        images = shards.trained[0]
        part = self._plan.microbatches.largest(images)
        # of two or more parts, the first and the others have graphs with inputs of their own
        copies = 2 if part < images else 1
        inputs = copies * sum(map(bytes_of, self._inputs(part).values()))
        return [Taken(*self._always, self._activation_bytes(shards), inputs)]

    def _activation_bytes(self, shards: ShardSizes) -> int:
        """The bytes of activations on a device.

        Its own graphs, `GraphReplica`'s, share the memory of the largest. With --sync-bn they only
        evaluate, and training has others, `StagedReplicas`'.
        """
        largest = self._plan.microbatches.largest
        if not self._plan.sync_bn:
            return self._planned(largest(shards.trained[0]))
        evaluated = max(map(largest, shards.scored), default=0)
        return self._planned(evaluated) + self._planned_in_stages(*self._parts(shards))

    def _parts(self, shards: ShardSizes) -> List[int]:
        """The images of each graph that training binds.

        Where gradients add to those of parts before, it is a graph of its own.
        """
        cuts = (enumerate(self._plan.microbatches.bounds(share)) for share in shards.trained)
        bound = {(end - begin, number > 0) for cut in cuts for number, (begin, end) in cut}
        return sorted((part for part, _ in bound), reverse=True)

    def _planned(self, images: int) -> int:
        """MXNet's plan of one graph, in bytes."""
        if (images,) not in self._activations:
            graph = Graph(self.graph, self._params)
            self._activations[images,] = graph.activations(self._inputs(images))
        return self._activations[images,]

    def _planned_in_stages(self, *parts: int) -> int:
        """The same for all graphs of `StagedReplicas`, each of many stages."""
        from gluonlab.parallel.data.sync_bn_replicas import planned_mib

        def told(times: int) -> float:
            fit = [self._fitted(part * times) for part in parts]
            return planned_mib(fit, self._params, without_memory)

        key = (0, *parts)
        if key not in self._activations:
            self._activations[key] = divided(PRECISE_MIB_OF_STAGES, told)
        return self._activations[key]

    def _inputs(self, images: int) -> Kinds:
        split = self._plan.split
        return input_kinds(images, split.image_shape, self._columns, split.image_dtype)

    def _fitted(self, images: int) -> Tuple[mx.sym.Symbol, Kinds]:
        """The graph for ``images`` images, and the shapes and types of its arguments."""
        kinds: Kinds = {name: (param.shape, param.dtype) for name, param in self._params.items()}
        kinds.update(self._inputs(images))
        learned = {name for name, param in self._params.items() if param.grad_req != "null"}
        return rewrite_graph(self.graph, mx.cpu(), kinds, learned, pad=False), kinds
