"""Steps whose shards go through the network in parts."""

from mxnet import gluon

from gluonlab.kvstores import make_kvstore
from gluonlab.parallel.data.strategy import DataParallelStep
from gluonlab.update.trainer import BucketedTrainer
from support.reference import (
    as_is,
)


def make_step(net, ctxs, cut, preprocess=as_is, **params):
    trainer = BucketedTrainer(net.collect_params(), "sgd", params, make_kvstore("device"))
    return DataParallelStep(
        net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, ctxs, preprocess, cut
    )
