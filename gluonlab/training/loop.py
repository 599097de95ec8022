"""Trains a network with the settings of a TrainConfig, and writes the run's folder.

`train` makes the plan, `train_plan` executes it, and `TrainingLoop` runs its epochs and batches.
`gluonlab.training.finish_run` completes the run's folder, also after an error or Ctrl-C.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any, Optional, Sequence

import numpy as np
from mxnet import gluon, nd

from gluonlab.config import TrainConfig
from gluonlab.data.sets.from_gluon_datasets import warn_of_ignored_loader_settings
from gluonlab.engine.nd_and_np_arrays import convert_network_for_user, nd_semantics
from gluonlab.host.signals import StopRequest
from gluonlab.kvstores.process_groups import SINGLE_PROCESS, ProcessGroup
from gluonlab.parallel.strategy import MakeStrategy, Strategy
from gluonlab.runs import run_schema
from gluonlab.runs.run_result import Result
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
from gluonlab.training.evaluate import Score, evaluation_loader, validate
from gluonlab.training.finish_run import (
    BestWeights,
    describe_unfinished_run,
    explain_resource_limits,
    finalize_run,
    write_exports,
)
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
from gluonlab.training.train_state import TrainState
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
    """Train a model on one or more devices, and write the run directory.

    After an error or Ctrl-C, the run directory contains everything up to the last complete epoch.
    If the first epoch fails with a UsageError, the run directory is removed.

    After Ctrl-C, SIGTERM or SIGHUP, the run finishes the current step, writes a checkpoint, and
    stops. A second Ctrl-C stops the run immediately. A signal to one process of a group stops all
    processes after the same step, at most eight steps later.

    Args:
        config: The settings of the run. The default is ``TrainConfig()``, or the recorded settings
            of a resumed run.
        strategy: A function that creates the parallelism strategy, instead of ``config.strategy``.
            The function's attribute ``devices_per_copy`` is the number of devices per model
            replica, by default 1.
        reporter: The object that prints the progress. The default prints lines and a progress bar.
        dataset: A data set from `gluonlab.data.from_arrays` or `gluonlab.load_dataset`, or a pair
            of Gluon data sets (train, validation). The default is ``config.dataset``.
        group: The process group. Each process calls `train`.
        resume: The run directory of a run to resume from its last checkpoint, or a
            `gluonlab.training.resume.ResumePoint`. Only rank 0 reads the directory.
        autoresume: Whether to resume the run in ``config.out``, if there is one. If that run is
            finished, its result is returned.
        callbacks: A list of `gluonlab.training.callbacks.Callback` objects or classes. Only rank 0
            calls them.
        net: A HybridBlock, or a function that creates a HybridBlock, instead of ``config.model``.
            The block maps images (n, C, H, W) to scores (n, classes).
        loss: A HybridBlock that maps scores (n, classes) and labels (n,) to one loss per image,
            (n,). The default is softmax cross-entropy.
        metrics: Additional metrics of the validation images: a function of scores (n, classes) and
            labels (n,), a metric of ``mx.metric``, a list of metrics, or a dictionary of metrics by
            name.

    Returns:
        The result of the run, with the metrics of each epoch and the trained model.

    Raises:
        UsageError: An argument or a setting is invalid. Nothing is written.
        NoMemoryError: Memory, file descriptors or threads are exhausted.
        DivergedError: The loss or a parameter is not finite, or the loss is too large.
        DriftError: The replicas differ, and ``check_replicas`` is set.
        CallbackError: A callback raised an exception.
    """
    config = None if config is None else TrainConfig.require("train", config)
    check_argument(
        "strategy", strategy, callable(strategy), "pass a class or function, or use TrainConfig(strategy=...)"
    )
    check_argument("reporter", reporter, isinstance(reporter, Reporter), "pass a Reporter")
    check_argument("group", group, hasattr(group, "rank"), "remove group, because gluonlab launch sets it")
    is_resumable = isinstance(resume, (str, Path, ResumePoint))
    check_argument("resume", resume, is_resumable, "pass a run directory")
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
        make_strategy: See ``strategy`` of `train`.
        reporter: The object that prints the progress.
        memory_line: The line of --estimate-memory about the measured memory.
        resume_point: The run to resume, if `train` was called with ``resume``.
        existing_run: The run in the plan's folder, if `train` was called with ``autoresume``.
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
            header.append(f"{'restarted':<11}{archive_and_restart(existing_run, plan.group)}")
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
    """The loop over the epochs of a run: each epoch is trained, evaluated and recorded.

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
        """Set up the components of the loop.

        ``request``: records signals that end the run. ``start_time``: the start of the run, by
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
        self.validation_batches = evaluation_loader(plan, strategy.inputs)

    def resume(self, resume_point: ResumePoint) -> None:
        """Restore the state of the run's last checkpoint, and record which settings differ."""
        self.result.history += resume_point.read_history(self.plan.group)
        best_score = max(map(self._epoch_score, self.result.history), default=-np.inf)
        step_losses = self.state.restore(resume_point.checkpoint, best_score)
        callback_states = resume_point.checkpoint.state.get("callbacks", {})
        lines = [
            f"from step {self.loss_meter.step:,}",
            *self.callbacks.restore(callback_states, resume_point.keeps_stop),
            *describe_differences(resume_point, self.plan, self.strategy, self.state.draws_random_numbers),
        ]
        if self.state.loses_random_state:
            lines.append("Dropout uses different random numbers, because cuDNN cannot restore its random state")
        if not self.best_weights.restore():
            lines.append("the best epoch's parameters are missing: a later epoch's parameters are kept instead")
        self.state.record_steps(self.state.loader.epoch + 1, step_losses)
        self.run.write(run_schema.ResumedEvent(self.loss_meter.step, "; ".join(lines)))
        for line in lines:
            self.reporter.say(f"{'resumed':<11}{line}")

    def train(self) -> None:
        """Train until the last epoch, or until a callback stops the training."""
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
        """Train on the remaining batches of an epoch. Return early if the training is stopped."""
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
        """Evaluate the network on the validation images, of which each process evaluates a part."""
        batches = self.stopper.poll_between(self.validation_batches, self._exit_on_signal)
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
            val_accuracy=score.accuracy,
            val_loss=score.loss,
            val_top5_accuracy=score.top5_accuracy,
            metrics=score.metrics,
            waiting=self.state.waiting_seconds / training_seconds,
            lr=self.plan.rates(self.loss_meter.step),
            seconds=time.perf_counter() - self.state.start_time,
        )

    def _epoch_score(self, epoch: run_schema.Epoch) -> float:
        return epoch_score(self.plan.early_stopping, epoch.val_accuracy, epoch.val_loss)

    def _record_stop(self) -> None:
        """Record which callback stopped the training. Rank 0 sends the message to all processes."""
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
