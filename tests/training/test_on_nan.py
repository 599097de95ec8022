"""--on-nan skip: a batch whose gradients are not finite changes nothing, and is counted."""

import math
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from support.devices import devices
from support.drawn_runs import load_few_digits
from support.reference import parameter_arrays
from support.run_files import read_metrics

from gluonlab.bucketed_trainer.loss_scale import MAX_SKIPPED_IN_A_ROW, SkipNotFinite
from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.config import TrainConfig
from gluonlab.errors import DivergedError
from gluonlab.parallel.data.strategy import data_parallel
from gluonlab.training.loop import train
from gluonlab.training.reporter import Reporter


def spoiled(number):
    """Data parallelism of which the batch of this number holds one NaN."""

    class Spoiled:
        def __init__(self, *arguments):
            self.inner, self.left = data_parallel(*arguments), number

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def step(self, batch):
            self.left -= 1
            if self.left == 0:
                batch.xs[0][0] = math.nan
            return self.inner.step(batch)

    return Spoiled


@pytest.mark.parametrize("kvstore", ["device", "sharded-optimizer"])
def test_one_batch_with_nan_is_left_out_and_counted(empty_cwd, kvstore):
    config = TrainConfig(
        devices=",".join(map(str, devices(2))).replace("(", ":").replace(")", ""),
        kvstore=kvstore, model="mlp", epochs=2, global_batch_size=16, mixup=0.2, out="run",
    )  # fmt: skip
    with pytest.raises(DivergedError):
        train(config.replace(out="stopped"), spoiled(5), Reporter(), load_few_digits())
    net = train(config.replace(on_nan="skip"), spoiled(5), Reporter(), load_few_digits()).net
    assert all(np.isfinite(value).all() for value in parameter_arrays(net))
    lines = read_metrics(Path("run"))
    assert [line["skipped"] for line in lines if line.get("event") == "loss_scale"] == [1, 1]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_others_update_as_if_it_had_not_been(optimizer):
    """The same bits as without the batch, where no schedule counts it."""

    def trained(batches, **more):
        net = gluon.nn.Dense(3, in_units=4)
        net.initialize(mx.init.Constant(0.25), ctx=devices(2))
        trainer = BucketedTrainer(net.collect_params(), optimizer, {"learning_rate": 0.1}, **more)
        for batch in batches:
            with autograd.record():
                losses = [net(part.as_in_context(ctx)).square().sum() for part, ctx in zip(
                    gluon.utils.split_data(batch, 2), devices(2))]  # fmt: skip
            autograd.backward(losses)
            trainer.step(len(batch))
        return [value.tobytes() for ctx in devices(2) for value in parameter_arrays(net, ctx)]

    random = np.random.RandomState(3)
    good = [mx.nd.array(random.randn(6, 4)) for _ in range(4)]
    bad = good[0].copy()
    bad[1, 2] = math.inf
    expected = trained(good)
    assert trained([good[0], bad, *good[1:3], bad, good[3]], loss_scale=SkipNotFinite()) == expected
    assert trained(good, loss_scale=SkipNotFinite()) == expected


def test_too_many_in_a_row_end_the_run():
    skip = SkipNotFinite()
    for finite in [False] * (MAX_SKIPPED_IN_A_ROW - 1) + [True] + [False] * (MAX_SKIPPED_IN_A_ROW - 1):
        skip.record_step(finite)
    again = SkipNotFinite()
    again.restore(skip.state())
    with pytest.raises(DivergedError, match=f"{MAX_SKIPPED_IN_A_ROW} steps in a row, up to step"):
        again.record_step(False)
    assert (again.value, again.skipped) == (1.0, 2 * MAX_SKIPPED_IN_A_ROW - 1)
