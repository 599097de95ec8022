"""A batch knows the size of the whole, over devices and processes."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.devices import contexts

from gluonlab.data import ArraySplit, Loader
from gluonlab.data.loading.shards import Batch, whole


@settings(max_examples=30)
@given(
    images=st.integers(1, 30),
    batch=st.integers(1, 12),
    world=st.integers(1, 4),
    k=st.integers(1, 3),
    resident=st.sampled_from([0, 2**20]),
)
def test_every_process_knows_the_size_of_each_whole_batch(images, batch, world, k, resident):
    """Also one that has no part of it; the parts of all add up to it, and every image comes."""
    split = ArraySplit(
        np.arange(images, dtype=np.uint8).reshape(images, 1, 1, 1), np.arange(images, dtype="int32")
    )
    parts = [
        list(Loader(split, contexts(k), batch, 3, rank, world, resident_bytes=resident))
        for rank in range(world)
    ]
    seen = []
    for of_ranks in zip(*parts):
        labels = [int(y) for part in of_ranks for ys in part.ys for y in ys.asnumpy()]
        assert {part.size for part in of_ranks} == {len(labels)}
        assert all(len(part.xs) == len(part.ys) <= k for part in of_ranks)
        seen += labels
    assert sorted(seen) == list(range(images))
    assert [part.size for part in parts[0]][:-1] == [batch] * (len(parts[0]) - 1)


def test_a_batch_unpacks_into_its_shards():
    xs, ys = [np.zeros((2, 1, 1, 1)), np.zeros((1, 1, 1, 1))], [np.zeros(2), np.zeros(1)]
    images, labels = Batch(xs, ys, 7)
    assert (images, labels) == (xs, ys)
    assert (whole(xs, ys).size, whole([], []).size) == (3, 0)
