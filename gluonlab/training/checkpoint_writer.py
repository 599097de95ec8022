"""Checkpoint writing during training, in a separate thread.

All processes decide together when a checkpoint is due, because each process has a part of the
content. `TrainState.make_checkpoint` collects these parts, and one process writes the checkpoint.
Queued operators copy the content on the devices. The thread waits for the copies and writes them
with `gluonlab.runs.checkpoint`, while training continues.
"""

from __future__ import annotations

import io
import json
import math
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional

import mxnet as mx
from mxnet import nd

from gluonlab.config.option_checks import Period
from gluonlab.engine.fast_invoke import CopyInto
from gluonlab.files.array_files import read_open_arrays, write_arrays
from gluonlab.kvstores.process_groups import ProcessGroup
from gluonlab.runs import checkpoint
from gluonlab.runs.checkpoint import Arrays, Checkpoint

POLL_S = 0.1  # the longest delay of a second Ctrl-C


class _LastCheckpoint(NamedTuple):
    """The step, finished epochs and time of the last checkpoint, or of the start of the run."""

    step: int
    epoch: int
    seconds: float


class _WritingCanceled(Exception):
    """Raised to cancel writing a checkpoint, whose temporary files are then removed."""


class CheckpointWriter:
    """Writes a run's checkpoints, at the requested interval and after each new best epoch.

    Args:
        run_dir: The run's folder; None if another process writes the checkpoints.
        period: Interval between checkpoints; None without periodic checkpoints.
        keep: Number of checkpoints to keep, in addition to the checkpoint of the best epoch.
        make_checkpoint: A function that returns a checkpoint of the current state, without waiting
            for the devices. The argument of the function is the score of an epoch that has just
            ended, or None. If ``make_checkpoint`` is None, no checkpoints are written.
        clock: A function that returns the time in seconds.
    """

    def __init__(
        self,
        run_dir: Optional[Path],
        period: Optional[Period],
        keep: int,
        make_checkpoint: Optional[Callable[[Optional[float]], Checkpoint]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run_dir, self._period, self._keep, self._make_checkpoint = (run_dir, period, keep, make_checkpoint)
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "gluonlab-checkpoint")
        self._writing: "Optional[Future[Path]]" = None
        self._is_canceled = False
        self._last = _LastCheckpoint(0, 0, clock())
        self._best_score = -math.inf

    def start_from(self, step: int, epoch: int, best_score: float) -> None:
        """Set the step, finished epochs and best score from which the run starts or resumes."""
        self._last, self._best_score = _LastCheckpoint(step, epoch, self._clock()), best_score

    def after_step(self, step: int, epoch: int) -> None:
        """Start writing a checkpoint if one is due; ``epoch``: the number of finished epochs.

        Raises OutputError if the previous checkpoint could not be written.
        """
        if self._writing is not None and self._writing.done():
            self.wait()
        if self._period is not None and self._is_due(self._period, step, epoch):
            self._start_writing(step, epoch)

    def after_epoch(self, step: int, epoch: int, score: float) -> None:
        """Start writing a checkpoint if one is due, or if ``score`` is the largest so far."""
        is_best, self._best_score = score > self._best_score, max(score, self._best_score)
        if self._period is not None and (is_best or self._is_due(self._period, step, epoch)):
            self._start_writing(step, epoch, score)

    def write_now(self, step: int, epoch: int) -> Optional[Path]:
        """Write a checkpoint, wait until it is on disk, and return its path.

        Return None if there is no folder, or if no step has been trained.
        """
        if step > self._last.step:
            self._start_writing(step, epoch)
        self.wait()
        paths = checkpoint.list_checkpoints(self._run_dir) if self._run_dir is not None and step else []
        return paths[0] if paths else None

    def cancel(self) -> None:
        """Cancel the checkpoint that is being written, without waiting."""
        self._is_canceled, self._writing = True, None

    def close(self) -> None:
        """Wait until the last checkpoint is on disk, and end the thread. Raises OutputError."""
        try:
            self.wait()
        finally:
            self._thread.shutdown(wait=False)

    def _is_due(self, period: Period, step: int, epoch: int) -> bool:
        """Return True if ``period`` and at least one step have passed since the last checkpoint."""
        now = _LastCheckpoint(step, epoch, self._clock())
        passed = {
            "steps": now.step - self._last.step,
            "epochs": now.epoch - self._last.epoch,
            "minutes": (now.seconds - self._last.seconds) / 60,
        }
        return step > self._last.step and passed[period.unit] >= period.number

    def _start_writing(self, step: int, epoch: int, score: Optional[float] = None) -> None:
        """Wait for the previous checkpoint, and start to write a new checkpoint in the thread."""
        if self._make_checkpoint is None:
            return
        self.wait()  # only one at a time, because each has a copy of all parameters
        self._last = _LastCheckpoint(step, epoch, self._clock())
        checkpoint_content = self._make_checkpoint(score)
        if self._run_dir is not None:
            self._writing = self._thread.submit(self._write_files, self._run_dir, checkpoint_content)

    def _write_files(self, run_dir: Path, checkpoint_content: Checkpoint) -> Path:
        path = checkpoint.write_checkpoint(run_dir, checkpoint_content, self._check_canceled)
        checkpoint.remove_superseded_checkpoints(run_dir, self._keep)
        return path

    def _check_canceled(self) -> None:
        """Stop writing before the next file if `cancel` has been called."""
        if self._is_canceled:
            raise _WritingCanceled

    def wait(self) -> None:
        """Wait until no checkpoint is being written. Raises OutputError if writing failed."""
        writing, self._writing = self._writing, None
        if writing is not None:
            # A wait without a timeout would not notice a signal that another thread receives.
            while not writing.done():
                wait([writing], POLL_S)
            writing.result()


class GatheredState(NamedTuple):
    """The state of all processes: arrays on the CPU, which may not be computed yet, and values."""

    arrays: Arrays
    counts: Mapping[str, Any]


class CheckpointGather:
    """Gathers the states of the devices of all processes for a checkpoint.

    The arrays of different processes have different names. All arrays are sent by an allreduce of
    one large array, to which each process contributes its own arrays, and zeros for the arrays of
    other processes. The allreduce is queued after the operators that compute the arrays, so no
    process waits for its devices.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group
        self._buffers: Dict[int, nd.NDArray] = {}  # by size; reused, because a group keeps the arrays that it sums

    def __call__(self, arrays: Arrays, counts: Mapping[str, Any]) -> GatheredState:
        """Return the arrays (float32, on the CPU) and plain values of all processes."""
        if self._group.size == 1:
            return GatheredState(arrays, counts)
        shapes = {name: array.shape for name, array in arrays.items()}
        encoded = json.dumps({"shapes": shapes, "counts": dict(counts)}).encode()
        gathered = [json.loads(values) for values in self._group.all_gather_bytes(encoded)]
        all_shapes = {name: shape for rank in gathered for name, shape in rank["shapes"].items()}
        all_counts = {name: count for rank in gathered for name, count in rank["counts"].items()}
        return GatheredState(self._sum_over_processes(arrays, all_shapes), all_counts)

    def _sum_over_processes(self, arrays: Arrays, shapes: Mapping[str, Any]) -> Dict[str, nd.NDArray]:
        """Return each named array, summed over the processes that have this array."""
        flat = self._zero_buffer(sum(map(math.prod, shapes.values())))
        for name, view in _views_by_name(flat, shapes).items():
            if name in arrays:
                CopyInto(view).copy(arrays[name])
        self._group.allreduce([flat])
        return _views_by_name(flat.copyto(mx.cpu()), shapes)  # the buffer is reused

    def _zero_buffer(self, size: int) -> nd.NDArray:
        """Return a buffer of zeros with at least ``size`` elements.

        Later calls reuse the buffer.
        """
        size = 2 ** max(8, (size - 1).bit_length())  # powers of two, so that there are few sizes
        if size not in self._buffers:
            self._buffers[size] = nd.empty((size,), mx.cpu())
        self._buffers[size][:] = 0
        return self._buffers[size]


def _views_by_name(flat: nd.NDArray, shapes: Mapping[str, Any]) -> Dict[str, nd.NDArray]:
    """Split ``flat`` into consecutive views with the given ``shapes``, and return them by name."""
    parts, begin = {}, 0
    for name, shape in shapes.items():
        end = begin + math.prod(shape)
        parts[name], begin = flat[begin:end].reshape(tuple(shape)), end
    return parts


def broadcast_checkpoint(checkpoint: Optional[Checkpoint], group: ProcessGroup) -> Checkpoint:
    """Return rank 0's checkpoint in every process."""
    if group.size == 1 and checkpoint is not None:
        return checkpoint
    local = Checkpoint({}, {}, {}, {}) if checkpoint is None else checkpoint
    parameters, optimizer, devices = (broadcast_arrays(arrays, group) for arrays in local[:3])
    state = json.loads(group.broadcast_bytes(json.dumps(local.state).encode()))
    return Checkpoint(parameters, optimizer, devices, state)


def broadcast_arrays(arrays: Arrays, group: ProcessGroup) -> Arrays:
    """Return rank 0's arrays in every process, on the CPU."""
    if group.size == 1:
        return arrays
    file = io.BytesIO()
    write_arrays(file, arrays)
    return read_open_arrays(io.BytesIO(group.broadcast_bytes(file.getvalue())))
