"""Several processes with drawn options train as one with as many devices.

One launch trains many times, since to begin takes longer than to train.
"""

import json
import subprocess
import sys

import pytest
from support import drawn_launches
from support.launched import BACKENDS, parameters
from support.parameter_server import end
from support.reference import distance
from support.run_files import read_metrics

pytestmark = pytest.mark.cpu_only("the processes compute on CPU devices, whoever started them")
LONG = pytest.mark.long
WORLDS = [(2, 2), (3, 1), (4, 1)]
SEEDS = range(60)


def trained_by_many(backend, folder, shapes):
    workers = shapes[0][1]
    words = [backend, str(folder), json.dumps(shapes)]
    with BACKENDS[backend](workers) as (environments, _):
        started = [
            subprocess.Popen([sys.executable, drawn_launches.__file__, *words], env=environment)
            for environment in environments
        ]
        try:
            assert [process.wait(60 + 20 * len(shapes)) for process in started] == [0] * workers
        finally:
            end(started)


def assert_as_one(backend, folder, shapes):
    trained_by_many(backend, folder, shapes)
    for place, shape in enumerate(shapes):
        many, one = folder / f"{place}", folder / f"{place}-alone"
        drawn_launches.trained(one, *shape)
        asked = drawn_launches.drawn(*shape)
        assert distance(parameters(many), parameters(one)) <= 1e-5, asked
        ours, theirs = ([e for e in read_metrics(f) if e["kind"] != "event"] for f in (many, one))
        for mine, other in zip(ours, theirs):
            for name in {"kind", "step", "epoch", "images", "lr", "accuracy"} & mine.keys():
                assert mine[name] == other[name], (name, asked)
            assert mine["loss"] == pytest.approx(other["loss"], rel=1e-4, abs=1e-6), asked
        assert len(ours) == len(theirs) > drawn_launches.LEAST_STEPS


@pytest.mark.parametrize(("workers", "devices"), [(2, 2), (4, 1)])
@pytest.mark.parametrize("backend", ["dist_sync", pytest.param("dist_device_sync", marks=LONG)])
def test_every_option_over_the_parameter_server(backend, workers, devices, tmp_path):
    few = drawn_launches.covering([(2, 2), (4, 1)], SEEDS)
    assert_as_one(backend, tmp_path, [shape for shape in few if shape[1:] == (workers, devices)])


@pytest.mark.horovod
@pytest.mark.parametrize(("workers", "devices"), WORLDS)
def test_every_option_over_horovod(workers, devices, tmp_path):
    few = drawn_launches.covering(WORLDS, SEEDS)
    assert_as_one("horovod", tmp_path, [shape for shape in few if shape[1:] == (workers, devices)])


@LONG
@pytest.mark.parametrize(("workers", "devices"), WORLDS)
@pytest.mark.parametrize(
    "backend",
    ["dist_sync", "dist_device_sync", pytest.param("horovod", marks=pytest.mark.horovod)],
)
def test_many_options(backend, workers, devices, tmp_path):
    assert_as_one(backend, tmp_path, [(seed, workers, devices) for seed in SEEDS])
