"""A finished run, read from its folder and evaluated on the test images, on any devices."""

from __future__ import annotations

import dataclasses
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import mxnet as mx
from mxnet import gluon

from gluonlab.config import TrainConfig
from gluonlab.data.images.resize_image import CYKOOZ, PILLOW, usual_resizer
from gluonlab.data.sets.data_fingerprint import what_differs
from gluonlab.data.sets.dataset import Dataset
from gluonlab.data.sets.dataset_registry import takes
from gluonlab.data.sets.gluon_datasets import resolve_dataset
from gluonlab.engine.np_compatibility import convert_network_for_user, nd_semantics
from gluonlab.errors import ConfigError, OutputError, RunError, warn
from gluonlab.export.onnx_graph import Agreement
from gluonlab.files.atomic_files import folder_for
from gluonlab.finite_numbers import is_healthy, may_be_young_statistics, nonfinite_parameters
from gluonlab.host.signals import exit_if_stuck
from gluonlab.kvstores.process_groups import ALONE
from gluonlab.models.pretrained import load_parameters
from gluonlab.parallel import strategy_class
from gluonlab.parallel.strategy import Strategy
from gluonlab.parallel.training_loss import make_loss
from gluonlab.plain_text import shorten_names
from gluonlab.runs.run_reader import Description, copy_count
from gluonlab.runs.run_schema import CONFUSION, EXPORT
from gluonlab.training.build_network import make_net
from gluonlab.training.config_checks import check_exportable
from gluonlab.training.evaluate import Score, evaluate, evaluation_loader
from gluonlab.training.evaluated import check_given, evaluated
from gluonlab.training.image_options import with_resizer
from gluonlab.training.loop import write_extras
from gluonlab.training.plan import Plan, make_plan
from gluonlab.training.recipes import QUICK
from gluonlab.training.user_components import NOTHING, UserComponents, check_same_own, make_own


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


@exit_if_stuck()
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


def _evaluate(
    folder: Path, own: UserComponents, data: Optional[Dataset], given: Dict[str, Any]
) -> Evaluation:
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
        if not is_healthy(score.loss) and not may_be_young_statistics(
            score.loss, strategy.has_statistics
        ):
            raise RunError(f"the loss of {folder} on its test images is {score.loss}: {GONE_WRONG}")
        check_finite(found, strategy)
        onnx: Optional[Agreement] = None
        written: List[Path] = []
        if place is not None:
            onnx = write_extras(place, plan, strategy.net, score.confusion)
            names = {EXPORT: config.export is not None, CONFUSION: config.confusion}
            written = [place / name for name, asked in names.items() if asked]
    convert_network_for_user(strategy.net)
    return Evaluation(folder, plan, score, seconds, tuple(written), onnx)


def plan_evaluation(folder: Path, given: Dict[str, Any]) -> Plan:
    """The run's plan, as far as an evaluation needs one, on the devices that are given now.

    Raises a UsageError.
    """
    found = evaluated(folder)
    _check_own(found, NOTHING, None, folder)
    return plan_of(found, config_of(found, given))


def _check_own(
    found: Description, own: UserComponents, data: Optional[Dataset], folder: Path
) -> None:
    how = "to gluonlab.training.evaluate_run.evaluate_run"
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


# The run's settings that an evaluation looks at. What only training needs, or names the run's
# devices, is none of them: a run on eight GPUs can be evaluated on a laptop.
KEPT = (
    "model", "dataset", "data_dir", "image_size", "decoders", "skip_bad", "val_share", "batch_size",
    "global_batch_size", "microbatches", "microbatch_size", "seed", "prefetch", "resident_bytes",
    "deterministic", "tf32",
)  # fmt: skip
# Images are seen as they are.
UNCHANGED = {"random_resized_crop": False, "crop_padding": 0, "flip": False, "mixup": 0.0}
SMALLEST_SIZE = 8  # that --image-size takes; smaller images have their own size by default
# What makes the run's own choice of these void.
BATCH_SIZES, PARTS = ("batch_size", "global_batch_size"), ("microbatches", "microbatch_size")
GONE_WRONG = "its training diverged: train again with a smaller --lr"


def config_of(found: Description, given: Dict[str, Any]) -> TrainConfig:
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
    shape = image_shape(found)
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
    config = TrainConfig(**{**settings, **UNCHANGED, "model": found.used["model"], **given})
    config = with_resizer(config, found.used)
    if config.resizer == CYKOOZ != usual_resizer():
        warn(
            f"the images of {found.folder} were resized by cykooz.resizer, which is not installed: "
            "Pillow is used, which rounds a few pixels to the next value"
        )
        config = config.replace(resizer=PILLOW)
    return config


def _largest_share(found: Description) -> Optional[int]:
    """How many images of a batch one copy of the network had; None when that is not known."""
    copies, size = copy_count(found.used), found.used.get("global_batch_size")
    return -(-size // copies) if copies and isinstance(size, int) else None


def image_shape(found: Description) -> Optional[Tuple[int, int, int]]:
    """(channels, height, width) of the run's images; None where a run did not note them."""
    shape = found.used.get("image_shape")
    if shape is not None and not (
        isinstance(shape, list) and len(shape) == 3 and all(type(side) is int for side in shape)
    ):
        raise ConfigError(f"{found.file} is damaged: image_shape {shape} is not a shape")
    return None if shape is None else (shape[0], shape[1], shape[2])


def plan_of(
    found: Description,
    config: TrainConfig,
    given: Optional[Dataset] = None,
    own: UserComponents = NOTHING,
) -> Plan:
    """The plan of an evaluation on the run's data, or on those ``given``. Raises a UsageError."""
    plan = make_plan(config if own.net is None else config.replace(model=None), given, own=own)
    check_same_images(found, plan.dataset)
    return plan


def check_same_images(found: Description, data: Dataset) -> None:
    """Raise ConfigError for images or classes other than the run's."""
    folder, shape = found.folder, image_shape(found)
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


def strategy_of(
    found: Description, plan: Plan, loss: Optional[gluon.HybridBlock] = None
) -> Strategy:
    """The run's network with its parameters, on the plan's devices; ``loss``: the user's own.

    Raises ModelError for parameters of another network.
    """
    classes, file = len(plan.dataset.classes), found.parameters

    def trained(
        ctxs: List[mx.Context], start: Optional[List[mx.Context]] = None
    ) -> gluon.HybridBlock:
        net = make_net(plan, ctxs, start)
        load_parameters(net, file, str(file), classes)
        return net

    return strategy_class(plan.split.way)(trained, make_loss(own=loss), plan, ALONE)


def check_finite(found: Description, strategy: Strategy) -> None:
    """Raise RunError where parameters are not finite, which ReLU may hide from the loss."""
    broken = nonfinite_parameters(strategy.net)
    if broken:
        raise RunError(
            f"{found.parameters} holds NaN or infinity in {shorten_names(broken)}: {GONE_WRONG}"
        )
