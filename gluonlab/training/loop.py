"""train(TrainConfig(...)): a whole run, from the plan to the folder with its results."""

from __future__ import annotations

import math
import statistics
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Protocol, Sequence

import mxnet as mx
from mxnet import gluon, nd

import gluonlab
from gluonlab.config import TrainConfig
from gluonlab.data.augment import Augment, make_input
from gluonlab.data.folder import FileSplit
from gluonlab.data.loader import Loader
from gluonlab.data.mixup import Mixup
from gluonlab.devices import describe
from gluonlab.errors import DivergedError
from gluonlab.models import get_model
from gluonlab.models.pretrained import load_pretrained
from gluonlab.models.shapes import complete
from gluonlab.training.accumulate import Microbatches
from gluonlab.training.buckets import BucketedTrainer
from gluonlab.training.evaluate import Confusion, Scored, evaluate, test_loader
from gluonlab.training.extras import write_extras
from gluonlab.training.losses import LossLog, StepLoss
from gluonlab.training.memory import Needs
from gluonlab.training.objective import make_loss
from gluonlab.training.optimize import in_words, spare_biases
from gluonlab.training.plan import Plan, make_plan
from gluonlab.training.precision import conversion
from gluonlab.training.record import RunDirectory
from gluonlab.training.reporter import ConsoleReporter, Reporter
from gluonlab.training.statistics import RunningStatistics
from gluonlab.training.step import DataParallelStep
from gluonlab.training.sync_bn import check_network
from gluonlab.training.waiting import Waiting

MUCH_WAITING = 0.1  # of an epoch's time; more is worth a word


class Step(Protocol):
    """What a strategy makes of network, loss and plan; a batch is given as one shard for each device that has one."""

    def __call__(self, xs: Sequence[nd.NDArray], ys: Sequence[nd.NDArray]) -> List[nd.NDArray]:
        """Train on a batch; each shard's sum of losses (1,)."""

    def score(self, xs: Sequence[nd.NDArray], ys: Sequence[nd.NDArray]) -> Iterator[Scored]:
        """Without training, the sum of losses and the scores of each part of the batch, until the next is asked for."""


Strategy = Callable[[gluon.HybridBlock, gluon.HybridBlock, Plan], Step]


def data_parallel(net: gluon.HybridBlock, loss: gluon.HybridBlock, plan: Plan) -> Step:
    """Every device holds the whole network and works on its shard of each batch."""
    config = plan.config
    if config.no_bias_decay:
        spare_biases(net)  # before the trainer puts parameters of equal multipliers side by side
    settings = {**plan.optimizer_params, "lr_scheduler": plan.rates}
    trainer = BucketedTrainer(
        net.collect_params(), plan.optimizer, settings, plan.kvstore, config.bucket_bytes, config.clip_norm, plan.loss_scale
    )
    sync_bn, convert = config.sync_bn and len(plan.ctxs) > 1, conversion(config, len(plan.ctxs))
    preprocess, cut = make_input(plan.dataset.colours), Microbatches.of(config)
    return DataParallelStep(net, loss, trainer, plan.ctxs, preprocess, cut, sync_bn, convert)


@dataclass(frozen=True)
class Epoch:
    """What one pass over the training images gave; ``seconds`` are those of training alone.

    ``waiting``: the fraction of them in which the loop waited for batches.
    """

    epoch: int
    step: int
    images: int
    seconds: float
    loss: float
    accuracy: float
    validation_loss: float
    waiting: float = 0.0
    top5_accuracy: Optional[float] = None  # where there are more than five classes

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
    confusion: Optional[Confusion] = None

    @property
    def accuracy(self) -> float:
        """The fraction of test images that the network gets right after the last epoch."""
        return self.history[-1].accuracy

    @property
    def images_per_second(self) -> float:
        """The median over the epochs; without the first when there are others, for it also warms up."""
        rates = [epoch.images_per_second for epoch in self.history]
        return statistics.median(rates[1:] or rates)

    @property
    def waiting(self) -> float:
        """The fraction of the epochs' time in which the loop waited for batches."""
        return sum(epoch.waiting * epoch.seconds for epoch in self.history) / sum(epoch.seconds for epoch in self.history)

    def summary(self) -> Dict[str, Any]:
        """The numbers as plain values."""
        return {
            **self.plan.settings(),
            "accuracy": self.accuracy,
            "top5_accuracy": self.history[-1].top5_accuracy,
            "images_per_second": self.images_per_second,
            "waiting": self.waiting,
            "first_step_seconds": self.first_step_seconds,
            "seconds": self.seconds,
            "run_dir": str(self.run_dir),
            "history": [vars(epoch) for epoch in self.history],
            **({"confusion": self.confusion.tolist()} if self.confusion is not None else {}),
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
    if plan.config.pretrained is not None:
        reporter.say(f"pretrained {load_pretrained(net, plan.config.pretrained, len(plan.dataset.classes))}")
    run = RunDirectory.create(plan.config.out, f"{plan.model}-{plan.dataset.name}")
    run.config({"gluonlab": gluonlab.__version__, "settings": plan.settings(), "config": plan.config.to_dict()})
    result = Result(plan, net, run.path)
    try:
        _Run(plan, net, strategy, reporter, run, result, began).all_epochs()
        write_extras(run.path, plan, net, result.confusion)
        if result.confusion is not None:
            run.line("event", event="confusion", matrix=result.confusion.tolist())
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
    complete(net, plan.model, plan.dataset.image_shape, len(plan.dataset.classes))
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
        loss = make_loss(plan.config.label_smoothing, mixed=plan.config.mixup > 0)
        self.step = strategy(net, loss, plan)
        self.statistics = RunningStatistics(net)
        self.log = LossLog(plan.ctxs)
        config = plan.config
        common: Dict[str, Any] = dict(raw=True, prefetch=config.prefetch, resident_bytes=config.resident_bytes)
        augment = Augment(config.crop_padding, config.flip) if config.crop_padding or config.flip else None
        mixup = Mixup(config.mixup) if config.mixup else None
        changes: Dict[str, Any] = dict(random_crops=config.random_resized_crop, augment=augment, mixup=mixup)
        self.loader = Loader(plan.dataset.train, plan.ctxs, plan.global_batch_size, config.seed, **changes, **common)
        self.test_loader = test_loader(plan)

    def all_epochs(self) -> None:
        self._introduce()
        for epoch in range(1, self.plan.epochs + 1):
            line = ""
            self.reporter.epoch_begins(epoch, self.plan.epochs, len(self.plan.dataset.train))
            try:
                done = self._epoch(epoch)
                self.run.parameters(self.net)
                self.run.line("epoch", lr=self.plan.rates(done.step), **vars(done))
                self.result.history.append(done)
                line = _epoch_line(done, self.plan.epochs)  # said when it is true
            except DivergedError as error:
                self._note(epoch, error.finished)
                raise
            finally:
                self.reporter.epoch_ends(line)
        if self.result.waiting > MUCH_WAITING and isinstance(self.plan.dataset.train, FileSplit):
            cure = "decode them once (python -m gluonlab.data pack), with more --decoders, or into memory with --resident-bytes"
            if self.plan.config.random_resized_crop:
                cure = "decode them with more --decoders, or without --random-resized-crop once and for all"
            self.reporter.say(f"training waited for images {self.result.waiting:.0%} of its time: {cure}")

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
            *in_words(config, plan.rates, len(plan.ctxs)),
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
            waiting = Waiting(batches)
            for xs, ys in waiting:
                images = sum(len(x) for x in xs)
                known = self.log.append(self.step(xs, ys), images)
                self.statistics.saw(xs)
                losses += self._note(epoch, known)
                self.reporter.step_done(images, known)
                if self.log.step == 1:
                    self._first_step()
        losses += self._note(epoch, self.log.flush())
        nd.waitall()  # the last updates, too, belong to the time of this epoch
        seconds = time.perf_counter() - began
        self.statistics.average()
        self._note_loss_scale(epoch)
        score = evaluate(self.step.score, self.test_loader, self.plan.ctxs, self.plan.config.confusion)
        if not math.isfinite(score.loss):  # the last update, after which no training loss is computed
            raise DivergedError(
                f"the validation loss became {score.loss} after step {self.log.step}: use a smaller learning rate (--lr)"
            )
        self.result.confusion = score.confusion
        images = len(self.plan.dataset.train)
        share = waiting.seconds / seconds
        return Epoch(epoch, self.log.step, images, seconds, losses / images, score.accuracy, score.loss, share, score.top5_accuracy)

    def _note(self, epoch: int, known: List[StepLoss]) -> float:
        """Record finished steps; the sum of their images' losses."""
        self.run.steps(epoch, self.plan.rates, time.perf_counter() - self.began, known)
        return sum(step.loss * step.images for step in known)

    def _note_loss_scale(self, epoch: int) -> None:
        """Record how often gradients overflowed."""
        scale = self.plan.loss_scale
        if scale is not None:
            noted = {"epoch": epoch, "step": self.log.step, "loss_scale": scale.value, "skipped": scale.skipped}
            self.run.line("event", event="loss_scale", **noted)
            self.reporter.say(f"{'loss scale':<11}{scale.in_words()}")

    def _first_step(self) -> None:
        """Wait for the very first step, once: initialising takes the longer the more devices there are."""
        nd.waitall()
        self.result.first_step_seconds = time.perf_counter() - self.began
        self.reporter.say(f"{'first step':<11}after {self.result.first_step_seconds:.2f} s")


def _epoch_line(epoch: Epoch, epochs: int) -> str:
    number = f"epoch {epoch.epoch:{len(str(epochs))}}/{epochs}"
    speed = f"{epoch.seconds:6.2f} s  {epoch.images_per_second:7,.0f} images/s"
    return f"{number}  {speed}  loss {epoch.loss:.4f}  validation accuracy {epoch.accuracy:.4f}"
