"""What a run can do besides training: gluonlab's own callbacks.

EarlyStopping is --patience, TensorBoard --tensorboard, and ReplicaCheck --check-replicas. The rest
prints lines and writes them into metrics.jsonl. Sources: Prechelt, "Early stopping - but when?",
1998, calls the rule of --patience UP.
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
from gluonlab.config.option_types import LOSS, Patience
from gluonlab.errors import DriftError
from gluonlab.kvstores.process_groups import ALONE, Group
from gluonlab.parallel.data.running_statistics import graph_with_states
from gluonlab.parallel.strategy import Replicated, Strategy
from gluonlab.runs.run_reader import read_lines
from gluonlab.runs.run_result import Result
from gluonlab.runs.run_schema import (
    TENSORBOARD,
    Epoch,
    LossScaleEvent,
    StalenessEvent,
    Step,
    UnheardEvent,
)
from gluonlab.runs.run_writer import NoRunDirectory, RunDirectory
from gluonlab.runs.tensorboard_file import EventFile, has_events
from gluonlab.training.callbacks import (
    FINISHED,
    STOPPED,
    BuiltInCallback,
    Callback,
    RunEnd,
    RunView,
)
from gluonlab.training.evaluate import Score
from gluonlab.training.plan import Plan
from gluonlab.training.reporter import Reporter

if TYPE_CHECKING:
    from numpy.typing import NDArray


def goodness(patience: Optional[Patience], accuracy: float, loss: Optional[float]) -> float:
    """How good an epoch is, the larger the better: by its accuracy, or minus its loss."""
    by_loss = patience is not None and patience.monitored == LOSS
    return -loss if by_loss and loss is not None else accuracy


def best_epoch(patience: Optional[Patience], history: Sequence[Epoch]) -> Optional[int]:
    """The first of the best epochs, from 1; None without patience, where the last one counts."""
    if patience is None:
        return None
    scores = [goodness(patience, epoch.accuracy, epoch.validation_loss) for epoch in history]
    return 1 + scores.index(max(scores))


class EarlyStopping(Callback):
    """Stops after as many epochs in a row that are no better than the best one before.

    Every process has one, since all know the same numbers. ``best_epoch``: the first of the best,
    whose parameters stay. ``digest``: the SHA-256 of its file of parameters, at rank 0.
    """

    def __init__(self, patience: Patience) -> None:
        self.patience = patience
        self.best: Optional[float] = None
        self.best_epoch: Optional[int] = None
        self.waited, self.digest = 0, ""

    def on_run_start(self, run: RunView) -> None:
        """A run that goes on with less patience may have none left."""
        self._stop_if_over(run)

    def on_evaluation(self, run: RunView, score: Score) -> None:
        """Compare with the best so far."""
        now = goodness(self.patience, score.accuracy, score.loss)
        if self.best is None or now > self.best:
            self.best, self.best_epoch, self.waited = now, len(run.history) + 1, 0
        else:
            self.waited += 1

    def on_epoch_end(self, run: RunView, epoch: Epoch) -> None:
        """Stop if patience is over."""
        self._stop_if_over(run)

    def _stop_if_over(self, run: RunView) -> None:
        epochs, monitored = self.patience
        if self.waited >= epochs:
            many = f"{epochs} epoch{'s' * (epochs > 1)}"
            run.stop(f"no better test {monitored} in {many} after epoch {self.best_epoch}")

    def state_dict(self) -> Dict[str, Any]:
        """The best, and the epochs since."""
        return {
            "monitored": self.patience.monitored, "best": self.best, "waited": self.waited,
            "best_epoch": self.best_epoch, "digest": self.digest,
        }  # fmt: skip

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Go on counting, where the same is looked at."""
        if state["monitored"] == self.patience.monitored:
            self.best, self.best_epoch = state["best"], state["best_epoch"]
            self.waited, self.digest = state["waited"], state["digest"]

    def forget(self) -> None:
        """The best parameters are gone: the next epoch's are the best."""
        self.best, self.best_epoch, self.digest = None, None, ""


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


class FirstStepTimer(BuiltInCallback):
    """Waits for the very first step, once, and prints when it was done.

    More devices take longer to initialize.
    """

    def __init__(self, result: Result, reporter: Reporter, began: float) -> None:
        self._result, self._reporter, self._began = result, reporter, began

    def on_step_end(self, run: RunView, step: int) -> None:
        """Wait for the first step that this process has trained."""
        if not self._result.first_step_seconds:
            nd.waitall()
            self._result.first_step_seconds = time.perf_counter() - self._began
            self._reporter.say(f"{'first step':<11}after {self._result.first_step_seconds:.2f} s")


class LossScaleNotes(BuiltInCallback):
    """Records, after each epoch, how often gradients overflowed in float16."""

    def __init__(
        self,
        scale: Optional[LossScale],
        directory: "RunDirectory | NoRunDirectory",
        reporter: Reporter,
    ) -> None:
        self._scale, self._directory, self._reporter = scale, directory, reporter

    def on_evaluation(self, run: RunView, score: Score) -> None:
        """Record the scale, where there is one."""
        scale, epoch = self._scale, len(run.history) + 1
        if scale is not None:
            self._directory.write(LossScaleEvent(epoch, run.step, scale.value, scale.skipped))
            self._reporter.say(f"{'loss scale':<11}{scale.summary()}")


class StalenessNotes(BuiltInCallback):
    """Records, after each epoch, how stale the gradients were that servers have updated with."""

    def __init__(
        self, group: Group, directory: "RunDirectory | NoRunDirectory", reporter: Reporter
    ) -> None:
        self._group, self._directory, self._reporter = group, directory, reporter

    def on_evaluation(self, run: RunView, score: Score) -> None:
        """Record the counts, where processes do not wait for each other."""
        counts = self._group.staleness()
        if counts is not None:
            line = StalenessEvent(len(run.history) + 1, run.step, counts)
            self._directory.write(line)
            self._reporter.say(f"{'staleness':<11}{line.in_words()}")


class UnheardNotes(BuiltInCallback):
    """Records, once, that nobody reads what the run prints."""

    def __init__(self, directory: "RunDirectory | NoRunDirectory", reporter: Reporter) -> None:
        self._directory, self._reporter, self._noted = directory, reporter, False

    def on_run_start(self, run: RunView) -> None:
        """Look at the lines before the first epoch."""
        self._note()

    def on_epoch_end(self, run: RunView, epoch: Epoch) -> None:
        """Look at the lines of the epoch."""
        self._note()

    def on_run_end(self, run: RunView, end: RunEnd) -> None:
        """Look at the last lines."""
        self._note()

    def _note(self) -> None:
        if self._reporter.unheard is not None and not self._noted:
            self._noted = True
            self._directory.write(UnheardEvent(self._reporter.unheard))


class ReplicaCheck(BuiltInCallback):
    """Compares a network's parameters over its devices and the processes of ``group``.

    Every replica makes the same update of the same sum, so parameters that differ in one bit mean a
    fault: of memory, of a link, of the kvstore, or of code that writes to one replica.

    ``statistics``: compare BatchNorm's running statistics, too; they differ by design until they
    are averaged, unless ``sync_bn`` shares them. ``replicated``: the parameters, on all devices
    that should hold the same, where they are not simply those of ``net``. ``every``: compare after
    so many steps.
    """

    def __init__(
        self,
        net: gluon.HybridBlock,
        statistics: bool = False,
        group: Group = ALONE,
        replicated: Optional[Sequence[Replicated]] = None,
        every: Optional[int] = None,
    ) -> None:
        self._every = every
        graph = None if statistics else graph_with_states(net)
        left_out = set() if graph is None else set(graph.list_auxiliary_states())
        params = list(net.collect_params().values()) if replicated is None else replicated
        self._params = [param for param in params if param.name not in left_out]
        self._ctxs = list(dict.fromkeys(ctx for p in self._params for ctx in p.list_ctx()))
        self._group = group
        self._names = self._all_names()
        self._agreed = 0  # the last step after which all were equal

    @classmethod
    def of(cls, plan: Plan, strategy: Strategy) -> ReplicaCheck:
        """The check of a run with --check-replicas."""
        return cls(
            strategy.net, plan.sync_bn, plan.group, strategy.replicated(), plan.check_replicas
        )

    def on_step_end(self, run: RunView, step: int) -> None:
        """Compare after every so many steps, and after the last one."""
        if (self._every and step % self._every == 0) or run.is_last_step:
            self.after(step)

    def _all_names(self) -> List[str]:
        """The devices of all processes, an equal number of places for each."""
        counts = self._group.everyones(np.array(len(self._ctxs)))
        self._places = int(counts.max())
        known = [[ctx.device_typeid, ctx.device_id] for ctx in self._ctxs]
        table = self._of_group(np.array(known, float)).astype(int)
        several = self._group.size > 1
        return [
            f"{mx.Context(kind, number)}" + several * f" of process {place // self._places}"
            if (kind := mx.Context.devtype2str.get(typeid))
            else ""
            for place, (typeid, number) in enumerate(table)
        ]

    def _of_group(self, rows: "NDArray[Any]") -> "NDArray[Any]":
        """The rows of this process's devices, among those of all processes."""
        padded = np.zeros((self._places, rows.shape[1]))
        padded[: len(rows)] = rows
        return self._group.everyones(padded).reshape(-1, rows.shape[1])

    def after(self, step: int) -> None:
        """Compare, once all that is queued is done; every process calls this after the same steps.

        Raises DriftError, in every process, for the first parameter that differs.
        """
        nd.waitall()  # BatchNorm's backward writes behind the engine's back
        digests = np.zeros((len(self._ctxs), len(self._params)))  # 0: the device has no replica
        for column, param in enumerate(self._params):
            for ctx in param.list_ctx():
                # one bit, or several next to each other, always change the CRC
                digest = zlib.crc32(param.data(ctx).asnumpy().data)
                digests[self._ctxs.index(ctx), column] = digest + 1
        everywhere = self._of_group(digests)
        for param, column in zip(self._params, everywhere.T):
            self._compare(param.name, column, step)
        self._agreed = step

    def _compare(self, name: str, digests: "NDArray[Any]", step: int) -> None:
        held = {place: digest for place, digest in zip(self._names, digests) if digest}
        counts = Counter(held.values()).most_common(2)
        if len(counts) < 2:
            return
        (usual, most), (_, next_most) = counts
        drifted = [place for place, digest in held.items() if digest != usual]
        rest = ", ".join(place for place in held if place not in drifted)
        which = f"on {', '.join(drifted)} differs from {rest}"
        if most == next_most:
            which = f"differs between {', '.join(held)}"
        before = f", not yet after step {self._agreed}" if self._agreed else ""
        raise DriftError(
            f"replicas have drifted apart: {name} {which} after step {step}{before}; "
            "train again with another --kvstore, or on other devices, to see whose fault it is"
        )
