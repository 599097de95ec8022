"""The time of summing all gradients once: by a store, over the GPUs of a host or of several.

On GPUs that a topology knows, schedules are priced on it (`collectives.cost`). ``local`` sums on
the CPU, in closed form. MXNet is not imported.
"""

from __future__ import annotations

import math
from typing import Callable, Dict, List, NamedTuple, Sequence

from gluonlab.collectives.algorithms import ALGORITHMS, over_hosts, ring
from gluonlab.collectives.cost import best_order, price
from gluonlab.collectives.for_links import FOR_LINKS, make_for_links
from gluonlab.collectives.links import Topology
from gluonlab.collectives.topology import NETWORKS, Network
from gluonlab.errors import ConfigError, unknown
from gluonlab.prediction.constants import Host
from gluonlab.prediction.roofline import UPDATE_PASSES

SERVER_ADDS = 10e9  # bytes/s that a server adds: inferred
DEVICE, LOCAL, NCCL = "device", "local", "nccl"
OVER_HOSTS = {"horovod": "hierarchical", "dist_sync": "parameter server"}


class Gradients(NamedTuple):
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
    return [DEVICE, LOCAL, NCCL, *ALGORITHMS, *FOR_LINKS]


def within_host_s(store: str, topology: Topology, gradients: Gradients, host: Host) -> float:
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
    elif store in FOR_LINKS:
        made = make_for_links(store, topology, gpus)
        found = made.cheapest(gradients.total / (len(gradients.sizes) if gradients.apart else 1))
        seconds = price(found, topology, gradients.total).seconds
        seconds += _more(gradients) * price(found, topology, 0).seconds
    else:
        schedule = ring(gpus) if store == NCCL else ALGORITHMS[store](gpus)
        placed = schedule.placed(best_order(schedule, topology))
        seconds = price(placed, topology, gradients.total).seconds
        seconds += _more(gradients) * price(placed, topology, 0).seconds
    return seconds + (gradients.key_s * len(gradients.sizes) * gpus if gpus > 1 else 0.0)


def staged_s(gpus: int, gradients: Gradients, host: Host) -> float:
    """``device`` where GPUs cannot reach each other: every copy goes through the host's memory.

    To the GPU that sums most, and from it, gpus - 1 copies pass its lanes, and one more those of
    another: the halves of a copy run beside each other, but for the first.
    """
    most = owned(gradients.sizes, gpus)
    copies_s = 2 * gpus * most / host.copy_bytes_per_s if gpus > 1 else 0.0
    return copies_s + (gradients.key_s * len(gradients.sizes) * gpus if gpus > 1 else 0.0)


def owned(sizes: Sequence[float], gpus: int) -> float:
    """The bytes that the busiest GPU sums: whole tensors, each given to who has least so far."""
    loads = [0.0] * gpus
    for size in sorted(sizes, reverse=True):
        loads[loads.index(min(loads))] += size
    return max(loads)


def _more(gradients: Gradients) -> int:
    """How many sums there are besides the first."""
    return len(gradients.sizes) - 1 if gradients.apart else 0


def _local_s(gpus: int, gradients: Gradients, host: Host) -> float:
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
    schedule = over_hosts(len(topology.hosts), host.world_size, order=host.ring_order())
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
        size_bytes / min(link.bytes_per_s for link in way(0)) for way in (network.out, network.into)
    )
    part = size_bytes / hosts
    message_s = network.latency_s + part / (network.nics * network.bytes_per_s)
    return within_s + copies_s + (hosts - 1) * (2 * message_s + part / SERVER_ADDS)


WAYS: Dict[str, Callable[[Topology, Network, float], float]] = {
    "hierarchical": hierarchical_s,
    "flat ring": flat_ring_s,
    "parameter server": parameter_server_s,
}


def over_hosts_s(store: str, machine: str, topology: Topology, gradients: Gradients) -> float:
    """One sum over several hosts of ``machine``, by the store of OVER_HOSTS. Raises ConfigError."""
    if store not in OVER_HOSTS:
        raise ConfigError(unknown("store over hosts to predict", store, OVER_HOSTS))
    way, network = WAYS[OVER_HOSTS[store]], NETWORKS[machine]
    latency_s = way(topology, network, 0) if _more(gradients) else 0.0
    return way(topology, network, gradients.total) + _more(gradients) * latency_s
