"""A worker program that trains with random gradients over a group, and its reference.

python served.py FOLDER SETTINGS writes the weights; SETTINGS is the JSON of `run_worker_steps`.
"""

import json
import os
import sys
from pathlib import Path

import gluonlab  # noqa: F401 # isort: skip  # first: MXNet starts faster with it
import mxnet as mx
import numpy as np
from mxnet import gluon, nd

from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.kvstores import make_kvstore
from gluonlab.kvstores.process_group_store import GroupKVStore
from gluonlab.launch.group_processes import RANK_VARIABLE
from gluonlab.launch.parameter_server_group import ParameterServer
from gluonlab.optimizers.optimizer_registry import make_optimizer
from gluonlab.training.learning_rate_schedule import LearningRates

SHAPES = [(7, 5), (7,), (3, 4, 3, 3), (11, 7), (11,)]


def make_parameters(devices, seed, shapes=SHAPES):
    random = np.random.RandomState(seed)
    params = gluon.ParameterDict()
    for number, shape in enumerate(shapes):
        name = f"p{number}_{'bias' if len(shape) == 1 else 'weight'}"  # lars treats a bias differently
        param = params.get(name, shape=tuple(shape), wd_mult=float(len(shape) > 1))
        value = nd.array(random.uniform(-1, 1, shape))
        param.initialize(mx.init.Zero(), [mx.cpu(i) for i in range(devices)])
        param.set_data(value)
    return params


def draw_gradients(step, rank, workers, weights):
    """Return the gradients of a rank: random noise, and a pull toward zero."""
    random = np.random.RandomState(1000 * step + rank)
    return [random.normal(0, 1, w.shape) / 3 + w / workers for w in weights]


def make_trainer(params, settings, store):
    rates = LearningRates(settings["lr"], settings["steps"], "cosine", warmup_steps=3, final_lr=0.001)
    optimizer = make_optimizer(
        settings["optimizer"], {"learning_rate": settings["lr"], "wd": 0.01, "lr_scheduler": rates, **settings["more"]}
    )
    return BucketedTrainer(params, optimizer, None, store, bucket_bytes=settings["bucket_bytes"])


def worker_batch_sizes(step, workers):
    """Return the number of images of each worker in a step, which may be zero."""
    return [(step + 2 * rank) % 3 for rank in range(workers)]


def run_worker_steps(group, devices, settings):
    """Train as a worker of a group; return the weights as one vector."""
    params = make_parameters(devices, seed=group.rank)  # the kvstore distributes those of rank 0
    store = GroupKVStore(make_kvstore("device"), group, settings["on_servers"])
    trainer = make_trainer(params, settings, store)
    trainer.prepare()
    for step in range(1, settings["steps"] + 1):
        batch_sizes = worker_batch_sizes(step, group.size)
        own = [param.data(mx.cpu(0)).asnumpy() for param in params.values()]
        gradients = draw_gradients(step, group.rank, group.size, own)
        for param, grad in zip(params.values(), gradients):
            for device, array in enumerate(param.list_grad()):
                array[:] = nd.array(grad * batch_sizes[group.rank] * (device == 0))
        trainer.apply(max(1, sum(batch_sizes)))
    trainer.synchronize()
    return parameter_vector(params, devices - 1)


def train_reference(workers, settings):
    """Return the weights of the reference: one device with the sum of all gradients."""
    params = make_parameters(1, seed=0)
    trainer = make_trainer(params, settings, None)
    for step in range(1, settings["steps"] + 1):
        batch_sizes = worker_batch_sizes(step, workers)
        own = [param.data(mx.cpu(0)).asnumpy() for param in params.values()]
        rank_gradients = [draw_gradients(step, rank, workers, own) for rank in range(workers)]
        for param, grads in zip(params.values(), zip(*rank_gradients)):
            summed = sum(grad * images for grad, images in zip(grads, batch_sizes))
            param.list_grad()[0][:] = nd.array(summed)
        trainer.apply(max(1, sum(batch_sizes)))
    return parameter_vector(params, 0)


def parameter_vector(params, device):
    return np.concatenate([p.data(mx.cpu(device)).asnumpy().ravel() for p in params.values()])


def reverse_ranks():
    """Make gluonlab number the workers in reverse, as a launcher may, unlike MXNet's scheduler."""
    create = mx.kv.create

    def create_reversed(name):
        store = create(name)
        os.environ[RANK_VARIABLE] = str(store.num_workers - 1 - store.rank)
        return store

    mx.kv.create = create_reversed


if __name__ == "__main__":
    folder, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
    if settings.get("turned_round"):
        reverse_ranks()
    with ParameterServer(settings["backend"]) as group:
        weights = run_worker_steps(group, settings["devices"], settings)
        staleness = group.staleness()
    np.save(str(folder / f"{group.rank}.npy"), weights)
    if group.rank == 0:
        (folder / "staleness.json").write_text(json.dumps(staleness))
