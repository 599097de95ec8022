"""When a run writes checkpoints, and the thread that writes them.

What a checkpoint holds is copied on the devices, in their queues; the thread waits for the copies
and writes them, while training goes on.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Callable, NamedTuple, Optional

from gluonlab.config.values import Period
from gluonlab.runs import checkpoint
from gluonlab.runs.checkpoint import Checkpoint


class _Last(NamedTuple):
    """The steps, finished epochs and time of the last checkpoint, or of the beginning."""

    step: int
    epoch: int
    moment: float


class Checkpoints:
    """Writes checkpoints below the folder ``run``; None: no checkpoint is ever written.

    ``every``: how often; None: never by itself. ``make(accuracy)`` takes one of where the run
    stands, without waiting; ``accuracy`` is that of an epoch that has just ended. ``keep``: how
    many are kept, besides the best.
    """

    def __init__(
        self,
        run: Optional[Path],
        every: Optional[Period],
        keep: int,
        make: Callable[[Optional[float]], Checkpoint],
    ) -> None:
        self._run, self._every, self._keep, self._make = run, every, keep, make
        self._thread = ThreadPoolExecutor(1, "gluonlab-checkpoint")
        self._writing: "Optional[Future[Path]]" = None
        self._last = _Last(0, 0, time.monotonic())
        self._best = -1.0

    def begin(self, step: int, epoch: int, best: float = -1.0) -> None:
        """The run begins, or goes on, after so many steps and epochs; ``best``: accuracy so far."""
        self._last, self._best = _Last(step, epoch, time.monotonic()), best

    def after_step(self, step: int, epoch: int) -> None:
        """Write a checkpoint if one is due; ``epoch``: how many are finished.

        Raises OutputError when one could not be written.
        """
        if self._writing is not None and self._writing.done():
            self._wait()
        if self._every is not None and self._due(self._every, step, epoch):
            self._write(step, epoch)

    def after_epoch(self, step: int, epoch: int, accuracy: float) -> None:
        """The same when an epoch has ended, and one if it is the best so far."""
        best, self._best = accuracy > self._best, max(accuracy, self._best)
        if self._every is not None and (best or self._due(self._every, step, epoch)):
            self._write(step, epoch, accuracy)

    def now(self, step: int, epoch: int) -> Optional[Path]:
        """Write one, wait until it is on disk, and return its place; None without a folder.

        None, too, where nothing has been trained.
        """
        if self._run is None or not step:
            return None
        if step > self._last.step:
            self._write(step, epoch)
        self._wait()
        places = checkpoint.checkpoints(self._run)
        return places[0] if places else None

    def close(self) -> None:
        """Wait for what is being written. Raises OutputError when it could not be."""
        try:
            self._wait()
        finally:
            self._thread.shutdown(wait=False)

    def _due(self, every: Period, step: int, epoch: int) -> bool:
        now = _Last(step, epoch, time.monotonic())
        passed = {
            "steps": now.step - self._last.step,
            "epochs": now.epoch - self._last.epoch,
            "minutes": (now.moment - self._last.moment) / 60,
        }
        return step > self._last.step and passed[every.unit] >= every.number

    def _write(self, step: int, epoch: int, accuracy: Optional[float] = None) -> None:
        if self._run is None:
            return
        self._wait()  # one at a time: each has a copy of all parameters
        self._last = _Last(step, epoch, time.monotonic())
        self._writing = self._thread.submit(self._on_disk, self._run, self._make(accuracy))

    def _on_disk(self, run: Path, made: Checkpoint) -> Path:
        place = checkpoint.write(run, made)
        checkpoint.remove_others(run, self._keep)
        return place

    def _wait(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            try:
                writing.result()
            except KeyboardInterrupt:
                self._writing = writing
                raise
