"""Makes a Gluon network faster, in place, without changing the function that it computes."""

from __future__ import annotations

from threading import RLock
from types import SimpleNamespace
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple, Type, Union

import mxnet as mx
import numpy as np
from mxnet import gluon, nd
from mxnet.gluon.block import _flatten

from gluonlab.errors import ModelError, error_type_and_text
from gluonlab.models.cpu_channel_padding import enlarge_state, padded_state
from gluonlab.models.rewrite_network import iterate_rewrites
from gluonlab.models.symbol_graph import Node, parse_graph
from gluonlab.plain_text import shorten_names

# Gluon reads these attributes of a block when the compiled block is called.
COMPILED_ATTRIBUTES = ("_cached_op", "_cached_op_args", "_flags", "_in_format", "_out_format")
_COMPILING = RLock()
_OPTIMIZED_CLASSES: Dict[Type[gluon.HybridBlock], Type[gluon.HybridBlock]] = {}
Input = Union[nd.NDArray, Sequence[int]]  # an array, or its shape


class Change(NamedTuple):
    """Names of operators that `optimize` changed in the same way, and what the change does."""

    effect: str
    operators: List[str]

    def __str__(self) -> str:
        return f"{shorten_names(self.operators)}: {self.effect}"


class Changes(Tuple[Change, ...]):
    """All changes to a network. ``print`` writes one change per line."""

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "no operators can be optimized"


def optimize(net: gluon.HybridBlock, *inputs: Input) -> Changes:
    """Make a model faster in a custom training loop and in prediction.

    Later calls of ``net`` run a rewritten graph, which is compiled once for each combination of
    input shapes. Scores and gradients differ only by rounding. Parameters and saved files do not
    change. To set options of ``net.hybridize``, call ``net.hybridize`` first.

    Args:
        net: An initialized model. The model is changed in place, and hybridized if necessary.
        inputs: For each input of the model, a batch or its shape, such as (64, 1, 28, 28). Without
            ``inputs``, the graph is rewritten in the first call.

    Returns:
        The changes made for these inputs. ``print`` shows one change per line.

    Raises:
        ModelError: ``net`` is not a HybridBlock, is not initialized, or does not accept the inputs.
    """
    if not isinstance(net, gluon.HybridBlock):
        raise ModelError(
            f"optimize() needs a HybridBlock, not a {type(net).__name__}: build the model from "
            "HybridSequential and HybridBlock"
        )
    if type(net).hybrid_forward is gluon.HybridBlock.hybrid_forward:
        raise ModelError(
            f"{type(net).__name__} has no hybrid_forward, so MXNet cannot compile it: rename its "
            "forward(self, x) to hybrid_forward(self, F, x)"
        )
    if not isinstance(net, _OptimizedBlock):
        net.__class__ = _make_optimized_class(type(net))
        if not net._active:
            net.hybridize()
        net._clear_cached_op()
    if not inputs:
        return Changes()
    try:
        changes: Changes = net._compile_rewritten_graph(*(_to_input_array(net, given) for given in inputs))
    except ModelError:
        raise
    except Exception as error:  # the network's code may raise any
        raise ModelError(f"{type(net).__name__}: {error_type_and_text(error)}") from error
    return changes


def _to_input_array(net: gluon.HybridBlock, given: Any) -> Any:
    """Return the given array, or an array of zeros if ``given`` is a shape.

    Optional inputs may be None. For a list of inputs, returns a list.
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
            return [_to_input_array(net, each) for each in given]
    kind = type(given).__name__
    description = repr(given) if isinstance(given, (int, str, tuple)) else f"a {kind}"
    raise ModelError(
        f"optimize() needs arrays, or shapes such as (64, 3, 32, 32), not {description}: "
        "pass an array or a shape for each input"
    )


class _OptimizedBlock:
    """Mixin for the class of an optimized network.

    Gluon compiles one operator for the block. This mixin compiles one operator for each combination
    of shapes, types and device kind.
    """

    _cached_op_args: List[Tuple[bool, Any]]
    _compiled: Dict[Any, SimpleNamespace]

    def _clear_cached_op(self) -> None:
        super()._clear_cached_op()  # type: ignore[misc]
        self._compiled = {}

    def _call_cached_op(self: Any, *args: Any) -> Any:
        """Run the graph compiled for these input shapes. Compile it in the first call."""
        arrays = _list_arrays(args)
        shapes = [(array.shape, np.dtype(array.dtype)) for array in arrays]
        key = (arrays[0].context.device_type, *shapes)
        with _COMPILING:
            if key not in self._compiled:
                self._compile_rewritten_graph(*args)
                attributes = {name: getattr(self, name) for name in COMPILED_ATTRIBUTES}
                self._compiled[key] = SimpleNamespace(**attributes)
        # A separate object for each combination, because several threads may call the network.
        compiled = self._compiled[key]
        compiled._callback, compiled._monitor_all = self._callback, self._monitor_all
        return gluon.HybridBlock._call_cached_op(compiled, *args)

    def _compile_rewritten_graph(self: Any, *args: Any) -> Changes:
        """Compile the rewritten graph to ``_cached_op``, and return the changes.

        ``_cached_graph`` stays unchanged, because Gluon writes it when exporting the network.
        """
        self._cached_op, self._cached_op_args = None, []
        self._build_cache(*args)  # finishes deferred initialization
        data, graph = self._cached_graph
        arrays, params = _list_arrays(args), dict(self.collect_params().items())
        # name of an argument -> (shape, type)
        kinds = {variable.name: (value.shape, value.dtype) for variable, value in zip(data, arrays)}
        names = graph.list_arguments()
        # The arrays have shapes, but imported parameters may have none.
        param_arrays = {name: params[name].list_data()[0] for name in names if name in params}
        kinds.update({name: (array.shape, array.dtype) for name, array in param_arrays.items()})
        changes: List[Change] = []
        rewritten = graph
        for step in iterate_rewrites(graph, arrays[0].context, kinds):
            changed = _changed_operators(rewritten, step.graph)
            if changed:
                changes.append(Change(step.effect, changed))
            rewritten = step.graph
        if changes:
            if mx.util.is_np_array():
                rewritten = rewritten.as_np_ndarray()
            self._compile_graph(rewritten, [variable.name for variable in data], kinds, params)
        return Changes(changes)

    def _compile_graph(self: Any, graph: mx.sym.Symbol, data: List[str], kinds: Any, params: Any) -> None:
        """Compile ``graph`` to ``_cached_op``, the operator that runs when the block is called.

        ``data``: the names of the inputs. ``kinds``: (shape, type) of each argument, by name.
        ``params``: the parameters, by name.
        """
        shapes = {name: kinds[name][0] for name in graph.list_arguments()}
        names = graph.list_auxiliary_states()
        states = dict(zip(names, graph.infer_shape(**shapes)[2]))
        inputs = graph.list_inputs()
        self._cached_op_args = []
        for name in inputs:
            if name in data:
                self._cached_op_args.append((True, data.index(name)))
            elif name in states and states[name] != params[name].list_data()[0].shape:
                self._cached_op_args.append((False, _PaddedState(params[name], states[name])))
            else:
                self._cached_op_args.append((False, params[name]))
        indices = [
            ("data_indices", [position for position, name in enumerate(inputs) if name in data]),
            ("param_indices", [position for position, name in enumerate(inputs) if name not in data]),
        ]
        self._cached_op = nd.CachedOp(graph, indices + self._flags)


class _PaddedState:
    """Running statistics with padded channels. A compiled operator reads them like a parameter."""

    def __init__(self, param: gluon.Parameter, shape: Tuple[int, ...]) -> None:
        self._param, self._shape, self.name = param, shape, param.name
        for array in param.list_data():
            enlarge_state(param, array.context)  # now, because calls may come from several threads

    def data(self) -> nd.NDArray:
        """Return the array on the current device."""
        return padded_state(self._param, self._param.data().context, self._shape)

    def _reduce(self) -> nd.NDArray:
        return self._param._reduce()  # Gluon exports this array, so it must not have padding.


def _list_arrays(args: Sequence[Any]) -> List[nd.NDArray]:
    flat, _ = _flatten(args, "input")
    return [arg for arg in flat if arg is not None]


def _make_optimized_class(kind: Type[gluon.HybridBlock]) -> Type[gluon.HybridBlock]:
    """Return the optimized subclass of a network's class. Every call returns the same subclass."""
    if kind not in _OPTIMIZED_CLASSES:
        _OPTIMIZED_CLASSES[kind] = type(kind.__name__, (_OptimizedBlock, kind), {"__module__": kind.__module__})
    return _OPTIMIZED_CLASSES[kind]


def _changed_operators(old_graph: mx.sym.Symbol, new_graph: mx.sym.Symbol) -> List[str]:
    """Return the names of the old graph's operators that the new graph changes or lacks."""
    if new_graph is old_graph:
        return []
    new_nodes: Dict[str, Node] = {node["name"]: node for node in parse_graph(new_graph)["nodes"]}
    changed = []
    for node in parse_graph(old_graph)["nodes"]:
        if node["op"] == "null":
            continue
        new_node = new_nodes.get(node["name"])
        if new_node is None or (new_node["op"], new_node.get("attrs")) != (node["op"], node.get("attrs")):
            changed.append(node["name"])
    return changed
