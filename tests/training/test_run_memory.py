"""The plan of a batch's memory, and what --memory says of it.

What is measured: test_training_trial.py, test_largest_batch.py.
"""

import json
import math
import re

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd
from support.devices import device_spec

from gluonlab.config import TrainConfig
from gluonlab.data import load_dataset
from gluonlab.data.sets.packed_folder import FORMAT, INDEX
from gluonlab.errors import ConfigError
from gluonlab.optimizers.optimizer_registry import OPTIMIZERS, make_optimizer
from gluonlab.optimizers.optimizer_step import flatten_state
from gluonlab.parallel.memory_estimate import MIB, ShardSizes
from gluonlab.training.build_network import make_net
from gluonlab.training.loop import train
from gluonlab.training.plan import make_plan
from gluonlab.training.reporter import ConsoleReporter
from gluonlab.training.run_memory import MemoryEstimator
from gluonlab.training.training_setup import prepare

IMAGE_BYTES = 28 * 28 + 4  # a digit, and its label
WEIGHTS = 28 * 28 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10  # of the MLP on digits


def needs(**settings):
    plan = make_plan(TrainConfig(**{"devices": device_spec(2), "model": "mlp", **settings}))
    return MemoryEstimator(plan, make_net(plan))


@pytest.mark.parametrize(
    ("settings", "states"),
    [
        ({"optimizer": "sgd", "momentum": 0.9}, 1),
        ({"optimizer": "sgd"}, 0),
        ({"optimizer": "adam"}, 2),
        # each of two devices keeps half of two
        ({"optimizer": "adam", "kvstore": "sharded-optimizer"}, 1),
    ],
    ids=str,
)
def test_parameters_gradients_and_optimizer_state_are_counted(settings, states):
    memory = needs(**settings).memory(10)
    assert (memory.parameters, memory.gradients, memory.optimizer_state) == (
        4 * WEIGHTS,
        4 * WEIGHTS,
        4 * WEIGHTS * states,
    )
    assert memory.total == 4 * WEIGHTS * (2 + states) + memory.activations + memory.data


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_is_what_the_optimizer_really_makes(name):
    optimizer = make_optimizer(name, {})
    weights = [nd.zeros(shape) for shape in ((128, 784), (128,), (64, 128), (64,), (10, 64), (10,))]
    made = [
        array
        for i, weight in enumerate(weights)
        for array in flatten_state(optimizer.create_state_multi_precision(i, weight))
    ]
    assert needs(devices=device_spec(1), optimizer=name).memory(10).optimizer_state == sum(
        array.size * 4 for array in made
    )


def test_estimating_allocates_no_state(monkeypatch):
    """The optimizer is asked for that of one number."""
    asked, create_state = [], mx.optimizer.Adam.create_state
    monkeypatch.setattr(
        mx.optimizer.Adam,
        "create_state",
        lambda self, i, weight: [asked.append(weight.size), create_state(self, i, weight)][1],
    )
    assert needs(optimizer="adam").memory(10).optimizer_state == 2 * 4 * WEIGHTS
    assert asked == [1, 1]  # one of a matrix, and one of a vector


@pytest.fixture(scope="module")
def enormous(tmp_path_factory):
    """A packed folder of 180,000 images of 64x64, of which the disk has nothing but headers."""
    folder = tmp_path_factory.mktemp("enormous")
    shape = (180_000, 3, 64, 64)
    for kind in ("train", "test"):
        with (folder / f"{kind}-images.npy").open("wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
            file.truncate(file.tell() + math.prod(shape))
        np.save(folder / f"{kind}-labels.npy", np.zeros(shape[0], np.int32))
    index = {"format": FORMAT, "name": "enormous", "classes": ["a", "b"], "image_shape": shape[1:]}
    (folder / INDEX).write_text(json.dumps(index))
    return f"folder:{folder}"


@pytest.mark.parametrize(("count", "batch"), [(1, 174_762), (2, 87_381)])
def test_a_batch_of_more_elements_than_mxnet_has_fits_no_memory(enormous, count, batch):
    table = needs(dataset=enormous, devices=device_spec(count))
    assert 174_762 == (2**31 - 2) // (3 * 64 * 64)
    assert table.limit.largest_images(180_000) == table.limit.largest_images(2**31) == batch
    assert table.limit.largest_images(1000) == 1000
    with pytest.raises(
        ConfigError, match=r"make an array of 2,147,\d+,\d+ elements, and MXNet allows fewer than 2,147,483,647"
    ):
        table.memory(batch + 1)


def test_arrays_inside_of_a_network_count_too(enormous):
    """LeNet's first convolution makes 20 x 62 x 62 numbers of 3 x 64 x 64."""
    assert needs(dataset=enormous, model="lenet", devices=device_spec(1)).limit.largest_images(180_000) <= (
        2**31 - 2
    ) // (20 * 60 * 60)


@pytest.mark.parametrize("more", [{}, {"mixup": 0.2}, {"devices": device_spec(2)}], ids=str)
def test_a_run_whose_batch_is_too_large_for_mxnet_is_refused_before_anything_is_written(enormous, empty_cwd, more):
    config = TrainConfig(
        dataset=enormous, model="lenet", **{"devices": device_spec(1), "global_batch_size": 100_000, **more}
    )
    if config.devices == device_spec(2):
        config = config.replace(global_batch_size=180_000)
    with pytest.raises(
        ConfigError, match=r"elements, and MXNet allows fewer than 2,147,483,647: choose a smaller --batch-size"
    ):
        train(config)
    assert list(empty_cwd.iterdir()) == []
    # small parts fit
    prepare(make_plan(config.replace(global_batch_size=100_000, microbatch_size=1000)))


def test_data_is_what_stays_on_a_device_or_is_made_ahead():
    # both splits, an epoch's half, the graph's input
    assert needs().memory(10).data == (1437 + 360 + 719 + 10) * IMAGE_BYTES
    assert needs(resident_bytes=0, prefetch=3).memory(10).data == (5 * 10 + 10) * IMAGE_BYTES
    assert needs(resident_bytes=0, prefetch=3, microbatches=5).memory(10).data == (5 * 10 + 2 * 2) * IMAGE_BYTES


def test_activations_grow_with_the_microbatch():
    whole, cut = (
        needs(model="lenet-avg", dataset="synthetic"),
        needs(model="lenet-avg", dataset="synthetic", microbatches=8),
    )
    assert whole.memory(640).activations == pytest.approx(10 * whole.memory(64).activations, rel=0.02)
    assert cut.memory(640).activations == whole.memory(80).activations
    # more than the outputs of the convolutions as float32, of 20 x 26 x 26 and 50 x 9 x 9
    assert whole.memory(640).activations > 640 * (20 * 26 * 26 + 50 * 9 * 9) * 4


PEAK = """
import json, sys
from gluonlab.models import rewrite_network
from gluonlab.models.cpu_channel_padding import Padding
# padding rearranges channels in scratch memory
rewrite_network.choose_padding = lambda ctx: Padding()
from mxnet import gluon
from gluonlab.config import TrainConfig
from gluonlab.data.loading.batch_loader import Loader
from functools import partial
from gluonlab.kvstores.process_groups import SINGLE_PROCESS
from gluonlab.parallel.data.strategy import data_parallel
from gluonlab.training.build_network import make_net
from gluonlab.training.run_memory import MemoryEstimator
from gluonlab.training.plan import make_plan
from support.process_memory import measure_peak_bytes

def plan_of(batch_size):
    settings = dict(devices="cpu*2", dataset="synthetic", optimizer="adam")
    return make_plan(TrainConfig(batch_size=batch_size, **settings))

def work(plan, batches):
    loss, settings = gluon.loss.SoftmaxCrossEntropyLoss(), dict(raw=True)
    strategy = data_parallel(partial(make_net, plan), loss, plan, SINGLE_PROCESS)
    settings["resident_bytes"] = plan.config.resident_bytes
    loaders = [Loader(split, plan.ctxs, plan.global_batch_size, **settings)
               for split in (plan.dataset.train, plan.dataset.test)]
    for batch, _ in zip(loaders[0], range(batches)):
        strategy.step(batch)
    for batch in loaders[1]:
        list(strategy.score(batch))

work(plan_of(8), 2)  # what is loaded and compiled once is no part of a batch
plan = plan_of(768)
peak = measure_peak_bytes(lambda: work(plan, 2))
print(json.dumps([peak, 2 * MemoryEstimator(plan, make_net(plan)).memory(768).total]))
"""


@pytest.mark.long
def test_a_batch_adds_what_was_planned(python):
    """What two devices that train and evaluate LeNet take more at their peak, within 20 %."""
    done = python("-c", PEAK)
    assert done.returncode == 0, done.stderr
    measured, told = json.loads(done.stdout)
    assert told > 2 * 100 * MIB
    assert measured == pytest.approx(told, rel=0.2)


SPLITS = {
    "layers": {"devices": device_spec(2), "split": "layers", "cut": "2"},
    "channels": {"devices": device_spec(2), "split": "channels"},
    "pipeline": {"devices": device_spec(2), "split": "pipeline", "cut": "2"},
    "copies": {"devices": device_spec(4), "split": "pipeline", "stages": 2, "cut": "2"},
}


@pytest.mark.parametrize("settings", SPLITS.values(), ids=list(SPLITS))
def test_of_a_split_memory_is_told_for_each_device_beside_data_parallelism(settings):
    plan = make_plan(TrainConfig(model="mlp", memory=True, batch_size=500, **settings))
    ready = prepare(plan)
    lines = ready.header
    begin = next(i for i, line in enumerate(lines) if line.startswith("memory "))
    assert all(len(line) <= 80 for line in lines[begin:])
    assert "for 500 images of a batch per copy of the network" in lines[begin]
    names = ["parameters", "gradients", "states", "activations", "data", "total"]
    assert lines[begin + 1].split() == names
    rows = {line[11:22].strip(): list(map(float, line[22:].split())) for line in lines[begin + 2 :]}
    first, *_ = [ctx for copy in plan.parallelism.copies for ctx in copy]
    others = " +1" if settings is SPLITS["copies"] else ""
    assert list(rows) == [f"{first}{others}", f"{plan.ctxs[1]}{others}", "split data"]
    for row in rows.values():
        assert sum(row[:-1]) == pytest.approx(row[-1], abs=0.3)
    # the whole network is on all devices together, but for what split channels have everywhere
    *own, data = rows.values()
    assert sum(row[0] for row in own) == pytest.approx(4 * WEIGHTS / MIB, abs=0.15)
    assert [row[4] > 1 for row in own] == [True, False]  # the images are on the first
    shares = len(plan.ctxs) // len(plan.parallelism.copies)
    alone = {"devices": settings["devices"], "batch_size": 500 // shares}
    beside = needs(**alone).memory(500 // shares)
    assert data == pytest.approx([size / MIB for size in (*beside[1:], beside.total)], abs=0.051)


def test_a_pipeline_keeps_as_many_activations_as_its_schedule_has_slots():
    """GPipe all of 8 microbatches on both stages, 1F1B two of them on the first; in equal parts."""
    taken = {}
    for schedule in ("gpipe", "1f1b"):
        settings = {"split": "pipeline", "cut": "3", "pipeline_schedule": schedule}
        plan = make_plan(TrainConfig(devices=device_spec(2), dataset="synthetic", **settings))
        strategy = prepare(plan).strategy
        taken[schedule] = [each.activations for each in strategy.estimate_memory(ShardSizes((800,)))]
        one = [each.activations for each in strategy.estimate_memory(ShardSizes((100,)))]
        assert one[0] < taken[schedule][0]
    first, last = (taken["gpipe"][stage] / taken["1f1b"][stage] for stage in (0, 1))
    assert 2 < first < 4 and 4 < last < 8


@pytest.mark.cpu_only("it tells what the process takes")
@pytest.mark.parametrize(
    ("batch_size", "images"),  # 719: half of 1437 training images
    [(500, 500), pytest.param(4_000_000_000, 719, marks=pytest.mark.long)],
)
def test_memory_is_printed_before_training(tmp_path, capsys, batch_size, images):
    config = TrainConfig(
        devices=device_spec(2), model="mlp", batch_size=batch_size, epochs=1, memory=True, out=str(tmp_path / "run")
    )
    train(config, reporter=ConsoleReporter(bar=False))
    told, trained = capsys.readouterr().out.split("first step")
    assert f"memory     per device, for {images} images of a batch" in told
    for name in ("parameters", "gradients", "optimizer state", "activations", "data", "total", "process"):
        assert f"\n           {name:<16}" in told
    assert told.count(" MiB\n") == 6
    assert "epoch 1/1" in trained
    [taken] = re.findall(r"process +([0-9.]+) MiB at its peak, measured: all devices, Python, data\n", told)
    assert 100 < float(taken) < 600


@pytest.mark.long
def test_memory_is_not_measured_for_other_data_than_the_name_gives(tmp_path, capsys):
    config = TrainConfig(devices=device_spec(2), dataset="synthetic", epochs=1, memory=True, out=str(tmp_path / "run"))
    train(config, reporter=ConsoleReporter(bar=False), dataset=load_dataset("synthetic", samples=64))
    assert "process         not measured: the data set is not the one that synthetic names" in capsys.readouterr().out
