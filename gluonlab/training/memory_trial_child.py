"""The child process in which `gluonlab.training.run_memory` measures the memory of a run.

The child executes a shortened run that needs as much memory as the full run. The shortened run has
two epochs, batches of all sizes, and as many queued batches as the full run. Only repetitions are
left out: further steps with the same batch size, and images of a streamed data set for these steps.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
from collections import deque
from functools import partial
from typing import Any, Callable, Deque, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from mxnet import gluon, nd

from gluonlab.config import TrainConfig
from gluonlab.data.loading.batch_loader import fits_on_devices
from gluonlab.data.loading.split_batch import Batch
from gluonlab.data.sets.dataset import ReadAheadSplit, Reading, Split
from gluonlab.errors import GluonlabError, name_options
from gluonlab.host.resources import child_pids, peak_bytes
from gluonlab.kvstores.process_groups import ProcessGroup
from gluonlab.parallel import strategy_class
from gluonlab.parallel.strategy import MakeNet, PhaseHook, ScoredImages, Strategy, StrategyPlan
from gluonlab.training.evaluate import BATCHES_AHEAD
from gluonlab.training.loop import train_plan
from gluonlab.training.loss_meter import READ_EVERY
from gluonlab.training.plan import Plan, make_plan
from gluonlab.training.reporter import Reporter
from gluonlab.training.run_memory import GpuMemoryUse, dataset_sizes

EPOCHS = 2  # in the second epoch all graphs have been bound
MAX_QUEUED_STEPS = 2 * READ_EVERY  # steps that may be queued; each holds its batch
SMALL_RATE = 1e-30  # so that nothing diverges


class _TruncatedSplit:
    """The first images of a streamed split."""

    def __init__(self, split: Split, images: int) -> None:
        self.split, self.images = split, images

    def __len__(self) -> int:
        return self.images

    @property
    def image_shape(self) -> Tuple[int, int, int]:
        return self.split.image_shape

    def batch(self, indices: Any) -> Any:
        return self.split.batch(indices)


class _TruncatedReadAheadSplit(_TruncatedSplit):
    split: ReadAheadSplit

    def start_reading(self, indices: Any, seeds: Any = None) -> Reading:
        return self.split.start_reading(indices, seeds)


def truncate_split(split: Split, batch_size: int, resident_bytes: int) -> Split:
    """Shorten a streamed split to as many images as can be queued.

    More images would not need more memory. Splits on devices or in host memory are not shortened.
    """
    images = min(len(split), (MAX_QUEUED_STEPS + BATCHES_AHEAD) * batch_size + len(split) % batch_size)
    if fits_on_devices(split, resident_bytes) or images == len(split):
        return split
    return (_TruncatedReadAheadSplit if isinstance(split, ReadAheadSplit) else _TruncatedSplit)(split, images)


def reduce_plan(plan: Plan) -> Plan:
    """Return the plan of a shorter run that needs as much memory; its learning rate is tiny."""
    dataset, size, resident = plan.dataset, plan.global_batch_size, plan.device_cache_bytes
    train, test = (truncate_split(dataset.train, size, resident), truncate_split(dataset.test, size, resident))
    truncated = dataclasses.replace(dataset, train=train, test=test)
    rates = dataclasses.replace(plan.rates, base_lr=SMALL_RATE, final_lr=0.0)
    params = {**plan.optimizer_params, "learning_rate": SMALL_RATE}
    epochs = min(plan.epochs, EPOCHS)
    return dataclasses.replace(plan, dataset=truncated, epochs=epochs, rates=rates, optimizer_params=params)


class _ReducedRun(Reporter):
    """Reporter and strategy of a run that computes only the first batch of each size.

    This run keeps as many batches in memory as a full run has in its queue. In the second epoch, it
    only computes batches of the first size, because the arrays for all other sizes have already
    been allocated.
    """

    def __init__(self) -> None:
        # losses of the last step with each batch size
        self._losses: Dict[Tuple[int, ...], List[nd.NDArray]] = {}
        self._scored: Set[Tuple[int, ...]] = set()
        self._waiting: Deque[Batch] = deque(maxlen=MAX_QUEUED_STEPS)
        # whether the next step, or the next evaluated batch, is the first of an epoch
        self._first = self._first_score = False

    def strategy(self, make_net: MakeNet, loss: gluon.HybridBlock, plan: StrategyPlan, group: ProcessGroup) -> Strategy:
        """Create the strategy of the plan's --strategy, with `step` and `score` of this class."""
        run = self

        class ReducedStrategy(strategy_class(plan.parallelism.mode)):  # type: ignore[misc]
            def step(self, batch: Batch, around: Optional[PhaseHook] = None) -> List[nd.NDArray]:
                return run.step(partial(super().step, batch, around), batch)

            def score(self, batch: Batch) -> Iterator[ScoredImages]:
                return run.score(super().score, batch)

        return ReducedStrategy(make_net, loss, plan, group)

    def epoch_begins(self, epoch: int, epochs: int, images: int) -> None:
        self._first = self._first_score = True

    def epoch_ends(self, line: str) -> None:
        self._waiting.clear()

    def step(self, train_batch: Callable[[], List[nd.NDArray]], batch: Batch) -> List[nd.NDArray]:
        """Train on an epoch's first batch, and on the first batch with each list of shard sizes.

        For all other batches, return the losses of an earlier batch with the same sizes.
        """
        sizes = tuple(map(len, batch.xs))
        self._waiting.append(batch)
        if self._first or sizes not in self._losses:
            # copies, because a graph of another size overwrites the outputs
            self._losses[sizes] = [loss.copy() for loss in train_batch()]
        self._first = False
        return self._losses[sizes]

    def score(self, evaluate: Callable[[Batch], Iterator[ScoredImages]], batch: Batch) -> Iterator[ScoredImages]:
        """Score an evaluation's first batch, and the first batch with each list of shard sizes.

        Skip all other batches.
        """
        sizes = tuple(map(len, batch.xs))
        if self._first_score or sizes not in self._scored:
            self._scored.add(sizes)
            yield from evaluate(batch)
        self._first_score = False


def main(arguments: Sequence[str]) -> None:
    """Execute the shortened run, and print its peak memory as a line of JSON.

    ``arguments``: the settings as JSON, and the result of `dataset_sizes` as JSON, or null.
    """
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    settings, expected_sizes = map(json.loads, arguments)
    try:
        plan = make_plan(TrainConfig(**settings))
        if expected_sizes is not None and dataset_sizes(plan.dataset) != expected_sizes:
            _print_answer(other=True)
            return
        memory = GpuMemoryUse(plan.ctxs)
        reduced = _ReducedRun()
        train_plan(reduce_plan(plan), reduced.strategy, reduced)
        _print_answer(bytes=memory.used_bytes() if memory.on_gpus else _peak_process_bytes())
    except GluonlabError as error:
        with name_options():  # the parent process converts the message if no command is running
            _print_answer(error=str(error), raised=type(error).__name__)


def _peak_process_bytes() -> int:
    """Return the peak memory of this process and of its decoder processes."""
    return sum(map(peak_bytes, [os.getpid(), *child_pids(os.getpid())]))


def _print_answer(**answer: Any) -> None:
    print(json.dumps(answer), flush=True)


def _exit_with_parent() -> None:
    """Exit when standard input is closed, which means that the parent process has exited."""
    # os.read, because a thread in sys.stdin.read holds a lock that Python's exit needs
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
