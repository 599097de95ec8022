"""Checks of a run's settings. A check raises a UsageError for invalid or contradictory settings."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, Callable, Dict, Iterator, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import mxnet as mx
from mxnet import gluon

from gluonlab.bucketed_trainer.loss_scale import check_on_nan
from gluonlab.config import TrainConfig, option_name
from gluonlab.data.loading.split_batch import Microbatches
from gluonlab.data.sets.dataset import Dataset
from gluonlab.engine.fast_invoke import ARRAY_LIMIT
from gluonlab.engine.parameter_server_role import explain_missing_parameter_server, has_parameter_server
from gluonlab.errors import ConfigError, KVStoreError, ModelError, unknown
from gluonlab.kvstores import check_topology
from gluonlab.kvstores.allreduce_store import SHARDED
from gluonlab.kvstores.gradient_compression import keeps_residual
from gluonlab.kvstores.process_groups import ProcessGroup
from gluonlab.models.symbol_graph import parse_graph
from gluonlab.optimizers.optimizer_registry import OPTIMIZERS, is_element_wise, optimizer_kind
from gluonlab.optimizers.sgd_and_nag import MOMENTUM_RULES
from gluonlab.parallel.data import sync_bn
from gluonlab.parallel.data.replica import IMAGES, LABELS, loss_graph
from gluonlab.parallel.strategy import TENSOR
from gluonlab.parallel.training_loss import label_columns
from gluonlab.runs.run_reader import RunDescription
from gluonlab.training.parallel_options import largest_batch_fraction, resolve_device_weights


def check_topology_option(requested: TrainConfig) -> None:
    """Raise KVStoreError for an unknown --topology, or a kvstore that does not use --topology."""
    try:
        check_topology(requested.topology, requested.kvstore)
    except KVStoreError as error:
        raise KVStoreError(f"--{error}") from None


def check_checkpoints_with_compression(requested: TrainConfig) -> None:
    """Raise ConfigError for --checkpoint-every with 2-bit compression.

    Checkpoints do not contain the residuals of the compression.
    """
    if requested.checkpoint_every is not None and keeps_residual(requested.compress):
        raise ConfigError(
            f"--checkpoint-every {requested.checkpoint_every} and --compress {requested.compress} "
            "contradict each other, because checkpoints do not contain the residuals of 2-bit compression: "
            "remove one of them"
        )


def check_on_nan_option(requested: TrainConfig) -> None:
    """Raise ConfigError for an unknown --on-nan, or for --on-nan skip with 2-bit compression."""
    check_on_nan(requested.on_nan)
    if requested.on_nan == "skip" and keeps_residual(requested.compress):
        raise ConfigError(
            f"--on-nan skip and --compress {requested.compress} contradict each other, because "
            "the residuals of 2-bit compression would contain parts of skipped gradients: "
            "remove one of them"
        )


def check_drop_last(steps_per_epoch: int, global_batch_size: int, dataset: Dataset) -> None:
    """Raise ConfigError for --drop-last if the training images do not fill a batch."""
    if not steps_per_epoch:
        raise ConfigError(
            f"--drop-last: {dataset.name} has only {len(dataset.train):,} training images, which do not fill a batch "
            f"of {global_batch_size:,} images: choose a smaller batch, or remove --drop-last"
        )


def check_profile(steps: Optional[int], steps_per_epoch: int) -> None:
    """Raise ConfigError if an epoch has too few steps for --profile."""
    if steps is not None and steps >= steps_per_epoch:
        steps_text = f"{steps_per_epoch} step{'s' * (steps_per_epoch > 1)}"
        limit_text = f"use --profile {steps_per_epoch - 1} or less, or " * (steps_per_epoch > 1)
        raise ConfigError(
            f"--profile {steps}: an epoch has only {steps_text}, and the first step is not profiled: "
            f"{limit_text}choose a smaller --batch-size"
        )


def check_settings_are_known(description: RunDescription) -> None:
    """Raise ConfigError if a run of a later version has settings unknown to this version."""
    unknown_names = sorted(set(description.requested) - {field.name for field in fields(TrainConfig)})
    if unknown_names:
        raise ConfigError(
            f"{description.file} contains settings that this version of gluonlab does not support "
            f"({', '.join(unknown_names)}): install the version that wrote this file"
        )


def check_network(plan: Any, net: gluon.HybridBlock) -> None:
    """Raise a UsageError for settings of the plan that its network does not allow."""
    if plan.config.sync_bn:
        sync_bn.check_network(net, plan.model)
    if plan.arithmetic.deterministic:
        check_deterministic(net, plan.model, plan.ctxs)
    running_means = [name for name in net.collect_params() if name.endswith("running_mean")]
    if plan.on_nan == "skip" and running_means:
        raise ConfigError(
            "--on-nan skip does not work with BatchNorm, because a skipped batch would already have changed the "
            f"running statistics of {plan.model}: remove --on-nan, or choose a model without BatchNorm"
        )


def check_batch_size(plan: Any, net: gluon.HybridBlock, devices: int) -> None:
    """Raise ConfigError for a batch that needs larger arrays than MXNet allows.

    ``devices``: the number of devices of this process that get a shard.
    """
    loss = plan.make_loss()
    graph = loss_graph(net, loss, plan.preprocess, plan.conversion)
    devices_per_batch = 1 / largest_batch_fraction(resolve_device_weights(plan.device_weights), devices)
    limit = ArrayLimit(graph, net, plan.dataset.image_shape, devices_per_batch, plan.microbatches, label_columns(loss))
    limit.check(plan.largest_shard_size)


def check_export(requested: TrainConfig) -> None:
    """Raise a UsageError for an --export format whose packages are missing."""
    if requested.export is not None:
        from gluonlab.export.check_exportable import check_onnx_installed

        check_onnx_installed(requested.export)


def check_exportable(plan: Any, net: gluon.HybridBlock) -> None:
    """Raise ModelError if the plan's network cannot be exported in the requested format."""
    if plan.export is None:
        return
    from gluonlab.export.check_exportable import check_onnx_export

    dataset, user_net = plan.dataset, net if plan.user_components.net is not None else None
    check_onnx_export(plan.export, plan.model, len(dataset.classes), dataset.image_shape, user_net)


STATES_ON_SERVERS = "checkpoints lack the optimizer's states, which remain on the servers"
SERVERS_COMPRESS_ALL = "MXNet would also compress parameters and losses, which must be exact"
NEEDS_WHOLE_GRADIENT = "needs the whole gradient, and each server has only a part of the gradient"


def updates_on_servers(config: TrainConfig, group: ProcessGroup) -> bool:
    """Return True if parameter servers update the weights.

    The servers update the weights if the user requests this mode, or if the processes are
    asynchronous.
    """
    return config.update_on_servers or not group.is_synchronous


def check_server_update_options(config: TrainConfig, group: ProcessGroup) -> None:
    """Raise ConfigError for a setting that is impossible if parameter servers update the weights.

    ``config``: the config with the recipe's values.
    """
    if not updates_on_servers(config, group):
        return
    if not has_parameter_server():
        raise ConfigError(explain_missing_parameter_server("--update-on-servers", "remove --update-on-servers"))
    if not group.servers:
        group_name = group.name or "a single process"
        raise ConfigError(
            f"--update-on-servers needs parameter servers, but {group_name} has none: start the run with gluonlab "
            "launch --backend dist_sync, or remove --update-on-servers"
        )
    for option, reason in _server_update_conflicts(config, group):
        raise ConfigError(
            f"{option} and {_server_option(group)} contradict each other, because {reason}: remove one of them"
        )


def check_can_resume(option: str, config: TrainConfig, group: ProcessGroup) -> None:
    """Raise ConfigError for ``option``, which needs checkpoints, if servers update the weights.

    The optimizer states are then on the servers, and are missing from checkpoints.
    """
    if updates_on_servers(config, group):
        raise ConfigError(
            f"{option} and {_server_option(group)} contradict each other, because {STATES_ON_SERVERS}: "
            "remove one of them"
        )


def _server_option(group: ProcessGroup) -> str:
    return "--update-on-servers" if group.is_synchronous else f"--backend {group.name}"


def _server_update_conflicts(config: TrainConfig, group: ProcessGroup) -> Iterator[Tuple[str, str]]:
    """Yield (option, reason) for each setting that is impossible if servers update the weights."""
    if config.checkpoint_every is not None:
        yield f"--checkpoint-every {config.checkpoint_every}", STATES_ON_SERVERS
    if config.clip_norm is not None:
        yield f"--clip-norm {config.clip_norm:g}", f"gradient clipping {NEEDS_WHOLE_GRADIENT}"
    if config.dtype != "float32":
        yield f"--dtype {config.dtype}", f"loss scaling {NEEDS_WHOLE_GRADIENT}"
    if config.on_nan != "stop":
        yield f"--on-nan {config.on_nan}", f"the search for NaN {NEEDS_WHOLE_GRADIENT}"
    if config.compress is not None:
        yield f"--compress {config.compress}", SERVERS_COMPRESS_ALL
    if config.kvstore == SHARDED:
        yield f"--kvstore {SHARDED}", "this kvstore updates the weights on the devices"
    if config.strategy is not None and config.strategy != "data":
        yield f"--strategy {config.strategy}", "servers store the weights of whole models only"
    if config.check_replicas is not None and not group.is_synchronous:
        reason = "the weights of asynchronous processes differ within an epoch"
        yield f"--check-replicas {config.check_replicas}", reason


SINGLE_PROCESS_OPTIONS = ("sync_bn", "estimate_memory")


def check_single_process_options(config: TrainConfig, group: ProcessGroup) -> None:
    """Raise ConfigError for a setting that is impossible with several processes."""
    if group.size == 1:
        return
    refused = [option_name(name) for name in SINGLE_PROCESS_OPTIONS if getattr(config, name)]
    refused += [f"--kvstore {SHARDED}"] if config.kvstore == SHARDED else []
    if refused:
        raise ConfigError(
            f"{refused[0]} works only in a single process, but this run has {group.size} processes: "
            f"{'choose another kvstore' if '--kvstore' in refused[0] else f'remove {refused[0]}'}"
        )


Attributes = Mapping[str, str]


class NondeterministicOperator(NamedTuple):
    """An operator whose results on GPUs may differ from run to run, and its layer."""

    operator: str
    layer: str


def _is_mxnet_max_pooling(attributes: Attributes) -> bool:
    """Return True for max pooling without cuDNN. Only cuDNN's max pooling is deterministic."""
    axes = len(attributes.get("kernel", "(1, 1)").strip("()[]").rstrip(",").split(","))
    by_mxnet = axes == 1 or attributes.get("cudnn_off", "False") in ("True", "1")
    return by_mxnet and attributes.get("pool_type", "max") == "max"


NONDETERMINISTIC: Dict[str, Callable[[Attributes], bool]] = {
    "Pooling": _is_mxnet_max_pooling,
    "Pad": lambda attributes: attributes.get("mode") != "constant",
    **dict.fromkeys(
        (
            "BilinearSampler", "ROIPooling", "SpatialTransformer", "_contrib_AdaptiveAvgPooling2D",
            "_contrib_BilinearResize2D", "_contrib_DeformableConvolution",
            "_contrib_DeformablePSROIPooling", "_contrib_ModulatedDeformableConvolution",
            "_contrib_PSROIPooling", "_contrib_ROIAlign", "_contrib_count_sketch", "gather_nd",
            "take",
        ),
        lambda attributes: True,
    ),
}  # fmt: skip


def find_nondeterministic_operator(graph: mx.sym.Symbol) -> Optional[NondeterministicOperator]:
    """Return the first operator of ``graph`` that is nondeterministic on GPUs, or None."""
    for node in parse_graph(graph)["nodes"]:
        if node["op"] in NONDETERMINISTIC and NONDETERMINISTIC[node["op"]](node.get("attrs", {})):
            return NondeterministicOperator(node["op"], node["name"])
    return None


def check_deterministic(net: gluon.HybridBlock, name: str, ctxs: Sequence[mx.Context]) -> None:
    """Raise ModelError for --deterministic with a network that GPUs compute nondeterministically.

    CPU devices compute every network deterministically.
    """
    operator = find_nondeterministic_operator(net(mx.sym.var("data"))) if ctxs[0].device_type == "gpu" else None
    if operator is not None:
        raise ModelError(
            f"--deterministic: {name} contains {operator.operator} ({operator.layer}), "
            "whose gradients are not deterministic on GPUs: "
            "remove --deterministic, or choose another model"
        )


def check_optimizer(name: str, requested: TrainConfig) -> None:
    """Raise ConfigError for an unknown optimizer.

    The error is also raised for an optimizer that does not support the requested momentum or
    --momentum-rule. ``requested``: the config without a recipe's values.
    """
    if requested.momentum_rule not in (None, *MOMENTUM_RULES):
        raise ConfigError(unknown("--momentum-rule", str(requested.momentum_rule), MOMENTUM_RULES))
    optimizer_entry = optimizer_kind(name)
    if requested.momentum is not None and not optimizer_entry.momentum:
        supported = ", ".join(other for other, entry in OPTIMIZERS.items() if entry.momentum)
        raise ConfigError(
            f"--momentum {requested.momentum:g} has no effect with {name}: remove --momentum, or choose another "
            f"--optimizer ({supported})"
        )
    if requested.momentum_rule is not None and optimizer_entry.mxnet_rule_class is None:
        supported = " or ".join(other for other, entry in OPTIMIZERS.items() if entry.mxnet_rule_class)
        raise ConfigError(
            f"--momentum-rule {requested.momentum_rule} has no effect with {name}: remove --momentum-rule, "
            f"or choose --optimizer {supported}"
        )


def check_momentum_rule(config: TrainConfig, requested: TrainConfig) -> None:
    """Raise ConfigError for a --momentum-rule without momentum."""
    if requested.momentum_rule is not None and not config.momentum:
        raise ConfigError(
            f"--momentum-rule {requested.momentum_rule} has no effect because the momentum is 0: "
            "set a momentum, such as --momentum 0.9, or remove --momentum-rule"
        )


def check_no_bias_decay(config: TrainConfig) -> None:
    """Raise ConfigError for --no-bias-decay without weight decay."""
    if config.no_bias_decay and not config.wd:
        raise ConfigError(
            "--no-bias-decay has no effect because the weight decay is 0: set --wd, for example "
            "to 1e-4, or remove --no-bias-decay"
        )


def check_sharded_optimizer(name: str, kvstore: str, device_count: int) -> None:
    """Raise KVStoreError for --kvstore sharded-optimizer if the optimizer is not element-wise."""
    if kvstore == SHARDED and device_count > 1 and not is_element_wise(optimizer_kind(name).cls):
        raise KVStoreError(
            f"--kvstore {SHARDED} splits parameters over devices, but {name} needs whole parameters: "
            f"choose another kvstore, or one of these optimizers: {_element_wise_optimizers()}"
        )


def check_tensor_parallel_optimizer(name: str, way: str) -> None:
    """Raise ConfigError for tensor parallelism with an optimizer that is not element-wise."""
    if way == TENSOR and not is_element_wise(optimizer_kind(name).cls):
        raise ConfigError(
            f"--strategy {way} splits parameters over devices, but {name} needs whole "
            f"parameters: choose another --strategy, or one of these optimizers: {_element_wise_optimizers()}"
        )


def _element_wise_optimizers() -> str:
    return ", ".join(name for name, kind in OPTIMIZERS.items() if is_element_wise(kind.cls))


Shape = Tuple[int, ...]


def check_array_size(images: int, elements: int) -> None:
    """Raise ConfigError if an array has more elements than MXNet allows.

    ``images``: number of images in the array, for the message. ``elements``: number of elements.
    """
    if elements >= ARRAY_LIMIT:
        raise ConfigError(
            f"{images:,} images need an array of {elements:,} elements, "
            f"but arrays in MXNet must have fewer than {ARRAY_LIMIT:,} elements: "
            "choose a smaller --batch-size or smaller microbatches"
        )


def check_graph_arrays(graph: mx.sym.Symbol, inputs: Dict[str, Shape], images: int) -> None:
    """Check the size of every array that a graph computes for ``images`` images.

    ``inputs``: the shapes of the graph's arguments. Raises ConfigError for an array that is too
    large.
    """
    check_array_size(images, max(map(math.prod, graph.get_internals().infer_shape(**inputs)[1])))


@dataclass(frozen=True)
class ArrayLimit:
    """Checks that MXNet allows the sizes of a batch's arrays, on the host and in the `loss_graph`.

    ``devices``: the images of a batch on the host, divided by the images of the largest shard.
    """

    graph: mx.sym.Symbol
    net: gluon.HybridBlock
    image_shape: Shape
    devices: Union[int, Fraction]
    microbatches: Microbatches
    columns: int = 0  # columns of the labels, `gluonlab.parallel.training_loss.label_columns`

    def check(self, images: int) -> None:
        """Raise ConfigError if a batch needs arrays that are too large.

        ``images``: the number of images per device.
        """
        self.check_host(images)
        part = self.microbatches.largest_part(images)
        shapes = {name: param.shape for name, param in self.net.collect_params().items()}
        shapes[IMAGES] = (part, *self.image_shape)
        shapes[LABELS] = (part, *[self.columns] * bool(self.columns))
        # the graph already has the shapes of a loss's constants
        names = set(self.graph.list_arguments()) & set(shapes)
        check_graph_arrays(self.graph, {name: shapes[name] for name in names}, part)

    def check_host(self, images: int) -> None:
        """Raise ConfigError if the batch on the host needs an array that is too large."""
        batch = math.ceil(images * self.devices)
        check_array_size(batch, batch * math.prod(self.image_shape))

    def largest_images(self, maximum: int) -> int:
        """Return the largest accepted number of images per device, at most ``maximum``.

        `check` raises an error for more images.
        """
        low, high = 1, maximum
        while low < high:
            # try the maximum first, because few data sets exceed the limit
            middle = (low + high + 1) // 2 if high < maximum else high
            try:
                self.check(middle)
                low = middle
            except ConfigError:
                high = middle - 1
        return low
