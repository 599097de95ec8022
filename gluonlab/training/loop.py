"""train(TrainConfig(...)): a whole run, from the plan to the folder with its results."""

from __future__ import annotations

import math
import statistics
import time
from contextlib import closing, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Protocol, Sequence, Tuple

import mxnet as mx
from mxnet import gluon, nd

import gluonlab
from gluonlab.config import TrainConfig
from gluonlab.data.loader import Loader, to_float
from gluonlab.devices import describe
from gluonlab.errors import DivergedError, ModelError
from gluonlab.models import get_model
from gluonlab.training.accumulate import Microbatches
from gluonlab.training.buckets import BucketedTrainer
from gluonlab.training.evaluate import evaluate
from gluonlab.training.losses import LossLog, StepLoss
from gluonlab.training.memory import Needs
from gluonlab.training.plan import Plan, make_plan
from gluonlab.training.record import RunDirectory
from gluonlab.training.reporter import ConsoleReporter, Reporter
from gluonlab.training.step import DataParallelStep
from gluonlab.training.sync_bn import check_network


class Step(Protocol):
    """What a strategy makes of network, loss and plan; a batch is given as one shard for each device that has one."""

    def __call__(self, xs: Sequence[nd.NDArray], ys: Sequence[nd.NDArray]) -> List[nd.NDArray]:
        """Train on a batch; each shard's sum of losses (1,)."""

    def score(self, xs: Sequence[nd.NDArray], ys: Sequence[nd.NDArray]) -> List[Tuple[nd.NDArray, nd.NDArray]]:
        """Without training, each shard's sum of losses (1,) and number of correct answers (1,)."""


Strategy = Callable[[gluon.HybridBlock, gluon.HybridBlock, Plan], Step]


def data_parallel(net: gluon.HybridBlock, loss: gluon.HybridBlock, plan: Plan) -> Step:
    """Every device holds the whole network and works on its shard of each batch."""
    trainer = BucketedTrainer(
        net.collect_params(), plan.optimizer, dict(plan.optimizer_params), plan.kvstore, plan.config.bucket_bytes
    )
    sync_bn = plan.config.sync_bn and len(plan.ctxs) > 1
    return DataParallelStep(net, loss, trainer, plan.ctxs, to_float, Microbatches.of(plan.config), sync_bn)


@dataclass(frozen=True)
class Epoch:
    """What one pass over the training images gave; ``seconds`` are those of training alone."""

    epoch: int
    step: int
    images: int
    seconds: float
    loss: float
    accuracy: float
    validation_loss: float

    @property
    def images_per_second(self) -> float:
        """Training images per second."""
        return self.images / self.seconds


@dataclass
class Result:
    """What a run gave; ``net`` holds the trained parameters on ``ctxs``."""

    plan: Plan
    net: gluon.HybridBlock
    run_dir: Path
    first_step_seconds: float = 0.0
    seconds: float = 0.0
    history: List[Epoch] = field(default_factory=list)

    @property
    def accuracy(self) -> float:
        """The fraction of test images that the network gets right after the last epoch."""
        return self.history[-1].accuracy

    @property
    def images_per_second(self) -> float:
        """The median over the epochs; without the first when there are others, for it also warms up."""
        rates = [epoch.images_per_second for epoch in self.history]
        return statistics.median(rates[1:] or rates)

    def summary(self) -> Dict[str, Any]:
        """The numbers as plain values."""
        return {
            **self.plan.settings(),
            "accuracy": self.accuracy,
            "images_per_second": self.images_per_second,
            "first_step_seconds": self.first_step_seconds,
            "seconds": self.seconds,
            "run_dir": str(self.run_dir),
            "history": [vars(epoch) for epoch in self.history],
        }


def train(config: "TrainConfig | None" = None, strategy: Strategy = data_parallel, reporter: Optional[Reporter] = None) -> Result:
    """Train as ``config`` says, on the devices it names, and write the run's folder.

    Raises a UsageError before anything is written when the config cannot be carried out, and DivergedError when the loss
    is no longer a number. After an error or Ctrl-C the folder holds everything up to the last whole epoch.
    """
    reporter = reporter or ConsoleReporter()
    plan = make_plan(config or TrainConfig())
    began = time.perf_counter()
    net = make_net(plan)
    run = RunDirectory.create(plan.config.out, f"{plan.model}-{plan.dataset.name}")
    run.config({"gluonlab": gluonlab.__version__, "settings": plan.settings(), "config": plan.config.to_dict()})
    result = Result(plan, net, run.path)
    try:
        _Run(plan, net, strategy, reporter, run, result, began).all_epochs()
    except DivergedError as error:
        run.line("event", event="diverged", message=str(error))
        raise
    finally:
        if result.history:
            run.curves()
        run.close()
    result.seconds = time.perf_counter() - began
    return result


def make_net(plan: Plan) -> gluon.HybridBlock:
    """The plan's network with the same parameters on every device, all shapes known. Raises ModelError if it does not fit."""
    mx.random.seed(plan.config.seed)
    net = get_model(plan.model, len(plan.dataset.classes), plan.ctxs)
    if plan.config.sync_bn:
        check_network(net, plan.model)
    net.initialize(mx.init.Xavier(), ctx=plan.ctxs)
    channels, height, width = plan.dataset.image_shape
    try:
        with redirect_stdout(StringIO()):  # where MXNet would print what it raises
            net(nd.zeros((1, channels, height, width), ctx=plan.ctxs[0])).wait_to_read()
    except (ValueError, mx.base.MXNetError):
        raise ModelError(
            f"{plan.model} cannot take images of shape {channels}x{height}x{width}: choose another --model or --dataset"
        ) from None
    return net


class _Run:
    """The state that the epochs of one run share."""

    def __init__(
        self,
        plan: Plan,
        net: gluon.HybridBlock,
        strategy: Strategy,
        reporter: Reporter,
        run: RunDirectory,
        result: Result,
        began: float,
    ) -> None:
        self.plan, self.net, self.reporter, self.run, self.result, self.began = plan, net, reporter, run, result, began
        loss = gluon.loss.SoftmaxCrossEntropyLoss()
        self.step = strategy(net, loss, plan)
        self.log = LossLog(plan.ctxs)
        config = plan.config
        common: Dict[str, Any] = dict(raw=True, prefetch=config.prefetch, resident_bytes=config.resident_bytes)
        self.loader = Loader(plan.dataset.train, plan.ctxs, plan.global_batch_size, config.seed, **common)
        self.test_loader = Loader(plan.dataset.test, plan.ctxs, plan.global_batch_size, shuffle=False, **common)

    def all_epochs(self) -> None:
        self._introduce()
        for epoch in range(1, self.plan.epochs + 1):
            line = ""
            self.reporter.epoch_begins(epoch, self.plan.epochs, len(self.plan.dataset.train))
            try:
                done = self._epoch(epoch)
                self.run.parameters(self.net)
                self.run.line("epoch", lr=self.plan.lr, **vars(done))
                self.result.history.append(done)
                line = _epoch_line(done, self.plan.epochs)  # said when it is true
            except DivergedError as error:
                self._note(epoch, error.finished)
                raise
            finally:
                self.reporter.epoch_ends(line)

    def _introduce(self) -> None:
        plan, config = self.plan, self.plan.config
        threads = "" if plan.ctxs[0].device_type == "gpu" else f", {plan.threads} thread{'s' * (plan.threads > 1)} each"
        size = sum(param.data(plan.ctxs[0]).size for param in self.net.collect_params().values())
        place = "resident on the devices" if self.loader.resident else f"streamed, {config.prefetch} batches ahead"
        settings = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in plan.optimizer_params.items() if value)
        for name, text in (
            ("devices", describe(plan.ctxs) + threads),
            ("network", f"{plan.model}, {size:,} parameters"),
            ("data", f"{plan.dataset.name}: {len(plan.dataset.train):,} training, {len(plan.dataset.test):,} test images, {place}"),
            ("batch", f"{plan.batch_in_words()}; {len(self.loader)} steps per epoch"),
            ("optimizer", f"{plan.optimizer}, {settings}"),
            ("kvstore", f"{config.kvstore}; seed {config.seed}"),
        ):
            self.reporter.say(f"{name:<11}{text}")
        if config.memory:
            for line in Needs(plan, self.net).memory(math.ceil(plan.global_batch_size / len(plan.ctxs))).lines():
                self.reporter.say(line)

    def _epoch(self, epoch: int) -> Epoch:
        """Train on every image once, then evaluate."""
        began, losses, known = time.perf_counter(), 0.0, []  # type: float, float, List[StepLoss]
        with closing(iter(self.loader)) as batches:  # its thread ends with the loop, however that ends
            for xs, ys in batches:
                images = sum(len(x) for x in xs)
                known = self.log.append(self.step(xs, ys), images)
                losses += self._note(epoch, known)
                self.reporter.step_done(images, known)
                if self.log.step == 1:
                    self._first_step()
        losses += self._note(epoch, self.log.flush())
        nd.waitall()  # the last updates, too, belong to the time of this epoch
        seconds = time.perf_counter() - began
        score = evaluate(self.step.score, self.test_loader, self.plan.ctxs)
        if not math.isfinite(score.loss):  # the last update, after which no training loss is computed
            raise DivergedError(
                f"the validation loss became {score.loss} after step {self.log.step}: use a smaller learning rate (--lr)"
            )
        images = len(self.plan.dataset.train)
        return Epoch(epoch, self.log.step, images, seconds, losses / images, score.accuracy, score.loss)

    def _note(self, epoch: int, known: List[StepLoss]) -> float:
        """Record finished steps; the sum of their images' losses."""
        self.run.steps(epoch, self.plan.lr, time.perf_counter() - self.began, known)
        return sum(step.loss * step.images for step in known)

    def _first_step(self) -> None:
        """Wait for the very first step, once: initialising takes the longer the more devices there are."""
        nd.waitall()
        self.result.first_step_seconds = time.perf_counter() - self.began
        self.reporter.say(f"{'first step':<11}after {self.result.first_step_seconds:.2f} s")


def _epoch_line(epoch: Epoch, epochs: int) -> str:
    number = f"epoch {epoch.epoch:{len(str(epochs))}}/{epochs}"
    speed = f"{epoch.seconds:6.2f} s  {epoch.images_per_second:7,.0f} images/s"
    return f"{number}  {speed}  loss {epoch.loss:.4f}  validation accuracy {epoch.accuracy:.4f}"
