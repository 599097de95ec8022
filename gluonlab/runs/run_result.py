"""What a run gives: numbers for each epoch, the trained network, and the folder that holds them."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence

from gluonlab.errors import ConfigError
from gluonlab.runs.data_frame import EPOCHS, run_frame
from gluonlab.runs.run_schema import Epoch

if TYPE_CHECKING:
    from pandas import DataFrame


def usual_speed(epochs: Sequence[Any]) -> float:
    """The median of the epochs' images per second, but for the first of several: it warms up."""
    rates: List[float] = [epoch.images_per_second for epoch in epochs]
    return statistics.median(rates[1:] or rates)


@dataclass
class Result:
    """What a run gave.

    ``net``, a HybridBlock, holds the trained parameters on the devices of ``plan``, a
    `gluonlab.training.plan.Plan`.
    ``run_dir`` is None in a process of a group that is not rank 0, which alone writes.
    ``confusion``: if asked for, that of the network (`gluonlab.training.evaluate.Confusion`).
    ``stopped``: by which callback, and why, training ended before its last epoch. ``best_epoch``:
    the one whose parameters the network has, where --patience keeps the best.
    ``onnx``: how nearly an exported ONNX model agrees (`gluonlab.export.onnx_graph.Agreement`).
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
    def kept(self) -> Epoch:
        """The epoch whose parameters the network has: the last one, or with --patience the best."""
        return self.history[-1 if self.best_epoch is None else self.best_epoch - 1]

    @property
    def accuracy(self) -> float:
        """The fraction of test images that the network gets right."""
        return self.kept.accuracy

    @property
    def images_per_second(self) -> float:
        """That of `usual_speed`."""
        return usual_speed(self.history)

    @property
    def waiting(self) -> float:
        """The fraction of the epochs' training time in which the loop waited for batches."""
        waited = sum(epoch.waiting * epoch.training_seconds for epoch in self.history)
        return waited / sum(epoch.training_seconds for epoch in self.history)

    def frame(self, of: str = EPOCHS) -> "DataFrame":
        """Its epochs or steps (``of``), a row each, as a pandas frame, see `gluonlab.frame`.

        Raises ConfigError without pandas, and where another process has the folder.
        """
        if self.run_dir is None:
            raise ConfigError("this process has no folder of the run: ask for frames at rank 0")
        return run_frame(self.run_dir, of)

    def summary(self) -> Dict[str, Any]:
        """The numbers as plain values."""
        return {
            **self.plan.settings(),
            "accuracy": self.accuracy,
            "top5_accuracy": self.kept.top5_accuracy,
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
