"""A batch cut into shards: nothing is lost, no part is empty, and the bounds are those of the
arrays.
"""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from mxnet import nd
from support.devices import contexts

from gluonlab.data.loading.shards import shard, shard_bounds


@given(st.integers(0, 40), st.integers(1, 7))
def test_shards_are_even_parts_in_order_one_for_each_device_that_has_any(size, k):
    ctxs = contexts(k)
    parts = shard(nd.arange(size).reshape((size, 1)) if size else np.zeros((0, 1)), ctxs)
    assert [part.context for part in parts] == ctxs[:size]
    assert [value for part in parts for value in part.asnumpy().ravel()] == list(range(size))
    sizes = [len(part) for part in parts]
    assert sizes == sorted(sizes, reverse=True) and (not sizes or sizes[0] - sizes[-1] <= 1)
    assert [end - begin for begin, end in shard_bounds(size, k)] == sizes
    assert [begin for begin, _ in shard_bounds(size, k)] == list(np.cumsum([0, *sizes]))[
        : len(sizes)
    ]
