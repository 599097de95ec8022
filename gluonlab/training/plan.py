"""From a TrainConfig to a plan: every setting of a run, checked, with a value.

`make_plan` goes from the settings to the devices, to the data, and to the frozen `Plan`. Each part
is checked before the next one is made. Everything that can be wrong with a run is found here or in
`gluonlab.training.training_setup`, before anything is computed or written.
"""

from __future__ import annotations

import dataclasses
import math
import textwrap
from dataclasses import dataclass
from typing import (
    Any,
    Callable,
    ContextManager,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Tuple,
    Union,
)

import mxnet as mx
from mxnet import gluon

from gluonlab.bucketed_trainer.buckets import usual_bucket_bytes
from gluonlab.bucketed_trainer.gradient_postprocessing import Postprocess
from gluonlab.bucketed_trainer.loss_scale import LossScale, make_loss_scale
from gluonlab.config import TrainConfig
from gluonlab.config.option_types import (
    Patience,
    Period,
    parse_class_weights,
    parse_patience,
    parse_period,
)
from gluonlab.data.loading.augmentation import make_input
from gluonlab.data.loading.split_batch import batch_count
from gluonlab.data.sets.array_dataset import weigh_classes
from gluonlab.data.sets.data_fingerprint import digest, noted
from gluonlab.data.sets.dataset import (
    Dataset,
    Defaults,
    ReadAheadSplit,
    colours_for,
    find_colours,
    image_dtype,
    in_text,
)
from gluonlab.data.sets.dataset_registry import (
    check_dataset,
    find_kind,
    is_cut_already,
    load_dataset,
    of_image_files,
    takes,
)
from gluonlab.data.sets.standard_datasets import SYNTHETIC_SAMPLES, SYNTHETIC_SHAPE
from gluonlab.devices import devices, gpu_count, gpus, is_on_paid_gpus
from gluonlab.engine.cpu_threads import set_threads
from gluonlab.engine.mxnet_setup import BackwardBulkSize, use_backward_bulk_size
from gluonlab.errors import DeviceError
from gluonlab.gpu.cuda import NoCode
from gluonlab.gpu.math_modes import Arithmetic, arithmetic, check_arithmetic
from gluonlab.kvstores import check_kvstore, make_kvstore, placement_of
from gluonlab.kvstores.allreduce_store import Placement
from gluonlab.kvstores.gradient_compression import check_compression, compressing, in_use
from gluonlab.kvstores.process_groups import ALONE, Group
from gluonlab.models import check_model
from gluonlab.models.pretrained import check_pretrained
from gluonlab.optimizers.optimizer_registry import make_optimizer, optimizer_kind
from gluonlab.optimizers.sgd import CORRECTED
from gluonlab.parallel.data.microbatches import WHOLE, Microbatches
from gluonlab.parallel.mixed_precision import Conversion, check_dtype, check_dtype_on, conversion
from gluonlab.parallel.strategy import CHANNELS, PIPELINE, Parallelism
from gluonlab.parallel.training_loss import make_loss
from gluonlab.runs.tensorboard_file import check_tensorboard
from gluonlab.training import config_checks, learning_rate_schedule
from gluonlab.training.image_options import file_options
from gluonlab.training.learning_rate_schedule import Rates
from gluonlab.training.parallel_options import (
    batch_in_words,
    check_count,
    check_shares,
    check_split,
    fewest,
    largest_share,
    make_split,
    usual_microbatches,
    weights_of,
)
from gluonlab.training.recipes import (
    CHANGES,
    QUICK,
    TrainingRecipe,
    choose,
    fitting,
    named,
    network,
)
from gluonlab.training.user_components import NOTHING, UserComponents, check_loss, check_own
from gluonlab.training.user_metrics import check_metrics

OPTIONS_WIDTH = 69  # beside their title, in 80 columns
# They differ in where the gradient is taken; rates and momenta are given for one and used for both.
WITH_MOMENTUM = ("sgd", "nag")


class ResolvedConfig(NamedTuple):
    """The settings of a run: as given (``asked``), and with the recipe's values (``config``).

    What stays None in ``config`` has no value: the other batch size, options of another schedule,
    and the rate and momentum of an optimizer for which the recipe has none.
    """

    asked: TrainConfig
    config: TrainConfig
    recipe: TrainingRecipe
    alternatives: Tuple[TrainingRecipe, ...]
    defaults: Defaults

    @property
    def model(self) -> str:
        """The network's name."""
        return str(self.config.model)  # which is no gap any more

    @property
    def is_recipes_rate(self) -> bool:
        """Whether the learning rate is the recipe's."""
        return self.asked.lr is None and self.config.lr is not None

    @property
    def rate_batch(self) -> int:
        """The images of a step for which the learning rate is made, before --scale-lr.

        For the recipe's rate that is the recipe's batch; for a rate of the user's own, the batch of
        one device: --batch-size, or its default.
        """
        if self.is_recipes_rate:
            return self.recipe.rate_batch
        return self.asked.batch_size or self.recipe.usual_batch

    @property
    def scales(self) -> bool:
        """Whether the learning rate is scaled with the batch."""
        by_images = self.recipe.lr_per_images is not None
        return self.config.scale_lr or (self.is_recipes_rate and by_images)

    def in_words(self) -> Iterator[Tuple[str, str]]:
        """(title, text) of the lines in which a run names its recipe, where there is a choice."""
        if not self.alternatives:
            return
        names = ", ".join(
            f"--recipe {each.name}: {self._network_of(each)}{each.epochs}"
            for each in self.alternatives
        )
        figure, epochs = self.recipe.figure(self.model), self.config.epochs or 0
        where = self.recipe.reported.partition(";")[0] or "there"
        reached = f", {figure:g} % {where}" if figure is not None else ""
        said = [
            f"{self.recipe.name}: {self.recipe.source}{reached}",
            f"{epochs} epoch{'s' * (epochs > 1)} ({names})",
        ]
        left_out = self.recipe.random_resized_crop and not self.config.random_resized_crop
        if left_out and self.asked.random_resized_crop is None:
            said.append("without its random resized crops: the images are cropped already")
        wrap = textwrap.TextWrapper(OPTIONS_WIDTH, break_on_hyphens=False).wrap
        lines = [line for text in said for line in wrap(text)]
        yield from zip(["recipe", *[""] * len(lines)], lines)

    def _network_of(self, recipe: TrainingRecipe) -> str:
        """``lenet, `` where that recipe would choose another network than this one."""
        model = network(self.asked.replace(recipe=recipe.name), self.defaults)
        return f"{model}, " if model != self.model else ""


def resolve_config(
    asked: TrainConfig,
    dataset: Optional[Dataset] = None,
    group: Group = ALONE,
    own: UserComponents = NOTHING,
) -> ResolvedConfig:
    """Fill the gaps in ``asked``, and check all that needs neither devices nor images.

    Raises a UsageError for the first setting that is wrong. Arguments as in `make_plan`.
    """
    config_checks.check_group(asked, group)
    check_kvstore(asked.kvstore)
    config_checks.check_topology_option(asked)
    check_split(asked)
    check_own(own, asked)
    check_dataset(asked.dataset)
    resolved = fill_gaps(asked, dataset, own)
    config = resolved.config
    config_checks.check_on_servers(config, group)
    learning_rate_schedule.check_schedule(config)
    learning_rate_schedule.check_epochs(config)
    check_dtype(asked.dtype)
    config_checks.check_on_nan_option(asked)
    check_compression(asked.compress, asked.kvstore, asked.dtype, group)
    config_checks.check_checkpoints(asked)
    if own.net is None:
        check_model(str(config.model))
    if config.normalise is not None:
        find_colours(config.normalise)
    file_options(asked)
    config_checks.check_optimizer(str(config.optimizer), asked)
    config_checks.check_momentum(config, asked)
    config_checks.check_decay(config)
    if config.pretrained is not None:
        check_pretrained(config.pretrained)
    config_checks.check_export(asked)
    if asked.tensorboard and group.rank == 0:  # the only rank that writes
        check_tensorboard()
    return resolved


def fill_gaps(
    asked: TrainConfig, dataset: Optional[Dataset] = None, own: UserComponents = NOTHING
) -> ResolvedConfig:
    """Give settings that are None the values of the recipe that fits.

    Raises ConfigError for a recipe that does not fit, and DataError for a folder that cannot be
    read.
    """
    defaults = (dataset or find_kind(asked.dataset)[0]).defaults
    config = asked
    if own.net is not None:  # no recipe has been published for it
        config = asked.replace(recipe=asked.recipe or QUICK)
    recipe = choose(config, defaults)
    others = {each.name: each for each in fitting(config, defaults) if each.name != recipe.name}
    values = _values(config, recipe, defaults)
    gaps = {name: value for name, value in values.items() if getattr(config, name) is None}
    if gaps.get("random_resized_crop") and not _can_crop(config, dataset):
        gaps["random_resized_crop"] = False
    config = config.replace(**{**gaps, **own.values()})
    return ResolvedConfig(asked, config, recipe, tuple(others.values()), defaults)


def _can_crop(config: TrainConfig, dataset: Optional[Dataset]) -> bool:
    """Whether the images are not cropped already, as those of a packed folder are."""
    if dataset is not None:
        return isinstance(dataset.train, ReadAheadSplit)
    return not is_cut_already(config.dataset, config.data_dir)


def _values(config: TrainConfig, recipe: TrainingRecipe, defaults: Defaults) -> Dict[str, Any]:
    """What each gap takes."""
    epochs = config.epochs or recipe.epochs
    optimizer = (config.optimizer or recipe.optimizer).lower()
    suits = _suits(optimizer, recipe)
    schedule = config.lr_schedule or recipe.lr_schedule
    steps = schedule == "step" and recipe.lr_schedule == "step"
    wd = recipe.wd if config.wd is None else config.wd
    # a short run has no less of the rest
    warmup = recipe.warmup_epochs * min(1.0, epochs / recipe.epochs)
    given_batch = config.batch_size or config.global_batch_size
    taken = ["optimizer", "wd", "label_smoothing", "crop_padding", "flip", "mixup", "normalise"]
    taken += [] if given_batch else ["batch_size", "global_batch_size"]
    taken += ["lr", "momentum", "momentum_rule"] if suits else []
    taken += ["lr_decay"] if steps else []
    return {
        **{name: getattr(recipe, name) for name in taken},
        "recipe": recipe.name,
        "model": network(config, defaults),
        "epochs": epochs,
        "no_bias_decay": recipe.no_bias_decay and wd > 0,
        "lr_schedule": schedule,
        "warmup_epochs": warmup,
        "random_resized_crop": recipe.random_resized_crop and of_image_files(config.dataset),
    }


def _suits(optimizer: str, recipe: TrainingRecipe) -> bool:
    """Whether the recipe's rate and momentum are made for this optimizer."""
    made_for = recipe.optimizer
    alike = optimizer in WITH_MOMENTUM and made_for in WITH_MOMENTUM and recipe.momentum is not None
    return optimizer == made_for or alike


class DeviceSetup(NamedTuple):
    """The devices of this process, how they share the network, and the kvstore that sums."""

    ctxs: List[mx.Context]
    split: Parallelism
    kvstore: Any


def set_up_devices(
    resolved: ResolvedConfig, group: Group = ALONE, devices_per_copy: int = 1
) -> DeviceSetup:
    """Find the devices, and check all that depends on them. Raises a UsageError.

    ``devices_per_copy``: for a strategy of the user's own, see `make_plan`.
    """
    asked, config = resolved.asked, resolved.config
    ctxs = find_devices(asked, group)
    check_dtype_on(asked.dtype, ctxs)
    check_arithmetic(arithmetic(config.deterministic, config.tf32), ctxs)
    split = make_split(config, ctxs, devices_per_copy)
    copies = len(split.copies)
    check_count(asked.device_weights, copies)
    config_checks.check_sharding(str(config.optimizer), asked.kvstore, copies)
    config_checks.check_channels(str(config.optimizer), asked.split)
    store = make_kvstore(config.kvstore, [copy[0] for copy in split.copies], config.topology)
    return DeviceSetup(ctxs, split, compressing(store, config.compress, copies, group))


def load_data(
    resolved: ResolvedConfig, copy_count: int, dataset: Optional[Dataset] = None
) -> Dataset:
    """The data set, with class weights and the colors by which the run normalizes.

    ``copy_count``: the copies of the network in all processes. ``dataset``: the data set, if it has
    been read already. Raises DataError.
    """
    config = resolved.config
    if dataset is None:
        options = file_options(resolved.asked)  # a recipe's are for image files only
        if config.random_resized_crop:
            options["random_resized_crop"] = True
        # a made-up data set has as many images as a batch
        images = config.global_batch_size or (config.batch_size or 0) * copy_count
        if images > SYNTHETIC_SAMPLES and takes(config.dataset, "samples"):
            config_checks.check_elements(images, images * math.prod(SYNTHETIC_SHAPE))
            options["samples"] = images
        dataset = load_dataset(config.dataset, config.data_dir, **options)
    if config.class_weights is not None:
        dataset = weigh_classes(dataset, parse_class_weights(config.class_weights))
    if config.normalise is None:
        return dataset
    colours = colours_for(config.normalise, dataset.image_shape[0], dataset.name)
    return dataclasses.replace(dataset, colours=colours)


def learning_rate_factor(resolved: ResolvedConfig, step_images: int, images: int) -> float:
    """The factor of linear scaling: a step's images over those that the rate is made for.

    ``images``: all training images. Goyal et al., "Accurate, large minibatch SGD: training ImageNet
    in 1 hour", 2017, section 2.1.
    """
    if not resolved.scales:
        return 1.0
    if resolved.is_recipes_rate:
        return step_images / resolved.rate_batch
    return step_images / min(resolved.rate_batch, images)


def find_devices(config: TrainConfig, group: Group = ALONE) -> List[mx.Context]:
    """The devices that ``config`` asks for, for this process of ``group``. Raises DeviceError."""
    required = is_on_paid_gpus() if config.require_gpu is None else config.require_gpu
    given = "" if config.devices is None else str(config.devices).strip()
    if required and (not given or given.isdigit()) and not gpu_count():
        count = int(given) if given else config.gpus or 1
        return gpus(count, emulate=False, threads=config.threads)
    named = group.own_devices(config.gpus) if config.devices is None else config.devices
    if named is None and config.gpus is not None:
        return gpus(config.gpus, emulate=not required, threads=config.threads)
    try:
        return devices(named, threads=config.threads)
    except NoCode:
        raise
    except DeviceError as error:
        raise DeviceError(f"--devices {error}") from None


# What changes a run's numbers and is used as it is given, or as the recipe has it.
AS_GIVEN = (
    "patience", "no_bias_decay", "label_smoothing", "random_resized_crop", "crop_padding", "flip",
    "mixup", "clip_norm", "on_nan", "dtype", "pretrained", "data_dir", "skip_bad", "topology",
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """A run in which nothing is open any more, made by `make_plan`.

    ``config`` is what was asked. Fields with the names of its settings hold what the run uses: the
    recipe's value where none was given, neither ``sync_bn`` nor gradients in 2 bits on one device,
    and no ``check_replicas`` of a single replica. The colours of ``dataset`` are those by which the
    run normalises. ``momentum_rule`` is None without a momentum that a rate could be part of.
    ``on_servers``: whether servers update the weights, as they do where processes do not wait.
    ``group``: the processes that share each batch; ``device_counts``: how many shards each takes,
    one for a device, or for the devices that share a copy of the network; ``device_weights``: in
    which proportion the devices of each process share a batch.
    """

    config: TrainConfig
    resolved: ResolvedConfig
    own: UserComponents
    ctxs: List[mx.Context]
    device_counts: Tuple[int, ...]
    device_weights: Optional[str]
    split: Parallelism
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
    rates: Rates
    postprocess: Postprocess
    momentum_rule: Optional[str]
    group: Group
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
    overlap: Optional[BackwardBulkSize]
    check_replicas: Optional[int]
    no_bias_decay: bool
    label_smoothing: float
    class_weights: Optional[str]
    pretrained: Optional[str]
    normalise: Optional[str]
    random_resized_crop: bool
    crop_padding: int
    flip: bool
    mixup: float
    prefetch: int
    resident_bytes: int
    memory: bool
    profile: Optional[int]
    tensorboard: bool
    checkpoint_every: Optional[str]
    keep: int
    confusion: bool
    export: Optional[str]
    out: Optional[str]

    @property
    def loss_scale(self) -> Optional[LossScale]:
        """What the loss is multiplied by; None: 1."""
        return self.postprocess.loss_scale

    @property
    def arithmetic(self) -> Arithmetic:
        """How its GPUs compute, if it has any."""
        return arithmetic(self.deterministic, self.tf32)

    def pieces(self) -> ContextManager[None]:
        """In this block graphs are bound such that sums of gradients begin as early as asked."""
        return use_backward_bulk_size(self.overlap)

    def make_optimizer(self) -> mx.optimizer.Optimizer:
        """A new one, which follows the schedule of the learning rate."""
        return make_optimizer(
            self.optimizer,
            {**self.optimizer_params, "lr_scheduler": self.rates},
            self.momentum_rule or CORRECTED,
        )

    def new_kvstore(self, ctxs: List[mx.Context]) -> Any:
        """Another one of the same kind, for these devices."""
        used = self.resolved.config
        return make_kvstore(used.kvstore, ctxs, used.topology)

    def make_loss(self) -> gluon.HybridBlock:
        """A value for each image."""
        return make_loss(
            self.label_smoothing, bool(self.mixup), self.own.loss, self.weights is not None
        )

    @property
    def weights(self) -> Any:
        """The weights (N,) of the training images in the loss; None where all count the same."""
        return getattr(self.dataset.train, "weights", None)

    @property
    def preprocess(self) -> Callable[[Any, Any], Any]:
        """``preprocess(F, images)`` makes the network's input of a batch's bytes."""
        return make_input(self.dataset.colours)

    @property
    def conversion(self) -> Conversion:
        """What --dtype does to the network's graph."""
        return conversion(self.dtype, self.sync_bn)

    @property
    def checkpoint_period(self) -> Optional[Period]:
        """How often a checkpoint is written; None: never by itself."""
        return None if self.checkpoint_every is None else parse_period(self.checkpoint_every)

    @property
    def lr(self) -> float:
        """The learning rate, for the whole batch, before a schedule changes it."""
        return self.optimizer_params["learning_rate"]

    @property
    def largest_batch(self) -> int:
        """The most images of a batch: it is no larger than the split that it comes from."""
        return min(self.global_batch_size, max(len(self.dataset.train), len(self.dataset.test)))

    @property
    def largest_share(self) -> int:
        """The most images of a batch that a copy of the network gets, if each gets a shard."""
        weights = weights_of(self.device_weights, self.group.size)
        return largest_share(self.largest_batch, weights, sum(self.device_counts))

    @property
    def first_device(self) -> int:
        """Where this process's devices begin among those of all processes."""
        return sum(self.device_counts[: self.group.rank])

    @property
    def stopping(self) -> Optional[Patience]:
        """When training ends before its last epoch; None: never by itself."""
        return None if self.patience is None else parse_patience(self.patience)

    @property
    def images_per_epoch(self) -> int:
        """How many images an epoch trains on."""
        return min(len(self.dataset.train), self.steps_per_epoch * self.global_batch_size)

    @property
    def steps_per_epoch(self) -> int:
        """How many batches the training images make."""
        return batch_count(len(self.dataset.train), self.global_batch_size, self.drop_last)

    def batch_in_words(self, copies: int) -> str:
        """``32 per device, 64 in all``, for this number of copies of the network."""
        images, has_copy = self.global_batch_size, self.split.has_copy
        each = batch_in_words(images, copies, has_copy, self.device_weights, self.group.size)
        return f"{each}, {images:,} in all{self.microbatches.in_words()}"

    @property
    def placement(self) -> Optional[Placement]:
        """Which device plays which rank in the kvstore's schedule; None where none was placed."""
        return placement_of(self.kvstore, self.ctxs, self.split.copies)

    def placed_in_words(self) -> str:
        """``, order gpu(0) gpu(3) ..., by the links that NVML reports``, where they were placed.

        Of a store that is made for links its schedules by size instead of the order.
        """
        return f", {self.placement.in_words(self.ctxs)}" if self.placement is not None else ""

    def options_in_words(self) -> Iterator[Tuple[str, str]]:
        """(title, text) of the optimization, where it is not the usual.

        A line without a title goes on with the one before.
        """
        if self.rates.schedule != "constant" or self.rates.warmup_steps:
            yield "schedule", self.rates.in_words()
        options = [
            f"{self.dtype} with a dynamic loss scale" if self.dtype != "float32" else "",
            *named(self.postprocess, "clip_norm"),
            *named(self, *CHANGES),
            "sync-bn" if self.sync_bn else "",
            *named(self, "no_bias_decay", "compress"),
            self._weights_in_words(),
        ]
        text = ", ".join(filter(None, options))
        lines = textwrap.wrap(text, OPTIONS_WIDTH, break_on_hyphens=False)
        yield from zip(["options", *[""] * len(lines)], lines)

    def _weights_in_words(self) -> str:
        """``loss weighted by 0.5 to 2.25``, or nothing without weights."""
        weights = self.weights
        return "" if weights is None else f"loss weighted by {weights.min():g} to {weights.max():g}"

    @property
    def own_settings(self) -> Dict[str, Any]:
        """The names of the user's own network, loss and data."""
        of_files = ":" in self.config.dataset  # named after them
        return self.own.settings(None if of_files else self.dataset)

    def settings(self) -> Dict[str, Any]:
        """What the run uses, as plain values for config.json: all that changes its numbers."""
        used, placed = self.resolved.config, self.placement
        return {
            "devices": [str(ctx) for ctx in self.ctxs],
            "threads_per_device": self.threads,
            "processes": self.group.size,
            **self.split.settings(),
            **({"device_counts": list(self.device_counts)} if self.group.size > 1 else {}),
            **({"device_weights": self.device_weights} if self.device_weights else {}),
            "backend": self.group.name,
            "recipe": self.resolved.recipe.name,
            "model": self.model,
            **self.own_settings,
            "dataset": self.dataset.name,
            "image_shape": list(self.dataset.image_shape),
            **({"resizer": self.dataset.resizer} if self.dataset.resizer else {}),
            "epochs": self.epochs,
            "global_batch_size": self.global_batch_size,
            **({"drop_last": True} if self.drop_last else {}),
            **({"val_share": used.val_share} if used.val_share is not None else {}),
            "optimizer": self.optimizer,
            **self.optimizer_params,
            **({"momentum_rule": self.momentum_rule} if self.momentum_rule else {}),
            **self.rates.settings(),
            **{name: getattr(used, name) for name in AS_GIVEN},
            **({"class_weights": self.class_weights} if self.class_weights else {}),
            **({"weighted_loss": True} if self.weights is not None else {}),
            "microbatches": self.microbatches.count,
            "microbatch_size": self.microbatches.size,
            "normalise": in_text(self.dataset.colours),
            "sync_bn": self.sync_bn,
            "kvstore": used.kvstore,
            "bucket_bytes": (
                usual_bucket_bytes(self.ctxs) if self.bucket_bytes is None else self.bucket_bytes
            ),
            "compress": self.compress,
            **({"update_on_servers": True} if self.on_servers else {}),
            **(placed.settings(self.ctxs) if placed is not None else {}),
            "seed": self.seed,
            **(self.arithmetic._asdict() if self.ctxs[0].device_type == "gpu" else {}),
        }

    def description(self, decided: Mapping[str, Any]) -> Dict[str, Any]:
        """What config.json says of the run: what was asked, what is used, and of which classes.

        ``decided``: what the strategy has decided itself.
        """
        classes = noted(self.dataset.classes)
        return {
            "config": self.config.to_dict(),
            "settings": {**self.settings(), **decided},
            "classes": classes,
        }


def make_plan(
    config: TrainConfig,
    dataset: Optional[Dataset] = None,
    group: Group = ALONE,
    own: UserComponents = NOTHING,
) -> Plan:
    """Check every name and value of ``config`` against this machine.

    Raises a UsageError for the first that is wrong.
    ``dataset``: the one that the config names, where it has been read already. ``group``: the
    processes that train together, each with as many devices as this one. ``own``: the user's.
    """
    resolved = resolve_config(config, dataset, group, own)
    devices = set_up_devices(resolved, group)
    counts = (len(devices.split.copies),) * group.size
    return plan_run(resolved, devices, counts, dataset, group, own)


def plan_run(
    resolved: ResolvedConfig,
    devices: DeviceSetup,
    device_counts: Tuple[int, ...],
    dataset: Optional[Dataset] = None,
    group: Group = ALONE,
    own: UserComponents = NOTHING,
) -> Plan:
    """Load the data, check all that depends on them, and fill the plan.

    ``device_counts``: how many shards of a batch each process takes. Otherwise as `make_plan`.
    """
    asked, config = resolved.asked, resolved.config
    ctxs, split, kvstore = devices
    copy_count = sum(device_counts)

    dataset = load_data(resolved, copy_count, dataset)
    images, classes = len(dataset.train), len(dataset.classes)
    if own.loss is not None:
        check_loss(own.loss, classes)
    check_metrics(own.metrics, dataset.test, classes)

    global_batch_size = config.global_batch_size or (config.batch_size or 1) * copy_count
    steps_per_epoch = batch_count(images, global_batch_size, config.drop_last)
    config_checks.check_last_batch(steps_per_epoch, global_batch_size, dataset)
    step_images = min(global_batch_size, images)  # no batch is larger than the data set
    check_shares(asked.device_weights, step_images, ctxs, group.size)
    fewest_images = fewest(step_images, weights_of(asked.device_weights, group.size), copy_count)
    microbatches = Microbatches(config.microbatches, config.microbatch_size)
    if microbatches == WHOLE and split.way == PIPELINE:
        microbatches = Microbatches(min(usual_microbatches(split), max(1, fewest_images)))
    microbatches.check(step_images, copy_count, split.has_copy, fewest_images)
    config_checks.check_profile(asked.profile, steps_per_epoch)

    optimizer = str(config.optimizer).lower()
    kind = optimizer_kind(optimizer)
    lr_factor = learning_rate_factor(resolved, step_images, images)
    lr = float(kind.cls().learning_rate) if config.lr is None else config.lr
    optimizer_params = {"learning_rate": lr * lr_factor, "wd": config.wd or 0.0}
    if config.momentum is not None:
        optimizer_params["momentum"] = config.momentum
    has_momentum_rules = bool(config.momentum) and kind.by_mxnets_rule is not None
    rates = learning_rate_schedule.make_rates(
        config,
        optimizer_params["learning_rate"],
        config.epochs or 1,
        steps_per_epoch,
        lr_factor,
        resolved.recipe.decay_shares,
    )
    learning_rate_schedule.check_final_rate(config, rates, lr_factor)

    return Plan(
        config=asked,
        resolved=resolved,
        own=own,
        group=group,
        # devices, and what lies on each
        ctxs=ctxs,
        device_counts=device_counts,
        device_weights=config.device_weights,
        threads=set_threads(ctxs, config.threads),
        split=split._replace(
            share=math.ceil(step_images / copy_count),
            image_shape=tuple(dataset.image_shape),
            image_dtype=image_dtype(dataset.train),
        ),
        kvstore=kvstore,
        compress=in_use(config.compress, len(ctxs), group),
        on_servers=config_checks.on_servers(config, group),
        bucket_bytes=config.bucket_bytes,
        overlap=config.overlap,
        # split channels always leave some parameters on several devices
        check_replicas=(config.check_replicas if copy_count > 1 or split.way == CHANNELS else None),
        # data
        dataset=dataset,
        global_batch_size=global_batch_size,
        drop_last=config.drop_last,
        microbatches=microbatches,
        class_weights=config.class_weights,
        normalise=config.normalise,
        random_resized_crop=bool(config.random_resized_crop),
        crop_padding=config.crop_padding or 0,
        flip=bool(config.flip),
        mixup=config.mixup or 0.0,
        prefetch=config.prefetch,
        resident_bytes=config.resident_bytes,
        # network and optimization
        model=str(config.model),
        pretrained=config.pretrained,
        sync_bn=config.sync_bn and len(ctxs) > 1,
        optimizer=optimizer,
        optimizer_params=optimizer_params,
        momentum_rule=(config.momentum_rule or CORRECTED) if has_momentum_rules else None,
        rates=rates,
        postprocess=Postprocess(
            config.clip_norm,
            make_loss_scale(config.dtype, step_images // copy_count, config.on_nan),
        ),
        no_bias_decay=bool(config.no_bias_decay),
        label_smoothing=config.label_smoothing or 0.0,
        dtype=config.dtype,
        on_nan=config.on_nan,
        seed=config.seed,
        deterministic=config.deterministic,
        tf32=config.tf32,
        # how long, and what is written
        epochs=config.epochs or 1,
        patience=config.patience,
        checkpoint_every=config.checkpoint_every,
        keep=config.keep,
        memory=config.memory,
        profile=config.profile,
        tensorboard=config.tensorboard,
        confusion=config.confusion,
        export=config.export,
        out=config.out,
    )


def digests(plan: Plan) -> Dict[str, str]:
    """Which images both splits of the plan have."""
    return {split: digest(getattr(plan.dataset, split)) for split in ("train", "test")}
