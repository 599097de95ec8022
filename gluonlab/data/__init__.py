"""From the name of a data set to shards of its batches on the devices."""

from typing import TYPE_CHECKING, Any

from gluonlab.data.sets.arrays import from_arrays
from gluonlab.data.sets.dataset import ArraySplit, Dataset, Defaults, Split
from gluonlab.data.sets.registry import DATASETS, load_dataset

if TYPE_CHECKING:
    from gluonlab.data.loading.loader import Loader as Loader

__all__ = [
    "DATASETS",
    "ArraySplit",
    "Dataset",
    "Defaults",
    "Loader",
    "Split",
    "from_arrays",
    "load_dataset",
]


def __getattr__(name: str) -> Any:
    if name != "Loader":
        raise AttributeError(f"module 'gluonlab.data' has no attribute {name!r}")
    # imports MXNet, which a login node that downloads may lack
    from gluonlab.data.loading.loader import Loader

    return Loader
