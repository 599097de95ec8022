"""Optimizes a Gluon network in place: it computes the same, but faster."""

from __future__ import annotations

from threading import RLock
from types import SimpleNamespace
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple, Type, Union

import mxnet as mx
import numpy as np
from mxnet import gluon, nd
from mxnet.gluon.block import _flatten

from gluonlab.errors import ModelError, error_type_and_text
from gluonlab.models.channel_padding import make_room, widened
from gluonlab.models.rewrite_network import rewrites
from gluonlab.models.symbol_graph import Node, parsed
from gluonlab.plain_text import shorten_names

# what a call reads of a compiled network
OF_COMPILED = ("_cached_op", "_cached_op_args", "_flags", "_in_format", "_out_format")
_COMPILING = RLock()
_CLASSES: Dict[Type[gluon.HybridBlock], Type[gluon.HybridBlock]] = {}
Input = Union[nd.NDArray, Sequence[int]]  # an array, or its shape


class Change(NamedTuple):
    """Operators that `optimize` changed, and what it did to them."""

    effect: str
    operators: List[str]

    def __str__(self) -> str:
        return f"{shorten_names(self.operators)}: {self.effect}"


class Changes(Tuple[Change, ...]):
    """All changes of a network. Printed, a line for each."""

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "there is nothing to optimize"


def optimize(net: gluon.HybridBlock, *inputs: Input) -> Changes:
    """Let a network compute the same faster, in a training loop of your own, and in prediction.

    From now on each call of ``net`` compiles the graph of the network, rewritten for the shapes of
    its inputs and for their device (`gluonlab.models.rewrite_network`). Parameters, gradients and
    saved or exported files stay as they are. Scores and gradients change by rounding errors only.
    To set options of ``net.hybridize(...)``, call that first. Each combination of input shapes
    keeps its compiled graph.

    Args:
        net: an initialized network. It is changed in place, and hybridized if it is not yet.
        inputs: a batch of each input of the network, or its shape, such as (64, 1, 28, 28). None:
            the network is rewritten when it is first called, and nothing is returned.

    Returns:
        The changes for these inputs; ``print`` shows them. Other shapes may have other changes.

    Raises:
        ModelError: if ``net`` is not a HybridBlock, is not initialized, or cannot take the inputs.
    """
    if not isinstance(net, gluon.HybridBlock):
        raise ModelError(
            f"optimize takes a HybridBlock, and got a {type(net).__name__}: MXNet compiles no "
            "other blocks; build the network of HybridSequential and HybridBlock"
        )
    if type(net).hybrid_forward is gluon.HybridBlock.hybrid_forward:
        raise ModelError(
            f"{type(net).__name__} has no hybrid_forward, so MXNet cannot compile it: rename its "
            "forward(self, x) to hybrid_forward(self, F, x)"
        )
    if not isinstance(net, _Optimized):
        net.__class__ = _optimized_class(type(net))
        if not net._active:
            net.hybridize()
        net._clear_cached_op()
    if not inputs:
        return Changes()
    try:
        changes: Changes = net._compile(*(_array(net, each) for each in inputs))
    except ModelError:
        raise
    except Exception as error:  # the network's code may raise any
        raise ModelError(f"{type(net).__name__}: {error_type_and_text(error)}") from error
    return changes


def _array(net: gluon.HybridBlock, given: Any) -> Any:
    """Return the array of an input: one that was given, or zeros of a shape.

    An optional input may be None, and a list of inputs gives a list.
    """
    if given is None or isinstance(given, nd.NDArray):
        return given
    if isinstance(given, (list, tuple)) and given:
        if all(isinstance(side, (int, np.integer)) and side > 0 for side in given):
            params = list(net.collect_params().values())
            ctx = params[0].list_ctx()[0] if params else mx.current_context()
            zeros = mx.np.zeros if mx.util.is_np_array() else nd.zeros
            return zeros(tuple(given), ctx=ctx, dtype=params[0].dtype if params else "float32")
        if all(each is None or isinstance(each, (list, tuple, nd.NDArray)) for each in given):
            return [_array(net, each) for each in given]
    kind = type(given).__name__
    what = repr(given) if isinstance(given, (int, str, tuple)) else f"a {kind}"
    raise ModelError(f"optimize takes arrays, or shapes such as (64, 3, 32, 32), and got {what}")


class _Optimized:
    """Mixed into the class of an optimized network.

    It replaces Gluon's compiled operator by one for each combination of shapes, types and device.
    """

    _cached_op_args: List[Tuple[bool, Any]]
    _compiled: Dict[Any, SimpleNamespace]

    def _clear_cached_op(self) -> None:
        super()._clear_cached_op()  # type: ignore[misc]
        self._compiled = {}

    def _call_cached_op(self: Any, *args: Any) -> Any:
        given = _list_arrays(args)
        shapes = [(each.shape, np.dtype(each.dtype)) for each in given]
        key = (given[0].context.device_type, *shapes)
        with _COMPILING:
            if key not in self._compiled:
                self._compile(*args)
                own = {name: getattr(self, name) for name in OF_COMPILED}
                self._compiled[key] = SimpleNamespace(**own)
        # Threads may call the network at once: each with the operator for its own shapes.
        compiled = self._compiled[key]
        compiled._callback, compiled._monitor_all = self._callback, self._monitor_all
        return gluon.HybridBlock._call_cached_op(compiled, *args)

    def _compile(self: Any, *args: Any) -> Changes:
        """Replace ``_cached_op`` by that of the rewritten graph; the graph for files stays."""
        self._cached_op, self._cached_op_args = None, []
        self._build_cache(*args)  # initializes what waits for shapes
        data, graph = self._cached_graph
        given, params = _list_arrays(args), dict(self.collect_params().items())
        kinds = {each.name: (value.shape, value.dtype) for each, value in zip(data, given)}
        names = graph.list_arguments()
        # of their arrays, as imported parameters need not know their shapes
        own = {name: params[name].list_data()[0] for name in names if name in params}
        kinds.update({name: (array.shape, array.dtype) for name, array in own.items()})
        changes: List[Change] = []
        rewritten = graph
        for step in rewrites(graph, given[0].context, kinds):
            changed = _changed_operators(rewritten, step.graph)
            if changed:
                changes.append(Change(step.effect, changed))
            rewritten = step.graph
        if changes:
            if mx.util.is_np_array():
                rewritten = rewritten.as_np_ndarray()
            self._use(rewritten, [each.name for each in data], kinds, params)
        return Changes(changes)

    def _use(self: Any, graph: mx.sym.Symbol, data: List[str], kinds: Any, params: Any) -> None:
        shapes = {name: kinds[name][0] for name in graph.list_arguments()}
        names = graph.list_auxiliary_states()
        states = dict(zip(names, graph.infer_shape(**shapes)[2]))
        inputs = graph.list_inputs()
        self._cached_op_args = []
        for name in inputs:
            if name in data:
                self._cached_op_args.append((True, data.index(name)))
            elif name in states and states[name] != params[name].list_data()[0].shape:
                self._cached_op_args.append((False, _WideState(params[name], states[name])))
            else:
                self._cached_op_args.append((False, params[name]))
        indices = [
            ("data_indices", [place for place, name in enumerate(inputs) if name in data]),
            ("param_indices", [place for place, name in enumerate(inputs) if name not in data]),
        ]
        self._cached_op = nd.CachedOp(graph, indices + self._flags)


class _WideState:
    """A parameter of running statistics with more channels, as a compiled operator reads it."""

    def __init__(self, param: gluon.Parameter, shape: Tuple[int, ...]) -> None:
        self._param, self._shape, self.name = param, shape, param.name
        for array in param.list_data():
            make_room(param, array.context)  # now, and not in one of several threads

    def data(self) -> nd.NDArray:
        """Return the array on the current device."""
        return widened(self._param, self._param.data().context, self._shape)

    def _reduce(self) -> nd.NDArray:
        return self._param._reduce()  # what is exported


def _list_arrays(args: Sequence[Any]) -> List[nd.NDArray]:
    flat, _ = _flatten(args, "input")
    return [each for each in flat if each is not None]


def _optimized_class(kind: Type[gluon.HybridBlock]) -> Type[gluon.HybridBlock]:
    """Return the class of optimized networks of a kind, one for all of them."""
    if kind not in _CLASSES:
        _CLASSES[kind] = type(kind.__name__, (_Optimized, kind), {"__module__": kind.__module__})
    return _CLASSES[kind]


def _changed_operators(before: mx.sym.Symbol, after: mx.sym.Symbol) -> List[str]:
    """The names of operators of ``before`` that another operator, or another form, replaces."""
    if after is before:
        return []
    new: Dict[str, Node] = {node["name"]: node for node in parsed(after)["nodes"]}
    changed = []
    for node in parsed(before)["nodes"]:
        if node["op"] == "null":
            continue
        other = new.get(node["name"])
        if other is None or (other["op"], other.get("attrs")) != (node["op"], node.get("attrs")):
            changed.append(node["name"])
    return changed
