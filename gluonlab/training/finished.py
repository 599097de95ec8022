"""A finished run, read again and evaluated on the test images, on any devices."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from mxnet import gluon

from gluonlab.config import TrainConfig
from gluonlab.data.sets.dataset import Dataset
from gluonlab.data.sets.gluon_data import resolve_dataset
from gluonlab.engine.semantics import give_back, nd_semantics
from gluonlab.errors import ConfigError, OutputError, RunError
from gluonlab.export.onnx_graph import Agreement
from gluonlab.files.whole import folder_for
from gluonlab.finite import is_healthy, may_be_early
from gluonlab.host.stuck import ends_if_stuck
from gluonlab.runs.reader import Description
from gluonlab.runs.schema import CONFUSION, EXPORT
from gluonlab.training.checks import check_exportable
from gluonlab.training.ending import write_extras
from gluonlab.training.evaluate import Score, evaluate, evaluation_loader
from gluonlab.training.evaluated import check_given, evaluated
from gluonlab.training.own import NOTHING, Own, check_same_own, make_own
from gluonlab.training.plan import Plan
from gluonlab.training.trained import GONE_WRONG, check_finite, config_of, plan_of, strategy_of


@dataclass(frozen=True)
class Evaluation:
    """What the test images of a finished run gave; ``seconds`` include compiling.

    ``written``: the folder of the export and the picture of the confusion matrix, where they were
    asked for. ``onnx``: how nearly the ONNX model that was exported agrees, where there is one.
    """

    run_dir: Path
    plan: Plan
    score: Score
    seconds: float
    written: Tuple[Path, ...] = ()
    onnx: Optional[Agreement] = None

    def summary(self) -> Dict[str, Any]:
        """The numbers as plain values."""
        found = {
            "run_dir": str(self.run_dir),
            "model": self.plan.model,
            "dataset": self.plan.dataset.name,
            "devices": [str(ctx) for ctx in self.plan.ctxs],
            "images": self.score.images,
            "accuracy": self.score.accuracy,
            "top5_accuracy": self.score.top5_accuracy,
            "loss": self.score.loss,
            "seconds": self.seconds,
            **({"metrics": self.score.metrics} if self.score.metrics else {}),
        }
        if self.score.confusion is not None:
            found["confusion"] = self.score.confusion.tolist()
        if self.written:
            found["written"] = [str(path) for path in self.written]
        if self.onnx is not None:
            found["onnx_difference"] = self.onnx.difference
        return found


@ends_if_stuck()
def evaluate_run(
    run_dir: str,
    *,
    net: Any = None,
    loss: Optional[gluon.HybridBlock] = None,
    metrics: Any = None,
    data: Any = None,
    **given: Any,
) -> Evaluation:
    """Evaluate the run in this folder; ``given``: settings named in GIVEN, such as devices.

    ``net``, ``loss``, ``metrics``, ``data``: what `train` got of the user's own, the last one as
    ``dataset``; of a run that had its own, its own again.

    Files asked for (confusion, export) go into the run's folder, or into ``out``. Raises
    ConfigError for a folder that is not a run's, for settings that the run determines, and for
    images or classes other than the run's; ModelError for parameters of another network;
    OutputError; and RunError when the loss is beyond recovery, or parameters are not finite.
    """
    dataset = resolve_dataset(data)
    check_given(given)
    with nd_semantics():
        return _evaluate(Path(run_dir), make_own(net, loss, metrics), dataset, given)


def _evaluate(folder: Path, own: Own, data: Optional[Dataset], given: Dict[str, Any]) -> Evaluation:
    found = evaluated(folder)
    config = config_of(found, given)
    _check_own(found, own, data, folder)
    place = _place(config, folder)
    # what cannot be written is found before anything is computed
    with folder_for(place) if place is not None else nullcontext():
        plan = plan_of(found, config, data, own)
        strategy = strategy_of(found, plan, own.loss)
        check_exportable(plan, strategy.net)
        began = time.perf_counter()
        loader = evaluation_loader(plan, strategy.inputs)
        classes = len(plan.dataset.classes)
        score = evaluate(strategy, loader, classes, config.confusion, metrics=own.metrics)
        seconds = time.perf_counter() - began
        if not is_healthy(score.loss) and not may_be_early(score.loss, strategy.has_statistics):
            raise RunError(f"the loss of {folder} on its test images is {score.loss}: {GONE_WRONG}")
        check_finite(found, strategy)
        onnx: Optional[Agreement] = None
        written: List[Path] = []
        if place is not None:
            onnx = write_extras(place, plan, strategy.net, score.confusion)
            names = {EXPORT: config.export is not None, CONFUSION: config.confusion}
            written = [place / name for name, asked in names.items() if asked]
    give_back(strategy.net)
    return Evaluation(folder, plan, score, seconds, tuple(written), onnx)


def plan_evaluation(folder: Path, given: Dict[str, Any]) -> Plan:
    """The run's plan, as far as an evaluation needs one, on the devices that are given now.

    Raises a UsageError.
    """
    found = evaluated(folder)
    _check_own(found, NOTHING, None, folder)
    return plan_of(found, config_of(found, given))


def _check_own(found: Description, own: Own, data: Optional[Dataset], folder: Path) -> None:
    how = "to gluonlab.training.finished.evaluate_run"
    check_same_own(str(folder), how, found.used, own.settings(data))


def _place(config: TrainConfig, folder: Path) -> Optional[Path]:
    """The folder for what is asked for, if there is any. Raises ConfigError, and OutputError."""
    wanted = config.confusion or config.export
    if config.out is None:
        return folder if wanted else None
    if not wanted:
        raise ConfigError(
            f"--out {config.out} has no effect with --evaluate alone: "
            "add --confusion or --export, or leave it out"
        )
    if Path(config.out).exists() and not Path(config.out).is_dir():
        raise OutputError(f"--out {config.out} is a file: give a folder")
    return Path(config.out)
