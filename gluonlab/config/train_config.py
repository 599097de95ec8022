"""TrainConfig: the one description of a run.

The command's options, config.json and the docs come from it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Dict, Optional, Sequence, Union

from gluonlab.config.values import (
    LARGEST_RATE,
    SMALLEST_LIMIT,
    Check,
    colours,
    compression,
    device_names,
    epoch_list,
    flag,
    real,
    size_in_bytes,
    text,
    whole,
)
from gluonlab.errors import ConfigError

GROUPS = ("devices", "data", "network", "batch", "optimiser", "summing", "output")
DEVICES, DATA, NETWORK, BATCH, OPTIMISER, SUMMING, OUTPUT = GROUPS


def option_name(field_name: str) -> str:
    """The option that sets a field: ``batch_size`` -> ``--batch-size``."""
    return "--" + field_name.replace("_", "-")


def setting(group: str, default: Any, check: Check, help: str, metavar: str = "N") -> Any:
    """A field of TrainConfig together with what its command line option needs to know."""
    return dataclasses.field(
        default=default,
        metadata={"group": group, "check": check, "help": help, "metavar": metavar},
    )


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides how a run goes, in the groups that --help shows.

    A setting that is None takes the recipe's value when the run begins
    (`gluonlab.training.recipes`). Raises ConfigError for a value out of its range and for settings
    that contradict each other. Batch sizes count images; ``batch_size`` is per device,
    ``global_batch_size`` is over all devices.
    """

    gpus: Optional[int] = setting(
        DEVICES, None, whole(1), "use N GPUs; without any, N CPU devices stand in"
    )
    devices: Union[str, Sequence[str], None] = setting(
        DEVICES, None, device_names, "devices by name: gpu:0,2 gpu:* gpu:[0-3] cpu cpu*4", "SPEC"
    )
    require_gpu: bool = setting(
        DEVICES, False, flag, "fail when there are no GPUs: no CPU devices stand in"
    )
    threads: Optional[int] = setting(
        DEVICES,
        None,
        whole(1, 1024),
        "threads per CPU device (default: all cores for one device, 1 each for several)",
    )
    dtype: str = setting(
        DEVICES,
        "float32",
        text,
        "float32, or on GPUs float16: mixed precision with a dynamic loss scale",
        "TYPE",
    )
    seed: int = setting(
        DEVICES,
        0,
        whole(0, 2**32 - 1),
        "seed of initialisation, shuffling and all else that is random; the same seed gives the "
        "same bits, on GPUs with --deterministic",
    )
    deterministic: bool = setting(
        DEVICES,
        False,
        flag,
        "on GPUs, use only algorithms that repeat their bits, as CPU devices always do (with as "
        "many --threads)",
    )
    tf32: Optional[bool] = setting(
        DEVICES,
        None,
        flag,
        "GPUs of compute capability 8.0 and newer may round float32 factors to TF32: faster, but "
        "k GPUs then equal one only to 1e-3 (default: no)",
    )
    dataset: str = setting(DATA, "digits", text, "the data set (see --list)", "NAME")
    data_dir: Optional[str] = setting(
        DATA, None, text, "folder of its files (default: gluonlab.data's)", "DIR"
    )
    image_size: Optional[int] = setting(
        DATA,
        None,
        whole(8, 2048),
        "width and height of images from files (default: their own, at most 224)",
        "PIXELS",
    )
    decoders: Optional[int] = setting(
        DATA, None, whole(1, 256), "processes that decode files (default: one per core)"
    )
    skip_bad: bool = setting(
        DATA, False, flag, "try all files first; leave out those that fail to decode"
    )
    random_resized_crop: Optional[bool] = setting(
        DATA, None, flag, "train on random, resized parts of image files, decoded every epoch"
    )
    crop_padding: Optional[int] = setting(
        DATA, None, whole(0, 1024), "shift training images at random by up to N pixels; 0: no"
    )
    flip: Optional[bool] = setting(
        DATA, None, flag, "mirror half of the training images, at random"
    )
    mixup: Optional[float] = setting(
        DATA,
        None,
        real(0, LARGEST_RATE),
        "mix training images in pairs, in shares drawn from Beta(ALPHA, ALPHA); 0: no",
        "ALPHA",
    )
    normalise: Optional[str] = setting(
        DATA,
        None,
        colours,
        "normalise colours by imagenet, cifar10, mnist, none, or means/deviations M,M,M/S,S,S",
        "NAME",
    )
    prefetch: int = setting(
        DATA, 2, whole(0), "batches prepared ahead of their step, if not resident"
    )
    resident_bytes: int = setting(
        DATA,
        256 * 2**20,
        size_in_bytes,
        "keep a split on the devices when it fits; 0: stream",
        "BYTES",
    )
    model: Optional[str] = setting(
        NETWORK,
        None,
        text,
        "the network (default: see --list), or gluoncv:NAME for one of gluoncv's",
        "NAME",
    )
    pretrained: Optional[str] = setting(
        NETWORK, None, text, "local file with parameters of this network to begin with", "FILE"
    )
    recipe: Optional[str] = setting(
        NETWORK,
        None,
        text,
        "source of all settings that are not given: quick, published, ... (see --list)",
        "NAME",
    )
    sync_bn: bool = setting(
        NETWORK,
        False,
        flag,
        "BatchNorm takes mean and variance over the batch on all devices, instead of over each "
        "device's share",
    )
    batch_size: Optional[int] = setting(BATCH, None, whole(1), "images per device and step")
    global_batch_size: Optional[int] = setting(
        BATCH, None, whole(1), "images per step over all devices, instead of --batch-size"
    )
    microbatches: Optional[int] = setting(
        BATCH,
        None,
        whole(1),
        "cut each device's share of a batch into N parts that run one after the other: less "
        "memory, the same update",
    )
    microbatch_size: Optional[int] = setting(
        BATCH, None, whole(1), "parts of at most N images, instead of --microbatches"
    )
    epochs: Optional[int] = setting(BATCH, None, whole(1), "passes over the training images")
    optimizer: Optional[str] = setting(
        OPTIMISER, None, text, "the optimizer (see --list): sgd, nag, adam, ...", "NAME"
    )
    lr: Optional[float] = setting(
        OPTIMISER, None, real(0, LARGEST_RATE, above_minimum=True), "learning rate", "RATE"
    )
    scale_lr: bool = setting(
        OPTIMISER,
        False,
        flag,
        "scale the learning rate with the images of a step, from the batch that it is made for "
        "(the recipe's; for an --lr of your own: --batch-size)",
    )
    lr_schedule: Optional[str] = setting(
        OPTIMISER, None, text, "constant, step, cosine or linear", "NAME"
    )
    warmup_epochs: Optional[float] = setting(
        OPTIMISER,
        None,
        real(0, LARGEST_RATE),
        "grow the rate evenly from near 0 over E epochs",
        "E",
    )
    lr_decay: Optional[float] = setting(
        OPTIMISER,
        None,
        real(0, below=1, above_minimum=True),
        "factor of each step of the schedule step (default: the recipe's, else 0.1)",
        "FACTOR",
    )
    lr_decay_epochs: Optional[str] = setting(
        OPTIMISER,
        None,
        epoch_list,
        "finished epochs after which it steps (default: the recipe's, else 1/2 and 3/4 of those "
        "after the warm-up)",
        "E,E",
    )
    final_lr: Optional[float] = setting(
        OPTIMISER,
        None,
        real(0, LARGEST_RATE),
        "last rate of cosine and linear (default: 0)",
        "RATE",
    )
    momentum: Optional[float] = setting(
        OPTIMISER, None, real(0, below=1), "momentum of sgd, nag, signum and lars", "M"
    )
    momentum_rule: Optional[str] = setting(
        OPTIMISER,
        None,
        text,
        "when the rate changes: corrected, as in papers and PyTorch, or mxnet, which keeps the "
        "rate in the momentum (sgd, nag)",
        "NAME",
    )
    wd: Optional[float] = setting(OPTIMISER, None, real(0, LARGEST_RATE), "weight decay", "WD")
    no_bias_decay: Optional[bool] = setting(
        OPTIMISER, None, flag, "no weight decay for biases, gamma and beta"
    )
    clip_norm: Optional[float] = setting(
        OPTIMISER,
        None,
        real(SMALLEST_LIMIT, LARGEST_RATE),
        "scale a batch's mean gradient down to this norm",
        "NORM",
    )
    label_smoothing: Optional[float] = setting(
        OPTIMISER,
        None,
        real(0, below=1),
        "spread this share of a label over all classes",
        "SHARE",
    )
    kvstore: str = setting(
        SUMMING, "device", text, "how gradients are summed over devices (see --list)", "NAME"
    )
    topology: Optional[str] = setting(
        SUMMING,
        None,
        text,
        "place the devices of a scheduled kvstore (ring, tree, ...) by the links of p3.16xlarge "
        "or another machine (default: by those of the GPUs here, from NVML)",
        "NAME",
    )
    compress: Optional[str] = setting(
        SUMMING,
        None,
        compression,
        "send gradients in 2 bits each: -THRESHOLD, 0 or THRESHOLD (kvstore device only)",
        "2bit:THRESHOLD",
    )
    bucket_bytes: Optional[int] = setting(
        SUMMING,
        None,
        size_in_bytes,
        "sum gradients in buckets of at most this size; 0: each parameter by itself (default: "
        "4 MiB on CPU devices, 25 MiB on GPUs)",
        "BYTES",
    )
    memory: bool = setting(
        OUTPUT,
        False,
        flag,
        "first print what a batch needs on each device, and measure what the process takes",
    )
    confusion: bool = setting(
        OUTPUT, False, flag, "print and draw which classes are taken for which others"
    )
    export: bool = setting(
        OUTPUT,
        False,
        flag,
        "write export/ for mx.gluon.SymbolBlock.imports, which needs no gluonlab",
    )
    out: Optional[str] = setting(
        OUTPUT, None, text, "folder of the run (default: a new one below runs/)", "DIR"
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None or field.default is not None:
                object.__setattr__(
                    self, field.name, field.metadata["check"](option_name(field.name), value)
                )
        _check_together(self)

    def replace(self, **changes: Any) -> "TrainConfig":
        """A copy with some settings changed."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> Dict[str, Any]:
        """The settings as plain values, as config.json holds them."""
        devices = self.devices
        if devices is not None and not isinstance(devices, str):
            devices = list(devices)
        return {**dataclasses.asdict(self), "devices": devices}


def _check_together(config: TrainConfig) -> None:
    """Raise ConfigError for settings that contradict each other whatever the recipe."""
    devices = config.devices
    if devices is not None and not isinstance(devices, str):
        devices = ",".join(devices)
    for first, second, message in (
        (config.gpus, devices, "--gpus {} and --devices {} contradict each other"),
        (
            config.batch_size,
            config.global_batch_size,
            "--batch-size {} is per device and --global-batch-size {} over all devices",
        ),
        (
            config.microbatches,
            config.microbatch_size,
            "--microbatches {} is a number of parts and --microbatch-size {} their size",
        ),
    ):
        if first is not None and second is not None:
            raise ConfigError(f"{message.format(first, second)}: give one of them")
    if not config.require_gpu or devices is None:
        return
    if "cpu" in devices.lower():
        raise ConfigError(
            f"--require-gpu and --devices {devices} contradict each other: "
            "name GPUs, or leave --require-gpu out"
        )
    if devices.strip().isdigit():
        raise ConfigError(
            f"--devices {devices} lets CPU devices stand in: "
            f"with --require-gpu write --gpus {devices}"
        )
