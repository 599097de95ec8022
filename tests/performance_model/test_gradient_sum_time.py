"""Times of gradient sums: closed forms, the effect of faster links, and the exposed part."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluonlab.bucketed_trainer.buckets import GPU_BUCKET_BYTES
from gluonlab.collectives.named_topologies import make_topology
from gluonlab.collectives.topology import switch
from gluonlab.errors import ConfigError
from gluonlab.performance_model.gradient_sum_time import (
    BACKWARD_PIECE,
    BUCKET_BYTES,
    MULTI_HOST_ALGORITHMS,
    GradientBucket,
    GradientSizes,
    HostRates,
    exposed_sum_s,
    make_buckets,
    max_owned_bytes,
    single_host_stores,
    sum_over_hosts_s,
    sum_within_host_s,
)
from gluonlab.performance_model.roofline import DENSE, Operator, Work
from prediction.validate import staged_s

SIZES = st.lists(st.integers(1, 10**9), min_size=1, max_size=12)
HOST = HostRates(2e9, 5e9)


@given(SIZES, st.integers(1, 8))
def test_the_busiest_gpu_sums_its_share_or_the_largest_tensor(sizes, gpus):
    most = max_owned_bytes(sizes, gpus)
    least = max(max(sizes), sum(sizes) / gpus)
    assert least <= most + 1e-6 <= 2 * least + 2e-6  # longest first is at most 4/3 of the best


@given(SIZES, st.integers(2, 8))
def test_local_is_passes_over_memory_and_two_copies(sizes, gpus):
    total, one = sum(sizes), switch(1, 1e-6, 1e10)
    topology = switch(gpus, 1e-6, 1e10)
    plain, updated = GradientSizes(sizes), GradientSizes(sizes, updates_weights=True)
    result = sum_within_host_s("local", topology, plain, HOST)
    assert result == pytest.approx((gpus + 1) * total / 2e9 + 2 * total / 5e9)
    assert sum_within_host_s("local", topology, updated, HOST) == pytest.approx(result + 5 * total / 2e9)
    assert sum_within_host_s("local", one, plain, HOST) == 0
    assert sum_within_host_s("local", one, updated, HOST) == pytest.approx(5 * total / 2e9 + 2 * total / 5e9)


@given(SIZES, st.integers(2, 8))
def test_device_without_peer_access_fills_the_lanes_of_who_sums_most(sizes, gpus):
    result = staged_s(gpus, GradientSizes(sizes), HOST)
    assert result == pytest.approx(2 * gpus * max_owned_bytes(sizes, gpus) / 5e9)
    assert staged_s(1, GradientSizes(sizes), HOST) == 0


@pytest.mark.parametrize("store", [name for name in single_host_stores() if name != "local"])
def test_faster_links_and_smaller_gradients_are_never_worse_and_one_gpu_sums_nothing(store):
    gradients, half = GradientSizes([3e7, 2e7, 5e6]), GradientSizes([1.5e7, 1e7, 2.5e6])
    slow, fast = switch(4, 1e-5, 1e10), switch(4, 1e-5, 2e10)
    seconds = sum_within_host_s(store, slow, gradients, HOST)
    assert 0 < sum_within_host_s(store, fast, gradients, HOST) < seconds
    assert 0 < sum_within_host_s(store, slow, half, HOST) < seconds
    assert sum_within_host_s(store, slow.subset(1), gradients, HOST) == 0
    with_keys = gradients._replace(key_s=1e-5)
    assert sum_within_host_s(store, slow, with_keys, HOST) == pytest.approx(seconds + 3 * 4 * 1e-5)


def test_a_ring_on_a_switch_has_its_closed_form():
    topology = replace(switch(8, 0.0, 1e10), reduce_bytes_per_s=float("inf"))
    result = sum_within_host_s("nccl", topology, GradientSizes([8e8]), HOST)
    assert result == pytest.approx(2 * 7 / 8 * 8e8 / 1e10)


@pytest.mark.parametrize("store", MULTI_HOST_ALGORITHMS)
def test_more_hosts_take_longer(store):
    gradients = GradientSizes([1e8])
    times = [
        sum_over_hosts_s(store, "p3.16xlarge", make_topology(f"p3.16xlarge*{hosts}"), gradients) for hosts in (1, 2, 4)
    ]
    assert times == sorted(times) and times[0] < times[2]


def test_unknown_stores_are_one_line():
    with pytest.raises(ConfigError, match=r"unknown kvstore 'rign'.*ring"):
        sum_within_host_s("rign", switch(2, 1e-6, 1e10), GradientSizes([1.0]), HOST)
    with pytest.raises(ConfigError, match=r"unknown kvstore for several hosts 'ring'.*horovod"):
        sum_over_hosts_s("ring", "p3.16xlarge", make_topology("p3.16xlarge*2"), GradientSizes([1.0]))


SECONDS = st.floats(0.001, 10)
LAYERS = st.lists(st.tuples(SECONDS, st.integers(1, 20_000_000)), min_size=1, max_size=40)


def make_layer_buckets(layers, piece=BACKWARD_PIECE):
    operators = tuple(Operator(DENSE, "fc", weights=weights) for _, weights in layers)
    work = Work("net", (1,), operators, tuple(weights for _, weights in layers))
    return make_buckets(work, [seconds for seconds, _ in layers], piece)


def test_pieces_and_buckets_are_gluonlabs():
    from gluonlab.engine.mxnet_setup import GPU_BACKWARD_BULK_SIZE

    assert (BACKWARD_PIECE, BUCKET_BYTES) == (GPU_BACKWARD_BULK_SIZE, GPU_BUCKET_BYTES)


@given(LAYERS, st.one_of(st.none(), st.integers(1, 50)))
def test_every_gradient_is_in_one_bucket_which_is_ready_before_backward_ends(layers, piece):
    result = make_layer_buckets(layers, piece)
    backward_s = math.fsum(seconds for seconds, _ in layers)
    assert sum(part.size for part in result) == pytest.approx(4 * sum(size for _, size in layers))
    assert all(0 < part.ready_s <= backward_s * (1 + 1e-9) for part in result)
    assert [part.ready_s for part in result] == sorted(part.ready_s for part in result)
    assert all(part.size >= BUCKET_BYTES for part in result[:-1])


@given(LAYERS, SECONDS)
def test_exposed_time_lies_between_the_last_bucket_and_the_whole_sum(layers, sum_s):
    result = make_layer_buckets(layers)
    backward_s = math.fsum(seconds for seconds, _ in layers)
    left = exposed_sum_s(result, sum_s, backward_s)
    total = sum(part.size for part in result)
    latest = sum_s * result[-1].size / total - (backward_s - result[-1].ready_s)
    assert max(latest, sum_s - backward_s) - 1e-9 <= left <= sum_s * (1 + 1e-9)
    whole = exposed_sum_s(make_layer_buckets(layers, None), sum_s, backward_s)
    assert whole == pytest.approx(sum_s)  # in one piece nothing is ready before the end


def test_buckets_wait_for_backward_and_for_each_other():
    parts = [GradientBucket(1.0, 50), GradientBucket(2.0, 30), GradientBucket(4.0, 20)]
    # from 1 to 3.5, to 5, to 6: behind the end of backward at 4 are 2 of 5 seconds
    assert exposed_sum_s(parts, 5.0, 4.0) == pytest.approx(2.0)
    assert exposed_sum_s(parts, 0.5, 4.0) == pytest.approx(0.1)  # the last bucket alone
