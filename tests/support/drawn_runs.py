"""Random networks trained on a few digits, interrupted and resumed."""

import functools
import math
from contextlib import contextmanager

import pytest
from mxnet import nd
from mxnet.gluon import nn

from gluonlab.config import TrainConfig
from gluonlab.data import Dataset, Defaults, load_dataset
from gluonlab.data.sets.dataset import ArraySplit
from gluonlab.models import MODELS, ModelKind
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter
from gluonlab.training.resume import read_resume_point, resumed_config
from support.devices import device, device_spec
from support.interrupted_runs import interrupt_run, read_comparable_metrics, read_parameter_bytes

IMAGE_COUNT, BATCH_SIZE = 150, 20  # eight steps an epoch, the last one of ten images
TWO_EPOCH_STEPS = 2 * math.ceil(IMAGE_COUNT / BATCH_SIZE)


@functools.lru_cache(maxsize=None)
def load_few_digits(images=IMAGE_COUNT):
    digits = load_dataset("digits")
    train_split, test_split = (
        ArraySplit(split.images[:count], split.labels[:count])
        for split, count in ((digits.train, images), (digits.test, 40))
    )
    return Dataset("digits", train_split, test_split, digits.classes, Defaults())


def few_digits_accuracy(net):
    """Return the accuracy of a network on the few test digits, on one device."""
    test, ctx = load_few_digits().test, device(0)
    scores = net(nd.array(test.images, ctx=ctx).astype("float32") / 255).asnumpy()
    return (scores.argmax(axis=1) == test.labels).mean()


LAYERS = {
    "convolution": lambda: nn.Conv2D(4, 3, padding=1, activation="tanh"),
    "norm": lambda: nn.BatchNorm(),
    "pooling": lambda: nn.MaxPool2D(2, 2, ceil_mode=True),
    "dropout": lambda: nn.Dropout(0.5),
}


@contextmanager
def register_drawn_network(layers):
    """Register the network "drawn" of these layers and a dense layer."""

    def make(classes):
        net = nn.HybridSequential()
        net.add(*(LAYERS[name]() for name in layers), nn.Dense(classes))
        return net

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MODELS, "drawn", ModelKind(make, ""))
        yield


def drawn_run_settings(devices, **more):
    return {
        "devices": device_spec(devices), "threads": 1, "model": "drawn", "epochs": 2, "lr": 0.01,
        "global_batch_size": BATCH_SIZE, "optimizer": "sgd", **more,
    }  # fmt: skip


PIPELINE = {"strategy": "pipeline", "balance": "memory"}  # balance by time might move the cuts
# The number of devices and the settings of each split of a network of at least four layers.
SPLITS = {
    "data": (2, {"strategy": "data"}),
    "one device": (1, {"strategy": "data"}),
    "layers": (2, {"strategy": "layers"}),
    "by time": (3, {"strategy": "layers", "balance": "time"}),
    "cut": (4, {"strategy": "layers", "cut": "1"}),
    "channels": (2, {"strategy": "tensor"}),
    "columns": (4, {"strategy": "tensor", "tensor_parallel": 2, "tensor_parallel_mode": "column"}),
    "rows": (3, {"strategy": "tensor", "tensor_parallel_mode": "row"}),
    "gpipe": (2, {**PIPELINE, "microbatches": 2, "pipeline_schedule": "gpipe"}),
    "1f1b": (4, {**PIPELINE, "microbatches": 3, "pipeline_parallel": 2}),
    "interleaved": (2, {**PIPELINE, "microbatches": 4, "stages_per_device": 2}),
}


def split_settings(name, **more):
    devices, split = SPLITS[name]
    return drawn_run_settings(devices, **{**split, **more})


def assert_resumes_identically(folder, steps, every, **options):
    """Check that a run ends identically if it is interrupted at ``steps`` and resumed."""
    config = TrainConfig(**options, out=str(folder / "whole"))
    train(config, reporter=Reporter(), dataset=load_few_digits())
    options["checkpoint_every"] = every
    assert interrupt_run(steps, folder / "run", load_few_digits(), **options)
    train(resume=folder / "run", reporter=Reporter(), dataset=load_few_digits())
    assert read_parameter_bytes(folder / "run") == read_parameter_bytes(folder / "whole")
    assert read_comparable_metrics(folder / "run") == read_comparable_metrics(folder / "whole")


def resume_run(folder, dataset=None, **settings):
    config = resumed_config(read_resume_point(folder), **settings)
    return train(config, reporter=Reporter(), dataset=dataset or load_few_digits(), resume=folder)
