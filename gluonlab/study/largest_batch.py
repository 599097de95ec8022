"""The largest batch that fits into a given amount of memory, found without training."""

from __future__ import annotations

from gluonlab.config import TrainConfig
from gluonlab.errors import ConfigError
from gluonlab.training.loop import make_net
from gluonlab.training.memory import MIB, Memory, Needs
from gluonlab.training.plan import make_plan


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
        middle = needs.memory((fits.images + largest + 1) // 2)
        if middle.total <= budget_bytes:
            fits = middle
        else:
            largest = middle.images - 1
    return fits
