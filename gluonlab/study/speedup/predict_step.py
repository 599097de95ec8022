"""--predict: the training of a config on a machine that is not here. Nothing is measured."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import replace
from typing import Dict, List, Optional, Tuple

import click
from click.core import ParameterSource

from gluonlab.config import TrainConfig
from gluonlab.config.train_config import option_name
from gluonlab.errors import ConfigError
from gluonlab.parallel.data.microbatches import Microbatches
from gluonlab.performance_model.count_work import count_model_work
from gluonlab.performance_model.gpu_specifications import find_machine
from gluonlab.performance_model.predict_training import Prediction, predict
from gluonlab.performance_model.published_speeds import read_validation, validation_text
from gluonlab.plain_text import json_text
from gluonlab.training.plan import fill_gaps, load_data

TABLE = "table"
CLASSES = 1000  # of images of a given shape, as ImageNet has
SIDES = range(1, 4097)

# What becomes of each setting: every field of TrainConfig is in one of these four.
PRICED = {
    "gpus", "dtype", "tf32", "dataset", "image_size", "model", "recipe", "batch_size",
    "global_batch_size", "microbatches", "microbatch_size", "optimizer", "momentum", "kvstore",
    "bucket_bytes", "overlap",
}  # fmt: skip
# It would change the step, and the prediction does not know how: said if it is given.
SAID: Dict[str, str] = {
    "deterministic": "algorithms that repeat their bits may be slower",
    "random_resized_crop": "images are taken to be ready in time",
    "crop_padding": "images are taken to be changed in no time",
    "flip": "images are taken to be changed in no time",
    "mixup": "images are taken to be changed in no time",
    "normalise": "images are taken to be changed in no time",
    "decoders": "images are taken to be ready in time",
    "resizer": "images are taken to be ready in time",
    "prefetch": "images are taken to be ready in time",
    "resident_bytes": "images are taken to be copied to the GPUs in every step",
    "sync_bn": "GPUs would also exchange means and variances, layer by layer",
    "no_bias_decay": "biases would be summed in buckets of their own",
    "clip_norm": "the update would also read all gradients for their norm",
    "on_nan": "the host would also wait for a check of the gradients",
    "check_replicas": "the steps in which replicas are compared would take longer",
}
_SPLITS = "belongs to another --split, which has no prediction"
_SUMS = "changes the sum of gradients in a way that has no prediction"
# It would change the step so much that a prediction without it would be another training's.
REFUSED: Dict[str, str] = {
    "split": "has no prediction, which is of data parallelism",
    "stages": _SPLITS, "cut": _SPLITS, "balance": _SPLITS, "pipeline_schedule": _SPLITS,
    "stages_per_device": _SPLITS, "ways": _SPLITS, "channels": _SPLITS,
    "threads": "is of CPU devices, and the machines that are predicted have GPUs",
    "devices": "names this machine's devices: give --gpus N with --predict",
    "device_weights": "is for unequal devices, and the GPUs of a machine here are alike",
    "topology": "places by other links than those of the machine that is predicted",
    "compress": _SUMS, "update_on_servers": _SUMS,
}  # fmt: skip
# A step takes as long with it, or it is no part of a step.
WITHOUT_INFLUENCE = {
    "require_gpu", "seed", "data_dir", "skip_bad", "val_share", "pretrained", "epochs", "patience",
    "drop_last", "lr",
    "scale_lr", "lr_schedule", "warmup_epochs", "lr_decay", "lr_decay_epochs", "final_lr",
    "momentum_rule", "wd", "label_smoothing", "class_weights", "memory", "confusion", "export",
    "profile", "tensorboard", "checkpoint_every", "keep", "out",
}  # fmt: skip
MEASURING = ("rounds", "no_trial")  # options of the command that say how to measure


def answer(name: str, config: TrainConfig, images: Optional[str], as_json: bool) -> str:
    """What to print: the prediction for the machine ``name``, or the table of published speeds.

    Raises ConfigError for what no prediction is known for, and for options that it has no use for.
    """
    _refuse_measuring()
    if name == TABLE:
        _refuse_any(config, images)
        return json_text(read_validation().as_dict()) if as_json else validation_text()
    prediction = predicted(name, config, images)
    return json_text(prediction.to_dict()) if as_json else prediction.text


def predicted(name: str, config: TrainConfig, images: Optional[str] = None) -> Prediction:
    """The training of ``config`` on the machine ``name``, such as p3.16xlarge*4.

    ``images``: their shape, as 3x224x224, where the data set's is not meant. Raises ConfigError for
    what no prediction is known for.
    """
    find_machine(name)  # whether there is one
    given = _given(config)
    for field, reason in REFUSED.items():
        if field in given:
            raise ConfigError(f"{given[field]} {reason}: leave it out with --predict")
    if images and "image_size" in given:
        raise ConfigError(
            f"--images {images} and {given['image_size']} both say how large images are: give one"
        )
    # devices of this machine are not looked for
    resolved = fill_gaps(config)
    used = resolved.config
    if images:
        shape, classes = _shape(images), CLASSES
    else:
        dataset = load_data(resolved, 1)
        shape, classes = dataset.image_shape, len(dataset.classes)
    prediction = predict(
        count_model_work(str(used.model), classes, shape),
        name,
        used.batch_size or 1,
        global_batch_size=used.global_batch_size,
        microbatches=Microbatches(used.microbatches, used.microbatch_size),
        dtype=used.dtype,
        tf32=bool(used.tf32),
        optimizer=str(used.optimizer).lower(),
        momentum=bool(used.momentum),
        overlap=used.overlap,
        bucket_bytes=used.bucket_bytes,
        store=used.kvstore,
        gpus=config.gpus,
    )
    said = [f"{given[field]} is not priced: {why}" for field, why in SAID.items() if field in given]
    return replace(prediction, cautions=(*prediction.cautions, *said))


def _given(config: TrainConfig) -> Dict[str, str]:
    """The settings that are not the default's, as options with their values."""
    found = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if value != field.default:
            option = option_name(field.name)
            found[field.name] = option if value is True else f"{option} {value}"
    return found


def _refuse_any(config: TrainConfig, images: Optional[str]) -> None:
    given: List[str] = list(_given(config).values())
    if images is not None:
        given.append(f"--images {images}")
    if given:
        raise ConfigError(
            f"--predict {TABLE} has the published trainings, not one of yours: leave "
            f"{', '.join(given)} out, or give a machine, such as --predict p3.16xlarge"
        )


def _refuse_measuring() -> None:
    """Their defaults are no None, so the command's context alone knows whether they were given."""
    context = click.get_current_context(silent=True)
    for name in MEASURING:
        if context and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise ConfigError(
                f"{option_name(name)} says how to measure, and --predict measures nothing: leave "
                "one of them out"
            )


def _shape(text: str) -> Tuple[int, int, int]:
    parts = [int(part) for part in re.findall(r"\d{1,5}", text)]
    if not (re.fullmatch(r"\d+x\d+x\d+", text) and all(part in SIDES for part in parts)):
        raise ConfigError(
            f"--images {text}: give channels, height and width, each 1 to {SIDES[-1]}, as 3x224x224"
        )
    return parts[0], parts[1], parts[2]
