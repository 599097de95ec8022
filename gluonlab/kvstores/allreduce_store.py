"""`AllreduceKVStore`, the base class of kvstores that plan their own allreduce.

The class has MXNet's API, for gluon.Trainer. When arrays are first summed, the store plans the
allreduce (`PushPullPlan`). Later calls with the same arrays reuse the plan. A subclass defines how
arrays are summed over the ranks:

- by a schedule (`schedule_stores`, `sharded_optimizer`)
- over processes (`process_group_store`)
- by NCCL (`nccl_store.NcclKVStore`)

The stores ``device`` and ``local`` (`mxnet_stores`) are not subclasses.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Protocol, Sequence, Tuple, TypeVar

import mxnet as mx
import numpy as np
from mxnet import autograd, nd
from mxnet.kvstore import KVStoreBase

from gluonlab.engine.fast_invoke import AddInto, CopyInto, arrays_share_memory, is_same_memory
from gluonlab.errors import KVStoreError, ScheduleError
from gluonlab.gpu.cuda import enable_peer_access

Keys = Tuple[Any, ...]
ReturnType = TypeVar("ReturnType")

SHARDED = "sharded-optimizer"

Call = Callable[[], None]
# arrays[rank][i]: all arrays of a rank are on the rank's device, and array i has the same shape on
# all ranks
ArraysByRank = List[List[nd.NDArray]]


class AllreduceExecutor(Protocol):
    """An allreduce of fixed arrays over the ranks. `Executor` is one implementation."""

    transfers_run: int

    def run(self, priority: int = 0) -> None:
        """Queue the allreduce, which replaces each array with its sum over the ranks."""


class PushPullEntry(NamedTuple):
    """A key, its ``values``, and the arrays ``outs`` into which their sum is written."""

    key: Any
    values: List[nd.NDArray]
    outs: List[nd.NDArray]


class Placement(NamedTuple):
    """The assignment of ranks to devices: rank r runs on ``ctxs[order[r]]``.

    ``reason``: text about the links that determined the order; empty if there was no choice.
    ``schedules``: for a store that chooses schedules by the links, a description of each schedule
    and of the array sizes for which it is used.
    """

    order: Tuple[int, ...]
    reason: str = ""
    schedules: Tuple[str, ...] = ()

    def to_json(self, ctxs: "Sequence[mx.Context]") -> Dict[str, Any]:
        """Return this assignment of ranks to devices as plain values, for config.json."""
        if self.schedules:
            return {"placed": self.reason, "schedules": list(self.schedules)}
        return {"placed": self.reason, "order": [str(ctxs[device]) for device in self.order]}

    def describe(self, ctxs: "Sequence[mx.Context]") -> str:
        """Return text such as ``order gpu(0) gpu(3) ..., by the links that NVML reports``.

        The text is empty if there was no choice.
        """
        if self.schedules:
            return f"{', '.join(self.schedules)}, {self.reason}"
        devices = " ".join(str(ctxs[device]) for device in self.order)
        return f"order {devices}, {self.reason}" if self.reason else ""


def unsupported_method(problem: str, advice: str) -> Callable[..., None]:
    """Return a method that only raises KVStoreError, with a message made from the arguments."""

    def refuse(self: AllreduceKVStore, *args: Any, **kwargs: Any) -> None:
        raise KVStoreError(f"kvstore {self.type!r} {problem}: {advice}")

    refuse.__doc__ = f"Raises KVStoreError: {advice}."
    return refuse


class AllreduceKVStore(KVStoreBase):
    """A store that sums the arrays passed to it over their devices, and stores no values.

    Keys that are passed in one list are summed together. Pass the same list and the same arrays
    every time. An executor is created when keys are first used, and again when they are used with
    other arrays. Use a store from one thread only.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._plans: Dict[Keys, PushPullPlan] = {}
        self._replaced_transfers = 0  # transfers of executors that were replaced

    def make_executor(self, arrays: ArraysByRank, keys: Keys) -> AllreduceExecutor:
        """Return an executor that sums ``arrays[rank]`` over the ranks, in place.

        ``keys``: the keys of the call, for a store that keeps state between sums, such as a
        residual. Raises ScheduleError or KVStoreError if the arrays cannot be summed.
        """
        raise NotImplementedError

    def placement_for_training(
        self, ctxs: Sequence[mx.Context], copies: Sequence[Sequence[mx.Context]]
    ) -> Optional[Placement]:
        """Return the assignment of ranks to a run's devices, or None if the store assigns no ranks.

        ``ctxs``: the run's devices. ``copies``: the devices of each copy of the network.
        """
        return None

    @staticmethod
    def is_capable(capability: str) -> bool:
        return False  # no "optimizer" capability: the optimizer runs on the devices

    @property
    def type(self) -> str:
        return self._name

    @property
    def rank(self) -> int:
        return 0

    @property
    def num_workers(self) -> int:
        return 1

    @property
    def transfers_run(self) -> int:
        """Number of transfers queued so far.

        A chunk that is moved in several pieces counts several times.
        """
        return self._replaced_transfers + sum(plan.transfers_run for plan in self._plans.values())

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Copy ``value``, or its first array, into every array of ``out``.

        ``key`` may be a list; then ``value`` and ``out`` are lists with an entry for each key. All
        values are read before anything is written. Nothing is recorded for autograd. Raises
        KVStoreError, and changes nothing, if a value does not match its outs.
        """
        entries = [entry._replace(values=entry.values[:1]) for entry in self._make_entries(key, value, out)]
        for entry in entries:
            self._prefix_errors((entry.key,), partial(check_summable, entry))
        sources = [entry.values[0] for entry in entries]
        copied_values = [value for (_, [value], outs) in entries if not any(is_same_memory(value, out) for out in outs)]
        _enable_peer_access(entries)
        with autograd.pause():
            if arrays_share_memory([out for entry in entries for out in entry.outs], copied_values):
                sources = [source.copy() for source in sources]
            for source, entry in zip(sources, entries):
                for out in entry.outs:
                    if out.size and not is_same_memory(out, source):
                        CopyInto(out).copy(source)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Write the sum of ``value``, one array per device, into ``out`` (by default, ``value``).

        The results on all devices are bit-identical. ``key`` may be a list; then ``value`` and
        ``out`` are lists with an entry for each key. Arrays may be passed several times, and may
        share memory (`PushPullPlan`). Nothing is recorded for autograd. Raises KVStoreError, and
        changes nothing, if the arrays cannot be summed.
        """
        entries = self._make_entries(key, value, value if out is None else out)
        if entries:
            self._plan_for(entries).run(priority)

    set_optimizer = unsupported_method(
        "does not support optimizers", "update on the devices (update_on_kvstore=False), or choose sharded-optimizer"
    )
    init = unsupported_method("does not support init", "use broadcast(key, value, out) to copy a value to all devices")
    push = unsupported_method("does not support push", "use pushpull(key, value, out)")
    pull = unsupported_method("does not support pull", "use pushpull(key, value, out)")
    row_sparse_pull = unsupported_method("does not support row_sparse_pull", "choose device or local for sparse arrays")
    save_optimizer_states = unsupported_method("does not store optimizer states", "use trainer.save_states")
    load_optimizer_states = unsupported_method("does not store optimizer states", "use trainer.load_states")
    _set_updater = unsupported_method("does not support updaters", "update the weights after pushpull(key, value)")
    set_gradient_compression = unsupported_method("cannot compress gradients", "choose device, or omit the compression")

    def _barrier(self) -> None:
        """Do nothing, because there are no other workers to wait for."""

    def _make_entries(self, key: Any, value: Any, out: Any) -> List[PushPullEntry]:
        """Return an entry for each key, with the key's arrays from ``value`` and from ``out``."""
        name = self.type
        if not isinstance(key, (list, tuple)):  # a shortcut, because each step runs this code
            return [PushPullEntry(key, to_array_list(name, key, value), to_array_list(name, key, out))]
        return [PushPullEntry._make(columns) for columns in group_by_key(name, key, value, out)]

    def _plan_for(self, entries: List[PushPullEntry]) -> PushPullPlan:
        """Return the plan for summing these arrays.

        A new plan replaces an earlier plan for other arrays.
        """
        keys = tuple(entry.key for entry in entries)
        plan = self._plans.get(keys)
        if plan is None or not plan.matches(entries):
            new = self._prefix_errors(keys, partial(PushPullPlan, partial(self.make_executor, keys=keys), entries))
            _enable_peer_access(entries)
            self._replaced_transfers += plan.transfers_run if plan is not None else 0
            plan = self._plans[keys] = new
        return plan

    def _prefix_errors(self, keys: Keys, make: Callable[[], ReturnType]) -> ReturnType:
        """Return ``make()``, and add the store's name and the keys to the messages of errors."""
        try:
            return make()
        except KVStoreError as error:
            raise KVStoreError(f"kvstore {self.type!r}, {error}") from error
        except ScheduleError as error:
            raise KVStoreError(f"kvstore {self.type!r}, {format_keys(keys)}: {error}") from error


def format_keys(keys: Sequence[Any]) -> str:
    """Return the keys as text for an error message."""
    return f"key {keys[0]!r}" if len(keys) == 1 else f"keys {', '.join(map(repr, keys))}"


def is_sharded(store: Any) -> bool:
    """Return whether ``store`` is a `ShardedKVStore`, without importing its schedules."""
    return isinstance(store, AllreduceKVStore) and store.type == SHARDED


# --- arguments of calls


def is_list(argument: Any) -> bool:
    """Return whether MXNet would treat the argument as several keys or several arrays."""
    return isinstance(argument, (list, tuple))


def as_list(argument: Any) -> List[Any]:
    """Return the argument as a list; a single item becomes a list of one."""
    return list(argument) if is_list(argument) else [argument]


def group_by_key(store: str, key: Any, *arguments: Any) -> List[Tuple[Any, ...]]:
    """Return (key, arrays, ...) for each key, with one list of arrays from each argument.

    Raises KVStoreError if the numbers of values and keys differ, or if a value is not an array.
    ``store``: the store's name, for the error message.
    """
    if not isinstance(key, (list, tuple)):
        return [(key, *[to_array_list(store, key, values) for values in arguments])]
    columns = []
    for values in arguments:
        count = len(values) if is_list(values) else 1
        if not is_list(values) or count != len(key):
            raise KVStoreError(
                f"kvstore {store!r}: there are {len(key)} keys, but {count} values or outs: pass one for each key"
            )
        columns.append([to_array_list(store, name, arrays) for name, arrays in zip(key, values)])
    return list(zip(key, *columns))


def to_array_list(store: str, key: Any, argument: Any) -> List[nd.NDArray]:
    """Return the arrays of a key as a list. Raise KVStoreError for anything but arrays."""
    arrays = list(argument) if isinstance(argument, (list, tuple)) else [argument]
    for array in arrays:
        if not isinstance(array, nd.NDArray):
            raise KVStoreError(f"kvstore {store!r}, key {key!r}: {type(array).__name__} is not an array: pass NDArrays")
    return arrays


# --- the allreduce of one call


class PushPullPlan:
    """The allreduce of one call: ``run()`` writes the sum of each entry's values into its outs.

    If possible, values are summed in the outs themselves. This requires that all values are on
    different devices, that the outs are on the same devices, and that the outs share no memory with
    other arrays. Otherwise, values are first copied to new arrays, one for each device of the key.
    No call waits for the devices, and nothing is recorded for autograd. Raises KVStoreError or
    ScheduleError, and changes nothing, for arrays that cannot be summed.
    """

    def __init__(
        self, make_executor: Callable[[ArraysByRank], AllreduceExecutor], entries: Sequence[PushPullEntry]
    ) -> None:
        self._entries = entries
        self._calls_before: List[Call] = []
        self._calls_after: List[Call] = []
        arrays_by_devices: Dict[Tuple[mx.Context, ...], List[List[nd.NDArray]]] = {}
        merged = _merge_by_key(entries)
        for entry in merged:
            check_summable(entry)
        in_place = not _outs_overlap(merged)
        for entry in merged:
            arrays = (
                self._plan_sum_in_outs(entry)
                if in_place and _outs_match_values(entry)
                else self._plan_sum_in_new_arrays(entry)
            )
            arrays_by_devices.setdefault(tuple(array.context for array in arrays), []).append(arrays)
        self._executors = [
            make_executor([list(of_rank) for of_rank in zip(*arrays)]) for arrays in arrays_by_devices.values()
        ]

    @property
    def transfers_run(self) -> int:
        """Return the number of transfers queued so far."""
        return sum(executor.transfers_run for executor in self._executors)

    def matches(self, entries: Sequence[PushPullEntry]) -> bool:
        """Return whether the plan was made for exactly these array objects."""
        return have_same_arrays(self._entries, entries)

    def run(self, priority: int = 0) -> None:
        """Queue all copies and sums. ``priority``: as in `Executor.run`."""
        with autograd.pause():
            for call in self._calls_before:
                call()
            for executor in self._executors:
                executor.run(priority)
            for call in self._calls_after:
                call()

    def _plan_sum_in_outs(self, entry: PushPullEntry) -> List[nd.NDArray]:
        """Return ``entry.outs`` as the arrays to sum, and plan to copy the values into them."""
        for value, out in zip(entry.values, entry.outs):
            if value.size and not is_same_memory(value, out):
                self._calls_before.append(partial(CopyInto(out).copy, value))
        return entry.outs

    def _plan_sum_in_new_arrays(self, entry: PushPullEntry) -> List[nd.NDArray]:
        """Return new arrays to sum, one for each device, and plan the copies to and from them."""
        shape, dtype = entry.values[0].shape, entry.values[0].dtype
        buffers: Dict[mx.Context, nd.NDArray] = {}
        for value in entry.values if entry.values[0].size else ():
            if value.context in buffers:
                self._calls_before.append(partial(AddInto(buffers[value.context]).add, value))
            else:
                buffers[value.context] = nd.empty(shape, value.context, dtype)
                self._calls_before.append(partial(CopyInto(buffers[value.context]).copy, value))
        for out in entry.outs if buffers else ():
            source = buffers.get(out.context, next(iter(buffers.values())))
            self._calls_after.append(partial(CopyInto(out).copy, source))
        return list(buffers.values()) or entry.values[:1]


def have_same_arrays(entries: Sequence[PushPullEntry], others: Sequence[PushPullEntry]) -> bool:
    """Return whether both lists contain the same array objects, in the same order."""
    return len(entries) == len(others) and all(
        _are_same_objects(one.values, other.values) and _are_same_objects(one.outs, other.outs)
        for one, other in zip(entries, others)
    )


def _are_same_objects(arrays: Sequence[nd.NDArray], others: Sequence[nd.NDArray]) -> bool:
    return len(arrays) == len(others) and all(a is b for a, b in zip(arrays, others))


def total_bytes(arrays: Sequence[nd.NDArray]) -> int:
    """Return the number of bytes of all arrays together."""
    return sum(array.size * np.dtype(array.dtype).itemsize for array in arrays)


def format_array(array: nd.NDArray) -> str:
    """Return the array's type, shape and device as text for an error message."""
    return f"{np.dtype(array.dtype).name}{list(array.shape)} on {array.context}"


def _merge_by_key(entries: Sequence[PushPullEntry]) -> List[PushPullEntry]:
    """Return one entry per key, in MXNet's order, with all values and outs of the key."""
    by_key: Dict[Any, PushPullEntry] = {}
    for key, values, outs in entries:
        entry = by_key.setdefault(key, PushPullEntry(key, [], []))
        entry.values.extend(values)
        entry.outs.extend(outs)
    keys = sorted(by_key) if all(isinstance(key, int) for key in by_key) else by_key
    return [by_key[key] for key in keys]


def check_summable(entry: PushPullEntry) -> None:
    """Raise KVStoreError if a key's values cannot be summed, or its outs cannot hold the sum."""
    key, values, outs = entry
    if not values:
        raise KVStoreError(f"key {key!r}: the list of arrays is empty: pass one array for each device")
    first = values[0]
    for array in (*values, *outs):
        if array.stype != "default":
            raise KVStoreError(
                f"key {key!r}: this kvstore cannot sum sparse arrays: use array.tostype('default'), or kvstore 'device'"
            )
    for index, array in enumerate((*values, *outs)):
        if (array.shape, array.dtype) != (first.shape, first.dtype):
            problem = f"{format_array(first)} and {format_array(array)} cannot be summed"
            if index >= len(values):
                problem = f"{format_array(first)} cannot be written to {format_array(array)}"
            raise KVStoreError(f"key {key!r}: {problem}: use the same shape and type for all arrays")


def _outs_match_values(entry: PushPullEntry) -> bool:
    """Return whether value i and out i are on the same device, and all devices differ."""
    ctxs = [value.context for value in entry.values]
    return ctxs == [out.context for out in entry.outs] and len(set(ctxs)) == len(ctxs)


def _outs_overlap(entries: Sequence[PushPullEntry]) -> bool:
    """Return whether writing to an array in ``outs`` would change another array of these entries.

    ``outs[i]`` may share memory with ``values[i]``.
    """
    outs = [out for entry in entries for out in entry.outs]
    if arrays_share_memory(outs):
        return True
    other_values = [
        value
        for entry in entries
        for index, value in enumerate(entry.values)
        if index >= len(entry.outs) or not is_same_memory(value, entry.outs[index])
    ]
    return arrays_share_memory(outs, other_values)


def _enable_peer_access(entries: Sequence[PushPullEntry]) -> None:
    enable_peer_access(
        [array.context for _, *values_and_outs in entries for arrays in values_and_outs for array in arrays]
    )
