"""The child of `gluonlab.training.run_memory`: a run cut down to what decides its memory.

It is the run itself, by `train_plan`, from the data set to the curves: two epochs with all sizes of
batches that occur, and with as many batches waiting as may wait. Only what would repeat is left
out: after the first steps of a size the others are not computed, and of a data set that is streamed
no more is read than that takes.
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
from gluonlab.data.loading.batch_loader import stays_on_devices
from gluonlab.data.loading.split_batch import Batch
from gluonlab.data.sets.dataset import ReadAheadSplit, Reading, Split
from gluonlab.errors import GluonlabError
from gluonlab.host.resources import child_pids, peak_bytes
from gluonlab.kvstores.process_groups import Group
from gluonlab.parallel import strategy_class
from gluonlab.parallel.strategy import Around, MakeNet, Scored, Strategy, StrategyPlan
from gluonlab.training.evaluate import AHEAD
from gluonlab.training.loop import train_plan
from gluonlab.training.loss_meter import STRIDE
from gluonlab.training.plan import Plan, make_plan
from gluonlab.training.reporter import Reporter
from gluonlab.training.run_memory import DeviceMemory, about

EPOCHS = 2  # in the second all graphs are bound
WAITING = 2 * STRIDE  # steps that may be queued; each holds its batch
SMALL_RATE = 1e-30  # nothing diverges


class _Part:
    """The first images of a split that is streamed."""

    def __init__(self, split: Split, images: int) -> None:
        self.split, self.images = split, images

    def __len__(self) -> int:
        return self.images

    @property
    def image_shape(self) -> Tuple[int, int, int]:
        return self.split.image_shape

    def batch(self, indices: Any) -> Any:
        return self.split.batch(indices)


class _ReadAheadPart(_Part):
    split: ReadAheadSplit

    def begin(self, indices: Any, seeds: Any = None) -> Reading:
        return self.split.begin(indices, seeds)


def cut(split: Split, batch_size: int, resident_bytes: int) -> Split:
    """A split without the batches that would only repeat what others do.

    Only what is read batch by batch is cut.
    """
    images = min(len(split), (WAITING + AHEAD) * batch_size + len(split) % batch_size)
    if stays_on_devices(split, resident_bytes) or images == len(split):
        return split
    return (_ReadAheadPart if isinstance(split, ReadAheadSplit) else _Part)(split, images)


def cut_plan(plan: Plan) -> Plan:
    """The plan of a run that takes as much memory, in less time, and whose losses stay finite."""
    dataset, size, resident = plan.dataset, plan.global_batch_size, plan.resident_bytes
    train, test = cut(dataset.train, size, resident), cut(dataset.test, size, resident)
    part = dataclasses.replace(dataset, train=train, test=test)
    rates = dataclasses.replace(plan.rates, base_lr=SMALL_RATE, final_lr=0.0)
    params = {**plan.optimizer_params, "learning_rate": SMALL_RATE}
    epochs = min(plan.epochs, EPOCHS)
    return dataclasses.replace(
        plan, dataset=part, epochs=epochs, rates=rates, optimizer_params=params
    )


class _Few(Reporter):
    """Makes a strategy that computes the first batches of each size, and keeps a queue's.

    In the second epoch it is the first size alone: all that other sizes leave behind is there then.
    """

    def __init__(self) -> None:
        # of each size, from its last step
        self._losses: Dict[Tuple[int, ...], List[nd.NDArray]] = {}
        self._scored: Set[Tuple[int, ...]] = set()
        self._waiting: Deque[Batch] = deque(maxlen=WAITING)
        self._first = self._first_score = False  # of an epoch

    def strategy(
        self, make_net: MakeNet, loss: gluon.HybridBlock, plan: StrategyPlan, group: Group
    ) -> Strategy:
        few = self

        class OfFewBatches(strategy_class(plan.split.way)):  # type: ignore[misc]
            def step(self, batch: Batch, around: Optional[Around] = None) -> List[nd.NDArray]:
                return few.step(partial(super().step, batch, around), batch)

            def score(self, batch: Batch) -> Iterator[Scored]:
                return few.score(super().score, batch)

        return OfFewBatches(make_net, loss, plan, group)

    def epoch_begins(self, epoch: int, epochs: int, images: int) -> None:
        self._first = self._first_score = True

    def epoch_ends(self, line: str) -> None:
        self._waiting.clear()

    def step(self, train: Callable[[], List[nd.NDArray]], batch: Batch) -> List[nd.NDArray]:
        sizes = tuple(map(len, batch.xs))
        self._waiting.append(batch)
        if self._first or sizes not in self._losses:
            # copies: what a graph leaves behind is lost when one of another size runs
            self._losses[sizes] = [loss.copy() for loss in train()]
        self._first = False
        return self._losses[sizes]

    def score(
        self, evaluate: Callable[[Batch], Iterator[Scored]], batch: Batch
    ) -> Iterator[Scored]:
        sizes = tuple(map(len, batch.xs))
        if self._first_score or sizes not in self._scored:
            self._scored.add(sizes)
            yield from evaluate(batch)
        self._first_score = False


def main(words: Sequence[str]) -> None:
    """Print one line of JSON about a run of ``words``: settings, and what `about` said of the data.

    Both are JSON.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    settings, expected = map(json.loads, words)
    try:
        plan = make_plan(TrainConfig(**settings))
        if expected is not None and about(plan.dataset) != expected:
            _tell(other=True)
            return
        memory = DeviceMemory(plan.ctxs)
        few = _Few()
        train_plan(cut_plan(plan), few.strategy, few)
        _tell(bytes=memory.taken() if memory.on_gpus else _peak())
    except GluonlabError as error:
        _tell(error=str(error), raised=type(error).__name__)


def _peak() -> int:
    """Of this process, and of those that decode images for it."""
    return sum(map(peak_bytes, [os.getpid(), *child_pids(os.getpid())]))


def _tell(**answer: Any) -> None:
    print(json.dumps(answer), flush=True)


def _end_with_parent() -> None:
    """The parent's end of standard input closes with it, however it ends."""
    # not by sys.stdin, whose lock Python would want at its end
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
