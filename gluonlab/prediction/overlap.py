"""What of a sum of gradients is left when backward ends: buckets leave while backward goes on.

gluonlab queues backward in pieces of operators, and a bucket of gradients, those of the last layers
first, is summed when the piece that completes it has run (`gluonlab.engine.setup`). MXNet is not
imported.
"""

from __future__ import annotations

import math
from typing import List, NamedTuple, Optional, Sequence

from gluonlab.prediction.work import Work

PIECE = 15  # operators on GPUs; see gluonlab.engine.setup
# Of a bucket at most, and the least by which the store device is given one for each GPU: see
# gluonlab.update.buckets
BUCKET_BYTES, SPREAD_BYTES = 25 * 2**20, 4 * 2**20
DEVICE = "device"


class Bucket(NamedTuple):
    """A part of the gradients: when backward has made it, seconds from its begin; its bytes."""

    ready_s: float
    size: float


def usual_bucket_bytes(work: Work, store: str, gpus: int) -> float:
    """Those of the largest bucket, where nobody has sized them."""
    if store != DEVICE or gpus < 2:
        return BUCKET_BYTES
    return min(BUCKET_BYTES, max(SPREAD_BYTES, 4 * work.parameters // gpus))


def bucket_sizes(work: Work, bucket_bytes: float = BUCKET_BYTES) -> List[float]:
    """The bytes of each bucket, the last layers' first: ``bucket_bytes`` together at most.

    A larger tensor is a bucket of its own, and with 0 each is; see `gluonlab.update.buckets.group`.
    """
    found: List[float] = []
    for numbers in reversed(work.tensors):
        size = 4.0 * numbers
        if found and found[-1] + size <= bucket_bytes:
            found[-1] += size
        else:
            found.append(size)
    return found


def buckets(
    work: Work,
    backward_s: Sequence[float],
    piece: Optional[int] = PIECE,
    bucket_bytes: float = BUCKET_BYTES,
) -> List[Bucket]:
    """The gradients in the order in which backward makes them, in buckets.

    ``backward_s``: of each operator, in the order of forward. ``piece``: how many operators, None
    for all.
    """
    order = [
        (seconds, 4.0 * operator.weights)
        for operator, seconds in zip(reversed(work.operators), reversed(backward_s))
        if seconds
    ]
    size = piece or max(1, len(order))
    pieces = [order[first : first + size] for first in range(0, len(order), size)]
    found: List[Bucket] = []
    now = held = 0.0
    for each in pieces:
        now += math.fsum(seconds for seconds, _ in each)
        for _, weights in each:
            held += weights
            if held and held >= bucket_bytes:
                found.append(Bucket(now, held))
                held = 0.0
    # what belongs to no convolution or dense layer, such as BatchNorm's, is little
    rest = held + max(0.0, 4.0 * work.parameters - held - sum(each.size for each in found))
    return [*found, Bucket(now, rest)] if rest else found


def exposed_s(parts: Sequence[Bucket], sum_s: float, backward_s: float) -> float:
    """Seconds of the sum behind the end of backward; ``sum_s``: of all gradients together.

    A bucket takes its share of the time, one after the other, and does not slow backward down.
    """
    total, end = sum(part.size for part in parts), 0.0
    for part in parts:
        end = max(end, part.ready_s) + sum_s * part.size / total
    return max(0.0, end - backward_s)
