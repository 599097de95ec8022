"""A step of allreduce and update on a network's gradients, with each kvstore under each trainer.

Nothing is computed forward.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import Any, Callable, Dict, List, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon, nd

from gluonlab.bench.harness.machine import require_memory
from gluonlab.bench.harness.rounds import progress
from gluonlab.bench.harness.turns import time_in_turns
from gluonlab.kvstores import KVSTORES, make_kvstore
from gluonlab.update.trainer import BucketedTrainer

GLUON, BUCKETED = "gluon.Trainer", "BucketedTrainer"
Make = Callable[..., gluon.Trainer]
TRAINERS: Dict[str, Make] = {GLUON: gluon.Trainer, BUCKETED: BucketedTrainer}
STORES = tuple(name for name, kind in KVSTORES.items() if not kind.gpus_only)

# With a learning rate of 1/2, the first step from zero leaves half of the sum of whole numbers,
# which is exact. No weight decay.
SGD = {"learning_rate": 0.5, "momentum": 0.9, "wd": 0.0}
LARGEST = 8  # of a gradient

Shape = Tuple[int, ...]


def resnet18_shapes() -> List[Shape]:
    """The shapes of the parameters with gradients of Gluon's resnet18_v1 for 1,000 classes.

    62 arrays, 11,689,512 numbers: 20 convolutions without biases, a scale and a shift for each of
    20 batch normalisations, and the last layer's weight and bias.
    """
    net = gluon.model_zoo.vision.resnet18_v1(classes=1000)
    net.initialize()
    net.infer_shape(nd.zeros((1, 3, 224, 224)))
    return [param.shape for param in net.collect_params().values() if param.grad_req != "null"]


@dataclass(frozen=True)
class StepRow:
    """One store under one trainer.

    ``seconds``: of a step, by round; ``error``: the first step's weights, from the exact ones.
    """

    trainer: str
    store: str
    world_size: int
    seconds: Tuple[float, ...]
    error: float

    @property
    def time_s(self) -> float:
        """The median over the rounds."""
        return median(self.seconds)


def step_name(world_size: int, trainer: str, store: str) -> str:
    """``step 2 BucketedTrainer ring``: the name of a series."""
    return f"step {world_size} {trainer} {store}"


def measure_steps(
    shapes: Sequence[Shape], stores: Sequence[str], ctxs: Sequence[mx.Context], rounds: int
) -> List[StepRow]:
    """Every store under both trainers, which take turns.

    Raises ConfigError when there is not enough memory.
    """
    updates = make_updates(shapes, stores, ctxs)
    with progress(rounds) as bar:
        steps = {update.label: update.step for update in updates}
        seconds = time_in_turns(steps, rounds, done=bar.update)
    return [
        StepRow(one.trainer_name, one.store, len(ctxs), tuple(seconds[one.label]), one.error)
        for one in updates
    ]


def make_updates(
    shapes: Sequence[Shape], stores: Sequence[str], ctxs: Sequence[mx.Context]
) -> "List[Update]":
    """Every store under both trainers, checked. Raises ConfigError as `measure_steps` does."""
    size = 4 * sum(map(math.prod, shapes))
    # Bucketed, each has weights, gradients and momentum of its own; under gluon.Trainer all share
    # the first two.
    need = size * len(ctxs) * (len(stores) * (3 + 2) + 2)
    if ctxs[0].device_type == "cpu":
        what = f"{len(stores)} stores on {len(ctxs)} devices"
        require_memory(need, what, "choose fewer with --stores, or smaller --world-sizes")
    shared = parameters(shapes, ctxs)
    updates = [
        Update(name, store, shared if name == GLUON else parameters(shapes, ctxs))
        for name in TRAINERS
        for store in stores
    ]
    ranks = range(len(ctxs))
    gradients = [[_random(rank, i, shape) for i, shape in enumerate(shapes)] for rank in ranks]
    for update in updates:
        update.check(gradients)
    return updates


class Update:
    """A trainer with its store and its parameters; ``error``: of its first step, once checked."""

    def __init__(self, trainer: str, store: str, params: Sequence[gluon.Parameter]) -> None:
        self.trainer_name, self.store, self.params = trainer, store, params
        self.label = f"{trainer} {store}"
        self.error = math.nan
        kvstore = make_kvstore(store, params[0].list_ctx())
        self.trainer = TRAINERS[trainer](list(params), "sgd", dict(SGD), kvstore=kvstore)

    def step(self) -> None:
        """Allreduce and update, without scaling the gradients."""
        if isinstance(self.trainer, BucketedTrainer):
            self.trainer.apply(1)
            return
        if not self.trainer._update_on_kvstore:
            for data in self._data:
                data._fresh_grad = True  # as backward leaves it: gluon.Trainer updates no others
        self.trainer.step(1, ignore_stale_grad=True)

    def check(self, gradients: Sequence[Sequence[Any]]) -> float:
        """The first step from zero: a weight's largest difference from the exact one.

        Gradients are zero then, and stay so, step after step, however often they are summed.
        """
        for param in self.params:
            param.set_data(nd.zeros(param.shape))
        if isinstance(self.trainer, BucketedTrainer):
            self.trainer.prepare()
        else:
            self.trainer._init_kvstore()  # step() asks how it updates
            self._data = [data for param in self.params for data in param.list_data()]
        for number, param in enumerate(self.params):
            for rank, grad in enumerate(param.list_grad()):
                grad[:] = nd.array(gradients[rank][number], dtype="float32")
        self.step()
        differences = []
        for param, own in zip(self.params, zip(*gradients)):
            expected = -SGD["learning_rate"] * np.sum(own, axis=0, dtype=np.int32)
            differences += [np.max(np.abs(data.asnumpy() - expected)) for data in param.list_data()]
            for grad in param.list_grad():
                grad[:] = 0
        nd.waitall()
        self.error = float(np.max(differences))
        return self.error


def parameters(shapes: Sequence[Shape], ctxs: Sequence[mx.Context]) -> List[gluon.Parameter]:
    """Parameters of these shapes, all zero, with a replica and a gradient on each device."""
    params = [
        gluon.Parameter(f"parameter{number}_weight", shape=shape, init="zeros")
        for number, shape in enumerate(shapes)
    ]
    for param in params:
        param.initialize(ctx=list(ctxs))
    return params


def _random(rank: int, number: int, shape: Shape) -> "np.ndarray[Any, np.dtype[np.int8]]":
    random = np.random.RandomState((rank, number))
    return random.randint(-LARGEST, LARGEST + 1, shape, dtype=np.int8)
