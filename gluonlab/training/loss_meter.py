"""The losses of the running steps, read late enough that no step waits for them.

Each device notes its shard's loss in a row of a small array; a block of STRIDE steps is read when
it is STRIDE steps old. So a loss is known at most 2 * STRIDE = 8 steps late, and the devices are
never more than that many steps behind the host.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.engine.fast_invoke import CopyInto
from gluonlab.errors import DivergedError
from gluonlab.finite_numbers import divergence_message, first_loss_message, is_healthy
from gluonlab.kvstores.process_groups import ALONE, Group
from gluonlab.training.stop_consensus import Consensus

STRIDE = 4


class StepLoss(NamedTuple):
    """A finished step: its number in the run (from 1), its images, and the mean loss of these."""

    step: int
    images: int
    loss: float


class LossLog:
    """The losses of a run: ``append`` a step's, and get the steps whose losses are known by now.

    A loss that is not finite, or larger than LARGEST_LOSS, raises DivergedError, which names the
    step where that began; ``rest`` are then the known steps before it. Where a loss
    ``may_overflow``, as in float16, a step without a finite one is left out instead. Each process
    of a group appends the losses of its own shards, and gets those of the whole batches; what
    brings about ``consensus`` between them travels along.

    Where the processes do not wait for each other, each appends its own ``images``, and gets the
    losses of these. It is to stop when it is `cut_short`, and all meet in `flush`, which raises in
    all of them, brings about the consensus, and has the mean of all images.
    """

    def __init__(
        self,
        ctxs: Sequence[mx.Context],
        may_overflow: bool = False,
        group: Group = ALONE,
        consensus: Optional[Consensus] = None,
    ) -> None:
        self.step = 0  # steps appended so far, in the whole run
        self.rest: List[StepLoss] = []
        self._may_overflow, self._rank = may_overflow, group.rank
        self._group, self._consensus = group, consensus or Consensus()
        self._wrong: Optional[StepLoss] = None  # where nobody waits: of this process
        # one is filled while the other grows old
        self._blocks = [_Block(ctxs, group, self._consensus) for _ in range(2)]
        self._sum, self._images = 0.0, 0  # of the steps returned since the last `mean`

    def append(self, losses: Sequence[nd.NDArray], images: int) -> List[StepLoss]:
        """Note the next step: its losses on each device, and its number of ``images``."""
        self.step += 1
        known: List[StepLoss] = []
        if self._blocks[0].full:
            known = self._blocks[1].read()
            self._blocks.reverse()
        self._blocks[0].note(self.step, losses, images)
        return self._checked(known)

    def flush(self) -> List[StepLoss]:
        """Wait for all steps, and return those not returned yet."""
        known = self._checked(self._blocks[1].read() + self._blocks[0].read())
        if not self._group.waits:
            self._meet(known)
        return known

    @property
    def cut_short(self) -> bool:
        """Whether this process, which does not wait for the others, has to stop and meet them."""
        return not self._group.waits and (self._wrong is not None or self._consensus.came)

    def _meet(self, known: List[StepLoss]) -> None:
        """Have all processes know what each knows."""
        wrong, loss = (0, 0.0) if self._wrong is None else (self._wrong.step, self._wrong.loss)
        told = np.concatenate([[wrong, loss, self._sum, self._images], self._consensus.numbers()])
        table = self._group.everyones(told)
        for rank, row in enumerate(table):
            if row[0]:
                self.rest = known
                where = f"of rank {rank} at its step {int(row[0])}"
                raise DivergedError(divergence_message("the loss", float(row[1]), where))
        self._consensus.hear(table[:, 4:].sum(axis=0))
        self._sum, self._images = float(table[:, 2].sum()), int(table[:, 3].sum())

    def mean(self, epoch: int) -> float:
        """The mean loss over the images of the steps returned since the last call, an epoch's.

        Raises DivergedError when float16 overflowed in all of them.
        """
        total, images, self._sum, self._images = self._sum, self._images, 0.0, 0
        if not images:
            raise DivergedError(
                f"the loss overflows in every step of epoch {epoch}: "
                "use a smaller learning rate (--lr), or float32"
            )
        return total / images

    def state(self) -> "Tuple[Dict[str, Any], Dict[str, nd.NDArray]]":
        """Where it stands, and copies on the CPU of this process's losses that are not read yet.

        Nothing waits.
        """
        waiting = [block for block in reversed(self._blocks) if block.steps]
        rows = {
            f"losses/{place}/{self._rank}/{device}": row.copyto(mx.cpu())
            for place, block in enumerate(waiting)
            for device, row in enumerate(block.rows)
        }
        counts = {"step": self.step, "sum": self._sum, "images": self._images}
        blocks = [{"steps": list(each.steps), "images": list(each.images)} for each in waiting]
        return {**counts, "blocks": blocks}, rows

    def restore(self, counts: Mapping[str, Any], rows: Mapping[str, nd.NDArray]) -> List[StepLoss]:
        """Go on from a `state`, of any devices; the steps whose losses it had not returned.

        ``rows``: those of all processes.
        """
        self.step, self._sum, self._images = counts["step"], counts["sum"], counts["images"]
        known: List[StepLoss] = []
        for place, block in enumerate(counts["blocks"]):
            known += _losses(block["steps"], block["images"], _everyones_total(rows, place))
        return self._checked(known)

    def _checked(self, known: List[StepLoss]) -> List[StepLoss]:
        if self._may_overflow:
            known = [step for step in known if math.isfinite(step.loss)]
        for place, step in enumerate(known):
            if not is_healthy(step.loss) and not self._group.waits:
                self._wrong = self._wrong or step
            if self._wrong is not None:
                return known[:place]
            if not is_healthy(step.loss):
                self.rest = known[:place]
                if step.step == 1:
                    raise DivergedError(first_loss_message(step.loss))
                raise DivergedError(
                    divergence_message("the loss", step.loss, f"at step {step.step}")
                )
            self._sum += step.loss * step.images
            self._images += step.images
        return known


class _Block:
    """The losses of STRIDE consecutive steps: one row of STRIDE values on each device."""

    def __init__(self, ctxs: Sequence[mx.Context], group: Group, consensus: Consensus) -> None:
        self.group, self.consensus = group, consensus
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
        own = _total(self.rows)
        if not self.group.waits:
            known = [each for each in _losses(self.steps, self.images, own) if each.images]
            self.steps, self.images = [], []
            return known
        totals = self.group.total(np.concatenate([own, self.consensus.numbers()]))
        self.consensus.hear(totals[len(own) :])
        known = _losses(self.steps, self.images, totals)
        self.steps, self.images = [], []
        return known


def _total(rows: Sequence[nd.NDArray]) -> Any:
    """The sums over the devices, one for each step of a block."""
    return sum(row.asnumpy().astype("float64") for row in rows)


def _everyones_total(rows: Mapping[str, nd.NDArray], place: int) -> Any:
    """The sums over all processes' devices, added in the order in which a group adds them."""
    of_ranks: Dict[str, List[nd.NDArray]] = {}
    for name, row in rows.items():
        if name.startswith(f"losses/{place}/"):
            of_ranks.setdefault(name.split("/")[2], []).append(row)
    return np.sum([_total(own) for own in of_ranks.values()], axis=0)


def _losses(steps: Sequence[int], images: Sequence[int], sums: Any) -> List[StepLoss]:
    return [
        StepLoss(step, count, float(total) / max(1, count))
        for step, count, total in zip(steps, images, sums)
    ]
