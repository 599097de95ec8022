"""Horovod's own settings with two real processes: float16 sums, its timeline, what it fuses."""

import collections
import json
import subprocess
import sys

import numpy as np
import pytest
from support.launched import horovod_environments
from support.launcher import QUICK_LAUNCH_OPTIONS, load_parameters, start_launcher
from support.parameter_server import kill_processes

pytestmark = [pytest.mark.horovod, pytest.mark.cpu_only("the processes compute on CPU devices, whoever started them")]
SHAPES = [(40, 30), (7,), (3, 5, 2)]
# Two devices each, through GroupKVStore, and what is not a gradient beside it.
SUMS = """
import sys
import numpy as np, mxnet as mx
from mxnet import nd
from gluonlab.devices import devices
from gluonlab.kvstores import make_kvstore
from gluonlab.kvstores.process_group_store import GroupKVStore
from gluonlab.launch.horovod_group import Horovod

ctxs = devices("cpu*2")
with Horovod() as group, np.load("given.npz") as given:
    stores = [GroupKVStore(make_kvstore("device", ctxs), group, compress=compress) for compress in (None, "fp16")]
    sums = {"total": group.all_reduce_values(np.array([1 / 3]))}
    for name in given.files:
        for compress, store in zip(("none", "fp16"), stores):
            arrays = [nd.array(values, ctx) for values, ctx in zip(given[name][group.rank], ctxs)]
            store.pushpull(name, arrays)
            sums.update({f"{compress} {name} {device}": array.asnumpy() for device, array in enumerate(arrays)})
    np.savez(f"sums-{group.rank}.npz", **sums)
"""


@pytest.fixture(scope="module")
def summed(tmp_path_factory):
    """Return the arrays (process, device, ...) of all devices, and the sums of each process, by name."""
    folder = tmp_path_factory.mktemp("sums")
    random = np.random.RandomState(0)
    given = {
        str(n): (random.standard_normal((2, 2, *shape)) * 10.0**n).astype("float32")
        for n, shape in enumerate(SHAPES, start=-1)
    }
    given["large"] = np.full((2, 2, 3), 2e4, "float32")  # 80,000: beyond float16
    np.savez(folder / "given.npz", **given)
    with horovod_environments(2) as (environments, _):
        processes = [subprocess.Popen([sys.executable, "-c", SUMS], env=each, cwd=folder) for each in environments]
        try:
            assert [process.wait(120) for process in processes] == [0, 0]
        finally:
            kill_processes(processes)
    return given, [np.load(folder / f"sums-{rank}.npz") for rank in range(2)]


def test_float16_sums_are_numpys_to_the_bit_and_the_same_everywhere(summed):
    """Devices are summed in float32; each process's sum is rounded, and their sum once more."""
    given, processes = summed
    for name, every in given.items():
        one, other = every.sum(axis=1).astype("float16")
        with np.errstate(over="ignore"):
            expected = (one + other).astype("float32")
        for sums in processes:
            for device in range(2):
                assert np.array_equal(sums[f"fp16 {name} {device}"], expected)
                exact = sums[f"none {name} {device}"]
                assert np.allclose(exact, every.sum(axis=(0, 1)), rtol=1e-6, atol=1e-6)
                assert not np.array_equal(exact, expected)
        if name != "large":
            # two roundings, each by at most 2**-11 of what is rounded
            error = np.abs(expected - every.sum(axis=(0, 1)))
            assert (error <= 2.0**-10 * np.abs(every.sum(axis=1)).sum(axis=0)).all()


def test_sums_beyond_float16_are_infinite_everywhere_and_no_loss_is_rounded(summed):
    for sums in summed[1]:
        assert np.isposinf([sums["fp16 large 0"], sums["fp16 large 1"]]).all()
        assert sums["total"] == 2 * np.float64(1 / 3)


# 16 steps, and a sum for each parameter
STEPS = 16
RUN = [*QUICK_LAUNCH_OPTIONS, "--epochs", "1", "--batch-size", "256", "--bucket-bytes", "0"]
HOROVOD = ["-n", "2", "--backend", "horovod"]
VARIANTS = {  # options of the launcher, variables of the user, --compress
    "of the launcher": (["--cycle-time-ms", "30", "--fusion-threshold-mb", "64"], {}, ["--compress", "fp16"]),
    "of the user": ([], {"HOROVOD_CYCLE_TIME": "30"}, []),
}


def launch_run(folder, out, *words, **variables):
    with start_launcher(folder, *words, "--out", out, output=f"output {out}", **variables) as run:
        status, text = run.wait_for_exit(120)
    assert status == 0, text
    return {name: array.asnumpy() for name, array in load_parameters(folder / out).items()}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run in float16 with options of the launcher; one in float32 with the user's variables."""
    folder, results = tmp_path_factory.mktemp("runs"), {}
    for name, (options, variables, compress) in VARIANTS.items():
        words = [*HOROVOD, *options, "--timeline-filename", f"{name}.json", "--timeline-mark-cycles"]
        launch_run(folder, name, *words, "--", *RUN, *compress, **variables)
        results[name] = folder / name, json.loads((folder / f"{name}.json").read_text())
    return results


def count_sums(timeline):
    """Return how often arrays of each type and shape were summed."""
    ends = [event["args"] for event in timeline if event.get("ph") == "E" and "args" in event]
    return collections.Counter((args["dtype"], args["shape"]) for args in ends)


def gradient_shapes(folder):
    """Return the shapes of flat gradients, as a timeline has them."""
    return {f"[{array.size}]" for array in load_parameters(folder).values()}


def test_the_timeline_shows_our_sums_and_which_of_them_are_float16(runs):
    """All gradients of all steps, and nothing else."""
    for name, half in (("of the launcher", True), ("of the user", False)):
        folder, timeline = runs[name]
        named = [each["args"].get("name") for each in timeline if each.get("name") == "process_name"]
        assert sum(str(each).startswith("horovod_allreduce.gluonlab.") for each in named) > 6
        counted = count_sums(timeline)
        for shape in gradient_shapes(folder):
            assert counted["float16" if half else "float32", shape] >= STEPS
        halved = {shape for dtype, shape in counted if dtype == "float16"}
        assert halved == (gradient_shapes(folder) if half else set())


def test_float16_makes_another_network_of_the_same_accuracy(runs):
    halved, whole = ({name: array.asnumpy() for name, array in load_parameters(folder).items()}
                     for folder, _ in runs.values())  # fmt: skip
    for name in whole:
        assert not np.array_equal(halved[name], whole[name])
        # few steps of rate 0.01, whose gradients are rounded by 2**-11 of themselves, twice
        assert np.allclose(halved[name], whole[name], rtol=1e-3, atol=1e-4)
    config = json.loads((runs["of the launcher"][0] / "config.json").read_text())
    assert config["config"]["compress"] == config["settings"]["compress"] == "fp16"


@pytest.mark.parametrize("name", VARIANTS)
def test_the_cycle_time_arrives(name, runs):
    """A cycle begins when the one before is so old: of 30 ms, where Horovod's own is 1."""
    _, timeline = runs[name]
    marks = [event["ts"] for event in timeline if event.get("name") == "CYCLE_START"]
    assert len(marks) > 20
    assert np.median(np.diff(marks)) >= 30_000 * 0.9


def test_the_fusion_threshold_arrives_and_without_one_nothing_is_fused(runs):
    """Six gradients are ready in each cycle: Horovod copies them into one array, or does not."""
    fused = {
        name: sum(event.get("name") == "MEMCPY_IN_FUSION_BUFFER" for event in timeline)
        for name, (_, timeline) in runs.items()
    }
    assert fused["of the user"] == 0 < STEPS <= fused["of the launcher"]


@pytest.mark.long
def test_sums_of_three_processes_have_the_same_bits_each_time(tmp_path):
    """Fused, they would depend on what was ready at the same moment."""
    words = ["-n", "3", "--backend", "horovod", "--", *RUN]
    one, two = (launch_run(tmp_path, name, *words) for name in ("one", "two"))
    assert one.keys() == two.keys() and all(one[name].tobytes() == two[name].tobytes() for name in one)


def test_gradients_beyond_float16_end_the_run_with_the_cause(tmp_path):
    """Pixels of a million make gradients that float32 holds, at a rate so small."""
    run = [*QUICK_LAUNCH_OPTIONS, "--epochs", "1", "--optimizer", "sgd", "--lr", "1e-12", "--normalize"]
    words = [*HOROVOD, "--", *run, "0/1e-7", "--compress", "fp16", "--out", "run"]
    with start_launcher(tmp_path, *words) as over:
        status, text = over.wait_for_exit(120)
    assert status == 1, text
    [error] = [line for line in text.splitlines() if "error: " in line]
    assert "no longer finite" in error or "the loss became" in error
    assert error.endswith("; or remove --compress fp16, which makes gradients beyond 65504 infinite")
