"""Nothing grows from epoch to epoch, nor from training to training."""

import gc
import threading
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from support.devices import named
from support.process_memory import resident_bytes

from gluonlab.config import TrainConfig
from gluonlab.data import ArraySplit, Dataset, Defaults
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter

PROC = Path("/proc/self")
CHANGED = {"flip": True, "crop_padding": 2, "mixup": 0.2}
MIXED = [
    {"model": "lenet", "devices": named(1)},
    {"model": "lenet", "devices": named(2), **CHANGED},
    {"model": "mlp", "devices": named(3), "kvstore": "ring", "mixup": 0.2},
    {"model": "resnet8", "devices": named(2), "kvstore": "sharded"},
    {"model": "lenet", "devices": named(4), "kvstore": "sharded-optimizer", "optimizer": "adam"},
    {"model": "mlp", "devices": named(1), "flip": True, "resident_bytes": 0},
    {"model": "resnet8", "devices": named(2), "sync_bn": True, "mixup": 0.2, "microbatches": 2},
    {"model": "lenet", "devices": named(2), "kvstore": "local", "clip_norm": 1.0},
    {"model": "mlp", "devices": named(2), "compress": "2bit:0.5"},
    {"model": "lenet", "devices": named(3), "kvstore": "tree", "check_replicas": 1},
]


def tiny(images):
    random = np.random.RandomState(0)
    splits = [
        ArraySplit(
            random.randint(0, 256, (images, 1, 28, 28)).astype(np.uint8),
            random.randint(0, 10, images).astype(np.int32),
        )
        for _ in range(2)
    ]
    return Dataset("digits", *splits, tuple("0123456789"), Defaults())


def taken():
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


def train_on(dataset, folder, reporter=None, **settings):
    settings = {"epochs": 1, "batch_size": 16, "out": str(folder), **settings}
    return train(TrainConfig(**settings), reporter=reporter or Reporter(), dataset=dataset)


class Watching(Reporter):
    """Notes what the process has when some epochs begin."""

    def __init__(self, *epochs):
        super().__init__()
        self.epochs, self.seen, self.bytes = epochs, [], []

    def epoch_begins(self, epoch, epochs, images):
        if epoch in self.epochs:
            self.seen.append({**taken(), "objects": 0})
            self.bytes.append(resident_bytes())


@pytest.mark.parametrize(
    "settings",
    [MIXED[2], pytest.param(MIXED[0], marks=pytest.mark.long)],
    ids=["streamed", "resident"],
)
def test_trainings_one_after_the_other_leave_nothing(tmp_path, settings):
    dataset = tiny(32)
    train_on(dataset, tmp_path / "warm", **settings)
    before = taken()
    for number in range(2):
        train_on(dataset, tmp_path / f"{number}", **settings)
    assert taken() == before


def test_epochs_take_no_threads_and_no_files(tmp_path):
    watching = Watching(2, 9)
    train_on(tiny(16), tmp_path / "run", watching, model="mlp", epochs=9, **CHANGED)
    assert watching.seen[0] == watching.seen[1]


@pytest.mark.long
@pytest.mark.cpu_only("the resident memory, which simulated GPUs share with the host")
@pytest.mark.parametrize(("epochs", "images", "model"), [(41, 1400, "lenet"), (1000, 64, "mlp")])
def test_memory_does_not_grow_with_the_epochs(tmp_path, epochs, images, model):
    watching = Watching(11, epochs)
    settings = {"model": model, "devices": named(2), "epochs": epochs, **CHANGED}
    train_on(tiny(images), tmp_path / "run", watching, **settings)
    assert watching.seen[0] == watching.seen[1]
    assert watching.bytes[1] - watching.bytes[0] < 2 * 2**20


@pytest.mark.long
@pytest.mark.cpu_only("the resident memory, which simulated GPUs share with the host")
def test_sixty_mixed_trainings_end_with_the_memory_of_twenty(tmp_path):
    dataset, seen, resident = tiny(128), [], []
    for number in range(60):
        train_on(dataset, tmp_path / str(number), **MIXED[number % len(MIXED)])
        if number % len(MIXED) == len(MIXED) - 1:
            resident.append(resident_bytes())
            seen.append(taken())
    assert seen[1] == seen[-1]
    assert resident[-1] - resident[1] < 30 * 2**20


@pytest.mark.long
@pytest.mark.cpu_only("teams of threads, which GPUs have none of")
def test_a_runs_bits_do_not_depend_on_the_runs_before(tmp_path, python):
    """1, 2 and 4 devices, 1 and 2 threads in every order of two, against a process of its own."""
    code = (
        "import sys, hashlib, warnings; warnings.simplefilter('ignore')\n"
        "from support.quick_runs import quick; from support.reference import values\n"
        "import pathlib, tempfile; runs = pathlib.Path(tempfile.mkdtemp(dir='.'))\n"
        "for i, run in enumerate(sys.argv[1:]):\n"
        "    n, threads = map(int, run.split(','))\n"
        "    net = quick(runs, str(i), devices=f'cpu*{n}' if n > 1 else 'cpu', "
        "threads=threads, model='lenet', batch_size=32, seed=3).net\n"
        "    print(hashlib.sha256(b''.join(value.tobytes() for value in values(net))).hexdigest())"
    )
    runs = ["1,2", "2,1", "4,1", "1,1"]
    alone = {}
    for run in runs:
        alone[run] = python("-c", code, run).stdout.strip()
    pairs = combinations(runs, 2)
    order = [run for first, second in pairs for run in (first, second, first)]
    result = python("-c", code, *order, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [alone[run] for run in order]
