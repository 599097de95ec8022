"""Kvstores in which MXNet's C++ code computes the sums.

- `MXNetKVStore`: the stores ``device`` (``CommDevice`` in MXNet's ``src/kvstore/comm.h``) and
  ``local``. The class lets Trainers initialize keys again, and raises an error when MXNet would
  crash.
- `allocate_keys`: returns unused keys for MXNet's stores that sum over processes.
"""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from operator import index
from typing import Any, Callable, ContextManager, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple
from weakref import ReferenceType, WeakKeyDictionary, ref

import mxnet as mx
import numpy as np
from mxnet import gluon, nd
from mxnet.base import _LIB, check_call
from mxnet.kvstore import KVStore
from mxnet.kvstore.base import _ctype_key_value

from gluonlab.engine.mxnet_setup import skip_peer_access_setup
from gluonlab.errors import KVStoreError
from gluonlab.gpu.cuda import enable_peer_access
from gluonlab.kvstores.allreduce_store import as_list, group_by_key, is_list
from gluonlab.optimizers.optimizer_states import is_list_of_arrays


class _KeyEntry(NamedTuple):
    """The inner store that holds a key, with the shape and type of the key's arrays."""

    store: KVStore
    shape: Tuple[int, ...]
    dtype: Any
    max_values: int  # number of values for which MXNet has buffers; 0 before the first call

    def has_room_for(self, values: Any) -> bool:
        """Return whether MXNet's store can sum these values without a new buffer."""
        if not is_list(values) or not 0 < len(values) <= self.max_values:
            return False
        if not all(isinstance(array, nd.NDArray) for array in values):
            return False
        return bool(values[0].shape == self.shape and values[0].dtype == self.dtype)


class MXNetKVStore(KVStore):
    """MXNet's store ``name``: ``device`` or ``local``.

    Unlike in MXNet's class, a key can be broadcast or initialized again, which replaces its value.
    The keys are stored in one or several of MXNet's stores, which are called inner stores. A
    Trainer whose weights the store updates keeps its optimizer states. If another Trainer has used
    the store, the first Trainer initializes its keys again in its next step. Raises KVStoreError
    when MXNet would crash, or would fail later with an unclear error.
    """

    _is_p3 = False

    def __init__(self, name: str) -> None:
        self._name = name
        self._newest_store: KVStore = mx.kv.create(name)
        self._key_entries: Dict[Any, _KeyEntry] = {}
        self._uses_string_keys: Optional[bool] = None  # None before the first key
        self._compression: Optional[Dict[str, Any]] = None
        self._updater_function: Optional[Callable[..., None]] = None
        self._trainer_of_store = StoreTrainerRef(self)
        self._update_error: Optional[Exception] = None
        self._optimizer_set_last = False  # `set_optimizer` was called after the last key was added

    def __del__(self) -> None:
        """Do nothing, unlike MXNet's method: each inner store frees its own handle."""

    @property
    def handle(self) -> Any:
        """Handle of the inner store to which new keys are added."""
        return self._newest_store.handle

    @property
    def _updater(self) -> Any:
        return self._updater_function

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Store ``value``, or its first array, and copy it into every array of ``out``.

        ``key`` may be a list; then ``value`` and ``out`` are lists with an entry for each key.
        """
        first_values = [as_list(values)[0] for values in value] if is_list(key) else as_list(value)[0]
        self.init(key, first_values)
        self._call_stores("pull", key, out, priority=priority)

    def init(self, key: Any, value: Any) -> None:
        """Store ``value`` under ``key``. Both arguments may be lists."""
        for name, values in self._checked_pairs(key, value):
            entry = self._key_entries.get(name)
            is_repeated = entry is not None and entry.store is self._newest_store
            if is_repeated and self._trainer_of_store.has_trainer and not self._optimizer_set_last:
                # The same Trainer would have set its optimizer again, so this is another Trainer.
                self._trainer_of_store.detach_trainer()
                self._updater_function = None
            self._init_key(name, values[0])
        self._optimizer_set_last = False

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        for name, values in self._checked_pairs(key, value):
            self._make_room_for_values(name, values)
        self._call_stores("push", key, value, priority=priority)

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Copy the stored values into ``out``. Raise KVStoreError if ``out`` is missing."""
        if out is None:
            raise KVStoreError(f"kvstore {self._name!r}: pull needs arrays to write to: pass out=arrays")
        self._call_stores("pull", key, out, priority=priority, ignore_sparse=ignore_sparse)

    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> None:
        store = self._find_entry(key[0] if is_list(key) else key).store
        store.row_sparse_pull(key, out, priority, row_ids)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Write the sum of ``value`` into ``out``, by default ``value`` itself.

        If the store has an optimizer, write the updated weights instead of the sum.
        """
        if out is None and self._updater_function is not None and self._trainer_of_store.has_trainer:
            raise KVStoreError(
                f"kvstore {self._name!r} is already used by another Trainer: create a separate kvstore for each Trainer"
            )
        entry = self._key_entries.get(key) if type(key) in (int, str) else None
        if entry is not None and entry.has_room_for(value):
            entry.store.pushpull(key, value, value if out is None else out, priority)
            self._raise_failure()
            return
        for name, values in self._checked_pairs(key, value):
            self._make_room_for_values(name, values)
        self._call_stores("pushpull", key, value, value if out is None else out, priority=priority)

    def prepare_pushpull(self, key: int, arrays: List[nd.NDArray], priority: int = 0) -> Callable[[], None]:
        """Return a fast function that runs ``pushpull(key, arrays, priority=priority)``."""
        fixed_arrays = list(arrays)
        arguments, c_priority = pushpull_arguments(key, fixed_arrays), ctypes.c_int(priority)
        # The entry that last summed these arrays. If the key's entry differs, the key was replaced.
        last_entry: Optional[_KeyEntry] = None

        def run() -> None:
            """Sum the arrays, the first time with `pushpull`, and later with a single C call."""
            nonlocal last_entry
            entry = self._key_entries.get(key)
            if entry is None or entry is not last_entry or self._updater_function is not None:
                self.pushpull(key, fixed_arrays, priority=priority)
                last_entry = self._key_entries[key]
                return
            check_call(_LIB.MXKVStorePushPull(entry.store.handle, *arguments, c_priority))

        return run

    def set_gradient_compression(self, compression_params: Dict[str, Any]) -> None:
        """Compress gradients from now on. Raise KVStoreError if the store does not support this."""
        if not isinstance(compression_params, dict):
            raise KVStoreError(
                f"compression_params={compression_params!r}: use a dictionary such as {{'type': '2bit', "
                f"'threshold': 0.5}}"
            )
        if not (self._name == "device" or "dist" in self._name):
            raise KVStoreError(
                f"kvstore {self._name!r} cannot compress gradients: choose device, or omit the compression"
            )
        try:
            for store in self._inner_stores():
                store.set_gradient_compression(compression_params)
        except mx.MXNetError as error:
            reason = str(error).strip().splitlines()[-1]
            raise KVStoreError(f"kvstore {self._name!r} cannot compress with {compression_params}: {reason}") from error
        self._compression = dict(compression_params)

    def set_optimizer(self, optimizer: mx.optimizer.Optimizer) -> None:
        """Update the weights with this optimizer. The states of a Trainer's optimizer are kept."""
        check_optimizer(self._name, optimizer)
        trainer = self._trainer_of_store.assign(optimizer)
        if trainer is not None:
            self._set_updater(trainer._updaters[0])
        elif getattr(self._updater_function, "optimizer", None) is not optimizer:
            self._set_updater(mx.optimizer.get_updater(optimizer))
        self._optimizer_set_last = True

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write the states in MXNet's format. Raise KVStoreError if there is no optimizer."""
        self._require_optimizer()
        super().save_optimizer_states(fname, dump_optimizer)

    def load_optimizer_states(self, fname: str) -> None:
        """Load states that gluon.Trainer.save_states wrote with one of MXNet's stores.

        Raises KVStoreError if the store has no optimizer, if one of gluonlab's trainers wrote the
        file, or if the file cannot be read, for example because it is a pipe.
        """
        self._require_optimizer()
        if is_list_of_arrays(fname):
            raise KVStoreError(
                f"{str(fname)!r} contains named arrays, but gluon.Trainer with {self._name!r} only "
                "loads pickles: write the states with "
                "gluonlab.bucketed_trainer.gluon_export.export_gluon_states, or load them with a "
                "BucketedTrainer"
            )
        super().load_optimizer_states(fname)

    def _require_optimizer(self) -> None:
        if not hasattr(self._updater_function, "get_states"):
            raise no_optimizer_error(self._name)

    def _set_updater(self, updater: Callable[..., None]) -> None:
        self._updater_function = updater
        for store in self._inner_stores():
            store._set_updater(self._call_updater)

    def _call_updater(self, key: Any, grad: nd.NDArray, weight: nd.NDArray) -> None:
        """Call the updater, and keep any exception, since MXNet's C code would only print it."""
        try:
            if self._updater_function is not None and self._update_error is None:
                self._updater_function(key, grad, weight)
        except Exception as error:
            self._update_error = error

    def _inner_stores(self) -> List[KVStore]:
        stores = [self._newest_store, *(entry.store for entry in self._key_entries.values())]
        return list({id(store): store for store in stores}.values())

    def _init_key(self, key: Any, value: nd.NDArray) -> None:
        """Initialize the key with ``value`` in an inner store that does not have the key yet."""
        entry = self._key_entries.get(key)
        if entry is not None and entry.store is self._newest_store:
            self._newest_store = mx.kv.create(self._name)
            if self._compression is not None:
                self._newest_store.set_gradient_compression(self._compression)
            if self._updater_function is not None:
                self._newest_store._set_updater(self._call_updater)
        self._newest_store.init(key, value)
        self._uses_string_keys = isinstance(key, str)
        self._key_entries[key] = _KeyEntry(self._newest_store, value.shape, value.dtype, 0)

    def _make_room_for_values(self, key: Any, values: List[nd.NDArray]) -> None:
        """Move the key to a new inner store if its current one cannot sum this many values."""
        shape, dtype, count = values[0].shape, values[0].dtype, len(values)
        entry = self._key_entries.get(key)
        if self._updater_function is None:
            if entry is None or (entry.shape, entry.dtype) != (shape, dtype) or 0 < entry.max_values < count:
                self._init_key(key, nd.zeros(shape, dtype=dtype))
        else:
            entry = self._find_entry(key)
            if (entry.shape, entry.dtype) != (shape, dtype):
                grad, weight = (f"{np.dtype(array.dtype).name}{list(array.shape)}" for array in (values[0], entry))
                raise KVStoreError(
                    f"kvstore {self._name!r}, key {key!r}: {grad} cannot update {weight}: broadcast weights "
                    "of the same shape and type"
                )
            if 0 < entry.max_values < count:
                weights = nd.zeros(shape, dtype=dtype)
                entry.store.pull(key, weights)
                self._init_key(key, weights)
        entry = self._find_entry(key)
        if not entry.max_values:
            self._key_entries[key] = entry._replace(max_values=count)

    def _find_entry(self, key: Any) -> _KeyEntry:
        if key not in self._key_entries:
            raise KVStoreError(f"kvstore {self._name!r}: the key {key!r} does not exist: call broadcast or init first")
        return self._key_entries[key]

    def _call_stores(self, call: str, key: Any, *arrays: Any, **settings: Any) -> None:
        """Call MXNet's method ``call`` once if one inner store has all keys, else for each key."""
        keys = [to_mxnet_key(name) for name in as_list(key)]
        stores = [self._find_entry(name).store for name in keys]
        with enable_peer_copies(arrays):
            if len({id(store) for store in stores}) == 1:
                getattr(stores[0], call)(keys if is_list(key) else keys[0], *arrays, **settings)
            else:
                for name, store, *arrays_of_key in zip(keys, stores, *arrays):
                    getattr(store, call)(name, *arrays_of_key, **settings)
        self._raise_failure()

    def _raise_failure(self) -> None:
        """Raise the exception that the updater has raised since the last check, if any."""
        error, self._update_error = self._update_error, None
        if error is not None:
            raise error

    def _checked_pairs(self, key: Any, value: Any) -> List[Tuple[Any, List[nd.NDArray]]]:
        """Return each key with its values. Raise KVStoreError for invalid keys or values."""
        pairs = [(to_mxnet_key(name), values) for name, values in group_by_key(self._name, key, value)]
        for name, values in pairs:
            if not values:
                raise KVStoreError(
                    f"kvstore {self._name!r}, key {name!r}: the list of arrays is empty: pass one array for each device"
                )
        key_kinds = {isinstance(name, str) for name, _ in pairs} | {self._uses_string_keys} - {None}
        if len(key_kinds) > 1:
            raise KVStoreError(
                f"kvstore {self._name!r}: {pairs[0][0]!r} differs in type from the other keys: use only "
                "numbers or only strings"
            )
        return pairs


# --- the Trainer whose weights a store updates


class StoreTrainerRef:
    """A weak reference to the Trainer that last set the optimizer of ``store``, if any."""

    def __init__(self, store: Any) -> None:
        self._store = ref(store)
        self._trainer_ref: "Optional[ReferenceType[gluon.Trainer]]" = None
        self._trainers: "WeakKeyDictionary[Any, ReferenceType[gluon.Trainer]]" = WeakKeyDictionary()

    @property
    def has_trainer(self) -> bool:
        """True if a Trainer set the current optimizer, even if that Trainer no longer exists."""
        return self._trainer_ref is not None

    @property
    def trainer(self) -> Optional[gluon.Trainer]:
        """The Trainer, or None if it no longer exists or no longer uses the store."""
        trainer = self._trainer_ref() if self._trainer_ref is not None else None
        is_in_use = trainer is not None and trainer._kvstore in (None, self._store())
        return trainer if is_in_use else None

    def assign(self, optimizer: Any) -> Optional[gluon.Trainer]:
        """Find the Trainer of ``optimizer``, if any. Refer to this Trainer, and return it."""
        trainer = self._find_trainer(optimizer)
        if trainer is None or trainer is not self.trainer:
            self.detach_trainer()
        self._trainer_ref = ref(trainer) if trainer is not None else None
        return trainer

    def detach_trainer(self) -> None:
        """Forget the Trainer. The Trainer initializes the store again in its next step."""
        trainer = self.trainer
        if trainer is not None and trainer._kvstore is not None:
            trainer._reset_kvstore()
        self._trainer_ref = None

    def _find_trainer(self, optimizer: Any) -> Optional[gluon.Trainer]:
        """Return the Trainer that has this optimizer, or None if there is none."""
        for param in optimizer.param_dict.values():
            trainer = getattr(param, "_trainer", None)
            if trainer is not None and trainer._optimizer is optimizer:
                self._trainers[optimizer] = ref(trainer)
        trainer_ref = self._trainers.get(optimizer)
        return trainer_ref() if trainer_ref is not None else None


# --- arguments of calls


def pushpull_arguments(key: int, arrays: Sequence[nd.NDArray]) -> Tuple[Any, ...]:
    """Return the C arguments of ``pushpull(key, arrays)``, without the store and the priority."""
    keys, handles, _ = _ctype_key_value(key, list(arrays))
    count = ctypes.c_uint(len(arrays))
    return count, keys, count, keys, handles, handles


def enable_peer_copies(arrays: Any) -> "ContextManager[None]":
    """Enable peer access between the GPUs of ``arrays``.

    Return a context manager for MXNet's first call on these arrays. Within it, MXNet does not
    enable peer access itself. ``arrays``: arrays, or lists of arrays.
    """
    gpus = [array.context for array in _iterate_arrays(arrays) if array.context.device_type == "gpu"]
    enable_peer_access(gpus)
    return skip_peer_access_setup() if gpus else nullcontext()


def _iterate_arrays(items: Any) -> Iterator[nd.NDArray]:
    """Yield the arrays in ``items`` and its nested lists. Skip everything else."""
    for item in items:
        if is_list(item):
            yield from _iterate_arrays(item)
        elif isinstance(item, nd.NDArray):
            yield item


def check_optimizer(store: str, optimizer: Any) -> None:
    """Raise KVStoreError if ``optimizer`` is not an optimizer."""
    if not isinstance(optimizer, mx.optimizer.Optimizer):
        raise KVStoreError(
            f"kvstore {store!r}: {optimizer!r} is not an optimizer: pass an instance, such as "
            "mx.optimizer.create('sgd', learning_rate=0.1)"
        )


def no_optimizer_error(store: str) -> KVStoreError:
    """Return the error for a call that needs an optimizer when none is set."""
    return KVStoreError(
        f"kvstore {store!r} has no optimizer yet: call set_optimizer first, or run one step of a "
        "gluon.Trainer that updates on the kvstore"
    )


def to_mxnet_key(key: Any) -> Any:
    """Return the key in the form that MXNet accepts: a str or an int."""
    if isinstance(key, str):
        return key
    try:
        return index(key)
    except TypeError as error:
        raise KVStoreError(
            f"key {key!r} is not a valid key of an MXNet kvstore: use a string or a whole number"
        ) from error


# --- the stores of mx.kv.create that sum over processes, and new keys for them
#
# A key of MXNet's stores can be initialized only once. The second time, a local store fails with
# "duplicate init of key". ``dist_sync`` waits forever, because only the worker of rank 0 sends, and
# the servers wait for the values of all workers.

FIRST_KEY = 2**16  # gluon.Trainer uses the numbers below, one for each parameter
# MXNet stores a small array on server ``key * 9973 % servers``. The product is a C int. For larger
# keys it overflows and may be negative.
LAST_KEY = (2**31 - 1) // 9973
_next_keys: "WeakKeyDictionary[KVStore, int]" = WeakKeyDictionary()


def sums_over_processes(store: Any) -> bool:
    """Return whether ``store``, which may be None, sums over several processes."""
    return store is not None and ("dist" in store.type or store.num_workers > 1)


def allocate_keys(store: Any, count: int) -> int:
    """Return the first of ``count`` consecutive keys that are not in use.

    Every process must call this function with the same counts, in the same order. Raises
    KVStoreError when all keys, about 150,000, are in use.
    """
    if not isinstance(store, KVStore) or isinstance(store, MXNetKVStore):
        return 0  # in these stores, a key can be initialized again
    first = _next_keys.get(store, FIRST_KEY)
    if first + count > LAST_KEY + 1:
        raise KVStoreError(
            f"kvstore {store.type!r}: all {LAST_KEY + 1 - FIRST_KEY:,} keys are in use: start new processes"
        )
    _next_keys[store] = first + count
    return first
