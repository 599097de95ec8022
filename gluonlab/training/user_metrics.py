"""The user's metrics, computed from all scores and labels of the validation images.

A metric gets all validation images at once, in order. So its value does not depend on the number of
devices and processes, even for a metric that is not a mean over images, such as F1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.data.sets.dataset import Split
from gluonlab.engine.nd_and_np_arrays import nd_semantics, user_semantics
from gluonlab.errors import CallbackError, ConfigError, error_type_and_text
from gluonlab.kvstores.process_groups import ProcessGroup
from gluonlab.runs.run_schema import is_number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

# A function of scores (n, classes) float32 and labels (n,) int32, as numpy arrays. It returns a
# number, or NaN if the metric is not defined.
Metric = Callable[[Any, Any], float]
DeviceScores = Tuple[int, nd.NDArray, nd.NDArray]  # (index of the device, scores, labels)
MetricValues = Dict[str, Optional[float]]


# inputs of a metric: the network's scores, their softmax, or one number for each label
SCORES, PROBABILITIES, VALUES = "scores", "probabilities", "values"
# from the definitions in mx.metric; all other metrics of MXNet compare the order of scores
METRIC_INPUTS = (
    (PROBABILITIES, (mx.metric.Perplexity, mx.metric.CrossEntropy, mx.metric.NegativeLogLikelihood)),
    (VALUES, (mx.metric.MAE, mx.metric.MSE, mx.metric.RMSE, mx.metric.PearsonCorrelation)),
)


def metrics_by_name(given: Any) -> Dict[str, Metric]:
    """Return checked metrics by name, as functions of scores (n, classes) and labels (n,).

    ``given``: a metric, or a list or dictionary of metrics. A metric is a function, an
    mx.metric.EvalMetric, or a subclass of EvalMetric. A CompositeEvalMetric is replaced by the
    metrics that it contains. An attribute ``takes`` of a metric selects its input: SCORES or
    PROBABILITIES. By default, MXNet's metrics get the input that their definitions require, and all
    other metrics get scores. Raises ConfigError for an object that is not a metric, and for a
    duplicate name.
    """
    if given is None:
        return {}
    if isinstance(given, Mapping):
        given_by_name = [(str(name), metric) for name, metric in given.items()]
    else:
        given_by_name = [("", candidate) for candidate in (given if isinstance(given, (list, tuple)) else [given])]
    pairs = []
    for name, candidate in given_by_name:
        components = list(_split_composite(_make_metric(candidate)))
        for component in components:
            own_name = _metric_name(component)
            needs_name = not isinstance(given, Mapping) or len(components) > 1
            pairs.append((f"{name} {own_name}".strip() if needs_name else name, component))
    names = [name for name, _ in pairs]
    for name in names:
        if not name:
            raise ConfigError("a metric has an empty name: set its name with {'name': metric}")
        if names.count(name) > 1:
            raise ConfigError(f"two metrics have the name {name!r}: set different names with {{'name': metric}}")
    return {name: _as_function(name, metric) for name, metric in pairs}


def check_metrics(metrics: Mapping[str, Metric], test: Split, classes: int) -> None:
    """Raise ConfigError for a metric that fails on random scores.

    Otherwise the metric would fail after the first epoch, and this epoch would be lost. There are
    as many scores as validation images, because a metric may fail for fewer images. The true labels
    are used if they are in memory. The scores are probabilities, because a metric for a network
    that ends in softmax may need probabilities.
    """
    if not metrics:
        return
    labels = getattr(test, "labels", None)
    if labels is None:
        labels = np.arange(len(test)) % classes
    shape = (len(test), classes)
    scores = np.random.default_rng(0).standard_normal(shape, dtype="float32")
    try:
        with nd_semantics():
            if classes > 1:
                scores = nd.softmax(nd.array(scores)).asnumpy()
            compute_metrics(metrics, scores, np.asarray(labels))
    except CallbackError as error:
        raise ConfigError(
            f"{error} (tested before training, with random scores {shape}): fix the metric, or remove it"
        ) from error.__cause__


def _make_metric(metric_or_class: Any) -> Any:
    """Return a metric: the given object, or an instance of the given class.

    Raises ConfigError for an object that is not a metric.
    """
    try:
        metric = metric_or_class() if isinstance(metric_or_class, type) else metric_or_class
    except Exception as error:  # the user's code may raise anything
        name = metric_or_class.__name__
        raise ConfigError(
            f"metric {name} cannot be created without arguments ({error_type_and_text(error)})"
            f": pass an instance, {name}(...), instead of the class"
        ) from error
    if not callable(metric) and not isinstance(metric, mx.metric.EvalMetric):
        raise ConfigError(
            f"metric {metric_or_class!r}: pass a function that takes scores (n, classes) and labels (n,), "
            "or an mx.metric.EvalMetric"
        )
    return metric


def _split_composite(metric: Any) -> Iterator[Any]:
    """Yield the metrics in a composite metric, even nested metrics, or any other metric itself."""
    if type(metric) is not mx.metric.CompositeEvalMetric:
        yield metric
        return
    for part in metric.metrics:
        yield from _split_composite(part)


def _metric_name(metric: Any) -> str:
    metric_name = getattr(metric, "name", None) or getattr(metric, "__name__", type(metric).__name__)
    return str(metric_name)


def _metric_input(name: str, metric: Any) -> str:
    """Return the kind of input that a metric needs: SCORES, PROBABILITIES or VALUES.

    Raises ConfigError for a metric with another input.
    """
    attribute = getattr(metric, "takes", None)
    if attribute is not None:
        if attribute in (SCORES, PROBABILITIES):
            return str(attribute)
        raise ConfigError(
            f"metric {name}: the attribute 'takes' is {attribute!r}: set it to {SCORES!r} or {PROBABILITIES!r}"
        )
    if isinstance(metric, mx.metric.Loss) and type(metric).update is mx.metric.Loss.update:
        raise ConfigError(
            f"metric {name} averages losses, but metrics get scores and labels: remove this metric, and "
            "use val_loss, the validation loss of each epoch"
        )
    return next((takes for takes, kinds in METRIC_INPUTS if isinstance(metric, kinds)), SCORES)


def _as_function(name: str, metric: Any) -> Metric:
    """Return a metric as a function of scores (n, classes) and labels (n,)."""
    input_kind = _metric_input(name, metric)

    def prepare_scores(scores: "Array", labels: "Array") -> "Array":
        """Convert scores to the kind of input that the metric accepts."""
        if input_kind == PROBABILITIES:
            return nd.softmax(nd.array(scores)).asnumpy()  # type: ignore[no-any-return]
        if input_kind == VALUES:
            if scores.size != labels.size:
                score_count = scores.shape[1]
                raise ValueError(
                    f"the metric compares one number with each label, but each image has {score_count} scores"
                )
            return scores.reshape(labels.shape)
        return scores

    def compute_metric(scores: "Array", labels: "Array") -> float:
        """Convert the scores to the metric's kind of input, and return the metric's value."""
        with nd_semantics():
            metric_scores = prepare_scores(scores, labels)
        if not isinstance(metric, mx.metric.EvalMetric):
            return metric(metric_scores, labels)  # type: ignore[no-any-return]
        with nd_semantics():
            metric.reset()
            metric.update([nd.array(labels, dtype=labels.dtype)], [nd.array(metric_scores)])
            return metric.get()[1]  # type: ignore[no-any-return]

    return compute_metric


class GatheredScores:
    """Scores and labels of the shards of batches, gathered from all processes of a group."""

    def __init__(self) -> None:
        self._batches: List[List[Tuple[Array, Array]]] = []

    def add(self, parts: List[DeviceScores]) -> None:
        """Add the shards of this process's next batch."""
        ordered = sorted(parts, key=lambda part: part[0])  # the parts of one device are in order
        self._batches.append([(scores.asnumpy().astype("float32"), labels.asnumpy()) for _, scores, labels in ordered])

    def gather(self, group: ProcessGroup) -> "Tuple[Array, Array]":
        """Return the scores (n, classes) and labels (n,) of all processes, in image order."""
        counts, scores, labels = [], [], []
        for batch in self._batches:
            counts.append(sum(len(array) for _, array in batch))
            scores += [array for array, _ in batch]
            labels += [array for _, array in batch]
        # a process may have no shard of a small batch, or of any batch
        flat = np.concatenate([array.ravel() for array in scores] or [np.zeros(0, "float32")])
        all_labels = np.concatenate([*labels, np.zeros(0)]).astype("<i4")
        gathered = [
            [np.frombuffer(array, dtype) for array in group.all_gather_bytes(array_values.tobytes())]
            for array_values, dtype in (
                (np.array(counts, "<i8"), "<i8"),
                (flat.astype("<f4"), "<f4"),
                (all_labels, "<i4"),
            )
        ]
        order = _image_order(np.array(gathered[0]))
        gathered_labels = np.concatenate(gathered[2])
        return np.concatenate(gathered[1]).reshape(len(gathered_labels), -1)[order], gathered_labels[order]


def _image_order(counts: "Array") -> "Array":
    """Return the indices that sort the images of all processes by batch.

    ``counts`` (processes, batches): the images of each batch in each process.
    """
    ends = np.cumsum(counts.ravel()).reshape(counts.shape)
    begins = ends - counts
    parts = [
        np.arange(begins[rank, batch], ends[rank, batch])
        for batch in range(counts.shape[1])
        for rank in range(counts.shape[0])
    ]
    return np.concatenate(parts)


def compute_metrics(metrics: Mapping[str, Metric], scores: Any, labels: Any) -> MetricValues:
    """Return the value of each metric; None for NaN and for absolute values above 1e39.

    Raises CallbackError if a metric raises an exception or does not return a number.
    """
    values: MetricValues = {}
    for name, metric in metrics.items():
        try:
            with user_semantics():
                value = metric(scores.copy(), labels.copy())
        except MemoryError:
            raise
        except Exception as error:
            raise CallbackError(f"metric {name} failed: {error_type_and_text(error)}") from error
        number_value = _as_number(name, value)
        values[name] = number_value if is_number(number_value) else None
    return values


def _as_number(name: str, value: Any) -> float:
    """Convert a metric's value to a float. Raises CallbackError if the value is not a number."""
    if isinstance(value, (nd.NDArray, mx.np.ndarray)):
        value = value.asnumpy()
    shape = getattr(value, "shape", ())
    if getattr(value, "size", 1) == 1 and not isinstance(value, (str, bytes)):
        try:
            return float(value.item() if shape else value)
        except (TypeError, ValueError, OverflowError):
            pass
    description = f"an array of shape {shape}" if shape else value if value is None else repr(value)[:80]
    raise CallbackError(f"metric {name} returned {description}: return one number")


def format_metrics(values: MetricValues) -> str:
    """Return text such as ``f1 0.9312, kappa 0.8000``, with a dash for None."""
    return ", ".join(f"{name} {'-' if value is None else f'{value:.4f}'}" for name, value in values.items())
