"""train(TrainConfig(...)): a whole run, from the plan to the folder with its results."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Optional

from mxnet import nd

from gluonlab.config import TrainConfig
from gluonlab.data.sets.dataset import Dataset
from gluonlab.engine.semantics import make_users, nd_semantics
from gluonlab.host.signals import EndRequest
from gluonlab.kvstores.groups import ALONE, Group
from gluonlab.parallel.strategy import MakeStrategy
from gluonlab.runs import schema
from gluonlab.runs.result import Result
from gluonlab.training.autoresume import Begun, anew, as_begun, begun, result_of, with_checkpoints
from gluonlab.training.consensus import Consensus
from gluonlab.training.ending import advice, limits_explained, recorded, write_end, write_extras
from gluonlab.training.evaluate import evaluation_loader, validate
from gluonlab.training.plan import Plan
from gluonlab.training.prepare import (
    measured_memory,
    plan_together,
    prepare,
    replica_check,
    training,
)
from gluonlab.training.reporter import ConsoleReporter, Reporter, epoch_in_words
from gluonlab.training.resume import Interrupted, asked, differences, interrupted, run_directory
from gluonlab.training.standing import Standing


def train(
    config: "TrainConfig | None" = None,
    strategy: Optional[MakeStrategy] = None,
    reporter: Optional[Reporter] = None,
    dataset: Optional[Dataset] = None,
    group: Group = ALONE,
    resume: "str | Path | Interrupted | None" = None,
    autoresume: bool = False,
) -> Result:
    """Train as ``config`` says, on the devices it names, and write the run's folder.

    ``strategy``: how network and batches lie on the devices, in place of what ``split`` says.
    ``dataset``: the one that the config names, where it has been read already. ``group``: the
    processes that train together, each of which calls this. ``resume``: the folder, which rank 0
    reads, of a run that goes on from its last checkpoint, or what
    `gluonlab.training.resume.interrupted` found there; as it was asked for, without a ``config``,
    or as one made by `gluonlab.training.resume.asked`. ``autoresume``: begin a run in the folder
    ``config.out``, or go on with the one there; of a run that has ended the result is given again.

    Raises a UsageError before anything is written when the config cannot be carried out,
    NoMemoryError when memory, descriptors or threads are used up, and DivergedError when the loss
    is no longer a number, or beyond recovery, or the parameters are not finite after an epoch;
    DriftError, where ``check_replicas`` finds that replicas differ. The run computes with mx.nd;
    its network is of the user's kind, mx.np after ``npx.set_np()``. After an error or Ctrl-C the
    folder holds everything up to the last whole epoch; a UsageError before that one, such as for an
    image that cannot be decoded, takes it away again. Ctrl-C, SIGTERM and SIGHUP let the step or
    the batch of an evaluation end that is under way, if this is the main thread; a second Ctrl-C
    does not. What comes to one process of a group ends all of them after the same step, within
    eight.
    """
    before = resume
    if isinstance(before, (str, Path)):
        before = interrupted(before, group)
    config = config or (TrainConfig() if before is None else asked(before, group))
    earlier = None
    if autoresume:
        config = with_checkpoints(config, before, group)
        earlier = begun(config, group)
        config = config if earlier is None else as_begun(config, earlier, group)
    with nd_semantics(), limits_explained():
        plan = plan_together(config, dataset, group, begun=earlier is not None)
        taken = measured_memory(plan, strategy)
        result = train_plan(plan, strategy, reporter or ConsoleReporter(), taken, before, earlier)
    make_users(result.net)
    return result


def train_plan(
    plan: Plan,
    make_strategy: Optional[MakeStrategy],
    reporter: Reporter,
    taken: Optional[str] = None,
    before: Optional[Interrupted] = None,
    earlier: Optional[Begun] = None,
) -> Result:
    """`train` for a plan.

    ``taken``: a line about the memory that such a run takes. ``before``: the run that goes on.
    ``earlier``: the one in the plan's folder, where it decides how this one begins.
    """
    began = time.perf_counter()
    plan, strategy, introduction = prepare(plan, make_strategy)
    if earlier is not None:
        ended, before = result_of(earlier, plan, strategy), earlier.run
        if ended is not None:
            reporter.say(f"{'ended':<11}{earlier.folder} has finished its {plan.epochs} epochs")
            return ended
        if before is None:
            introduction.append(f"{'begins':<11}{anew(earlier, plan.group)}")
    run = run_directory(plan, strategy, before)
    result = Result(plan, strategy.net, run.path)
    with EndRequest() as request, recorded(run, result, request), plan.pieces():
        run.describe(**plan.description(strategy.settings()))
        for line in filter(None, [*introduction, taken]):
            reporter.say(line)
        consensus = Consensus(plan.group, request)
        standing = Standing(plan, strategy, run, began, consensus)
        epochs = _Run(standing, reporter, result, consensus)
        plan.group.begin_together()
        if before is not None:
            epochs.go_on(before)
        epochs.all_epochs()
        plan.group.end_together()  # what is left is rank 0's alone
        if result.confusion is not None:
            run.write(schema.ConfusionEvent(result.confusion.tolist()))
        if run.path is not None:
            write_extras(run.path, plan, strategy.net, result.confusion)
            write_end(run, epochs.log.step, time.perf_counter() - epochs.standing.began)
    result.seconds = time.perf_counter() - began
    return result


class _Run:
    """The state that the epochs of one run share."""

    def __init__(
        self, standing: Standing, reporter: Reporter, result: Result, consensus: Consensus
    ) -> None:
        self.standing, self.reporter, self.result = standing, reporter, result
        self.plan, self.strategy, self.run = standing.plan, standing.strategy, standing.run
        self.log, self.consensus = standing.log, consensus
        self.noted_unheard = False
        self.check_replicas = replica_check(self.plan, self.strategy)
        self.training = training(self.plan, self.strategy, self.run, reporter.say)
        self.evaluation_loader = evaluation_loader(self.plan, self.strategy.inputs)

    def go_on(self, before: Interrupted) -> None:
        """Stand where the run's last checkpoint was taken."""
        self.result.history += before.epochs(self.plan.group)
        best = max((epoch.accuracy for epoch in self.result.history), default=-1.0)
        known = self.standing.go_on(before.checkpoint, best)
        lines = [
            f"goes on from step {self.log.step:,}",
            *differences(before, self.plan, self.strategy, self.standing.draws),
        ]
        if self.standing.other_chance:
            lines.append(
                "Dropout draws other numbers than it would have: cuDNN cannot be seeded again"
            )
        self.standing.note(self.standing.loader.epoch + 1, known)
        self.run.write(schema.ResumedEvent(self.log.step, "; ".join(lines)))
        for line in lines:
            self.reporter.say(f"{'resumed':<11}{line}")

    def all_epochs(self) -> None:
        if self.standing.finished == self.plan.epochs:
            self._last_again()
        try:
            for epoch in range(self.standing.loader.epoch + 1, self.plan.epochs + 1):
                self._noted_epoch(epoch)
        except KeyboardInterrupt:
            if self.consensus.came:  # its checkpoint is written, or it came twice
                self.standing.checkpoints.give_up()
            raise
        finally:
            self.training.close()
            self.standing.checkpoints.close()
        for line in advice(self.result):
            self.reporter.say(line)
        self._note_unheard()

    def _last_again(self) -> None:
        """Write what the last epoch leaves, which has been noted, but may not have been written."""
        self.run.parameters(self.strategy.net)
        if self.plan.confusion:
            tests = self.consensus.between(self.evaluation_loader, self._end)
            score = validate(self.strategy, tests, self.plan, self.log.step)
            self.result.confusion = score.confusion

    def _noted_epoch(self, epoch: int) -> None:
        """An epoch, with what stays of it."""
        line = ""
        self._note_unheard()
        images = len(self.plan.dataset.train)
        self.reporter.epoch_begins(epoch, self.plan.epochs, images)
        if self.standing.images:
            self.reporter.step_done(min(self.standing.images, images), [])
        try:
            done = self._epoch(epoch)
            self.run.parameters(self.strategy.net)
            self.run.write(done)
            self.result.history.append(done)
            line = epoch_in_words(done, self.plan.epochs)  # said when it is true
        finally:
            if self.log.rest:  # the loss has diverged
                self.standing.note(epoch, self.log.rest)
            self.reporter.epoch_ends(line)
        self.standing.epoch_done(done.accuracy)

    def _epoch(self, epoch: int) -> schema.Epoch:
        """Train on every image once, then evaluate."""
        with self.standing.epoch() as batches:
            for batch in batches:
                images = batch.size if self.plan.group.waits else batch.here
                losses = self.training.step(batch, self.log.step + 1)
                known = self.log.append(losses, images)
                self.standing.note(epoch, known)
                self.reporter.step_done(batch.size, known)
                if not self.result.first_step_seconds:
                    self._first_step()
                self.check_replicas(self.log.step)
                self.standing.step_done()
                if self.consensus.signal is not None:
                    self._end()
                if self.log.cut_short:
                    break
        self.standing.note(epoch, self.log.flush())
        if not self.plan.group.waits and self.consensus.signal is not None:
            self._end()
        nd.waitall()  # the last updates, too, belong to the time of this epoch
        seconds = time.perf_counter() - self.standing.epoch_began
        tests = self.consensus.between(self.evaluation_loader, self._end)
        score = validate(self.strategy, tests, self.plan, self.log.step)
        self._note_loss_scale(epoch)
        self._note_staleness(epoch)
        self.result.confusion = score.confusion
        return schema.Epoch(
            epoch=epoch,
            step=self.log.step,
            images=len(self.plan.dataset.train),
            training_seconds=seconds,
            loss=self.log.mean(epoch),
            accuracy=score.accuracy,
            validation_loss=score.loss,
            top5_accuracy=score.top5_accuracy,
            waiting=self.standing.waited / seconds,
            lr=self.plan.rates(self.log.step),
            seconds=time.perf_counter() - self.standing.began,
        )

    def _end(self) -> None:
        """A signal asks for it, between two batches of all processes."""
        try:
            self.standing.leave()
        except Exception:  # a second Ctrl-C ends this process, whatever becomes of the others
            self.plan.group.end_together()
            raise
        self.plan.group.end_together()
        self.consensus.answer()

    def _note_loss_scale(self, epoch: int) -> None:
        """Record how often gradients overflowed."""
        scale = self.plan.loss_scale
        if scale is not None:
            self.run.write(schema.LossScaleEvent(epoch, self.log.step, scale.value, scale.skipped))
            self.reporter.say(f"{'loss scale':<11}{scale.in_words()}")

    def _note_staleness(self, epoch: int) -> None:
        """Record how stale the gradients were that the servers have updated with."""
        counts = self.plan.group.staleness()
        if counts is not None:
            line = schema.StalenessEvent(epoch, self.log.step, counts)
            self.run.write(line)
            self.reporter.say(f"{'staleness':<11}{line.in_words()}")

    def _note_unheard(self) -> None:
        """Record, once, that nobody reads what the run says."""
        if self.reporter.unheard is not None and not self.noted_unheard:
            self.noted_unheard = True
            self.run.write(schema.UnheardEvent(self.reporter.unheard))

    def _first_step(self) -> None:
        """Wait for the very first step, once: more devices take longer to initialise."""
        nd.waitall()
        self.result.first_step_seconds = time.perf_counter() - self.standing.began
        self.reporter.say(f"{'first step':<11}after {self.result.first_step_seconds:.2f} s")
