"""A network's graph as an ONNX model, as others read it."""

from __future__ import annotations

import re
from typing import Any, List, Mapping, Optional, Tuple

import mxnet as mx
from mxnet import nd

import gluonlab
from gluonlab.errors import ModelError
from gluonlab.export.mx2onnx import IR_VERSION, OPSET, UntranslatableError, onnx_graph
from gluonlab.models.graphs import Node, Replacement, Shape, with_replaced

INPUT, OUTPUT = "data", "scores"
BATCH = "batch"  # what the axis of any length is called
INSTEAD = "give --export alone, which writes MXNet's own files, or another network"


def to_onnx(
    graph: mx.sym.Symbol, arrays: Mapping[str, nd.NDArray], image_shape: Tuple[int, ...], model: str
) -> bytes:
    """An ONNX file: images INPUT (batch, C, H, W), float32 -> scores OUTPUT (batch, classes).

    ``graph``: a network's, of the variable INPUT. ``arrays``: the values of all its other arguments
    and states. ``model``: how the network is called in an error. Raises ModelError, which names the
    operator that cannot be translated.
    """
    import onnx

    shape = (BATCH, *image_shape)
    try:
        found = onnx_graph(_with_plain_reshapes(graph, image_shape), arrays, shape)
    except UntranslatableError as error:
        why = f" ({error.why})" if error.why else ""
        raise ModelError(
            f"--export onnx: {model} has the operator {error.operator}, "
            f"which MXNet cannot translate to ONNX{why}: {INSTEAD}"
        ) from None
    ((_, classes),) = graph.infer_shape(**{INPUT: (1, *image_shape)})[1]
    _tidy(onnx.helper, found, shape, classes)
    made = onnx.helper.make_model(
        found,
        producer_name="gluonlab",
        producer_version=gluonlab.__version__,
        ir_version=IR_VERSION,
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
    )
    try:
        onnx.checker.check_model(made)
    except onnx.checker.ValidationError as error:
        why = " ".join(str(error).split())
        raise ModelError(
            f"--export onnx: {model} makes no valid ONNX model ({why}): {INSTEAD}"
        ) from None
    return bytes(made.SerializeToString())


def _with_plain_reshapes(graph: mx.sym.Symbol, image_shape: Tuple[int, ...]) -> mx.sym.Symbol:
    """``graph`` with lengths for MXNet's own codes in shapes, such as -4, which splits an axis.

    ShuffleNet has them. Only where the first axis is still the batch.
    """

    def choose(
        node: Node, inputs: List[Optional[Shape]], output: Optional[Shape]
    ) -> Optional[Replacement]:
        codes = re.search("-[2-9]", node.get("attrs", {}).get("shape", ""))
        if node["op"] != "Reshape" or not codes or output is None or output[0] != 1:
            return None
        return lambda add, entries: add("Reshape", "", entries, shape=(-1, *output[1:]))

    return with_replaced(graph, {INPUT: (1, *image_shape)}, choose)


def _tidy(helper: Any, graph: Any, shape: Tuple[Any, ...], classes: int) -> None:
    """Name the graph's one output, and give it a shape; leave it no inputs but the images.

    A weight that is an input may be given another value with every batch, so that no runtime
    computes with it beforehand. Weights that nothing reads are removed.
    """
    [output] = graph.output
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [OUTPUT if name == output.name else name for name in names]
    number = output.type.tensor_type.elem_type
    output.CopyFrom(helper.make_tensor_value_info(OUTPUT, number, (shape[0], classes)))
    read = {name for node in graph.node for name in node.input}
    weights = [tensor for tensor in graph.initializer if tensor.name in read]
    images = [each for each in graph.input if each.name == INPUT]
    for field, kept in ((graph.initializer, weights), (graph.input, images)):
        kept = [each.__class__.FromString(each.SerializeToString()) for each in kept]
        del field[:]
        field.extend(kept)
