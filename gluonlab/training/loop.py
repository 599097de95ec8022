"""train(TrainConfig(...)): a whole run, from the plan to the folder with its results.

`train` makes the plan, `train_plan` carries it out, and `TrainingLoop` is its epochs and batches.
"""

from __future__ import annotations

import hashlib
import shlex
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterator, Optional, Sequence

import numpy as np
from mxnet import gluon, nd
from mxnet.base import MXNetError

from gluonlab.config import TrainConfig
from gluonlab.config.option_types import ONNX
from gluonlab.data.sets.gluon_datasets import warn_of_loaders
from gluonlab.engine.np_compatibility import convert_network_for_user, nd_semantics
from gluonlab.errors import DivergedError, GluonlabError, UsageError
from gluonlab.files.array_files import read_arrays, save_arrays
from gluonlab.host.out_of_memory import explain_exhausted_resource, memory_limit
from gluonlab.host.resources import release_free_memory as give_back_memory
from gluonlab.host.signals import EXCEPTION_BY_SIGNAL, StopRequest
from gluonlab.kvstores.gradient_compression import FP16
from gluonlab.kvstores.process_groups import ALONE, Group
from gluonlab.parallel.strategy import MakeStrategy, Strategy
from gluonlab.runs import run_schema
from gluonlab.runs.checkpoint import checkpoints, with_parameters
from gluonlab.runs.run_result import Result
from gluonlab.runs.run_schema import CONFUSION, EXPORT, PARAMETERS, DivergedEvent
from gluonlab.runs.run_writer import NoRunDirectory, RunDirectory, ended
from gluonlab.training.builtin_callbacks import (
    EarlyStopping,
    FirstStepTimer,
    LossScaleNotes,
    ReplicaCheck,
    StalenessNotes,
    TensorBoard,
    UnheardNotes,
    goodness,
)
from gluonlab.training.callbacks import Callbacks, RunView, made
from gluonlab.training.checkpoint_writer import arrays_of_first
from gluonlab.training.evaluate import Confusion, Score, evaluation_loader, validate, write_picture
from gluonlab.training.plan import Plan
from gluonlab.training.reporter import ConsoleReporter, Reporter, epoch_in_words
from gluonlab.training.resume import (
    Begun,
    Interrupted,
    anew,
    as_begun,
    asked,
    begun,
    differences,
    going_on,
    interrupted,
    result_of,
    run_directory,
    with_checkpoints,
)
from gluonlab.training.stop_consensus import Consensus
from gluonlab.training.train_state import TrainState, put_parameters
from gluonlab.training.training_setup import (
    measured_memory,
    plan_together,
    prepare,
    read_together,
    remarks_after,
)
from gluonlab.training.user_components import answers_others, check_kind, check_same_own, make_own
from gluonlab.training.user_metrics import in_words

if TYPE_CHECKING:
    from gluonlab.export.onnx_graph import Agreement


@answers_others
def train(
    config: "TrainConfig | None" = None,
    strategy: Optional[MakeStrategy] = None,
    reporter: Optional[Reporter] = None,
    dataset: Any = None,
    group: Group = ALONE,
    resume: "str | Path | Interrupted | None" = None,
    autoresume: bool = False,
    callbacks: Sequence[Any] = (),
    net: Any = None,
    loss: Optional[gluon.HybridBlock] = None,
    metrics: Any = None,
) -> Result:
    """Train as ``config`` says, on the devices it names, and write the run's folder.

    ``strategy``: how network and batches lie on the devices, in place of what ``split`` says. Its
    attribute ``devices_per_copy`` (default 1) says how many devices share a copy of the network.
    ``dataset``: the one that the config names, where it has been read already, or one of the user's
    own, as `gluonlab.data.from_arrays` makes it; or two of Gluon, (train, test), as for
    `gluonlab.data.from_datasets`. ``group``: the processes that train together, each of which calls
    this. ``resume``: the folder, which rank 0 reads, of a run that goes on from its last
    checkpoint, or what `gluonlab.training.resume.interrupted` found there; as it was asked for,
    without a ``config``, or as one made by `gluonlab.training.resume.asked`. ``autoresume``: begin
    a run in the folder ``config.out``, or go on with the one there; of a run that has ended the
    result is given again. ``callbacks``: see `gluonlab.training.callbacks.Callback`; those of
    rank 0 are told. ``net``,
    ``loss``: the user's own, in place of the config's, see
    `gluonlab.training.user_components.UserComponents`.
    ``metrics``: more numbers of the test images, see `gluonlab.training.user_metrics`.

    Raises a UsageError before anything is written when the config cannot be carried out,
    NoMemoryError when memory, descriptors or threads are used up, and DivergedError when the loss
    is no longer a number, or beyond recovery, or the parameters are not finite after an epoch;
    DriftError, where ``check_replicas`` finds that replicas differ; CallbackError where a callback
    fails. The run computes with mx.nd;
    its network is of the user's kind, mx.np after ``npx.set_np()``. After an error or Ctrl-C the
    folder holds everything up to the last whole epoch; a UsageError before that one, such as for an
    image that cannot be decoded, takes it away again. Ctrl-C, SIGTERM and SIGHUP let the step or
    the batch of an evaluation end that is under way, if this is the main thread; a second Ctrl-C
    does not, and where MXNet never comes back, it ends the process. What comes to one process of a
    group ends all of them after the same step, within eight.
    """
    config = None if config is None else TrainConfig.require("train", config)
    check_kind("strategy", strategy, callable(strategy), "TrainConfig(split=...) names one")
    check_kind("reporter", reporter, isinstance(reporter, Reporter), "give a Reporter")
    check_kind("group", group, hasattr(group, "rank"), "gluonlab launch makes one")
    known = isinstance(resume, (str, Path, Interrupted))
    check_kind("resume", resume, known, "give a run's folder")
    before = resume
    if isinstance(before, (str, Path)):
        before = interrupted(before, group)
    if before is not None:
        config = asked(before, group) if config is None else going_on(config, before)
    config = config or TrainConfig()
    earlier = None
    if autoresume:
        config = with_checkpoints(config, before, group)
        earlier = begun(config, group)
        config = config if earlier is None else as_begun(config, earlier, group)
    listeners, own = made(callbacks), make_own(net, loss, metrics)
    with limits_explained():  # not yet under mx.nd's semantics: data sets give the user's arrays
        data = read_together(dataset, config, own, group)
    with nd_semantics(), limits_explained():
        plan = plan_together(
            config, data, group, earlier is not None, own, getattr(strategy, "devices_per_copy", 1)
        )
        begun_before = [earlier.ended, earlier.run and earlier.run.found] if earlier else []
        for found in [before and before.found, *begun_before]:
            if found is not None:  # else it would be another network that does not fit
                check_same_own(str(found.folder), "to train", found.used, plan.own_settings)
        warn_of_loaders(dataset, plan.dataset, plan.global_batch_size, plan.drop_last)
        taken = measured_memory(plan, strategy)
        result = train_plan(
            plan, strategy, reporter or ConsoleReporter(), taken, before, earlier, listeners
        )
    for each in filter(None, (result.net, own.loss)):
        convert_network_for_user(each)
    return result


def train_plan(
    plan: Plan,
    make_strategy: Optional[MakeStrategy],
    reporter: Reporter,
    memory_line: Optional[str] = None,
    before: Optional[Interrupted] = None,
    earlier: Optional[Begun] = None,
    callbacks: Sequence[Any] = (),
) -> Result:
    """Carry out a plan, as `train` does.

    ``memory_line``: says how much memory such a run takes. ``before``: the run that is resumed.
    ``earlier``: the run in the plan's folder, where it decides how this one begins. ``callbacks``:
    the user's, as `gluonlab.training.callbacks.made` returns them.
    """
    began = time.perf_counter()
    plan, strategy, header = prepare(plan, make_strategy)
    if earlier is not None:
        ended, before = result_of(earlier, plan, strategy), earlier.run
        if ended is not None:
            how = "was stopped" if ended.stopped else f"has finished its {plan.epochs} epochs"
            reporter.say(f"{'ended':<11}{earlier.folder} {how}")
            return ended
        if before is None:
            header.append(f"{'begins':<11}{anew(earlier, plan.group)}")
    run = run_directory(plan, strategy, before)
    result = Result(plan, strategy.net, run.path)
    request = StopRequest(partial(what_is_left, result))
    with request, recorded(run, result, request), plan.pieces():
        run.describe(**plan.description(strategy.settings()))
        for line in filter(None, [*header, memory_line]):
            reporter.say(line)
        loop = TrainingLoop(plan, strategy, run, result, reporter, request, began, callbacks)
        with loop.callbacks.told_of_failures():
            plan.group.begin_together()
            if before is not None:
                loop.resume(before)
            loop.train()
            plan.group.end_together()  # what is left is rank 0's alone
            if result.confusion is not None:
                run.write(run_schema.ConfusionEvent(result.confusion.tolist()))
            if run.path is not None:
                result.onnx = write_extras(run.path, plan, strategy.net, result.confusion)
                if result.onnx is not None:
                    reporter.say(f"{'export':<11}{result.onnx.in_words()}")
            loop.callbacks.run_ends(result.stopped)
            write_end(run, loop.log.step, time.perf_counter() - loop.state.began)
    result.seconds = time.perf_counter() - began
    return result


class TrainingLoop:
    """The epochs of a run: training and evaluation in turns, until the last epoch or a stop.

    What a run does besides is done by callbacks (`gluonlab.training.builtin_callbacks`). Those of
    the user are called by rank 0 alone, which has the run's folder.
    """

    def __init__(
        self,
        plan: Plan,
        strategy: Strategy,
        run: "RunDirectory | NoRunDirectory",
        result: Result,
        reporter: Reporter,
        request: StopRequest,
        began: float,
        callbacks: Sequence[Any] = (),
    ) -> None:
        """``began``: when the run did, by ``time.perf_counter``; ``request``: signals to end."""
        self.plan, self.strategy, self.run = plan, strategy, run
        self.result, self.reporter = result, reporter
        self.stopper = Consensus(plan.group, request)
        early = EarlyStopping(plan.stopping) if plan.stopping is not None else None
        self.callbacks = Callbacks(
            [
                FirstStepTimer(result, reporter, began),
                LossScaleNotes(plan.loss_scale, run, reporter),
                StalenessNotes(plan.group, run, reporter),
                *([early] if early is not None else []),
                *([TensorBoard()] if plan.tensorboard and plan.group.rank == 0 else []),
                *(callbacks if plan.group.rank == 0 else ()),
                UnheardNotes(run, reporter),
                *([ReplicaCheck.of(plan, strategy)] if plan.check_replicas is not None else []),
            ],
            RunView(plan, result, self.stopper),
            self.stopper,
        )
        self.state = TrainState(plan, strategy, run, began, self.stopper, self.callbacks)
        self.log = self.state.log
        self.profiler = None
        if plan.profile is not None:
            from gluonlab.training.profile_steps import ProfiledTraining

            self.profiler = ProfiledTraining(
                strategy, plan.profile, plan.steps_per_epoch, plan.ctxs, run, reporter.say
            )
        self.early = early
        self.weights = BestWeights(run, strategy, plan.group, early)
        self.test_batches = evaluation_loader(plan, strategy.inputs)

    def resume(self, before: Interrupted) -> None:
        """Continue where the run's last checkpoint was taken."""
        self.result.history += before.epochs(self.plan.group)
        best = max(map(self._goodness, self.result.history), default=-np.inf)
        known = self.state.go_on(before.checkpoint, best)
        states = before.checkpoint.state.get("callbacks", {})
        lines = [
            f"goes on from step {self.log.step:,}",
            *self.callbacks.restore(states, before.stays_stopped),
            *differences(before, self.plan, self.strategy, self.state.draws),
        ]
        if self.state.other_chance:
            lines.append(
                "Dropout draws other numbers than it would have: cuDNN cannot be seeded again"
            )
        if not self.weights.restore_best():
            lines.append("the parameters of the best epoch are gone: those of a later one stay")
        self.state.note(self.state.loader.epoch + 1, known)
        self.run.write(run_schema.ResumedEvent(self.log.step, "; ".join(lines)))
        for line in lines:
            self.reporter.say(f"{'resumed':<11}{line}")

    def train(self) -> None:
        """Train until the last epoch, or until a callback stops it."""
        self.callbacks.run_starts(self.log.step)
        self.stopper.meet()
        finished, last = self.state.finished, self.plan.epochs
        if finished and self.stopper.stops and not self.state.images:
            last = finished
        if finished == last:  # its results have been noted, but may not have been written
            self.weights.save(last)
            if self.plan.confusion and self.early is None:
                self.result.confusion = self._evaluate().confusion
        try:
            for epoch in range(finished + 1, last + 1):
                self._run_epoch(epoch)
                if self.stopper.stops:
                    break
        except KeyboardInterrupt:
            if self.stopper.came:  # its checkpoint is written, or it came twice
                self.state.checkpoints.give_up()
            raise
        finally:
            if self.profiler is not None:
                self.profiler.close()
            self.state.checkpoints.close()
        self.weights.load_best()
        if self.early is not None:
            self.result.best_epoch = self.early.best_epoch
            if self.plan.confusion and self.result.confusion is None:  # it was before a resume
                self.result.confusion = self._evaluate().confusion
        if self.stopper.stops and self.state.finished < self.plan.epochs:
            self._note_stop()
        for line in remarks_after(self.result):
            self.reporter.say(f"{'remark':<11}{line}")

    def _run_epoch(self, epoch: int) -> None:
        """Train an epoch, evaluate it, and write its results."""
        line = ""
        images, images_before = self.plan.images_per_epoch, self.state.images
        self.reporter.epoch_begins(epoch, self.plan.epochs, images)
        if images_before:
            self.reporter.step_done(images_before, [])
        else:
            self.callbacks.epoch_starts(epoch)
        try:
            if not (self.state.within_epoch and self.stopper.stops_after(self.log.step)):
                self._train_batches(epoch)
            self.state.note(epoch, self.log.flush())
            if not self.plan.group.waits and self.stopper.signal is not None:
                self._end_by_signal()
            nd.waitall()  # the last updates, too, belong to the time of this epoch
            seconds = time.perf_counter() - self.state.epoch_began
            self.callbacks.epoch_trained()
            score = self._evaluate()
            if score.metrics:
                self.reporter.say(f"{'metrics':<11}{in_words(score.metrics)}")
            self.callbacks.evaluated(score)
            if self.early is None or self.early.best_epoch == epoch:
                self.result.confusion = score.confusion
            summary = self._summary(epoch, seconds, score)
            self.weights.save(epoch)
            self.run.write(summary)
            self.result.history.append(summary)
            line = epoch_in_words(summary, self.plan.epochs)  # printed when it is true
        finally:
            if self.log.rest:  # the loss has diverged
                self.state.note(epoch, self.log.rest)
            self.reporter.epoch_ends(line)
        self.callbacks.epoch_ends(summary)
        if not self.state.within_epoch:
            self.state.epoch_done(self._goodness(summary))
        self.stopper.meet()

    def _train_batches(self, epoch: int) -> None:
        """Train on the batches of an epoch that are left, or until a stop."""
        with self.state.epoch() as batches:
            for batch in batches:
                losses = (
                    self.strategy.step(batch)
                    if self.profiler is None
                    else self.profiler.step(batch, self.log.step + 1)
                )
                # processes that do not wait for each other count their own images
                images = batch.size if self.plan.group.waits else batch.here
                known = self.log.append(losses, images)
                self.state.note(epoch, known)
                self.reporter.step_done(batch.size, known)
                self.callbacks.after_step(self.log.step)
                # where processes do not wait for each other, the end of an epoch is soon enough
                stops = self.plan.group.waits and self.stopper.stops_after(self.log.step)
                if not stops:
                    self.state.step_done()
                if self.stopper.signal is not None:
                    self._end_by_signal()
                if stops and self.state.within_epoch:
                    if self.plan.checkpoint_period is not None:
                        self.state.leave()  # this epoch could be resumed
                    break
                if self.log.cut_short:
                    break

    def _evaluate(self) -> Score:
        """Evaluate the test images, all processes together."""
        batches = self.stopper.between(self.test_batches, self._end_by_signal)
        return validate(self.strategy, batches, self.plan, self.log.step)

    def _summary(self, epoch: int, seconds: float, score: Score) -> run_schema.Epoch:
        """The numbers of an epoch; ``seconds``: its training took so long."""
        cut_short = self.state.within_epoch
        return run_schema.Epoch(
            epoch=epoch,
            step=self.log.step,
            images=self.state.images if cut_short else self.plan.images_per_epoch,
            training_seconds=seconds,
            loss=self.log.mean(epoch),
            accuracy=score.accuracy,
            validation_loss=score.loss,
            top5_accuracy=score.top5_accuracy,
            metrics=score.metrics,
            waiting=self.state.waited / seconds,
            lr=self.plan.rates(self.log.step),
            seconds=time.perf_counter() - self.state.began,
        )

    def _goodness(self, epoch: run_schema.Epoch) -> float:
        return goodness(self.plan.stopping, epoch.accuracy, epoch.validation_loss)

    def _note_stop(self) -> None:
        """Record who has stopped the training, which rank 0 knows."""
        said = (self.callbacks.stopped or "").encode()
        self.result.stopped = message = self.plan.group.bytes_of_first(said).decode()
        self.run.write(run_schema.StoppedEvent(self.log.step, message))
        self.reporter.say(f"{'stopped':<11}{message}")

    def _end_by_signal(self) -> None:
        """Write a checkpoint and raise what the signal raises, between two batches of all."""
        try:
            self.state.leave()
        except Exception:  # a second Ctrl-C ends this process, whatever becomes of the others
            self.plan.group.end_together()
            raise
        self.plan.group.end_together()
        self.stopper.answer()


class BestWeights:
    """The run's file of parameters: the last epoch's, or the best one's, which ``early`` knows."""

    def __init__(
        self,
        run: "RunDirectory | NoRunDirectory",
        strategy: Strategy,
        group: Group,
        early: Optional[EarlyStopping],
    ) -> None:
        self._run, self._strategy, self._group, self._early = run, strategy, group, early

    def save(self, epoch: int) -> None:
        """Write the parameters after this epoch, unless an earlier one was better."""
        early, folder = self._early, self._run.path
        if early is None or early.best_epoch in (None, epoch):
            self._run.parameters(self._strategy.net)
            if early is not None and folder is not None:
                early.digest = _digest(folder)

    def restore_best(self) -> bool:
        """Make the file the best epoch's again, from a checkpoint if need be; False if it is gone.

        It is a later one's, where the run had come further than its last checkpoint. All processes
        forget the best where it is gone.
        """
        early, folder, there = self._early, self._run.path, True
        if early is None:
            return True
        if folder is not None and early.digest and _digest(folder) != early.digest:
            file = with_parameters(folder, early.digest)
            there = file is not None
            if file is not None:
                save_arrays(folder / PARAMETERS, read_arrays(file))
        there = bool(self._group.everyones(np.array(there))[0])
        if not there:
            early.forget()
        return there

    def load_best(self) -> None:
        """Give the network the parameters of the best epoch; every process calls this."""
        if self._early is None:
            return
        arrays: Dict[str, Any] = {}
        if self._run.path is not None:
            arrays = read_arrays(self._run.path / PARAMETERS)
        put_parameters(self._strategy, arrays_of_first(arrays, self._group))


def _digest(folder: Path) -> str:
    """The SHA-256 of the run's parameters; empty where there are none."""
    with suppress(FileNotFoundError):
        return hashlib.sha256((folder / PARAMETERS).read_bytes()).hexdigest()
    return ""


OVERFLOWS = f"or leave --compress {FP16} out, where gradients beyond 65504 become infinite"


@contextmanager
def recorded(
    run: "RunDirectory | NoRunDirectory", result: Result, request: StopRequest
) -> Iterator[None]:
    """Complete the run's folder when the block ends, in whatever way.

    The folder then has the curves of all finished epochs, and the reason of an early end. A
    KeyboardInterrupt gets a message that says what is left of the run. What fails on the way to an
    end that a signal has asked for becomes a part of that message. After a UsageError without any
    finished epoch there is no folder.
    """
    try:
        yield
        _draw(run, result)
        request.raise_if_requested()
        run.close()
    except BaseException as error:
        if isinstance(error, DivergedError) and result.plan.compress == FP16:
            error.args = (f"{error}; {OVERFLOWS}",)
        for last in (partial(_note, run, error), partial(_draw, run, result), run.close):
            # none of it may hide why the run ends, nor a second Ctrl-C
            with suppress(Exception, KeyboardInterrupt):
                last()
        if isinstance(error, Exception) and request.number is not None:
            said = f"{what_is_left(result)}; {explain_exhausted_resource(error) or error}"
            raise EXCEPTION_BY_SIGNAL[request.number](said) from error
        if isinstance(error, UsageError) and not result.history:
            run.discard()
        if isinstance(error, KeyboardInterrupt):
            error.args = (what_is_left(result),)
        elif isinstance(error, DivergedError) and result.history:
            error.args = (f"{error}{_later(result)}",)
        raise


MOST_ERRORS = 100


@contextmanager
def limits_explained() -> Iterator[None]:
    """Make NoMemoryError of what Python, MXNet and the system raise when a limit is reached.

    At the end free memory goes back to the system, so that a hundred trainings in one process take
    no more than the largest.
    """
    try:
        yield
    except GluonlabError:
        raise
    except Exception as error:
        explained = explain_exhausted_resource(error)
        if explained is None:
            raise
        if memory_limit() is None:  # under one a worker may be missing, for which all would wait
            _wait_for_what_is_queued()
        raise explained from error
    finally:
        give_back_memory()


def _wait_for_what_is_queued() -> None:
    """Take note of its errors, which MXNet would raise at Python's end."""
    for _ in range(MOST_ERRORS):
        with suppress(MXNetError):
            nd.waitall()
            break


def write_extras(
    folder: Path, plan: Plan, net: gluon.HybridBlock, confusion: Optional[Confusion]
) -> "Optional[Agreement]":
    """Write the picture of the confusion matrix, if given, and the export that the plan asks for.

    How nearly the ONNX model agrees with MXNet is returned, where there is one. Raises OutputError,
    and what `export` raises.
    """
    agreement = None
    if plan.export is not None:
        from gluonlab.export.export_network import export

        plain = net if plan.own.net is not None else None
        agreement = export(net, plan.model, plan.dataset, folder / EXPORT, plain, plan.export)
    if confusion is not None:  # last: nothing is lost if it cannot be drawn
        write_picture(confusion, plan.dataset.classes, folder / CONFUSION)
    return agreement


def write_end(run: "RunDirectory | NoRunDirectory", step: int, seconds: float) -> None:
    """Note that all files of the run, whose last step this was, are written. Raises OutputError."""
    if run.path is not None:
        run.write(ended(run.path, step, seconds))


def _note(run: "RunDirectory | NoRunDirectory", error: BaseException) -> None:
    if isinstance(error, DivergedError):
        run.write(DivergedEvent(str(error)))


def _draw(run: "RunDirectory | NoRunDirectory", result: Result) -> None:
    if result.history:
        run.curves()


def what_is_left(result: Result) -> str:
    """Describe what the folder of an unfinished run contains, and how to resume."""
    if result.run_dir is None:
        return "rank 0 has written the finished epochs"
    if not result.history:
        return f"no epoch was finished; {result.run_dir} holds the steps of the first{_on(result)}"
    epochs = f"{len(result.history)} of {result.plan.epochs}"
    holds = f"{result.run_dir} holds every epoch that was finished, {epochs}"
    return f"{holds}{_later(result)}{_on(result)}"


def _on(result: Result) -> str:
    """The command that goes on from the last checkpoint, if there is one."""
    if result.run_dir is None or not checkpoints(result.run_dir):
        return ""
    command = result.plan.group.command
    return f"; to go on: {command} --resume {shlex.quote(str(result.run_dir))}"


def _later(result: Result) -> str:
    """The command that makes the confusion matrix and export from the last finished epoch."""
    plan = result.plan
    with_onnx = f" {ONNX}" if plan.export == ONNX else ""
    wanted = {"--confusion": plan.confusion, f"--export{with_onnx}": plan.export}
    asked = [option for option in wanted if wanted[option]]
    if not asked or result.run_dir is None:
        return ""
    evaluate = f"python -m gluonlab.run --evaluate {shlex.quote(str(result.run_dir))}"
    return f"; for {' and '.join(asked)}: {evaluate} {' '.join(asked)}"
