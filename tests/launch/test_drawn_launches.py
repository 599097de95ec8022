"""Several processes with drawn options train as one with as many devices.

One launch trains many times, since to begin takes longer than to train.
"""

import json
import subprocess
import sys

import pytest
from support import drawn_launches
from support.launched import BACKENDS, parameter_vectors
from support.parameter_server import kill_processes
from support.reference import relative_distance
from support.run_files import read_metrics

pytestmark = pytest.mark.cpu_only("the processes compute on CPU devices, whoever started them")
LONG = pytest.mark.long
WORLDS = [(2, 2), (3, 1), (4, 1)]
SEEDS = range(60)


def trained_by_many(backend, folder, shapes):
    workers = shapes[0][1]
    command = [sys.executable, drawn_launches.__file__, backend, str(folder), json.dumps(shapes)]
    with BACKENDS[backend](workers) as (environments, _):
        started = [subprocess.Popen(command, env=environment) for environment in environments]
        try:
            assert [process.wait(60 + 20 * len(shapes)) for process in started] == [0] * workers
        finally:
            kill_processes(started)


def amplified_rounding_error(folder, shape, alone):
    """Return how far one process gets from itself, by nothing but rounding errors.

    The runs have rates that differ by less than rounding, or sum the gradients in other orders, as
    a group of processes does. BatchNorm of few images, and values next to a ReLU's zero, can amplify
    a rounding error: with seed 26 and three devices, the rates change the weights by up to 8e-4, and
    one order of the sums changes them by 3e-2.
    """
    variants = [{"factor": 1 + number * 1e-7} for number in range(1, 13)]
    variants += [{"kvstore": name} for name in ("star", "ring", "bidirectional_ring", "halving_doubling", "sharded")]
    distances = []
    for number, variant in enumerate(variants):
        drawn_launches.train_drawn_case(folder / f"{number}", *shape, **variant)
        distances.append(relative_distance(parameter_vectors(folder / f"{number}"), alone))
    return max(distances)


def assert_as_one(backend, folder, shapes):
    trained_by_many(backend, folder, shapes)
    unsteady = 0
    for place, shape in enumerate(shapes):
        many, one = folder / f"{place}", folder / f"{place}-alone"
        drawn_launches.train_drawn_case(one, *shape)
        asked, alone = drawn_launches.draw_training_settings(*shape), parameter_vectors(one)
        ours, theirs = ([e for e in read_metrics(f) if e["kind"] != "event"] for f in (many, one))
        assert len(ours) == len(theirs) > drawn_launches.MIN_STEPS
        for mine, other in zip(ours, theirs):
            for name in {"kind", "step", "epoch", "images", "lr"} & mine.keys():
                assert mine[name] == other[name], (name, asked)
        apart = relative_distance(parameter_vectors(many), alone)
        if apart > 1e-5:
            assert apart <= 2 * amplified_rounding_error(folder / f"{place}-rounding", shape, alone), asked
            unsteady += 1
            continue
        for mine, other in zip(ours, theirs):
            assert mine.get("val_accuracy") == other.get("val_accuracy"), asked
            assert mine["loss"] == pytest.approx(other["loss"], rel=1e-4, abs=1e-6), asked
    assert unsteady <= max(1, len(shapes) // 20)


@LONG
@pytest.mark.parametrize(("workers", "devices"), WORLDS)
@pytest.mark.parametrize("backend", ["dist_sync", "dist_device_sync"])
def test_every_option_over_the_parameter_server(backend, workers, devices, tmp_path):
    assert_as_one(backend, tmp_path, drawn_launches.choose_covering_shapes([(workers, devices)], SEEDS))


@pytest.mark.horovod
@pytest.mark.parametrize(("workers", "devices"), WORLDS)
def test_every_option_over_horovod(workers, devices, tmp_path):
    few = drawn_launches.choose_covering_shapes(WORLDS, SEEDS)
    assert_as_one("horovod", tmp_path, [shape for shape in few if shape[1:] == (workers, devices)])


@LONG
@pytest.mark.parametrize(("workers", "devices"), WORLDS)
@pytest.mark.parametrize(
    "backend", ["dist_sync", "dist_device_sync", pytest.param("horovod", marks=pytest.mark.horovod)]
)
def test_many_options(backend, workers, devices, tmp_path):
    assert_as_one(backend, tmp_path, [(seed, workers, devices) for seed in SEEDS])
