"""What a network does with one image, operator by operator: multiply-adds, and numbers moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

CONVOLUTION, DENSE, MEMORY = "convolution", "dense", "memory"
DEPTHWISE = "depthwise convolution"  # the name of one whose groups have one channel each


@dataclass(frozen=True)
class Operator:
    """One operator of a graph; counts are per image, but for ``weights``.

    ``kind``: CONVOLUTION or DENSE, with ``multiply_adds`` in forward and numbers ``inputs`` and
    ``outputs``; MEMORY is all that only reads and writes: ``forward_moved`` and ``backward_moved``
    numbers. ``weights``: the numbers of its parameters, whatever the batch.
    ``kernel``: the side of a square window of stride 1 over all channels, else 0.
    ``data_gradient``: whether backward computes a gradient of its input. ``after_norm``: whether it
    is a ReLU or an addition behind BatchNorm.
    """

    kind: str
    name: str
    multiply_adds: int = 0
    inputs: int = 0
    outputs: int = 0
    weights: int = 0
    kernel: int = 0
    data_gradient: bool = True
    forward_moved: int = 0
    backward_moved: int = 0
    after_norm: bool = False


@dataclass(frozen=True)
class Work:
    """A network's operators for images of one shape; ``tensors``: the numbers of each parameter.

    Parameters that are not trained, such as running statistics, are no tensors.
    ``uncounted``: operators whose multiply-adds are not counted, only what they move.
    """

    name: str
    image_shape: Tuple[int, ...]
    operators: Tuple[Operator, ...]
    tensors: Tuple[int, ...]
    uncounted: Tuple[str, ...] = ()

    @property
    def multiply_adds(self) -> int:
        """Of forward, per image."""
        return sum(operator.multiply_adds for operator in self.operators)

    @property
    def parameters(self) -> int:
        """How many numbers are trained."""
        return sum(self.tensors)
