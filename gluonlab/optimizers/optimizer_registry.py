"""What ``--optimizer`` offers. The tests compare each with its definition in float64.

MXNet has more of them, and other definitions of some. Where its own agrees it is taken as it is;
where it does not, there is one here; and what cannot be of use here is not offered.

| name     | here       | what MXNet's own does otherwise                                         |
|----------|------------|-------------------------------------------------------------------------|
| sgd      | `SGD`      | the rate is part of the momentum (``--momentum-rule mxnet``)            |
| nag      | `NAG`      | the same, and weight decay reads the weight that was just updated       |
| adam     | `Adam`     | 0/0 in float16; else MXNet's, epsilon beside the root before correction |
| adamax   | `Adamax`   | no epsilon: 0/0 for what has never had a gradient                       |
| nadam    | `Nadam`    | each parameter and device is a step of the momentum's schedule          |
| adadelta | `AdaDelta` | no learning rate; weight decay beside it; changes the gradients         |
| adagrad  | `AdaGrad`  | epsilon 1e-7 under the root, weight decay past the division             |
| rmsprop  | `RMSProp`  | float32 only; else MXNet's, epsilon under the root (PyTorch: beside)    |
| ftml     | `FTML`     | divides by the rate, 0/0 at a rate of 0, three states for one           |
| signum   | `Signum`   | weight decay means something else without momentum                      |
| lars     | `LARS`     | corrects the momentum of some parameters only, spares no biases         |
| lamb     | `LAMB`     | inexact norms                                                           |

In all of them but lamb weight decay is the gradient of a penalty wd / 2 |w|^2, so adaptive ones
divide it, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Optional, Type

import mxnet as mx

from gluonlab.errors import ConfigError, unknown
from gluonlab.optimizers.adaptive import FTML, AdaDelta, AdaGrad, Adam, Adamax, Nadam, RMSProp
from gluonlab.optimizers.layerwise import LAMB, LARS
from gluonlab.optimizers.sgd import CORRECTED, MXNET, NAG, SGD
from gluonlab.optimizers.signum import Signum


@dataclass(frozen=True)
class OptimizerKind:
    """One optimizer: its class, and what others must know about it.

    ``momentum``: whether --momentum means anything to it. ``element_wise``: its update of an
    element looks at that element only, so it does not matter what lies beside it.
    ``by_mxnets_rule``: the class in which the rate is part of the momentum, if there is one.
    """

    cls: Type[mx.optimizer.Optimizer]
    summary: str
    momentum: bool = False
    element_wise: bool = True
    by_mxnets_rule: Optional[Type[mx.optimizer.Optimizer]] = None


OPTIMIZERS: Dict[str, OptimizerKind] = {
    "sgd": OptimizerKind(
        SGD,
        "down the gradient, with momentum or without: PyTorch's SGD",
        momentum=True,
        by_mxnets_rule=mx.optimizer.SGD,
    ),
    "nag": OptimizerKind(
        NAG,
        "the gradient is taken where momentum leads: PyTorch's SGD, nesterov=True",
        momentum=True,
        by_mxnets_rule=mx.optimizer.NAG,
    ),
    "adam": OptimizerKind(
        Adam, "momentum over the root of the mean squared gradient: Kingma, Ba 2015"
    ),
    "adamax": OptimizerKind(
        Adamax, "momentum over the largest gradient so far, which fades: PyTorch's Adamax"
    ),
    "nadam": OptimizerKind(Nadam, "adam with Nesterov's momentum: PyTorch's NAdam"),
    "adadelta": OptimizerKind(
        AdaDelta, "steps as large as those before, times --lr (1): PyTorch's Adadelta"
    ),
    "adagrad": OptimizerKind(
        AdaGrad, "the gradient over the root of the sum of all squared ones: PyTorch's Adagrad"
    ),
    "rmsprop": OptimizerKind(
        RMSProp, "the gradient over the root of the mean squared one: Tieleman, Hinton 2012"
    ),
    "ftml": OptimizerKind(
        FTML, "rmsprop, larger at first: Zheng, Kwok 2017, follow the moving leader"
    ),
    "signum": OptimizerKind(
        Signum, "the sign of the momentum: Bernstein et al. 2018", momentum=True
    ),
    "lars": OptimizerKind(
        LARS,
        "sgd with a rate for each parameter, by its norm: You et al. 2017, for large batches",
        momentum=True,
        element_wise=False,
    ),
    "lamb": OptimizerKind(
        LAMB,
        "adam with a rate for each parameter, by its norm: You et al. 2020, for large batches",
        element_wise=False,
    ),
}

NOT_OFFERED = {
    "ccsgd": "is an old name of sgd: choose sgd",
    "dcasgd": "makes up for late gradients, and here none is late: choose sgd",
    "ftrl": "begins at weights of 0, from which no layer below the last learns: choose adagrad",
    "groupadagrad": "takes the rows of embeddings only: choose adagrad",
    "lbsgd": (
        "is sgd with a warm-up of its own, for all devices together: "
        "choose sgd with --warmup-epochs, or lars"
    ),
    "sgld": (
        "draws samples, with noise for the gradient of the whole data set, "
        "not of a batch's mean: choose sgd"
    ),
}

# MXNet's own, which a user's own loop may have.
MXNETS_ELEMENT_WISE = (
    mx.optimizer.SGD, mx.optimizer.NAG, mx.optimizer.Adam, mx.optimizer.RMSProp,
    mx.optimizer.AdaGrad, mx.optimizer.AdaDelta, mx.optimizer.Adamax, mx.optimizer.Ftrl,
    mx.optimizer.FTML, mx.optimizer.Signum,
)  # fmt: skip
ELEMENT_WISE = {
    *MXNETS_ELEMENT_WISE,
    *(kind.cls for kind in OPTIMIZERS.values() if kind.element_wise),
}
# Those that keep something for all devices which each of them changes, or that draw noise for each.
DRIFTING = {
    mx.optimizer.Nadam: "use gluonlab.optimizers.Nadam",
    mx.optimizer.LARS: "use gluonlab.optimizers.LARS",
    mx.optimizer.LBSGD: "use gluonlab.optimizers.LARS, or SGD",
    mx.optimizer.SGLD: "use one device",
}


def is_element_wise(optimizer: "Type[mx.optimizer.Optimizer]") -> bool:
    """Whether an update of this class looks at one element at a time.

    Subclasses could do anything, so the answer for them is no.
    """
    return optimizer in ELEMENT_WISE


def check_replicas(optimizer: mx.optimizer.Optimizer, device_count: int) -> None:
    """Raise ConfigError for one of MXNet's that does not make the same update on all devices."""
    kind = type(optimizer)
    if device_count > 1 and kind in DRIFTING:
        drifts = f"mx.optimizer.{kind.__name__} lets {device_count} replicas drift apart"
        raise ConfigError(f"{drifts}: {DRIFTING[kind]}")


def optimizer_kind(name: str) -> OptimizerKind:
    """The optimizer that is offered under this name, in upper or lower case.

    Raises ConfigError, with the choices, or the reason.
    """
    if name.lower() in NOT_OFFERED:
        raise ConfigError(f"--optimizer {name} is not offered: it {NOT_OFFERED[name.lower()]}")
    if name.lower() not in OPTIMIZERS:
        raise ConfigError(unknown("optimizer", name, OPTIMIZERS))
    return OPTIMIZERS[name.lower()]


def make_optimizer(
    name: str, params: Dict[str, Any], momentum_rule: str = CORRECTED
) -> mx.optimizer.Optimizer:
    """A new optimizer by name, for gluon.Trainer or BucketedTrainer.

    ``gluon.Trainer(net.collect_params(), make_optimizer("nag", {"learning_rate": 0.1}))``.
    ``params``: what its class takes. Raises ConfigError for a name that is not offered.
    """
    kind = optimizer_kind(name)
    mxnets = kind.by_mxnets_rule if momentum_rule == MXNET else None
    return (mxnets or kind.cls)(**params)
