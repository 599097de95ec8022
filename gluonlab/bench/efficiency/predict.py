"""Predicted efficiency of data parallelism over hosts: the price of a sum beside a GPU's step.

Does not import MXNet.
"""

from __future__ import annotations

from typing import Callable, Dict, List, NamedTuple, Sequence

from gluonlab.collectives.algorithms import ring
from gluonlab.collectives.cost import price
from gluonlab.collectives.hierarchy import over_hosts
from gluonlab.collectives.hosts import NETWORKS, Network
from gluonlab.collectives.links import Topology
from gluonlab.collectives.topology import make_topology

NETWORK, GRADIENTS = "ResNet-50", 102_303_648  # its gradients in float32, in bytes
BACKWARD = 2 / 3  # of a step: two products of matrices for each of forward
SERVER_ADDS = 10e9  # bytes/s that a server adds: inferred


class Step(NamedTuple):
    """A training step of one GPU alone: its time, and what that is."""

    gpu: str
    seconds: float
    origin: str


def _published(gpu: str, images: int, images_per_s: float, origin: str) -> Step:
    return Step(gpu, images / images_per_s, f"{images} images, {images_per_s:g} a second, {origin}")


MXNET = "float32, MXNet's page perf.md"
V100 = _published("V100", 64, 343.19, MXNET)
A100 = _published("A100", 256, 1022, "TF32, NVIDIA's DeepLearningExamples for MXNet, DGX A100")
K80 = _published("K80", 32, 49.48, MXNET)
STEPS: Dict[str, Step] = {step.gpu: step for step in (K80, V100, A100)}
GPUS: Dict[str, str] = {
    "p2.16xlarge": "K80",
    "p3.2xlarge": "V100",
    "p3.8xlarge": "V100",
    "p3.16xlarge": "V100",
    "p3dn.24xlarge": "V100",
    "p4d.24xlarge": "A100",
    "g4dn.12xlarge": "T4",
    "g5.12xlarge": "A10G",
    "g5.48xlarge": "A10G",
}


class Prediction(NamedTuple):
    """Weak scaling on ``hosts``: the time of a sum of all gradients beside a GPU's step."""

    machine: str
    hosts: int
    devices: int
    way: str
    sum_s: float
    step_s: float

    @property
    def alone(self) -> float:
        """Efficiency if the sum begins after backward: nothing else is done meanwhile."""
        return self._efficiency(0)

    @property
    def hidden(self) -> float:
        """Efficiency if the sum hides behind the whole of backward, and does not slow it down."""
        return self._efficiency(self.step_s * BACKWARD)

    def _efficiency(self, hidden_s: float) -> float:
        return self.step_s / (self.step_s + max(0.0, self.sum_s - hidden_s))


def predict(
    machine: str, most_hosts: int, step_s: float, gradient_bytes: float
) -> List[Prediction]:
    """Every way to sum on 1 to ``most_hosts`` of a machine, way by way."""
    topologies = [make_topology(f"{machine}*{hosts}") for hosts in range(1, most_hosts + 1)]
    return [
        Prediction(
            machine,
            len(topology.hosts),
            topology.world_size,
            way,
            sum_s(topology, NETWORKS[machine], gradient_bytes),
            step_s,
        )
        for way, sum_s in WAYS.items()
        for topology in topologies
    ]


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


def of_way(rows: Sequence[Prediction], way: str) -> List[Prediction]:
    """The predictions of one way to sum, by hosts."""
    return [row for row in rows if row.way == way]
