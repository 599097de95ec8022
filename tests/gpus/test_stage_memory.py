"""What `--memory` tells of --sync-bn is what simulated GPUs are asked for: bytes, counted."""

import dataclasses
from functools import partial

import pytest
from gpus.simulated import bytes_in_use
from mxnet import nd

from gluonlab.config import TrainConfig
from gluonlab.data import load_dataset
from gluonlab.data.loading.loader import Loader
from gluonlab.kvstores.groups import ALONE
from gluonlab.parallel.data.strategy import data_parallel
from gluonlab.parallel.objective import make_loss
from gluonlab.training.memory import Needs
from gluonlab.training.network import make_net
from gluonlab.training.plan import make_plan

# images of 16 x 28 x 28 floats, just below 2 MiB, of which MXNet's pool takes whole ones
SHARE = 41


@pytest.mark.parametrize(
    ("samples", "microbatches"),
    [(2 * SHARE, None), (2 * SHARE, 2), pytest.param(3 * SHARE, 2, marks=pytest.mark.long)],
)
def test_memory_of_stages_is_what_is_allocated(samples, microbatches):
    """Within 20 %, as of other networks; also graphs that add to gradients, and those of an epoch's
    last batch.
    """
    images = SHARE * (microbatches or 1)
    config = TrainConfig(
        devices="gpu:0,1", dataset="synthetic", model="resnet8", sync_bn=True, optimizer="adam"
    )
    plan = make_plan(config.replace(batch_size=images, microbatches=microbatches))
    plan = dataclasses.replace(
        plan, dataset=load_dataset("synthetic", samples=samples * (microbatches or 1))
    )
    nd.waitall()
    for ctx in plan.ctxs:
        ctx.empty_cache()
    before = bytes_in_use(1)
    strategy = data_parallel(partial(make_net, plan), make_loss(), plan, ALONE)
    for batch in Loader(plan.dataset.train, plan.ctxs, plan.global_batch_size, raw=True):
        strategy.step(batch)
    for batch in Loader(plan.dataset.test, plan.ctxs, plan.global_batch_size, raw=True):
        list(strategy.score(batch))
    nd.waitall()
    taken = bytes_in_use(1) - before
    assert Needs(plan, make_net(plan)).memory(images).total == pytest.approx(taken, rel=0.2)
