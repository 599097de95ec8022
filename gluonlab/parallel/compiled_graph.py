"""A part of a network on one device, compiled: forward and backward are two calls each.

A graph is bound once to the parameters' own arrays, for each shape of its inputs that occurs (a
full shard, and those of the last batch of an epoch). Running it costs the host a tenth of what
Gluon's recording and backward cost, because nothing is traced, checked or allocated again; on small
batches that is the difference between waiting for Python and not."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any, Container, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon, nd
from mxnet.base import _LIB, check_call

from gluonlab.engine.fast_invoke import CopyInto
from gluonlab.engine.mxnet_setup import apply_backward_bulk_size
from gluonlab.models.channel_padding import make_room, padding_for, widened
from gluonlab.models.rewrite_network import rewrite
from gluonlab.models.symbol_graph import Entry, Node, new_node, parsed, to_symbol

Shape = Tuple[int, ...]
Kind = Tuple[Tuple[int, ...], Any]  # shape and type
Kinds = Dict[str, Kind]  # by the name


def bytes_of(kind: Kind) -> int:
    """What an array of this shape and type takes."""
    return int(np.prod(kind[0])) * int(np.dtype(kind[1]).itemsize)


class Heads:
    """d(loss) / d(outputs), with which backward begins: of a loss 1, or the scale of the loss.

    Made once instead of in every step. ``losses``: the places of the losses among the ``outputs``;
    of the others, ``arrays`` are zero until somebody writes to them.
    """

    def __init__(
        self,
        outputs: Sequence[nd.NDArray],
        losses: Sequence[int],
        given: Optional[Mapping[int, nd.NDArray]] = None,
    ) -> None:
        """``given``: arrays of somebody else's for outputs at these places."""
        given = given or {}
        # keeps the handles alive
        self.arrays = [
            given[place] if place in given else nd.zeros(output.shape, output.context, output.dtype)
            for place, output in enumerate(outputs)
        ]
        self._losses, self._scale = [self.arrays[loss] for loss in losses], 0.0
        self.fill(1.0)
        self.copies = [CopyInto(array) for array in self.arrays]
        self.count = len(self.arrays)
        self.handles = (ctypes.c_void_p * self.count)(*[array.handle for array in self.arrays])

    def fill(self, scale: float) -> None:
        """Let backward begin with this number; what is queued already has the former one."""
        if scale != self._scale:
            for array in self._losses:
                array[:] = scale
            self._scale = scale


class BoundGraph(NamedTuple):
    """A graph bound to arrays: how to fill its inputs, how to run it, and what it leaves behind.

    ``gradients``: those of the inputs that were asked for; backward writes them.
    """

    executor: Any
    inputs: Dict[str, CopyInto]
    arrays: Dict[str, nd.NDArray]
    outputs: List[nd.NDArray]
    heads: Heads
    gradients: Dict[str, nd.NDArray]


class SharedArrays:
    """Arrays on one device that are laid into the same memory, for work that never overlaps."""

    ALIGNED = 16  # elements: oneDNN reads whole cache lines

    def __init__(self, ctx: mx.Context) -> None:
        self._ctx = ctx
        self._memory: Dict[Any, nd.NDArray] = {}

    def like(self, arrays: Mapping[str, nd.NDArray], place: int = 0) -> Dict[str, nd.NDArray]:
        """Arrays of these shapes and types in the memory ``place``.

        Earlier ones are in it, too, unless it had to grow.
        """
        made: Dict[str, nd.NDArray] = {}
        for dtype in {array.dtype for array in arrays.values()}:
            own = {name: array for name, array in arrays.items() if array.dtype == dtype}
            sizes = [-(-array.size // self.ALIGNED) * self.ALIGNED for array in own.values()]
            ends = list(itertools.accumulate(sizes))
            memory = self._memory.get((place, dtype))
            if memory is None or memory.size < ends[-1]:
                memory = self._memory[place, dtype] = nd.empty((ends[-1],), self._ctx, dtype)
            for (name, array), end, size in zip(own.items(), ends, sizes):
                begin = end - size
                made[name] = memory[begin : begin + array.size].reshape(array.shape)
        return made


class CompiledGraph:
    """A graph on one device, where ``params`` are already initialised.

    ``losses``: which of its outputs are losses. ``wants``: the inputs whose gradients backward
    makes, besides those of the parameters.
    """

    def __init__(
        self,
        graph: mx.sym.Symbol,
        params: Mapping[str, gluon.Parameter],
        ctx: mx.Context,
        losses: Sequence[int] = (),
        wants: Sequence[str] = (),
    ) -> None:
        self.graph, self.ctx = graph, ctx
        self._losses, self.wants = losses, wants
        names = [name for name in graph.list_arguments() if name in params]
        self._args = {name: params[name].data(ctx) for name in names}
        self._states = {name: params[name] for name in graph.list_auxiliary_states()}
        if padding_for(ctx).multiples:
            for state in self._states.values():
                make_room(state, ctx)
        self._req = {name: params[name].grad_req for name in names}
        self.grads = {name: params[name].grad(ctx) for name in names if self._req[name] != "null"}
        # The graphs of a slot run one after the other: all lay their activations into the memory
        # that the first one (and, where that is not large enough, a later one) has taken. What a
        # graph leaves behind is lost when the next one of its slot runs.
        self._memory: Dict[int, Any] = {}
        self._outputs: Dict[int, List[nd.NDArray]] = {}  # by slot, of the graph that ran last
        self._train = True

    @property
    def learns(self) -> bool:
        """Whether backward has anything to do."""
        return bool(self.grads or self.wants)

    def bind(
        self,
        inputs: Mapping[str, nd.NDArray],
        add: bool = False,
        slot: int = 0,
        graph: "mx.sym.Symbol | None" = None,
        given: Optional[Mapping[str, nd.NDArray]] = None,
        into: Optional[Mapping[str, nd.NDArray]] = None,
        heads: bool = True,
    ) -> BoundGraph:
        """Bind the graph for inputs of these shapes and types; it gets arrays of its own for them.

        ``add``: backward adds to the gradients that are there, instead of replacing them. ``slot``:
        graphs of several may be between forward and backward at once. ``graph``: another one of the
        same parameters. ``given``: inputs that are these very arrays. ``into``: where the gradients
        go that are wanted, if not to arrays of their own. ``heads``: whether backward gets some;
        else somebody puts them there.
        """
        own = {name: nd.empty(like.shape, self.ctx, like.dtype) for name, like in inputs.items()}
        arrays = {**own, **(given or {})}
        gradients = (
            {
                name: nd.empty(arrays[name].shape, self.ctx, arrays[name].dtype)
                for name in self.wants
            }
            if into is None
            else dict(into)
        )
        # Evaluation runs on the graph of training, too: a graph without gradients would be handed
        # to MXNet's oneDNN fusion, which keeps a copy of the weights and goes on computing with it
        # after they have changed.
        requests = {**self._req, **dict.fromkeys(arrays, "null")}
        requests.update(dict.fromkeys(self.grads, "add") if add else {})
        requests.update(dict.fromkeys(gradients, "write"))
        kinds = {name: (each.shape, each.dtype) for name, each in {**self._args, **arrays}.items()}
        learned = {name for name, request in requests.items() if request != "null"}
        fit = rewrite(self.graph if graph is None else graph, self.ctx, kinds, learned)
        if "add" in requests.values():
            fit = adding_rightly(fit, self.grads)
        with apply_backward_bulk_size(self.ctx.device_type):
            executor = fit.bind(
                self.ctx, {**self._args, **arrays}, args_grad={**self.grads, **gradients},
                grad_req=requests, aux_states=self._states_of(fit, kinds),
                shared_exec=self._memory.get(slot),
            )  # fmt: skip
        self._memory.setdefault(slot, executor)
        copies = {name: CopyInto(array) for name, array in own.items()}
        begin = Heads(executor.outputs if heads else [], self._losses if heads else [])
        return BoundGraph(executor, copies, own, executor.outputs, begin, gradients)

    def _states_of(self, graph: mx.sym.Symbol, kinds: Kinds) -> Dict[str, nd.NDArray]:
        """The auxiliary states of a graph, which may have more channels than their parameters."""
        shapes = {name: kinds[name][0] for name in graph.list_arguments()}
        states = zip(graph.list_auxiliary_states(), graph.infer_shape(**shapes)[2])
        return {name: widened(self._states[name], self.ctx, shape) for name, shape in states}

    def forward(self, bound: BoundGraph, train: bool = True, slot: int = 0) -> None:
        """Run the graph on what was copied into its inputs.

        ``train``: as in autograd.record(train_mode=...), for layers that differ, such as Dropout.
        """
        if train != self._train:
            # operators look at the mode when they run: those still queued must not see the new one
            self._wait()
            self._train = train
        check_call(_LIB.MXExecutorForward(bound.executor.handle, int(train)))
        self._outputs[slot] = bound.outputs

    def backward(self, bound: BoundGraph) -> None:
        """Write the gradients, from the heads, of the last forward."""
        heads = bound.heads
        check_call(_LIB.MXExecutorBackwardEx(bound.executor.handle, heads.count, heads.handles, 1))

    def _wait(self) -> None:
        """Wait for what this part has queued, and for nobody else's work."""
        outputs = [output for of_slot in self._outputs.values() for output in of_slot]
        for array in (*self.grads.values(), *outputs):
            array.wait_to_read()


# What was tried and found right, and is what nearly all parameters go to.
ADD_RIGHTLY = (
    "Convolution",
    "Deconvolution",
    "FullyConnected",
    "BatchNorm",
    "LayerNorm",
    "Embedding",
)


def adding_rightly(graph: mx.sym.Symbol, params: Container[str]) -> mx.sym.Symbol:
    """A graph in a form in which MXNet adds gradients rightly to those that are there.

    Bound with grad_req "add", many operators add wrongly to what is there where their input is the
    argument itself: `+` counts it twice, an average that is broadcast loses it. Their gradients are
    right; so a parameter goes to them by way of a product with 1, which adds rightly. It is the
    same function of the same arguments; ``graph`` itself where nothing is to be changed.
    """
    old = parsed(graph)
    nodes: List[Node] = []
    places: List[int] = []  # node of the old graph -> its node in the new one
    products: Dict[int, Entry] = {}

    def by_product(source: int) -> Entry:
        if source not in products:
            name = f"{old['nodes'][source]['name']}@times_1"
            nodes.append(new_node("_mul_scalar", name, [[places[source], 0, 0]], scalar=1.0))
            products[source] = [len(nodes) - 1, 0, 0]
        return products[source]

    for node in old["nodes"]:
        entries = []
        for source, output, version in node["inputs"]:
            taken = old["nodes"][source]
            direct = (
                taken["op"] == "null" and taken["name"] in params and node["op"] not in ADD_RIGHTLY
            )
            entries.append(by_product(source) if direct else [places[source], output, version])
        nodes.append({**node, "inputs": entries})
        places.append(len(nodes) - 1)
    heads = [[places[i], output, version] for i, output, version in old["heads"]]
    return to_symbol(nodes, heads, old["attrs"]) if products else graph
