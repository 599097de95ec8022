"""Registry of the optimizers for ``--optimizer``, and their properties.

gluonlab's classes follow the published definitions. Tests compare each optimizer with its
definition in float64. The table shows why MXNet's class is not used as it is:

| name     | class      | MXNet's class                                                       |
|----------|------------|---------------------------------------------------------------------|
| sgd      | `SGD`      | includes the learning rate in the momentum                          |
| nag      | `NAG`      | like sgd; also, weight decay reads the weight that was just updated |
| adam     | `Adam`     | divides 0 by 0 in float16; otherwise the same                       |
| adamax   | `Adamax`   | divides 0 by 0 for gradients that were always 0 (no epsilon)        |
| nadam    | `Nadam`    | advances the momentum schedule for each parameter and each device   |
| adadelta | `AdaDelta` | ignores the learning rate and changes the gradients                 |
| adagrad  | `AdaGrad`  | adds epsilon inside the root, and weight decay after the division   |
| rmsprop  | `RMSProp`  | works only for float32; otherwise the same                          |
| ftml     | `FTML`     | divides by the learning rate and keeps three states instead of one  |
| signum   | `Signum`   | without momentum, applies weight decay outside of the sign          |
| lars     | `LARS`     | corrects the momentum of only some parameters; also scales biases   |
| lamb     | `LAMB`     | computes inexact norms                                              |

``--momentum-rule mxnet`` selects MXNet's classes for sgd and nag. Like MXNet, adam adds epsilon to
the root before bias correction, and rmsprop adds epsilon inside the root (PyTorch: outside).

In all optimizers except lamb, weight decay is the gradient of a penalty wd / 2 |w|^2. So adaptive
optimizers scale the weight decay in the same way as the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Optional, Type

import mxnet as mx

from gluonlab.errors import ConfigError, unknown
from gluonlab.optimizers.adaptive import FTML, AdaDelta, AdaGrad, Adam, Adamax, Nadam, RMSProp
from gluonlab.optimizers.layerwise import LAMB, LARS
from gluonlab.optimizers.sgd_and_nag import CORRECTED, MXNET, NAG, SGD
from gluonlab.optimizers.signum import Signum


@dataclass(frozen=True)
class OptimizerKind:
    """Class and properties of an optimizer.

    ``momentum``: whether the optimizer accepts --momentum. ``element_wise``: whether the update of
    an element depends only on that element. Such an optimizer can update whole buckets.
    ``mxnet_rule_class`` is the class for ``--momentum-rule mxnet``, if there is one.
    """

    cls: Type[mx.optimizer.Optimizer]
    summary: str
    momentum: bool = False
    element_wise: bool = True
    mxnet_rule_class: Optional[Type[mx.optimizer.Optimizer]] = None


OPTIMIZERS: Dict[str, OptimizerKind] = {
    "sgd": OptimizerKind(
        SGD,
        "gradient descent with or without momentum: PyTorch's SGD",
        momentum=True,
        mxnet_rule_class=mx.optimizer.SGD,
    ),
    "nag": OptimizerKind(
        NAG,
        "SGD with Nesterov momentum: PyTorch's SGD, nesterov=True",
        momentum=True,
        mxnet_rule_class=mx.optimizer.NAG,
    ),
    "adam": OptimizerKind(Adam, "momentum divided by the root of the mean squared gradient: Kingma, Ba 2015"),
    "adamax": OptimizerKind(Adamax, "momentum divided by the largest recent gradient: PyTorch's Adamax"),
    "nadam": OptimizerKind(Nadam, "adam with Nesterov momentum: PyTorch's NAdam"),
    "adadelta": OptimizerKind(AdaDelta, "steps as large as the previous steps, times --lr (1): PyTorch's Adadelta"),
    "adagrad": OptimizerKind(
        AdaGrad, "gradient divided by the root of the sum of all squared gradients: PyTorch's Adagrad"
    ),
    "rmsprop": OptimizerKind(
        RMSProp, "gradient divided by the root of the mean squared gradient: Tieleman, Hinton 2012"
    ),
    "ftml": OptimizerKind(FTML, "rmsprop with larger first steps: Zheng, Kwok 2017, follow the moving leader"),
    "signum": OptimizerKind(Signum, "the sign of the momentum: Bernstein et al. 2018", momentum=True),
    "lars": OptimizerKind(
        LARS,
        "sgd with a learning rate for each parameter, from its norm: You et al. 2017, for large batches",
        momentum=True,
        element_wise=False,
    ),
    "lamb": OptimizerKind(
        LAMB,
        "adam with a learning rate for each parameter, from its norm: You et al. 2020, for large batches",
        element_wise=False,
    ),
}

NOT_OFFERED = {
    "ccsgd": "is an old name of sgd: choose sgd",
    "dcasgd": "is meant only for the late gradients of asynchronous training: choose sgd",
    "ftrl": "starts with weights of 0, so layers below the last one do not learn: choose adagrad",
    "groupadagrad": "only updates rows of embeddings: choose adagrad",
    "lbsgd": "is sgd with a built-in warm-up: choose sgd with --warmup-epochs, or lars",
    "sgld": "draws samples, and needs the gradient of the whole data set, not the mean of a batch: choose sgd",
}

# MXNet's element-wise optimizers, which a user's training loop may use.
_NAMES = ("SGD", "NAG", "Adam", "RMSProp", "AdaGrad", "AdaDelta", "Adamax", "Ftrl", "FTML", "Signum")
MXNET_ELEMENT_WISE = tuple(getattr(mx.optimizer, name) for name in _NAMES)
ELEMENT_WISE = {*MXNET_ELEMENT_WISE, *(kind.cls for kind in OPTIMIZERS.values() if kind.element_wise)}
# Optimizers of MXNet under which replicas diverge, and the advice of the error message. Either all
# devices change one common value, or each device adds different noise.
DIVERGING = {
    mx.optimizer.Nadam: "use gluonlab.optimizers.Nadam",
    mx.optimizer.LARS: "use gluonlab.optimizers.LARS",
    mx.optimizer.LBSGD: "use gluonlab.optimizers.LARS, or SGD",
    mx.optimizer.SGLD: "use one device",
}


def is_element_wise(optimizer: "Type[mx.optimizer.Optimizer]") -> bool:
    """Return whether an element's update depends only on the element; False for unknown classes."""
    return optimizer in ELEMENT_WISE


def check_replicas_stay_equal(optimizer: mx.optimizer.Optimizer, device_count: int) -> None:
    """Raise ConfigError for an MXNet optimizer that makes replicas diverge."""
    kind = type(optimizer)
    if device_count > 1 and kind in DIVERGING:
        drifts = f"mx.optimizer.{kind.__name__} makes the {device_count} replicas diverge"
        raise ConfigError(f"{drifts}: {DIVERGING[kind]}")


def optimizer_kind(name: str) -> OptimizerKind:
    """Return the optimizer with this name, ignoring case. Raise ConfigError for any other name."""
    if name.lower() in NOT_OFFERED:
        raise ConfigError(f"--optimizer {name} is not supported, because it {NOT_OFFERED[name.lower()]}")
    if name.lower() not in OPTIMIZERS:
        raise ConfigError(unknown("optimizer", name, OPTIMIZERS))
    return OPTIMIZERS[name.lower()]


def make_optimizer(name: str, params: Dict[str, Any], momentum_rule: str = CORRECTED) -> mx.optimizer.Optimizer:
    """Create an optimizer by name, for gluon.Trainer or BucketedTrainer.

    Example: ``gluon.Trainer(net.collect_params(), make_optimizer("nag", {"learning_rate": 0.1}))``.

    Args:
        name: A name in `OPTIMIZERS`, in upper or lower case.
        params: Arguments for the optimizer's class.
        momentum_rule: "corrected" or "mxnet", as for ``--momentum-rule``.

    Raises:
        ConfigError: For an unknown name.
    """
    kind = optimizer_kind(name)
    mxnet_class = kind.mxnet_rule_class if momentum_rule == MXNET else None
    return (mxnet_class or kind.cls)(**params)
