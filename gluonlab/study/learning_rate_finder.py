"""Learning rate range test (gluonlab find-lr): trains briefly while the learning rate rises.

The test is from L. N. Smith, "Cyclical learning rates for training neural networks", 2015, section
3.3. Smith raises the rate linearly over some epochs. This module raises the rate exponentially and
smooths the loss, as fastai's lr_find does. The test stops when the loss is 4 times the best loss.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from gluonlab.config import TrainConfig, option_name
from gluonlab.drawing.svg_chart import Axis, Chart, Curve, as_svg
from gluonlab.engine.nd_and_np_arrays import nd_semantics
from gluonlab.errors import ConfigError, DivergedError, RunError
from gluonlab.files.atomic_files import create_writable_folder, temporary_folder, write_text
from gluonlab.runs.run_reader import read_lines
from gluonlab.runs.run_schema import Step, file_text
from gluonlab.runs.run_writer import RUNS_FOLDER, folder_name, make_unused_folder
from gluonlab.study.short_training import StopTraining
from gluonlab.training.finish_run import explain_resource_limits
from gluonlab.training.learning_rate_schedule import LearningRates
from gluonlab.training.loop import train_plan
from gluonlab.training.loss_meter import READ_EVERY, StepLoss
from gluonlab.training.plan import make_plan
from gluonlab.training.reporter import Reporter

LOWEST, HIGHEST = 1e-6, 10.0
MIN_STEPS = 20
SMOOTHING = 0.9  # weight of the previous smoothed loss in the moving average
PLOTTED_LOSS_FACTOR = 2.0  # the picture shows losses up to this many times the first loss
STOP_LOSS_FACTOR = 4.0  # the test stops at this many times the best smoothed loss
PICTURE, RESULT = "find-lr.svg", "find-lr.json"
RULE = "a tenth of the learning rate with the smallest smoothed loss"
# The smallest loss must be below MAX_LOSS_RATIO times the loss of the first INITIAL_STEPS steps.
# Otherwise the test has no result.
MAX_LOSS_RATIO = 0.95
INITIAL_STEPS = 10
# Settings that a range test rejects. It writes only the picture and the numbers, and it determines
# its steps and rates itself.
RUN_OUTPUT_FIELDS = (
    "profile", "export", "confusion", "tensorboard", "checkpoint_every", "keep_checkpoints", "estimate_memory"
)  # fmt: skip
SCHEDULE_FIELDS = ("epochs", "patience", "lr_schedule", "warmup_epochs", "lr_decay", "lr_decay_epochs", "final_lr")


@dataclass(frozen=True)
class RangeTestRates(LearningRates):
    """Rates that grow by the same factor in each step, from LOWEST to HIGHEST times ``base_lr``."""

    def __call__(self, step: int) -> float:
        share = (step - 1) / max(1, self.steps - 1)
        return float(self.base_lr * LOWEST * (HIGHEST / LOWEST) ** share)


class RateFinderResult(NamedTuple):
    """The result of a range test.

    - ``suggestion``: the suggested value of --lr.
    - ``rates``, ``losses``, ``smoothed``: for each step, the rate as a value of --lr, the loss, and
      the smoothed loss.
    - ``batch``: number of images per step.
    - ``ended``: why the test stopped before the highest rate, or "".
    """

    suggestion: float
    rates: List[float]
    losses: List[float]
    smoothed: List[float]
    batch: int
    ended: str

    @property
    def best_rate(self) -> float:
        """Return the rate that has the smallest smoothed loss."""
        return self.rates[self.smoothed.index(min(self.smoothed))]

    def to_dict(self) -> Dict[str, Any]:
        """Return the result as plain values for JSON."""
        return {**self._asdict(), "best": self.best_rate}

    def summary_lines(self) -> List[str]:
        """Return text lines: the suggested rate, and the range of rates that was tried."""
        return [
            f"--lr {self.suggestion:.2g}: {RULE}",
            f"the smoothed loss is smallest at {self.best_rate:.2g}; the learning rate rose to {self.rates[-1]:.2g} in "
            f"{len(self.rates)} steps of {self.batch:,} images{self.ended and '; '}{self.ended}",
        ]

    def render_svg(self) -> str:
        """Return a chart of the losses against the rate, as SVG."""
        # much higher losses would make the rest of the curve look flat
        highest = PLOTTED_LOSS_FACTOR * self.smoothed[0]
        losses_by_name = {"smoothed loss": self.smoothed, "loss of each step": self.losses}
        smooth_curve, step_curve = (
            Curve(name, [(x, min(y, highest)) for x, y in zip(self.rates, values)], kind)
            for (name, values), kind in zip(losses_by_name.items(), (None, 1))
        )
        index = next(n for n, rate in enumerate(self.rates) if rate >= self.suggestion)
        suggested_point = (self.suggestion, self.smoothed[index])
        suggestion_curve = Curve(f"suggestion: {self.suggestion:.2g}", [suggested_point], 0, joined=False)
        chart = Chart(
            "Learning rate range test",
            Axis("learning rate (--lr)", log=True),
            Axis("training loss", lowest=0),
            [suggestion_curve, smooth_curve, dataclasses.replace(step_curve, joined=False)],
            notes=[
                *(f"{line[0].upper()}{line[1:]}." for line in self.summary_lines()),
                f"Losses above {highest:.2g} are drawn there.",
            ],
        )
        return as_svg(chart)


class _RangeTestStopper(Reporter):
    """Stops the training after ``steps`` steps, or when the loss is far above the best loss.

    At the end of an epoch, some losses are read without a call to `step_done`.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.losses: List[float] = []

    def step_done(self, images: int, known: List[StepLoss]) -> None:
        """Store the losses that are known so far, and stop the training if the test is over."""
        self.losses += [step_loss.loss for step_loss in known]
        is_far = known and _is_far_above_best(smooth_losses(self.losses))
        if is_far or (known and known[-1].step >= self.steps):
            raise StopTraining


def _is_far_above_best(values: Sequence[float]) -> bool:
    return values[-1] > STOP_LOSS_FACTOR * min(values)


def smooth_losses(losses: Sequence[float]) -> List[float]:
    """Return the exponential moving average of the losses, corrected for its initial bias."""
    averages, average = [], 0.0
    for count, loss in enumerate(losses, start=1):
        average = SMOOTHING * average + (1 - SMOOTHING) * loss
        averages.append(average / (1 - SMOOTHING**count))
    return averages


def suggest_rate(rates: Sequence[float], losses: Sequence[float]) -> Optional[float]:
    """Return a tenth of the rate with the smallest loss, or None if the losses do not fall.

    ``losses``: smoothed losses.
    """
    lowest = min(range(len(losses)), key=losses.__getitem__)
    if lowest < INITIAL_STEPS or losses[lowest] > MAX_LOSS_RATIO * median(losses[:INITIAL_STEPS]):
        return None
    return rates[lowest] / 10


@nd_semantics()
def find_learning_rate(config: TrainConfig, steps: int) -> RateFinderResult:
    """Run a learning rate range test of ``steps`` steps with the other settings of ``config``.

    No files are written. Raises ConfigError for a config that sets a rate, for settings that a
    range test ignores, and for too few steps. Raises RunError if the loss does not fall at any
    rate.
    """
    config = TrainConfig.require("find_rate", config)
    if config.lr is not None:
        raise ConfigError(f"the range test searches for the learning rate: omit --lr {config.lr:g}")
    _check_settings(config, steps)
    if steps < MIN_STEPS:
        raise ConfigError(f"--steps {steps}: must be at least {MIN_STEPS}: pass a number such as 100")
    with temporary_folder("find-lr") as folder, explain_resource_limits():
        # With --lr 1, the base rate is the factor by which the settings scale the learning rate.
        test_config = config.replace(lr=1.0, out=str(Path(folder, "run")))
        plan = make_plan(test_config)
        scale = plan.rates.base_lr
        plan = dataclasses.replace(
            plan,
            rates=RangeTestRates(scale, steps),
            # losses are known some steps later
            epochs=math.ceil((steps + 2 * READ_EVERY) / plan.steps_per_epoch),
        )
        stop_reason = ""
        try:
            train_plan(plan, None, _RangeTestStopper(steps))
        except StopTraining:
            pass
        except DivergedError as error:
            stop_reason = str(error)
        except KeyboardInterrupt as error:
            error.args = ("nothing was written",)
            raise
        lines = read_lines(Path(folder, "run"))
    losses = [line.loss for line in lines if isinstance(line, Step)][:steps]
    smooth = smooth_losses(losses)
    far_step = next((count for count in range(1, len(smooth) + 1) if _is_far_above_best(smooth[:count])), 0)
    if far_step:
        losses, smooth = losses[:far_step], smooth[:far_step]
        stop_reason = f"the test stopped at {STOP_LOSS_FACTOR:g} times the smallest smoothed loss"
    rates = [plan.rates(step) / scale for step in range(1, len(losses) + 1)]
    suggestion = suggest_rate(rates, smooth) if smooth else None
    if suggestion is None:
        raise RunError(
            f"--steps {steps}: the loss did not decrease at any learning rate from {LOWEST:g} to "
            f"{HIGHEST:g}: try more steps, a larger batch, or another --optimizer"
        )
    return RateFinderResult(suggestion, rates, losses, smooth, plan.global_batch_size, stop_reason)


def _check_settings(config: TrainConfig, steps: int) -> None:
    """Raise ConfigError for a setting that a range test ignores."""
    reasons = {
        **dict.fromkeys(RUN_OUTPUT_FIELDS, "saves only its figure and its results"),
        **dict.fromkeys(SCHEDULE_FIELDS, f"sets the learning rate of each of its {steps} steps itself"),
    }
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name in reasons and value != field.default:
            value_text = "" if value is True else f" {value}"
            raise ConfigError(f"the range test {reasons[field.name]}: omit {option_name(field.name)}{value_text}")


def write_finder_result(result: RateFinderResult, out: Optional[str]) -> Path:
    """Write the picture and the numbers, and return their folder.

    The folder is ``out``, or by default a new folder in runs/.
    """
    path = Path(out) if out is not None else make_unused_folder(RUNS_FOLDER / folder_name("find-lr"))
    with create_writable_folder(path):
        write_text(path / PICTURE, result.render_svg())
        write_text(path / RESULT, file_text(result.to_dict()) + "\n")
    return path
