"""One device's copy of a network in stages (`parallel.data.stages`), bound to its arrays."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import mxnet as mx
from mxnet import gluon, nd
from mxnet.base import _LIB, check_call

from gluonlab.engine.invoke import AddInto, CopyInto
from gluonlab.engine.setup import backward_pieces
from gluonlab.parallel.data.microbatches import Microbatch
from gluonlab.parallel.data.replica import IMAGES, LABELS
from gluonlab.parallel.data.shared_statistics import OnDevice
from gluonlab.parallel.data.stage_gradients import Arrays, Gradients, Wishes, kinds_between
from gluonlab.parallel.data.stages import Layer, Stage


class _Run(NamedTuple):
    """A stage, bound.

    ``heads``: what its backward begins with; None where nobody wants gradients.
    """

    executor: Any
    heads: Optional[List[nd.NDArray]]
    handles: Any
    loss: Optional[int]  # which of them is that of the losses


class Memory:
    """What a device's towers share: they run one after the other, as a `Replica`'s graphs do."""

    def __init__(self, ctx: mx.Context) -> None:
        self.executors: Dict[int, Any] = {}  # of each stage the first, in whose memory others run
        self.gradients = Arrays(partial(nd.empty, ctx=ctx))


class Tower:
    """All stages on one device, for parts of one size.

    ``sides``: the device's side of each layer.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        params: Dict[str, gluon.Parameter],
        part: Microbatch,
        add: bool,
        ctx: mx.Context,
        statistics: Sequence[nd.NDArray],
        memory: "Memory",
    ) -> None:
        """``statistics``: see `OnDevice`.

        ``add``: to the gradients of parameters that are there, instead of replacing them.
        """
        self.ctx, self._stages, self._params, self._statistics = ctx, stages, params, statistics
        images, labels = (nd.empty(x.shape, ctx, x.dtype) for x in (part.images, part.labels))
        self.images, self.labels = CopyInto(images), CopyInto(labels)
        self.values: Dict[str, nd.NDArray] = {IMAGES: images, LABELS: labels}
        self.values.update({name: param.data(ctx) for name, param in params.items()})
        self.runs: List[_Run] = []
        self.sides: Dict[int, OnDevice] = {}
        self._layers = [layer for stage in stages for layer in stage.layers]
        for layer in self._layers:
            self._give(layer, statistics[layer.number])
        self._wishes = Wishes(stages, self._layers, params)
        given = {name: (value.shape, value.dtype) for name, value in self.values.items()}
        kinds = kinds_between(stages, given)
        self._gradients = Gradients(stages, self._wishes, kinds, memory.gradients)
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

    def _bind(self, number: int, stage: Stage, memory: Any) -> None:
        args = {name: self.values[name] for name in stage.graph.list_arguments()}
        states = {name: self.values[name] for name in stage.graph.list_auxiliary_states()}
        learns = self._wishes.learns[number]
        targets = self._targets[number] if learns else self._never_written(args)
        requests = dict.fromkeys(args, "null")
        requests.update({name: self._requests[number].get(name, "write") for name in targets})
        with backward_pieces(self.ctx.device_type):
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
        self.runs.append(_Run(executor, heads, handles, loss))
        if loss is not None:
            self._ending = self.runs[-1]
