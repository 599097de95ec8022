"""Counts of the kernel launches, waits and copies of a training step.

As a command: the tables of docs/performance.md, of the stores that are named.

    .venv-cu112/bin/python tests/gpus/start.py --gpus 8 --counts-only \\
        .venv-cu112/bin/python tests/gpus/counts.py device ring

With --gluon: under gluon.Trainer, which moves each parameter by itself.
"""

import argparse
import json
from types import SimpleNamespace

import mxnet as mx
from gpus.simulated import counting
from mxnet import gluon, nd

import gluonlab  # noqa: F401  before MXNet
from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.data.loading.augmentation import make_input_transform
from gluonlab.data.loading.split_batch import make_local_batch
from gluonlab.kvstores import make_kvstore
from gluonlab.models import get_model
from gluonlab.models.infer_shapes import complete_initialization
from gluonlab.parallel.data.strategy import DataParallelStep
from gluonlab.parallel.training_loss import make_loss

COUNTED = ("launches", "stream_synchronizations", "copies_direct", "copies_staged")
HEADINGS = ("launches", "stream synchronizations", "direct copies", "staged copies")
STORES = ("device", "local", "nccl", *ALGORITHMS, "sharded-optimizer")
STEPS = 2


def make_network(name, ctxs, shape, classes=10):
    """Return a network of gluonlab on these devices."""
    net = get_model(name, classes, ctxs)
    net.initialize(mx.init.Xavier(), ctx=ctxs)
    complete_initialization(net, name, shape, classes)
    return net


def count_operations(net, ctxs, store, shape, **settings):
    """Count a step of SGD with momentum on two images per device, and the trainer's buckets."""
    trainer = BucketedTrainer(
        net.collect_params(),
        "sgd",
        {"learning_rate": 0.1, "momentum": 0.9},
        store and make_kvstore(store, ctxs),
        **settings,
    )
    step = DataParallelStep(net, make_loss(), trainer, ctxs, make_input_transform(None))
    return SimpleNamespace(**count_step(step, ctxs, shape), buckets=len(trainer.buckets))


def count_step(step, ctxs, shape):
    """Count what a call of ``step`` does, after the first calls."""
    xs = [nd.zeros((2, *shape), ctx=ctx, dtype="uint8") for ctx in ctxs]
    ys = [nd.zeros((2,), ctx=ctx, dtype="int32") for ctx in ctxs]
    for _ in range(2):
        step(make_local_batch(xs, ys))
    with counting() as happened:
        for _ in range(STEPS):
            step(make_local_batch(xs, ys))
    result = {name: getattr(happened, name) / STEPS for name in COUNTED}
    assert all(count == int(count) for count in result.values()), f"steps differ: {result}"
    return {name: int(count) for name, count in result.items()}


def count_gluon_operations(net, ctxs, store, shape):
    """Count a step under gluon.Trainer, with a compiled network; its parameters replace buckets."""
    net.hybridize(static_alloc=True)
    counts = count_step(make_gluon_step(net, ctxs, store), ctxs, shape)
    learned = [param for param in net.collect_params().values() if param.grad_req != "null"]
    return SimpleNamespace(**counts, buckets=len(learned))


def make_gluon_step(net, ctxs, store):
    """Return a step under gluon.Trainer."""
    trainer = gluon.Trainer(
        net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, store and make_kvstore(store, ctxs)
    )
    loss, preprocess = make_loss(), make_input_transform(None)

    def step(batch):
        with mx.autograd.record():
            losses = [loss(net(preprocess(nd, x)), y) for x, y in zip(*batch)]
        mx.autograd.backward(losses)
        trainer.step(2 * len(ctxs))

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stores", nargs="*", default=STORES)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--gluon", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    shape = (1, 28, 28) if options.model == "lenet" else (3, 32, 32)
    ctxs = [mx.gpu(device) for device in range(options.gpus)]
    count = count_gluon_operations if options.gluon else count_operations
    net = make_network(options.model, ctxs, shape)
    result = {store: count(net, ctxs, store, shape) for store in options.stores}
    if options.json:
        print(json.dumps({store: vars(counts) for store, counts in result.items()}))
        return
    for store, counts in result.items():
        cells = [f"{getattr(counts, name):,}" for name in COUNTED]
        print("|".join(["", f" `{store}` ", f" {counts.buckets} ", *(f" {cell} " for cell in cells), ""]))


if __name__ == "__main__":
    main()
