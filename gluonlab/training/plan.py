"""Turns a TrainConfig into a run's `Plan`, which has complete and checked settings.

There are three steps:

1. `resolve_config` fills unset settings from a recipe.
2. `set_up_devices` finds the devices.
3. `plan_run` loads the data, and creates the `Plan`.

`gluonlab.training.training_setup.make_plan_on_all_ranks` performs these steps for a run.
`make_plan` performs the steps in a single process. Wrong settings are found before anything is
computed or written.
"""

from __future__ import annotations

import dataclasses
import math
import textwrap
from dataclasses import dataclass
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple, Union

import mxnet as mx
from mxnet import gluon

from gluonlab.bucketed_trainer.buckets import default_bucket_bytes
from gluonlab.bucketed_trainer.loss_scale import LossScale, make_loss_scale
from gluonlab.config import TrainConfig
from gluonlab.config.option_checks import Patience, Period, parse_class_weights, parse_patience, parse_period
from gluonlab.data.loading.augmentation import make_input_transform
from gluonlab.data.loading.split_batch import WHOLE_SHARDS, Microbatches, batch_count
from gluonlab.data.sets.array_dataset import apply_class_weights
from gluonlab.data.sets.data_fingerprint import classes_fingerprint, split_fingerprint
from gluonlab.data.sets.dataset import (
    Dataset,
    Defaults,
    ReadAheadSplit,
    format_normalization,
    image_dtype,
    parse_normalization,
    resolve_normalization,
)
from gluonlab.data.sets.dataset_registry import (
    accepts_option,
    check_dataset,
    find_dataset_kind,
    has_image_files,
    is_packed_dataset,
    load_dataset,
)
from gluonlab.data.sets.standard_datasets import SYNTHETIC_SAMPLES, SYNTHETIC_SHAPE
from gluonlab.devices import devices, gpu_count, gpus, is_on_paid_gpus
from gluonlab.engine.cpu_threads import set_threads
from gluonlab.engine.mxnet_setup import BackwardBulkSize, use_backward_bulk_size
from gluonlab.errors import DeviceError
from gluonlab.gpu.cuda import UnsupportedGpuError
from gluonlab.gpu.math_modes import Arithmetic, check_arithmetic, resolve_arithmetic
from gluonlab.kvstores import check_kvstore, find_placement, make_kvstore
from gluonlab.kvstores.allreduce_store import Placement
from gluonlab.kvstores.gradient_compression import check_compression, effective_compression, enable_compression
from gluonlab.kvstores.process_groups import SINGLE_PROCESS, ProcessGroup
from gluonlab.models import check_model
from gluonlab.optimizers.optimizer_registry import make_optimizer, optimizer_kind
from gluonlab.optimizers.sgd_and_nag import CORRECTED
from gluonlab.parallel.mixed_precision import Conversion, check_dtype, check_dtype_on, graph_conversion
from gluonlab.parallel.strategy import PIPELINE, TENSOR, Parallelism
from gluonlab.parallel.training_loss import make_loss
from gluonlab.training import config_checks, learning_rate_schedule
from gluonlab.training.image_loader_options import image_file_options
from gluonlab.training.learning_rate_schedule import LearningRates
from gluonlab.training.parallel_options import (
    check_shard_sizes,
    check_split_options,
    check_weight_count,
    default_microbatches,
    format_batch_sizes,
    largest_shard_size,
    make_split,
    resolve_device_weights,
    smallest_shard_size,
)
from gluonlab.training.recipes import (
    IMAGE_AND_LABEL_CHANGES,
    QUICK,
    TrainingRecipe,
    choose_model,
    choose_recipe,
    enabled_settings,
    find_recipes,
)
from gluonlab.training.user_components import NO_USER_COMPONENTS, UserComponents, check_loss, check_user_components
from gluonlab.training.user_metrics import check_metrics

OPTIONS_WIDTH = 69  # 80 columns, less a title of 11
# Recipes for one of these are also used for the other, with the same learning rate and momentum.
MOMENTUM_OPTIMIZERS = ("sgd", "nag")


class ResolvedConfig(NamedTuple):
    """The settings of a run: ``requested`` by the user, and ``config`` with the recipe's values.

    A setting that is None in ``config`` is not used. Examples are options of a different schedule,
    and the momentum of an optimizer for which the recipe has no momentum.
    """

    requested: TrainConfig
    config: TrainConfig
    recipe: TrainingRecipe
    alternatives: Tuple[TrainingRecipe, ...]
    defaults: Defaults

    @property
    def model(self) -> str:
        """The network's name."""
        return str(self.config.model)

    @property
    def uses_recipe_lr(self) -> bool:
        """True if the learning rate comes from the recipe."""
        return self.requested.lr is None and self.config.lr is not None

    @property
    def lr_batch_size(self) -> int:
        """The batch size for which --scale-lr leaves the learning rate unchanged.

        A recipe's learning rate is meant for the recipe's batch size. The user's learning rate is
        meant for the batch of one device: --batch-size, or its default.
        """
        if self.uses_recipe_lr:
            return self.recipe.lr_batch_size
        return self.requested.batch_size or self.recipe.default_batch_size

    @property
    def scales_lr(self) -> bool:
        """True if the learning rate is scaled with the batch size."""
        by_images = self.recipe.lr_per_images is not None
        return self.config.scale_lr or (self.uses_recipe_lr and by_images)

    def in_words(self) -> Iterator[Tuple[str, str]]:
        """Yield lines (title, text) that describe the recipe; no lines if it is the only recipe."""
        if not self.alternatives:
            return
        names = ", ".join(
            f"--recipe {recipe.name}: {self._model_if_different(recipe)}{recipe.epochs}" for recipe in self.alternatives
        )
        accuracy, epochs = self.recipe.reported_accuracy(self.model), self.config.epochs or 0
        source = self.recipe.reported.partition(";")[0] or "there"
        accuracy_text = f", {accuracy:g} % {source}" if accuracy is not None else ""
        texts = [
            f"{self.recipe.name}: {self.recipe.source}{accuracy_text}",
            f"{epochs} epoch{'s' * (epochs > 1)} ({names})",
        ]
        lacks_crops = self.recipe.random_resized_crop and not self.config.random_resized_crop
        if lacks_crops and self.requested.random_resized_crop is None:
            texts.append("without its random resized crops: the images are already cropped")
        wrap = textwrap.TextWrapper(OPTIONS_WIDTH, break_on_hyphens=False).wrap
        lines = [line for text in texts for line in wrap(text)]
        yield from zip(["recipe", *[""] * len(lines)], lines)

    def _model_if_different(self, recipe: TrainingRecipe) -> str:
        """Return text such as ``lenet, `` if the config has another network than the recipe."""
        model = choose_model(self.requested.replace(recipe=recipe.name), self.defaults)
        return f"{model}, " if model != self.model else ""


def resolve_config(
    requested: TrainConfig,
    dataset: Optional[Dataset] = None,
    group: ProcessGroup = SINGLE_PROCESS,
    components: UserComponents = NO_USER_COMPONENTS,
) -> ResolvedConfig:
    """Fill unset settings, and check all settings that can be checked without devices and images.

    For the arguments, see `make_plan`. Raises a UsageError for the first wrong setting.
    """
    config_checks.check_single_process_options(requested, group)
    check_kvstore(requested.kvstore)
    config_checks.check_topology_option(requested)
    check_split_options(requested)
    check_user_components(components, requested)
    check_dataset(requested.dataset)
    resolved = apply_recipe(requested, dataset, components)
    config = resolved.config
    config_checks.check_server_update_options(config, group)
    learning_rate_schedule.check_schedule(config)
    learning_rate_schedule.check_schedule_epochs(config)
    check_dtype(requested.dtype)
    config_checks.check_on_nan_option(requested)
    check_compression(requested.compress, requested.kvstore, requested.dtype, group)
    config_checks.check_checkpoints_with_compression(requested)
    if components.net is None:
        check_model(str(config.model))
    if config.normalize is not None:
        parse_normalization(config.normalize)
    image_file_options(requested)
    config_checks.check_optimizer(str(config.optimizer), requested)
    config_checks.check_momentum_rule(config, requested)
    config_checks.check_no_bias_decay(config)
    if config.pretrained is not None:
        from gluonlab.models.load_parameter_file import check_parameter_file

        check_parameter_file(config.pretrained)
    config_checks.check_export(requested)
    if requested.tensorboard and group.rank == 0:  # only rank 0 writes
        from gluonlab.runs.tensorboard_file import check_tensorboard

        check_tensorboard()
    return resolved


def apply_recipe(
    requested: TrainConfig, dataset: Optional[Dataset] = None, components: UserComponents = NO_USER_COMPONENTS
) -> ResolvedConfig:
    """Replace settings that are None by the values of a recipe for the data set and network.

    Raises ConfigError for a recipe for a different data set or network, and DataError for a folder
    that cannot be read.
    """
    defaults = (dataset or find_dataset_kind(requested.dataset)[0]).defaults
    config = requested
    if components.net is not None:  # no recipe has been published for it
        config = requested.replace(recipe=requested.recipe or QUICK)
    # without a recipe, the values are the Defaults of the data set
    recipe = choose_recipe(config, defaults)
    alternatives = {other.name: other for other in find_recipes(config, defaults) if other.name != recipe.name}
    values = _recipe_values(config, recipe, defaults)
    unset = {name: value for name, value in values.items() if getattr(config, name) is None}
    if unset.get("random_resized_crop") and not _can_random_crop(config, dataset):
        unset["random_resized_crop"] = False
    config = config.replace(**{**unset, **components.implied_settings()})
    return ResolvedConfig(requested, config, recipe, tuple(alternatives.values()), defaults)


def _can_random_crop(config: TrainConfig, dataset: Optional[Dataset]) -> bool:
    """Return False if the images are already cropped, as in a packed folder."""
    if dataset is not None:
        return isinstance(dataset.train, ReadAheadSplit)
    return not is_packed_dataset(config.dataset, config.data_dir)


def _recipe_values(config: TrainConfig, recipe: TrainingRecipe, defaults: Defaults) -> Dict[str, Any]:
    """Return the recipe's values for settings that the config does not set."""
    epochs = config.epochs or recipe.epochs
    optimizer = (config.optimizer or recipe.optimizer).lower()
    suits_optimizer = _recipe_suits_optimizer(optimizer, recipe)
    schedule = config.lr_schedule or recipe.lr_schedule
    keeps_decay = schedule == "step" and recipe.lr_schedule == "step"
    wd = recipe.wd if config.wd is None else config.wd
    # only the warm-up gets shorter in a run with fewer epochs
    warmup = recipe.warmup_epochs * min(1.0, epochs / recipe.epochs)
    has_batch_size = config.batch_size or config.global_batch_size
    names = ["optimizer", "wd", "label_smoothing", "crop_padding", "flip", "mixup", "normalize"]
    names += [] if has_batch_size else ["batch_size", "global_batch_size"]
    names += ["lr", "momentum", "momentum_rule"] if suits_optimizer else []
    names += ["lr_decay"] if keeps_decay else []
    return {
        **{name: getattr(recipe, name) for name in names},
        "recipe": recipe.name,
        "model": choose_model(config, defaults),
        "epochs": epochs,
        "no_bias_decay": recipe.no_bias_decay and wd > 0,
        "lr_schedule": schedule,
        "warmup_epochs": warmup,
        "random_resized_crop": recipe.random_resized_crop and has_image_files(config.dataset),
    }


def _recipe_suits_optimizer(optimizer: str, recipe: TrainingRecipe) -> bool:
    """Return True if the recipe's learning rate and momentum are meant for this optimizer."""
    both_use_momentum = {optimizer, recipe.optimizer} <= {*MOMENTUM_OPTIMIZERS} and recipe.momentum is not None
    return optimizer == recipe.optimizer or both_use_momentum


class DeviceSetup(NamedTuple):
    """The devices of this process, their division into copies of the network, and the kvstore."""

    ctxs: List[mx.Context]
    parallelism: Parallelism
    kvstore: Any


def set_up_devices(
    resolved: ResolvedConfig, group: ProcessGroup = SINGLE_PROCESS, devices_per_copy: int = 1
) -> DeviceSetup:
    """Find the devices, and check all settings that depend on the devices.

    Raises a UsageError for a wrong setting.

    ``devices_per_copy``: for a custom strategy, the devices that share a copy of the network.
    """
    requested, config = resolved.requested, resolved.config
    ctxs = find_devices(requested, group)
    check_dtype_on(requested.dtype, ctxs)
    check_arithmetic(resolve_arithmetic(config.deterministic, config.tf32), ctxs)
    parallelism = make_split(config, ctxs, devices_per_copy)
    copies = len(parallelism.copies)
    check_weight_count(requested.device_weights, copies)
    config_checks.check_sharded_optimizer(str(config.optimizer), requested.kvstore, copies)
    config_checks.check_tensor_parallel_optimizer(str(config.optimizer), requested.strategy)
    kvstore = make_kvstore(config.kvstore, [copy[0] for copy in parallelism.copies], config.topology)
    return DeviceSetup(ctxs, parallelism, enable_compression(kvstore, config.compress, copies, group))


def load_data(resolved: ResolvedConfig, copy_count: int, dataset: Optional[Dataset] = None) -> Dataset:
    """Load the data set, with its class weights and the normalization of the run.

    ``copy_count``: number of copies of the network in all processes. ``dataset``: the data set, if
    it has already been loaded. Raises DataError if the data set cannot be loaded.
    """
    config = resolved.config
    if dataset is None:
        # the requested options, because other data sets refuse a recipe's options of image files
        options = image_file_options(resolved.requested)
        if config.random_resized_crop:
            options["random_resized_crop"] = True
        # the synthetic data set has at least as many images as a batch
        images = config.global_batch_size or (config.batch_size or 0) * copy_count
        if images > SYNTHETIC_SAMPLES and accepts_option(config.dataset, "samples"):
            config_checks.check_array_size(images, images * math.prod(SYNTHETIC_SHAPE))
            options["samples"] = images
        dataset = load_dataset(config.dataset, config.data_dir, **options)
    if config.class_weights is not None:
        dataset = apply_class_weights(dataset, parse_class_weights(config.class_weights))
    if config.normalize is None:
        return dataset
    colors = resolve_normalization(config.normalize, dataset.image_shape[0], dataset.name)
    return dataclasses.replace(dataset, normalization=colors)


def learning_rate_factor(resolved: ResolvedConfig, step_images: int, images: int) -> float:
    """Return the factor by which --scale-lr multiplies the learning rate.

    The factor is the number of images in a step, divided by the batch size for which the learning
    rate is meant. ``images``: number of training images, which limits this batch size. See Goyal et
    al., "Accurate, large minibatch SGD: training ImageNet in 1 hour", 2017, section 2.1.
    """
    if not resolved.scales_lr:
        return 1.0
    batch_size = resolved.lr_batch_size
    return step_images / (batch_size if resolved.uses_recipe_lr else min(batch_size, images))


def find_devices(config: TrainConfig, group: ProcessGroup = SINGLE_PROCESS) -> List[mx.Context]:
    """Return the devices of this process that ``config`` requests.

    Raises DeviceError if these devices are not available.
    """
    is_required = is_on_paid_gpus() if config.require_gpu is None else config.require_gpu
    device_spec = "" if config.devices is None else str(config.devices).strip()
    # GPUs are required, and there are none: raise an error instead of using CPU devices
    if is_required and (not device_spec or device_spec.isdigit()) and not gpu_count():
        count = int(device_spec) if device_spec else config.gpus or 1
        return gpus(count, emulate=False, threads=config.threads)
    # the devices of this process, if several processes share the host
    device_names = group.own_devices(config.gpus) if config.devices is None else config.devices
    if device_names is None and config.gpus is not None:
        return gpus(config.gpus, emulate=not is_required, threads=config.threads)
    try:
        return devices(device_names, threads=config.threads)
    except UnsupportedGpuError:
        raise
    except DeviceError as error:
        raise DeviceError(f"--devices {error}") from None


# Settings that affect results, and that are recorded with the value from the config or recipe.
AS_GIVEN = (
    "patience", "no_bias_decay", "label_smoothing", "random_resized_crop", "crop_padding", "flip",
    "mixup", "clip_norm", "on_nan", "dtype", "pretrained", "data_dir", "skip_corrupt", "topology",
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """The final settings of a run, made by `plan_run`.

    ``config`` contains the user's settings. A field with the same name as a setting contains the
    value that the run uses. For an unset setting, the field contains the recipe's value. For a
    setting without effect, such as ``sync_bn`` on one device, the value is False or None. Some
    other fields:

    - ``dataset``: the data set, with the normalization of the run.
    - ``device_counts``: for each process, its number of copies of the network. Each copy gets a
      shard of a batch.
    - ``device_weights``: the proportions in which a batch is split over the devices of a process.
    - ``momentum_rule``: the rule of --momentum-rule; None without momentum.
    - ``on_servers``: True if parameter servers update the weights.
    - ``loss_scale``: the dynamic loss scale; None if the loss is not scaled.
    """

    config: TrainConfig
    resolved: ResolvedConfig
    user_components: UserComponents
    ctxs: List[mx.Context]
    device_counts: Tuple[int, ...]
    device_weights: Optional[str]
    parallelism: Parallelism
    threads: int
    dataset: Dataset
    model: str
    epochs: int
    patience: Union[int, str, None]
    global_batch_size: int
    drop_last: bool
    optimizer: str
    optimizer_params: Dict[str, float]
    kvstore: Any
    rates: LearningRates
    clip_norm: Optional[float]
    loss_scale: Optional[LossScale]
    momentum_rule: Optional[str]
    group: ProcessGroup
    microbatches: Microbatches
    sync_bn: bool
    compress: Optional[str]
    on_servers: bool
    seed: int
    dtype: str
    on_nan: str
    deterministic: bool
    tf32: Optional[bool]
    bucket_bytes: Optional[int]
    backward_bulk_size: Optional[BackwardBulkSize]
    check_replicas: Optional[int]
    no_bias_decay: bool
    label_smoothing: float
    class_weights: Optional[str]
    pretrained: Optional[str]
    normalize: Optional[str]
    random_resized_crop: bool
    crop_padding: int
    flip: bool
    mixup: float
    prefetch: int
    device_cache_bytes: int
    estimate_memory: bool
    profile: Optional[int]
    tensorboard: bool
    checkpoint_every: Optional[str]
    keep_checkpoints: int
    confusion: bool
    export: Optional[str]
    out: Optional[str]

    @property
    def arithmetic(self) -> Arithmetic:
        """The arithmetic of the GPUs: deterministic or not, with or without TF32."""
        return resolve_arithmetic(self.deterministic, self.tf32)

    @property
    def postprocessing(self) -> Dict[str, Any]:
        """The arguments of `GradientPostprocessor` for the gradients of a batch."""
        return {"clip_norm": self.clip_norm, "loss_scale": self.loss_scale}

    def overlap_context(self) -> ContextManager[None]:
        """Return a context manager in which graphs are bound for the requested overlap.

        The overlap is between backward and the allreduces of gradients.
        """
        return use_backward_bulk_size(self.backward_bulk_size)

    def make_optimizer(self) -> mx.optimizer.Optimizer:
        """Create an optimizer that follows the learning rate schedule."""
        return make_optimizer(
            self.optimizer, {**self.optimizer_params, "lr_scheduler": self.rates}, self.momentum_rule or CORRECTED
        )

    def new_kvstore(self, ctxs: List[mx.Context]) -> Any:
        """Create a new kvstore of the plan's type for the devices ``ctxs``."""
        config = self.resolved.config
        return make_kvstore(config.kvstore, ctxs, config.topology)

    def make_loss(self) -> gluon.HybridBlock:
        """Create the loss, which returns one value for each image."""
        return make_loss(self.label_smoothing, bool(self.mixup), self.user_components.loss, self.weights is not None)

    @property
    def weights(self) -> Any:
        """The weights (N,) of the training images in the loss; None if all weights are equal."""
        return getattr(self.dataset.train, "weights", None)

    @property
    def preprocess(self) -> Callable[[Any, Any], Any]:
        """The function ``preprocess(F, images)`` that converts images to the network's input."""
        return make_input_transform(self.dataset.normalization)

    @property
    def conversion(self) -> Conversion:
        """The function that converts the network's graph to the --dtype."""
        return graph_conversion(self.dtype, self.sync_bn)

    @property
    def checkpoint_period(self) -> Optional[Period]:
        """The interval between checkpoints; None without periodic checkpoints."""
        return None if self.checkpoint_every is None else parse_period(self.checkpoint_every)

    @property
    def lr(self) -> float:
        """The learning rate for the whole batch, before a schedule changes it."""
        return self.optimizer_params["learning_rate"]

    @property
    def largest_batch_size(self) -> int:
        """The largest number of images in a batch of training or validation images."""
        return min(self.global_batch_size, max(len(self.dataset.train), len(self.dataset.test)))

    @property
    def largest_shard_size(self) -> int:
        """The largest number of images in a shard. Each copy of the network gets one shard."""
        weights = resolve_device_weights(self.device_weights, self.group.size)
        return largest_shard_size(self.largest_batch_size, weights, sum(self.device_counts))

    @property
    def first_device_index(self) -> int:
        """The index of this process's first device among the devices of all processes."""
        return sum(self.device_counts[: self.group.rank])

    @property
    def early_stopping(self) -> Optional[Patience]:
        """The patience of early stopping; None without early stopping."""
        return None if self.patience is None else parse_patience(self.patience)

    @property
    def images_per_epoch(self) -> int:
        """The number of images that an epoch trains on."""
        return min(len(self.dataset.train), self.steps_per_epoch * self.global_batch_size)

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches in an epoch."""
        return batch_count(len(self.dataset.train), self.global_batch_size, self.drop_last)

    def describe_batch(self, copies: int) -> str:
        """Return text such as ``32 per device, 64 in all``, for ``copies`` model replicas."""
        images, has_copy = self.global_batch_size, self.parallelism.shard_owner
        shards = format_batch_sizes(images, copies, has_copy, self.device_weights, self.group.size)
        return f"{shards}, {images:,} in all{self.microbatches.describe()}"

    @property
    def placement(self) -> Optional[Placement]:
        """The assignment of devices to ranks of the kvstore's schedule; None for a fixed order."""
        return find_placement(self.kvstore, self.ctxs, self.parallelism.copies)

    def describe_placement(self) -> str:
        """Return the end of a run's ``kvstore`` output line, which describes the device order.

        An example is ``, order gpu(0) gpu(3) ..., by the links that NVML reports``. For a
        topology-aware kvstore, the text lists the schedules by size. For a fixed order, the text is
        empty.
        """
        return f", {self.placement.describe(self.ctxs)}" if self.placement is not None else ""

    def option_lines(self) -> Iterator[Tuple[str, str]]:
        """Yield lines (title, text) about optimization settings that differ from the default.

        A line with an empty title continues the previous line.
        """
        if self.rates.schedule != "constant" or self.rates.warmup_steps:
            yield "schedule", self.rates.in_words()
        options = [
            f"{self.dtype} with a dynamic loss scale" if self.dtype != "float32" else "",
            *enabled_settings(self, "clip_norm", *IMAGE_AND_LABEL_CHANGES),
            "sync-bn" if self.sync_bn else "",
            *enabled_settings(self, "no_bias_decay", "compress"),
            self._describe_loss_weights(),
        ]
        text = ", ".join(filter(None, options))
        lines = textwrap.wrap(text, OPTIONS_WIDTH, break_on_hyphens=False)
        yield from zip(["options", *[""] * len(lines)], lines)

    def _describe_loss_weights(self) -> str:
        """Return text such as ``loss weighted by 0.5 to 2.25``; "" for a loss without weights."""
        weights = self.weights
        return "" if weights is None else f"loss weighted by {weights.min():g} to {weights.max():g}"

    @property
    def component_settings(self) -> Dict[str, Any]:
        """The names of the user's network, loss and data set."""
        of_files = ":" in self.config.dataset  # such a data set is named after its files
        return self.user_components.settings(None if of_files else self.dataset)

    def settings(self) -> Dict[str, Any]:
        """Return all used settings that affect the results, as plain values for config.json."""
        config, placement = self.resolved.config, self.placement
        return {
            "devices": [str(ctx) for ctx in self.ctxs],
            "threads_per_device": self.threads,
            "processes": self.group.size,
            **self.parallelism.settings(),
            **({"device_counts": list(self.device_counts)} if self.group.size > 1 else {}),
            **({"device_weights": self.device_weights} if self.device_weights else {}),
            "backend": self.group.name,
            "recipe": self.resolved.recipe.name,
            "model": self.model,
            **self.component_settings,
            "dataset": self.dataset.name,
            "image_shape": list(self.dataset.image_shape),
            **({"resizer": self.dataset.resizer} if self.dataset.resizer else {}),
            "epochs": self.epochs,
            "global_batch_size": self.global_batch_size,
            **({"drop_last": True} if self.drop_last else {}),
            **({"val_split": config.val_split} if config.val_split is not None else {}),
            "optimizer": self.optimizer,
            **self.optimizer_params,
            **({"momentum_rule": self.momentum_rule} if self.momentum_rule else {}),
            **self.rates.settings(),
            **{name: getattr(config, name) for name in AS_GIVEN},
            **({"class_weights": self.class_weights} if self.class_weights else {}),
            **({"weighted_loss": True} if self.weights is not None else {}),
            "microbatches": self.microbatches.count,
            "microbatch_size": self.microbatches.size,
            "normalize": format_normalization(self.dataset.normalization),
            "sync_bn": self.sync_bn,
            "kvstore": config.kvstore,
            "bucket_bytes": (default_bucket_bytes(self.ctxs) if self.bucket_bytes is None else self.bucket_bytes),
            "compress": self.compress,
            **({"update_on_servers": True} if self.on_servers else {}),
            **(placement.to_json(self.ctxs) if placement is not None else {}),
            "seed": self.seed,
            **(self.arithmetic._asdict() if self.ctxs[0].device_type == "gpu" else {}),
        }

    def config_content(self, strategy_settings: Mapping[str, Any]) -> Dict[str, Any]:
        """Return the content of config.json: requested settings, used settings, and classes.

        ``strategy_settings``: settings that the strategy has determined.
        """
        return {
            "config": self.config.to_dict(),
            "settings": {**self.settings(), **strategy_settings},
            "classes": classes_fingerprint(self.dataset.classes),
        }


def make_plan(
    config: TrainConfig,
    dataset: Optional[Dataset] = None,
    group: ProcessGroup = SINGLE_PROCESS,
    components: UserComponents = NO_USER_COMPONENTS,
) -> Plan:
    """Check that all settings are possible on this machine, load the data, and return the plan.

    Args:
        config: The settings.
        dataset: The data set of the config, if it has already been loaded.
        group: The processes that train together, each with as many devices as this process.
        components: The user's network, loss and metrics.

    Raises:
        UsageError: A setting is wrong. The message is about the first wrong setting.
    """
    resolved = resolve_config(config, dataset, group, components)
    devices = set_up_devices(resolved, group)
    counts = (len(devices.parallelism.copies),) * group.size
    return plan_run(resolved, devices, counts, dataset, group, components)


def plan_run(
    resolved: ResolvedConfig,
    devices: DeviceSetup,
    device_counts: Tuple[int, ...],
    dataset: Optional[Dataset] = None,
    group: ProcessGroup = SINGLE_PROCESS,
    components: UserComponents = NO_USER_COMPONENTS,
) -> Plan:
    """Load the data, check all settings that depend on the data, and create the plan.

    ``resolved`` and ``devices`` come from `resolve_config` and `set_up_devices`. ``device_counts``:
    the number of copies of the network in each process. For the other arguments, see `make_plan`.
    """
    requested, config = resolved.requested, resolved.config
    ctxs, parallelism, kvstore = devices
    copy_count = sum(device_counts)

    # data set, and components of the user that depend on the data set
    dataset = load_data(resolved, copy_count, dataset)
    images, classes = len(dataset.train), len(dataset.classes)
    if components.loss is not None:
        check_loss(components.loss, classes)
    check_metrics(components.metrics, dataset.test, classes)

    # batch, and its division into shards and microbatches
    global_batch_size = config.global_batch_size or (config.batch_size or 1) * copy_count
    steps_per_epoch = batch_count(images, global_batch_size, config.drop_last)
    config_checks.check_drop_last(steps_per_epoch, global_batch_size, dataset)
    step_images = min(global_batch_size, images)  # no batch is larger than the data set
    check_shard_sizes(requested.device_weights, step_images, ctxs, group.size)
    fewest_images = smallest_shard_size(
        step_images, resolve_device_weights(requested.device_weights, group.size), copy_count
    )
    microbatches = Microbatches(config.microbatches, config.microbatch_size)
    if microbatches == WHOLE_SHARDS and parallelism.mode == PIPELINE:
        microbatches = Microbatches(min(default_microbatches(parallelism), max(1, fewest_images)))
    microbatches.check(step_images, copy_count, parallelism.shard_owner, fewest_images)
    config_checks.check_profile(requested.profile, steps_per_epoch)

    # optimizer and learning rates
    optimizer = str(config.optimizer).lower()
    kind = optimizer_kind(optimizer)
    lr_factor = learning_rate_factor(resolved, step_images, images)
    lr = float(kind.cls().learning_rate) if config.lr is None else config.lr
    optimizer_params = {"learning_rate": lr * lr_factor, "wd": config.wd or 0.0}
    if config.momentum is not None:
        optimizer_params["momentum"] = config.momentum
    has_momentum_rules = bool(config.momentum) and kind.mxnet_rule_class is not None
    rates = learning_rate_schedule.make_learning_rates(
        config,
        optimizer_params["learning_rate"],
        config.epochs or 1,
        steps_per_epoch,
        lr_factor,
        resolved.recipe.decay_shares,
    )
    learning_rate_schedule.check_final_rate(config, rates, lr_factor)

    return Plan(
        config=requested,
        resolved=resolved,
        user_components=components,
        group=group,
        # devices, and their parts of the network
        ctxs=ctxs,
        device_counts=device_counts,
        device_weights=config.device_weights,
        threads=set_threads(ctxs, config.threads),
        parallelism=parallelism._replace(
            max_shard_images=math.ceil(step_images / copy_count),
            image_shape=tuple(dataset.image_shape),
            image_dtype=image_dtype(dataset.train),
        ),
        kvstore=kvstore,
        compress=effective_compression(config.compress, len(ctxs), group),
        on_servers=config_checks.updates_on_servers(config, group),
        bucket_bytes=config.bucket_bytes,
        backward_bulk_size=config.backward_bulk_size,
        # split channels always leave some parameters on several devices
        check_replicas=(config.check_replicas if copy_count > 1 or parallelism.mode == TENSOR else None),
        # data
        dataset=dataset,
        global_batch_size=global_batch_size,
        drop_last=config.drop_last,
        microbatches=microbatches,
        class_weights=config.class_weights,
        normalize=config.normalize,
        random_resized_crop=bool(config.random_resized_crop),
        crop_padding=config.crop_padding or 0,
        flip=bool(config.flip),
        mixup=config.mixup or 0.0,
        prefetch=config.prefetch,
        device_cache_bytes=config.device_cache_bytes,
        # network and optimization
        model=str(config.model),
        pretrained=config.pretrained,
        sync_bn=config.sync_bn and len(ctxs) > 1,
        optimizer=optimizer,
        optimizer_params=optimizer_params,
        momentum_rule=(config.momentum_rule or CORRECTED) if has_momentum_rules else None,
        rates=rates,
        clip_norm=config.clip_norm,
        loss_scale=make_loss_scale(config.dtype, step_images // copy_count, config.on_nan),
        no_bias_decay=bool(config.no_bias_decay),
        label_smoothing=config.label_smoothing or 0.0,
        dtype=config.dtype,
        on_nan=config.on_nan,
        seed=config.seed,
        deterministic=config.deterministic,
        tf32=config.tf32,
        # duration and output
        epochs=config.epochs or 1,
        patience=config.patience,
        checkpoint_every=config.checkpoint_every,
        keep_checkpoints=config.keep_checkpoints,
        estimate_memory=config.estimate_memory,
        profile=config.profile,
        tensorboard=config.tensorboard,
        confusion=config.confusion,
        export=config.export,
        out=config.out,
    )


def dataset_digests(plan: Plan) -> Dict[str, str]:
    """Return a digest of the images in each split, training and test."""
    return {split: split_fingerprint(getattr(plan.dataset, split)) for split in ("train", "test")}
