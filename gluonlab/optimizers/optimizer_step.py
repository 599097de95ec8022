"""Updates the same parameters on several devices, and counts each update only once.

mx.optimizer.Optimizer counts updates separately for each device, and increments the counts of the
device that was set last. The learning rate depends on the largest count, ``num_update``, and would
be wrong if every device were counted.

A key is one parameter or one bucket of parameters. Each device holds the whole key, or only the
part that it owns. A key starts as one span of elements with one update count. If some of its
parameters skip an update because their gradients are stale, the key is split into several spans,
because the counts differ from then on.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
from mxnet import nd

from gluonlab.engine.fast_invoke import Attributes, EngineCall, OperatorCall, flat_view, row_major_calls
from gluonlab.optimizers.sgd_and_nag import SGD

ElementRange = Tuple[int, int]  # first element, and the one after the last

SHARED_DEVICE_ID = 0  # device id under which the counts that all devices share are stored


def update_count(optimizer: mx.optimizer.Optimizer, key: Any) -> int:
    """Return how often the optimizer has updated a key (a parameter or a bucket)."""
    device_counts = optimizer._all_index_update_counts.values()
    counts = [counts[key] for counts in device_counts if key in counts]
    return int(max(counts, default=optimizer.begin_num_update))


class UpdateCountSnapshot:
    """The update count and learning rate of a key before a step.

    `restore` makes several updates count as one.
    """

    def __init__(self, optimizer: mx.optimizer.Optimizer, key: Any) -> None:
        self._optimizer = optimizer
        optimizer._set_current_context(SHARED_DEVICE_ID)
        self._updates = update_count(optimizer, key)
        self._rate = getattr(optimizer, "former_rates", {}).get(key)

    def restore(self, key: Any) -> None:
        """Set the stored update count and learning rate for ``key``, which may be another key."""
        self._optimizer._set_current_context(SHARED_DEVICE_ID)
        self._optimizer._index_update_count[key] = self._updates
        rates = getattr(self._optimizer, "former_rates", None)
        if rates is not None and self._rate is None:
            rates.pop(key, None)
        elif rates is not None:
            rates[key] = self._rate


def flatten_state(state: Any) -> List[nd.NDArray]:
    """Return the arrays of a state: None, an array, or nested tuples and lists of arrays."""
    if state is None:
        return []
    if isinstance(state, nd.NDArray):
        return [state]
    return [array for part in state for array in flatten_state(part)]


def map_state(state: Any, make: Any) -> Any:
    """Return the same nested state, with each array replaced by ``make(array)``."""
    if state is None or isinstance(state, nd.NDArray):
        return state if state is None else make(state)
    return type(state)(map_state(part, make) for part in state)


def align_learning_rates(optimizer: Any, keys: Sequence[Any]) -> None:
    """Make the next step of all ``keys`` use the learning rate of the key with the most updates."""
    # An optimizer counts one key after the other. Without this, the first keys would use an older
    # learning rate than the last key.
    counts = (update_count(optimizer, key) + 1 for key in keys)
    optimizer.num_update = max([optimizer.num_update, *counts])


class KeyPart(NamedTuple):
    """A key's elements on one device, from element ``begin`` on, with their gradient and state."""

    begin: int
    weight: nd.NDArray
    grad: nd.NDArray
    state: Any

    @property
    def end(self) -> int:
        """The index after the last element."""
        return int(self.begin + self.weight.size)

    def state_arrays(self) -> List[nd.NDArray]:
        """Return the arrays of the state."""
        return flatten_state(self.state)

    def slice(self, begin: int, end: int) -> "KeyPart":
        """Return the elements in this range, as views of the same memory."""
        first, last = max(begin, self.begin), min(end, self.end)
        if (first, last) == (self.begin, self.end):
            return self
        low, high = first - self.begin, last - self.begin
        weight, grad = _slice_arrays(self.weight, low, high), _slice_arrays(self.grad, low, high)
        return KeyPart(first, weight, grad, _slice_arrays(self.state, low, high))


class KeyUpdate:
    """Update of a key by an element-wise optimizer (`optimizer_registry.ELEMENT_WISE`).

    ``parts`` hold the elements of the key. Arrays keep their shapes unless a span is split.
    """

    def __init__(self, optimizer: Any, key: Any, parts: Sequence[KeyPart]) -> None:
        self.optimizer, self.key = optimizer, key
        begins, ends = [part.begin for part in parts], [part.end for part in parts]
        self.spans = [_Span(optimizer, key, parts, (min(begins, default=0), max(ends, default=0)))]

    def fresh_spans(self, stale: Sequence[ElementRange] = ()) -> "List[_Span]":
        """Return the spans (ranges with one update count) that have no ``stale`` elements.

        A span with some stale elements is split first.
        """
        if not stale:
            return self.spans
        self.split_spans({boundary for element_range in stale for boundary in element_range})
        return [span for span in self.spans if not any(begin <= span.begin and span.end <= end for begin, end in stale)]

    def split_spans(self, boundaries: "set[int]") -> None:
        """Split the spans so that each element in ``boundaries`` is the first one of a span."""
        self.spans = [piece for span in self.spans for piece in span.split(boundaries)]


class _Span:
    """Elements that have always been updated together, under one key of the optimizer."""

    def __init__(self, optimizer: Any, key: Any, parts: Sequence[KeyPart], ends: ElementRange) -> None:
        self.optimizer, self.key, self.parts = optimizer, key, list(parts)
        self.begin, self.end = ends
        weights, grads, states = ([part[field] for part in self.parts] for field in (1, 2, 3))
        self.sgd: Optional[MultiDeviceSGD] = None
        if is_plain_sgd(optimizer):
            self.sgd = MultiDeviceSGD(optimizer, key, weights, grads, states)
        self._row_order_calls = _row_order_calls(optimizer, weights)

    def update(self) -> None:
        """Queue the update of these elements on every device, and count it once."""
        snapshot = UpdateCountSnapshot(self.optimizer, self.key)
        for call in self._row_order_calls:
            call()
        for part in self.parts:
            snapshot.restore(self.key)
            self.optimizer.update_multi_precision(self.key, part.weight, part.grad, part.state)

    def split(self, boundaries: "set[int]") -> "List[_Span]":
        """Split the span at the ``boundaries`` inside it, into spans with new keys."""
        cuts = sorted(element for element in boundaries if self.begin < element < self.end)
        if not cuts:
            return [self]
        ends = zip([self.begin, *cuts], [*cuts, self.end])
        return [self._make_piece(begin, end) for begin, end in ends]

    def _make_piece(self, begin: int, end: int) -> "_Span":
        """Return these elements as a span with a new key and the same update count."""
        key = f"{self.key}[{begin}:{end}]"  # not a tuple, which an Optimizer reads as several keys
        if self.key in self.optimizer.param_dict:  # which holds the multipliers
            self.optimizer.param_dict[key] = self.optimizer.param_dict[self.key]
        parts = [part.slice(begin, end) for part in self.parts if part.begin < end and begin < part.end]
        UpdateCountSnapshot(self.optimizer, self.key).restore(key)
        return _Span(self.optimizer, key, parts, (begin, end))


def update_keys(
    optimizer: Any,
    key_updates: Iterable[KeyUpdate],
    stale: Mapping[Any, Sequence[ElementRange]] = {},
    counts_differ: bool = False,
) -> None:
    """Queue the updates of several keys on every device.

    Args:
        optimizer: An element-wise optimizer.
        key_updates: The updates.
        stale: For each key, ranges of elements that keep their values, states and update counts.
        counts_differ: Whether some elements may have had more updates than others. If so, all
            elements use the same learning rate (`align_learning_rates`).
    """
    spans = [span for update in key_updates for span in update.fresh_spans(stale.get(update.key, ()))]
    if counts_differ:
        align_learning_rates(optimizer, [span.key for span in spans])
    sgd_updates = [span.sgd for span in spans if span.sgd is not None]
    if sgd_updates:  # SGD: one kernel updates many arrays
        update_sgd(optimizer, sgd_updates)
    else:  # Adam and all others
        for span in spans:
            span.update()


def _slice_arrays(array: Any, begin: int, end: int) -> Any:
    """Return views of these elements in an array, or in each array of a nested state."""
    if isinstance(array, nd.NDArray):
        return array.reshape((-1,))[begin:end]
    return array if array is None else tuple(_slice_arrays(part, begin, end) for part in array)


def _row_order_calls(optimizer: Any, weights: Sequence[nd.NDArray]) -> List[EngineCall]:
    """Return calls that convert convolution weights to row-major order, for MXNet's NAG on CPUs."""
    # NAG's kernel works in place: it reads the weight again after writing it, and decays the new
    # value. After a convolution predicts, its weight is in oneDNN's blocked layout. The kernel then
    # reads a row-major copy and writes to other memory, so it decays the old value. If only some
    # replicas have predicted, replicas would diverge by rate x decay x step. No other update kernel
    # reads the weight after writing it. The conversion changes no bit of the weights.
    calls: List[EngineCall] = []
    for weight in weights if type(optimizer) is mx.optimizer.NAG else ():
        if len(weight.shape) >= 3:  # only convolutions have such weights
            calls += row_major_calls(flat_view(weight))
    return calls


def is_plain_sgd(optimizer: mx.optimizer.Optimizer) -> bool:
    """Return whether `MultiDeviceSGD` can replace ``optimizer``."""
    return type(optimizer) in (SGD, mx.optimizer.SGD) and not optimizer.multi_precision


class MultiDeviceSGD:
    """SGD update of one key.

    Weights, grads and states (momenta or None) are lists with an entry for each device.
    """

    def __init__(
        self, optimizer: mx.optimizer.SGD, key: Any, weights: List[Any], grads: List[Any], states: List[Any]
    ) -> None:
        self.optimizer, self.key = optimizer, key
        self._arrays = list(zip(weights, grads, states))
        # mx.optimizer.SGD always calls the operators for several arrays ("multi_"). The operators
        # for one array are queued faster. They compute the same bits, except with clipped gradients
        # or weight decay.
        self._name_prefix = "multi_" if optimizer.clip_gradient or optimizer.wd else ""
        self._calls = []
        for weight, grad, state in self._arrays:
            name, momentum = ("sgd_update", []) if state is None else ("sgd_mom_update", [state])
            inputs = [weight, grad, *momentum]
            self._calls.append(OperatorCall(self._name_prefix + name, inputs, weight))
        self._settings: Tuple[Any, ...] = ()
        self._attributes = Attributes({})

    def queue_update(self, lr: float, wd: float) -> None:
        """Queue the update on every device."""
        optimizer = self.optimizer
        momentum = optimizer.momentum
        if momentum and isinstance(optimizer, SGD):
            scale, ratio = optimizer.rescale_momentum(self.key, lr)
            if scale != lr:
                for weight, grad, state in self._arrays:
                    optimizer.update_with_tiny_rate(weight, grad, state, lr, scale, ratio, wd)
                return
            momentum *= ratio
        settings = (lr, wd, momentum, optimizer.rescale_grad, optimizer.clip_gradient)
        if settings != self._settings:
            self._settings = settings
            self._attributes = Attributes(self._operator_settings(lr, wd, momentum))
        for call in self._calls:
            call(self._attributes)

    def _operator_settings(self, lr: float, wd: float, momentum: float) -> Dict[str, Any]:
        """Return the attributes of the SGD operators."""
        optimizer = self.optimizer
        # Only set necessary attributes, since MXNet needs half a microsecond to read each of them
        # in each call.
        values: Dict[str, Any] = {"lr": lr, "wd": wd} if wd else {"lr": lr}
        if self._name_prefix:
            values = {"num_weights": 1, "lrs": (lr,), "wds": (wd,)}
        values["rescale_grad"] = optimizer.rescale_grad
        if momentum:
            values["momentum"] = momentum
        if optimizer.clip_gradient:
            values["clip_gradient"] = optimizer.clip_gradient
        return values


def update_sgd(optimizer: mx.optimizer.SGD, updates: Sequence[MultiDeviceSGD]) -> None:
    """Queue the updates of several keys, with the learning rate of the key updated most often."""
    keys = [update.key for update in updates]
    optimizer._set_current_context(SHARED_DEVICE_ID)
    optimizer._update_count(keys)
    for update, lr, wd in zip(updates, optimizer._get_lrs(keys), optimizer._get_wds(keys)):
        update.queue_update(float(lr), float(wd))
