"""A finished run, read again and evaluated on the test images, on any devices."""

from __future__ import annotations

import dataclasses
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import mxnet as mx
from mxnet import gluon

from gluonlab.config import TrainConfig, option_name
from gluonlab.data.sets.classes import what_differs
from gluonlab.data.sets.dataset import Dataset
from gluonlab.data.sets.registry import takes
from gluonlab.engine.semantics import nd_semantics
from gluonlab.errors import ConfigError, DataError, OutputError, RunError
from gluonlab.export.onnx_check import Agreement
from gluonlab.files.whole import folder_for
from gluonlab.finite import broken_parameters, is_healthy, may_be_early, named
from gluonlab.kvstores.groups import ALONE
from gluonlab.models.pretrained import load_parameters
from gluonlab.parallel.objective import make_loss
from gluonlab.runs.description import Description, read_finished
from gluonlab.runs.reader import copy_count
from gluonlab.training.checks import check_exportable
from gluonlab.training.ending import write_extras
from gluonlab.training.evaluate import Score, evaluate, evaluation_loader
from gluonlab.training.network import make_net
from gluonlab.training.own import NOTHING, Own, check_same_own, make_own
from gluonlab.training.plan import Plan, make_plan
from gluonlab.training.recipes import QUICK
from gluonlab.training.splitting import STRATEGIES

# The settings that an evaluation takes from the command line.
GIVEN = (
    "gpus", "devices", "require_gpu", "threads", "split", "stages", "cut", "balance",
    "pipeline_schedule", "stages_per_device", "ways", "channels", "data_dir",
    "decoders", "skip_bad", "batch_size",
    "global_batch_size", "microbatches", "microbatch_size", "prefetch", "resident_bytes",
    "deterministic", "tf32", "confusion", "export", "out",
)  # fmt: skip
# Those of the run that it looks at. What only training needs, or names the run's devices, is none
# of them: a run on eight GPUs can be evaluated on a laptop.
KEPT = (
    "model", "dataset", "data_dir", "image_size", "decoders", "skip_bad", "batch_size",
    "global_batch_size", "microbatches", "microbatch_size", "seed", "prefetch", "resident_bytes",
    "deterministic", "tf32",
)  # fmt: skip
# Images are seen as they are.
UNCHANGED = {"random_resized_crop": False, "crop_padding": 0, "flip": False, "mixup": 0.0}
SMALLEST_SIZE = 8  # that --image-size takes; smaller images have their own size by default
# What makes the run's own choice of these void.
BATCH_SIZES, PARTS = ("batch_size", "global_batch_size"), ("microbatches", "microbatch_size")
GONE_WRONG = "its training diverged: train again with a smaller --lr"


@dataclass(frozen=True)
class Evaluation:
    """What the test images of a finished run gave; ``seconds`` include compiling.

    ``onnx``: how nearly the ONNX model that was exported agrees, where there is one.
    """

    run_dir: Path
    plan: Plan
    score: Score
    seconds: float
    written_to: Optional[Path] = None
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
        if self.onnx is not None:
            found["onnx_difference"] = self.onnx.difference
        return found


@nd_semantics()
def evaluate_run(
    run_dir: str,
    *,
    net: Any = None,
    loss: Optional[gluon.HybridBlock] = None,
    metrics: Any = None,
    data: Optional[Dataset] = None,
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
    folder, own = Path(run_dir), make_own(net, loss, metrics)
    for name in given:
        if name not in GIVEN:
            raise ConfigError(
                f"{option_name(name)} has no effect with --evaluate, "
                "which takes it from the run: leave it out"
            )
    found = _described(folder)
    config = _config(found, given)
    _check_own(found, own, data, folder)
    place = _place(config, folder)
    # what cannot be written is found before anything is computed
    with folder_for(place) if place is not None else nullcontext():
        plan = _plan(found, config, folder, own, data)
        classes, file = len(plan.dataset.classes), found.parameters

        def trained(
            ctxs: List[mx.Context], start: Optional[List[mx.Context]] = None
        ) -> gluon.HybridBlock:
            net = make_net(plan, ctxs, start)
            load_parameters(net, file, str(file), classes)
            return net

        strategy = STRATEGIES[plan.split.way](trained, make_loss(own=own.loss), plan, ALONE)
        check_exportable(plan, strategy.net)
        began = time.perf_counter()
        loader = evaluation_loader(plan, strategy.inputs)
        score = evaluate(strategy, loader, classes, config.confusion, metrics=own.metrics)
        seconds = time.perf_counter() - began
        if not is_healthy(score.loss) and not may_be_early(score.loss, strategy.has_statistics):
            raise RunError(f"the loss of {folder} on its test images is {score.loss}: {GONE_WRONG}")
        broken = broken_parameters(strategy.net)
        if broken:  # which ReLU may hide from the loss
            raise RunError(f"{file} holds NaN or infinity in {named(broken)}: {GONE_WRONG}")
        onnx = None
        if place is not None:
            onnx = write_extras(place, plan, strategy.net, score.confusion)
    return Evaluation(folder, plan, score, seconds, place, onnx)


def plan_evaluation(folder: Path, given: Dict[str, Any]) -> Plan:
    """The run's plan, as far as an evaluation needs one, on the devices that are given now.

    Raises a UsageError.
    """
    found = _described(folder)
    _check_own(found, NOTHING, None, folder)
    return _plan(found, _config(found, given), folder, NOTHING, None)


def _check_own(found: Description, own: Own, data: Optional[Dataset], folder: Path) -> None:
    how = "to gluonlab.training.finished.evaluate_run"
    check_same_own(str(folder), how, found.used, own.settings(data))


def _plan(
    found: Description, config: TrainConfig, folder: Path, own: Own, given: Optional[Dataset]
) -> Plan:
    plan = make_plan(config if own.net is None else config.replace(model=None), given, own=own)
    data, shape = plan.dataset, _image_shape(found)
    if shape not in (None, data.image_shape):
        was, now = ("x".join(map(str, each)) for each in (shape, data.image_shape))
        raise ConfigError(
            f"{data.name} has images of {now}, but {folder} was trained on {was}: "
            "evaluate it on images of that shape"
        )
    differs = what_differs(found.classes, data.classes)
    if differs:
        raise ConfigError(
            f"{data.name} is not what {folder} was trained on ({differs}): "
            "evaluate it on the same classes in the same order"
        )
    return plan


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


def _config(found: Description, given: Dict[str, Any]) -> TrainConfig:
    """The run's settings, as far as they matter to an evaluation, and those that are given now."""
    fields = {field.name: field for field in dataclasses.fields(TrainConfig)}
    strange = [name for name in found.asked if name not in fields]
    if strange:
        raise ConfigError(
            f"{found.file} has settings that this gluonlab does not know: "
            f"{', '.join(sorted(strange))}"
        )
    settings = {name: value for name, value in found.asked.items() if name in KEPT}
    # Any number of devices can keep to the size of the parts, and needs no more memory for one than
    # the run did.
    count, share = settings.pop("microbatches", None), _largest_share(found)
    if isinstance(count, int) and share and count > 0:
        settings["microbatch_size"] = -(-share // count)
    if set(given) & {*BATCH_SIZES, *PARTS}:
        settings.update(dict.fromkeys(PARTS))
    if set(given) & set(BATCH_SIZES):
        settings.update(dict.fromkeys(BATCH_SIZES))
    shape = _image_shape(found)
    if (
        shape is not None
        and shape[-1] >= SMALLEST_SIZE
        and settings.get("image_size") is None
        and takes(str(settings.get("dataset")), "image_size")
    ):
        settings["image_size"] = shape[-1]  # the default follows the images that are there now
    # which normalises nothing of itself: that is the run's, or of old its data set's
    settings["recipe"] = QUICK
    settings["normalise"] = found.used.get("normalise")
    try:
        TrainConfig(**settings)
    except ConfigError as error:
        raise ConfigError(f"{found.file} is damaged: {error}") from None
    return TrainConfig(**{**settings, **UNCHANGED, "model": found.used["model"], **given})


def _largest_share(found: Description) -> Optional[int]:
    """How many images of a batch one copy of the network had; None when that is not known."""
    copies, size = copy_count(found.used), found.used.get("global_batch_size")
    return -(-size // copies) if copies and isinstance(size, int) else None


def _image_shape(found: Description) -> Optional[Tuple[int, int, int]]:
    """(channels, height, width) of the run's images; None where a run did not note them."""
    shape = found.used.get("image_shape")
    if shape is not None and not (
        isinstance(shape, list) and len(shape) == 3 and all(type(side) is int for side in shape)
    ):
        raise ConfigError(f"{found.file} is damaged: image_shape {shape} is not a shape")
    return None if shape is None else (shape[0], shape[1], shape[2])


def _described(folder: Path) -> Description:
    """What the finished run in this folder was asked for and uses.

    Raises ConfigError for a folder that is not a run's.
    """
    try:
        return read_finished(folder)
    except DataError as error:
        raise ConfigError(f"--evaluate {error}") from None
