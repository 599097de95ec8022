"""LivePlot: a notebook's picture of a run that grows while it trains."""

from __future__ import annotations

import math
import textwrap
import time
from contextlib import contextmanager, suppress
from typing import Iterator, Optional

from gluonlab.drawing.matplotlib_figures import CellDisplay, as_png, in_notebook, new_figure
from gluonlab.errors import ConfigError
from gluonlab.plain_text import format_decimals
from gluonlab.runs.plot_curves import Growing, draw_accuracy, draw_loss
from gluonlab.runs.run_reader import read_lines
from gluonlab.runs.run_result import usual_speed
from gluonlab.runs.run_schema import CURVES, Epoch, Step
from gluonlab.training.callbacks import FINISHED, Callback, RunEnd, RunView

EVERY = 1.0  # seconds between two pictures, at least
SHARE = 0.05  # of the time that goes into pictures, at most
WIDTH, HEIGHT, COLUMNS = 9, 3.2, 100


class LivePlot(Callback):
    """Training loss and test accuracy, with images/s and the time to go, in a cell's output.

    At the end a picture without these stays there. It is drawn again once in a while, never for
    each step, and where it cannot be drawn the run goes on. Outside a notebook it says where the
    curves will be. ``every``: seconds between two pictures, at least; ConfigError for what is no
    number from 0 up.
    """

    def __init__(self, every: float = EVERY) -> None:
        is_number = isinstance(every, (int, float)) and not isinstance(every, bool)
        if not is_number or not 0 <= every < math.inf:
            raise ConfigError(f"LivePlot(every={every!r}): give seconds, a number from 0 up")
        self.every = every
        self._begin()

    def _begin(self) -> None:
        self._shown: Optional[CellDisplay] = None
        self._due = 0.0
        self._losses = Growing()
        self._last: Optional[Step] = None
        self._first: Optional[Step] = None  # since the run began, or goes on
        self._of_epoch: Optional[Step] = None  # the first that is known
        self._images = 0  # of those after that one

    def on_run_start(self, run: RunView) -> None:
        """Begin a picture, with what a run that goes on has had before."""
        self._begin()
        if not in_notebook():
            _say(f"only a notebook shows it; {run.path}/{CURVES} will have the curves")
            return
        self._shown = CellDisplay()
        if run.step:
            with self._harmless():
                assert run.path is not None  # callbacks are rank 0's
                for line in read_lines(run.path):
                    if isinstance(line, Step):
                        self._add(run, line)
        self._draw(run, f"{run.epochs} epochs")
        self._due = time.monotonic() + self.every  # matplotlib has been loaded, too

    def on_epoch_start(self, run: RunView, epoch: int) -> None:
        """Measure the speed anew."""
        self._of_epoch = None

    def on_step(self, run: RunView, step: Step) -> None:
        """One more point of the loss."""
        if self._shown is None or (self._last is not None and step.step <= self._last.step):
            return
        self._add(run, step)
        if self._first is None:
            self._first = step
        if self._of_epoch is None:
            self._of_epoch, self._images = step, 0
        elif (step.seconds or 0) > (self._of_epoch.seconds or 0):  # several are told at once
            self._images += step.images or 0
        self._draw_if_due(run)

    def on_epoch_end(self, run: RunView, epoch: Epoch) -> None:
        """One more point of the means and the accuracy."""
        self._draw_if_due(run)

    def on_run_end(self, run: RunView, end: RunEnd) -> None:
        """The picture that stays."""
        done = len(run.history)
        words = f"{done} of {run.epochs} epochs"
        if run.history:
            last = run.history[-1]
            speed = f"{usual_speed(run.history):,.0f} images/s"
            words = f"{words} in {_clock(last.seconds or 0)}   {speed}"
            words = f"{words}   test accuracy {last.accuracy:.4f}"
        if end.how != FINISHED:
            words += f"\n{textwrap.shorten(f'{end.how}: {end.message}', COLUMNS)}"
        self._draw(run, words, ends=max(1, done))

    def _add(self, run: RunView, step: Step) -> None:
        self._losses.add(step.step / run.steps_per_epoch, step.loss)
        self._last = step

    def _draw_if_due(self, run: RunView) -> None:
        if self._shown is not None and time.monotonic() >= self._due:
            self._draw(run, self._under_way(run))

    def _under_way(self, run: RunView) -> str:
        """``epoch 3 of 10   loss 0.123   5,123 images/s   0:42 to go``."""
        last, first = self._last, self._first
        words = [f"epoch {min(len(run.history) + 1, run.epochs)} of {run.epochs}"]
        if last is not None:
            words.append(f"loss {format_decimals(last.loss, 3)}")
        speed = self._speed(run)
        if speed:
            words.append(f"{speed:,.0f} images/s")
        if last is not None and first is not None and last.step > first.step:
            pace = ((last.seconds or 0) - (first.seconds or 0)) / (last.step - first.step)
            left = run.epochs * run.steps_per_epoch - last.step
            words.append(f"{_clock(math.ceil(pace * left))} to go")
        return "   ".join(words)

    def _speed(self, run: RunView) -> float:
        """Images per second: of this epoch so far, or of the last one."""
        last, first = self._last, self._of_epoch
        if last is not None and first is not None:
            seconds = (last.seconds or 0) - (first.seconds or 0)
            if self._images and seconds > 0:
                return self._images / seconds
        return run.history[-1].images_per_second if run.history else 0.0

    def _draw(self, run: RunView, words: str, ends: Optional[int] = None) -> None:
        """``words``: above the curves. ``ends``: the epoch with which the axes end."""
        if self._shown is None:
            return
        began = time.monotonic()
        with self._harmless():
            figure = new_figure(WIDTH, HEIGHT)
            loss, accuracy = figure.subplots(1, 2)
            figure.subplots_adjust(left=0.07, right=0.98, bottom=0.16, top=0.78, wspace=0.18)
            figure.text(0.07, 0.97, words, fontsize=10, va="top")
            draw_loss(loss, self._losses.curve, run.history)
            draw_accuracy(accuracy, run.history)
            for axes in (loss, accuracy):
                axes.set_xlim(0, ends or run.epochs)
            self._shown.show(as_png(figure))
        now = time.monotonic()
        self._due = now + max(self.every, (now - began) / SHARE)

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        """What fails in the block is said, and no more is drawn."""
        try:
            yield
        except Exception as error:
            self._shown = None
            _say(f"ends here, the run goes on: {type(error).__name__}: {error}")


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _say(line: str) -> None:
    with suppress(OSError, ValueError):  # nobody reads it
        print(f"{'live plot':<11}{line}")
