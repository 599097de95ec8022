"""The first gradients are summed while backward still computes the others."""

from types import SimpleNamespace

import pytest
from mxnet import gluon, nd
from mxnet.gluon import nn
from support.devices import device, devices
from support.reference import identity

from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.data.loading.split_batch import make_local_batch
from gluonlab.engine.engine_hold import EngineHold
from gluonlab.engine.mxnet_setup import use_backward_bulk_size
from gluonlab.kvstores import make_kvstore
from gluonlab.parallel.data.strategy import DataParallelStep

pytestmark = pytest.mark.cpu_only("pieces of GPUs have more operators than this network")
LAYERS, UNITS = 12, 64
LAYER_BYTES = 4 * UNITS * (UNITS + 1)  # bytes of its gradients


def is_updated_during_hold(store, bucket_bytes, limit_s, overlap=None):
    """Return whether the last layer is updated while writes to the first one's gradients are held.

    ``limit_s``: seconds after which the hold ends in any case.
    """
    ctxs = devices(2, threads=1)
    net = nn.HybridSequential()
    net.add(*[nn.Dense(UNITS, activation="relu") for _ in range(LAYERS)])
    net.initialize(ctx=ctxs)
    net(nd.zeros((1, UNITS), ctx=ctxs[0]))
    params = list(net.collect_params().values())
    trainer = BucketedTrainer(net.collect_params(), "sgd", {}, make_kvstore(store), bucket_bytes=bucket_bytes)
    step = DataParallelStep(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, ctxs, identity)
    xs = [nd.ones((8, UNITS), ctx=ctx) for ctx in ctxs]
    batch = make_local_batch(xs, [nd.zeros((8,), ctx=ctx) for ctx in ctxs])
    with use_backward_bulk_size(overlap):  # graphs are bound in the first step
        for _ in range(2):
            step(batch)
    nd.waitall()
    # On a third device, so that the workers of the first two compute what they can. (A wait for an
    # array needs the worker of the first one.)
    first = SimpleNamespace(context=device(2), handle=params[0].grad(ctxs[0]).handle)
    hold = EngineHold([first], limit_s)
    step(batch)
    for ctx in ctxs:
        params[-1].data(ctx).wait_to_read()
    was_updated = hold.held_until_release
    hold.release()
    nd.waitall()
    return was_updated


@pytest.mark.parametrize("store", ["device", "sharded"])
def test_the_first_bucket_is_summed_before_backward_ends(store):
    assert is_updated_during_hold(store, LAYER_BYTES, limit_s=120)


@pytest.mark.parametrize(("bucket_bytes", "overlap"), [(10**9, "1"), (LAYER_BYTES, "off")], ids=["one bucket", "off"])
def test_with_one_bucket_or_overlap_off_it_never_is(bucket_bytes, overlap):
    assert not is_updated_during_hold("sharded", bucket_bytes, limit_s=0.3, overlap=overlap)
