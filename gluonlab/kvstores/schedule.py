"""A kvstore that sums gradients by a schedule: the from-scratch algorithms, under the ordinary ``gluon.Trainer``."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from mxnet import nd
from mxnet.kvstore import KVStoreBase

from gluonlab.collectives.algorithms import make_schedule
from gluonlab.collectives.executor import Executor
from gluonlab.collectives.schedule import Schedule
from gluonlab.errors import KVStoreError, ScheduleError

Keys = Tuple[Any, ...]
Arrays = List[List[nd.NDArray]]  # of each key, those of each device


class ScheduleKVStore(KVStoreBase):
    """Sums over the devices of the arrays that it is given, by the algorithm ``name`` of `gluonlab.collectives.algorithms`.

    Keys that come in one list are summed together: their arrays are cut into chunks as one, and wait for each other. Give the same
    list every time. ``order``: which device plays which rank, such as a topology's ring; see `Schedule.placed`. An executor is made
    when its keys are first used, and again when they come with other arrays. ``priority`` is that of the first and the last thing
    that is queued for them; transfers are made as soon as their chunks are ready. Use a store from one thread.

    Raises ScheduleError for an unknown name, and for an order that does not name every device once.
    """

    def __init__(self, name: str, order: Optional[Sequence[int]] = None) -> None:
        self._name, self._order = name, order
        self.schedule(2 if order is None else len(order))  # whether there is one
        self._executors: Dict[Keys, "_Kept"] = {}
        self._retired = 0  # transfers of executors that were replaced

    @staticmethod
    def is_capable(capability: str) -> bool:
        return False  # the optimizer runs on the devices

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
        """How many transfers the executors have queued so far, pieces of a chunk counted one by one."""
        return self._retired + sum(kept.executor.transfers_run for kept in self._executors.values())

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Copy ``value``, or the first of it, into every array of ``out``."""
        for values, outs in zip(*lists(key, value, out)[1:]):
            for array in outs:
                if array is not values[0]:
                    values[0].copyto(array)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Leave the sum of ``value``, one array per device, in each of them, or in ``out``; with the same bits in all.

        ``key`` may be a list, of values and outs then. Raises KVStoreError, and changes nothing, when the arrays cannot be summed.
        """
        keys, values, outs = lists(key, value, value if out is None else out)
        self._check_alike(keys, values, outs)
        executor = self._executor(keys, outs)
        for sources, targets in zip(values, outs):
            for source, target in zip(sources, targets):
                if source is not target:
                    source.copyto(target)
        executor.run(priority)

    def set_gradient_compression(self, compression_params: Any) -> None:
        """Raises KVStoreError: schedules move gradients as they are."""
        raise KVStoreError(f"kvstore {self.type!r} cannot compress gradients: choose device, or leave compression out")

    def schedule(self, world_size: int) -> Schedule:
        """What the store runs for so many devices."""
        schedule = make_schedule(self._name, world_size)
        return schedule if self._order is None else schedule.placed(self._order)

    def _check_alike(self, keys: Keys, values: Arrays, outs: Arrays) -> None:
        """Raise KVStoreError when the values of a key cannot be left in its outs, or the keys are not on as many devices."""
        for key, own, targets in zip(keys, values, outs):
            if len(own) != len(targets):
                raise KVStoreError(
                    f"kvstore {self.type!r}, key {key!r}: {len(own)} arrays and {len(targets)} outputs: give one for each"
                )
            if len(targets) != len(outs[0]):
                raise KVStoreError(
                    f"kvstore {self.type!r}: key {keys[0]!r} is on {len(outs[0])} devices, {key!r} on {len(targets)}: "
                    "give keys of one call the same devices"
                )
            for value, out in zip(own, targets):
                if value is not out and (value.shape, value.dtype, value.context) != (out.shape, out.dtype, out.context):
                    both = f"{_described(value)} cannot be left in {_described(out)}"
                    raise KVStoreError(f"kvstore {self.type!r}, key {key!r}: {both}: they must be alike")

    def _executor(self, keys: Keys, arrays: Arrays) -> Executor:
        kept = self._executors.get(keys)
        if kept is None or not serves(kept.arrays, arrays):
            if kept is not None:
                self._retired += kept.executor.transfers_run
            try:
                kept = _Kept(arrays, Executor(self.schedule(len(arrays[0])), by_rank(arrays)))
            except ScheduleError as error:
                raise KVStoreError(f"kvstore {self.type!r}, {named(keys)}: {error}") from error
            self._executors[keys] = kept
        return kept.executor


class _Kept(NamedTuple):
    """An executor and the arrays that it was made for."""

    arrays: Arrays
    executor: Executor


def serves(kept: Arrays, arrays: Arrays) -> bool:
    """Whether what was made for the arrays ``kept`` can be used for ``arrays``: they are the same objects."""
    return len(kept) == len(arrays) and all(
        len(own) == len(others) and all(a is b for a, b in zip(own, others)) for own, others in zip(kept, arrays)
    )


def by_rank(arrays: Arrays) -> Arrays:
    """Per key the array of each device -> per device the array of each key."""
    return [list(of_device) for of_device in zip(*arrays)]


def named(keys: Keys) -> str:
    """The keys, for a message."""
    return f"key {keys[0]!r}" if len(keys) == 1 else f"keys {', '.join(map(repr, keys))}"


def lists(key: Any, value: Any, out: Any) -> Tuple[Keys, Arrays, Arrays]:
    """Keys, and for each its arrays and its outs; one key stands for a list of one, and so does one array."""
    if not isinstance(key, (list, tuple)):
        return (key,), [_arrays(value)], [_arrays(out)]
    return tuple(key), [_arrays(of_key) for of_key in value], [_arrays(of_key) for of_key in out]


def _described(array: nd.NDArray) -> str:
    return f"{np.dtype(array.dtype).name}{list(array.shape)} on {array.context}"


def _arrays(value: Any) -> List[nd.NDArray]:
    return [value] if isinstance(value, nd.NDArray) else list(value)
