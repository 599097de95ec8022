"""Loader options for image files, taken from a TrainConfig.

This module does not import MXNet, so that packing image files does not need MXNet.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Dict, Mapping, Optional

from gluonlab.config import TrainConfig, option_name
from gluonlab.data.images.resize_image import PILLOW, default_resizer
from gluonlab.data.sets.dataset_registry import has_image_files, image_file_datasets, is_packed_dataset
from gluonlab.errors import ConfigError, DataError

# setting -> argument of the functions that load image files
IMAGE_FILE_SETTINGS = {
    "image_size": "image_size", "workers": "decoders", "resizer": "resizer", "skip_corrupt": "skip_bad",
    "random_resized_crop": "random_resized_crop", "val_split": "val_share",
}  # fmt: skip


def image_file_options(config: TrainConfig) -> Dict[str, Any]:
    """Return the options of the image file loader, except the folder.

    Raises ConfigError if such an option is set but the data set has no image files.
    """
    options = {name: getattr(config, name) for name in IMAGE_FILE_SETTINGS if getattr(config, name)}
    if has_image_files(config.dataset):
        arguments = {IMAGE_FILE_SETTINGS[name]: value for name, value in options.items()}
        return {**arguments, "memory": config.device_cache_bytes}
    for name in options:
        raise ConfigError(
            f"{option_name(name)} works only with image files, but {config.dataset} has no image files: "
            f"remove {option_name(name)}, or choose another data set ({', '.join(image_file_datasets())})"
        )
    return {}


def choose_resizer(config: TrainConfig) -> Optional[str]:
    """Return the library that will resize the images of a config; None if no image is resized."""
    return config.resizer or (default_resizer() if _resizes_images(config) else None)


def keep_recorded_resizer(config: TrainConfig, recorded: Mapping[str, Any]) -> TrainConfig:
    """Return the config, with an earlier run's resizing library if the config names no library.

    ``recorded``: the settings in the run's config.json. Older versions resized with Pillow, and did
    not record the library.
    """
    if config.resizer is not None or not _resizes_images(config):
        return config
    return config.replace(resizer=recorded.get("resizer", PILLOW))


def _resizes_images(config: TrainConfig) -> bool:
    """Return True if image files are resized when they are loaded.

    Packed images are not resized.
    """
    with suppress(DataError):  # the files do not exist
        return has_image_files(config.dataset) and not is_packed_dataset(config.dataset, config.data_dir)
    return False
