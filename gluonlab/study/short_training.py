"""Trainings of a study: they are looked at in between, and end when they have shown enough."""

from __future__ import annotations

import dataclasses
import time
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, cast

from mxnet import gluon, nd

from gluonlab.config import TrainConfig
from gluonlab.data.loading.split_batch import Batch
from gluonlab.data.sets.dataset import Dataset
from gluonlab.data.sets.dataset_registry import load_dataset
from gluonlab.devices import gpu_count
from gluonlab.errors import DivergedError, warn
from gluonlab.files.atomic_files import temporary_folder
from gluonlab.kvstores.process_groups import SINGLE_PROCESS, ProcessGroup
from gluonlab.parallel.data.strategy import DataParallel
from gluonlab.parallel.strategy import Around, MakeNet
from gluonlab.training.evaluate import Score, evaluate, evaluation_loader
from gluonlab.training.loop import train
from gluonlab.training.plan import Plan
from gluonlab.training.reporter import Reporter

EVALUATED = 512  # images at a time, whatever the training's batches are

read_dataset = lru_cache(maxsize=1)(load_dataset)  # once for all trials of a panel


class Look(NamedTuple):
    """After so many ``steps``, which took so many ``seconds``, but for the first and all looks.

    ``test``: the share of test images that the network gets right; ``train``: of the training
    images, where that was asked for.
    """

    steps: int
    seconds: float
    test: float
    train: Optional[float] = None


class StopTraining(Exception):
    """The training has shown what it was for."""


class AccuracyProbe:
    """Looks after the steps ``marks``, in ascending order, and ends the training after the last.

    Also as soon as ``target`` of the test images are right, where no step of ``thorough`` is left;
    after these it looks at the training images, too. ``reached``: the steps of the first look that
    had the target.
    """

    def __init__(self, marks: Sequence[int], target: float, thorough: Sequence[int] = ()) -> None:
        self.thorough = frozenset(thorough)
        self.marks = sorted({*marks, *thorough})
        self.target, self.looks = target, cast(List[Look], [])
        self.reached: Optional[int] = None
        self._steps, self._seconds, self._began = 0, 0.0, 0.0

    def after_step(self, score: Callable[[bool], Score]) -> None:
        """A step is queued; ``score`` evaluates on the test images, or with True on the others."""
        self._steps += 1
        if self._steps == 1:  # everything is bound and tuned in it
            nd.waitall()
            self._began = time.perf_counter()
        if self._steps not in self.marks:
            return
        nd.waitall()
        self._seconds += time.perf_counter() - self._began
        test = score(False).accuracy
        trained = score(True).accuracy if self._steps in self.thorough else None
        self.looks.append(Look(self._steps, self._seconds, test, trained))
        if self.reached is None and test >= self.target:
            self.reached = self._steps
        last = self.marks[-1]
        if self.reached is not None:
            last = max([self._steps, *self.thorough])
        if self._steps >= last:
            raise StopTraining
        self._began = time.perf_counter()


class _Watched(DataParallel):
    """Data parallelism with a `AccuracyProbe`."""

    def __init__(
        self,
        make_net: MakeNet,
        loss: gluon.HybridBlock,
        plan: Any,
        group: ProcessGroup = SINGLE_PROCESS,
        *,
        watch: AccuracyProbe,
    ) -> None:
        super().__init__(make_net, loss, plan, group)
        self._watch, self._run_plan = watch, plan

    def step(self, batch: Batch, around: Optional[Around] = None) -> List[nd.NDArray]:
        """As `DataParallel.step`, after which the watch looks."""
        losses = super().step(batch, around)
        self._watch.after_step(self._score)
        return losses

    def _score(self, of_training: bool) -> Score:
        self.settle_statistics()
        plan: Plan = self._run_plan
        dataset = plan.dataset
        if of_training:
            dataset = dataclasses.replace(dataset, test=dataset.train)
        seen = dataclasses.replace(plan, dataset=dataset, global_batch_size=EVALUATED)
        batches = evaluation_loader(seen, self.inputs)
        return evaluate(self, batches, len(dataset.classes), group=plan.group)


def watched(
    config: TrainConfig, watch: AccuracyProbe, dataset: Optional[Dataset] = None
) -> Dict[str, Any]:
    """Train until ``watch`` has seen enough; its looks and what it found, as plain values.

    ``diverged``: whether the loss went beyond recovery before. Nothing is written.
    """
    diverged = False
    with temporary_folder("study") as folder:
        here = config.replace(out=str(Path(folder, "run")))
        try:
            strategy = partial(_Watched, watch=watch)
            train(here, cast(Any, strategy), Reporter(), dataset or read_dataset(config.dataset))
        except StopTraining:
            pass
        except DivergedError:
            diverged = True
    looks = [list(look) for look in watch.looks]
    return {"reached": watch.reached, "diverged": diverged, "looks": looks}


def devices_of(count: int) -> Dict[str, Any]:
    """The settings of a TrainConfig for ``count`` GPUs, or CPU devices that stand in for them.

    Every CPU device has one thread, else a single one would already use all cores.
    """
    if gpu_count():
        return {"gpus": count}
    return {"devices": f"cpu*{count}", "threads": 1}


def warn_of_stand_ins() -> None:
    """Warn, once for all trainings, where there is no GPU."""
    if not gpu_count():
        warn("no GPU on this machine: CPU devices stand in for GPUs")


def growing(last: int, factor: float) -> List[int]:
    """Whole numbers from 1 to ``last``, each about ``factor`` times the one before."""
    marks, mark = [], 1.0
    while round(mark) < last:
        marks.append(round(mark))
        mark = max(mark * factor, round(mark) + 1.0)
    return [*marks, last]
