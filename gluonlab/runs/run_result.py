"""The result of a run: metrics of each epoch, the trained network, and the run's folder."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence

from gluonlab.errors import ConfigError
from gluonlab.renamed import RenamedMember
from gluonlab.runs.run_schema import Epoch

if TYPE_CHECKING:
    from pandas import DataFrame


def usual_speed(epochs: Sequence[Any]) -> float:
    """Return the median of the epochs' images per second, without the first epoch (warm-up)."""
    rates: List[float] = [epoch.images_per_second for epoch in epochs]
    return statistics.median(rates[1:] or rates)


@dataclass
class Result:
    """The result of a training run.

    Attributes:
        plan: the settings that the run used, a `gluonlab.training.plan.Plan`.
        net: the trained network, a HybridBlock with its parameters on the devices of ``plan``.
        run_dir: the run's folder, which rank 0 writes; None in the other processes.
        first_step_seconds: the time until the first step was done, in seconds.
        seconds: the time of the whole run, in seconds.
        history: the metrics of each epoch.
        confusion: the confusion matrix (classes, classes) of the network, if requested. Entry
            [i, j] counts validation images of class i that were classified as class j.
        stopped: the callback that stopped the training before the last epoch, and its reason.
        best_epoch: the number of the best epoch, counted from 1, if --patience was used. The
            network has the parameters of this epoch.
        onnx: the agreement of an exported ONNX model with MXNet, a
            `gluonlab.export.onnx_graph.Agreement`.
    """

    plan: Any
    net: Any
    run_dir: Optional[Path]
    first_step_seconds: float = 0.0
    seconds: float = 0.0
    history: List[Epoch] = field(default_factory=list)
    confusion: Any = None
    stopped: Optional[str] = None
    best_epoch: Optional[int] = None
    onnx: Any = None

    @property
    def kept_epoch(self) -> Epoch:
        """The epoch whose parameters the network has: the last or, with --patience, the best."""
        return self.history[-1 if self.best_epoch is None else self.best_epoch - 1]

    kept = RenamedMember("kept_epoch")

    @property
    def val_accuracy(self) -> float:
        """The fraction of validation images that are classified correctly."""
        return self.kept_epoch.val_accuracy

    accuracy = RenamedMember("val_accuracy")

    @property
    def images_per_second(self) -> float:
        """The typical training throughput, in images per second."""
        return usual_speed(self.history)

    @property
    def waiting(self) -> float:
        """The fraction of the training time in which the loop waited for batches."""
        waited = sum(epoch.waiting * epoch.training_seconds for epoch in self.history)
        return waited / sum(epoch.training_seconds for epoch in self.history)

    def frame(self, of: str = "epochs") -> "DataFrame":
        """Return a pandas data frame with one row per epoch or step (see `gluonlab.frame`).

        Args:
            of: ``"epochs"`` or ``"steps"``.

        Raises:
            ConfigError: pandas is not installed, or this process has no run folder, because its
                rank is not 0.
        """
        if self.run_dir is None:
            raise ConfigError("this process has no run directory: call frame() on rank 0")
        from gluonlab.runs.data_frame import run_frame

        return run_frame(self.run_dir, of)

    def summary(self) -> Dict[str, Any]:
        """Return the result as plain values."""
        return {
            **self.plan.settings(),
            "val_accuracy": self.val_accuracy,
            "val_top5_accuracy": self.kept_epoch.val_top5_accuracy,
            "images_per_second": self.images_per_second,
            "waiting": self.waiting,
            "first_step_seconds": self.first_step_seconds,
            "seconds": self.seconds,
            "run_dir": str(self.run_dir),
            **({"best_epoch": self.best_epoch} if self.best_epoch is not None else {}),
            **({"stopped": self.stopped} if self.stopped is not None else {}),
            "history": [vars(epoch) for epoch in self.history],
            **({"confusion": self.confusion.tolist()} if self.confusion is not None else {}),
            **({"onnx_difference": self.onnx.difference} if self.onnx is not None else {}),
        }
