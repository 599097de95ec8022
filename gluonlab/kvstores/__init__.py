"""KVSTORES, the kvstores by name; an unknown name is an error.

MXNet itself silently turns a misspelled name into a plain local store. A store's module is imported
when the store is made: ``device`` needs no schedules, topologies or solvers.

=======================================  ==================  ======================================
store                                    module              who sums
=======================================  ==================  ======================================
device, local, nccl                      `native`            MXNet
star ... hierarchical, multi_ring, auto  `schedule`          a schedule of `gluonlab.collectives`
sharded-optimizer                        `sharded`           the halves of one, and it updates
several processes                        `group_store`       one of these, then a group (`groups`)
=======================================  ==================  ======================================

`summing` is what those have in common that plan their sums themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Sequence

from gluonlab.config.option_hints import check_argument_names
from gluonlab.devices import check_device_list
from gluonlab.engine.mxnet_installation import pip_install_command
from gluonlab.errors import KVStoreError, unknown

if TYPE_CHECKING:
    from mxnet import Context
    from mxnet.kvstore import KVStoreBase

    from gluonlab.kvstores.allreduce_store import Placement


@dataclass(frozen=True)
class KVStoreKind:
    """One way to sum gradients over devices."""

    create: "Callable[[str, Optional[str]], KVStoreBase]"  # of its name, and a topology's
    summary: str
    places: bool = False  # it runs a schedule, whose ranks devices play by their links
    gpus_only: bool = False
    compresses: bool = False


HOROVOD = "horovod"  # a backend of `gluonlab.launch`; the others are stores of MXNet's


def _native(name: str, topology: Optional[str]) -> "KVStoreBase":
    from gluonlab.kvstores.mxnet_stores import NativeKVStore

    return NativeKVStore(name)


def _scheduled(name: str, topology: Optional[str]) -> "KVStoreBase":
    from gluonlab.kvstores.schedule_stores import ScheduleKVStore

    return ScheduleKVStore(name, topology=topology)


def _for_links(name: str, topology: Optional[str]) -> "KVStoreBase":
    from gluonlab.kvstores.schedule_stores import ForLinksKVStore

    return ForLinksKVStore(name, topology)


def _sharded_optimizer(name: str, topology: Optional[str]) -> "KVStoreBase":
    from gluonlab.kvstores.sharded_optimizer import ShardedKVStore

    return ShardedKVStore(topology=topology)


def _nccl(name: str, topology: Optional[str]) -> "KVStoreBase":
    import mxnet as mx

    if not mx.runtime.Features().is_enabled("NCCL"):
        raise KVStoreError(
            "kvstore 'nccl': this MXNet was built without NCCL; choose device or local, "
            f"or on a machine with GPUs pip uninstall -y mxnet, then {pip_install_command('cu112')}"
        )
    from gluonlab.kvstores.mxnet_stores import NcclKVStore

    return NcclKVStore()


def _by_schedule(summary: str, create: Any = _scheduled) -> KVStoreKind:
    return KVStoreKind(create, summary, places=True)


KVSTORES: Dict[str, KVStoreKind] = {
    "device": KVStoreKind(
        _native,
        "each bucket is summed on one of the devices, the buckets spread over all of them",
        compresses=True,
    ),
    "local": KVStoreKind(_native, "every bucket is summed on the CPU"),
    "nccl": KVStoreKind(
        _nccl,
        "NCCL, as MXNet uses it: reduced to the first GPU, "
        "broadcast from there (a CUDA build of MXNet only)",
        gpus_only=True,
    ),
    # all of `gluonlab.collectives.algorithms.ALGORITHMS`
    "star": _by_schedule("from scratch: everything to the first device, and back"),
    "sharded": _by_schedule("from scratch: each device sums its own chunk"),
    "tree": _by_schedule("from scratch: up a binary tree, and down again"),
    "double_tree": _by_schedule("from scratch: two binary trees, half of the chunks each"),
    "ring": _by_schedule("from scratch: chunks travel around a ring, twice"),
    "bidirectional_ring": _by_schedule("from scratch: two rings, one in each direction"),
    "halving_doubling": _by_schedule("from scratch: partners exchange halves, then double them"),
    "hierarchical": _by_schedule("from scratch: within groups, between groups, within groups"),
    # all of `gluonlab.collectives.topology_aware.FOR_LINKS`
    "multi_ring": _by_schedule(
        "from scratch: as many rings as the links carry at once", _for_links
    ),
    "synthesised": _by_schedule(
        "from scratch: schedules that a solver has found for the links, by size", _for_links
    ),
    "auto": _by_schedule(
        "the one with the lowest price for the links, of all these schedules, by size", _for_links
    ),
    "sharded-optimizer": KVStoreKind(
        _sharded_optimizer,
        "each device updates its share of the weights and keeps its state",
        places=True,
    ),
}
FOR_LINKS = tuple(name for name, kind in KVSTORES.items() if kind.create is _for_links)


def check_kvstore(name: str) -> None:
    """Raise KVStoreError, with the choices, when no kvstore has this name."""
    if not isinstance(name, str) or name not in KVSTORES:
        backend = _backend_of(str(name).lower())
        if backend is not None:
            own_loop = f"; in your own loop, use mx.kv.create({backend!r})"
            raise KVStoreError(
                f"kvstore {name!r} sums over processes: start them with gluonlab launch -n N "
                f"--backend {backend}{own_loop if backend != HOROVOD else ''}"
            )
        raise KVStoreError(unknown("kvstore", name, KVSTORES))


def _backend_of(name: str) -> Optional[str]:
    """The backend of `gluonlab.launch` that is meant by a store of MXNet's for processes."""
    if name == HOROVOD:
        return name
    if name in ("byteps", "p3", "ps"):
        return "dist_sync"
    if not name.startswith("dist"):
        return None
    if "async" in name:
        return "dist_async"
    return "dist_device_sync" if "device" in name else "dist_sync"


@check_argument_names(
    "make_kvstore", dict.fromkeys(("ctx", "context", "devices", "gpus"), "give the devices as ctxs")
)
def make_kvstore(
    name: str, ctxs: "Sequence[Context]" = (), topology: Optional[str] = None
) -> "KVStoreBase":
    """A new kvstore that sums over the devices ``ctxs``, for gluon.Trainer or BucketedTrainer.

    ``gluon.Trainer(..., kvstore=make_kvstore("device"))``. A store made of a schedule places GPUs
    by the links that NVML reports when it first sums over three or more of them; ``topology`` names
    a machine of `gluonlab.collectives.named_topologies`, or a file, ``m.json``, whose links count
    instead.
    Raises KVStoreError for an unknown name, with the choices, for a store that this MXNet was built
    without, for one that cannot sum over these devices, for a topology that has not so many, and
    for one that the store has no use for; ScheduleError for an unknown topology; DeviceError for
    what is not a list of devices, each of them once.
    """
    check_kvstore(name)
    ctxs = check_device_list(ctxs) if ctxs else ()
    check_topology(topology, name)
    if KVSTORES[name].gpus_only and any(ctx.device_type != "gpu" for ctx in ctxs):
        raise KVStoreError(
            f"kvstore {name!r} sums over GPUs, and these are CPU devices: choose device or local"
        )
    store = KVSTORES[name].create(name, topology)
    if topology is not None and ctxs:
        store.placement(ctxs)  # whether it has these devices
    return store


def check_topology(topology: Optional[str], kvstore: str) -> None:
    """Check that ``topology`` is known, and that ``kvstore`` can be placed by it.

    Raises ScheduleError for an unknown topology, KVStoreError for a store that runs no schedule.
    """
    if topology is None:
        return
    from gluonlab.collectives.named_topologies import make_topology

    make_topology(topology)
    if not KVSTORES[kvstore].places:
        able = ", ".join(name for name, kind in KVSTORES.items() if kind.places)
        raise KVStoreError(
            f"topology {topology!r}: kvstore {kvstore!r} is MXNet's own, which nobody can place: "
            f"choose one of {able}, or leave the topology out"
        )


def placement_of(
    store: Any, ctxs: "Sequence[Context]", copies: "Sequence[Sequence[Context]]"
) -> "Optional[Placement]":
    """Which of the devices plays which rank in a store's schedule; None where none was placed.

    ``copies``: the devices of each copy of the network.
    """
    from gluonlab.kvstores.allreduce_store import SummingKVStore

    placed = store.placed_for(ctxs, copies) if isinstance(store, SummingKVStore) else None
    return placed if placed is not None and placed.why else None
