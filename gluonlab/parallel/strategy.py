"""What the training loop asks of a way to spread a network over devices, and gives to it."""

from __future__ import annotations

from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Protocol,
    Sequence,
    Tuple,
)

import mxnet as mx
from mxnet import gluon, nd

from gluonlab.bucketed_trainer.gradient_postprocessing import Postprocess
from gluonlab.data.loading.split_batch import Batch
from gluonlab.engine.fast_invoke import order_between_passes
from gluonlab.kvstores.process_groups import Group
from gluonlab.optimizers.optimizer_states import States
from gluonlab.parallel.data.microbatches import Microbatches
from gluonlab.parallel.memory_estimate import ShardSizes, Taken
from gluonlab.parallel.mixed_precision import Conversion

DATA, LAYERS, CHANNELS, PIPELINE = WAYS = ("data", "layers", "channels", "pipeline")
# A named part of a step, and the call that queues it.
Phase = Tuple[str, Callable[[], None]]
Around = Callable[[str, Callable[[], None]], None]


def queue_all(phases: Iterator[Phase], around: Optional[Around] = None) -> None:
    """Queue all parts of a step in order; ``around``, if given, calls each in its place."""
    for name, queue in phases:
        if around is None:
            queue()
        else:
            around(name, queue)


class Parallelism(NamedTuple):
    """``copies[i]``: the devices of copy i of the network, which trains on shard i of each batch.

    ``way``: one of WAYS; with data alone each copy has one device. ``cut``: the layers with which
    stages begin, but the first; None where ``balance`` (time or memory) chooses them.
    ``schedule``: of `gluonlab.parallel.pipeline.pipeline_schedule.SCHEDULES`. ``channels``: how
    layers are
    split over a copy's devices (both, column or row). ``share``: the most images of a batch for a
    copy, ``image_shape`` (C, H, W) and ``image_dtype`` theirs. ``model``: the network's name, for
    messages.
    """

    way: str
    copies: List[List[mx.Context]]
    model: str = ""
    share: int = 1
    image_shape: Tuple[int, ...] = ()
    image_dtype: str = "uint8"
    schedule: str = ""
    stages_per_device: int = 1
    cut: Optional[Tuple[int, ...]] = None
    balance: str = ""
    channels: str = ""

    @property
    def size(self) -> int:
        """How many devices a copy has."""
        return len(self.copies[0])

    @property
    def has_copy(self) -> str:
        """What has a copy of the network to itself."""
        return "device" if self.size == 1 else "copy of the network"

    def settings(self) -> Dict[str, Any]:
        """What a run's config.json says of it; of data alone nothing."""
        if self.way == DATA:
            return {}
        settings: Dict[str, Any] = {"split": self.way, "copies": len(self.copies)}
        if self.way == CHANNELS:
            return {**settings, "ways": self.size, "channels": self.channels}
        settings["stages"] = self.size
        if self.cut is None:
            settings["balance"] = self.balance
        else:
            settings["cut"] = ",".join(map(str, self.cut))
        if self.way == PIPELINE:
            settings["pipeline_schedule"] = self.schedule
            settings["stages_per_device"] = self.stages_per_device
        return settings


class Scored(NamedTuple):
    """The scores of some images on a device: sum of losses (1,), scores (n, classes), labels (n,).

    ``device`` is a position among the strategy's ``outputs``.
    """

    device: int
    loss: nd.NDArray
    scores: nd.NDArray
    labels: nd.NDArray


class State(NamedTuple):
    """What goes on with the same bits needs, besides the parameters.

    ``devices``: arrays that are not the same on all devices, such as running statistics, by names
    of the strategy's own. ``counts``: plain values.
    """

    optimizer: States
    loss_scale: Mapping[str, float]
    devices: Mapping[str, nd.NDArray] = {}
    counts: Mapping[str, Any] = {}


class Replicated(Protocol):
    """Arrays on several devices that hold the same bits, such as a `gluon.Parameter`'s."""

    @property
    def name(self) -> str:
        """The parameter's."""

    def list_ctx(self) -> List[mx.Context]:
        """The devices."""

    def data(self, ctx: mx.Context) -> nd.NDArray:
        """The array on one of them."""


class Strategy(Protocol):
    """A network on some devices, which trains on batches and scores them."""

    @property
    def net(self) -> gluon.HybridBlock:
        """The whole network, each parameter on the devices that hold it."""

    @property
    def inputs(self) -> List[mx.Context]:
        """The devices that get the shards of a batch."""

    @property
    def outputs(self) -> List[mx.Context]:
        """The devices on which losses and scores appear, in the order of the inputs."""

    @property
    def has_statistics(self) -> bool:
        """Whether layers such as BatchNorm keep running statistics."""

    def settings(self) -> Mapping[str, Any]:
        """What it has decided itself, such as where to cut, as plain values for config.json."""

    def lines(self) -> "Iterator[Tuple[str, str]]":
        """(title, text) of what a run says of that before it begins."""

    def taken(self, shards: ShardSizes) -> List[Taken]:
        """What each device of a copy of the network takes, planned; nothing is allocated for it.

        All copies are alike. On CPU devices it is a lower bound: oneDNN rearranges arrays.
        """

    def parameters(self) -> Mapping[str, nd.NDArray]:
        """Copies on the CPU of the whole network's parameters, by their places in its blocks.

        Nothing waits for them.
        """

    def put_parameters(self, parameters: Mapping[str, nd.NDArray]) -> None:
        """Give such parameters to all devices, which are idle, and wait for nothing."""

    def replicated(self) -> "Sequence[Replicated]":
        """What devices hold alike: every parameter, wherever a copy of it is."""

    def step(self, batch: Batch, around: Optional[Around] = None) -> List[nd.NDArray]:
        """Queue the training on a batch, and return the sum of losses (1,) of each shard.

        Nothing waits; the next step overwrites the losses. ``around``: see `queue_all`.
        """

    def phases(self, batch: Batch) -> Iterator[Phase]:
        """The parts of `step` in order: call each before taking the next."""

    def score(self, batch: Batch) -> Iterator[Scored]:
        """The scores of the batch's parts, without training; taking the next overwrites one."""

    def settle_statistics(self) -> None:
        """Give all replicas the same running statistics, before evaluating and saving."""

    def state(self) -> State:
        """Copies on the CPU of what the strategy goes by; nothing waits for them."""

    def restore(self, state: State) -> None:
        """Go on from a `state`, of any devices, with the parameters that were there then.

        Raises KVStoreError for that of another network.
        """


class StrategyPlan(Protocol):
    """What a strategy reads of a plan (`gluonlab.training.plan.Plan`)."""

    @property
    def ctxs(self) -> List[mx.Context]:
        """This process's devices."""

    @property
    def split(self) -> Parallelism:
        """Which of them share a copy of the network, and how."""

    @property
    def kvstore(self) -> Any:
        """What sums gradients over them."""

    def new_kvstore(self, ctxs: List[mx.Context]) -> Any:
        """Another one of the same kind, for these devices: a trainer has its own."""

    @property
    def on_servers(self) -> bool:
        """Whether the group's servers update the weights."""

    @property
    def compress(self) -> Optional[str]:
        """How gradients are compressed; of several processes, what they send each other."""

    @property
    def bucket_bytes(self) -> Optional[int]:
        """How much a bucket of gradients holds; None: the default for such devices."""

    @property
    def postprocess(self) -> Postprocess:
        """What happens to summed gradients before the update."""

    @property
    def microbatches(self) -> Microbatches:
        """How a device's share of a batch is cut."""

    @property
    def sync_bn(self) -> bool:
        """Whether BatchNorm layers look at the whole batch."""

    @property
    def conversion(self) -> Conversion:
        """How the network computes."""

    @property
    def preprocess(self) -> Callable[[Any, Any], Any]:
        """``f(F, images)``: bytes as the network's input."""

    def make_optimizer(self) -> mx.optimizer.Optimizer:
        """A new one, which follows the schedule of the learning rate."""


class MakeNet(Protocol):
    """Makes the plan's network."""

    def __call__(
        self, ctxs: List[mx.Context], start: Optional[List[mx.Context]] = None
    ) -> gluon.HybridBlock:
        """The network for these devices, with the same parameters on each, all shapes known.

        ``start``: where the parameters are instead, until they are placed (`reset_ctx`).
        """


MakeStrategy = Callable[[MakeNet, gluon.HybridBlock, StrategyPlan, Group], Strategy]


def statistics_of(params: Iterable[gluon.Parameter]) -> List[nd.NDArray]:
    """On the first device of each, the parameters that nothing trains, running statistics too."""
    return [param.list_data()[0] for param in params if param.grad_req == "null"]


class WholeParameters:
    """What `Strategy` says of parameters, where ``net`` has each of them whole."""

    net: gluon.HybridBlock

    def parameters(self) -> Mapping[str, nd.NDArray]:
        """As `Strategy` says."""
        params = self.net._collect_params_with_prefix()
        with order_between_passes(statistics_of(params.values())):
            return {name: param.list_data()[0].copyto(mx.cpu()) for name, param in params.items()}

    def replicated(self) -> "Sequence[Replicated]":
        """As `Strategy` says."""
        return list(self.net.collect_params().values())

    def put_parameters(self, parameters: Mapping[str, nd.NDArray]) -> None:
        """As `Strategy` says."""
        for name, param in self.net._collect_params_with_prefix().items():
            for array in param.list_data():
                parameters[name].copyto(array)
