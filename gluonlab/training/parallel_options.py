"""Checks and values of the options that divide a network or its batches among devices.

--strategy and its options divide the network. --device-weights divides each batch
(`gluonlab.data.loading.split_batch`).
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import List, Optional, Sequence, Tuple

import mxnet as mx

from gluonlab.config import TrainConfig, option_name
from gluonlab.config.option_checks import parse_device_weights
from gluonlab.data.loading.split_batch import proportional_sizes, shard_sizes
from gluonlab.errors import ConfigError, DeviceError, unknown
from gluonlab.kvstores.allreduce_store import SHARDED
from gluonlab.kvstores.gradient_compression import keeps_residual
from gluonlab.parallel.strategy import DATA, LAYERS, PIPELINE, SPLIT_MODES, TENSOR, Parallelism

WAYS_BY_OPTION = {
    "device_weights": (DATA,),
    "pipeline_parallel": (LAYERS, PIPELINE),
    "cut": (LAYERS, PIPELINE),
    "balance": (LAYERS, PIPELINE),
    "pipeline_schedule": (PIPELINE,),
    "stages_per_device": (PIPELINE,),
    "tensor_parallel": (TENSOR,),
    "tensor_parallel_mode": (TENSOR,),
}
BALANCES = ("time", "memory")
MICROBATCHES_PER_STAGE = 4  # as in GPipe, section 2.3: the bubble is then below a fifth


def check_split_options(config: TrainConfig) -> None:
    """Raise ConfigError for an unknown --strategy, and for options of another --strategy."""
    way = config.strategy
    if way not in SPLIT_MODES:
        raise ConfigError(unknown("--strategy", way, SPLIT_MODES))
    for name, ways in WAYS_BY_OPTION.items():
        if getattr(config, name) is not None and way not in ways:
            raise ConfigError(
                f"{option_name(name)} {getattr(config, name)} has no effect with --strategy {way}: "
                f"use --strategy {' or '.join(ways)}, or remove {option_name(name)}"
            )
    _check_choice("--balance", config.balance, BALANCES)
    if config.tensor_parallel_mode is not None:
        from gluonlab.parallel.tensor.layout import TENSOR_MODES

        _check_choice("--tensor-parallel-mode", config.tensor_parallel_mode, TENSOR_MODES)
    if config.pipeline_schedule is not None:
        from gluonlab.parallel.pipeline.pipeline_schedule import SCHEDULES

        _check_choice("--pipeline-schedule", config.pipeline_schedule, tuple(SCHEDULES))
    if config.balance is not None and config.cut is not None:
        raise ConfigError(
            f"--balance {config.balance} and --cut {config.cut} both determine the stages: remove one of them"
        )
    if way == DATA:
        return
    per_device, schedule = config.stages_per_device or 1, config.pipeline_schedule
    if per_device > 1 and schedule not in (None, "interleaved", "sequential"):
        raise ConfigError(
            f"--stages-per-device {per_device} contradicts --pipeline-schedule {schedule}, which uses one stage per "
            "device: choose --pipeline-schedule interleaved, or remove one of the two options"
        )


def default_microbatches(split: Parallelism) -> int:
    """Return the number of microbatches of a pipeline without --microbatches."""
    return MICROBATCHES_PER_STAGE * split.size


def _check_choice(option: str, choice: Optional[str], names: Tuple[str, ...]) -> None:
    if choice is not None and choice not in names:
        raise ConfigError(unknown(option, choice, names))


def make_split(config: TrainConfig, ctxs: List[mx.Context], devices_per_copy: int = 1) -> Parallelism:
    """Assign the devices to copies of the network.

    Raises DeviceError or ConfigError if the number of devices or an option does not match the
    strategy.

    ``devices_per_copy``: only for ``--strategy data``. For each other strategy, the options of the
    strategy determine this number.
    """
    if config.strategy == DATA:
        copies = [ctxs[i : i + devices_per_copy] for i in range(0, len(ctxs), devices_per_copy)]
        return Parallelism(DATA, copies, str(config.model))
    _check_data_parallel_options(config)
    cut = None if config.cut is None else tuple(map(int, config.cut.split(",")))
    stages_per_device = config.stages_per_device or _default_stages_per_device(config)
    devices_per_copy = _devices_per_copy(config, len(ctxs), cut, stages_per_device)
    copies = [ctxs[i : i + devices_per_copy] for i in range(0, len(ctxs), devices_per_copy)]
    return Parallelism(
        config.strategy,
        copies,
        str(config.model),
        schedule=_pipeline_schedule(config, stages_per_device),
        stages_per_device=stages_per_device,
        cut=cut,
        balance=config.balance or ("memory" if config.strategy == LAYERS else "time"),
        channels=config.tensor_parallel_mode or "both",
    )


def _check_data_parallel_options(config: TrainConfig) -> None:
    """Raise ConfigError for options that need a whole copy of the network on each device."""
    if config.sync_bn:
        raise ConfigError(
            f"--sync-bn works only with --strategy data, because with --strategy {config.strategy}, BatchNorm "
            "normalizes each microbatch of a replica separately: remove --sync-bn"
        )
    if keeps_residual(config.compress):
        raise ConfigError(
            f"--compress {config.compress} works only with --strategy data, but this run uses "
            f"--strategy {config.strategy}: remove --compress"
        )
    if config.kvstore == SHARDED and config.strategy == TENSOR:
        raise ConfigError(
            f"--kvstore {SHARDED} and --strategy {TENSOR} contradict each other, because tensor parallelism "
            "already splits the parameters: choose another kvstore"
        )


def _default_stages_per_device(config: TrainConfig) -> int:
    return 2 if config.pipeline_schedule == "interleaved" else 1


def _pipeline_schedule(config: TrainConfig, per_device: int) -> str:
    if config.strategy == LAYERS:
        return "sequential"
    return config.pipeline_schedule or ("interleaved" if per_device > 1 else "1f1b")


def _devices_per_copy(config: TrainConfig, devices: int, cut: Optional[Tuple[int, ...]], per_device: int) -> int:
    """Return how many devices share a copy of the network; ``per_device``: stages per device.

    Raises DeviceError or ConfigError if the number of devices does not match the options.
    """
    split = config.strategy
    count = config.tensor_parallel if split == TENSOR else config.pipeline_parallel
    subject = f"{option_name('tensor_parallel' if split == TENSOR else 'pipeline_parallel')} {count}"
    if devices == 1:
        raise DeviceError(
            f"--strategy {split} needs at least 2 devices, but this run has only one device: "
            "use --gpus 2 or more, or remove --strategy"
        )
    if cut is not None:
        stages, remainder = divmod(len(cut) + 1, per_device)
        if remainder or stages < 2 or (count is not None and count != stages):
            expected = f"--pipeline-parallel {count} needs {(count or 0) * per_device} stages"
            if count is None:
                expected = f"the number of stages must be {per_device} for each of at least 2 devices"
            raise ConfigError(
                f"--cut {config.cut} creates {len(cut) + 1} stages, but {expected}: pass one cut fewer than the "
                "number of stages"
            )
        count, subject = stages, f"--cut {config.cut}"
    size = devices if count is None else count
    if devices % size:
        possible = [n for n in range(2, devices + 1) if devices % n == 0]
        raise ConfigError(
            f"{subject}: {devices} devices cannot be divided into groups of {size}: "
            f"use groups of {' or '.join(map(str, possible))}, or another number of devices"
        )
    return size


MAX_LISTED_SIZES = 8  # shard sizes that fit on a line


def resolve_device_weights(device_weights: Optional[str], processes: int = 1) -> Optional[List[Fraction]]:
    """Return a weight for each device of all processes; None if batches are split evenly."""
    return None if device_weights is None else parse_device_weights(device_weights) * processes


def check_weight_count(device_weights: Optional[str], devices: int) -> None:
    """Raise ConfigError unless --device-weights has a number for each of a process's devices."""
    weights = resolve_device_weights(device_weights)
    if weights is not None and len(weights) != devices:
        count_text = f"{len(weights)} number{'s' * (len(weights) > 1)}"
        raise ConfigError(
            f"--device-weights {device_weights} has {count_text}, but this process has {devices} "
            f"device{'s' * (devices > 1)}: use one weight per device, or remove --device-weights"
        )


def check_shard_sizes(device_weights: Optional[str], images: int, ctxs: Sequence[mx.Context], processes: int) -> None:
    """Raise ConfigError if --device-weights would give a device no image of a full batch.

    The smaller last batch of an epoch gives each device at least one image, if there are enough
    images.
    """
    weights = resolve_device_weights(device_weights, processes)
    if weights is None or images < len(weights):
        return
    sizes = proportional_sizes(images, weights)
    if 0 in sizes:
        idle_device = ctxs[sizes.index(0) % len(ctxs)]
        raise ConfigError(
            f"--device-weights {device_weights}: {idle_device} would get none of the {images} images of a batch: "
            "increase the weight of this device or the batch size, or remove this device from --devices"
        )


def largest_batch_fraction(weights: Optional[Sequence[Fraction]], copies: int) -> Fraction:
    """Return the largest fraction of a batch that a device gets, before rounding to images."""
    return Fraction(1, copies) if weights is None else max(weights) / sum(weights)


def largest_shard_size(images: int, weights: Optional[Sequence[Fraction]], copies: int) -> int:
    """Return the largest shard size if up to ``images`` images are split over all devices."""
    return math.ceil(images * largest_batch_fraction(weights, copies))


def smallest_shard_size(images: int, weights: Optional[Sequence[Fraction]], copies: int) -> int:
    """Return the smallest shard size if ``images`` images are split over all devices."""
    sizes = shard_sizes(images, copies, weights)
    return min(sizes) if len(sizes) == copies else 0


def format_batch_sizes(images: int, copies: int, has_copy: str, device_weights: Optional[str], processes: int) -> str:
    """Return text such as ``21 or 22 per device`` or ``43, 21 per device (weights 2,1)``.

    ``has_copy``: the word after "per", such as "device". This word names the unit that gets one
    shard.
    """
    weights = resolve_device_weights(device_weights, processes)
    if weights is None:  # shards differ by at most one image
        smaller, larger_count = divmod(images, copies)
        return (f"{smaller:,}" if not larger_count else f"{smaller:,} or {smaller + 1:,}") + f" per {has_copy}"
    sizes = [*shard_sizes(images, copies, weights), *[0] * (copies - images)]
    sizes_text = ", ".join(f"{size:,}" for size in sizes)
    if len(sizes) > MAX_LISTED_SIZES:
        sizes_text = f"{min(sizes):,} to {max(sizes):,}"
    return f"{sizes_text} per {has_copy} (weights {device_weights})"
