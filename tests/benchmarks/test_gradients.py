"""The command measures what it names, and judges; every store is right under both trainers."""

import json
from dataclasses import replace

import numpy as np
import pytest
from support.bench_command import HERE, ROW, without_its_last_transfer
from support.commands import the_error
from support.devices import devices, named, on_gpus

from benchmarks import gradients
from benchmarks.gradients import (
    STORES,
    TRAINERS,
    StepRow,
    Update,
    measure_steps,
    of_allreduce,
    of_steps,
)
from gluonlab.bench.allreduce.measure import PEERS
from gluonlab.bench.harness.command import measured_on
from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.collectives.for_links import FOR_LINKS


def test_the_command_measures_gradients_and_judges(bench, monkeypatch):
    monkeypatch.setattr(gradients, "resnet18_shapes", lambda: [(3, 5), (70,)])
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
    limit = () if on_gpus() else (gradients.LIMIT,)  # that of the host's memory
    assert several == {*HERE, *limit} and one == several - {"sharded-whole"}


def test_a_worker_makes_the_calls_of_ours_that_the_command_makes(monkeypatch):
    monkeypatch.setattr(gradients, "resnet18_shapes", lambda: [(3, 5), (70,)])
    job = gradients.make(2, 2000, ["device", "ring"], named(2))
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


def test_every_store_under_both_trainers_makes_the_exact_first_step():
    rows = measure_steps([(3, 5), (7,), (2, 2, 2)], STORES, devices(2), rounds=1)
    assert [(row.trainer, row.store) for row in rows] == [
        (trainer, store) for trainer in TRAINERS for store in STORES
    ]
    assert {*ALGORITHMS, *FOR_LINKS, "device", "local", "sharded-optimizer"} == set(STORES)
    assert {row.error for row in rows} == {0.0} and all(row.time_s > 0 for row in rows)


def test_gradients_are_zero_after_the_check_and_stay_so():
    gradients_of = [[np.full((3,), rank + 1, "int8")] for rank in range(2)]
    for trainer in TRAINERS:
        for store in ("device", "ring", "sharded-optimizer"):
            params = gradients.parameters([(3,)], devices(2))
            update = Update(trainer, store, params)
            assert update.check(gradients_of) == 0
            assert (params[0].data(devices(2)[1]).asnumpy() == -1.5).all()
            update.step()
            assert not any(grad.asnumpy().any() for grad in params[0].list_grad())


def test_a_store_that_sums_wrongly_is_found_out_under_both_trainers(monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "ring", without_its_last_transfer)
    rows = measure_steps([(30,)], ["device", "ring"], devices(3), rounds=1)
    assert [(row.store, row.error > 0) for row in rows] == [("device", False), ("ring", True)] * 2


def test_resnet18_has_its_parameters():
    shapes = gradients.resnet18_shapes()
    assert len(shapes) == 62 and sum(int(np.prod(shape)) for shape in shapes) == 11_689_512
    assert shapes[0] == (64, 3, 7, 7) and shapes[-2:] == [(1000, 512), (1000,)]


def test_verdicts_compare_the_best_with_each_peer_round_by_round():
    def row(name, *seconds):
        return replace(ROW, algorithm=name, world_size=2, seconds=seconds, limit_s=(0.5, 0.5, 0.9))

    rows = [
        row("device", 1.7, 3.2, 1.5),
        row("chapter", 1.5, 9, 2),
        row("ring", 1, 2, 1),
        row("star", 2, 4, 2),
    ]
    device, chapter, limit = of_allreduce(rows)
    assert (device.found, device.reached) == (1.6, True) and str(
        device
    ) == ">= 1.6x MXNet's device: 1.6x reached"
    assert (chapter.found, chapter.reached) == (2, True)
    assert (limit.found, limit.reached) == (0.5, True) and str(
        limit
    ) == ">= 50% of the memory limit: 50% reached"
    assert "our best: ring" in device.best
    # the best of ours, not of all
    assert of_allreduce([*rows[1:], row("device", 0.5, 0.5, 0.5)])[0].found == 0.5
    slower = of_allreduce([*rows[1:], row("device", 1.59, 1.59, 1.59)])
    assert str(slower[0]) == ">= 1.6x MXNet's device: 1.59x not reached"
    four = [replace(each, world_size=4) for each in rows]
    assert [verdict.reached for verdict in of_allreduce(four)] == [None] * 3
    assert str(of_allreduce(rows[1:])[0]) == ">= 1.6x MXNet's device: not measured"


def test_the_best_store_is_compared_with_device_under_both_trainers():
    def row(trainer, store, *seconds, world_size=2):
        return StepRow(trainer, store, world_size, seconds, 0.0)

    rows = [
        row("gluon.Trainer", "device", 3, 3),
        row("BucketedTrainer", "device", 1.4, 1.4),
        row("BucketedTrainer", "local", 0.1, 0.1),
        row("gluon.Trainer", "ring", 2, 2),
        row("BucketedTrainer", "ring", 1, 1),
    ]
    found = of_steps(rows, 2)
    assert [(verdict.found, verdict.reached) for verdict in found] == [(3, True), (1.4, False)]
    assert {verdict.best for verdict in found} == {
        "allreduce and update, 2 devices, our best: ring, BucketedTrainer"
    }
    assert of_steps([replace(each, world_size=4) for each in rows], 4)[0].reached is None
