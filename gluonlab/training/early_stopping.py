"""--patience: a training ends when its test accuracy or loss has not become better for some epochs.

Prechelt, "Early stopping - but when?", 1998, calls it UP: the parameters that stay are those of the
best epoch.
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence

from gluonlab.config.values import LOSS, Patience
from gluonlab.runs.schema import Epoch
from gluonlab.training.callbacks import Callback, RunView
from gluonlab.training.evaluate import Score


def goodness(patience: Optional[Patience], accuracy: float, loss: Optional[float]) -> float:
    """How good an epoch is, the larger the better: by its accuracy, or minus its loss."""
    by_loss = patience is not None and patience.monitored == LOSS
    return -loss if by_loss and loss is not None else accuracy


def best_epoch(patience: Optional[Patience], history: Sequence[Epoch]) -> Optional[int]:
    """The first of the best epochs, from 1; None without patience, where the last one counts."""
    if patience is None:
        return None
    scores = [goodness(patience, epoch.accuracy, epoch.validation_loss) for epoch in history]
    return 1 + scores.index(max(scores))


class EarlyStopping(Callback):
    """Stops after as many epochs in a row that are no better than the best one before.

    Every process has one, since all know the same numbers. ``best_epoch``: the first of the best,
    whose parameters stay. ``digest``: the SHA-256 of its file of parameters, at rank 0.
    """

    def __init__(self, patience: Patience) -> None:
        self.patience = patience
        self.best: Optional[float] = None
        self.best_epoch: Optional[int] = None
        self.waited, self.digest = 0, ""

    def on_run_start(self, run: RunView) -> None:
        """A run that goes on with less patience may have none left."""
        self._stop_if_over(run)

    def on_evaluation(self, run: RunView, score: Score) -> None:
        """Compare with the best so far."""
        now = goodness(self.patience, score.accuracy, score.loss)
        if self.best is None or now > self.best:
            self.best, self.best_epoch, self.waited = now, len(run.history) + 1, 0
        else:
            self.waited += 1

    def on_epoch_end(self, run: RunView, epoch: Epoch) -> None:
        """Stop if patience is over."""
        self._stop_if_over(run)

    def _stop_if_over(self, run: RunView) -> None:
        epochs, monitored = self.patience
        if self.waited >= epochs:
            many = f"{epochs} epoch{'s' * (epochs > 1)}"
            run.stop(f"no better test {monitored} in {many} after epoch {self.best_epoch}")

    def state_dict(self) -> Dict[str, Any]:
        """The best, and the epochs since."""
        return {
            "monitored": self.patience.monitored, "best": self.best, "waited": self.waited,
            "best_epoch": self.best_epoch, "digest": self.digest,
        }  # fmt: skip

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Go on counting, where the same is looked at."""
        if state["monitored"] == self.patience.monitored:
            self.best, self.best_epoch = state["best"], state["best_epoch"]
            self.waited, self.digest = state["waited"], state["digest"]

    def forget(self) -> None:
        """The best parameters are gone: the next epoch's are the best."""
        self.best, self.best_epoch, self.digest = None, None, ""
