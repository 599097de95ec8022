"""What of a sum is left behind backward: by bounds, and by a timeline made by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluonlab.prediction.overlap import BUCKET_BYTES, PIECE, Bucket, buckets, exposed_s
from gluonlab.prediction.work import DENSE, Operator, Work
from gluonlab.update.buckets import GPU_BUCKET_BYTES

SECONDS = st.floats(0.001, 10)
LAYERS = st.lists(st.tuples(SECONDS, st.integers(1, 20_000_000)), min_size=1, max_size=40)


def made(layers, piece=PIECE):
    operators = tuple(Operator(DENSE, "fc", weights=weights) for _, weights in layers)
    work = Work("net", (1,), operators, tuple(weights for _, weights in layers))
    return buckets(work, [seconds for seconds, _ in layers], piece)


def test_pieces_and_buckets_are_gluonlabs():
    from gluonlab.engine.setup import ON_GPUS

    assert (PIECE, BUCKET_BYTES) == (ON_GPUS, GPU_BUCKET_BYTES)


@given(LAYERS, st.one_of(st.none(), st.integers(1, 50)))
def test_every_gradient_is_in_one_bucket_which_is_ready_before_backward_ends(layers, piece):
    found = made(layers, piece)
    backward_s = math.fsum(seconds for seconds, _ in layers)
    assert sum(part.size for part in found) == pytest.approx(4 * sum(size for _, size in layers))
    assert all(0 < part.ready_s <= backward_s * (1 + 1e-9) for part in found)
    assert [part.ready_s for part in found] == sorted(part.ready_s for part in found)
    assert all(part.size >= BUCKET_BYTES for part in found[:-1])


@given(LAYERS, SECONDS)
def test_what_is_left_lies_between_the_last_bucket_and_the_whole_sum(layers, sum_s):
    found = made(layers)
    backward_s = math.fsum(seconds for seconds, _ in layers)
    left = exposed_s(found, sum_s, backward_s)
    total = sum(part.size for part in found)
    latest = sum_s * found[-1].size / total - (backward_s - found[-1].ready_s)
    assert max(latest, sum_s - backward_s) - 1e-9 <= left <= sum_s * (1 + 1e-9)
    whole = exposed_s(made(layers, None), sum_s, backward_s)
    assert whole == pytest.approx(sum_s)  # in one piece nothing is ready before the end


def test_buckets_wait_for_backward_and_for_each_other():
    parts = [Bucket(1.0, 50), Bucket(2.0, 30), Bucket(4.0, 20)]
    # from 1 to 3.5, to 5, to 6: behind the end of backward at 4 are 2 of 5 seconds
    assert exposed_s(parts, 5.0, 4.0) == pytest.approx(2.0)
    assert exposed_s(parts, 0.5, 4.0) == pytest.approx(0.1)  # the last bucket alone
