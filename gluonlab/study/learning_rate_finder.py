"""A learning rate range test: one short training whose rate rises exponentially, step by step.

L. N. Smith, "Cyclical learning rates for training neural networks", 2015, section 3.3, raises it
linearly over some epochs; fastai's lr_find raises it exponentially over 100 steps, smooths the loss
and ends where that is 4 times the best, as here.
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
from gluonlab.engine.np_compatibility import nd_semantics
from gluonlab.errors import ConfigError, DivergedError, RunError
from gluonlab.files.atomic_files import folder_for, temporary_folder, write_text
from gluonlab.runs.run_reader import read_lines
from gluonlab.runs.run_schema import Step, file_text
from gluonlab.runs.run_writer import RUNS, folder_name, make_unused
from gluonlab.study.short_training import StopTraining
from gluonlab.training.learning_rate_schedule import Rates
from gluonlab.training.loop import limits_explained, train_plan
from gluonlab.training.loss_meter import STRIDE, StepLoss
from gluonlab.training.plan import make_plan
from gluonlab.training.reporter import Reporter

LOWEST, HIGHEST = 1e-6, 10.0
FEWEST = 20  # steps
SMOOTHING = 0.9  # the share of the loss so far, of a step's smoothed loss
DRAWN = 2.0  # times the first loss is the highest in the picture
TOO_MUCH = 4.0  # times the best smoothed loss ends the test
PICTURE, RESULT = "find-lr.svg", "find-lr.json"
RULE = "a tenth of the rate at which the smoothed loss is smallest"
FALLEN = 0.95  # of its beginning, at most, is a smallest loss that says something
BEGINNING = 10  # steps
# What a run writes or says, and how long and at which rates it trains: of a range test only picture
# and numbers stay, and its steps and rates are its own.
OF_RUNS = (
    "profile", "export", "confusion", "tensorboard", "checkpoint_every", "keep", "memory"
)  # fmt: skip
OF_RATES = (
    "epochs", "patience", "lr_schedule", "warmup_epochs", "lr_decay", "lr_decay_epochs", "final_lr"
)  # fmt: skip


@dataclass(frozen=True)
class RangeTest(Rates):
    """A rate that grows by the same factor each step, from LOWEST to HIGHEST times ``base_lr``."""

    def __call__(self, step: int) -> float:
        share = (step - 1) / max(1, self.steps - 1)
        return float(self.base_lr * LOWEST * (HIGHEST / LOWEST) ** share)


class RateFinderResult(NamedTuple):
    """``suggestion``: for --lr. By step: the rates, as for --lr, the losses, and these smoothed.

    ``batch``: images of a step. ``ended``: why before the highest rate, if so.
    """

    suggestion: float
    rates: List[float]
    losses: List[float]
    smoothed: List[float]
    batch: int
    ended: str

    @property
    def best(self) -> float:
        """The rate with the smallest smoothed loss."""
        return self.rates[self.smoothed.index(min(self.smoothed))]

    def to_dict(self) -> Dict[str, Any]:
        """Plain values."""
        return {**self._asdict(), "best": self.best}

    def lines(self) -> List[str]:
        """For people."""
        return [
            f"--lr {self.suggestion:.2g}: {RULE}",
            f"that is smallest at {self.best:.2g}; the rate rose to {self.rates[-1]:.2g} in "
            f"{len(self.rates)} steps of {self.batch:,} images{self.ended and '; '}{self.ended}",
        ]

    def picture(self) -> str:
        """The losses against the rate, as SVG."""
        # what is far above would make all else flat
        highest = DRAWN * self.smoothed[0]
        parts = {"smoothed loss": self.smoothed, "loss of a step": self.losses}
        smooth, each = (
            Curve(name, [(x, min(y, highest)) for x, y in zip(self.rates, values)], kind)
            for (name, values), kind in zip(parts.items(), (None, 1))
        )
        place = next(n for n, rate in enumerate(self.rates) if rate >= self.suggestion)
        point = (self.suggestion, self.smoothed[place])
        named = Curve(f"suggestion: {self.suggestion:.2g}", [point], 0, joined=False)
        chart = Chart(
            "Learning rate range test",
            Axis("learning rate (--lr)", log=True),
            Axis("training loss", lowest=0),
            [named, smooth, dataclasses.replace(each, joined=False)],
            notes=[
                *(f"{line[0].upper()}{line[1:]}." for line in self.lines()),
                f"Losses above {highest:.2g} are drawn there.",
            ],
        )
        return as_svg(chart)


class _Enough(Reporter):
    """Ends the training after so many steps, or when the loss is far above its best.

    At the end of an epoch some losses become known that it is not told.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.losses: List[float] = []

    def step_done(self, images: int, known: List[StepLoss]) -> None:
        self.losses += [each.loss for each in known]
        far = known and _is_far(smoothed(self.losses))
        if far or (known and known[-1].step >= self.steps):
            raise StopTraining


def _is_far(values: Sequence[float]) -> bool:
    return values[-1] > TOO_MUCH * min(values)


def smoothed(losses: Sequence[float]) -> List[float]:
    """Their moving average with exponential weights, without the bias of its beginning."""
    values, average = [], 0.0
    for count, loss in enumerate(losses, start=1):
        average = SMOOTHING * average + (1 - SMOOTHING) * loss
        values.append(average / (1 - SMOOTHING**count))
    return values


def suggested(rates: Sequence[float], losses: Sequence[float]) -> Optional[float]:
    """By RULE, of smoothed losses; None where they do not fall."""
    lowest = min(range(len(losses)), key=losses.__getitem__)
    if lowest < BEGINNING or losses[lowest] > FALLEN * median(losses[:BEGINNING]):
        return None
    return rates[lowest] / 10


@nd_semantics()
def find_rate(config: TrainConfig, steps: int) -> RateFinderResult:
    """Train for so many steps with a rising rate, and else as ``config`` says.

    Raises ConfigError for a config with a rate or with settings that are for runs that stay, and
    for too few steps; RunError where the loss does not fall at any rate. Nothing is written.
    """
    config = TrainConfig.require("find_rate", config)
    if config.lr is not None:
        raise ConfigError(f"--find-lr looks for the learning rate: leave --lr {config.lr:g} out")
    _refuse_useless(config, steps)
    if steps < FEWEST:
        raise ConfigError(f"--find-lr {steps}: give at least {FEWEST} steps, such as 100")
    with temporary_folder("find-lr") as folder, limits_explained():
        # a rate of 1, so that what scales it is in the rates that are tried, too
        asked = config.replace(lr=1.0, out=str(Path(folder, "run")))
        plan = make_plan(asked)
        scale = plan.rates.base_lr
        plan = dataclasses.replace(
            plan,
            rates=RangeTest(scale, steps),
            # losses are known some steps later
            epochs=math.ceil((steps + 2 * STRIDE) / plan.steps_per_epoch),
        )
        ended = ""
        try:
            train_plan(plan, None, _Enough(steps))
        except StopTraining:
            pass
        except DivergedError as error:
            ended = str(error)
        except KeyboardInterrupt as error:
            error.args = ("nothing was written",)
            raise
        lines = read_lines(Path(folder, "run"))
    losses = [line.loss for line in lines if isinstance(line, Step)][:steps]
    values = smoothed(losses)
    far = next((n for n in range(1, len(values) + 1) if _is_far(values[:n])), 0)
    if far:
        losses, values, ended = losses[:far], values[:far], f"its end was {TOO_MUCH:g} times that"
    rates = [plan.rates(step) / scale for step in range(1, len(losses) + 1)]
    suggestion = suggested(rates, values) if values else None
    if suggestion is None:
        raise RunError(
            f"--find-lr {steps}: the loss did not fall at any rate from {LOWEST:g} to {HIGHEST:g}: "
            "try more steps, a larger batch, or another --optimizer"
        )
    return RateFinderResult(suggestion, rates, losses, values, plan.global_batch_size, ended)


def _refuse_useless(config: TrainConfig, steps: int) -> None:
    """Raise ConfigError for a setting that changes nothing of a range test."""
    reasons = {
        **dict.fromkeys(OF_RUNS, "keeps its picture and its numbers, and nothing of the training"),
        **dict.fromkeys(OF_RATES, f"raises the rate in each of {steps} steps, whatever else"),
    }
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name in reasons and value != field.default:
            bare = value is True or value == field.metadata["alone"]
            shown = "" if bare else f" {value}"
            raise ConfigError(
                f"--find-lr {steps} {reasons[field.name]}: leave {option_name(field.name)}{shown} "
                "out, or train with a rate (--lr)"
            )


def write(found: RateFinderResult, out: Optional[str]) -> Path:
    """Write the picture and the numbers into ``out``, or a new folder in runs/; which one."""
    path = Path(out) if out is not None else make_unused(RUNS / folder_name("find-lr"))
    with folder_for(path):
        write_text(path / PICTURE, found.picture())
        write_text(path / RESULT, file_text(found.to_dict()) + "\n")
    return path
