"""Layers that go along sequences in ONNX: LSTM, GRU and RNN of any number of layers, in both ways.

MXNet's exporter translates one layer, or two whose inputs are as wide as their states, and GRU and
RNN in one direction only.

MXNet has all of an operator's weights in one row: for each layer, and in it for each direction, the
weights of the input (gates x H, in) and of the state (gates x H, H); then, in the same order, two
biases (gates x H,) for each. ONNX has its gates in another order (`_Kind.order`).
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Tuple

TRUE = ("True", "1")


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


def recurrent(node: Dict[str, Any], **about: Any) -> Tuple[List[Any], Tuple[Any, ...]]:
    """The ONNX operators of one RNN, and the types of its outputs.

    Raises NotImplementedError for what is not translated.
    """
    from mxnet.onnx.mx2onnx._op_translations import _op_translations_opset12 as theirs

    name, inputs, attrs = theirs.get_inputs(node, about)
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
    return made.nodes, (theirs.get_input_dtypes(node, about)[1],) * (1 + kind.states)


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
