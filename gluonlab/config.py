"""TrainConfig: the one description of a run. The command's options, config.json and the docs come from it."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Callable, Dict, Optional, Sequence, Tuple, Union

from gluonlab.errors import ConfigError

Check = Callable[[str, Any], Any]

LARGEST_RATE = 1e31  # far beyond use, and still a float32 when it is scaled by the number of devices
SMALLEST_LIMIT = 1e-30  # still a float32 when it is multiplied
LARGEST = 2**63 - 1  # nothing that is counted here comes near it


def option_name(field_name: str) -> str:
    """The option that sets a field: ``batch_size`` -> ``--batch-size``."""
    return "--" + field_name.replace("_", "-")


def whole(minimum: int, maximum: int = LARGEST) -> Check:
    """A check for whole numbers from ``minimum`` to ``maximum``; text as it comes from a command line is converted."""
    up, to = f"a whole number from {minimum} up", f"a whole number from {minimum} to {maximum}"

    def check(name: str, value: Any) -> int:
        text = str(value).strip()
        if isinstance(value, bool) or not re.fullmatch(r"[+-]?[0-9]+", text):
            raise ConfigError(f"{_given(name, value)}: give {up if maximum == LARGEST else to}")
        if len(text.lstrip("+-0")) > len(str(LARGEST)):  # Python itself refuses to convert some thousands of digits
            raise ConfigError(f"{_given(name, value)}: give {to}")
        number = int(text)
        if not minimum <= number <= maximum:
            raise ConfigError(f"{_given(name, value)}: give {up if number < minimum and maximum == LARGEST else to}")
        return number

    return check


def real(minimum: float, below: float = math.inf, *, above_minimum: bool = False) -> Check:
    """A check for finite numbers x with minimum <= x < below (minimum < x when ``above_minimum``)."""
    wanted = f"a number above {minimum:g}" if above_minimum else f"a number from {minimum:g}"
    if below < LARGEST_RATE:
        wanted += f" and below {below:g}"
    elif not above_minimum:
        wanted += " up"

    def check(name: str, value: Any) -> float:
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if LARGEST_RATE <= number < math.inf:
            raise ConfigError(f"{_given(name, value)}: give a number below {min(below, LARGEST_RATE):g}")
        if not math.isfinite(number) or number < minimum or number >= below or (above_minimum and number == minimum):
            raise ConfigError(f"{_given(name, value)}: give {wanted}")
        return number

    return check


def size_in_bytes(name: str, value: Any) -> int:
    """A number of bytes: ``268435456``, ``256M``, ``1.5GiB``; the units are powers of 1024."""
    match = re.fullmatch(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([kmgt]?)(?:i?b)?\s*", str(value).lower())
    if not match or isinstance(value, bool):
        raise ConfigError(f"{_given(name, value)}: give a number of bytes such as 0, 64M or 2G")
    return int(Fraction(match[1]) * 1024 ** " kmgt".index(match[2] or " "))


def epoch_list(name: str, value: Any) -> str:
    """Numbers of epochs, each larger than the one before, as text: ``10,20``; a list of them becomes such a text."""
    shown = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    parts = shown.split(",")
    if isinstance(value, bool) or not all(re.fullmatch(r"\s*0*[1-9][0-9]{0,17}\s*", part, re.ASCII) for part in parts):
        raise ConfigError(f"{_given(name, shown)}: give numbers of epochs such as 10 or 10,20")
    epochs = [int(part) for part in parts]
    if any(later <= earlier for earlier, later in zip(epochs, epochs[1:])):
        raise ConfigError(f"{_given(name, shown)}: give each number of epochs once, in order, such as 10,20")
    return ",".join(map(str, epochs))


def compression(name: str, value: Any) -> str:
    """``2bit:THRESHOLD``, or ``2bit``, which is ``2bit:0.5`` as in MXNet."""
    kind, _, threshold = str(value).strip().partition(":")
    if kind != "2bit" or (":" in str(value) and not threshold.strip()):
        raise ConfigError(f"{_given(name, value)}: give 2bit:THRESHOLD, such as 2bit:0.5")
    try:
        number = real(SMALLEST_LIMIT, LARGEST_RATE)("the threshold", threshold or 0.5)
    except ConfigError as error:
        raise ConfigError(f"{_given(name, value)}: {error}") from None
    return f"2bit:{number!r}"


def colours(name: str, value: Any) -> str:
    """A name such as ``imagenet`` or ``none``, or ``M,M,M/S,S,S``: means and positive deviations of the channels.

    Two lists of numbers become such a text.
    """
    if isinstance(value, (list, tuple)):
        lists = [each if isinstance(each, (list, tuple)) else [each] for each in value]
        value = "/".join(",".join(map(str, each)) for each in lists)
    wanted = text(name, value).strip().lower()
    if re.fullmatch("[a-z][a-z0-9-]*", wanted):
        return wanted
    parts = [part.split(",") for part in wanted.split("/")]
    try:
        means, deviations = [[float(number) for number in part] for part in parts]
    except ValueError:
        means, deviations = [], []
    fits = means and len(means) == len(deviations) and all(map(math.isfinite, [*means, *deviations]))
    if not fits or min(deviations) < SMALLEST_LIMIT or max(map(abs, [*means, *deviations])) >= LARGEST_RATE:
        raise ConfigError(f"{_given(name, value)}: give imagenet, none, or means and deviations such as 0.5,0.5,0.5/0.25,0.25,0.25")
    return "/".join(",".join(map(repr, each)) for each in (means, deviations))


def text(name: str, value: Any) -> str:
    """A check for text that is not empty; a path or a whole number becomes text."""
    if isinstance(value, bool) or not isinstance(value, (str, int, os.PathLike)):
        raise ConfigError(f"{_given(name, value)}: give text")
    if not str(value).strip():
        raise ConfigError(f"{name} is empty: give a value or leave it out")
    return str(value)


def device_names(name: str, value: Any) -> Union[str, Tuple[str, ...]]:
    """One text, or several in a list or tuple, as `gluonlab.devices` reads them; a Context becomes its name."""
    if isinstance(value, (list, tuple)):
        if not value:
            raise ConfigError(f"{name} names no device: give a value or leave it out")
        return tuple(_device_name(name, part) for part in value)
    return _device_name(name, value)


def _device_name(name: str, value: Any) -> str:
    if hasattr(value, "device_type") and hasattr(value, "device_id"):
        return f"{value.device_type}:{value.device_id}"
    return text(name, value)


def flag(name: str, value: Any) -> bool:
    """A check for yes or no."""
    if not isinstance(value, bool):
        raise ConfigError(f"{_given(name, value)}: give True or False")
    return value


def _given(name: str, value: Any) -> str:
    shown = str(value)
    return f"{name} {shown if shown.strip() else repr(shown)}"


def setting(default: Any, check: Check, help: str, metavar: str = "N") -> Any:
    """A field of TrainConfig together with what its command line option needs to know."""
    return dataclasses.field(default=default, metadata={"check": check, "help": help, "metavar": metavar})


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides how a run goes. What is None takes the recipe's value when the run begins.

    Recipes go by data set and network: `gluonlab.training.recipes`.

    Raises ConfigError for a value out of its range and for settings that contradict each other.
    Batch sizes count images; ``batch_size`` is per device, ``global_batch_size`` is over all devices.
    """

    gpus: Optional[int] = setting(None, whole(1), "use N GPUs; on a machine without any, N CPU devices stand in for them")
    devices: Union[str, Sequence[str], None] = setting(
        None, device_names, "the devices by name: gpu:0,2 gpu:* gpu:[0-3] cpu cpu*4", "SPEC"
    )
    require_gpu: bool = setting(False, flag, "fail when there are no GPUs instead of letting CPU devices stand in")
    threads: Optional[int] = setting(
        None, whole(1, 1024), "threads of a CPU device (default: all cores for one device, 1 each for several)"
    )
    model: Optional[str] = setting(None, text, "the network (default: see --list), or gluoncv:NAME for one of gluoncv's", "NAME")
    pretrained: Optional[str] = setting(None, text, "begin with the parameters in this local file, of the same network", "FILE")
    dataset: str = setting("digits", text, "the data set (see --list)", "NAME")
    data_dir: Optional[str] = setting(
        None, text, "the folder of the data set's files (default: where gluonlab.data downloads to)", "DIR"
    )
    recipe: Optional[str] = setting(
        None, text, "what takes the place of settings that are not given: quick, published, ... (see --list)", "NAME"
    )
    image_size: Optional[int] = setting(
        None, whole(8, 2048), "width and height of images from files (default: their own, at most 224)", "PIXELS"
    )
    decoders: Optional[int] = setting(None, whole(1, 256), "processes that decode image files (default: one for each core)")
    skip_bad: bool = setting(False, flag, "try all image files first, and leave out those that cannot be decoded")
    random_resized_crop: Optional[bool] = setting(
        None, flag, "train on random parts of image files, resized; they are decoded in every epoch, as --decoders can"
    )
    crop_padding: Optional[int] = setting(
        None, whole(0, 1024), "shift training images at random by up to N pixels, black beside them; 0: not"
    )
    flip: Optional[bool] = setting(None, flag, "mirror every other training image, at random")
    mixup: Optional[float] = setting(
        None, real(0, LARGEST_RATE), "mix training images in pairs, in shares drawn from Beta(ALPHA, ALPHA); 0: none", "ALPHA"
    )
    normalise: Optional[str] = setting(
        None, colours, "normalise colours by imagenet, cifar10, mnist, none, or means/deviations M,M,M/S,S,S", "NAME"
    )
    batch_size: Optional[int] = setting(None, whole(1), "images per device and step")
    global_batch_size: Optional[int] = setting(None, whole(1), "images per step over all devices, instead of --batch-size")
    microbatches: Optional[int] = setting(
        None, whole(1), "cut each device's share of a batch into N parts, one after the other: less memory, the same update"
    )
    microbatch_size: Optional[int] = setting(
        None, whole(1), "the same by size: parts of at most N images, instead of --microbatches"
    )
    epochs: Optional[int] = setting(None, whole(1), "passes over the training images")
    lr: Optional[float] = setting(None, real(0, LARGEST_RATE, above_minimum=True), "learning rate", "RATE")
    scale_lr: bool = setting(
        False,
        flag,
        "linear scaling: multiply the learning rate by the images of a step over those that it is made for (the recipe's; "
        "for an --lr of your own --batch-size, if given)",
    )
    lr_schedule: Optional[str] = setting(None, text, "how the learning rate goes on: constant, step, cosine or linear", "NAME")
    warmup_epochs: Optional[float] = setting(
        None, real(0, LARGEST_RATE), "let the learning rate grow evenly from nearly 0 in this many epochs, such as 5 or 0.5", "E"
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
        "the finished epochs after which it steps (default: the recipe's, else 1/2 and 3/4 of what follows the warm-up)",
        "E,E",
    )
    final_lr: Optional[float] = setting(
        None, real(0, LARGEST_RATE), "where --lr-schedule cosine or linear goes to (default: 0)", "RATE"
    )
    optimizer: Optional[str] = setting(None, text, "the optimizer (see --list): sgd, nag, adam, ...", "NAME")
    momentum: Optional[float] = setting(None, real(0, below=1), "momentum of sgd, nag, signum and lars", "M")
    momentum_rule: Optional[str] = setting(
        None,
        text,
        "under a changing rate: corrected, as papers and PyTorch mean it, or mxnet, with the rate in the momentum of sgd and nag",
        "NAME",
    )
    wd: Optional[float] = setting(None, real(0, LARGEST_RATE), "weight decay", "WD")
    no_bias_decay: Optional[bool] = setting(None, flag, "no weight decay for biases, nor for the gamma and beta of normalisations")
    clip_norm: Optional[float] = setting(
        None,
        real(SMALLEST_LIMIT, LARGEST_RATE),
        "scale the mean gradient of a batch down to this norm, where its own is greater",
        "NORM",
    )
    label_smoothing: Optional[float] = setting(
        None, real(0, below=1), "spread this share of a label over all classes, in training", "SHARE"
    )
    sync_bn: bool = setting(
        False, flag, "BatchNorm takes mean and variance of the batch on all devices, not of each device's share"
    )
    dtype: str = setting("float32", text, "float32, or on GPUs float16: mixed precision with a dynamic loss scale", "TYPE")
    memory: bool = setting(
        False, flag, "first tell how much memory a batch needs on each device, and measure what the process takes"
    )
    kvstore: str = setting("device", text, "how gradients are summed over devices (see --list)", "NAME")
    compress: Optional[str] = setting(
        None, compression, "send gradients in 2 bits each, as -THRESHOLD, 0 or THRESHOLD (kvstore device only)", "2bit:THRESHOLD"
    )
    bucket_bytes: int = setting(
        4 * 2**20, size_in_bytes, "sum gradients in buckets of at most this many bytes; 0: each parameter by itself", "BYTES"
    )
    seed: int = setting(0, whole(0, 2**32 - 1), "the seed of initialisation and shuffling; same seed, same bits")
    prefetch: int = setting(2, whole(0), "batches made ready ahead, where they are streamed or changed at random")
    resident_bytes: int = setting(
        256 * 2**20,
        size_in_bytes,
        "keep a split on each device when its images fit this many bytes; 0 always streams",
        "BYTES",
    )
    confusion: bool = setting(False, flag, "print and draw which classes are taken for which others (confusion.png)")
    export: bool = setting(False, flag, "write export/, which mx.gluon.SymbolBlock.imports loads without gluonlab")
    out: Optional[str] = setting(None, text, "the folder of the run (default: a new one below runs/)", "DIR")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None or field.default is not None:
                object.__setattr__(self, field.name, field.metadata["check"](option_name(field.name), value))
        devices = self.devices if self.devices is None or isinstance(self.devices, str) else ",".join(self.devices)
        if self.gpus is not None and devices is not None:
            raise ConfigError(f"--gpus {self.gpus} and --devices {devices} contradict each other: give one of them")
        if self.batch_size is not None and self.global_batch_size is not None:
            raise ConfigError(
                f"--batch-size {self.batch_size} is per device and --global-batch-size {self.global_batch_size} over all devices: "
                "give one of them"
            )
        if self.microbatches is not None and self.microbatch_size is not None:
            raise ConfigError(
                f"--microbatches {self.microbatches} is a number of parts and --microbatch-size {self.microbatch_size} their size: "
                "give one of them"
            )
        if self.require_gpu and devices is not None and "cpu" in devices.lower():
            raise ConfigError(f"--require-gpu and --devices {devices} contradict each other: name GPUs, or leave --require-gpu out")
        if self.require_gpu and devices is not None and devices.strip().isdigit():
            raise ConfigError(f"--devices {devices} lets CPU devices stand in: with --require-gpu write --gpus {devices}")

    def replace(self, **changes: Any) -> "TrainConfig":
        """A copy with some settings changed."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> Dict[str, Any]:
        """The settings as plain values, as config.json holds them."""
        devices = self.devices if self.devices is None or isinstance(self.devices, str) else list(self.devices)
        return {**dataclasses.asdict(self), "devices": devices}
