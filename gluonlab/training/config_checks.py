"""Checks of a run's settings, each of which raises a UsageError.

`gluonlab.training.plan` and `gluonlab.training.training_setup` call them, and those of the packages
below.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import mxnet as mx
from mxnet import gluon

from gluonlab.bucketed_trainer.loss_scale import check_on_nan
from gluonlab.config import TrainConfig, option_name
from gluonlab.data.sets.dataset import Dataset
from gluonlab.engine.fast_invoke import ARRAY_LIMIT
from gluonlab.errors import ConfigError, KVStoreError, ModelError, unknown
from gluonlab.kvstores import check_topology
from gluonlab.kvstores.allreduce_store import SHARDED
from gluonlab.kvstores.gradient_compression import keeps_rest
from gluonlab.kvstores.process_groups import Group
from gluonlab.models.symbol_graph import parsed
from gluonlab.optimizers.optimizer_registry import OPTIMIZERS, is_element_wise, optimizer_kind
from gluonlab.optimizers.sgd import MOMENTUM_RULES
from gluonlab.parallel.data import sync_bn
from gluonlab.parallel.data.microbatches import Microbatches
from gluonlab.parallel.data.replica import IMAGES, LABELS, loss_graph
from gluonlab.parallel.strategy import CHANNELS
from gluonlab.parallel.training_loss import label_columns
from gluonlab.training.parallel_options import (
    largest_part,
    weights_of,
)


def check_topology_option(asked: TrainConfig) -> None:
    """Raise KVStoreError for a --topology that is unknown, or that the kvstore does not use."""
    try:
        check_topology(asked.topology, asked.kvstore)
    except KVStoreError as error:
        raise KVStoreError(f"--{error}") from None


def check_checkpoints(asked: TrainConfig) -> None:
    """Raise ConfigError for --checkpoint-every with a compression that keeps a rest."""
    if asked.checkpoint_every is not None and keeps_rest(asked.compress):
        raise ConfigError(
            f"--checkpoint-every {asked.checkpoint_every} and --compress {asked.compress} "
            "contradict each other: what 2 bits have left over is in no checkpoint: "
            "leave one of them out"
        )


def check_on_nan_option(asked: TrainConfig) -> None:
    """Raise ConfigError for an unknown --on-nan, or one that compression rules out."""
    check_on_nan(asked.on_nan)
    if asked.on_nan == "skip" and keeps_rest(asked.compress):
        raise ConfigError(
            f"--on-nan skip and --compress {asked.compress} contradict each other: "
            "what 2 bits have left over would hold a part of what is skipped: "
            "leave one of them out"
        )


def check_last_batch(steps_per_epoch: int, global_batch_size: int, dataset: Dataset) -> None:
    """Raise ConfigError for --drop-last with fewer images than a batch."""
    if not steps_per_epoch:
        raise ConfigError(
            f"--drop-last: a batch has {global_batch_size:,} images, and {dataset.name} "
            f"{len(dataset.train):,}, so none would be left: choose a smaller batch, "
            "or leave --drop-last out"
        )


def check_profile(steps: Optional[int], steps_per_epoch: int) -> None:
    """Raise ConfigError for a --profile of more steps than an epoch can have."""
    if steps is not None and steps >= steps_per_epoch:
        many = f"{steps_per_epoch} step{'s' * (steps_per_epoch > 1)}"
        most = f"at most {steps_per_epoch - 1}, or " * (steps_per_epoch > 1)
        raise ConfigError(
            f"--profile {steps}: an epoch has {many}, and one more than those is learned from: "
            f"give {most}a smaller --batch-size"
        )


def check_network(plan: Any, net: gluon.HybridBlock) -> None:
    """Raise a UsageError for settings of the plan that its network rules out."""
    if plan.config.sync_bn:
        sync_bn.check_network(net, plan.model)
    if plan.arithmetic.deterministic:
        check_repeatable(net, plan.model, plan.ctxs)
    running = [name for name in net.collect_params() if name.endswith("running_mean")]
    if plan.on_nan == "skip" and running:
        raise ConfigError(
            f"--on-nan skip: a batch moves the running statistics of {plan.model} before its "
            "gradients are known: leave --on-nan out, or choose a network without BatchNorm"
        )


def check_batch(plan: Any, net: gluon.HybridBlock, devices: int) -> None:
    """Raise ConfigError for a batch that needs larger arrays than MXNet has.

    ``devices``: the devices of this process that get a shard of it.
    """
    loss = plan.make_loss()
    graph = loss_graph(net, loss, plan.preprocess, plan.conversion)
    times = 1 / largest_part(weights_of(plan.device_weights), devices)
    limit = ArrayLimit(
        graph, net, plan.dataset.image_shape, times, plan.microbatches, label_columns(loss)
    )
    limit.check(plan.largest_share)


def check_export(asked: TrainConfig) -> None:
    """Raise a UsageError for an --export whose packages are missing."""
    if asked.export is not None:
        from gluonlab.export.check_exportable import check_installed

        check_installed(asked.export)


def check_exportable(plan: Any, net: gluon.HybridBlock) -> None:
    """Raise ModelError where the plan's network cannot be exported as it asks for."""
    if plan.export is None:
        return
    from gluonlab.export.check_exportable import check_network

    data, plain = plan.dataset, net if plan.own.net is not None else None
    check_network(plan.export, plan.model, len(data.classes), data.image_shape, plain)


STATES = "the optimizer's states are on the servers, which do not give them away"
COMPRESSED = (
    "MXNet sends its servers everything in 2 bits or nothing, and parameters and losses are exact"
)
WHOLE = "each server has a part of the gradient, and that needs all of it first"


def on_servers(config: TrainConfig, group: Group) -> bool:
    """Whether the group's servers update: where it is asked for, or processes do not wait."""
    return config.update_on_servers or not group.waits


def check_on_servers(config: TrainConfig, group: Group) -> None:
    """Raise ConfigError for a setting that cannot be carried out where servers update.

    ``config``: with the recipe's values.
    """
    if not on_servers(config, group):
        return
    if not group.servers:
        who = group.name or "a process alone"
        raise ConfigError(
            f"--update-on-servers: {who} has no servers: start the run by gluonlab.launch "
            "--backend dist_sync, or leave it out"
        )
    for option, reason in _refused(config, group):
        raise ConfigError(
            f"{option} and {_named(group)} contradict each other: {reason}: leave one of them out"
        )


def check_going_on(option: str, config: TrainConfig, group: Group) -> None:
    """Raise ConfigError for ``option``, by which a run goes on, where servers update."""
    if on_servers(config, group):
        raise ConfigError(
            f"{option} and {_named(group)} contradict each other: {STATES}, so no checkpoint is "
            "whole: leave one of them out"
        )


def _named(group: Group) -> str:
    return "--update-on-servers" if group.waits else f"--backend {group.name}"


def _refused(config: TrainConfig, group: Group) -> Iterator[Tuple[str, str]]:
    if config.checkpoint_every is not None:
        yield f"--checkpoint-every {config.checkpoint_every}", STATES
    if config.clip_norm is not None:
        yield f"--clip-norm {config.clip_norm:g}", WHOLE
    if config.dtype != "float32":
        yield f"--dtype {config.dtype}", f"{WHOLE}, to scale the loss by"
    if config.on_nan != "stop":
        yield f"--on-nan {config.on_nan}", WHOLE
    if config.compress is not None:
        yield f"--compress {config.compress}", COMPRESSED
    if config.kvstore == SHARDED:
        yield f"--kvstore {SHARDED}", "it updates on the devices"
    if config.split is not None and config.split != "data":
        yield f"--split {config.split}", "servers have the weights of whole networks only"
    if config.check_replicas is not None and not group.waits:
        reason = "processes do not wait for each other, so their weights differ between two epochs"
        yield f"--check-replicas {config.check_replicas}", reason


FIELDS = ("sync_bn", "memory")


def check_group(config: TrainConfig, group: Group) -> None:
    """Raise ConfigError for a setting that has no meaning for a group of several processes."""
    if group.size == 1:
        return
    asked = [option_name(name) for name in FIELDS if getattr(config, name)]
    asked += [f"--kvstore {SHARDED}"] if config.kvstore == SHARDED else []
    if asked:
        raise ConfigError(
            f"{asked[0]} is for the devices of one process, and {group.size} train here: "
            f"{'choose another' if '--kvstore' in asked[0] else 'leave it out'}"
        )


Attributes = Mapping[str, str]


class Unordered(NamedTuple):
    """An operator that does not repeat its bits on GPUs, and the layer that it is in."""

    operator: str
    layer: str


def _always(attributes: Attributes) -> bool:
    return True


def _own_max_pooling(attributes: Attributes) -> bool:
    """cuDNN's repeats its bits, MXNet's own does not: it computes what cuDNN does not take."""
    axes = len(attributes.get("kernel", "(1, 1)").strip("()[]").rstrip(",").split(","))
    by_mxnet = axes == 1 or attributes.get("cudnn_off", "False") in ("True", "1")
    return by_mxnet and attributes.get("pool_type", "max") == "max"


UNORDERED: Dict[str, Callable[[Attributes], bool]] = {
    "Pooling": _own_max_pooling,
    "Pad": lambda attributes: attributes.get("mode") != "constant",
    **dict.fromkeys(
        (
            "BilinearSampler", "ROIPooling", "SpatialTransformer", "_contrib_AdaptiveAvgPooling2D",
            "_contrib_BilinearResize2D", "_contrib_DeformableConvolution",
            "_contrib_DeformablePSROIPooling", "_contrib_ModulatedDeformableConvolution",
            "_contrib_PSROIPooling", "_contrib_ROIAlign", "_contrib_count_sketch", "gather_nd",
            "take",
        ),
        _always,
    ),
}  # fmt: skip


def unordered(graph: mx.sym.Symbol) -> "Unordered | None":
    """The first operator of ``graph`` that does not repeat its bits on GPUs, or None."""
    for node in parsed(graph)["nodes"]:
        if node["op"] in UNORDERED and UNORDERED[node["op"]](node.get("attrs", {})):
            return Unordered(node["op"], node["name"])
    return None


def check_repeatable(net: gluon.HybridBlock, name: str, ctxs: Sequence[mx.Context]) -> None:
    """Raise ModelError for --deterministic on GPUs with a network that they cannot compute so.

    CPU devices can compute every one.
    """
    found = unordered(net(mx.sym.var("data"))) if ctxs[0].device_type == "gpu" else None
    if found is not None:
        raise ModelError(
            f"--deterministic: {name} has {found.operator} ({found.layer}), "
            "whose gradients MXNet adds up on GPUs in no fixed order: "
            "leave it out, or choose another network"
        )


def check_optimizer(name: str, asked: TrainConfig) -> None:
    """Raise ConfigError for an unknown optimizer, or one without the momentum or rule asked for.

    ``asked``: the config without a recipe's values.
    """
    if asked.momentum_rule not in (None, *MOMENTUM_RULES):
        raise ConfigError(unknown("--momentum-rule", str(asked.momentum_rule), MOMENTUM_RULES))
    kind = optimizer_kind(name)
    if asked.momentum is not None and not kind.momentum:
        able = ", ".join(other for other, its in OPTIMIZERS.items() if its.momentum)
        raise ConfigError(
            f"--momentum {asked.momentum:g}: {name} has no momentum, "
            f"leave it out or use one of {able}"
        )
    if asked.momentum_rule is not None and kind.mxnet_rule_class is None:
        able = " or ".join(other for other, its in OPTIMIZERS.items() if its.mxnet_rule_class)
        raise ConfigError(
            f"--momentum-rule {asked.momentum_rule} has no effect with {name}: "
            f"leave it out, or use {able}"
        )


def check_momentum(config: TrainConfig, asked: TrainConfig) -> None:
    """Raise ConfigError for a --momentum-rule that was given without a momentum."""
    if asked.momentum_rule is not None and not config.momentum:
        raise ConfigError(
            f"--momentum-rule {asked.momentum_rule}: the momentum is 0: "
            "give one, such as --momentum 0.9, or leave it out"
        )


def check_decay(config: TrainConfig) -> None:
    """Raise ConfigError for --no-bias-decay without any decay."""
    if config.no_bias_decay and not config.wd:
        raise ConfigError(
            "--no-bias-decay: the weight decay is 0 for all parameters: "
            "give one, such as --wd 1e-4, or leave it out"
        )


def check_sharding(name: str, kvstore: str, device_count: int) -> None:
    """Raise KVStoreError for an optimizer that cannot update parts of parameters, where it must."""
    if kvstore == SHARDED and device_count > 1 and not is_element_wise(optimizer_kind(name).cls):
        raise KVStoreError(
            f"--kvstore {SHARDED} cuts parameters anywhere, which {name} does not allow: "
            f"choose one of {_element_wise_ones()}, or another kvstore"
        )


def check_channels(name: str, way: str) -> None:
    """Raise ConfigError for an optimizer that looks at whole parameters, where nobody has them."""
    if way == CHANNELS and not is_element_wise(optimizer_kind(name).cls):
        raise ConfigError(
            f"--split {way} gives each device a part of a parameter, and {name} looks at whole "
            f"ones: choose one of {_element_wise_ones()}, or another --split"
        )


def _element_wise_ones() -> str:
    return ", ".join(name for name, kind in OPTIMIZERS.items() if is_element_wise(kind.cls))


Shape = Tuple[int, ...]


def check_elements(images: int, elements: int) -> None:
    """Raise ConfigError when ``images`` images make more ``elements`` than an array has."""
    if elements >= ARRAY_LIMIT:
        raise ConfigError(
            f"{images:,} images make an array of {elements:,} elements, "
            f"and MXNet allows fewer than {ARRAY_LIMIT:,}: "
            "choose a smaller --batch-size, or smaller microbatches"
        )


def check_inside(graph: mx.sym.Symbol, inputs: Dict[str, Shape], images: int) -> None:
    """`check_elements` of every array that a graph computes for ``images`` images.

    ``inputs``: the shapes of its arguments. Raises ConfigError.
    """
    check_elements(images, max(map(math.prod, graph.get_internals().infer_shape(**inputs)[1])))


@dataclass(frozen=True)
class ArrayLimit:
    """The largest arrays of a batch: on the host, and in the `loss_graph` of a device.

    ``devices``: of how many such devices as get the most images the batch on the host is.
    """

    graph: mx.sym.Symbol
    net: gluon.HybridBlock
    image_shape: Shape
    devices: Union[int, Fraction]
    microbatches: Microbatches
    columns: int = 0  # of labels, `gluonlab.parallel.training_loss.label_columns`

    def check(self, images: int) -> None:
        """Raise ConfigError when batches of ``images`` images per device need too large arrays."""
        self.check_host(images)
        part = self.microbatches.largest(images)
        shapes = {name: param.shape for name, param in self.net.collect_params().items()}
        shapes[IMAGES] = (part, *self.image_shape)
        shapes[LABELS] = (part, *[self.columns] * bool(self.columns))
        # those of a loss's constants are in the graph
        names = set(self.graph.list_arguments()) & set(shapes)
        check_inside(self.graph, {name: shapes[name] for name in names}, part)

    def check_host(self, images: int) -> None:
        """The same for the batch on the host alone."""
        batch = math.ceil(images * self.devices)
        check_elements(batch, batch * math.prod(self.image_shape))

    def largest(self, most: int) -> int:
        """The most images per device, from 1 up to ``most``, that pass `check`."""
        low, high = 1, most
        while low < high:
            # all of them first: a data set is rarely so large
            middle = (low + high + 1) // 2 if high < most else high
            try:
                self.check(middle)
                low = middle
            except ConfigError:
                high = middle - 1
        return low
