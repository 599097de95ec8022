"""Short training runs for studies, which are evaluated at given steps and may be stopped early."""

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
from gluonlab.parallel.strategy import MakeNet, PhaseHook
from gluonlab.training.evaluate import Score, evaluate, evaluation_loader
from gluonlab.training.loop import train
from gluonlab.training.plan import Plan
from gluonlab.training.reporter import Reporter

EVAL_BATCH_SIZE = 512  # images of a batch in evaluations

read_dataset = lru_cache(maxsize=1)(load_dataset)  # one data set for all trainings of a panel


class AccuracyLook(NamedTuple):
    """An evaluation during a training run.

    - ``steps``: steps so far.
    - ``seconds``: training time so far, without the first step and without evaluations.
    - ``val``: accuracy on the validation images.
    - ``train``: accuracy on the training images, if it was requested.
    """

    steps: int
    seconds: float
    val: float
    train: Optional[float] = None


class StopTraining(Exception):
    """Raised to stop training when the answer is known."""


class AccuracyProbe:
    """Evaluates the network after the steps ``eval_steps``, and stops training after the last one.

    After the steps ``train_eval_steps``, the training images are also evaluated. Training stops
    early when these steps are done and the validation accuracy has reached ``target``. ``reached``:
    the number of steps at the first evaluation that reached the target.
    """

    def __init__(self, eval_steps: Sequence[int], target: float, train_eval_steps: Sequence[int] = ()) -> None:
        self.train_eval_steps = frozenset(train_eval_steps)
        self.eval_steps = sorted({*eval_steps, *train_eval_steps})
        self.target, self.looks = target, cast(List[AccuracyLook], [])
        self.reached: Optional[int] = None
        self._steps, self._seconds, self._started = 0, 0.0, 0.0

    def after_step(self, evaluate: Callable[[bool], Score]) -> None:
        """Count the queued step, evaluate the network if necessary, and stop training when done.

        ``evaluate``: a function that evaluates the validation images or, if called with True, the
        training images.
        """
        self._steps += 1
        if self._steps == 1:  # the first step binds and tunes graphs, so it is not timed
            nd.waitall()
            self._started = time.perf_counter()
        if self._steps not in self.eval_steps:
            return
        nd.waitall()
        self._seconds += time.perf_counter() - self._started
        val_accuracy = evaluate(False).accuracy
        train_accuracy = evaluate(True).accuracy if self._steps in self.train_eval_steps else None
        self.looks.append(AccuracyLook(self._steps, self._seconds, val_accuracy, train_accuracy))
        if self.reached is None and val_accuracy >= self.target:
            self.reached = self._steps
        last = self.eval_steps[-1]
        if self.reached is not None:
            last = max([self._steps, *self.train_eval_steps])
        if self._steps >= last:
            raise StopTraining
        self._started = time.perf_counter()


class _ProbedDataParallel(DataParallel):
    """Data parallelism that calls an `AccuracyProbe` after each step."""

    def __init__(
        self,
        make_net: MakeNet,
        loss: gluon.HybridBlock,
        plan: Any,
        group: ProcessGroup = SINGLE_PROCESS,
        *,
        probe: AccuracyProbe,
    ) -> None:
        super().__init__(make_net, loss, plan, group)
        self._probe, self._run_plan = probe, plan

    def step(self, batch: Batch, hook: Optional[PhaseHook] = None) -> List[nd.NDArray]:
        losses = super().step(batch, hook)
        self._probe.after_step(self._score)
        return losses

    def _score(self, on_training_images: bool) -> Score:
        """Evaluate the network on the validation images, or on the training images."""
        self.sync_running_statistics()
        plan: Plan = self._run_plan
        dataset = plan.dataset
        if on_training_images:
            dataset = dataclasses.replace(dataset, test=dataset.train)
        evaluation_plan = dataclasses.replace(plan, dataset=dataset, global_batch_size=EVAL_BATCH_SIZE)
        batches = evaluation_loader(evaluation_plan, self.inputs)
        return evaluate(self, batches, len(dataset.classes), group=plan.group)


def train_with_probe(config: TrainConfig, probe: AccuracyProbe, dataset: Optional[Dataset] = None) -> Dict[str, Any]:
    """Train until ``probe`` stops the run, and return its evaluations as plain values.

    The value ``diverged`` is True if the loss became NaN or infinite. No files are written.
    """
    diverged = False
    with temporary_folder("study") as folder:
        own_config = config.replace(out=str(Path(folder, "run")))
        try:
            strategy = partial(_ProbedDataParallel, probe=probe)
            train(own_config, cast(Any, strategy), Reporter(), dataset or read_dataset(config.dataset))
        except StopTraining:
            pass
        except DivergedError:
            diverged = True
    looks = [list(look) for look in probe.looks]
    return {"reached": probe.reached, "diverged": diverged, "looks": looks}


def device_settings(count: int) -> Dict[str, Any]:
    """Return TrainConfig settings for ``count`` GPUs, or for CPU devices if there is no GPU."""
    if gpu_count():
        return {"gpus": count}
    return {"devices": f"cpu*{count}", "threads": 1}


def warn_cpu_fallback() -> None:
    """Warn once for all training runs if there is no GPU."""
    if not gpu_count():
        warn("no GPU on this machine: using CPU devices instead")


def log_spaced_steps(last: int, factor: float) -> List[int]:
    """Return integers from 1 to ``last``, each about ``factor`` times the previous integer."""
    steps, next_step = [], 1.0
    while round(next_step) < last:
        steps.append(round(next_step))
        next_step = max(next_step * factor, round(next_step) + 1.0)
    return [*steps, last]
