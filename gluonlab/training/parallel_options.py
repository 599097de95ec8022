"""The options that say how a network and its batches are spread over devices.

--split and its options spread the network. By --device-weights, `gluonlab.data.loading.split_batch`
divides a batch over devices.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import List, Optional, Sequence, Tuple

import mxnet as mx

from gluonlab.config import TrainConfig, option_name
from gluonlab.config.option_types import parse_device_weights
from gluonlab.data.loading.split_batch import in_proportion, shard_sizes
from gluonlab.errors import ConfigError, DeviceError, unknown
from gluonlab.kvstores.allreduce_store import SHARDED
from gluonlab.kvstores.gradient_compression import keeps_rest
from gluonlab.parallel.strategy import CHANNELS, DATA, LAYERS, PIPELINE, WAYS, Parallelism

OF_WAYS = {
    "device_weights": (DATA,),
    "stages": (LAYERS, PIPELINE),
    "cut": (LAYERS, PIPELINE),
    "balance": (LAYERS, PIPELINE),
    "pipeline_schedule": (PIPELINE,),
    "stages_per_device": (PIPELINE,),
    "ways": (CHANNELS,),
    "channels": (CHANNELS,),
}
BALANCES = ("time", "memory")
MICROBATCHES_PER_STAGE = 4  # GPipe's: the bubble is below a fifth then (section 2.3)


def check_split(config: TrainConfig) -> None:
    """Raise ConfigError for an unknown way, and for options that are another one's."""
    way = config.split
    if way not in WAYS:
        raise ConfigError(unknown("--split", way, WAYS))
    for name, ways in OF_WAYS.items():
        if getattr(config, name) is not None and way not in ways:
            raise ConfigError(
                f"{option_name(name)} {getattr(config, name)} is for --split {' or '.join(ways)}, "
                f"and this is --split {way}: leave one of them out"
            )
    _check_name("--balance", config.balance, BALANCES)
    if config.channels is not None:
        from gluonlab.parallel.tensor.layout import CHANNELS as CHANNEL_WAYS

        _check_name("--channels", config.channels, CHANNEL_WAYS)
    if config.pipeline_schedule is not None:
        from gluonlab.parallel.pipeline.pipeline_schedule import SCHEDULES

        _check_name("--pipeline-schedule", config.pipeline_schedule, tuple(SCHEDULES))
    if config.balance is not None and config.cut is not None:
        raise ConfigError(
            f"--balance {config.balance} chooses where to cut, and --cut {config.cut} says it: "
            "give one of them"
        )
    if way == DATA:
        return
    per_device, schedule = config.stages_per_device or 1, config.pipeline_schedule
    if per_device > 1 and schedule not in (None, "interleaved", "sequential"):
        raise ConfigError(
            f"--stages-per-device {per_device}: --pipeline-schedule {schedule} has one on each: "
            "choose interleaved, or leave one of them out"
        )


def usual_microbatches(split: Parallelism) -> int:
    """Into how many parts a copy's share of a batch is cut for a pipeline, if nobody says."""
    return MICROBATCHES_PER_STAGE * split.size


def _check_name(option: str, given: Optional[str], names: Tuple[str, ...]) -> None:
    if given is not None and given not in names:
        raise ConfigError(unknown(option, given, names))


def make_split(
    config: TrainConfig, ctxs: List[mx.Context], devices_per_copy: int = 1
) -> Parallelism:
    """Divide the devices into copies of the network. Raises DeviceError or ConfigError.

    ``devices_per_copy``: for ``--split data``, the other ways have options for it.
    """
    if config.split == DATA:
        copies = [ctxs[i : i + devices_per_copy] for i in range(0, len(ctxs), devices_per_copy)]
        return Parallelism(DATA, copies, str(config.model))
    _check_alone(config)
    cut = None if config.cut is None else tuple(map(int, config.cut.split(",")))
    per_device = config.stages_per_device or _stages_per_device(config)
    size = _size(config, len(ctxs), cut, per_device)
    copies = [ctxs[begin : begin + size] for begin in range(0, len(ctxs), size)]
    return Parallelism(
        config.split, copies, str(config.model),
        schedule=_schedule(config, per_device), stages_per_device=per_device, cut=cut,
        balance=config.balance or ("memory" if config.split == LAYERS else "time"),
        channels=config.channels or "both",
    )  # fmt: skip


def _check_alone(config: TrainConfig) -> None:
    """Raise ConfigError for what only replicas on single devices can do."""
    if config.sync_bn:
        raise ConfigError(
            f"--sync-bn is for --split data, and this is --split {config.split}, where BatchNorm "
            "looks at the microbatches of one copy of the network: leave it out"
        )
    if keeps_rest(config.compress):
        raise ConfigError(
            f"--compress {config.compress} is for --split data, and this is "
            f"--split {config.split}: leave it out"
        )
    if config.kvstore == SHARDED and config.split == CHANNELS:
        raise ConfigError(
            f"--kvstore {SHARDED} and --split channels contradict each other: each device has its "
            "own part of the parameters already: choose another kvstore"
        )


def _stages_per_device(config: TrainConfig) -> int:
    return 2 if config.pipeline_schedule == "interleaved" else 1


def _schedule(config: TrainConfig, per_device: int) -> str:
    if config.split == LAYERS:
        return "sequential"
    return config.pipeline_schedule or ("interleaved" if per_device > 1 else "1f1b")


def _size(
    config: TrainConfig, devices: int, cut: Optional[Tuple[int, ...]], per_device: int
) -> int:
    """How many devices a copy of the network has."""
    way = config.split
    asked = config.ways if way == CHANNELS else config.stages
    subject = f"{option_name('ways' if way == CHANNELS else 'stages')} {asked}"
    if devices == 1:
        raise DeviceError(
            f"--split {way} spreads a network over several devices, and there is one: "
            "give --gpus 2 or more, or leave --split out"
        )
    if cut is not None:
        made, rest = divmod(len(cut) + 1, per_device)
        if rest or made < 2 or (asked is not None and asked != made):
            wanted = subject if asked is not None else f"{per_device} on each device"
            raise ConfigError(
                f"--cut {config.cut} makes {len(cut) + 1} stages, which is not {wanted}: "
                "give one cut less than there are stages"
            )
        asked, subject = made, f"--cut {config.cut}"
    size = devices if asked is None else asked
    if devices % size:
        possible = [n for n in range(2, devices + 1) if devices % n == 0]
        raise ConfigError(
            f"{subject}: {devices} devices make no whole copies of the network, each on {size}: "
            f"have {' or '.join(map(str, possible))} share one, or choose other devices"
        )
    return size


MOST_SIZES = 8  # that a line has room for


def weights_of(given: Optional[str], processes: int = 1) -> Optional[List[Fraction]]:
    """One for each device of so many processes; None where batches are shared evenly."""
    return None if given is None else parse_device_weights(given) * processes


def check_count(given: Optional[str], devices: int) -> None:
    """Raise ConfigError unless there is a weight for each of a process's devices."""
    weights = weights_of(given)
    if weights is not None and len(weights) != devices:
        many = f"{len(weights)} number{'s' * (len(weights) > 1)}"
        raise ConfigError(
            f"--device-weights {given} has {many}, and this process {devices} "
            f"device{'s' * (devices > 1)}: give one for each, or leave it out"
        )


def check_shares(
    given: Optional[str], images: int, ctxs: Sequence[mx.Context], processes: int
) -> None:
    """Raise ConfigError where whole batches of ``images`` have enough for all, and one gets none.

    Of an epoch's smaller last batch it gets one image all the same.
    """
    weights = weights_of(given, processes)
    if weights is None or images < len(weights):
        return
    sizes = in_proportion(images, weights)
    if 0 in sizes:
        idle = ctxs[sizes.index(0) % len(ctxs)]
        raise ConfigError(
            f"--device-weights {given}: {idle} would get none of the {images} images of a batch: "
            "give it a larger weight, choose a larger batch, or leave it out of --devices"
        )


def largest_part(weights: Optional[Sequence[Fraction]], copies: int) -> Fraction:
    """The part of a batch that the device gets which gets most, before it is whole images."""
    return Fraction(1, copies) if weights is None else max(weights) / sum(weights)


def largest_share(images: int, weights: Optional[Sequence[Fraction]], copies: int) -> int:
    """The most images that one of ``copies`` can get of batches of up to ``images``."""
    return math.ceil(images * largest_part(weights, copies))


def fewest(images: int, weights: Optional[Sequence[Fraction]], copies: int) -> int:
    """The fewest images that one of ``copies`` gets of a batch of ``images``."""
    sizes = shard_sizes(images, copies, weights)
    return min(sizes) if len(sizes) == copies else 0


def batch_in_words(
    images: int, copies: int, has_copy: str, given: Optional[str], processes: int
) -> str:
    """``32 per device``, ``21 or 22 per device`` or ``43, 21 per device (weights 2,1)``."""
    weights = weights_of(given, processes)
    if weights is None:  # shards differ by at most one image
        each, rest = divmod(images, copies)
        return (f"{each:,}" if not rest else f"{each:,} or {each + 1:,}") + f" per {has_copy}"
    sizes = [*shard_sizes(images, copies, weights), *[0] * (copies - images)]
    listed = ", ".join(f"{size:,}" for size in sizes)
    if len(sizes) > MOST_SIZES:
        listed = f"{min(sizes):,} to {max(sizes):,}"
    return f"{listed} per {has_copy} (weights {given})"
