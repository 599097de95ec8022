"""A network's graph as an ONNX model, as others read it; whether it gives the scores of MXNet."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import mxnet as mx
import numpy as np
from mxnet import nd

import gluonlab
from gluonlab.errors import ModelError, RunError
from gluonlab.export.mx2onnx import IR_VERSION, OPSET, UntranslatableError, onnx_graph
from gluonlab.host.resources import available_cores
from gluonlab.models.rewrite_network import convert_odd_concatenations
from gluonlab.models.symbol_graph import Node, Replacement, Shape, replace_nodes

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

    return replace_nodes(graph, {INPUT: (1, *image_shape)}, choose)


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


# Of the largest score. Rounding makes some 1e-6 of it, and up to 3e-5 in the deepest networks of
# gluoncv; a wrong operator rarely less than 1e-2.
TOLERANCE = 5e-5
# Where a network rounds more than that, so many times what MXNet's own float32 is off, at most.
TIMES_ROUNDING, MOST = 4, 1e-3
BATCHES = (1, 4, 7)  # images of each batch: the axis takes any number
ERRORS_ONLY = 3  # of onnxruntime's severities

Images = Any  # numpy's float32 (n, C, H, W)


class Agreement(NamedTuple):
    """How far the scores are apart: the largest difference, as a fraction of the largest score.

    ``batches``: the ``images`` were given in batches of these sizes.
    """

    difference: float
    images: int
    batches: Tuple[int, ...]

    def in_words(self) -> str:
        """``model.onnx gives MXNet's scores to 2.1e-07 of the largest, on 12 test images``"""
        return (
            f"model.onnx gives MXNet's scores to {self.difference:.1e} of the largest, "
            f"on {self.images:,} test images"
        )


def check_onnx(
    file: Union[Path, bytes],
    graph: mx.sym.Symbol,
    arrays: Mapping[str, nd.NDArray],
    images: Images,
    batches: Sequence[int] = BATCHES,
    most: float = MOST,
) -> Agreement:
    """Compare an ONNX file, or its bytes, with the network that it is made of, on these images.

    ``graph`` and ``arrays`` as `gluonlab.export.onnx_graph.to_onnx` takes them. ``batches``: the
    images are given in batches of these sizes, which add up to their number. ``most``: the largest
    difference that rounding may explain. Raises RunError for a file that onnxruntime cannot load or
    run, and for scores that differ by more than TOLERANCE and than rounding explains.
    """
    ends = np.cumsum(batches)
    parts = np.split(images, ends[:-1])
    wanted = np.concatenate(list(_mxnet_scores(graph, arrays, parts)))
    found = _onnx_scores(file, parts)
    if [scores.shape for scores in found] != [(len(part), wanted.shape[1]) for part in parts]:
        shapes = ", ".join(str(scores.shape) for scores in found)
        raise RunError(f"the ONNX model gives scores of shape {shapes} for {len(images)} images")
    difference = _apart(np.concatenate(found), wanted)
    if not difference <= TOLERANCE:  # NaN, too
        exact = np.concatenate(list(_mxnet_scores(graph, arrays, parts, "float64")))
        rounding = _apart(wanted, exact)
        if not difference <= min(most, TIMES_ROUNDING * rounding):
            raise RunError(
                f"the ONNX model's scores differ from MXNet's by {difference:.1e} of the largest, "
                f"more than {TOLERANCE:.0e}, and MXNet's float32 rounds by {rounding:.1e}"
            )
    return Agreement(difference, len(images), tuple(batches))


def _onnx_scores(file: Union[Path, bytes], parts: Sequence[Images]) -> List[Any]:
    """The scores (n, classes) for each part. Raises RunError."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = ERRORS_ONLY
    options.intra_op_num_threads = available_cores()
    try:
        session = onnxruntime.InferenceSession(
            file if isinstance(file, bytes) else str(file),
            options,
            providers=["CPUExecutionProvider"],
        )
        return [session.run([OUTPUT], {INPUT: part})[0] for part in parts]
    except Exception as error:  # its errors have no class in common but this
        reason = " ".join(str(error).split())
        raise RunError(f"onnxruntime cannot run the ONNX model: {reason}") from None


def _mxnet_scores(
    graph: mx.sym.Symbol,
    arrays: Mapping[str, nd.NDArray],
    parts: Sequence[Images],
    dtype: str = "float32",
) -> Iterator[Any]:
    values = {name: array.astype(dtype, copy=False) for name, array in arrays.items()}
    for part in parts:
        [scores] = outputs(graph, values, INPUT, nd.array(part, ctx=mx.cpu(), dtype=dtype))
        yield scores.asnumpy()


def _apart(scores: Any, others: Any) -> float:
    """The largest difference, as a fraction of the largest of the ``others``."""
    apart = np.abs(scores - others).max()
    with np.errstate(divide="ignore"):
        return float(apart / np.abs(others).max()) if apart else 0.0


def outputs(
    graph: mx.sym.Symbol,
    arrays: Mapping[str, nd.NDArray],
    name: str,
    images: nd.NDArray,
    is_train: bool = False,
) -> List[nd.NDArray]:
    """What ``graph`` gives for these images, computed by MXNet, operator by operator, on the CPU.

    A graph bound without any gradient is fused for oneDNN, and then gives wrong scores for networks
    such as gluoncv's cifar_resnet20_v2, or cannot be bound.

    ``name``: of the variable that stands for them. ``arrays``: the values of all others, which
    stay what they are; with ``is_train``, layers compute as they do while training.
    """
    plain = convert_odd_concatenations(graph, {name: images.shape})
    arguments = {each: arrays[each] for each in plain.list_arguments() if each != name}
    states = {each: arrays[each].copy() for each in plain.list_auxiliary_states()}
    last = next(reversed(list(arguments)), name)  # whose gradient takes the least memory
    given = {name: images, **arguments}
    wanted = {**dict.fromkeys(given, "null"), last: "write"}
    bound = plain.bind(mx.cpu(), given, {last: nd.zeros_like(given[last])}, wanted, states)
    found: List[nd.NDArray] = bound.forward(is_train=is_train)
    return found
