"""Dynamic loss scaling, so that float16 gradients neither vanish nor overflow.

float16 ends at 65504 and loses digits below 6e-5. What backward begins with is multiplied by a
scale, its gradients are divided. Where gradients overflow, the step is left out on all devices and
the scale is halved; after many good steps it is doubled (Micikevicius et al., "Mixed precision
training", 2018, section 3.2). Powers of two change no digit of a float32.

mxnet.contrib.amp.LossScaler halves without end, looks at every parameter of one device by itself,
and is bound to amp.init.
"""

from __future__ import annotations

import math
from typing import Dict, Mapping, Optional

from gluonlab.errors import ConfigError, DivergedError, unknown

FIRST = 2.0**16  # for the mean loss, as PyTorch's GradScaler and MXNet's amp begin
GOOD_STEPS = 2000
SMALLEST, LARGEST = 2.0**-14, 2.0**24
ON_NAN = ("stop", "skip")
MOST_SKIPPED = 100  # in a row: then it is no single batch


class LossScale:
    """The factor of the loss of the next step, ``value``; `after` each step it is set anew.

    Doubled after ``good_steps`` steps without an overflow, up to ``largest``. ``steps`` and
    ``skipped`` count those so far. Raises ConfigError for values that are no powers of two, or not
    in order.
    """

    def __init__(
        self,
        value: float = FIRST,
        good_steps: int = GOOD_STEPS,
        smallest: float = SMALLEST,
        largest: float = LARGEST,
    ) -> None:
        for number in (smallest, value, largest):
            if not 0 < number < math.inf or math.frexp(number)[0] != 0.5:
                raise ConfigError(
                    f"loss scale {number:g}: give a power of two such as 65536, "
                    "with which nothing is rounded"
                )
        if not smallest <= value <= largest:
            raise ConfigError(
                f"loss scale {value:g} is not from {smallest:g} to {largest:g}: give one in between"
            )
        if good_steps < 1:
            raise ConfigError(
                f"loss scale: doubled after {good_steps} good steps: give a whole number from 1 up"
            )
        self.value, self.good_steps = value, good_steps
        self.smallest, self.largest = smallest, largest
        self.steps = self.skipped = 0
        self._good = 0  # steps since the scale last changed

    def after(self, finite: bool) -> None:
        """A step is done, or left out because its gradients were not ``finite``.

        Raises DivergedError when they are not even with the smallest scale.
        """
        self.steps += 1
        self._good += 1
        if not finite:
            self.skipped += 1
            if self.value <= self.smallest:
                raise DivergedError(
                    f"the gradients overflow at step {self.steps}, "
                    f"even with the smallest loss scale {self.value:g}: "
                    "use a smaller learning rate (--lr), or float32"
                )
            self.value, self._good = self.value / 2, 0
        elif self._good == self.good_steps:
            self.value, self._good = min(self.value * 2, self.largest), 0

    def state(self) -> Dict[str, float]:
        """Where it stands; `restore` goes on from there."""
        return {name: getattr(self, name) for name in ("value", "steps", "skipped", "_good")}

    def restore(self, state: Mapping[str, float]) -> None:
        """Go on from a `state`."""
        vars(self).update(state)

    def in_words(self) -> str:
        """``512; 7 of 69 steps left out``."""
        return f"{self.value:g}; {self.skipped:,} of {self.steps:,} steps left out"


class SkipNotFinite(LossScale):
    """Steps whose gradients are not finite are left out; the loss is not scaled: `value` is 1."""

    def __init__(self) -> None:
        super().__init__(1.0)

    def after(self, finite: bool) -> None:
        """A step is done, or left out. Raises DivergedError after MOST_SKIPPED in a row."""
        self.steps += 1
        self.skipped += not finite
        # steps since the last of the other kind, below 0 for those that were left out
        self._good = max(self._good, 0) + 1 if finite else min(self._good, 0) - 1
        if self._good <= -MOST_SKIPPED:
            raise DivergedError(
                f"the gradients of {MOST_SKIPPED} steps in a row, up to step {self.steps}, are not "
                "finite: use a smaller learning rate (--lr)"
            )

    def in_words(self) -> str:
        """``none; 7 of 69 steps left out``."""
        return f"none; {self.skipped:,} of {self.steps:,} steps left out"


def check_on_nan(on_nan: str) -> None:
    """Raise ConfigError for what is neither stop nor skip."""
    if on_nan not in ON_NAN:
        raise ConfigError(unknown("--on-nan", on_nan, ON_NAN))


def make_loss_scale(dtype: str, images: int, on_nan: str = "stop") -> Optional[LossScale]:
    """The scale that a run begins with; None for float32, unless such steps are left out.

    ``images``: of each batch on one device. The losses of these are added up, not averaged, so it
    is smaller than FIRST by their number, rounded to a power of two.
    """
    if dtype == "float32":
        return SkipNotFinite() if on_nan == "skip" else None
    return LossScale(max(1.0, FIRST / 2 ** math.floor(math.log2(max(1, images)))))
