"""Whole runs on simulated GPUs learn as much as on CPU devices, and float16 as much as float32."""

import functools

import pytest
from gpus.five_steps import device_names, train_and_collect

pytestmark = pytest.mark.long
SEEDS = range(3)


@functools.lru_cache(maxsize=None)
def accuracy(kind, count, model, seed, dtype="float32"):
    """Return the accuracy on the validation images after the epochs of the recipe."""
    return train_and_collect(device_names(kind, count), model=model, seed=seed, dtype=dtype).accuracy


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize("model", ["lenet", "resnet8"])
def test_gpus_learn_as_much_as_cpu_devices(model, count, seed):
    expected = accuracy("cpu", count, model, seed)
    assert expected > 0.9
    assert accuracy("gpu", count, model, seed) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("model", ["lenet", "resnet8", "mlp"])
def test_float16_learns_as_much_as_float32(model, seed):
    expected = accuracy("gpu", 2, model, seed)
    assert accuracy("gpu", 2, model, seed, "float16") == pytest.approx(expected, abs=0.02)
