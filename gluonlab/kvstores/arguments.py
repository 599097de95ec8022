"""Reads what calls of a store are given: keys, and arrays for each of them."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from operator import index
from typing import Any, ContextManager, Iterator, List, Sequence, Tuple

import mxnet as mx
from mxnet import nd
from mxnet.kvstore.base import _ctype_key_value

from gluonlab.engine.setup import peers_are_enabled
from gluonlab.errors import KVStoreError
from gluonlab.gpu.cuda import enable_peer_access


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
    return peers_are_enabled() if gpus else nullcontext()


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
