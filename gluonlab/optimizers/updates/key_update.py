"""The update of one key: some consecutive elements, on one device or on several.

They may be whole or in parts. Under a key lie several parameters side by side
(`gluonlab.update.buckets`), each on every device, or each in parts on the devices that own them. As
long as all of them are updated together, they are one span: one count of updates, one call for each
part. Where some stay behind once, the span is cut, and what was cut counts its updates for itself
ever after.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from mxnet import nd

from gluonlab.optimizers.states.states import flat
from gluonlab.optimizers.updates import sgd_on_devices
from gluonlab.optimizers.updates.counts import (
    Age,
    Before,
    Range,
    age_at,
    age_of,
    set_age,
    updates_of,
)
from gluonlab.optimizers.updates.nag_weights import Rows


def foresee(optimizer: Any, keys: Sequence[Any]) -> None:
    """Give all ``keys`` that are updated next the rate of the one updated most often.

    An optimizer asks for the rate of a key when it has counted its update, and has not counted
    those of keys after it.
    """
    counts = (updates_of(optimizer, key) + 1 for key in keys)
    optimizer.num_update = max([optimizer.num_update, *counts])


class KeyPart(NamedTuple):
    """Consecutive elements on one device, with their gradients and optimizer state.

    ``begin``: the place of the first one among all elements of the key.
    """

    begin: int
    weight: nd.NDArray
    grad: nd.NDArray
    state: Any

    @property
    def end(self) -> int:
        """Behind the last one."""
        return int(self.begin + self.weight.size)

    def arrays(self) -> List[nd.NDArray]:
        """Those of the state."""
        return flat(self.state)

    def within(self, begin: int, end: int) -> "KeyPart":
        """What lies in this range: views of the same memory."""
        first, last = max(begin, self.begin), min(end, self.end)
        if (first, last) == (self.begin, self.end):
            return self
        low, high = first - self.begin, last - self.begin
        weight, grad = _cut(self.weight, low, high), _cut(self.grad, low, high)
        return KeyPart(first, weight, grad, _cut(self.state, low, high))


class KeyUpdate:
    """The element-wise update of the elements of ``key``, which ``parts`` hold.

    `gluonlab.optimizers.registry.ELEMENT_WISE` names those. With nothing cut, parts keep their
    shapes.
    """

    def __init__(self, optimizer: Any, key: Any, parts: Sequence[KeyPart]) -> None:
        self.optimizer, self.key = optimizer, key
        begins, ends = [part.begin for part in parts], [part.end for part in parts]
        self._spans = [_Span(optimizer, key, parts, (min(begins, default=0), max(ends, default=0)))]

    def ages(self) -> Dict[Range, Age]:
        """The age of each span."""
        return {(span.begin, span.end): age_of(self.optimizer, span.key) for span in self._spans}

    def set_ages(self, ages: Mapping[Range, Age]) -> None:
        """Go on from ``ages``, whose ranges hold all elements together, as `ages` returns them."""
        ages = dict(sorted(ages.items()))
        neighbours = zip(ages, list(ages)[1:])
        self._cut({after[0] for before, after in neighbours if not ages[before].like(ages[after])})
        for span in self._spans:
            set_age(self.optimizer, span.key, age_at(ages, span.begin))

    def spans(self, stale: Sequence[Range] = ()) -> "List[_Span]":
        """The spans that are not stale, cut where stale elements begin and end."""
        if not stale:
            return self._spans
        self._cut({place for ends in stale for place in ends})
        return [
            span
            for span in self._spans
            if not any(begin <= span.begin and span.end <= end for begin, end in stale)
        ]

    def _cut(self, places: "set[int]") -> None:
        self._spans = [piece for span in self._spans for piece in span.cut(places)]


class _Span:
    """Elements that have always been updated together: a key of the optimizer."""

    def __init__(self, optimizer: Any, key: Any, parts: Sequence[KeyPart], ends: Range) -> None:
        self.optimizer, self.key, self.parts = optimizer, key, list(parts)
        self.begin, self.end = ends
        weights, grads, states = ([part[field] for part in self.parts] for field in (1, 2, 3))
        self.sgd: Optional[sgd_on_devices.DevicesSGD] = None
        if sgd_on_devices.applies(optimizer):
            self.sgd = sgd_on_devices.DevicesSGD(optimizer, key, weights, grads, states)
        self._rows = Rows(optimizer, weights)

    def update(self) -> None:
        before = Before(self.optimizer, self.key)
        self._rows.restore()
        for part in self.parts:
            before.restore(self.key)
            self.optimizer.update_multi_precision(self.key, part.weight, part.grad, part.state)

    def cut(self, places: "set[int]") -> "List[_Span]":
        """The pieces between those of ``places`` that lie inside the span.

        Each has a key of its own, and the count so far.
        """
        inside = sorted(place for place in places if self.begin < place < self.end)
        if not inside:
            return [self]
        ends = zip([self.begin, *inside], [*inside, self.end])
        return [self._piece(begin, end) for begin, end in ends]

    def _piece(self, begin: int, end: int) -> "_Span":
        key = f"{self.key}[{begin}:{end}]"  # an Optimizer takes a tuple for several keys
        if self.key in self.optimizer.param_dict:  # the multipliers
            self.optimizer.param_dict[key] = self.optimizer.param_dict[self.key]
        inside = [part for part in self.parts if part.begin < end and begin < part.end]
        parts = [part.within(begin, end) for part in inside]
        Before(self.optimizer, self.key).restore(key)
        return _Span(self.optimizer, key, parts, (begin, end))


def update_spans(optimizer: Any, spans: "Sequence[_Span]") -> None:
    """Queue the update of all elements of ``spans``, of any keys."""
    sgd = [span.sgd for span in spans if span.sgd is not None]
    if sgd:
        sgd_on_devices.update(optimizer, sgd)
    else:
        for span in spans:
            span.update()


def _cut(array: Any, begin: int, end: int) -> Any:
    """These elements of an array, or of each of some arrays, as views."""
    if isinstance(array, nd.NDArray):
        return array.reshape((-1,))[begin:end]
    return array if array is None else tuple(_cut(each, begin, end) for each in array)
