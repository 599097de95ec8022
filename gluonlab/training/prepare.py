"""What a run has before its first batch: the strategy with its network, the loader, first words."""

from __future__ import annotations

from typing import Callable, List, NamedTuple, Optional

import mxnet as mx
import numpy as np
from mxnet import gluon

from gluonlab.config import TrainConfig
from gluonlab.data.loading.augment import Augment
from gluonlab.data.loading.loader import Loader
from gluonlab.data.loading.mixup import Mixup
from gluonlab.data.sets.dataset import Dataset
from gluonlab.engine.semantics import nd_semantics
from gluonlab.errors import ConfigError, RunError
from gluonlab.kvstores.groups import Group
from gluonlab.models.pretrained import load_pretrained
from gluonlab.parallel.data.strategy import data_parallel
from gluonlab.parallel.strategy import MakeStrategy, Strategy
from gluonlab.runs.writer import RunDirectory
from gluonlab.training.checks import BATCH, Made, check
from gluonlab.training.introduction import introduction
from gluonlab.training.memory import Needs
from gluonlab.training.network import make_net
from gluonlab.training.plan import Plan, make_plan
from gluonlab.training.replica_check import ReplicaCheck
from gluonlab.training.trial import in_words


def plan_together(config: TrainConfig, dataset: Optional[Dataset], group: Group) -> Plan:
    """The plan of this process, once all have theirs.

    Raises what `make_plan` raises, OutputError at rank 0 for a folder that cannot be written,
    RunError where another process cannot begin, and ConfigError where batches are counted per
    device and processes have different numbers of devices.
    """
    devices = np.zeros(group.size)  # of each process; none where it cannot begin
    try:
        if group.rank == 0:
            RunDirectory.check(config.out)
        plan = make_plan(config, dataset, group)
        devices[group.rank] = len(plan.ctxs)
    except Exception:
        group.total(devices)
        raise
    devices = group.total(devices)
    if not devices.all():
        raise RunError("another process of this training cannot begin: its own message says why")
    if config.global_batch_size is None and len(set(devices)) > 1:
        counts = ", ".join(f"{count:g}" for count in devices)
        raise ConfigError(
            f"the processes have {counts} devices: give --global-batch-size, "
            "or as many devices to each"
        )
    return plan


class Ready(NamedTuple):
    """A run that can begin. ``introduction``: its first lines."""

    strategy: Strategy
    introduction: List[str]


@nd_semantics()
def prepare(plan: Plan, make_strategy: MakeStrategy = data_parallel) -> Ready:
    """Make network and strategy. Raises a UsageError for mistakes that show only with them.

    They are the last mistakes of the user that can be found before the first batch.
    """
    lines: List[str] = []

    def make(ctxs: List[mx.Context]) -> gluon.HybridBlock:
        net = make_net(plan, ctxs)
        if plan.pretrained is not None:
            loaded = load_pretrained(net, plan.pretrained, len(plan.dataset.classes))
            lines.append(f"pretrained {loaded}")
        return net

    strategy = make_strategy(make, plan.make_loss(), plan, plan.group)
    if plan.group.rank > 0:  # the processes begin alike, and draw Dropout's masks of their own
        mx.random.seed(plan.seed + plan.group.rank)
    check(Made(plan, strategy.net, len(strategy.inputs)), BATCH)
    lines += introduction(plan, strategy)
    if plan.memory:
        lines += Needs(plan, strategy.net).memory(plan.largest_share).lines()
    return Ready(strategy, lines)


def measured_memory(plan: Plan, make_strategy: MakeStrategy) -> Optional[str]:
    """A line on the memory of such a run, measured in its own process; None without --memory.

    Raises ConfigError for a strategy other than data parallelism, and RunError where memory is
    short.
    """
    if not plan.memory:
        return None
    if make_strategy is not data_parallel:
        raise ConfigError(
            "--memory counts what data parallelism takes, not other strategies: leave it out"
        )
    return in_words(plan.config, plan.dataset, plan.ctxs)


def replica_check(plan: Plan, net: gluon.HybridBlock) -> Callable[[int], None]:
    """The check of --check-replicas, to be called after each step (from 1): raises DriftError."""
    every, last = plan.check_replicas, plan.epochs * plan.steps_per_epoch
    if every is None:
        return lambda step: None
    check = ReplicaCheck(net, plan.sync_bn, plan.group)
    return lambda step: check.after(step) if step % every == 0 or step == last else None


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
    )
