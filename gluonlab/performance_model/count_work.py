"""Counts the operations and memory traffic of a network, from its graph and inferred shapes.

The network is not run. The result is a `gluonlab.performance_model.roofline.Work`.
"""

from __future__ import annotations

import ast
import math
from collections import Counter
from typing import Any, Dict, List, Mapping, Sequence, Set, Tuple

import mxnet as mx

from gluonlab.models import get_model
from gluonlab.models.infer_shapes import complete_initialization
from gluonlab.models.symbol_graph import Node, parse_graph
from gluonlab.performance_model.roofline import CONVOLUTION, DENSE, DEPTHWISE, MEMORY, Operator, Work

Shape = Tuple[int, ...]

# Memory traffic of operators with negligible multiply-adds: (forward, backward). Forward: elements
# read and written per element of the output. Backward: the same per element of the input.
# BatchNorm reads its input for the statistics, and again to normalize. Its backward reads input and
# gradient twice.
MEMORY_PASSES: Dict[str, Tuple[float, float]] = {
    "BatchNorm": (3, 5), "Activation": (2, 3), "LeakyReLU": (2, 3), "relu": (2, 3), "LRN": (2, 4),
    "elemwise_add": (3, 0), "_plus": (3, 0), "broadcast_add": (3, 0), "Dropout": (3, 3),
    "Concat": (2, 2), "_copy": (2, 2),
}  # fmt: skip
POOLING = "Pooling"  # reads its input, writes its output; backward also reads and writes both
DEFAULT_PASSES = (2.0, 3.0)
# operators without kernels
FREE_OPERATORS = {"Flatten", "Reshape", "flatten", "reshape", "expand_dims", "squeeze", "BlockGrad"}
# operators whose multiply-adds are not counted, only their memory traffic
UNCOUNTED_OPERATORS = {"RNN", "dot", "batch_dot", "_linalg_gemm", "_linalg_gemm2", "Correlation",
"Deconvolution",
    "_contrib_interleaved_matmul_selfatt_qk", "DeformableConvolution"}  # fmt: skip


def count_graph_work(scores: mx.sym.Symbol, image_shape: Shape, name: str) -> Work:
    """Return the work, per image, of the network with the output ``scores``.

    ``image_shape``: the shape (C, H, W) of an image in the graph's input ``data``. ``name``: the
    name of the network.
    """
    graph = parse_graph(scores)
    nodes: List[Node] = graph["nodes"]
    shapes = _infer_shapes(scores, (1, *image_shape))
    trained = {number for number, node in enumerate(nodes) if _is_parameter(node, shapes.get((number, 0)))}
    states = set(scores.list_auxiliary_states())
    tensors = [math.prod(shapes[number, 0]) for number in sorted(trained) if nodes[number]["name"] not in states]
    needs = _needs_gradient(nodes, trained)
    operators: List[Operator] = []
    uncounted: Set[str] = set()
    uses = Counter(tuple(entry[:2]) for node in nodes for entry in node["inputs"])
    for number, node in enumerate(nodes):
        if node["op"] == "null" or node["op"] in FREE_OPERATORS:
            continue
        input_shapes = [shapes[entry[0], entry[1]] for entry in node["inputs"]]
        has_gradient = needs[node["inputs"][0][0]] if node["inputs"] else False
        previous_op = nodes[node["inputs"][0][0]]["op"] if node["inputs"] else ""
        operators.append(_count_operator(node, input_shapes, shapes[number, 0], has_gradient, previous_op))
        if node["op"] in UNCOUNTED_OPERATORS:
            uncounted.add(node["op"])
        operators += _gradient_sums(number, uses, shapes, needs[number])
    return Work(name, tuple(image_shape), tuple(operators), tuple(tensors), tuple(sorted(uncounted)))


def count_network_work(net: Any, image_shape: Shape, name: str) -> Work:
    """Return the work of a Gluon network for images of shape (C, H, W)."""
    return count_graph_work(net(mx.sym.var("data")), image_shape, name)


def _is_parameter(node: Node, shape: Any) -> bool:
    return node["op"] == "null" and node["name"] != "data" and shape is not None


def _needs_gradient(nodes: Sequence[Node], trained: Set[int]) -> List[bool]:
    """Return, for each node, whether backward computes a gradient of its output.

    Parameters, and all nodes that depend on a parameter, need a gradient. ``trained``: the indices
    of the parameters' nodes.
    """
    needs = [False] * len(nodes)
    for number, node in enumerate(nodes):
        needs[number] = number in trained or any(needs[entry[0]] for entry in node["inputs"])
    return needs


def _gradient_sums(
    node_number: int, uses: "Counter[Tuple[int, ...]]", shapes: Dict[Tuple[int, int], Shape], needed: bool
) -> List[Operator]:
    """Return operators that add the gradients of outputs that are used several times.

    ``uses``: number of uses of each (node, output). ``shapes``: shape of each (node, output).
    ``needed``: whether backward computes a gradient of the node's outputs.
    """
    return [
        Operator(MEMORY, "sum of gradients", backward_moved=3 * (uses[entry] - 1) * math.prod(shape))
        for entry, shape in shapes.items()
        if entry[0] == node_number and uses[entry] > 1 and needed
    ]


def _count_operator(
    node: Node, input_shapes: Sequence[Shape], output_shape: Shape, has_gradient: bool, previous_op: str
) -> Operator:
    """Return the work of one node of the graph.

    ``has_gradient``: whether backward computes a gradient of the node's first input.
    ``previous_op``: the operator that computes the first input.
    """
    inputs, outputs = math.prod(input_shapes[0]) if input_shapes else 0, math.prod(output_shape)
    op = node["op"]
    attrs = node.get("attrs", {})
    if op == "Convolution":
        weight = input_shapes[1]  # (filters, channels of a group, kernel...)
        groups = int(attrs.get("num_group", "1"))
        steps = {1, groups, *_parse_attribute(attrs, "stride"), *_parse_attribute(attrs, "dilate")}
        # a square window, without groups, stride or dilation
        is_plain = steps == {1} and len(set(weight[2:])) == 1
        return Operator(
            CONVOLUTION,
            DEPTHWISE if groups > 1 and weight[1] == 1 else op,
            multiply_adds=outputs * math.prod(weight[1:]),
            inputs=inputs,
            outputs=outputs,
            weights=sum(map(math.prod, input_shapes[1:])),
            kernel=weight[2] if is_plain and len(weight) == 4 else 0,
            data_gradient=has_gradient,
        )
    if op == "FullyConnected":
        weights = sum(map(math.prod, input_shapes[1:]))
        return Operator(DENSE, op, outputs * input_shapes[1][1], inputs, outputs, weights, 0, has_gradient)
    if op == POOLING:
        forward, backward = inputs + outputs, 2 * (inputs + outputs)
    else:
        forward_passes, backward_passes = MEMORY_PASSES.get(op, DEFAULT_PASSES)
        forward, backward = int(forward_passes * outputs), int(backward_passes * inputs)
    # a fusing compiler would compute these operators together with BatchNorm
    sums = ("elemwise_add", "_plus")
    fused = op in ("Activation", "relu", *sums) and previous_op in ("BatchNorm", *sums)
    return Operator(
        MEMORY, op, inputs=inputs, outputs=outputs, forward_moved=forward,
        backward_moved=backward if has_gradient else 0, after_norm=fused,
    )  # fmt: skip


def _parse_attribute(attrs: Mapping[str, str], name: str) -> Sequence[int]:
    """Return the numbers of an attribute, such as (2, 2) for the stride, or () if it is not set."""
    return tuple(ast.literal_eval(attrs.get(name, "()")))


def _infer_shapes(graph: mx.sym.Symbol, data: Shape) -> Dict[Tuple[int, int], Shape]:
    """Return the shape of every output of every node: {(node, output): shape}."""
    internals = graph.get_internals()
    heads = parse_graph(internals)["heads"]
    _, shapes, _ = internals.infer_shape(data=data)
    return {(node, output): tuple(shape) for (node, output, *_), shape in zip(heads, shapes)}


def count_model_work(model: str, classes: int, image_shape: Tuple[int, int, int]) -> Work:
    """Return the work of one of gluonlab's networks for images of shape (C, H, W).

    Raises ModelError for an unknown name, and for images of an unsuitable size.
    """
    net = get_model(model, classes)
    complete_initialization(net, model, image_shape, classes)
    return count_network_work(net, image_shape, model)
