"""Dynamic loss scaling: prevents underflow and overflow of float16 gradients.

The largest float16 number is 65504, and numbers below 6e-5 have fewer digits. So the loss is
multiplied by a scale, and the gradients are divided by the scale. If gradients overflow, the step
is skipped on all devices, and the scale is halved. After many steps without an overflow, the scale
is doubled (Micikevicius et al., "Mixed precision training", 2018, section 3.2). Scales are powers
of two, so scaling does not round a float32.

mxnet.contrib.amp.LossScaler is not used, because it halves the scale without a lower limit, checks
each parameter separately on one device, and requires amp.init.
"""

from __future__ import annotations

import math
from typing import Dict, Mapping, Optional

from gluonlab.errors import ConfigError, DivergedError, unknown

INITIAL_SCALE = 2.0**16  # for the mean loss, as in PyTorch's GradScaler and MXNet's amp
GROWTH_INTERVAL = 2000
MIN_SCALE, MAX_SCALE = 2.0**-14, 2.0**24
ON_NAN = ("stop", "skip")
MAX_SKIPPED_IN_A_ROW = 100  # so many skipped steps are not the fault of a single batch


class LossScale:
    """The factor by which the loss of the next step is multiplied.

    `record_step` adjusts the factor.

    Args:
        value: Initial factor, a power of two.
        good_steps: Number of steps without an overflow after which the factor is doubled.
        smallest: Lower limit, a power of two.
        largest: Upper limit, a power of two.

    Attributes:
        steps: Number of steps so far.
        skipped: Number of skipped steps so far.

    Raises:
        ConfigError: If a value is not a power of two, or if ``smallest`` <= ``value`` <=
            ``largest`` does not hold.
    """

    def __init__(
        self,
        value: float = INITIAL_SCALE,
        good_steps: int = GROWTH_INTERVAL,
        smallest: float = MIN_SCALE,
        largest: float = MAX_SCALE,
    ) -> None:
        for number in (smallest, value, largest):
            if not 0 < number < math.inf or math.frexp(number)[0] != 0.5:
                raise ConfigError(
                    f"loss scale {number:g}: use a power of two, such as 65536, so that scaling does not round"
                )
        if not smallest <= value <= largest:
            raise ConfigError(f"loss scale {value:g}: must be from {smallest:g} to {largest:g}")
        if good_steps < 1:
            raise ConfigError(f"good_steps={good_steps}: use a whole number of at least 1")
        self.value, self.good_steps = value, good_steps
        self.smallest, self.largest = smallest, largest
        self.steps = self.skipped = 0
        self._good = 0  # steps since the scale last changed

    def record_step(self, finite: bool) -> None:
        """Adjust the scale after a step, which was skipped if its gradients were not ``finite``.

        Raises DivergedError if gradients overflow even with the smallest scale.
        """
        self.steps += 1
        self._good += 1
        if not finite:
            self.skipped += 1
            if self.value <= self.smallest:
                raise DivergedError(
                    f"the gradients overflow at step {self.steps}, even with the smallest loss scale "
                    f"{self.value:g}: use a smaller learning rate (--lr), or float32"
                )
            self.value, self._good = self.value / 2, 0
        elif self._good == self.good_steps:
            self.value, self._good = min(self.value * 2, self.largest), 0

    def state(self) -> Dict[str, float]:
        """Return the current values, for `restore`."""
        return {name: getattr(self, name) for name in ("value", "steps", "skipped", "_good")}

    def restore(self, state: Mapping[str, float]) -> None:
        """Restore the values that `state` returned."""
        vars(self).update(state)

    def summary(self) -> str:
        """Return text such as ``512; 7 of 69 steps skipped``."""
        return f"{self.value:g}; {self.skipped:,} of {self.steps:,} steps skipped"


class SkipNotFinite(LossScale):
    """A constant loss scale of 1, for skipping steps whose gradients are not finite."""

    def __init__(self) -> None:
        super().__init__(1.0)

    def record_step(self, finite: bool) -> None:
        """Count a step. The step's update was skipped if a gradient was not ``finite``.

        Raises DivergedError after MAX_SKIPPED_IN_A_ROW skipped steps in a row.
        """
        self.steps += 1
        self.skipped += not finite
        # length of the current streak: positive for finite steps, negative for skipped steps
        self._good = max(self._good, 0) + 1 if finite else min(self._good, 0) - 1
        if self._good <= -MAX_SKIPPED_IN_A_ROW:
            raise DivergedError(
                f"the gradients of the last {MAX_SKIPPED_IN_A_ROW} steps, up to step {self.steps}, were "
                "not finite: use a smaller learning rate (--lr)"
            )

    def summary(self) -> str:
        """Return text such as ``none; 7 of 69 steps skipped``."""
        return f"none; {self.skipped:,} of {self.steps:,} steps skipped"


def check_on_nan(on_nan: str) -> None:
    """Raise ConfigError if ``on_nan`` is neither "stop" nor "skip"."""
    if on_nan not in ON_NAN:
        raise ConfigError(unknown("--on-nan", on_nan, ON_NAN))


def make_loss_scale(dtype: str, images: int, on_nan: str = "stop") -> Optional[LossScale]:
    """Return the loss scale at the start of a run, or None for float32 with ``on_nan`` "stop".

    ``images``: the number of images in one device's shard. The losses of these images are summed,
    not averaged, so the scale is INITIAL_SCALE divided by ``images``, rounded to a power of two.
    """
    if dtype == "float32":
        return SkipNotFinite() if on_nan == "skip" else None
    return LossScale(max(1.0, INITIAL_SCALE / 2 ** math.floor(math.log2(max(1, images)))))
