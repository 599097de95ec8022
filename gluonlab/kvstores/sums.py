"""The sums of one `pushpull`, planned once for its arrays and then run as often as wanted.

The arrays may share memory and lie anywhere. What MXNet's own stores do is the definition: the sum
of a key is that of all its values, all values are read before anything is written, and every out
gets the sum of its key; where one is the out of several keys, that of the last stays.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Protocol, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import autograd, nd

from gluonlab.engine.invoke import AddInto, CopyInto, same_memory, share_memory
from gluonlab.errors import KVStoreError

Call = Callable[[], None]
# for each rank, its arrays, which lie on a device of its own; all ranks' are alike
Ranks = List[List[nd.NDArray]]


class Summing(Protocol):
    """Something that sums given arrays over the ranks, such as `Executor`."""

    transfers_run: int

    def run(self, priority: int = 0) -> None:
        """Queue it: each array becomes the sum of its like on all ranks. Nothing waits for it."""


class Entry(NamedTuple):
    """A key, its values, and what its sum is left in."""

    key: Any
    values: List[nd.NDArray]
    outs: List[nd.NDArray]


class Sums:
    """``run()`` leaves the sum of each entry's values in its outs, by ``executor``.

    Nothing waits, and nothing is recorded. Values that lie on distinct devices are summed in the
    outs themselves, where these lie on the same devices and nothing else shares their memory.
    Others are first copied to where they can be summed, one array for each device of the key.
    Raises KVStoreError or ScheduleError, and changes nothing, for arrays that cannot be summed.
    """

    def __init__(self, executor: Callable[[Ranks], Summing], entries: Sequence[Entry]) -> None:
        self._entries = entries
        self._before: List[Call] = []
        self._after: List[Call] = []
        groups: Dict[Tuple[mx.Context, ...], List[List[nd.NDArray]]] = {}  # devices -> arrays
        merged = list(_merged(entries))
        for entry in merged:
            check(entry)
        in_place = not _mixed_up(merged)
        for entry in merged:
            summed = self._in_outs(entry) if in_place and _fits(entry) else self._aside(entry)
            groups.setdefault(tuple(array.context for array in summed), []).append(summed)
        by_rank = ([list(rank) for rank in zip(*arrays)] for arrays in groups.values())
        self._executors = [executor(arrays) for arrays in by_rank]

    @property
    def transfers_run(self) -> int:
        """How many transfers its executors have queued so far."""
        return sum(executor.transfers_run for executor in self._executors)

    def serves(self, entries: Sequence[Entry]) -> bool:
        """Whether these are the very arrays that it was made for."""
        return same_entries(self._entries, entries)

    def run(self, priority: int = 0) -> None:
        """Queue everything. ``priority``: as in `Executor.run`."""
        with autograd.pause():
            for call in self._before:
                call()
            for executor in self._executors:
                executor.run(priority)
            for call in self._after:
                call()

    def _in_outs(self, entry: Entry) -> List[nd.NDArray]:
        """The outs, which get the values first."""
        for value, out in zip(entry.values, entry.outs):
            if value.size and not same_memory(value, out):
                self._before.append(partial(CopyInto(out).copy, value))
        return entry.outs

    def _aside(self, entry: Entry) -> List[nd.NDArray]:
        """New arrays, one for each device, for the sums; the outs are copied from them."""
        shape, dtype = entry.values[0].shape, entry.values[0].dtype
        places: Dict[mx.Context, nd.NDArray] = {}
        for value in entry.values if entry.values[0].size else ():
            if value.context in places:
                self._before.append(partial(AddInto(places[value.context]).add, value))
            else:
                places[value.context] = nd.empty(shape, value.context, dtype)
                self._before.append(partial(CopyInto(places[value.context]).copy, value))
        for out in entry.outs if places else ():
            source = places.get(out.context, next(iter(places.values())))
            self._after.append(partial(CopyInto(out).copy, source))
        return list(places.values()) or entry.values[:1]


def same_entries(some: Sequence[Entry], others: Sequence[Entry]) -> bool:
    """Whether these have the same objects for values and outs, one by one."""
    return len(some) == len(others) and all(
        _same(one.values, other.values) and _same(one.outs, other.outs)
        for one, other in zip(some, others)
    )


def _same(some: Sequence[nd.NDArray], others: Sequence[nd.NDArray]) -> bool:
    return len(some) == len(others) and all(a is b for a, b in zip(some, others))


def size_of(arrays: Sequence[nd.NDArray]) -> int:
    """The bytes of the arrays of one rank."""
    return sum(array.size * np.dtype(array.dtype).itemsize for array in arrays)


def described(array: nd.NDArray) -> str:
    """Type, shape and device, for a message."""
    return f"{np.dtype(array.dtype).name}{list(array.shape)} on {array.context}"


def _merged(entries: Sequence[Entry]) -> Iterator[Entry]:
    """One entry for each key, with all its values and outs, in the order of the keys.

    That is MXNet's order.
    """
    of_key: Dict[Any, Entry] = {}
    for key, values, outs in entries:
        entry = of_key.setdefault(key, Entry(key, [], []))
        entry.values.extend(values)
        entry.outs.extend(outs)
    in_order = sorted(of_key) if all(isinstance(key, int) for key in of_key) else of_key
    return iter(of_key[key] for key in in_order)


def check(entry: Entry) -> None:
    """Raise KVStoreError when the values of a key cannot be summed and left in its outs."""
    key, values, outs = entry
    if not values:
        raise KVStoreError(f"key {key!r}: there are no arrays to sum: give one for each device")
    first = values[0]
    for array in (*values, *outs):
        if array.stype != "default":
            raise KVStoreError(
                f"key {key!r}: sparse arrays cannot be summed: "
                "use array.tostype('default'), or choose device"
            )
    for place, array in enumerate((*values, *outs)):
        if (array.shape, array.dtype) != (first.shape, first.dtype):
            both = f"{described(first)} and {described(array)} cannot be summed"
            if place >= len(values):
                both = f"{described(first)} cannot be left in {described(array)}"
            raise KVStoreError(f"key {key!r}: {both}: they must be alike")


def _fits(entry: Entry) -> bool:
    """Whether there is an out for each value, on its device, and no device comes twice."""
    ctxs = [value.context for value in entry.values]
    return ctxs == [out.context for out in entry.outs] and len(set(ctxs)) == len(ctxs)


def _mixed_up(entries: Sequence[Entry]) -> bool:
    """Whether writing to an out would change another out, or a value summed elsewhere."""
    outs = [out for entry in entries for out in entry.outs]
    if share_memory(outs):
        return True
    others = [
        value
        for entry in entries
        for place, value in enumerate(entry.values)
        if place >= len(entry.outs) or not same_memory(value, entry.outs[place])
    ]
    return share_memory(outs, others)
