"""From a TrainConfig to a plan without gaps: what the user left open takes the recipe's value.

Everything that can be wrong with a run is found here, before anything is computed or written.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

import mxnet as mx

from gluonlab.config import TrainConfig, option_name
from gluonlab.data.sets import synthetic
from gluonlab.data.sets.colours import colours_for, find_colours, in_text
from gluonlab.data.sets.dataset import Dataset, Defaults
from gluonlab.data.sets.registry import (
    all_of_image_files,
    check_dataset,
    find_kind,
    load_dataset,
    of_image_files,
    takes,
)
from gluonlab.devices import devices, gpu_count, gpus
from gluonlab.engine.threads import set_threads
from gluonlab.errors import ConfigError, DeviceError, KVStoreError
from gluonlab.gpu.arithmetic import Arithmetic, arithmetic, check_arithmetic
from gluonlab.gpu.code import NoCode
from gluonlab.kvstores import check_kvstore, check_topology, make_kvstore
from gluonlab.kvstores.placement import Placement
from gluonlab.kvstores.schedule import ScheduleKVStore
from gluonlab.kvstores.sharded import SHARDED
from gluonlab.models import check_model
from gluonlab.models.pretrained import check_pretrained
from gluonlab.optimizers.momentum import CORRECTED
from gluonlab.optimizers.registry import OPTIMIZERS, is_element_wise, make_optimizer, optimizer_kind
from gluonlab.parallel.data.microbatches import Microbatches
from gluonlab.parallel.precision import Conversion, conversion
from gluonlab.training.array_limit import check_elements
from gluonlab.training.optimize import (
    HALF_AND_THREE_QUARTERS,
    check_effect,
    check_optimization,
    compressing,
    make_rates,
)
from gluonlab.training.precision import check_devices, check_dtype
from gluonlab.training.settle import Settled, settle, without_crops
from gluonlab.update.bucket import usual_bucket_bytes
from gluonlab.update.loss_scale import LossScale, make_loss_scale
from gluonlab.update.rates import Rates

# What changes a run's numbers and is used as it is given, or as the recipe has it.
AS_GIVEN = (
    "no_bias_decay", "label_smoothing", "random_resized_crop", "crop_padding", "flip", "mixup",
    "clip_norm", "microbatches", "microbatch_size", "dtype", "pretrained", "data_dir", "skip_bad",
    "topology",
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """A run in which nothing is open any more. ``lr`` is what the optimizer gets, after --scale-lr.

    ``config``: what was asked; ``settled.config``: that with the recipe's values in its gaps. The
    data set's colours are those by which this run normalises. ``momentum_rule`` is None where there
    is no momentum that a rate could be part of.
    """

    config: TrainConfig
    settled: Settled
    ctxs: List[mx.Context]
    threads: int
    dataset: Dataset
    model: str
    epochs: int
    global_batch_size: int
    optimizer: str
    optimizer_params: Dict[str, float]
    kvstore: Any
    rates: Rates
    loss_scale: Optional[LossScale] = None
    momentum_rule: Optional[str] = None

    @property
    def arithmetic(self) -> Arithmetic:
        """How its GPUs compute, if it has any."""
        return arithmetic(self.config.deterministic, self.config.tf32)

    def make_optimizer(self) -> mx.optimizer.Optimizer:
        """A new one, which follows the schedule of the learning rate."""
        return make_optimizer(
            self.optimizer,
            {**self.optimizer_params, "lr_scheduler": self.rates},
            self.momentum_rule or CORRECTED,
        )

    @property
    def microbatches(self) -> Microbatches:
        """How a device's share of a batch is cut."""
        return Microbatches(self.config.microbatches, self.config.microbatch_size)

    @property
    def sync_bn(self) -> bool:
        """Whether BatchNorm layers are shared by several devices."""
        return self.config.sync_bn and len(self.ctxs) > 1

    @property
    def conversion(self) -> Conversion:
        """What --dtype does to the network's graph."""
        return conversion(self.config.dtype, self.sync_bn)

    @property
    def lr(self) -> float:
        """The learning rate, for the whole batch, before a schedule changes it."""
        return self.optimizer_params["learning_rate"]

    @property
    def largest_share(self) -> int:
        """The most images of a batch that a device gets: no batch is larger than the split that it
        comes from.
        """
        images = max(len(self.dataset.train), len(self.dataset.test))
        return math.ceil(min(self.global_batch_size, images) / len(self.ctxs))

    def batch_in_words(self) -> str:
        """``32 per device, 64 in all``; shards differ by at most one image when the sizes do not
        divide.
        """
        each, rest = divmod(self.global_batch_size, len(self.ctxs))
        per_device = str(each) if not rest else f"{each} or {each + 1}"
        return (
            f"{per_device} per device, {self.global_batch_size} in "
            f"all{self.microbatches.in_words()}"
        )

    def placed_in_words(self) -> str:
        """``, order gpu(0) gpu(3) ..., by the links that NVML tells``; empty where nothing was
        placed.
        """
        placement = self._placement()
        return (
            f", {placement.in_words(self.ctxs)}" if placement is not None and placement.why else ""
        )

    def _placement(self) -> Optional[Placement]:
        scheduled = isinstance(self.kvstore, ScheduleKVStore)
        return self.kvstore.placement(self.ctxs) if scheduled else None

    def settings(self) -> Dict[str, Any]:
        """What the run uses, as plain values for config.json: all that changes its numbers."""
        return {
            "devices": [str(ctx) for ctx in self.ctxs],
            "threads_per_device": self.threads,
            "recipe": self.settled.recipe.name,
            "model": self.model,
            "dataset": self.dataset.name,
            "image_shape": list(self.dataset.image_shape),
            "epochs": self.epochs,
            "global_batch_size": self.global_batch_size,
            "optimizer": self.optimizer,
            **self.optimizer_params,
            **({"momentum_rule": self.momentum_rule} if self.momentum_rule else {}),
            **self.rates.settings(),
            **{name: getattr(self.settled.config, name) for name in AS_GIVEN},
            "normalise": in_text(self.dataset.colours),
            "sync_bn": self.sync_bn,
            "kvstore": self.config.kvstore,
            "bucket_bytes": usual_bucket_bytes(self.ctxs)
            if self.config.bucket_bytes is None
            else self.config.bucket_bytes,
            "compress": self.config.compress if len(self.ctxs) > 1 else None,
            **_recorded(self._placement(), self.ctxs),
            "seed": self.config.seed,
            **(self.arithmetic._asdict() if self.ctxs[0].device_type == "gpu" else {}),
        }


def check_config(
    config: TrainConfig, defaults: Optional[Defaults] = None
) -> Tuple[List[mx.Context], Settled]:
    """Raise a UsageError for what can be found wrong before the data set is read; the devices, and
    the config without gaps.

    ``defaults``: those of a data set that has been read already.
    """
    check_kvstore(config.kvstore)
    _check_topology(config)
    check_dataset(config.dataset)
    settled = settle(config, defaults or find_kind(config.dataset)[0].defaults)
    config = settled.config
    check_optimization(config)
    check_dtype(config)
    if config.model is not None:
        check_model(config.model)
    if config.normalise is not None:
        find_colours(config.normalise)
    ctxs = find_devices(config)
    check_devices(config, ctxs)
    check_arithmetic(arithmetic(config.deterministic, config.tf32), ctxs)
    if config.optimizer is not None:
        check_optimizer(config.optimizer, settled.asked, len(ctxs))
    if config.pretrained is not None:
        check_pretrained(config.pretrained)
    return ctxs, settled


def _check_topology(config: TrainConfig) -> None:
    try:
        check_topology(config.topology, config.kvstore)
    except KVStoreError as error:
        raise KVStoreError(f"--{error}") from None


def _recorded(placement: Optional[Placement], ctxs: List[mx.Context]) -> Dict[str, Any]:
    """What config.json says of where the kvstore's schedule runs."""
    if placement is None or not placement.why:
        return {}
    return {"order": [str(ctxs[device]) for device in placement.order], "placed": placement.why}


def make_plan(config: TrainConfig, dataset: Optional[Dataset] = None) -> Plan:
    """Check every name and value of ``config`` against this machine.

    Raises a UsageError for the first that is wrong.

    ``dataset``: the one that the config names, where it has been read already.
    """
    ctxs, settled = check_config(config, dataset.defaults if dataset is not None else None)
    options = file_options(settled.asked)  # those of a recipe are none for other data sets
    settled = without_crops(settled, dataset)
    config, recipe = settled.config, settled.recipe
    if config.random_resized_crop:
        options["random_resized_crop"] = True
    store = make_kvstore(config.kvstore, ctxs, config.topology)
    kvstore = compressing(store, config, len(ctxs))
    if dataset is None:
        dataset = load_dataset(
            config.dataset, config.data_dir, **options, **_samples(config, len(ctxs))
        )
    if config.normalise is not None:
        colours = colours_for(config.normalise, dataset.image_shape[0], dataset.name)
        dataset = dataclasses.replace(dataset, colours=colours)
    images, devices = len(dataset.train), len(ctxs)
    global_batch_size = config.global_batch_size or (config.batch_size or 1) * devices
    Microbatches(config.microbatches, config.microbatch_size).check(
        min(global_batch_size, images), devices
    )
    optimizer, epochs = (
        (config.optimizer or recipe.optimizer).lower(),
        config.epochs or recipe.epochs,
    )
    scale = _scale(settled, global_batch_size, images)
    optimizer_params = _optimizer_params(config, optimizer, scale)
    momentum = optimizer_params.get("momentum", 0.0)
    check_effect(config, settled.asked, optimizer_params["wd"], momentum)
    has_rules = momentum and optimizer_kind(optimizer).by_mxnets_rule is not None
    shares = recipe.decay_shares or HALF_AND_THREE_QUARTERS
    steps_per_epoch = math.ceil(images / global_batch_size)
    return Plan(
        config=settled.asked,
        settled=settled,
        ctxs=ctxs,
        threads=set_threads(ctxs, config.threads),
        dataset=dataset,
        model=settled.model,
        epochs=epochs,
        global_batch_size=global_batch_size,
        optimizer=optimizer,
        optimizer_params=optimizer_params,
        kvstore=kvstore,
        rates=make_rates(
            config, optimizer_params["learning_rate"], epochs, steps_per_epoch, scale, shares
        ),
        loss_scale=make_loss_scale(config.dtype, min(global_batch_size, images) // devices),
        momentum_rule=(config.momentum_rule or CORRECTED) if has_rules else None,
    )


def _scale(settled: Settled, global_batch_size: int, images: int) -> float:
    """What linear scaling multiplies rates by: the images of a step over those for which the rate
    is made.

    Goyal et al., "Accurate, large minibatch SGD: training ImageNet in 1 hour", 2017, section 2.1.
    No step has more than all images.
    """
    if not settled.scales:
        return 1.0
    made_for = settled.rate_batch if settled.is_recipes_rate else min(settled.rate_batch, images)
    return min(global_batch_size, images) / made_for


def file_options(config: TrainConfig) -> Dict[str, Any]:
    """What a data set of image files is told besides its place.

    Raises ConfigError for a setting that another one would ignore.
    """
    asked = {
        "image_size": config.image_size,
        "decoders": config.decoders,
        "skip_bad": config.skip_bad or None,
    }
    asked["random_resized_crop"] = config.random_resized_crop or None
    options = {name: value for name, value in asked.items() if value is not None}
    if of_image_files(config.dataset):
        return {**options, "memory": config.resident_bytes}
    for name in options:
        choices = ", ".join(all_of_image_files())
        raise ConfigError(
            f"{option_name(name)} is for image files, and {config.dataset} has none: "
            f"leave it out, or choose {choices}"
        )
    return {}


def _samples(config: TrainConfig, device_count: int) -> Dict[str, Any]:
    """A data set that is made up has as many images as a batch.

    Raises ConfigError for more than an array of MXNet holds.
    """
    asked = config.global_batch_size or (config.batch_size or 0) * device_count
    if asked <= synthetic.SAMPLES or not takes(config.dataset, "samples"):
        return {}
    check_elements(asked, asked * math.prod(synthetic.SHAPE))
    return {"samples": asked}


def find_devices(config: TrainConfig) -> List[mx.Context]:
    """The devices that ``config`` asks for. Raises DeviceError."""
    if config.gpus is not None:
        return gpus(config.gpus, emulate=not config.require_gpu, threads=config.threads)
    if config.require_gpu and config.devices is None and not gpu_count():
        return gpus(1, emulate=False)
    try:
        return devices(config.devices, threads=config.threads)
    except NoCode:
        raise
    except DeviceError as error:
        raise DeviceError(f"--devices {error}") from None


def check_optimizer(name: str, config: TrainConfig, device_count: int) -> None:
    """Raise ConfigError for an optimizer that is not offered, and for a momentum or a rule of it
    that it does not have.

    Also KVStoreError for one that the kvstore forbids.
    """
    kind = optimizer_kind(name)
    if config.momentum is not None and not kind.momentum:
        able = ", ".join(other for other, its in OPTIMIZERS.items() if its.momentum)
        raise ConfigError(
            f"--momentum {config.momentum:g}: {name} has no momentum, "
            f"leave it out or use one of {able}"
        )
    if config.momentum_rule is not None and kind.by_mxnets_rule is None:
        able = " or ".join(
            other for other, its in OPTIMIZERS.items() if its.by_mxnets_rule is not None
        )
        raise ConfigError(
            f"--momentum-rule {config.momentum_rule} says nothing to {name}: "
            f"leave it out, or use {able}"
        )
    if config.kvstore == SHARDED and device_count > 1 and not is_element_wise(kind.cls):
        able = ", ".join(other for other, its in OPTIMIZERS.items() if is_element_wise(its.cls))
        raise KVStoreError(
            f"--kvstore {SHARDED} cuts parameters anywhere, which {name} does not allow: "
            f"choose one of {able}, or another kvstore"
        )


def _optimizer_params(config: TrainConfig, optimizer: str, scale: float) -> Dict[str, float]:
    """Learning rate, momentum and weight decay of a settled ``config``; the optimizer's own rate
    where it has none.
    """
    lr = (
        config.lr if config.lr is not None else float(optimizer_kind(optimizer).cls().learning_rate)
    )
    params = {"learning_rate": lr * scale, "wd": config.wd or 0.0}
    if config.momentum is not None:
        params["momentum"] = config.momentum
    return params
