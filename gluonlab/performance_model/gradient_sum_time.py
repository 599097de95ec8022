"""Predicts the time to sum a step's gradients, and the part that backward does not hide.

A store (the value of --kvstore) sums the gradients over the GPUs of one host or of several hosts.
For most stores, `gluonlab.collectives.cost_model` predicts the time of the store's schedule on the
machine's topology. The time of the store ``local``, which sums on the CPU, is computed with a
formula.

MXNet runs backward in bulks of several operators (``--backward-bulk-size``), last layer first. A
bucket of gradients is summed after the bulk that completes the bucket. The part of the sum after
the end of backward is called exposed. MXNet is not imported.
"""

from __future__ import annotations

import math
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from gluonlab.collectives.algorithms import ALGORITHMS, make_schedule_over_hosts, ring
from gluonlab.collectives.cost_model import estimate_cost, find_best_order
from gluonlab.collectives.named_topologies import NETWORKS, HostNetwork
from gluonlab.collectives.topology import Topology
from gluonlab.collectives.topology_aware import TOPOLOGY_AWARE, make_for_links
from gluonlab.errors import ConfigError, unknown
from gluonlab.performance_model.gpu_specifications import Machine
from gluonlab.performance_model.roofline import UPDATE_PASSES, Work


class HostRates(NamedTuple):
    """The speeds of the store ``local``.

    ``pass_bytes_per_s``: the speed at which the CPU processes arrays in sums and updates.
    ``copy_bytes_per_s``: the speed of copies between a GPU and the CPU.
    """

    pass_bytes_per_s: float
    copy_bytes_per_s: float


# Speeds of MXNet 1.9.1 on two cores of an EPYC. The sum of n = 2 devices passes n + 1 times over
# the gradients of ResNet-18. `bench gradients` measured 13.3 ms for `local` on two CPU devices. The
# speed of copies is NCCL's number for PCIe 3.0.
MXNET_1_9_HOST = HostRates(10.5e9, 12e9)
SERVER_ADD_BYTES_PER_S = 10e9  # speed of a parameter server's additions, inferred
DEVICE, LOCAL, NCCL = "device", "local", "nccl"
MULTI_HOST_ALGORITHMS = {"horovod": "hierarchical", "dist_sync": "parameter server"}


class GradientSizes(NamedTuple):
    """The gradients to sum.

    Attributes:
        sizes: The bytes of each tensor of gradients.
        key_s: Seconds that the host takes to queue the sum of one tensor on one GPU.
        updates_weights: Whether the store also updates the weights, as in MXNet's own loops.
        separate_sums: Whether each tensor is summed separately, with its own latency, like the
            buckets of gluonlab. Otherwise all tensors are summed at once.
    """

    sizes: Sequence[float]
    key_s: float = 0.0
    updates_weights: bool = False
    separate_sums: bool = False

    @property
    def total_bytes(self) -> float:
        """Return the bytes of all tensors."""
        return sum(self.sizes)


def single_host_stores() -> List[str]:
    """Return the stores whose time on one host can be predicted."""
    return [DEVICE, LOCAL, NCCL, *ALGORITHMS, *TOPOLOGY_AWARE]


def sum_within_host_s(store: str, topology: Topology, gradients: GradientSizes, host: HostRates) -> float:
    """Return the seconds to sum the gradients of a step over the GPUs of ``topology``.

    The result includes the host's time for queueing (``key_s``). ``host``: the speeds of ``local``.
    Raises ConfigError for a store that is not in `single_host_stores`.
    """
    if store not in single_host_stores():
        raise ConfigError(unknown("kvstore", store, single_host_stores()))
    gpus = topology.world_size
    if store == LOCAL:
        seconds = _sum_on_cpu_s(gpus, gradients, host)
    elif gpus == 1:
        return 0.0
    elif store == DEVICE:
        schedule = ALGORITHMS["sharded"](gpus)
        seconds = estimate_cost(schedule, topology, gpus * max_owned_bytes(gradients.sizes, gpus)).seconds
        if gradients.separate_sums:  # the GPUs sum their tensors at the same time
            later_rounds = math.ceil(len(gradients.sizes) / gpus) - 1
            seconds += later_rounds * estimate_cost(schedule, topology, 0).seconds
    elif store in TOPOLOGY_AWARE:
        schedules = make_for_links(store, topology, gpus)
        schedule = schedules.cheapest(gradients.total_bytes / (len(gradients.sizes) if gradients.separate_sums else 1))
        seconds = estimate_cost(schedule, topology, gradients.total_bytes).seconds
        seconds += _extra_sums(gradients) * estimate_cost(schedule, topology, 0).seconds
    else:
        schedule = ring(gpus) if store == NCCL else ALGORITHMS[store](gpus)
        schedule = schedule.placed(find_best_order(schedule, topology))
        seconds = estimate_cost(schedule, topology, gradients.total_bytes).seconds
        seconds += _extra_sums(gradients) * estimate_cost(schedule, topology, 0).seconds
    return seconds + (gradients.key_s * len(gradients.sizes) * gpus if gpus > 1 else 0.0)


def max_owned_bytes(sizes: Sequence[float], gpus: int) -> float:
    """Return the bytes that the busiest GPU sums, if each tensor is summed on one GPU.

    Each tensor, largest first, is assigned to the GPU with the fewest bytes so far. ``sizes``: the
    bytes of each tensor.
    """
    loads = [0.0] * gpus
    for size in sorted(sizes, reverse=True):
        loads[loads.index(min(loads))] += size
    return max(loads)


def _extra_sums(gradients: GradientSizes) -> int:
    """Return the number of separate sums after the first sum."""
    return len(gradients.sizes) - 1 if gradients.separate_sums else 0


def _sum_on_cpu_s(gpus: int, gradients: GradientSizes, host: HostRates) -> float:
    """Return the seconds to copy gradients to the CPU, sum them there, and copy the sum back.

    If ``gradients.updates_weights``, the CPU also updates the weights. Each GPU copies over its own
    PCIe lanes, at the same time as the others.
    """
    passes = (gpus + 1 if gpus > 1 else 0) + UPDATE_PASSES * gradients.updates_weights
    if not passes:
        return 0.0
    total = gradients.total_bytes
    return passes * total / host.pass_bytes_per_s + 2 * total / host.copy_bytes_per_s


# --- several hosts


def hierarchical_sum_s(topology: Topology, network: HostNetwork, size_bytes: float) -> float:
    """Return the seconds to sum ``size_bytes`` with rings within hosts and rings across hosts.

    A ring across hosts connects the GPUs with the same rank within their hosts.
    """
    host = topology.subset(topology.hosts[0])
    schedule = make_schedule_over_hosts(len(topology.hosts), host.world_size, order=host.ring_order())
    return estimate_cost(schedule, topology, size_bytes).seconds


def flat_ring_sum_s(topology: Topology, network: HostNetwork, size_bytes: float) -> float:
    """Return the seconds to sum ``size_bytes`` with one ring through all GPUs, host after host."""
    schedule = ring(topology.world_size).placed(topology.ring_order())
    return estimate_cost(schedule, topology, size_bytes).seconds


def parameter_server_sum_s(topology: Topology, network: HostNetwork, size_bytes: float) -> float:
    """Return the seconds to sum n = ``size_bytes`` with one parameter server on each of h hosts.

    The time is the sum of these terms:

    - The time of a ring within a host.
    - A copy of n bytes from one GPU to the host's memory, and a copy back.
    - 2 (h-1) (alpha + n/h beta) for messages through the host's network cards: the host sends h-1
      parts to other servers, and receives their sums. alpha is the latency in seconds, and beta the
      seconds per byte of all cards together. At the same time the host's server receives and sends
      the same number of bytes in the other direction.
    - (h-1) n/h gamma for the server's additions. gamma is the seconds per byte of an addition.

    A single host has no servers, so only the ring remains.
    """
    hosts = len(topology.hosts)
    within_s = flat_ring_sum_s(topology.subset(topology.hosts[0]), network, size_bytes)
    if hosts == 1:
        return within_s
    copies_s = sum(
        size_bytes / min(link.bytes_per_s for link in links_of(0)) for links_of in (network.out_links, network.in_links)
    )
    part = size_bytes / hosts
    message_s = network.latency_s + part / (network.nics * network.bytes_per_s)
    return within_s + copies_s + (hosts - 1) * (2 * message_s + part / SERVER_ADD_BYTES_PER_S)


MULTI_HOST_SUMS: Dict[str, Callable[[Topology, HostNetwork, float], float]] = {
    "hierarchical": hierarchical_sum_s,
    "flat ring": flat_ring_sum_s,
    "parameter server": parameter_server_sum_s,
}


def sum_over_hosts_s(store: str, machine: str, topology: Topology, gradients: GradientSizes) -> float:
    """Return the seconds to sum the gradients of a step over hosts.

    ``store``: a key of MULTI_HOST_ALGORITHMS. ``machine``: the instance type of the hosts, a key of
    NETWORKS. Raises ConfigError for other stores.
    """
    if store not in MULTI_HOST_ALGORITHMS:
        raise ConfigError(unknown("kvstore for several hosts", store, MULTI_HOST_ALGORITHMS))
    sum_seconds, network = MULTI_HOST_SUMS[MULTI_HOST_ALGORITHMS[store]], NETWORKS[machine]
    latency_s = sum_seconds(topology, network, 0) if _extra_sums(gradients) else 0.0
    return sum_seconds(topology, network, gradients.total_bytes) + _extra_sums(gradients) * latency_s


# --- the store whose time is predicted

HIERARCHICAL, RING = "horovod", "ring"
# Stores that sum like another store. sharded-optimizer updates the weights between the two halves
# of its sum, which moves no data. For both kinds of parameter servers, a process passes one array.
EQUIVALENT_STORES = {"sharded-optimizer": "sharded", "dist_device_sync": "dist_sync"}
ASYNC_STORE = "dist_async"


def all_stores() -> List[str]:
    """Return all stores whose time can be predicted: values of --kvstore, and of --backend."""
    return [*single_host_stores(), *EQUIVALENT_STORES, *MULTI_HOST_ALGORITHMS]


def resolve_store(store: str, machine: Machine) -> Tuple[str, Optional[str]]:
    """Return the store whose predicted time is used for ``store``, and a warning or None.

    The warning explains that the two stores sum in different ways.

    On several hosts the returned store is a key of MULTI_HOST_ALGORITHMS. On one host the returned
    store is one of `single_host_stores`. Raises ConfigError for unknown stores, and for
    ASYNC_STORE.
    """
    if store == ASYNC_STORE:
        raise ConfigError(
            f"the step time with kvstore {store!r} cannot be predicted, because steps do not wait for a reduction: "
            "choose dist_sync"
        )
    if store not in all_stores():
        raise ConfigError(unknown("kvstore", store, all_stores()))
    equivalent = EQUIVALENT_STORES.get(store, store)
    if machine.hosts == 1 and equivalent in MULTI_HOST_ALGORITHMS:
        return RING, (
            f"kvstore {store} is for several hosts, but {machine.name} is a single host: the "
            "prediction is for a ring of its GPUs; for several hosts use "
            f"{machine.kind if machine.nominal else 'p3.16xlarge'}*2"
        )
    if machine.hosts > 1 and equivalent not in MULTI_HOST_ALGORITHMS:
        # no caution for the default store, whose usual replacement over hosts is horovod
        caution = (
            f"kvstore {store} is for a single host: for several hosts, the prediction is for "
            f"{HIERARCHICAL}, with rings within hosts and between hosts"
        )
        return HIERARCHICAL, None if store == DEVICE else caution
    return equivalent, None


def store_within_host(store: str) -> str:
    """Return RING for a store that sums over hosts, and ``store`` itself for other stores."""
    return RING if store in MULTI_HOST_ALGORITHMS else store


# --- the exposed part of the sum, after the end of backward

BACKWARD_PIECE = 15  # operators per piece of backward on GPUs; see gluonlab.engine.mxnet_setup
# The default size of a bucket is BUCKET_BYTES. With the store `device`, buckets may be smaller, so
# that each GPU sums one, but not below MIN_BUCKET_BYTES. See gluonlab.bucketed_trainer.buckets.
BUCKET_BYTES, MIN_BUCKET_BYTES = 25 * 2**20, 4 * 2**20


class GradientBucket(NamedTuple):
    """Gradients that are summed together, ``size`` bytes in total.

    ``ready_s``: seconds from the start of backward until all gradients of the bucket are computed.
    """

    ready_s: float
    size: float


def default_bucket_bytes(work: Work, store: str, gpus: int) -> float:
    """Return the default maximum size of a bucket, in bytes."""
    if store != DEVICE or gpus < 2:
        return BUCKET_BYTES
    return min(BUCKET_BYTES, max(MIN_BUCKET_BYTES, 4 * work.parameters // gpus))


def bucket_sizes(work: Work, bucket_bytes: float = BUCKET_BYTES) -> List[float]:
    """Return the bytes of each bucket, starting with the last layers.

    A bucket has at most ``bucket_bytes``, except that a larger tensor gets its own bucket. If
    ``bucket_bytes`` is 0, every tensor gets its own bucket. See
    `gluonlab.bucketed_trainer.buckets`.
    """
    sizes: List[float] = []
    for elements in reversed(work.tensors):
        size = 4.0 * elements
        if sizes and sizes[-1] + size <= bucket_bytes:
            sizes[-1] += size
        else:
            sizes.append(size)
    return sizes


def make_buckets(
    work: Work, backward_s: Sequence[float], piece: Optional[int] = BACKWARD_PIECE, bucket_bytes: float = BUCKET_BYTES
) -> List[GradientBucket]:
    """Return the gradients in buckets, in the order in which backward computes them.

    Args:
        work: The work of the network.
        backward_s: How many seconds backward takes for each operator, in the order of
            ``work.operators``.
        piece: The number of operators in a bulk of backward; None for a single bulk.
        bucket_bytes: A bucket is complete when it has at least this many bytes.
    """
    gradients = [
        (seconds, 4.0 * operator.weights)
        for operator, seconds in zip(reversed(work.operators), reversed(backward_s))
        if seconds
    ]
    piece_size = piece or max(1, len(gradients))
    pieces = [gradients[first : first + piece_size] for first in range(0, len(gradients), piece_size)]
    buckets: List[GradientBucket] = []
    elapsed_s = pending_bytes = 0.0
    for operators in pieces:
        elapsed_s += math.fsum(seconds for seconds, _ in operators)
        for _, weights in operators:
            pending_bytes += weights
            if pending_bytes and pending_bytes >= bucket_bytes:
                buckets.append(GradientBucket(elapsed_s, pending_bytes))
                pending_bytes = 0.0
    # The last bucket also contains the few parameters outside convolutions and dense layers, such
    # as BatchNorm's.
    other_bytes = 4.0 * work.parameters - pending_bytes - sum(bucket.size for bucket in buckets)
    last_bytes = pending_bytes + max(0.0, other_bytes)
    return [*buckets, GradientBucket(elapsed_s, last_bytes)] if last_bytes else buckets


def exposed_sum_s(gradient_buckets: Sequence[GradientBucket], sum_s: float, backward_s: float) -> float:
    """Return how many seconds the sum continues after the end of backward.

    ``sum_s``: the seconds to sum all gradients. ``backward_s``: how many seconds backward takes.
    Buckets are summed one after the other. Each takes a fraction of ``sum_s`` proportional to its
    bytes, and does not slow backward down.
    """
    total_bytes, end = sum(bucket.size for bucket in gradient_buckets), 0.0
    for bucket in gradient_buckets:
        end = max(end, bucket.ready_s) + sum_s * bucket.size / total_bytes
    return max(0.0, end - backward_s)
