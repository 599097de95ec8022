"""A worker that makes steps with drawn gradients over a group, and writes down what comes of them;
the same steps in one process.

python served.py FOLDER ASKED: ASKED is JSON, the arguments of `steps`.
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


def parameters(devices, seed, shapes=SHAPES):
    drawn = np.random.RandomState(seed)
    found = gluon.ParameterDict()
    for number, shape in enumerate(shapes):
        name = f"p{number}_{'bias' if len(shape) == 1 else 'weight'}"  # lars spares a bias
        param = found.get(name, shape=tuple(shape), wd_mult=float(len(shape) > 1))
        value = nd.array(drawn.uniform(-1, 1, shape))
        param.initialize(mx.init.Zero(), [mx.cpu(i) for i in range(devices)])
        param.set_data(value)
    return found


def gradients(step, rank, workers, weights):
    """Of the mean of ``workers``: some noise of the rank, and a pull towards zero."""
    drawn = np.random.RandomState(1000 * step + rank)
    return [drawn.normal(0, 1, w.shape) / 3 + w / workers for w in weights]


def trainer_of(params, asked, store):
    rates = LearningRates(asked["lr"], asked["steps"], "cosine", warmup_steps=3, final_lr=0.001)
    optimizer = make_optimizer(
        asked["optimizer"],
        {"learning_rate": asked["lr"], "wd": 0.01, "lr_scheduler": rates, **asked["more"]},
    )
    return BucketedTrainer(params, optimizer, None, store, bucket_bytes=asked["bucket_bytes"])


def sizes(step, workers):
    """The images of each worker in a step: ragged, and none at times."""
    return [(step + 2 * rank) % 3 for rank in range(workers)]


def steps(group, devices, asked):
    """The weights after the steps that ``asked`` names, as one vector, by worker."""
    params = parameters(devices, seed=group.rank)  # rank 0's count
    store = GroupKVStore(make_kvstore("device"), group, asked["on_servers"])
    trainer = trainer_of(params, asked, store)
    trainer.prepare()
    for step in range(1, asked["steps"] + 1):
        of_worker = sizes(step, group.size)
        own = [param.data(mx.cpu(0)).asnumpy() for param in params.values()]
        found = gradients(step, group.rank, group.size, own)
        for param, grad in zip(params.values(), found):
            for device, array in enumerate(param.list_grad()):
                array[:] = nd.array(grad * of_worker[group.rank] * (device == 0))
        trainer.apply(max(1, sum(of_worker)))
    trainer.synchronize()
    return flat(params, devices - 1)


def alone(workers, asked):
    """What `steps` must come to: one device that has the sum of all gradients."""
    params = parameters(1, seed=0)
    trainer = trainer_of(params, asked, None)
    for step in range(1, asked["steps"] + 1):
        of_worker = sizes(step, workers)
        own = [param.data(mx.cpu(0)).asnumpy() for param in params.values()]
        each = [gradients(step, rank, workers, own) for rank in range(workers)]
        for param, grads in zip(params.values(), zip(*each)):
            summed = sum(grad * images for grad, images in zip(grads, of_worker))
            param.list_grad()[0][:] = nd.array(summed)
        trainer.apply(max(1, sum(of_worker)))
    return flat(params, 0)


def flat(params, device):
    return np.concatenate([p.data(mx.cpu(device)).asnumpy().ravel() for p in params.values()])


def turn_ranks_round():
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
        turn_ranks_round()
    with ParameterServer(asked["backend"]) as group:
        found = steps(group, asked["devices"], asked)
        told = group.staleness()
    np.save(str(folder / f"{group.rank}.npy"), found)
    if group.rank == 0:
        (folder / "staleness.json").write_text(json.dumps(told))
