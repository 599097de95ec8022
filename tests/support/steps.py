"""Data-parallel steps of a network."""

from mxnet import gluon

from gluonlab.kvstores import make_kvstore
from gluonlab.parallel.data.strategy import DataParallelStep
from gluonlab.update.trainer import BucketedTrainer
from support.reference import as_is, shards

SHAPE = (3, 12, 12)  # of images, where running statistics are looked at


def make_step(net, ctxs, store="device", optimizer="sgd", preprocess=as_is, **params):
    trainer = BucketedTrainer(net.collect_params(), optimizer, params, make_kvstore(store))
    return DataParallelStep(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, ctxs, preprocess)


def run(step, batches, ctxs):
    return [[loss.asscalar() for loss in step(shards(batch, ctxs))] for batch in batches]
