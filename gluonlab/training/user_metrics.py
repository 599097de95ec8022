"""Metrics of the user's own: numbers of all scores and labels of the test images.

A metric sees the whole split at once, in order, wherever its parts were computed. So it is the same
for any number of devices and processes, also where it is no mean over images, as F1 is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.data.sets.dataset import Split
from gluonlab.engine.np_compatibility import nd_semantics, user_semantics
from gluonlab.errors import CallbackError, ConfigError, error_type_and_text
from gluonlab.kvstores.process_groups import Group
from gluonlab.runs.run_schema import number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

# (n, classes) float32 and (n,) int32, numpy arrays -> a number; NaN where it is not defined
Metric = Callable[[Any, Any], float]
Part = Tuple[int, nd.NDArray, nd.NDArray]  # the place of a device, scores and labels
Values = Dict[str, Optional[float]]


# What a metric takes: the network's scores, their softmax, or one number for each label.
SCORES, PROBABILITIES, VALUES = "scores", "probabilities", "values"
# By the definitions of mx.metric; all others go by the order of the scores.
TAKES = (
    (
        PROBABILITIES,
        (mx.metric.Perplexity, mx.metric.CrossEntropy, mx.metric.NegativeLogLikelihood),
    ),
    (VALUES, (mx.metric.MAE, mx.metric.MSE, mx.metric.RMSE, mx.metric.PearsonCorrelation)),
)


def metrics_by_name(given: Any) -> Dict[str, Metric]:
    """``given``: a function, an mx.metric.EvalMetric or its class; several in a list or by name.

    A CompositeEvalMetric stands for its parts. An attribute ``takes`` of a metric says what it gets
    for scores: SCORES, or PROBABILITIES. Without, MXNet's own get what their definitions ask for,
    and all others scores. Raises ConfigError for what is no metric, and for a name that stands for
    two.
    """
    if given is None:
        return {}
    if isinstance(given, Mapping):
        named = [(str(name), metric) for name, metric in given.items()]
    else:
        named = [("", each) for each in (given if isinstance(given, (list, tuple)) else [given])]
    pairs = []
    for name, each in named:
        parts = list(_parts(_made(each)))
        for part in parts:
            own = _name(part)
            whole = not isinstance(given, Mapping) or len(parts) > 1
            pairs.append((f"{name} {own}".strip() if whole else name, part))
    names = [name for name, _ in pairs]
    for name in names:
        if not name:
            raise ConfigError("a metric has an empty name: give it one, as {'name': metric}")
        if names.count(name) > 1:
            raise ConfigError(f"two metrics are called {name!r}: give them as {{'name': metric}}")
    return {name: _of_split(name, metric) for name, metric in pairs}


def check_metrics(metrics: Mapping[str, Metric], test: Split, classes: int) -> None:
    """Raise ConfigError for a metric that fails on random scores of a test split.

    Else it would fail after the first epoch, whose training would be lost. It sees as many scores
    as after an epoch, and the true labels where they are in memory: a metric may fail for fewer.
    The scores are probabilities, which some metrics insist on where a network ends in softmax.
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
            measured(metrics, scores, np.asarray(labels))
    except CallbackError as error:
        raise ConfigError(
            f"{error}; tried on random scores {shape} before training: correct it, choose another, "
            "or leave it out"
        ) from error.__cause__


def _made(given: Any) -> Any:
    try:
        metric = given() if isinstance(given, type) else given
    except Exception as error:  # whatever code of the user's own raises
        raise ConfigError(
            f"metric {given.__name__} cannot be created without arguments ({error_type_and_text(error)})"
            f": give an object, {given.__name__}(...)"
        ) from error
    if not callable(metric) and not isinstance(metric, mx.metric.EvalMetric):
        raise ConfigError(
            f"metric {given!r}: give a function of scores (n, classes) and labels (n,), "
            "or an mx.metric.EvalMetric"
        )
    return metric


def _parts(metric: Any) -> Iterator[Any]:
    """The metrics of a composite one, each of which may take something else."""
    if type(metric) is not mx.metric.CompositeEvalMetric:
        yield metric
        return
    for part in metric.metrics:
        yield from _parts(part)


def _name(metric: Any) -> str:
    own = getattr(metric, "name", None) or getattr(metric, "__name__", type(metric).__name__)
    return str(own)


def _takes(name: str, metric: Any) -> str:
    """What the metric gets for scores. Raises ConfigError."""
    own = getattr(metric, "takes", None)
    if own is not None:
        if own in (SCORES, PROBABILITIES):
            return str(own)
        raise ConfigError(
            f"metric {name}: its attribute takes is {own!r}: give {SCORES!r} or {PROBABILITIES!r}"
        )
    if isinstance(metric, mx.metric.Loss) and type(metric).update is mx.metric.Loss.update:
        raise ConfigError(
            f"metric {name} averages losses, but metrics get scores and labels: leave it out, and "
            "use validation_loss, the test loss of each epoch"
        )
    return next((takes for takes, kinds in TAKES if isinstance(metric, kinds)), SCORES)


def _of_split(name: str, metric: Any) -> Metric:
    takes = _takes(name, metric)

    def prepare(scores: "Array", labels: "Array") -> "Array":
        if takes == PROBABILITIES:
            return nd.softmax(nd.array(scores)).asnumpy()  # type: ignore[no-any-return]
        if takes == VALUES:
            if scores.size != labels.size:
                each = scores.shape[1]
                raise ValueError(f"it compares one number with each label, not {each} scores")
            return scores.reshape(labels.shape)
        return scores

    def value(scores: "Array", labels: "Array") -> float:
        with nd_semantics():
            given = prepare(scores, labels)
        if not isinstance(metric, mx.metric.EvalMetric):
            return metric(given, labels)  # type: ignore[no-any-return]
        with nd_semantics():
            metric.reset()
            metric.update([nd.array(labels, dtype=labels.dtype)], [nd.array(given)])
            return metric.get()[1]  # type: ignore[no-any-return]

    return value


class GatheredScores:
    """The scores and labels of the parts of batches, as a group's processes compute them."""

    def __init__(self) -> None:
        self._batches: List[List[Tuple[Array, Array]]] = []

    def add(self, parts: List[Part]) -> None:
        """The parts of this process's next batch."""
        ordered = sorted(parts, key=lambda part: part[0])  # the parts of one device are in order
        self._batches.append(
            [
                (scores.asnumpy().astype("float32"), labels.asnumpy())
                for _, scores, labels in ordered
            ]
        )

    def whole(self, group: Group) -> "Tuple[Array, Array]":
        """All scores (n, classes) and labels (n,) of all processes, in order; waits for them."""
        counts, scores, labels = [], [], []
        for batch in self._batches:
            counts.append(sum(len(each) for _, each in batch))
            scores += [each for each, _ in batch]
            labels += [each for _, each in batch]
        # a process has no part of small batches, and perhaps none of any
        flat = np.concatenate([each.ravel() for each in scores] or [np.zeros(0, "float32")])
        named = np.concatenate([*labels, np.zeros(0)]).astype("<i4")
        everyones = [
            [np.frombuffer(each, kind) for each in group.everyones_bytes(own.tobytes())]
            for own, kind in (
                (np.array(counts, "<i8"), "<i8"),
                (flat.astype("<f4"), "<f4"),
                (named, "<i4"),
            )
        ]
        order = _order(np.array(everyones[0]))
        of_all = np.concatenate(everyones[2])
        return np.concatenate(everyones[1]).reshape(len(of_all), -1)[order], of_all[order]


def _order(counts: "Array") -> "Array":
    """Where the images of each batch are among those of all processes, one behind the other.

    ``counts`` (processes, batches): how many images of each batch a process has.
    """
    ends = np.cumsum(counts.ravel()).reshape(counts.shape)
    begins = ends - counts
    parts = [
        np.arange(begins[rank, batch], ends[rank, batch])
        for batch in range(counts.shape[1])
        for rank in range(counts.shape[0])
    ]
    return np.concatenate(parts)


def measured(metrics: Mapping[str, Metric], scores: Any, labels: Any) -> Values:
    """Each metric's number; None for NaN and beyond 1e39, which no file holds.

    Raises CallbackError, naming the metric, for what it raises, and for what is no number.
    """
    values: Values = {}
    for name, metric in metrics.items():
        try:
            with user_semantics():
                given = metric(scores.copy(), labels.copy())
        except MemoryError:
            raise
        except Exception as error:
            raise CallbackError(f"metric {name} failed: {error_type_and_text(error)}") from error
        value = _number(name, given)
        values[name] = value if number(value) else None
    return values


def _number(name: str, given: Any) -> float:
    """What a metric gives as a float. Raises CallbackError if it is no number."""
    if isinstance(given, (nd.NDArray, mx.np.ndarray)):
        given = given.asnumpy()
    shape = getattr(given, "shape", ())
    if getattr(given, "size", 1) == 1 and not isinstance(given, (str, bytes)):
        try:
            return float(given.item() if shape else given)
        except (TypeError, ValueError, OverflowError):
            pass
    what = f"an array of shape {shape}" if shape else given if given is None else repr(given)[:80]
    raise CallbackError(f"metric {name} gave {what}: let it give one number")


def in_words(values: Values) -> str:
    """``f1 0.9312, kappa 0.8``; a dash where there is no number."""
    return ", ".join(
        f"{name} {'-' if value is None else f'{value:.4f}'}" for name, value in values.items()
    )
