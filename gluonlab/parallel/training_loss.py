"""What training minimises: cross entropy, with smoothed, mixed or weighted labels on request."""

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


class WeightedLoss(gluon.HybridBlock):
    """A loss in which each image has a weight, as Gluon's ``sample_weight``.

    ``scores`` (n, K), ``labels`` (n, 2): a label and its weight, as a split with weights gives them
    (`gluonlab.data.sets.dataset.LabeledSplit`) -> (n,).
    """

    def __init__(self, loss: gluon.HybridBlock) -> None:
        super().__init__()
        self.loss = loss

    def hybrid_forward(self, F: Any, scores: Any, labels: Any) -> Any:
        """(n, K), (n, 2) -> (n,)"""
        parts = (F.slice_axis(labels, axis=1, begin=i, end=i + 1) for i in range(2))
        label, weight = (part.reshape((-1,)) for part in parts)
        return weight * self.loss(scores, label)


class MixedLoss(gluon.HybridBlock):
    """A loss for mixtures of two images: that with the label of each, in the shares that they have.

    ``scores`` (n, K), ``labels`` (n, 3) as `gluonlab.data.loading.augmentation.Mixup` makes them:
    two labels, and the share of the first -> (n,). Cross entropy, smoothed or not, is linear in the
    label's certainties: this is the one with mixed one-hot labels. Of a WeightedLoss each label has
    its weight behind it: (n, 5).
    """

    def __init__(self, loss: gluon.HybridBlock) -> None:
        super().__init__()
        self.loss = loss
        self.columns = label_columns(loss)  # of each of the two labels

    def hybrid_forward(self, F: Any, scores: Any, labels: Any) -> Any:
        """(n, K), (n, 3 or 5) -> (n,)"""
        width = self.columns or 1
        ends = (width, 2 * width, 2 * width + 1)
        parts = [
            F.slice_axis(labels, axis=1, begin=begin, end=end)
            for begin, end in zip((0, *ends), ends)
        ]
        first, second = parts[:2] if self.columns else (part.reshape((-1,)) for part in parts[:2])
        share = parts[2].reshape((-1,))
        return share * self.loss(scores, first) + (1 - share) * self.loss(scores, second)


def label_columns(loss: gluon.HybridBlock) -> int:
    """How many float32 numbers the loss takes for an image; 0: a whole number, labels (n,)."""
    if isinstance(loss, MixedLoss):
        return 2 * (loss.columns or 1) + 1
    return 2 if isinstance(loss, WeightedLoss) else 0


def make_loss(
    label_smoothing: float = 0.0,
    mixed: bool = False,
    own: Optional[gluon.HybridBlock] = None,
    weighted: bool = False,
) -> gluon.HybridBlock:
    """The loss of a run, one value per image; Gluon's own where smoothing would change nothing.

    ``mixed``: a MixedLoss of it. ``own``: the user's, in place of cross entropy. ``weighted``: a
    WeightedLoss of it.
    """
    loss = own
    if loss is None:
        loss = (
            SmoothedCrossEntropy(label_smoothing)
            if 1 - label_smoothing < 1
            else gluon.loss.SoftmaxCrossEntropyLoss()
        )
    if weighted:
        loss = WeightedLoss(loss)
    return MixedLoss(loss) if mixed else loss


def constants_of(loss: gluon.HybridBlock) -> Dict[str, gluon.Parameter]:
    """The arrays that a loss keeps, such as class weights, by name; nothing trains them."""
    return dict(loss.collect_params().items())


def scoring_loss(loss: gluon.HybridBlock) -> gluon.HybridBlock:
    """What a loss is where nothing is learned, and labels are whole numbers (n,)."""
    while isinstance(loss, (MixedLoss, WeightedLoss)):
        loss = loss.loss
    return loss.unsmoothed if isinstance(loss, SmoothedCrossEntropy) else loss
