"""train(TrainConfig(...)): a whole run, from the plan to the folder with its results."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Protocol, Sequence

import mxnet as mx
from mxnet import gluon, nd

from gluonlab.config import TrainConfig
from gluonlab.data.loading.augment import Augment
from gluonlab.data.loading.loader import Loader
from gluonlab.data.loading.mixup import Mixup
from gluonlab.data.sets.classes import noted
from gluonlab.data.sets.dataset import Dataset
from gluonlab.data.sets.folder import FileSplit
from gluonlab.devices import describe
from gluonlab.engine.semantics import make_users, nd_semantics
from gluonlab.errors import DivergedError
from gluonlab.finite import check_parameters, check_validation_loss
from gluonlab.gpu.arithmetic import use_arithmetic
from gluonlab.models import get_model
from gluonlab.models.pretrained import load_pretrained
from gluonlab.models.shapes import complete
from gluonlab.optimizers.momentum import MXNET
from gluonlab.parallel.data.statistics import RunningStatistics
from gluonlab.parallel.data.step import DataParallelStep
from gluonlab.parallel.strategy import Scored
from gluonlab.runs import schema
from gluonlab.runs.result import Result
from gluonlab.runs.schema import Epoch
from gluonlab.runs.writer import RunDirectory
from gluonlab.training.checks import BATCH, NETWORK, Made, check
from gluonlab.training.ending import recorded, write_extras
from gluonlab.training.evaluate import evaluate, test_loader
from gluonlab.training.losses import LossLog, StepLoss
from gluonlab.training.memory import Memory, Needs
from gluonlab.training.optimize import spare_biases
from gluonlab.training.plan import Plan, make_plan
from gluonlab.training.reporter import ConsoleReporter, Reporter
from gluonlab.training.trial import in_words as take_in_words
from gluonlab.training.waiting import Waiting
from gluonlab.update.trainer import BucketedTrainer

MUCH_WAITING = 0.1  # of an epoch's time; more is worth a word


class Step(Protocol):
    """What a strategy makes of network, loss and plan; a batch is given as one shard for each
    device that has one.
    """

    def __call__(self, xs: Sequence[nd.NDArray], ys: Sequence[nd.NDArray]) -> List[nd.NDArray]:
        """Train on a batch; each shard's sum of losses (1,)."""

    def score(self, xs: Sequence[nd.NDArray], ys: Sequence[nd.NDArray]) -> Iterator[Scored]:
        """Without training, the sum of losses and the scores of each part of the batch, until the
        next is asked for.
        """


Strategy = Callable[[gluon.HybridBlock, gluon.HybridBlock, Plan], Step]


def data_parallel(net: gluon.HybridBlock, loss: gluon.HybridBlock, plan: Plan) -> Step:
    """Every device holds the whole network and works on its shard of each batch."""
    trainer = BucketedTrainer(
        net.collect_params(), plan.make_optimizer(), None, plan.kvstore,
        bucket_bytes=plan.bucket_bytes, clip_norm=plan.clip_norm, loss_scale=plan.loss_scale,
    )  # fmt: skip
    return DataParallelStep(
        net, loss, trainer, plan.ctxs, plan.preprocess, plan.microbatches, plan.sync_bn,
        plan.conversion,
    )  # fmt: skip


def train(
    config: "TrainConfig | None" = None,
    strategy: Strategy = data_parallel,
    reporter: Optional[Reporter] = None,
    dataset: Optional[Dataset] = None,
) -> Result:
    """Train as ``config`` says, on the devices it names, and write the run's folder.

    ``dataset``: the one that the config names, where it has been read already. Raises a UsageError
    before anything is written when the config cannot be carried out, and DivergedError when the
    loss is no longer a number, or beyond recovery, or the parameters are not finite after an epoch.
    The run computes with mx.nd; its network is of the user's kind, mx.np after ``npx.set_np()``.
    After an error or Ctrl-C the folder holds everything up to the last whole epoch; a UsageError
    before that one, such as for an image that cannot be decoded, takes it away again.
    """
    with nd_semantics():
        result = _train(config or TrainConfig(), strategy, reporter or ConsoleReporter(), dataset)
    make_users(result.net)
    return result


def _train(
    config: TrainConfig, strategy: Strategy, reporter: Reporter, dataset: Optional[Dataset]
) -> Result:
    RunDirectory.check(config.out)
    plan = make_plan(config, dataset)
    taken = (
        take_in_words(config, plan.dataset, plan.ctxs)
        if config.memory and strategy is data_parallel
        else None
    )
    return train_plan(plan, strategy, reporter, taken)


def train_plan(
    plan: Plan, strategy: Strategy, reporter: Reporter, taken: Optional[str] = None
) -> Result:
    """`train` for a plan. ``taken``: what such a run has been measured to take, in words."""
    began = time.perf_counter()
    ready = prepare(plan, strategy)
    run = RunDirectory.create(plan.out, f"{plan.model}-{plan.dataset.name}")
    result = Result(plan, ready.net, run.path)
    with recorded(run, result):
        classes = noted(plan.dataset.classes)
        run.describe(plan.config.to_dict(), settings=plan.settings(), classes=classes)
        _Run(plan, ready, reporter, run, result, began).all_epochs(taken)
        if result.confusion is not None:
            run.write(schema.ConfusionEvent(result.confusion.tolist()))
        write_extras(run.path, plan, ready.net, result.confusion)
    result.seconds = time.perf_counter() - began
    return result


class Ready(NamedTuple):
    """What a run has before its first batch.

    ``pretrained``: what was loaded, in words; ``memory``: if the config asks for it.
    """

    net: gluon.HybridBlock
    step: Step
    pretrained: Optional[str]
    memory: Optional[Memory]


@nd_semantics()
def prepare(plan: Plan, strategy: Strategy = data_parallel) -> Ready:
    """Make network and step.

    Raises a UsageError for what the plan could not show: nothing else is found before the first
    batch.
    """
    net = make_net(plan)
    loaded = (
        load_pretrained(net, plan.pretrained, len(plan.dataset.classes))
        if plan.pretrained is not None
        else None
    )
    step = strategy(net, plan.make_loss(), plan)
    memory = None
    if plan.memory:
        memory = Needs(plan, net).memory(plan.largest_share)
    return Ready(net, step, loaded, memory)


def make_net(plan: Plan) -> gluon.HybridBlock:
    """The plan's network with the same parameters on every device, all shapes known.

    Raises ModelError if it does not fit.

    GPUs compute as the plan says from here on. Raises ConfigError when they have computed otherwise
    in this process.
    """
    use_arithmetic(plan.arithmetic, plan.ctxs)
    mx.random.seed(plan.seed)
    net = get_model(plan.model, len(plan.dataset.classes), plan.ctxs)
    made = Made(plan, net, len(plan.ctxs))
    check(made, NETWORK)
    net.initialize(mx.init.Xavier(), ctx=plan.ctxs)
    complete(net, plan.model, plan.dataset.image_shape, len(plan.dataset.classes))
    check(made, BATCH)
    if plan.no_bias_decay:
        spare_biases(net)  # before a trainer puts parameters of equal multipliers side by side
    return net


class _Run:
    """The state that the epochs of one run share."""

    def __init__(
        self,
        plan: Plan,
        ready: Ready,
        reporter: Reporter,
        run: RunDirectory,
        result: Result,
        began: float,
    ) -> None:
        self.plan, self.ready, self.reporter, self.run, self.result, self.began = (
            plan,
            ready,
            reporter,
            run,
            result,
            began,
        )
        self.net, self.step = ready.net, ready.step
        self.statistics = RunningStatistics(ready.net, plan.microbatches, plan.sync_bn)
        self.log = LossLog(plan.ctxs, may_overflow=plan.loss_scale is not None)
        common: Dict[str, Any] = dict(
            raw=True, prefetch=plan.prefetch, resident_bytes=plan.resident_bytes
        )
        padding, flip = plan.crop_padding, plan.flip
        augment = Augment(padding, flip) if padding or flip else None
        mixup = Mixup(plan.mixup) if plan.mixup else None
        changes: Dict[str, Any] = dict(
            random_crops=plan.random_resized_crop, augment=augment, mixup=mixup
        )
        self.loader = Loader(
            plan.dataset.train, plan.ctxs, plan.global_batch_size, plan.seed, **changes, **common
        )
        self.test_loader = test_loader(plan)

    def all_epochs(self, taken: Optional[str]) -> None:
        self._introduce(taken)
        for epoch in range(1, self.plan.epochs + 1):
            line = ""
            self.reporter.epoch_begins(epoch, self.plan.epochs, len(self.plan.dataset.train))
            try:
                done = self._epoch(epoch)
                self.run.parameters(self.net)
                self.run.write(done)
                self.result.history.append(done)
                line = _epoch_line(done, self.plan.epochs)  # said when it is true
            except DivergedError as error:
                self._note(epoch, error.finished)
                raise
            finally:
                self.reporter.epoch_ends(line)
        if self.result.waiting > MUCH_WAITING and isinstance(self.plan.dataset.train, FileSplit):
            cure = (
                "decode them once (python -m gluonlab.data pack), with more --decoders, "
                "or into memory with --resident-bytes"
            )
            if self.plan.random_resized_crop:
                cure = (
                    "decode them with more --decoders, or once and for all with "
                    "--no-random-resized-crop"
                )
            self.reporter.say(
                f"training waited for images {self.result.waiting:.0%} of its time: {cure}"
            )

    def _introduce(self, taken: Optional[str]) -> None:
        plan = self.plan
        if self.ready.pretrained is not None:
            self.reporter.say(f"pretrained {self.ready.pretrained}")
        threads = (
            ""
            if plan.ctxs[0].device_type == "gpu"
            else f", {plan.threads} thread{'s' * (plan.threads > 1)} each"
        )
        size = sum(param.data(plan.ctxs[0]).size for param in self.net.collect_params().values())
        place = (
            "resident on the devices"
            if self.loader.resident
            else f"streamed, {plan.prefetch} batches ahead"
        )
        settings = ", ".join(
            f"{name.replace('_', ' ')} {value:g}"
            for name, value in plan.optimizer_params.items()
            if value
        )
        for name, text in (
            ("devices", describe(plan.ctxs) + threads),
            ("network", f"{plan.model}, {size:,} parameters"),
            (
                "data",
                (
                    f"{plan.dataset.name}: {len(plan.dataset.train):,} training, "
                    f"{len(plan.dataset.test):,} test images, {place}"
                ),
            ),
            *plan.settled.in_words(),
            (
                "batch",
                (
                    f"{plan.batch_in_words()}; {len(self.loader)} "
                    f"step{'s' * (len(self.loader) > 1)} per epoch"
                ),
            ),
            (
                "optimizer",
                f"{plan.optimizer}, {settings}"
                + f", momentum rule {MXNET}" * (plan.momentum_rule == MXNET),
            ),
            *plan.options_in_words(),
            ("kvstore", f"{plan.config.kvstore}{plan.placed_in_words()}; seed {plan.seed}"),
            *(
                [("arithmetic", plan.arithmetic.in_words())]
                if plan.ctxs[0].device_type == "gpu"
                else []
            ),
        ):
            self.reporter.say(f"{name:<11}{text}")
        for line in self.ready.memory.lines() if self.ready.memory is not None else ():
            self.reporter.say(line)
        if taken is not None:
            self.reporter.say(taken)

    def _epoch(self, epoch: int) -> Epoch:
        """Train on every image once, then evaluate."""
        began = time.perf_counter()
        known: List[StepLoss] = []  # of this epoch
        # its thread ends with the loop, however that ends
        with closing(iter(self.loader)) as batches:
            waiting = Waiting(batches)
            for xs, ys in waiting:
                images = sum(len(x) for x in xs)
                self.statistics.saw(xs)
                new = self.log.append(self.step(xs, ys), images)
                known += self._note(epoch, new)
                self.reporter.step_done(images, new)
                if self.log.step == 1:
                    self._first_step()
        known += self._note(epoch, self.log.flush())
        nd.waitall()  # the last updates, too, belong to the time of this epoch
        seconds = time.perf_counter() - began
        self.statistics.average()
        self._note_loss_scale(epoch)
        check_parameters(self.net, f"after step {self.log.step}")
        score = evaluate(self.step.score, self.test_loader, self.plan.ctxs, self.plan.confusion)
        check_validation_loss(score.loss, f"after step {self.log.step}", self.statistics.exist)
        self.result.confusion = score.confusion
        loss, images = _mean_loss(epoch, known), len(self.plan.dataset.train)
        share = waiting.seconds / seconds
        return Epoch(
            epoch=epoch,
            step=self.log.step,
            images=images,
            training_seconds=seconds,
            loss=loss,
            accuracy=score.accuracy,
            validation_loss=score.loss,
            top5_accuracy=score.top5_accuracy,
            waiting=share,
            lr=self.plan.rates(self.log.step),
            seconds=time.perf_counter() - self.began,
        )

    def _note(self, epoch: int, known: List[StepLoss]) -> List[StepLoss]:
        """Record finished steps; the same ones."""
        seconds, rates = time.perf_counter() - self.began, self.plan.rates
        self.run.write(
            *(
                schema.Step(at, loss, rates(at), epoch, images, seconds)
                for at, images, loss in known
            )
        )
        return known

    def _note_loss_scale(self, epoch: int) -> None:
        """Record how often gradients overflowed."""
        scale = self.plan.loss_scale
        if scale is not None:
            self.run.write(schema.LossScaleEvent(epoch, self.log.step, scale.value, scale.skipped))
            self.reporter.say(f"{'loss scale':<11}{scale.in_words()}")

    def _first_step(self) -> None:
        """Wait for the very first step, once: initialising takes the longer the more devices there
        are.
        """
        nd.waitall()
        self.result.first_step_seconds = time.perf_counter() - self.began
        self.reporter.say(f"{'first step':<11}after {self.result.first_step_seconds:.2f} s")


def _mean_loss(epoch: int, steps: Sequence[StepLoss]) -> float:
    """Over the images of these steps: all of an epoch, but for those in which float16
    overflowed.
    """
    if not steps:
        raise DivergedError(
            f"the loss overflows in every step of epoch {epoch}: "
            "use a smaller learning rate (--lr), or float32"
        )
    return sum(step.loss * step.images for step in steps) / sum(step.images for step in steps)


def _epoch_line(epoch: Epoch, epochs: int) -> str:
    number = f"epoch {epoch.epoch:{len(str(epochs))}}/{epochs}"
    speed = f"{epoch.training_seconds:6.2f} s  {epoch.images_per_second:7,.0f} images/s"
    return f"{number}  {speed}  loss {epoch.loss:.4f}  validation accuracy {epoch.accuracy:.4f}"
