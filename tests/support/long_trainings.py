"""Trainings that go on for long, and what the process has then.

A program, too: long_trainings.py FOLDER epochs EPOCHS IMAGES MODEL, or mixed; it prints what the
process has early and at the end, as JSON. In a process of its own, as others leave memory behind
that is taken and given back while this is measured.
"""

import gc
import json
import sys
import threading
from pathlib import Path

import numpy as np

from gluonlab.config import TrainConfig
from gluonlab.data import ArraySplit, Dataset, Defaults
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter
from support.devices import device_spec
from support.process_memory import resident_bytes

PROC = Path("/proc/self")
AUGMENTATION = {"flip": True, "crop_padding": 2, "mixup": 0.2}
MIXED_SETTINGS = [
    {"model": "lenet", "devices": device_spec(1)},
    {"model": "lenet", "devices": device_spec(2), **AUGMENTATION},
    {"model": "mlp", "devices": device_spec(3), "kvstore": "ring", "mixup": 0.2},
    {"model": "resnet8", "devices": device_spec(2), "kvstore": "sharded"},
    {
        "model": "lenet",
        "devices": device_spec(4),
        "kvstore": "sharded-optimizer",
        "optimizer": "adam",
    },
    {"model": "mlp", "devices": device_spec(1), "flip": True, "resident_bytes": 0},
    {
        "model": "resnet8",
        "devices": device_spec(2),
        "sync_bn": True,
        "mixup": 0.2,
        "microbatches": 2,
    },
    {"model": "lenet", "devices": device_spec(2), "kvstore": "local", "clip_norm": 1.0},
    {"model": "mlp", "devices": device_spec(2), "compress": "2bit:0.5"},
    {"model": "lenet", "devices": device_spec(3), "kvstore": "tree", "check_replicas": 1},
]


def make_tiny_dataset(images):
    random = np.random.RandomState(0)
    splits = [
        ArraySplit(
            random.randint(0, 256, (images, 1, 28, 28)).astype(np.uint8),
            random.randint(0, 10, images).astype(np.int32),
        )
        for _ in range(2)
    ]
    return Dataset("digits", *splits, tuple("0123456789"), Defaults())


def count_resources():
    """What this process has: its threads and open files, and the objects of gluonlab and MXNet.

    matplotlib's cache of texts grows to 4,096 entries, whatever is drawn.
    """
    gc.collect()
    ours = [
        thing
        for thing in gc.get_objects()
        if str(getattr(type(thing), "__module__", "")).startswith(("gluonlab", "mxnet"))
    ]
    return {
        "threads": sum(1 for _ in PROC.joinpath("task").iterdir()),
        "Python's threads": threading.active_count(),
        "files": sum(1 for _ in PROC.joinpath("fd").iterdir()),
        "objects": len(ours),
    }


def train_on_dataset(dataset, folder, reporter=None, **settings):
    settings = {"epochs": 1, "batch_size": 16, "out": str(folder), **settings}
    return train(TrainConfig(**settings), reporter=reporter or Reporter(), dataset=dataset)


class ResourceReporter(Reporter):
    """Notes what the process has when some epochs begin."""

    def __init__(self, *epochs):
        super().__init__()
        self.epochs, self.seen, self.bytes = epochs, [], []

    def epoch_begins(self, epoch, epochs, images):
        if epoch in self.epochs:
            self.seen.append({**count_resources(), "objects": 0})
            self.bytes.append(resident_bytes())


def measure_epochs(folder, epochs, images, model):
    """What there is when the eleventh epoch begins, and the last one."""
    watching = ResourceReporter(11, epochs)
    settings = {"model": model, "devices": device_spec(2), "epochs": epochs, **AUGMENTATION}
    train_on_dataset(make_tiny_dataset(images), folder / "run", watching, **settings)
    return watching.seen, watching.bytes


def measure_mixed_trainings(folder):
    """What there is after 20 of 60 trainings, and after all."""
    dataset, seen, resident = make_tiny_dataset(128), [], []
    for number in range(60):
        train_on_dataset(
            dataset, folder / str(number), **MIXED_SETTINGS[number % len(MIXED_SETTINGS)]
        )
        if number % len(MIXED_SETTINGS) == len(MIXED_SETTINGS) - 1:
            resident.append(resident_bytes())
            seen.append(count_resources())
    return (seen[1], seen[-1]), (resident[1], resident[-1])


if __name__ == "__main__":
    folder, what, *more = sys.argv[1:]
    if what == "epochs":
        found = measure_epochs(Path(folder), int(more[0]), int(more[1]), more[2])
    else:
        found = measure_mixed_trainings(Path(folder))
    print(json.dumps(found))
