"""The channels of a network's layers on different devices, in one or several copies."""

from __future__ import annotations

from collections import Counter
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import mxnet as mx
from mxnet import gluon, nd

from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.bucketed_trainer.trainer_group import TrainerGroup
from gluonlab.bucketed_trainer.trainer_states import restore, states_of
from gluonlab.collectives.algorithms import ALGORITHMS, make_schedule
from gluonlab.engine.fast_invoke import order_between_passes
from gluonlab.gpu.cuda import enable_peer_access
from gluonlab.kvstores.process_group_store import GroupKVStore
from gluonlab.kvstores.process_groups import ALONE, Group
from gluonlab.optimizers.optimizer_states import fitted, own_of
from gluonlab.parallel.data.replica import IMAGES, LABELS, loss_graph
from gluonlab.parallel.data.strategy import ReplicaStep
from gluonlab.parallel.memory_estimate import ShardSizes, Taken
from gluonlab.parallel.strategy import (
    MakeNet,
    MakeStrategy,
    Replicated,
    State,
    StrategyPlan,
    statistics_of,
)
from gluonlab.parallel.tensor.layout import Layout
from gluonlab.parallel.tensor.layout_planner import split
from gluonlab.parallel.tensor.memory import ChannelMemory
from gluonlab.parallel.tensor.replica import ChannelReplica
from gluonlab.parallel.tensor.sharded_parameters import (
    ChannelStatistics,
    Everywhere,
    joined,
    joined_states,
    part,
    parts_of,
    state_parts,
)
from gluonlab.parallel.training_loss import constants_of, label_columns, scoring_loss

SUMS = "sharded"  # the allreduce of activations, unless the kvstore names another


class ChannelParallel(ReplicaStep):
    """The `Strategy` of split channels, copy i of the network on ``plan.split.copies[i]``.

    ``net`` has the whole parameters, on the CPU, as they were when the statistics were last
    settled.
    """

    def __init__(
        self,
        make_net: MakeNet,
        loss: gluon.HybridBlock,
        plan: StrategyPlan,
        group: Group = ALONE,
    ) -> None:
        self._copies = copies = plan.split.copies
        self._devices = range(plan.split.size)
        enable_peer_access(plan.ctxs)
        self.net = make_net([mx.cpu()], [mx.cpu()])  # no channels are added for oneDNN
        self._params = dict(self.net.collect_params().items())
        layout = self.layout = self._layout(loss, plan)
        scoring = self._layout(scoring_loss(loss), plan) if label_columns(loss) else layout
        by_device = [[ctxs[device] for ctxs in copies] for device in self._devices]
        self.parts = [
            parts_of(self._params, layout.slices, device, by_device[device])
            for device in self._devices
        ]
        trainers = [self._trainers(own, plan, group) for own in self.parts]
        self._of_slices = [sliced for sliced, _ in trainers]
        self._of_wholes = [whole for _, whole in trainers if whole is not None]
        updates = TrainerGroup(self._of_slices, plan.postprocess, beside=self._of_wholes)
        schedule = make_schedule(_algorithm(plan.kvstore), plan.split.size)
        kept = [{**own, **constants_of(loss)} for own in self.parts]
        replicas = [
            ChannelReplica(layout, scoring, kept, ctxs, schedule, plan.conversion)
            for ctxs in copies
        ]
        levels, scoring_levels = replicas[0].levels, replicas[0].scoring
        self._memory = ChannelMemory(levels, scoring_levels, kept, plan, label_columns(loss))
        whole = self.net._collect_params_with_prefix()
        places = {param.name: place for place, param in whole.items()}
        statistics = ChannelStatistics(layout, self.parts, copies, places, plan.microbatches, group)
        super().__init__(replicas, updates, plan.microbatches, statistics)

    @property
    def inputs(self) -> List[mx.Context]:
        """The first device of each copy."""
        return [ctxs[0] for ctxs in self._copies]

    outputs = inputs

    def taken(self, shards: ShardSizes) -> List[Taken]:
        """As `Strategy` says."""
        return self._memory.taken(shards)

    def settle_statistics(self) -> None:
        """Average over the copies, and give ``net`` all parameters as they are now."""
        self.statistics.average()
        places = self.net._collect_params_with_prefix()
        for name, array in self.parameters().items():
            array.copyto(places[name].list_data()[0])

    def parameters(self) -> Mapping[str, nd.NDArray]:
        """As `Strategy` says."""
        slices = self.layout.slices
        with order_between_passes(
            statistics_of(each for own in self.parts for each in own.values())
        ):
            return {
                place: joined(
                    [own[param.name].list_data()[0] for own in self.parts], slices.get(param.name)
                )
                for place, param in self.net._collect_params_with_prefix().items()
            }

    def put_parameters(self, parameters: Mapping[str, nd.NDArray]) -> None:
        """As `Strategy` says."""
        for place, param in self.net._collect_params_with_prefix().items():
            parameters[place].copyto(param.list_data()[0])
            for device, own in enumerate(self.parts):
                value = part(parameters[place], self.layout.slices.get(param.name), device)
                for array in own[param.name].list_data():
                    value.copyto(array)

    def replicated(self) -> List[Replicated]:
        """As `Strategy` says: slices in all copies, and the rest on all devices, too."""
        slices, first = self.layout.slices, self.parts[0]
        sliced = [param for own in self.parts for name, param in own.items() if name in slices]
        wholes = [
            Everywhere([own[name] for own in self.parts]) for name in first if name not in slices
        ]
        return [*sliced, *wholes]

    def state(self) -> State:
        """Optimizer states and running statistics of the whole network, and the loss scale."""
        scale = self.updates.loss_scale
        return State(
            joined_states(
                [states_of(each) for each in (*self._of_slices, *self._of_wholes)],
                self.layout.slices,
            ),
            {} if scale is None else scale.state(),
            *self.statistics.state(),
        )

    def restore(self, state: State) -> None:
        """Go on from a `state`, of any split."""
        whole = [self._params[name] for name in sorted(self._params)]
        optimizer, what = self._of_slices[0]._optimizer, "this state"
        fit = fitted(optimizer, state.optimizer, own_of(whole), what)
        for trainers in (self._of_slices, self._of_wholes):
            for device, trainer in enumerate(trainers):
                own = {param.name: param for param in trainer._params}
                restore(trainer, state_parts(fit, self.layout.slices, device, own), what)
        self.statistics.restore(state.devices, state.counts)
        if self.updates.loss_scale is not None:
            self.updates.loss_scale.restore(state.loss_scale)

    def settings(self) -> Dict[str, Any]:
        """Nothing is decided here."""
        return {}

    def lines(self) -> "Iterator[Tuple[str, str]]":
        """How the layers are split, and how often devices meet."""
        counts = Counter(self.layout.layers.values())
        layers = ", ".join(f"{count} by {way}" for way, count in counts.items())
        sums = self.layout.sums
        yield "channels", f"{layers}; {sums} sum{'s' * (sums != 1)} of activations a pass"

    def _layout(self, loss: gluon.HybridBlock, plan: StrategyPlan) -> Layout:
        graph = loss_graph(self.net, loss, plan.preprocess)
        images = max(1, plan.microbatches.largest(plan.split.share))
        labels = (images, *[label_columns(loss)] * bool(label_columns(loss)))
        shapes = {IMAGES: (images, *plan.split.image_shape), LABELS: labels}
        trained = {name for name, each in self._params.items() if each.grad_req != "null"}
        return split(graph, shapes, trained, plan.split.size, plan.split.channels)

    def _trainers(
        self, own: Mapping[str, gluon.Parameter], plan: StrategyPlan, group: Group
    ) -> "Tuple[BucketedTrainer, Optional[BucketedTrainer]]":
        """That of a device's slices, and that of the parameters that it has whole, as all have."""
        slices = self.layout.slices
        sliced = {name: param for name, param in own.items() if name in slices}
        whole = {name: param for name, param in own.items() if name not in slices}
        return (
            _trainer(sliced, plan, group),
            _trainer(whole, plan, group) if whole else None,
        )


def _trainer(
    params: Mapping[str, gluon.Parameter], plan: StrategyPlan, group: Group
) -> BucketedTrainer:
    store = plan.new_kvstore(next(iter(params.values())).list_ctx())
    store = store if group.size == 1 else GroupKVStore(store, group, compress=plan.compress)
    return BucketedTrainer(
        dict(params), plan.make_optimizer(), None, store, bucket_bytes=plan.bucket_bytes
    )


def _algorithm(kvstore: Any) -> str:
    """The allreduce by which activations are summed: the kvstore's, if it is a schedule."""
    name = str(kvstore.type)
    return name if name in ALGORITHMS else SUMS


channel_parallel: MakeStrategy = ChannelParallel
