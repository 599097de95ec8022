"""Replicas with sync BatchNorm: each graph runs in stages, and devices sum statistics in between.

- `SyncBatchNormReplicas` trains all replicas.
- `StagedExecutor` runs the stages on one device.
- `RequiredGradients` determines which gradients each stage computes.
- `GradientPool` allocates the arrays for these gradients.
- `estimate_stages_mib` estimates the memory.

The devices exchange only small arrays (`gluonlab.parallel.data.sync_bn_statistics`). On each
device, a BatchNorm layer needs five operations: one for the statistics, one to normalize, one for
backward, and two to complete the gradient.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.base import _LIB, check_call

from gluonlab.data.loading.split_batch import Microbatch
from gluonlab.engine.fast_invoke import AddInto, CopyInto
from gluonlab.engine.mxnet_setup import apply_backward_bulk_size
from gluonlab.models.rewrite_network import rewrite_graph
from gluonlab.parallel.compiled_graph import ArraySpec, ArraySpecs, array_bytes, fix_gradient_accumulation
from gluonlab.parallel.data.replica import IMAGES, LABELS
from gluonlab.parallel.data.sync_bn import BatchNormLayer, GraphStage, check_graph, split_at_batch_norm
from gluonlab.parallel.data.sync_bn_statistics import (
    DeviceLayer,
    RunningMoments,
    SyncBatchNormLayer,
    layers_updating_statistics,
)
from gluonlab.parallel.memory_estimate import MIB, allocated_mib


class SyncBatchNormReplicas:
    """Runs the training passes of replicas with sync BatchNorm, on all devices at once.

    ``params`` must be initialized on all of ``ctxs``. Running statistics are the same on every
    device, even on devices without a microbatch. So evaluation can use `GraphReplica`. Raises
    ModelError for a BatchNorm whose statistics cannot be synchronized.
    """

    def __init__(self, graph: mx.sym.Symbol, params: Dict[str, gluon.Parameter], ctxs: Sequence[mx.Context]) -> None:
        check_graph(graph)
        self.graph, self.params, self.ctxs = graph, params, list(ctxs)
        self._bound: Dict[Any, _BoundStages] = {}
        self._memory = [DeviceWorkspace(ctx) for ctx in ctxs]
        self._running: "RunningMoments | None" = None
        self._last: "_BoundStages | None" = None

    def forward(self, parts: Sequence[Microbatch], accumulate: bool = False) -> List[nd.NDArray]:
        """Queue the forward pass. Return the sum of losses (1,) of each microbatch.

        The next call overwrites these arrays. ``accumulate``: whether `backward` adds to the
        gradients instead of overwriting them.
        """
        specs = [(x.shape, x.dtype, y.dtype) for _, x, y in parts]
        key = (tuple(part.device for part in parts), *specs, accumulate)
        if key not in self._bound:
            self._bound[key] = self._bind(parts, accumulate)
        bound = self._last = self._bound[key]
        for part, executor in zip(parts, bound.executors):
            executor.images.copy(part.images)
            executor.labels.copy(part.labels)
        for number, layers in enumerate(bound.layers):
            for executor in bound.executors:
                check_call(_LIB.MXExecutorForward(executor.runs[number].executor.handle, 1))
            with autograd.pause(train_mode=True):
                for layer in layers:
                    layer.forward()
        assert self._running is not None
        self._running.update_running([part.device for part in parts])
        return [executor.loss for executor in bound.executors]

    def backward(self, scale: float = 1.0) -> None:
        """Queue the backward pass of the last `forward`, for the losses times ``scale``."""
        assert self._last is not None, "call forward before backward"
        for executor in self._last.executors:
            executor.set_loss_scale(scale)
        for number in range(len(self._last.layers) - 1, -1, -1):
            for layer in self._last.layers[number]:
                layer.backward()  # after the backward of stage number + 1, before this stage's
            for executor in self._last.executors:
                executor.backward(number)

    def _bind(self, parts: Sequence[Microbatch], accumulate: bool) -> "_BoundStages":
        """Bind the stages of the graph on all devices, for microbatches as large as ``parts``."""
        images = sum(len(part.images) for part in parts)
        device, first_images, first_labels = parts[0]
        arrays = {IMAGES: first_images, LABELS: first_labels, **self.params}
        specs = {name: (array.shape, array.dtype) for name, array in arrays.items()}
        trained = {name for name, param in self.params.items() if param.grad_req != "null"}
        graph = rewrite_graph(self.graph, self.ctxs[device], specs, trained, pad=False)
        graph = fix_gradient_accumulation(graph, trained)  # because several stages may use the same parameter
        stages = split_at_batch_norm(graph)
        layers = sorted(layer for stage in stages for layer in stage.layers)
        if self._running is None:
            inputs = {IMAGES: first_images[:1], LABELS: first_labels[:1]}
            moving = layers_updating_statistics(graph, self.params, inputs, self.ctxs[device])
            self._running = RunningMoments(layers, self.params, self.ctxs, moving)
        of_devices = list(zip(self.ctxs, self._running.statistics, self._memory))
        executors = [StagedExecutor(stages, self.params, part, accumulate, *of_devices[part.device]) for part in parts]
        shares = [len(part.images) / images for part in parts]

        def sync_layer(layer: BatchNormLayer) -> SyncBatchNormLayer:
            gamma = executors[0].values[layer.input_names[0]]
            return SyncBatchNormLayer([executor.device_layers[layer.number] for executor in executors], shares, gamma)

        return _BoundStages(executors, [list(map(sync_layer, stage.layers)) for stage in stages])


class _BoundStages(NamedTuple):
    """The executors of all devices; ``layers[i]`` are the layers between stages i and i + 1."""

    executors: List[StagedExecutor]
    layers: List[List[SyncBatchNormLayer]]


class _BoundStage(NamedTuple):
    """A bound stage. ``heads``: head gradients; None if the stage computes no gradients."""

    executor: Any
    heads: Optional[List[nd.NDArray]]
    handles: Any
    loss: Optional[int]  # index of the loss in ``heads``


class DeviceWorkspace:
    """Memory that a device's executors share, since they run one after the other."""

    def __init__(self, ctx: mx.Context) -> None:
        self.executors: Dict[int, Any] = {}  # by stage; the first executor owns the memory
        self.gradients = ArrayPool(partial(nd.empty, ctx=ctx))


class StagedExecutor:
    """All stages of a graph on one device, for microbatches of one size.

    ``device_layers``: for each BatchNorm layer, its arrays on the device.
    """

    def __init__(
        self,
        stages: Sequence[GraphStage],
        params: Dict[str, gluon.Parameter],
        part: Microbatch,
        accumulate: bool,
        ctx: mx.Context,
        statistics: Sequence[nd.NDArray],
        memory: "DeviceWorkspace",
    ) -> None:
        """Bind all stages.

        Args:
            stages: The stages of the graph.
            params: Parameters of the network.
            part: A microbatch of the size for which stages are bound.
            accumulate: Whether backward adds to the gradients instead of overwriting them.
            ctx: The device.
            statistics: Statistics of each layer, see `DeviceLayer`.
            memory: Memory of the device.
        """
        self.ctx, self._stages, self._params, self._statistics = ctx, stages, params, statistics
        images, labels = (nd.empty(x.shape, ctx, x.dtype) for x in (part.images, part.labels))
        self.images, self.labels = CopyInto(images), CopyInto(labels)
        self.values: Dict[str, nd.NDArray] = {IMAGES: images, LABELS: labels}
        self.values.update({name: param.data(ctx) for name, param in params.items()})
        self.runs: List[_BoundStage] = []
        self.device_layers: Dict[int, DeviceLayer] = {}
        self._layers = [layer for stage in stages for layer in stage.layers]
        for layer in self._layers:
            self._add_layer_arrays(layer, statistics[layer.number])
        self._required = RequiredGradients(stages, self._layers, params)
        known = {name: (value.shape, value.dtype) for name, value in self.values.items()}
        specs = infer_boundary_specs(stages, known)
        self._gradients = GradientPool(stages, self._required, specs, memory.gradients)
        self._requests: List[Dict[str, str]] = [{} for _ in stages]
        self._gradient_arrays: List[Dict[str, nd.NDArray]] = [{} for _ in stages]
        self._accumulations: List[List[Tuple[Any, nd.NDArray]]] = [[] for _ in stages]
        self._sums: Dict[int, List[nd.NDArray]] = {}
        self._request_gradients(accumulate)
        self._scale = 1.0
        for number, stage in enumerate(stages):
            self._bind(number, stage, memory.executors.get(number))
            memory.executors.setdefault(number, self.runs[-1].executor)

    def backward(self, number: int) -> None:
        """Queue a stage's backward pass, which adds to the gradients from later stages."""
        run = self.runs[number]
        if run.heads is None:
            return
        check_call(_LIB.MXExecutorBackwardEx(run.executor.handle, len(run.heads), run.handles, 1))
        for accumulate, array in self._accumulations[number]:
            accumulate(array)

    def set_loss_scale(self, scale: float) -> None:
        """Set the head gradient of the loss for later backward passes."""
        run = self._loss_stage
        if scale != self._scale and run.heads is not None and run.loss is not None:
            run.heads[run.loss][:] = scale
            self._scale = scale

    def _add_layer_arrays(self, layer: BatchNormLayer, statistics: nd.NDArray) -> None:
        """Add a BatchNorm layer's arrays (gamma, beta and statistics) to ``values``."""
        channels = self._params[layer.beta].shape
        gamma = nd.ones(channels, self.ctx) if layer.gamma is None else self.values[layer.gamma]
        arrays = gamma, self.values[layer.beta], statistics[0], statistics[1]
        self.values.update(zip(layer.input_names, arrays))

    def _request_gradients(self, accumulate: bool) -> None:
        """Request each stage's gradients.

        Some gradients are added to the gradients that later stages compute.

        Each layer also computes two sums, the gradients of its gamma and beta.
        """
        written = {name for name, param in self._params.items() if accumulate or param.grad_req == "add"}
        for number in range(len(self._stages) - 1, -1, -1):
            for name in self._stages[number].graph.list_arguments():
                param = self._params.get(name)
                if param is not None and param.grad_req != "null":
                    self._request(number, name, param.grad(self.ctx), add=name in written)
                    written.add(name)
                elif name in self._required.boundary_values:
                    self._request_boundary_gradient(number, name)
            for layer in self._stages[number - 1].layers if number else []:
                self._sums[layer.number] = [
                    self._request_layer_sum(number, variable, name, written)
                    for variable, name in zip(layer.input_names, (layer.gamma, layer.beta))
                ]

    def _request_boundary_gradient(self, number: int, name: str) -> None:
        """Request the gradient of a stage input that is the output of an earlier stage.

        If several stages read the input, a separate operation adds their gradients, because many of
        MXNet's operators, even `+`, accumulate incorrectly with grad_req "add".
        """
        partial_gradient = self._gradients.partial_gradients[number].get(name)
        total = self._gradients.gradients[name]
        if partial_gradient is not None:
            self._accumulations[number].append((AddInto(total).add, partial_gradient))
        target = total if partial_gradient is None else partial_gradient
        self._request(number, name, target, add=False)

    def _request_layer_sum(self, number: int, variable: str, name: Optional[str], written: Set[str]) -> nd.NDArray:
        """Make backward compute the gradient of a layer's gamma or beta.

        Return the gradient's array.

        If the parameter ``name`` is trained and nothing else adds to its gradient, the array is the
        parameter's gradient itself. Otherwise it is an extra array.
        """
        param = self._params.get(name or "")
        if param is None or param.grad_req == "null":
            array = nd.zeros(self.values[variable].shape, self.ctx)
        else:
            array = total = param.grad(self.ctx)
            if name in written or self._required.uses[param.name] > 1:
                array = nd.zeros(param.shape, self.ctx)
                accumulate: Any = AddInto(total).add if name in written else CopyInto(total).copy
                self._accumulations[number].append((accumulate, array))
            written.add(str(name))
        self._request(number, variable, array, add=False)
        return array

    def _unused_gradient(self, args: Dict[str, nd.NDArray]) -> Dict[str, nd.NDArray]:
        """Return a gradient array for a stage without a backward pass. Nothing writes to the array.

        If a stage had no gradient at all, MXNet would apply its oneDNN fusion, which keeps a copy
        of the weights and ignores later updates. The array has the shape of the stage's last
        parameter, which is usually small.
        """
        last = [name for name in args if name in self._params][-1:]
        return {name: nd.empty(args[name].shape, self.ctx, args[name].dtype) for name in last}

    def _request(self, number: int, name: str, gradient: nd.NDArray, add: bool) -> None:
        self._requests[number][name] = "add" if add else "write"
        self._gradient_arrays[number][name] = gradient

    def _bind(self, number: int, stage: GraphStage, memory: Any) -> None:
        """Bind one stage. ``memory``: an executor whose memory the stage shares, or None."""
        args = {name: self.values[name] for name in stage.graph.list_arguments()}
        states = {name: self.values[name] for name in stage.graph.list_auxiliary_states()}
        has_backward = self._required.has_backward[number]
        targets = self._gradient_arrays[number] if has_backward else self._unused_gradient(args)
        requests = dict.fromkeys(args, "null")
        requests.update({name: self._requests[number].get(name, "write") for name in targets})
        with apply_backward_bulk_size(self.ctx.device_type):
            executor = stage.graph.bind(
                self.ctx, args, args_grad=targets, grad_req=requests, aux_states=states, shared_exec=memory
            )
        outputs, boundary_count = executor.outputs, len(stage.boundary_names)
        self.values.update(zip(stage.boundary_names, outputs))
        for layer in stage.layers:
            i = layer.number
            self.device_layers[i] = DeviceLayer(
                self.values[layer.data], layer.epsilon, self._statistics[i], self._sums[i],
                self._gradients.gradients.get(layer.data), self._gradients.scratch[i],
            )  # fmt: skip
        loss = boundary_count + stage.heads.index(0) if 0 in stage.heads else None
        if loss is not None:
            self.loss = outputs[loss]
        heads = handles = None
        if has_backward:
            heads = [nd.zeros(output.shape, self.ctx, output.dtype) for output in outputs[boundary_count:]]
            heads = [self._gradients.gradients[name] for name in stage.boundary_names] + heads
            if loss is not None:
                heads[loss][:] = 1.0
            handles = (ctypes.c_void_p * len(heads))(*[head.handle for head in heads])
        self.runs.append(_BoundStage(executor, heads, handles, loss))
        if loss is not None:
            self._loss_stage = self.runs[-1]


def infer_boundary_specs(stages: Sequence[GraphStage], specs: ArraySpecs) -> ArraySpecs:
    """Return the shapes and types of all stage inputs: ``specs``, and the values between stages."""
    known = dict(specs)
    for stage in stages:
        names = stage.graph.list_arguments()
        _, shapes, _ = stage.graph.infer_shape(**{name: known[name][0] for name in names})
        _, types, _ = stage.graph.infer_type(**{name: known[name][1] for name in names})
        known.update(zip(stage.boundary_names, zip(shapes, types)))
    return known


class RequiredGradients:
    """The gradients that each stage must compute.

    Attributes:
        has_backward: ``has_backward[i]``: whether stage i computes any gradient.
        boundary_values: Values between stages whose gradients are needed.
        latest: The last stage that uses each value. This stage is the first to compute the value's
            gradient.
        uses: For each parameter, the number of stages or layers that compute a gradient for it.
    """

    def __init__(
        self, stages: Sequence[GraphStage], layers: Sequence[BatchNormLayer], params: Dict[str, gluon.Parameter]
    ) -> None:
        trained = {name for name, param in params.items() if param.grad_req != "null"}
        self.boundary_values: Set[str] = set()
        self.latest: Dict[str, int] = {}
        self.has_backward: List[bool] = []
        self.uses: Dict[str, int] = {}
        for layer in layers:
            for name in (layer.gamma, layer.beta):
                if name is not None:
                    self.uses[name] = self.uses.get(name, 0) + 1
        for number, stage in enumerate(stages):
            names = stage.graph.list_arguments()
            own_layers = stages[number - 1].layers if number else []
            inputs = {*names, *(name for layer in own_layers for name in (layer.gamma, layer.beta))}
            self.has_backward.append(bool(inputs & (trained | self.boundary_values)))
            for name in names:
                self.latest[name] = number
                if name in trained:
                    self.uses[name] = self.uses.get(name, 0) + 1
            if self.has_backward[-1]:
                self.boundary_values.update(stage.boundary_names)


class ArrayPool:
    """Pool of arrays on one device, shared by graphs that run one after the other."""

    def __init__(self, make: Callable[..., nd.NDArray]) -> None:
        """Create an empty pool; ``make(shape, dtype=...)`` creates an array."""
        self.bytes = 0
        self._make = make
        self._arrays: Dict[Any, List[nd.NDArray]] = {}

    def new_allocator(self) -> Callable[[ArraySpec], nd.NDArray]:
        """Return a function that takes arrays from the pool for one graph.

        The function takes each array at most once.
        """
        counts: Dict[Any, int] = {}

        def allocate(spec: ArraySpec) -> nd.NDArray:
            """Return an array from the pool that this graph has not taken yet, or a new array."""
            key = (spec[0], np.dtype(spec[1]))
            arrays, number = self._arrays.setdefault(key, []), counts.get(key, 0)
            counts[key] = number + 1
            if number == len(arrays):
                arrays.append(self._make(spec[0], dtype=spec[1]))
                self.bytes += array_bytes(spec)
            return arrays[number]

        return allocate


class GradientPool:
    """Arrays for the gradients of values between stages, reused as soon as they are free.

    Attributes:
        gradients: The gradient of each value, by name.
        partial_gradients: ``partial_gradients[i]``: by name, stage i's part of the gradient of each
            value that a later stage also uses.
        scratch: Working memory for each layer, by layer number, with the shape of the layer's
            input.
    """

    def __init__(
        self, stages: Sequence[GraphStage], required: RequiredGradients, specs: ArraySpecs, arrays: ArrayPool
    ) -> None:
        self.gradients: Dict[str, nd.NDArray] = {}
        self.partial_gradients: List[Dict[str, nd.NDArray]] = [{} for _ in stages]
        self.scratch: Dict[int, nd.NDArray] = {}
        self._new_array, self._free = arrays.new_allocator(), {}  # type: Any, Dict[Any, List[nd.NDArray]]
        for number in range(len(stages) - 1, -1, -1):
            names = required.boundary_values.intersection(stages[number].graph.list_arguments())
            for name in sorted(name for name in names if required.latest[name] == number):
                self.gradients[name] = self._allocate(specs[name])
            for name in sorted(name for name in names if required.latest[name] != number):
                self.partial_gradients[number][name] = self._allocate(specs[name])
            for array in self.partial_gradients[number].values():
                self._release(array)
            for layer in stages[number - 1].layers if number else []:
                array = self.scratch[layer.number] = self._allocate(specs[layer.data])
                self._release(array)
            for name in stages[number].boundary_names:
                if name in self.gradients:
                    self._release(self.gradients[name])

    def _allocate(self, spec: ArraySpec) -> nd.NDArray:
        """Return a freed array with the shape and type ``spec``, or a new array if none is free."""
        shape, dtype = spec
        free = self._free.setdefault((shape, np.dtype(dtype)), [])
        if free:
            return free.pop()
        array: nd.NDArray = self._new_array(spec)
        return array

    def _release(self, array: nd.NDArray) -> None:
        self._free[array.shape, np.dtype(array.dtype)].append(array)


def estimate_stages_mib(
    graphs: Sequence[Tuple[mx.sym.Symbol, ArraySpecs]],
    params: Dict[str, gluon.Parameter],
    new_array: Callable[..., nd.NDArray],
) -> float:
    """Estimate how many MiB one device needs to train with ``graphs``, one after the other.

    Stage i of every graph uses the same memory, sized for the largest graph, as in
    `DeviceWorkspace`. All graphs share the arrays for gradients between stages. MXNet also copies
    the head gradients of each stage of each graph. MXNet's memory plan does not include these
    copies.

    Args:
        graphs: Pairs of a graph and the shapes and types of all its arguments and states.
        params: Parameters of the network.
        new_array: Function (shape, dtype=...) that makes an array whose memory is never allocated.
    """
    pool, copied_bytes = ArrayPool(new_array), 0
    mib_by_graph: List[List[float]] = []  # mib_by_graph[graph][stage]
    for graph, specs in graphs:
        stages = split_at_batch_norm(graph)
        layers = [layer for stage in stages for layer in stage.layers]
        layer_specs = {name: specs[layer.beta] for layer in layers for name in layer.input_names}
        known = infer_boundary_specs(stages, {**specs, **layer_specs})
        required = RequiredGradients(stages, layers, params)
        GradientPool(stages, required, known, pool)
        copied_bytes += sum(array_bytes(known[name]) for name in required.boundary_values)
        with_gradient = {name for name, param in params.items() if param.grad_req != "null"}
        with_gradient.update(required.boundary_values)
        with_gradient.update(name for layer in layers for name in layer.input_names[:2])
        mebibytes = []
        for stage, has_backward in zip(stages, required.has_backward):
            names = stage.graph.list_arguments()
            # As in `StagedExecutor`, a stage without backward has one unused gradient.
            gradients = (
                [name for name in names if name in with_gradient]
                if has_backward
                else [name for name in names if name in params][-1:]
            )
            mebibytes.append(_stage_mib(stage, gradients, known, new_array))
        mib_by_graph.append(mebibytes)
    largest: List[float] = [max(of_stage) for of_stage in zip(*mib_by_graph)]
    return float(sum(largest) + (pool.bytes + copied_bytes) / MIB)


def _stage_mib(
    stage: GraphStage, gradient_names: List[str], specs: ArraySpecs, new_array: Callable[..., nd.NDArray]
) -> float:
    """Return the MiB that MXNet plans for a stage with the gradients ``gradient_names``."""
    names = stage.graph.list_arguments()
    arrays = {name: new_array(specs[name][0], dtype=specs[name][1]) for name in names}
    states = {name: new_array(specs[name][0]) for name in stage.graph.list_auxiliary_states()}
    requests = {name: "write" if name in gradient_names else "null" for name in arrays}
    ctx = next(iter(arrays.values())).context
    gradients = {name: arrays[name] for name in gradient_names}
    executor = stage.graph.bind(ctx, arrays, gradients, requests, states)
    return allocated_mib(executor) + 0.5  # MXNet drops a fraction, which is 0.5 on average
