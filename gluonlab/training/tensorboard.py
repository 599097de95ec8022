"""--tensorboard: what metrics.jsonl says of steps and epochs, as event files for TensorBoard.

They hold nothing of their own: after an interruption they are made again from metrics.jsonl, as far
as that is kept.
"""

from __future__ import annotations

import time
from typing import Any, Dict, Optional

from gluonlab.runs.event_file import EventFile, has_events
from gluonlab.runs.reader import read_lines
from gluonlab.runs.schema import TENSORBOARD, Epoch, LossScaleEvent, Step
from gluonlab.training.callbacks import FINISHED, STOPPED, Callback, RunEnd, RunView

OF_STEPS = ("loss", "lr")
OF_EPOCHS = ("loss", "validation_loss", "accuracy", "top5_accuracy", "images_per_second", "waiting")
COMPARED = ("epoch/accuracy", "epoch/validation_loss", "epoch/images_per_second")


class TensorBoard(Callback):
    """Writes tensorboard/ in the run's folder. The step of an epoch's numbers is its last one.

    A step's are ``step/loss`` and ``step/lr``, an epoch's ``epoch/accuracy`` and the like. When a
    run goes on, its numbers from the last step on that a checkpoint knew of are written again, and
    readers leave the earlier ones out (purge_step).
    """

    def __init__(self) -> None:
        self._events: Optional[EventFile] = None
        self._step = 0  # the last one that is written
        self._began = 0.0  # when the run did, in seconds since 1970, as if it had never stopped

    def on_run_start(self, run: RunView) -> None:
        """Begin a file, with what a run that goes on has had before."""
        assert run.path is not None  # callbacks are rank 0's
        folder = run.path / TENSORBOARD
        begin = self._step if has_events(folder) else 0
        self._began, self._step = time.time(), 0
        self._events = EventFile(folder, purge_step=begin)
        self._events.settings(begin, run.settings, COMPARED)
        if run.step:
            self._write_again(run, begin)
        self._events.flush()

    def on_step(self, run: RunView, step: Step) -> None:
        """Write it, unless that has been done when the run went on."""
        if step.step > self._step:
            self._write_step(step)
            self._file.flush_for_readers()

    def on_epoch_end(self, run: RunView, epoch: Epoch) -> None:
        """Write it."""
        self._write_epoch(epoch, run.loss_scale)
        self._file.flush_for_readers()

    def on_run_end(self, run: RunView, end: RunEnd) -> None:
        """End the file."""
        if self._events is not None:
            self._events.close(end.how in (FINISHED, STOPPED))

    def state_dict(self) -> Dict[str, Any]:
        """How far it is; all of that is on disk then."""
        self._file.flush()
        return {"step": self._step}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Go on from there."""
        self._step = state["step"]

    @property
    def _file(self) -> EventFile:
        assert self._events is not None  # the run has started
        return self._events

    def _write_again(self, run: RunView, begin: int) -> None:
        """Write the lines of metrics.jsonl from the step ``begin`` on."""
        assert run.path is not None
        lines = read_lines(run.path)
        seconds = [line.seconds or 0.0 for line in lines if isinstance(line, (Step, Epoch))]
        self._began -= max(seconds, default=0.0)
        scale = None
        for line in lines:
            if isinstance(line, LossScaleEvent):
                scale = line.loss_scale
            elif isinstance(line, Step) and line.step >= begin:
                self._write_step(line)
            elif isinstance(line, Epoch) and line.step >= begin:
                self._write_epoch(line, scale)

    def _write_step(self, line: Step) -> None:
        values = {f"step/{name}": getattr(line, name) for name in OF_STEPS}
        self._file.scalars(line.step, self._began + (line.seconds or 0.0), values)
        self._step = line.step

    def _write_epoch(self, line: Epoch, loss_scale: Optional[float]) -> None:
        values = {f"epoch/{name}": getattr(line, name) for name in OF_EPOCHS}
        values["epoch/loss_scale"] = loss_scale
        values.update({f"epoch/metrics/{n}": each for n, each in (line.metrics or {}).items()})
        self._file.scalars(line.step, self._began + (line.seconds or 0.0), values)
