"""What a config says of image files; without MXNet, which packing them does not need."""

from __future__ import annotations

from typing import Any, Dict

from gluonlab.config import TrainConfig, option_name
from gluonlab.data.sets.registry import all_of_image_files, of_image_files
from gluonlab.errors import ConfigError


def file_options(config: TrainConfig) -> Dict[str, Any]:
    """The options of the data set's loader besides its folder, where it reads image files.

    Raises ConfigError for a setting that has no effect on other data sets.
    """
    names = ("image_size", "decoders", "skip_bad", "random_resized_crop", "val_share")
    options = {name: getattr(config, name) for name in names if getattr(config, name)}
    if of_image_files(config.dataset):
        return {**options, "memory": config.resident_bytes}
    for name in options:
        raise ConfigError(
            f"{option_name(name)} is for image files, and {config.dataset} has none: "
            f"leave it out, or choose {', '.join(all_of_image_files())}"
        )
    return {}
