"""Prepares a run before its first step: data set, plan, network and strategy.

`prepare` creates the network and the strategy. A run prints the lines of `run_header` first, and
warnings before and after the training. `check_same_options` checks that all processes have the same
options.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon

from gluonlab.config import TrainConfig, option_name
from gluonlab.data.loading.augmentation import Augment, Mixup
from gluonlab.data.loading.batch_loader import Loader, fits_on_devices
from gluonlab.data.sets.dataset import ArraySplit, Dataset, Defaults, Split
from gluonlab.data.sets.from_gluon_datasets import GluonSplit, resolve_dataset
from gluonlab.data.sets.image_file_dataset import FileSplit
from gluonlab.data.sets.standard_datasets import SYNTHETIC
from gluonlab.devices import describe
from gluonlab.engine.nd_and_np_arrays import nd_semantics
from gluonlab.errors import ConfigError
from gluonlab.host.signals import exit_if_stuck
from gluonlab.kvstores.process_groups import ProcessGroup
from gluonlab.optimizers.sgd_and_nag import MXNET
from gluonlab.parallel import strategy_class
from gluonlab.parallel.data.replica import loss_graph
from gluonlab.parallel.data.sync_bn import check_native_sync_bn
from gluonlab.parallel.strategy import TENSOR, MakeStrategy, Strategy
from gluonlab.runs.run_result import Result
from gluonlab.runs.run_writer import RunDirectory
from gluonlab.training.build_network import make_net
from gluonlab.training.config_checks import check_batch_size, check_exportable
from gluonlab.training.image_loader_options import choose_resizer
from gluonlab.training.parallel_options import resolve_device_weights
from gluonlab.training.plan import DeviceSetup, Plan, ResolvedConfig, plan_run, resolve_config, set_up_devices
from gluonlab.training.stop_consensus import run_on_all_ranks
from gluonlab.training.user_components import NO_USER_COMPONENTS, UserComponents

if TYPE_CHECKING:
    from numpy.typing import NDArray


def placeholder_dataset(dataset: Any) -> Optional[Dataset]:
    """Replace a pair of Gluon data sets by one black image; return other data sets unchanged.

    Settings can then be checked before the Gluon data sets are read.
    """
    if dataset is None or isinstance(dataset, Dataset):
        return dataset
    split = ArraySplit(np.zeros((1, 1, 1, 1), np.uint8), np.zeros(1, np.int32))
    return Dataset("", split, split, ("",), Defaults())


def read_dataset_on_all_ranks(
    dataset: Any, config: TrainConfig, components: UserComponents, group: ProcessGroup
) -> Optional[Dataset]:
    """Read the data set that was given to `train`, in every process.

    The settings that do not depend on the data are checked first. Raises a UsageError for a wrong
    setting, DataError for invalid data, and RunError if another process fails.
    """

    def check_and_read() -> Optional[Dataset]:
        """Check the settings with a placeholder, then read the Gluon data sets, which is slow."""
        placeholder = placeholder_dataset(dataset)
        if placeholder is not dataset:
            resolve_config(config, placeholder, group, components)
        return resolve_dataset(dataset)

    return run_on_all_ranks(group, check_and_read)


def make_plan_on_all_ranks(
    config: TrainConfig,
    dataset: Optional[Dataset],
    group: ProcessGroup,
    is_existing_run: bool = False,
    components: UserComponents = NO_USER_COMPONENTS,
    devices_per_copy: int = 1,
) -> Plan:
    """Return the plan of this process. All processes call this function, and fail together.

    Args:
        config: The settings.
        dataset: The data set, from `read_dataset_on_all_ranks`.
        group: The processes that train together.
        is_existing_run: Whether the run's folder already contains this run.
        components: The user's network, loss and metrics.
        devices_per_copy: For a custom strategy, the devices that share a copy of the network.

    Raises:
        UsageError: A setting is wrong, as in `make_plan`.
        OutputError: Rank 0 cannot write the folder.
        RunError: Another process has failed.
        ConfigError: The processes have different options, or different numbers of devices although
            the batch size is per device.
    """

    def resolve() -> Tuple[ResolvedConfig, DeviceSetup]:
        """Check settings and devices. At rank 0, also check that the run's folder is writable."""
        if group.rank == 0 and not is_existing_run:
            RunDirectory.check(config.out)
        resolved = resolve_config(config, dataset, group, components)
        return resolved, set_up_devices(resolved, group, devices_per_copy)

    check_same_options(config, group)
    resolved, devices = run_on_all_ranks(group, resolve)
    sizes = _gather_counts(group, devices.parallelism.size)
    if len(set(sizes)) > 1:
        option = option_name("tensor_parallel" if config.strategy == TENSOR else "pipeline_parallel")
        raise ConfigError(
            f"--strategy {config.strategy}: the processes split the model over different numbers of devices, "
            f"{', '.join(map(str, sizes))}: use {option}, or the same number of devices in each process"
        )
    counts = _gather_counts(group, len(devices.parallelism.copies))
    if config.global_batch_size is None and len(set(counts)) > 1:
        raise ConfigError(
            f"the processes have different numbers of devices, {', '.join(map(str, counts))}: "
            "use --global-batch-size, or the same number of devices in each process"
        )
    return run_on_all_ranks(group, lambda: plan_run(resolved, devices, counts, dataset, group, components))


def _gather_counts(group: ProcessGroup, count: int) -> Tuple[int, ...]:
    """Return the counts of all processes."""
    return tuple(group.all_gather(np.array(count)).astype(int).tolist())


class TrainingSetup(NamedTuple):
    """The strategy of a run, and the ``header``: the lines that the run prints first."""

    strategy: Strategy
    header: List[str]


@nd_semantics()
@exit_if_stuck()  # creating a strategy may run and time the network
def prepare(plan: Plan, make_strategy: Optional[MakeStrategy] = None) -> TrainingSetup:
    """Create the network and the strategy. Raises a UsageError if they do not support the plan."""
    header: List[str] = []

    def make_initialized_net(ctxs: List[mx.Context], start: Optional[List[mx.Context]] = None) -> gluon.HybridBlock:
        """Create the network, and load pretrained parameters if requested.

        ``start``: see `make_net`.
        """
        net = make_net(plan, ctxs, start)
        if plan.user_components.net is not None or plan.user_components.loss is not None:
            graph = loss_graph(net, plan.make_loss(), plan.preprocess)
            check_native_sync_bn(graph, plan.model, len(plan.parallelism.copies))
        if plan.pretrained is not None:
            from gluonlab.models.load_parameter_file import load_pretrained

            loaded = load_pretrained(net, plan.pretrained, len(plan.dataset.classes))
            header.append(f"pretrained {loaded}")
        return net

    # the strategy calls make_initialized_net for the devices that it chooses
    make_strategy = make_strategy or strategy_class(plan.parallelism.mode)
    strategy = make_strategy(make_initialized_net, plan.make_loss(), plan, plan.group)
    if len(strategy.inputs) != len(plan.parallelism.copies):
        raise ConfigError(
            f"the strategy expects {len(strategy.inputs)} shards of each batch, but the plan divides batches into "
            f"{len(plan.parallelism.copies)} shards: set the strategy's attribute devices_per_copy"
        )
    if plan.group.rank > 0:  # parameters are equal in all processes, but Dropout masks differ
        mx.random.seed(plan.seed + plan.group.rank)
    check_batch_size(plan, strategy.net, len(strategy.inputs))
    check_exportable(plan, strategy.net)
    header += run_header(plan, strategy)
    if plan.estimate_memory:
        from gluonlab.training.run_memory import memory_report

        header += memory_report(plan, strategy.net, strategy.estimate_memory)
    return TrainingSetup(strategy, header)


def measure_memory_line(plan: Plan, make_strategy: Optional[MakeStrategy]) -> Optional[str]:
    """Measure the memory of the run in a child process, and return the line of --estimate-memory.

    Return None without --estimate-memory. Raises ConfigError for a custom strategy, and RunError if
    there is not enough memory.
    """
    if not plan.estimate_memory:
        return None
    if make_strategy is not None:
        raise ConfigError(
            "--estimate-memory supports only built-in strategies, not your own strategy: remove --estimate-memory"
        )
    from gluonlab.training.run_memory import measure_and_format_memory

    return measure_and_format_memory(plan.config, plan.dataset, plan.ctxs)


def train_loader(plan: Plan, ctxs: List[mx.Context]) -> Loader:
    """Return the loader of the plan's training batches, shuffled and augmented."""
    augment = Augment(plan.crop_padding, plan.flip) if plan.crop_padding or plan.flip else None
    return Loader(
        plan.dataset.train,
        ctxs,
        plan.global_batch_size,
        plan.seed,
        plan.group.rank,
        plan.group.size,
        raw=True,  # the compiled graph converts bytes to floats: `Plan.preprocess`
        prefetch=plan.prefetch,
        resident_bytes=plan.device_cache_bytes,
        random_crops=plan.random_resized_crop,
        augment=augment,
        mixup=Mixup(plan.mixup) if plan.mixup else None,
        device_counts=plan.device_counts,
        weights=resolve_device_weights(plan.device_weights),
        drop_last=plan.drop_last,
    )


def run_header(plan: Plan, strategy: Strategy) -> Iterator[str]:
    """Yield the lines that a run prints first, each with a title of 11 columns."""
    dataset, on_gpus = plan.dataset, plan.ctxs[0].device_type == "gpu"
    per_device = " each" * (len(plan.ctxs) > 1)
    threads = f", {plan.threads} thread{'s' * (plan.threads > 1)}{per_device}" * (not on_gpus)
    params = strategy.net.collect_params().values()
    parameter_count = sum(param.list_data()[0].size for param in params)
    storage = (
        "cached on the devices"
        if fits_on_devices(dataset.train, plan.device_cache_bytes)
        else f"streamed, {plan.prefetch} batches ahead"
    )
    steps, group = plan.steps_per_epoch, plan.group
    process_text = f"{group.size} processes ({group.name}), each with " * (group.size > 1)
    left_out = len(dataset.train) - plan.images_per_epoch
    left_out_text = f", {left_out} image{'s' * (left_out > 1)} dropped" * (left_out > 0)
    settings = ", ".join(
        f"{name.replace('_', ' ')} {value:g}" for name, value in plan.optimizer_params.items() if value
    )
    momentum_rule = f", momentum rule {MXNET}" * (plan.momentum_rule == MXNET)
    for name, text in (
        ("devices", process_text + describe(plan.ctxs) + threads),
        ("network", f"{plan.model}, {parameter_count:,} parameters"),
        (
            "data",
            f"{dataset.name}: {len(dataset.train):,} training, {len(dataset.test):,} validation images, {storage}",
        ),
        *strategy.lines(),
        *plan.resolved.in_words(),
        (
            "batch",
            f"{plan.describe_batch(len(strategy.inputs) * group.size)}; "
            f"{steps:,} step{'s' * (steps > 1)} per epoch{left_out_text}",
        ),
        ("optimizer", f"{plan.optimizer}, {settings}{momentum_rule}"),
        *plan.option_lines(),
        (
            "kvstore",
            f"{plan.config.kvstore}{plan.describe_placement()}"
            f"{', updated on servers' * plan.on_servers}; seed {plan.seed}",
        ),
        *([("arithmetic", plan.arithmetic.in_words())] if on_gpus else []),
        *(("remark", line) for line in warnings_before_training(plan)),
    ):
        yield f"{name:<11}{text}"


MAX_WAITING_SHARE = 0.1  # of an epoch's time
MAX_LOSS_FACTOR = 10.0  # times the loss of guessing; a network that learns stays below
FEW_STEPS = 2  # steps per epoch with which a training learns little
CHANCE_DEVIATIONS = 2.0  # standard deviations above chance; guessing exceeds this in 1 of 40 cases


def warnings_before_training(plan: Plan) -> Iterator[str]:
    """Yield warnings about the data and the batch size."""
    images, classes = len(plan.dataset.train), plan.dataset.classes
    if plan.global_batch_size > images > 0:
        yield (
            f"a batch of {plan.global_batch_size:,} exceeds the {images:,} training images, so "
            "each epoch has only one step: choose a smaller --batch-size"
        )
    counts = _class_counts(plan.dataset.train, len(classes))
    if counts is not None and np.count_nonzero(counts) == 1:
        only = classes[int(np.argmax(counts))]
        yield f"all training images belong to one class, {only}: add images of other classes"


def warnings_after_training(result: Result) -> Iterator[str]:
    """Yield warnings about the result, and hints for a better or faster run."""
    yield from _warn_of_failed_training(result)
    train, waiting = result.plan.dataset.train, result.waiting
    if waiting > MAX_WAITING_SHARE and isinstance(train, (FileSplit, GluonSplit)):
        if isinstance(train, GluonSplit):
            advice = "if the transforms are not random, apply them once with transform(function, lazy=False)"
        elif result.plan.random_resized_crop:
            advice = "use more --workers, or decode them only once with --no-random-resized-crop"
        else:
            advice = (
                "decode them once with gluonlab data pack, use more --workers, or cache them with --device-cache-bytes"
            )
        yield f"training waited for images {waiting:.0%} of the time: {advice}"


def _warn_of_failed_training(result: Result) -> Iterator[str]:
    """Yield a warning if the loss is far too large, or if the accuracy may be due to chance."""
    plan, epoch = result.plan, result.kept_epoch
    classes = len(plan.dataset.classes)
    if classes < 2 or plan.dataset.name == SYNTHETIC:
        return
    guessing_loss, advice = math.log(classes), "a smaller --lr, for example from gluonlab find-lr"
    # the loss of guessing is unknown for a loss of the user
    if plan.user_components.loss is None and epoch.loss > MAX_LOSS_FACTOR * guessing_loss:
        yield f"loss {epoch.loss:.4g} is far above the loss of random guessing, {guessing_loss:.2f}: try {advice}"
        return
    counts = _class_counts(plan.dataset.test, classes)
    if counts is None or not counts.sum() or np.count_nonzero(counts) == 1:
        return
    majority_share, images = counts.max() / counts.sum(), counts.sum()
    chance_accuracy = majority_share + CHANCE_DEVIATIONS * math.sqrt(majority_share * (1 - majority_share) / images)
    if epoch.val_accuracy <= chance_accuracy:
        steps = plan.steps_per_epoch
        few_steps = "choose a smaller --batch-size (an epoch has only {} step{}), "
        advice = few_steps.format(steps, "s" * (steps > 1)) if steps <= FEW_STEPS else ""
        yield (
            f"validation accuracy {epoch.val_accuracy:.4f} on {images:,} images may be due to chance (always "
            f"predicting {plan.dataset.classes[int(np.argmax(counts))]} gives {majority_share:.4f}): "
            f"{advice}train longer, or try another --lr, for example from gluonlab find-lr"
        )


def _class_counts(split: Split, classes: int) -> "Optional[NDArray[np.int64]]":
    """Return the number of images of each class, if the split has labels in memory."""
    labels = getattr(split, "labels", None)
    return None if labels is None else np.bincount(labels, minlength=classes)


# options that may differ between processes: devices, data loading, and the folder of rank 0
PROCESS_LOCAL_OPTIONS = (
    "gpus", "devices", "require_gpu", "threads", "data_dir", "workers", "prefetch",
    "device_cache_bytes", "backward_bulk_size", "out",
)  # fmt: skip


def check_same_options(config: TrainConfig, group: ProcessGroup) -> None:
    """Raise ConfigError in all processes if their options differ.

    All processes must call this function.

    Processes with different options would sum gradients of different runs, or wait for each other
    forever.
    """
    if group.size == 1:
        return
    encoded = json.dumps(_shared_options(config), default=str).encode()
    reference, *other_options = [json.loads(options) for options in group.all_gather_bytes(encoded)]
    for rank, other in enumerate(other_options, start=1):
        for name in reference:
            if other.get(name) != reference[name]:
                group.mark_common_exit()
                expected = _format_option(name, reference[name])
                actual = _format_option(name, other.get(name))
                raise ConfigError(
                    f"the options of the processes differ: rank 0 has {expected}, "
                    f"and rank {rank} has {actual}: start all processes with the same options"
                )


def _shared_options(config: TrainConfig) -> Dict[str, Any]:
    settings = {**config.to_dict(), "resizer": choose_resizer(config)}
    return {k: v for k, v in settings.items() if k not in PROCESS_LOCAL_OPTIONS}


def _format_option(name: str, value: Any) -> str:
    if value is None or value is False:
        return f"no {option_name(name)}"
    return option_name(name) if value is True else f"{option_name(name)} {value}"
