"""--overlap: in how large pieces backward is queued, which changes no bit of what it computes."""

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
from gluonlab.engine.mxnet_setup import apply_backward_bulk_size, default_backward_bulk_size, use_backward_bulk_size
from gluonlab.errors import ConfigError
from gluonlab.kvstores.process_groups import SINGLE_PROCESS
from gluonlab.parallel.data.microbatches import WHOLE_SHARDS, Microbatches
from gluonlab.parallel.data.strategy import data_parallel
from gluonlab.parallel.pipeline.strategy import pipeline_parallel
from gluonlab.parallel.training_loss import make_loss

VARIABLE = "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD"
OVERLAPS = st.one_of(st.just("off"), st.integers(1, 12))


def normalised(depth, ctxs):
    """Convolutions with BatchNorm, whose statistics may be shared."""
    mx.random.seed(depth)
    net = nn.HybridSequential(prefix="normalised_")
    with net.name_scope():
        for _ in range(depth):
            net.add(nn.Conv2D(3, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"))
        net.add(nn.Dense(3))
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    net(nd.zeros((1, *IMAGE), ctx=ctxs[0]))
    return net


def bits(strategy, overlap, sizes):
    """The parameters after some batches, and all losses."""
    with use_backward_bulk_size(overlap):
        losses, params = train_strategy(strategy, make_batches(sizes))
    return losses, {name: array.tobytes() for name, array in params.items()}


def data_parallel_on(devices, make_net, microbatches, **more):
    split = make_parallelism("data", contexts(devices), 1)
    plan = make_strategy_plan(split, microbatches=microbatches, compress=None, **more)
    return data_parallel(make_net, make_loss(), plan, SINGLE_PROCESS)


@given(
    st.one_of(chains, st.integers(1, 3)), OVERLAPS, st.integers(1, 3), st.booleans(),
    st.sampled_from([WHOLE_SHARDS, Microbatches(2)]), st.sampled_from(["device", "ring", "local"]),
    st.sampled_from([None, 0, 500]), st.lists(st.integers(1, 9), min_size=2, max_size=2),
)  # fmt: skip
@settings(max_examples=8, deadline=None)
def test_any_overlap_gives_the_same_bits(net, overlap, devices, sync_bn, microbatches, store, bucket_bytes, sizes):
    drawn = isinstance(net, int)
    make_net = partial(normalised, net) if drawn else partial(make_chain, net)
    more = {"sync_bn": sync_bn and drawn and devices > 1, "bucket_bytes": bucket_bytes}
    usual, other = (
        bits(data_parallel_on(devices, make_net, microbatches, kvstore=store, **more), asked, sizes)
        for asked in (None, overlap)
    )
    assert usual == other


@given(OVERLAPS, st.sampled_from(["gpipe", "1f1b"]))
@settings(max_examples=2, deadline=None)
def test_so_it_does_where_copies_are_pipelines(overlap, schedule):
    chain = ([("conv", 3)], [("dense", 4)], False, True)

    def strategy():
        split = make_parallelism("pipeline", contexts(4), 2, schedule=schedule, cut=(1,))
        make = lambda ctxs, start=None: make_chain(chain, start)  # noqa: E731
        return pipeline_parallel(make, make_loss(), make_strategy_plan(split), SINGLE_PROCESS)

    assert bits(strategy(), None, [6, 5]) == bits(strategy(), overlap, [6, 5])


@given(OVERLAPS)
@settings(max_examples=5, deadline=None)
def test_mxnet_is_asked_for_the_pieces_and_then_for_what_it_was(overlap):
    before = os.environ[VARIABLE]
    with use_backward_bulk_size(overlap), apply_backward_bulk_size("cpu"):
        asked = int(os.environ[VARIABLE])
    assert asked == overlap if overlap != "off" else asked > 10**6
    assert os.environ[VARIABLE] == before


@pytest.mark.parametrize(("exported", "cpu", "gpu"), [("8", 8, 15), ("20", 20, 20), ("1", 1, 1)])
def test_without_a_wish_the_users_variable_counts(monkeypatch, exported, cpu, gpu):
    monkeypatch.setitem(os.environ, VARIABLE, exported)
    assert (default_backward_bulk_size("cpu"), default_backward_bulk_size("gpu")) == (cpu, gpu)
    with use_backward_bulk_size(8), apply_backward_bulk_size("gpu"):  # a wish for ours is a wish
        assert os.environ[VARIABLE] == "8"


@pytest.mark.parametrize("value", [0, -1, "on", "", 1.5, True, 10**9, "9" * 5000])
def test_other_values_are_refused_in_a_line(value):
    with pytest.raises(ConfigError, match=r"^--overlap .*give a whole number from 1.*, or off$"):
        TrainConfig(overlap=value)
