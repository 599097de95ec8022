"""What is compared: networks, and the ways to spread them over devices. Does not import MXNet."""

from __future__ import annotations

from typing import Any, Dict, Mapping, NamedTuple, Tuple

from gluonlab.config.values import whole
from gluonlab.errors import ConfigError, unknown

DEVICES, MICROBATCHES, ROUNDS = 2, 8, 9
ONE, DATA, LAYERS, CHANNELS = "one", "data", "layers", "channels"
GPIPE, ONE_F_ONE_B, INTERLEAVED = PIPELINES = ("gpipe", "1f1b", "interleaved")
NAMES = (ONE, DATA, LAYERS, CHANNELS, *PIPELINES)
CUT_APART = (ONE_F_ONE_B, INTERLEAVED)  # the cuts of the others are the first one's
APART = {GPIPE: ONE_F_ONE_B}  # the way whose stages are measured, where that is another one
SUMS = "sharded"  # the allreduce of gradients, and of the activations of split channels
LINKS = "p3.16xlarge"


class Task(NamedTuple):
    """A network of `gluonlab.models` on random images (C, H, W), so many in a batch."""

    title: str
    model: str
    shape: Tuple[int, int, int]
    global_batch_size: int


# On 64x64 images each of ResNet-18's eight blocks computes about as much as any other, so that its
# stages can be balanced.
TASKS = {
    "resnet18": Task("ResNet-18 64x64", "resnet18", (3, 64, 64), 64),
    "resnet8": Task("ResNet-8 32x32", "resnet8", (3, 32, 32), 64),
    "lenet": Task("LeNet 28x28", "lenet", (1, 28, 28), 128),
    "alexnet": Task("AlexNet, two towers, 63x63", "alexnet-2towers", (3, 63, 63), 64),
    "mlp": Task("MLP 28x28", "mlp", (1, 28, 28), 128),
}


def check_network(name: str, tasks: Mapping[str, Task] = TASKS) -> Task:
    """The one of the ``tasks`` with this name. Raises ConfigError, with the choices, for others."""
    if name not in tasks:
        raise ConfigError(unknown("network", name, tasks))
    return tasks[name]


def run_options(name: str, microbatches: int) -> Dict[str, Any]:
    """The options of a run that is spread over its devices in one of NAMES."""
    if name in PIPELINES:
        schedule = {"pipeline_schedule": name, "microbatches": microbatches}
        return {"split": "pipeline", **schedule}
    return {"split": DATA if name == ONE else name}


def check_microbatches(text: str, task: Task) -> int:
    """How many microbatches a pipeline's batch has. Raises ConfigError."""
    return int(whole(1, task.global_batch_size)("--microbatches", text))
