"""LivePlot: a callback that plots loss and accuracy in a notebook during training."""

from __future__ import annotations

import math
import textwrap
import time
from contextlib import contextmanager, suppress
from typing import Iterator, Optional

from gluonlab.drawing.matplotlib_figures import CellDisplay, as_png, in_notebook, new_figure
from gluonlab.errors import ConfigError
from gluonlab.plain_text import format_decimals
from gluonlab.runs.plot_curves import CurveDownsampler, draw_accuracy, draw_loss
from gluonlab.runs.run_reader import read_lines
from gluonlab.runs.run_result import usual_speed
from gluonlab.runs.run_schema import CURVES, Epoch, Step
from gluonlab.training.callbacks import FINISHED, Callback, RunEnd, RunView

MIN_INTERVAL_S = 1.0  # between two plots
MAX_DRAWING_SHARE = 0.05  # of the time may be spent on drawing
WIDTH, HEIGHT, COLUMNS = 9, 3.2, 100


class LivePlot(Callback):
    """Plot training loss and validation accuracy in a notebook during training.

    Pass the class or an instance as a callback of `train`. The plot also shows the throughput and
    the remaining time. The last plot stays in the notebook. Outside of a notebook, the callback
    prints the path of the run's curves instead. If drawing fails, the run continues without the
    plot.

    Args:
        every: The shortest time between two plots, in seconds.

    Raises:
        ConfigError: ``every`` is negative or not a number.
    """

    def __init__(self, every: float = MIN_INTERVAL_S) -> None:
        is_number = isinstance(every, (int, float)) and not isinstance(every, bool)
        if not is_number or not 0 <= every < math.inf:
            raise ConfigError(f"LivePlot(every={every!r}): must be a number of seconds, at least 0")
        self.every = every
        self._reset()

    def _reset(self) -> None:
        """Discard the plot and the steps of an earlier run."""
        self._display: Optional[CellDisplay] = None
        self._next_draw_time = 0.0
        self._losses = CurveDownsampler()
        self._last: Optional[Step] = None
        self._first: Optional[Step] = None  # since the run started or was resumed
        self._first_of_epoch: Optional[Step] = None  # the first step with a known loss
        self._images = 0  # images of the steps after _first_of_epoch

    def on_run_start(self, run: RunView) -> None:
        """Create the plot, with the earlier steps of a resumed run."""
        self._reset()
        if not in_notebook():
            _print_line(f"needs a notebook; see {run.path}/{CURVES} for the curves after the run")
            return
        self._display = CellDisplay()
        if run.step:
            with self._stop_plot_on_error():
                assert run.path is not None  # callbacks are rank 0's
                for line in read_lines(run.path):
                    if isinstance(line, Step):
                        self._add(run, line)
        self._draw(run, f"{run.epochs} epochs")
        self._next_draw_time = time.monotonic() + self.every  # after loading matplotlib

    def on_epoch_start(self, run: RunView, epoch: int) -> None:
        """Restart the measurement of images/s."""
        self._first_of_epoch = None

    def on_step(self, run: RunView, step: Step) -> None:
        """Add the loss of a step to the plot."""
        if self._display is None or (self._last is not None and step.step <= self._last.step):
            return
        self._add(run, step)
        if self._first is None:
            self._first = step
        if self._first_of_epoch is None:
            self._first_of_epoch, self._images = step, 0
        elif (step.seconds or 0) > (
            self._first_of_epoch.seconds or 0
        ):  # otherwise several losses have just been read at once
            self._images += step.images or 0
        self._draw_if_due(run)

    def on_epoch_end(self, run: RunView, epoch: Epoch) -> None:
        """Draw the plot with the results of the epoch, if a plot is due."""
        self._draw_if_due(run)

    def on_run_end(self, run: RunView, end: RunEnd) -> None:
        """Draw the final plot."""
        epochs_done = len(run.history)
        title = f"{epochs_done} of {run.epochs} epochs"
        if run.history:
            last = run.history[-1]
            speed = f"{usual_speed(run.history):,.0f} images/s"
            title = f"{title} in {_format_duration(last.seconds or 0)}   {speed}"
            title = f"{title}   val accuracy {last.val_accuracy:.4f}"
        if end.how != FINISHED:
            title += f"\n{textwrap.shorten(f'{end.how}: {end.message}', COLUMNS)}"
        self._draw(run, title, last_epoch=max(1, epochs_done))

    def _add(self, run: RunView, step: Step) -> None:
        self._losses.add(step.step / run.steps_per_epoch, step.loss)
        self._last = step

    def _draw_if_due(self, run: RunView) -> None:
        if self._display is not None and time.monotonic() >= self._next_draw_time:
            self._draw(run, self._progress_text(run))

    def _progress_text(self, run: RunView) -> str:
        """Return a title such as ``epoch 3 of 10   loss 0.123   5,123 images/s   0:42 to go``."""
        last, first = self._last, self._first
        parts = [f"epoch {min(len(run.history) + 1, run.epochs)} of {run.epochs}"]
        if last is not None:
            parts.append(f"loss {format_decimals(last.loss, 3)}")
        speed = self._images_per_second(run)
        if speed:
            parts.append(f"{speed:,.0f} images/s")
        if last is not None and first is not None and last.step > first.step:
            seconds_per_step = ((last.seconds or 0) - (first.seconds or 0)) / (last.step - first.step)
            steps_left = run.epochs * run.steps_per_epoch - last.step
            parts.append(f"{_format_duration(math.ceil(seconds_per_step * steps_left))} to go")
        return "   ".join(parts)

    def _images_per_second(self, run: RunView) -> float:
        """Return the images/s in this epoch so far; if unknown, the images/s in the last epoch."""
        last, first = self._last, self._first_of_epoch
        if last is not None and first is not None:
            seconds = (last.seconds or 0) - (first.seconds or 0)
            if self._images and seconds > 0:
                return self._images / seconds
        return run.history[-1].images_per_second if run.history else 0.0

    def _draw(self, run: RunView, title: str, last_epoch: Optional[int] = None) -> None:
        """Draw ``title`` and the curves.

        ``last_epoch``: the epoch at which the x-axes end; by default, the run's last epoch.
        """
        if self._display is None:
            return
        start_time = time.monotonic()
        with self._stop_plot_on_error():
            figure = new_figure(WIDTH, HEIGHT)
            loss, accuracy = figure.subplots(1, 2)
            figure.subplots_adjust(left=0.07, right=0.98, bottom=0.16, top=0.78, wspace=0.18)
            figure.text(0.07, 0.97, title, fontsize=10, va="top")
            draw_loss(loss, self._losses.curve, run.history)
            draw_accuracy(accuracy, run.history)
            for axes in (loss, accuracy):
                axes.set_xlim(0, last_epoch or run.epochs)
            self._display.show(as_png(figure))
        now = time.monotonic()
        self._next_draw_time = now + max(self.every, (now - start_time) / MAX_DRAWING_SHARE)

    @contextmanager
    def _stop_plot_on_error(self) -> Iterator[None]:
        """In a with block, print an exception instead of raising it, and stop plotting."""
        try:
            yield
        except Exception as error:
            self._display = None
            _print_line(f"stopped, but the run continues: {type(error).__name__}: {error}")


def _format_duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _print_line(line: str) -> None:
    with suppress(OSError, ValueError):  # output is closed
        print(f"{'live plot':<11}{line}")
