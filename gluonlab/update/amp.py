"""What mxnet.contrib.amp's init_trainer asks of a trainer: leave out steps that overflowed.

It sets an attribute, and gluon.Trainer looks at that in each update.
"""

from __future__ import annotations

from typing import Any

from mxnet import gluon

from gluonlab.errors import RunError
from gluonlab.kvstores.group_store import GroupKVStore


def check(trainer: gluon.Trainer, update_on_kvstore: bool) -> None:
    """Raise RunError when the store has updated before anybody could look at the gradients.

    And when it keeps, for the next step, a part of those that are left out.
    """
    store = trainer._kvstore
    if isinstance(store, GroupKVStore) and store.keeps_rest and _scaler(trainer) is not None:
        raise RunError(
            f"amp.init_trainer: kvstore {store.type!r} with compress {store.compress} would keep a "
            "part of the steps that amp leaves out: leave compress out"
        )
    if update_on_kvstore and _scaler(trainer) is not None:
        raise RunError(
            f"amp.init_trainer: kvstore {trainer._kvstore.type!r} updates before amp can look for "
            "an overflow: give the trainer loss_scale=LossScale(), or choose kvstore='sharded'"
        )


def overflows(trainer: gluon.Trainer) -> bool:
    """Whether this step is to be left out; amp changes its scale of the loss accordingly."""
    scaler = _scaler(trainer)
    return scaler is not None and bool(scaler.has_overflow(trainer._params))


def _scaler(trainer: gluon.Trainer) -> Any:
    return getattr(trainer, "_amp_loss_scaler", None)
