"""What a store's name stands for in a prediction: by whose schedule it is priced."""

from __future__ import annotations

from typing import List, Optional, Tuple

from gluonlab.errors import ConfigError, unknown
from gluonlab.prediction.machines import Machine
from gluonlab.prediction.sums import DEVICE, OVER_HOSTS, stores

HIERARCHICAL, RING = "horovod", "ring"
# Those that sum no otherwise than another: what lies between the halves of sharded-optimizer moves
# nothing, and a group gives both parameter servers one array of each process.
PRICED_AS = {"sharded-optimizer": "sharded", "dist_device_sync": "dist_sync"}
NOBODY_WAITS = "dist_async"


def known_stores() -> List[str]:
    """All that have a price: --kvstore's, and over hosts --backend's."""
    return [*stores(), *PRICED_AS, *OVER_HOSTS]


def priced_as(store: str, machine: Machine) -> Tuple[str, Optional[str]]:
    """The store that is priced on ``machine`` for ``store``, and a caution if it is another.

    Over hosts it is one of OVER_HOSTS, on one host none of them. Raises ConfigError for others.
    """
    if store == NOBODY_WAITS:
        raise ConfigError(
            f"store {store!r} has no prediction, since no step waits for a sum: choose dist_sync"
        )
    if store not in known_stores():
        raise ConfigError(unknown("store to predict", store, known_stores()))
    alike = PRICED_AS.get(store, store)
    if machine.hosts == 1 and alike in OVER_HOSTS:
        return RING, (
            f"{store} sums over hosts, and {machine.name} is one: priced is a ring of its GPUs; "
            f"for hosts give {machine.kind if machine.nominal else 'p3.16xlarge'}*2"
        )
    if machine.hosts > 1 and alike not in OVER_HOSTS:
        # the default stands for what is usual over hosts
        caution = (
            f"{store} sums over the GPUs of one host: over hosts priced is {HIERARCHICAL}, rings "
            "within hosts and rings across them"
        )
        return HIERARCHICAL, None if store == DEVICE else caution
    return alike, None


def within_host(store: str) -> str:
    """What sums within one of several hosts, by the store that is priced over them."""
    return RING if store in OVER_HOSTS else store
