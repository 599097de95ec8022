"""Verdicts compare what is to be compared."""

from dataclasses import replace

from support.bench_command import ROW

from gluonlab.bench.gradients.steps import StepRow
from gluonlab.bench.gradients.verdicts import of_allreduce, of_steps


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
