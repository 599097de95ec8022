"""The learning rate of every step: --lr-schedule, a warm-up before it, and their checks.

MXNet's own schedulers keep a state. So they cannot be asked again for an earlier step, whose loss
becomes known only now, nor start in the middle of a run. `LearningRates` needs only a step's number.
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
    """``rates(step)`` is the learning rate of a step, from 1 to ``steps``: an ``lr_scheduler``.

    During the ``warmup_steps`` it grows evenly, to ``base_lr`` in the last of them (Goyal et al.,
    "Accurate, large minibatch SGD: training ImageNet in 1 hour", 2017, section 2.2). After
    ``milestones`` steps each it is multiplied by ``decay``. It ends where one step more would have
    ``final_lr``: so no step is wasted on a rate of 0.
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
        """The share of the run after the warm-up before this step: 0 at first, below 1 at last."""
        done, wanted = step - 1 - self.warmup_steps, self.steps - self.warmup_steps
        return min(1.0, max(0, done) / max(1, wanted))

    def interpolate(self, share: float) -> float:
        """``base_lr`` for a share of 1, ``final_lr`` for 0."""
        # rounding may lead an ulp above it
        return min(self.base_lr, self.final_lr + (self.base_lr - self.final_lr) * share)

    def settings(self) -> Dict[str, Any]:
        """What this schedule uses, as plain values for config.json."""
        used: Dict[str, Any] = {"lr_schedule": self.schedule, "warmup_steps": self.warmup_steps}
        if self.schedule == "step":
            used.update(lr_decay=self.decay, lr_decay_steps=list(self.milestones))
        elif self.schedule != "constant":
            used.update(final_lr=self.final_lr)
        return used

    def in_words(self) -> str:
        """``cosine to 0, warm-up in 46 steps``."""
        if self.schedule == "step":
            *most, last = (f"{milestone:,}" for milestone in self.milestones)
            after = f"{', '.join(most)} and {last}" if most else last
            words = f"times {self.decay:g} after {after} steps"
        else:
            words = self.schedule + f" to {self.final_lr:g}" * (self.schedule != "constant")
        steps = f"{self.warmup_steps:,} step{'s' * (self.warmup_steps > 1)}"
        return words + f", warm-up in {steps}" * (self.warmup_steps > 0)


def _constant_rate(rates: LearningRates, step: int) -> float:
    return rates.base_lr


def _step_rate(rates: LearningRates, step: int) -> float:
    return rates.base_lr * rates.decay ** sum(milestone < step for milestone in rates.milestones)


def _cosine_rate(rates: LearningRates, step: int) -> float:
    """Loshchilov, Hutter, "SGDR", 2017, equation 5, without restarts."""
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
# where He et al., "Deep residual learning", 2016, section 4.2, divide the rate by 10
HALF_AND_THREE_QUARTERS = (Fraction(1, 2), Fraction(3, 4))
# the schedules that each of these options belongs to
SCHEDULES_BY_OPTION = {
    "lr_decay": ("step",),
    "lr_decay_epochs": ("step",),
    "final_lr": ("cosine", "linear"),
}


def check_schedule(config: TrainConfig) -> None:
    """Raise ConfigError for an unknown schedule, and for an option of another one."""
    schedule = config.lr_schedule or CONSTANT
    if schedule not in LR_SCHEDULES:
        raise ConfigError(unknown("--lr-schedule", schedule, LR_SCHEDULES))
    for name, schedules in SCHEDULES_BY_OPTION.items():
        value = getattr(config, name)
        if value is not None and schedule not in schedules:
            raise ConfigError(
                f"{option_name(name)} {value} has no effect with --lr-schedule {schedule}: "
                f"choose {' or '.join(schedules)}, or leave it out"
            )


def check_schedule_epochs(config: TrainConfig) -> None:
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


def check_final_rate(config: TrainConfig, rates: LearningRates, scale: float) -> None:
    """Raise ConfigError when ``rates``, which ``scale`` has multiplied, end above their begin."""
    if rates.final_lr > rates.base_lr:
        raise ConfigError(
            f"--final-lr {config.final_lr:g} is above the initial {rates.base_lr / scale:g}: "
            "give a smaller one"
        )


def make_learning_rates(
    config: TrainConfig,
    base_lr: float,
    epochs: int,
    steps_per_epoch: int,
    scale: float = 1.0,
    decay_shares: Sequence[Fraction] = (),
) -> LearningRates:
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
