"""A simulation of ``torch.distributed`` in NumPy. Its ranks are threads of this process.

The simulation provides the functions and classes that a data-parallel program calls, under the same
names, and records each rank's actions. In a real program, a rank that waits for a rank that has
ended would hang. In the simulation, a `HangError` is raised in the waiting rank.
"""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np

from gluonlab.host.signals import delayed_signals


class HangError(Exception):
    """Raised in a rank that waits for a rank that has ended. A real process would hang."""

    def __init__(self, rank: int, ended: int) -> None:
        super().__init__(f"rank {rank} waits for rank {ended}, which has already returned")
        self.rank, self.ended_rank = rank, ended


class UnequalShapesError(Exception):
    """Raised if ranks pass arrays of different shapes to the same allreduce."""

    def __init__(self, shapes: "Dict[int, Any]") -> None:
        super().__init__(", ".join(f"rank {rank}: {shapes[rank]}" for rank in sorted(shapes)))


class RankOutcome(NamedTuple):
    """The return value of a rank's function, or the exception that it raised."""

    value: Any
    error: Optional[BaseException]


class RankGroup:
    """A group of ``size`` ranks, each of which runs in its own thread."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._condition = threading.Condition()
        self._inputs: List[Dict[int, Any]] = []  # for each allreduce: rank -> its array
        self._sum_counts = [0] * size  # the number of allreduces that each rank has started
        self._ended_ranks: List[int] = []
        self._rank_of: Dict[int, int] = {}  # thread id -> rank

    @property
    def rank(self) -> int:
        """The rank of the calling thread."""
        return self._rank_of[threading.get_ident()]

    def run(self, function: Callable[[int], Any]) -> List[RankOutcome]:
        """Call ``function(rank)`` in each rank, wait for all ranks, and return their outcomes."""
        outcomes = [RankOutcome(None, None)] * self.size

        def run_one(rank: int) -> None:
            """Call ``function(rank)``. Record its outcome, and that this rank has ended."""
            self._rank_of[threading.get_ident()] = rank
            try:
                outcomes[rank] = RankOutcome(function(rank), None)
            except BaseException as error:  # a student's code may raise any exception
                outcomes[rank] = RankOutcome(None, error)
            finally:
                with self._condition:
                    self._ended_ranks.append(rank)
                    self._condition.notify_all()

        threads = [threading.Thread(target=run_one, args=(rank,), daemon=True) for rank in range(self.size)]
        try:
            with delayed_signals():  # an interrupted start would leave running threads
                for thread in threads:
                    thread.start()
            # Thread.join is not used, because after an interrupt it treats a running thread as a
            # stopped one. The timeout is needed because Python may miss a signal just before the
            # wait.
            with self._condition:
                while not self._condition.wait_for(lambda: len(self._ended_ranks) == self.size, 0.1):
                    continue
        finally:  # if the answer exceeded its time limit, the threads still run
            for rank, thread in enumerate(threads):
                if thread.ident is not None and rank not in self._ended_ranks:
                    exception = ctypes.py_object(SystemExit)
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), exception)
        return outcomes

    def allreduce(self, array: Any) -> Any:
        """Wait for all ranks, and return the sum of their arrays in a new array.

        Raises HangError if another rank has ended without this call, and UnequalShapesError for
        arrays of different shapes.
        """
        rank = self.rank
        with self._condition:
            call_index = self._sum_counts[rank]
            self._sum_counts[rank] += 1
            if call_index == len(self._inputs):
                self._inputs.append({})
            inputs = self._inputs[call_index]
            inputs[rank] = np.array(array, dtype=np.float64)
            self._condition.notify_all()
            while len(inputs) < self.size:
                for other in self._ended_ranks:
                    if other not in inputs:
                        raise HangError(rank, other)
                self._condition.wait(0.1)
        shapes = {other: each.shape for other, each in inputs.items()}
        if len(set(shapes.values())) > 1:
            raise UnequalShapesError(shapes)
        return np.sum([inputs[other] for other in range(self.size)], axis=0)


Array = Any  # np.ndarray


class Images(NamedTuple):
    """A data set: images of shape (n, features), and labels of shape (n,) that are 0 or 1."""

    xs: Array
    ys: Array

    def __len__(self) -> int:
        return len(self.ys)


@dataclass
class RankRecord:
    """The actions of one rank."""

    joins: List[Tuple[Any, Any]] = field(default_factory=list)  # (rank, world_size)
    image_orders: List[List[int]] = field(default_factory=list)  # the images of each epoch
    # the sampler's epoch in each pass over the images, or None if there is no sampler
    sampler_epochs: List[Optional[int]] = field(default_factory=list)
    gradient_sums: int = 0  # the number of gradients that were summed over the ranks
    updates: int = 0
    evaluated_images: List[Images] = field(default_factory=list)
    logged_lines: List[str] = field(default_factory=list)
    weight: Optional[Array] = None  # the model's weight after the last update


class Distributed:
    """The object that a program receives as ``dist``, instead of ``torch.distributed``.

    The object also contains the classes Model, DistributedDataParallel, DistributedSampler and
    DataLoader.

    Attributes:
        records: the actions of each rank.
        outcomes: the return value or exception of each rank.
    """

    def __init__(self) -> None:
        self.Model = partial(Model, self)
        self.DistributedDataParallel = ModelReplica
        self.DistributedSampler = DistributedSampler
        self.DataLoader = partial(DataLoader, self)
        self.records: List[RankRecord] = []
        self.outcomes: List[RankOutcome] = []
        self._ranks: Optional[RankGroup] = None

    def spawn(self, fn: Callable[..., Any], args: Tuple[Any, ...] = (), nprocs: int = 1) -> None:
        """Call ``fn(rank, *args)`` in each of ``nprocs`` processes, and wait for them."""
        fn_args = (*args,)  # raises TypeError if args is not iterable
        self._ranks = RankGroup(nprocs)
        self.records = [RankRecord() for _ in range(nprocs)]
        self.outcomes = self._ranks.run(lambda rank: fn(rank, *fn_args))
        for outcome in self.outcomes:
            if outcome.error is not None:
                raise outcome.error

    def init_process_group(
        self, backend: str, init_method: Optional[str] = None, world_size: int = -1, rank: int = -1
    ) -> None:
        """Record that this rank joins the group. ``backend`` and ``init_method`` are ignored."""
        self._own_record.joins.append((rank, world_size))

    def get_rank(self) -> int:
        """Return the rank of the calling process."""
        return self._group.rank

    def get_world_size(self) -> int:
        """Return the number of processes."""
        return self._group.size

    def log(self, text: object) -> None:
        """Record a line, and print it with the rank."""
        self._own_record.logged_lines.append(str(text))
        print(f"[rank {self._group.rank}] {text}")

    @property
    def _group(self) -> RankGroup:
        if self._ranks is None:
            raise RuntimeError("there is no process group yet: start the processes with spawn")
        return self._ranks

    @property
    def _own_record(self) -> RankRecord:
        return self.records[self._group.rank]


class Model:
    """Logistic regression with three features."""

    def __init__(self, dist: Distributed) -> None:
        self.dist, self.weight = dist, np.zeros(3)
        self._gradient = np.zeros(3)

    def backward(self, xs: Array, ys: Array) -> None:
        """Set the gradient of the mean loss on images ``xs`` (n, 3) with labels ``ys`` (n,)."""
        probabilities = 1 / (1 + np.exp(-(xs @ self.weight)))
        self._gradient = xs.T @ (probabilities - ys) / len(ys)

    def step(self, lr: float = 0.5) -> None:
        """Subtract ``lr`` times the gradient from the weight, and count the update."""
        self.weight = self.weight - lr * self._gradient
        self.dist._own_record.weight = self.weight
        self.dist._own_record.updates += 1

    def score(self, images: Images) -> float:
        """Return the accuracy on these images, as a fraction."""
        self.dist._own_record.evaluated_images.append(images)
        return float(((images.xs @ self.weight > 0) == images.ys).mean())


class ModelReplica:
    """The replica of a model on one rank. ``module``: the model itself."""

    def __init__(self, model: Model) -> None:
        self.module = model

    def backward(self, xs: Array, ys: Array) -> None:
        """Wait for all ranks, and set the gradient to the mean of their gradients."""
        model = self.module
        model.backward(xs, ys)
        group = model.dist._group
        model._gradient = group.allreduce(model._gradient) / group.size
        model.dist._own_record.gradient_sums += 1

    def step(self, lr: float = 0.5) -> None:
        """Update the weight."""
        self.module.step(lr)

    def score(self, images: Images) -> float:
        """Return the accuracy on these images."""
        return self.module.score(images)


class DistributedSampler:
    """An iterable of the image numbers of one rank. All ranks share the same permutation."""

    def __init__(self, dataset: Any, num_replicas: int, rank: int, shuffle: bool = True, seed: int = 0) -> None:
        if not 0 <= rank < num_replicas:
            raise ValueError(f"invalid rank {rank}: use a rank from 0 to {num_replicas - 1}")
        self.size, self.num_replicas, self.rank = len(dataset), num_replicas, rank
        self.shuffle, self.seed, self.epoch = shuffle, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch. The permutation depends on the epoch and on the seed."""
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-self.size // self.num_replicas)

    def __iter__(self) -> Iterator[int]:
        order = np.arange(self.size)
        if self.shuffle:
            order = np.random.RandomState([self.seed, self.epoch]).permutation(order)
        padded = np.resize(order, len(self) * self.num_replicas)
        return iter(padded[self.rank :: self.num_replicas].tolist())


class DataLoader:
    """An iterable of batches ``(xs, ys)`` that records the order of the images."""

    def __init__(
        self,
        dist: Distributed,
        dataset: Images,
        batch_size: int = 1,
        shuffle: bool = False,
        sampler: Optional[DistributedSampler] = None,
    ) -> None:
        if sampler is not None and shuffle:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        self.dist, self.dataset, self.batch_size = dist, dataset, batch_size
        self.shuffle, self.sampler = shuffle, sampler

    def __len__(self) -> int:
        count = len(self.dataset) if self.sampler is None else len(self.sampler)
        return -(-count // self.batch_size)

    def __iter__(self) -> Iterator[Tuple[Array, Array]]:
        order = list(range(len(self.dataset))) if self.sampler is None else list(self.sampler)
        if self.shuffle:
            order = np.random.permutation(order).tolist()
        image_order: List[int] = []
        self.dist._own_record.image_orders.append(image_order)
        self.dist._own_record.sampler_epochs.append(None if self.sampler is None else self.sampler.epoch)
        for begin in range(0, len(order), self.batch_size):
            batch = order[begin : begin + self.batch_size]
            image_order.extend(batch)
            yield self.dataset.xs[batch], self.dataset.ys[batch]


def some_images(count: int, seed: int) -> Images:
    """Return random images with three features, and labels that a linear model separates."""
    random = np.random.RandomState([8, seed])
    xs = random.normal(size=(count, 3))
    return Images(xs, (xs @ np.array([1.0, -2.0, 0.5]) > 0).astype(float))


DistributedProgram = Callable[[Distributed, Images, Images, int, int], Any]
