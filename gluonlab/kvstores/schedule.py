"""A kvstore that sums gradients by a schedule: the from-scratch algorithms, under the ordinary ``gluon.Trainer``."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

import numpy as np
from mxnet import nd
from mxnet.kvstore import KVStoreBase

from gluonlab.collectives.algorithms import make_schedule
from gluonlab.collectives.executor import Executor
from gluonlab.collectives.schedule import Schedule
from gluonlab.errors import KVStoreError, ScheduleError


class ScheduleKVStore(KVStoreBase):
    """Sums over the devices of the arrays that it is given, by the algorithm ``name`` of `gluonlab.collectives.algorithms`.

    ``order``: which device plays which rank, such as a topology's ring; see `Schedule.placed`. The executor of a key is made when
    the key is first used, and again when it comes with other arrays. ``priority`` is that of the first and the last thing that is
    queued for a key; transfers are made as soon as their chunks are ready. Use a store from one thread.

    Raises ScheduleError for an unknown name, and for an order that does not name every device once.
    """

    def __init__(self, name: str, order: Optional[Sequence[int]] = None) -> None:
        self._name, self._order = name, order
        self.schedule(2 if order is None else len(order))  # whether there is one
        self._executors: Dict[Any, "_Kept"] = {}
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
        for _, values, outs in _by_key(key, value, out):
            for array in outs:
                if array is not values[0]:
                    values[0].copyto(array)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Leave the sum of ``value``, one array per device, in each of them, or in ``out``; with the same bits in all.

        ``key`` may be a list, of values and outs then. Raises KVStoreError, and changes nothing, when the arrays cannot be summed.
        """
        for one, values, outs in _by_key(key, value, value if out is None else out):
            self._check_alike(one, values, outs)
            executor = self._executor(one, outs)
            for source, target in zip(values, outs):
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

    def _check_alike(self, key: Any, values: List[nd.NDArray], outs: List[nd.NDArray]) -> None:
        if len(values) != len(outs):
            raise KVStoreError(
                f"kvstore {self.type!r}, key {key!r}: {len(values)} arrays and {len(outs)} outputs: give one for each"
            )
        for value, out in zip(values, outs):
            if value is not out and (value.shape, value.dtype, value.context) != (out.shape, out.dtype, out.context):
                both = f"{_described(value)} cannot be left in {_described(out)}"
                raise KVStoreError(f"kvstore {self.type!r}, key {key!r}: {both}: they must be alike")

    def _executor(self, key: Any, arrays: List[nd.NDArray]) -> Executor:
        kept = self._executors.get(key)
        if kept is None or not kept.serves(arrays):
            if kept is not None:
                self._retired += kept.executor.transfers_run
            try:
                kept = _Kept(arrays, Executor(self.schedule(len(arrays)), [[array] for array in arrays]))
            except ScheduleError as error:
                raise KVStoreError(f"kvstore {self.type!r}, key {key!r}: {error}") from error
            self._executors[key] = kept
        return kept.executor


class _Kept:
    """An executor and the arrays that it was made for."""

    def __init__(self, arrays: Sequence[nd.NDArray], executor: Executor) -> None:
        self.arrays, self.executor = list(arrays), executor

    def serves(self, arrays: Sequence[nd.NDArray]) -> bool:
        return len(arrays) == len(self.arrays) and all(a is b for a, b in zip(arrays, self.arrays))


def _by_key(key: Any, value: Any, out: Any) -> "List[tuple[Any, List[nd.NDArray], List[nd.NDArray]]]":
    """(key, arrays, outs) of each key; one array stands for a list of one."""
    if isinstance(key, (list, tuple)):
        return [item for one in zip(key, value, out) for item in _by_key(*one)]
    values, outs = _arrays(value), _arrays(out)
    return [(key, values, outs)]


def _described(array: nd.NDArray) -> str:
    return f"{np.dtype(array.dtype).name}{list(array.shape)} on {array.context}"


def _arrays(value: Any) -> List[nd.NDArray]:
    return [value] if isinstance(value, nd.NDArray) else list(value)
