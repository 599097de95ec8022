"""How often each key was updated, and what else an optimizer keeps outside its states.

mx.optimizer.Optimizer keeps a count of updates per key for each device that it is told of, in
`_all_index_update_counts`, and counts in that of the device that was current last. The learning
rate goes by ``num_update``, the largest of all counts ever. So a count that is set for one device
only, or a key that is updated several times in a step, gives a wrong rate from then on. Here a
count belongs to a key.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, Mapping, NamedTuple, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd
from mxnet.lr_scheduler import LRScheduler

from gluonlab.engine.invoke import from_host

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
        memory["former_rate"] = from_host(np.array([rate], "float64"))
    sums = getattr(optimizer, "cumgrads", {}).get(key)
    if sums:
        memory["num_cums"] = from_host(np.array([sums["num_cums"]], "int64"))
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

    Empty for an optimizer that keeps none; also for ``devices``. `gluonlab.optimizers.momentum` has
    them for each device, as counts are.
    """
    rates: Dict[int, Dict[Any, float]] = getattr(optimizer, "_all_former_rates", {})
    for device in devices if rates else ():
        rates.setdefault(device, {})
    return rates
