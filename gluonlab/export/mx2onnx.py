"""MXNet's own exporter to ONNX, made to work with the onnx of today.

MXNet 1.9.1 was written for onnx 1.7 to 1.13. While the exporter runs, this puts back what later
ones lack, and translates anew what the exporter gets wrong:

- it looks up types in ``onnx.mapping``, which is gone;
- it has onnx check its graph by the rules of the newest opset, but writes opset 13;
- it makes a Python list of the numbers of every weight, which takes ten times the memory;
- it lets a BatchNorm with ``fix_gamma`` use the gamma that MXNet ignores;
- it takes FullyConnected for one that keeps its axes where the graph does not say so;
- it lets Embedding fail, or take another row, for an index that MXNet brings into range;
- it translates some recurrent layers only, see `gluonlab.export.recurrent`;
- it writes to the root logger, which prints from then on.
"""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, Callable, Dict, Iterator, Mapping, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.export.recurrent import recurrent

OPSET = 13  # of ONNX 1.8, December 2020: the newest that MXNet 1.9.1 knows
IR_VERSION = 7  # the file format of the same release
TRUE = ("True", "1")

Node = Dict[str, Any]
_TYPES = (
    "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
    "uint64", "bool",
)  # fmt: skip
_ONNX_NAMES = {"float32": "FLOAT", "float64": "DOUBLE"}
_ABSENT: Any = object()
_one_at_a_time = threading.Lock()  # what is put back is put back for all threads


class UntranslatableError(ValueError):
    """MXNet's exporter cannot translate an operator, named here.

    ``why``: its reason, on one line; empty where it knows no such operator at all.
    """

    def __init__(self, operator: str, why: str = "") -> None:
        super().__init__(f"{operator} ({why})" if why else operator)
        self.operator, self.why = operator, why


def onnx_graph(
    graph: mx.sym.Symbol, arrays: Mapping[str, nd.NDArray], shape: Tuple[Any, ...]
) -> Any:
    """An ``onnx.GraphProto`` of ``graph``, in operators of OPSET.

    ``arrays``: the values of all its variables but one, the input, which is float32 of this
    ``shape``; its first axis may be a name, for any number. The weights are inputs of the graph,
    too. Raises UntranslatableError.
    """
    import onnx
    from mxnet.onnx.mx2onnx._export_onnx import MXNetGraph

    with _one_at_a_time, _todays_onnx(onnx, MXNetGraph):
        return MXNetGraph().create_onnx_graph_proto(
            graph, dict(arrays), [(1, *shape[1:])], [onnx.TensorProto.FLOAT],
            opset_version=OPSET, dynamic=True, dynamic_input_shapes=[shape],
        )  # fmt: skip


@contextmanager
def _todays_onnx(onnx: Any, exporter: Any) -> Iterator[None]:
    """Meanwhile, onnx is as the exporter expects it, and the exporter has `OWN` translations."""
    theirs = exporter.convert_layer

    def convert(node: Node, **about: Any) -> Any:
        try:
            return (
                OWN[node["op"]](theirs, node, **about)
                if node["op"] in OWN
                else theirs(node, **about)
            )
        except Exception as error:  # whatever it meets in an operator's attributes
            text = " ".join(str(error).split())
            unknown = text.startswith("No conversion function registered")
            why = "" if unknown else text or type(error).__name__
            raise UntranslatableError(node["op"], why) from None

    rules = onnx.checker.DEFAULT_CONTEXT
    with ExitStack() as until_then:
        for owner, name, value in (
            (onnx, "mapping", _mapping(onnx)),
            (rules, "opset_imports", {"": OPSET}),
            (rules, "ir_version", IR_VERSION),
            (exporter, "convert_layer", staticmethod(convert)),
        ):
            until_then.enter_context(_replaced(owner, name, value))
        until_then.enter_context(_without_logging())
        yield


def _mapping(onnx: Any) -> SimpleNamespace:
    """What ``onnx.mapping`` was, as far as the exporter asks."""
    numbers = {
        np.dtype(name): getattr(onnx.TensorProto, _ONNX_NAMES.get(name, name.upper()))
        for name in _TYPES
    }
    return SimpleNamespace(
        NP_TYPE_TO_TENSOR_TYPE=numbers,
        TENSOR_TYPE_TO_NP_TYPE={number: dtype for dtype, number in numbers.items()},
    )


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = vars(owner).get(name, _ABSENT) if hasattr(owner, "__dict__") else getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


@contextmanager
def _without_logging() -> Iterator[None]:
    """The root logger says nothing, and has no handler afterwards that it had not before."""
    root, level = logging.getLogger(), logging.root.manager.disable
    handler = logging.NullHandler()
    root.addHandler(handler)
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(level)
        root.removeHandler(handler)


def _variable(theirs: Callable[..., Any], node: Node, **about: Any) -> Any:
    """A weight, whose bytes are copied, or the input."""
    if about["is_input"]:
        return theirs(node, **about)
    from onnx import helper, numpy_helper

    value = about["weights"][node["name"]]
    tensor = numpy_helper.from_array(np.ascontiguousarray(value), node["name"])
    about["initializer"].append(tensor)
    shown = helper.make_tensor_value_info(tensor.name, tensor.data_type, value.shape)
    return [shown], (value.dtype,)


def _batch_norm(theirs: Callable[..., Any], node: Node, **about: Any) -> Any:
    """Where gamma is fixed, ones stand for it."""
    made = theirs(node, **about)
    if node.get("attrs", {}).get("fix_gamma", "True") in TRUE:
        from onnx import numpy_helper

        # images, gamma, beta, mean, variance; all but the first have one number for each channel
        [operator] = made[0] if isinstance(made, tuple) else made
        names = list(operator.input)
        ones = np.ones_like(about["weights"][names[3]])
        about["initializer"].append(numpy_helper.from_array(ones, f"{node['name']}_ones"))
        operator.input[1] = f"{node['name']}_ones"
    return made


def _dense(theirs: Callable[..., Any], node: Node, **about: Any) -> Any:
    attrs = {"flatten": "True", **node.get("attrs", {})}
    return theirs({**node, "attrs": attrs}, **about)


def _embedding(theirs: Callable[..., Any], node: Node, **about: Any) -> Any:
    """For an index without a row MXNet takes the nearest; ONNX counts from the end, or fails."""
    from onnx import helper, numpy_helper

    (cast, gather), dtypes = theirs(node, **about)
    rows, name = int(node["attrs"]["input_dim"]), node["name"]
    bounds = [f"{name}_first", f"{name}_last"]
    for bound, value in zip(bounds, (0, rows - 1)):
        about["initializer"].append(numpy_helper.from_array(np.array(value, "int64"), bound))
    clip = helper.make_node("Clip", [cast.output[0], *bounds], [f"{name}_rows"])
    gather.input[1] = f"{name}_rows"
    return [cast, clip, gather], dtypes


def _recurrent(theirs: Callable[..., Any], node: Node, **about: Any) -> Any:
    return recurrent(node, **about)


OWN = {
    "null": _variable, "BatchNorm": _batch_norm, "FullyConnected": _dense,
    "Embedding": _embedding, "RNN": _recurrent,
}  # fmt: skip
