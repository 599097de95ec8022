"""`SummingKVStore`, the base of the stores that plan their sums themselves.

It has MXNet's API, for gluon.Trainer. It plans the sums of a call once for its arrays
(`PushPullPlan`), and then runs them as often as wanted. A store that inherits from it says how
arrays are summed over the ranks: by a schedule (`schedule`, `sharded`), over processes
(`group_store`), or by NCCL (`native.NcclKVStore`). ``device`` and ``local`` do not inherit from it:
MXNet sums there, see `native`.
"""

from __future__ import annotations

from functools import partial
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Protocol,
    Sequence,
    Tuple,
    TypeVar,
)

import mxnet as mx
import numpy as np
from mxnet import autograd, nd
from mxnet.kvstore import KVStoreBase

from gluonlab.engine.fast_invoke import AddInto, CopyInto, arrays_share_memory, is_same_memory
from gluonlab.errors import KVStoreError, ScheduleError
from gluonlab.gpu.cuda import enable_peer_access

Keys = Tuple[Any, ...]
Made = TypeVar("Made")

SHARDED = "sharded-optimizer"

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


class Placement(NamedTuple):
    """Rank r is played by ``ctxs[order[r]]``; ``why`` says by what it was chosen.

    It is empty where there was nothing to choose. ``schedules``: where they were made for the
    links, which of them sums from how many bytes on.
    """

    order: Tuple[int, ...]
    why: str = ""
    schedules: Tuple[str, ...] = ()

    def settings(self, ctxs: "Sequence[mx.Context]") -> Dict[str, Any]:
        """As plain values, for config.json."""
        if self.schedules:
            return {"placed": self.why, "schedules": list(self.schedules)}
        return {"placed": self.why, "order": [str(ctxs[device]) for device in self.order]}

    def in_words(self, ctxs: "Sequence[mx.Context]") -> str:
        """``order gpu(0) gpu(3) ..., by the links that NVML reports``.

        The text is empty where there was nothing to choose.
        """
        if self.schedules:
            return f"{', '.join(self.schedules)}, {self.why}"
        devices = " ".join(str(ctxs[device]) for device in self.order)
        return f"order {devices}, {self.why}" if self.why else ""


def refusal(what: str, instead: str) -> Callable[..., None]:
    """A method that a store which only sums does not have: it raises KVStoreError."""

    def refuse(self: SummingKVStore, *given: Any, **options: Any) -> None:
        raise KVStoreError(f"kvstore {self.type!r} {what}: {instead}")

    refuse.__doc__ = f"Raises KVStoreError: {instead}."
    return refuse


class SummingKVStore(KVStoreBase):
    """Sums over the devices of the arrays that it is given, as `executor` does, and keeps nothing.

    Keys that come in one list are summed together. Give the same list every time: what sums is made
    when its keys are first used, and again when they come with other arrays. Use a store from one
    thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._sums: Dict[Keys, PushPullPlan] = {}
        self._retired = 0  # transfers of executors that were replaced

    def executor(self, arrays: Ranks, keys: Keys) -> Summing:
        """What sums ``arrays[rank]`` over the ranks, in place, each time that it is run.

        ``keys``: of the call, for a store that keeps something of theirs from sum to sum. Raises
        ScheduleError or KVStoreError.
        """
        raise NotImplementedError

    def placed_for(
        self, ctxs: Sequence[mx.Context], copies: Sequence[Sequence[mx.Context]]
    ) -> Optional[Placement]:
        """Which device plays which rank when a run sums; None for a store without ranks to place.

        ``ctxs``: the run's devices, ``copies``: those of each copy of the network.
        """
        return None

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
        """How many transfers the executors have queued so far; each piece of a chunk counts."""
        return self._retired + sum(sums.transfers_run for sums in self._sums.values())

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Copy ``value``, or its first array, into every array of ``out``.

        Nothing is recorded for autograd. ``key`` may be a list, of values and outs then: all values
        are read before anything is written. Raises KVStoreError, and changes nothing, when a value
        does not fit its outs.
        """
        entries = [
            entry._replace(values=entry.values[:1]) for entry in self._entries(key, value, out)
        ]
        for entry in entries:
            self._made((entry.key,), partial(check, entry))
        sources = [entry.values[0] for entry in entries]
        elsewhere = [
            value
            for (_, [value], outs) in entries
            if not any(is_same_memory(value, out) for out in outs)
        ]
        _enable_peers(entries)
        with autograd.pause():
            if arrays_share_memory([out for entry in entries for out in entry.outs], elsewhere):
                sources = [source.copy() for source in sources]
            for source, entry in zip(sources, entries):
                for out in entry.outs:
                    if out.size and not is_same_memory(out, source):
                        CopyInto(out).copy(source)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Leave the sum of ``value``, one array per device, in each of them, or in ``out``.

        All get the same bits. ``key`` may be a list, of values and outs then. Arrays may come
        several times and share memory, see `PushPullPlan`. Nothing is recorded for
        autograd. Raises KVStoreError, and changes nothing, when the arrays cannot be summed.
        """
        entries = self._entries(key, value, value if out is None else out)
        if entries:
            self._sums_of(entries).run(priority)

    set_optimizer = refusal(
        "has no optimizer",
        "update on the devices (update_on_kvstore=False), or choose sharded-optimizer",
    )
    init = refusal("has no init", "broadcast(key, value, out) copies a value to all devices")
    push = refusal("has no push", "pushpull(key, value, out) sums")
    pull = refusal("has no pull", "pushpull(key, value, out) sums")
    row_sparse_pull = refusal("has no row_sparse_pull", "choose device or local for sparse arrays")
    save_optimizer_states = refusal("has no optimizer states", "trainer.save_states saves its own")
    load_optimizer_states = refusal("has no optimizer states", "trainer.load_states loads its own")
    _set_updater = refusal("has no updater", "update what pushpull(key, value) leaves")
    set_gradient_compression = refusal(
        "cannot compress gradients", "choose device, or leave compression out"
    )

    def _barrier(self) -> None:
        """There are no other workers to wait for."""

    def _entries(self, key: Any, value: Any, out: Any) -> List[Entry]:
        """Each key with its values and outs."""
        name = self.type
        if not isinstance(key, (list, tuple)):  # in every step
            return [Entry(key, arrays_of(name, key, value), arrays_of(name, key, out))]
        return [Entry._make(own) for own in by_key(name, key, value, out)]

    def _sums_of(self, entries: List[Entry]) -> PushPullPlan:
        keys = tuple(entry.key for entry in entries)
        sums = self._sums.get(keys)
        if sums is None or not sums.serves(entries):
            new = self._made(
                keys, partial(PushPullPlan, partial(self.executor, keys=keys), entries)
            )
            _enable_peers(entries)
            self._retired += sums.transfers_run if sums is not None else 0
            sums = self._sums[keys] = new
        return sums

    def _made(self, keys: Keys, make: Callable[[], Made]) -> Made:
        """What ``make`` gives. Its errors name the store, and the keys where they do not."""
        try:
            return make()
        except KVStoreError as error:
            raise KVStoreError(f"kvstore {self.type!r}, {error}") from error
        except ScheduleError as error:
            raise KVStoreError(f"kvstore {self.type!r}, {named(keys)}: {error}") from error


def named(keys: Sequence[Any]) -> str:
    """The keys, for a message."""
    return f"key {keys[0]!r}" if len(keys) == 1 else f"keys {', '.join(map(repr, keys))}"


def is_sharded(store: Any) -> bool:
    """Whether ``store`` is a `gluonlab.kvstores.sharded_optimizer.ShardedKVStore`, which updates.

    Its module, and with it schedules and topologies, is imported only to make one.
    """
    return isinstance(store, SummingKVStore) and store.type == SHARDED


# --- what calls are given


def is_list(given: Any) -> bool:
    """Whether MXNet takes this for several keys, or several arrays."""
    return isinstance(given, (list, tuple))


def as_list(given: Any) -> List[Any]:
    """A list; anything else becomes a list of one."""
    return list(given) if is_list(given) else [given]


def by_key(store: str, key: Any, *given: Any) -> List[Tuple[Any, ...]]:
    """Each key with a list of arrays out of each of ``given``.

    Raises KVStoreError, which names the ``store``, for other numbers of values than of keys, and
    for what is no array.
    """
    if not isinstance(key, (list, tuple)):
        return [(key, *[arrays_of(store, key, values) for values in given])]
    columns = []
    for values in given:
        count = len(values) if is_list(values) else 1
        if not is_list(values) or count != len(key):
            raise KVStoreError(
                f"kvstore {store!r}: {len(key)} keys and {count} values or outs: "
                "give each key its own"
            )
        columns.append([arrays_of(store, name, own) for name, own in zip(key, values)])
    return list(zip(key, *columns))


def arrays_of(store: str, key: Any, given: Any) -> List[nd.NDArray]:
    """The arrays given for a key, as a list. Raises KVStoreError for what is no array."""
    arrays = list(given) if isinstance(given, (list, tuple)) else [given]
    for array in arrays:
        if not isinstance(array, nd.NDArray):
            raise KVStoreError(
                f"kvstore {store!r}, key {key!r}: {type(array).__name__} is no array: give NDArrays"
            )
    return arrays


# --- the sums of one call


class PushPullPlan:
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
            if value.size and not is_same_memory(value, out):
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
    if arrays_share_memory(outs):
        return True
    others = [
        value
        for entry in entries
        for place, value in enumerate(entry.values)
        if place >= len(entry.outs) or not is_same_memory(value, entry.outs[place])
    ]
    return arrays_share_memory(outs, others)


def _enable_peers(entries: Sequence[Entry]) -> None:
    enable_peer_access(
        [array.context for _, *both in entries for arrays in both for array in arrays]
    )
