"""Allreduce with update: every store is right under both trainers."""

import numpy as np
import pytest
from support.bench_command import without_its_last_transfer
from support.devices import devices

from gluonlab.bench.gradients import steps
from gluonlab.bench.gradients.steps import STORES, TRAINERS, Update, measure_steps
from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.collectives.for_links import FOR_LINKS

pytestmark = pytest.mark.usefixtures("short")


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
            params = steps.parameters([(3,)], devices(2))
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
    shapes = steps.resnet18_shapes()
    assert len(shapes) == 62 and sum(int(np.prod(shape)) for shape in shapes) == 11_689_512
    assert shapes[0] == (64, 3, 7, 7) and shapes[-2:] == [(1000, 512), (1000,)]
