"""The estimates of `--estimate-memory` for --sync-bn and strategies equal the bytes allocated on simulated GPUs."""

import dataclasses
from functools import partial

import pytest
from gpus.simulated import bytes_in_use
from mxnet import nd

from gluonlab.config import TrainConfig
from gluonlab.data import load_dataset
from gluonlab.data.loading.batch_loader import Loader
from gluonlab.kvstores.process_groups import SINGLE_PROCESS
from gluonlab.parallel import strategy_class
from gluonlab.parallel.training_loss import make_loss
from gluonlab.training.build_network import make_net
from gluonlab.training.plan import make_plan
from gluonlab.training.run_memory import MemoryEstimator

# images of 16 x 28 x 28 floats, just below 2 MiB, of which MXNet's pool takes whole ones
SHARE = 41


@pytest.mark.parametrize(
    ("samples", "microbatches"), [(2 * SHARE, None), (2 * SHARE, 2), pytest.param(3 * SHARE, 2, marks=pytest.mark.long)]
)
def test_memory_of_stages_is_what_is_allocated(samples, microbatches):
    """Within 20 %, as of other networks; also graphs that add to gradients, and those of an epoch's
    last batch.
    """
    images = SHARE * (microbatches or 1)
    config = TrainConfig(devices="gpu:0,1", dataset="synthetic", model="resnet8", sync_bn=True, optimizer="adam")
    plan = make_plan(config.replace(batch_size=images, microbatches=microbatches))
    plan = dataclasses.replace(plan, dataset=load_dataset("synthetic", samples=samples * (microbatches or 1)))
    taken, _ = measure_epoch(plan)
    assert MemoryEstimator(plan, make_net(plan)).memory(images).total == pytest.approx(taken[1], rel=0.2)


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "layers", "model": "resnet8", "cut": "4"},
        {"strategy": "tensor", "model": "lenet"},
        {"strategy": "pipeline", "model": "resnet8", "cut": "4", "pipeline_schedule": "gpipe"},
    ],
    ids=lambda settings: settings["strategy"],
)
def test_memory_of_splits_is_what_is_allocated_on_each_gpu(settings):
    images = SHARE * (8 if settings["strategy"] == "pipeline" else 1)
    config = TrainConfig(devices="gpu:0,1", dataset="synthetic", optimizer="adam", **settings)
    plan = make_plan(config.replace(batch_size=images))
    plan = dataclasses.replace(plan, dataset=load_dataset("synthetic", samples=images))
    taken, strategy = measure_epoch(plan)
    report = [memory.total for _, memory in MemoryEstimator(plan, strategy.net, strategy.estimate_memory).rows(images)]
    assert report == pytest.approx(taken, rel=0.2)


def measure_epoch(plan):
    """The bytes of each GPU after an epoch of the plan's strategy, and the strategy."""
    nd.waitall()
    for ctx in plan.ctxs:
        ctx.empty_cache()
    before = [bytes_in_use(ctx.device_id) for ctx in plan.ctxs]
    make = strategy_class(plan.parallelism.mode)
    strategy = make(partial(make_net, plan), make_loss(), plan, SINGLE_PROCESS)
    for batch in Loader(plan.dataset.train, strategy.inputs, plan.global_batch_size, raw=True):
        strategy.step(batch)
    for batch in Loader(plan.dataset.test, strategy.inputs, plan.global_batch_size, raw=True):
        list(strategy.score(batch))
    nd.waitall()
    after = [bytes_in_use(ctx.device_id) for ctx in plan.ctxs]
    return [own - then for own, then in zip(after, before)], strategy
