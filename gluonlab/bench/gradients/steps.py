"""A step of allreduce and update on a network's gradients, with each kvstore under each trainer.

Nothing is computed forward.
"""

from __future__ import annotations

import math
import statistics
import sys
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet import gluon, nd
from tqdm import tqdm

from gluonlab.bench.allreduce.memory import require_memory
from gluonlab.bench.harness.turns import time_in_turns
from gluonlab.kvstores import KVSTORES, make_kvstore
from gluonlab.update.trainer import BucketedTrainer

GLUON, BUCKETED = "gluon.Trainer", "BucketedTrainer"
TRAINERS: Dict[str, Callable[..., gluon.Trainer]] = {
    GLUON: gluon.Trainer,
    BUCKETED: BucketedTrainer,
}
STORES = tuple(name for name, kind in KVSTORES.items() if not kind.gpus_only)

# With a learning rate of 1/2, the first step from zero leaves half of the sum of whole numbers,
# which is exact. No weight decay.
SGD = {"learning_rate": 0.5, "momentum": 0.9, "wd": 0.0}
LARGEST = 8  # of a gradient

Shape = Tuple[int, ...]


def resnet18_shapes() -> List[Shape]:
    """The shapes of the parameters with gradients of Gluon's resnet18_v1 for 1,000 classes: 62
    arrays, 11,689,512 numbers.

    20 convolutions without biases, a scale and a shift for each of 20 batch normalisations, and the
    last layer's weight and bias.
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
    def name(self) -> str:
        """``step 2 BucketedTrainer ring``: that of its series."""
        return f"step {self.world_size} {self.trainer} {self.store}"

    @property
    def time_s(self) -> float:
        """The median over the rounds."""
        return statistics.median(self.seconds)


def measure_steps(
    shapes: Sequence[Shape], stores: Sequence[str], ctxs: Sequence[mx.Context], rounds: int
) -> List[StepRow]:
    """Every store under both trainers, which take turns.

    Raises ConfigError when there is not enough memory.
    """
    subjects, errors = make_subjects(shapes, stores, ctxs)
    steps = {subject.label: subject.step for subject in subjects}
    with tqdm(total=rounds, disable=None, dynamic_ncols=True, leave=False, file=sys.stderr) as bar:
        seconds = time_in_turns(steps, rounds, done=bar.update)
    return [
        StepRow(subject.kind, subject.store, len(ctxs), tuple(seconds[subject.label]), error)
        for subject, error in zip(subjects, errors)
    ]


def make_subjects(
    shapes: Sequence[Shape], stores: Sequence[str], ctxs: Sequence[mx.Context]
) -> "Tuple[List[Subject], List[float]]":
    """Every store under both trainers, and the error of the first step of each.

    Raises ConfigError as `measure_steps` does.
    """
    size = 4 * sum(map(math.prod, shapes))
    # Bucketed, each has weights, gradients and momentum of its own; under gluon.Trainer all share
    # the first two.
    need = size * len(ctxs) * (len(stores) * (3 + 2) + 2)
    if ctxs[0].device_type == "cpu":
        require_memory(
            need,
            f"{len(stores)} stores on {len(ctxs)} devices",
            "choose fewer with --stores, or smaller --world-sizes",
        )
    gradients = [
        [_random(rank, number, shape) for number, shape in enumerate(shapes)]
        for rank in range(len(ctxs))
    ]
    shared = parameters(shapes, ctxs)
    subjects = [
        Subject(kind, store, shared if kind == GLUON else parameters(shapes, ctxs))
        for kind in TRAINERS
        for store in stores
    ]
    return subjects, [subject.check(gradients) for subject in subjects]


class Subject:
    """A trainer with its store and its parameters."""

    def __init__(self, kind: str, store: str, params: Sequence[gluon.Parameter]) -> None:
        self.kind, self.store, self.params = kind, store, params
        self.label = f"{kind} {store}"
        ctxs = params[0].list_ctx()
        self.trainer = TRAINERS[kind](
            list(params), "sgd", dict(SGD), kvstore=make_kvstore(store, ctxs)
        )

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
        """The first step from zero: the largest difference of a weight on any device from the exact
        one. Gradients are zero then.

        So they stay, step after step, however often they are summed.
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
        for number, param in enumerate(self.params):
            expected = -SGD["learning_rate"] * np.sum(
                [own[number] for own in gradients], axis=0, dtype=np.int32
            )
            differences += [np.max(np.abs(data.asnumpy() - expected)) for data in param.list_data()]
            for grad in param.list_grad():
                grad[:] = 0
        nd.waitall()
        return float(np.max(differences))


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
    return np.random.RandomState((rank, number)).randint(
        -LARGEST, LARGEST + 1, shape, dtype=np.int8
    )
