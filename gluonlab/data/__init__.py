"""From the name of a data set to shards of its batches on the devices.

What is here is loaded when first asked for: the loader imports MXNet, which a login node that
downloads may lack, and a process that decodes images needs neither it nor the data sets.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gluonlab.data.loading.loader import Loader as Loader
    from gluonlab.data.sets.arrays import from_arrays as from_arrays
    from gluonlab.data.sets.dataset import ArraySplit as ArraySplit
    from gluonlab.data.sets.dataset import Dataset as Dataset
    from gluonlab.data.sets.dataset import Defaults as Defaults
    from gluonlab.data.sets.dataset import Split as Split
    from gluonlab.data.sets.gluon_data import from_datasets as from_datasets
    from gluonlab.data.sets.registry import DATASETS as DATASETS
    from gluonlab.data.sets.registry import load_dataset as load_dataset

_MODULES = {
    "DATASETS": "gluonlab.data.sets.registry",
    "ArraySplit": "gluonlab.data.sets.dataset",
    "Dataset": "gluonlab.data.sets.dataset",
    "Defaults": "gluonlab.data.sets.dataset",
    "Loader": "gluonlab.data.loading.loader",
    "Split": "gluonlab.data.sets.dataset",
    "from_arrays": "gluonlab.data.sets.arrays",
    "from_datasets": "gluonlab.data.sets.gluon_data",
    "load_dataset": "gluonlab.data.sets.registry",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'gluonlab.data' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
