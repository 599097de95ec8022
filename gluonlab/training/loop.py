"""Trains a network: from a TrainConfig to the run's folder with the results.

`train` makes the plan, `train_plan` executes it, and `TrainingLoop` runs its epochs and batches.
`finalize_run` completes the run's folder, also after an error or Ctrl-C.
"""

from __future__ import annotations

import hashlib
import shlex
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterator, Optional, Sequence

import numpy as np
from mxnet import gluon, nd
from mxnet.base import MXNetError

from gluonlab.config import TrainConfig
from gluonlab.data.sets.from_gluon_datasets import warn_of_ignored_loader_settings
from gluonlab.engine.nd_and_np_arrays import convert_network_for_user, nd_semantics
from gluonlab.errors import DivergedError, GluonlabError, UsageError
from gluonlab.files.array_files import read_arrays, save_arrays
from gluonlab.host.out_of_memory import explain_exhausted_resource, memory_limit
from gluonlab.host.resources import release_free_memory as give_back_memory
from gluonlab.host.signals import EXCEPTION_BY_SIGNAL, StopRequest
from gluonlab.kvstores.gradient_compression import FP16
from gluonlab.kvstores.process_groups import SINGLE_PROCESS, ProcessGroup
from gluonlab.parallel.strategy import MakeStrategy, Strategy
from gluonlab.runs import run_schema
from gluonlab.runs.checkpoint import find_parameters_file, list_checkpoints
from gluonlab.runs.run_result import Result
from gluonlab.runs.run_schema import CONFUSION, EXPORT, PARAMETERS, DivergedEvent
from gluonlab.runs.run_writer import NoRunDirectory, RunDirectory, make_end_event
from gluonlab.training.builtin_callbacks import (
    EarlyStopping,
    FirstStepTimer,
    LossScaleRecorder,
    OutputErrorRecorder,
    ReplicaCheck,
    StalenessRecorder,
    TensorBoard,
    epoch_score,
)
from gluonlab.training.callbacks import Callbacks, RunView, make_callbacks
from gluonlab.training.checkpoint_writer import broadcast_arrays
from gluonlab.training.evaluate import Confusion, Score, evaluation_loader, validate, write_confusion_picture
from gluonlab.training.plan import Plan
from gluonlab.training.reporter import ConsoleReporter, Reporter, format_epoch
from gluonlab.training.resume import (
    ExistingRun,
    ResumePoint,
    adapt_to_resumed_run,
    archive_and_restart,
    describe_differences,
    enable_checkpoints,
    find_existing_run,
    keep_recorded_settings,
    open_run_directory,
    read_finished_result,
    read_resume_point,
    resumed_config,
)
from gluonlab.training.stop_consensus import StopCoordinator
from gluonlab.training.train_state import TrainState, set_strategy_parameters
from gluonlab.training.training_setup import (
    make_plan_on_all_ranks,
    measure_memory_line,
    prepare,
    read_dataset_on_all_ranks,
    warnings_after_training,
)
from gluonlab.training.user_components import (
    check_argument,
    check_same_user_components,
    explain_unknown_arguments,
    make_user_components,
)
from gluonlab.training.user_metrics import format_metrics

if TYPE_CHECKING:
    from gluonlab.export.onnx_graph import Agreement


@explain_unknown_arguments
def train(
    config: "TrainConfig | None" = None,
    strategy: Optional[MakeStrategy] = None,
    reporter: Optional[Reporter] = None,
    dataset: Any = None,
    group: ProcessGroup = SINGLE_PROCESS,
    resume: "str | Path | ResumePoint | None" = None,
    autoresume: bool = False,
    callbacks: Sequence[Any] = (),
    net: Any = None,
    loss: Optional[gluon.HybridBlock] = None,
    metrics: Any = None,
) -> Result:
    """Train a network on the devices of a config, and write the run's folder.

    The run computes with mx.nd. After ``npx.set_np()`` the trained network is an mx.np network.
    After an error or Ctrl-C the folder contains everything up to the last complete epoch. A
    UsageError in the first epoch, such as for an image that cannot be decoded, removes the folder.

    In the main thread, Ctrl-C, SIGTERM and SIGHUP let the current step or evaluation batch finish.
    A second Ctrl-C does not wait for it, and ends the process if MXNet never returns. A signal to
    one process of a group stops all processes after the same step, at most eight steps later.

    Args:
        config: the settings of the run. The default is ``TrainConfig()``, or the recorded settings
            of the run that is resumed.
        strategy: a function that makes the parallelism strategy, in place of ``config.split``. Its
            attribute ``devices_per_copy`` (default 1) is the number of devices that share a copy of
            the network.
        reporter: prints the progress. The default prints lines and a progress bar.
        dataset: a data set from `gluonlab.data.from_arrays` or `gluonlab.data.load_dataset`, or a
            pair of Gluon data sets (train, test), as for `gluonlab.data.from_datasets`. The default
            is the data set that the config names.
        group: the processes that train together. Each of them calls `train`.
        resume: a run to resume from its last checkpoint: its folder, which rank 0 reads, or a
            `gluonlab.training.resume.ResumePoint`.
        autoresume: start a run in the folder ``config.out``, or resume the run in it. If that run
            is complete, return its result.
        callbacks: `gluonlab.training.callbacks.Callback` objects or classes. Only rank 0 calls
            them.
        net: a HybridBlock, or a function that makes one, in place of ``config.model``. It maps
            images (n, C, H, W) to scores (n, classes).
        loss: a HybridBlock of scores (n, classes) and labels (n,), with one value for each image.
        metrics: more metrics of the test images, see `gluonlab.training.user_metrics`.

    Returns:
        The `gluonlab.runs.run_result.Result`: the metrics of each epoch, and the trained network.

    Raises:
        UsageError: the config cannot be used. Nothing has been written.
        NoMemoryError: memory, file descriptors or threads are exhausted.
        DivergedError: the loss or a parameter is not finite, or the loss is too large to recover.
        DriftError: with ``check_replicas``, the replicas differ.
        CallbackError: a callback raised an exception.
    """
    config = None if config is None else TrainConfig.require("train", config)
    check_argument("strategy", strategy, callable(strategy), "TrainConfig(strategy=...) names one")
    check_argument("reporter", reporter, isinstance(reporter, Reporter), "give a Reporter")
    check_argument("group", group, hasattr(group, "rank"), "gluonlab launch makes one")
    is_resumable = isinstance(resume, (str, Path, ResumePoint))
    check_argument("resume", resume, is_resumable, "give a run's folder")
    resume_point = read_resume_point(resume, group) if isinstance(resume, (str, Path)) else resume
    if resume_point is not None:
        config = resumed_config(resume_point, group) if config is None else adapt_to_resumed_run(config, resume_point)
    config = config or TrainConfig()
    existing_run = None
    if autoresume:
        config = enable_checkpoints(config, resume_point, group)
        existing_run = find_existing_run(config, group)
        if existing_run is not None:
            config = keep_recorded_settings(config, existing_run, group)
    user_callbacks = make_callbacks(callbacks)
    components = make_user_components(net, loss, metrics)
    # outside nd_semantics: a data set of the user's yields arrays of the user's kind
    with explain_resource_limits():
        loaded_data = read_dataset_on_all_ranks(dataset, config, components, group)
    with nd_semantics(), explain_resource_limits():
        devices_per_copy = getattr(strategy, "devices_per_copy", 1)
        plan = make_plan_on_all_ranks(
            config, loaded_data, group, existing_run is not None, components, devices_per_copy
        )
        recorded = [resume_point and resume_point.description]
        if existing_run is not None:
            continued = existing_run.resume_point
            recorded += [existing_run.finished, continued and continued.description]
        for description in filter(None, recorded):
            # checked before the parameters, whose error would only name a shape that does not fit
            check_same_user_components(str(description.folder), "to train", description.used, plan.component_settings)
        warn_of_ignored_loader_settings(dataset, plan.dataset, plan.global_batch_size, plan.drop_last)
        memory_line = measure_memory_line(plan, strategy)
        result = train_plan(
            plan, strategy, reporter or ConsoleReporter(), memory_line, resume_point, existing_run, user_callbacks
        )
    for block in filter(None, (result.net, components.loss)):
        convert_network_for_user(block)
    return result


def train_plan(
    plan: Plan,
    make_strategy: Optional[MakeStrategy],
    reporter: Reporter,
    memory_line: Optional[str] = None,
    resume_point: Optional[ResumePoint] = None,
    existing_run: Optional[ExistingRun] = None,
    callbacks: Sequence[Any] = (),
) -> Result:
    """Execute a plan, and write the run's folder.

    Args:
        plan: The settings.
        make_strategy: As ``strategy`` of `train`.
        reporter: Prints the progress.
        memory_line: The line of --estimate-memory about the measured memory.
        resume_point: The run to resume, with ``resume`` of `train`.
        existing_run: The run in the plan's folder, with ``autoresume`` of `train`.
        callbacks: The user's callbacks, from `gluonlab.training.callbacks.make_callbacks`.
    """
    start_time = time.perf_counter()
    strategy, header = prepare(plan, make_strategy)
    if existing_run is not None:
        finished_result = read_finished_result(existing_run, plan, strategy)
        if finished_result is not None:
            stopped = finished_result.stopped
            how = "was stopped" if stopped else f"has finished its {plan.epochs} epochs"
            reporter.say(f"{'ended':<11}{existing_run.folder} {how}")
            return finished_result
        resume_point = existing_run.resume_point
        if resume_point is None:
            header.append(f"{'begins':<11}{archive_and_restart(existing_run, plan.group)}")
    run = open_run_directory(plan, strategy, resume_point)
    result = Result(plan, strategy.net, run.path)
    request = StopRequest(partial(describe_unfinished_run, result))
    with request, finalize_run(run, result, request), plan.overlap_context():
        run.write_config(**plan.config_content(strategy.settings()))
        for line in filter(None, [*header, memory_line]):
            reporter.say(line)
        loop = TrainingLoop(plan, strategy, run, result, reporter, request, start_time, callbacks)
        with loop.callbacks.notify_on_failure():
            plan.group.announce_training_start()
            if resume_point is not None:
                loop.resume(resume_point)
            loop.train()
            plan.group.mark_common_exit()  # the rest concerns only rank 0
            if result.confusion is not None:
                run.write(run_schema.ConfusionEvent(result.confusion.tolist()))
            if run.path is not None:
                result.onnx = write_exports(run.path, plan, strategy.net, result.confusion)
                if result.onnx is not None:
                    reporter.say(f"{'export':<11}{result.onnx.in_words()}")
            loop.callbacks.end_run(result.stopped)
            if run.path is not None:
                run.write(make_end_event(run.path, loop.loss_meter.step, time.perf_counter() - loop.state.start_time))
    result.seconds = time.perf_counter() - start_time
    return result


class TrainingLoop:
    """The loop over the epochs of a run: each is trained, evaluated and recorded.

    Callbacks do everything else (`gluonlab.training.builtin_callbacks`). Only rank 0 calls the
    user's callbacks, because only rank 0 has the run's folder.
    """

    def __init__(
        self,
        plan: Plan,
        strategy: Strategy,
        run: "RunDirectory | NoRunDirectory",
        result: Result,
        reporter: Reporter,
        request: StopRequest,
        start_time: float,
        callbacks: Sequence[Any] = (),
    ) -> None:
        """Set up the parts of the loop.

        ``request``: records a signal to end the run. ``start_time``: the start of the run, by
        ``time.perf_counter``.
        """
        self.plan, self.strategy, self.run = plan, strategy, run
        self.result, self.reporter = result, reporter
        self.stopper = StopCoordinator(plan.group, request)
        self.early_stopping = None if plan.early_stopping is None else EarlyStopping(plan.early_stopping)
        self.callbacks = Callbacks(
            [
                FirstStepTimer(result, reporter, start_time),
                LossScaleRecorder(plan.loss_scale, run, reporter),
                StalenessRecorder(plan.group, run, reporter),
                *([self.early_stopping] if self.early_stopping is not None else []),
                *([TensorBoard()] if plan.tensorboard and plan.group.rank == 0 else []),
                *(callbacks if plan.group.rank == 0 else ()),
                OutputErrorRecorder(run, reporter),
                *([ReplicaCheck.for_plan(plan, strategy)] if plan.check_replicas is not None else []),
            ],
            RunView(plan, result, self.stopper),
            self.stopper,
        )
        self.state = TrainState(plan, strategy, run, start_time, self.stopper, self.callbacks)
        self.loss_meter = self.state.loss_meter
        self.profiler = None
        if plan.profile is not None:
            from gluonlab.training.profile_steps import StepProfiler

            self.profiler = StepProfiler(strategy, plan.profile, plan.steps_per_epoch, plan.ctxs, run, reporter.say)
        self.best_weights = BestWeights(run, strategy, plan.group, self.early_stopping)
        self.test_batches = evaluation_loader(plan, strategy.inputs)

    def resume(self, resume_point: ResumePoint) -> None:
        """Restore the state of the run's last checkpoint, and record which settings differ."""
        self.result.history += resume_point.read_history(self.plan.group)
        best_score = max(map(self._epoch_score, self.result.history), default=-np.inf)
        step_losses = self.state.restore(resume_point.checkpoint, best_score)
        callback_states = resume_point.checkpoint.state.get("callbacks", {})
        lines = [
            f"goes on from step {self.loss_meter.step:,}",
            *self.callbacks.restore(callback_states, resume_point.keeps_stop),
            *describe_differences(resume_point, self.plan, self.strategy, self.state.draws_random_numbers),
        ]
        if self.state.loses_random_state:
            lines.append("Dropout draws other numbers than it would have: cuDNN cannot be seeded again")
        if not self.best_weights.restore():
            lines.append("the parameters of the best epoch are gone: those of a later one stay")
        self.state.record_steps(self.state.loader.epoch + 1, step_losses)
        self.run.write(run_schema.ResumedEvent(self.loss_meter.step, "; ".join(lines)))
        for line in lines:
            self.reporter.say(f"{'resumed':<11}{line}")

    def train(self) -> None:
        """Train until the last epoch, or until a callback stops it."""
        self.callbacks.start_run(self.loss_meter.step)
        self.stopper.synchronize()
        finished, last = self.state.finished_epochs, self.plan.epochs
        if finished and self.stopper.is_stopping and not self.state.images_done:
            last = finished
        # Nothing is left to train, but files that follow the last epoch may be missing.
        if finished == last:
            self.best_weights.save(last)
            if self.plan.confusion and self.early_stopping is None:
                self.result.confusion = self._evaluate().confusion
        try:
            for epoch in range(finished + 1, last + 1):
                self._run_epoch(epoch)
                if self.stopper.is_stopping:
                    break
        except KeyboardInterrupt:
            # Either the checkpoint for this signal is complete, or the user pressed Ctrl-C twice
            # and does not want to wait for it.
            if self.stopper.signal_received:
                self.state.checkpoints.cancel()
            raise
        finally:
            if self.profiler is not None:
                self.profiler.close()
            self.state.checkpoints.close()
        self.best_weights.load()
        if self.early_stopping is not None:
            self.result.best_epoch = self.early_stopping.best_epoch
            # the best epoch may have been trained before the run was resumed
            if self.plan.confusion and self.result.confusion is None:
                self.result.confusion = self._evaluate().confusion
        if self.stopper.is_stopping and self.state.finished_epochs < self.plan.epochs:
            self._record_stop()
        for line in warnings_after_training(self.result):
            self.reporter.say(f"{'remark':<11}{line}")

    def _run_epoch(self, epoch: int) -> None:
        """Train an epoch, evaluate it, and write its results."""
        line = ""
        images, resumed_images = self.plan.images_per_epoch, self.state.images_done
        self.reporter.epoch_begins(epoch, self.plan.epochs, images)
        if resumed_images:
            self.reporter.step_done(resumed_images, [])
        else:
            self.callbacks.call_all("on_epoch_start", epoch)
        try:
            if not (self.state.within_epoch and self.stopper.stops_after(self.loss_meter.step)):
                self._train_batches(epoch)
            self.state.record_steps(epoch, self.loss_meter.flush())
            if not self.plan.group.is_synchronous and self.stopper.agreed_signal is not None:
                self._exit_on_signal()
            nd.waitall()  # the time of this epoch includes its last updates
            training_seconds = time.perf_counter() - self.state.epoch_start_time
            self.callbacks.report_remaining_steps()
            score = self._evaluate()
            if score.metrics:
                self.reporter.say(f"{'metrics':<11}{format_metrics(score.metrics)}")
            self.callbacks.call_all("on_evaluation", score)
            if self.early_stopping is None or self.early_stopping.best_epoch == epoch:
                self.result.confusion = score.confusion
            record = self._epoch_record(epoch, training_seconds, score)
            self.best_weights.save(epoch)
            self.run.write(record)
            self.result.history.append(record)
            line = format_epoch(record, self.plan.epochs)  # print only what has been written
        finally:
            if self.loss_meter.steps_before_divergence:
                self.state.record_steps(epoch, self.loss_meter.steps_before_divergence)
            self.reporter.epoch_ends(line)
        self.callbacks.call_all("on_epoch_end", record)
        if not self.state.within_epoch:
            self.state.after_epoch(self._epoch_score(record))
        self.stopper.synchronize()

    def _train_batches(self, epoch: int) -> None:
        """Train on the remaining batches of an epoch. End earlier if the training is stopped."""
        with self.state.epoch_batches() as batches:
            for batch in batches:
                if self.profiler is None:
                    losses = self.strategy.step(batch)
                else:
                    losses = self.profiler.step(batch, self.loss_meter.step + 1)
                # asynchronous processes count only their own images
                images = batch.size if self.plan.group.is_synchronous else batch.local_size
                step_losses = self.loss_meter.append(losses, images)
                self.state.record_steps(epoch, step_losses)
                self.reporter.step_done(batch.size, step_losses)
                self.callbacks.after_step(self.loss_meter.step)
                # asynchronous processes agree only at the end of an epoch
                is_last = self.plan.group.is_synchronous and self.stopper.stops_after(self.loss_meter.step)
                if not is_last:
                    self.state.after_step()
                if self.stopper.agreed_signal is not None:
                    self._exit_on_signal()
                if is_last and self.state.within_epoch:
                    if self.plan.checkpoint_period is not None:
                        self.state.save_before_exit()  # so that this epoch can be resumed
                    break
                if self.loss_meter.must_synchronize:
                    break

    def _evaluate(self) -> Score:
        """Evaluate the network on the test images. Each process evaluates a part of them."""
        batches = self.stopper.poll_between(self.test_batches, self._exit_on_signal)
        return validate(self.strategy, batches, self.plan, self.loss_meter.step)

    def _epoch_record(self, epoch: int, training_seconds: float, score: Score) -> run_schema.Epoch:
        """Return the line of metrics.jsonl for an epoch."""
        is_partial = self.state.within_epoch
        return run_schema.Epoch(
            epoch=epoch,
            step=self.loss_meter.step,
            images=self.state.images_done if is_partial else self.plan.images_per_epoch,
            training_seconds=training_seconds,
            loss=self.loss_meter.mean_loss(epoch),
            accuracy=score.accuracy,
            validation_loss=score.loss,
            top5_accuracy=score.top5_accuracy,
            metrics=score.metrics,
            waiting=self.state.waiting_seconds / training_seconds,
            lr=self.plan.rates(self.loss_meter.step),
            seconds=time.perf_counter() - self.state.start_time,
        )

    def _epoch_score(self, epoch: run_schema.Epoch) -> float:
        return epoch_score(self.plan.early_stopping, epoch.accuracy, epoch.validation_loss)

    def _record_stop(self) -> None:
        """Record which callback stopped the training. Rank 0 sends the message to all."""
        encoded = (self.callbacks.stop_message or "").encode()
        self.result.stopped = message = self.plan.group.broadcast_bytes(encoded).decode()
        self.run.write(run_schema.StoppedEvent(self.loss_meter.step, message))
        self.reporter.say(f"{'stopped':<11}{message}")

    def _exit_on_signal(self) -> None:
        """Write a checkpoint, and raise the signal's exception, in all processes together."""
        try:
            self.state.save_before_exit()
        except Exception:  # the other processes must not wait for this one
            self.plan.group.mark_common_exit()
            raise
        self.plan.group.mark_common_exit()
        self.stopper.raise_signal()


class BestWeights:
    """Writes the run's parameters: of the best epoch with early stopping, else of the last epoch."""

    def __init__(
        self,
        run: "RunDirectory | NoRunDirectory",
        strategy: Strategy,
        group: ProcessGroup,
        early_stopping: Optional[EarlyStopping],
    ) -> None:
        self._run, self._strategy, self._group = run, strategy, group
        self._early_stopping = early_stopping

    def save(self, epoch: int) -> None:
        """Write the parameters after this epoch, unless an earlier epoch was better."""
        early_stopping, folder = self._early_stopping, self._run.path
        if early_stopping is None or early_stopping.best_epoch in (None, epoch):
            self._run.write_parameters(self._strategy.net)
            if early_stopping is not None and folder is not None:
                early_stopping.digest = _parameters_digest(folder)

    def restore(self) -> bool:
        """Put the best epoch's parameters into the run's folder again, when the run is resumed.

        A killed run may have finished later epochs than its last checkpoint, and have replaced the
        file. Return False if no checkpoint has the parameters. All processes then forget the best
        epoch.
        """
        early_stopping, folder, is_available = self._early_stopping, self._run.path, True
        if early_stopping is None:
            return True
        digest = early_stopping.digest
        if folder is not None and digest and _parameters_digest(folder) != digest:
            file = find_parameters_file(folder, digest)
            is_available = file is not None
            if file is not None:
                save_arrays(folder / PARAMETERS, read_arrays(file))
        is_available = bool(self._group.all_gather(np.array(is_available))[0])
        if not is_available:
            early_stopping.forget_best()
        return is_available

    def load(self) -> None:
        """With early stopping, load the best epoch's parameters in every process."""
        if self._early_stopping is not None:
            arrays = {} if self._run.path is None else read_arrays(self._run.path / PARAMETERS)
            set_strategy_parameters(self._strategy, broadcast_arrays(arrays, self._group))


def _parameters_digest(folder: Path) -> str:
    """Return the SHA-256 of the run's parameters, or an empty string if there is no file."""
    with suppress(FileNotFoundError):
        return hashlib.sha256((folder / PARAMETERS).read_bytes()).hexdigest()
    return ""


FP16_HINT = f"or leave --compress {FP16} out, where gradients beyond 65504 become infinite"


@contextmanager
def finalize_run(run: "RunDirectory | NoRunDirectory", result: Result, request: StopRequest) -> Iterator[None]:
    """Complete the run's folder when the with statement ends, even by an exception.

    - The folder then contains the curves of all finished epochs, and the reason of a divergence.
    - A KeyboardInterrupt gets a message that describes the unfinished run.
    - If the exit after a signal fails, the message includes the error.
    - After a UsageError before the first finished epoch, the folder is removed.
    """
    try:
        yield
        _draw_curves(run, result)
        request.raise_if_requested()
        run.close()
    except BaseException as error:
        if isinstance(error, DivergedError) and result.plan.compress == FP16:
            error.args = (f"{error}; {FP16_HINT}",)
        events = [DivergedEvent(str(error))] if isinstance(error, DivergedError) else []
        for finish in (partial(run.write, *events), partial(_draw_curves, run, result), run.close):
            # a further error, or a second Ctrl-C, must not replace the first error
            with suppress(Exception, KeyboardInterrupt):
                finish()
        if isinstance(error, Exception) and request.number is not None:
            message = f"{describe_unfinished_run(result)}; {explain_exhausted_resource(error) or error}"
            raise EXCEPTION_BY_SIGNAL[request.number](message) from error
        if isinstance(error, UsageError) and not result.history:
            run.discard()
        if isinstance(error, KeyboardInterrupt):
            error.args = (describe_unfinished_run(result),)
        elif isinstance(error, DivergedError) and result.history:
            error.args = (f"{error}{_evaluate_hint(result)}",)
        raise


MAX_ENGINE_ERRORS = 100  # operators whose errors are discarded after memory is exhausted


@contextmanager
def explain_resource_limits() -> Iterator[None]:
    """Convert errors of Python, MXNet and the system about exhausted resources to NoMemoryError.

    On exit, free memory is returned to the system. Otherwise many trainings in one process would
    need more memory than the largest of them.
    """
    try:
        yield
    except GluonlabError:
        raise
    except Exception as error:
        explained = explain_exhausted_resource(error)
        if explained is None:
            raise
        # With a memory limit, a worker thread of the engine may have failed to start. Waiting for
        # its operators would then never end.
        if memory_limit() is None:
            _discard_engine_errors()
        raise explained from error
    finally:
        give_back_memory()


def _discard_engine_errors() -> None:
    """Wait for all queued operators, and discard their errors. MXNet would raise them at exit."""
    for _ in range(MAX_ENGINE_ERRORS):
        with suppress(MXNetError):
            nd.waitall()
            break


def write_exports(
    folder: Path, plan: Plan, net: gluon.HybridBlock, confusion: Optional[Confusion]
) -> "Optional[Agreement]":
    """Write the exported network and the picture of the confusion matrix, if requested.

    Return how closely an exported ONNX model agrees with MXNet, or None. Raises OutputError, and
    the errors of `write_export`.
    """
    agreement = None
    if plan.export is not None:
        from gluonlab.export.export_network import write_export

        user_net = net if plan.user_components.net is not None else None
        agreement = write_export(net, plan.model, plan.dataset, folder / EXPORT, user_net, plan.export)
    if confusion is not None:  # last, so that an error in drawing loses nothing else
        write_confusion_picture(confusion, plan.dataset.classes, folder / CONFUSION)
    return agreement


def _draw_curves(run: "RunDirectory | NoRunDirectory", result: Result) -> None:
    if result.history:
        run.draw_curves()


def describe_unfinished_run(result: Result) -> str:
    """Describe what the folder of an unfinished run contains, and how to resume."""
    folder = result.run_dir
    if folder is None:
        return "rank 0 has written the finished epochs"
    hint = _resume_hint(result)
    if not result.history:
        return f"no epoch was finished; {folder} holds the steps of the first{hint}"
    epochs = f"{len(result.history)} of {result.plan.epochs}"
    finished = f"{folder} holds every epoch that was finished, {epochs}"
    return f"{finished}{_evaluate_hint(result)}{hint}"


def _resume_hint(result: Result) -> str:
    """Return the command that resumes the run; "" if it has no checkpoint."""
    if result.run_dir is None or not list_checkpoints(result.run_dir):
        return ""
    command = result.plan.group.command
    return f"; to go on: {command} resume {shlex.quote(str(result.run_dir))}"


def _evaluate_hint(result: Result) -> str:
    """Return the gluonlab evaluate command that writes the requested --confusion and --export files."""
    plan = result.plan
    outputs = {"--confusion": plan.confusion, f"--export {plan.export}": plan.export}
    options = [option for option, is_requested in outputs.items() if is_requested]
    if not options or result.run_dir is None:
        return ""
    evaluate = f"gluonlab evaluate {shlex.quote(str(result.run_dir))}"
    return f"; for {' and '.join(options)}: {evaluate} {' '.join(options)}"
