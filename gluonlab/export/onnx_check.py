"""Whether an ONNX model gives the scores that MXNet gives, as onnxruntime computes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Iterator, List, Mapping, NamedTuple, Sequence, Tuple, Union

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.errors import RunError
from gluonlab.export.onnx_graph import INPUT, OUTPUT
from gluonlab.export.unfused import outputs
from gluonlab.host.resources import available_cores

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
