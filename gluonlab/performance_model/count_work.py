"""The work of a network, counted in its graph by inference of shapes; nothing is computed."""

from __future__ import annotations

import ast
import math
from collections import Counter
from typing import Any, Dict, List, Mapping, Sequence, Set, Tuple

import mxnet as mx

from gluonlab.models import get_model
from gluonlab.models.infer_shapes import complete_initialization
from gluonlab.models.symbol_graph import Node, parse_graph
from gluonlab.performance_model.roofline import (
    CONVOLUTION,
    DENSE,
    DEPTHWISE,
    MEMORY,
    Operator,
    Work,
)

Shape = Tuple[int, ...]

# Numbers read and written per number of the output (forward), and of the input (backward), by
# operators that have no multiply-adds to speak of. BatchNorm reads its input for the statistics and
# once more to normalise; its backward reads input and gradient twice.
PASSES: Dict[str, Tuple[float, float]] = {
    "BatchNorm": (3, 5), "Activation": (2, 3), "LeakyReLU": (2, 3), "relu": (2, 3), "LRN": (2, 4),
    "elemwise_add": (3, 0), "_plus": (3, 0), "broadcast_add": (3, 0), "Dropout": (3, 3),
    "Concat": (2, 2), "_copy": (2, 2),
}  # fmt: skip
POOLING = "Pooling"  # reads its input, writes its output; backward also reads and writes both
USUAL = (2.0, 3.0)
FREE = {"Flatten", "Reshape", "flatten", "reshape", "expand_dims", "squeeze", "BlockGrad"}
HEAVY = {"RNN", "dot", "batch_dot", "_linalg_gemm", "_linalg_gemm2", "Correlation", "Deconvolution",
         "_contrib_interleaved_matmul_selfatt_qk", "DeformableConvolution"}  # fmt: skip


def count(scores: mx.sym.Symbol, image_shape: Shape, name: str) -> Work:
    """The work of the graph ``scores`` of the input ``data`` with images (C, H, W)."""
    whole = parse_graph(scores)
    nodes: List[Node] = whole["nodes"]
    shapes = _shapes(scores, (1, *image_shape))
    trained = {
        place for place, node in enumerate(nodes) if _is_parameter(node, shapes.get((place, 0)))
    }
    states = set(scores.list_auxiliary_states())
    tensors = [
        math.prod(shapes[place, 0])
        for place in sorted(trained)
        if nodes[place]["name"] not in states
    ]
    needs = _needs_gradient(nodes, trained)
    operators: List[Operator] = []
    uncounted: Set[str] = set()
    uses = Counter(tuple(entry[:2]) for node in nodes for entry in node["inputs"])
    for place, node in enumerate(nodes):
        if node["op"] == "null" or node["op"] in FREE:
            continue
        seen = [shapes[entry[0], entry[1]] for entry in node["inputs"]]
        gradient = needs[node["inputs"][0][0]] if node["inputs"] else False
        before = nodes[node["inputs"][0][0]]["op"] if node["inputs"] else ""
        operators.append(_operator(node, seen, shapes[place, 0], gradient, before))
        if node["op"] in HEAVY:
            uncounted.add(node["op"])
        operators += _gradient_sums(place, uses, shapes, needs[place])
    return Work(
        name, tuple(image_shape), tuple(operators), tuple(tensors), tuple(sorted(uncounted))
    )


def of_network(net: Any, image_shape: Shape, name: str) -> Work:
    """`count` for a Gluon network."""
    return count(net(mx.sym.var("data")), image_shape, name)


def _is_parameter(node: Node, shape: Any) -> bool:
    return node["op"] == "null" and node["name"] != "data" and shape is not None


def _needs_gradient(nodes: Sequence[Node], trained: Set[int]) -> List[bool]:
    """Whether backward computes a gradient of a node's output: behind the first parameter."""
    needs = [False] * len(nodes)
    for place, node in enumerate(nodes):
        needs[place] = place in trained or any(needs[entry[0]] for entry in node["inputs"])
    return needs


def _gradient_sums(
    place: int, uses: "Counter[Tuple[int, ...]]", shapes: Dict[Tuple[int, int], Shape], needed: bool
) -> List[Operator]:
    """Where an output of a node is used several times, backward adds the gradients up."""
    return [
        Operator(
            MEMORY, "sum of gradients",
            backward_moved=3 * (uses[entry] - 1) * math.prod(shape),
        )
        for entry, shape in shapes.items()
        if entry[0] == place and uses[entry] > 1 and needed
    ]  # fmt: skip


def _operator(
    node: Node, seen: Sequence[Shape], out: Shape, gradient: bool, before: str
) -> Operator:
    inputs, outputs = math.prod(seen[0]) if seen else 0, math.prod(out)
    op = node["op"]
    attrs = node.get("attrs", {})
    if op == "Convolution":
        weight = seen[1]  # (filters, channels of a group, kernel...)
        groups = int(attrs.get("num_group", "1"))
        steps = {1, groups, *_pair(attrs, "stride"), *_pair(attrs, "dilate")}
        plain = steps == {1} and len(set(weight[2:])) == 1
        return Operator(
            CONVOLUTION,
            DEPTHWISE if groups > 1 and weight[1] == 1 else op,
            multiply_adds=outputs * math.prod(weight[1:]),
            inputs=inputs,
            outputs=outputs,
            weights=sum(map(math.prod, seen[1:])),
            kernel=weight[2] if plain and len(weight) == 4 else 0,
            data_gradient=gradient,
        )
    if op == "FullyConnected":
        return Operator(
            DENSE, op, outputs * seen[1][1], inputs, outputs, sum(map(math.prod, seen[1:])), 0,
            gradient,
        )  # fmt: skip
    if op == POOLING:
        forward, backward = inputs + outputs, 2 * (inputs + outputs)
    else:
        ahead, back = PASSES.get(op, USUAL)
        forward, backward = int(ahead * outputs), int(back * inputs)
    fused = op in ("Activation", "relu", "elemwise_add", "_plus") and before in (
        "BatchNorm", "elemwise_add", "_plus",
    )  # fmt: skip
    return Operator(
        MEMORY, op, inputs=inputs, outputs=outputs, forward_moved=forward,
        backward_moved=backward if gradient else 0, after_norm=fused,
    )  # fmt: skip


def _pair(attrs: Mapping[str, str], name: str) -> Sequence[int]:
    """Such as the stride, (2, 2), or nothing, where it is MXNet's default."""
    numbers: Sequence[int] = ast.literal_eval(attrs.get(name, "()"))
    return numbers


def _shapes(graph: mx.sym.Symbol, data: Shape) -> Dict[Tuple[int, int], Shape]:
    """The shape of every output of every node."""
    internals = graph.get_internals()
    heads = parse_graph(internals)["heads"]
    _, shapes, _ = internals.infer_shape(data=data)
    return {(place, output): tuple(shape) for (place, output, *_), shape in zip(heads, shapes)}


def work_of(model: str, classes: int, image_shape: Tuple[int, int, int]) -> Work:
    """The work of one of gluonlab's networks for images (C, H, W).

    Raises ModelError for an unknown name, and for images that it cannot take.
    """
    net = get_model(model, classes)
    complete_initialization(net, model, image_shape, classes)
    return of_network(net, image_shape, model)
