"""One step of an optimizer, key by key, on one device or on several; and how its keys are counted.

mx.optimizer.Optimizer keeps a count of updates per key for each device that it is told of, in
`_all_index_update_counts`, and counts in that of the device that was current last. The learning
rate goes by ``num_update``, the largest of all counts ever. So a count that is set for one device
only, or a key that is updated several times in a step, gives a wrong rate from then on. Here a
count belongs to a key.

Under a key lie some consecutive elements, whole or in parts: several parameters side by side
(`gluonlab.bucketed_trainer.buckets`), each on every device, or each in parts on the devices that
own them. As
long as all of them are updated together, they are one span: one count of updates, one call for each
part. Where some stay behind once, the span is cut, and what was cut counts its updates for itself
ever after.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd
from mxnet.lr_scheduler import LRScheduler

from gluonlab.engine.fast_invoke import (
    Attributes,
    EngineCall,
    OperatorCall,
    flat_view,
    ndarray_from_numpy,
    row_major_calls,
)
from gluonlab.optimizers.sgd import SGD

Range = Tuple[int, int]  # from the first element to behind the last one

COUNTED_AT = 0  # the device for which keys are counted that belong to no device

# What optimizers of MXNet 1.9.1 change outside the states that they create: Nadam's product of
# momenta, and LARS's two rates.
NUMBERS = ("m_schedule", "cur_lr", "last_lr")


def updates_of(optimizer: mx.optimizer.Optimizer, key: Any) -> int:
    """How many updates the key has seen."""
    on_devices = optimizer._all_index_update_counts.values()
    counts = [of_device[key] for of_device in on_devices if key in of_device]
    return int(max(counts, default=optimizer.begin_num_update))


def set_updates(
    optimizer: mx.optimizer.Optimizer, updates: Mapping[Any, int], devices: Iterable[int] = ()
) -> None:
    """Set the counts of these keys for ``devices``, and forget all others.

    Devices are numbers as in ``ctx.device_id``.
    """
    counts = optimizer._all_index_update_counts
    counts.clear()
    for device in {COUNTED_AT, *devices}:
        counts[device] = dict(updates)
    optimizer._set_current_context(COUNTED_AT)


class Age(NamedTuple):
    """How often a key was updated, and the other things that the optimizer knows about it.

    ``updates`` is None where a file does not say it; ``memory``: see `memory_of`.
    """

    updates: Optional[int]
    memory: Mapping[str, nd.NDArray] = {}

    def like(self, other: "Age") -> bool:
        """Whether one update can serve both."""
        same_rate = _former_rate(self.memory) == _former_rate(other.memory)
        return self.updates == other.updates and same_rate


def _former_rate(memory: Mapping[str, nd.NDArray]) -> Optional[float]:
    return float(memory["former_rate"].asscalar()) if "former_rate" in memory else None


def age_at(ages: Mapping[Range, Age], place: int) -> Age:
    """The age of the element at this place; that of the first range if none contains it."""
    inside = [age for (begin, end), age in ages.items() if begin <= place < end]
    return next(iter(inside), next(iter(ages.values())))


def age_of(optimizer: mx.optimizer.Optimizer, key: Any) -> Age:
    """The present age of a key."""
    return Age(updates_of(optimizer, key), memory_of(optimizer, key))


class Before:
    """What the optimizer knew about a key before a step that updates it several times.

    That happens with several devices or shards. `restore` comes before each of these updates, and
    so they count as one, wherever they run.
    """

    def __init__(self, optimizer: mx.optimizer.Optimizer, key: Any) -> None:
        self._optimizer = optimizer
        optimizer._set_current_context(COUNTED_AT)
        self._updates = updates_of(optimizer, key)
        self._rate = getattr(optimizer, "former_rates", {}).get(key)

    def restore(self, key: Any) -> None:
        """Make the next update of ``key`` the one that follows the former step.

        ``key`` may be another one than at first.
        """
        self._optimizer._set_current_context(COUNTED_AT)
        self._optimizer._index_update_count[key] = self._updates
        rates = getattr(self._optimizer, "former_rates", None)
        if rates is not None and self._rate is None:
            rates.pop(key, None)
        elif rates is not None:
            rates[key] = self._rate


def set_age(optimizer: mx.optimizer.Optimizer, key: Any, age: Age) -> None:
    """Have the optimizer go on from this age with a key that all devices share."""
    optimizer._set_current_context(COUNTED_AT)
    if age.updates is not None:
        optimizer._index_update_count[key] = age.updates
    rates, rate = getattr(optimizer, "former_rates", {}), _former_rate(age.memory)
    rates.pop(key, None)
    if rate is not None:
        rates[key] = rate


def numbers_of(optimizer: mx.optimizer.Optimizer) -> Dict[str, float]:
    """The numbers, by attribute, that later updates depend on.

    The learning rate is among them if no schedule sets it.
    """
    names = NUMBERS if optimizer.lr_scheduler is not None else (*NUMBERS, "lr")
    values = {name: getattr(optimizer, name, None) for name in names}
    return {name: float(value) for name, value in values.items() if value is not None}


def set_numbers(optimizer: mx.optimizer.Optimizer, numbers: Mapping[str, float]) -> None:
    """Set what `numbers_of` gave; a learning rate only where no schedule sets it."""
    for name in NUMBERS:
        if hasattr(optimizer, name):
            setattr(optimizer, name, numbers.get(name, 1.0 if name == "m_schedule" else None))
    if optimizer.lr_scheduler is None and "lr" in numbers:
        optimizer.lr = numbers["lr"]


class Rewinding:
    """The schedule of an optimizer at this moment, which `to` returns to.

    MXNet's own schedules change with every rate that they give.
    """

    def __init__(self, optimizer: mx.optimizer.Optimizer) -> None:
        scheduler = optimizer.lr_scheduler
        own = isinstance(scheduler, LRScheduler)
        own = own and type(scheduler).__module__ == LRScheduler.__module__
        self._scheduler = scheduler if own else None
        self._begin: Dict[str, Any] = dict(vars(scheduler)) if own else {}

    def to(self, num_update: int) -> None:
        """Have the schedule give the rates that follow ``num_update``, if it is MXNet's own."""
        if self._scheduler is not None:
            vars(self._scheduler).update(self._begin)
            # the polynomial and the cosine ones stay at the last rate that they were asked for
            # before their end
            self._scheduler(min(num_update, getattr(self._scheduler, "max_update", num_update)))


def memory_of(optimizer: mx.optimizer.Optimizer, key: Any) -> Dict[str, nd.NDArray]:
    """What the optimizer keeps of a key outside its state, by a name for each; copies on the CPU.

    ``former_rate``, float64 (1,): the learning rate of its last update, where the momentum goes by
    it. ``num_cums``, int64 (1,), and ``cum_grad``, of the key's shape: LBSGD's count, and its sum
    of gradients.
    """
    memory = {}
    rate = next((rates[key] for rates in _former_rates(optimizer).values() if key in rates), None)
    if rate is not None:
        memory["former_rate"] = ndarray_from_numpy(np.array([rate], "float64"))
    sums = getattr(optimizer, "cumgrads", {}).get(key)
    if sums:
        memory["num_cums"] = ndarray_from_numpy(np.array([sums["num_cums"]], "int64"))
        if isinstance(sums["cum_grad"], nd.NDArray):  # and otherwise 0
            memory["cum_grad"] = sums["cum_grad"].copyto(mx.cpu())
    return memory


def set_memory(
    optimizer: mx.optimizer.Optimizer,
    of_keys: Mapping[Any, Mapping[str, nd.NDArray]],
    devices: Iterable[int] = (),
    ctx: Optional[mx.Context] = None,
) -> None:
    """Give the optimizer what `memory_of` returned for these keys, and forget all others.

    Arrays go to ``ctx``.
    """
    known = {key: _former_rate(memory) for key, memory in of_keys.items()}
    rates = {key: rate for key, rate in known.items() if rate is not None}
    for of_device in _former_rates(optimizer, {COUNTED_AT, *devices}).values():
        of_device.clear()
        of_device.update(rates)
    if hasattr(optimizer, "cumgrads"):
        optimizer.cumgrads.clear()
        for key, memory in of_keys.items():
            if "num_cums" in memory:
                total = memory["cum_grad"].copyto(ctx or mx.cpu()) if "cum_grad" in memory else 0
                count = int(memory["num_cums"].asscalar())
                optimizer.cumgrads[key] = {"cum_grad": total, "num_cums": count}


def _former_rates(
    optimizer: mx.optimizer.Optimizer, devices: Iterable[int] = ()
) -> Dict[int, Dict[Any, float]]:
    """By device and key, the rates that momenta were last multiplied by.

    Empty for an optimizer that keeps none; also for ``devices``. `gluonlab.optimizers.sgd` has
    them for each device, as counts are.
    """
    rates: Dict[int, Dict[Any, float]] = getattr(optimizer, "_all_former_rates", {})
    for device in devices if rates else ():
        rates.setdefault(device, {})
    return rates


def flat(state: Any) -> List[nd.NDArray]:
    """The arrays of a state, which may be None, an array, or a nest of tuples and lists of such."""
    if state is None:
        return []
    if isinstance(state, nd.NDArray):
        return [state]
    return [array for part in state for array in flat(part)]


def like(state: Any, make: Any) -> Any:
    """The same nest with ``make(array)`` in the place of each array."""
    if state is None or isinstance(state, nd.NDArray):
        return state if state is None else make(state)
    return type(state)(like(part, make) for part in state)


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

    `gluonlab.optimizers.optimizer_registry.ELEMENT_WISE` names those. With nothing cut, parts keep
    their shapes.
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
        self.sgd: Optional[DevicesSGD] = None
        if is_plain_sgd(optimizer):
            self.sgd = DevicesSGD(optimizer, key, weights, grads, states)
        self._settle = _row_order_calls(optimizer, weights)

    def update(self) -> None:
        before = Before(self.optimizer, self.key)
        for call in self._settle:
            call()
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
        update_sgd(optimizer, sgd)
    else:
        for span in spans:
            span.update()


def _cut(array: Any, begin: int, end: int) -> Any:
    """These elements of an array, or of each of some arrays, as views."""
    if isinstance(array, nd.NDArray):
        return array.reshape((-1,))[begin:end]
    return array if array is None else tuple(_cut(each, begin, end) for each in array)


def _row_order_calls(optimizer: Any, weights: Sequence[nd.NDArray]) -> List[EngineCall]:
    """The calls that bring the weights that may be in blocks into rows, for MXNet's NAG on CPUs.

    Its kernel, in place, reads the weight again after it has written it, and decays that. A
    convolution that predicts leaves its weight in blocks, an order of oneDNN's. Kernels read a copy
    of such a weight, in rows, and write elsewhere, so this one decays the old weight then: replicas
    of which some have predicted part by rate x decay x a step. No other kernel for updates reads
    what it has written. The bits of the weights stay.
    """
    calls: List[EngineCall] = []
    for weight in weights if type(optimizer) is mx.optimizer.NAG else ():
        if len(weight.shape) >= 3:  # a convolution's
            calls += row_major_calls(flat_view(weight))
    return calls


def is_plain_sgd(optimizer: mx.optimizer.Optimizer) -> bool:
    """Whether `DevicesSGD` can do the work of ``optimizer``.

    It does SGD by either rule, without master copies of low-precision weights.
    """
    return type(optimizer) in (SGD, mx.optimizer.SGD) and not optimizer.multi_precision


class DevicesSGD:
    """The update_sgd of one key: ``weights[i]`` with ``grads[i]`` and ``states[i]`` on device i.

    A state is the momentum, or None.
    """

    def __init__(
        self,
        optimizer: mx.optimizer.SGD,
        key: Any,
        weights: List[Any],
        grads: List[Any],
        states: List[Any],
    ) -> None:
        self.optimizer, self.key = optimizer, key
        self._arrays = list(zip(weights, grads, states))
        # mx.optimizer.SGD always calls the operators for several arrays. Those for one are queued
        # faster and give the same bits, except with clipped gradients or weight decay.
        self._several = "multi_" if optimizer.clip_gradient or optimizer.wd else ""
        self._calls = []
        for weight, grad, state in self._arrays:
            name, used = ("sgd_update", []) if state is None else ("sgd_mom_update", [state])
            self._calls.append(OperatorCall(self._several + name, [weight, grad, *used], weight))
        self._settings: Tuple[Any, ...] = ()
        self._attributes = Attributes({})

    def queue(self, lr: float, wd: float) -> None:
        """Queue the update_sgd of every device."""
        optimizer = self.optimizer
        momentum = optimizer.momentum
        if momentum and isinstance(optimizer, SGD):
            scale, ratio = optimizer.rescale(self.key, lr)
            if scale != lr:
                for weight, grad, state in self._arrays:
                    optimizer.move_a_little(weight, grad, state, lr, scale, ratio, wd)
                return
            momentum *= ratio
        settings = (lr, wd, momentum, optimizer.rescale_grad, optimizer.clip_gradient)
        if settings != self._settings:
            self._settings = settings
            self._attributes = Attributes(self._current_values(lr, wd, momentum))
        for call in self._calls:
            call(self._attributes)

    def _current_values(self, lr: float, wd: float, momentum: float) -> Dict[str, Any]:
        optimizer = self.optimizer
        # MXNet takes half a microsecond to read an attribute, in each call
        values: Dict[str, Any] = {"lr": lr, "wd": wd} if wd else {"lr": lr}
        if self._several:
            values = {"num_weights": 1, "lrs": (lr,), "wds": (wd,)}
        values["rescale_grad"] = optimizer.rescale_grad
        if momentum:
            values["momentum"] = momentum
        if optimizer.clip_gradient:
            values["clip_gradient"] = optimizer.clip_gradient
        return values


def update_sgd(optimizer: mx.optimizer.SGD, keys: Sequence[DevicesSGD]) -> None:
    """Queue the updates of all ``keys``, with the rate of the one updated most often."""
    names = [each.key for each in keys]
    optimizer._set_current_context(COUNTED_AT)
    optimizer._update_count(names)
    rates = zip(keys, optimizer._get_lrs(names), optimizer._get_wds(names))
    for each, lr, wd in rates:
        each.queue(float(lr), float(wd))
