"""The rows of bench optimize: the tutorials' networks, which train the same when optimized."""

import math

import pytest
from mxnet import nd

from benchmarks import optimize as benchmark
from benchmarks import optimize_job
from benchmarks.optimize import TASKS
from gluonlab.bench.harness.record import Record, Series
from gluonlab.devices import devices
from gluonlab.errors import RunError
from gluonlab.models.optimize import optimize

# The smallest images that a network takes. BatchNorm of dense layers magnifies rounding errors in
# small batches, so there are more images where they are small.
SMALL = {"mnist-cnn": 28, "lenet": 28, "lenet-batch-norm": 28, "nin": 67, "googlenet": 17}
# As the tutorials' layers add up: 20 (25 + 1) + 50 (20 25 + 1) + ... for the first.
PARAMETERS = {"mnist-cnn": 431_080, "lenet": 61_706, "nin": 1_992_166, "googlenet": 5_977_530}


def small(name):
    size = SMALL[name]
    return TASKS[name]._replace(batch=(32 if size == 28 else 2, 1, size, size), batches=2)


@pytest.mark.parametrize("name", PARAMETERS)
def test_networks_have_the_parameters_of_the_tutorials(name):
    net = optimize_job.NETWORKS[TASKS[name].network]()
    net.initialize()
    size = 28 if SMALL[name] == 28 else 96
    assert net(nd.zeros((1, 1, size, size))).shape == (1, 10)
    assert sum(math.prod(each.shape) for each in net.collect_params().values()) == PARAMETERS[name]


@pytest.mark.cpu_only("a CPU device is optimized")
@pytest.mark.parametrize("name", TASKS)
def test_the_first_losses_are_those_of_the_plain_network(name):
    [ctx] = devices("cpu*1", threads=1)
    plain = optimize_job.first_losses(small(name), ctx, optimized=False)
    assert len(set(plain)) > 1  # it learns
    optimize_job.check(
        TASKS[name], plain, optimize_job.first_losses(small(name), ctx, optimized=True)
    )
    net = optimize_job.NETWORKS[TASKS[name].network]()
    net.initialize(ctx=ctx)
    assert optimize(net, small(name).batch)


@pytest.mark.cpu_only("a CPU device is optimized")
def test_a_job_ends_if_the_optimized_network_computes_something_else(monkeypatch):
    monkeypatch.setitem(TASKS, "mnist-cnn", small("mnist-cnn"))
    for optimized in (False, True):
        assert optimize_job.make("mnist-cnn", optimized)(steps=2)["seconds"] > 0

    def changed(net, shape):
        weight = net[0].weight
        weight.set_data(weight.data() * 1.1)

    monkeypatch.setattr(optimize_job, "optimize", changed)
    with pytest.raises(RunError, match="MXNet's CNN for MNIST: the optimized network has"):
        optimize_job.make("mnist-cnn", True)


def test_ratios_are_medians_of_each_rounds_ratio():
    rates = {
        "nin plain": (100.0, 200.0, 400.0),
        "nin optimized": (200.0, 600.0, 400.0),
        "lenet plain": (10.0, 10.0, 10.0),
    }
    found = [Series(name, name, "images/s", values) for name, values in rates.items()]
    found.append(Series("lenet optimized", "", "images/s", (), "it has other losses " * 9))
    lenet, nin = benchmark.make_rows(found)
    assert (nin.plain, nin.optimized, nin.faster.value) == (200, 400, 2)
    assert (lenet.plain, lenet.reason[:8]) == (None, "it has o")
    lines = benchmark.text(Record("optimize", {}, 3, "t", {}, tuple(found))).splitlines()
    assert max(map(len, lines)) <= 80
    assert "it has other losses" in lines[1] and lines[2].endswith("200        400  2.000")


def test_each_network_is_measured_as_it_is_and_optimized():
    measured = [(one.options["network"], one.options["optimized"]) for one in benchmark.subjects()]
    assert measured == [(name, optimized) for name in TASKS for optimized in (False, True)]
    assert [subject.name for subject in benchmark.ours()] == [f"{name} optimized" for name in TASKS]
