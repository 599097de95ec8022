"""gluonlab's own callbacks: early stopping, TensorBoard, replica checks, and recorded events.

- EarlyStopping implements --patience. The stopping rule is "UP" in Prechelt, "Early stopping - but
  when?", 1998.
- TensorBoard implements --tensorboard.
- ReplicaCheck implements --check-replicas.
- The other callbacks print lines about events, and write the events to metrics.jsonl.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence

import mxnet as mx
import numpy as np
from mxnet import gluon, nd

from gluonlab.bucketed_trainer.loss_scale import LossScale
from gluonlab.config.option_checks import LOSS, Patience
from gluonlab.errors import DriftError
from gluonlab.kvstores.process_groups import SINGLE_PROCESS, ProcessGroup
from gluonlab.parallel.data.running_statistics import stateful_graph
from gluonlab.parallel.strategy import ReplicatedArray, Strategy
from gluonlab.runs.run_reader import read_lines
from gluonlab.runs.run_result import Result
from gluonlab.runs.run_schema import TENSORBOARD, Epoch, LossScaleEvent, OutputClosedEvent, StalenessEvent, Step
from gluonlab.runs.run_writer import NoRunDirectory, RunDirectory
from gluonlab.training.callbacks import FINISHED, STOPPED, BuiltInCallback, Callback, RunEnd, RunView
from gluonlab.training.evaluate import Score
from gluonlab.training.plan import Plan
from gluonlab.training.reporter import Reporter

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gluonlab.runs.tensorboard_file import EventFile


def epoch_score(patience: Optional[Patience], accuracy: float, loss: Optional[float]) -> float:
    """Return an epoch's score: the accuracy, or the negated loss if --patience monitors losses."""
    by_loss = patience is not None and patience.monitored == LOSS
    return -loss if by_loss and loss is not None else accuracy


def find_best_epoch(patience: Optional[Patience], history: Sequence[Epoch]) -> Optional[int]:
    """Return the first epoch with the best score, counted from 1; None without early stopping."""
    if patience is None:
        return None
    scores = [epoch_score(patience, epoch.val_accuracy, epoch.val_loss) for epoch in history]
    return 1 + scores.index(max(scores))


class EarlyStopping(Callback):
    """Stops training after a number of successive epochs without improvement.

    Each process has its own instance, since all processes get the same scores. ``best_epoch``: the
    best epoch so far, whose parameters are kept. ``digest``: at rank 0, the SHA-256 digest of the
    file with these parameters.
    """

    def __init__(self, patience: Patience) -> None:
        self.patience = patience
        self.best_score: Optional[float] = None
        self.best_epoch: Optional[int] = None
        self.epochs_without_improvement, self.digest = 0, ""

    def on_run_start(self, run: RunView) -> None:
        """Stop a resumed run at once if its new, lower patience is already exhausted."""
        self._stop_if_out_of_patience(run)

    def on_evaluation(self, run: RunView, score: Score) -> None:
        """Store the epoch if it is the best so far, else count an epoch without improvement."""
        current = epoch_score(self.patience, score.accuracy, score.loss)
        if self.best_score is None or current > self.best_score:
            self.best_score, self.best_epoch = current, len(run.history) + 1
            self.epochs_without_improvement = 0
        else:
            self.epochs_without_improvement += 1

    def on_epoch_end(self, run: RunView, epoch: Epoch) -> None:
        """Stop the run if its patience is exhausted."""
        self._stop_if_out_of_patience(run)

    def _stop_if_out_of_patience(self, run: RunView) -> None:
        """Stop the run if the last ``patience.epochs`` epochs have not improved the score."""
        epochs, monitored = self.patience
        if self.epochs_without_improvement >= epochs:
            epochs_text = f"{epochs} epoch{'s' * (epochs > 1)}"
            run.stop(f"no better validation {monitored} in {epochs_text} after epoch {self.best_epoch}")

    def state_dict(self) -> Dict[str, Any]:
        """Return the best epoch, and the number of epochs since then."""
        return {
            "monitored": self.patience.monitored, "best": self.best_score,
            "waited": self.epochs_without_improvement, "best_epoch": self.best_epoch,
            "digest": self.digest,
        }  # fmt: skip

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Restore the best epoch if the state was saved while monitoring the same metric."""
        if state["monitored"] == self.patience.monitored:
            self.best_score, self.best_epoch = state["best"], state["best_epoch"]
            self.epochs_without_improvement, self.digest = state["waited"], state["digest"]

    def forget_best(self) -> None:
        """Forget the best epoch, whose parameters are lost.

        The next epoch becomes the best epoch.
        """
        self.best_score, self.best_epoch, self.digest = None, None, ""


STEP_FIELDS = ("loss", "lr")
EPOCH_FIELDS = ("loss", "val_loss", "val_accuracy", "val_top5_accuracy", "images_per_second", "waiting")
COMPARED_TAGS = ("epoch/val_accuracy", "epoch/val_loss", "epoch/images_per_second")


class TensorBoard(Callback):
    """Writes a run's metrics to the folder tensorboard/ in the run's folder.

    Tags are ``step/loss`` and ``step/lr`` for steps, and ``epoch/val_accuracy`` and others for
    epochs. A resumed run writes the metrics of all steps after its checkpoint again. Because of
    ``purge_step``, TensorBoard then ignores the earlier values for these steps.
    """

    def __init__(self) -> None:
        self._events: "Optional[EventFile]" = None
        self._step = 0  # the last step that is written
        # Start of the run, in seconds since 1970; for a resumed run, as if it had never stopped.
        self._start_time = 0.0

    def on_run_start(self, run: RunView) -> None:
        """Create the event file, and copy the earlier metrics of a resumed run into the file."""
        from gluonlab.runs.tensorboard_file import EventFile, has_events

        assert run.path is not None  # only rank 0 calls callbacks
        folder = run.path / TENSORBOARD
        first_step = self._step if has_events(folder) else 0
        self._start_time, self._step = time.time(), 0
        self._events = EventFile(folder, purge_step=first_step)
        self._events.write_settings(first_step, run.settings, COMPARED_TAGS)
        if run.step:
            self._rewrite_lines(run, first_step)
        self._events.flush()

    def on_step(self, run: RunView, step: Step) -> None:
        """Write a step's metrics, unless `on_run_start` has already written them."""
        if step.step > self._step:
            self._write_step(step)
            self._file.flush_for_readers()

    def on_epoch_end(self, run: RunView, epoch: Epoch) -> None:
        """Write an epoch's metrics."""
        self._write_epoch(epoch, run.loss_scale)
        self._file.flush_for_readers()

    def on_run_end(self, run: RunView, end: RunEnd) -> None:
        """Close the event file."""
        if self._events is not None:
            self._events.close(end.how in (FINISHED, STOPPED))

    def state_dict(self) -> Dict[str, Any]:
        """Flush the event file to disk, and return the last step written."""
        self._file.flush()
        return {"step": self._step}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Restore the number of the last step written."""
        self._step = state["step"]

    @property
    def _file(self) -> "EventFile":
        assert self._events is not None  # the run has started
        return self._events

    def _rewrite_lines(self, run: RunView, first_step: int) -> None:
        """Copy the metrics of steps from ``first_step`` onward to the event file."""
        assert run.path is not None
        lines = read_lines(run.path)
        seconds = [line.seconds or 0.0 for line in lines if isinstance(line, (Step, Epoch))]
        self._start_time -= max(seconds, default=0.0)
        scale = None
        for line in lines:
            if isinstance(line, LossScaleEvent):
                scale = line.loss_scale
            elif isinstance(line, Step) and line.step >= first_step:
                self._write_step(line)
            elif isinstance(line, Epoch) and line.step >= first_step:
                self._write_epoch(line, scale)

    def _write_step(self, line: Step) -> None:
        values = {f"step/{name}": getattr(line, name) for name in STEP_FIELDS}
        self._file.write_scalars(line.step, self._start_time + (line.seconds or 0.0), values)
        self._step = line.step

    def _write_epoch(self, line: Epoch, loss_scale: Optional[float]) -> None:
        """Write an epoch's metrics; ``loss_scale``: the scale after the epoch, or None."""
        values = {f"epoch/{name}": getattr(line, name) for name in EPOCH_FIELDS}
        values["epoch/loss_scale"] = loss_scale
        values.update({f"epoch/metrics/{n}": value for n, value in (line.metrics or {}).items()})
        self._file.write_scalars(line.step, self._start_time + (line.seconds or 0.0), values)


class FirstStepTimer(BuiltInCallback):
    """Waits for the first step of the process, and prints the time since the start of the run."""

    def __init__(self, result: Result, reporter: Reporter, start_time: float) -> None:
        self._result, self._reporter, self._start_time = result, reporter, start_time

    def on_step_end(self, run: RunView, step: int) -> None:
        """Wait for the first step of this process to finish, and print the time since the start."""
        if not self._result.first_step_seconds:
            nd.waitall()
            self._result.first_step_seconds = time.perf_counter() - self._start_time
            self._reporter.say(f"{'first step':<11}after {self._result.first_step_seconds:.2f} s")


class LossScaleRecorder(BuiltInCallback):
    """Records the loss scale, and how often float16 gradients overflowed, after each epoch."""

    def __init__(
        self, scale: Optional[LossScale], directory: "RunDirectory | NoRunDirectory", reporter: Reporter
    ) -> None:
        self._scale, self._directory, self._reporter = scale, directory, reporter

    def on_evaluation(self, run: RunView, score: Score) -> None:
        """Record the loss scale and the number of skipped steps, if the run uses a loss scale."""
        scale, epoch = self._scale, len(run.history) + 1
        if scale is not None:
            self._directory.write(LossScaleEvent(epoch, run.step, scale.value, scale.skipped))
            self._reporter.say(f"{'loss scale':<11}{scale.summary()}")


class StalenessRecorder(BuiltInCallback):
    """Records, after each epoch, how stale the gradients of asynchronous processes were."""

    def __init__(self, group: ProcessGroup, directory: "RunDirectory | NoRunDirectory", reporter: Reporter) -> None:
        self._group, self._directory, self._reporter = group, directory, reporter

    def on_evaluation(self, run: RunView, score: Score) -> None:
        """Record the staleness of an asynchronous group."""
        counts = self._group.staleness()
        if counts is not None:
            line = StalenessEvent(len(run.history) + 1, run.step, counts)
            self._directory.write(line)
            self._reporter.say(f"{'staleness':<11}{line.in_words()}")


class OutputErrorRecorder(BuiltInCallback):
    """Records, at most once, that standard output has been closed."""

    def __init__(self, directory: "RunDirectory | NoRunDirectory", reporter: Reporter) -> None:
        self._directory, self._reporter, self._is_recorded = directory, reporter, False

    def on_run_start(self, run: RunView) -> None:
        """Check whether printing failed before the first epoch."""
        self._record_once()

    def on_epoch_end(self, run: RunView, epoch: Epoch) -> None:
        """Check whether printing failed during the epoch."""
        self._record_once()

    def on_run_end(self, run: RunView, end: RunEnd) -> None:
        """Check whether printing failed at the end of the run."""
        self._record_once()

    def _record_once(self) -> None:
        if self._reporter.output_error is not None and not self._is_recorded:
            self._is_recorded = True
            self._directory.write(OutputClosedEvent(self._reporter.output_error))


class ReplicaCheck(BuiltInCallback):
    """Compares a network's parameters across its devices and the processes of ``group``.

    All replicas perform the same update with the same sum of gradients. If a parameter differs in
    even one bit, the cause is faulty memory, a faulty link, an error in the kvstore, or code that
    has written to only one replica.

    Args:
        net: The network.
        statistics: Whether to compare BatchNorm's running statistics. Without ``sync_bn``, the
            statistics differ until they are averaged.
        group: The processes.
        replicated: The parameters to compare, with the devices that should have equal copies; by
            default the parameters of ``net``.
        every: Number of steps between two checks.
    """

    def __init__(
        self,
        net: gluon.HybridBlock,
        statistics: bool = False,
        group: ProcessGroup = SINGLE_PROCESS,
        replicated: Optional[Sequence[ReplicatedArray]] = None,
        every: Optional[int] = None,
    ) -> None:
        self._every = every
        graph = None if statistics else stateful_graph(net)
        excluded = set() if graph is None else set(graph.list_auxiliary_states())
        params = list(net.collect_params().values()) if replicated is None else replicated
        self._params = [param for param in params if param.name not in excluded]
        self._ctxs = list(dict.fromkeys(ctx for p in self._params for ctx in p.list_ctx()))
        self._group = group
        self._names = self._device_names()
        self._last_equal_step = 0  # the last step after which all replicas were equal

    @classmethod
    def for_plan(cls, plan: Plan, strategy: Strategy) -> ReplicaCheck:
        """Create the replica check for a run with --check-replicas."""
        return cls(strategy.net, plan.sync_bn, plan.group, strategy.replicated_parameters(), plan.check_replicas)

    def on_step_end(self, run: RunView, step: int) -> None:
        """Compare the replicas every ``every`` steps, and after the last step."""
        if (self._every and step % self._every == 0) or run.is_last_step:
            self.compare_replicas(step)

    def _device_names(self) -> List[str]:
        """Return the names of the devices of all processes.

        The names of a process with fewer devices than others are padded with "".
        """
        counts = self._group.all_gather(np.array(len(self._ctxs)))
        self._max_devices = int(counts.max())
        device_ids = [[ctx.device_typeid, ctx.device_id] for ctx in self._ctxs]
        all_ids = self._gather_rows(np.array(device_ids, float)).astype(int)
        has_many_processes = self._group.size > 1
        return [
            f"{mx.Context(kind, number)}" + has_many_processes * f" of process {index // self._max_devices}"
            if (kind := mx.Context.devtype2str.get(typeid))
            else ""
            for index, (typeid, number) in enumerate(all_ids)
        ]

    def _gather_rows(self, rows: "NDArray[Any]") -> "NDArray[Any]":
        """Gather ``rows`` (one per device) from all processes, in the order of `_device_names`."""
        padded = np.zeros((self._max_devices, rows.shape[1]))
        padded[: len(rows)] = rows
        return self._group.all_gather(padded).reshape(-1, rows.shape[1])

    def compare_replicas(self, step: int) -> None:
        """Wait for all queued operators, and compare all replicas.

        All processes must call this method after the same step. Raises DriftError, in every
        process, for the first parameter that differs.
        """
        nd.waitall()  # BatchNorm's backward writes arrays without telling the engine
        digests = np.zeros((len(self._ctxs), len(self._params)))  # 0: the device has no replica
        for column, param in enumerate(self._params):
            for ctx in param.list_ctx():
                # one bit, or several next to each other, always change the CRC
                digest = zlib.crc32(param.data(ctx).asnumpy().data)
                digests[self._ctxs.index(ctx), column] = digest + 1
        all_digests = self._gather_rows(digests)
        for param, column in zip(self._params, all_digests.T):
            self._compare_digests(param.name, column, step)
        self._last_equal_step = step

    def _compare_digests(self, name: str, digests: "NDArray[Any]", step: int) -> None:
        """Raise DriftError if the devices' digests of the parameter ``name`` differ."""
        digest_by_device = {device: digest for device, digest in zip(self._names, digests) if digest}
        counts = Counter(digest_by_device.values()).most_common(2)
        if len(counts) < 2:
            return
        (common_digest, common_count), (_, next_count) = counts
        drifted = [device for device, digest in digest_by_device.items() if digest != common_digest]
        others = ", ".join(device for device in digest_by_device if device not in drifted)
        description = f"on {', '.join(drifted)} differs from the replicas on {others}"
        if common_count == next_count:
            description = f"differs between {', '.join(digest_by_device)}"
        earlier = f" (all replicas were equal after step {self._last_equal_step})" if self._last_equal_step else ""
        raise DriftError(
            f"replicas have drifted apart: after step {step}, {name} {description}{earlier}: "
            "to find the cause, train again with another --kvstore or on other devices"
        )
