"""Learning rate schedules (--lr-schedule) with warm-up, and checks of their options.

MXNet's schedulers have a state, so they cannot return the rate of an earlier step, or start in the
middle of a run. `LearningRates` needs only the number of a step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Callable, Dict, List, Sequence, Tuple

from gluonlab.config import TrainConfig, option_name
from gluonlab.errors import ConfigError, unknown

SMALLEST_RATE = 1e-37  # MXNet refuses a float32 below 1.2e-38 that is not 0


@dataclass(frozen=True)
class LearningRates:
    """The learning rate of each step, from 1 to ``steps``, as an ``lr_scheduler`` of MXNet.

    During ``warmup_steps``, the rate grows linearly to ``base_lr`` (Goyal et al., "Accurate, large
    minibatch SGD: training ImageNet in 1 hour", 2017, section 2.2). The schedule ``step`` then
    multiplies the rate by ``decay`` after each step in ``milestones``. A schedule with a
    ``final_lr`` reaches this rate one step after the last step, so that no step has a rate of 0.
    """

    base_lr: float
    steps: int
    schedule: str = "constant"
    warmup_steps: int = 0
    final_lr: float = 0.0
    decay: float = 0.1
    milestones: Tuple[int, ...] = ()

    def __call__(self, step: int) -> float:
        if step < self.warmup_steps:
            rate = self.base_lr * step / self.warmup_steps
        else:
            rate = LR_SCHEDULES[self.schedule](self, step)
        return rate if rate >= SMALLEST_RATE else 0.0

    def progress(self, step: int) -> float:
        """Return what fraction of the steps after the warm-up has been done before ``step``."""
        done, total = step - 1 - self.warmup_steps, self.steps - self.warmup_steps
        return min(1.0, max(0, done) / max(1, total))

    def interpolate(self, fraction: float) -> float:
        """Return a value between ``final_lr`` (fraction 0) and ``base_lr`` (fraction 1)."""
        # rounding can make the sum slightly larger than base_lr
        return min(self.base_lr, self.final_lr + (self.base_lr - self.final_lr) * fraction)

    def settings(self) -> Dict[str, Any]:
        """Return the settings that the schedule uses, for config.json."""
        settings: Dict[str, Any] = {"lr_schedule": self.schedule, "warmup_steps": self.warmup_steps}
        if self.schedule == "step":
            settings.update(lr_decay=self.decay, lr_decay_steps=list(self.milestones))
        elif self.schedule != "constant":
            settings.update(final_lr=self.final_lr)
        return settings

    def in_words(self) -> str:
        """Return a description such as ``cosine to 0, warm-up in 46 steps``."""
        if self.schedule == "step":
            *most, last = (f"{milestone:,}" for milestone in self.milestones)
            milestones = f"{', '.join(most)} and {last}" if most else last
            text = f"times {self.decay:g} after {milestones} steps"
        else:
            text = self.schedule + f" to {self.final_lr:g}" * (self.schedule != "constant")
        steps = f"{self.warmup_steps:,} step{'s' * (self.warmup_steps > 1)}"
        return text + f", warm-up in {steps}" * (self.warmup_steps > 0)


def _constant_rate(rates: LearningRates, step: int) -> float:
    return rates.base_lr


def _step_rate(rates: LearningRates, step: int) -> float:
    return rates.base_lr * rates.decay ** sum(milestone < step for milestone in rates.milestones)


def _cosine_rate(rates: LearningRates, step: int) -> float:
    """Return the rate by equation 5 of Loshchilov, Hutter, "SGDR", 2017, without restarts."""
    return rates.interpolate((1 + math.cos(math.pi * rates.progress(step))) / 2)


def _linear_rate(rates: LearningRates, step: int) -> float:
    return rates.interpolate(1 - rates.progress(step))


LR_SCHEDULES: Dict[str, Callable[[LearningRates, int], float]] = {
    "constant": _constant_rate,
    "step": _step_rate,
    "cosine": _cosine_rate,
    "linear": _linear_rate,
}

CONSTANT, DEFAULT_DECAY = "constant", 0.1
# Fractions of a run after which He et al., "Deep residual learning", 2016, section 4.2, divide the
# rate by 10.
HALF_AND_THREE_QUARTERS = (Fraction(1, 2), Fraction(3, 4))
# option -> the schedules that use it
SCHEDULES_BY_OPTION = {"lr_decay": ("step",), "lr_decay_epochs": ("step",), "final_lr": ("cosine", "linear")}


def check_schedule(config: TrainConfig) -> None:
    """Raise ConfigError for an unknown schedule, or for an option of a different schedule."""
    schedule = config.lr_schedule or CONSTANT
    if schedule not in LR_SCHEDULES:
        raise ConfigError(unknown("--lr-schedule", schedule, LR_SCHEDULES))
    for name, schedules in SCHEDULES_BY_OPTION.items():
        value = getattr(config, name)
        if value is not None and schedule not in schedules:
            raise ConfigError(
                f"{option_name(name)} {value} has no effect with --lr-schedule {schedule}: "
                f"choose --lr-schedule {' or '.join(schedules)}, or remove {option_name(name)}"
            )


def check_schedule_epochs(config: TrainConfig) -> None:
    """Raise ConfigError for a warm-up or a milestone beyond the run's epochs."""
    warmup, epochs = config.warmup_epochs or 0.0, config.epochs or 1
    if warmup >= epochs:
        raise ConfigError(
            f"--warmup-epochs {warmup:g}: must be less than the number of epochs ({epochs}): shorten the warm-up, or "
            "increase --epochs"
        )
    decay_epochs = _decay_epochs(config)
    if not decay_epochs:
        return
    if decay_epochs[0] < warmup:
        raise ConfigError(
            f"--lr-decay-epochs {config.lr_decay_epochs}: the decay must not start before the warm-up ends, at epoch "
            f"{warmup:g}: choose later epochs, or reduce --warmup-epochs"
        )
    if decay_epochs[-1] >= epochs:
        raise ConfigError(
            f"--lr-decay-epochs {config.lr_decay_epochs}: must be less than the number of epochs ({epochs}): "
            "choose earlier epochs, or increase --epochs"
        )


def check_final_rate(config: TrainConfig, rates: LearningRates, scale: float) -> None:
    """Raise ConfigError if the final rate exceeds the base rate.

    ``scale``: the factor by which the base rate was scaled, for the message.
    """
    if rates.final_lr > rates.base_lr:
        raise ConfigError(
            f"--final-lr {config.final_lr:g} exceeds the initial learning rate {rates.base_lr / scale:g}: "
            "choose a smaller final learning rate"
        )


def make_learning_rates(
    config: TrainConfig,
    base_lr: float,
    epochs: int,
    steps_per_epoch: int,
    scale: float = 1.0,
    decay_shares: Sequence[Fraction] = (),
) -> LearningRates:
    """Return the learning rates of all steps.

    Args:
        config: The settings of the schedule.
        base_lr: The learning rate after the warm-up, already multiplied by ``scale``.
        epochs: Number of epochs.
        steps_per_epoch: Number of steps of an epoch.
        scale: The factor of --scale-lr. This function also multiplies --final-lr by the factor.
        decay_shares: The milestones of schedule ``step`` without --lr-decay-epochs, as fractions
            of the run after the warm-up. The default is HALF_AND_THREE_QUARTERS.
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
    return LearningRates(
        base_lr,
        steps,
        schedule,
        warmup_steps,
        (config.final_lr or 0.0) * scale,
        DEFAULT_DECAY if decay is None else decay,
        tuple(milestones),
    )


def _decay_epochs(config: TrainConfig) -> List[int]:
    return [int(epoch) for epoch in (config.lr_decay_epochs or "").split(",") if epoch]
