"""--on-nan skip: a batch whose gradients are not finite changes nothing, and is counted."""

import itertools
import math

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from support.devices import contexts, device_spec
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


def with_nan_in_batch(number):
    """Return data parallelism that writes one NaN into the batch of this number."""

    def make_strategy(*arguments):
        strategy, step = data_parallel(*arguments), itertools.count(1)
        strategy_step = strategy.step

        def step_with_nan(batch):
            if next(step) == number:
                batch.xs[0][0] = math.nan
            return strategy_step(batch)

        strategy.step = step_with_nan
        return strategy

    return make_strategy


@pytest.mark.parametrize("kvstore", ["device", "sharded-optimizer"])
def test_one_batch_with_nan_is_skipped_and_counted(tmp_path, kvstore):
    settings = {"model": "mlp", "epochs": 2, "global_batch_size": 16, "mixup": 0.2}
    config = TrainConfig(devices=device_spec(2), kvstore=kvstore, out=str(tmp_path / "run"), **settings)
    with pytest.raises(DivergedError):
        train(config.replace(out=str(tmp_path / "stopped")), with_nan_in_batch(5), Reporter(), load_few_digits())
    net = train(config.replace(on_nan="skip"), with_nan_in_batch(5), Reporter(), load_few_digits()).net
    assert all(np.isfinite(value).all() for value in parameter_arrays(net))
    lines = read_metrics(tmp_path / "run")
    assert [line["skipped"] for line in lines if line.get("event") == "loss_scale"] == [1, 1]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_other_batches_give_the_same_bits_as_without_the_skipped_one(optimizer):
    def train_dense(batches, **more):
        net = gluon.nn.Dense(3, in_units=4)
        net.initialize(mx.init.Constant(0.25), ctx=contexts(2))
        trainer = BucketedTrainer(net.collect_params(), optimizer, {"learning_rate": 0.1}, **more)
        for batch in batches:
            with autograd.record():
                losses = [net(part).square().sum() for part in gluon.utils.split_and_load(batch, contexts(2))]
            autograd.backward(losses)
            trainer.step(len(batch))
        return [value.tobytes() for ctx in contexts(2) for value in parameter_arrays(net, ctx)]

    random = np.random.RandomState(3)
    good = [mx.nd.array(random.randn(6, 4)) for _ in range(4)]
    bad = good[0].copy()
    bad[1, 2] = math.inf
    expected = train_dense(good)
    assert train_dense([good[0], bad, *good[1:3], bad, good[3]], loss_scale=SkipNotFinite()) == expected
    assert train_dense(good, loss_scale=SkipNotFinite()) == expected


def test_too_many_skipped_steps_in_a_row_end_the_run():
    most, skip, resumed = MAX_SKIPPED_IN_A_ROW - 1, SkipNotFinite(), SkipNotFinite()
    for is_finite in [False] * most + [True] + [False] * most:
        skip.record_step(is_finite)
    resumed.restore(skip.state())
    with pytest.raises(DivergedError, match=f"last {most + 1} steps, up to step"):
        resumed.record_step(False)
    assert (resumed.value, resumed.skipped) == (1.0, 2 * most + 1)
