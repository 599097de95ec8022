"""A plan in the making: each part of a run is made when a check first needs it."""

from __future__ import annotations

import dataclasses
import math
from functools import cached_property
from typing import Any, Dict, List, Optional

import mxnet as mx

from gluonlab.config import TrainConfig
from gluonlab.config.values import read_class_weights
from gluonlab.data.sets import synthetic
from gluonlab.data.sets.colours import colours_for
from gluonlab.data.sets.dataset import Dataset, image_dtype
from gluonlab.data.sets.registry import (
    find_kind,
    load_dataset,
    takes,
)
from gluonlab.data.sets.weighting import weigh_classes
from gluonlab.devices import devices, gpu_count, gpus, on_paid_gpus
from gluonlab.errors import DeviceError
from gluonlab.gpu.cuda import NoCode
from gluonlab.kvstores import make_kvstore
from gluonlab.kvstores.compression import compressing
from gluonlab.kvstores.groups import ALONE, Group
from gluonlab.optimizers.momentum import CORRECTED
from gluonlab.optimizers.registry import optimizer_kind
from gluonlab.parallel.data.microbatches import WHOLE, Microbatches
from gluonlab.parallel.split import CHANNELS, PIPELINE, Split
from gluonlab.shares import batch_count
from gluonlab.training.array_limit import check_elements
from gluonlab.training.device_weights import fewest, weights_of
from gluonlab.training.file_options import file_options
from gluonlab.training.learning_rate import make_rates
from gluonlab.training.on_servers import on_servers
from gluonlab.training.own import NOTHING, Own
from gluonlab.training.recipes import QUICK
from gluonlab.training.settle import Settled, settle, without_crops
from gluonlab.training.splitting import make_split, usual_microbatches
from gluonlab.update.rates import Rates


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
        own: Own = NOTHING,
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
    def split(self) -> Split:
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
        if images <= synthetic.SAMPLES or not takes(config.dataset, "samples"):
            return {}
        check_elements(images, images * math.prod(synthetic.SHAPE))
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
    def split_with_shares(self) -> Split:
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
