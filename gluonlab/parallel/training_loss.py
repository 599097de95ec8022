"""Training losses: cross entropy, optionally with smoothed, mixed or weighted labels."""

from __future__ import annotations

from typing import Any, Dict, Optional

from mxnet import gluon


class SmoothedCrossEntropy(gluon.HybridBlock):
    """Cross entropy with label smoothing.

    The target probability of each of the K classes is ``smoothing`` / K. The target probability of
    the label's class is 1 - ``smoothing`` higher. Inputs: ``scores`` (n, K) and integer ``labels``
    (n,); output: losses (n,). See Szegedy et al., "Rethinking the inception architecture for
    computer vision", 2016, section 7. PyTorch's ``CrossEntropyLoss(label_smoothing=...)`` computes
    the same loss. Evaluation uses ``unsmoothed``, so that runs with and without smoothing can be
    compared.
    """

    def __init__(self, smoothing: float) -> None:
        super().__init__()
        self.smoothing = smoothing
        self.unsmoothed = gluon.loss.SoftmaxCrossEntropyLoss()

    def hybrid_forward(self, F: Any, scores: Any, labels: Any) -> Any:
        """Return the loss of each image, (n,), from scores (n, classes) and labels (n,)."""
        log_probabilities = F.log_softmax(scores, axis=-1)
        label_log_probability = F.pick(log_probabilities, labels, axis=-1)
        return -(1 - self.smoothing) * label_log_probability - self.smoothing * log_probabilities.mean(axis=-1)


class WeightedLoss(gluon.HybridBlock):
    """A loss with a weight for each image, like Gluon's ``sample_weight``.

    Inputs: ``scores`` (n, K) and ``labels`` (n, 2); output: losses (n,). The columns of ``labels``
    are the label and its weight (`gluonlab.data.sets.dataset.LabeledSplit`).
    """

    def __init__(self, loss: gluon.HybridBlock) -> None:
        super().__init__()
        self.loss = loss

    def hybrid_forward(self, F: Any, scores: Any, labels: Any) -> Any:
        """Return the loss of each image, (n,), from scores (n, classes) and labels (n, 2)."""
        parts = (F.slice_axis(labels, axis=1, begin=i, end=i + 1) for i in range(2))
        label, weight = (part.reshape((-1,)) for part in parts)
        return weight * self.loss(scores, label)


class MixedLoss(gluon.HybridBlock):
    """A loss for mixtures of two images: the weighted mean of the losses for both labels.

    Inputs: ``scores`` (n, K) and ``labels`` (n, 3); output: losses (n,). The columns of ``labels``
    are the two labels and the fraction of the first image
    (`gluonlab.data.loading.augmentation.Mixup`). If ``loss`` is a WeightedLoss, each label is
    followed by its weight, so ``labels`` is (n, 5). For cross entropy, the result equals the cross
    entropy with mixed one-hot labels.
    """

    def __init__(self, loss: gluon.HybridBlock) -> None:
        super().__init__()
        self.loss = loss
        self.columns = label_columns(loss)  # for each of the two labels

    def hybrid_forward(self, F: Any, scores: Any, labels: Any) -> Any:
        """Return the loss of each mixed image, (n,).

        ``scores`` is (n, classes), and ``labels`` is (n, 3 or 5). A row of ``labels`` has the
        labels of both images, followed by the fraction of the first image.
        """
        width = self.columns or 1
        ends = (width, 2 * width, 2 * width + 1)
        parts = [F.slice_axis(labels, axis=1, begin=begin, end=end) for begin, end in zip((0, *ends), ends)]
        first, second = parts[:2] if self.columns else (part.reshape((-1,)) for part in parts[:2])
        share = parts[2].reshape((-1,))
        return share * self.loss(scores, first) + (1 - share) * self.loss(scores, second)


def label_columns(loss: gluon.HybridBlock) -> int:
    """Return how many columns the label array of ``loss`` has; 0 for labels of shape (n,)."""
    if isinstance(loss, MixedLoss):
        return 2 * (loss.columns or 1) + 1
    return 2 if isinstance(loss, WeightedLoss) else 0


def make_loss(
    label_smoothing: float = 0.0,
    mixed: bool = False,
    custom_loss: Optional[gluon.HybridBlock] = None,
    weighted: bool = False,
) -> gluon.HybridBlock:
    """Create the loss of a run, which returns one value per image.

    Args:
        label_smoothing: Fraction of the target probability that is spread evenly over all classes.
        mixed: Whether images are mixed (`MixedLoss`).
        custom_loss: The user's loss, instead of cross entropy.
        weighted: Whether each image has a loss weight (`WeightedLoss`).
    """
    loss = custom_loss
    if loss is None:
        loss = (
            SmoothedCrossEntropy(label_smoothing) if 1 - label_smoothing < 1 else gluon.loss.SoftmaxCrossEntropyLoss()
        )
    if weighted:
        loss = WeightedLoss(loss)
    return MixedLoss(loss) if mixed else loss


def loss_parameters(loss: gluon.HybridBlock) -> Dict[str, gluon.Parameter]:
    """Return the arrays of a loss, such as class weights, by name.

    These arrays are not trained.
    """
    return dict(loss.collect_params().items())


def scoring_loss(loss: gluon.HybridBlock) -> gluon.HybridBlock:
    """Return the loss for evaluation, whose labels are integers (n,)."""
    while isinstance(loss, (MixedLoss, WeightedLoss)):
        loss = loss.loss
    return loss.unsmoothed if isinstance(loss, SmoothedCrossEntropy) else loss
