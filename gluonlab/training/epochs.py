"""The epochs of a run: training and evaluation in turns, until the last one or a stop."""

from __future__ import annotations

import time
from typing import Any, Optional, Sequence

import numpy as np
from mxnet import nd

from gluonlab.host.signals import EndRequest
from gluonlab.parallel.strategy import Strategy
from gluonlab.runs import schema
from gluonlab.runs.result import Result
from gluonlab.runs.writer import NoRunDirectory, RunDirectory
from gluonlab.training import remarks
from gluonlab.training.callbacks import Callbacks, RunView
from gluonlab.training.consensus import Consensus
from gluonlab.training.early_stopping import EarlyStopping, goodness
from gluonlab.training.evaluate import Score, evaluation_loader, validate
from gluonlab.training.kept import Kept
from gluonlab.training.metrics import in_words
from gluonlab.training.plan import Plan
from gluonlab.training.prepare import replica_check, training
from gluonlab.training.reporter import Reporter, epoch_in_words
from gluonlab.training.resume import Interrupted, differences
from gluonlab.training.standing import Standing
from gluonlab.training.tensorboard import TensorBoard


class Epochs:
    """The epochs of one run, and the state that they share.

    ``early``: that of --patience, which the standing's callbacks have, too.
    """

    def __init__(
        self,
        standing: Standing,
        reporter: Reporter,
        result: Result,
        consensus: Consensus,
        early: Optional[EarlyStopping] = None,
    ) -> None:
        self.standing, self.reporter, self.result = standing, reporter, result
        self.plan, self.strategy, self.run = standing.plan, standing.strategy, standing.run
        self.log, self.consensus, self.early = standing.log, consensus, early
        self.callbacks = standing.callbacks
        self.kept = Kept(self.run, self.strategy, self.plan.group, early)
        self.noted_unheard = False
        self.check_replicas = replica_check(self.plan, self.strategy)
        self.training = training(self.plan, self.strategy, self.run, reporter.say)
        self.evaluation_loader = evaluation_loader(self.plan, self.strategy.inputs)

    def go_on(self, before: Interrupted) -> None:
        """Stand where the run's last checkpoint was taken."""
        self.result.history += before.epochs(self.plan.group)
        best = max(map(self._goodness, self.result.history), default=-np.inf)
        known = self.standing.go_on(before.checkpoint, best)
        states = before.checkpoint.state.get("callbacks", {})
        lines = [
            f"goes on from step {self.log.step:,}",
            *self.callbacks.restore(states, before.stays_stopped),
            *differences(before, self.plan, self.strategy, self.standing.draws),
        ]
        if self.standing.other_chance:
            lines.append(
                "Dropout draws other numbers than it would have: cuDNN cannot be seeded again"
            )
        if not self.kept.mended():
            lines.append("the parameters of the best epoch are gone: those of a later one stay")
        self.standing.note(self.standing.loader.epoch + 1, known)
        self.run.write(schema.ResumedEvent(self.log.step, "; ".join(lines)))
        for line in lines:
            self.reporter.say(f"{'resumed':<11}{line}")

    def all_epochs(self) -> None:
        """Train until the last epoch, or until a callback stops it."""
        self.callbacks.run_starts(self.log.step)
        self.consensus.meet()
        finished, last = self.standing.finished, self.plan.epochs
        if finished and self.consensus.stops and not self.standing.images:
            last = finished
        if finished == last:
            self._last_again()
        try:
            for epoch in range(finished + 1, last + 1):
                self._noted_epoch(epoch)
                if self.consensus.stops:
                    break
        except KeyboardInterrupt:
            if self.consensus.came:  # its checkpoint is written, or it came twice
                self.standing.checkpoints.give_up()
            raise
        finally:
            self.training.close()
            self.standing.checkpoints.close()
        self.kept.give_back()
        if self.early is not None:
            self.result.best_epoch = self.early.best_epoch
            if self.plan.confusion and self.result.confusion is None:  # it was before a resume
                self.result.confusion = self._score().confusion
        if self.consensus.stops and self.standing.finished < self.plan.epochs:
            self._note_stop()
        for line in remarks.after(self.result):
            self.reporter.say(f"{'remark':<11}{line}")
        self._note_unheard()

    def _last_again(self) -> None:
        """Write what the last epoch leaves, which has been noted, but may not have been written."""
        self.kept.write(len(self.result.history))
        if self.plan.confusion and self.early is None:
            self.result.confusion = self._score().confusion

    def _noted_epoch(self, epoch: int) -> None:
        """An epoch, with what stays of it."""
        line = ""
        self._note_unheard()
        images, before = self.plan.images_per_epoch, self.standing.images
        self.reporter.epoch_begins(epoch, self.plan.epochs, images)
        if before:
            self.reporter.step_done(before, [])
        else:
            self.callbacks.epoch_starts(epoch)
        try:
            done = self._epoch(epoch)
            self.kept.write(epoch)
            self.run.write(done)
            self.result.history.append(done)
            line = epoch_in_words(done, self.plan.epochs)  # said when it is true
        finally:
            if self.log.rest:  # the loss has diverged
                self.standing.note(epoch, self.log.rest)
            self.reporter.epoch_ends(line)
        self.callbacks.epoch_ends(done)
        if not self.standing.within_epoch:
            self.standing.epoch_done(self._goodness(done))
        self.consensus.meet()

    def _epoch(self, epoch: int) -> schema.Epoch:
        """Train on every image once, or until a stop, then evaluate."""
        if not (self.standing.within_epoch and self.consensus.stops_after(self.log.step)):
            self._train(epoch)
        self.standing.note(epoch, self.log.flush())
        if not self.plan.group.waits and self.consensus.signal is not None:
            self._end()
        nd.waitall()  # the last updates, too, belong to the time of this epoch
        seconds = time.perf_counter() - self.standing.epoch_began
        self.callbacks.epoch_trained()
        score = self._score()
        if score.metrics:
            self.reporter.say(f"{'metrics':<11}{in_words(score.metrics)}")
        self._note_loss_scale(epoch)
        self._note_staleness(epoch)
        self.callbacks.evaluated(score)
        if self.early is None or self.early.best_epoch == epoch:
            self.result.confusion = score.confusion
        cut_short = self.standing.within_epoch
        return schema.Epoch(
            epoch=epoch,
            step=self.log.step,
            images=self.standing.images if cut_short else self.plan.images_per_epoch,
            training_seconds=seconds,
            loss=self.log.mean(epoch),
            accuracy=score.accuracy,
            validation_loss=score.loss,
            top5_accuracy=score.top5_accuracy,
            metrics=score.metrics,
            waiting=self.standing.waited / seconds,
            lr=self.plan.rates(self.log.step),
            seconds=time.perf_counter() - self.standing.began,
        )

    def _train(self, epoch: int) -> None:
        """The steps of an epoch that are left, or those until a stop."""
        with self.standing.epoch() as batches:
            for batch in batches:
                images = batch.size if self.plan.group.waits else batch.here
                losses = self.training.step(batch, self.log.step + 1)
                known = self.log.append(losses, images)
                self.standing.note(epoch, known)
                self.reporter.step_done(batch.size, known)
                if not self.result.first_step_seconds:
                    self._first_step()
                self.callbacks.after_step(self.log.step)
                # where processes do not wait for each other, the end of an epoch is soon enough
                stops = self.plan.group.waits and self.consensus.stops_after(self.log.step)
                self.check_replicas(self.log.step, stops)
                if not stops:
                    self.standing.step_done()
                if self.consensus.signal is not None:
                    self._end()
                if stops and self.standing.within_epoch:
                    if self.plan.checkpoint_period is not None:
                        self.standing.leave()  # this epoch could be gone on with
                    break
                if self.log.cut_short:
                    break

    def _score(self) -> Score:
        """What the network gets right of the test images."""
        tests = self.consensus.between(self.evaluation_loader, self._end)
        return validate(self.strategy, tests, self.plan, self.log.step)

    def _goodness(self, epoch: schema.Epoch) -> float:
        return goodness(self.plan.stopping, epoch.accuracy, epoch.validation_loss)

    def _note_stop(self) -> None:
        """Record who has stopped the training, which rank 0 knows."""
        said = (self.callbacks.stopped or "").encode()
        self.result.stopped = message = self.plan.group.bytes_of_first(said).decode()
        self.run.write(schema.StoppedEvent(self.log.step, message))
        self.reporter.say(f"{'stopped':<11}{message}")

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


def make_epochs(
    plan: Plan,
    strategy: Strategy,
    run: "RunDirectory | NoRunDirectory",
    began: float,
    reporter: Reporter,
    result: Result,
    request: EndRequest,
    callbacks: Sequence[Any],
) -> Epochs:
    """The epochs of a run that began at ``began``; what ends them, and who is told of them."""
    consensus = Consensus(plan.group, request)
    early = EarlyStopping(plan.stopping) if plan.stopping is not None else None
    # of the others only rank 0 has any, as it has the folder
    others = [*([TensorBoard()] if plan.tensorboard else []), *callbacks]
    told = [*([] if early is None else [early]), *(others if plan.group.rank == 0 else [])]
    listeners = Callbacks(told, RunView(plan, result, consensus), consensus)
    standing = Standing(plan, strategy, run, began, consensus, listeners)
    return Epochs(standing, reporter, result, consensus, early)
