"""Optimizers by their definitions; `registry` lists what ``--optimizer`` offers.

trainer = BucketedTrainer(net.collect_params(), SGD(learning_rate=0.1, momentum=0.9), ...)

A plain ``"sgd"`` is MXNet's own there, as for gluon.Trainer.
"""

from gluonlab.optimizers.adaptive import FTML, AdaDelta, AdaGrad, Adam, Adamax, Nadam, RMSProp
from gluonlab.optimizers.layerwise import LAMB, LARS
from gluonlab.optimizers.optimizer_registry import OPTIMIZERS, make_optimizer
from gluonlab.optimizers.sgd import NAG, SGD
from gluonlab.optimizers.signum import Signum

__all__ = [
    "FTML", "LAMB", "LARS", "NAG", "OPTIMIZERS", "SGD", "AdaDelta", "AdaGrad", "Adam", "Adamax",
    "Nadam", "RMSProp", "Signum", "make_optimizer",
]  # fmt: skip
