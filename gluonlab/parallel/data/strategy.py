"""Data parallelism: every device holds the whole network and trains on its shard of each batch."""

from __future__ import annotations

from typing import Any, Dict, Iterator, Tuple

from mxnet import gluon

from gluonlab.kvstores.group_store import GroupKVStore
from gluonlab.kvstores.groups import ALONE, Group
from gluonlab.parallel.data.memory import ReplicaMemory
from gluonlab.parallel.data.step import DataParallelStep
from gluonlab.parallel.strategy import (
    MakeNet,
    MakeStrategy,
    State,
    StrategyPlan,
    WholeParameters,
)
from gluonlab.update.states import restore, states_of
from gluonlab.update.trainer import BucketedTrainer


class DataParallel(WholeParameters):
    """The `Strategy` of replicas on ``plan.ctxs``, as `DataParallelStep` trains them."""

    def __init__(
        self,
        make_net: MakeNet,
        loss: gluon.HybridBlock,
        plan: StrategyPlan,
        group: Group = ALONE,
    ) -> None:
        self.net = make_net(plan.ctxs)
        store = plan.kvstore
        if group.size > 1 or plan.on_servers:
            store = GroupKVStore(plan.kvstore, group, plan.on_servers, plan.compress)
        self.inputs = self.outputs = plan.ctxs
        self.trainer = BucketedTrainer(
            self.net.collect_params(), plan.make_optimizer(), None, store,
            bucket_bytes=plan.bucket_bytes, clip_norm=plan.clip_norm, loss_scale=plan.loss_scale,
        )  # fmt: skip
        self.step = DataParallelStep(
            self.net, loss, self.trainer, plan.ctxs, plan.preprocess, plan.microbatches,
            plan.sync_bn, plan.conversion, group,
        )  # fmt: skip
        self.phases, self.score = self.step.phases, self.step.score
        self.taken = ReplicaMemory(self.net, loss, plan).taken
        self._average = self.step.running.average
        self.has_statistics = self.step.running.exist

    def settle_statistics(self) -> None:
        """As `Strategy` says; where the servers update, all processes get the same weights, too."""
        self.trainer.meet()
        self._average()

    def settings(self) -> Dict[str, Any]:
        """Nothing is decided here."""
        return {}

    def lines(self) -> "Iterator[Tuple[str, str]]":
        """Nothing is to be said."""
        return iter(())

    def state(self) -> State:
        """Optimizer states, by parameter name, loss scale, and each device's running statistics."""
        scale, trainer = self.trainer.loss_scale, self.trainer
        return State(
            states_of(trainer),
            {} if scale is None else scale.state(),
            *self.step.running.state(),
        )

    def restore(self, state: State) -> None:
        """Go on from a `state`, of any kvstore, and of any devices but for running statistics."""
        restore(self.trainer, state.optimizer, "this state")
        self.step.running.restore(state.devices, state.counts)
        if self.trainer.loss_scale is not None:
            self.trainer.loss_scale.restore(state.loss_scale)


data_parallel: MakeStrategy = DataParallel
