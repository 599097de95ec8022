"""The stores in which MXNet sums: ``device`` and ``local``, ``nccl``, and those over processes.

``device`` and ``local`` are `NativeKVStore`, ``nccl`` is `NcclKVStore`. The sums themselves are
MXNet's C++ (``MXKVStorePushPull``). The stores that sum by our own code are in `summing` and the
modules that inherit from it.

A store of MXNet's takes a key once, and a Trainer gives it all of them again after load_parameters
or set_data. For a name MXNet makes a new store then; `NativeKVStore` does that behind the instance,
which one Trainer after another may use. What MXNet answers with a crash is answered in a line: a
key that it does not know, or more arrays of a key than there were in the first call.
"""

from __future__ import annotations

import ctypes
from contextlib import nullcontext, suppress
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
from weakref import ReferenceType, WeakKeyDictionary, finalize, ref

import mxnet as mx
import numpy as np
from mxnet import gluon, nd
from mxnet.base import _LIB, check_call
from mxnet.kvstore import KVStore
from mxnet.kvstore.base import _ctype_key_value

from gluonlab.engine.fast_invoke import flat_view
from gluonlab.engine.mxnet_setup import skip_peer_access_setup
from gluonlab.errors import KVStoreError
from gluonlab.gpu.cuda import enable_peer_access
from gluonlab.kvstores.allreduce_store import Keys, Ranks, SummingKVStore, as_list, by_key, is_list
from gluonlab.optimizers.optimizer_states import is_list_of_arrays


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
    """MXNet's store ``name``: ``device`` or ``local``.

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
                "write states with gluonlab.bucketed_trainer.gluon_export.export_gluon_states, "
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


# --- the Trainer that a store updates for


class Owner:
    """The Trainer that gave ``store`` its optimizer last, if it was a Trainer."""

    def __init__(self, store: Any) -> None:
        self._store = ref(store)
        self._present: "Optional[ReferenceType[gluon.Trainer]]" = None
        self._trainers: "WeakKeyDictionary[Any, ReferenceType[gluon.Trainer]]" = WeakKeyDictionary()

    @property
    def known(self) -> bool:
        """Whether a Trainer gave the optimizer last; it may be gone."""
        return self._present is not None

    @property
    def trainer(self) -> Optional[gluon.Trainer]:
        """The Trainer, if it still exists and still uses the store."""
        trainer = self._present() if self._present is not None else None
        used = trainer is not None and trainer._kvstore in (None, self._store())
        return trainer if used else None

    def take(self, optimizer: Any) -> Optional[gluon.Trainer]:
        """Make the Trainer of ``optimizer`` the owner.

        Returns it, or None for an optimizer without one.
        """
        trainer = self._of(optimizer)
        if trainer is None or trainer is not self.trainer:
            self.release()
        self._present = ref(trainer) if trainer is not None else None
        return trainer

    def release(self) -> None:
        """Have the owner give its weights and optimizer to the store anew in its next step.

        gluon.Parameter.set_data has the same effect.
        """
        trainer = self.trainer
        if trainer is not None and trainer._kvstore is not None:
            trainer._reset_kvstore()
        self._present = None

    def _of(self, optimizer: Any) -> Optional[gluon.Trainer]:
        for param in optimizer.param_dict.values():
            trainer = getattr(param, "_trainer", None)
            if trainer is not None and trainer._optimizer is optimizer:
                self._trainers[optimizer] = ref(trainer)
        trainer_ref = self._trainers.get(optimizer)
        return trainer_ref() if trainer_ref is not None else None


# --- what calls are given


def pushpull_arguments(key: int, arrays: Sequence[nd.NDArray]) -> Tuple[Any, ...]:
    """The arguments of MXNet's C function for ``pushpull(key, arrays)``.

    The store comes before them, the priority after.
    """
    keys, handles, _ = _ctype_key_value(key, list(arrays))
    count = ctypes.c_uint(len(arrays))
    return count, keys, count, keys, handles, handles


def direct_copies(arrays: Any) -> "ContextManager[None]":
    """A context in which MXNet's store may get arrays on GPUs for the first time.

    Access between GPUs is enabled here, and not by MXNet. ``arrays``: arrays, or lists of them.
    """
    gpus = [array.context for array in _flat(arrays) if array.context.device_type == "gpu"]
    enable_peer_access(gpus)
    return skip_peer_access_setup() if gpus else nullcontext()


def _flat(given: Any) -> Iterator[nd.NDArray]:
    for each in given:
        if is_list(each):
            yield from _flat(each)
        elif isinstance(each, nd.NDArray):
            yield each


def check_optimizer(store: str, optimizer: Any) -> None:
    """Raise KVStoreError if ``optimizer`` is not an optimizer."""
    if not isinstance(optimizer, mx.optimizer.Optimizer):
        raise KVStoreError(
            f"kvstore {store!r}: {optimizer!r} is not an optimizer: "
            "give an instance, such as mx.optimizer.create('sgd', learning_rate=0.1)"
        )


def no_optimizer(store: str) -> KVStoreError:
    """Return the error for a call that needs an optimizer when none is set."""
    return KVStoreError(
        f"kvstore {store!r} has no optimizer yet: call set_optimizer first, "
        "or let a gluon.Trainer that updates on it take a step"
    )


def checked_key(key: Any) -> Any:
    """The key as MXNet takes it: a word or a Python number."""
    if isinstance(key, str):
        return key
    try:
        return index(key)
    except TypeError as error:
        raise KVStoreError(
            f"key {key!r}: MXNet's stores have words and whole numbers for keys"
        ) from error


# --- NCCL: a reduce to one GPU, and a broadcast from there
#
# MXNet's store (src/kvstore/kvstore_nccl.h) makes all of its buffers when it first sums: a key that
# comes later ends in "Check failed: !is_none()". It knows one set of devices, and goes on working
# after it has been freed. So what it is told here are no keys of the user's, but sizes and types of
# arrays, which any keys share, one store for each set of devices, and a new store, of which NCCL's
# communicators are made anew, when another size comes.

TYPES = ("float16", "float32", "float64", "int32", "int64", "uint8")  # KVStoreNCCL::GetNCCLType
Slot = Tuple[int, str]  # elements and type of arrays that are summed


class NcclKVStore(SummingKVStore):
    """``nccl``: sums over GPUs, as above. ``transfers_run`` counts arrays that were summed.

    Sizes that ``broadcast`` has seen cost nothing later, and those of a Trainer's parameters are
    among them. Another one makes the next sum wait for all that is queued, and for NCCL to begin
    anew, about a second on real GPUs. The first device of a key's first sum holds the buffers: as
    much memory as one array of each size and type.
    """

    def __init__(self) -> None:
        super().__init__("nccl")
        self._stores: Dict[Tuple[int, ...], _Gpus] = {}  # ids of GPUs -> what sums over them

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        super().broadcast(key, value, out, priority)
        for entry in self._entries(key, value, out):
            ctxs = {array.context for array in entry.outs}
            if 1 < len(ctxs) == len(entry.outs) and all(_is_summed(array) for array in entry.outs):
                self._store_for(entry.outs).slot(entry.outs[0])

    def executor(self, arrays: Ranks, keys: Keys) -> _NcclSum:
        for array in (array for of_rank in arrays for array in of_rank):
            if array.context.device_type != "gpu":
                raise KVStoreError(
                    f"arrays on {array.context}: it sums over GPUs: choose device or local"
                )
            name = np.dtype(array.dtype).name
            if name not in TYPES:
                raise KVStoreError(
                    f"arrays of type {name}: it sums {', '.join(TYPES)}: "
                    "use array.astype('int32'), or choose device"
                )
        return _NcclSum(self._store_for([of_rank[0] for of_rank in arrays]), arrays)

    def _store_for(self, arrays: Sequence[nd.NDArray]) -> _Gpus:
        ids = tuple(sorted(array.context.device_id for array in arrays))
        return self._stores.setdefault(ids, _Gpus())


def _is_summed(array: nd.NDArray) -> bool:
    known = array.context.device_type == "gpu" and array.stype == "default"
    return bool(known and array.size and np.dtype(array.dtype).name in TYPES)


class _Gpus:
    """MXNet's store for one set of GPUs, with a key for each size and type of arrays."""

    def __init__(self) -> None:
        self._slots: Dict[Slot, int] = {}
        self._held: List[mx.kvstore.KVStore] = []  # the store, once something was summed
        finalize(self, _let_go, self._held)

    def slot(self, like: nd.NDArray) -> int:
        """The key for such arrays; a new one waits for the store, which cannot take it any more."""
        slot = (like.size, np.dtype(like.dtype).name)
        if slot not in self._slots:
            _let_go(self._held)
            self._slots[slot] = len(self._slots)
        return self._slots[slot]

    @property
    def handle(self) -> Any:
        """The store, as MXNet's C functions take it."""
        if not self._held:
            store = mx.kv.create("nccl")
            for (size, dtype), key in self._slots.items():
                store.init(key, nd.zeros((size,), dtype=dtype))
            self._held.append(store)
        return self._held[0].handle


def _let_go(held: List[mx.kvstore.KVStore]) -> None:
    """Free the store once its work is done; it would go on in memory that has been freed."""
    if held:
        with suppress(mx.MXNetError):  # of another operator: whoever reads its result is told
            nd.waitall()
        held.clear()


class _NcclSum:
    """The sums of some arrays over the ranks, one after the other.

    Not all in one call: MXNet's engine waits for ever for arrays that are parts of the same one.
    """

    def __init__(self, gpus: _Gpus, arrays: Ranks) -> None:
        self.transfers_run = 0
        replicas = [[flat_view(array) for array in own] for own in zip(*arrays) if own[0].size]
        self._arrays = replicas  # which the calls point into
        self._calls = [
            pushpull_arguments(gpus.slot(own[0]), own) for own in replicas if len(own) > 1
        ]
        self._gpus = gpus

    def run(self, priority: int = 0) -> None:
        urgency = ctypes.c_int(priority)
        for arguments in self._calls:
            check_call(_LIB.MXKVStorePushPull(self._gpus.handle, *arguments, urgency))
        self.transfers_run += len(self._calls)


# --- the stores of mx.kv.create that sum over processes, and new keys for them
#
# A store of MXNet's takes a key once. The second time, a local one ends in "duplicate init of key",
# and ``dist_sync`` waits for ever: only the worker of rank 0 sends, and its servers add that up as
# if every worker did.

FIRST = 2**16  # gluon.Trainer has the numbers below, one for each parameter
# MXNet has server ``key * 9973 % servers``, in C's int, keep a small array: a larger product is
# negative, and no server is found
LAST = (2**31 - 1) // 9973
_next: "WeakKeyDictionary[KVStore, int]" = WeakKeyDictionary()


def sums_over_processes(store: Any) -> bool:
    """Whether ``store``, which may be None, sums over several processes."""
    return store is not None and ("dist" in store.type or store.num_workers > 1)


def new_keys(store: Any, count: int) -> int:
    """The first of ``count`` consecutive keys that are not in use.

    Every process has to ask for as many, in the same order. Raises KVStoreError where there are no
    more, after some hundred thousand.
    """
    if not isinstance(store, KVStore) or isinstance(store, NativeKVStore):
        return 0  # takes a key again
    first = _next.get(store, FIRST)
    if first + count > LAST + 1:
        raise KVStoreError(
            f"kvstore {store.type!r} has no keys left of {LAST + 1 - FIRST:,}: start new processes"
        )
    _next[store] = first + count
    return first
