"""Trains a network whose layers are split by channels over the devices of each replica.

`TensorParallel` is the `Strategy`: it runs forward, backward and update, and saves the state.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import mxnet as mx
from mxnet import gluon, nd

from gluonlab.bucketed_trainer.gradient_postprocessing import GradientPostprocessor
from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.bucketed_trainer.trainer_group import TrainerGroup
from gluonlab.bucketed_trainer.trainer_states import collect_states, set_states
from gluonlab.collectives.algorithms import ALGORITHMS, make_schedule
from gluonlab.engine.fast_invoke import order_between_passes
from gluonlab.gpu.cuda import enable_peer_access
from gluonlab.kvstores.process_group_store import GroupKVStore
from gluonlab.kvstores.process_groups import SINGLE_PROCESS, ProcessGroup
from gluonlab.optimizers.optimizer_states import fit_states, state_targets
from gluonlab.parallel.data.replica import IMAGES, LABELS, loss_graph
from gluonlab.parallel.data.strategy import ReplicaStep
from gluonlab.parallel.memory_estimate import MemoryEstimate, ShardSizes
from gluonlab.parallel.strategy import (
    MakeNet,
    MakeStrategy,
    ReplicatedArray,
    StrategyPlan,
    StrategyState,
    untrained_arrays,
)
from gluonlab.parallel.tensor.layout import Layout
from gluonlab.parallel.tensor.layout_planner import plan_layout
from gluonlab.parallel.tensor.memory import TensorMemory
from gluonlab.parallel.tensor.replica import TensorReplica
from gluonlab.parallel.tensor.sharded_parameters import (
    ReplicatedParameter,
    ShardedStatistics,
    gather_shards,
    gather_states,
    shard_parameters,
    shard_states,
    slice_shard,
)
from gluonlab.parallel.training_loss import label_columns, loss_parameters, scoring_loss

DEFAULT_ALGORITHM = "sharded"  # the allreduce of activations, unless the kvstore names another


class TensorParallel(ReplicaStep):
    """The `Strategy` of tensor parallelism. Replica i is on ``plan.parallelism.copies[i]``.

    ``net`` contains the whole parameters on the CPU, as of the last `sync_running_statistics`.
    """

    def __init__(
        self, make_net: MakeNet, loss: gluon.HybridBlock, plan: StrategyPlan, group: ProcessGroup = SINGLE_PROCESS
    ) -> None:
        self._copies = copies = plan.parallelism.copies
        self._devices = range(plan.parallelism.size)
        enable_peer_access(plan.ctxs)
        self.net = make_net([mx.cpu()], [mx.cpu()])
        self._params = dict(self.net.collect_params().items())
        layout = self.layout = self._plan_layout(loss, plan)
        scoring = self._plan_layout(scoring_loss(loss), plan) if label_columns(loss) else layout
        by_device = [[ctxs[device] for ctxs in copies] for device in self._devices]
        self.device_params = [
            shard_parameters(self._params, layout.slices, device, by_device[device]) for device in self._devices
        ]
        trainers = [self._make_trainers(params, plan, group) for params in self.device_params]
        self._sharded_trainers = [sharded for sharded, _ in trainers]
        self._replicated_trainers = [replicated for _, replicated in trainers if replicated is not None]
        postprocessor = GradientPostprocessor(**plan.postprocessing)
        updates = TrainerGroup(self._sharded_trainers, postprocessor, self._replicated_trainers)
        schedule = make_schedule(_activation_allreduce(plan.kvstore), plan.parallelism.size)
        constants_and_params = [{**params, **loss_parameters(loss)} for params in self.device_params]
        replicas = [
            TensorReplica(layout, scoring, constants_and_params, ctxs, schedule, plan.conversion) for ctxs in copies
        ]
        segments, scoring_segments = replicas[0].segments, replicas[0].scoring_segments
        self._memory = TensorMemory(segments, scoring_segments, constants_and_params, plan, label_columns(loss))
        params_by_path = self.net._collect_params_with_prefix()
        paths = {param.name: path for path, param in params_by_path.items()}
        statistics = ShardedStatistics(layout, self.device_params, copies, paths, plan.microbatches, group)
        super().__init__(replicas, updates, plan.microbatches, statistics)

    @property
    def inputs(self) -> List[mx.Context]:
        """The first device of each replica."""
        return [ctxs[0] for ctxs in self._copies]

    outputs = inputs

    def estimate_memory(self, shards: ShardSizes) -> List[MemoryEstimate]:
        """Return a memory estimate for each device of a replica."""
        return self._memory.estimate_memory(shards)

    def sync_running_statistics(self) -> None:
        """Average the statistics over the replicas, and copy all parameters to ``net``."""
        self.statistics.average()
        params = self.net._collect_params_with_prefix()
        for name, array in self.parameters().items():
            array.copyto(params[name].list_data()[0])

    def parameters(self) -> Mapping[str, nd.NDArray]:
        """Return all parameters on the CPU, by structural name, joined from the devices' shards."""
        slices = self.layout.slices
        with order_between_passes(
            untrained_arrays(param for params in self.device_params for param in params.values())
        ):
            return {
                path: gather_shards(
                    [params[param.name].list_data()[0] for params in self.device_params], slices.get(param.name)
                )
                for path, param in self.net._collect_params_with_prefix().items()
            }

    def set_parameters(self, parameters: Mapping[str, nd.NDArray]) -> None:
        """Copy parameters, given by structural name, to ``net``, and copy shards to the devices."""
        for path, param in self.net._collect_params_with_prefix().items():
            parameters[path].copyto(param.list_data()[0])
            for device, params in enumerate(self.device_params):
                shard = slice_shard(parameters[path], self.layout.slices.get(param.name), device)
                for array in params[param.name].list_data():
                    shard.copyto(array)

    def replicated_parameters(self) -> List[ReplicatedArray]:
        """Return each shard and each unsharded parameter, with all devices that have a copy."""
        slices, first = self.layout.slices, self.device_params[0]
        sharded = [param for params in self.device_params for name, param in params.items() if name in slices]
        unsharded = [
            ReplicatedParameter([params[name] for params in self.device_params]) for name in first if name not in slices
        ]
        return [*sharded, *unsharded]

    def state(self) -> StrategyState:
        """Return the whole network's optimizer states, loss scale and running statistics."""
        scale = self.trainer.loss_scale
        return StrategyState(
            gather_states(
                [collect_states(trainer) for trainer in (*self._sharded_trainers, *self._replicated_trainers)],
                self.layout.slices,
            ),
            {} if scale is None else scale.state(),
            *self.statistics.state(),
        )

    def restore(self, state: StrategyState) -> None:
        """Resume from a `state`, which may have been saved with any parallel mode."""
        whole = [self._params[name] for name in sorted(self._params)]
        optimizer, what = self._sharded_trainers[0]._optimizer, "this state"
        states = fit_states(optimizer, state.optimizer, state_targets(whole), what)
        for trainers in (self._sharded_trainers, self._replicated_trainers):
            for device, trainer in enumerate(trainers):
                params = {param.name: param for param in trainer._params}
                set_states(trainer, shard_states(states, self.layout.slices, device, params), what)
        self.statistics.restore(state.devices, state.counts)
        if self.trainer.loss_scale is not None:
            self.trainer.loss_scale.restore(state.loss_scale)

    def settings(self) -> Dict[str, Any]:
        """Return an empty dict, since tensor parallelism makes no decisions."""
        return {}

    def lines(self) -> "Iterator[Tuple[str, str]]":
        """Yield a line for a run's output, with the number of layers split in each mode.

        The line also contains the number of allreduces.
        """
        counts = Counter(self.layout.layers.values())
        layers = ", ".join(f"{count} by {mode}" for mode, count in counts.items())
        sums = self.layout.allreduce_count
        yield "channels", f"{layers}; {sums} allreduce{'s' * (sums != 1)} of activations per pass"

    def _plan_layout(self, loss: gluon.HybridBlock, plan: StrategyPlan) -> Layout:
        """Plan how to split the network and its loss, based on a device's largest microbatch."""
        graph = loss_graph(self.net, loss, plan.preprocess)
        images = max(1, plan.microbatches.largest_part(plan.parallelism.max_shard_images))
        labels = (images, *[label_columns(loss)] * bool(label_columns(loss)))
        shapes = {IMAGES: (images, *plan.parallelism.image_shape), LABELS: labels}
        trained = {name for name, param in self._params.items() if param.grad_req != "null"}
        return plan_layout(graph, shapes, trained, plan.parallelism.size, plan.parallelism.channels)

    def _make_trainers(
        self, params: Mapping[str, gluon.Parameter], plan: StrategyPlan, group: ProcessGroup
    ) -> "Tuple[BucketedTrainer, Optional[BucketedTrainer]]":
        """Create a trainer for a device's shards, and a trainer for unsharded parameters.

        The second trainer is None if all parameters are sharded.
        """
        slices = self.layout.slices
        sharded = {name: param for name, param in params.items() if name in slices}
        unsharded = {name: param for name, param in params.items() if name not in slices}
        return _make_trainer(sharded, plan, group), _make_trainer(unsharded, plan, group) if unsharded else None


def _make_trainer(params: Mapping[str, gluon.Parameter], plan: StrategyPlan, group: ProcessGroup) -> BucketedTrainer:
    store = plan.new_kvstore(next(iter(params.values())).list_ctx())
    store = store if group.size == 1 else GroupKVStore(store, group, compress=plan.compress)
    return BucketedTrainer(dict(params), plan.make_optimizer(), None, store, bucket_bytes=plan.bucket_bytes)


def _activation_allreduce(kvstore: Any) -> str:
    """Return the allreduce algorithm for activations.

    If the kvstore is one of ALGORITHMS, activations use the same algorithm.
    """
    name = str(kvstore.type)
    return name if name in ALGORITHMS else DEFAULT_ALGORITHM


tensor_parallel: MakeStrategy = TensorParallel
