"""MXNet's own stores, in a form that may be given to one Trainer after another, as their names may.

A store of MXNet's takes a key once, and a Trainer gives it all of them again after load_parameters
or set_data. For a name it makes a new store then, and here that is done behind the instance. What
MXNet answers with a crash is answered in a line: a key that it does not know, or more arrays of a
key than there were in the first call.
"""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from operator import index
from typing import (
    Any,
    Callable,
    ContextManager,
    Dict,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import mxnet as mx
import numpy as np
from mxnet import nd
from mxnet.base import _LIB, check_call
from mxnet.kvstore import KVStore
from mxnet.kvstore.base import _ctype_key_value

from gluonlab.engine.setup import peers_are_enabled
from gluonlab.errors import KVStoreError
from gluonlab.gpu.peers import enable_peer_access
from gluonlab.kvstores.owner import Owner
from gluonlab.optimizers.states.states import is_list_of_arrays


class _Kept(NamedTuple):
    """A key: its store of MXNet's, shape and type of what that keeps, and for how many values it
    has room; 0 if none came yet.
    """

    store: KVStore
    shape: Tuple[int, ...]
    dtype: Any
    room: int

    def takes(self, values: Any) -> bool:
        """Whether there is a place for such values already: the case of every call but the
        first.
        """
        if not (
            _several(values)
            and 0 < len(values) <= self.room
            and all(isinstance(array, nd.NDArray) for array in values)
        ):
            return False
        return bool(values[0].shape == self.shape and values[0].dtype == self.dtype)


class NativeKVStore(KVStore):
    """MXNet's store ``name``: ``device`` or ``local``; for ``nccl`` see `gluonlab.kvstores.nccl`.

    A key that is broadcast or initialised again begins anew. A Trainer that updates on the store
    keeps the states of its optimizer when it does that (for a name MXNet makes new ones), and hands
    the store over when another Trainer comes; it takes it back, with its weights, in its next step.
    Raises KVStoreError where MXNet would crash, or fail later and elsewhere.
    """

    _is_p3 = False

    def __init__(self, name: str) -> None:
        self._name = name
        self._latest: KVStore = mx.kv.create(name)
        self._kept: Dict[Any, _Kept] = {}
        self._words: Optional[bool] = None  # whether keys are words; None before the first
        self._compression: Optional[Dict[str, Any]] = None
        self._update: Optional[Callable[..., None]] = None
        self._owner = Owner(self)
        self._failure: Optional[Exception] = None  # of the updater
        self._claimed = False  # whether `set_optimizer` came after the last key

    def __del__(self) -> None:
        """Each of the stores within frees what is its own."""

    @property
    def handle(self) -> Any:
        """That of the store of MXNet's that gets new keys."""
        return self._latest.handle

    @property
    def _updater(self) -> Any:
        return self._update

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Keep ``value``, or the first of it, and copy it into every array of ``out``; ``key`` may
        be a list, of both then.
        """
        self.init(key, [_list(of_key)[0] for of_key in value] if _several(key) else _list(value)[0])
        self._by_store("pull", key, out, priority=priority)

    def init(self, key: Any, value: Any) -> None:
        """Keep ``value``; ``key`` may be a list, of values then."""
        for name, values in self._pairs(key, value):
            kept = self._kept.get(name)
            if (
                kept is not None
                and kept.store is self._latest
                and self._owner.known
                and not self._claimed
            ):
                # it would have given its optimizer again: somebody else comes
                self._owner.release()
                self._update = None
            self._keep(name, values[0])
        self._claimed = False

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        for name, values in self._pairs(key, value):
            self._prepare(name, values)
        self._by_store("push", key, value, priority=priority)

    def pull(
        self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True
    ) -> None:
        self._by_store("pull", key, out, priority=priority, ignore_sparse=ignore_sparse)

    def row_sparse_pull(
        self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None
    ) -> None:
        self._of(key[0] if _several(key) else key).store.row_sparse_pull(
            key, out, priority, row_ids
        )

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Leave the sum of ``value``, or with an optimizer the updated weights, in each of it, or
        in ``out``.
        """
        if out is None and self._update is not None and self._owner.known:
            raise KVStoreError(
                f"kvstore {self._name!r} updates for another Trainer now: make a kvstore for each"
            )
        kept = self._kept.get(key) if type(key) in (int, str) else None
        if kept is not None and kept.takes(value):
            kept.store.pushpull(key, value, value if out is None else out, priority)
            self._raise_failure()
            return
        for name, values in self._pairs(key, value):
            self._prepare(name, values)
        self._by_store("pushpull", key, value, value if out is None else out, priority=priority)

    def prepared(
        self, key: int, arrays: Sequence[nd.NDArray], priority: int = 0
    ) -> Callable[[], None]:
        """``pushpull(key, arrays, priority=priority)`` for arrays that stay the same, at the cost
        of MXNet's C call alone.
        """
        same = list(arrays)
        keys, handles, _ = _ctype_key_value(key, same)
        count, urgency = ctypes.c_uint(len(same)), ctypes.c_int(priority)
        # where these arrays have been summed; another one if somebody has begun anew
        place: Optional[_Kept] = None

        def run() -> None:
            nonlocal place
            kept = self._kept.get(key)
            if kept is None or kept is not place or self._update is not None:
                self.pushpull(key, same, priority=priority)
                place = self._kept[key]
                return
            check_call(
                _LIB.MXKVStorePushPull(
                    kept.store.handle, count, keys, count, keys, handles, handles, urgency
                )
            )

        return run

    def set_gradient_compression(self, compression_params: Dict[str, Any]) -> None:
        """What to compress gradients with from now on.

        Raises KVStoreError for what the store cannot.
        """
        if not (self._name == "device" or "dist" in self._name):
            raise KVStoreError(
                f"kvstore {self._name!r} cannot compress gradients: "
                "choose device, or leave compression out"
            )
        try:
            for store in self._stores():
                store.set_gradient_compression(compression_params)
        except mx.MXNetError as error:
            reason = str(error).strip().splitlines()[-1]
            raise KVStoreError(
                f"kvstore {self._name!r} cannot compress with {compression_params}: {reason}"
            ) from error
        self._compression = dict(compression_params)

    def set_optimizer(self, optimizer: mx.optimizer.Optimizer) -> None:
        """What the store updates its weights with.

        A Trainer's optimizer goes on with the states that it has.
        """
        trainer = self._owner.take(optimizer)
        if trainer is not None:
            self._set_updater(trainer._updaters[0])
        elif getattr(self._update, "optimizer", None) is not optimizer:
            self._set_updater(mx.optimizer.get_updater(optimizer))
        self._claimed = True

    def load_optimizer_states(self, fname: str) -> None:
        """What gluon.Trainer.save_states wrote under a store of MXNet's.

        Raises KVStoreError for other files, pipes and such.
        """
        if is_list_of_arrays(fname):
            raise KVStoreError(
                f"{str(fname)!r} holds arrays by name, and gluon.Trainer loads pickles alone "
                f"under {self._name!r}: write states with "
                "gluonlab.update.gluon_export.export_gluon_states, "
                "or load them with a BucketedTrainer"
            )
        super().load_optimizer_states(fname)

    def _set_updater(self, updater: Callable[..., None]) -> None:
        self._update = updater
        for store in self._stores():
            store._set_updater(self._guarded)

    def _guarded(self, key: Any, grad: nd.NDArray, weight: nd.NDArray) -> None:
        """The updater, called by MXNet's C code, which would print what it raises, and go on."""
        try:
            if self._update is not None and self._failure is None:
                self._update(key, grad, weight)
        except Exception as error:
            self._failure = error

    def _stores(self) -> List[KVStore]:
        return list(
            {
                id(store): store
                for store in (self._latest, *(kept.store for kept in self._kept.values()))
            }.values()
        )

    def _keep(self, key: Any, value: nd.NDArray) -> None:
        """Keep ``value`` where MXNet has nothing under this key yet."""
        kept = self._kept.get(key)
        if kept is not None and kept.store is self._latest:
            self._latest = self._fresh()
        self._latest.init(key, value)
        self._words = isinstance(key, str)
        self._kept[key] = _Kept(self._latest, value.shape, value.dtype, 0)

    def _fresh(self) -> KVStore:
        store = mx.kv.create(self._name)
        if self._compression is not None:
            store.set_gradient_compression(self._compression)
        if self._update is not None:
            store._set_updater(self._guarded)
        return store

    def _prepare(self, key: Any, values: Sequence[nd.NDArray]) -> None:
        """Have a place for such values: MXNet's store has it for those that it was initialised
        with, and as many as came first.
        """
        shape, dtype, count = values[0].shape, values[0].dtype, len(values)
        kept = self._kept.get(key)
        if self._update is None:
            if kept is None or (kept.shape, kept.dtype) != (shape, dtype) or 0 < kept.room < count:
                self._keep(key, nd.zeros(shape, dtype=dtype))
        else:
            kept = self._of(key)
            if (kept.shape, kept.dtype) != (shape, dtype):
                given = (
                    f"{np.dtype(dtype).name}{list(shape)} cannot update "
                    f"{np.dtype(kept.dtype).name}{list(kept.shape)}"
                )
                raise KVStoreError(
                    f"kvstore {self._name!r}, key {key!r}: {given}: "
                    "broadcast weights that are alike"
                )
            if 0 < kept.room < count:
                weights = nd.zeros(shape, dtype=dtype)
                kept.store.pull(key, weights)
                self._keep(key, weights)
        kept = self._of(key)
        if not kept.room:
            self._kept[key] = kept._replace(room=count)

    def _of(self, key: Any) -> _Kept:
        if key not in self._kept:
            raise KVStoreError(
                f"kvstore {self._name!r} knows no key {key!r}: broadcast or init it first"
            )
        return self._kept[key]

    def _by_store(self, call: str, key: Any, *arrays: Any, **settings: Any) -> None:
        """One call for all keys, where one of MXNet's stores has them; else one for each."""
        keys = [_checked(name) for name in key] if _several(key) else [_checked(key)]
        stores = [self._of(name).store for name in keys]
        with _direct_copies(arrays):
            if all(store is stores[0] for store in stores):
                if stores:
                    getattr(stores[0], call)(
                        keys if _several(key) else keys[0], *arrays, **settings
                    )
            else:
                for name, store, *of_key in zip(keys, stores, *arrays):
                    getattr(store, call)(name, *of_key, **settings)
        self._raise_failure()

    def _raise_failure(self) -> None:
        """Raise what the updater has raised, if it has."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _pairs(self, key: Any, value: Any) -> List[Tuple[Any, List[nd.NDArray]]]:
        """Each key with its values.

        Raises KVStoreError for what MXNet takes for no keys, or for no values of theirs.
        """
        keys, given = (list(key), value) if _several(key) else ([key], [value])
        if not _several(given) or len(given) != len(keys):
            count = len(given) if _several(given) else 1
            raise KVStoreError(
                f"kvstore {self._name!r}: {len(keys)} keys and {count} values: "
                "give each key its own"
            )
        pairs = [(_checked(name), _list(of_key)) for name, of_key in zip(keys, given)]
        for name, values in pairs:
            if not values or not all(isinstance(array, nd.NDArray) for array in values):
                raise KVStoreError(
                    f"kvstore {self._name!r}, key {name!r}: there are no arrays to sum: "
                    "give one for each device"
                )
        kinds = {isinstance(name, str) for name, _ in pairs}
        if self._words is not None:
            kinds.add(self._words)
        if len(kinds) > 1:
            raise KVStoreError(
                f"kvstore {self._name!r}: keys of one store are numbers or words, not both: "
                f"{keys[0]!r}"
            )
        return pairs


def _direct_copies(arrays: Any) -> "ContextManager[None]":
    """While a store of MXNet's gets these arrays, or lists of them, for the first time: on GPUs,
    access is ours to enable.
    """
    gpus = [array.context for array in _flat(arrays) if array.context.device_type == "gpu"]
    enable_peer_access(gpus)
    return peers_are_enabled() if gpus else nullcontext()


def _flat(arrays: Any) -> Iterator[nd.NDArray]:
    for given in arrays:
        if _several(given):
            yield from _flat(given)
        elif isinstance(given, nd.NDArray):
            yield given


def _several(given: Any) -> bool:
    return isinstance(given, (list, tuple))


def _list(given: Any) -> List[Any]:
    return list(given) if _several(given) else [given]


def _checked(key: Any) -> Any:
    """The key as MXNet takes it: a word or a Python number."""
    if isinstance(key, str):
        return key
    try:
        return index(key)
    except TypeError as error:
        raise KVStoreError(
            f"key {key!r}: MXNet's stores have words and whole numbers for keys"
        ) from error
