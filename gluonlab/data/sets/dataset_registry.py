"""Data sets by name."""

from __future__ import annotations

import inspect
import os
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

from gluonlab.config.option_types import DECODERS, IMAGE_SIZE, SHARE, whole_number_check
from gluonlab.data.sets import csv_and_record_files, image_files, image_folder, standard_datasets
from gluonlab.data.sets.dataset import Dataset, Defaults
from gluonlab.data.sets.packed_folder import is_packed
from gluonlab.errors import DataError, unknown


class DatasetKind(NamedTuple):
    """How a data set is loaded, one line about it, and what it has by default.

    ``find``, of a data set of image files: their folder, from --data-dir (None: the usual folder)
    or from the path in the data set's name. Raises DataError.
    """

    load: Callable[..., Dataset]
    summary: str
    defaults: Defaults
    find: Optional[Callable[..., Path]] = None


GREY = "28x28 grey, 10 classes"
DATASETS: Dict[str, DatasetKind] = {
    "digits": DatasetKind(
        standard_datasets.load_digits,
        f"1,797 handwritten digits, built in: {GREY}",
        standard_datasets.DIGITS_DEFAULTS,
    ),
    "mnist": DatasetKind(
        partial(
            standard_datasets.load_idx,
            "mnist",
            standard_datasets.DIGIT_CLASSES,
            standard_datasets.MNIST_DEFAULTS,
        ),
        f"70,000 handwritten digits from IDX files: {GREY}",
        standard_datasets.MNIST_DEFAULTS,
    ),
    "fashion-mnist": DatasetKind(
        partial(
            standard_datasets.load_idx,
            "fashion-mnist",
            standard_datasets.CLOTHES,
            standard_datasets.FASHION_MNIST_DEFAULTS,
        ),
        f"70,000 pieces of clothing from IDX files: {GREY}",
        standard_datasets.FASHION_MNIST_DEFAULTS,
    ),
    "cifar10": DatasetKind(
        standard_datasets.load_cifar10,
        "60,000 photographs: 32x32 in colour, 10 classes",
        standard_datasets.CIFAR_DEFAULTS,
    ),
    **{
        name: DatasetKind(
            partial(image_folder.load_imagenette, name),
            image_folder.imagenette_summary(name),
            image_files.DEFAULTS,
            partial(image_folder.find_imagenette, name),
        )
        for name in image_folder.IMAGENETTE_NAMES
    },
    "folder:PATH": DatasetKind(
        image_folder.load,
        "your own images: PATH/train/CLASS/*, PATH/val/CLASS/*; or PATH/CLASS/*, with --val-share",
        image_files.DEFAULTS,
        Path,
    ),
    "record:FILE": DatasetKind(
        csv_and_record_files.load_records,
        "your own records, made by MXNet's im2rec: train.rec, and val.rec or --val-share",
        image_files.DEFAULTS,
        Path,
    ),
    "list:FILE": DatasetKind(
        csv_and_record_files.load_list,
        "your own lists of image,label: train.csv, and val.csv or --val-share",
        image_files.DEFAULTS,
        Path,
    ),
    "synthetic": DatasetKind(
        standard_datasets.load_synthetic,
        f"random images with random labels, for measuring, as many as a batch needs: {GREY}",
        standard_datasets.SYNTHETIC_DEFAULTS,
    ),
}
# what data sets of image files take beside the parameters of their loaders
DECODING = set(inspect.signature(image_files.decoded).parameters) - {"images", "name"}
# what options of a data set may be
CHECKS = {
    "image_size": IMAGE_SIZE, "decoders": DECODERS, "val_share": SHARE, "samples": whole_number_check(1),
    "classes": whole_number_check(1),
}  # fmt: skip
# what is behind the colon of a name is a path
OF_PATHS = {name.partition(":")[0]: name for name in DATASETS if ":" in name}


def find_kind(name: str) -> Tuple[DatasetKind, Dict[str, str]]:
    """How the data set of this name is loaded, and with which options.

    Raises DataError, with the choices, when there is none.
    """
    prefix, _, path = str(name).partition(":")
    if prefix in OF_PATHS and path.strip():
        try:
            # no shell does it behind a colon
            return DATASETS[OF_PATHS[prefix]], {"path": str(Path(path).expanduser())}
        except RuntimeError:
            raise DataError(f"{name} names an unknown home folder: write the full path") from None
    if name not in DATASETS:
        if os.path.isdir(str(name)):
            raise DataError(f"data set {str(name)!r} is a folder: write folder:{name}")
        kinds = {
            csv_and_record_files.RECORD_ENDING: csv_and_record_files.RECORD_KIND,
            csv_and_record_files.LIST_ENDING: csv_and_record_files.LIST_KIND,
        }
        kind = kinds.get(Path(str(name)).suffix.lower())
        if kind is not None:
            missing = "" if os.path.isfile(str(name)) else ", and does not exist"
            raise DataError(f"data set {str(name)!r} is a file{missing}: write {kind}:{name}")
        raise DataError(unknown("data set", name, DATASETS))
    return DATASETS[name], {}


def check_dataset(name: str) -> None:
    """Raise DataError, with the choices, when no data set has this name."""
    find_kind(name)


def takes(name: str, option: str) -> bool:
    """Whether the data set's loader knows this option."""
    return option in _options(find_kind(name)[0])


def _options(kind: DatasetKind) -> Set[str]:
    own = set(inspect.signature(kind.load).parameters)
    return own if kind.find is None else (own - {"options"}) | DECODING


def of_image_files(name: str) -> bool:
    """Whether the data set is decoded from files of images, or was."""
    return find_kind(name)[0].find is not None


def is_cut_already(name: str, root: Optional[str] = None) -> bool:
    """Whether the data set's images were packed, so that no other parts can be cut from files.

    Raises DataError.
    """
    kind, named = find_kind(name)
    return kind.find is not None and is_packed(kind.find(named.get("path", root)))


def all_of_image_files() -> List[str]:
    """The names to choose from where image files are needed."""
    return [name for name in DATASETS if of_image_files(name)]


def load_dataset(name: str, root: Optional[str] = None, **options: Any) -> Dataset:
    """Read a data set by its name, from files in the folder ``root`` or from the path in it.

    ``root`` None is the usual folder, where `gluonlab.data.fetching.download` puts them:
    GLUONLAB_DATA, or ~/.cache/gluonlab. ``options`` go to the data set, such as ``samples`` and
    ``shape`` to ``synthetic``. Raises DataError for an unknown name or option, for missing or
    damaged files, and for a ``root`` that would not be used; ConfigError for an impossible value.
    """
    kind, named = find_kind(name)
    known = _options(kind) - {"root", *named}
    for option, value in options.items():
        if option not in known:
            if not known:
                raise DataError(f"{name} has no option {option!r}, and no others: leave it out")
            raise DataError(unknown(f"option of {name}", option, known))
        if option in CHECKS and value is not None:
            options[option] = CHECKS[option](option, value)
    if takes(name, "root"):
        options["root"] = root
    elif root is not None:
        choices = ", ".join(other for other in DATASETS if takes(other, "root"))
        why = (
            "is read from the path in its name, not" if named else "is built in and reads no files"
        )
        raise DataError(f"{name} {why} from {root}: leave --data-dir out, or choose {choices}")
    return kind.load(**named, **options)
