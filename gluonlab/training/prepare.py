"""What a run has before its first batch: the strategy with its network, the loader, first words."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, List, NamedTuple, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon

from gluonlab.config import TrainConfig, option_name
from gluonlab.data.loading.augment import Augment
from gluonlab.data.loading.loader import Loader
from gluonlab.data.loading.mixup import Mixup
from gluonlab.data.sets.dataset import ArraySplit, Dataset, Defaults
from gluonlab.data.sets.gluon_data import resolve_dataset
from gluonlab.engine.semantics import nd_semantics
from gluonlab.errors import ConfigError
from gluonlab.host.stuck import ends_if_stuck
from gluonlab.kvstores.groups import Group
from gluonlab.models.pretrained import load_pretrained
from gluonlab.parallel import strategy_class
from gluonlab.parallel.data.replica import loss_graph
from gluonlab.parallel.data.sync_bn import check_waits
from gluonlab.parallel.strategy import CHANNELS, MakeStrategy, Strategy
from gluonlab.runs.writer import NoRunDirectory, RunDirectory
from gluonlab.training.agreement import all_or_none
from gluonlab.training.checks import BATCH, CONFIG, Made, check
from gluonlab.training.device_weights import check_count, weights_of
from gluonlab.training.draft import Draft
from gluonlab.training.introduction import introduction
from gluonlab.training.memory import told
from gluonlab.training.network import make_net
from gluonlab.training.own import NOTHING, Own
from gluonlab.training.plan import Plan, make_plan
from gluonlab.training.profiling import Training
from gluonlab.training.replica_check import ReplicaCheck
from gluonlab.training.same_options import check_same_options
from gluonlab.training.trial import in_words


def until_read(given: Any) -> Optional[Dataset]:
    """A data set for checks that look at no images: that ``given`` to `train`, or one of black."""
    if given is None or isinstance(given, Dataset):
        return given
    black = ArraySplit(np.zeros((1, 1, 1, 1), np.uint8), np.zeros(1, np.int32))
    return Dataset("", black, black, ("",), Defaults())


def read_together(given: Any, config: TrainConfig, own: Own, group: Group) -> Optional[Dataset]:
    """The data set that every process was ``given`` for `train`.

    Raises DataError, a UsageError for a ``config`` that cannot be carried out whatever the data,
    before anything is read, and RunError where another process cannot read its own.
    """

    def read() -> Optional[Dataset]:
        stand_in = until_read(given)
        if stand_in is not given:
            check(Draft(config, stand_in, group, own), CONFIG)
        return resolve_dataset(given)

    return all_or_none(group, read)


def plan_together(
    config: TrainConfig,
    dataset: Optional[Dataset],
    group: Group,
    begun: bool = False,
    own: Own = NOTHING,
) -> Plan:
    """The plan of this process, once all have theirs.

    ``begun``: whether the run has begun in its folder already.
    Raises what `make_plan` raises, OutputError at rank 0 for a folder that cannot be written,
    RunError where another process cannot begin, and ConfigError where processes have different
    options, or different numbers of devices while batches are counted per device, or copies of the
    network have.
    """

    def make() -> Plan:
        if group.rank == 0 and not begun:
            RunDirectory.check(config.out)
        return make_plan(config, dataset, group, own)

    check_same_options(config, group)
    plan = all_or_none(group, make)
    sizes = _everyones(group, plan.split.size)
    if len(set(sizes)) > 1:
        option = option_name("ways" if config.split == CHANNELS else "stages")
        raise ConfigError(
            f"--split {config.split}: the processes spread the network over "
            f"{', '.join(map(str, sizes))} devices: give {option}, or as many devices to each"
        )
    counts = _everyones(group, len(plan.split.copies))
    if config.global_batch_size is None and len(set(counts)) > 1:
        raise ConfigError(
            f"the processes have {', '.join(map(str, counts))} devices: give --global-batch-size, "
            "or as many devices to each"
        )
    return dataclasses.replace(plan, device_counts=counts)


def _everyones(group: Group, count: int) -> Tuple[int, ...]:
    """The counts of all processes."""
    return tuple(group.everyones(np.array(count)).astype(int).tolist())


class Ready(NamedTuple):
    """A run that can begin. ``introduction``: its first lines."""

    plan: Plan
    strategy: Strategy
    introduction: List[str]


@nd_semantics()
@ends_if_stuck()  # a strategy may measure
def prepare(plan: Plan, make_strategy: Optional[MakeStrategy] = None) -> Ready:
    """Make network and strategy. Raises a UsageError for mistakes that show only with them.

    They are the last mistakes of the user that can be found before the first batch.
    """
    lines: List[str] = []

    def make(ctxs: List[mx.Context], start: Optional[List[mx.Context]] = None) -> gluon.HybridBlock:
        net = make_net(plan, ctxs, start)
        if plan.own.net is not None or plan.own.loss is not None:
            graph = loss_graph(net, plan.make_loss(), plan.preprocess)
            check_waits(graph, plan.model, len(plan.split.copies))
        if plan.pretrained is not None:
            loaded = load_pretrained(net, plan.pretrained, len(plan.dataset.classes))
            lines.append(f"pretrained {loaded}")
        return net

    made_by = make_strategy or strategy_class(plan.split.way)
    strategy = made_by(make, plan.make_loss(), plan, plan.group)
    if make_strategy is not None:  # it says itself how many shards its batches have
        check_count(plan.device_weights, len(strategy.inputs))
        counts = _everyones(plan.group, len(strategy.inputs))
        plan = dataclasses.replace(plan, device_counts=counts)
    if plan.group.rank > 0:  # the processes begin alike, and draw Dropout's masks of their own
        mx.random.seed(plan.seed + plan.group.rank)
    check(Made(plan, strategy.net, len(strategy.inputs)), BATCH)
    lines += introduction(plan, strategy)
    if plan.memory:
        lines += told(plan, strategy.net, strategy.taken)
    return Ready(plan, strategy, lines)


def measured_memory(plan: Plan, make_strategy: Optional[MakeStrategy]) -> Optional[str]:
    """A line on the memory of such a run, measured in its own process; None without --memory.

    Raises ConfigError for a strategy that no option chooses, and RunError where memory is
    short.
    """
    if not plan.memory:
        return None
    if make_strategy is not None:
        raise ConfigError(
            "--memory counts what the ways of --split take, not other strategies: leave it out"
        )
    return in_words(plan.config, plan.dataset, plan.ctxs)


def replica_check(plan: Plan, strategy: Strategy) -> Callable[..., None]:
    """The check of --check-replicas, to be called after each step: raises DriftError.

    ``f(step, stops)``: the step, from 1, and whether training stops after it.
    """
    every, last = plan.check_replicas, plan.epochs * plan.steps_per_epoch
    if every is None:
        return lambda step, stops=False: None
    check = ReplicaCheck(strategy.net, plan.sync_bn, plan.group, strategy.replicated())

    def after(step: int, stops: bool = False) -> None:
        if step % every == 0 or step == last or stops:
            check.after(step)

    return after


def training(
    plan: Plan,
    strategy: Strategy,
    run: "RunDirectory | NoRunDirectory",
    say: Callable[[str], None],
) -> Training:
    """What trains on each batch, and records some steps where --profile says so."""
    return Training(strategy, plan.profile or 0, plan.steps_per_epoch, plan.ctxs, run, say)


def train_loader(plan: Plan, ctxs: List[mx.Context]) -> Loader:
    """Batches of the plan's training images for these devices, shuffled and changed at random."""
    augment = Augment(plan.crop_padding, plan.flip) if plan.crop_padding or plan.flip else None
    return Loader(
        plan.dataset.train,
        ctxs,
        plan.global_batch_size,
        plan.seed,
        plan.group.rank,
        plan.group.size,
        raw=True,
        prefetch=plan.prefetch,
        resident_bytes=plan.resident_bytes,
        random_crops=plan.random_resized_crop,
        augment=augment,
        mixup=Mixup(plan.mixup) if plan.mixup else None,
        device_counts=plan.device_counts,
        weights=weights_of(plan.device_weights),
        drop_last=plan.drop_last,
    )
