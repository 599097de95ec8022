"""Stores of schedules made for links: exact on as many devices as a machine has, chosen by size."""

import functools

import numpy as np
import pytest
from mxnet import gluon, nd
from support.covering import pairwise
from support.devices import contexts
from support.kvstore_runs import OPTIMIZERS, small_net, trained
from support.reference import cpus, distance, random_batches, train_on_one_device, values

from gluonlab.collectives.algorithms import make_schedule
from gluonlab.collectives.for_links import FOR_LINKS, make_for_links
from gluonlab.collectives.synthesis.search import Found
from gluonlab.collectives.synthesis.stored import front_of
from gluonlab.collectives.topology import make_topology
from gluonlab.collectives.topology_file import with_schedules
from gluonlab.errors import KVStoreError, ScheduleError
from gluonlab.kvstores import make_kvstore
from gluonlab.update.trainer import BucketedTrainer

BATCHES = random_batches([8, 9, 21, 16], shape=(1, 4, 4), classes=4)


@functools.lru_cache(maxsize=None)
def parameters_of_one_device():
    """The parameters after BATCHES under Gluon on one CPU."""
    return train_on_one_device(small_net(cpus(1)), BATCHES, "sgd", **OPTIMIZERS["sgd"])


@pairwise(
    sizes=[(1,), (7, 1000), (1_500_000,)],
    machine_and_count=[("p3.16xlarge", 8), ("p3.8xlarge", 4), (None, 5)],
    name=list(FOR_LINKS),
)
def test_sums_are_exact_and_alike_on_all_devices(name, machine_and_count, sizes):
    machine, count = machine_and_count
    ctxs, random = contexts(count), np.random.RandomState(1)
    store = make_kvstore(name, ctxs, machine)
    values = [random.randint(-99, 99, (count, size)).astype("float32") for size in sizes]
    arrays = [[nd.array(row, ctx=ctx) for row, ctx in zip(value, ctxs)] for value in values]
    store.pushpull(list(range(len(sizes))), arrays)
    for value, of_key in zip(values, arrays):
        for array in of_key:
            np.testing.assert_array_equal(array.asnumpy(), value.sum(0))


def test_small_and_large_sums_take_the_schedule_that_is_cheapest_for_them():
    topology, ctxs = make_topology("p3.16xlarge"), contexts(8)
    steps = []
    for size in (100, 4_000_000):
        store = make_kvstore("synthesised", ctxs, "p3.16xlarge")
        store.pushpull(0, [nd.ones((size,), ctx=ctx) for ctx in ctxs])
        expected = make_for_links("synthesised", topology, 8).cheapest(4 * size)
        assert store.transfers_run == expected.transfers
        steps.append(len(expected.steps))
    assert steps == [len(found.schedule.steps) for found in front_of(topology)] == [4, 5]


def test_the_placement_says_what_the_schedules_were_found_for():
    store = make_kvstore("synthesised", topology="p3.16xlarge")
    assert store.placement(contexts(8)).why == "by the links of p3.16xlarge"
    assert store.placement(contexts(3)).why == "by the links of p3.16xlarge"


def test_more_devices_than_there_are_schedules_for_are_one_line():
    with pytest.raises(KVStoreError, match="no schedule is stored for the 9 devices"):
        make_kvstore("synthesised").placement(contexts(9))


@pytest.mark.parametrize(
    ("name", "machine"),
    [*((name, "p3.16xlarge") for name in FOR_LINKS), ("synthesised", "g5.48xlarge")],
)
@pytest.mark.parametrize("trainer_class", [gluon.Trainer, BucketedTrainer])
def test_eight_devices_train_as_one_does_and_stay_alike(name, trainer_class, machine):
    """Also where batches do not divide."""
    ctxs = contexts(8)
    store = make_kvstore(name, ctxs, machine)
    net, _ = trained(trainer_class, store, "sgd", ctxs, BATCHES)
    assert store.transfers_run > 0
    for ctx in ctxs[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(values(net, ctx), values(net, ctxs[0])))
    assert distance(values(net), parameters_of_one_device()) < 1e-5


@pytest.fixture
def own(tmp_path):
    """A file of a machine of three, whose own schedule sums on device 2 in one chunk."""
    placed = make_schedule("star", 3).placed([2, 0, 1])
    topology = make_topology("g4dn.12xlarge", 3)
    text = with_schedules(topology, [Found(placed, 9.0, 1.0)])
    (tmp_path / "f.json").write_text(text, encoding="utf-8")
    return tmp_path / "f.json", placed


@pytest.mark.parametrize("name", ["synthesised", "auto"])
def test_schedules_of_ones_own_file_sum(own, name):
    (path, placed), ctxs = own, contexts(3)
    store = make_kvstore(name, ctxs, str(path))
    arrays = [nd.full((5,), 2**rank, ctx=ctx) for rank, ctx in enumerate(ctxs)]
    store.pushpull(0, arrays)
    assert all((array.asnumpy() == 7).all() for array in arrays)
    made = store.schedules(ctxs).schedules
    if name == "synthesised":
        assert [each.steps for each in made] == [placed.steps]
        assert store.transfers_run == placed.transfers
        assert store.placement(ctxs).why == f"by the links of {path}"


def test_a_file_whose_schedule_is_wrong_is_refused_by_every_store(own):
    path, _ = own
    path.write_text(path.read_text().replace('"add": {"0>2"', '"add": {"0>1"'))
    for name in ("synthesised", "auto", "ring"):
        with pytest.raises(ScheduleError, match=r"f.json: synthesised"):
            make_kvstore(name, (), str(path))
