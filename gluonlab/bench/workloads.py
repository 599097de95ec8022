"""The networks that measurements train on random images. This module does not import MXNet."""

from __future__ import annotations

from typing import NamedTuple, Tuple

LEARNING_RATE = 0.01
CLASSES = 10


class Task(NamedTuple):
    """A network from `gluonlab.models`, trained with SGD on random images (samples, C, H, W).

    ``samples``: the number of images, or 0 to train on the same batch in every step.
    """

    title: str
    model: str
    shape: Tuple[int, int, int]
    global_batch_size: int
    samples: int = 0
    momentum: float = 0.9


TASKS = {
    "lenet": Task("LeNet 28x28", "lenet", (1, 28, 28), 128, 8192, 0.0),
    "mlp": Task("MLP 28x28", "mlp", (1, 28, 28), 128, 8192, 0.0),
    "resnet18": Task("ResNet-18 32x32", "resnet18", (3, 32, 32), 64, 2048),
}
