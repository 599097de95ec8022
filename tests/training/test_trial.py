"""The measured memory of a batch is at least that of a run with it, and not much more."""

import os

import mxnet as mx
import numpy as np
import pytest
from support.devices import device_spec
from support.image_folders import write_image_folder
from support.process_memory import measure_run_peak

from gluonlab.config import TrainConfig, option_name
from gluonlab.data import load_dataset
from gluonlab.data.loading.split_batch import make_local_batch, shard
from gluonlab.errors import ModelError
from gluonlab.host.resources import child_pids
from gluonlab.parallel import strategy_class
from gluonlab.parallel.memory_estimate import MIB
from gluonlab.training.memory_trial_child import _ReducedRun, reduce_plan
from gluonlab.training.plan import make_plan
from gluonlab.training.run_memory import GpuMemoryUse, MemoryLimitExceeded, OtherDatasetError, measure_run_memory
from gluonlab.training.training_setup import prepare

RUNS = {
    "plain": {"batch_size": 400},
    "adam, shared": {"optimizer": "adam", "kvstore": "sharded-optimizer", "model": "mlp"},
    "changed at random": {"flip": True, "crop_padding": 2, "mixup": 0.2, "model": "mlp", "batch_size": 500},
    "streamed": {"device_cache_bytes": 0, "prefetch": 4, "model": "mlp", "batch_size": 1000},
    "microbatches": {"microbatches": 4, "batch_size": 900},
    "sync-bn": {"model": "resnet8", "sync_bn": True, "batch_size": 60},
    "layers": {"strategy": "layers", "model": "resnet8", "batch_size": 60},
    "channels": {"strategy": "tensor", "batch_size": 400},
    "pipeline": {"strategy": "pipeline", "pipeline_schedule": "gpipe", "batch_size": 700},
    "extras": {"confusion": True, "export": True, "clip_norm": 1.0, "label_smoothing": 0.1},
}
RUN_TO_RUN = 0.97  # of two runs of one config


@pytest.mark.long
@pytest.mark.parametrize("settings", RUNS.values(), ids=list(RUNS))
def test_a_run_needs_the_measured_memory(python, settings):
    settings = {"devices": device_spec(2), "epochs": 10, **settings}  # memory that grows with the epochs would show
    words = [word for name, value in settings.items() for word in (option_name(name), str(value)) if word != "True"]
    taken = measure_run_peak(python, *words)
    measured = measure_run_memory(TrainConfig(**settings))
    assert RUN_TO_RUN * taken - 4 * MIB < measured < 1.15 * taken


@pytest.mark.long
def test_processes_that_decode_images_count(tmp_path):
    write_image_folder(tmp_path / "images", train=40, size=32)
    config = TrainConfig(dataset=f"folder:{tmp_path / 'images'}", devices=device_spec(1), device_cache_bytes=0)
    one, three = (measure_run_memory(config.replace(workers=count)) for count in (1, 3))
    assert 2 * 10 * MIB < three - one < 2 * 120 * MIB


@pytest.mark.parametrize(
    ("model", "split"),
    [(model, "data") for model in ("lenet", "resnet8")]
    + [("lenet", split) for split in ("layers", "tensor", "pipeline")],
)
def test_repeated_losses_are_those_of_the_same_batch_size(model, split):
    """Each batch size is computed once; graphs of other sizes in between use the same memory."""
    settings = {"dataset": "synthetic", "model": model, "batch_size": 12, "strategy": split}
    plan = make_plan(TrainConfig(devices=device_spec(2), **settings))
    strategy = prepare(reduce_plan(plan), _ReducedRun().strategy).strategy
    assert isinstance(strategy, strategy_class(split))  # the split's memory is measured
    random, batches = np.random.RandomState(0), {}
    for size in (24, 14, 7):
        arrays = (random.uniform(0, 255, (size, *plan.dataset.image_shape)), random.randint(0, 10, size))
        batches[size] = make_local_batch(*(shard(mx.nd.array(array), strategy.inputs) for array in arrays))
    first, second = (
        {size: [loss.asscalar() for loss in strategy.step(batch)] for size, batch in batches.items()} for _ in range(2)
    )
    assert all(np.isfinite(losses).all() for losses in first.values()) and first == second


def test_a_process_over_the_memory_limit_is_killed_at_once():
    before = set(child_pids(os.getpid()))
    with pytest.raises(MemoryLimitExceeded):
        measure_run_memory(TrainConfig(devices=device_spec(2), model="mlp"), limit_bytes=60 * MIB)
    assert set(child_pids(os.getpid())) <= before


@pytest.mark.long
def test_the_probe_raises_the_errors_of_the_run():
    with pytest.raises(ModelError, match="the smallest square images that it accepts are 1x63x63"):
        measure_run_memory(TrainConfig(devices=device_spec(1), model="gluoncv:alexnet"))
    with pytest.raises(OtherDatasetError):
        measure_run_memory(
            TrainConfig(devices=device_spec(1), dataset="synthetic"), load_dataset("synthetic", samples=64)
        )


def test_on_gpus_it_is_the_largest_decrease_of_free_memory(monkeypatch):
    free = {0: 9000, 1: 8000}  # as CUDA would report
    monkeypatch.setattr(mx.context, "gpu_memory_info", lambda device_id: (free[device_id], 10000))
    memory = GpuMemoryUse([mx.gpu(0), mx.gpu(1)])
    free.update({0: 8500, 1: 7000})
    assert (memory.on_gpus, memory.used_bytes()) == (True, 1000)
