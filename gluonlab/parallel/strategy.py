"""What the loop asks of a strategy."""

from __future__ import annotations

from typing import NamedTuple

from mxnet import nd


class Scored(NamedTuple):
    """What the network makes of images on a device, which is given by its position: sum of losses
    (1,), scores (n, classes).
    """

    device: int
    loss: nd.NDArray
    scores: nd.NDArray
    labels: nd.NDArray
