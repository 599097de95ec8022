"""A finished run, read again: its network on any devices, evaluated on the test images of its data set."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

from mxnet import gluon

from gluonlab.config import TrainConfig, option_name
from gluonlab.errors import ConfigError, OutputError, RunError
from gluonlab.files import folder_for
from gluonlab.models.pretrained import load_parameters
from gluonlab.training.evaluate import Score, evaluate, test_loader
from gluonlab.training.extras import write_extras
from gluonlab.training.loop import data_parallel, make_net
from gluonlab.training.plan import Plan, make_plan
from gluonlab.training.record import CONFIG, PARAMETERS

# The settings that an evaluation takes from the command line.
GIVEN = (
    "gpus", "devices", "require_gpu", "threads", "data_dir", "decoders", "skip_bad", "batch_size", "global_batch_size",
    "microbatches", "microbatch_size", "prefetch", "resident_bytes", "confusion", "export", "out",
)  # fmt: skip
# Those of the run that it looks at. What only training needs, or names the run's devices, is none of them: a run on eight GPUs can
# be evaluated on a laptop.
KEPT = (
    "model", "dataset", "data_dir", "image_size", "decoders", "skip_bad", "batch_size", "global_batch_size", "seed", "prefetch",
    "resident_bytes",
)  # fmt: skip


@dataclass(frozen=True)
class Evaluation:
    """What the test images of a finished run gave, now; ``seconds`` include compiling the network."""

    run_dir: Path
    plan: Plan
    score: Score
    seconds: float
    written_to: Optional[Path] = None

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
        }
        if self.score.confusion is not None:
            found["confusion"] = self.score.confusion.tolist()
        return found


def evaluate_run(run_dir: str, **given: Any) -> Evaluation:
    """Evaluate the run in this folder; ``given``: the settings of TrainConfig named in GIVEN, such as devices.

    Files asked for (confusion, export) go into the run's folder, or into ``out``. Raises ConfigError for a folder that is no run's
    and for settings that the run itself brings, ModelError for parameters of another network, OutputError, and RunError when the
    loss is no number.
    """
    folder = Path(run_dir)
    for name in given:
        if name not in GIVEN:
            raise ConfigError(f"{option_name(name)} is of no use with --evaluate, where the run brings it along: leave it out")
    config = _config(folder, given)
    place = _place(config, folder)
    with folder_for(place) if place is not None else nullcontext():  # what cannot be written is found before anything is computed
        plan = make_plan(config)
        net = make_net(plan)
        load_parameters(net, folder / PARAMETERS, f"{folder / PARAMETERS}", len(plan.dataset.classes))
        step = data_parallel(net, gluon.loss.SoftmaxCrossEntropyLoss(), plan)
        began = time.perf_counter()
        score = evaluate(step.score, test_loader(plan), plan.ctxs, config.confusion)
        seconds = time.perf_counter() - began
        if not math.isfinite(score.loss):
            raise RunError(f"the loss of {folder} on its test images is {score.loss}: its training has gone wrong")
        if place is not None:
            write_extras(place, plan, net, score.confusion)
    return Evaluation(folder, plan, score, seconds, place)


def _place(config: TrainConfig, folder: Path) -> Optional[Path]:
    """The folder for what is asked for, if there is any. Raises ConfigError, and OutputError."""
    wanted = config.confusion or config.export
    if config.out is None:
        return folder if wanted else None
    if not wanted:
        raise ConfigError(f"--out {config.out} with --evaluate is where files go: add --confusion or --export, or leave it out")
    if Path(config.out).exists() and not Path(config.out).is_dir():
        raise OutputError(f"--out {config.out} is a file: give a folder")
    return Path(config.out)


def _config(folder: Path, given: Dict[str, Any]) -> TrainConfig:
    """The run's settings, as far as they matter to an evaluation, and those that are given now."""
    asked, used = _read(folder)
    fields = {field.name: field for field in dataclasses.fields(TrainConfig)}
    strange = [name for name in asked if name not in fields]
    if strange:
        raise ConfigError(f"{folder / CONFIG} has settings that this gluonlab does not know: {', '.join(sorted(strange))}")
    settings = {name: value for name, value in asked.items() if name in KEPT}
    if "batch_size" in given or "global_batch_size" in given:
        settings["batch_size"] = settings["global_batch_size"] = None
    try:
        TrainConfig(**settings)
    except ConfigError as error:
        raise ConfigError(f"{folder / CONFIG} is damaged: {error}") from None
    return TrainConfig(**{**settings, "model": used, **given})


def _read(folder: Path) -> Tuple[Dict[str, Any], str]:
    """What was asked for, and the network that was trained. Raises ConfigError for a folder that is no run's."""
    needs = f"give the folder of a finished run, with {CONFIG} and {PARAMETERS}"
    file = folder / CONFIG
    if not folder.is_dir():
        raise ConfigError(f"--evaluate {folder} is no folder: {needs}")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"--evaluate {folder} holds no {CONFIG}: {needs}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read ({_reason(error)}): {needs}") from None
    if isinstance(content, dict) and "compare" in content:
        raise ConfigError(f"--evaluate {folder} is a comparison: give the folder of one of the runs in it")
    asked, used = (content.get(key) if isinstance(content, dict) else None for key in ("config", "settings"))
    if not (isinstance(asked, dict) and isinstance(used, dict) and isinstance(used.get("model"), str)):
        raise ConfigError(f"{file} is not what a run writes: {needs}")
    if not (folder / PARAMETERS).is_file():
        raise ConfigError(f"--evaluate {folder} holds no {PARAMETERS}, as no epoch was finished: {needs}")
    return asked, used["model"]


def _reason(error: Exception) -> Optional[str]:
    return error.strerror if isinstance(error, OSError) else "it is no JSON"
