"""Zeros between a bucket's gradients, where fused operators write beyond an array's end.

On GPUs a fused operator stores 2 or 4 numbers at a time, the last ones too: an array of 7 gets an
eighth (``store_index`` in the source that MXNet 1.9.1 gives NVRTC). That number is made of whatever
lies behind the operator's inputs, NaN as well. Each gradient begins on a boundary of 64 bytes, so
that no other is reached; but who takes a bucket as one array, to look for an overflow or for its
norm, would find it. So it goes before gradients are summed, in one launch for each bucket with
gaps. On all devices who clips a bucket multiplies what lies there, too: by NaN, where gradients are
not finite, and that no backward would overwrite.
"""

from __future__ import annotations

from typing import Sequence

from mxnet import nd

from gluonlab.engine.invoke import Attributes, OperatorCall
from gluonlab.update.bucket import Bucket


class Gaps:
    """What lies between the gradients of these buckets, on all devices."""

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self._calls = []
        self._fused = any(
            grad.context.device_type == "gpu" for bucket in buckets for grad in bucket.grads
        )
        for bucket in buckets:
            places = bucket.gaps()
            for grad in bucket.grads if places else ():
                indices = nd.array([places], ctx=grad.context, dtype="int32")
                zeros = nd.zeros((len(places),), ctx=grad.context, dtype=grad.dtype)
                call = OperatorCall("_scatter_set_nd", [grad, zeros, indices], grad)
                self._calls.append((call, Attributes({"shape": grad.shape})))

    def before_sum(self) -> None:
        """Clear them where fused operators write; nothing waits."""
        if self._fused:
            self.clear()

    def clear(self) -> None:
        """Queue it; nothing waits."""
        for call, attributes in self._calls:
            call(attributes)
