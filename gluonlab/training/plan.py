"""From a TrainConfig to a plan without gaps: what the user left open takes the recipe's value.

Everything that can be wrong with a run is found here, before anything is computed or written, by
the checks of `gluonlab.training.checks`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Callable, ContextManager, Dict, List, Mapping, Optional, Tuple, Union

import mxnet as mx
from mxnet import gluon

from gluonlab.config import TrainConfig
from gluonlab.config.values import Patience, Period, read_patience, read_period
from gluonlab.data.loading.pixels import make_input
from gluonlab.data.sets.classes import noted
from gluonlab.data.sets.colours import in_text
from gluonlab.data.sets.dataset import Dataset
from gluonlab.engine.pieces import Overlap, overlapping
from gluonlab.engine.threads import set_threads
from gluonlab.gpu.arithmetic import Arithmetic, arithmetic
from gluonlab.kvstores import make_kvstore, placement_of
from gluonlab.kvstores.compression import in_use
from gluonlab.kvstores.groups import ALONE, Group
from gluonlab.kvstores.placement import Placement
from gluonlab.optimizers.momentum import CORRECTED
from gluonlab.optimizers.registry import make_optimizer
from gluonlab.parallel.data.microbatches import Microbatches
from gluonlab.parallel.objective import make_loss
from gluonlab.parallel.precision import Conversion, conversion
from gluonlab.parallel.split import Split
from gluonlab.shares import batch_count
from gluonlab.training.checks import CONFIG, DATA, DEVICES, check
from gluonlab.training.device_weights import batch_in_words, largest_share, weights_of
from gluonlab.training.draft import Draft
from gluonlab.training.own import NOTHING, Own
from gluonlab.training.settle import Settled
from gluonlab.update.bucket import usual_bucket_bytes
from gluonlab.update.loss_scale import LossScale, make_loss_scale
from gluonlab.update.rates import Rates

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
    own: Own
    ctxs: List[mx.Context]
    device_counts: Tuple[int, ...]
    device_weights: Optional[str]
    split: Split
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
    config: TrainConfig, dataset: Optional[Dataset] = None, group: Group = ALONE, own: Own = NOTHING
) -> Plan:
    """Check every name and value of ``config`` against this machine.

    Raises a UsageError for the first that is wrong.
    ``dataset``: the one that the config names, where it has been read already. ``group``: the
    processes that train together, each with as many devices as this one. ``own``: the user's.
    """
    draft = Draft(config, dataset, group, own)
    check(draft, CONFIG, DEVICES, DATA)
    used, ctxs = draft.config, draft.ctxs
    made: Dict[str, Any] = {
        "config": config,
        "own": own,
        "device_counts": (len(draft.split.copies),) * group.size,
        "threads": set_threads(ctxs, used.threads),
        "loss_scale": make_loss_scale(
            used.dtype, draft.step_images // draft.copy_count, used.on_nan
        ),
        "group": group,
        "sync_bn": used.sync_bn and len(ctxs) > 1,
        "split": draft.split_with_shares,
        "compress": in_use(used.compress, len(ctxs), group),
        "check_replicas": used.check_replicas if draft.has_replicas else None,
    }
    for name in [field.name for field in dataclasses.fields(Plan) if field.name not in made]:
        made[name] = getattr(draft if hasattr(Draft, name) else used, name)
    return Plan(**made)
