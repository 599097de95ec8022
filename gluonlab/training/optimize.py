"""What a TrainConfig asks of the optimization, checked and made: learning rates, weight decay,
clipping, compression.
"""

from __future__ import annotations

import math
import textwrap
import warnings
from fractions import Fraction
from typing import Any, Iterator, List, Sequence, Tuple

from mxnet import gluon

from gluonlab.config import TrainConfig
from gluonlab.errors import ConfigError, GluonlabWarning, KVStoreError, unknown
from gluonlab.kvstores import KVSTORES
from gluonlab.optimizers.momentum import MOMENTUM_RULES
from gluonlab.update.rates import LR_SCHEDULES, Rates

CONSTANT, DECAY = "constant", 0.1
# where He et al., "Deep residual learning", 2016, section 4.2, divide the rate by 10
HALF_AND_THREE_QUARTERS = (Fraction(1, 2), Fraction(3, 4))
OPTIONS_WIDTH = 69  # beside their title, in 80 columns
NO_DECAY = r".*(bias|gamma|beta)$"


def check_optimization(config: TrainConfig) -> None:
    """Raise ConfigError or KVStoreError for an unknown schedule, and for settings that contradict
    each other.
    """
    schedule = config.lr_schedule or CONSTANT
    if schedule not in LR_SCHEDULES:
        raise ConfigError(unknown("--lr-schedule", schedule, LR_SCHEDULES))
    if config.momentum_rule not in (None, *MOMENTUM_RULES):
        raise ConfigError(unknown("--momentum-rule", str(config.momentum_rule), MOMENTUM_RULES))
    for option, value, schedules in (
        ("--lr-decay", config.lr_decay, ("step",)),
        ("--lr-decay-epochs", config.lr_decay_epochs, ("step",)),
        ("--final-lr", config.final_lr, ("cosine", "linear")),
    ):
        if value is not None and schedule not in schedules:
            raise ConfigError(
                f"{option} {value} says nothing to --lr-schedule {schedule}: "
                f"choose {' or '.join(schedules)}, or leave it out"
            )
    if config.compress is not None and not KVSTORES[config.kvstore].compresses:
        able = " or ".join(name for name, kind in KVSTORES.items() if kind.compresses)
        raise KVStoreError(
            f"--compress {config.compress}: kvstore {config.kvstore!r} cannot compress gradients: "
            f"choose {able}"
        )


def check_effect(config: TrainConfig, asked: TrainConfig, wd: float, momentum: float) -> None:
    """Raise ConfigError for --no-bias-decay without any decay ``wd``, and for --momentum-rule
    without any ``momentum``.

    ``asked``: without a recipe's values.
    """
    if config.no_bias_decay and not wd:
        raise ConfigError(
            "--no-bias-decay: the weight decay is 0 for all parameters: "
            "give one, such as --wd 1e-4, or leave it out"
        )
    if asked.momentum_rule is not None and not momentum:
        rule = f"--momentum-rule {asked.momentum_rule}"
        raise ConfigError(
            f"{rule}: the momentum is 0: give one, such as --momentum 0.9, or leave it out"
        )


def make_rates(
    config: TrainConfig,
    base_lr: float,
    epochs: int,
    steps_per_epoch: int,
    scale: float = 1.0,
    decay_shares: Sequence[Fraction] = HALF_AND_THREE_QUARTERS,
) -> Rates:
    """The learning rate of every step.

    ``base_lr`` is scaled already; ``scale`` is what --final-lr must be multiplied by.

    ``decay_shares``: where --lr-schedule step steps without --lr-decay-epochs, as shares of what
    follows the warm-up. Raises ConfigError for epochs beyond the run, and for a final rate above
    the first.
    """
    final_lr = (config.final_lr or 0.0) * scale
    if final_lr > base_lr:
        raise ConfigError(
            f"--final-lr {config.final_lr:g} is above the learning rate {base_lr / scale:g}: "
            "give a smaller one"
        )
    warmup, schedule = config.warmup_epochs or 0.0, config.lr_schedule or CONSTANT
    if warmup >= epochs:
        raise ConfigError(
            f"--warmup-epochs {warmup:g} leaves nothing of the run's {epochs}: "
            "give fewer, or more --epochs"
        )
    steps, warmup_steps = epochs * steps_per_epoch, round(warmup * steps_per_epoch)
    milestones: Tuple[int, ...] = ()
    if config.lr_decay_epochs is not None:
        milestones = tuple(
            epoch * steps_per_epoch
            for epoch in _decay_epochs(config.lr_decay_epochs, warmup, epochs)
        )
    elif schedule == "step":
        milestones = tuple(
            warmup_steps + math.ceil((steps - warmup_steps) * share) for share in decay_shares
        )
    decay = DECAY if config.lr_decay is None else config.lr_decay
    return Rates(base_lr, steps, schedule, warmup_steps, final_lr, decay, milestones)


def _decay_epochs(text: str, warmup: float, epochs: int) -> List[int]:
    """The numbers in ``text``.

    Raises ConfigError for one before the end of the warm-up or not before the end of the run.
    """
    numbers = [int(number) for number in text.split(",")]
    if numbers[0] < warmup:
        raise ConfigError(
            f"--lr-decay-epochs {text}: the warm-up takes {warmup:g} epochs: "
            "give later ones, or less --warmup-epochs"
        )
    if numbers[-1] >= epochs:
        raise ConfigError(
            f"--lr-decay-epochs {text}: the run is over after {epochs}: "
            "give earlier ones, or more --epochs"
        )
    return numbers


def spare_biases(net: gluon.Block) -> None:
    """No weight decay for biases, nor for the scale and shift of normalisations.

    He et al., "Bag of tricks for image classification with convolutional neural networks", 2019,
    section 3.1.
    """
    net.collect_params(NO_DECAY).setattr("wd_mult", 0.0)


def compressing(kvstore: Any, config: TrainConfig, device_count: int) -> Any:
    """The same kvstore, set to compress the gradients that it sums if ``config`` asks for it.

    What 2 bits cannot say stays on its device and is added to the next gradient (Seide et al.,
    "1-bit stochastic gradient descent and its application to data-parallel distributed training of
    speech DNNs", 2014, section 3). A gradient here is that of the sum over a device's shard, and so
    the threshold is, too.
    """
    if config.compress is None:
        return kvstore
    if device_count == 1:
        message = (
            f"--compress {config.compress}: one device has nobody to send gradients to, "
            "so nothing is compressed"
        )
        warnings.warn(message, GluonlabWarning, stacklevel=2)
        return kvstore
    kind, threshold = config.compress.split(":")
    kvstore.set_gradient_compression({"type": kind, "threshold": float(threshold)})
    return kvstore


def in_words(config: TrainConfig, rates: Rates, device_count: int) -> Iterator[Tuple[str, str]]:
    """(title, text) for what a run says of its optimization when it begins, where that is not the
    usual.

    A line without a title goes on with the one before.
    """
    if rates.schedule != "constant" or rates.warmup_steps:
        yield "schedule", rates.in_words()
    options = [
        f"{config.dtype} with a dynamic loss scale" if config.dtype != "float32" else "",
        f"clip norm {config.clip_norm:g}" if config.clip_norm is not None else "",
        f"label smoothing {config.label_smoothing:g}" if config.label_smoothing else "",
        "random resized crop" if config.random_resized_crop else "",
        f"crop padding {config.crop_padding}" if config.crop_padding else "",
        "flip" if config.flip else "",
        f"mixup {config.mixup:g}" if config.mixup else "",
        f"normalise {config.normalise}" if config.normalise is not None else "",
        "sync-bn" if config.sync_bn and device_count > 1 else "",
        "no bias decay" if config.no_bias_decay else "",
        f"compress {config.compress}" if config.compress is not None and device_count > 1 else "",
    ]
    lines = textwrap.wrap(", ".join(filter(None, options)), OPTIONS_WIDTH, break_on_hyphens=False)
    yield from zip(["options", *[""] * len(lines)], lines)
