"""A step of training on made-up images that lie on the devices, for counts and speeds."""

from __future__ import annotations

from typing import Any, Callable, List, Sequence

import mxnet as mx
from mxnet import nd

from gluonlab.data.loading.augment import make_input
from gluonlab.data.loading.shards import whole
from gluonlab.kvstores import make_kvstore
from gluonlab.models import get_model
from gluonlab.models.shapes import complete
from gluonlab.parallel.data.strategy import DataParallelStep
from gluonlab.parallel.objective import make_loss
from gluonlab.update.trainer import BucketedTrainer

CLASSES = 10
SGD = {"learning_rate": 0.01, "momentum": 0.9, "wd": 1e-4}
SHAPES = {"lenet": (1, 28, 28)}
COLOUR = (3, 32, 32)  # of all other networks


def training_step(
    network: str, ctxs: Sequence[mx.Context], store: str, images: int
) -> Callable[[], List[Any]]:
    """``step()`` queues a step with ``images`` images per device, as gluonlab.run makes it."""
    shape = SHAPES.get(network, COLOUR)
    net = get_model(network, CLASSES, list(ctxs))
    net.initialize(mx.init.Xavier(), ctx=list(ctxs))
    complete(net, network, shape, CLASSES)
    trainer = BucketedTrainer(net.collect_params(), "sgd", dict(SGD), make_kvstore(store, ctxs))
    step = DataParallelStep(net, make_loss(), trainer, ctxs, make_input(None))
    xs = [nd.zeros((images, *shape), ctx=ctx, dtype="uint8") for ctx in ctxs]
    ys = [nd.zeros((images,), ctx=ctx, dtype="int32") for ctx in ctxs]
    batch = whole(xs, ys)
    return lambda: step(batch)
