"""Rates made of --lr-schedule and its options.

The curves themselves, the warm-up included, are in `gluonlab.update.rates`.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import List, Sequence

from gluonlab.config import TrainConfig, option_name
from gluonlab.errors import ConfigError, unknown
from gluonlab.update.rates import LR_SCHEDULES, Rates

CONSTANT, DECAY = "constant", 0.1
# where He et al., "Deep residual learning", 2016, section 4.2, divide the rate by 10
HALF_AND_THREE_QUARTERS = (Fraction(1, 2), Fraction(3, 4))
# the schedules that each of these options belongs to
OF_SCHEDULES = {
    "lr_decay": ("step",),
    "lr_decay_epochs": ("step",),
    "final_lr": ("cosine", "linear"),
}


def check_schedule(config: TrainConfig) -> None:
    """Raise ConfigError for an unknown schedule, and for an option of another one."""
    schedule = config.lr_schedule or CONSTANT
    if schedule not in LR_SCHEDULES:
        raise ConfigError(unknown("--lr-schedule", schedule, LR_SCHEDULES))
    for name, schedules in OF_SCHEDULES.items():
        value = getattr(config, name)
        if value is not None and schedule not in schedules:
            raise ConfigError(
                f"{option_name(name)} {value} has no effect with --lr-schedule {schedule}: "
                f"choose {' or '.join(schedules)}, or leave it out"
            )


def check_epochs(config: TrainConfig) -> None:
    """Raise ConfigError for a warm-up or a change of the rate beyond the run's epochs."""
    warmup, epochs = config.warmup_epochs or 0.0, config.epochs or 1
    if warmup >= epochs:
        raise ConfigError(
            f"--warmup-epochs {warmup:g} leaves none of the run's {epochs} epochs: "
            "give fewer, or more --epochs"
        )
    decay_epochs = _decay_epochs(config)
    if not decay_epochs:
        return
    if decay_epochs[0] < warmup:
        raise ConfigError(
            f"--lr-decay-epochs {config.lr_decay_epochs}: the warm-up takes {warmup:g} epochs: "
            "give later ones, or less --warmup-epochs"
        )
    if decay_epochs[-1] >= epochs:
        raise ConfigError(
            f"--lr-decay-epochs {config.lr_decay_epochs}: the run ends after {epochs} epochs: "
            "give earlier ones, or more --epochs"
        )


def check_final_rate(config: TrainConfig, rates: Rates, scale: float) -> None:
    """Raise ConfigError when ``rates``, which ``scale`` has multiplied, end above their begin."""
    if rates.final_lr > rates.base_lr:
        raise ConfigError(
            f"--final-lr {config.final_lr:g} is above the initial {rates.base_lr / scale:g}: "
            "give a smaller one"
        )


def make_rates(
    config: TrainConfig,
    base_lr: float,
    epochs: int,
    steps_per_epoch: int,
    scale: float = 1.0,
    decay_shares: Sequence[Fraction] = (),
) -> Rates:
    """The learning rate of every step.

    ``base_lr`` is scaled already; ``scale`` is what --final-lr must be multiplied by.
    ``decay_shares``: where --lr-schedule step steps without --lr-decay-epochs, as shares of what
    follows the warm-up; HALF_AND_THREE_QUARTERS where there are none.
    """
    schedule, decay = config.lr_schedule or CONSTANT, config.lr_decay
    steps = epochs * steps_per_epoch
    warmup_steps = round((config.warmup_epochs or 0.0) * steps_per_epoch)
    milestones = [epoch * steps_per_epoch for epoch in _decay_epochs(config)]
    if schedule == "step" and not milestones:
        milestones = [
            warmup_steps + math.ceil((steps - warmup_steps) * share)
            for share in decay_shares or HALF_AND_THREE_QUARTERS
        ]
    return Rates(
        base_lr,
        steps,
        schedule,
        warmup_steps,
        (config.final_lr or 0.0) * scale,
        DECAY if decay is None else decay,
        tuple(milestones),
    )


def _decay_epochs(config: TrainConfig) -> List[int]:
    return [int(epoch) for epoch in (config.lr_decay_epochs or "").split(",") if epoch]
