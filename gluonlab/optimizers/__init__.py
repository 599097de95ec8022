"""Optimizers that follow their published definitions.

Example: ``BucketedTrainer(net.collect_params(), SGD(learning_rate=0.1, momentum=0.9))``. Passing
the name ``"sgd"`` instead of an instance would select MXNet's SGD, as for gluon.Trainer.
`optimizer_registry` lists the optimizers for ``--optimizer``.
"""

from gluonlab.optimizers.adaptive import FTML, AdaDelta, AdaGrad, Adam, Adamax, Nadam, RMSProp
from gluonlab.optimizers.layerwise import LAMB, LARS
from gluonlab.optimizers.optimizer_registry import OPTIMIZERS, make_optimizer
from gluonlab.optimizers.sgd_and_nag import NAG, SGD
from gluonlab.optimizers.signum import Signum

__all__ = [
    "FTML", "LAMB", "LARS", "NAG", "OPTIMIZERS", "SGD", "AdaDelta", "AdaGrad", "Adam", "Adamax",
    "Nadam", "RMSProp", "Signum", "make_optimizer",
]  # fmt: skip
