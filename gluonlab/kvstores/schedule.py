"""A kvstore that sums gradients by a schedule: the from-scratch algorithms, under the ordinary ``gluon.Trainer``."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

from mxnet import nd
from mxnet.kvstore import KVStoreBase

from gluonlab.collectives.algorithms import make_schedule
from gluonlab.collectives.executor import Executor
from gluonlab.collectives.schedule import Schedule
from gluonlab.errors import KVStoreError, ScheduleError


class ScheduleKVStore(KVStoreBase):
    """Sums over the devices of the arrays that it is given, by the algorithm ``name`` of `gluonlab.collectives.algorithms`.

    ``order``: which device plays which rank, such as a topology's ring; see `Schedule.placed`. The executor of a key is made when
    the key is first used, and again when it comes with other arrays.
    """

    def __init__(self, name: str, order: Optional[Sequence[int]] = None) -> None:
        self._name, self._order = name, order
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

        ``key`` may be a list, of values and outs then. Raises KVStoreError when the arrays cannot be summed.
        """
        for one, values, outs in _by_key(key, value, value if out is None else out):
            for source, target in zip(values, outs):
                if source is not target:
                    source.copyto(target)
            self._executor(one, outs).run(priority)

    def set_gradient_compression(self, compression_params: Any) -> None:
        """Raises KVStoreError: schedules move gradients as they are."""
        raise KVStoreError(f"kvstore {self.type!r} cannot compress gradients: choose device, or leave compression out")

    def schedule(self, world_size: int) -> Schedule:
        """What the store runs for so many devices."""
        schedule = make_schedule(self._name, world_size)
        return schedule if self._order is None else schedule.placed(self._order)

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


def _arrays(value: Any) -> List[nd.NDArray]:
    return [value] if isinstance(value, nd.NDArray) else list(value)
