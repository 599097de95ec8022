"""Checks of a run's optimizer besides its rates: momentum, weight decay, a fitting kvstore."""

from __future__ import annotations

from mxnet import gluon

from gluonlab.config import TrainConfig
from gluonlab.errors import ConfigError, KVStoreError, unknown
from gluonlab.kvstores.sharded import SHARDED
from gluonlab.optimizers.registry import OPTIMIZERS, is_element_wise, optimizer_kind
from gluonlab.optimizers.sgd import MOMENTUM_RULES
from gluonlab.parallel.strategy import CHANNELS

NO_DECAY = r".*(bias|gamma|beta)$"


def check_optimizer(name: str, asked: TrainConfig) -> None:
    """Raise ConfigError for an unknown optimizer, or one without the momentum or rule asked for.

    ``asked``: the config without a recipe's values.
    """
    if asked.momentum_rule not in (None, *MOMENTUM_RULES):
        raise ConfigError(unknown("--momentum-rule", str(asked.momentum_rule), MOMENTUM_RULES))
    kind = optimizer_kind(name)
    if asked.momentum is not None and not kind.momentum:
        able = ", ".join(other for other, its in OPTIMIZERS.items() if its.momentum)
        raise ConfigError(
            f"--momentum {asked.momentum:g}: {name} has no momentum, "
            f"leave it out or use one of {able}"
        )
    if asked.momentum_rule is not None and kind.by_mxnets_rule is None:
        able = " or ".join(other for other, its in OPTIMIZERS.items() if its.by_mxnets_rule)
        raise ConfigError(
            f"--momentum-rule {asked.momentum_rule} has no effect with {name}: "
            f"leave it out, or use {able}"
        )


def check_momentum(config: TrainConfig, asked: TrainConfig) -> None:
    """Raise ConfigError for a --momentum-rule that was given without a momentum."""
    if asked.momentum_rule is not None and not config.momentum:
        raise ConfigError(
            f"--momentum-rule {asked.momentum_rule}: the momentum is 0: "
            "give one, such as --momentum 0.9, or leave it out"
        )


def check_decay(config: TrainConfig) -> None:
    """Raise ConfigError for --no-bias-decay without any decay."""
    if config.no_bias_decay and not config.wd:
        raise ConfigError(
            "--no-bias-decay: the weight decay is 0 for all parameters: "
            "give one, such as --wd 1e-4, or leave it out"
        )


def check_sharding(name: str, kvstore: str, device_count: int) -> None:
    """Raise KVStoreError for an optimizer that cannot update parts of parameters, where it must."""
    if kvstore == SHARDED and device_count > 1 and not is_element_wise(optimizer_kind(name).cls):
        raise KVStoreError(
            f"--kvstore {SHARDED} cuts parameters anywhere, which {name} does not allow: "
            f"choose one of {_element_wise_ones()}, or another kvstore"
        )


def check_channels(name: str, way: str) -> None:
    """Raise ConfigError for an optimizer that looks at whole parameters, where nobody has them."""
    if way == CHANNELS and not is_element_wise(optimizer_kind(name).cls):
        raise ConfigError(
            f"--split {way} gives each device a part of a parameter, and {name} looks at whole "
            f"ones: choose one of {_element_wise_ones()}, or another --split"
        )


def _element_wise_ones() -> str:
    return ", ".join(name for name, kind in OPTIMIZERS.items() if is_element_wise(kind.cls))


def spare_biases(net: gluon.Block) -> None:
    """No weight decay for biases, nor for the scale and shift of normalisations.

    He et al., "Bag of tricks for image classification with convolutional neural networks", 2019,
    section 3.1.
    """
    net.collect_params(NO_DECAY).setattr("wd_mult", 0.0)
