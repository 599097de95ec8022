"""Data parallelism: every device holds the whole network and trains on its shard of each batch.

A step runs the forward and backward passes of the shards, one microbatch at a time. Then the
kvstore sums the gradients, and every replica is updated. Losses are summed, not averaged, and the
update divides by the size of the entire batch. So k devices compute the same update as one device,
for any batch size and any division of the batch.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import autograd, gluon, nd

from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.bucketed_trainer.trainer_states import collect_states, set_states
from gluonlab.data.loading.split_batch import WHOLE_SHARDS, Batch, Microbatch, Microbatches
from gluonlab.gpu.cuda import enable_peer_access
from gluonlab.kvstores.process_group_store import GroupKVStore
from gluonlab.kvstores.process_groups import SINGLE_PROCESS, ProcessGroup
from gluonlab.parallel.data.replica import LossAccumulator, make_replicas
from gluonlab.parallel.data.running_statistics import RunningStatistics
from gluonlab.parallel.data.sync_bn import check_native_sync_bn
from gluonlab.parallel.memory_estimate import MemoryEstimate, ShardSizes
from gluonlab.parallel.mixed_precision import Conversion, keep_float32
from gluonlab.parallel.strategy import (
    MakeNet,
    MakeStrategy,
    Phase,
    PhaseHook,
    ScoredImages,
    StrategyPlan,
    StrategyState,
    UnshardedParameters,
)
from gluonlab.parallel.training_loss import loss_parameters

if TYPE_CHECKING:
    from gluonlab.bucketed_trainer.trainer_group import TrainerGroup


class ReplicaStep:
    """Trains several replicas of a network, one step at a time. `score` evaluates the replicas.

    Tensor parallelism also uses this class, with replicas that span several devices.
    """

    def __init__(
        self,
        replicas: Sequence[Any],
        trainer: "BucketedTrainer | TrainerGroup",
        microbatches: Microbatches,
        statistics: Any,
        sync_bn_replicas: Any = None,
    ) -> None:
        """Store the components of a step.

        Args:
            replicas: ``replicas[i]``, for example a `GraphReplica`, trains on shard i.
            trainer: The trainer, which sums the gradients and updates the parameters.
            microbatches: How shards are divided into microbatches.
            statistics: The `RunningStatistics` of the replicas.
            sync_bn_replicas: A `SyncBatchNormReplicas` that trains instead of ``replicas``.
        """
        self.replicas, self.microbatches = list(replicas), microbatches
        self.statistics, self.trainer, self.sync_bn_replicas = statistics, trainer, sync_bn_replicas
        self._sums = LossAccumulator([replica.ctx for replica in replicas])
        self._losses: List[nd.NDArray] = []

    def step(self, batch: Batch, hook: Optional[PhaseHook] = None) -> List[nd.NDArray]:
        """Queue a training step on a batch. Return the sum of losses (1,) of each shard.

        The call does not wait for the devices, and the next step overwrites the losses. ``hook``:
        see `Strategy.step`.
        """
        if autograd.is_recording():
            # Executors do not record. `pause` costs some microseconds, so only if necessary.
            with autograd.pause():
                return self.step(batch, hook)
        for name, queue in self.phases(batch, hook):
            if hook is None:
                queue()
            else:
                hook(name, queue)
        return self._losses

    __call__ = step

    def phases(self, batch: Batch, hook: Optional[PhaseHook] = None) -> Iterator[Phase]:
        """Yield ``forward`` and ``backward`` of each microbatch, then ``allreduce`` and ``update``.

        Call each phase before requesting the next phase. ``hook`` receives the allreduces of
        activations within a pass.
        """
        self._losses = []
        self.statistics.record_batch(batch.xs)
        rounds = self.microbatches.split_into_rounds(batch)
        for number, parts in enumerate(rounds):
            yield "forward", partial(self._forward, parts, number, len(rounds) > 1, hook)
            yield "backward", partial(self._backward, parts, hook)
        if len(batch.xs) < len(self.replicas):
            # Idle devices still hold the gradients of an earlier step, which would be summed, too.
            self.trainer.zero_grad(range(len(batch.xs), len(self.replicas)))
        yield from self.trainer.start_step(batch.size)

    def score(self, batch: Batch) -> Iterator[ScoredImages]:
        """Yield the scores of all microbatches, without training.

        On each device, the scores of a microbatch overwrite the scores of the previous microbatch.
        """
        for parts in self.microbatches.split_into_rounds(batch):
            for part in parts:
                replica = self.replicas[part.device]
                loss, scores = replica.forward(part.images, part.labels, train=False)
                yield ScoredImages(part.device, loss, scores, part.labels)

    @property
    def has_running_statistics(self) -> bool:
        """True if layers such as BatchNorm keep running statistics."""
        return bool(self.statistics.exist)

    def _forward(self, parts: Sequence[Microbatch], number: int, several: bool, hook: Optional[PhaseHook]) -> None:
        """Queue the forward pass of ``parts``: microbatch ``number`` of each shard.

        ``several``: whether shards have several microbatches, so that losses must be summed.
        """
        accumulate = number > 0
        if self.sync_bn_replicas is not None:
            losses = self.sync_bn_replicas.forward(parts, accumulate)
        else:
            losses = [
                self.replicas[device].forward(images, labels, accumulate=accumulate, hook=hook)[0]
                for device, images, labels in parts
            ]
        if several:
            losses = [self._sums.add(part.device, loss, first=not accumulate) for part, loss in zip(parts, losses)]
        self._losses = self._losses or losses

    def _backward(self, parts: Sequence[Microbatch], hook: Optional[PhaseHook]) -> None:
        """Queue the backward pass of ``parts``, for the losses times the loss scale."""
        loss_scale = self.trainer.loss_scale
        scale = 1.0 if loss_scale is None else loss_scale.value
        if self.sync_bn_replicas is not None:
            self.sync_bn_replicas.backward(scale)
        else:
            for device, _, _ in parts:
                self.replicas[device].backward(scale, hook)


class DataParallelStep(ReplicaStep):
    """A `ReplicaStep` with one device for each replica; ``DataParallelStep(...)(batch)`` trains.

    `gluonlab doctor` and the benchmarks use this class, because it requires no `Plan`.
    """

    trainer: BucketedTrainer

    def __init__(
        self,
        net: gluon.HybridBlock,
        loss: gluon.HybridBlock,
        trainer: BucketedTrainer,
        ctxs: Sequence[mx.Context],
        preprocess: Callable[[Any, Any], Any],
        microbatches: Microbatches = WHOLE_SHARDS,
        sync_bn: bool = False,
        convert: Conversion = keep_float32,
        group: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        """Compile the replicas.

        Args:
            net: A network that is initialized on ``ctxs`` and whose shapes are known.
            loss: The loss, which returns one value per image.
            trainer: The trainer of ``net``. The loss is multiplied by the trainer's ``loss_scale``.
            ctxs: The devices, one for each replica.
            preprocess: ``preprocess(F, images)``, which returns the input of ``net``.
            microbatches: How shards are divided into microbatches.
            sync_bn: Whether BatchNorm uses the mean and variance of the images on all devices,
                instead of the images on each device.
            convert: Conversion of the graph (`gluonlab.parallel.mixed_precision`).
            group: The processes whose running statistics are averaged. The trainer's kvstore sums
                the gradients of these processes.
        """
        enable_peer_access(ctxs)
        # Graphs are bound to the arrays of the parameters, which `prepare` moves into buckets.
        trainer.prepare()
        replicas = make_replicas(net, loss, preprocess, list(ctxs), convert)
        check_native_sync_bn(replicas[0].graph, type(net).__name__, len(ctxs))
        sync_bn_replicas = None
        if sync_bn:
            from gluonlab.parallel.data.sync_bn_replicas import SyncBatchNormReplicas

            params = {**net.collect_params(), **loss_parameters(loss)}
            sync_bn_replicas = SyncBatchNormReplicas(replicas[0].graph, params, ctxs)
        statistics = RunningStatistics(net, microbatches, sync_bn, group)
        super().__init__(replicas, trainer, microbatches, statistics, sync_bn_replicas)


class DataParallel(DataParallelStep, UnshardedParameters):
    """The `Strategy` with one replica on each of ``plan.ctxs``. `ReplicaStep` defines `step`."""

    def __init__(
        self, make_net: MakeNet, loss: gluon.HybridBlock, plan: StrategyPlan, group: ProcessGroup = SINGLE_PROCESS
    ) -> None:
        self.net = make_net(plan.ctxs)
        store = plan.kvstore
        if group.size > 1 or plan.on_servers:
            store = GroupKVStore(plan.kvstore, group, plan.on_servers, plan.compress)
        self.inputs = self.outputs = plan.ctxs
        trainer = BucketedTrainer(
            self.net.collect_params(), plan.make_optimizer(), None, store,
            bucket_bytes=plan.bucket_bytes, **plan.postprocessing,
        )  # fmt: skip
        super().__init__(
            self.net, loss, trainer, plan.ctxs, plan.preprocess, plan.microbatches, plan.sync_bn, plan.conversion, group
        )
        self._loss, self._plan, self._memory = loss, plan, None  # type: Any, StrategyPlan, Any

    def estimate_memory(self, shards: ShardSizes) -> List[MemoryEstimate]:
        """Return a list with one estimate, because each replica of the network has one device."""
        if self._memory is None:
            from gluonlab.parallel.data.memory import ReplicaMemory

            self._memory = ReplicaMemory(self.net, self._loss, self._plan)
        memory: List[MemoryEstimate] = self._memory.estimate_memory(shards)
        return memory

    def sync_running_statistics(self) -> None:
        """Average the running statistics. With parameter servers, also fetch the weights."""
        self.trainer.synchronize()
        self.statistics.average()

    def settings(self) -> Dict[str, Any]:
        """Return an empty dict, since data parallelism makes no decisions."""
        return {}

    def lines(self) -> "Iterator[Tuple[str, str]]":
        """Yield no lines, since data parallelism makes no decisions."""
        return iter(())

    def state(self) -> StrategyState:
        """Return optimizer states by parameter name, the loss scale, and running statistics."""
        scale = self.trainer.loss_scale
        return StrategyState(
            collect_states(self.trainer), {} if scale is None else scale.state(), *self.statistics.state()
        )

    def restore(self, state: StrategyState) -> None:
        """Resume from a saved `state`.

        The saved run may have had another kvstore and other devices.
        """
        set_states(self.trainer, state.optimizer, "this state")
        self.statistics.restore(state.devices, state.counts)
        if self.trainer.loss_scale is not None:
            self.trainer.loss_scale.restore(state.loss_scale)


data_parallel: MakeStrategy = DataParallel  # as an argument of `train`
