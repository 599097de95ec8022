"""MXNet's own stores as instances that one Trainer after another may use.

A store of MXNet's takes a key once, and a Trainer gives it all of them again after load_parameters
or set_data. For a name it makes a new store then, and here that is done behind the instance. What
MXNet answers with a crash is answered in a line: a key that it does not know, or more arrays of a
key than there were in the first call.
"""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import mxnet as mx
import numpy as np
from mxnet import nd
from mxnet.base import _LIB, check_call
from mxnet.kvstore import KVStore

from gluonlab.errors import KVStoreError
from gluonlab.kvstores.arguments import (
    as_list,
    by_key,
    check_optimizer,
    checked_key,
    direct_copies,
    is_list,
    no_optimizer,
    pushpull_arguments,
)
from gluonlab.kvstores.owner import Owner
from gluonlab.optimizers.states import is_list_of_arrays


class _Kept(NamedTuple):
    """What is kept under a key: MXNet's store, shape and type."""

    store: KVStore
    shape: Tuple[int, ...]
    dtype: Any
    room: int  # for how many values; 0 before the first

    def takes(self, values: Any) -> bool:
        """Whether there is room for such values already, as in every call but the first."""
        if not is_list(values) or not 0 < len(values) <= self.room:
            return False
        if not all(isinstance(array, nd.NDArray) for array in values):
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
        """Keep ``value``, or its first array, and copy it into every array of ``out``.

        ``key`` may be a list, of values and outs then.
        """
        first = [as_list(own)[0] for own in value] if is_list(key) else as_list(value)[0]
        self.init(key, first)
        self._by_store("pull", key, out, priority=priority)

    def init(self, key: Any, value: Any) -> None:
        """Keep ``value``; with a list of keys, a list of values."""
        for name, values in self._pairs(key, value):
            kept = self._kept.get(name)
            again = kept is not None and kept.store is self._latest
            if again and self._owner.known and not self._claimed:
                # its owner would have given its optimizer again: somebody else comes
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
        """Copy what is kept into ``out``. Raises KVStoreError without it."""
        if out is None:
            raise KVStoreError(f"kvstore {self._name!r}: pull needs arrays: give out=arrays")
        self._by_store("pull", key, out, priority=priority, ignore_sparse=ignore_sparse)

    def row_sparse_pull(
        self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None
    ) -> None:
        store = self._of(key[0] if is_list(key) else key).store
        store.row_sparse_pull(key, out, priority, row_ids)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Leave the sum of ``value`` in each of its arrays, or in ``out``.

        With an optimizer it leaves the updated weights there.
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

    def prepared(self, key: int, arrays: List[nd.NDArray], priority: int = 0) -> Callable[[], None]:
        """``pushpull(key, arrays, priority=priority)`` as a function, for the same arrays.

        It costs MXNet's C call alone.
        """
        same = list(arrays)
        arguments, urgency = pushpull_arguments(key, same), ctypes.c_int(priority)
        # where these arrays have been summed; another one if somebody has begun anew
        place: Optional[_Kept] = None

        def run() -> None:
            nonlocal place
            kept = self._kept.get(key)
            if kept is None or kept is not place or self._update is not None:
                self.pushpull(key, same, priority=priority)
                place = self._kept[key]
                return
            check_call(_LIB.MXKVStorePushPull(kept.store.handle, *arguments, urgency))

        return run

    def set_gradient_compression(self, compression_params: Dict[str, Any]) -> None:
        """Compress gradients from now on. Raises KVStoreError if the store cannot."""
        if not isinstance(compression_params, dict):
            raise KVStoreError(
                f"compression_params {compression_params!r}: give {{'type': '2bit', "
                "'threshold': 0.5}"
            )
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
        """Update the weights with this optimizer; a Trainer's goes on with its states."""
        check_optimizer(self._name, optimizer)
        trainer = self._owner.take(optimizer)
        if trainer is not None:
            self._set_updater(trainer._updaters[0])
        elif getattr(self._update, "optimizer", None) is not optimizer:
            self._set_updater(mx.optimizer.get_updater(optimizer))
        self._claimed = True

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """As MXNet's own. Raises KVStoreError without an optimizer."""
        self._require_optimizer()
        super().save_optimizer_states(fname, dump_optimizer)

    def load_optimizer_states(self, fname: str) -> None:
        """What gluon.Trainer.save_states wrote under a store of MXNet's.

        Raises KVStoreError for other files, pipes and such, and without an optimizer.
        """
        self._require_optimizer()
        if is_list_of_arrays(fname):
            raise KVStoreError(
                f"{str(fname)!r} holds arrays by name, "
                f"and gluon.Trainer loads pickles alone under {self._name!r}: "
                "write states with gluonlab.update.gluon_export.export_gluon_states, "
                "or load them with a BucketedTrainer"
            )
        super().load_optimizer_states(fname)

    def _require_optimizer(self) -> None:
        if not hasattr(self._update, "get_states"):
            raise no_optimizer(self._name)

    def _set_updater(self, updater: Callable[..., None]) -> None:
        self._update = updater
        for store in self._stores():
            store._set_updater(self._guarded)

    def _guarded(self, key: Any, grad: nd.NDArray, weight: nd.NDArray) -> None:
        """The updater as MXNet's C code calls it, which would print an exception and go on."""
        try:
            if self._update is not None and self._failure is None:
                self._update(key, grad, weight)
        except Exception as error:
            self._failure = error

    def _stores(self) -> List[KVStore]:
        stores = [self._latest, *(kept.store for kept in self._kept.values())]
        return list({id(store): store for store in stores}.values())

    def _keep(self, key: Any, value: nd.NDArray) -> None:
        """Keep ``value`` in a store of MXNet that has nothing under this key yet."""
        kept = self._kept.get(key)
        if kept is not None and kept.store is self._latest:
            self._latest = mx.kv.create(self._name)
            if self._compression is not None:
                self._latest.set_gradient_compression(self._compression)
            if self._update is not None:
                self._latest._set_updater(self._guarded)
        self._latest.init(key, value)
        self._words = isinstance(key, str)
        self._kept[key] = _Kept(self._latest, value.shape, value.dtype, 0)

    def _prepare(self, key: Any, values: List[nd.NDArray]) -> None:
        """Make room for such values; MXNet's store has it for as many as came first."""
        shape, dtype, count = values[0].shape, values[0].dtype, len(values)
        kept = self._kept.get(key)
        if self._update is None:
            if kept is None or (kept.shape, kept.dtype) != (shape, dtype) or 0 < kept.room < count:
                self._keep(key, nd.zeros(shape, dtype=dtype))
        else:
            kept = self._of(key)
            if (kept.shape, kept.dtype) != (shape, dtype):
                grad, weight = (
                    f"{np.dtype(one.dtype).name}{list(one.shape)}" for one in (values[0], kept)
                )
                raise KVStoreError(
                    f"kvstore {self._name!r}, key {key!r}: "
                    f"{grad} cannot update {weight}: broadcast weights that are alike"
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
        """Make one call for all keys if one of MXNet's stores has them, else one for each."""
        keys = [checked_key(name) for name in as_list(key)]
        stores = [self._of(name).store for name in keys]
        with direct_copies(arrays):
            if len({id(store) for store in stores}) == 1:
                getattr(stores[0], call)(keys if is_list(key) else keys[0], *arrays, **settings)
            else:
                for name, store, *of_key in zip(keys, stores, *arrays):
                    getattr(store, call)(name, *of_key, **settings)
        self._raise_failure()

    def _raise_failure(self) -> None:
        """Raise what the updater has raised since."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _pairs(self, key: Any, value: Any) -> List[Tuple[Any, List[nd.NDArray]]]:
        """Each key with its values.

        Raises KVStoreError for what MXNet takes for no keys, or for no values of theirs.
        """
        pairs = [(checked_key(name), own) for name, own in by_key(self._name, key, value)]
        for name, values in pairs:
            if not values:
                raise KVStoreError(
                    f"kvstore {self._name!r}, key {name!r}: there are no arrays to sum: "
                    "give one for each device"
                )
        kinds = {isinstance(name, str) for name, _ in pairs} | {self._words} - {None}
        if len(kinds) > 1:
            raise KVStoreError(
                f"kvstore {self._name!r}: keys of one store are numbers or words, not both: "
                f"{pairs[0][0]!r}"
            )
        return pairs
