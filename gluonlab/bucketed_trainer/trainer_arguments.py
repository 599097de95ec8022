"""Checks and converts the arguments of a BucketedTrainer."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import contextmanager
from numbers import Real
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

import mxnet as mx
from mxnet.gluon import Parameter
from mxnet.kvstore import KVStoreBase

from gluonlab.bucketed_trainer.loss_scale import LossScale
from gluonlab.errors import ConfigError, KVStoreError, RunError, error_text, unknown, warn
from gluonlab.kvstores import KVSTORES, make_kvstore
from gluonlab.kvstores.allreduce_store import SHARDED, AllreduceKVStore, is_sharded
from gluonlab.kvstores.process_group_store import GroupKVStore
from gluonlab.optimizers.optimizer_registry import check_replicas_stay_equal

_OPTIMIZER_SETTINGS = ("learning_rate", "wd", "momentum", "lr_scheduler", "clip_gradient", "multi_precision")
_OPTIMIZER_PARAMS = {"lr": "learning_rate", "weight_decay": "wd", **{name: name for name in _OPTIMIZER_SETTINGS}}
ARGUMENT_HINTS = {
    **{theirs: f"use optimizer_params={{{ours!r}: ...}}" for theirs, ours in _OPTIMIZER_PARAMS.items()},
    **dict.fromkeys(
        ("ctx", "ctxs", "context", "device", "devices", "gpus"),
        "the trainer uses the devices of the parameters: set them with net.initialize(ctx=devices('gpu:0,1'))",
    ),
    "batch_size": "pass it to step(batch_size)",
    "compress": "use compression_params={'type': '2bit', 'threshold': 0.5}",
}


@contextmanager
def restore_owners_on_error(params: Any, optimizer: Any) -> Iterator[None]:
    """If the with block fails, give the parameters and the optimizer back to their former trainers.

    The optimizer's former ``param_dict`` is restored as well.
    """
    trainers = [(param, param._trainer) for param in _as_list(params) or () if isinstance(param, Parameter)]
    param_dict = optimizer.param_dict if isinstance(optimizer, mx.optimizer.Optimizer) else None
    try:
        yield
    except BaseException:
        for param, trainer in trainers:
            param._trainer = trainer
        if param_dict is not None:
            optimizer.param_dict = param_dict
        raise


def check_arguments(params: Any, optimizer: Any, optimizer_params: Any, bucket_bytes: Any) -> None:
    """Raise ConfigError for invalid arguments that gluon.Trainer accepts, or reports only later."""
    params = _as_list(params)
    if params == []:
        raise ConfigError("params contains no parameters to train: pass net.collect_params()")
    parameters = [param for param in params or () if isinstance(param, Parameter)]
    if len(set(parameters)) < len(parameters):
        name = next(param.name for param, count in Counter(parameters).items() if count > 1)
        raise ConfigError(
            f"params contains {name} several times: pass each parameter once, for example with "
            "list(dict.fromkeys(params))"
        )
    if not isinstance(optimizer, (str, mx.optimizer.Optimizer)):
        raise ConfigError(
            f"optimizer={optimizer!r}: use a name, such as 'sgd', or an instance of mx.optimizer.Optimizer"
        )
    _check_optimizer_params(optimizer, optimizer_params)
    if bucket_bytes is not None and (not _is_number(bucket_bytes) or bucket_bytes < 0):
        raise ConfigError(
            f"bucket_bytes={bucket_bytes!r}: use a number of bytes, 0 for one bucket per parameter, or None"
        )


def _check_optimizer_params(optimizer: "str | mx.optimizer.Optimizer", optimizer_params: Any) -> None:
    """Raise ConfigError for an unknown optimizer, or for arguments that are not a dictionary."""
    if optimizer_params is not None and not isinstance(optimizer_params, Mapping):
        raise ConfigError(f"optimizer_params={optimizer_params!r}: use a dictionary, such as {{'learning_rate': 0.1}}")
    known = mx.optimizer.Optimizer.opt_registry
    if isinstance(optimizer, str) and optimizer.lower() not in known:
        raise ConfigError(unknown("optimizer", optimizer, set(known) - {"test"}))


@contextmanager
def explain_unknown_params(optimizer: Any, optimizer_params: Any) -> Iterator[None]:
    """In this with block, convert a TypeError for an unknown parameter into a ConfigError."""
    try:
        yield
    except TypeError as error:
        if "unexpected keyword" not in str(error):
            raise
        rate = "; use 'learning_rate' for the learning rate" if "lr" in optimizer_params else ""
        raise ConfigError(f"optimizer={optimizer!r}: {error_text(error)}{rate}") from None


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not math.isnan(value)


def _as_list(params: Any) -> "Optional[List[Any]]":
    """Return the parameters as a list, or None for a type that gluon.Trainer does not accept."""
    if hasattr(params, "values"):
        return list(params.values())
    return list(params) if isinstance(params, (list, tuple)) else None


def resolve_kvstore(kvstore: Any, ctxs: Sequence[mx.Context]) -> Optional[KVStoreBase]:
    """Return the kvstore for the argument ``kvstore``: a name, a kvstore or None.

    Raises KVStoreError for a store that cannot keep the replicas on ``ctxs`` equal.
    """
    if kvstore is None:
        if len(ctxs) > 1:
            raise KVStoreError(
                f"kvstore=None does not sum the gradients of the {len(ctxs)} devices, so the replicas "
                "would differ: use kvstore 'device', or another name in gluonlab.kvstores.KVSTORES"
            )
        return None
    if isinstance(kvstore, str):
        # gluon.Trainer ignores case
        return make_kvstore(kvstore.lower(), ctxs)
    if not isinstance(kvstore, KVStoreBase):
        raise KVStoreError(
            f"kvstore={kvstore!r} is not a valid kvstore: use a name, such as 'device', or an instance of KVStoreBase"
        )
    if "async" in kvstore.type:
        raise KVStoreError(
            f"kvstore {kvstore.type!r} updates each parameter on its servers: use gluon.Trainer, or a "
            "kvstore that only sums gradients"
        )
    return kvstore


def check_update_on_kvstore(
    store: Optional[KVStoreBase], optimizer: Any, update_on_kvstore: Optional[bool], devices: int
) -> None:
    """Raise KVStoreError if the store does not support ``update_on_kvstore`` or the optimizer.

    Raises ConfigError for an optimizer that makes the replicas on several devices diverge.
    """
    check_replicas_stay_equal(optimizer, devices)
    sharded = is_sharded(store)
    if sharded and devices > 1:
        from gluonlab.kvstores.sharded_optimizer import check_element_wise

        check_element_wise(type(optimizer))
    if update_on_kvstore is None or bool(update_on_kvstore) == sharded:
        return
    if sharded:
        raise KVStoreError(
            f"update_on_kvstore=False: kvstore {SHARDED!r} always updates the parameters: omit "
            "update_on_kvstore, or use kvstore 'sharded', which only sums gradients"
        )
    name = None if store is None else store.type
    raise KVStoreError(
        f"update_on_kvstore=True: kvstore {name!r} only sums gradients, and each device updates "
        f"its own replica: omit update_on_kvstore, or use kvstore {SHARDED!r}"
    )


def check_dense(params: Sequence[Parameter]) -> None:
    """Raise KVStoreError for parameters with sparse gradients, which cannot share buckets."""
    for param in params:
        if (param._stype, param._grad_stype) != ("default", "default"):
            raise KVStoreError(
                f"parameters with sparse gradients, such as {param.name}, cannot share buckets: set "
                "sparse_grad=False, or use gluon.Trainer with kvstore 'device' or 'local' for these parameters"
            )


def resolve_compression(
    store: Optional[KVStoreBase],
    compression_params: "Optional[Dict[str, Any]]",
    devices: int,
    loss_scale: Optional[LossScale],
) -> "Optional[Dict[str, Any]]":
    """Return the compression to set in ``store``, or None.

    Raises KVStoreError for a compression that the store or MXNet does not support.
    """
    if loss_scale is not None and isinstance(store, GroupKVStore) and store.keeps_residual:
        raise KVStoreError(
            f"kvstore {store.type!r} with compress={store.compress} would keep residuals of the steps "
            "that loss_scale skips: omit compress or loss_scale"
        )
    if not compression_params:
        return None
    _check_two_bits(compression_params)
    if loss_scale is not None:
        raise KVStoreError(
            f"compression_params={compression_params}: 2-bit gradients cannot represent the "
            "overflows that loss_scale detects: omit compression_params or loss_scale"
        )
    if isinstance(store, GroupKVStore):
        threshold = float(compression_params.get("threshold", 0.5))
        raise KVStoreError(
            f"compression_params={compression_params}: kvstore {store.type!r} sets the compression "
            f"only when it is created: pass compress='2bit:{threshold:g}' when you create the kvstore"
        )
    if store is not None and not _can_compress(store):
        choices = " or ".join(repr(name) for name, kind in KVSTORES.items() if kind.supports_compression)
        raise KVStoreError(
            f"compression_params={compression_params}: kvstore {store.type!r} cannot compress "
            f"gradients: use kvstore {choices}"
        )
    if devices == 1:
        message = (
            f"compression_params={compression_params}: a single device does not send gradients, so "
            "nothing is compressed"
        )
        warn(message)
        return None
    return compression_params


def _check_two_bits(compression_params: "Dict[str, Any]") -> None:
    """Raise KVStoreError for compression other than 2-bit, which MXNet 1.9.1 does not support."""
    form = "use {'type': '2bit', 'threshold': 0.5}, or another threshold above 0"
    try:
        known = compression_params["type"] == "2bit" and set(compression_params) <= {"type", "threshold"}
        usable = known and 0 < float(compression_params.get("threshold", 0.5)) < math.inf
    except (KeyError, TypeError, ValueError):
        usable = False
    if not usable:
        raise KVStoreError(f"compression_params={compression_params!r}: {form}")


def _can_compress(store: KVStoreBase) -> bool:
    """Return whether the store can compress gradients in ``pushpull``."""
    # MXNet's distributed stores compress in push, but not in pushpull
    if isinstance(store, AllreduceKVStore) or "dist" in store.type:
        return False
    if store.type in KVSTORES:
        return KVSTORES[store.type].supports_compression
    return hasattr(store, "set_gradient_compression")


def check_shapes(params: Sequence[Parameter]) -> None:
    """Raise RunError if the shape of a parameter is unknown."""
    names = names_without_shape(params)
    if names:
        raise RunError(
            f"the shapes of some parameters, such as {names[0]}, are not known yet: call the network once, "
            "so that all its branches run, or set in_units and in_channels of its layers (calling "
            "prepare() is optional, because step() calls it)"
        )


def names_without_shape(params: Sequence[Parameter]) -> List[str]:
    """Return the names of the parameters that will be initialized in the network's first call."""
    return [param.name for param in params if param.grad_req != "null" and param._data is None]
