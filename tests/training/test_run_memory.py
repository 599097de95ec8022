"""The estimated memory of a batch, and the lines of --estimate-memory about it."""

import json
import math
import re

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd
from support.devices import device_spec
from support.quick_runs import run_quickly

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


def make_estimator(**settings):
    plan = make_plan(TrainConfig(**{"devices": device_spec(2), "model": "mlp", **settings}))
    return MemoryEstimator(plan, make_net(plan))


@pytest.mark.parametrize(
    ("settings", "states"),
    [
        ({"optimizer": "sgd", "momentum": 0.9}, 1),
        ({"optimizer": "sgd"}, 0),
        ({"optimizer": "adam"}, 2),
        ({"optimizer": "adam", "kvstore": "sharded-optimizer"}, 1),  # each device keeps half of two
    ],
    ids=str,
)
def test_parameters_gradients_and_optimizer_state_are_counted(settings, states):
    memory, size = make_estimator(**settings).memory(10), 4 * WEIGHTS
    assert (memory.parameters, memory.gradients, memory.optimizer_state) == (size, size, size * states)
    assert memory.total == size * (2 + states) + memory.activations + memory.data


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_estimated_state_is_the_one_that_the_optimizer_creates(name):
    optimizer, size = make_optimizer(name, {}), 0
    for index, shape in enumerate(((128, 784), (128,), (64, 128), (64,), (10, 64), (10,))):
        state = optimizer.create_state_multi_precision(index, nd.zeros(shape))
        size += sum(array.size * 4 for array in flatten_state(state))
    assert make_estimator(devices=device_spec(1), optimizer=name).memory(10).optimizer_state == size


def test_estimating_creates_only_the_state_of_one_number(monkeypatch):
    sizes, create_state = [], mx.optimizer.Adam.create_state

    def record_size(self, index, weight):
        sizes.append(weight.size)
        return create_state(self, index, weight)

    monkeypatch.setattr(mx.optimizer.Adam, "create_state", record_size)
    assert make_estimator(optimizer="adam").memory(10).optimizer_state == 2 * 4 * WEIGHTS
    assert sizes == [1, 1]  # of a matrix, and of a vector


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
def test_a_batch_of_more_elements_than_mxnet_allows_is_refused(enormous, count, batch):
    table = make_estimator(dataset=enormous, devices=device_spec(count))
    assert 174_762 == (2**31 - 2) // (3 * 64 * 64)
    assert table.limit.largest_images(180_000) == table.limit.largest_images(2**31) == batch
    assert table.limit.largest_images(1000) == 1000
    message = r"need an array of 2,147,\d+,\d+ elements, but arrays in MXNet must have fewer than 2,147,483,647"
    with pytest.raises(ConfigError, match=message):
        table.memory(batch + 1)
    # LeNet's first convolution makes 20 x 62 x 62 numbers of 3 x 64 x 64
    lenet = make_estimator(dataset=enormous, model="lenet", devices=device_spec(1))
    assert lenet.limit.largest_images(180_000) <= (2**31 - 2) // (20 * 60 * 60)


@pytest.mark.parametrize(
    ("batch", "more"), [(100_000, {}), (100_000, {"mixup": 0.2}), (180_000, {"devices": device_spec(2)})], ids=str
)
def test_a_batch_too_large_for_mxnet_is_refused_before_anything_is_written(enormous, empty_cwd, batch, more):
    config = TrainConfig(**{"devices": device_spec(1), "dataset": enormous, "model": "lenet", **more})
    message = r"but arrays in MXNet must have fewer than 2,147,483,647 elements: choose a smaller --batch-size"
    with pytest.raises(ConfigError, match=message):
        train(config.replace(global_batch_size=batch))
    assert list(empty_cwd.iterdir()) == []
    prepare(make_plan(config.replace(global_batch_size=100_000, microbatch_size=1000)))  # small parts fit


def test_data_contains_resident_images_and_prefetched_batches():
    # both splits, an epoch's half, the graph's input
    assert make_estimator().memory(10).data == (1437 + 360 + 719 + 10) * IMAGE_BYTES
    streamed = {"device_cache_bytes": 0, "prefetch": 3}
    assert make_estimator(**streamed).memory(10).data == (5 * 10 + 10) * IMAGE_BYTES
    assert make_estimator(**streamed, microbatches=5).memory(10).data == (5 * 10 + 2 * 2) * IMAGE_BYTES


def test_activations_grow_with_the_microbatch():
    settings = {"model": "lenet-avg", "dataset": "synthetic"}
    whole, cut = make_estimator(**settings), make_estimator(**settings, microbatches=8)
    assert whole.memory(640).activations == pytest.approx(10 * whole.memory(64).activations, rel=0.02)
    assert cut.memory(640).activations == whole.memory(80).activations
    # more than the outputs of the convolutions as float32, of 20 x 26 x 26 and 50 x 9 x 9
    assert whole.memory(640).activations > 640 * (20 * 26 * 26 + 50 * 9 * 9) * 4


PEAK_PROGRAM = """
import json
from functools import partial
from gluonlab.models import rewrite_network
from gluonlab.models.cpu_channel_padding import Padding
rewrite_network.choose_padding = lambda ctx: Padding()  # padding rearranges channels in scratch memory
from mxnet import gluon
from gluonlab.config import TrainConfig
from gluonlab.data.loading.batch_loader import Loader
from gluonlab.kvstores.process_groups import SINGLE_PROCESS
from gluonlab.parallel.data.strategy import data_parallel
from gluonlab.training.build_network import make_net
from gluonlab.training.plan import make_plan
from gluonlab.training.run_memory import MemoryEstimator
from support.process_memory import measure_peak_bytes

def plan_of(batch_size):
    return make_plan(TrainConfig(batch_size=batch_size, devices="cpu*2", dataset="synthetic", optimizer="adam"))

def train_and_evaluate(plan):
    strategy = data_parallel(partial(make_net, plan), gluon.loss.SoftmaxCrossEntropyLoss(), plan, SINGLE_PROCESS)
    train, test = (
        Loader(split, plan.ctxs, plan.global_batch_size, raw=True, resident_bytes=plan.config.device_cache_bytes)
        for split in (plan.dataset.train, plan.dataset.test)
    )
    for batch, _ in zip(train, range(2)):
        strategy.step(batch)
    for batch in test:
        list(strategy.score(batch))

train_and_evaluate(plan_of(8))  # what is loaded and compiled once is not part of a batch
plan = plan_of(768)
peak = measure_peak_bytes(lambda: train_and_evaluate(plan))
print(json.dumps([peak, 2 * MemoryEstimator(plan, make_net(plan)).memory(768).total]))
"""


@pytest.mark.long
def test_the_estimate_is_within_20_percent_of_the_measured_peak(python):
    """For two devices that train and evaluate LeNet."""
    result = python("-c", PEAK_PROGRAM)
    assert result.returncode == 0, result.stderr
    measured, estimated = json.loads(result.stdout)
    assert estimated > 2 * 100 * MIB
    assert measured == pytest.approx(estimated, rel=0.2)


SPLITS = {
    "layers": {"devices": device_spec(2), "strategy": "layers", "cut": "2"},
    "channels": {"devices": device_spec(2), "strategy": "tensor"},
    "pipeline": {"devices": device_spec(2), "strategy": "pipeline", "cut": "2"},
    "copies": {"devices": device_spec(4), "strategy": "pipeline", "pipeline_parallel": 2, "cut": "2"},
}


@pytest.mark.parametrize("settings", SPLITS.values(), ids=list(SPLITS))
def test_the_memory_of_a_split_is_shown_by_device_and_compared_with_data_parallelism(settings):
    plan = make_plan(TrainConfig(model="mlp", estimate_memory=True, batch_size=500, **settings))
    header = prepare(plan).header
    title, names, *lines = header[next(i for i, line in enumerate(header) if line.startswith("memory ")) :]
    assert max(map(len, [title, names, *lines])) <= 80
    assert "for 500 images per replica and step" in title
    assert names.split() == ["parameters", "gradients", "states", "activations", "data", "total"]
    rows = {line[11:22].strip(): list(map(float, line[22:].split())) for line in lines}
    others = " +1" if settings is SPLITS["copies"] else ""
    assert list(rows) == [f"{plan.parallelism.copies[0][0]}{others}", f"{plan.ctxs[1]}{others}", "split data"]
    for row in rows.values():
        assert sum(row[:-1]) == pytest.approx(row[-1], abs=0.3)
    # the whole network is on all devices together, except what split channels have everywhere
    *by_device, data = rows.values()
    assert sum(row[0] for row in by_device) == pytest.approx(4 * WEIGHTS / MIB, abs=0.15)
    assert [row[4] > 1 for row in by_device] == [True, False]  # the images are on the first
    batch = 500 * len(plan.parallelism.copies) // len(plan.ctxs)
    memory = make_estimator(devices=settings["devices"], batch_size=batch).memory(batch)
    assert data == pytest.approx([size / MIB for size in (*memory[1:], memory.total)], abs=0.051)


def test_a_pipeline_keeps_as_many_activations_as_its_schedule_has_slots():
    """GPipe all of 8 microbatches on both stages, 1F1B two of them on the first; in equal parts."""
    by_schedule = {}
    for schedule in ("gpipe", "1f1b"):
        settings = {"strategy": "pipeline", "cut": "3", "pipeline_schedule": schedule}
        plan = make_plan(TrainConfig(devices=device_spec(2), dataset="synthetic", **settings))
        strategy = prepare(plan).strategy
        all_, one = (
            [stage.activations for stage in strategy.estimate_memory(ShardSizes((images,)))] for images in (800, 100)
        )
        assert one[0] < all_[0]
        by_schedule[schedule] = np.array(all_)
    first, last = by_schedule["gpipe"] / by_schedule["1f1b"]
    assert 2 < first < 4 and 4 < last < 8


@pytest.mark.cpu_only("it prints the memory of the process")
@pytest.mark.parametrize(
    ("batch_size", "images"),  # 719: half of 1437 training images
    [(500, 500), pytest.param(4_000_000_000, 719, marks=pytest.mark.long)],
)
def test_memory_is_printed_before_training(tmp_path, capsys, batch_size, images):
    run_quickly(tmp_path, reporter=ConsoleReporter(bar=False), batch_size=batch_size, estimate_memory=True)
    before, after = capsys.readouterr().out.split("first step")
    assert f"memory     per device, for {images} images of a batch" in before
    for name in ("parameters", "gradients", "optimizer state", "activations", "data", "total", "process"):
        assert f"\n           {name:<16}" in before
    assert before.count(" MiB\n") == 6
    assert "epoch 1/1" in after
    [peak_mib] = re.findall(
        r"process +([0-9.]+) MiB measured at the peak, including all devices, Python and data\n", before
    )
    assert 100 < float(peak_mib) < 600


@pytest.mark.long
def test_memory_is_not_measured_for_other_data_than_the_name_gives(tmp_path, capsys):
    config = TrainConfig(
        devices=device_spec(2), dataset="synthetic", epochs=1, estimate_memory=True, out=str(tmp_path / "run")
    )
    train(config, reporter=ConsoleReporter(bar=False), dataset=load_dataset("synthetic", samples=64))
    assert "process         not measured: the data set is not synthetic names" in capsys.readouterr().out
