"""What kvstores have in common that only sum: an API like MXNet's, whatever their arrays share,
under ``gluon.Trainer``.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, List, NoReturn, Sequence, Tuple, TypeVar

from mxnet import autograd, nd
from mxnet.kvstore import KVStoreBase

from gluonlab.engine.invoke import CopyInto, same_memory, share_memory
from gluonlab.errors import KVStoreError, ScheduleError
from gluonlab.gpu.peers import enable_peer_access
from gluonlab.kvstores.sums import Entry, Ranks, Summing, Sums, check

Keys = Tuple[Any, ...]
Made = TypeVar("Made")


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

    def executor(self, arrays: Ranks) -> Summing:
        """What sums ``arrays[rank]`` over the ranks, in place, each time that it is run.

        Raises ScheduleError or KVStoreError.
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
        """How many transfers the executors have queued so far, pieces of a chunk counted one by
        one.
        """
        return self._retired + sum(sums.transfers_run for sums in self._sums.values())

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Copy ``value``, or the first of it, into every array of ``out``; nothing is recorded for
        autograd.

        ``key`` may be a list, of values and outs then: all values are read before anything is
        written. Raises KVStoreError, and changes nothing, when a value does not fit its outs.
        """
        entries = [
            Entry(name, values[:1], outs) for name, values, outs in self._entries(key, value, out)
        ]
        for entry in entries:
            self._made((entry.key,), partial(check, entry))
        sources = [entry.values[0] for entry in entries]
        elsewhere = [
            source
            for source, entry in zip(sources, entries)
            if not any(same_memory(source, out) for out in entry.outs)
        ]
        enable_peer_access(
            [array.context for entry in entries for array in (*entry.values, *entry.outs)]
        )
        with autograd.pause():
            if share_memory([out for entry in entries for out in entry.outs], elsewhere):
                sources = [source.copy() for source in sources]
            for source, entry in zip(sources, entries):
                for out in entry.outs:
                    if out.size and not same_memory(out, source):
                        CopyInto(out).copy(source)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Leave the sum of ``value``, one array per device, in each of them, or in ``out``; with
        the same bits in all.

        ``key`` may be a list, of values and outs then. Arrays may come several times and share
        memory, see `gluonlab.kvstores.sums`. Nothing is recorded for autograd. Raises KVStoreError,
        and changes nothing, when the arrays cannot be summed.
        """
        entries = self._entries(key, value, value if out is None else out)
        if entries:
            self._sums_of(entries).run(priority)

    def set_optimizer(self, optimizer: Any) -> None:
        """Raises KVStoreError: the optimizer runs on the devices."""
        self._refuse(
            "no optimizer",
            "update on the devices (update_on_kvstore=False), or choose sharded-optimizer",
        )

    def init(self, key: Any, value: Any) -> None:
        """Raises KVStoreError, as `push`, `pull` and `row_sparse_pull` do: this store sums, and
        keeps nothing.
        """
        self._refuse("no init", "broadcast(key, value, out) copies a value to all devices")

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Raises KVStoreError."""
        self._refuse("no push", "pushpull(key, value, out) sums")

    def pull(
        self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True
    ) -> None:
        """Raises KVStoreError."""
        self._refuse("no pull", "pushpull(key, value, out) sums")

    def row_sparse_pull(
        self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None
    ) -> None:
        """Raises KVStoreError."""
        self._refuse("no row_sparse_pull", "choose device or local for sparse arrays")

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Raises KVStoreError: the optimizer's states are with the trainer."""
        self._refuse("no optimizer states", "trainer.save_states saves its own")

    def load_optimizer_states(self, fname: str) -> None:
        """Raises KVStoreError: the optimizer's states are with the trainer."""
        self._refuse("no optimizer states", "trainer.load_states loads its own")

    def _set_updater(self, updater: Any) -> None:
        self._refuse("no updater", "update what pushpull(key, value) leaves on the devices")

    def _barrier(self) -> None:
        """There is nobody to wait for."""

    def _refuse(self, what: str, instead: str) -> NoReturn:
        raise KVStoreError(f"kvstore {self.type!r} has {what}: {instead}")

    def set_gradient_compression(self, compression_params: Any) -> None:
        """Raises KVStoreError: gradients move as they are."""
        raise KVStoreError(
            f"kvstore {self.type!r} cannot compress gradients: "
            "choose device, or leave compression out"
        )

    def _entries(self, key: Any, value: Any, out: Any) -> List[Entry]:
        """Each key with its values and outs; one key stands for a list of one, and so does one
        array.
        """
        if not isinstance(key, (list, tuple)):
            return [Entry(key, self._arrays(key, value), self._arrays(key, out))]
        for what in (value, out):
            count = len(what) if isinstance(what, (list, tuple)) else 1
            if count != len(key):
                raise KVStoreError(
                    f"kvstore {self.type!r}: {len(key)} keys and {count} values or outs: "
                    "give each key its own"
                )
        return [
            Entry(name, self._arrays(name, own), self._arrays(name, outs))
            for name, own, outs in zip(key, value, out)
        ]

    def _arrays(self, key: Any, given: Any) -> List[nd.NDArray]:
        arrays = list(given) if isinstance(given, (list, tuple)) else [given]
        for array in arrays:
            if not isinstance(array, nd.NDArray):
                raise KVStoreError(
                    f"kvstore {self.type!r}, key {key!r}: {type(array).__name__} is no array: "
                    "give NDArrays"
                )
        return arrays

    def _sums_of(self, entries: List[Entry]) -> Sums:
        keys = tuple(entry.key for entry in entries)
        sums = self._sums.get(keys)
        if sums is None or not sums.serves(entries):
            made = self._made(keys, partial(Sums, self.executor, entries))
            enable_peer_access(
                [array.context for entry in entries for array in (*entry.values, *entry.outs)]
            )
            self._retired += sums.transfers_run if sums is not None else 0
            sums = self._sums[keys] = made
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
