"""The two operators that join the devices of a split network, each the other's derivative.

Source: M. Shoeybi et al., "Megatron-LM: Training multi-billion parameter language models using
model parallelism" (2019), section 3, where `Copy` is f and `Sum` is g.
"""

from __future__ import annotations

from typing import Callable, List, Sequence

from mxnet import nd

from gluonlab.collectives.executor import Executor
from gluonlab.collectives.schedule import Schedule

Call = Callable[[], object]


class Copy:
    """Identity forward, allreduce backward: every device computes with the same value."""

    def __init__(self, schedule: Schedule, values: Sequence[nd.NDArray]) -> None:
        """``values``: of each device, all equal."""
        self._schedule, self.results = schedule, list(values)

    def forward(self) -> List[Call]:
        """Nothing is to be done."""
        return []

    def backward(self, gradients: Sequence[nd.NDArray]) -> List[Call]:
        """The calls that add up what each device has of the value's gradient, in place."""
        return [Executor(self._schedule, [[gradient] for gradient in gradients]).run]


class Sum:
    """Allreduce forward, identity backward: every device has a summand of the same value."""

    def __init__(self, schedule: Schedule, values: Sequence[nd.NDArray]) -> None:
        """``values``: the summand of each device, in whose place the sum appears."""
        self._schedule, self.results = schedule, list(values)

    def forward(self) -> List[Call]:
        """The calls that add up the summands, which nobody else takes, backward neither."""
        return [Executor(self._schedule, [[value] for value in self.results]).run]

    def backward(self, gradients: Sequence[nd.NDArray]) -> List[Call]:
        """Nothing is to be done: the gradient of a sum is that of each summand."""
        return []


class Pass:
    """The value goes on as it is, both ways: all that takes it is the same on every device."""

    def __init__(self, schedule: Schedule, values: Sequence[nd.NDArray]) -> None:
        self.results = list(values)

    def forward(self) -> List[Call]:
        """Nothing is to be done."""
        return []

    def backward(self, gradients: Sequence[nd.NDArray]) -> List[Call]:
        """Nothing is to be done."""
        return []
