"""MXNet's own exporter to ONNX, made to work with the onnx of today.

MXNet 1.9.1 was written for onnx 1.7 to 1.13. While the exporter runs, this puts back what later
ones lack, and translates anew what the exporter gets wrong:

- it looks up types in ``onnx.mapping``, which is gone;
- it has onnx check its graph by the rules of the newest opset, but writes opset 13;
- it makes a Python list of the numbers of every weight, which takes ten times the memory;
- it lets a BatchNorm with ``fix_gamma`` use the gamma that MXNet ignores;
- it takes FullyConnected for one that keeps its axes where the graph does not say so;
- it lets Embedding fail, or take another row, for an index that MXNet brings into range;
- it translates LSTM, GRU and RNN of one layer only, or of two whose inputs are as wide as their
  states, and GRU and RNN in one direction only;
- it writes to the root logger, which prints from then on.
"""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd

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


# --- LSTM, GRU and RNN, of any number of layers, in both directions
#
# MXNet has all of an operator's weights in one row: for each layer, and in it for each direction,
# the weights of the input (gates x H, in) and of the state (gates x H, H); then, in the same order,
# two biases (gates x H,) for each. ONNX has its gates in another order (`_Kind.order`).


class _Kind(NamedTuple):
    """``operator``: ONNX's. ``order``: where MXNet has the gates that ONNX has one by one."""

    operator: str
    order: Tuple[int, ...]
    states: int
    settings: Dict[str, Any]


KINDS = {
    "lstm": _Kind("LSTM", (0, 3, 1, 2), 2, {}),
    "gru": _Kind("GRU", (1, 0, 2), 1, {"linear_before_reset": 1}),
    "rnn_tanh": _Kind("RNN", (0,), 1, {"activations": ["Tanh"]}),
    "rnn_relu": _Kind("RNN", (0,), 1, {"activations": ["Relu"]}),
}
UNKNOWN = ("projection_size", "use_sequence_length", "lstm_state_clip_min", "lstm_state_clip_max")


class _Made:
    """The ONNX operators of one of MXNet's, whose names begin with its name."""

    def __init__(self, name: str, initializer: List[Any]) -> None:
        self.name, self.nodes, self._initializer = name, [], initializer  # type: str, List[Any], Any

    def add(self, operator: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        """Add an operator of one output, whose name this returns."""
        from onnx import helper

        result = out or f"{self.name}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [result], **attributes))
        return result

    def whole(self, *numbers: int) -> str:
        """A constant."""
        import numpy as np
        from onnx import numpy_helper

        name = f"{self.name}_number_{len(self._initializer)}"
        self._initializer.append(numpy_helper.from_array(np.array(numbers, "int64"), name))
        return name

    def part(self, array: str, axis: int, begin: int, end: int) -> str:
        """``array[begin:end]`` along this axis; 0 as the end: to the last."""
        stop = end or 2**62
        bounds = [self.whole(number) for number in (begin, stop, axis)]
        return self.add("Slice", array, *bounds)

    def shaped(self, array: str, *shape: int) -> str:
        """The array with another shape; 0 keeps a length, -1 is what is left."""
        return self.add("Reshape", array, self.whole(*shape))


def _recurrent(
    theirs: Callable[..., Any], node: Node, **about: Any
) -> Tuple[List[Any], Tuple[Any, ...]]:
    """The ONNX operators of one RNN, and the types of its outputs.

    Raises NotImplementedError for what is not translated.
    """
    from mxnet.onnx.mx2onnx._op_translations import _op_translations_opset12 as translations

    name, inputs, attrs = translations.get_inputs(node, about)
    for setting in UNKNOWN:
        if attrs.get(setting, "None") not in ("None", "False", "0"):
            raise NotImplementedError(f"{setting} is not translated")
    kind, wide = KINDS[attrs["mode"]], int(attrs["state_size"])
    layers, ways = int(attrs.get("num_layers", 1)), 1 + (attrs.get("bidirectional") in TRUE)
    made = _Made(name, about["initializer"])
    data, weights, *states = inputs
    begun = _begun(made, data, states[: kind.states], layers * ways, wide)
    ended: List[List[str]] = []
    for layer in range(layers):
        own = [made.part(state, 0, layer * ways, (layer + 1) * ways) for state in begun]
        arrays = _arrays(made, weights, kind, layer, (layers, ways, wide))
        data, *after = _layer(made, kind, [data, *arrays, "", *own], ways, wide)
        ended.append(after)
    made.add("Identity", data, out=name)
    for number, of_layers in enumerate(zip(*ended), 1):
        made.add("Concat", *of_layers, out=f"{name}{number}", axis=0)
    return made.nodes, (translations.get_input_dtypes(node, about)[1],) * (1 + kind.states)


def _begun(made: _Made, data: str, states: List[str], count: int, wide: int) -> List[str]:
    """The states before a sequence, (count, batch, H), as large as there are images."""
    from onnx import helper

    batch = made.part(made.add("Shape", data), 0, 1, 2)
    shape = made.add("Concat", made.whole(count), batch, made.whole(wide), axis=0)
    one = helper.make_tensor(f"{made.name}_one", 1, [1], [1.0])
    ones = made.add("ConstantOfShape", shape, value=one)
    return [made.add("Mul", state, ones) for state in states]


def _arrays(
    made: _Made, weights: str, kind: _Kind, layer: int, sizes: Tuple[int, int, int]
) -> List[str]:
    """The weights of the input and of the state, and the biases of a layer, gates as in ONNX."""
    layers, ways, wide = sizes
    gates = len(kind.order)
    bias, state = ways * 2 * gates * wide, gates * wide * wide
    later = ways * (ways + 1) * state  # a layer whose input is the output of the one before
    # from the end, as the width of the first layer's input is not known here
    after = layers * bias + (layers - 1 - layer) * later
    block = made.part(weights, 0, 0 if layer == 0 else -after - later, -after)
    both = made.shaped(block, ways, -1)
    order = made.whole(*kind.order)

    def ordered(array: str) -> str:
        apart = made.shaped(array, ways, gates, wide, -1)
        return made.shaped(made.add("Gather", apart, order, axis=1), ways, gates * wide, -1)

    biases = made.part(weights, 0, (layer - layers) * bias, (layer + 1 - layers) * bias)
    apart = made.shaped(biases, ways, 2, gates, wide)
    return [
        ordered(made.part(both, 1, 0, -state)),
        ordered(made.part(both, 1, -state, 0)),
        made.shaped(made.add("Gather", apart, order, axis=2), ways, -1),
    ]


def _layer(made: _Made, kind: _Kind, inputs: List[str], ways: int, wide: int) -> List[str]:
    """What a layer gives: (length, batch, ways x H), and its states after the sequence."""
    from onnx import helper

    stem = f"{made.name}_layer_{len(made.nodes)}"
    outputs = [f"{stem}_{number}" for number in range(1 + kind.states)]
    settings = dict(kind.settings, hidden_size=wide)
    if ways == 2:
        settings["direction"] = "bidirectional"
    if "activations" in settings:
        settings["activations"] = settings["activations"] * ways
    made.nodes.append(helper.make_node(kind.operator, inputs, outputs, **settings))
    # (length, ways, batch, H)
    turned = made.add("Transpose", outputs[0], perm=[0, 2, 1, 3])
    return [made.shaped(turned, 0, 0, -1), *outputs[1:]]


OWN = {
    "null": _variable, "BatchNorm": _batch_norm, "FullyConnected": _dense,
    "Embedding": _embedding, "RNN": _recurrent,
}  # fmt: skip
