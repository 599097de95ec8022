"""What training minimises: cross entropy, with smoothed or mixed labels on request."""

from __future__ import annotations

from typing import Any, Dict, Optional

from mxnet import gluon


class SmoothedCrossEntropy(gluon.HybridBlock):
    """Cross entropy in which each of K classes has ``smoothing`` / K of a label's weight.

    The right class has the rest, too.
    ``scores`` (n, K), ``labels`` (n,) of whole numbers -> (n,). Szegedy et al., "Rethinking the
    inception architecture for computer vision", 2016, section 7; the same as PyTorch's
    ``CrossEntropyLoss(label_smoothing=...)``. Where nothing is learned, ``unsmoothed`` is the loss,
    so that runs with and without smoothing can be compared.
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


class MixedLoss(gluon.HybridBlock):
    """A loss for mixtures of two images: that with the label of each, in the shares that they have.

    ``scores`` (n, K), ``labels`` (n, 3) as `gluonlab.data.loading.mixup.Mixup` makes them: two
    labels, and the share of the first -> (n,). Cross entropy, smoothed or not, is linear in the
    label's certainties: this is the one with mixed one-hot labels.
    """

    def __init__(self, loss: gluon.HybridBlock) -> None:
        super().__init__()
        self.loss = loss

    def hybrid_forward(self, F: Any, scores: Any, labels: Any) -> Any:
        """(n, K), (n, 3) -> (n,)"""
        parts = (F.slice_axis(labels, axis=1, begin=i, end=i + 1) for i in range(3))
        first, second, share = (part.reshape((-1,)) for part in parts)
        return share * self.loss(scores, first) + (1 - share) * self.loss(scores, second)


def make_loss(
    label_smoothing: float = 0.0, mixed: bool = False, own: Optional[gluon.HybridBlock] = None
) -> gluon.HybridBlock:
    """The loss of a run, one value per image; Gluon's own where smoothing would change nothing.

    ``mixed``: a MixedLoss of it. ``own``: the user's, in place of cross entropy.
    """
    loss = own
    if loss is None:
        loss = (
            SmoothedCrossEntropy(label_smoothing)
            if 1 - label_smoothing < 1
            else gluon.loss.SoftmaxCrossEntropyLoss()
        )
    return MixedLoss(loss) if mixed else loss


def constants_of(loss: gluon.HybridBlock) -> Dict[str, gluon.Parameter]:
    """The arrays that a loss keeps, such as class weights, by name; nothing trains them."""
    return dict(loss.collect_params().items())


def scoring_loss(loss: gluon.HybridBlock) -> gluon.HybridBlock:
    """What a loss is where nothing is learned, and labels are whole numbers (n,)."""
    if isinstance(loss, MixedLoss):
        loss = loss.loss
    return loss.unsmoothed if isinstance(loss, SmoothedCrossEntropy) else loss
