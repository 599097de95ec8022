"""train(TrainConfig(...)): a whole run, from the plan to the folder with its results."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Generic, Iterator, Optional, TypeVar

from mxnet import nd

from gluonlab.config import TrainConfig
from gluonlab.data.sets.dataset import Dataset
from gluonlab.engine.semantics import make_users, nd_semantics
from gluonlab.host.signals import EndRequest
from gluonlab.kvstores.groups import ALONE, Group
from gluonlab.parallel.data.strategy import data_parallel
from gluonlab.parallel.strategy import MakeStrategy, Strategy
from gluonlab.runs import schema
from gluonlab.runs.result import Result
from gluonlab.runs.writer import NoRunDirectory, RunDirectory
from gluonlab.training.ending import advice, recorded, write_extras
from gluonlab.training.evaluate import evaluation_loader, validate
from gluonlab.training.losses import LossLog, StepLoss
from gluonlab.training.plan import Plan
from gluonlab.training.prepare import measured_memory, plan_together, prepare, train_loader
from gluonlab.training.reporter import ConsoleReporter, Reporter, epoch_in_words

_T = TypeVar("_T")


def train(
    config: "TrainConfig | None" = None,
    strategy: MakeStrategy = data_parallel,
    reporter: Optional[Reporter] = None,
    dataset: Optional[Dataset] = None,
    group: Group = ALONE,
) -> Result:
    """Train as ``config`` says, on the devices it names, and write the run's folder.

    ``strategy``: how network and batches lie on the devices. ``dataset``: the one that the config
    names, where it has been read already. ``group``: the processes that train together. Raises a
    UsageError before anything is written when the config cannot be carried out, and DivergedError
    when the loss is no longer a number, or beyond recovery, or the parameters are not finite after
    an epoch. The run computes with mx.nd; its network is of the user's kind, mx.np after
    ``npx.set_np()``. After an error or Ctrl-C the folder holds everything up to the last whole
    epoch; a UsageError before that one, such as for an image that cannot be decoded, takes it away
    again. Ctrl-C, SIGTERM and SIGHUP let the step or the batch of an evaluation end that is under
    way, if this is the main thread; a second Ctrl-C does not.
    """
    config = config or TrainConfig()
    with nd_semantics():
        plan = plan_together(config, dataset, group)
        taken = measured_memory(plan, strategy)
        result = train_plan(plan, strategy, reporter or ConsoleReporter(), taken)
    make_users(result.net)
    return result


def train_plan(
    plan: Plan,
    make_strategy: MakeStrategy,
    reporter: Reporter,
    taken: Optional[str] = None,
) -> Result:
    """`train` for a plan. ``taken``: a line about the memory that such a run takes."""
    began = time.perf_counter()
    strategy, introduction = prepare(plan, make_strategy)
    run = (
        RunDirectory.create(plan.out, f"{plan.model}-{plan.dataset.name}")
        if plan.group.rank == 0
        else NoRunDirectory()
    )
    result = Result(plan, strategy.net, run.path)
    with EndRequest() as request, recorded(run, result, request):
        run.describe(**plan.description())
        for line in [*introduction, *([taken] if taken is not None else [])]:
            reporter.say(line)
        _Run(plan, strategy, reporter, run, result, began, request).all_epochs()
        if result.confusion is not None:
            run.write(schema.ConfusionEvent(result.confusion.tolist()))
        if run.path is not None:
            write_extras(run.path, plan, strategy.net, result.confusion)
    result.seconds = time.perf_counter() - began
    return result


class _Run:
    """The state that the epochs of one run share."""

    def __init__(
        self,
        plan: Plan,
        strategy: Strategy,
        reporter: Reporter,
        run: "RunDirectory | NoRunDirectory",
        result: Result,
        began: float,
        request: EndRequest,
    ) -> None:
        self.plan, self.strategy, self.reporter = plan, strategy, reporter
        self.run, self.result, self.began, self.request = run, result, began, request
        self.noted_unheard = False
        self.log = LossLog(strategy.outputs, plan.loss_scale is not None, plan.group)
        self.loader = train_loader(plan, strategy.inputs)
        self.evaluation_loader = evaluation_loader(plan, strategy.inputs)

    def all_epochs(self) -> None:
        for epoch in range(1, self.plan.epochs + 1):
            line = ""
            self._note_unheard()
            self.reporter.epoch_begins(epoch, self.plan.epochs, len(self.plan.dataset.train))
            try:
                done = self._epoch(epoch)
                self.run.parameters(self.strategy.net)
                self.run.write(done)
                self.result.history.append(done)
                line = epoch_in_words(done, self.plan.epochs)  # said when it is true
            finally:
                if self.log.rest:  # the loss has diverged
                    self._note(epoch, self.log.rest)
                self.reporter.epoch_ends(line)
        for line in advice(self.result):
            self.reporter.say(line)
        self._note_unheard()

    def _epoch(self, epoch: int) -> schema.Epoch:
        """Train on every image once, then evaluate."""
        began = time.perf_counter()
        # its thread ends with the loop, however that ends
        with closing(iter(self.loader)) as batches:
            waiting = _Waiting(batches)
            for batch in waiting:
                known = self.log.append(self.strategy.step(batch), batch.size)
                self._note(epoch, known)
                self.reporter.step_done(batch.size, known)
                if self.log.step == 1:
                    self._first_step()
                if self.request.number is not None:
                    self._end()
        self._note(epoch, self.log.flush())
        nd.waitall()  # the last updates, too, belong to the time of this epoch
        seconds = time.perf_counter() - began
        self._note_loss_scale(epoch)
        tests = self.request.between(self.evaluation_loader, self._end)
        score = validate(self.strategy, tests, self.plan, self.log.step)
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
            waiting=waiting.seconds / seconds,
            lr=self.plan.rates(self.log.step),
            seconds=time.perf_counter() - self.began,
        )

    def _end(self) -> None:
        """A signal asks for it, between two batches."""
        self.request.answer()

    def _note(self, epoch: int, known: "list[StepLoss]") -> None:
        """Record finished steps."""
        since, rates = time.perf_counter() - self.began, self.plan.rates
        self.run.write(*(schema.Step(n, loss, rates(n), epoch, x, since) for n, x, loss in known))

    def _note_loss_scale(self, epoch: int) -> None:
        """Record how often gradients overflowed."""
        scale = self.plan.loss_scale
        if scale is not None:
            self.run.write(schema.LossScaleEvent(epoch, self.log.step, scale.value, scale.skipped))
            self.reporter.say(f"{'loss scale':<11}{scale.in_words()}")

    def _note_unheard(self) -> None:
        """Record, once, that nobody reads what the run says."""
        if self.reporter.unheard is not None and not self.noted_unheard:
            self.noted_unheard = True
            self.run.write(schema.UnheardEvent(self.reporter.unheard))

    def _first_step(self) -> None:
        """Wait for the very first step, once: more devices take longer to initialise."""
        nd.waitall()
        self.result.first_step_seconds = time.perf_counter() - self.began
        self.reporter.say(f"{'first step':<11}after {self.result.first_step_seconds:.2f} s")


class _Waiting(Generic[_T]):
    """Iterates over ``items``; ``seconds``: how long the loop has waited for them so far."""

    def __init__(self, items: Iterator[_T]) -> None:
        self._items = items
        self.seconds = 0.0

    def __iter__(self) -> Iterator[_T]:
        return self

    def __next__(self) -> _T:
        began = time.perf_counter()
        try:
            return next(self._items)
        finally:
            self.seconds += time.perf_counter() - began
