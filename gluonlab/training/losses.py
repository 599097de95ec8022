"""The losses of the running steps, read late enough that no step waits for them.

Each device notes its shard's loss in a row of a small array; a block of STRIDE steps is read when
it is STRIDE steps old. So a loss is known at most 2 * STRIDE = 8 steps late, and the devices are
never more than that many steps behind the host.
"""

from __future__ import annotations

import math
from typing import List, NamedTuple, Sequence

import mxnet as mx
from mxnet import nd

from gluonlab.engine.invoke import CopyInto
from gluonlab.errors import DivergedError
from gluonlab.finite import diverged, is_healthy

STRIDE = 4


class StepLoss(NamedTuple):
    """A finished step: its number in the run (from 1), its images, and the mean loss of these."""

    step: int
    images: int
    loss: float


class LossLog:
    """``append`` the shards' losses of each step; it returns the steps whose losses have become
    known.

    A loss that is not finite, or larger than LARGEST_LOSS, raises DivergedError, naming the step
    where that began. Where it ``may_overflow``, as in float16, a step without a finite one is left
    out of those that are returned instead.
    """

    def __init__(self, ctxs: Sequence[mx.Context], may_overflow: bool = False) -> None:
        self.step = 0  # steps appended so far, in the whole run
        self._checked = _without_overflows if may_overflow else _healthy
        self._blocks = [_Block(ctxs), _Block(ctxs)]  # one is filled while the other grows old

    def append(self, losses: Sequence[nd.NDArray], images: int) -> List[StepLoss]:
        """Note a step."""
        self.step += 1
        known: List[StepLoss] = []
        if self._blocks[0].full:
            known = self._blocks[1].read()
            self._blocks.reverse()
        self._blocks[0].note(self.step, losses, images)
        return self._checked(known)

    def flush(self) -> List[StepLoss]:
        """Wait for all steps, and return those not returned yet."""
        return self._checked(self._blocks[1].read() + self._blocks[0].read())


def _without_overflows(known: List[StepLoss]) -> List[StepLoss]:
    return _healthy([step for step in known if math.isfinite(step.loss)])


def _healthy(known: List[StepLoss]) -> List[StepLoss]:
    """The same steps.

    Raises DivergedError, which holds those before the first whose loss is beyond recovery, or no
    number.
    """
    for place, step in enumerate(known):
        if not is_healthy(step.loss):
            raise DivergedError(
                diverged("the loss", step.loss, f"at step {step.step}"), known[:place]
            )
    return known


class _Block:
    """The losses of STRIDE consecutive steps: one row of STRIDE values on each device."""

    def __init__(self, ctxs: Sequence[mx.Context]) -> None:
        self.rows = [nd.zeros((STRIDE,), ctx=ctx) for ctx in ctxs]
        self.cells = [[CopyInto(row[i : i + 1]) for i in range(STRIDE)] for row in self.rows]
        self.zeros = [nd.zeros((1,), ctx=ctx) for ctx in ctxs]
        self.steps: List[int] = []
        self.images: List[int] = []

    @property
    def full(self) -> bool:
        return len(self.steps) == STRIDE

    def note(self, step: int, losses: Sequence[nd.NDArray], images: int) -> None:
        place = len(self.steps)
        for loss, cells in zip(losses, self.cells):
            cells[place].copy(loss)
        # devices that had no shard
        for zero, cells in zip(self.zeros[len(losses) :], self.cells[len(losses) :]):
            cells[place].copy(zero)
        self.steps.append(step)
        self.images.append(images)

    def read(self) -> List[StepLoss]:
        """Wait for the block's steps and return them; the block is empty then."""
        if not self.steps:
            return []
        sums = sum(row.asnumpy().astype("float64") for row in self.rows)
        known = [
            StepLoss(step, images, float(total) / images)
            for step, images, total in zip(self.steps, self.images, sums)
        ]
        self.steps, self.images = [], []
        return known
