"""Drawn networks trained on a few digits, broken off and going on."""

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
from support.devices import device, named
from support.interrupted_runs import break_off, lines, parameters

IMAGES, BATCH = 150, 20  # eight steps an epoch, the last one of ten images
STEPS_OF_TWO_EPOCHS = 2 * math.ceil(IMAGES / BATCH)


@functools.lru_cache(maxsize=None)
def few_digits(images=IMAGES):
    digits = load_dataset("digits")
    train_split, test_split = (
        ArraySplit(split.images[:count], split.labels[:count])
        for split, count in ((digits.train, images), (digits.test, 40))
    )
    return Dataset("digits", train_split, test_split, digits.classes, Defaults())


def share_of_right(net):
    """Of the few test digits, on one device."""
    test, ctx = few_digits().test, device(0)
    scores = net(nd.array(test.images, ctx=ctx).astype("float32") / 255).asnumpy()
    return (scores.argmax(axis=1) == test.labels).mean()


LAYERS = {
    "convolution": lambda: nn.Conv2D(4, 3, padding=1, activation="tanh"),
    "norm": lambda: nn.BatchNorm(),
    "pooling": lambda: nn.MaxPool2D(2, 2, ceil_mode=True),
    "dropout": lambda: nn.Dropout(0.5),
}


@contextmanager
def network_of(layers):
    """The network "drawn" has these layers, and a dense one."""

    def make(classes):
        net = nn.HybridSequential()
        net.add(*(LAYERS[name]() for name in layers), nn.Dense(classes))
        return net

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MODELS, "drawn", ModelKind(make, ""))
        yield


def settings_of(devices, **more):
    return {
        "devices": named(devices), "threads": 1, "model": "drawn", "epochs": 2, "lr": 0.01,
        "global_batch_size": BATCH, "optimizer": "sgd", **more,
    }  # fmt: skip


PIPELINE = {"split": "pipeline", "balance": "memory"}  # by time, the next run may be cut elsewhere
# Each with as many devices as it needs, for a network of at least four layers.
WAYS = {
    "data": (2, {"split": "data"}),
    "one device": (1, {"split": "data"}),
    "layers": (2, {"split": "layers"}),
    "by time": (3, {"split": "layers", "balance": "time"}),
    "cut": (4, {"split": "layers", "cut": "1"}),
    "channels": (2, {"split": "channels"}),
    "columns": (4, {"split": "channels", "ways": 2, "channels": "column"}),
    "rows": (3, {"split": "channels", "channels": "row"}),
    "gpipe": (2, {**PIPELINE, "microbatches": 2, "pipeline_schedule": "gpipe"}),
    "1f1b": (4, {**PIPELINE, "microbatches": 3, "stages": 2}),
    "interleaved": (2, {**PIPELINE, "microbatches": 4, "stages_per_device": 2}),
}


def of_way(way, **more):
    devices, split = WAYS[way]
    return settings_of(devices, **{**split, **more})


def assert_ends_alike(folder, steps, every, **options):
    """A run broken off after each of ``steps`` of its own steps, and the undisturbed one."""
    config = TrainConfig(**options, out=str(folder / "whole"))
    train(config, reporter=Reporter(), dataset=few_digits())
    options["checkpoint_every"] = every
    assert break_off(steps, folder / "run", few_digits(), **options)
    train(resume=folder / "run", reporter=Reporter(), dataset=few_digits())
    assert parameters(folder / "run") == parameters(folder / "whole")
    assert lines(folder / "run") == lines(folder / "whole")


def resume(folder, dataset=None, **given):
    config = resumed_config(read_resume_point(folder), **given)
    return train(config, reporter=Reporter(), dataset=dataset or few_digits(), resume=folder)
