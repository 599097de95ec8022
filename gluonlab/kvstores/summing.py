"""The common part of kvstores that only sum, with MXNet's API, under gluon.Trainer."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, List, Sequence, Tuple, TypeVar

from mxnet import autograd
from mxnet.kvstore import KVStoreBase

from gluonlab.engine.invoke import CopyInto, same_memory, share_memory
from gluonlab.errors import KVStoreError, ScheduleError
from gluonlab.gpu.cuda import enable_peer_access
from gluonlab.kvstores.arguments import arrays_of, by_key
from gluonlab.kvstores.sums import Entry, Ranks, Summing, Sums, check

Keys = Tuple[Any, ...]
Made = TypeVar("Made")


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
        self._sums: Dict[Keys, Sums] = {}
        self._retired = 0  # transfers of executors that were replaced

    def executor(self, arrays: Ranks, keys: Keys) -> Summing:
        """What sums ``arrays[rank]`` over the ranks, in place, each time that it is run.

        ``keys``: of the call, for a store that keeps something of theirs from sum to sum. Raises
        ScheduleError or KVStoreError.
        """
        raise NotImplementedError

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
            if not any(same_memory(value, out) for out in outs)
        ]
        _enable_peers(entries)
        with autograd.pause():
            if share_memory([out for entry in entries for out in entry.outs], elsewhere):
                sources = [source.copy() for source in sources]
            for source, entry in zip(sources, entries):
                for out in entry.outs:
                    if out.size and not same_memory(out, source):
                        CopyInto(out).copy(source)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Leave the sum of ``value``, one array per device, in each of them, or in ``out``.

        All get the same bits. ``key`` may be a list, of values and outs then. Arrays may come
        several times and share memory, see `gluonlab.kvstores.sums`. Nothing is recorded for
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

    def _sums_of(self, entries: List[Entry]) -> Sums:
        keys = tuple(entry.key for entry in entries)
        sums = self._sums.get(keys)
        if sums is None or not sums.serves(entries):
            new = self._made(keys, partial(Sums, partial(self.executor, keys=keys), entries))
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


def _enable_peers(entries: Sequence[Entry]) -> None:
    enable_peer_access(
        [array.context for _, *both in entries for arrays in both for array in arrays]
    )


def named(keys: Sequence[Any]) -> str:
    """The keys, for a message."""
    return f"key {keys[0]!r}" if len(keys) == 1 else f"keys {', '.join(map(repr, keys))}"
