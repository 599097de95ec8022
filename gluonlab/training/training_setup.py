"""What a run has before its first batch: the strategy with its network, the loader, first lines.

Processes that train together agree on all of it. The lines are the header of the run, and remarks
on what a person who looks at it would find strange.
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
from gluonlab.data.loading.batch_loader import Loader, stays_on_devices
from gluonlab.data.sets.dataset import ArraySplit, Dataset, Defaults, Split
from gluonlab.data.sets.gluon_datasets import GluonSplit, resolve_dataset
from gluonlab.data.sets.image_files import FileSplit
from gluonlab.data.sets.standard_datasets import SYNTHETIC
from gluonlab.devices import describe
from gluonlab.engine.np_compatibility import nd_semantics
from gluonlab.errors import ConfigError
from gluonlab.host.signals import ends_if_stuck
from gluonlab.kvstores.process_groups import Group
from gluonlab.models.pretrained import load_pretrained
from gluonlab.optimizers.sgd import MXNET
from gluonlab.parallel import strategy_class
from gluonlab.parallel.data.replica import loss_graph
from gluonlab.parallel.data.sync_bn import check_native_sync_bn
from gluonlab.parallel.strategy import TENSOR, MakeStrategy, Strategy
from gluonlab.runs.run_result import Result
from gluonlab.runs.run_writer import RunDirectory
from gluonlab.training.build_network import make_net
from gluonlab.training.config_checks import check_batch, check_exportable
from gluonlab.training.image_options import resizer_of
from gluonlab.training.parallel_options import weights_of
from gluonlab.training.plan import (
    DeviceSetup,
    Plan,
    ResolvedConfig,
    plan_run,
    resolve_config,
    set_up_devices,
)
from gluonlab.training.stop_consensus import all_or_none
from gluonlab.training.user_components import NOTHING, UserComponents

if TYPE_CHECKING:
    from numpy.typing import NDArray


def until_read(given: Any) -> Optional[Dataset]:
    """A data set for checks that look at no images: that ``given`` to `train`, or one of black."""
    if given is None or isinstance(given, Dataset):
        return given
    black = ArraySplit(np.zeros((1, 1, 1, 1), np.uint8), np.zeros(1, np.int32))
    return Dataset("", black, black, ("",), Defaults())


def read_together(
    given: Any, config: TrainConfig, own: UserComponents, group: Group
) -> Optional[Dataset]:
    """The data set that every process was ``given`` for `train`.

    Raises DataError, a UsageError for a ``config`` that cannot be carried out whatever the data,
    before anything is read, and RunError where another process cannot read its own.
    """

    def read() -> Optional[Dataset]:
        stand_in = until_read(given)
        if stand_in is not given:
            resolve_config(config, stand_in, group, own)
        return resolve_dataset(given)

    return all_or_none(group, read)


def plan_together(
    config: TrainConfig,
    dataset: Optional[Dataset],
    group: Group,
    begun: bool = False,
    own: UserComponents = NOTHING,
    devices_per_copy: int = 1,
) -> Plan:
    """The plan of this process, once all have theirs.

    ``begun``: whether the run has begun in its folder already. ``devices_per_copy``: see `train`.
    Raises what `make_plan` raises, OutputError at rank 0 for a folder that cannot be written,
    RunError where another process cannot begin, and ConfigError where processes have different
    options, or different numbers of devices while batches are counted per device, or copies of the
    network have.
    """

    def resolve() -> Tuple[ResolvedConfig, DeviceSetup]:
        if group.rank == 0 and not begun:
            RunDirectory.check(config.out)
        resolved = resolve_config(config, dataset, group, own)
        return resolved, set_up_devices(resolved, group, devices_per_copy)

    check_same_options(config, group)
    resolved, devices = all_or_none(group, resolve)
    sizes = _everyones(group, devices.split.size)
    if len(set(sizes)) > 1:
        option = option_name("ways" if config.split == TENSOR else "stages")
        raise ConfigError(
            f"--split {config.split}: the processes spread the network over "
            f"{', '.join(map(str, sizes))} devices: give {option}, or as many devices to each"
        )
    counts = _everyones(group, len(devices.split.copies))
    if config.global_batch_size is None and len(set(counts)) > 1:
        raise ConfigError(
            f"the processes have {', '.join(map(str, counts))} devices: give --global-batch-size, "
            "or as many devices to each"
        )
    return all_or_none(group, lambda: plan_run(resolved, devices, counts, dataset, group, own))


def _everyones(group: Group, count: int) -> Tuple[int, ...]:
    """The counts of all processes."""
    return tuple(group.everyones(np.array(count)).astype(int).tolist())


class Ready(NamedTuple):
    """A run that can begin. ``introduction``: its first lines."""

    plan: Plan
    strategy: Strategy
    introduction: List[str]


@nd_semantics()
@ends_if_stuck()  # a strategy may measure
def prepare(plan: Plan, make_strategy: Optional[MakeStrategy] = None) -> Ready:
    """Make network and strategy. Raises a UsageError for mistakes that show only with them.

    They are the last mistakes of the user that can be found before the first batch.
    """
    lines: List[str] = []

    def make(ctxs: List[mx.Context], start: Optional[List[mx.Context]] = None) -> gluon.HybridBlock:
        net = make_net(plan, ctxs, start)
        if plan.own.net is not None or plan.own.loss is not None:
            graph = loss_graph(net, plan.make_loss(), plan.preprocess)
            check_native_sync_bn(graph, plan.model, len(plan.split.copies))
        if plan.pretrained is not None:
            loaded = load_pretrained(net, plan.pretrained, len(plan.dataset.classes))
            lines.append(f"pretrained {loaded}")
        return net

    make_strategy = make_strategy or strategy_class(plan.split.mode)
    strategy = make_strategy(make, plan.make_loss(), plan, plan.group)
    if len(strategy.inputs) != len(plan.split.copies):
        raise ConfigError(
            f"the strategy takes {len(strategy.inputs)} shards of a batch, and the plan has "
            f"{len(plan.split.copies)}: set its attribute devices_per_copy"
        )
    if plan.group.rank > 0:  # the processes begin alike, and draw Dropout's masks of their own
        mx.random.seed(plan.seed + plan.group.rank)
    check_batch(plan, strategy.net, len(strategy.inputs))
    check_exportable(plan, strategy.net)
    lines += introduction(plan, strategy)
    if plan.memory:
        from gluonlab.training.run_memory import told

        lines += told(plan, strategy.net, strategy.estimate_memory)
    return Ready(plan, strategy, lines)


def measured_memory(plan: Plan, make_strategy: Optional[MakeStrategy]) -> Optional[str]:
    """A line on the memory of such a run, measured in its own process; None without --memory.

    Raises ConfigError for a strategy that no option chooses, and RunError where memory is
    short.
    """
    if not plan.memory:
        return None
    if make_strategy is not None:
        raise ConfigError(
            "--memory counts what the ways of --split take, not other strategies: leave it out"
        )
    from gluonlab.training.run_memory import in_words

    return in_words(plan.config, plan.dataset, plan.ctxs)


def train_loader(plan: Plan, ctxs: List[mx.Context]) -> Loader:
    """Batches of the plan's training images for these devices, shuffled and changed at random."""
    augment = Augment(plan.crop_padding, plan.flip) if plan.crop_padding or plan.flip else None
    return Loader(
        plan.dataset.train,
        ctxs,
        plan.global_batch_size,
        plan.seed,
        plan.group.rank,
        plan.group.size,
        raw=True,
        prefetch=plan.prefetch,
        resident_bytes=plan.resident_bytes,
        random_crops=plan.random_resized_crop,
        augment=augment,
        mixup=Mixup(plan.mixup) if plan.mixup else None,
        device_counts=plan.device_counts,
        weights=weights_of(plan.device_weights),
        drop_last=plan.drop_last,
    )


def introduction(plan: Plan, strategy: Strategy) -> Iterator[str]:
    """One line for each, a title of 11 columns in front."""
    data, on_gpus = plan.dataset, plan.ctxs[0].device_type == "gpu"
    each = " each" * (len(plan.ctxs) > 1)
    threads = f", {plan.threads} thread{'s' * (plan.threads > 1)}{each}" * (not on_gpus)
    params = strategy.net.collect_params().values()
    size = sum(param.list_data()[0].size for param in params)
    place = (
        "resident on the devices"
        if stays_on_devices(data.train, plan.resident_bytes)
        else f"streamed, {plan.prefetch} batches ahead"
    )
    steps, group = plan.steps_per_epoch, plan.group
    many = f"{group.size} processes ({group.name}), each with " * (group.size > 1)
    rest = len(data.train) - plan.images_per_epoch
    left_out = f", {rest} image{'s' * (rest > 1)} left out" * (rest > 0)
    settings = ", ".join(
        f"{name.replace('_', ' ')} {value:g}"
        for name, value in plan.optimizer_params.items()
        if value
    )
    rule = f", momentum rule {MXNET}" * (plan.momentum_rule == MXNET)
    for name, text in (
        ("devices", many + describe(plan.ctxs) + threads),
        ("network", f"{plan.model}, {size:,} parameters"),
        (
            "data",
            f"{data.name}: {len(data.train):,} training, {len(data.test):,} test images, {place}",
        ),
        *strategy.lines(),
        *plan.resolved.in_words(),
        (
            "batch",
            f"{plan.batch_in_words(len(strategy.inputs) * group.size)}; "
            f"{steps:,} step{'s' * (steps > 1)} per epoch{left_out}",
        ),
        ("optimizer", f"{plan.optimizer}, {settings}{rule}"),
        *plan.options_in_words(),
        (
            "kvstore",
            f"{plan.config.kvstore}{plan.placed_in_words()}"
            f"{', updated on servers' * plan.on_servers}; seed {plan.seed}",
        ),
        *([("arithmetic", plan.arithmetic.in_words())] if on_gpus else []),
        *(("remark", line) for line in remarks_before(plan)),
    ):
        yield f"{name:<11}{text}"


MUCH_WAITING = 0.1  # of an epoch's time; more is worth a word
HUGE = 10.0  # times the loss of guessing: no network that learns is there after an epoch
DEVIATIONS = 2.0  # of an accuracy that is guessed: it is as good in one of 40 cases


def remarks_before(plan: Plan) -> Iterator[str]:
    """What the data and the batch make of such a training."""
    images, classes = len(plan.dataset.train), plan.dataset.classes
    if plan.global_batch_size > images > 0:
        yield (
            f"a batch of {plan.global_batch_size:,} is more than all {images:,} training images: "
            "each epoch is one step; choose a smaller --batch-size"
        )
    counts = _counts(plan.dataset.train, len(classes))
    if counts is not None and np.count_nonzero(counts) == 1:
        only = classes[int(np.argmax(counts))]
        yield f"all training images are of one class, {only}: there is nothing to tell apart"


def remarks_after(result: Result) -> Iterator[str]:
    """What the epoch that is kept says, and what would make the next such run better, or faster."""
    yield from _learned_nothing(result)
    train, waiting = result.plan.dataset.train, result.waiting
    if waiting > MUCH_WAITING and isinstance(train, (FileSplit, GluonSplit)):
        if isinstance(train, GluonSplit):
            cure = "transform them once, by transform(function, lazy=False), if none is random"
        elif result.plan.random_resized_crop:
            cure = (
                "decode them with more --decoders, or once and for all with "
                "--no-random-resized-crop"
            )
        else:
            cure = (
                "decode them once (python -m gluonlab.data pack), with more --decoders, "
                "or into memory with --resident-bytes"
            )
        yield f"training waited for images {waiting:.0%} of its time: {cure}"


def _learned_nothing(result: Result) -> Iterator[str]:
    """The loss is absurd, or the accuracy that of guessing: the larger fault alone.

    What a loss of the user's own is by guessing, nobody knows.
    """
    plan, last = result.plan, result.kept
    classes = len(plan.dataset.classes)
    if classes < 2 or plan.dataset.name == SYNTHETIC:
        return
    guessing, cure = math.log(classes), "a smaller --lr; --find-lr 100 finds one"
    if plan.own.loss is None and last.loss > HUGE * guessing:
        yield f"loss {last.loss:.4g} is far above that of guessing, {guessing:.2f}: try {cure}"
        return
    counts = _counts(plan.dataset.test, classes)
    if counts is None or not counts.sum() or np.count_nonzero(counts) == 1:
        return
    share, images = counts.max() / counts.sum(), counts.sum()
    chance = share + DEVIATIONS * math.sqrt(share * (1 - share) / images)
    if last.accuracy <= chance:
        yield (
            f"test accuracy {last.accuracy:.4f} on {images:,} images may still be chance (always "
            f"saying {plan.dataset.classes[int(np.argmax(counts))]} has {share:.4f}): "
            f"train longer, or try another --lr; --find-lr 100 finds one"
        )


def _counts(split: Split, classes: int) -> "Optional[NDArray[np.int64]]":
    """How many images each class has, where the split says."""
    labels = getattr(split, "labels", None)
    return None if labels is None else np.bincount(labels, minlength=classes)


# what each process may have of its own: its devices, how it reads, and where rank 0 alone writes
OWN = (
    "gpus", "devices", "require_gpu", "threads", "data_dir", "decoders", "prefetch",
    "resident_bytes", "overlap", "out",
)  # fmt: skip


def check_same_options(config: TrainConfig, group: Group) -> None:
    """Raise ConfigError in all processes, with the first difference, unless they agree.

    Processes with other options would sum gradients of different trainings, or wait for each other
    for ever. Waits for all of them.
    """
    if group.size == 1:
        return
    told = json.dumps(_common(config), default=str).encode()
    first, *others = [json.loads(each) for each in group.everyones_bytes(told)]
    for rank, other in enumerate(others, start=1):
        for name in first:
            if other.get(name) != first[name]:
                group.end_together()
                raise ConfigError(
                    f"the options of the processes differ: rank 0 has {_said(name, first[name])}, "
                    f"and rank {rank} {_said(name, other.get(name))}: start all with the same ones"
                )


def _common(config: TrainConfig) -> Dict[str, Any]:
    settings = {**config.to_dict(), "resizer": resizer_of(config)}
    return {k: v for k, v in settings.items() if k not in OWN}


def _said(name: str, value: Any) -> str:
    if value is None or value is False:
        return f"no {option_name(name)}"
    return option_name(name) if value is True else f"{option_name(name)} {value}"
