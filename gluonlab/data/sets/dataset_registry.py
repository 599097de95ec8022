"""Registry of all data sets by name, and `load_dataset`, which loads a data set."""

from __future__ import annotations

import inspect
import os
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

from gluonlab.config.option_checks import DECODERS, IMAGE_SIZE, SHARE, whole_number_check
from gluonlab.data.sets import csv_and_record_files, image_file_dataset, image_folder, standard_datasets
from gluonlab.data.sets.dataset import Dataset, Defaults
from gluonlab.data.sets.packed_folder import is_packed
from gluonlab.errors import DataError, unknown


class DatasetKind(NamedTuple):
    """A function that loads a data set, with the data set's summary and default settings.

    ``find``: only for data sets of image files, a function that returns the path of the files. The
    argument of the function is --data-dir (None for the default folder), or the path in the data
    set's name. The function raises DataError on failure.
    """

    load: Callable[..., Dataset]
    summary: str
    defaults: Defaults
    find: Optional[Callable[..., Path]] = None


GRAY_SUMMARY = "28x28 gray, 10 classes"
DATASETS: Dict[str, DatasetKind] = {
    "digits": DatasetKind(
        standard_datasets.load_digits,
        f"1,797 handwritten digits, built in: {GRAY_SUMMARY}",
        standard_datasets.DIGITS_DEFAULTS,
    ),
    "mnist": DatasetKind(
        partial(standard_datasets.load_idx, "mnist", standard_datasets.DIGIT_CLASSES, standard_datasets.MNIST_DEFAULTS),
        f"70,000 handwritten digits from IDX files: {GRAY_SUMMARY}",
        standard_datasets.MNIST_DEFAULTS,
    ),
    "fashion-mnist": DatasetKind(
        partial(
            standard_datasets.load_idx,
            "fashion-mnist",
            standard_datasets.CLOTHING_CLASSES,
            standard_datasets.FASHION_MNIST_DEFAULTS,
        ),
        f"70,000 pieces of clothing from IDX files: {GRAY_SUMMARY}",
        standard_datasets.FASHION_MNIST_DEFAULTS,
    ),
    "cifar10": DatasetKind(
        standard_datasets.load_cifar10,
        "60,000 photographs: 32x32 in color, 10 classes",
        standard_datasets.CIFAR_DEFAULTS,
    ),
    **{
        name: DatasetKind(
            partial(image_folder.load_imagenette, name),
            image_folder.imagenette_summary(name),
            image_file_dataset.DEFAULTS,
            partial(image_folder.find_imagenette, name),
        )
        for name in image_folder.IMAGENETTE_NAMES
    },
    "folder:PATH": DatasetKind(
        image_folder.load_folder,
        "your own images: PATH/train/CLASS/*, PATH/val/CLASS/*; or PATH/CLASS/*, with --val-split",
        image_file_dataset.DEFAULTS,
        Path,
    ),
    "record:FILE": DatasetKind(
        csv_and_record_files.load_records,
        "your own records, created by MXNet's im2rec: train.rec, and val.rec or --val-split",
        image_file_dataset.DEFAULTS,
        Path,
    ),
    "list:FILE": DatasetKind(
        csv_and_record_files.load_list,
        "your own lists of image,label: train.csv, and val.csv or --val-split",
        image_file_dataset.DEFAULTS,
        Path,
    ),
    "synthetic": DatasetKind(
        standard_datasets.load_synthetic,
        f"random images with random labels, for benchmarks, as many as a batch needs: {GRAY_SUMMARY}",
        standard_datasets.SYNTHETIC_DEFAULTS,
    ),
}
# options that all data sets of image files have, in addition to the parameters of their ``load``
DECODING_OPTIONS = set(inspect.signature(image_file_dataset.make_image_dataset).parameters) - {"images", "name"}
# name of an option -> check of its value
OPTION_CHECKS = {
    "image_size": IMAGE_SIZE, "decoders": DECODERS, "val_share": SHARE,
    "samples": whole_number_check(1), "classes": whole_number_check(1),
}  # fmt: skip
# prefix -> name, for names that contain a path, such as folder:PATH
PATH_DATASETS = {name.partition(":")[0]: name for name in DATASETS if ":" in name}


def find_dataset_kind(name: str) -> Tuple[DatasetKind, Dict[str, str]]:
    """Return the registered kind of a data set, and the options in its name, such as a path.

    Raises DataError for an unknown name. The message lists the choices.
    """
    prefix, _, path = str(name).partition(":")
    if prefix in PATH_DATASETS and path.strip():
        try:
            # a shell does not expand ~ after a colon
            return DATASETS[PATH_DATASETS[prefix]], {"path": str(Path(path).expanduser())}
        except RuntimeError:
            raise DataError(f"{name} names an unknown home directory: use the full path") from None
    if name not in DATASETS:
        if os.path.isdir(str(name)):
            raise DataError(f"data set {str(name)!r} is a folder: use folder:{name}")
        kinds = {
            csv_and_record_files.RECORD_ENDING: csv_and_record_files.RECORD_KIND,
            csv_and_record_files.LIST_ENDING: csv_and_record_files.LIST_KIND,
        }
        kind = kinds.get(Path(str(name)).suffix.lower())
        if kind is not None:
            if not os.path.isfile(str(name)):
                raise DataError(f"data set {str(name)!r}: there is no such file: use {kind}:FILE with an existing file")
            raise DataError(f"data set {str(name)!r} is a file: use {kind}:{name}")
        raise DataError(unknown("data set", name, DATASETS))
    return DATASETS[name], {}


def check_dataset(name: str) -> None:
    """Raise DataError if no data set has this name. The message lists the choices."""
    find_dataset_kind(name)


def accepts_option(name: str, option: str) -> bool:
    """Return whether the function that loads the data set has this option."""
    return option in _loader_options(find_dataset_kind(name)[0])


def _loader_options(kind: DatasetKind) -> Set[str]:
    parameters = set(inspect.signature(kind.load).parameters)
    return parameters if kind.find is None else (parameters - {"options"}) | DECODING_OPTIONS


def has_image_files(name: str) -> bool:
    """Return whether the data set is read from image files, or was packed from image files."""
    return find_dataset_kind(name)[0].find is not None


def is_packed_dataset(name: str, root: Optional[str] = None) -> bool:
    """Return whether the data set is packed, so that its images cannot be cropped again.

    Raises DataError if the data set is missing.
    """
    kind, options = find_dataset_kind(name)
    return kind.find is not None and is_packed(kind.find(options.get("path", root)))


def image_file_datasets() -> List[str]:
    """Return the names of the data sets that consist of image files."""
    return [name for name in DATASETS if has_image_files(name)]


def load_dataset(name: str, root: Optional[str] = None, **options: Any) -> Dataset:
    """Load a data set by name.

    Args:
        name: The name of a data set, such as ``"mnist"``, or ``"folder:PATH"``, ``"record:FILE"``
            or ``"list:FILE"`` for your own images.
        root: The folder that contains the files. The default is the folder to which ``gluonlab
            data`` downloads.
        options: Options of the data set, such as ``image_size`` for image files.

    Returns:
        The data set, with the training images as ``train`` and the validation images as ``val``.

    Raises:
        DataError: The name or an option is unknown, a file is missing or damaged, or the data set
            does not use ``root``.
        ConfigError: The value of an option is invalid.
    """
    kind, name_options = find_dataset_kind(name)
    known_options = _loader_options(kind) - {"root", *name_options}
    for option, value in options.items():
        if option not in known_options:
            if not known_options:
                raise DataError(f"{name} has no options, but {option!r} was set: omit {option!r}")
            raise DataError(unknown(f"option of {name}", option, known_options))
        if option in OPTION_CHECKS and value is not None:
            options[option] = OPTION_CHECKS[option](option, value)
    if accepts_option(name, "root"):
        options["root"] = root
    elif root is not None:
        choices = ", ".join(other for other in DATASETS if accepts_option(other, "root"))
        reason = "is read from the path in its name, not" if name_options else "is built in and reads no files"
        raise DataError(f"{name} {reason} from {root}: omit --data-dir, or choose {choices}")
    return kind.load(**name_options, **options)
