"""TrainConfig: the one description of a run.

The command's options, config.json and the docs come from it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Dict, Optional, Sequence, Union

from gluonlab.checks import (
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


def option_name(field_name: str) -> str:
    """The option that sets a field: ``batch_size`` -> ``--batch-size``."""
    return "--" + field_name.replace("_", "-")


def setting(default: Any, check: Check, help: str, metavar: str = "N") -> Any:
    """A field of TrainConfig together with what its command line option needs to know."""
    return dataclasses.field(
        default=default, metadata={"check": check, "help": help, "metavar": metavar}
    )


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides how a run goes.

    What is None takes the recipe's value when the run begins.

    Recipes go by data set and network: `gluonlab.training.recipes`.

    Raises ConfigError for a value out of its range and for settings that contradict each other.
    Batch sizes count images; ``batch_size`` is per device, ``global_batch_size`` is over all
    devices.
    """

    gpus: Optional[int] = setting(
        None, whole(1), "use N GPUs; on a machine without any, N CPU devices stand in for them"
    )
    devices: Union[str, Sequence[str], None] = setting(
        None, device_names, "the devices by name: gpu:0,2 gpu:* gpu:[0-3] cpu cpu*4", "SPEC"
    )
    require_gpu: bool = setting(
        False, flag, "fail when there are no GPUs instead of letting CPU devices stand in"
    )
    threads: Optional[int] = setting(
        None,
        whole(1, 1024),
        "threads of a CPU device (default: all cores for one device, 1 each for several)",
    )
    model: Optional[str] = setting(
        None,
        text,
        "the network (default: see --list), or gluoncv:NAME for one of gluoncv's",
        "NAME",
    )
    pretrained: Optional[str] = setting(
        None, text, "begin with the parameters in this local file, of the same network", "FILE"
    )
    dataset: str = setting("digits", text, "the data set (see --list)", "NAME")
    data_dir: Optional[str] = setting(
        None,
        text,
        "the folder of the data set's files (default: where gluonlab.data downloads to)",
        "DIR",
    )
    recipe: Optional[str] = setting(
        None,
        text,
        "what takes the place of settings that are not given: quick, published, ... (see --list)",
        "NAME",
    )
    image_size: Optional[int] = setting(
        None,
        whole(8, 2048),
        "width and height of images from files (default: their own, at most 224)",
        "PIXELS",
    )
    decoders: Optional[int] = setting(
        None, whole(1, 256), "processes that decode image files (default: one for each core)"
    )
    skip_bad: bool = setting(
        False, flag, "try all image files first, and leave out those that cannot be decoded"
    )
    random_resized_crop: Optional[bool] = setting(
        None,
        flag,
        "train on random parts of image files, resized; "
        "they are decoded in every epoch, as --decoders can",
    )
    crop_padding: Optional[int] = setting(
        None,
        whole(0, 1024),
        "shift training images at random by up to N pixels, black beside them; 0: not",
    )
    flip: Optional[bool] = setting(None, flag, "mirror every other training image, at random")
    mixup: Optional[float] = setting(
        None,
        real(0, LARGEST_RATE),
        "mix training images in pairs, in shares drawn from Beta(ALPHA, ALPHA); 0: none",
        "ALPHA",
    )
    normalise: Optional[str] = setting(
        None,
        colours,
        "normalise colours by imagenet, cifar10, mnist, none, or means/deviations M,M,M/S,S,S",
        "NAME",
    )
    batch_size: Optional[int] = setting(None, whole(1), "images per device and step")
    global_batch_size: Optional[int] = setting(
        None, whole(1), "images per step over all devices, instead of --batch-size"
    )
    microbatches: Optional[int] = setting(
        None,
        whole(1),
        "cut each device's share of a batch into N parts, one after the other: "
        "less memory, the same update",
    )
    microbatch_size: Optional[int] = setting(
        None, whole(1), "the same by size: parts of at most N images, instead of --microbatches"
    )
    epochs: Optional[int] = setting(None, whole(1), "passes over the training images")
    lr: Optional[float] = setting(
        None, real(0, LARGEST_RATE, above_minimum=True), "learning rate", "RATE"
    )
    scale_lr: bool = setting(
        False,
        flag,
        "linear scaling: multiply the learning rate by the images of a step over those that it "
        "is made for (the recipe's; for an --lr of your own --batch-size, if given)",
    )
    lr_schedule: Optional[str] = setting(
        None, text, "how the learning rate goes on: constant, step, cosine or linear", "NAME"
    )
    warmup_epochs: Optional[float] = setting(
        None,
        real(0, LARGEST_RATE),
        "let the learning rate grow evenly from nearly 0 in this many epochs, such as 5 or 0.5",
        "E",
    )
    lr_decay: Optional[float] = setting(
        None,
        real(0, below=1, above_minimum=True),
        "what each step of --lr-schedule step multiplies by (default: the recipe's, else 0.1)",
        "FACTOR",
    )
    lr_decay_epochs: Optional[str] = setting(
        None,
        epoch_list,
        "the finished epochs after which it steps (default: "
        "the recipe's, else 1/2 and 3/4 of what follows the warm-up)",
        "E,E",
    )
    final_lr: Optional[float] = setting(
        None,
        real(0, LARGEST_RATE),
        "where --lr-schedule cosine or linear goes to (default: 0)",
        "RATE",
    )
    optimizer: Optional[str] = setting(
        None, text, "the optimizer (see --list): sgd, nag, adam, ...", "NAME"
    )
    momentum: Optional[float] = setting(
        None, real(0, below=1), "momentum of sgd, nag, signum and lars", "M"
    )
    momentum_rule: Optional[str] = setting(
        None,
        text,
        "under a changing rate: corrected, as papers and PyTorch mean it, or mxnet, "
        "with the rate in the momentum of sgd and nag",
        "NAME",
    )
    wd: Optional[float] = setting(None, real(0, LARGEST_RATE), "weight decay", "WD")
    no_bias_decay: Optional[bool] = setting(
        None, flag, "no weight decay for biases, nor for the gamma and beta of normalisations"
    )
    clip_norm: Optional[float] = setting(
        None,
        real(SMALLEST_LIMIT, LARGEST_RATE),
        "scale the mean gradient of a batch down to this norm, where its own is greater",
        "NORM",
    )
    label_smoothing: Optional[float] = setting(
        None,
        real(0, below=1),
        "spread this share of a label over all classes, in training",
        "SHARE",
    )
    sync_bn: bool = setting(
        False,
        flag,
        "BatchNorm takes mean and variance of the batch on all devices, not of each device's share",
    )
    dtype: str = setting(
        "float32",
        text,
        "float32, or on GPUs float16: mixed precision with a dynamic loss scale",
        "TYPE",
    )
    memory: bool = setting(
        False,
        flag,
        "first tell how much memory a batch needs on each device, "
        "and measure what the process takes",
    )
    kvstore: str = setting(
        "device", text, "how gradients are summed over devices (see --list)", "NAME"
    )
    topology: Optional[str] = setting(
        None,
        text,
        "place the devices of a kvstore made of a schedule (ring, tree, ...) "
        "by the links of p3.16xlarge or another machine (default: "
        "GPUs by their own links, as NVML tells them)",
        "NAME",
    )
    compress: Optional[str] = setting(
        None,
        compression,
        "send gradients in 2 bits each, as -THRESHOLD, 0 or THRESHOLD (kvstore device only)",
        "2bit:THRESHOLD",
    )
    bucket_bytes: Optional[int] = setting(
        None,
        size_in_bytes,
        "sum gradients in buckets of at most this many bytes; 0: each parameter by itself "
        "(default: 4 MiB on CPU devices, 25 MiB on GPUs)",
        "BYTES",
    )
    seed: int = setting(
        0,
        whole(0, 2**32 - 1),
        "the seed of initialisation, shuffling and all that is random; "
        "same seed, same bits, on GPUs with --deterministic",
    )
    deterministic: bool = setting(
        False,
        flag,
        "GPUs use algorithms that repeat their bits, and are not tuned by time; "
        "CPU devices always do (with as many --threads)",
    )
    tf32: Optional[bool] = setting(
        None,
        flag,
        "GPUs of compute capability 8.0 and newer may round factors of float32 products to TF32: "
        "faster, but k GPUs equal one to its precision only, 1e-3 (default: not)",
    )
    prefetch: int = setting(
        2, whole(0), "batches made ready ahead, where they are streamed or changed at random"
    )
    resident_bytes: int = setting(
        256 * 2**20,
        size_in_bytes,
        "keep a split on each device when its images fit this many bytes; 0 always streams",
        "BYTES",
    )
    confusion: bool = setting(
        False, flag, "print and draw which classes are taken for which others (confusion.png)"
    )
    export: bool = setting(
        False, flag, "write export/, which mx.gluon.SymbolBlock.imports loads without gluonlab"
    )
    out: Optional[str] = setting(
        None, text, "the folder of the run (default: a new one below runs/)", "DIR"
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None or field.default is not None:
                object.__setattr__(
                    self, field.name, field.metadata["check"](option_name(field.name), value)
                )
        devices = (
            self.devices
            if self.devices is None or isinstance(self.devices, str)
            else ",".join(self.devices)
        )
        if self.gpus is not None and devices is not None:
            raise ConfigError(
                f"--gpus {self.gpus} and --devices {devices} contradict each other: "
                "give one of them"
            )
        if self.batch_size is not None and self.global_batch_size is not None:
            raise ConfigError(
                f"--batch-size {self.batch_size} is per device and --global-batch-size "
                f"{self.global_batch_size} over all devices: give one of them"
            )
        if self.microbatches is not None and self.microbatch_size is not None:
            raise ConfigError(
                f"--microbatches {self.microbatches} is a number of parts and --microbatch-size "
                f"{self.microbatch_size} their size: give one of them"
            )
        if self.require_gpu and devices is not None and "cpu" in devices.lower():
            raise ConfigError(
                f"--require-gpu and --devices {devices} contradict each other: "
                "name GPUs, or leave --require-gpu out"
            )
        if self.require_gpu and devices is not None and devices.strip().isdigit():
            raise ConfigError(
                f"--devices {devices} lets CPU devices stand in: "
                f"with --require-gpu write --gpus {devices}"
            )

    def replace(self, **changes: Any) -> "TrainConfig":
        """A copy with some settings changed."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> Dict[str, Any]:
        """The settings as plain values, as config.json holds them."""
        devices = (
            self.devices
            if self.devices is None or isinstance(self.devices, str)
            else list(self.devices)
        )
        return {**dataclasses.asdict(self), "devices": devices}
