"""The learning rate of every step, as a closed form: a warm-up, then a schedule.

MXNet's own schedulers keep a state, so they cannot be asked again for a step that is past, whose
loss becomes known only now, nor begin in the middle of a run. Here a step's number is all that it
takes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, Dict, Tuple

SMALLEST_RATE = 1e-37  # MXNet refuses a float32 below 1.2e-38 that is not 0


@dataclass(frozen=True)
class Rates:
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

    def between(self, share: float) -> float:
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


def _constant(rates: Rates, step: int) -> float:
    return rates.base_lr


def _step(rates: Rates, step: int) -> float:
    return rates.base_lr * rates.decay ** sum(milestone < step for milestone in rates.milestones)


def _cosine(rates: Rates, step: int) -> float:
    """Loshchilov, Hutter, "SGDR", 2017, equation 5, without restarts."""
    return rates.between((1 + math.cos(math.pi * rates.progress(step))) / 2)


def _linear(rates: Rates, step: int) -> float:
    return rates.between(1 - rates.progress(step))


LR_SCHEDULES: Dict[str, Callable[[Rates, int], float]] = {
    "constant": _constant,
    "step": _step,
    "cosine": _cosine,
    "linear": _linear,
}
