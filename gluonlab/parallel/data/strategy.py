"""Data parallelism: every device holds the whole network and trains on its shard of each batch.

One step: the shards go forward and backward, a microbatch at a time; the kvstore sums the
gradients; every replica is updated. The losses of a batch are added up, not averaged, and the
update divides by the size of the whole batch; so it does not matter how the batch was cut, and any
batch size gives on k devices the update that one device would make.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import autograd, gluon, nd

from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.bucketed_trainer.trainer_states import collect_states, set_states
from gluonlab.data.loading.split_batch import Batch
from gluonlab.gpu.cuda import enable_peer_access
from gluonlab.kvstores.process_group_store import GroupKVStore
from gluonlab.kvstores.process_groups import ALONE, Group
from gluonlab.parallel.data.microbatches import WHOLE, LossSums, Microbatch, Microbatches
from gluonlab.parallel.data.replica import replicas
from gluonlab.parallel.data.running_statistics import RunningStatistics
from gluonlab.parallel.data.sync_bn import check_waits
from gluonlab.parallel.memory_estimate import ShardSizes, Taken
from gluonlab.parallel.mixed_precision import Conversion, as_it_is
from gluonlab.parallel.strategy import (
    Around,
    MakeNet,
    MakeStrategy,
    Phase,
    Scored,
    State,
    StrategyPlan,
    WholeParameters,
    queue_all,
)
from gluonlab.parallel.training_loss import constants_of


class ReplicaStep:
    """`step` trains copies of a network on a batch; `score` only runs them."""

    def __init__(
        self,
        replicas: Sequence[Any],
        updates: Any,
        microbatches: Microbatches,
        statistics: Any,
        staged: Any = None,
    ) -> None:
        """``replicas[i]``, a `GraphReplica` or something like it, trains on shard i.

        ``updates`` sums and updates: a `BucketedTrainer`, or a `TrainerGroup`. ``statistics``: the
        copies' `RunningStatistics`. ``staged``: a
        `gluonlab.parallel.data.sync_bn_replicas.StagedReplicas`
        that trains in place of the replicas.
        """
        self.replicas, self.microbatches = list(replicas), microbatches
        self.statistics, self.updates, self.staged = statistics, updates, staged
        self._sums = LossSums([replica.ctx for replica in replicas])
        self._losses: List[nd.NDArray] = []

    def step(self, batch: Batch, around: Optional[Around] = None) -> List[nd.NDArray]:
        """Queue the training on a batch; the sum of losses (1,) of each shard.

        Nothing waits, and the next step overwrites the losses. ``around``: see `queue_all`.
        """
        if autograd.is_recording():
            with autograd.pause():  # which costs some microseconds
                return self.step(batch, around)
        queue_all(self.phases(batch, around), around)
        return self._losses

    __call__ = step

    def phases(self, batch: Batch, around: Optional[Around] = None) -> Iterator[Phase]:
        """``forward`` and ``backward`` of each microbatch, ``allreduce``, ``update``.

        Call each before taking the next. ``around`` is shown the sums that are part of a pass.
        """
        self._losses = []
        self.statistics.saw(batch.xs)
        rounds = self.microbatches.rounds(batch)
        for number, parts in enumerate(rounds):
            yield "forward", partial(self._forward, parts, number, len(rounds) > 1, around)
            yield "backward", partial(self._backward, parts, around)
        if len(batch.xs) < len(self.replicas):  # idle devices: their last gradients must not count
            self.updates.zero_grad(range(len(batch.xs), len(self.replicas)))
        yield from self.updates.start_step(batch.size)  # executors set no flags of freshness

    def score(self, batch: Batch) -> Iterator[Scored]:
        """The scores of all shards, part by part, without training.

        Each is overwritten when the next is asked for.
        """
        for parts in self.microbatches.rounds(batch):
            for part in parts:
                replica = self.replicas[part.device]
                loss, scores = replica.forward(part.images, part.labels, train=False)
                yield Scored(part.device, loss, scores, part.labels)

    @property
    def has_statistics(self) -> bool:
        """As `Strategy` says."""
        return bool(self.statistics.exist)

    def _forward(
        self, parts: Sequence[Microbatch], number: int, several: bool, around: Optional[Around]
    ) -> None:
        """Round ``number`` of the batch, which may have ``several``."""
        add = number > 0  # to the gradients of the rounds before
        if self.staged is not None:
            losses = self.staged.forward(parts, add)
        else:
            losses = [
                self.replicas[device].forward(images, labels, add=add, around=around)[0]
                for device, images, labels in parts
            ]
        if several:
            losses = [
                self._sums.add(part.device, loss, first=not add)
                for part, loss in zip(parts, losses)
            ]
        self._losses = self._losses or losses

    def _backward(self, parts: Sequence[Microbatch], around: Optional[Around]) -> None:
        loss_scale = self.updates.loss_scale
        scale = 1.0 if loss_scale is None else loss_scale.value
        if self.staged is not None:
            self.staged.backward(scale)
        else:
            for device, _, _ in parts:
                self.replicas[device].backward(scale, around)


class DataParallelStep(ReplicaStep):
    """`ReplicaStep` of replicas that each have a device: ``DataParallelStep(...)(batch)``."""

    def __init__(
        self,
        net: gluon.HybridBlock,
        loss: gluon.HybridBlock,
        trainer: BucketedTrainer,
        ctxs: Sequence[mx.Context],
        preprocess: Callable[[Any, Any], Any],
        microbatches: Microbatches = WHOLE,
        sync_bn: bool = False,
        convert: Conversion = as_it_is,
        group: Group = ALONE,
    ) -> None:
        """``net`` is initialised on ``ctxs``, and ``preprocess(F, images)`` makes its input.

        All its shapes are known.
        ``sync_bn``: BatchNorm takes mean and variance of the images of all devices; without it, of
        each device's own. ``convert``: how the network computes
        (`gluonlab.parallel.mixed_precision`).
        The trainer's ``loss_scale`` is what the loss is multiplied by. ``group``: the processes
        whose running statistics are averaged; the trainer's kvstore sums over them.
        """
        enable_peer_access(ctxs)
        trainer.prepare()  # before the graphs are bound: it moves the parameters into buckets
        made = replicas(net, loss, preprocess, list(ctxs), convert)
        check_waits(made[0].graph, type(net).__name__, len(ctxs))
        staged = None
        if sync_bn:
            from gluonlab.parallel.data.sync_bn_replicas import StagedReplicas

            params = {**net.collect_params(), **constants_of(loss)}
            staged = StagedReplicas(made[0].graph, params, ctxs)
        statistics = RunningStatistics(net, microbatches, sync_bn, group)
        super().__init__(made, trainer, microbatches, statistics, staged)
        self.trainer = trainer


class DataParallel(DataParallelStep, WholeParameters):
    """The `Strategy` of replicas on ``plan.ctxs``."""

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
        trainer = BucketedTrainer(
            self.net.collect_params(), plan.make_optimizer(), None, store,
            bucket_bytes=plan.bucket_bytes, clip_norm=plan.postprocess.clip_norm,
            loss_scale=plan.postprocess.loss_scale,
        )  # fmt: skip
        super().__init__(
            self.net, loss, trainer, plan.ctxs, plan.preprocess, plan.microbatches,
            plan.sync_bn, plan.conversion, group,
        )  # fmt: skip
        self._loss, self._plan, self._memory = loss, plan, None  # type: Any, StrategyPlan, Any

    def taken(self, shards: ShardSizes) -> List[Taken]:
        """As `Strategy` says."""
        if self._memory is None:
            from gluonlab.parallel.data.memory import ReplicaMemory

            self._memory = ReplicaMemory(self.net, self._loss, self._plan)
        memory: List[Taken] = self._memory.taken(shards)
        return memory

    def settle_statistics(self) -> None:
        """As `Strategy` says; where the servers update, all processes get the same weights, too."""
        self.trainer.synchronize()
        self.statistics.average()

    def settings(self) -> Dict[str, Any]:
        """Nothing is decided here."""
        return {}

    def lines(self) -> "Iterator[Tuple[str, str]]":
        """Nothing is to be said."""
        return iter(())

    def state(self) -> State:
        """Optimizer states, by parameter name, loss scale, and each device's running statistics."""
        scale = self.trainer.loss_scale
        return State(
            collect_states(self.trainer),
            {} if scale is None else scale.state(),
            *self.statistics.state(),
        )

    def restore(self, state: State) -> None:
        """Go on from a `state`, of any kvstore, and of any devices but for running statistics."""
        set_states(self.trainer, state.optimizer, "this state")
        self.statistics.restore(state.devices, state.counts)
        if self.trainer.loss_scale is not None:
            self.trainer.loss_scale.restore(state.loss_scale)


data_parallel: MakeStrategy = DataParallel
