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
from gluonlab.config.renamed_settings import RENAMED_SETTINGS, current_settings, opposite_option, warn_of_old_settings
from gluonlab.config.renamed_settings import option_name as option_name
from gluonlab.errors import ARGUMENT_BY_OPTION, ConfigError, unknown
from gluonlab.renamed import RenamedMember

T = TypeVar("T")


def _make_field(group: str, check: Check, help: str, *, default: Any = None, metavar: str = "N") -> Any:
    """Return a field of TrainConfig with the metadata of its command-line option.

    ``group``: the option's heading in --help.
    """
    metadata = {"group": group, "check": check, "help": help, "metavar": metavar}
    return dataclasses.field(default=default, metadata=metadata)


GROUPS = ("devices", "parallelism", "data", "model", "batch", "optimizer", "gradient reduction", "output")
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
        return f"{name!r} is not a setting, but an argument of train: use {example}"
    return unknown("setting", name, names)


MUTUALLY_EXCLUSIVE = (  # pairs of settings of which only one may be given
    ("gpus", "devices", "--gpus {} and --devices {} contradict each other"),
    ("batch_size", "global_batch_size", "--batch-size {} is per device, but --global-batch-size {} is for all devices"),
    ("microbatches", "microbatch_size", "--microbatches {} and --microbatch-size {} contradict each other"),
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
            raise ConfigError(f"{message}: remove one of them")
    if values["require_gpu"] and devices is not None:
        if "cpu" in devices.lower():
            raise ConfigError(
                f"--require-gpu and --devices {devices} contradict each other: use GPUs only, or remove --require-gpu"
            )
        if devices.strip().isdigit():
            raise ConfigError(
                f"--devices {devices} may use CPU devices, but --require-gpu does not allow them: use --gpus {devices}"
            )


@_check_setting_names
@dataclass(frozen=True)
class TrainConfig:
    """The settings of a training run.

    A setting that is None gets its value from the recipe (`gluonlab.training.recipes`) when the run
    starts.

    Raises:
        ConfigError: A setting is unknown, a value is invalid, or two settings contradict each
            other.
    """

    gpus: Optional[int] = DEVICES(check_gpu_count, "number of GPUs; if the machine has no GPUs, number of CPU devices")
    devices: Union[str, Sequence[str], None] = DEVICES(
        check_device_names, "devices by name: gpu:0,2 gpu:* gpu:[0-3] cpu cpu*4", metavar="SPEC"
    )
    require_gpu: Optional[bool] = DEVICES(
        check_flag,
        "exit with an error if no GPU is found, instead of using CPU devices (default: only in "
        "SageMaker jobs on machines with GPUs)",
    )
    threads: Optional[int] = DEVICES(
        whole_number_check(1, 1024), "threads per CPU device (default: all cores for a single device, else 1)"
    )
    dtype: str = DEVICES(
        check_type_name, "float32, or float16 for mixed precision; float16 needs GPUs and scales the loss",
        default="float32", metavar="TYPE",
    )  # fmt: skip
    seed: int = DEVICES(
        whole_number_check(0, 2**32 - 1),
        "random seed; runs with the same seed are bit-identical, on GPUs with --deterministic", default=0,
    )  # fmt: skip
    deterministic: bool = DEVICES(
        check_flag, "use only deterministic algorithms on GPUs; CPU devices are deterministic for the same --threads",
        default=False,
    )  # fmt: skip
    tf32: Optional[bool] = DEVICES(
        check_flag, "allow TF32 on GPUs of compute capability 8.0 and newer; faster, but results agree "
        "between numbers of GPUs only to 1e-3 (default: no)",
    )  # fmt: skip
    strategy: str = SPLITTING(
        check_text, "data parallelism, model parallelism by layers, tensor or pipeline parallelism", default="data",
        metavar="data|layers|tensor|pipeline",
    )  # fmt: skip
    pipeline_parallel: Optional[int] = SPLITTING(
        whole_number_check(2), "devices of each pipeline; further devices hold replicas (default: all)"
    )
    cut: Optional[str] = SPLITTING(check_layer_list, "layer indices at which stages 2, 3, ... start", metavar="N,N")
    balance: Optional[str] = SPLITTING(
        check_text, "balance stages by time or memory (default: layers by memory, pipeline by time)",
        metavar="time|memory",
    )  # fmt: skip
    pipeline_schedule: Optional[str] = SPLITTING(
        check_text, "pipeline schedule: 1f1b, gpipe, interleaved or sequential (default: 1f1b)", metavar="NAME"
    )
    stages_per_device: Optional[int] = SPLITTING(
        whole_number_check(1), "pipeline stages per device of an interleaved schedule (default: 2)"
    )
    tensor_parallel: Optional[int] = SPLITTING(
        whole_number_check(2), "devices that share each layer; further devices hold replicas (default: all)"
    )
    tensor_parallel_mode: Optional[str] = SPLITTING(
        check_text, "shard layers by output (column), by input (row), or alternately (default: both)",
        metavar="column|row|both",
    )  # fmt: skip
    dataset: str = DATA(check_text, "data set (see gluonlab list)", default="digits", metavar="NAME")
    data_dir: Optional[str] = DATA(
        check_text, "directory of the data set's files (default: where gluonlab data saves them)", metavar="DIR"
    )
    image_size: Optional[int] = DATA(
        IMAGE_SIZE, "resize images to this size (default: the files' size, at most 224)", metavar="PIXELS"
    )
    workers: Optional[int] = DATA(DECODERS, "image decoding processes (default: one per core)")
    resizer: Optional[str] = DATA(
        check_text, "library that resizes images: cykooz (default if installed) or pillow", metavar="NAME"
    )
    skip_corrupt: bool = DATA(check_flag, "decode all files first, and skip corrupt ones", default=False)
    val_split: Optional[float] = DATA(
        SHARE, "fraction of each class's training images to hold out for validation", metavar="FRACTION"
    )
    random_resized_crop: Optional[bool] = DATA(
        check_flag, "train on random, resized crops, decoded again in every epoch"
    )
    crop_padding: Optional[int] = DATA(whole_number_check(0, 1024), "random shifts of up to N pixels; 0 disables them")
    flip: Optional[bool] = DATA(check_flag, "flip half of the images horizontally, at random")
    mixup: Optional[float] = DATA(
        real_number_check(0, LARGEST_NUMBER), "mixup, Beta(ALPHA, ALPHA) weights; 0 disables it", metavar="ALPHA",
    )  # fmt: skip
    normalize: Optional[str] = DATA(
        check_color_normalization, "normalize colors by imagenet, cifar10, mnist, none, or means/deviations "
        "M,M,M/S,S,S", metavar="NAME",
    )  # fmt: skip
    prefetch: int = DATA(whole_number_check(0), "batches to load in advance", default=2)
    device_cache_bytes: int = DATA(
        check_size_in_bytes, "cache the data set on the devices if it is at most this large; 0 disables it",
        default=256 * 2**20, metavar="BYTES",
    )  # fmt: skip
    model: Optional[str] = NETWORK(
        check_text, "model (see gluonlab list), or gluoncv:NAME (default: depends on the data set)",
        metavar="NAME",
    )  # fmt: skip
    pretrained: Optional[str] = NETWORK(check_text, "file of pretrained parameters of the same model", metavar="FILE")
    recipe: Optional[str] = NETWORK(
        check_text, "defaults for other settings: quick, published, ... (see gluonlab list)", metavar="NAME"
    )
    sync_bn: bool = NETWORK(check_flag, "compute BatchNorm statistics over the batch on all devices", default=False)
    batch_size: Optional[int] = BATCH(whole_number_check(1), "images per device and step (default: the recipe's)")
    global_batch_size: Optional[int] = BATCH(
        whole_number_check(1), "images per step over all devices, instead of --batch-size"
    )
    device_weights: Optional[str] = BATCH(
        check_device_weights, "divide batches between the devices of a process in this ratio; the update stays the "
        "same (default: evenly)", metavar="W,W",
    )  # fmt: skip
    microbatches: Optional[int] = BATCH(
        whole_number_check(1),
        "split each device's batch into N parts, for gradient accumulation; less memory, same update",
    )
    microbatch_size: Optional[int] = BATCH(whole_number_check(1), "images per microbatch, instead of --microbatches")
    drop_last: bool = BATCH(check_flag, "drop the last batch of an epoch if it is smaller", default=False)
    epochs: Optional[int] = BATCH(whole_number_check(1), "passes over the training images")
    patience: Union[int, str, None] = BATCH(
        check_patience, "stop after N epochs without better validation accuracy (or loss), and keep the best epoch's "
        "parameters (default: train all epochs)", metavar="N|N:loss",
    )  # fmt: skip
    optimizer: Optional[str] = OPTIMIZER(
        check_text, "optimizer (see gluonlab list): sgd, nag, adam, ...", metavar="NAME"
    )
    lr: Optional[float] = OPTIMIZER(
        real_number_check(0, LARGEST_NUMBER, above_minimum=True), "learning rate", metavar="RATE"
    )
    scale_lr: bool = OPTIMIZER(
        check_flag, "scale --lr by the ratio of the global batch size to --batch-size, or a recipe's rate by the "
        "ratio to its batch size",
        default=False,
    )  # fmt: skip
    lr_schedule: Optional[str] = OPTIMIZER(
        check_text, "schedule of --lr: constant, step, cosine or linear", metavar="NAME"
    )
    warmup_epochs: Optional[float] = OPTIMIZER(
        real_number_check(0, LARGEST_NUMBER), "epochs of linear learning-rate warm-up", metavar="E"
    )
    lr_decay: Optional[float] = OPTIMIZER(
        real_number_check(0, below=1, above_minimum=True),
        "factor of the step schedule (default: the recipe's, or 0.1)",
        metavar="FACTOR",
    )
    lr_decay_epochs: Optional[str] = OPTIMIZER(
        check_epoch_list,
        "epochs after which the step schedule lowers --lr (default: the recipe's, or 1/2 and 3/4)",
        metavar="E,E",
    )  # fmt: skip
    final_lr: Optional[float] = OPTIMIZER(
        real_number_check(0, LARGEST_NUMBER), "final rate of cosine and linear (default: 0)", metavar="RATE"
    )
    momentum: Optional[float] = OPTIMIZER(
        real_number_check(0, below=1), "momentum of sgd, nag, signum and lars", metavar="M"
    )
    momentum_rule: Optional[str] = OPTIMIZER(
        check_text, "sgd and nag: corrected (as in PyTorch) or mxnet",
        metavar="NAME",
    )  # fmt: skip
    wd: Optional[float] = OPTIMIZER(real_number_check(0, LARGEST_NUMBER), "weight decay", metavar="WD")
    no_bias_decay: Optional[bool] = OPTIMIZER(check_flag, "no weight decay for biases, gamma and beta")
    clip_norm: Optional[float] = OPTIMIZER(
        real_number_check(SMALLEST_LIMIT, LARGEST_NUMBER), "clip the gradient to this norm", metavar="NORM"
    )
    on_nan: str = OPTIMIZER(
        check_text, "if gradients are not finite, stop the run or skip the batch",
        default="stop", metavar="stop|skip",
    )  # fmt: skip
    label_smoothing: Optional[float] = OPTIMIZER(
        real_number_check(0, below=1), "fraction of each label spread over all classes", metavar="FRACTION"
    )
    class_weights: Optional[str] = OPTIMIZER(
        check_class_weights, "weight of each class in the loss, or balanced", metavar="W,W"
    )
    kvstore: str = SUMMING(
        check_text, "kvstore or allreduce algorithm (see gluonlab list)", default="device", metavar="NAME"
    )
    topology: Optional[str] = SUMMING(
        check_machine, "topology of a scheduled kvstore (ring, tree, ...): a machine, such as p3.16xlarge, or a file "
        "(default: the links of the GPUs here)", metavar="NAME",
    )  # fmt: skip
    compress: Optional[str] = SUMMING(
        check_compression_setting,
        "compress gradients to 2 bits, or to float16 (fp16); 2bit needs --kvstore device or several "
        "processes, and fp16 needs horovod",
        metavar="2bit:THRESHOLD|fp16",
    )
    update_on_servers: bool = SUMMING(
        check_flag,
        "update the weights on MXNet's parameter servers (with gluonlab launch); sends them the optimizer as a "
        "pickle, and disables checkpoints", default=False,
    )  # fmt: skip
    bucket_bytes: Optional[int] = SUMMING(
        check_size_in_bytes,
        "largest gradient bucket to reduce at once; 0 reduces each parameter separately "
        "(default: 4 MiB on CPU devices, 25 MiB on GPUs)", metavar="BYTES",
    )  # fmt: skip
    backward_bulk_size: Union[int, str, None] = SUMMING(
        check_operator_count, "operators per bulk of the backward pass; smaller bulks overlap more with gradient "
        "reduction, and off uses a single bulk (default: 8, on GPUs 15)", metavar="N|off",
    )  # fmt: skip
    check_replicas: Optional[int] = SUMMING(
        whole_number_check(1),
        "check every N steps that all replicas are bit-identical; if not, stop the run (default: never)",
    )
    estimate_memory: bool = OUTPUT(
        check_flag, "before training, print the estimated and the measured memory", default=False
    )
    confusion: bool = OUTPUT(check_flag, "print and plot the confusion matrix of the validation images", default=False)
    export: Optional[str] = OUTPUT(
        check_export_format, "export the model for MXNet's SymbolBlock (mxnet), or also as ONNX (onnx)",
        metavar="mxnet|onnx",
    )  # fmt: skip
    profile: Optional[int] = OUTPUT(
        whole_number_check(1), "profile N steps; writes a plot and a trace for ui.perfetto.dev", metavar="N"
    )
    tensorboard: bool = OUTPUT(check_flag, "log to tensorboard/ in the run directory", default=False)
    checkpoint_every: Optional[str] = OUTPUT(
        check_period, "save a checkpoint every N steps, minutes or epochs, for gluonlab resume", metavar="PERIOD"
    )
    keep_checkpoints: int = OUTPUT(
        whole_number_check(1), "recent checkpoints to keep, in addition to the best one", default=3
    )
    out: Optional[str] = OUTPUT(check_text, "new run directory (default: one below runs/)", metavar="DIR")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = plain_value(getattr(self, field.name))
            if value is not None or field.default is not None:
                object.__setattr__(self, field.name, field.metadata["check"](option_name(field.name), value))
        _check_exclusive_settings(self.to_dict())

    @classmethod
    def require(cls, called: str, given: Any) -> "TrainConfig":
        """Return ``given`` if it is a TrainConfig. Raises ConfigError otherwise.

        ``called``: the name of the function that was called with ``given``, for the message.
        """
        if isinstance(given, cls):
            return given
        kind = "the class itself" if given is cls else f"a {type(given).__name__}"
        how = "TrainConfig(**settings)" if isinstance(given, dict) else "TrainConfig(gpus=2)"
        raise ConfigError(
            f"the config passed to {called} is {kind}: pass settings as {called}({how}, ...), and your own "
            "data set or network as dataset=... and net=..."
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


for _field in dataclasses.fields(TrainConfig):
    _is_flag = _field.metadata["check"] is check_flag
    ARGUMENT_BY_OPTION[option_name(_field.name)] = (_field.name, not _is_flag)
    if _is_flag:
        ARGUMENT_BY_OPTION[opposite_option(option_name(_field.name))] = (_field.name, False)

for _old, _new in RENAMED_SETTINGS.items():
    _member = RenamedMember(_new)
    _member.__set_name__(TrainConfig, _old)
    setattr(TrainConfig, _old, _member)
