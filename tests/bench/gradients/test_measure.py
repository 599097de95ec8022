"""The command measures what it names, and judges; a worker makes the same calls."""

import json

import pytest
from support.bench_command import HERE
from support.commands import the_error
from support.devices import named, on_gpus

from gluonlab.bench.allreduce.variants import PEERS
from gluonlab.bench.gradients import job as gradient_job
from gluonlab.bench.gradients import measure as gradients
from gluonlab.bench.gradients import steps, verdicts
from gluonlab.bench.gradients.steps import TRAINERS
from gluonlab.bench.harness.measured_on import measured_on

pytestmark = pytest.mark.usefixtures("short")


def test_the_command_measures_gradients_and_judges(bench, monkeypatch):
    monkeypatch.setattr(steps, "resnet18_shapes", lambda: [(3, 5), (70,)])
    args = [
        "gradients",
        "--devices",
        named(2),
        "--rounds",
        "1",
        "--size",
        "2KB",
        "--world-sizes",
        "2",
    ]
    args += ["--stores", "device,sharded-optimizer"]
    status, out, err = bench(*args)
    assert (status, err) == (0, "") and max(map(len, out.split("\n"))) <= 80
    assert (
        out.count("reached\n") == (6 if on_gpus() else 8)
        and "2 gradients, 85 numbers, on 2 devices" in out
    )
    status, out, _ = bench(*args, "--json")
    found = {one["name"]: one["values"] for one in json.loads(out)["series"]}
    assert status == 0 and all(len(values) == 1 and values[0] > 0 for values in found.values())
    assert [name for name in found if name.startswith("step")] == [
        f"step 2 {trainer} {store}"
        for trainer in TRAINERS
        for store in ("device", "sharded-optimizer")
    ]
    sums = {tuple(name.split(" ", 3)[1:]) for name in found if name.startswith("allreduce")}
    several, one = ({name for _, arrays, name in sums if arrays == count} for count in ("16", "1"))
    limit = () if on_gpus() else (verdicts.LIMIT,)  # that of the host's memory
    assert several == {*HERE, *limit} and one == several - {"sharded-whole"}


def test_a_worker_makes_the_calls_of_ours_that_the_command_makes(monkeypatch):
    monkeypatch.setattr(steps, "resnet18_shapes", lambda: [(3, 5), (70,)])
    job = gradient_job.make(2, 2000, ["device", "ring"], named(2))
    names = {
        one.name
        for one in gradients.gradients(
            ["device", "ring"], [2], 2000, 1, on=measured_on(named(2))
        ).series()
    }
    ours = {
        name
        for name in names
        if name.split()[-1] not in (*PEERS, "limit") or name.startswith("step")
    }
    assert set(job(1)) == {"seconds", *ours}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--stores", "devise"], "unknown kvstore 'devise': choose all, "),
        (["--stores", "nccl"], "unknown kvstore 'nccl'"),
        (["--world-sizes", "1"], "--world-sizes 1: give a whole number from 2 to 256"),
        (["--size", "1KB,2KB"], "--size 1KB,2KB: give one size"),
        (["--size", "x"], "--size x: give sizes"),
    ],
)
def test_a_mistake_about_gradients_is_one_line(args, message, bench, empty_cwd):
    assert message in the_error(bench("gradients", *args), empty_cwd)
