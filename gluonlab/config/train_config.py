"""The configuration of a run, and the definition of its settings.

Each setting is a field of TrainConfig, which defines its name, type, check, help text and heading.
The command-line options, config.json and the docs are made from these fields.

If a field is None, the run determines the value. `gluonlab.training.plan.Plan` contains the values
that a run uses.
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


GROUPS = (
    "devices", "parallelism", "data", "augmentation", "model", "batch", "optimizer", "learning rate",
    "gradient reduction", "output",
)  # fmt: skip
DEVICES, SPLITTING, DATA, AUGMENTATION, NETWORK, BATCH, OPTIMIZER, SCHEDULE, SUMMING, OUTPUT = (
    partial(_make_field, group) for group in GROUPS
)


# arguments of `gluonlab.train` that are not settings
TRAIN_ARGUMENTS = ("net", "loss", "metrics", "callbacks", "resume", "autoresume", "reporter", "group")


def _check_setting_names(cls: Type[T]) -> Type[T]:
    """Decorate a dataclass so that it raises ConfigError, with a suggestion, for unknown fields."""
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    make = cls.__init__

    @wraps(make)
    def init(self: T, *args: Any, **settings: Any) -> None:
        """Raise ConfigError for an unknown name, otherwise initialize the fields."""
        warn_of_old_settings(settings, stacklevel=2)
        settings = current_settings(settings)
        for name in settings:
            if name not in names:
                raise ConfigError(_unknown_setting_message(name, names))
        make(self, *args, **settings)

    cls.__init__ = init  # type: ignore[method-assign,assignment]
    return cls


def _unknown_setting_message(name: str, names: Sequence[str]) -> str:
    """Return the error message, which suggests the most likely setting or argument of `train`."""
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
    """Raise ConfigError for settings that contradict each other, regardless of the recipe."""
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

    gpus: Optional[int] = DEVICES(
        check_gpu_count, "number of GPUs to use; if the machine has no GPUs, gluonlab uses N CPU devices instead"
    )
    devices: Union[str, Sequence[str], None] = DEVICES(
        check_device_names, "devices to use, such as gpu:0,2 or cpu*4; gpu:* uses all GPUs, and gpu:[0-3] "
        "uses GPUs 0 to 3", metavar="SPEC",
    )  # fmt: skip
    require_gpu: Optional[bool] = DEVICES(
        check_flag,
        "exit with an error if no GPU is found, instead of using CPU devices (default: only in "
        "SageMaker jobs on machines with GPUs)",
    )
    threads: Optional[int] = DEVICES(
        whole_number_check(1, 1024),
        "number of threads per CPU device (default: one per core for a single device, otherwise 1)",
    )
    dtype: str = DEVICES(
        check_type_name,
        "data type for training: float32, or float16 for mixed precision; float16 requires GPUs and uses loss scaling",
        default="float32", metavar="TYPE",
    )  # fmt: skip
    seed: int = DEVICES(
        whole_number_check(0, 2**32 - 1),
        "random seed; runs with the same seed are bit-identical (on GPUs, only with --deterministic)", default=0,
    )  # fmt: skip
    deterministic: bool = DEVICES(
        check_flag, "use only deterministic algorithms on GPUs; on CPU devices, runs with the same --threads are "
        "always deterministic", default=False,
    )  # fmt: skip
    tf32: Optional[bool] = DEVICES(
        check_flag, "allow TF32 on GPUs of compute capability 8.0 and newer; TF32 is faster, but results for "
        "different numbers of GPUs agree only to within 1e-3 (default: no)",
    )  # fmt: skip
    strategy: str = SPLITTING(
        check_text, "parallel strategy: data, tensor or pipeline parallelism, or naive model parallelism (layers)",
        default="data", metavar="data|layers|tensor|pipeline",
    )  # fmt: skip
    pipeline_parallel: Optional[int] = SPLITTING(
        whole_number_check(2),
        "number of devices per pipeline; each group of N devices trains one model replica (default: all)",
    )
    cut: Optional[str] = SPLITTING(
        check_layer_list, "indices of the layers at which stages 2, 3, ... start (default: chosen by --balance)",
        metavar="N,N",
    )  # fmt: skip
    balance: Optional[str] = SPLITTING(
        check_text, "balance the stages by time or by memory (default: memory for --strategy layers, time for "
        "--strategy pipeline)", metavar="time|memory",
    )  # fmt: skip
    pipeline_schedule: Optional[str] = SPLITTING(
        check_text, "pipeline schedule: 1f1b, gpipe, interleaved or sequential (default: 1f1b)", metavar="NAME"
    )
    stages_per_device: Optional[int] = SPLITTING(
        whole_number_check(1),
        "number of stages per device in an interleaved or sequential pipeline (default: 2 for interleaved, else 1)",
    )
    tensor_parallel: Optional[int] = SPLITTING(
        whole_number_check(2),
        "number of devices that share each layer; each group of N devices trains one model replica (default: all)",
    )
    tensor_parallel_mode: Optional[str] = SPLITTING(
        check_text, "shard each layer by its outputs (column) or its inputs (row), or alternate between the two "
        "(default: both)", metavar="column|row|both",
    )  # fmt: skip
    dataset: str = DATA(check_text, "data set (see gluonlab list)", default="digits", metavar="NAME")
    data_dir: Optional[str] = DATA(
        check_text,
        "directory with the files of the data set (default: the download directory of gluonlab data)",
        metavar="DIR",
    )
    image_size: Optional[int] = DATA(
        IMAGE_SIZE, "resize and crop images to this width and height (default: the original size, but at most 224)",
        metavar="PIXELS",
    )  # fmt: skip
    workers: Optional[int] = DATA(DECODERS, "number of processes that decode images (default: one per core)")
    resizer: Optional[str] = DATA(
        check_text, "library for resizing images: cykooz or pillow (default: cykooz if it is installed)", metavar="NAME"
    )
    skip_corrupt: bool = DATA(
        check_flag, "decode all image files before training, and skip corrupt files", default=False
    )
    val_split: Optional[float] = DATA(
        SHARE, "fraction of each class's training images to hold out for validation", metavar="FRACTION"
    )
    random_resized_crop: Optional[bool] = AUGMENTATION(
        check_flag, "train on random crops, resized to the image size; the images are decoded again in every epoch"
    )
    crop_padding: Optional[int] = AUGMENTATION(
        whole_number_check(0, 1024), "shift each training image randomly by up to N pixels; 0 disables the shifts"
    )
    flip: Optional[bool] = AUGMENTATION(check_flag, "flip each training image horizontally with a probability of 1/2")
    mixup: Optional[float] = AUGMENTATION(
        real_number_check(0, LARGEST_NUMBER), "mix pairs of training images with weights drawn from Beta(ALPHA, "
        "ALPHA); 0 disables mixup", metavar="ALPHA",
    )  # fmt: skip
    normalize: Optional[str] = AUGMENTATION(
        check_color_normalization, "normalize colors with the statistics of imagenet, cifar10 or mnist, with your own "
        "means and standard deviations (M,M,M/S,S,S), or not at all (none)", metavar="NAME",
    )  # fmt: skip
    prefetch: int = DATA(whole_number_check(0), "number of batches to load in advance", default=2)
    device_cache_bytes: int = DATA(
        check_size_in_bytes, "largest size of a data set to cache on the devices; 0 disables the cache",
        default=256 * 2**20, metavar="BYTES",
    )  # fmt: skip
    model: Optional[str] = NETWORK(
        check_text, "model (see gluonlab list), or gluoncv:NAME (default: depends on the data set)",
        metavar="NAME",
    )  # fmt: skip
    pretrained: Optional[str] = NETWORK(
        check_text, "load pretrained parameters of the same model from FILE", metavar="FILE"
    )
    recipe: Optional[str] = NETWORK(
        check_text, "use the defaults of a recipe, such as quick or published (see gluonlab list)", metavar="NAME"
    )
    sync_bn: bool = NETWORK(
        check_flag, "compute BatchNorm statistics over the whole batch, across all devices", default=False
    )
    batch_size: Optional[int] = BATCH(
        whole_number_check(1), "number of images per device and step (default: set by the recipe)"
    )
    global_batch_size: Optional[int] = BATCH(
        whole_number_check(1), "number of images per step on all devices together; replaces --batch-size"
    )
    device_weights: Optional[str] = BATCH(
        check_device_weights, "divide each batch among the devices of a process in this ratio, such as 2,1; the "
        "update stays the same (default: evenly)", metavar="W,W",
    )  # fmt: skip
    microbatches: Optional[int] = BATCH(
        whole_number_check(1),
        "split each device's batch into N microbatches, and accumulate their gradients; this reduces memory usage, and "
        "the update stays the same",
    )
    microbatch_size: Optional[int] = BATCH(
        whole_number_check(1), "number of images per microbatch; replaces --microbatches"
    )
    drop_last: bool = BATCH(check_flag, "drop the last batch of each epoch if it is incomplete", default=False)
    epochs: Optional[int] = BATCH(whole_number_check(1), "number of passes over the training images")
    patience: Union[int, str, None] = BATCH(
        check_patience, "stop after N epochs without a better validation accuracy (or loss, with N:loss), and keep the "
        "parameters of the best epoch (default: train all epochs)", metavar="N|N:loss",
    )  # fmt: skip
    optimizer: Optional[str] = OPTIMIZER(
        check_text, "optimizer, such as sgd, nag or adam (see gluonlab list)", metavar="NAME"
    )
    lr: Optional[float] = SCHEDULE(
        real_number_check(0, LARGEST_NUMBER, above_minimum=True), "learning rate", metavar="RATE"
    )
    scale_lr: bool = SCHEDULE(
        check_flag, "scale the learning rate linearly with the global batch size; a recipe's learning rate "
        "applies to the recipe's batch size, and --lr applies to --batch-size images",
        default=False,
    )  # fmt: skip
    lr_schedule: Optional[str] = SCHEDULE(
        check_text, "learning rate schedule: constant, step, cosine or linear", metavar="NAME"
    )
    warmup_epochs: Optional[float] = SCHEDULE(
        real_number_check(0, LARGEST_NUMBER), "number of epochs of linear learning rate warm-up", metavar="E"
    )
    lr_decay: Optional[float] = SCHEDULE(
        real_number_check(0, below=1, above_minimum=True),
        "factor by which the step schedule multiplies the learning rate (default: as in the recipe, or 0.1)",
        metavar="FACTOR",
    )
    lr_decay_epochs: Optional[str] = SCHEDULE(
        check_epoch_list,
        "epochs after which the step schedule reduces the learning rate (default: as in the recipe, or 1/2 and 3/4 "
        "of the run)",
        metavar="E,E",
    )  # fmt: skip
    final_lr: Optional[float] = SCHEDULE(
        real_number_check(0, LARGEST_NUMBER), "final learning rate of the cosine and linear schedules (default: 0)",
        metavar="RATE",
    )  # fmt: skip
    momentum: Optional[float] = OPTIMIZER(
        real_number_check(0, below=1), "momentum of the optimizers sgd, nag, signum and lars", metavar="M"
    )
    momentum_rule: Optional[str] = OPTIMIZER(
        check_text, "momentum rule of sgd and nag: PyTorch's rule (corrected) or MXNet's rule (mxnet)",
        metavar="NAME",
    )  # fmt: skip
    wd: Optional[float] = OPTIMIZER(real_number_check(0, LARGEST_NUMBER), "weight decay", metavar="WD")
    no_bias_decay: Optional[bool] = OPTIMIZER(
        check_flag, "do not apply weight decay to biases, or to gamma and beta of normalization layers"
    )
    clip_norm: Optional[float] = OPTIMIZER(
        real_number_check(SMALLEST_LIMIT, LARGEST_NUMBER), "clip the norm of the gradient to this value", metavar="NORM"
    )
    on_nan: str = OPTIMIZER(
        check_text, "stop the run or skip the batch if a gradient is not finite",
        default="stop", metavar="stop|skip",
    )  # fmt: skip
    label_smoothing: Optional[float] = OPTIMIZER(
        real_number_check(0, below=1), "fraction of each label to distribute over all classes", metavar="FRACTION"
    )
    class_weights: Optional[str] = OPTIMIZER(
        check_class_weights, "weights of the classes in the loss, such as 1,2.5; balanced gives rare classes larger "
        "weights", metavar="W,W",
    )  # fmt: skip
    kvstore: str = SUMMING(
        check_text, "kvstore or allreduce algorithm (see gluonlab list)", default="device", metavar="NAME"
    )
    topology: Optional[str] = SUMMING(
        check_machine, "topology for allreduce algorithms such as --kvstore ring: a machine, such as p3.16xlarge, or "
        "a topology file (default: the detected links between the GPUs)", metavar="NAME",
    )  # fmt: skip
    compress: Optional[str] = SUMMING(
        check_compression_setting,
        "compress gradients to 2 bits per value (2bit) or to float16 (fp16); 2bit requires --kvstore device or several "
        "processes, and fp16 requires Horovod",
        metavar="2bit:THRESHOLD|fp16",
    )
    update_on_servers: bool = SUMMING(
        check_flag,
        "update the weights on MXNet's parameter servers; requires gluonlab launch, disables checkpoints, and sends "
        "the optimizer to the servers as a pickle", default=False,
    )  # fmt: skip
    bucket_bytes: Optional[int] = SUMMING(
        check_size_in_bytes,
        "largest size of a gradient bucket; 0 reduces each gradient separately "
        "(default: 4 MiB on CPU devices, 25 MiB on GPUs)", metavar="BYTES",
    )  # fmt: skip
    backward_bulk_size: Union[int, str, None] = SUMMING(
        check_operator_count, "number of operators per bulk of the backward pass; smaller bulks increase the overlap "
        "with gradient reduction, and off uses a single bulk (default: 8 on CPU devices, 15 on GPUs)", metavar="N|off",
    )  # fmt: skip
    check_replicas: Optional[int] = SUMMING(
        whole_number_check(1),
        "compare the replicas every N steps, and stop the run if they are not bit-identical (default: never)",
    )
    estimate_memory: bool = OUTPUT(
        check_flag, "before training, print two estimates of the memory usage: from MXNet's memory plan, and from a "
        "short measurement", default=False,
    )  # fmt: skip
    confusion: bool = OUTPUT(check_flag, "print and plot the confusion matrix of the validation images", default=False)
    export: Optional[str] = OUTPUT(
        check_export_format, "export the model for MXNet's SymbolBlock (mxnet), or both for SymbolBlock and as ONNX "
        "(onnx)", metavar="mxnet|onnx",
    )  # fmt: skip
    profile: Optional[int] = OUTPUT(
        whole_number_check(1), "profile N steps, and write a plot and a trace for ui.perfetto.dev", metavar="N"
    )
    tensorboard: bool = OUTPUT(check_flag, "write TensorBoard logs to tensorboard/ in the run directory", default=False)
    checkpoint_every: Optional[str] = OUTPUT(
        check_period, "interval between checkpoints, such as 50steps, 10minutes or 1epoch; gluonlab resume uses the "
        "last checkpoint", metavar="PERIOD",
    )  # fmt: skip
    keep_checkpoints: int = OUTPUT(
        whole_number_check(1), "number of recent checkpoints to keep, in addition to the best checkpoint", default=3
    )
    out: Optional[str] = OUTPUT(check_text, "new run directory (default: a new directory in runs/)", metavar="DIR")

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
