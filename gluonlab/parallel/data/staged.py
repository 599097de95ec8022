"""Replicas whose BatchNorm layers look at the whole batch, in stages between which devices meet.

A layer takes one operation that finds a device's own statistics, one that normalises, one that goes
back, and two that complete the gradient; what the devices share is small
(`gluonlab.parallel.data.shared_statistics`).
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Sequence

import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.base import _LIB, check_call

from gluonlab.models.rewriting import rewrite
from gluonlab.parallel.adding import adding_rightly
from gluonlab.parallel.data.microbatches import Microbatch
from gluonlab.parallel.data.replica import IMAGES, LABELS
from gluonlab.parallel.data.running import RunningMoments, moved
from gluonlab.parallel.data.shared_statistics import SharedStatistics
from gluonlab.parallel.data.stages import Layer, check_graph, cut
from gluonlab.parallel.data.tower import Memory, Tower


class StagedReplicas:
    """Trains on microbatches of several devices at once.

    ``params`` are initialised on all of ``ctxs``.
    Running statistics move on every device alike, also on those that have no part. Evaluation needs
    no more than them: `Replica`. Raises ModelError for a graph with a BatchNorm whose statistics
    cannot be shared.
    """

    def __init__(
        self, graph: mx.sym.Symbol, params: Dict[str, gluon.Parameter], ctxs: Sequence[mx.Context]
    ) -> None:
        check_graph(graph)
        self.graph, self.params, self.ctxs = graph, params, list(ctxs)
        self._bound: Dict[Any, _BoundStages] = {}
        self._memory = [Memory(ctx) for ctx in ctxs]
        self._running: "RunningMoments | None" = None
        self._last: "_BoundStages | None" = None

    def forward(self, parts: Sequence[Microbatch], add: bool = False) -> List[nd.NDArray]:
        """For each part the sum of losses (1,), until the next call overwrites it.

        ``add``: `backward` will add to the gradients that are there, instead of replacing them.
        """
        kinds = [(x.shape, x.dtype, y.dtype) for _, x, y in parts]
        key = (tuple(part.device for part in parts), *kinds, add)
        if key not in self._bound:
            self._bound[key] = self._bind(parts, add)
        bound = self._last = self._bound[key]
        for part, tower in zip(parts, bound.towers):
            tower.images.copy(part.images)
            tower.labels.copy(part.labels)
        for number, layers in enumerate(bound.layers):
            for tower in bound.towers:
                check_call(_LIB.MXExecutorForward(tower.runs[number].executor.handle, 1))
            with autograd.pause(train_mode=True):
                for layer in layers:
                    layer.forward()
        assert self._running is not None
        self._running.move([part.device for part in parts])
        return [tower.loss for tower in bound.towers]

    def backward(self, scale: float = 1.0) -> None:
        """Write the gradients of the last forward's losses, times ``scale``, on each device."""
        assert self._last is not None, "forward comes first"
        for tower in self._last.towers:
            tower.begin_with(scale)
        for number in range(len(self._last.layers) - 1, -1, -1):
            for layer in self._last.layers[number]:
                layer.backward()  # the stage behind it has run, and this one not yet
            for tower in self._last.towers:
                tower.backward(number)

    def _bind(self, parts: Sequence[Microbatch], add: bool) -> "_BoundStages":
        images = sum(len(part.images) for part in parts)
        device, first_images, first_labels = parts[0]
        arrays = {IMAGES: first_images, LABELS: first_labels, **self.params}
        kinds = {name: (each.shape, each.dtype) for name, each in arrays.items()}
        trained = {name for name, param in self.params.items() if param.grad_req != "null"}
        graph = rewrite(self.graph, self.ctxs[device], kinds, trained, pad=False)
        graph = adding_rightly(graph, trained)  # several stages may have the same parameter
        stages = cut(graph)
        layers = sorted(layer for stage in stages for layer in stage.layers)
        if self._running is None:
            inputs = {IMAGES: first_images[:1], LABELS: first_labels[:1]}
            moving = moved(graph, self.params, inputs, self.ctxs[device])
            self._running = RunningMoments(layers, self.params, self.ctxs, moving)
        of_devices = list(zip(self.ctxs, self._running.statistics, self._memory))
        towers = [Tower(stages, self.params, part, add, *of_devices[part.device]) for part in parts]
        shares = [len(part.images) / images for part in parts]

        def shared(layer: Layer) -> SharedStatistics:
            gamma = towers[0].values[layer.told[0]]
            return SharedStatistics([tower.sides[layer.number] for tower in towers], shares, gamma)

        return _BoundStages(towers, [list(map(shared, stage.layers)) for stage in stages])


class _BoundStages(NamedTuple):
    """``layers[i]``: those between stage i and the next."""

    towers: List[Tower]
    layers: List[List[SharedStatistics]]
