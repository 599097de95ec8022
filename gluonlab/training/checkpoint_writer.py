"""When a run writes checkpoints, and the thread that writes them.

Of several processes one writes them, and all decide alike, since each has a part of what they hold.

What a checkpoint holds is copied on the devices, in their queues; the thread waits for the copies
and writes them, while training goes on.
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

from gluonlab.config.option_types import Period
from gluonlab.engine.fast_invoke import CopyInto
from gluonlab.files.array_files import read_open_arrays, write_arrays
from gluonlab.kvstores.process_groups import Group
from gluonlab.runs import checkpoint
from gluonlab.runs.checkpoint import Arrays, Checkpoint

LOOK_S = 0.1  # how late a second Ctrl-C may end a wait


class _Last(NamedTuple):
    """The steps, finished epochs and time of the last checkpoint, or of the beginning."""

    step: int
    epoch: int
    moment: float


class _GivenUp(Exception):
    """Ends the writing of a checkpoint, of which nothing is left then."""


class Checkpoints:
    """Writes checkpoints below the folder ``run``; None: another process writes them.

    ``every``: how often; None: never by itself. ``make(score)`` takes one of where the run
    stands, without waiting for devices; ``score`` is that of an epoch that has just ended, the
    larger the better. None:
    none is ever taken. ``keep``: how many are kept, besides the best. ``clock``: seconds, by which
    minutes are measured.
    """

    def __init__(
        self,
        run: Optional[Path],
        every: Optional[Period],
        keep: int,
        make: Optional[Callable[[Optional[float]], Checkpoint]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._every, self._keep, self._make = run, every, keep, make
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "gluonlab-checkpoint")
        self._writing: "Optional[Future[Path]]" = None
        self._given_up = False
        self._last = _Last(0, 0, clock())
        self._best = -math.inf

    def begin(self, step: int, epoch: int, best: float) -> None:
        """The run begins, or goes on, after so many steps and epochs; ``best``: score so far."""
        self._last, self._best = _Last(step, epoch, self._clock()), best

    def after_step(self, step: int, epoch: int) -> None:
        """Write a checkpoint if one is due; ``epoch``: how many are finished.

        Raises OutputError when one could not be written.
        """
        if self._writing is not None and self._writing.done():
            self.wait()
        if self._every is not None and self._due(self._every, step, epoch):
            self._write(step, epoch)

    def after_epoch(self, step: int, epoch: int, score: float) -> None:
        """The same when an epoch has ended, and one if it is the best so far."""
        best, self._best = score > self._best, max(score, self._best)
        if self._every is not None and (best or self._due(self._every, step, epoch)):
            self._write(step, epoch, score)

    def now(self, step: int, epoch: int) -> Optional[Path]:
        """Write one, wait until it is on disk, and return its place.

        None without a folder, and where nothing has been trained.
        """
        if step > self._last.step:
            self._write(step, epoch)
        self.wait()
        places = checkpoint.checkpoints(self._run) if self._run is not None and step else []
        return places[0] if places else None

    def give_up(self) -> None:
        """Wait for nothing any more. What is not written yet never will be."""
        self._given_up, self._writing = True, None

    def close(self) -> None:
        """Wait for what is being written. Raises OutputError when it could not be."""
        try:
            self.wait()
        finally:
            self._thread.shutdown(wait=False)

    def _due(self, every: Period, step: int, epoch: int) -> bool:
        now = _Last(step, epoch, self._clock())
        passed = {
            "steps": now.step - self._last.step,
            "epochs": now.epoch - self._last.epoch,
            "minutes": (now.moment - self._last.moment) / 60,
        }
        return step > self._last.step and passed[every.unit] >= every.number

    def _write(self, step: int, epoch: int, score: Optional[float] = None) -> None:
        if self._make is None:
            return
        self.wait()  # one at a time: each has a copy of all parameters
        self._last = _Last(step, epoch, self._clock())
        made = self._make(score)
        if self._run is not None:
            self._writing = self._thread.submit(self._on_disk, self._run, made)

    def _on_disk(self, run: Path, made: Checkpoint) -> Path:
        place = checkpoint.write(run, made, self._go_on)
        checkpoint.remove_others(run, self._keep)
        return place

    def _go_on(self) -> None:
        """End the thread's writing between two files, when nobody waits for it any more."""
        if self._given_up:
            raise _GivenUp

    def wait(self) -> None:
        """Wait until nothing is being written. Raises OutputError when that could not be."""
        writing, self._writing = self._writing, None
        if writing is not None:
            # where another thread gets the signal, a wait of the main thread does not end of it
            while not writing.done():
                wait([writing], LOOK_S)
            writing.result()


class GatheredState(NamedTuple):
    """Arrays on the CPU, which may still be computed, and plain values, of all processes."""

    arrays: Arrays
    counts: Mapping[str, Any]


class CheckpointGather:
    """Unites what each process's devices have of their own, under different names.

    The hosts wait for each other, and not for the devices: arrays travel as a sum, queued behind
    what computes them, to which each process gives zeros where others have theirs.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._flat: Dict[int, nd.NDArray] = {}  # by size: a group keeps the arrays that it sums

    def __call__(self, arrays: Arrays, counts: Mapping[str, Any]) -> GatheredState:
        """``arrays``: float32, on the CPU. Every process gets all of them."""
        if self._group.size == 1:
            return GatheredState(arrays, counts)
        shapes = {name: array.shape for name, array in arrays.items()}
        told = json.dumps({"shapes": shapes, "counts": dict(counts)}).encode()
        everyones = [json.loads(each) for each in self._group.everyones_bytes(told)]
        all_shapes = {name: shape for each in everyones for name, shape in each["shapes"].items()}
        together = self._summed(arrays, all_shapes)
        return GatheredState(
            together, {k: v for each in everyones for k, v in each["counts"].items()}
        )

    def _summed(self, own: Arrays, shapes: Mapping[str, Any]) -> Dict[str, nd.NDArray]:
        flat = self._zeros(sum(map(math.prod, shapes.values())))
        for name, part in _parts(flat, shapes).items():
            if name in own:
                CopyInto(part).copy(own[name])
        self._group.allreduce([flat])
        return _parts(flat.copyto(mx.cpu()), shapes)  # the next one overwrites the sum

    def _zeros(self, size: int) -> nd.NDArray:
        size = 2 ** max(8, (size - 1).bit_length())  # few different ones
        if size not in self._flat:
            self._flat[size] = nd.empty((size,), mx.cpu())
        self._flat[size][:] = 0
        return self._flat[size]


def _parts(flat: nd.NDArray, shapes: Mapping[str, Any]) -> Dict[str, nd.NDArray]:
    """Views of one array, by name."""
    parts, begin = {}, 0
    for name, shape in shapes.items():
        end = begin + math.prod(shape)
        parts[name], begin = flat[begin:end].reshape(tuple(shape)), end
    return parts


def checkpoint_of_first(checkpoint: Optional[Checkpoint], group: Group) -> Checkpoint:
    """The checkpoint that rank 0 has, in every process."""
    if group.size == 1 and checkpoint is not None:
        return checkpoint
    own = Checkpoint({}, {}, {}, {}) if checkpoint is None else checkpoint
    parameters, optimizer, devices = (arrays_of_first(arrays, group) for arrays in own[:3])
    state = json.loads(group.bytes_of_first(json.dumps(own.state).encode()))
    return Checkpoint(parameters, optimizer, devices, state)


def arrays_of_first(arrays: Arrays, group: Group) -> Arrays:
    """The arrays that rank 0 gives, in every process, on the CPU."""
    if group.size == 1:
        return arrays
    file = io.BytesIO()
    write_arrays(file, arrays)
    return read_open_arrays(io.BytesIO(group.bytes_of_first(file.getvalue())))
