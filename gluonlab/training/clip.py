"""Gradients clipped by their global norm, on every device for itself.

After the allreduce each device holds the same sum, to the bit; so each finds the same norm and the same factor, and the replicas
stay alike without a word between them. Nothing is fetched to the host: the factor stays an array, and multiplying by 1 is what
it costs not to know.
"""

from __future__ import annotations

from typing import List, Sequence

from mxnet import nd

from gluonlab.invoke import NO_ATTRIBUTES, Attributes, OperatorCall


class GlobalNormClipping:
    """``clip(limit)`` scales the gradients of each device down to a norm of ``limit``, where theirs is greater.

    As `gluon.utils.clip_global_norm` on one device (Pascanu, Mikolov, Bengio, "On the difficulty of training recurrent neural
    networks", 2013, algorithm 1). ``grads[i]``: all gradients of device i, as float32.
    """

    def __init__(self, grads: Sequence[Sequence[nd.NDArray]]) -> None:
        self._devices = [_Device(arrays) for arrays in grads]
        self._limit = 0.0
        self._attributes = NO_ATTRIBUTES

    def __call__(self, limit: float) -> None:
        """Queue it on every device; nothing waits."""
        if limit != self._limit:
            self._limit, self._attributes = limit, Attributes({"scalar": limit})
        for device in self._devices:
            device.clip(self._attributes)


class _Device:
    """The operations of one device: squares of the norms, the factor limit / max(norm, limit), the multiplications."""

    def __init__(self, grads: Sequence[nd.NDArray]) -> None:
        flat = [grad.reshape((-1,)) for grad in grads]  # views
        squares = nd.zeros((len(flat),), ctx=grads[0].context)
        factor = nd.zeros((1,), ctx=grads[0].context)
        # dot: BLAS adds in many lanes. multi_sum_sq and norm add one by one, and lose three digits over some million elements.
        cells = [squares[i : i + 1] for i in range(len(flat))]
        self._norm = [OperatorCall("dot", [grad, grad], cell) for grad, cell in zip(flat, cells)]
        self._norm += [OperatorCall("sum", [squares], factor), OperatorCall("sqrt", [factor], factor)]
        self._factor: List[OperatorCall] = [
            OperatorCall("_maximum_scalar", [factor], factor),
            OperatorCall("_rdiv_scalar", [factor], factor),
        ]
        self._scale = [OperatorCall("broadcast_mul", [grad, factor], grad) for grad in flat]

    def clip(self, limit: Attributes) -> None:
        for call in self._norm:
            call(NO_ATTRIBUTES)
        for call in self._factor:
            call(limit)
        for call in self._scale:
            call(NO_ATTRIBUTES)
