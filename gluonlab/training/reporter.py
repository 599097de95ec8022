"""Reporters print the progress of a run, as lines and a progress bar."""

from __future__ import annotations

import sys
from typing import Any, List, Optional, TextIO

from tqdm import tqdm  # tqdm.auto warns in notebooks that have no widgets

from gluonlab.plain_text import format_decimals
from gluonlab.runs import run_schema
from gluonlab.training.loss_meter import StepLoss

CLOSED = "it was already closed at the start"  # standard output, as with >&-


class Reporter:
    """A silent reporter, and the base class of other reporters.

    ``output_error``: the reason why output has failed, or None. The run then continues, and records
    the reason.
    """

    output_error: Optional[str] = None

    def say(self, line: str) -> None:
        """Print a line about the run."""

    def epoch_begins(self, epoch: int, epochs: int, images: int) -> None:
        """Start the progress of an epoch over ``images`` images."""

    def step_done(self, images: int, known: List[StepLoss]) -> None:
        """Advance the progress by a queued step of ``images`` images.

        ``known``: losses of earlier steps that have just become known.
        """

    def epoch_ends(self, line: str) -> None:
        """Finish the progress of an epoch, and print ``line``, the result of `format_epoch`.

        The line is empty if the epoch was aborted.
        """


class ConsoleReporter(Reporter):
    """A reporter that prints lines on ``stream`` and a progress bar on standard error.

    The bar shows images/s and the loss. In a notebook, the bar is a widget. By default there is no
    bar if standard error is not a terminal.
    """

    def __init__(self, stream: Optional[TextIO] = None, bar: Optional[bool] = None) -> None:
        self.stream = stream or sys.stdout
        if self.stream is None:
            self.output_error = CLOSED
        self.bar_wanted = bar
        self._bar: Any = None

    def say(self, line: str) -> None:
        """Print a line above the bar. If printing fails, set ``output_error`` and stop printing."""
        if self.output_error is None:
            try:
                tqdm.write(line, file=self.stream)  # above the bar, if there is one
                self.stream.flush()
            except (OSError, ValueError) as error:  # a closed pipe or stream
                self.output_error = getattr(error, "strerror", None) or str(error)

    def epoch_begins(self, epoch: int, epochs: int, images: int) -> None:
        """Show a progress bar for an epoch of ``images`` images."""
        # None: only on a terminal
        hidden = None if self.bar_wanted is None else not self.bar_wanted
        hidden = True if sys.stderr is None else hidden  # as with 2>&-
        self._bar = tqdm(
            desc=f"epoch {epoch:{len(str(epochs))}}/{epochs}", total=images, unit=" images",
            unit_scale=True, disable=hidden, leave=False, dynamic_ncols=True,
        )  # fmt: skip

    def step_done(self, images: int, known: List[StepLoss]) -> None:
        if known:
            self._bar.set_postfix_str(f"loss {format_decimals(known[-1].loss, 3)}", refresh=False)
        self._bar.update(images)

    def epoch_ends(self, line: str) -> None:
        self._bar.close()
        if line:
            self.say(line)


def format_epoch(epoch: run_schema.Epoch, epochs: int) -> str:
    """Return the line that a run prints after an epoch.

    Numbers have no thousands separators, because programs parse the line. For example, SageMaker
    uses the regular expressions in sagemaker/training.
    """
    number = f"epoch {epoch.epoch:{len(str(epochs))}}/{epochs}"
    speed = f"{epoch.training_seconds:6.2f} s  {epoch.images_per_second:6.0f} images/s"
    loss = f"loss {format_decimals(epoch.loss, 4)}"
    return f"{number}  {speed}  {loss}  val accuracy {epoch.val_accuracy:.4f}"
