"""Converts a network to an ONNX model, and compares the model's scores with MXNet's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import mxnet as mx
import numpy as np
from mxnet import nd

import gluonlab
from gluonlab.errors import ModelError, RunError
from gluonlab.export.mx2onnx import IR_VERSION, OPSET, UntranslatableError, make_onnx_graph
from gluonlab.host.resources import available_cores
from gluonlab.models.rewrite_network import convert_odd_concatenations
from gluonlab.models.symbol_graph import Node, Replacement, Shape, replace_nodes

INPUT, OUTPUT = "data", "scores"
BATCH = "batch"  # name of the axis with any length
ALTERNATIVE_HINT = "use --export mxnet, which writes MXNet's own files, or use another model"


def to_onnx(graph: mx.sym.Symbol, arrays: Mapping[str, nd.NDArray], image_shape: Tuple[int, ...], model: str) -> bytes:
    """Convert a network to ONNX, and return the content of the ONNX file.

    The ONNX model maps float32 images (batch, C, H, W), named INPUT, to scores (batch, classes),
    named OUTPUT.

    Args:
        graph: The network, whose variable INPUT stands for the images.
        arrays: Name -> values of all other arguments and states.
        image_shape: (C, H, W).
        model: Name of the network in messages.

    Raises:
        ModelError: An operator cannot be translated (the message names the operator), or the ONNX
            model is not valid.
    """
    import onnx

    shape = (BATCH, *image_shape)
    try:
        onnx_graph = make_onnx_graph(_resolve_reshape_codes(graph, image_shape), arrays, shape)
    except UntranslatableError as error:
        reason = f" ({error.reason})" if error.reason else ""
        raise ModelError(
            f"--export onnx: {model} contains the operator {error.operator}, which MXNet cannot "
            f"translate to ONNX{reason}: {ALTERNATIVE_HINT}"
        ) from None
    ((_, classes),) = graph.infer_shape(**{INPUT: (1, *image_shape)})[1]
    _name_inputs_and_output(onnx.helper, onnx_graph, shape, classes)
    onnx_model = onnx.helper.make_model(
        onnx_graph,
        producer_name="gluonlab",
        producer_version=gluonlab.__version__,
        ir_version=IR_VERSION,
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
    )
    try:
        onnx.checker.check_model(onnx_model)
    except onnx.checker.ValidationError as error:
        reason = " ".join(str(error).split())
        raise ModelError(
            f"--export onnx: the ONNX model of {model} is not valid ({reason}): {ALTERNATIVE_HINT}"
        ) from None
    return bytes(onnx_model.SerializeToString())


def _resolve_reshape_codes(graph: mx.sym.Symbol, image_shape: Tuple[int, ...]) -> mx.sym.Symbol:
    """Replace MXNet's special codes in the shapes of Reshape operators by actual lengths.

    ShuffleNet uses such codes: for example, -4 splits an axis. The codes are replaced only if the
    first axis of the output is the batch.
    """

    def choose_replacement(node: Node, inputs: List[Optional[Shape]], output: Optional[Shape]) -> Optional[Replacement]:
        """Return a function that adds the new Reshape, or None to keep the node."""
        codes = re.search("-[2-9]", node.get("attrs", {}).get("shape", ""))
        if node["op"] != "Reshape" or not codes or output is None or output[0] != 1:
            return None
        return lambda add, entries: add("Reshape", "", entries, shape=(-1, *output[1:]))

    return replace_nodes(graph, {INPUT: (1, *image_shape)}, choose_replacement)


def _name_inputs_and_output(helper: Any, graph: Any, shape: Tuple[Any, ...], classes: int) -> None:
    """Rename the graph's output to OUTPUT, set its shape, and keep only the images as input.

    If weights are inputs, a runtime must expect them to change with every batch, and cannot use
    them in precomputations. Weights that no operator reads are removed.
    """
    [output] = graph.output
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [OUTPUT if name == output.name else name for name in names]
    number = output.type.tensor_type.elem_type
    output.CopyFrom(helper.make_tensor_value_info(OUTPUT, number, (shape[0], classes)))
    used_names = {name for node in graph.node for name in node.input}
    weights = [tensor for tensor in graph.initializer if tensor.name in used_names]
    images = [value for value in graph.input if value.name == INPUT]
    for field, values in ((graph.initializer, weights), (graph.input, images)):
        values = [value.__class__.FromString(value.SerializeToString()) for value in values]
        del field[:]
        field.extend(values)


# Allowed difference of scores, relative to the largest score. Differences by rounding are about
# 1e-6, and up to 3e-5 in the deepest networks of gluoncv. A wrong operator rarely causes a
# difference of less than 1e-2.
TOLERANCE = 5e-5
# Networks with larger rounding errors may differ by this multiple of MXNet's own float32 rounding
# error, and by at most the maximum.
ROUNDING_FACTOR, MAX_DIFFERENCE = 4, 1e-3
CHECK_BATCHES = (1, 4, 7)  # different sizes, because a batch may have any size
ERRORS_ONLY = 3  # of onnxruntime's severities

Images = Any  # numpy's float32 (n, C, H, W)


class Agreement(NamedTuple):
    """Largest difference between scores, relative to the largest score.

    ``images``: number of images that were compared. ``batches``: sizes of their batches.
    """

    difference: float
    images: int
    batches: Tuple[int, ...]

    def in_words(self) -> str:
        """Return a phrase about how closely the ONNX model agrees with MXNet.

        For example: ``the scores of model.onnx differ from MXNet's by 2.1e-07 of the largest, on 12
        validation images``.
        """
        difference, images = f"{self.difference:.1e} of the largest", f"{self.images:,} validation images"
        return f"the scores of model.onnx differ from MXNet's by {difference}, on {images}"


def check_onnx(
    file: Union[Path, bytes],
    graph: mx.sym.Symbol,
    arrays: Mapping[str, nd.NDArray],
    images: Images,
    batches: Sequence[int] = CHECK_BATCHES,
    max_difference: float = MAX_DIFFERENCE,
) -> Agreement:
    """Compare the scores of an ONNX model with those of the original network.

    Args:
        file: The ONNX file, or its content.
        graph: The network, as for `to_onnx`.
        arrays: The network's parameters and states, as for `to_onnx`.
        images: The images. Their number must be the sum of ``batches``.
        batches: Sizes of the batches into which the images are divided.
        max_difference: The largest difference that is accepted as a rounding error.

    Raises:
        RunError: onnxruntime cannot run the model, or the scores differ by more than TOLERANCE and
            rounding is not the cause.
    """
    ends = np.cumsum(batches)
    parts = np.split(images, ends[:-1])
    expected = np.concatenate(list(_mxnet_scores(graph, arrays, parts)))
    onnx_scores = _onnx_scores(file, parts)
    if [scores.shape for scores in onnx_scores] != [(len(part), expected.shape[1]) for part in parts]:
        shapes = ", ".join(str(scores.shape) for scores in onnx_scores)
        raise RunError(f"the ONNX model returns scores of shape {shapes} for {len(images)} images: use --export mxnet")
    difference = _relative_difference(np.concatenate(onnx_scores), expected)
    if not difference <= TOLERANCE:  # also for NaN
        exact = np.concatenate(list(_mxnet_scores(graph, arrays, parts, "float64")))
        rounding = _relative_difference(expected, exact)
        if not difference <= min(max_difference, ROUNDING_FACTOR * rounding):
            raise RunError(
                f"the scores of the ONNX model differ from MXNet's by {difference:.1e}, relative to the "
                f"largest score, but at most {TOLERANCE:.0e} is allowed (MXNet's own float32 rounding error is "
                f"{rounding:.1e}): use --export mxnet"
            )
    return Agreement(difference, len(images), tuple(batches))


def _onnx_scores(file: Union[Path, bytes], parts: Sequence[Images]) -> List[Any]:
    """Compute scores (n, classes) for each array of images with onnxruntime. Raises RunError."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = ERRORS_ONLY
    options.intra_op_num_threads = available_cores()
    try:
        session = onnxruntime.InferenceSession(
            file if isinstance(file, bytes) else str(file), options, providers=["CPUExecutionProvider"]
        )
        return [session.run([OUTPUT], {INPUT: part})[0] for part in parts]
    except Exception as error:  # its exceptions have no other common base class
        reason = " ".join(str(error).split())
        raise RunError(f"onnxruntime cannot run the ONNX model ({reason}): use --export mxnet") from None


def _mxnet_scores(
    graph: mx.sym.Symbol, arrays: Mapping[str, nd.NDArray], parts: Sequence[Images], dtype: str = "float32"
) -> Iterator[Any]:
    """Yield scores (n, classes) for each array of images in ``parts``, computed by MXNet."""
    values = {name: array.astype(dtype, copy=False) for name, array in arrays.items()}
    for part in parts:
        [scores] = compute_outputs(graph, values, INPUT, nd.array(part, ctx=mx.cpu(), dtype=dtype))
        yield scores.asnumpy()


def _relative_difference(scores: Any, others: Any) -> float:
    """Return the largest difference, relative to the largest absolute value of ``others``."""
    difference = np.abs(scores - others).max()
    with np.errstate(divide="ignore"):
        return float(difference / np.abs(others).max()) if difference else 0.0


def compute_outputs(
    graph: mx.sym.Symbol, arrays: Mapping[str, nd.NDArray], name: str, images: nd.NDArray, is_train: bool = False
) -> List[nd.NDArray]:
    """Compute the outputs of ``graph`` for images with MXNet on the CPU, operator by operator.

    A gradient is requested for one argument, because MXNet fuses operators for oneDNN in graphs
    without gradients. Fused graphs of networks such as gluoncv's cifar_resnet20_v2 compute wrong
    scores or cannot be bound.

    ``name``: the variable of the images. ``arrays``: name -> values of all other variables, which
    this function does not change. ``is_train``: whether to compute as in training.
    """
    plain = convert_odd_concatenations(graph, {name: images.shape})
    arguments = {variable: arrays[variable] for variable in plain.list_arguments() if variable != name}
    states = {variable: arrays[variable].copy() for variable in plain.list_auxiliary_states()}
    with_gradient = next(reversed(list(arguments)), name)  # the last argument, whose gradient takes the least memory
    values = {name: images, **arguments}
    grad_req = {**dict.fromkeys(values, "null"), with_gradient: "write"}
    executor = plain.bind(mx.cpu(), values, {with_gradient: nd.zeros_like(values[with_gradient])}, grad_req, states)
    results: List[nd.NDArray] = executor.forward(is_train=is_train)
    return results
