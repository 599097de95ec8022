"""Networks of ``bench optimize`` and the batches that train them.

Imports no MXNet: a bench's --help does without.
"""

from __future__ import annotations

from typing import NamedTuple, Tuple


class Task(NamedTuple):
    """A network, and random images for it.

    ``network``: the function of `gluonlab.bench.optimize.networks`. ``batch``: the shape
    (n, C, H, W) of a batch. ``batches``: how many there are. ``learning_rate``: the tutorial's.
    """

    title: str
    network: str
    batch: Tuple[int, int, int, int]
    batches: int
    learning_rate: float


TASKS = {
    "mnist-cnn": Task("MXNet's CNN for MNIST", "mnist_cnn", (64, 1, 28, 28), 64, 0.02),
    "lenet": Task("d2l's LeNet", "lenet", (64, 1, 28, 28), 64, 0.9),
    "lenet-batch-norm": Task(
        "d2l's LeNet with BatchNorm", "lenet_with_batch_norm", (64, 1, 28, 28), 64, 1.0
    ),
    "nin": Task("d2l's NiN", "nin", (8, 1, 96, 96), 32, 0.1),
    "googlenet": Task("d2l's GoogLeNet", "googlenet", (8, 1, 96, 96), 32, 0.1),
}
