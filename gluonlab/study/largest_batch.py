"""The largest batch that fits into a given amount of memory, found without training."""

from __future__ import annotations

from typing import Optional

from gluonlab.config import TrainConfig
from gluonlab.errors import ConfigError
from gluonlab.semantics import nd_semantics
from gluonlab.training.loop import make_net
from gluonlab.training.memory import MIB, Memory, Needs
from gluonlab.training.plan import make_plan


@nd_semantics()
def find_batch_size(config: TrainConfig, budget_bytes: int) -> Memory:
    """The largest batch per device, up to the device's share of the training images, that needs at most ``budget_bytes``.

    Raises ConfigError when not even the smallest one fits, or when the config already has a batch size.
    """
    if config.batch_size is not None or config.global_batch_size is not None:
        raise ConfigError("--find-batch-size looks for the batch size: leave --batch-size and --global-batch-size out")
    plan = make_plan(config.replace(batch_size=2**31))  # as large as the data set allows: what does not fit that fits nothing
    needs = Needs(plan, make_net(plan))
    smallest, largest = needs.cut.count or 1, max(1, len(plan.dataset.train) // len(plan.ctxs))
    fits = needs.memory(smallest)
    if fits.total > budget_bytes:
        raise ConfigError(
            f"--find-batch-size {budget_bytes / MIB:,.1f} MiB: a batch of {smallest} per device needs {fits.total / MIB:,.1f} MiB, "
            f"{(fits.total - fits.activations) / MIB:,.1f} MiB of it besides activations: give more, or choose a smaller --model"
        )
    while fits.images < largest:
        images = (fits.images + largest + 1) // 2
        middle = _within(needs, images, budget_bytes)
        if middle is not None:
            fits = middle
        else:
            largest = images - 1
    return fits


def _within(needs: Needs, images: int, budget_bytes: int) -> Optional[Memory]:
    """What so many images need, if it is in the budget, and possible at all."""
    try:
        memory = needs.memory(images)
    except ConfigError:
        return None
    return memory if memory.total <= budget_bytes else None
