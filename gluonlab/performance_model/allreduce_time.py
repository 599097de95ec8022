"""The time of summing all gradients once, and what of it is left when backward ends.

By a store, over the GPUs of a host or of several: on GPUs that a topology knows, schedules are
priced on it (`collectives.cost_model`); ``local`` sums on the CPU, in closed form. gluonlab queues
backward in pieces of operators, and a bucket of gradients, those of the last layers first, is
summed when the piece that completes it has run (`gluonlab.engine.pieces`). MXNet is not imported.
"""

from __future__ import annotations

import math
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from gluonlab.collectives.algorithms import ALGORITHMS, make_schedule_over_hosts, ring
from gluonlab.collectives.cost_model import find_best_order, price
from gluonlab.collectives.named_topologies import NETWORKS, Network
from gluonlab.collectives.topology import Topology
from gluonlab.collectives.topology_aware import TOPOLOGY_AWARE, make_for_links
from gluonlab.errors import ConfigError, unknown
from gluonlab.performance_model.gpu_specifications import Machine
from gluonlab.performance_model.roofline import UPDATE_PASSES, Work


class HostRates(NamedTuple):
    """How ``local`` sums: a CPU's bytes/s in sums and updates, and those of a GPU's copies."""

    pass_bytes_per_s: float
    copy_bytes_per_s: float


# MXNet 1.9.1 on two cores of an EPYC: (n + 1) times the gradients of ResNet-18, by the time that
# `bench gradients` measured for `local` on two CPU devices, 13.3 ms; copies as NCCL counts PCIe 3.0
MEASURED_NOW = HostRates(10.5e9, 12e9)
SERVER_ADDS = 10e9  # bytes/s that a server adds: inferred
DEVICE, LOCAL, NCCL = "device", "local", "nccl"
OVER_HOSTS = {"horovod": "hierarchical", "dist_sync": "parameter server"}


class GradientSizes(NamedTuple):
    """What is summed: the ``sizes`` of its tensors in bytes, and the host's ``key_s`` for each.

    ``updated``: whether the store also updates the weights, as MXNet's own loops had it do.
    ``apart``: each is summed by itself, as gluonlab's buckets are, and has a latency of its own;
    else they are one.
    """

    sizes: Sequence[float]
    key_s: float = 0.0
    updated: bool = False
    apart: bool = False

    @property
    def total(self) -> float:
        """Bytes."""
        return sum(self.sizes)


def stores() -> List[str]:
    """The stores that have a price on one host."""
    return [DEVICE, LOCAL, NCCL, *ALGORITHMS, *TOPOLOGY_AWARE]


def within_host_s(
    store: str, topology: Topology, gradients: GradientSizes, host: HostRates
) -> float:
    """One sum over the GPUs of ``topology``, and what the host does for each tensor and GPU.

    ``host``: of ``local``. Raises ConfigError for a store without a price.
    """
    if store not in stores():
        raise ConfigError(unknown("store to predict", store, stores()))
    gpus = topology.world_size
    if store == LOCAL:
        seconds = _local_s(gpus, gradients, host)
    elif gpus == 1:
        return 0.0
    elif store == DEVICE:
        schedule = ALGORITHMS["sharded"](gpus)
        seconds = price(schedule, topology, gpus * owned(gradients.sizes, gpus)).seconds
        if gradients.apart:  # each GPU sums its own beside those of the others
            again = math.ceil(len(gradients.sizes) / gpus) - 1
            seconds += again * price(schedule, topology, 0).seconds
    elif store in TOPOLOGY_AWARE:
        made = make_for_links(store, topology, gpus)
        found = made.cheapest(gradients.total / (len(gradients.sizes) if gradients.apart else 1))
        seconds = price(found, topology, gradients.total).seconds
        seconds += _more(gradients) * price(found, topology, 0).seconds
    else:
        schedule = ring(gpus) if store == NCCL else ALGORITHMS[store](gpus)
        placed = schedule.placed(find_best_order(schedule, topology))
        seconds = price(placed, topology, gradients.total).seconds
        seconds += _more(gradients) * price(placed, topology, 0).seconds
    return seconds + (gradients.key_s * len(gradients.sizes) * gpus if gpus > 1 else 0.0)


def owned(sizes: Sequence[float], gpus: int) -> float:
    """The bytes that the busiest GPU sums: whole tensors, each given to who has least so far."""
    loads = [0.0] * gpus
    for size in sorted(sizes, reverse=True):
        loads[loads.index(min(loads))] += size
    return max(loads)


def _more(gradients: GradientSizes) -> int:
    """How many sums there are besides the first."""
    return len(gradients.sizes) - 1 if gradients.apart else 0


def _local_s(gpus: int, gradients: GradientSizes, host: HostRates) -> float:
    """Copies to the CPU and back, each GPU's over its own lanes; there a sum, perhaps an update."""
    passes = (gpus + 1 if gpus > 1 else 0) + UPDATE_PASSES * gradients.updated
    if not passes:
        return 0.0
    total = gradients.total
    return passes * total / host.pass_bytes_per_s + 2 * total / host.copy_bytes_per_s


# --- over hosts


def hierarchical_s(topology: Topology, network: Network, size_bytes: float) -> float:
    """Rings within hosts, and rings across them between GPUs of equal rank."""
    host = topology.subset(topology.hosts[0])
    schedule = make_schedule_over_hosts(
        len(topology.hosts), host.world_size, order=host.ring_order()
    )
    return price(schedule, topology, size_bytes).seconds


def flat_ring_s(topology: Topology, network: Network, size_bytes: float) -> float:
    """One ring through all GPUs, host after host."""
    schedule = ring(topology.world_size).placed(topology.ring_order())
    return price(schedule, topology, size_bytes).seconds


def parameter_server_s(topology: Topology, network: Network, size_bytes: float) -> float:
    """As many servers as hosts, one on each, in closed form.

    For n bytes on h hosts: the price of a ring within a host, then of a copy of n from one GPU to
    the host's memory and back; on the NICs of a host 2 (h-1) (alpha + n/h beta), the parts that it
    sends away and gets back, and as much for those that its server receives and sends, in the other
    direction; (h-1) n/h gamma for the server's additions. A single host has no servers.
    """
    hosts = len(topology.hosts)
    within_s = flat_ring_s(topology.subset(topology.hosts[0]), network, size_bytes)
    if hosts == 1:
        return within_s
    copies_s = sum(
        size_bytes / min(link.bytes_per_s for link in way(0))
        for way in (network.out_links, network.in_links)
    )
    part = size_bytes / hosts
    message_s = network.latency_s + part / (network.nics * network.bytes_per_s)
    return within_s + copies_s + (hosts - 1) * (2 * message_s + part / SERVER_ADDS)


WAYS: Dict[str, Callable[[Topology, Network, float], float]] = {
    "hierarchical": hierarchical_s,
    "flat ring": flat_ring_s,
    "parameter server": parameter_server_s,
}


def over_hosts_s(store: str, machine: str, topology: Topology, gradients: GradientSizes) -> float:
    """One sum over several hosts of ``machine``, by the store of OVER_HOSTS. Raises ConfigError."""
    if store not in OVER_HOSTS:
        raise ConfigError(unknown("store over hosts to predict", store, OVER_HOSTS))
    way, network = WAYS[OVER_HOSTS[store]], NETWORKS[machine]
    latency_s = way(topology, network, 0) if _more(gradients) else 0.0
    return way(topology, network, gradients.total) + _more(gradients) * latency_s


# --- which schedule a store is priced by

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


# --- what is left of the sum when backward ends

PIECE = 15  # operators on GPUs; see gluonlab.engine.pieces
# Of a bucket at most, and the least by which the store device is given one for each GPU: see
# gluonlab.bucketed_trainer.bucket
BUCKET_BYTES, SPREAD_BYTES = 25 * 2**20, 4 * 2**20


class GradientBucket(NamedTuple):
    """A part of the gradients: when backward has made it, seconds from its begin; its bytes."""

    ready_s: float
    size: float


def usual_bucket_bytes(work: Work, store: str, gpus: int) -> float:
    """Those of the largest bucket, where nobody has sized them."""
    if store != DEVICE or gpus < 2:
        return BUCKET_BYTES
    return min(BUCKET_BYTES, max(SPREAD_BYTES, 4 * work.parameters // gpus))


def bucket_sizes(work: Work, bucket_bytes: float = BUCKET_BYTES) -> List[float]:
    """The bytes of each bucket, the last layers' first: ``bucket_bytes`` together at most.

    A larger tensor is a bucket of its own, and with 0 each is; see
    `gluonlab.bucketed_trainer.bucket.group`.
    """
    found: List[float] = []
    for numbers in reversed(work.tensors):
        size = 4.0 * numbers
        if found and found[-1] + size <= bucket_bytes:
            found[-1] += size
        else:
            found.append(size)
    return found


def buckets(
    work: Work,
    backward_s: Sequence[float],
    piece: Optional[int] = PIECE,
    bucket_bytes: float = BUCKET_BYTES,
) -> List[GradientBucket]:
    """The gradients in the order in which backward makes them, in buckets.

    ``backward_s``: of each operator, in the order of forward. ``piece``: how many operators, None
    for all.
    """
    order = [
        (seconds, 4.0 * operator.weights)
        for operator, seconds in zip(reversed(work.operators), reversed(backward_s))
        if seconds
    ]
    size = piece or max(1, len(order))
    pieces = [order[first : first + size] for first in range(0, len(order), size)]
    found: List[GradientBucket] = []
    now = held = 0.0
    for each in pieces:
        now += math.fsum(seconds for seconds, _ in each)
        for _, weights in each:
            held += weights
            if held and held >= bucket_bytes:
                found.append(GradientBucket(now, held))
                held = 0.0
    # what belongs to no convolution or dense layer, such as BatchNorm's, is little
    rest = held + max(0.0, 4.0 * work.parameters - held - sum(each.size for each in found))
    return [*found, GradientBucket(now, rest)] if rest else found


def exposed_s(parts: Sequence[GradientBucket], sum_s: float, backward_s: float) -> float:
    """Seconds of the sum behind the end of backward; ``sum_s``: of all gradients together.

    A bucket takes its share of the time, one after the other, and does not slow backward down.
    """
    total, end = sum(part.size for part in parts), 0.0
    for part in parts:
        end = max(end, part.ready_s) + sum_s * part.size / total
    return max(0.0, end - backward_s)
