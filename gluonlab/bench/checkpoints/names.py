"""What is compared: the same steps, with and without what may be kept. Does not import MXNet."""

from __future__ import annotations

from gluonlab.bench.splits.names import Task

DEVICES, ROUNDS = 2, 9
EVERY = 50  # steps from one checkpoint to the next
CHECKS = (100, 10, 1)  # steps from one check of replicas to the next
NONE, CHECKPOINTS, FILES = "none", "checkpoints", "files"


def check_name(every: int) -> str:
    """The way that checks replicas so often."""
    return f"check {every}"


NAMES = (NONE, CHECKPOINTS, FILES, *map(check_name, CHECKS))
JUDGED = "resnet18"
TASKS = {
    JUDGED: Task("ResNet-18 32x32", "resnet18", (3, 32, 32), 64),
    "resnet8": Task("ResNet-8 32x32", "resnet8", (3, 32, 32), 64),
    "lenet": Task("LeNet 28x28", "lenet", (1, 28, 28), 128),
}
