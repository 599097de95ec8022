"""Data sets by name."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, NamedTuple, Optional

from gluonlab.data import cifar, digits, idx, synthetic
from gluonlab.data.dataset import Dataset, Defaults
from gluonlab.errors import DataError, unknown


class DatasetKind(NamedTuple):
    """How a data set is loaded, and one line about it."""

    load: Callable[..., Dataset]
    summary: str


DATASETS: Dict[str, DatasetKind] = {
    "digits": DatasetKind(digits.load, "1,797 handwritten digits, built in: 28x28 grey, 10 classes"),
    "mnist": DatasetKind(
        idx.loader("mnist", idx.DIGITS, Defaults()), "70,000 handwritten digits from IDX files: 28x28 grey, 10 classes"
    ),
    "fashion-mnist": DatasetKind(
        idx.loader("fashion-mnist", idx.CLOTHES, Defaults(model="lenet-avg", batch_size=256, epochs=10, lr=0.2)),
        "70,000 pieces of clothing from IDX files: 28x28 grey, 10 classes",
    ),
    "cifar10": DatasetKind(cifar.load, "60,000 photographs: 32x32 in colour, 10 classes"),
    "synthetic": DatasetKind(synthetic.load, "random images with random labels, for measuring: 28x28 grey, 10 classes"),
}


def check_dataset(name: str) -> None:
    """Raise DataError, with the choices, when no data set has this name."""
    if name not in DATASETS:
        raise DataError(unknown("data set", name, DATASETS))


def load_dataset(name: str, root: Optional[str] = None, **options: Any) -> Dataset:
    """Read a data set: ``digits``, ``synthetic``, or ``mnist``, ``fashion-mnist`` and ``cifar10`` from the folder ``root``.

    ``root`` None is the usual folder, where `gluonlab.data.download` puts them: GLUONLAB_DATA, or ~/.cache/gluonlab.
    ``options`` go to the data set, such as ``samples`` and ``shape`` to ``synthetic``.
    Raises DataError for an unknown name, for missing or damaged files, and for a ``root`` that would not be used.
    """
    check_dataset(name)
    load = DATASETS[name].load
    if "root" in inspect.signature(load).parameters:
        options["root"] = root
    elif root is not None:
        from_files = [other for other, kind in DATASETS.items() if "root" in inspect.signature(kind.load).parameters]
        raise DataError(
            f"{name} is built in and reads no files from {root}: leave --data-dir out, or choose {', '.join(from_files)}"
        )
    return load(**options)
