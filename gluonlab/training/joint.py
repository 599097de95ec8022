"""All CPU devices' replicas as one compiled graph, for layers that look at the whole batch (`gluonlab.training.sync_bn`).

GPUs have stages instead (`gluonlab.training.staged`): each small sum is an operation here, and would be a launch there.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import mxnet as mx
from mxnet import gluon, nd
from mxnet.base import _LIB, check_call

from gluonlab.engine import exact_memory_plan
from gluonlab.invoke import Attributes, CopyInto, OperatorCall
from gluonlab.training.accumulate import Part
from gluonlab.training.replica import IMAGES, LABELS, Heads, fitted
from gluonlab.training.sync_bn import batch_norms, group_of, joint_graph, name_on


class _Bound(NamedTuple):
    """The graph of some devices, bound to their arrays."""

    executor: Any
    inputs: List[Tuple[CopyInto, CopyInto]]
    losses: List[nd.NDArray]
    statistics: List["_Moving"]
    heads: Heads


class JointReplicas:
    """Trains on microbatches of several devices at once; ``params`` are initialised on all of ``ctxs``.

    Running statistics move on every device alike, also on those that have no part. Evaluation needs no more than them: `Replica`.
    """

    def __init__(self, graph: mx.sym.Symbol, params: Dict[str, gluon.Parameter], ctxs: Sequence[mx.Context]) -> None:
        self.graph, self.params, self.ctxs = graph, params, list(ctxs)
        self._layers = batch_norms(graph)
        self._bound: Dict[Any, _Bound] = {}
        self._last: "_Bound | None" = None

    def forward(self, parts: Sequence[Part], add: bool = False) -> List[nd.NDArray]:
        """For each part the sum of losses (1,), until the next call overwrites it.

        ``add``: `backward` will add to the gradients that are there, instead of replacing them.
        """
        key = (tuple((part.device, part.images.shape, part.images.dtype, part.labels.dtype) for part in parts), add)
        if key not in self._bound:
            self._bound[key] = self._bind(parts, add)
        bound = self._last = self._bound[key]
        for part, (images, labels) in zip(parts, bound.inputs):
            images.copy(part.images)
            labels.copy(part.labels)
        check_call(_LIB.MXExecutorForward(bound.executor.handle, 1))
        for statistic in bound.statistics:
            statistic.move()
        return bound.losses

    def backward(self, scale: float = 1.0) -> None:
        """The gradients of the last forward's losses, times ``scale``, into the parameters' gradient arrays on each device."""
        assert self._last is not None, "forward comes first"
        heads = self._last.heads
        heads.fill(scale)
        check_call(_LIB.MXExecutorBackwardEx(self._last.executor.handle, heads.count, heads.handles, 1))

    def _bind(self, parts: Sequence[Part], add: bool) -> _Bound:
        images = sum(len(part.images) for part in parts)
        shapes = {name: self.params[name].shape for name in self.graph.list_arguments() if name in self.params}
        shapes.update({IMAGES: parts[0].images.shape, LABELS: parts[0].labels.shape})
        tower = fitted(self.graph, self.ctxs[parts[0].device], shapes[IMAGES], shapes[LABELS])
        graph = joint_graph(tower, [len(part.images) / images for part in parts], shapes)
        args: Dict[str, nd.NDArray] = {}
        aux: Dict[str, nd.NDArray] = {}
        grads: Dict[str, nd.NDArray] = {}
        inputs = []
        wanted, wanted_aux = set(graph.list_arguments()), set(graph.list_auxiliary_states())
        for position, part in enumerate(parts):
            ctx = self.ctxs[part.device]
            x, y = (nd.empty(a.shape, ctx, a.dtype) for a in (part.images, part.labels))
            args.update({name_on(position, IMAGES): x, name_on(position, LABELS): y})
            inputs.append((CopyInto(x), CopyInto(y)))
            for name, param in self.params.items():
                joint_name = name_on(position, name)
                if joint_name in wanted_aux:
                    aux[joint_name] = param.data(ctx)
                elif joint_name in wanted:
                    args[joint_name] = param.data(ctx)
                    if param.grad_req != "null":
                        grads[joint_name] = param.grad(ctx)
        with exact_memory_plan():
            executor = graph.bind(
                self.ctxs[parts[0].device], args, args_grad=grads, aux_states=aux,
                grad_req={name: "null" if name not in grads else "add" if add else "write" for name in args},
                group2ctx={group_of(position): self.ctxs[part.device] for position, part in enumerate(parts)},
            )  # fmt: skip
        outputs, each = executor.outputs, len(self.graph.list_outputs())
        losses = [each * position for position in range(len(parts))]
        moving = self._moving(parts, outputs[each * len(parts) :])
        return _Bound(executor, inputs, [outputs[loss] for loss in losses], moving, Heads(outputs, losses))

    def _moving(self, parts: Sequence[Part], outputs: List[nd.NDArray]) -> List["_Moving"]:
        """How running statistics follow those of the batch, on every device; ``outputs``: see `joint_graph`."""
        moving, each = [], iter(outputs)
        for layer in self._layers:
            found = {part.device: (next(each), next(each)) for part in parts}
            for device, ctx in enumerate(self.ctxs):
                for running, value in zip((layer.running_mean, layer.running_var), found.get(device, found[parts[0].device])):
                    moving.append(_Moving(self.params[running].data(ctx), value, layer.momentum))
        return moving


class _Moving:
    """running = momentum * running + (1 - momentum) * value, for a ``value`` (1, C, 1, 1) on any device."""

    def __init__(self, running: nd.NDArray, value: nd.NDArray, momentum: float) -> None:
        value = value.reshape(running.shape)
        here = value if value.context == running.context else nd.empty(running.shape, running.context)
        self._value = value
        self._fetch = None if here is value else CopyInto(here)
        # the update of SGD: weight -= lr * (wd * weight + rescale_grad * gradient)
        self._update = OperatorCall("sgd_update", [running, here], running)
        self._attributes = Attributes({"lr": 1 - momentum, "wd": 1, "rescale_grad": -1})

    def move(self) -> None:
        """Queue it; nothing waits for it."""
        if self._fetch is not None:
            self._fetch.copy(self._value)
        self._update(self._attributes)
