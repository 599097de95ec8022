"""The strategy for pipeline parallelism, and for layer-wise model parallelism.

Each device needs memory only for its own stages. With layer-wise model parallelism, the network
runs one microbatch at a time, so that devices work one after the other. A pipeline runs several
microbatches at a time. Each batch may be divided between several replicas. Losses are summed, and
the update divides by the size of the batch. So the update is the same as on a single device, for
any cuts, schedule and number of replicas.
"""

from __future__ import annotations

import textwrap
from functools import partial
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import autograd, gluon, nd

from gluonlab.bucketed_trainer.gradient_postprocessing import GradientPostprocessor
from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.bucketed_trainer.trainer_group import TrainerGroup
from gluonlab.data.loading.split_batch import Batch, Microbatch
from gluonlab.gpu.cuda import enable_peer_access
from gluonlab.kvstores.process_group_store import GroupKVStore
from gluonlab.kvstores.process_groups import SINGLE_PROCESS, ProcessGroup
from gluonlab.parallel.data.running_statistics import RunningStatistics
from gluonlab.parallel.memory_estimate import MemoryEstimate, ShardSizes
from gluonlab.parallel.pipeline.network_stages import (
    BalancedCuts,
    PipelineMemory,
    chain_layers,
    check_cuts,
    choose_cuts,
    layer_name,
    make_schedule,
    make_stages,
)
from gluonlab.parallel.pipeline.pipeline_executor import Pipeline, StepProgram, queue_programs
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

LINE_WIDTH = 69  # characters of a line that a run prints at its start, without the title


class PipelineParallel(UnshardedParameters):
    """The `Strategy` for pipeline stages. Replica i is on ``plan.parallelism.copies[i]``."""

    def __init__(
        self, make_net: MakeNet, loss: gluon.HybridBlock, plan: StrategyPlan, group: ProcessGroup = SINGLE_PROCESS
    ) -> None:
        split = plan.parallelism
        self._copies, self._split = split.copies, split
        enable_peer_access(plan.ctxs)
        self.net = make_net(plan.ctxs, [mx.cpu()])
        layers = self._layers = chain_layers(self.net)
        self._balanced: Optional[BalancedCuts] = None
        cuts = list(split.cut or ())
        if split.cut is None:
            balanced = choose_cuts(layers, loss, plan, self._copies[0][0])
            self._balanced = balanced.broadcast_from_rank_0(group)
            cuts = self._balanced.cuts
        check_cuts(split.model, layers, cuts)
        self.cuts = cuts
        self.stages = make_stages(layers, cuts, loss, plan.preprocess, plan.conversion)
        self._memory = PipelineMemory(self.stages, loss, plan)
        self._place_parameters()
        self.trainer = TrainerGroup(
            [self._make_trainer(device, plan, group) for device in self._devices_with_parameters()],
            GradientPostprocessor(**plan.postprocessing),
        )
        self.pipelines = [Pipeline(self.stages, ctxs, partial(make_schedule, split)) for ctxs in self._copies]
        self.microbatches = plan.microbatches
        self.statistics = RunningStatistics(self.net, plan.microbatches, group=group, copies=self._copies)
        self._losses: List[nd.NDArray] = []

    @property
    def inputs(self) -> List[mx.Context]:
        """The first device of each replica."""
        return [ctxs[0] for ctxs in self._copies]

    @property
    def outputs(self) -> List[mx.Context]:
        """The last device of each replica."""
        return [ctxs[-1] for ctxs in self._copies]

    @property
    def has_running_statistics(self) -> bool:
        """True if layers such as BatchNorm keep running statistics."""
        return self.statistics.exist

    def sync_running_statistics(self) -> None:
        """Average the running statistics over the replicas."""
        self.statistics.average()

    def estimate_memory(self, shards: ShardSizes) -> List[MemoryEstimate]:
        """Return a memory estimate for each device of a replica."""
        return self._memory.estimate_memory(shards)

    def step(self, batch: Batch, hook: Optional[PhaseHook] = None) -> List[nd.NDArray]:
        """Queue a training step on a batch. Return the sum of losses (1,) of each replica's shard.

        ``hook``: see `Strategy.step`.
        """
        if autograd.is_recording():
            # Executors do not record. `pause` costs some microseconds, so only if necessary.
            with autograd.pause():
                return self.step(batch, hook)
        for name, queue in self.phases(batch):
            if hook is None:
                queue()
            else:
                hook(name, queue)
        return self._losses

    def phases(self, batch: Batch) -> Iterator[Phase]:
        """Yield ``stages`` (forward and backward), ``allreduce`` and ``update``."""
        yield "stages", partial(self._queue_stages, batch)
        yield from self.trainer.start_step(batch.size)

    def score(self, batch: Batch) -> Iterator[ScoredImages]:
        """Yield the scores of all microbatches, without training."""
        for parts in self.microbatches.split_into_rounds(batch):
            for part in parts:
                loss, scores = self.pipelines[part.device].score(part)
                labels = part.labels.as_in_context(loss.context)
                yield ScoredImages(part.device, loss, scores, labels)

    def state(self) -> StrategyState:
        """Return optimizer states by name, loss scale, and each replica's running statistics."""
        scale = self.trainer.loss_scale
        return StrategyState(
            self.trainer.collect_states(), {} if scale is None else scale.state(), *self.statistics.state()
        )

    def restore(self, state: StrategyState) -> None:
        """Resume from a `state`, which may have been saved with any parallel mode."""
        self.trainer.set_states(state.optimizer, "this state")
        self.statistics.restore(state.devices, state.counts)
        if self.trainer.loss_scale is not None:
            self.trainer.loss_scale.restore(state.loss_scale)

    def lines(self) -> "Iterator[Tuple[str, str]]":
        """Yield lines for a run's output: each stage's layers and fraction of time or memory."""
        bounds = [0, *self.cuts, len(self._layers)]
        for number, (begin, end) in enumerate(zip(bounds, bounds[1:])):
            ctxs = " ".join(map(str, self._ctxs_of(number % self._split.size)))
            names = [layer_name(self._layers[index]) for index in sorted({begin, end - 1})]
            layer_range = f"layer {begin}" if end - begin == 1 else f"layers {begin} to {end - 1}"
            text = f"{number} on {ctxs}: {layer_range}, {' to '.join(names)}"
            if self._balanced is not None:
                text += f", {100 * self._balanced.shares[number]:.0f} % of the {self._balanced.balance}"
            for line in textwrap.wrap(text, LINE_WIDTH, subsequent_indent="  "):
                yield "stages" * (number == 0 and line[0] != " "), line

    def settings(self) -> Dict[str, Any]:
        """Return the cuts between stages, for config.json."""
        return {"cut": ",".join(map(str, self.cuts))}

    def _queue_stages(self, batch: Batch) -> None:
        """Queue forward and backward of a batch in all replicas, and store the sums of losses."""
        self.statistics.record_batch(batch.xs)
        programs = self.programs(batch)
        queue_programs(programs)
        if len(programs) < len(self._copies):
            # Idle copies still hold the gradients of an earlier step, which would be summed, too.
            self.trainer.zero_grad(range(len(programs), len(self._copies)))
        self._losses = [program.loss for program in programs]

    def programs(self, batch: Batch) -> List[StepProgram]:
        """Return the training program of each replica, for its shard of the batch."""
        rounds = self.microbatches.split_into_rounds(batch)
        scale = 1.0 if self.trainer.loss_scale is None else self.trainer.loss_scale.value
        programs = []
        for copy, (images, labels) in enumerate(zip(batch.xs, batch.ys)):
            parts = [part for round_parts in rounds for part in round_parts if part.device == copy]
            shard = Microbatch(copy, images, labels)
            programs.append(self.pipelines[copy].get_program(shard, parts))
            programs[-1].set_loss_scale(scale)
        return programs

    def _place_parameters(self) -> None:
        """Move each stage's parameters to the devices of the stage."""
        for number, stage in enumerate(self.stages):
            ctxs = self._ctxs_of(number % len(self._copies[0]))
            for param in stage.params.values():
                param.reset_ctx(ctxs)

    def _ctxs_of(self, device: int) -> List[mx.Context]:
        """Return device number ``device`` of each replica."""
        return [ctxs[device] for ctxs in self._copies]

    def _params_of(self, device: int) -> Mapping[str, gluon.Parameter]:
        """Return the parameters of the stages on a device."""
        stages = self.stages[device :: len(self._copies[0])]
        return {name: param for stage in stages for name, param in stage.params.items()}

    def _devices_with_parameters(self) -> Sequence[int]:
        return [device for device in range(len(self._copies[0])) if self._params_of(device)]

    def _make_trainer(self, device: int, plan: StrategyPlan, group: ProcessGroup) -> BucketedTrainer:
        """Create the trainer for the stages on device number ``device`` of each replica."""
        store = plan.new_kvstore(self._ctxs_of(device))
        store = store if group.size == 1 else GroupKVStore(store, group, compress=plan.compress)
        return BucketedTrainer(
            dict(self._params_of(device)), plan.make_optimizer(), None, store, bucket_bytes=plan.bucket_bytes
        )


pipeline_parallel: MakeStrategy = PipelineParallel
