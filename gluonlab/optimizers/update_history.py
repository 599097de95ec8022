"""Reads and sets values that an optimizer keeps outside its state arrays, such as update counts.

A saved training state contains these values, because the next updates depend on them. The functions
in this module read the values from one optimizer and set them in another.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, Mapping, NamedTuple, Optional

import mxnet as mx
import numpy as np
from mxnet import nd
from mxnet.lr_scheduler import LRScheduler

from gluonlab.engine.fast_invoke import ndarray_from_numpy
from gluonlab.optimizers.optimizer_step import SHARED_DEVICE_ID, ElementRange, KeyUpdate, update_count

# Attributes that optimizers of MXNet 1.9.1 change outside their states: Nadam's product of momenta,
# and the two learning rates of LARS.
SCALAR_ATTRIBUTES = ("m_schedule", "cur_lr", "last_lr")


def set_update_counts(
    optimizer: mx.optimizer.Optimizer, updates: Mapping[Any, int], devices: Iterable[int] = ()
) -> None:
    """Set the update counts of the given keys, and remove all others. ``devices``: device ids."""
    counts = optimizer._all_index_update_counts
    counts.clear()
    for device in {SHARED_DEVICE_ID, *devices}:
        counts[device] = dict(updates)
    optimizer._set_current_context(SHARED_DEVICE_ID)


class UpdateHistory(NamedTuple):
    """The update count of a key (None if a file does not contain it), and its extra state."""

    updates: Optional[int]
    extra_state: Mapping[str, nd.NDArray] = {}

    def can_share_update(self, other: "UpdateHistory") -> bool:
        """Return whether elements with these two histories can be updated in one call."""
        same_rate = _read_former_rate(self.extra_state) == _read_former_rate(other.extra_state)
        return self.updates == other.updates and same_rate


def _read_former_rate(extra_state: Mapping[str, nd.NDArray]) -> Optional[float]:
    return float(extra_state["former_rate"].asscalar()) if "former_rate" in extra_state else None


def history_at(histories: Mapping[ElementRange, UpdateHistory], element: int) -> UpdateHistory:
    """Return an element's history, or the first range's if no range contains the element."""
    first = next(iter(histories.values()))
    return next((h for (begin, end), h in histories.items() if begin <= element < end), first)


def update_history(optimizer: mx.optimizer.Optimizer, key: Any) -> UpdateHistory:
    """Return the current update history of a key."""
    return UpdateHistory(update_count(optimizer, key), read_extra_state(optimizer, key))


def set_history(optimizer: mx.optimizer.Optimizer, key: Any, history: UpdateHistory) -> None:
    """Set the number of updates and the former learning rate of ``key``, for all devices."""
    optimizer._set_current_context(SHARED_DEVICE_ID)
    if history.updates is not None:
        optimizer._index_update_count[key] = history.updates
    rates, rate = getattr(optimizer, "former_rates", {}), _read_former_rate(history.extra_state)
    rates.pop(key, None)
    if rate is not None:
        rates[key] = rate


def read_scalars(optimizer: mx.optimizer.Optimizer) -> Dict[str, float]:
    """Return the scalars that the optimizer changes and, without a schedule, its learning rate."""
    names = SCALAR_ATTRIBUTES if optimizer.lr_scheduler is not None else (*SCALAR_ATTRIBUTES, "lr")
    values = {name: getattr(optimizer, name, None) for name in names}
    return {name: float(value) for name, value in values.items() if value is not None}


def set_scalars(optimizer: mx.optimizer.Optimizer, scalars: Mapping[str, float]) -> None:
    """Set the scalars that `read_scalars` returned.

    Skip the learning rate if there is a schedule.
    """
    for name in SCALAR_ATTRIBUTES:
        if hasattr(optimizer, name):
            setattr(optimizer, name, scalars.get(name, 1.0 if name == "m_schedule" else None))
    if optimizer.lr_scheduler is None and "lr" in scalars:
        optimizer.lr = scalars["lr"]


class SchedulerRewind:
    """Snapshot of one of MXNet's learning rate schedules, whose state changes with every call."""

    def __init__(self, optimizer: mx.optimizer.Optimizer) -> None:
        scheduler = optimizer.lr_scheduler
        is_mxnets = isinstance(scheduler, LRScheduler)
        is_mxnets = is_mxnets and type(scheduler).__module__ == LRScheduler.__module__
        self._scheduler = scheduler if is_mxnets else None
        self._attributes: Dict[str, Any] = dict(vars(scheduler)) if is_mxnets else {}

    def rewind_to(self, num_update: int) -> None:
        """Set the schedule to its state after ``num_update`` updates, if it is one of MXNet's."""
        if self._scheduler is not None:
            vars(self._scheduler).update(self._attributes)
            # After their end, polynomial and cosine schedules repeat the last rate that they
            # returned, so call the schedule with at most its last update.
            self._scheduler(min(num_update, getattr(self._scheduler, "max_update", num_update)))


def read_extra_state(optimizer: mx.optimizer.Optimizer, key: Any) -> Dict[str, nd.NDArray]:
    """Return a key's extra state: CPU copies of values outside its state arrays.

    - ``former_rate``, float64 (1,): the learning rate of the last update, for optimizers with
      momentum correction
    - ``num_cums``, int64 (1,): number of gradients that LBSGD has summed
    - ``cum_grad``, of the key's shape: the sum of these gradients
    """
    extra_state = {}
    rate = next((rates[key] for rates in _former_rates_by_device(optimizer).values() if key in rates), None)
    if rate is not None:
        extra_state["former_rate"] = ndarray_from_numpy(np.array([rate], "float64"))
    sums = getattr(optimizer, "cumgrads", {}).get(key)
    if sums:
        extra_state["num_cums"] = ndarray_from_numpy(np.array([sums["num_cums"]], "int64"))
        if isinstance(sums["cum_grad"], nd.NDArray):  # it is the number 0 at first
            extra_state["cum_grad"] = sums["cum_grad"].copyto(mx.cpu())
    return extra_state


def set_extra_states(
    optimizer: mx.optimizer.Optimizer,
    extra_states: Mapping[Any, Mapping[str, nd.NDArray]],
    devices: Iterable[int] = (),
    ctx: Optional[mx.Context] = None,
) -> None:
    """Set the extra states of the given keys, and remove all others.

    ``devices``: device ids. ``ctx``: device of the arrays, or None for the CPU.
    """
    read_rates = {key: _read_former_rate(extra) for key, extra in extra_states.items()}
    rates = {key: rate for key, rate in read_rates.items() if rate is not None}
    for device_rates in _former_rates_by_device(optimizer, {SHARED_DEVICE_ID, *devices}).values():
        device_rates.clear()
        device_rates.update(rates)
    if hasattr(optimizer, "cumgrads"):
        optimizer.cumgrads.clear()
        for key, extra in extra_states.items():
            if "num_cums" in extra:
                total = extra["cum_grad"].copyto(ctx or mx.cpu()) if "cum_grad" in extra else 0
                count = int(extra["num_cums"].asscalar())
                optimizer.cumgrads[key] = {"cum_grad": total, "num_cums": count}


def _former_rates_by_device(
    optimizer: mx.optimizer.Optimizer, devices: Iterable[int] = ()
) -> Dict[int, Dict[Any, float]]:
    """Return {device id: {key: former rate}}, with an entry for each of ``devices``.

    The result is {} if the optimizer stores no former rates.
    """
    rates: Dict[int, Dict[Any, float]] = getattr(optimizer, "_all_former_rates", {})
    for device in devices if rates else ():
        rates.setdefault(device, {})
    return rates


def read_key_histories(key_update: KeyUpdate) -> Dict[ElementRange, UpdateHistory]:
    """Return the history of each span of a key."""
    optimizer = key_update.optimizer
    return {(span.begin, span.end): update_history(optimizer, span.key) for span in key_update.spans}


def set_key_histories(key_update: KeyUpdate, histories: Mapping[ElementRange, UpdateHistory]) -> None:
    """Set the histories of all elements of a key, in the format of `read_key_histories`."""
    ordered = sorted(histories.items())
    key_update.split_spans(
        {
            element_range[0]
            for (_, previous), (element_range, history) in zip(ordered, ordered[1:])
            if not previous.can_share_update(history)
        }
    )
    for span in key_update.spans:
        set_history(key_update.optimizer, span.key, history_at(dict(ordered), span.begin))
