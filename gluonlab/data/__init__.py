"""Data sets: downloads files, decodes images, and loads batches to the devices.

The names below are imported on first use. So a login node without MXNet can download data, and
decoder processes import neither MXNet nor the data sets.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gluonlab.data.loading.batch_loader import Loader as Loader
    from gluonlab.data.sets.array_dataset import from_arrays as from_arrays
    from gluonlab.data.sets.dataset import ArraySplit as ArraySplit
    from gluonlab.data.sets.dataset import Dataset as Dataset
    from gluonlab.data.sets.dataset import Defaults as Defaults
    from gluonlab.data.sets.dataset import Split as Split
    from gluonlab.data.sets.dataset_registry import DATASETS as DATASETS
    from gluonlab.data.sets.dataset_registry import load_dataset as load_dataset
    from gluonlab.data.sets.from_gluon_datasets import from_datasets as from_datasets

_MODULES = {
    "DATASETS": "gluonlab.data.sets.dataset_registry",
    "ArraySplit": "gluonlab.data.sets.dataset",
    "Dataset": "gluonlab.data.sets.dataset",
    "Defaults": "gluonlab.data.sets.dataset",
    "Loader": "gluonlab.data.loading.batch_loader",
    "Split": "gluonlab.data.sets.dataset",
    "from_arrays": "gluonlab.data.sets.array_dataset",
    "from_datasets": "gluonlab.data.sets.from_gluon_datasets",
    "load_dataset": "gluonlab.data.sets.dataset_registry",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'gluonlab.data' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
