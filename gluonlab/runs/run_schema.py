"""The format of a run's folder: its files, and the fields of each line of metrics.jsonl.

docs/run-folder.md describes the format for users, and a test compares that page with this module.
This module does not import MXNet.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Callable, ClassVar, Dict, Mapping, Optional, Sequence, Tuple, Type

from gluonlab.renamed import RenamedMember

FORMAT = 3  # the entry "format" of config.json, which is missing in format 1

CONFIG, METRICS, PARAMETERS = "config.json", "metrics.jsonl", "parameters.params"
WRONG_IMAGES = "wrong.png"  # drawn by gluonlab predict --misclassified
CURVES, CONFUSION, EXPORT, COMPARISON = "curves.png", "confusion.png", "export", "compare.json"
TRACE, TIMELINE = "trace.json", "timeline.svg"
CHECKPOINTS = "checkpoints"  # a folder, see gluonlab.runs.checkpoint
TENSORBOARD = "tensorboard"  # a folder, see gluonlab.runs.tensorboard_file
FILES = (CONFIG, METRICS, PARAMETERS, CURVES, CONFUSION, COMPARISON, TRACE, TIMELINE)

Check = Callable[[Any], bool]

# Functions that return the JSON text of a line, and of a file. They raise ValueError for NaN and
# infinity.
line_text = json.JSONEncoder(allow_nan=False).encode
file_text = json.JSONEncoder(allow_nan=False, indent=2).encode


def number_between(least: float, most: float) -> Check:
    """Return a check for numbers in this range, or only for integers if ``least`` is an int."""
    kinds = int if isinstance(least, int) else (int, float)

    def check(value: Any) -> bool:  # False for NaN
        return isinstance(value, kinds) and not isinstance(value, bool) and least <= value <= most

    return check


LARGEST = 1e39  # above any float32; sums of such numbers are still finite in float64
is_number, is_positive, is_not_negative = (number_between(least, LARGEST) for least in (-LARGEST, 1e-9, 0.0))
is_share, is_count, is_count_or_zero = (number_between(0.0, 1.0), number_between(1, 2**53), number_between(0, 2**53))


def is_text(value: Any) -> bool:
    """Return True for text."""
    return isinstance(value, str)


def is_digest(value: Any) -> bool:
    """Return True for a SHA-256 in hexadecimal."""
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def or_none(check: Check) -> Check:
    """Return a check that also accepts None."""
    return lambda value: value is None or check(value)


def list_of(check: Check) -> Check:
    """Return a check for a list of values that pass ``check``."""
    return lambda value: isinstance(value, list) and all(map(check, value))


def dict_of(check: Check) -> Check:
    """Return a check for a dictionary of values that pass ``check``."""
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def is_numbers_by_name(value: Any) -> bool:
    """Return True for a dictionary of numbers, some of which may be None."""
    return dict_of(or_none(is_number))(value) and "" not in value


def _field(meaning: str, check: Check, unit: str = "", **more: Any) -> Any:
    """Return a dataclass field for lines of metrics.jsonl, with its meaning, check and unit.

    ``default``: the value for files from older versions, which did not write the field.
    ``formerly``: the field's name in format 1, or an empty string if the field did not exist.
    ``until_format_2``: the field's name in formats 1 and 2.
    """
    default = {"default": more.pop("default")} if "default" in more else {}
    return field(**default, metadata={"meaning": meaning, "check": check, "unit": unit, **more})


def _since_start(**more: Any) -> Any:
    return _field("time since the start of the run", is_not_negative, "s", default=None, **more)


@dataclass(frozen=True)
class MetricsLine:
    """A line of metrics.jsonl. ``tag``: the values that identify the kind of line."""

    tag: ClassVar[Dict[str, str]]

    def to_dict(self) -> Dict[str, Any]:
        """Return the line's JSON object."""
        return {**self.tag, **vars(self)}


@dataclass(frozen=True)
class Step(MetricsLine):
    """A training step. The line is written some steps later, when the loss of the step is known."""

    tag = {"kind": "step"}
    step: int = _field("number of the step in the run, from 1", is_count)
    loss: float = _field("mean training loss of the batch", is_number)
    lr: float = _field("learning rate", is_not_negative)
    epoch: Optional[int] = _field("number of the epoch, from 1", is_count, default=None)
    images: Optional[int] = _field("number of images in the batch", is_count, default=None)
    seconds: Optional[float] = _since_start()


STALENESS = "element i is the number of pushes with staleness i; the last element, 63, also counts all larger values"
TOP5 = (
    "fraction of validation images whose label has one of the five best scores; "
    "null for data sets with five classes or fewer"
)
WAITING = "fraction of training_seconds spent waiting for data"


@dataclass(frozen=True)
class Epoch(MetricsLine):
    """An epoch of training, and the evaluation after this epoch."""

    tag = {"kind": "epoch"}
    epoch: int = _field("number of the epoch, from 1", is_count)
    step: int = _field("number of the last step of the epoch", is_count)
    images: int = _field("number of training images", is_count)
    training_seconds: float = _field("training time, without evaluation", is_positive, "s", formerly="seconds")
    loss: float = _field("mean training loss of the epoch", is_number)
    val_accuracy: float = _field(
        "fraction of validation images that are classified correctly", is_share, until_format_2="accuracy"
    )
    val_loss: Optional[float] = _field(
        "mean validation loss", is_number, default=None, until_format_2="validation_loss"
    )
    val_top5_accuracy: Optional[float] = _field(TOP5, is_share, default=None, until_format_2="top5_accuracy")
    metrics: Optional[Mapping[str, Optional[float]]] = _field(
        "values of your metrics by name; a value is null if the metric is not defined",
        is_numbers_by_name, default=None,
    )  # fmt: skip
    waiting: float = _field(WAITING, is_not_negative, default=0.0)
    lr: Optional[float] = _field("learning rate of the last step", is_not_negative, default=None)
    seconds: Optional[float] = _since_start(formerly="")

    accuracy = RenamedMember("val_accuracy")
    validation_loss = RenamedMember("val_loss")
    top5_accuracy = RenamedMember("val_top5_accuracy")

    @property
    def images_per_second(self) -> float:
        """The training throughput."""
        return self.images / self.training_seconds


@dataclass(frozen=True)
class DivergedEvent(MetricsLine):
    """The run ended because its loss or its parameters diverged, or because its replicas differed."""

    tag = {"kind": "event", "event": "diverged"}
    message: str = _field("the loss or parameter that diverged, and the number of the step", is_text)


@dataclass(frozen=True)
class LossScaleEvent(MetricsLine):
    """The dynamic loss scale after an epoch of a float16 run."""

    tag = {"kind": "event", "event": "loss_scale"}
    epoch: int = _field("number of the epoch, from 1", is_count)
    step: int = _field("number of the last step of the epoch", is_count)
    loss_scale: float = _field("loss scale", is_positive)
    skipped: int = _field("number of steps skipped so far because gradients overflowed", is_count_or_zero)


@dataclass(frozen=True)
class StalenessEvent(MetricsLine):
    """The staleness of the gradients in an epoch of asynchronous training (`dist_async`)."""

    tag = {"kind": "event", "event": "staleness"}
    epoch: int = _field("number of the epoch, from 1", is_count)
    step: int = _field("number of the last step of rank 0", is_count)
    pushes: Sequence[int] = _field(STALENESS, list_of(is_count_or_zero), "pushes")

    def in_words(self) -> str:
        """Describe the staleness, as in ``0.95 updates by other workers on average, at most 2; ...``."""
        total = sum(self.pushes)
        if not total:
            return "no pushes"
        counts = {updates: pushes for updates, pushes in enumerate(self.pushes) if pushes}
        mean = sum(updates * pushes for updates, pushes in counts.items()) / total
        counts_text = ", ".join(f"{updates}: {pushes}" for updates, pushes in counts.items())
        return (
            f"{mean:.2f} updates by other workers on average, at most {max(counts)}; "
            f"pushes by number of updates: {counts_text}"
        )


@dataclass(frozen=True)
class ProfileEvent(MetricsLine):
    """The profile of some steps of a run with --profile."""

    tag = {"kind": "event", "event": "profile"}
    step: int = _field("number of the first recorded step", is_count)
    steps: int = _field("number of recorded steps", is_count)
    step_seconds: float = _field("mean time of a recorded step", is_positive, "s")
    shares: Mapping[str, Mapping[str, float]] = _field(
        "for each device, the fraction of the time that the device spends in each phase and waiting",
        dict_of(dict_of(is_share)),
    )
    overlap: Optional[float] = _field(
        "fraction of the communication time that overlaps with the backward pass; "
        "null if the step contains no communication",
        or_none(is_share),
    )


@dataclass(frozen=True)
class ResumedEvent(MetricsLine):
    """The run was resumed from a checkpoint."""

    tag = {"kind": "event", "event": "resumed"}
    step: int = _field("number of the last step before the checkpoint", is_count)
    message: str = _field("the differences from the earlier run, if any", is_text)


@dataclass(frozen=True)
class StoppedEvent(MetricsLine):
    """A callback, such as early stopping, stopped training before the last epoch."""

    tag = {"kind": "event", "event": "stopped"}
    step: int = _field("number of the last step", is_count)
    message: str = _field("the callback and its reason", is_text)


@dataclass(frozen=True)
class ConfusionEvent(MetricsLine):
    """The confusion matrix after the last epoch of a run with --confusion."""

    tag = {"kind": "event", "event": "confusion"}
    matrix: Sequence[Sequence[int]] = _field(
        "row i, column j: number of validation images of class i that were classified as class j",
        list_of(list_of(is_count_or_zero)),
        "images",
    )


@dataclass(frozen=True)
class OutputClosedEvent(MetricsLine):
    """Standard output was closed, and the run continued without printing."""

    tag = {"kind": "event", "event": "unheard"}
    message: str = _field("the error message of the system", is_text)


@dataclass(frozen=True)
class EndedEvent(MetricsLine):
    """The run ended, and its files are complete."""

    tag = {"kind": "event", "event": "ended"}
    step: int = _field("number of the last step of the run", is_count)
    files: Mapping[str, str] = _field(
        "SHA-256 digest of each file that the run does not change later", dict_of(is_digest)
    )
    seconds: Optional[float] = _since_start()


LINES: Tuple[Type[MetricsLine], ...] = (
    Step, Epoch, DivergedEvent, LossScaleEvent, StalenessEvent, ProfileEvent, ResumedEvent,
    StoppedEvent, ConfusionEvent, OutputClosedEvent, EndedEvent,
)  # fmt: skip
