"""Predicted efficiency of data parallelism over hosts: the price of a sum beside a GPU's step.

Does not import MXNet.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Sequence

from gluonlab.collectives.topology import NETWORKS, make_topology
from gluonlab.prediction.gpus import GPUS
from gluonlab.prediction.published import training_on_one
from gluonlab.prediction.sums import SERVER_ADDS as SERVER_ADDS
from gluonlab.prediction.sums import WAYS as WAYS

NETWORK, GRADIENTS = "ResNet-50", 102_303_648  # its gradients in float32, in bytes
BACKWARD = 2 / 3  # of a step: two products of matrices for each of forward


class Step(NamedTuple):
    """A training step of one GPU alone: its time, and what that is."""

    gpu: str
    seconds: float
    origin: str


def _published(gpu: str, images: int, source: str, of: str = "") -> Step:
    """By a figure of `gluonlab.prediction.published`; ``of``: that of another GPU, alike."""
    figure = training_on_one(of or gpu, NETWORK, images)
    rate, arithmetic = figure.value, GPUS[gpu].arithmetic(figure.dtype)
    origin = f"{images} images, {rate:g} a second, {arithmetic}, {source}"
    return Step(gpu, images / rate, origin)


MXNET = "MXNet's page perf.md"
V100 = _published("V100", 64, MXNET)
A100 = _published("A100", 256, "NVIDIA's DeepLearningExamples for MXNet, DGX A100", "A100-80GB")
K80 = _published("K80", 32, MXNET)
STEPS: Dict[str, Step] = {step.gpu: step for step in (K80, V100, A100)}


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


def of_way(rows: Sequence[Prediction], way: str) -> List[Prediction]:
    """The predictions of one way to sum, by hosts."""
    return [row for row in rows if row.way == way]
