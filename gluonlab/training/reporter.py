"""What a run prints for its user while it goes on."""

from __future__ import annotations

import sys
from typing import Any, List, Optional, TextIO

from tqdm import tqdm  # tqdm.auto warns in notebooks that have no widgets

from gluonlab.plain_text import format_decimals
from gluonlab.runs import run_schema
from gluonlab.training.loss_meter import StepLoss

CLOSED = "it was closed from the start"  # standard output, as with >&-


class Reporter:
    """Says nothing; the base of those that do.

    ``unheard``: why nobody hears it any more, if so. The run goes on, and notes it in its folder.
    """

    unheard: Optional[str] = None

    def say(self, line: str) -> None:
        """A line about the run."""

    def epoch_begins(self, epoch: int, epochs: int, images: int) -> None:
        """A pass over ``images`` images begins."""

    def step_done(self, images: int, known: List[StepLoss]) -> None:
        """A step is under way; the losses of some earlier ones have become known."""

    def epoch_ends(self, line: str) -> None:
        """The pass is over: `epoch_in_words`, or, if it was broken off, an empty line."""


class ConsoleReporter(Reporter):
    """Lines on ``stream``, and a progress bar on standard error.

    The bar has images/s and the loss. In a notebook the bar is a widget; where standard error is no
    terminal there is none.
    """

    def __init__(self, stream: Optional[TextIO] = None, bar: Optional[bool] = None) -> None:
        self.stream = stream or sys.stdout
        if self.stream is None:
            self.unheard = CLOSED
        self.bar_wanted = bar
        self._bar: Any = None

    def say(self, line: str) -> None:
        if self.unheard is None:
            try:
                tqdm.write(line, file=self.stream)  # above the bar, if there is one
                self.stream.flush()
            except (OSError, ValueError) as error:  # a reader that is gone, a stream that is closed
                self.unheard = getattr(error, "strerror", None) or str(error)

    def epoch_begins(self, epoch: int, epochs: int, images: int) -> None:
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


def epoch_in_words(epoch: run_schema.Epoch, epochs: int) -> str:
    """The line of a finished epoch.

    Programs read it, such as SageMaker by the regular expressions of sagemaker/training: so numbers
    are without thousands separators.
    """
    number = f"epoch {epoch.epoch:{len(str(epochs))}}/{epochs}"
    speed = f"{epoch.training_seconds:6.2f} s  {epoch.images_per_second:6.0f} images/s"
    loss = f"loss {format_decimals(epoch.loss, 4)}"
    return f"{number}  {speed}  {loss}  test accuracy {epoch.accuracy:.4f}"
