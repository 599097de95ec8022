"""Division of a batch into one shard per device."""

from fractions import Fraction
from itertools import permutations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import nd
from support.devices import contexts
from support.examples import examples

from gluonlab.data import ArraySplit, Loader
from gluonlab.data.loading.split_batch import proportional_sizes, shard, shard_bounds, shard_sizes


@given(st.integers(0, 40), st.integers(1, 7))
def test_shards_are_even_and_in_order_without_empty_ones(size, k):
    ctxs = contexts(k)
    parts = shard(nd.arange(size).reshape((size, 1)) if size else np.zeros((0, 1)), ctxs)
    assert [part.context for part in parts] == ctxs[:size]
    assert [value for part in parts for value in part.asnumpy().ravel()] == list(range(size))
    sizes = [len(part) for part in parts]
    assert sizes == sorted(sizes, reverse=True) and (not sizes or sizes[0] - sizes[-1] <= 1)
    ends = np.cumsum(sizes).tolist()
    assert shard_bounds(size, k) == [*zip([0, *ends], ends)]


WEIGHTS = st.lists(st.fractions(Fraction(1, 100), 100), min_size=1, max_size=6)


@examples(40)
@given(st.integers(0, 400), WEIGHTS)
def test_proportional_sizes_are_the_nearest_whole_numbers(size, weights):
    """No other sizes with this sum are nearer: moving an image from one part to another gains nothing."""
    sizes = proportional_sizes(size, weights)
    exact = [size * weight / sum(weights) for weight in weights]
    off = [number - quota for number, quota in zip(sizes, exact)]
    assert sum(sizes) == size and min(sizes) >= 0
    for more, less in permutations(off, 2):
        assert abs(more) + abs(less) <= abs(more - 1) + abs(less + 1) or more == less


@examples(40)
@given(st.integers(0, 400), WEIGHTS)
def test_weighted_shards_are_proportional_and_not_empty(size, weights):
    sizes, expected = shard_sizes(size, len(weights), weights), proportional_sizes(size, weights)
    assert sum(sizes) == size and len(sizes) == min(size, len(weights)) and 0 not in sizes
    if 0 not in expected:
        assert sizes == expected or size < len(weights)
    elif size >= len(weights):  # empty ones get one image, and only larger ones have fewer
        assert all(one == max(1, two) or 1 <= one < two for one, two in zip(sizes, expected))


@given(st.integers(0, 100), st.integers(1, 7), st.fractions(Fraction(1, 9), 9))
def test_equal_weights_share_evenly(size, k, weight):
    assert shard_sizes(size, k, [weight] * k) == shard_sizes(size, k)


@given(st.data(), st.integers(1, 40), st.integers(1, 5))
def test_shards_have_the_given_sizes_in_order(data, size, k):
    weights = data.draw(st.lists(st.integers(1, 9), min_size=k, max_size=k))
    ctxs, sizes = contexts(k), shard_sizes(size, k, weights)
    parts = shard(nd.arange(size), ctxs, sizes)
    assert [(len(part), part.context) for part in parts] == [*zip(sizes, ctxs)]
    assert [value for part in parts for value in part.asnumpy()] == list(range(size))


@settings(max_examples=30)
@given(st.integers(1, 30), st.integers(1, 12), st.integers(1, 4), st.integers(1, 3), st.sampled_from([0, 2**20]))
def test_every_process_knows_the_size_of_each_whole_batch(images, batch, world, k, resident):
    """Also a process without images of it. Each image occurs once."""
    split = ArraySplit(np.arange(images, dtype=np.uint8).reshape(images, 1, 1, 1), np.arange(images, dtype="int32"))
    parts = [list(Loader(split, contexts(k), batch, 3, rank, world, resident_bytes=resident)) for rank in range(world)]
    seen = []
    for of_ranks in zip(*parts):
        labels = [int(y) for part in of_ranks for ys in part.ys for y in ys.asnumpy()]
        assert {part.size for part in of_ranks} == {len(labels)}
        assert all(len(part.xs) == len(part.ys) <= k for part in of_ranks)
        seen += labels
    assert sorted(seen) == list(range(images))
    assert [part.size for part in parts[0]][:-1] == [batch] * (len(parts[0]) - 1)
