"""Trial: does every GPU compute what the CPU computes, and all the same bits?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, List, Tuple

import numpy as np

from gluonlab.doctor.prove.trial import run
from gluonlab.gpu.process import Outcome, tell

if TYPE_CHECKING:
    import mxnet as mx
    from mxnet import nd

Array = Any  # numpy's
NUMBERS = ("operation",)  # with device, difference and whether it is alike
# of the largest number; sums of some thousand products of float32 in another order are nearer by
# far
TOLERANCE = 1e-4
ROUNDS = 3  # a GPU that is now and then wrong is wrong

SHAPES: Dict[str, Tuple[Tuple[int, ...], ...]] = {
    "matrix product": ((64, 300), (300, 40)),
    "convolution": ((8, 6, 20, 20), (12, 6, 3, 3)),
    "pooling": ((8, 6, 20, 20),),
    "normalisation": ((8, 6, 12, 12), (6,), (6,)),
    "softmax": ((64, 100),),
}


def compute(operation: str, arrays: List[nd.NDArray]) -> nd.NDArray:
    """The result of an operation of SHAPES, on the device of its arrays."""
    from mxnet import nd

    computing: Dict[str, Callable[..., nd.NDArray]] = {
        "matrix product": nd.dot,
        "convolution": lambda x, w: nd.Convolution(
            x, w, kernel=(3, 3), num_filter=12, no_bias=True
        ),
        "pooling": lambda x: nd.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max"),
        "normalisation": _normalised,
        "softmax": nd.log_softmax,
    }
    return computing[operation](*arrays)


def _normalised(x: nd.NDArray, gamma: nd.NDArray, beta: nd.NDArray) -> nd.NDArray:
    from mxnet import nd

    mean, variance = nd.zeros(beta.shape, ctx=x.context), nd.ones(beta.shape, ctx=x.context)
    return nd.BatchNorm(x, gamma, beta, mean, variance, fix_gamma=False)


def forward_and_backward(operation: str, inputs: List[Array], ctx: mx.Context) -> List[Array]:
    """An operation's result and its inputs' gradients, under fixed weights of the result."""
    from mxnet import autograd, nd

    arrays = [nd.array(given, ctx=ctx) for given in inputs]
    for array in arrays:
        array.attach_grad()
    with autograd.record():
        result = compute(operation, arrays)
    weights = np.random.RandomState(1).uniform(-1, 1, result.shape)
    result.backward(nd.array(weights, ctx=ctx))
    return [result.asnumpy(), *(array.grad.asnumpy() for array in arrays)]


def compute_on_all(ctxs: List[mx.Context]) -> None:
    """Answers device, operation, difference and alike.

    difference: from the CPU's numbers; alike: whether they have the bits of the first GPU's.
    """
    from mxnet import cpu

    random = np.random.RandomState(0)
    for operation, shapes in SHAPES.items():
        inputs = [random.uniform(-1, 1, shape).astype("float32") for shape in shapes]
        reference = forward_and_backward(operation, inputs, cpu(0))
        first: List[Array] = []
        for ctx in ctxs:
            tell(trying=f"{operation} on {ctx}")
            rounds = [forward_and_backward(operation, inputs, ctx) for _ in range(ROUNDS)]
            first = first or rounds[0]
            difference = max(distance(found, reference) for found in rounds)
            alike = all(np.array_equal(a, b) for found in rounds for a, b in zip(found, first))
            tell(device=str(ctx), operation=operation, difference=difference, alike=alike)


def distance(found: List[Array], reference: List[Array]) -> float:
    """The largest |a - b| / max|b| of all arrays; infinite where something is not finite."""
    ratios = [
        float(np.max(np.abs(a - b))) / (float(np.max(np.abs(b))) or 1.0)
        for a, b in zip(found, reference)
    ]
    return float(np.max(ratios)) if np.isfinite(ratios).all() else float("inf")


def faults(outcome: Outcome) -> List[str]:
    """Each GPU whose numbers are not those of the CPU; different bits alone are not a fault."""
    return [
        f"{answer['device']} computes {answer['operation']} wrongly: "
        f"it differs from the CPU's by {answer['difference']:.1e}"
        for answer in outcome.all("operation")
        if not answer["difference"] <= TOLERANCE
    ]


def summary(outcome: Outcome) -> str:
    """By how much results differ from the CPU's, and whether they have the same bits."""
    answers = outcome.all("operation")
    unlike = sorted({answer["operation"] for answer in answers if not answer["alike"]})
    bits = f"bits that differ between GPUs or from run to run: {', '.join(unlike)}"
    worst = max((answer["difference"] for answer in answers), default=0.0)
    return (
        f"{len(SHAPES)} operations and their gradients differ from the CPU's by {worst:.1e} "
        f"at most; {bits if unlike else 'the same bits on all GPUs'}"
    )


if __name__ == "__main__":
    run(compute_on_all)
