"""A worker that makes steps with drawn gradients over a group, and writes down what comes of them;
the same steps in one process.

python served.py FOLDER ASKED: ASKED is JSON, the arguments of `run_worker_steps`.
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
    drawn = np.random.RandomState(seed)
    found = gluon.ParameterDict()
    for number, shape in enumerate(shapes):
        name = f"p{number}_{'bias' if len(shape) == 1 else 'weight'}"  # lars spares a bias
        param = found.get(name, shape=tuple(shape), wd_mult=float(len(shape) > 1))
        value = nd.array(drawn.uniform(-1, 1, shape))
        param.initialize(mx.init.Zero(), [mx.cpu(i) for i in range(devices)])
        param.set_data(value)
    return found


def draw_gradients(step, rank, workers, weights):
    """Of the mean of ``workers``: some noise of the rank, and a pull towards zero."""
    drawn = np.random.RandomState(1000 * step + rank)
    return [drawn.normal(0, 1, w.shape) / 3 + w / workers for w in weights]


def make_trainer(params, asked, store):
    rates = LearningRates(asked["lr"], asked["steps"], "cosine", warmup_steps=3, final_lr=0.001)
    optimizer = make_optimizer(
        asked["optimizer"],
        {"learning_rate": asked["lr"], "wd": 0.01, "lr_scheduler": rates, **asked["more"]},
    )
    return BucketedTrainer(params, optimizer, None, store, bucket_bytes=asked["bucket_bytes"])


def worker_batch_sizes(step, workers):
    """The images of each worker in a step: ragged, and none at times."""
    return [(step + 2 * rank) % 3 for rank in range(workers)]


def run_worker_steps(group, devices, asked):
    """The weights after the steps that ``asked`` names, as one vector, by worker."""
    params = make_parameters(devices, seed=group.rank)  # rank 0's count
    store = GroupKVStore(make_kvstore("device"), group, asked["on_servers"])
    trainer = make_trainer(params, asked, store)
    trainer.prepare()
    for step in range(1, asked["steps"] + 1):
        of_worker = worker_batch_sizes(step, group.size)
        own = [param.data(mx.cpu(0)).asnumpy() for param in params.values()]
        found = draw_gradients(step, group.rank, group.size, own)
        for param, grad in zip(params.values(), found):
            for device, array in enumerate(param.list_grad()):
                array[:] = nd.array(grad * of_worker[group.rank] * (device == 0))
        trainer.apply(max(1, sum(of_worker)))
    trainer.synchronize()
    return parameter_vector(params, devices - 1)


def train_on_one_device(workers, asked):
    """What `run_worker_steps` must come to: one device that has the sum of all gradients."""
    params = make_parameters(1, seed=0)
    trainer = make_trainer(params, asked, None)
    for step in range(1, asked["steps"] + 1):
        of_worker = worker_batch_sizes(step, workers)
        own = [param.data(mx.cpu(0)).asnumpy() for param in params.values()]
        each = [draw_gradients(step, rank, workers, own) for rank in range(workers)]
        for param, grads in zip(params.values(), zip(*each)):
            summed = sum(grad * images for grad, images in zip(grads, of_worker))
            param.list_grad()[0][:] = nd.array(summed)
        trainer.apply(max(1, sum(of_worker)))
    return parameter_vector(params, 0)


def parameter_vector(params, device):
    return np.concatenate([p.data(mx.cpu(device)).asnumpy().ravel() for p in params.values()])


def reverse_ranks():
    """Have gluonlab count the workers from the other end, as a launcher may, whose ranks are told.

    MXNet's scheduler counts them as they come.
    """
    create = mx.kv.create

    def created(name):
        store = create(name)
        os.environ[RANK_VARIABLE] = str(store.num_workers - 1 - store.rank)
        return store

    mx.kv.create = created


if __name__ == "__main__":
    folder, asked = Path(sys.argv[1]), json.loads(sys.argv[2])
    if asked.get("turned_round"):
        reverse_ranks()
    with ParameterServer(asked["backend"]) as group:
        found = run_worker_steps(group, asked["devices"], asked)
        told = group.staleness()
    np.save(str(folder / f"{group.rank}.npy"), found)
    if group.rank == 0:
        (folder / "staleness.json").write_text(json.dumps(told))
