"""Replicas whose BatchNorm layers look at the whole batch, in stages between which devices meet.

A layer takes one operation that finds a device's own statistics, one that normalises, one that goes
back, and two that complete the gradient; what the devices share is small
(`gluonlab.parallel.data.sync_bn_statistics`). `StagedReplicas` trains; each device has a `Tower` of
stages; `Wishes` and `GradientPool` say who wants the gradients of what goes from stage to stage,
and in which arrays they lie; `planned_mib` tells what all of it takes.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.base import _LIB, check_call

from gluonlab.engine.fast_invoke import AddInto, CopyInto
from gluonlab.engine.mxnet_setup import apply_backward_bulk_size
from gluonlab.models.rewrite_network import rewrite
from gluonlab.parallel.compiled_graph import Kind, Kinds, adding_rightly, bytes_of
from gluonlab.parallel.data.microbatches import Microbatch
from gluonlab.parallel.data.replica import IMAGES, LABELS
from gluonlab.parallel.data.sync_bn import GraphStage, Layer, check_graph, cut
from gluonlab.parallel.data.sync_bn_statistics import (
    OnDevice,
    RunningMoments,
    SharedStatistics,
    moved,
)
from gluonlab.parallel.memory_estimate import MIB, allocated_mib


class StagedReplicas:
    """Trains on microbatches of several devices at once.

    ``params`` are initialised on all of ``ctxs``.
    Running statistics move on every device alike, also on those that have no part. Evaluation needs
    no more than them: `GraphReplica`. Raises ModelError for a graph with a BatchNorm whose
    statistics cannot be shared.
    """

    def __init__(
        self, graph: mx.sym.Symbol, params: Dict[str, gluon.Parameter], ctxs: Sequence[mx.Context]
    ) -> None:
        check_graph(graph)
        self.graph, self.params, self.ctxs = graph, params, list(ctxs)
        self._bound: Dict[Any, _BoundStages] = {}
        self._memory = [SharedWorkspace(ctx) for ctx in ctxs]
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


class _BoundStage(NamedTuple):
    """A stage, bound.

    ``heads``: what its backward begins with; None where nobody wants gradients.
    """

    executor: Any
    heads: Optional[List[nd.NDArray]]
    handles: Any
    loss: Optional[int]  # which of them is that of the losses


class SharedWorkspace:
    """What a device's towers share: they run one by one, as a `GraphReplica`'s graphs do."""

    def __init__(self, ctx: mx.Context) -> None:
        self.executors: Dict[int, Any] = {}  # of each stage the first, in whose memory others run
        self.gradients = Arrays(partial(nd.empty, ctx=ctx))


class Tower:
    """All stages on one device, for parts of one size.

    ``sides``: the device's side of each layer.
    """

    def __init__(
        self,
        stages: Sequence[GraphStage],
        params: Dict[str, gluon.Parameter],
        part: Microbatch,
        add: bool,
        ctx: mx.Context,
        statistics: Sequence[nd.NDArray],
        memory: "SharedWorkspace",
    ) -> None:
        """``statistics``: see `OnDevice`.

        ``add``: to the gradients of parameters that are there, instead of replacing them.
        """
        self.ctx, self._stages, self._params, self._statistics = ctx, stages, params, statistics
        images, labels = (nd.empty(x.shape, ctx, x.dtype) for x in (part.images, part.labels))
        self.images, self.labels = CopyInto(images), CopyInto(labels)
        self.values: Dict[str, nd.NDArray] = {IMAGES: images, LABELS: labels}
        self.values.update({name: param.data(ctx) for name, param in params.items()})
        self.runs: List[_BoundStage] = []
        self.sides: Dict[int, OnDevice] = {}
        self._layers = [layer for stage in stages for layer in stage.layers]
        for layer in self._layers:
            self._give(layer, statistics[layer.number])
        self._wishes = Wishes(stages, self._layers, params)
        given = {name: (value.shape, value.dtype) for name, value in self.values.items()}
        kinds = kinds_between(stages, given)
        self._gradients = GradientPool(stages, self._wishes, kinds, memory.gradients)
        self._requests: List[Dict[str, str]] = [{} for _ in stages]
        self._targets: List[Dict[str, nd.NDArray]] = [{} for _ in stages]
        self._after: List[List[Tuple[Any, nd.NDArray]]] = [[] for _ in stages]
        self._sums: Dict[int, List[nd.NDArray]] = {}
        self._ask(add)
        self._scale = 1.0
        for number, stage in enumerate(stages):
            self._bind(number, stage, memory.executors.get(number))
            memory.executors.setdefault(number, self.runs[-1].executor)

    def backward(self, number: int) -> None:
        """That of one stage, and what it leaves for parameters that several stages use."""
        run = self.runs[number]
        if run.heads is None:
            return
        check_call(_LIB.MXExecutorBackwardEx(run.executor.handle, len(run.heads), run.handles, 1))
        for into, array in self._after[number]:
            into(array)

    def begin_with(self, scale: float) -> None:
        """Let backward begin with this number from now on."""
        run = self._ending
        if scale != self._scale and run.heads is not None and run.loss is not None:
            run.heads[run.loss][:] = scale
            self._scale = scale

    def _give(self, layer: Layer, statistics: nd.NDArray) -> None:
        """The arrays of a layer's variables."""
        channels = self._params[layer.beta].shape
        gamma = nd.ones(channels, self.ctx) if layer.gamma is None else self.values[layer.gamma]
        arrays = gamma, self.values[layer.beta], statistics[0], statistics[1]
        self.values.update(zip(layer.told, arrays))

    def _ask(self, add: bool) -> None:
        """Which gradients each stage makes, and whether it adds them to those of stages behind it.

        The sums of a layer are its own, before they become the gradients of its gamma and beta.
        """
        begun = {name for name, param in self._params.items() if add or param.grad_req == "add"}
        for number in range(len(self._stages) - 1, -1, -1):
            for name in self._stages[number].graph.list_arguments():
                param = self._params.get(name)
                if param is not None and param.grad_req != "null":
                    self._request(number, name, param.grad(self.ctx), add=name in begun)
                    begun.add(name)
                elif name in self._wishes.wanted:
                    self._ask_between(number, name)
            # added when the stage has run
            for layer in self._stages[number - 1].layers if number else []:
                self._sums[layer.number] = [
                    self._ask_sum(number, variable, name, begun)
                    for variable, name in zip(layer.told, (layer.gamma, layer.beta))
                ]

    def _ask_between(self, number: int, name: str) -> None:
        """The gradient of what comes from an earlier stage. Later ones have begun it, perhaps.

        It is added as an operation of its own: many of MXNet's operators add wrongly to what is
        there (grad_req "add"), even `+`.
        """
        part, whole = self._gradients.added[number].get(name), self._gradients.of[name]
        if part is not None:
            self._after[number].append((AddInto(whole).add, part))
        self._request(number, name, whole if part is None else part, add=False)

    def _ask_sum(
        self, number: int, variable: str, name: Optional[str], begun: Set[str]
    ) -> nd.NDArray:
        """One of a layer's sums: the gradient of the parameter ``name``, or a part of it."""
        param = self._params.get(name or "")
        if param is None or param.grad_req == "null":
            array = nd.zeros(self.values[variable].shape, self.ctx)
        else:
            array = whole = param.grad(self.ctx)
            if name in begun or self._wishes.uses[param.name] > 1:
                array = nd.zeros(param.shape, self.ctx)
                into: Any = AddInto(whole).add if name in begun else CopyInto(whole).copy
                self._after[number].append((into, array))
            begun.add(str(name))
        self._request(number, variable, array, add=False)
        return array

    def _never_written(self, args: Dict[str, nd.NDArray]) -> Dict[str, nd.NDArray]:
        """A gradient for a stage that nobody wants any of, and whose backward never runs.

        Without one MXNet would fuse the stage for oneDNN, and go on with copies of its weights
        after these have changed. That of the last parameter takes the least memory.
        """
        last = [name for name in args if name in self._params][-1:]
        return {name: nd.empty(args[name].shape, self.ctx, args[name].dtype) for name in last}

    def _request(self, number: int, name: str, gradient: nd.NDArray, add: bool) -> None:
        self._requests[number][name] = "add" if add else "write"
        self._targets[number][name] = gradient

    def _bind(self, number: int, stage: GraphStage, memory: Any) -> None:
        args = {name: self.values[name] for name in stage.graph.list_arguments()}
        states = {name: self.values[name] for name in stage.graph.list_auxiliary_states()}
        learns = self._wishes.learns[number]
        targets = self._targets[number] if learns else self._never_written(args)
        requests = dict.fromkeys(args, "null")
        requests.update({name: self._requests[number].get(name, "write") for name in targets})
        with apply_backward_bulk_size(self.ctx.device_type):
            executor = stage.graph.bind(
                self.ctx, args, args_grad=targets, grad_req=requests, aux_states=states,
                shared_exec=memory,
            )  # fmt: skip
        outputs, given = executor.outputs, len(stage.gives)
        self.values.update(zip(stage.gives, outputs))
        for layer in stage.layers:
            own, data = layer.number, self.values[layer.data]
            gradient, scratch = self._gradients.of.get(layer.data), self._gradients.scratch[own]
            of_all, sums = self._statistics[own], self._sums[own]
            self.sides[own] = OnDevice(data, layer.epsilon, of_all, sums, gradient, scratch)
        loss = given + stage.heads.index(0) if 0 in stage.heads else None
        if loss is not None:
            self.loss = outputs[loss]
        heads = handles = None
        if learns:
            heads = [nd.zeros(output.shape, self.ctx, output.dtype) for output in outputs[given:]]
            heads = [self._gradients.of[name] for name in stage.gives] + heads
            if loss is not None:
                heads[loss][:] = 1.0
            handles = (ctypes.c_void_p * len(heads))(*[head.handle for head in heads])
        self.runs.append(_BoundStage(executor, heads, handles, loss))
        if loss is not None:
            self._ending = self.runs[-1]


def kinds_between(stages: Sequence[GraphStage], kinds: Kinds) -> Kinds:
    """Shape and type of what goes from stage to stage, and ``kinds``: of all that stages take."""
    found = dict(kinds)
    for stage in stages:
        names = stage.graph.list_arguments()
        _, shapes, _ = stage.graph.infer_shape(**{name: found[name][0] for name in names})
        _, types, _ = stage.graph.infer_type(**{name: found[name][1] for name in names})
        found.update(zip(stage.gives, zip(shapes, types)))
    return found


class Wishes:
    """Who wants which gradients.

    ``learns[i]``: whether stage i has any to make. ``wanted``: values between stages whose
    gradients are, and ``latest`` the last stage that takes each, the first to make it. ``uses``:
    how many stages or layers have a gradient for each parameter.
    """

    def __init__(
        self,
        stages: Sequence[GraphStage],
        layers: Sequence[Layer],
        params: Dict[str, gluon.Parameter],
    ) -> None:
        trained = {name for name, param in params.items() if param.grad_req != "null"}
        self.wanted: Set[str] = set()
        self.latest: Dict[str, int] = {}
        self.learns: List[bool] = []
        self.uses: Dict[str, int] = {}
        for layer in layers:
            for name in (layer.gamma, layer.beta):
                if name is not None:
                    self.uses[name] = self.uses.get(name, 0) + 1
        for number, stage in enumerate(stages):
            names = stage.graph.list_arguments()
            begins = stages[number - 1].layers if number else []
            takes = {*names, *(name for each in begins for name in (each.gamma, each.beta))}
            self.learns.append(bool(takes & (trained | self.wanted)))
            for name in names:
                self.latest[name] = number
                if name in trained:
                    self.uses[name] = self.uses.get(name, 0) + 1
            if self.learns[-1]:
                self.wanted.update(stage.gives)


class Arrays:
    """A device's arrays that graphs use one after the other: each takes them by shape and type."""

    def __init__(self, make: Callable[..., nd.NDArray]) -> None:
        """``make(shape, dtype=...)`` gives an array."""
        self.bytes = 0
        self._make = make
        self._made: Dict[Any, List[nd.NDArray]] = {}

    def taken_anew(self) -> Callable[[Kind], nd.NDArray]:
        """What gives one graph arrays, no array twice."""
        counts: Dict[Any, int] = {}

        def take(kind: Kind) -> nd.NDArray:
            key = (kind[0], np.dtype(kind[1]))
            made, number = self._made.setdefault(key, []), counts.get(key, 0)
            counts[key] = number + 1
            if number == len(made):
                made.append(self._make(kind[0], dtype=kind[1]))
                self.bytes += bytes_of(kind)
            return made[number]

        return take


class GradientPool:
    """Arrays for gradients of what goes from stage to stage, used again when they are free.

    ``of``: by the name of the value. ``added[stage]``: by the name, what this stage makes of it, to
    be added to that, where a later stage takes the value, too. ``scratch``: by the number of a
    layer, an array like its data.
    """

    def __init__(
        self, stages: Sequence[GraphStage], wishes: Wishes, kinds: Kinds, arrays: Arrays
    ) -> None:
        self.of: Dict[str, nd.NDArray] = {}
        self.added: List[Dict[str, nd.NDArray]] = [{} for _ in stages]
        self.scratch: Dict[int, nd.NDArray] = {}
        self._new, self._free = arrays.taken_anew(), {}  # type: Any, Dict[Any, List[nd.NDArray]]
        for number in range(len(stages) - 1, -1, -1):
            names = wishes.wanted.intersection(stages[number].graph.list_arguments())
            for name in sorted(name for name in names if wishes.latest[name] == number):
                self.of[name] = self._take(kinds[name])
            for name in sorted(name for name in names if wishes.latest[name] != number):
                self.added[number][name] = self._take(kinds[name])
            for array in self.added[number].values():
                self._release(array)
            for layer in stages[number - 1].layers if number else []:
                array = self.scratch[layer.number] = self._take(kinds[layer.data])
                self._release(array)
            for name in stages[number].gives:
                if name in self.of:
                    self._release(self.of[name])

    def _take(self, kind: Kind) -> nd.NDArray:
        shape, dtype = kind
        free = self._free.setdefault((shape, np.dtype(dtype)), [])
        if free:
            return free.pop()
        array: nd.NDArray = self._new(kind)
        return array

    def _release(self, array: nd.NDArray) -> None:
        self._free[array.shape, np.dtype(array.dtype)].append(array)


def planned_mib(
    graphs: Sequence[Tuple[mx.sym.Symbol, Kinds]],
    params: Dict[str, gluon.Parameter],
    without_memory: Callable[..., nd.NDArray],
) -> float:
    """What one device needs to train by all of these graphs, one after the other.

    Each graph comes with shapes and types of all its arguments and states. ``without_memory(shape,
    dtype=...)``: an array that has none. As in `SharedWorkspace`, stages of the same
    place lie in the memory of the largest, and gradients between stages in arrays that all
    graphs of a size use. But MXNet makes a copy of the gradients that a stage's backward begins
    with, for each graph, and its plan does not tell of them.
    """
    arrays, copies = Arrays(without_memory), 0
    told: List[List[float]] = []  # MiB of each stage of each graph
    for graph, kinds in graphs:
        stages = cut(graph)
        layers = [layer for stage in stages for layer in stage.layers]
        given = {**kinds, **{name: kinds[layer.beta] for layer in layers for name in layer.told}}
        between, wishes = kinds_between(stages, given), Wishes(stages, layers, params)
        GradientPool(stages, wishes, between, arrays)
        copies += sum(bytes_of(between[name]) for name in wishes.wanted)
        wanted = {*wishes.wanted, *(name for layer in layers for name in layer.told[:2])}
        wanted.update(name for name, param in params.items() if param.grad_req != "null")
        mebibytes = []
        for stage, learns in zip(stages, wishes.learns):
            asked = _asked(stage, learns, wanted, params)
            mebibytes.append(_stage_mib(stage, asked, between, given, without_memory))
        told.append(mebibytes)
    largest: List[float] = [max(of_one_place) for of_one_place in zip(*told)]
    return float(sum(largest) + (arrays.bytes + copies) / MIB)


def _asked(
    stage: GraphStage, learns: bool, wanted: Set[str], params: Dict[str, gluon.Parameter]
) -> List[str]:
    """The arguments for which `Tower` binds a stage with gradients."""
    names = stage.graph.list_arguments()
    if learns:
        return [name for name in names if name in wanted]
    return [name for name in names if name in params][-1:]


def _stage_mib(
    stage: GraphStage,
    asked: List[str],
    between: Kinds,
    given: Kinds,
    without_memory: Callable[..., nd.NDArray],
) -> float:
    kinds = {name: between[name] for name in stage.graph.list_arguments()}
    arrays = {name: without_memory(shape, dtype=dtype) for name, (shape, dtype) in kinds.items()}
    states = {name: without_memory(given[name][0]) for name in stage.graph.list_auxiliary_states()}
    requests = {name: "write" if name in asked else "null" for name in arrays}
    ctx = next(iter(arrays.values())).context
    gradients = {name: arrays[name] for name in asked}
    executor = stage.graph.bind(ctx, arrays, gradients, requests, states)
    return allocated_mib(executor) + 0.5  # of a fraction that is left out half, on average
