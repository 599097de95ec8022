"""Defines the interface between the training loop and the parallel strategies."""

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

from gluonlab.data.loading.split_batch import Batch, Microbatches
from gluonlab.engine.fast_invoke import order_between_passes
from gluonlab.kvstores.process_groups import ProcessGroup
from gluonlab.optimizers.optimizer_states import States
from gluonlab.parallel.memory_estimate import MemoryEstimate, ShardSizes
from gluonlab.parallel.mixed_precision import Conversion

DATA, LAYERS, TENSOR, PIPELINE = SPLIT_MODES = ("data", "layers", "tensor", "pipeline")
# A named part of a step, and the call that queues it.
Phase = Tuple[str, Callable[[], None]]
# Receives both, and makes the call.
PhaseHook = Callable[[str, Callable[[], None]], None]


class Parallelism(NamedTuple):
    """The parallel mode, and the devices of each replica of the network.

    Attributes:
        mode: One of SPLIT_MODES.
        copies: ``copies[i]`` are the devices of replica i, which trains on shard i of each batch.
            In mode "data" each replica has one device.
        model: Name of the network, for error messages.
        max_shard_images: Largest number of images in a shard. Each replica trains on one shard.
        image_shape: Shape of an image, (C, H, W).
        image_dtype: Type of the images.
        schedule: Name in `gluonlab.parallel.pipeline.pipeline_schedule.SCHEDULES`.
        stages_per_device: Number of pipeline stages on each device.
        cut: For each of the stages 1, 2, ..., the number of its first layer. If None, the cuts are
            chosen to equalize ``balance``.
        balance: The quantity to equalize between stages: "time" or "memory".
        channels: How layers are split over the devices of a replica: "both", "column" or "row".
    """

    mode: str
    copies: List[List[mx.Context]]
    model: str = ""
    max_shard_images: int = 1
    image_shape: Tuple[int, ...] = ()
    image_dtype: str = "uint8"
    schedule: str = ""
    stages_per_device: int = 1
    cut: Optional[Tuple[int, ...]] = None
    balance: str = ""
    channels: str = ""

    @property
    def size(self) -> int:
        """Number of devices of each replica."""
        return len(self.copies[0])

    @property
    def shard_owner(self) -> str:
        """Name of the unit that trains on one shard, for messages."""
        return "device" if self.size == 1 else "replica of the model"

    def settings(self) -> Dict[str, Any]:
        """Return the entries for a run's config.json; an empty dict for mode "data"."""
        if self.mode == DATA:
            return {}
        settings: Dict[str, Any] = {"strategy": self.mode, "copies": len(self.copies)}
        if self.mode == TENSOR:
            return {**settings, "tensor_parallel": self.size, "tensor_parallel_mode": self.channels}
        settings["pipeline_parallel"] = self.size
        if self.cut is None:
            settings["balance"] = self.balance
        else:
            settings["cut"] = ",".join(map(str, self.cut))
        if self.mode == PIPELINE:
            settings["pipeline_schedule"] = self.schedule
            settings["stages_per_device"] = self.stages_per_device
        return settings


class ScoredImages(NamedTuple):
    """Scores of n images on one device.

    Attributes:
        device: Index in the strategy's ``outputs``.
        loss: Sum of the losses, (1,).
        scores: Scores of the images, (n, classes).
        labels: Labels of the images, (n,).
    """

    device: int
    loss: nd.NDArray
    scores: nd.NDArray
    labels: nd.NDArray


class StrategyState(NamedTuple):
    """The training state except the parameters.

    A run resumes bit-identically from this state and the parameters.

    Attributes:
        optimizer: Optimizer states by parameter name.
        loss_scale: State of the loss scale.
        devices: Arrays that differ between devices, such as running statistics. Each strategy
            chooses the names of its arrays.
        counts: Plain values that differ between devices, such as the number of images.
    """

    optimizer: States
    loss_scale: Mapping[str, float]
    devices: Mapping[str, nd.NDArray] = {}
    counts: Mapping[str, Any] = {}


class ReplicatedArray(Protocol):
    """An array with bit-identical copies on several devices, such as a `gluon.Parameter`."""

    @property
    def name(self) -> str:
        """Name of the parameter."""

    def list_ctx(self) -> List[mx.Context]:
        """Return the devices."""

    def data(self, ctx: mx.Context) -> nd.NDArray:
        """Return the array on one device."""


class Strategy(Protocol):
    """A network on one or several devices, with methods for training and evaluation.

    The strategies are `parallel.data.strategy.DataParallel`,
    `parallel.tensor.strategy.TensorParallel` and `parallel.pipeline.strategy.PipelineParallel`. No
    method waits for the devices.
    """

    @property
    def net(self) -> gluon.HybridBlock:
        """The network, with each parameter on the devices that hold it."""

    @property
    def inputs(self) -> List[mx.Context]:
        """The devices to which the shards of a batch are sent, one for each replica."""

    @property
    def outputs(self) -> List[mx.Context]:
        """The devices on which losses and scores appear, in the order of ``inputs``."""

    @property
    def has_running_statistics(self) -> bool:
        """True if layers such as BatchNorm keep running statistics."""

    def settings(self) -> Mapping[str, Any]:
        """Return the strategy's own decisions, such as the pipeline cuts, for config.json."""

    def lines(self) -> "Iterator[Tuple[str, str]]":
        """Yield (title, text) for each line that a run prints about the strategy."""

    def estimate_memory(self, shards: ShardSizes) -> List[MemoryEstimate]:
        """Estimate the memory that each device of a replica needs, without allocating it.

        On CPU devices the estimate is a lower bound, because oneDNN needs additional memory to
        rearrange arrays.
        """

    def parameters(self) -> Mapping[str, nd.NDArray]:
        """Return CPU copies of all parameters, by structural name ("features.0.weight")."""

    def set_parameters(self, parameters: Mapping[str, nd.NDArray]) -> None:
        """Copy the result of `parameters` to all devices, which must be idle."""

    def replicated_parameters(self) -> "Sequence[ReplicatedArray]":
        """Return every parameter, with all devices that hold a copy of it."""

    def step(self, batch: Batch, hook: Optional[PhaseHook] = None) -> List[nd.NDArray]:
        """Queue one training step.

        Args:
            batch: The shards of a batch, one for each replica of the network.
            hook: A function that receives the name and the call of each phase. The function must
                make the call, for example between two time measurements.

        Returns:
            The sum of losses (1,) of each shard. The next step overwrites these arrays.
        """

    def phases(self, batch: Batch) -> Iterator[Phase]:
        """Yield the phases of `step` in order. Call each phase before requesting the next phase."""

    def score(self, batch: Batch) -> Iterator[ScoredImages]:
        """Yield the scores of the batch's microbatches. Each result overwrites the previous one."""

    def sync_running_statistics(self) -> None:
        """Synchronize the running statistics of all replicas, for evaluation or a checkpoint."""

    def state(self) -> StrategyState:
        """Return the training state, as copies on the CPU."""

    def restore(self, state: StrategyState) -> None:
        """Resume from the result of `state`, even if it was saved on other devices.

        Raises:
            KVStoreError: The state belongs to another network.
        """


class StrategyPlan(Protocol):
    """The fields of `gluonlab.training.plan.Plan` that strategies read."""

    @property
    def ctxs(self) -> List[mx.Context]:
        """Devices of this process."""

    @property
    def parallelism(self) -> Parallelism:
        """The parallel mode, and the devices of each replica."""

    @property
    def kvstore(self) -> Any:
        """The kvstore that sums the gradients over ``ctxs``."""

    def new_kvstore(self, ctxs: List[mx.Context]) -> Any:
        """Create another kvstore of the same type, since each trainer needs its own kvstore."""

    @property
    def on_servers(self) -> bool:
        """True if parameter servers update the weights."""

    @property
    def compress(self) -> Optional[str]:
        """Compression of gradients between devices, or between the processes of a group."""

    @property
    def bucket_bytes(self) -> Optional[int]:
        """Size of a gradient bucket, in bytes. None selects the default for the devices."""

    @property
    def postprocessing(self) -> Dict[str, Any]:
        """The arguments of `GradientPostprocessor` for the gradients of a batch."""

    @property
    def microbatches(self) -> Microbatches:
        """Number or size of the microbatches of a shard."""

    @property
    def sync_bn(self) -> bool:
        """True if BatchNorm uses the statistics of the whole batch."""

    @property
    def conversion(self) -> Conversion:
        """Function that converts the network's graph to the compute type."""

    @property
    def preprocess(self) -> Callable[[Any, Any], Any]:
        """``f(F, images)``, which converts uint8 images to the input of the network."""

    def make_optimizer(self) -> mx.optimizer.Optimizer:
        """Create an optimizer that follows the learning rate schedule."""


class MakeNet(Protocol):
    """Function that creates the plan's network."""

    def __call__(self, ctxs: List[mx.Context], start: Optional[List[mx.Context]] = None) -> gluon.HybridBlock:
        """Create the network with known shapes and the same initial parameters on each device.

        Args:
            ctxs: Devices of the network.
            start: Devices that hold the parameters until the strategy calls `reset_ctx`.
        """


MakeStrategy = Callable[[MakeNet, gluon.HybridBlock, StrategyPlan, ProcessGroup], Strategy]


def untrained_arrays(params: Iterable[gluon.Parameter]) -> List[nd.NDArray]:
    """Return the first array of each parameter that has no gradient, such as running statistics."""
    return [param.list_data()[0] for param in params if param.grad_req == "null"]


class UnshardedParameters:
    """Mixin with the parameter methods of `Strategy`, for a ``net`` with unsharded parameters."""

    net: gluon.HybridBlock

    def parameters(self) -> Mapping[str, nd.NDArray]:
        """Return the parameters of ``net`` by structural name, as copies on the CPU."""
        params = self.net._collect_params_with_prefix()
        with order_between_passes(untrained_arrays(params.values())):
            return {name: param.list_data()[0].copyto(mx.cpu()) for name, param in params.items()}

    def replicated_parameters(self) -> "Sequence[ReplicatedArray]":
        """Return the parameters of ``net``, which have a copy on every device."""
        return list(self.net.collect_params().values())

    def set_parameters(self, parameters: Mapping[str, nd.NDArray]) -> None:
        """Copy ``parameters``, by structural name, to all devices of ``net``."""
        for name, param in self.net._collect_params_with_prefix().items():
            for array in param.list_data():
                parameters[name].copyto(array)
