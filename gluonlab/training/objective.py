"""What training minimises: the cross entropy of the scores, with smoothed labels on request."""

from __future__ import annotations

from typing import Any

from mxnet import gluon


class SmoothedCrossEntropy(gluon.HybridBlock):
    """Cross entropy with labels that give each of the K classes ``smoothing`` / K of the certainty, and the right one the rest.

    ``scores`` (n, K), ``labels`` (n,) of whole numbers -> (n,). Szegedy et al., "Rethinking the inception architecture for
    computer vision", 2016, section 7; the same as PyTorch's ``CrossEntropyLoss(label_smoothing=...)``.
    Where nothing is learned, ``unsmoothed`` is the loss, so that runs with and without smoothing can be compared.
    """

    def __init__(self, smoothing: float) -> None:
        super().__init__()
        self.smoothing = smoothing
        self.unsmoothed = gluon.loss.SoftmaxCrossEntropyLoss()

    def hybrid_forward(self, F: Any, scores: Any, labels: Any) -> Any:
        """(n, K), (n,) -> (n,)"""
        log_probabilities = F.log_softmax(scores, axis=-1)
        right = F.pick(log_probabilities, labels, axis=-1)
        return -(1 - self.smoothing) * right - self.smoothing * log_probabilities.mean(axis=-1)


def make_loss(label_smoothing: float = 0.0) -> gluon.HybridBlock:
    """The loss of a run, one value per image; Gluon's own where smoothing would change nothing."""
    return SmoothedCrossEntropy(label_smoothing) if 1 - label_smoothing < 1 else gluon.loss.SoftmaxCrossEntropyLoss()
