"""Creates kvstores by name. A kvstore sums gradients over devices and processes.

If a name is unknown, MXNet silently creates a plain local store. `check_kvstore` raises an error
instead. A store's module is imported only when the store is created, because ``device`` needs no
schedules, topologies or solvers.

=======================================  =====================  ===================================
store                                    module                 how gradients are summed
=======================================  =====================  ===================================
device, local                            `mxnet_stores`         by MXNet
nccl                                     `nccl_store`           by NCCL, in MXNet
star ... hierarchical, multi_ring, auto  `schedule_stores`      by a schedule of `collectives`
sharded-optimizer                        `sharded_optimizer`    reduce-scatter, update, all-gather
several processes                        `process_group_store`  over devices, then over processes
=======================================  =====================  ===================================

`allreduce_store` contains the base class of all stores except ``device`` and ``local``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Sequence

from gluonlab.config.option_hints import check_argument_names
from gluonlab.config.renamed_settings import current_kvstore
from gluonlab.devices import check_device_list
from gluonlab.engine.mxnet_and_cuda_libraries import cuda_build_advice
from gluonlab.engine.parameter_server_role import explain_missing_parameter_server, has_parameter_server
from gluonlab.errors import KVStoreError, unknown

if TYPE_CHECKING:
    from mxnet import Context
    from mxnet.kvstore import KVStoreBase

    from gluonlab.kvstores.allreduce_store import Placement


@dataclass(frozen=True)
class KVStoreKind:
    """An entry of `KVSTORES`."""

    create: "Callable[[str, Optional[str]], KVStoreBase]"  # (name, name of a topology)
    summary: str
    uses_topology: bool = False  # runs a schedule, and assigns its ranks to devices by their links
    gpus_only: bool = False
    supports_compression: bool = False


HOROVOD = "horovod"  # a backend of `gluonlab.launch`; MXNet has no such store


def _create_mxnet_store(name: str, topology: Optional[str]) -> "KVStoreBase":
    from gluonlab.kvstores.mxnet_stores import MXNetKVStore

    return MXNetKVStore(name)


def _create_schedule_store(name: str, topology: Optional[str]) -> "KVStoreBase":
    from gluonlab.kvstores.schedule_stores import ScheduleKVStore

    return ScheduleKVStore(name, topology=topology)


def _create_topology_aware_store(name: str, topology: Optional[str]) -> "KVStoreBase":
    from gluonlab.kvstores.schedule_stores import TopologyAwareKVStore

    return TopologyAwareKVStore(name, topology)


def _create_sharded_optimizer_store(name: str, topology: Optional[str]) -> "KVStoreBase":
    from gluonlab.kvstores.sharded_optimizer import ShardedKVStore

    return ShardedKVStore(topology=topology)


def _create_nccl_store(name: str, topology: Optional[str]) -> "KVStoreBase":
    """Return the kvstore ``nccl``. Raise KVStoreError if MXNet was built without NCCL."""
    import mxnet as mx

    if not mx.runtime.Features().is_enabled("NCCL"):
        raise KVStoreError(
            "kvstore 'nccl' is not available, because this MXNet was built without NCCL: choose kvstore 'device' or "
            f"'local'; {cuda_build_advice()}"
        )
    from gluonlab.kvstores.nccl_store import NcclKVStore

    return NcclKVStore()


def _schedule_kind(summary: str, create: Any = _create_schedule_store) -> KVStoreKind:
    return KVStoreKind(create, summary, uses_topology=True)


KVSTORES: Dict[str, KVStoreKind] = {
    "device": KVStoreKind(
        _create_mxnet_store,
        "reduces each bucket on one of the devices; the buckets are spread over all devices",
        supports_compression=True,
    ),
    "local": KVStoreKind(_create_mxnet_store, "reduces every bucket on the CPU"),
    "nccl": KVStoreKind(
        _create_nccl_store,
        "uses MXNet's NCCL: reduces to the first GPU, then broadcasts from it (only with a CUDA build of MXNet)",
        gpus_only=True,
    ),
    # all of `gluonlab.collectives.algorithms.ALGORITHMS`
    "star": _schedule_kind("from scratch: sends everything to the first device, and back"),
    "sharded": _schedule_kind("from scratch: each device reduces its own chunk"),
    "tree": _schedule_kind("from scratch: reduces up a binary tree, then broadcasts down"),
    "double_tree": _schedule_kind("from scratch: uses two binary trees, each for half of the chunks"),
    "ring": _schedule_kind("from scratch: sends chunks twice around a ring"),
    "bidirectional_ring": _schedule_kind("from scratch: uses two rings, one in each direction"),
    "halving_doubling": _schedule_kind("from scratch: partners exchange halves, then double them"),
    "hierarchical": _schedule_kind(
        "from scratch: reduces within groups, then between groups, then broadcasts within groups"
    ),
    # all of `gluonlab.collectives.topology_aware.TOPOLOGY_AWARE`
    "multi_ring": _schedule_kind(
        "from scratch: uses as many rings as the links carry at once", _create_topology_aware_store
    ),
    "synthesized": _schedule_kind(
        "from scratch: uses schedules that a solver found for the links, by size", _create_topology_aware_store
    ),
    "auto": _schedule_kind(
        "uses the schedule with the lowest estimated time for the links, by size", _create_topology_aware_store
    ),
    "sharded-optimizer": KVStoreKind(
        _create_sharded_optimizer_store,
        "optimizer-state sharding (ZeRO-1): each device updates its shard of the weights and keeps the state for it",
        uses_topology=True,
    ),
}
TOPOLOGY_AWARE = tuple(name for name, kind in KVSTORES.items() if kind.create is _create_topology_aware_store)


def check_kvstore(name: str) -> None:
    """Raise KVStoreError if no kvstore has this name. The message lists the choices."""
    if not isinstance(name, str) or name not in KVSTORES:
        backend = _find_launch_backend(str(name).lower())
        if backend not in (None, HOROVOD) and not has_parameter_server():
            raise KVStoreError(
                explain_missing_parameter_server(
                    f"kvstore {name!r}",
                    "choose kvstore 'device', install Horovod for gluonlab launch --backend horovod",
                )
            )
        if backend is not None:
            own_loop = f"; in your own loop, use mx.kv.create({backend!r})"
            raise KVStoreError(
                f"kvstore {name!r} is for several processes: start them with gluonlab launch -n N "
                f"--backend {backend}{own_loop if backend != HOROVOD else ''}"
            )
        raise KVStoreError(unknown("kvstore", name, KVSTORES))


def _find_launch_backend(name: str) -> Optional[str]:
    """Return the backend of `gluonlab.launch` that replaces MXNet's store ``name``, if any."""
    if name == HOROVOD:
        return name
    if name in ("byteps", "p3", "ps"):
        return "dist_sync"
    if not name.startswith("dist"):
        return None
    if "async" in name:
        return "dist_async"
    return "dist_device_sync" if "device" in name else "dist_sync"


@check_argument_names("make_kvstore", dict.fromkeys(("ctx", "context", "devices", "gpus"), "pass the devices as ctxs"))
def make_kvstore(name: str, ctxs: "Sequence[Context]" = (), topology: Optional[str] = None) -> "KVStoreBase":
    """Create a kvstore that reduces gradients over devices, for gluon.Trainer or BucketedTrainer.

    A kvstore with an allreduce schedule, such as ``"ring"``, assigns its ranks to GPUs according to
    the links that NVML reports.

    Args:
        name: A name in ``KVSTORES``, such as ``"device"`` or ``"ring"``.
        ctxs: The devices, without duplicates. If given, they are checked immediately.
        topology: The name of a machine in `gluonlab.collectives.named_topologies`, or of a JSON
            file. The topology's links replace the links of this machine.

    Returns:
        A new kvstore, for ``gluon.Trainer(..., kvstore=make_kvstore("ring"))``.

    Raises:
        KVStoreError: The name is unknown, this build of MXNet does not contain the kvstore, or the
            kvstore cannot use these devices or this topology.
        ScheduleError: The topology is unknown.
        DeviceError: ``ctxs`` is not a list of distinct devices.
    """
    name = current_kvstore(name, stacklevel=3)
    check_kvstore(name)
    ctxs = check_device_list(ctxs) if ctxs else ()
    check_topology(topology, name)
    if KVSTORES[name].gpus_only and any(ctx.device_type != "gpu" for ctx in ctxs):
        raise KVStoreError(
            f"kvstore {name!r} needs GPUs, but the devices are CPU devices: choose kvstore 'device' or 'local'"
        )
    store = KVSTORES[name].create(name, topology)
    if topology is not None and ctxs:
        store.placement(ctxs)  # raises if the topology has fewer devices
    return store


def check_topology(topology: Optional[str], kvstore: str) -> None:
    """Check that ``topology`` is known, and that ``kvstore`` runs a schedule.

    Raises ScheduleError for an unknown topology, and KVStoreError for a store without a schedule.
    """
    if topology is None:
        return
    from gluonlab.collectives.named_topologies import make_topology

    make_topology(topology)
    if not KVSTORES[kvstore].uses_topology:
        choices = ", ".join(name for name, kind in KVSTORES.items() if kind.uses_topology)
        raise KVStoreError(
            f"topology {topology!r}: kvstore {kvstore!r} is built into MXNet and ignores topologies: "
            f"choose one of the kvstores {choices}, or omit the topology"
        )


def find_placement(
    store: Any, ctxs: "Sequence[Context]", copies: "Sequence[Sequence[Context]]"
) -> "Optional[Placement]":
    """Return the assignment of a store's ranks to devices, or None if there was nothing to choose.

    ``copies``: the devices of each replica of the network.
    """
    from gluonlab.kvstores.allreduce_store import AllreduceKVStore

    placement = store.placement_for_training(ctxs, copies) if isinstance(store, AllreduceKVStore) else None
    return placement if placement is not None and placement.reason else None
