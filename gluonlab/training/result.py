"""What a run gives: numbers for each epoch, the trained network, and the folder that holds them."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional

from mxnet import gluon

from gluonlab.training.evaluate import Confusion
from gluonlab.training.plan import Plan


@dataclass(frozen=True)
class Epoch:
    """What one pass over the training images gave; ``seconds`` are those of training alone.

    ``waiting``: the fraction of them in which the loop waited for batches.
    """

    epoch: int
    step: int
    images: int
    seconds: float
    loss: float
    accuracy: float
    validation_loss: float
    waiting: float = 0.0
    top5_accuracy: Optional[float] = None  # where there are more than five classes

    @property
    def images_per_second(self) -> float:
        """Training images per second."""
        return self.images / self.seconds


@dataclass
class Result:
    """What a run gave; ``net`` holds the trained parameters on ``ctxs``."""

    plan: Plan
    net: gluon.HybridBlock
    run_dir: Path
    first_step_seconds: float = 0.0
    seconds: float = 0.0
    history: List[Epoch] = field(default_factory=list)
    confusion: Optional[Confusion] = None

    @property
    def accuracy(self) -> float:
        """The fraction of test images that the network gets right after the last epoch."""
        return self.history[-1].accuracy

    @property
    def images_per_second(self) -> float:
        """The median over the epochs; without the first when there are others, for it also warms
        up.
        """
        rates = [epoch.images_per_second for epoch in self.history]
        return statistics.median(rates[1:] or rates)

    @property
    def waiting(self) -> float:
        """The fraction of the epochs' time in which the loop waited for batches."""
        return sum(epoch.waiting * epoch.seconds for epoch in self.history) / sum(
            epoch.seconds for epoch in self.history
        )

    def summary(self) -> Dict[str, Any]:
        """The numbers as plain values."""
        return {
            **self.plan.settings(),
            "accuracy": self.accuracy,
            "top5_accuracy": self.history[-1].top5_accuracy,
            "images_per_second": self.images_per_second,
            "waiting": self.waiting,
            "first_step_seconds": self.first_step_seconds,
            "seconds": self.seconds,
            "run_dir": str(self.run_dir),
            "history": [vars(epoch) for epoch in self.history],
            **({"confusion": self.confusion.tolist()} if self.confusion is not None else {}),
        }
