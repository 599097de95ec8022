"""Stores of schedules made for links: exact on as many devices as a machine has, chosen by size."""

import numpy as np
import pytest
from mxnet import nd
from support.devices import contexts

from gluonlab.collectives.for_links import FOR_LINKS, make_for_links
from gluonlab.collectives.synthesis.stored import front_of
from gluonlab.collectives.topology import make_topology
from gluonlab.errors import KVStoreError
from gluonlab.kvstores import make_kvstore


@pytest.mark.parametrize("name", FOR_LINKS)
@pytest.mark.parametrize("machine, count", [("p3.16xlarge", 8), ("p3.8xlarge", 4), (None, 5)])
@pytest.mark.parametrize("sizes", [(1,), (7, 1000), (1_500_000,)])
def test_sums_are_exact_and_alike_on_all_devices(name, machine, count, sizes):
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
