"""MXNet's exporter to ONNX, adapted to current releases of onnx.

MXNet 1.9.1 was written for onnx 1.7 to 1.13. While the exporter runs, this module works around
these problems of the exporter:

- It looks up types in ``onnx.mapping``, which later releases of onnx do not have.
- It checks its graph against the rules of the newest opset, but writes opset 13.
- It converts each weight to a Python list, which takes ten times the memory.
- For a BatchNorm with ``fix_gamma``, it exports the stored gamma, which MXNet ignores.
- For a FullyConnected without ``flatten``, it assumes a different default than MXNet.
- Its Embedding fails, or reads a different row, for an index that MXNet clips.
- It translates LSTM, GRU and RNN only with one layer, or with two layers whose inputs are as wide
  as their states. It translates GRU and RNN only in one direction.
- It logs to the root logger, and thereby makes the root logger print all later messages.
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

OPSET = 13  # of ONNX 1.8, December 2020: the newest that MXNet 1.9.1 supports
IR_VERSION = 7  # the file format of the same release
TRUE_TEXTS = ("True", "1")

Node = Dict[str, Any]
_TYPES = (
    "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
    "uint64", "bool",
)  # fmt: skip
_ONNX_NAMES = {"float32": "FLOAT", "float64": "DOUBLE"}
_ABSENT: Any = object()
_one_at_a_time = threading.Lock()  # the patches affect all threads


class UntranslatableError(ValueError):
    """Raised for an operator that MXNet's exporter cannot translate.

    ``reason``: a one-line message; empty if the exporter does not know the operator.
    """

    def __init__(self, operator: str, reason: str = "") -> None:
        super().__init__(f"{operator} ({reason})" if reason else operator)
        self.operator, self.reason = operator, reason


def make_onnx_graph(graph: mx.sym.Symbol, arrays: Mapping[str, nd.NDArray], shape: Tuple[Any, ...]) -> Any:
    """Translate ``graph`` to an ``onnx.GraphProto`` with operators of OPSET.

    The weights are inputs of the returned graph. Raises UntranslatableError.

    ``arrays``: name -> values of all variables except the input. ``shape``: the shape of the input,
    which is float32. If the first axis is a name instead of a number, it may have any length.
    """
    import onnx
    from mxnet.onnx.mx2onnx._export_onnx import MXNetGraph

    with _one_at_a_time, _patch_exporter(onnx, MXNetGraph):
        return MXNetGraph().create_onnx_graph_proto(
            graph, dict(arrays), [(1, *shape[1:])], [onnx.TensorProto.FLOAT],
            opset_version=OPSET, dynamic=True, dynamic_input_shapes=[shape],
        )  # fmt: skip


@contextmanager
def _patch_exporter(onnx: Any, exporter: Any) -> Iterator[None]:
    """For a with block, patch onnx for the exporter, and make the exporter use CONVERTERS."""
    original = exporter.convert_layer

    def convert(node: Node, **about: Any) -> Any:
        """Translate a node to ONNX. Raises UntranslatableError with the reason."""
        try:
            return (
                CONVERTERS[node["op"]](original, node, **about) if node["op"] in CONVERTERS else original(node, **about)
            )
        except Exception as error:  # any exception, depending on the operator's attributes
            message = " ".join(str(error).split())
            is_unknown = message.startswith("No conversion function registered")
            reason = "" if is_unknown else message or type(error).__name__
            raise UntranslatableError(node["op"], reason) from None

    rules = onnx.checker.DEFAULT_CONTEXT
    with ExitStack() as patches:
        for owner, name, value in (
            (onnx, "mapping", _make_type_mapping(onnx)),
            (rules, "opset_imports", {"": OPSET}),
            (rules, "ir_version", IR_VERSION),
            (exporter, "convert_layer", staticmethod(convert)),
        ):
            patches.enter_context(_replace_attribute(owner, name, value))
        patches.enter_context(_silence_logging())
        yield


def _make_type_mapping(onnx: Any) -> SimpleNamespace:
    """Return a replacement for the removed ``onnx.mapping``, with the tables that MXNet uses."""
    numbers = {np.dtype(name): getattr(onnx.TensorProto, _ONNX_NAMES.get(name, name.upper())) for name in _TYPES}
    return SimpleNamespace(
        NP_TYPE_TO_TENSOR_TYPE=numbers, TENSOR_TYPE_TO_NP_TYPE={number: dtype for dtype, number in numbers.items()}
    )


@contextmanager
def _replace_attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute for the duration of a with block."""
    previous = vars(owner).get(name, _ABSENT) if hasattr(owner, "__dict__") else getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if previous is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, previous)


@contextmanager
def _silence_logging() -> Iterator[None]:
    """Silence the root logger, and keep the exporter from adding a handler to it."""
    root, level = logging.getLogger(), logging.root.manager.disable
    handler = logging.NullHandler()
    root.addHandler(handler)
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(level)
        root.removeHandler(handler)


def _convert_variable(original: Callable[..., Any], node: Node, **options: Any) -> Any:
    """Translate a variable. If it is a weight and not the input, its bytes are copied."""
    if options["is_input"]:
        return original(node, **options)
    from onnx import helper, numpy_helper

    value = options["weights"][node["name"]]
    tensor = numpy_helper.from_array(np.ascontiguousarray(value), node["name"])
    options["initializer"].append(tensor)
    info = helper.make_tensor_value_info(tensor.name, tensor.data_type, value.shape)
    return [info], (value.dtype,)


def _convert_batch_norm(original: Callable[..., Any], node: Node, **options: Any) -> Any:
    """Translate BatchNorm. With ``fix_gamma``, gamma is replaced by ones, as in MXNet."""
    translation = original(node, **options)
    if node.get("attrs", {}).get("fix_gamma", "True") in TRUE_TEXTS:
        from onnx import numpy_helper

        # images, gamma, beta, mean, variance; all but the images have the shape (C,)
        [operator] = translation[0] if isinstance(translation, tuple) else translation
        names = list(operator.input)
        ones = np.ones_like(options["weights"][names[3]])
        options["initializer"].append(numpy_helper.from_array(ones, f"{node['name']}_ones"))
        operator.input[1] = f"{node['name']}_ones"
    return translation


def _convert_dense(original: Callable[..., Any], node: Node, **options: Any) -> Any:
    """Translate FullyConnected. A missing ``flatten`` is set to MXNet's default, True."""
    attrs = {"flatten": "True", **node.get("attrs", {})}
    return original({**node, "attrs": attrs}, **options)


def _convert_embedding(original: Callable[..., Any], node: Node, **options: Any) -> Any:
    """Translate Embedding, with a Clip operator, because MXNet clips invalid indices."""
    from onnx import helper, numpy_helper

    (cast, gather), dtypes = original(node, **options)
    rows, name = int(node["attrs"]["input_dim"]), node["name"]
    bounds = [f"{name}_first", f"{name}_last"]
    for bound, value in zip(bounds, (0, rows - 1)):
        options["initializer"].append(numpy_helper.from_array(np.array(value, "int64"), bound))
    clip = helper.make_node("Clip", [cast.output[0], *bounds], [f"{name}_rows"])
    gather.input[1] = f"{name}_rows"
    return [cast, clip, gather], dtypes


# --- LSTM, GRU and RNN, of any number of layers, in both directions
#
# H is the width of a state, and "in" the width of a layer's input. MXNet stores all weights of an
# operator in one row. First come, for each layer and direction, the weights of the input (gates x
# H, in) and of the state (gates x H, H). Then come, in the same order, the two biases (gates x H,)
# of each layer and direction. ONNX has another order of gates (`_RecurrentKind.order`).


class _RecurrentKind(NamedTuple):
    """Describes how to translate one kind of recurrent operator.

    ``operator``: the ONNX operator. ``order``: for each ONNX gate, the position of the same gate in
    MXNet. ``states``: the number of states. ``settings``: attributes of the ONNX operator.
    """

    operator: str
    order: Tuple[int, ...]
    states: int
    settings: Dict[str, Any]


RECURRENT_KINDS = {
    "lstm": _RecurrentKind("LSTM", (0, 3, 1, 2), 2, {}),
    "gru": _RecurrentKind("GRU", (1, 0, 2), 1, {"linear_before_reset": 1}),
    "rnn_tanh": _RecurrentKind("RNN", (0,), 1, {"activations": ["Tanh"]}),
    "rnn_relu": _RecurrentKind("RNN", (0,), 1, {"activations": ["Relu"]}),
}
UNSUPPORTED_SETTINGS = ("projection_size", "use_sequence_length", "lstm_state_clip_min", "lstm_state_clip_max")


class _NodeBuilder:
    """Builds ONNX operators for one MXNet operator. Their names start with its name."""

    def __init__(self, name: str, initializer: List[Any]) -> None:
        self.name, self.nodes, self._initializer = name, [], initializer  # type: str, List[Any], Any

    def add(self, operator: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        """Add an operator with one output, and return the name of the output."""
        from onnx import helper

        result = out or f"{self.name}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [result], **attributes))
        return result

    def add_constant(self, *numbers: int) -> str:
        """Add a constant of whole numbers, and return its name."""
        from onnx import numpy_helper

        name = f"{self.name}_number_{len(self._initializer)}"
        self._initializer.append(numpy_helper.from_array(np.array(numbers, "int64"), name))
        return name

    def add_slice(self, array: str, axis: int, begin: int, end: int) -> str:
        """Add ``array[begin:end]`` along ``axis``, and return the name of this slice.

        If ``end`` is 0, the slice extends to the end of the array.
        """
        stop = end or 2**62
        bounds = [self.add_constant(number) for number in (begin, stop, axis)]
        return self.add("Slice", array, *bounds)

    def add_reshape(self, array: str, *shape: int) -> str:
        """Add a reshape. In ``shape``, 0 keeps an axis, and -1 is inferred."""
        return self.add("Reshape", array, self.add_constant(*shape))


def _convert_recurrent(original: Callable[..., Any], node: Node, **options: Any) -> Tuple[List[Any], Tuple[Any, ...]]:
    """Translate MXNet's RNN operator; return the ONNX operators, and the types of the outputs.

    Raises NotImplementedError for unsupported settings.
    """
    from mxnet.onnx.mx2onnx._op_translations import _op_translations_opset12 as translations

    name, inputs, attrs = translations.get_inputs(node, options)
    for setting in UNSUPPORTED_SETTINGS:
        if attrs.get(setting, "None") not in ("None", "False", "0"):
            raise NotImplementedError(f"the setting {setting} is not supported")
    kind, hidden_size = RECURRENT_KINDS[attrs["mode"]], int(attrs["state_size"])
    layers, directions = (int(attrs.get("num_layers", 1)), 1 + (attrs.get("bidirectional") in TRUE_TEXTS))
    builder = _NodeBuilder(name, options["initializer"])
    data, weights, *states = inputs
    initial_states = _initial_states(builder, data, states[: kind.states], layers * directions, hidden_size)
    final_states: List[List[str]] = []
    for layer in range(layers):
        layer_states = [
            builder.add_slice(state, 0, layer * directions, (layer + 1) * directions) for state in initial_states
        ]
        arrays = _layer_weights(builder, weights, kind, layer, (layers, directions, hidden_size))
        data, *next_states = _add_layer(builder, kind, [data, *arrays, "", *layer_states], directions, hidden_size)
        final_states.append(next_states)
    builder.add("Identity", data, out=name)
    for number, of_layers in enumerate(zip(*final_states), 1):
        builder.add("Concat", *of_layers, out=f"{name}{number}", axis=0)
    return builder.nodes, (translations.get_input_dtypes(node, options)[1],) * (1 + kind.states)


def _initial_states(builder: _NodeBuilder, data: str, states: List[str], count: int, hidden_size: int) -> List[str]:
    """Return the names of the initial states (count, batch, H), broadcast to the batch's size."""
    from onnx import helper

    batch = builder.add_slice(builder.add("Shape", data), 0, 1, 2)
    shape = builder.add("Concat", builder.add_constant(count), batch, builder.add_constant(hidden_size), axis=0)
    one = helper.make_tensor(f"{builder.name}_one", 1, [1], [1.0])
    ones = builder.add("ConstantOfShape", shape, value=one)
    return [builder.add("Mul", state, ones) for state in states]


def _layer_weights(
    builder: _NodeBuilder, weights: str, kind: _RecurrentKind, layer: int, sizes: Tuple[int, int, int]
) -> List[str]:
    """Slice out a layer's arrays. Return the names of the input weights, state weights and biases.

    The gates are in ONNX order. ``sizes``: number of layers, number of directions, and hidden size
    H.
    """
    layers, directions, hidden_size = sizes
    gates = len(kind.order)
    bias_size, state_size = directions * 2 * gates * hidden_size, gates * hidden_size * hidden_size
    later_layer_size = (
        directions * (directions + 1) * state_size
    )  # a layer whose input is the output of the previous one
    # The offset is from the end, because the width of the first layer's input is unknown here.
    end_offset = layers * bias_size + (layers - 1 - layer) * later_layer_size
    block = builder.add_slice(weights, 0, 0 if layer == 0 else -end_offset - later_layer_size, -end_offset)
    all_weights = builder.add_reshape(block, directions, -1)
    order = builder.add_constant(*kind.order)

    def reorder_gates(array: str) -> str:
        by_gate = builder.add_reshape(array, directions, gates, hidden_size, -1)
        return builder.add_reshape(builder.add("Gather", by_gate, order, axis=1), directions, gates * hidden_size, -1)

    biases = builder.add_slice(weights, 0, (layer - layers) * bias_size, (layer + 1 - layers) * bias_size)
    by_gate = builder.add_reshape(biases, directions, 2, gates, hidden_size)
    return [
        reorder_gates(builder.add_slice(all_weights, 1, 0, -state_size)),
        reorder_gates(builder.add_slice(all_weights, 1, -state_size, 0)),
        builder.add_reshape(builder.add("Gather", by_gate, order, axis=2), directions, -1),
    ]


def _add_layer(
    builder: _NodeBuilder, kind: _RecurrentKind, inputs: List[str], directions: int, hidden_size: int
) -> List[str]:
    """Add a layer; return the names of its output (length, batch, directions x H) and final states.

    ``inputs``: the names of the ONNX operator's inputs.
    """
    from onnx import helper

    stem = f"{builder.name}_layer_{len(builder.nodes)}"
    outputs = [f"{stem}_{number}" for number in range(1 + kind.states)]
    settings = dict(kind.settings, hidden_size=hidden_size)
    if directions == 2:
        settings["direction"] = "bidirectional"
    if "activations" in settings:
        settings["activations"] = settings["activations"] * directions
    builder.nodes.append(helper.make_node(kind.operator, inputs, outputs, **settings))
    # (length, directions, batch, H)
    transposed = builder.add("Transpose", outputs[0], perm=[0, 2, 1, 3])
    return [builder.add_reshape(transposed, 0, 0, -1), *outputs[1:]]


CONVERTERS = {
    "null": _convert_variable, "BatchNorm": _convert_batch_norm, "FullyConnected": _convert_dense,
    "Embedding": _convert_embedding, "RNN": _convert_recurrent,
}  # fmt: skip
