"""Reads losses asynchronously, with a delay of a few steps, so that no step waits for devices.

Each device copies the loss of its shard into a small array. After READ_EVERY steps these losses are
a complete block, which is read another READ_EVERY steps later. So each loss is known at most 2 *
READ_EVERY = 8 steps late. The host is never more than 8 steps ahead of the devices.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.divergence_checks import divergence_message, first_loss_message, is_healthy
from gluonlab.engine.fast_invoke import CopyInto
from gluonlab.errors import DivergedError
from gluonlab.kvstores.process_groups import SINGLE_PROCESS, ProcessGroup
from gluonlab.training.stop_consensus import StopCoordinator

READ_EVERY = 4


class StepLoss(NamedTuple):
    """The mean loss of a finished step over its images; ``step`` is counted from 1 in the run."""

    step: int
    images: int
    loss: float


class AsyncLossMeter:
    """The losses of a run, read with a delay: `append` adds a step and returns earlier steps.

    If a loss is not finite, or larger than LARGEST_LOSS, DivergedError is raised for the first such
    step. ``steps_before_divergence`` then contains the known steps before the diverged step. With
    ``may_overflow``, which float16 needs, steps with a loss that is not finite are omitted instead.

    In a group, each process appends the losses of its shards, and gets the losses of whole batches.
    The values of ``coordinator`` are exchanged together with the losses.

    Asynchronous processes do not wait for each other. Such a process appends the losses of its own
    images, and gets only these losses back. The process stops the epoch when `must_synchronize` is
    True, and exchanges losses in `flush`.
    """

    def __init__(
        self,
        ctxs: Sequence[mx.Context],
        may_overflow: bool = False,
        group: ProcessGroup = SINGLE_PROCESS,
        coordinator: Optional[StopCoordinator] = None,
    ) -> None:
        self.step = 0  # steps appended so far, in the whole run
        self.steps_before_divergence: List[StepLoss] = []
        self._may_overflow, self._rank = may_overflow, group.rank
        self._group, self._coordinator = group, coordinator or StopCoordinator()
        self._diverged_step: Optional[StepLoss] = None  # only of an asynchronous process
        # one block is filled while the other one waits until it is old enough
        self._blocks = [_LossBlock(ctxs, group, self._coordinator) for _ in range(2)]
        self._sum, self._images = 0.0, 0  # of the steps returned since the last `mean_loss`

    def append(self, losses: Sequence[nd.NDArray], images: int) -> List[StepLoss]:
        """Add a step with its losses (1,) by device. Return steps whose losses are now known."""
        self.step += 1
        known: List[StepLoss] = []
        if self._blocks[0].is_full:
            known = self._blocks[1].read()
            self._blocks.reverse()
        self._blocks[0].append(self.step, losses, images)
        return self._check_losses(known)

    def flush(self) -> List[StepLoss]:
        """Wait for all steps, and return the losses that `append` has not returned yet."""
        known = self._check_losses(self._blocks[1].read() + self._blocks[0].read())
        if not self._group.is_synchronous:
            self._exchange_losses(known)
        return known

    @property
    def must_synchronize(self) -> bool:
        """True if an asynchronous process must stop its epoch to inform the other processes."""
        return not self._group.is_synchronous and (self._diverged_step is not None or self._coordinator.signal_received)

    def _exchange_losses(self, known: List[StepLoss]) -> None:
        """Sum the epoch's losses and the coordinator's values over asynchronous processes.

        If a process has diverged, DivergedError is raised in all processes.
        """
        first = self._diverged_step
        step, loss = (0, 0.0) if first is None else (first.step, first.loss)
        flags = self._coordinator.local_flags()
        # one row per rank: step and loss of a divergence, sum of losses, images, flags
        rows = self._group.all_gather(np.concatenate([[step, loss, self._sum, self._images], flags]))
        for rank, row in enumerate(rows):
            if row[0]:
                self.steps_before_divergence = known
                where = f"at step {int(row[0])} of rank {rank}"
                raise DivergedError(divergence_message("the loss", float(row[1]), where))
        self._coordinator.update_from_all(rows[:, 4:].sum(axis=0))
        self._sum, self._images = float(rows[:, 2].sum()), int(rows[:, 3].sum())

    def mean_loss(self, epoch: int) -> float:
        """Return the mean loss per image since the last call. Call this method once per epoch.

        Raises DivergedError if float16 overflowed in all steps.
        """
        total, images, self._sum, self._images = self._sum, self._images, 0.0, 0
        if not images:
            raise DivergedError(
                f"the loss overflowed in every step of epoch {epoch}: use a smaller learning rate (--lr), or float32"
            )
        return total / images

    def state(self) -> "Tuple[Dict[str, Any], Dict[str, nd.NDArray]]":
        """Return the state for a checkpoint, and copies of the unread losses on the CPU.

        The copies are queued, so the call does not wait for the devices.
        """
        unread_blocks = [block for block in reversed(self._blocks) if block.steps]
        rows = {
            f"losses/{index}/{self._rank}/{device}": values.copyto(mx.cpu())
            for index, block in enumerate(unread_blocks)
            for device, values in enumerate(block.rows)
        }
        counts = {"step": self.step, "sum": self._sum, "images": self._images}
        blocks = [{"steps": list(block.steps), "images": list(block.images)} for block in unread_blocks]
        return {**counts, "blocks": blocks}, rows

    def restore(self, counts: Mapping[str, Any], rows: Mapping[str, nd.NDArray]) -> List[StepLoss]:
        """Restore the result of `state`, and return the steps whose losses had not been read.

        ``rows``: the unread losses of all processes' devices.
        """
        self.step, self._sum, self._images = counts["step"], counts["sum"], counts["images"]
        known: List[StepLoss] = []
        for index, block in enumerate(counts["blocks"]):
            known += _mean_losses(block["steps"], block["images"], _sum_over_ranks(rows, index))
        return self._check_losses(known)

    def _check_losses(self, known: List[StepLoss]) -> List[StepLoss]:
        """Add losses to the epoch's sum, and return the losses.

        Raises DivergedError for a loss that is not finite or too large.
        """
        if self._may_overflow:
            known = [step for step in known if math.isfinite(step.loss)]
        for index, step in enumerate(known):
            if not is_healthy(step.loss) and not self._group.is_synchronous:
                self._diverged_step = self._diverged_step or step
            if self._diverged_step is not None:
                return known[:index]
            if not is_healthy(step.loss):
                self.steps_before_divergence = known[:index]
                if step.step == 1:
                    raise DivergedError(first_loss_message(step.loss))
                raise DivergedError(divergence_message("the loss", step.loss, f"at step {step.step}"))
            self._sum += step.loss * step.images
            self._images += step.images
        return known


class _LossBlock:
    """The losses of READ_EVERY consecutive steps: one row (READ_EVERY,) on each device."""

    def __init__(self, ctxs: Sequence[mx.Context], group: ProcessGroup, coordinator: StopCoordinator) -> None:
        self.group, self.coordinator = group, coordinator
        self.rows = [nd.zeros((READ_EVERY,), ctx=ctx) for ctx in ctxs]
        self._cells = [[CopyInto(row[i : i + 1]) for i in range(READ_EVERY)] for row in self.rows]
        self._zeros = [nd.zeros((1,), ctx=ctx) for ctx in ctxs]
        self.steps: List[int] = []
        self.images: List[int] = []

    @property
    def is_full(self) -> bool:
        return len(self.steps) == READ_EVERY

    def append(self, step: int, losses: Sequence[nd.NDArray], images: int) -> None:
        """Copy a step's losses, (1,) by device, into the rows; 0 for devices without a shard."""
        index = len(self.steps)
        for loss, cells in zip(losses, self._cells):
            cells[index].copy(loss)
        # devices without a shard of this batch
        for zero, cells in zip(self._zeros[len(losses) :], self._cells[len(losses) :]):
            cells[index].copy(zero)
        self.steps.append(step)
        self.images.append(images)

    def read(self) -> List[StepLoss]:
        """Wait for the steps of the block, return them, and empty the block."""
        if not self.steps:
            return []
        sums, is_synchronous = _sum_over_devices(self.rows), self.group.is_synchronous
        if is_synchronous:
            # sliced instead of np.split, which takes 4 microseconds longer
            totals = self.group.all_reduce_values(np.concatenate([sums, self.coordinator.local_flags()]))
            sums = totals[:READ_EVERY]
            self.coordinator.update_from_all(totals[READ_EVERY:])
        step_losses = _mean_losses(self.steps, self.images, sums)
        self.steps, self.images = [], []
        return [step_loss for step_loss in step_losses if is_synchronous or step_loss.images]


def _sum_over_devices(rows: Sequence[nd.NDArray]) -> Any:
    """Return the sums over the devices, one for each step of a block."""
    return sum(row.asnumpy().astype("float64") for row in rows)


def _sum_over_ranks(rows: Mapping[str, nd.NDArray], block_index: int) -> Any:
    """Return the losses of a checkpoint's block, summed over the devices of all processes.

    The order of additions is the same as in a group, so that the sums are bit-identical.
    """
    rows_by_rank: Dict[str, List[nd.NDArray]] = {}
    for name, row in rows.items():
        if name.startswith(f"losses/{block_index}/"):
            rows_by_rank.setdefault(name.split("/")[2], []).append(row)
    return np.sum([_sum_over_devices(device_rows) for device_rows in rows_by_rank.values()], axis=0)


def _mean_losses(steps: Sequence[int], images: Sequence[int], sums: Any) -> List[StepLoss]:
    return [StepLoss(step, count, float(total) / max(1, count)) for step, count, total in zip(steps, images, sums)]
