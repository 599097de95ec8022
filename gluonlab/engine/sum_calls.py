"""Sums arrays in a fixed order, so that the results of all schedules are bit-identical."""

from __future__ import annotations

from typing import Iterator, Sequence

import numpy as np
from mxnet import nd

from gluonlab.engine.fast_invoke import ADD_OPERATOR, Attributes, EngineCall, operator_call

GPU_ADD_N_MAXIMUM = 4  # largest number of arrays that one GPU kernel of add_n adds
# A CPU's add_n adds five or more arrays in their order. It adds three as a + (b + c), and four as
# a + (b + (c + d)).
CPU_ADD_N_MINIMUM = 5
REVERSED_ADD_N_COUNTS = (3, 4)


def sum_calls(inputs: Sequence[nd.NDArray], output: nd.NDArray, so_far: nd.NDArray) -> Iterator[EngineCall]:
    """Yield the calls that write the sum of ``inputs``, added in order, to ``output``.

    ``so_far``: an array that shares memory with ``output``, from which later calls read the partial
    sum.
    """
    first, *others = inputs
    if len(inputs) >= CPU_ADD_N_MINIMUM:
        yield operator_call("add_n", inputs, output, Attributes({"num_args": len(inputs)}))
        return
    for other in others:
        yield operator_call(ADD_OPERATOR, [first, other], output)
        first = so_far


def reversed_add_n_call(inputs: Sequence[nd.NDArray], output: nd.NDArray) -> EngineCall:
    """Return one call of add_n that adds 3 or 4 inputs, from the first to the last.

    add_n itself starts with its last input, so the inputs are passed in reverse.
    """
    return operator_call("add_n", inputs[::-1], output, Attributes({"num_args": len(inputs)}))


def gpu_sum_calls(inputs: Sequence[nd.NDArray], output: nd.NDArray) -> Iterator[EngineCall]:
    """Yield the calls that write the sum of ``inputs``, added in order, to ``output`` on a GPU.

    The result is bit-identical to `sum_calls`. One kernel of add_n adds up to four arrays as
    a + (b + (c + d)), so the arrays of each kernel are passed in reverse.
    """
    so_far, *others = inputs
    # add_n does not support int8. It reads float16 in aligned pairs, and slices may be unaligned.
    has_add_n = np.dtype(output.dtype) not in (np.float16, np.int8)
    group_size = GPU_ADD_N_MAXIMUM - 1 if has_add_n else 1
    for begin in range(0, len(others), group_size):
        group = [*others[begin : begin + group_size][::-1], so_far]
        if len(group) == 2:
            yield operator_call(ADD_OPERATOR, group, output)
        else:
            yield operator_call("add_n", group, output, Attributes({"num_args": len(group)}))
        so_far = output
