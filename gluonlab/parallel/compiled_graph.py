"""Compiles the graph of a network, or a part of it, for one device.

Each graph is bound to the parameters' arrays once for each input shape: for a full shard, and for
the smaller shard of an epoch's last batch. A pass takes a tenth of the host time of ``record`` and
``backward`` in Gluon, because nothing is traced, checked or allocated again. For small batches,
host time limits the throughput.
"""

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
from gluonlab.models.cpu_channel_padding import choose_padding, enlarge_state, padded_state
from gluonlab.models.rewrite_network import rewrite_graph
from gluonlab.models.symbol_graph import Entry, Node, make_node, parse_graph, to_symbol

Shape = Tuple[int, ...]
ArraySpec = Tuple[Tuple[int, ...], Any]  # shape and type
ArraySpecs = Dict[str, ArraySpec]  # by name of the array


def array_bytes(spec: ArraySpec) -> int:
    """Return the size in bytes of an array with the shape and type ``spec``."""
    return int(np.prod(spec[0])) * int(np.dtype(spec[1]).itemsize)


class HeadGradients:
    """The gradients d(loss) / d(output) from which backward starts, created once for all steps.

    The head gradient of a loss is 1, or the loss scale. The head gradients of all other outputs are
    0 until the caller writes to ``arrays``.
    """

    def __init__(
        self,
        outputs: Sequence[nd.NDArray],
        loss_indices: Sequence[int],
        existing: Optional[Mapping[int, nd.NDArray]] = None,
    ) -> None:
        """Allocate the arrays.

        Args:
            outputs: Outputs of the graph.
            loss_indices: Indices of the outputs that are losses.
            existing: Existing arrays to use instead of new arrays, by index of the output.
        """
        existing = existing or {}
        # This list keeps the arrays of ``handles`` alive.
        self.arrays = [
            existing[i] if i in existing else nd.zeros(output.shape, output.context, output.dtype)
            for i, output in enumerate(outputs)
        ]
        self._losses, self._scale = [self.arrays[loss] for loss in loss_indices], 0.0
        self.set_loss_scale(1.0)
        self.copies = [CopyInto(array) for array in self.arrays]
        self.count = len(self.arrays)
        self.handles = (ctypes.c_void_p * self.count)(*[array.handle for array in self.arrays])

    def set_loss_scale(self, scale: float) -> None:
        """Set the gradient of the losses to ``scale`` for all passes queued from now on."""
        if scale != self._scale:  # saves the calls into MXNet in most steps
            for array in self._losses:
                array[:] = scale
            self._scale = scale


class BoundGraph(NamedTuple):
    """A graph bound to its input, output and gradient arrays.

    Attributes:
        executor: MXNet's executor.
        inputs: For each input, by name, a function that copies an array into the input.
        arrays: The input arrays, by name.
        outputs: The outputs; forward overwrites them.
        heads: Head gradients, from which backward starts.
        gradients: Gradients of inputs, by name; backward overwrites them.
    """

    executor: Any
    inputs: Dict[str, CopyInto]
    arrays: Dict[str, nd.NDArray]
    outputs: List[nd.NDArray]
    heads: HeadGradients
    gradients: Dict[str, nd.NDArray]


class ArrayMemory:
    """Memory on one device for arrays of passes that never overlap."""

    ALIGNED = 16  # elements: oneDNN reads whole cache lines

    def __init__(self, ctx: mx.Context) -> None:
        self._ctx = ctx
        self._memory: Dict[Any, nd.NDArray] = {}

    def allocate_like(self, arrays: Mapping[str, nd.NDArray], slot: int = 0) -> Dict[str, nd.NDArray]:
        """Return arrays with the shapes and types of ``arrays``.

        ``slot``: the number of a memory area. Calls with the same slot share its memory, so later
        arrays may overwrite earlier arrays.
        """
        views: Dict[str, nd.NDArray] = {}
        for dtype in {array.dtype for array in arrays.values()}:
            of_dtype = {name: array for name, array in arrays.items() if array.dtype == dtype}
            sizes = [-(-array.size // self.ALIGNED) * self.ALIGNED for array in of_dtype.values()]
            ends = list(itertools.accumulate(sizes))
            memory = self._memory.get((slot, dtype))
            if memory is None or memory.size < ends[-1]:
                memory = self._memory[slot, dtype] = nd.empty((ends[-1],), self._ctx, dtype)
            for (name, array), end, size in zip(of_dtype.items(), ends, sizes):
                begin = end - size
                views[name] = memory[begin : begin + array.size].reshape(array.shape)
        return views


class CompiledGraph:
    """A graph on one device that can be bound to inputs of several shapes.

    ``params`` must be initialized on this device. ``losses`` are the indices of the outputs that
    are losses. Backward computes the gradients of the parameters and of the inputs
    ``gradient_inputs``.
    """

    def __init__(
        self,
        graph: mx.sym.Symbol,
        params: Mapping[str, gluon.Parameter],
        ctx: mx.Context,
        losses: Sequence[int] = (),
        gradient_inputs: Sequence[str] = (),
    ) -> None:
        self.graph, self.ctx = graph, ctx
        self._losses, self.gradient_inputs = losses, gradient_inputs
        names = [name for name in graph.list_arguments() if name in params]
        self._args = {name: params[name].data(ctx) for name in names}
        self._states = {name: params[name] for name in graph.list_auxiliary_states()}
        if choose_padding(ctx).multiples:
            for state in self._states.values():
                enlarge_state(state, ctx)
        self._req = {name: params[name].grad_req for name in names}
        self.grads = {name: params[name].grad(ctx) for name in names if self._req[name] != "null"}
        # The graphs of a slot run one after the other and share one memory for their activations:
        # the memory of the first graph, or of a later graph that needs more. Each graph overwrites
        # the activations of the previous graph of its slot.
        self._memory: Dict[int, Any] = {}
        self._outputs: Dict[int, List[nd.NDArray]] = {}  # by slot, of the graph that ran last
        self._train = True

    @property
    def needs_backward(self) -> bool:
        """True if backward computes any gradient."""
        return bool(self.grads or self.gradient_inputs)

    def bind(
        self,
        inputs: Mapping[str, nd.NDArray],
        accumulate: bool = False,
        slot: int = 0,
        graph: "mx.sym.Symbol | None" = None,
        bound_inputs: Optional[Mapping[str, nd.NDArray]] = None,
        gradient_arrays: Optional[Mapping[str, nd.NDArray]] = None,
        heads: bool = True,
    ) -> BoundGraph:
        """Bind the graph to new arrays that have the shapes and types of ``inputs``.

        Args:
            inputs: Example arrays, by name. Only their shapes and types matter.
            accumulate: Whether backward adds to the gradients instead of overwriting them.
            slot: The number of the memory area for the activations. Graphs in different slots can
                keep activations for backward at the same time.
            graph: A graph with the same parameters, to bind instead of this graph.
            bound_inputs: Arrays of additional inputs, by name. The graph reads these arrays without
                a copy.
            gradient_arrays: Arrays for the gradients of inputs, instead of new arrays.
            heads: Whether to allocate head gradients. If False, the caller sets the head gradients.
        """
        new = {name: nd.empty(like.shape, self.ctx, like.dtype) for name, like in inputs.items()}
        arrays = {**new, **(bound_inputs or {})}
        gradients = (
            {name: nd.empty(arrays[name].shape, self.ctx, arrays[name].dtype) for name in self.gradient_inputs}
            if gradient_arrays is None
            else dict(gradient_arrays)
        )
        # Evaluation uses the graph with gradients, too. To a graph without gradients MXNet would
        # apply its oneDNN fusion, which keeps a copy of the weights and ignores later updates.
        requests = {**self._req, **dict.fromkeys(arrays, "null")}
        requests.update(dict.fromkeys(self.grads, "add") if accumulate else {})
        requests.update(dict.fromkeys(gradients, "write"))
        args = {**self._args, **arrays}
        specs = {name: (array.shape, array.dtype) for name, array in args.items()}
        trained = {name for name, request in requests.items() if request != "null"}
        symbol = rewrite_graph(self.graph if graph is None else graph, self.ctx, specs, trained)
        if "add" in requests.values():
            symbol = fix_gradient_accumulation(symbol, self.grads)
        with apply_backward_bulk_size(self.ctx.device_type):
            executor = symbol.bind(
                self.ctx, args, args_grad={**self.grads, **gradients},
                grad_req=requests, aux_states=self._padded_states(symbol, specs),
                shared_exec=self._memory.get(slot),
            )  # fmt: skip
        self._memory.setdefault(slot, executor)
        copies = {name: CopyInto(array) for name, array in new.items()}
        outputs = executor.outputs
        head_gradients = HeadGradients(outputs if heads else [], self._losses if heads else [])
        return BoundGraph(executor, copies, new, outputs, head_gradients, gradients)

    def _padded_states(self, graph: mx.sym.Symbol, specs: ArraySpecs) -> Dict[str, nd.NDArray]:
        """Return the auxiliary states, padded with zeros to the channel counts in ``graph``."""
        shapes = {name: specs[name][0] for name in graph.list_arguments()}
        states = zip(graph.list_auxiliary_states(), graph.infer_shape(**shapes)[2])
        return {name: padded_state(self._states[name], self.ctx, shape) for name, shape in states}

    def forward(self, bound: BoundGraph, train: bool = True, slot: int = 0) -> None:
        """Queue the forward pass of ``bound`` on the current contents of its input arrays.

        ``train`` is the mode for layers such as Dropout, as in autograd.record(train_mode=...).
        """
        if train != self._train:
            # Operators read the mode when they run, so wait until all queued operators are done.
            self._wait()
            self._train = train
        check_call(_LIB.MXExecutorForward(bound.executor.handle, int(train)))
        self._outputs[slot] = bound.outputs

    def backward(self, bound: BoundGraph) -> None:
        """Queue the backward pass of the last forward pass, starting from the head gradients."""
        heads = bound.heads
        check_call(_LIB.MXExecutorBackwardEx(bound.executor.handle, heads.count, heads.handles, 1))

    def _wait(self) -> None:
        """Wait for the passes of this graph, but not for other work on the device."""
        outputs = [output for of_slot in self._outputs.values() for output in of_slot]
        for array in (*self.grads.values(), *outputs):
            array.wait_to_read()


# Operators whose grad_req "add" was tested and is correct. They use nearly all parameters.
ACCUMULATE_CORRECTLY = ("Convolution", "Deconvolution", "FullyConnected", "BatchNorm", "LayerNorm", "Embedding")


def fix_gradient_accumulation(graph: mx.sym.Symbol, params: Container[str]) -> mx.sym.Symbol:
    """Return an equivalent graph in which MXNet accumulates gradients correctly.

    With grad_req "add", many operators accumulate the gradient of an argument incorrectly. For
    example, `+` adds the gradient twice, and averaging a broadcast array loses the previous sum.
    In the new graph, these operators read the product of the parameter and 1, because
    multiplication accumulates its gradient correctly.
    """
    old = parse_graph(graph)
    nodes: List[Node] = []
    new_index: List[int] = []  # node of the old graph -> its node in the new one
    products: Dict[int, Entry] = {}

    def multiply_by_one(source: int) -> Entry:
        """Return a node that multiplies the parameter at node ``source`` by 1.

        The first call for a parameter appends the node.
        """
        if source not in products:
            name = f"{old['nodes'][source]['name']}@times_1"
            nodes.append(make_node("_mul_scalar", name, [[new_index[source], 0, 0]], scalar=1.0))
            products[source] = [len(nodes) - 1, 0, 0]
        return products[source]

    for node in old["nodes"]:
        entries = []
        for source, output, version in node["inputs"]:
            argument = old["nodes"][source]
            is_param = argument["op"] == "null" and argument["name"] in params
            if is_param and node["op"] not in ACCUMULATE_CORRECTLY:
                entries.append(multiply_by_one(source))
            else:
                entries.append([new_index[source], output, version])
        nodes.append({**node, "inputs": entries})
        new_index.append(len(nodes) - 1)
    heads = [[new_index[i], output, version] for i, output, version in old["heads"]]
    return to_symbol(nodes, heads, old["attrs"]) if products else graph
