"""Long trainings, and the resources of their process.

As a program, long_trainings.py FOLDER epochs EPOCHS IMAGES MODEL, or FOLDER mixed, it prints the
resources early and at the end, as JSON. It runs in a separate process, because other tests leave
memory behind that changes during the measurement.
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
    {"model": "lenet", "devices": device_spec(4), "kvstore": "sharded-optimizer", "optimizer": "adam"},
    {"model": "mlp", "devices": device_spec(1), "flip": True, "device_cache_bytes": 0},
    {"model": "resnet8", "devices": device_spec(2), "sync_bn": True, "mixup": 0.2, "microbatches": 2},
    {"model": "lenet", "devices": device_spec(2), "kvstore": "local", "clip_norm": 1.0},
    {"model": "mlp", "devices": device_spec(2), "compress": "2bit:0.5"},
    {"model": "lenet", "devices": device_spec(3), "kvstore": "tree", "check_replicas": 1},
]


def make_tiny_dataset(images):
    random = np.random.RandomState(0)
    splits = [
        ArraySplit(
            random.randint(0, 256, (images, 1, 28, 28)).astype(np.uint8), random.randint(0, 10, images).astype(np.int32)
        )
        for _ in range(2)
    ]
    return Dataset("digits", *splits, tuple("0123456789"), Defaults())


def count_resources():
    """Count the threads and open files of this process, and the objects of gluonlab and MXNet."""
    gc.collect()
    # Only these objects: matplotlib's cache of texts grows to 4,096 entries.
    objects = [
        item
        for item in gc.get_objects()
        if str(getattr(type(item), "__module__", "")).startswith(("gluonlab", "mxnet"))
    ]
    return {
        "threads": sum(1 for _ in PROC.joinpath("task").iterdir()),
        "Python's threads": threading.active_count(),
        "files": sum(1 for _ in PROC.joinpath("fd").iterdir()),
        "objects": len(objects),
    }


def train_on_dataset(dataset, folder, reporter=None, **settings):
    settings = {"epochs": 1, "batch_size": 16, "out": str(folder), **settings}
    return train(TrainConfig(**settings), reporter=reporter or Reporter(), dataset=dataset)


class ResourceReporter(Reporter):
    """A reporter that records the resources at the start of some epochs."""

    def __init__(self, *epochs):
        super().__init__()
        self.epochs, self.resources, self.bytes = epochs, [], []

    def epoch_begins(self, epoch, epochs, images):
        if epoch in self.epochs:
            self.resources.append({**count_resources(), "objects": 0})
            self.bytes.append(resident_bytes())


def measure_epochs(folder, epochs, images, model):
    """Return the resources at the start of the eleventh epoch and of the last one."""
    reporter = ResourceReporter(11, epochs)
    settings = {"model": model, "devices": device_spec(2), "epochs": epochs, **AUGMENTATION}
    train_on_dataset(make_tiny_dataset(images), folder / "run", reporter, **settings)
    return reporter.resources, reporter.bytes


def measure_mixed_trainings(folder):
    """Return the resources after 20 of 60 trainings, and after all."""
    dataset, resources, resident = make_tiny_dataset(128), [], []
    for number in range(60):
        train_on_dataset(dataset, folder / str(number), **MIXED_SETTINGS[number % len(MIXED_SETTINGS)])
        if number % len(MIXED_SETTINGS) == len(MIXED_SETTINGS) - 1:
            resident.append(resident_bytes())
            resources.append(count_resources())
    return (resources[1], resources[-1]), (resident[1], resident[-1])


if __name__ == "__main__":
    folder, kind, *more = sys.argv[1:]
    if kind == "epochs":
        measured = measure_epochs(Path(folder), int(more[0]), int(more[1]), more[2])
    else:
        measured = measure_mixed_trainings(Path(folder))
    print(json.dumps(measured))
