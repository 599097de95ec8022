"""What a run has before its first batch: the strategy with its network, the loader, first words."""

from __future__ import annotations

from typing import List, NamedTuple, Optional

import mxnet as mx
from mxnet import gluon

from gluonlab.data.loading.augment import Augment
from gluonlab.data.loading.loader import Loader
from gluonlab.data.loading.mixup import Mixup
from gluonlab.engine.semantics import nd_semantics
from gluonlab.errors import ConfigError
from gluonlab.kvstores.groups import ALONE, Group
from gluonlab.models.pretrained import load_pretrained
from gluonlab.parallel.data.strategy import data_parallel
from gluonlab.parallel.strategy import MakeStrategy, Strategy
from gluonlab.training.checks import BATCH, Made, check
from gluonlab.training.introduction import introduction
from gluonlab.training.memory import Needs
from gluonlab.training.network import make_net
from gluonlab.training.plan import Plan
from gluonlab.training.trial import in_words


class Ready(NamedTuple):
    """``introduction``: the lines with which the run begins."""

    strategy: Strategy
    introduction: List[str]


@nd_semantics()
def prepare(plan: Plan, make_strategy: MakeStrategy = data_parallel, group: Group = ALONE) -> Ready:
    """Make network and strategy. Raises a UsageError for what the plan could not show.

    Nothing else that the user can mend is found before the first batch.
    """
    lines: List[str] = []

    def make(ctxs: List[mx.Context]) -> gluon.HybridBlock:
        net = make_net(plan, ctxs)
        if plan.pretrained is not None:
            loaded = load_pretrained(net, plan.pretrained, len(plan.dataset.classes))
            lines.append(f"pretrained {loaded}")
        return net

    strategy = make_strategy(make, plan.make_loss(), plan, group)
    check(Made(plan, strategy.net, len(strategy.inputs)), BATCH)
    lines += introduction(plan, strategy)
    if plan.memory:
        lines += Needs(plan, strategy.net).memory(plan.largest_share).lines()
    return Ready(strategy, lines)


def measured_memory(plan: Plan, make_strategy: MakeStrategy) -> Optional[str]:
    """What such a run takes, measured in a process of its own; None unless --memory asks for it."""
    if not plan.memory:
        return None
    if make_strategy is not data_parallel:
        raise ConfigError(
            "--memory counts what data parallelism takes, not other strategies: leave it out"
        )
    return in_words(plan.config, plan.dataset, plan.ctxs)


def train_loader(plan: Plan, ctxs: List[mx.Context], group: Group = ALONE) -> Loader:
    """Batches of the plan's training images for these devices, shuffled and changed at random."""
    augment = Augment(plan.crop_padding, plan.flip) if plan.crop_padding or plan.flip else None
    return Loader(
        plan.dataset.train,
        ctxs,
        plan.global_batch_size,
        plan.seed,
        group.rank,
        group.size,
        raw=True,
        prefetch=plan.prefetch,
        resident_bytes=plan.resident_bytes,
        random_crops=plan.random_resized_crop,
        augment=augment,
        mixup=Mixup(plan.mixup) if plan.mixup else None,
    )
