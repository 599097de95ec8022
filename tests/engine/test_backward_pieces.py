"""--backward-bulk-size: the number of operators that backward queues at once, which changes no bit."""

import os
from functools import partial

import mxnet as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mxnet import nd
from mxnet.gluon import nn
from support.devices import contexts
from support.splits import IMAGE, chains, make_batches, make_chain, make_parallelism, make_strategy_plan, train_strategy

from gluonlab.config import TrainConfig
from gluonlab.data.loading.split_batch import WHOLE_SHARDS, Microbatches
from gluonlab.engine.mxnet_setup import apply_backward_bulk_size, default_backward_bulk_size, use_backward_bulk_size
from gluonlab.errors import ConfigError
from gluonlab.kvstores.process_groups import SINGLE_PROCESS
from gluonlab.parallel.data.strategy import data_parallel
from gluonlab.parallel.pipeline.strategy import pipeline_parallel
from gluonlab.parallel.training_loss import make_loss

VARIABLE = "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD"
OVERLAPS = st.one_of(st.just("off"), st.integers(1, 12))


def make_normalized_net(depth, ctxs):
    mx.random.seed(depth)
    net = nn.HybridSequential(prefix="normalized_")
    with net.name_scope():
        for _ in range(depth):
            net.add(nn.Conv2D(3, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"))
        net.add(nn.Dense(3))
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    net(nd.zeros((1, *IMAGE), ctx=ctxs[0]))
    return net


def train_bits(strategy, overlap, sizes):
    """Return all losses and the bits of the parameters."""
    with use_backward_bulk_size(overlap):
        losses, params = train_strategy(strategy, make_batches(sizes))
    return losses, {name: array.tobytes() for name, array in params.items()}


@given(
    st.one_of(chains, st.integers(1, 3)), OVERLAPS, st.integers(1, 3), st.booleans(),
    st.sampled_from([WHOLE_SHARDS, Microbatches(2)]), st.sampled_from(["device", "ring", "local"]),
    st.sampled_from([None, 0, 500]), st.lists(st.integers(1, 9), min_size=2, max_size=2),
)  # fmt: skip
@settings(max_examples=8, deadline=None)
def test_any_overlap_gives_the_same_bits(net, overlap, devices, sync_bn, microbatches, store, bucket_bytes, sizes):
    drawn = isinstance(net, int)
    make_net = partial(make_normalized_net, net) if drawn else partial(make_chain, net)

    def make_strategy():
        options = {"microbatches": microbatches, "kvstore": store, "bucket_bytes": bucket_bytes, "compress": None}
        options["sync_bn"] = sync_bn and drawn and devices > 1
        plan = make_strategy_plan(make_parallelism("data", contexts(devices), 1), **options)
        return data_parallel(make_net, make_loss(), plan, SINGLE_PROCESS)

    assert train_bits(make_strategy(), None, sizes) == train_bits(make_strategy(), overlap, sizes)


@given(OVERLAPS, st.sampled_from(["gpipe", "1f1b"]))
@settings(max_examples=2, deadline=None)
def test_any_overlap_of_a_pipeline_gives_the_same_bits(overlap, schedule):
    chain = ([("conv", 3)], [("dense", 4)], False, True)

    def make():
        split = make_parallelism("pipeline", contexts(4), 2, schedule=schedule, cut=(1,))
        make_net = lambda ctxs, start=None: make_chain(chain, start)  # noqa: E731
        return pipeline_parallel(make_net, make_loss(), make_strategy_plan(split), SINGLE_PROCESS)

    assert train_bits(make(), None, [6, 5]) == train_bits(make(), overlap, [6, 5])


@given(OVERLAPS)
@settings(max_examples=5, deadline=None)
def test_the_variable_of_mxnet_is_set_and_then_restored(overlap):
    before = os.environ[VARIABLE]
    with use_backward_bulk_size(overlap), apply_backward_bulk_size("cpu"):
        size = int(os.environ[VARIABLE])
    assert size == overlap if overlap != "off" else size > 10**6
    assert os.environ[VARIABLE] == before


@pytest.mark.parametrize(("exported", "cpu", "gpu"), [("8", 8, 15), ("20", 20, 20), ("1", 1, 1)])
def test_without_an_option_the_users_variable_counts(monkeypatch, exported, cpu, gpu):
    monkeypatch.setitem(os.environ, VARIABLE, exported)
    assert (default_backward_bulk_size("cpu"), default_backward_bulk_size("gpu")) == (cpu, gpu)
    with use_backward_bulk_size(8), apply_backward_bulk_size("gpu"):  # also if it equals our default
        assert os.environ[VARIABLE] == "8"


@pytest.mark.parametrize("value", [0, -1, "on", "", 1.5, True, 10**9, "9" * 5000])
def test_other_values_are_refused_in_a_line(value):
    with pytest.raises(
        ConfigError, match=r"^--backward-bulk-size .*: must be a whole number from 1 to 1000000, or off$"
    ):
        TrainConfig(backward_bulk_size=value)
