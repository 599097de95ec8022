"""From a TrainConfig to a plan: every setting of a run, checked, with a value.

`settle` fills what the user left open with the recipe's values. A `Draft` makes the parts of a run
(devices, data set, kvstore, learning rates) when the checks of `gluonlab.training.checks` first
need them. `plan_of_draft` then fills the fields of the frozen `Plan` one by one. Everything that
can be wrong with a run is found here, before anything is computed or written.
"""

from __future__ import annotations

import dataclasses
import math
import textwrap
from dataclasses import dataclass
from functools import cached_property
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

from gluonlab.config import TrainConfig
from gluonlab.config.values import Patience, Period, read_class_weights, read_patience, read_period
from gluonlab.data.loading.augment import make_input
from gluonlab.data.loading.shards import batch_count
from gluonlab.data.sets.arrays import weigh_classes
from gluonlab.data.sets.dataset import (
    Dataset,
    Defaults,
    ReadAheadSplit,
    colours_for,
    image_dtype,
    in_text,
)
from gluonlab.data.sets.fingerprint import digest, noted
from gluonlab.data.sets.registry import (
    find_kind,
    is_cut_already,
    load_dataset,
    of_image_files,
    takes,
)
from gluonlab.data.sets.standard import SYNTHETIC_SAMPLES, SYNTHETIC_SHAPE
from gluonlab.devices import devices, gpu_count, gpus, on_paid_gpus
from gluonlab.engine.setup import Overlap, overlapping
from gluonlab.engine.threads import set_threads
from gluonlab.errors import DeviceError
from gluonlab.gpu.arithmetic import Arithmetic, arithmetic
from gluonlab.gpu.cuda import NoCode
from gluonlab.kvstores import make_kvstore, placement_of
from gluonlab.kvstores.compression import compressing, in_use
from gluonlab.kvstores.groups import ALONE, Group
from gluonlab.kvstores.summing import Placement
from gluonlab.optimizers.registry import make_optimizer, optimizer_kind
from gluonlab.optimizers.sgd import CORRECTED
from gluonlab.parallel.data.microbatches import WHOLE, Microbatches
from gluonlab.parallel.objective import make_loss
from gluonlab.parallel.precision import Conversion, conversion
from gluonlab.parallel.strategy import CHANNELS, PIPELINE, Parallelism
from gluonlab.training.checks import CONFIG, DATA, DEVICES, check, check_elements, on_servers
from gluonlab.training.file_options import file_options
from gluonlab.training.learning_rate import make_rates
from gluonlab.training.own import NOTHING, UserComponents
from gluonlab.training.recipes import QUICK, TrainingRecipe, choose, fitting, network
from gluonlab.training.splitting import (
    batch_in_words,
    fewest,
    largest_share,
    make_split,
    usual_microbatches,
    weights_of,
)
from gluonlab.update.buckets import usual_bucket_bytes
from gluonlab.update.loss_scale import LossScale, make_loss_scale
from gluonlab.update.rates import Rates

OPTIONS_WIDTH = 69  # beside their title, in 80 columns
# They differ in where the gradient is taken; rates and momenta are given for one and used for both.
WITH_MOMENTUM = ("sgd", "nag")


class Settled(NamedTuple):
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


def settle(config: TrainConfig, defaults: Defaults) -> Settled:
    """Give the settings of ``config`` that are None the values of its recipe.

    ``defaults``: the data set's. Raises ConfigError for a recipe that does not fit.
    """
    recipe = choose(config, defaults)
    filled = config.replace(
        **{
            name: value
            for name, value in _values(config, recipe, defaults).items()
            if getattr(config, name) is None
        }
    )
    others = {each.name: each for each in fitting(config, defaults) if each.name != recipe.name}
    return Settled(config, filled, recipe, tuple(others.values()), defaults)


def without_crops(settled: Settled, dataset: Optional[Dataset] = None) -> Settled:
    """The same without a recipe's random crops, where images are cropped already.

    Crops that the user asked for are an error elsewhere. ``dataset``: the data set, where it has
    been read already. Raises DataError for a folder that cannot be read.
    """
    config = settled.config
    is_recipes = config.random_resized_crop and settled.asked.random_resized_crop is None
    if not is_recipes:
        return settled
    if dataset is not None:
        can_be_cut = isinstance(dataset.train, ReadAheadSplit)
    else:
        can_be_cut = not is_cut_already(config.dataset, config.data_dir)
    if can_be_cut:
        return settled
    return settled._replace(config=config.replace(random_resized_crop=False))


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


class Draft:
    """The parts of a run of the config ``asked``: each is made when it is first read, and kept.

    ``dataset``: the one that ``asked`` names, where it has been read already. ``group``: the
    processes that share each batch. ``own``: the user's own network, loss and metrics. Every part
    raises a UsageError when it cannot be made.
    """

    def __init__(
        self,
        asked: TrainConfig,
        dataset: Optional[Dataset] = None,
        group: Group = ALONE,
        own: UserComponents = NOTHING,
    ) -> None:
        self.asked, self._read, self.group, self.own = asked, dataset, group, own

    @cached_property
    def settled(self) -> Settled:
        """The recipe, and the settings with the recipe's values where none were given."""
        defaults = (self._read or find_kind(self.asked.dataset)[0]).defaults
        asked = self.asked
        if self.own.net is not None:  # for which no recipe has been published
            asked = asked.replace(recipe=asked.recipe or QUICK)
        settled = without_crops(settle(asked, defaults), self._read)
        return settled._replace(config=self.own.settled(settled.config))

    @property
    def config(self) -> TrainConfig:
        """The config ``asked`` with a value for every setting that has one."""
        return self.settled.config

    @cached_property
    def ctxs(self) -> List[mx.Context]:
        """The devices of this process."""
        return find_devices(self.asked, self.group)

    @cached_property
    def split(self) -> Parallelism:
        """Which devices share a copy of the network."""
        return make_split(self.config, self.ctxs)

    @property
    def copy_count(self) -> int:
        """The copies of the network in all processes, which have equally many: one a device.

        Where the network is split over devices, too, those that share it have one copy.
        """
        return len(self.split.copies) * self.group.size

    @property
    def on_servers(self) -> bool:
        """Whether servers update the weights."""
        return on_servers(self.config, self.group)

    @property
    def has_replicas(self) -> bool:
        """Whether any parameter is on several devices; of split channels some always are."""
        return self.copy_count > 1 or self.split.way == CHANNELS

    @cached_property
    def kvstore(self) -> Any:
        """A new kvstore for the devices that have the same part of the network."""
        ctxs = [copy[0] for copy in self.split.copies]
        store = make_kvstore(self.config.kvstore, ctxs, self.config.topology)
        return compressing(store, self.config.compress, len(ctxs), self.group)

    @cached_property
    def dataset(self) -> Dataset:
        """The data set, with the colours by which the run normalises."""
        config, dataset = self.config, self._read
        if dataset is None:
            options = file_options(self.asked)  # a recipe's are for image files only
            if config.random_resized_crop:
                options["random_resized_crop"] = True
            options.update(self._samples())
            dataset = load_dataset(config.dataset, config.data_dir, **options)
        if config.class_weights is not None:
            dataset = weigh_classes(dataset, read_class_weights(config.class_weights))
        if config.normalise is None:
            return dataset
        colours = colours_for(config.normalise, dataset.image_shape[0], dataset.name)
        return dataclasses.replace(dataset, colours=colours)

    def _samples(self) -> Dict[str, int]:
        """The option that gives a made-up data set as many images as a batch."""
        config = self.config
        images = config.global_batch_size or (config.batch_size or 0) * self.copy_count
        if images <= SYNTHETIC_SAMPLES or not takes(config.dataset, "samples"):
            return {}
        check_elements(images, images * math.prod(SYNTHETIC_SHAPE))
        return {"samples": images}

    @property
    def global_batch_size(self) -> int:
        """The images of a step over all devices."""
        return self.config.global_batch_size or (self.config.batch_size or 1) * self.copy_count

    @property
    def step_images(self) -> int:
        """The images that a step really has: no batch is larger than the data set."""
        return min(self.global_batch_size, len(self.dataset.train))

    @property
    def split_with_shares(self) -> Parallelism:
        """The split with what a copy of the network gets of each batch."""
        share = math.ceil(self.step_images / self.copy_count)
        shape, dtype = tuple(self.dataset.image_shape), image_dtype(self.dataset.train)
        return self.split._replace(share=share, image_shape=shape, image_dtype=dtype)

    @property
    def microbatches(self) -> Microbatches:
        """How a copy's share of a batch is cut; of a pipeline always."""
        asked = Microbatches(self.config.microbatches, self.config.microbatch_size)
        if asked == WHOLE and self.split.way == PIPELINE:
            return Microbatches(min(usual_microbatches(self.split), max(1, self.fewest)))
        return asked

    @property
    def fewest(self) -> int:
        """The fewest images that a copy gets of a whole batch."""
        weights = weights_of(self.asked.device_weights, self.group.size)
        return fewest(self.step_images, weights, self.copy_count)

    @property
    def optimizer(self) -> str:
        """The optimizer's name."""
        return str(self.config.optimizer).lower()

    @property
    def scale(self) -> float:
        """The factor of linear scaling: a step's images over those that the rate is made for.

        Goyal et al., "Accurate, large minibatch SGD: training ImageNet in 1 hour", 2017, section
        2.1.
        """
        settled = self.settled
        if not settled.scales:
            return 1.0
        if settled.is_recipes_rate:
            return self.step_images / settled.rate_batch
        return self.step_images / min(settled.rate_batch, len(self.dataset.train))

    @property
    def optimizer_params(self) -> Dict[str, float]:
        """Learning rate, after --scale-lr, weight decay, and momentum if there is one."""
        config = self.config
        lr = config.lr
        if lr is None:
            lr = float(optimizer_kind(self.optimizer).cls().learning_rate)
        params = {"learning_rate": lr * self.scale, "wd": config.wd or 0.0}
        if config.momentum is not None:
            params["momentum"] = config.momentum
        return params

    @property
    def momentum_rule(self) -> Optional[str]:
        """By which rule a changing rate goes into the momentum; None without such a momentum."""
        has_rules = self.config.momentum and optimizer_kind(self.optimizer).by_mxnets_rule
        return (self.config.momentum_rule or CORRECTED) if has_rules else None

    @property
    def steps_per_epoch(self) -> int:
        """Batches, the last of which may be smaller."""
        images = len(self.dataset.train)
        return batch_count(images, self.global_batch_size, self.config.drop_last)

    @property
    def rates(self) -> Rates:
        """The learning rate of every step."""
        return make_rates(
            self.config,
            self.optimizer_params["learning_rate"],
            self.config.epochs or 1,
            self.steps_per_epoch,
            self.scale,
            self.settled.recipe.decay_shares,
        )


def find_devices(config: TrainConfig, group: Group = ALONE) -> List[mx.Context]:
    """The devices that ``config`` asks for, for this process of ``group``. Raises DeviceError."""
    required = on_paid_gpus() if config.require_gpu is None else config.require_gpu
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
    settled: Settled
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
    loss_scale: Optional[LossScale]
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
    overlap: Optional[Overlap]
    check_replicas: Optional[int]
    clip_norm: Optional[float]
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
    def arithmetic(self) -> Arithmetic:
        """How its GPUs compute, if it has any."""
        return arithmetic(self.deterministic, self.tf32)

    def pieces(self) -> ContextManager[None]:
        """In this block graphs are bound such that sums of gradients begin as early as asked."""
        return overlapping(self.overlap)

    def make_optimizer(self) -> mx.optimizer.Optimizer:
        """A new one, which follows the schedule of the learning rate."""
        return make_optimizer(
            self.optimizer,
            {**self.optimizer_params, "lr_scheduler": self.rates},
            self.momentum_rule or CORRECTED,
        )

    def new_kvstore(self, ctxs: List[mx.Context]) -> Any:
        """Another one of the same kind, for these devices."""
        used = self.settled.config
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
        return None if self.checkpoint_every is None else read_period(self.checkpoint_every)

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
        return None if self.patience is None else read_patience(self.patience)

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

    @property
    def own_settings(self) -> Dict[str, Any]:
        """The names of the user's own network, loss and data."""
        of_files = ":" in self.config.dataset  # named after them
        return self.own.settings(None if of_files else self.dataset)

    def settings(self) -> Dict[str, Any]:
        """What the run uses, as plain values for config.json: all that changes its numbers."""
        used, placed = self.settled.config, self.placement
        return {
            "devices": [str(ctx) for ctx in self.ctxs],
            "threads_per_device": self.threads,
            "processes": self.group.size,
            **self.split.settings(),
            **({"device_counts": list(self.device_counts)} if self.group.size > 1 else {}),
            **({"device_weights": self.device_weights} if self.device_weights else {}),
            "backend": self.group.name,
            "recipe": self.settled.recipe.name,
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
    draft = make_draft(config, dataset, group, own)
    return plan_of_draft(draft, (len(draft.split.copies),) * group.size)


def make_draft(
    config: TrainConfig, dataset: Optional[Dataset], group: Group, own: UserComponents = NOTHING
) -> Draft:
    """Check every name and value of ``config`` against this machine. Raises a UsageError."""
    draft = Draft(config, dataset, group, own)
    check(draft, CONFIG, DEVICES, DATA)
    return draft


def plan_of_draft(draft: Draft, device_counts: Tuple[int, ...]) -> Plan:
    """The plan of a draft that has been checked.

    ``device_counts``: how many shards of a batch each process takes.
    """
    used, group, ctxs = draft.config, draft.group, draft.ctxs
    return Plan(
        config=draft.asked,
        settled=draft.settled,
        own=draft.own,
        group=group,
        # devices, and what lies on each
        ctxs=ctxs,
        device_counts=device_counts,
        device_weights=used.device_weights,
        threads=set_threads(ctxs, used.threads),
        split=draft.split_with_shares,
        kvstore=draft.kvstore,
        compress=in_use(used.compress, len(ctxs), group),
        on_servers=draft.on_servers,
        bucket_bytes=used.bucket_bytes,
        overlap=used.overlap,
        check_replicas=used.check_replicas if draft.has_replicas else None,
        # data
        dataset=draft.dataset,
        global_batch_size=draft.global_batch_size,
        drop_last=used.drop_last,
        microbatches=draft.microbatches,
        class_weights=used.class_weights,
        normalise=used.normalise,
        random_resized_crop=bool(used.random_resized_crop),
        crop_padding=used.crop_padding or 0,
        flip=bool(used.flip),
        mixup=used.mixup or 0.0,
        prefetch=used.prefetch,
        resident_bytes=used.resident_bytes,
        # network and optimization
        model=str(used.model),
        pretrained=used.pretrained,
        sync_bn=used.sync_bn and len(ctxs) > 1,
        optimizer=draft.optimizer,
        optimizer_params=draft.optimizer_params,
        momentum_rule=draft.momentum_rule,
        rates=draft.rates,
        clip_norm=used.clip_norm,
        no_bias_decay=bool(used.no_bias_decay),
        label_smoothing=used.label_smoothing or 0.0,
        dtype=used.dtype,
        loss_scale=make_loss_scale(used.dtype, draft.step_images // draft.copy_count, used.on_nan),
        on_nan=used.on_nan,
        seed=used.seed,
        deterministic=used.deterministic,
        tf32=used.tf32,
        # how long, and what is written
        epochs=used.epochs or 1,
        patience=used.patience,
        checkpoint_every=used.checkpoint_every,
        keep=used.keep,
        memory=used.memory,
        profile=used.profile,
        tensorboard=used.tensorboard,
        confusion=used.confusion,
        export=used.export,
        out=used.out,
    )


def digests(plan: Plan) -> Dict[str, str]:
    """Which images both splits of the plan have."""
    return {split: digest(getattr(plan.dataset, split)) for split in ("train", "test")}
