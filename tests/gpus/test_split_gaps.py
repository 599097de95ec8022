"""What fused operators write between gradients stops no step of a split network, either."""

import mxnet as mx
import numpy as np
import pytest
from support.splits import (
    make_batches,
    make_chain,
    make_parallelism,
    make_strategy_plan,
    relative_difference,
    softmax_loss,
    train_strategy,
)

from gluonlab.bucketed_trainer.loss_scale import SkipNotFinite
from gluonlab.kvstores.process_groups import SINGLE_PROCESS
from gluonlab.parallel import strategy_class

NETWORK = ([("conv", 3)], [("dense", 5), ("dense", 3)], False, True)


@pytest.mark.parametrize("looks", [{"loss_scale": SkipNotFinite}, {"clip_norm": 0.05}], ids=str)
@pytest.mark.parametrize(
    ("way", "more"),
    [("pipeline", {"cut": (2,), "schedule": "1f1b"}), ("tensor", {"channels": "both"})],
    ids=["pipeline", "channels"],
)
def test_what_lies_between_gradients_changes_nothing(way, more, looks):
    result = []
    for beyond in (0.0, np.nan):  # as it may be
        ctxs = [mx.gpu(device) for device in range(4)]
        settings = {name: each() if callable(each) else each for name, each in looks.items()}
        plan = make_strategy_plan(make_parallelism(way, ctxs, 2, max_shard_images=4, **more), **settings)
        make = lambda ctxs, start=None: make_chain(NETWORK, start or ctxs)  # noqa: E731
        strategy = strategy_class(way)(make, softmax_loss(), plan, SINGLE_PROCESS)
        buckets = [each for trainer in strategy.trainer.trainers for each in trainer.buckets]
        assert any(bucket.padding_indices() for bucket in buckets)
        for batch in make_batches([7, 6]):
            for bucket in buckets:
                for array in bucket.grads:
                    for place in bucket.padding_indices():
                        array[place : place + 1] = beyond
            _, params = train_strategy(strategy, [batch])
        scale = strategy.trainer.loss_scale
        assert (scale is not None) == ("loss_scale" in looks)
        assert scale is None or scale.skipped == 0
        result.append(params)
    assert relative_difference(*result) <= 1e-6
