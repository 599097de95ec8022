"""Predicts the training speed on a different machine (--predict), without measuring."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import replace
from typing import Dict, List, Optional, Tuple

import click
from click.core import ParameterSource

from gluonlab.config import TrainConfig
from gluonlab.config.train_config import option_name
from gluonlab.data.loading.split_batch import Microbatches
from gluonlab.errors import ConfigError
from gluonlab.performance_model.count_work import count_model_work
from gluonlab.performance_model.gpu_specifications import find_machine
from gluonlab.performance_model.predict_training import Prediction, predict
from gluonlab.performance_model.published_speeds import read_validation, validation_text
from gluonlab.plain_text import json_text
from gluonlab.training.plan import apply_recipe, load_data

PUBLISHED_TABLE = "table"
CUSTOM_SHAPE_CLASSES = 1000  # number of classes with --images; the same as ImageNet
IMAGE_SIDES = range(1, 4097)

# Each field of TrainConfig is in one of the following four collections.
# These settings are inputs of the prediction.
PREDICTED_SETTINGS = {
    "gpus", "dtype", "tf32", "dataset", "image_size", "model", "recipe", "batch_size",
    "global_batch_size", "microbatches", "microbatch_size", "optimizer", "momentum", "kvstore",
    "bucket_bytes", "backward_bulk_size",
}  # fmt: skip
# These settings change a step in a way that is not predicted. The report then mentions the reason.
CAUTIONS: Dict[str, str] = {
    "deterministic": "deterministic algorithms may be slower",
    "random_resized_crop": "images are assumed to be ready in time",
    "crop_padding": "augmentation is assumed to take no time",
    "flip": "augmentation is assumed to take no time",
    "mixup": "augmentation is assumed to take no time",
    "normalize": "augmentation is assumed to take no time",
    "workers": "images are assumed to be ready in time",
    "resizer": "images are assumed to be ready in time",
    "prefetch": "images are assumed to be ready in time",
    "device_cache_bytes": "images are assumed to be copied to the GPUs in every step",
    "sync_bn": "GPUs would also exchange means and variances, layer by layer",
    "no_bias_decay": "biases would be reduced in separate buckets",
    "clip_norm": "the update would also read all gradients for their norm",
    "on_nan": "a step would also wait for a check of the gradients",
    "check_replicas": "the steps that compare replicas would take longer",
}
_SPLIT_REASON = "only applies to other parallel strategies, which cannot be predicted"
_SUM_REASON = "changes the gradient reduction in a way that cannot be predicted"
# These settings change a step too much for a prediction. They raise a ConfigError.
REFUSED_SETTINGS: Dict[str, str] = {
    "strategy": "is not supported, because only data parallelism can be predicted", "pipeline_parallel": _SPLIT_REASON,
    "cut": _SPLIT_REASON, "balance": _SPLIT_REASON, "pipeline_schedule": _SPLIT_REASON,
    "stages_per_device": _SPLIT_REASON, "tensor_parallel": _SPLIT_REASON, "tensor_parallel_mode": _SPLIT_REASON,
    "threads": "only applies to CPU devices, but the predicted machines have GPUs",
    "devices": "selects devices of this machine, unlike --gpus N",
    "device_weights": "is for unequal devices, but all GPUs of a predicted machine are the same",
    "topology": "describes links that differ from those of the predicted machine",
    "compress": _SUM_REASON, "update_on_servers": _SUM_REASON,
}  # fmt: skip
# These settings do not change how long a step takes.
IRRELEVANT_SETTINGS = {
    "require_gpu", "seed", "data_dir", "skip_corrupt", "val_split", "pretrained", "epochs", "patience",
    "drop_last", "lr",
    "scale_lr", "lr_schedule", "warmup_epochs", "lr_decay", "lr_decay_epochs", "final_lr",
    "momentum_rule", "wd", "label_smoothing", "class_weights", "estimate_memory", "confusion", "export",
    "profile", "tensorboard", "checkpoint_every", "keep_checkpoints", "out",
}  # fmt: skip
MEASURING_OPTIONS = ("rounds", "no_tune")  # options of the command that affect measurements only


def prediction_text(name: str, config: TrainConfig, images: Optional[str], as_json: bool) -> str:
    """Return the text or JSON of a prediction, or of the table of published speeds.

    ``name``: a machine, or PUBLISHED_TABLE. Raises ConfigError for settings that have no
    prediction, and for options that do not apply.
    """
    _check_no_measuring_options()
    if name == PUBLISHED_TABLE:
        _check_no_settings(config, images)
        return json_text(read_validation().as_dict()) if as_json else validation_text()
    prediction = predict_config(name, config, images)
    return json_text(prediction.to_dict()) if as_json else prediction.text


def predict_config(name: str, config: TrainConfig, images: Optional[str] = None) -> Prediction:
    """Return the prediction for training ``config`` on a machine, such as p3.16xlarge*4.

    ``images``: the shape of an image, such as 3x224x224; by default the shape in the data set.
    Raises ConfigError for settings that have no prediction.
    """
    find_machine(name)  # raises an error for an unknown machine
    given_options = _given_options(config)
    for field, reason in REFUSED_SETTINGS.items():
        if field in given_options:
            raise ConfigError(f"{given_options[field]} {reason}: omit this option with --predict")
    if images and "image_size" in given_options:
        raise ConfigError(
            f"--images {images} and {given_options['image_size']} both set the image size: pass only one of them"
        )
    # apply_recipe does not search for the devices of this machine
    resolved = apply_recipe(config)
    used_config = resolved.config
    if images:
        shape, classes = _parse_image_shape(images), CUSTOM_SHAPE_CLASSES
    else:
        dataset = load_data(resolved, 1)
        shape, classes = dataset.image_shape, len(dataset.classes)
    prediction = predict(
        count_model_work(str(used_config.model), classes, shape), name, used_config.batch_size or 1,
        global_batch_size=used_config.global_batch_size,
        microbatches=Microbatches(used_config.microbatches, used_config.microbatch_size),
        dtype=used_config.dtype, tf32=bool(used_config.tf32),
        optimizer=str(used_config.optimizer).lower(), momentum=bool(used_config.momentum),
        overlap=used_config.backward_bulk_size, bucket_bytes=used_config.bucket_bytes,
        store=used_config.kvstore, gpus=config.gpus,
    )  # fmt: skip
    cautions = [
        f"{given_options[field]} is not part of the prediction: {reason}"
        for field, reason in CAUTIONS.items()
        if field in given_options
    ]
    return replace(prediction, cautions=(*prediction.cautions, *cautions))


def _given_options(config: TrainConfig) -> Dict[str, str]:
    """Return the settings that differ from their defaults, as options with values."""
    options = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if value != field.default:
            option = option_name(field.name)
            options[field.name] = option if value is True else f"{option} {value}"
    return options


def _check_no_settings(config: TrainConfig, images: Optional[str]) -> None:
    """Raise ConfigError if training settings are given with the table of published speeds."""
    given_options: List[str] = list(_given_options(config).values())
    if images is not None:
        given_options.append(f"--images {images}")
    if given_options:
        raise ConfigError(
            f"--predict {PUBLISHED_TABLE} prints published training speeds, so it accepts no settings: omit "
            f"{', '.join(given_options)}, or pass a machine, such as --predict p3.16xlarge"
        )


def _check_no_measuring_options() -> None:
    """Raise ConfigError if the command line has an option that only affects measurements."""
    context = click.get_current_context(silent=True)
    for name in MEASURING_OPTIONS:
        if context and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise ConfigError(
                f"{option_name(name)} applies only to measurements, but --predict measures nothing: "
                "omit one of the two options"
            )


def _parse_image_shape(text: str) -> Tuple[int, int, int]:
    """Parse channels, height and width, such as ``3x224x224``. Raises ConfigError."""
    numbers = [int(number) for number in re.findall(r"\d{1,5}", text)]
    if not (re.fullmatch(r"\d+x\d+x\d+", text) and all(number in IMAGE_SIDES for number in numbers)):
        raise ConfigError(
            f"--images {text}: must be channels, height and width, each from 1 to {IMAGE_SIDES[-1]}, such as 3x224x224"
        )
    return numbers[0], numbers[1], numbers[2]
