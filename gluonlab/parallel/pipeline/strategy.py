"""Stages of a network on different devices, in one or several copies that share each batch.

With one microbatch at a time that is the split between layers: devices work one after the other,
and each needs memory for its own part alone. With several under way it is a pipeline. The losses of
a batch are added up and the update divides by its size, so that any cut, any schedule and any
number of copies make the update of the whole batch on one device.
"""

from __future__ import annotations

import textwrap
from functools import partial
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import autograd, gluon, nd

from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.bucketed_trainer.trainer_group import TrainerGroup
from gluonlab.data.loading.split_batch import Batch
from gluonlab.gpu.cuda import enable_peer_access
from gluonlab.kvstores.process_group_store import GroupKVStore
from gluonlab.kvstores.process_groups import ALONE, Group
from gluonlab.parallel.data.microbatches import Microbatch
from gluonlab.parallel.data.running_statistics import RunningStatistics
from gluonlab.parallel.memory_estimate import ShardSizes, Taken
from gluonlab.parallel.pipeline.network_stages import (
    Balanced,
    StagedMemory,
    check_cuts,
    choose_cuts,
    layers_of,
    make_stages,
    name_of,
    schedule_of,
)
from gluonlab.parallel.pipeline.pipeline_executor import Pipeline, Program, queue
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

WIDTH = 69  # of a line of what a run says first, without its title


class StagedParallel(WholeParameters):
    """The `Strategy` of stages, copy i of the network on the devices ``plan.split.copies[i]``."""

    def __init__(
        self,
        make_net: MakeNet,
        loss: gluon.HybridBlock,
        plan: StrategyPlan,
        group: Group = ALONE,
    ) -> None:
        split = plan.split
        self._copies, self._split = split.copies, split
        enable_peer_access(plan.ctxs)
        self.net = make_net(plan.ctxs, [mx.cpu()])
        layers = self._layers = layers_of(self.net)
        self._balanced: Optional[Balanced] = None
        cuts = list(split.cut or ())
        if split.cut is None:
            balanced = choose_cuts(layers, loss, plan, self._copies[0][0])
            self._balanced = balanced.of_rank_0(group)
            cuts = self._balanced.cuts
        check_cuts(split.model, layers, cuts)
        self.cuts = cuts
        self.stages = make_stages(layers, cuts, loss, plan.preprocess, plan.conversion)
        self._memory = StagedMemory(self.stages, loss, plan)
        self._place()
        self.updates = TrainerGroup(
            [self._trainer(device, plan, group) for device in self._devices_with_parameters()],
            plan.postprocess,
        )
        self.pipelines = [
            Pipeline(self.stages, ctxs, partial(schedule_of, split)) for ctxs in self._copies
        ]
        self.microbatches = plan.microbatches
        self.statistics = RunningStatistics(
            self.net, plan.microbatches, group=group, copies=self._copies
        )
        self._losses: List[nd.NDArray] = []

    @property
    def inputs(self) -> List[mx.Context]:
        """The first device of each copy."""
        return [ctxs[0] for ctxs in self._copies]

    @property
    def outputs(self) -> List[mx.Context]:
        """The last device of each copy."""
        return [ctxs[-1] for ctxs in self._copies]

    @property
    def has_statistics(self) -> bool:
        """As `Strategy` says."""
        return self.statistics.exist

    def settle_statistics(self) -> None:
        """As `Strategy` says."""
        self.statistics.average()

    def taken(self, shards: ShardSizes) -> List[Taken]:
        """As `Strategy` says."""
        return self._memory.taken(shards)

    def step(self, batch: Batch, around: Optional[Around] = None) -> List[nd.NDArray]:
        """Queue the training on a batch; the sum of losses (1,) of each copy's shard.

        ``around``: see `queue_all`.
        """
        if autograd.is_recording():
            with autograd.pause():  # which costs some microseconds
                return self.step(batch, around)
        queue_all(self.phases(batch), around)
        return self._losses

    def phases(self, batch: Batch) -> Iterator[Phase]:
        """``stages``, forward and backward of all; ``allreduce``; ``update``."""
        yield "stages", partial(self._stages, batch)
        yield from self.updates.start_step(batch.size)

    def score(self, batch: Batch) -> Iterator[Scored]:
        """The scores of all shards, part by part, without training."""
        for parts in self.microbatches.rounds(batch):
            for part in parts:
                loss, scores = self.pipelines[part.device].score(part)
                labels = part.labels.as_in_context(loss.context)
                yield Scored(part.device, loss, scores, labels)

    def state(self) -> State:
        """Optimizer states, by parameter name, loss scale, and running statistics of each copy."""
        scale = self.updates.loss_scale
        return State(
            self.updates.collect_states(),
            {} if scale is None else scale.state(),
            *self.statistics.state(),
        )

    def restore(self, state: State) -> None:
        """Go on from a `state`, of any split."""
        self.updates.set_states(state.optimizer, "this state")
        self.statistics.restore(state.devices, state.counts)
        if self.updates.loss_scale is not None:
            self.updates.loss_scale.restore(state.loss_scale)

    def lines(self) -> "Iterator[Tuple[str, str]]":
        """The stages with their layers, and what part they have of that by which they were cut."""
        bounds = [0, *self.cuts, len(self._layers)]
        for number, (begin, end) in enumerate(zip(bounds, bounds[1:])):
            ctxs = " ".join(map(str, self._ctxs_of(number % self._split.size)))
            names = [name_of(self._layers[place]) for place in sorted({begin, end - 1})]
            places = f"layer {begin}" if end - begin == 1 else f"layers {begin} to {end - 1}"
            text = f"{number} on {ctxs}: {places}, {' to '.join(names)}"
            if self._balanced is not None:
                text += f", {100 * self._balanced.shares[number]:.0f} % of the {self._balanced.of}"
            for line in textwrap.wrap(text, WIDTH, subsequent_indent="  "):
                yield "stages" * (number == 0 and line[0] != " "), line

    def settings(self) -> Dict[str, Any]:
        """Where the network was cut."""
        return {"cut": ",".join(map(str, self.cuts))}

    def _stages(self, batch: Batch) -> None:
        self.statistics.saw(batch.xs)
        programs = self.programs(batch)
        queue(programs)
        if len(programs) < len(self._copies):  # idle ones: their last gradients must not count
            self.updates.zero_grad(range(len(programs), len(self._copies)))
        self._losses = [program.loss for program in programs]

    def programs(self, batch: Batch) -> List[Program]:
        """What each copy of the network that has a shard is to queue for it."""
        rounds = self.microbatches.rounds(batch)
        scale = 1.0 if self.updates.loss_scale is None else self.updates.loss_scale.value
        programs = []
        for copy, (images, labels) in enumerate(zip(batch.xs, batch.ys)):
            parts = [part for each in rounds for part in each if part.device == copy]
            shard = Microbatch(copy, images, labels)
            programs.append(self.pipelines[copy].program(shard, parts))
            programs[-1].begin_with(scale)
        return programs

    def _place(self) -> None:
        """Have each stage's parameters on the stage's devices alone."""
        for number, stage in enumerate(self.stages):
            ctxs = self._ctxs_of(number % len(self._copies[0]))
            for param in stage.params.values():
                param.reset_ctx(ctxs)

    def _ctxs_of(self, device: int) -> List[mx.Context]:
        """The devices that play this one in the copies of the network."""
        return [ctxs[device] for ctxs in self._copies]

    def _params_of(self, device: int) -> Mapping[str, gluon.Parameter]:
        own = self.stages[device :: len(self._copies[0])]
        return {name: param for stage in own for name, param in stage.params.items()}

    def _devices_with_parameters(self) -> Sequence[int]:
        return [device for device in range(len(self._copies[0])) if self._params_of(device)]

    def _trainer(self, device: int, plan: StrategyPlan, group: Group) -> BucketedTrainer:
        store = plan.new_kvstore(self._ctxs_of(device))
        store = store if group.size == 1 else GroupKVStore(store, group, compress=plan.compress)
        return BucketedTrainer(
            dict(self._params_of(device)), plan.make_optimizer(), None, store,
            bucket_bytes=plan.bucket_bytes,
        )  # fmt: skip


staged_parallel: MakeStrategy = StagedParallel
