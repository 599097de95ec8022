"""Evaluation of a finished run on its validation images, on any devices."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import mxnet as mx
from mxnet import gluon

from gluonlab.config import TrainConfig
from gluonlab.data.images.resize_image import CYKOOZ, PILLOW, default_resizer
from gluonlab.data.sets.data_fingerprint import describe_class_changes
from gluonlab.data.sets.dataset import Dataset
from gluonlab.data.sets.dataset_registry import accepts_option
from gluonlab.data.sets.from_gluon_datasets import resolve_dataset
from gluonlab.divergence_checks import is_healthy, may_be_unsettled_running_statistics, nonfinite_parameters
from gluonlab.engine.nd_and_np_arrays import convert_network_for_user, nd_semantics
from gluonlab.errors import ConfigError, OutputError, RunError, warn
from gluonlab.export.onnx_graph import Agreement
from gluonlab.files.atomic_files import create_writable_folder
from gluonlab.host.signals import exit_if_stuck
from gluonlab.kvstores.process_groups import SINGLE_PROCESS
from gluonlab.models.load_parameter_file import load_parameters
from gluonlab.parallel import strategy_class
from gluonlab.parallel.strategy import Strategy
from gluonlab.parallel.training_loss import make_loss
from gluonlab.plain_text import shorten_names
from gluonlab.runs.run_reader import RunDescription, copy_count
from gluonlab.runs.run_schema import CONFUSION, EXPORT
from gluonlab.training.build_network import make_net
from gluonlab.training.check_evaluation import EVAL_FIELDS, check_evaluation_options, read_evaluated_run
from gluonlab.training.config_checks import check_exportable, check_settings_are_known
from gluonlab.training.evaluate import Score, evaluate, evaluation_loader
from gluonlab.training.finish_run import write_exports
from gluonlab.training.image_loader_options import keep_recorded_resizer
from gluonlab.training.plan import Plan, make_plan
from gluonlab.training.recipes import QUICK
from gluonlab.training.user_components import (
    NO_USER_COMPONENTS,
    UserComponents,
    check_same_user_components,
    make_user_components,
)


@dataclass(frozen=True)
class Evaluation:
    """The result of evaluating a finished run.

    - ``seconds``: how long the evaluation took, including compilation.
    - ``written``: the paths of the export and of the confusion matrix, if requested.
    - ``onnx``: how closely the exported ONNX model agrees with MXNet.
    """

    run_dir: Path
    plan: Plan
    score: Score
    seconds: float
    written: Tuple[Path, ...] = ()
    onnx: Optional[Agreement] = None

    def summary(self) -> Dict[str, Any]:
        """Return the run, devices, scores and written files as a dictionary of plain values."""
        values = {
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
            values["confusion"] = self.score.confusion.tolist()
        if self.written:
            values["written"] = [str(path) for path in self.written]
        if self.onnx is not None:
            values["onnx_difference"] = self.onnx.difference
        return values


@exit_if_stuck()
def evaluate_run(
    run_dir: str,
    *,
    net: Any = None,
    loss: Optional[gluon.HybridBlock] = None,
    metrics: Any = None,
    data: Any = None,
    **options: Any,
) -> Evaluation:
    """Evaluate a finished run on its validation images.

    Requested files (confusion, export) are written to the run's folder, or to ``out``. If the run
    was trained with your own network, loss or data set, pass the same object again.

    Args:
        run_dir: The run's folder.
        net: See `train`.
        loss: See `train`.
        metrics: See `train`.
        data: See ``dataset`` of `train`.
        options: Settings in EVALUATION_OPTIONS.

    Raises:
        ConfigError: The folder contains no finished run, an option cannot be changed after
            training, or the run had other images or classes.
        ModelError: The parameters belong to a different network.
        OutputError: A file cannot be written.
        RunError: The loss or the parameters diverged.
    """
    dataset = resolve_dataset(data)
    check_evaluation_options(options)
    with nd_semantics():
        return _evaluate(Path(run_dir), make_user_components(net, loss, metrics), dataset, options)


def _evaluate(folder: Path, components: UserComponents, data: Optional[Dataset], options: Dict[str, Any]) -> Evaluation:
    """Evaluate the run in ``folder``; ``data``: the user's data, or None for the recorded data."""
    description = read_evaluated_run(folder)
    config = evaluation_config(description, options)
    _check_same_components(description, components, data, folder)
    output_folder = _output_folder(config, folder)
    # check that the folder can be written before computing anything
    with create_writable_folder(output_folder) if output_folder is not None else nullcontext():
        plan = make_evaluation_plan(description, config, data, components)
        strategy = load_trained(description, plan, components.loss)
        check_exportable(plan, strategy.net)
        start_time = time.perf_counter()
        loader = evaluation_loader(plan, strategy.inputs)
        classes = len(plan.dataset.classes)
        score = evaluate(strategy, loader, classes, config.confusion, metrics=components.metrics)
        seconds = time.perf_counter() - start_time
        if not is_healthy(score.loss) and not may_be_unsettled_running_statistics(
            score.loss, strategy.has_running_statistics
        ):
            raise RunError(f"the validation loss of the run {folder} is {score.loss}: {DIVERGED_HINT}")
        check_finite_parameters(description, strategy)
        onnx: Optional[Agreement] = None
        written: List[Path] = []
        if output_folder is not None:
            onnx = write_exports(output_folder, plan, strategy.net, score.confusion)
            names = {EXPORT: config.export is not None, CONFUSION: config.confusion}
            written = [output_folder / name for name, is_requested in names.items() if is_requested]
    convert_network_for_user(strategy.net)
    return Evaluation(folder, plan, score, seconds, tuple(written), onnx)


def plan_evaluation(folder: Path, options: Dict[str, Any]) -> Plan:
    """Return the plan with which `evaluate_run` evaluates a run with these options."""
    description = read_evaluated_run(folder)
    _check_same_components(description, NO_USER_COMPONENTS, None, folder)
    return make_evaluation_plan(description, evaluation_config(description, options))


def _check_same_components(
    description: RunDescription, components: UserComponents, data: Optional[Dataset], folder: Path
) -> None:
    """Raise ConfigError unless the run was trained with ``components`` and ``data``."""
    usage = "to gluonlab.training.evaluate_run.evaluate_run"
    check_same_user_components(str(folder), usage, description.used, components.settings(data))


def _output_folder(config: TrainConfig, folder: Path) -> Optional[Path]:
    """Return the folder for --confusion and --export; None without these options.

    Raises ConfigError if --out has no effect, and OutputError if --out is a file.
    """
    is_needed = config.confusion or config.export
    if config.out is None:
        return folder if is_needed else None
    if not is_needed:
        raise ConfigError(
            f"--out {config.out} has no effect on an evaluation that writes no files: "
            "add --confusion or --export, or omit --out"
        )
    if Path(config.out).exists() and not Path(config.out).is_dir():
        raise OutputError(f"--out {config.out} is a file: choose a directory")
    return Path(config.out)


# validation images are not augmented
NO_AUGMENTATION = {"random_resized_crop": False, "crop_padding": 0, "flip": False, "mixup": 0.0}
SMALLEST_SIZE = 8  # smallest --image-size; smaller images keep their size by default
# If an option of one of these groups is given, it replaces all settings of the run in the group.
BATCH_SIZES, MICROBATCH_OPTIONS = (("batch_size", "global_batch_size"), ("microbatches", "microbatch_size"))
DIVERGED_HINT = "train again with a smaller --lr, because this training run diverged"


def evaluation_config(description: RunDescription, options: Dict[str, Any]) -> TrainConfig:
    """Return the run's settings that affect an evaluation, updated with ``options``."""
    check_settings_are_known(description)
    settings = {name: value for name, value in description.requested.items() if name in EVAL_FIELDS}
    # A fixed microbatch size works for any number of devices. One device then needs no more memory
    # than in the run.
    count, shard = settings.pop("microbatches", None), _largest_shard(description)
    if isinstance(count, int) and shard and count > 0:
        settings["microbatch_size"] = -(-shard // count)
    if set(options) & {*BATCH_SIZES, *MICROBATCH_OPTIONS}:
        settings.update(dict.fromkeys(MICROBATCH_OPTIONS))
    if set(options) & set(BATCH_SIZES):
        settings.update(dict.fromkeys(BATCH_SIZES))
    shape = recorded_image_shape(description)
    if (
        shape is not None
        and shape[-1] >= SMALLEST_SIZE
        and settings.get("image_size") is None
        and accepts_option(str(settings.get("dataset")), "image_size")
    ):
        settings["image_size"] = shape[-1]  # the default size would depend on the current files
    # the quick recipe does not set normalize, so that the run's value is used
    settings["recipe"] = QUICK
    settings["normalize"] = description.used.get("normalize")
    try:
        TrainConfig(**settings)
    except ConfigError as error:
        raise ConfigError(f"{description.file} is damaged: {error}") from None
    config = TrainConfig(**{**settings, **NO_AUGMENTATION, "model": description.used["model"], **options})
    config = keep_recorded_resizer(config, description.used)
    if config.resizer == CYKOOZ != default_resizer():
        warn(
            f"{description.folder} was trained with images resized by cykooz.resizer, which is not "
            "installed: using Pillow, which rounds a few pixels differently"
        )
        config = config.replace(resizer=PILLOW)
    return config


def _largest_shard(description: RunDescription) -> Optional[int]:
    """Return the size of the largest shard that a replica got in the run; None if unknown."""
    copies, size = copy_count(description.used), description.used.get("global_batch_size")
    return -(-size // copies) if copies and isinstance(size, int) else None


def recorded_image_shape(description: RunDescription) -> Optional[Tuple[int, int, int]]:
    """Return (channels, height, width) of the run's images; None if the run did not record it."""
    shape = description.used.get("image_shape")
    if shape is not None and not (
        isinstance(shape, list) and len(shape) == 3 and all(type(side) is int for side in shape)
    ):
        raise ConfigError(f"{description.file} is damaged: image_shape {shape} is not valid")
    return None if shape is None else (shape[0], shape[1], shape[2])


def make_evaluation_plan(
    description: RunDescription,
    config: TrainConfig,
    dataset: Optional[Dataset] = None,
    components: UserComponents = NO_USER_COMPONENTS,
) -> Plan:
    """Make an evaluation's plan, and check that the data have the run's image shape and classes.

    ``dataset`` replaces the run's data. Raises a UsageError for a wrong setting.
    """
    plan = make_plan(config if components.net is None else config.replace(model=None), dataset, components=components)
    check_same_images(description, plan.dataset)
    return plan


def check_same_images(description: RunDescription, dataset: Dataset) -> None:
    """Raise ConfigError if the run was trained with another image shape or other classes."""
    folder, shape = description.folder, recorded_image_shape(description)
    if shape not in (None, dataset.image_shape):
        recorded, actual = ("x".join(map(str, sides)) for sides in (shape, dataset.image_shape))
        raise ConfigError(
            f"{dataset.name} has images of shape {actual}, but {folder} was trained on images of shape {recorded}: "
            f"evaluate the run on images of shape {recorded}"
        )
    difference = describe_class_changes(description.classes, dataset.classes)
    if difference:
        raise ConfigError(
            f"the classes of {dataset.name} differ from the classes on which {folder} was trained ({difference}): "
            "evaluate the run on the same classes in the same order"
        )


def load_trained(description: RunDescription, plan: Plan, loss: Optional[gluon.HybridBlock] = None) -> Strategy:
    """Return a strategy with the run's trained network; ``loss``: the user's loss, if any.

    Raises ModelError for parameters of a different network.
    """
    classes, file = len(plan.dataset.classes), description.parameters_file

    def make_trained_net(ctxs: List[mx.Context], start: Optional[List[mx.Context]] = None) -> gluon.HybridBlock:
        net = make_net(plan, ctxs, start)
        load_parameters(net, file, str(file), classes)
        return net

    return strategy_class(plan.parallelism.mode)(make_trained_net, make_loss(custom_loss=loss), plan, SINGLE_PROCESS)


def check_finite_parameters(description: RunDescription, strategy: Strategy) -> None:
    """Raise RunError for NaN or infinite parameters.

    With ReLU, the loss may be finite in spite of such parameters.
    """
    broken = nonfinite_parameters(strategy.net)
    if broken:
        file, names = description.parameters_file, shorten_names(broken)
        raise RunError(f"{file} contains NaN or infinity in {names}: {DIVERGED_HINT}")
