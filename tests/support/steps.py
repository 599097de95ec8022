"""Data-parallel steps of a network."""

from mxnet import gluon

from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.data.loading.split_batch import WHOLE_SHARDS
from gluonlab.kvstores import make_kvstore
from gluonlab.parallel.data.strategy import DataParallelStep
from gluonlab.parallel.mixed_precision import keep_float32
from support.reference import identity, shard_batch

SHAPE = (3, 12, 12)  # of the images in tests of running statistics


def make_step(
    net, ctxs, store="device", optimizer="sgd", preprocess=identity, cut=WHOLE_SHARDS,
    sync_bn=False,
    loss=None, loss_scale=None, convert=keep_float32, **params,
):  # fmt: skip
    trainer = BucketedTrainer(net.collect_params(), optimizer, params, make_kvstore(store, ctxs), loss_scale=loss_scale)
    loss = loss or gluon.loss.SoftmaxCrossEntropyLoss()
    return DataParallelStep(net, loss, trainer, ctxs, preprocess, cut, sync_bn, convert=convert)


def train_steps(step, batches, ctxs, weights=None):
    """Train on batches (images, labels) of numpy arrays; return losses by batch and device."""
    return [[loss.asscalar() for loss in step(shard_batch(batch, ctxs, weights))] for batch in batches]
