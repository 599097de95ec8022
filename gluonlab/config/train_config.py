"""The configuration of a run, and the definition of its settings.

Each setting is a field of TrainConfig, which defines its name, type, check, help text and heading.
The command-line options, config.json and the docs are made from these fields.

A field may be None. The value that a run then uses is in `gluonlab.training.plan.Plan`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Dict, Optional, Sequence, Type, TypeVar, Union

from gluonlab.config.option_checks import (
    DECODERS,
    IMAGE_SIZE,
    LARGEST_NUMBER,
    SHARE,
    SMALLEST_LIMIT,
    Check,
    check_class_weights,
    check_color_normalization,
    check_compression_setting,
    check_device_names,
    check_device_weights,
    check_epoch_list,
    check_export_format,
    check_flag,
    check_gpu_count,
    check_layer_list,
    check_machine,
    check_operator_count,
    check_patience,
    check_period,
    check_size_in_bytes,
    check_text,
    check_type_name,
    plain_value,
    real_number_check,
    whole_number_check,
)
from gluonlab.config.option_hints import nearest_name
from gluonlab.config.renamed_settings import RENAMED_SETTINGS, current_settings, warn_of_old_settings
from gluonlab.config.renamed_settings import option_name as option_name
from gluonlab.errors import ConfigError, unknown
from gluonlab.renamed import RenamedMember

T = TypeVar("T")


def _make_field(group: str, check: Check, help: str, *, default: Any = None, metavar: str = "N") -> Any:
    """Return a field of TrainConfig with the metadata of its command-line option.

    ``group``: the option's heading in --help.
    """
    metadata = {"group": group, "check": check, "help": help, "metavar": metavar}
    return dataclasses.field(default=default, metadata=metadata)


GROUPS = ("devices", "splitting", "data", "network", "batch", "optimiser", "summing", "output")
DEVICES, SPLITTING, DATA, NETWORK, BATCH, OPTIMIZER, SUMMING, OUTPUT = (partial(_make_field, group) for group in GROUPS)


# arguments of `gluonlab.train` that are not settings
TRAIN_ARGUMENTS = ("net", "loss", "metrics", "callbacks", "resume", "autoresume", "reporter", "group")


def _check_setting_names(cls: Type[T]) -> Type[T]:
    """Decorate a dataclass so that it raises ConfigError, with a suggestion, for unknown fields."""
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    make = cls.__init__

    @wraps(make)
    def init(self: T, *args: Any, **settings: Any) -> None:
        """Raise ConfigError for an unknown name, else initialize the fields."""
        warn_of_old_settings(settings, stacklevel=2)
        settings = current_settings(settings)
        for name in settings:
            if name not in names:
                raise ConfigError(_unknown_setting_message(name, names))
        make(self, *args, **settings)

    cls.__init__ = init  # type: ignore[method-assign,assignment]
    return cls


def _unknown_setting_message(name: str, names: Sequence[str]) -> str:
    """Return the message, with the setting or argument of `train` that was probably meant."""
    nearest = None if name in TRAIN_ARGUMENTS else nearest_name(name, names)
    if nearest is not None:
        return f"unknown setting {name!r}: did you mean {nearest!r}?"
    argument = nearest_name(name, TRAIN_ARGUMENTS)
    if argument is not None:
        example = f"train(TrainConfig(), {argument}=...)"
        return f"{name!r} is not a setting, give it to train: {example}"
    return unknown("setting", name, names)


MUTUALLY_EXCLUSIVE = (  # pairs of settings of which only one may be given
    ("gpus", "devices", "--gpus {} and --devices {} contradict each other"),
    ("batch_size", "global_batch_size", "--batch-size {} is per device and --global-batch-size {} over all devices"),
    ("microbatches", "microbatch_size", "--microbatches {} is a number of parts and --microbatch-size {} their size"),
)


def _check_exclusive_settings(settings: Dict[str, Any]) -> None:
    """Raise ConfigError for settings that contradict each other, whichever recipe is used."""
    devices = settings["devices"]
    if isinstance(devices, list):
        devices = ",".join(devices)
    values = {**settings, "devices": devices}
    for first, second, contradiction in MUTUALLY_EXCLUSIVE:
        if values[first] is not None and values[second] is not None:
            message = contradiction.format(values[first], values[second])
            raise ConfigError(f"{message}: give one of them")
    if values["require_gpu"] and devices is not None:
        if "cpu" in devices.lower():
            raise ConfigError(
                f"--require-gpu and --devices {devices} contradict each other: name GPUs, or leave --require-gpu out"
            )
        if devices.strip().isdigit():
            raise ConfigError(
                f"--devices {devices} lets CPU devices stand in: with --require-gpu write --gpus {devices}"
            )


@_check_setting_names
@dataclass(frozen=True)
class TrainConfig:
    """The configuration of a training run, in the groups of --help.

    A setting that is None takes the recipe's value when the run starts
    (`gluonlab.training.recipes`). Batch sizes count images: ``batch_size`` per device,
    ``global_batch_size`` over all devices.

    Raises:
        ConfigError: for an unknown setting, a value out of its range, and contradictory settings
    """

    gpus: Optional[int] = DEVICES(check_gpu_count, "use N GPUs; without any, N CPU devices stand in")
    devices: Union[str, Sequence[str], None] = DEVICES(
        check_device_names, "devices by name: gpu:0,2 gpu:* gpu:[0-3] cpu cpu*4", metavar="SPEC"
    )
    require_gpu: Optional[bool] = DEVICES(
        check_flag,
        "fail when there are no GPUs: no CPU devices stand in (default: in SageMaker's jobs on machines with GPUs)",
    )
    threads: Optional[int] = DEVICES(
        whole_number_check(1, 1024), "threads per CPU device (default: all cores for one, 1 each for several)"
    )
    dtype: str = DEVICES(
        check_type_name, "float32, or on GPUs float16: mixed precision with a dynamic loss scale",
        default="float32", metavar="TYPE",
    )  # fmt: skip
    seed: int = DEVICES(
        whole_number_check(0, 2**32 - 1),
        "seed of initialisation, shuffling and all else that is random; "
        "the same seed gives the same bits, on GPUs with --deterministic", default=0,
    )  # fmt: skip
    deterministic: bool = DEVICES(
        check_flag, "on GPUs, use only algorithms that repeat their bits, "
        "as CPU devices always do (with as many --threads)", default=False,
    )  # fmt: skip
    tf32: Optional[bool] = DEVICES(
        check_flag, "GPUs of compute capability 8.0 and newer may round float32 factors to TF32: "
        "faster, but k GPUs then equal one only to 1e-3 (default: no)",
    )  # fmt: skip
    strategy: str = SPLITTING(
        check_text, "what is spread over the devices: the data alone, or each copy of the network, "
        "too: its layers, their channels, or its layers as a pipeline", default="data",
        metavar="data|layers|tensor|pipeline",
    )  # fmt: skip
    pipeline_parallel: Optional[int] = SPLITTING(
        whole_number_check(2),
        "devices that share a copy of the network, a stage on each (default: all); "
        "the others have further copies, which share each batch",
    )
    cut: Optional[str] = SPLITTING(check_layer_list, "layers with which stages begin, but the first", metavar="N,N")
    balance: Optional[str] = SPLITTING(
        check_text, "choose where to cut so that stages are alike in time or memory "
        "(default: layers by memory, pipeline by time)", metavar="time|memory",
    )  # fmt: skip
    pipeline_schedule: Optional[str] = SPLITTING(
        check_text, "1f1b (default), gpipe, interleaved or sequential", metavar="NAME"
    )
    stages_per_device: Optional[int] = SPLITTING(
        whole_number_check(1), "stages on each device of an interleaved pipeline (default: 2)"
    )
    tensor_parallel: Optional[int] = SPLITTING(
        whole_number_check(2), "devices that share the channels of a copy of the network (default: all)"
    )
    tensor_parallel_mode: Optional[str] = SPLITTING(
        check_text, "split layers by output (column), by input (row), or in turns (both, the default)", metavar="NAME"
    )
    dataset: str = DATA(check_text, "the data set (see --list)", default="digits", metavar="NAME")
    data_dir: Optional[str] = DATA(check_text, "folder of its files (default: gluonlab.data's)", metavar="DIR")
    image_size: Optional[int] = DATA(
        IMAGE_SIZE, "width and height of images from files (default: their own, at most 224)", metavar="PIXELS"
    )
    workers: Optional[int] = DATA(DECODERS, "processes that decode (default: one per core)")
    resizer: Optional[str] = DATA(check_text, "resize by cykooz (default if installed) or pillow", metavar="NAME")
    skip_corrupt: bool = DATA(check_flag, "try all files first; leave out those that fail", default=False)
    val_split: Optional[float] = DATA(
        SHARE, "if your own images have no val part, hold out this share of each class", metavar="SHARE"
    )
    random_resized_crop: Optional[bool] = DATA(
        check_flag, "train on random, resized parts of image files, decoded every epoch"
    )
    crop_padding: Optional[int] = DATA(
        whole_number_check(0, 1024), "shift training images at random by up to N pixels; 0: no"
    )
    flip: Optional[bool] = DATA(check_flag, "mirror half of the training images, at random")
    mixup: Optional[float] = DATA(
        real_number_check(0, LARGEST_NUMBER), "mix training images in pairs, "
        "in shares drawn from Beta(ALPHA, ALPHA); 0: no", metavar="ALPHA",
    )  # fmt: skip
    normalize: Optional[str] = DATA(
        check_color_normalization, "normalise colours by imagenet, cifar10, mnist, none, "
        "or means/deviations M,M,M/S,S,S", metavar="NAME",
    )  # fmt: skip
    prefetch: int = DATA(whole_number_check(0), "batches prepared ahead of their step, if not resident", default=2)
    device_cache_bytes: int = DATA(
        check_size_in_bytes, "keep a split on the devices when it fits; 0: stream", default=256 * 2**20, metavar="BYTES"
    )
    model: Optional[str] = NETWORK(
        check_text, "the network (default: see --list), or gluoncv:NAME for one of gluoncv's", metavar="NAME"
    )
    pretrained: Optional[str] = NETWORK(
        check_text, "local file with parameters of this network to begin with", metavar="FILE"
    )
    recipe: Optional[str] = NETWORK(
        check_text, "source of all settings that are not given: quick, published, ... (see --list)", metavar="NAME"
    )
    sync_bn: bool = NETWORK(
        check_flag, "BatchNorm takes mean and variance over the batch on all devices, "
        "instead of over each device's share", default=False,
    )  # fmt: skip
    batch_size: Optional[int] = BATCH(whole_number_check(1), "images per device and step")
    global_batch_size: Optional[int] = BATCH(
        whole_number_check(1), "images per step over all devices, instead of --batch-size"
    )
    device_weights: Optional[str] = BATCH(
        check_device_weights, "share each batch in this proportion, a number for each device of a "
        "process: the same update, and a faster device gets more (default: evenly)",
        metavar="W,W",
    )  # fmt: skip
    microbatches: Optional[int] = BATCH(
        whole_number_check(1),
        "cut each device's share of a batch into N parts that run one after the other: less memory, the same update",
    )
    microbatch_size: Optional[int] = BATCH(
        whole_number_check(1), "parts of at most N images, instead of --microbatches"
    )
    drop_last: bool = BATCH(
        check_flag, "leave the last batch of an epoch out where it would be smaller than the others", default=False
    )
    epochs: Optional[int] = BATCH(whole_number_check(1), "passes over the training images")
    patience: Union[int, str, None] = BATCH(
        check_patience, "end after N epochs in a row without a better test accuracy, or loss; the "
        "best epoch's parameters stay (default: train all epochs)", metavar="N|N:loss",
    )  # fmt: skip
    optimizer: Optional[str] = OPTIMIZER(check_text, "the optimizer (see --list): sgd, nag, adam, ...", metavar="NAME")
    lr: Optional[float] = OPTIMIZER(
        real_number_check(0, LARGEST_NUMBER, above_minimum=True), "learning rate", metavar="RATE"
    )
    scale_lr: bool = OPTIMIZER(
        check_flag, "scale the learning rate with the images of a step, "
        "from the batch that it is made for (the recipe's; for an --lr of your own: --batch-size)",
        default=False,
    )  # fmt: skip
    lr_schedule: Optional[str] = OPTIMIZER(check_text, "constant, step, cosine or linear", metavar="NAME")
    warmup_epochs: Optional[float] = OPTIMIZER(
        real_number_check(0, LARGEST_NUMBER), "grow the rate evenly from near 0 over E epochs", metavar="E"
    )
    lr_decay: Optional[float] = OPTIMIZER(
        real_number_check(0, below=1, above_minimum=True),
        "factor of each step of the schedule step (default: the recipe's, else 0.1)",
        metavar="FACTOR",
    )
    lr_decay_epochs: Optional[str] = OPTIMIZER(
        check_epoch_list, "finished epochs after which it steps "
        "(default: the recipe's, else after 1/2 and 3/4)", metavar="E,E",
    )  # fmt: skip
    final_lr: Optional[float] = OPTIMIZER(
        real_number_check(0, LARGEST_NUMBER), "last rate of cosine and linear (default: 0)", metavar="RATE"
    )
    momentum: Optional[float] = OPTIMIZER(
        real_number_check(0, below=1), "momentum of sgd, nag, signum and lars", metavar="M"
    )
    momentum_rule: Optional[str] = OPTIMIZER(
        check_text, "at a new learning rate: corrected, as in PyTorch, or mxnet, "
        "with the rate in it (sgd, nag)", metavar="NAME",
    )  # fmt: skip
    wd: Optional[float] = OPTIMIZER(real_number_check(0, LARGEST_NUMBER), "weight decay", metavar="WD")
    no_bias_decay: Optional[bool] = OPTIMIZER(check_flag, "no weight decay for biases, gamma and beta")
    clip_norm: Optional[float] = OPTIMIZER(
        real_number_check(SMALLEST_LIMIT, LARGEST_NUMBER),
        "scale a batch's mean gradient down to this norm",
        metavar="NORM",
    )
    on_nan: str = OPTIMIZER(
        check_text, "at gradients that are not finite end the run, or skip the batch",
        default="stop", metavar="stop|skip",
    )  # fmt: skip
    label_smoothing: Optional[float] = OPTIMIZER(
        real_number_check(0, below=1), "spread this share of a label over all classes", metavar="SHARE"
    )
    class_weights: Optional[str] = OPTIMIZER(
        check_class_weights, "weight of each class in the loss, or balanced", metavar="W,W"
    )
    kvstore: str = SUMMING(
        check_text, "how gradients are summed over devices (see --list)", default="device", metavar="NAME"
    )
    topology: Optional[str] = SUMMING(
        check_machine, "place the devices of a scheduled kvstore (ring, tree, ...) "
        "by the links of p3.16xlarge or another machine, or of a file, m.json "
        "(default: by those of the GPUs here, from NVML)", metavar="NAME",
    )  # fmt: skip
    compress: Optional[str] = SUMMING(
        check_compression_setting,
        "send gradients in 2 bits each: -THRESHOLD, 0 or THRESHOLD, from device to "
        "device (kvstore device only); with gluonlab.launch from process to process, their "
        "devices summed, in 2 bits, or in float16 (horovod only)",
        metavar="2bit:THRESHOLD|fp16",
    )
    update_on_servers: bool = SUMMING(
        check_flag,
        "with gluonlab.launch: MXNet's servers update the weights, not the workers; the "
        "optimizer travels to them as a pickle, and there are no checkpoints", default=False,
    )  # fmt: skip
    bucket_bytes: Optional[int] = SUMMING(
        check_size_in_bytes,
        "sum gradients in buckets of at most this size; 0: each parameter by itself "
        "(default: 4 MiB on CPU devices, 25 MiB on GPUs)", metavar="BYTES",
    )  # fmt: skip
    backward_bulk_size: Union[int, str, None] = SUMMING(
        check_operator_count, "operators of a piece of backward, after which sums can begin "
        "(default: 8, on GPUs 15); off: one piece", metavar="N|off",
    )  # fmt: skip
    check_replicas: Optional[int] = SUMMING(
        whole_number_check(1),
        "every N steps, and after the last, check that all devices and processes hold "
        "the same parameters, bit for bit; else it ends (default: never)",
    )
    estimate_memory: bool = OUTPUT(
        check_flag, "first print what a batch needs on each device, and measure what the process takes", default=False
    )
    confusion: bool = OUTPUT(check_flag, "print and draw the confusion matrix of the test images", default=False)
    export: Optional[str] = OUTPUT(
        check_export_format,
        "write export/ for mx.gluon.SymbolBlock.imports, which needs no gluonlab; "
        "onnx: model.onnx, too, which needs no MXNet", metavar="mxnet|onnx",
    )  # fmt: skip
    profile: Optional[int] = OUTPUT(
        whole_number_check(1),
        "record N steps: where their time goes, as a picture, and as a trace for ui.perfetto.dev",
        metavar="N",
    )
    tensorboard: bool = OUTPUT(
        check_flag, "write tensorboard/ for TensorBoard to show, also while it trains", default=False
    )
    checkpoint_every: Optional[str] = OUTPUT(
        check_period,
        "write a checkpoint every N steps, minutes or epochs, from which --resume goes on",
        metavar="PERIOD",
    )
    keep_checkpoints: int = OUTPUT(
        whole_number_check(1), "checkpoints that are kept, besides that of the best accuracy", default=3
    )
    out: Optional[str] = OUTPUT(check_text, "folder of the run (default: a new one below runs/)", metavar="DIR")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = plain_value(getattr(self, field.name))
            if value is not None or field.default is not None:
                object.__setattr__(self, field.name, field.metadata["check"](option_name(field.name), value))
        _check_exclusive_settings(self.to_dict())

    @classmethod
    def require(cls, called: str, given: Any) -> "TrainConfig":
        """Return ``given`` if it is a TrainConfig. Raises ConfigError otherwise.

        ``called``: the name of the function that was called with it, for the message.
        """
        if isinstance(given, cls):
            return given
        kind = "the class itself" if given is cls else f"a {type(given).__name__}"
        how = "TrainConfig(**settings)" if isinstance(given, dict) else "TrainConfig(gpus=2)"
        raise ConfigError(
            f"the config of {called} is {kind}: give settings as {called}({how}, ...), and a data "
            "set or network of your own as dataset=..., net=..."
        )

    required = RenamedMember("require")

    def replace(self, **changes: Any) -> "TrainConfig":
        """Return a copy with some settings changed."""
        warn_of_old_settings(changes, stacklevel=2)
        return dataclasses.replace(self, **current_settings(changes))

    def to_dict(self) -> Dict[str, Any]:
        """Return the settings as the plain values that config.json contains."""
        devices = self.devices
        if devices is not None and not isinstance(devices, str):
            devices = list(devices)
        return {**dataclasses.asdict(self), "devices": devices}


for _old, _new in RENAMED_SETTINGS.items():
    _member = RenamedMember(_new)
    _member.__set_name__(TrainConfig, _old)
    setattr(TrainConfig, _old, _member)
