"""Metrics of the user's own: numbers of all scores and labels of the test images.

A metric sees the whole split at once, in order, wherever its parts were computed. So it is the same
for any number of devices and processes, also where it is no mean over images, as F1 is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd

from gluonlab.engine.semantics import nd_semantics, users_semantics
from gluonlab.errors import CallbackError, ConfigError, kind_and_words
from gluonlab.kvstores.groups import Group
from gluonlab.runs.schema import number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

# (n, classes) float32 and (n,) int32, numpy arrays -> a number; NaN where it is not defined
Metric = Callable[[Any, Any], float]
Part = Tuple[int, nd.NDArray, nd.NDArray]  # the place of a device, scores and labels
Values = Dict[str, Optional[float]]


def metrics_by_name(given: Any) -> Dict[str, Metric]:
    """``given``: a function, an mx.metric.EvalMetric or its class; several in a list or by name.

    Raises ConfigError for what is none, and for a name that stands for two.
    """
    if given is None:
        return {}
    if isinstance(given, Mapping):
        pairs = [(str(name), _made(metric)) for name, metric in given.items()]
    else:
        several = given if isinstance(given, (list, tuple)) else [given]
        pairs = [(_name(metric), metric) for metric in map(_made, several)]
    names = [name for name, _ in pairs]
    for name in names:
        if not name:
            raise ConfigError("a metric has an empty name: give it one, as {'name': metric}")
        if names.count(name) > 1:
            raise ConfigError(f"two metrics are called {name!r}: give them as {{'name': metric}}")
    return {name: _of_split(metric) for name, metric in pairs}


def _made(given: Any) -> Any:
    metric = given() if isinstance(given, type) else given
    if not callable(metric) and not isinstance(metric, mx.metric.EvalMetric):
        raise ConfigError(
            f"metric {given!r}: give a function of scores (n, classes) and labels (n,), "
            "or an mx.metric.EvalMetric"
        )
    return metric


def _name(metric: Any) -> str:
    own = getattr(metric, "name", None) or getattr(metric, "__name__", type(metric).__name__)
    return str(own)


def _of_split(metric: Any) -> Metric:
    if not isinstance(metric, mx.metric.EvalMetric):
        return metric  # type: ignore[no-any-return]

    @nd_semantics()
    def value(scores: "Array", labels: "Array") -> float:
        metric.reset()
        metric.update([nd.array(labels, dtype="int32")], [nd.array(scores)])
        return metric.get()[1]  # type: ignore[no-any-return]

    return value


class Gathered:
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
            with users_semantics():
                given = metric(scores.copy(), labels.copy())
        except MemoryError:
            raise
        except Exception as error:
            raise CallbackError(f"metric {name} failed: {kind_and_words(error)}") from error
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
