"""--predict: the training of a config on a machine that is not here. Nothing is measured."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Optional, Tuple

from gluonlab.config import TrainConfig
from gluonlab.errors import ConfigError
from gluonlab.prediction.machines import find_machine
from gluonlab.prediction.networks import work_of
from gluonlab.prediction.outcome import Prediction
from gluonlab.prediction.predict import predict
from gluonlab.prediction.validate import as_dict, rows
from gluonlab.prediction.words import validation_text
from gluonlab.training.draft import Draft

TABLE = "table"
CLASSES = 1000  # of images of a given shape, as ImageNet has
SIDES = range(1, 4097)


def answer(name: str, config: TrainConfig, images: Optional[str], as_json: bool) -> str:
    """What to print: the prediction for the machine ``name``, or the table of published speeds."""
    if name == TABLE:
        found = rows()
        return json.dumps(as_dict(found)) if as_json else validation_text(found)
    prediction = predicted(name, config, images)
    return json.dumps(prediction.to_dict()) if as_json else prediction.text


def predicted(name: str, config: TrainConfig, images: Optional[str] = None) -> Prediction:
    """The training of ``config`` on the machine ``name``, such as p3.16xlarge*4.

    ``images``: their shape, as 3x224x224, where the data set's is not meant. Raises ConfigError for
    what no prediction is known for.
    """
    machine = find_machine(name)
    if config.split != "data":
        raise ConfigError(
            f"--split {config.split} has no prediction: leave it out, for data parallelism"
        )
    if config.devices is not None:
        raise ConfigError(
            f"--devices {config.devices} are this machine's: give --gpus N with --predict, or "
            "leave it out for all"
        )
    draft = Draft(replace(config, gpus=None))  # devices of this machine are not looked for
    settled = draft.config
    shape = _shape(images) if images else draft.dataset.image_shape
    classes = CLASSES if images else len(draft.dataset.classes)
    gpus = config.gpus or machine.topology.world_size
    batch_size = settled.batch_size or 1
    if settled.global_batch_size:
        batch_size = math.ceil(settled.global_batch_size / gpus)
    return predict(
        work_of(str(settled.model), classes, shape),
        name,
        batch_size,
        dtype=settled.dtype,
        store=settled.kvstore,
        gpus=config.gpus,
        tf32=bool(settled.tf32),
        overlap=settled.overlap,
    )


def _shape(text: str) -> Tuple[int, int, int]:
    parts = [int(part) for part in re.findall(r"\d{1,5}", text)]
    if not (re.fullmatch(r"\d+x\d+x\d+", text) and all(part in SIDES for part in parts)):
        raise ConfigError(
            f"--images {text}: give channels, height and width, each 1 to {SIDES[-1]}, as 3x224x224"
        )
    return parts[0], parts[1], parts[2]
