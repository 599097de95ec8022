"""A step that is skipped leaves no trace, however a network is split."""

import mxnet as mx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from mxnet import nd
from mxnet.gluon import nn
from support.devices import contexts
from support.examples import examples
from support.splits import (
    CLASSES,
    IMAGE,
    make_batches,
    make_parallelism,
    make_strategy_plan,
    relative_difference,
    softmax_loss,
    train_chain_on_one_device,
    train_strategy,
)

from gluonlab.bucketed_trainer.loss_scale import LossScale, SkipNotFinite
from gluonlab.kvstores.process_groups import SINGLE_PROCESS
from gluonlab.parallel import strategy_class
from gluonlab.parallel.data.microbatches import Microbatches
from gluonlab.training.builtin_callbacks import ReplicaCheck

MODES = st.sampled_from(
    [
        ("data", 1, {}),
        ("layers", 2, {"cut": (2,), "schedule": "sequential"}),
        ("pipeline", 2, {"cut": (1,), "schedule": "1f1b"}),
        ("pipeline", 2, {"cut": (1, 2, 3), "schedule": "interleaved", "stages_per_device": 2}),
        ("tensor", 2, {"channels": "both"}),
        ("tensor", 3, {"channels": "row"}),
    ]
)


def make(ctxs, start=None):
    """Parameters of 3 to 72 elements, which lie in buckets with gaps."""
    with mx.name.NameManager():
        net = nn.HybridSequential(prefix="net_")
        with net.name_scope():
            net.add(nn.Conv2D(9, 1, activation="tanh"), nn.Conv2D(6, 3, groups=3))
            net.add(nn.Dense(5, activation="tanh"), nn.Dense(CLASSES))
    mx.random.seed(3)
    net.initialize(mx.init.Uniform(0.5), ctx=start or ctxs)
    net(nd.zeros((1, *IMAGE), ctx=(start or ctxs)[0]))
    return net


@examples(5, 8)
@given(
    mode=MODES,
    copies=st.integers(1, 2),
    parts=st.sampled_from([None, 3]),
    clip_norm=st.sampled_from([None, 0.05]),
    bad=st.tuples(st.integers(0, 5), st.sampled_from([np.inf, np.nan])),
    make_scale=st.sampled_from([SkipNotFinite, LossScale]),
)
def test_a_skipped_batch_with_a_non_finite_image_changes_nothing(mode, copies, parts, clip_norm, bad, make_scale):
    name, size, more = mode
    good = make_batches([7, 6, 5])
    images, labels = good[1][0].copy(), good[1][1]
    images[bad[0], 0, 2, 2] = bad[1]
    ctxs, scale = contexts(size * copies), make_scale()
    plan = make_strategy_plan(
        make_parallelism(name, ctxs, size, max_shard_images=7, **more),
        microbatches=Microbatches(parts),
        clip_norm=clip_norm, loss_scale=scale,
    )  # fmt: skip
    strategy = strategy_class(name)(make, softmax_loss(), plan, SINGLE_PROCESS)
    _, result = train_strategy(strategy, [good[0], (images, labels), *good[1:]])
    assert scale.skipped == 1
    case = {"optimizer": "sgd", "clip_norm": clip_norm}
    _, expected = train_chain_on_one_device(make(contexts(1)), good, case)
    assert relative_difference(result, expected) <= 1e-5
    ReplicaCheck(strategy.net, replicated=strategy.replicated_parameters()).compare_replicas(1)
