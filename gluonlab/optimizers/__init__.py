"""Optimizers by their published definitions. `optimizer_registry` lists those of ``--optimizer``.

Example: ``BucketedTrainer(net.collect_params(), SGD(learning_rate=0.1, momentum=0.9))``. There, a
plain ``"sgd"`` is MXNet's SGD, as for gluon.Trainer.
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
