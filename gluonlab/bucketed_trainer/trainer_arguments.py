"""A BucketedTrainer's arguments, checked before it takes the parameters over, and afterwards."""

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
from gluonlab.kvstores.allreduce_store import SHARDED, SummingKVStore, is_sharded
from gluonlab.kvstores.process_group_store import GroupKVStore
from gluonlab.optimizers.optimizer_registry import check_replicas


@contextmanager
def left_alone_if_refused(params: Any, optimizer: Any) -> Iterator[None]:
    """After an error inside, parameters and optimizer belong to whom they belonged before."""
    trainers = [
        (param, param._trainer) for param in _listed(params) or () if isinstance(param, Parameter)
    ]
    taken = optimizer.param_dict if isinstance(optimizer, mx.optimizer.Optimizer) else None
    try:
        yield
    except BaseException:
        for param, trainer in trainers:
            param._trainer = trainer
        if taken is not None:
            optimizer.param_dict = taken
        raise


def check_settings(
    params: Any,
    optimizer: Any,
    optimizer_params: Any,
    bucket_bytes: Any,
) -> None:
    """Raise ConfigError for what gluon.Trainer would take in silence, or stumble over later."""
    listed = _listed(params)
    if listed == []:
        raise ConfigError("params: there are no parameters to train: give net.collect_params()")
    parameters = [param for param in listed or () if isinstance(param, Parameter)]
    if len(set(parameters)) < len(parameters):
        name = next(param.name for param, count in Counter(parameters).items() if count > 1)
        raise ConfigError(
            f"params: {name} comes several times: give each once, as list(dict.fromkeys(params)) "
            "has them"
        )
    if not isinstance(optimizer, (str, mx.optimizer.Optimizer)):
        raise ConfigError(
            f"optimizer {optimizer!r}: give its name, such as 'sgd', "
            "or an instance of mx.optimizer.Optimizer"
        )
    _check_optimizer_params(optimizer, optimizer_params)
    if bucket_bytes is not None and (not _is_number(bucket_bytes) or bucket_bytes < 0):
        raise ConfigError(
            f"bucket_bytes {bucket_bytes!r}: give a number of bytes, "
            "0 for a bucket per parameter, or None"
        )


def _check_optimizer_params(optimizer: "str | mx.optimizer.Optimizer", given: Any) -> None:
    """Raise ConfigError for an unknown optimizer, or parameters that are not a dictionary."""
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(
            f"optimizer_params {given!r}: give a dictionary, such as {{'learning_rate': 0.1}}"
        )
    known = mx.optimizer.Optimizer.opt_registry
    if isinstance(optimizer, str) and optimizer.lower() not in known:
        raise ConfigError(unknown("optimizer", optimizer, set(known) - {"test"}))


@contextmanager
def known_optimizer_params(optimizer: Any, given: Any) -> Iterator[None]:
    """Raise ConfigError if the optimizer created in the block does not have a parameter."""
    try:
        yield
    except TypeError as error:
        if "unexpected keyword" not in str(error):
            raise
        rate = "; the learning rate is 'learning_rate'" if "lr" in given else ""
        raise ConfigError(f"optimizer {optimizer!r}: {error_text(error)}{rate}") from None


def _is_number(value: Any) -> bool:
    """Also NumPy's; neither text nor a NaN."""
    return isinstance(value, Real) and not math.isnan(value)


def _listed(params: Any) -> "Optional[List[Any]]":
    """The parameters as a list; None for what gluon.Trainer refuses."""
    if hasattr(params, "values"):
        return list(params.values())
    return list(params) if isinstance(params, (list, tuple)) else None


def store_for(kvstore: Any, ctxs: Sequence[mx.Context]) -> Optional[KVStoreBase]:
    """The store that ``kvstore`` is, or names.

    Raises KVStoreError where it could not keep the replicas on ``ctxs`` alike.
    """
    if kvstore is None:
        if len(ctxs) > 1:
            raise KVStoreError(
                f"kvstore None: nothing would sum the gradients of {len(ctxs)} devices, "
                "and their replicas would part: choose 'device', "
                "or another of gluonlab.kvstores.KVSTORES"
            )
        return None
    if isinstance(kvstore, str):
        # upper and lower case are alike to gluon.Trainer
        return make_kvstore(kvstore.lower(), ctxs)
    if not isinstance(kvstore, KVStoreBase):
        raise KVStoreError(
            f"kvstore {kvstore!r} is no kvstore: give a name, such as 'device', "
            "or an instance of a KVStoreBase"
        )
    if "async" in kvstore.type:
        raise KVStoreError(
            f"kvstore {kvstore.type!r} updates on its servers, parameter by parameter: "
            "use gluon.Trainer, or a store that sums"
        )
    return kvstore


def check_who_updates(
    store: Optional[KVStoreBase], optimizer: Any, update_on_kvstore: Optional[bool], devices: int
) -> None:
    """Raise KVStoreError when the optimizer cannot run where ``update_on_kvstore`` wants it to.

    ConfigError, when its replicas would drift apart on several devices.
    """
    check_replicas(optimizer, devices)
    sharded = is_sharded(store)
    if sharded and devices > 1:
        from gluonlab.kvstores.sharded_optimizer import check_element_wise

        check_element_wise(type(optimizer))
    if update_on_kvstore is None or bool(update_on_kvstore) == sharded:
        return
    if sharded:
        raise KVStoreError(
            f"update_on_kvstore=False: kvstore {SHARDED!r} is the one that updates: "
            "leave it out, or choose 'sharded', which sums"
        )
    name = None if store is None else store.type
    raise KVStoreError(
        f"update_on_kvstore=True: kvstore {name!r} sums, "
        f"and every device updates its own replica: leave it out, or choose kvstore={SHARDED!r}"
    )


def check_dense(params: Sequence[Parameter]) -> None:
    """Raise KVStoreError for parameters with sparse gradients, which cannot share buckets."""
    for param in params:
        if (param._stype, param._grad_stype) != ("default", "default"):
            raise KVStoreError(
                f"parameters with sparse gradients, such as {param.name}, cannot share buckets: "
                "make them dense (sparse_grad=False), or use gluon.Trainer for them, with kvstore "
                "'device' or 'local'"
            )


def compression_for(
    store: Optional[KVStoreBase],
    asked: "Optional[Dict[str, Any]]",
    devices: int,
    loss_scale: Optional[LossScale],
) -> "Optional[Dict[str, Any]]":
    """The compression that ``store`` is to be set to, if any.

    Raises KVStoreError for what it cannot do, or what nothing can.
    """
    if loss_scale is not None and isinstance(store, GroupKVStore) and store.keeps_rest:
        raise KVStoreError(
            f"kvstore {store.type!r} with compress {store.compress}: what 2 bits have left over "
            "would hold a part of the steps that loss_scale leaves out: leave one out"
        )
    if not asked:
        return None
    _check_two_bits(asked)
    if loss_scale is not None:
        raise KVStoreError(
            f"compression_params {asked}: an overflow, which loss_scale looks for, "
            "does not show in 2 bits: leave one out"
        )
    if isinstance(store, GroupKVStore):
        raise KVStoreError(
            f"compression_params {asked}: kvstore {store.type!r} compresses as it is made to: give "
            f"it compress='2bit:{float(asked.get('threshold', 0.5)):g}' instead"
        )
    if store is not None and not _compresses(store):
        able = " or ".join(repr(name) for name, kind in KVSTORES.items() if kind.compresses)
        raise KVStoreError(
            f"compression_params {asked}: kvstore {store.type!r} cannot compress gradients: "
            f"choose {able}"
        )
    if devices == 1:
        message = (
            f"compression_params {asked}: one device has nobody to send gradients to, "
            "so nothing is compressed"
        )
        warn(message)
        return None
    return asked


def _check_two_bits(asked: "Dict[str, Any]") -> None:
    """MXNet 1.9.1 has no other compression."""
    form = "give {'type': '2bit', 'threshold': 0.5}, or another threshold above 0"
    try:
        known = asked["type"] == "2bit" and set(asked) <= {"type", "threshold"}
        usable = known and 0 < float(asked.get("threshold", 0.5)) < math.inf
    except (KeyError, TypeError, ValueError):
        usable = False
    if not usable:
        raise KVStoreError(f"compression_params {asked!r}: {form}")


def _compresses(store: KVStoreBase) -> bool:
    # MXNet's do it in push, and not in pushpull
    if isinstance(store, SummingKVStore) or "dist" in store.type:
        return False
    if store.type in KVSTORES:
        return KVSTORES[store.type].compresses
    return hasattr(store, "set_gradient_compression")


def check_shapes(params: Sequence[Parameter]) -> None:
    """Raise RunError when parameters wait for their shapes."""
    unknown = unknown_shapes(params)
    if unknown:
        raise RunError(
            f"the shapes of {len(unknown)} parameters are not known yet, "
            f"such as that of {unknown[0]}: call the network once, with all its branches, "
            "or give its layers in_units and in_channels (prepare() may be left out: "
            "step() does it)"
        )


def unknown_shapes(params: Sequence[Parameter]) -> List[str]:
    """The names of those that wait for the network's first call to be initialised."""
    return [param.name for param in params if param.grad_req != "null" and param._data is None]
